"""Precision backends: what the linears of a block compute in. The seam is described in `base`.

fp32, bf16        plain nn.Linear
torchao           torchao's float8 training: tensorwise, rowwise, rowwise_with_gw_hp; CPU and GPU
te                Transformer Engine: bf16, delayed, current, block; GPU
week16            your own FP8 linear, when it is finished
emulated          correct FP8 by hand, FP8 values multiplied in BF16: tensorwise, block; anywhere
broken-<mistake>  the same, spoilt on purpose: e5m2, unscaled, unscaled-forward, stale, inverse
                  ("broken" takes the mistake as its recipe)
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.precision import student
from labkit.precision.base import Availability, Backend, ConversionReport, ScaleStat, nearest
from labkit.precision.broken import RECIPES, Broken
from labkit.precision.emulated import Emulated
from labkit.precision.plain import BF16, FP32
from labkit.precision.te_backend import TransformerEngine
from labkit.precision.torchao_backend import TorchAO

__all__ = ["Availability", "Backend", "ConversionReport", "ScaleStat", "availability", "backends", "get_backend"]

_BACKENDS = {
    "fp32": FP32,
    "bf16": BF16,
    "torchao": TorchAO,
    "te": TransformerEngine,
    "emulated": Emulated,
    "broken": Broken,
    **{f"broken-{mistake}": (lambda mistake=mistake: Broken(mistake)) for mistake in RECIPES},
    **{name: (lambda name=name: student.Student(name)) for name in student.PARTS},
}


def backends() -> list[str]:
    """All names that `get_backend` takes."""
    return list(_BACKENDS)


def get_backend(name: str) -> Backend:
    """A fresh backend, for one model. LabError names the nearest name if there is no such backend."""
    if name not in _BACKENDS:
        raise LabError(f"there is no precision backend '{name}'{nearest(name, _BACKENDS)}")
    return _BACKENDS[name]()


def availability(name: str, recipe: str | None = None, device: torch.device | str | None = None) -> Availability:
    """Can this machine run backend `name` with `recipe`? Never raises, whatever the import of the backend does."""
    try:
        return get_backend(name).availability(recipe, device)
    except LabError as error:
        return Availability(False, str(error))
