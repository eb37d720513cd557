"""Which blocks (`Transformer(config, layers=...)`) each stage of a pipeline has; the last, with the head, gets fewer."""

import math

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.flops import linear_params


def stage_layers(config: ModelConfig, stages: int, stage: int) -> range:
    """Stage `stage`'s blocks, so that the slowest stage's products are fewest. LabError: fewer blocks than stages."""
    if not 0 <= stage < stages:
        raise LabError(f"there is no stage {stage} of {stages}")
    if stages > config.n_layers:
        raise LabError(f"{config.n_layers} blocks cannot be {stages} stages: each stage has one at least")
    if stages == 1:
        return range(config.n_layers)
    head_size = config.vocab_size * config.d_model
    head = head_size * config.n_layers / (linear_params(config) - head_size)
    others = stages - 1
    # How many blocks the last stage has: the heaviest stage is as light as can be, and of such numbers the largest.
    choices = range(config.n_layers - others, 0, -1)
    last = min(choices, key=lambda blocks: max(blocks + head, math.ceil((config.n_layers - blocks) / others)))
    rest = config.n_layers - last
    cuts = [rest * k // others for k in range(stages)]
    return range(rest, config.n_layers) if stage == others else range(cuts[stage], cuts[stage + 1])
