"""Typed configs. A run is described by one TOML file; a wrong file is refused in one sentence before anything starts.

    model = "tiny"                 # a name from `sizes()`, or a [model] table with every field
    steps = 200
    [data]
    source = "python"
    [precision]
    backend = "torchao"

Three rules, so that a typo never becomes a silent default: an unknown key is an error that names the nearest valid key;
types are strict ("8" is not 8, and true is not 1); and fields that must agree with one another are checked together.
Everything here raises `LabError`. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from labkit.precision.config import PrecisionConfig
from labkit.strict import Config, load_toml, nearest, require, strict_validate

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "PrecisionConfig",
    "TrainConfig",
    "load_toml",
    "sizes",
    "strict_validate",
]

Count = Annotated[int, Field(ge=1)]
CountOrOff = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


SOURCES = ("python", "python+packages")


class ModelConfig(Config):
    """The decoder's shape. `d_head` = d_model / n_heads follows from it."""

    vocab_size: Count
    d_model: Count
    n_layers: Count
    n_heads: Count
    n_kv_heads: Count
    d_ffn: Count
    max_seq_len: Count
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    tie_embeddings: bool = False

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @model_validator(mode="after")
    def _fits(self) -> ModelConfig:
        require(
            self.d_model % self.n_heads == 0, f"d_model ({self.d_model}) must be a multiple of n_heads ({self.n_heads})"
        )
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads}): "
            "each key/value head serves the same number of query heads",
        )
        require(
            self.d_head % 2 == 0,
            f"d_model / n_heads ({self.d_head}) must be even: rotary embedding turns the features in pairs",
        )
        return self


