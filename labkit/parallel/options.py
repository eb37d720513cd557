"""How the model of a run is transformed: the part of its configuration that labkit.parallel reads."""

from typing import Literal

from labkit.precision.config import PrecisionConfig
from labkit.strict import Config, CountOrOff


class TransformConfig(Config):
    """The settings that `labkit.parallel.transforms.prepare` reads. A TrainConfig is one."""

    precision: PrecisionConfig = PrecisionConfig()
    activation_checkpointing: Literal["none", "block"] = "none"
    reshard_after_forward: bool = True  # False: FSDP2 keeps a block's weights for its backward
    compile: bool = False
    attention: Literal["auto", "flash", "cudnn"] = "auto"  # which kernel; auto: torch's choice
    loss_chunk: CountOrOff = 0  # tokens whose logits are held at a time; 0: all at once
