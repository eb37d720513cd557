"""What a trainer is assembled from, as numbers. `running/config.py` makes one from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.errors import LabError
from labkit.model.config import ModelConfig

PRECISIONS = ("fp32", "bf16", "fp8")


class Setup(NamedTuple):
    """model: the whole decoder's shape. dp, tp, pp: the degrees; their product is the number of ranks.

    zero         3: a block's weights are gathered when it computes; 1: all of a stage's for a whole step
    micro        micro-batches a step, on each data-parallel rank
    precision    "fp32", "bf16" or "fp8" (the blocks' linears)
    rest         what everything but FP8 products computes in: "fp32" or "bf16"
    weights      {name: whole weight}, in place of the first values that the seed gives; None: those. In a check what is
                 not this rank's, by stage and slice, holds other numbers
    the others   as labkit.train.config has them
    """

    model: ModelConfig
    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 3
    micro: int = 1
    precision: str = "fp32"
    rest: str = "fp32"
    seed: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0  # 0: off
    weights: Mapping[str, Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What weights are gathered in."""
        return torch.bfloat16 if "bf16" in (self.precision, self.rest) else torch.float32

    def refuse(self, ranks: int) -> None:
        """LabError, in one sentence, for what does not go; before anything is built."""
        if self.dp * self.tp * self.pp != ranks:
            raise LabError(
                f"dp {self.dp} x tp {self.tp} x pp {self.pp} is a mesh of {self.dp * self.tp * self.pp} ranks, and "
                f"{ranks} are here: choose degrees whose product is {ranks}"
            )
        if self.precision not in PRECISIONS or self.rest not in PRECISIONS[:2]:
            raise LabError(
                f"precision is one of {', '.join(PRECISIONS)} and rest fp32 or bf16, not {self.precision!r} and "
                f"{self.rest!r}"
            )
        if self.zero not in (1, 3):
            raise LabError(f"zero = {self.zero}: take 3 (a block gathered when it computes) or 1 (whole for a step)")
        if self.pp > 1 and self.zero == 3:
            raise LabError(
                "zero = 3 and pp > 1 do not go together: a stage has several micro-batches in flight, and a block that "
                "is freed after each would be gathered twice for every one of them: set zero = 1"
            )
        if self.model.tie_embeddings and self.tp * self.pp > 1:
            raise LabError(
                "a tied head is cut as the embedding and as a linear, and lies in another stage: set tie_embeddings = "
                "false, or tp and pp to 1"
            )
        shape, N = self.model, self.tp
        if shape.experts and N > 1:
            raise LabError(f"tp = {N}: experts are not cut over tensor-parallel ranks: set tp = 1")
        for what, count in (("query heads", shape.n_heads), ("features of the feed-forward network", shape.d_ffn)):
            if count % N:
                raise LabError(f"{count} {what} cannot be split over tp = {N} ranks: choose a divisor")
        if max(shape.n_kv_heads, N) % min(shape.n_kv_heads, N):
            raise LabError(
                f"{shape.n_kv_heads} key/value heads cannot be split over tp = {N} ranks, nor the ranks over them: one "
                "must divide the other"
            )
        if self.pp > self.model.n_layers:
            raise LabError(f"{self.model.n_layers} blocks cannot be {self.pp} stages: each stage has one at least")
