"""Typed configs. A run is described by one TOML file; a wrong file is an error before anything starts.

    model = "tiny"                 # a name from `sizes()`, or a [model] table with every field
    steps = 200
    compile = true                 # labkit.parallel.options says how the model is transformed
    [data]
    source = "python"
    [precision]
    backend = "torchao"

`mixed_precision = "fp8"` is short for torchao's tensorwise recipe, in KempnerForge's spelling; "bf16" and "fp32" name
the backends called so. Nothing here imports torch.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from labkit.model.config import ModelConfig, sizes
from labkit.parallel.options import TransformConfig
from labkit.precision.config import PrecisionConfig
from labkit.strict import Count, CountOrOff, nearest, require
from labkit.train.data.sources import DataConfig
from labkit.train.recovery import RecoveryConfig

Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

MIXED = {  # what `mixed_precision` is short for, in [precision]
    "bf16": {"backend": "bf16"},
    "fp32": {"backend": "fp32"},
    "fp8": {"backend": "torchao", "recipe": "tensorwise"},
}


class TrainConfig(TransformConfig):
    """One training run. Sizes are global: they do not depend on how many ranks share the work."""

    model: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[ModelConfig, Tag("<table>")],
        Discriminator(lambda value: "<table>" if isinstance(value, dict | ModelConfig) else "<name>"),
    ] = "tiny"
    data: DataConfig = DataConfig()

    steps: Count = 200
    seq_len: Count = 256
    batch_size: Count = 8  # sequences per optimizer step, over all ranks
    accumulation: Count = 1  # micro-batches per optimizer step
    reduce_once: bool = False  # True: FSDP2 reduces a step's gradients once, at its end, not after each micro-batch
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    lr: Annotated[float, Field(gt=0)] = 1e-3
    min_lr_ratio: Fraction = 0.1  # cosine ends at lr * min_lr_ratio
    warmup_steps: CountOrOff = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    betas: Annotated[tuple[BelowOne, BelowOne], Field(strict=False)] = (0.9, 0.95)
    adam_eps: Annotated[float, Field(gt=0)] = 1e-8
    clip_norm: Annotated[float, Field(ge=0)] = 1.0  # 0: off

    eval_every: CountOrOff = 25  # 0: off, as in the other *_every fields
    eval_batches: Count = 4
    probe_every: CountOrOff = 0  # write the precision backend's scales
    norms_every: CountOrOff = 0  # write the norms of the weights, and of each block's gradient
    checkpoint_every: CountOrOff = 0
    checkpoint_at_end: bool = True  # false: after the last step none is written, only at a pause
    keep_checkpoints: Count = 2

    recovery: RecoveryConfig = RecoveryConfig()  # what a step that is not finite leads to

    perturb: BelowOne = 0.0  # relative; a perturbed baseline uses 2**-9, bf16's rounding
    perturb_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # two perturbed baselines need two

    @model_validator(mode="before")
    @classmethod
    def _mixed_precision(cls, values: Any) -> Any:
        """Write `mixed_precision` out, so that a record has one spelling of it."""
        if not isinstance(values, Mapping) or "mixed_precision" not in values:
            return values
        rest = dict(values)
        word, table = rest.pop("mixed_precision"), rest.get("precision", {})
        if isinstance(table, PrecisionConfig):
            table = table.model_dump(include=table.model_fields_set)
        require(word in [*MIXED], f"mixed_precision must be one of {', '.join(map(repr, MIXED))}, not {word!r}")
        if not isinstance(table, Mapping):
            return rest  # [precision] is no table, which pydantic reports next
        require(
            table.keys().isdisjoint(("backend", "recipe")),
            f"mixed_precision = {word!r} chooses backend and recipe, and [precision] names one as well: leave it out",
        )
        return {**rest, "precision": {**table, **MIXED[word]}}

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if isinstance(self.model, str):
            require(self.model in sizes(), f"model = {self.model!r} is not a known size{nearest(self.model, sizes())}")
        model, steps = self.resolved_model, self.steps
        require(
            self.seq_len <= model.max_seq_len,
            f"seq_len ({self.seq_len}) must not exceed the model's max_seq_len ({model.max_seq_len})",
        )
        require(
            self.batch_size % self.accumulation == 0,
            f"batch_size ({self.batch_size}) must be a multiple of accumulation ({self.accumulation})",
        )
        require(self.warmup_steps <= steps, f"warmup_steps ({self.warmup_steps}) must not exceed steps ({steps})")
        require(
            not self.recovery.rollback_after or self.checkpoint_every > 0,
            "[recovery] rollback_after goes back to a checkpoint, and checkpoint_every = 0 writes none: set it",
        )
        require(
            not (self.precision.fused and model.experts),
            "fused = true joins a dense feed-forward network, and this model has experts: set fused = false",
        )
        if self.precision.schedule:
            first, last = self.precision.schedule.bf16_steps(steps)
            require(
                first + last > 0,
                "[precision.schedule] has no step in BF16: give bf16_first or bf16_last, steps (20) or a share (0.1)",
            )
            require(
                first + last < steps,
                f"[precision.schedule] leaves no step in FP8 ({first} + {last} of {steps} are BF16): take backend bf16",
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
        """Return the shape itself, also where `model` is a name."""
        return sizes()[self.model] if isinstance(self.model, str) else self.model