class DataConfig(Config):
    """Where the tokens come from; see `labkit.train.data.corpus`."""

    source: Annotated[  # "python", "python+packages", or a list of paths
        Annotated[str, Tag("<name>")] | Annotated[list[str], Tag("<list>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<name>"),
    ] = "python"
    vocab_size: Annotated[int, Field(ge=257)] = 4096  # in a TrainConfig, unless given: the model's
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    max_bytes: Count | None = None  # None: all of the source
    suffixes: Annotated[list[str], Field(min_length=1)] = [".py"]

    @model_validator(mode="after")
    def _known_source(self) -> DataConfig:
        require(
            isinstance(self.source, list) or self.source in SOURCES,
            f'source = {self.source!r} is not a source: write "python", "python+packages", '
            'or a list of folders and files, as in ["~/my_texts"]',
        )
        require(self.source != [], "source is an empty list: name a folder or a file")
        return self


class TrainConfig(Config):
    """One training run. Sizes are global: they do not depend on how many ranks share the work."""

    model: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[ModelConfig, Tag("<table>")],
        Discriminator(lambda value: "<table>" if isinstance(value, dict | ModelConfig) else "<name>"),
    ] = "tiny"
    data: DataConfig = DataConfig()
    precision: PrecisionConfig = PrecisionConfig()

    steps: Count = 200
    seq_len: Count = 256
    batch_size: Count = 8  # sequences per optimizer step, over all ranks
    accumulation: Count = 1  # micro-batches per optimizer step
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    lr: Annotated[float, Field(gt=0)] = 1e-3
    min_lr_ratio: Fraction = 0.1  # cosine ends at lr * min_lr_ratio
    warmup_steps: CountOrOff = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    betas: Annotated[tuple[float, float], Field(strict=False)] = (0.9, 0.95)
    adam_eps: Annotated[float, Field(gt=0)] = 1e-8
    clip_norm: Annotated[float, Field(ge=0)] = 1.0  # 0: off

    eval_every: CountOrOff = 25  # 0: off, as in the other *_every fields
    eval_batches: Count = 4
    probe_every: CountOrOff = 0  # write the precision backend's scales
    checkpoint_every: CountOrOff = 0
    keep_checkpoints: Count = 2

    activation_checkpointing: Literal["none", "block"] = "none"
    reduce_once: bool = False  # True: FSDP2 reduces a step's gradients once, at its end;
    #                                                           a model that is not sharded has nothing to reduce
    reshard_after_forward: bool = True  # False: FSDP2 keeps a block's weights for its backward
    compile: bool = False
    attention: Literal["auto", "flash", "cudnn"] = "auto"  # which kernel; auto: torch's choice
    loss_chunk: CountOrOff = 0  # tokens whose logits are held at a time; 0: all at once
    perturb: Annotated[float, Field(ge=0, lt=1)] = 0.0  # relative; the twin run uses 2**-9, bf16's rounding
    perturb_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # two twins need two

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if isinstance(self.model, str):
            require(self.model in sizes(), f"model = {self.model!r} is not a known size{nearest(self.model, sizes())}")
        model = self.resolved_model
        require(
            self.seq_len <= model.max_seq_len,
            f"seq_len ({self.seq_len}) must not exceed the model's max_seq_len ({model.max_seq_len})",
        )
        require(
            self.batch_size % self.accumulation == 0,
            f"batch_size ({self.batch_size}) must be a multiple of accumulation ({self.accumulation})",
        )
        require(
            self.warmup_steps <= self.steps, f"warmup_steps ({self.warmup_steps}) must not exceed steps ({self.steps})"
        )
        require(all(0 <= beta < 1 for beta in self.betas), f"betas {list(self.betas)} must lie in [0, 1)")
        if self.precision.schedule:
            first, last = self.precision.schedule.bf16_steps(self.steps)
            require(
                first + last > 0,
                "[precision.schedule] has no step in BF16: give bf16_first or bf16_last a number "
                "of steps (20) or a share of them (0.1), or leave the schedule out",
            )
            require(
                first + last < self.steps,
                f"[precision.schedule] leaves no step in FP8: bf16_first ({first}) and bf16_last ({last}) are all "
                f"of the {self.steps} steps; to train in BF16 alone take backend bf16",
            )
        if "vocab_size" not in self.data.model_fields_set:
            data = self.data.replace(vocab_size=model.vocab_size)
            data.model_fields_set.discard("vocab_size")  # so that replace(model=...) follows the new model
            object.__setattr__(self, "data", data)  # the instance is frozen for everyone else
        require(
            self.data.vocab_size <= model.vocab_size,
            f"[data] vocab_size ({self.data.vocab_size}) must not exceed the model's ({model.vocab_size})",
        )
        return self

    @property
    def resolved_model(self) -> ModelConfig:
        """The shape itself, also where `model` is a name."""
        return sizes()[self.model] if isinstance(self.model, str) else self.model


def sizes() -> dict[str, ModelConfig]:
    """The named decoder shapes: `tiny` (1.3 M parameters), `124m`, `1b` (1.14 B), `8b` (Llama-3-8B's shape)."""
    return dict(_SIZES)


_SIZES = {
    "tiny": ModelConfig(vocab_size=2048, d_model=128, n_layers=4, n_heads=4, n_kv_heads=2, d_ffn=384, max_seq_len=256),
    "124m": ModelConfig(
        vocab_size=50304,
        d_model=768,
        n_layers=12,
        n_heads=12,
        n_kv_heads=12,
        d_ffn=2048,
        max_seq_len=2048,
        tie_embeddings=True,
    ),
    "1b": ModelConfig(
        vocab_size=32768,
        d_model=2048,
        n_layers=16,
        n_heads=16,
        n_kv_heads=8,
        d_ffn=8192,
        max_seq_len=8192,
        rope_theta=500_000.0,
    ),
    # Llama-3-8B: arXiv:2407.21783, table 3.
    "8b": ModelConfig(
        vocab_size=128256,
        d_model=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=8,
        d_ffn=14336,
        max_seq_len=8192,
        rope_theta=500_000.0,
    ),
}
