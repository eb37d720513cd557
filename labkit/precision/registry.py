"""The backends by name, and how a run asks for one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit.errors import LabError
from labkit.precision import student
from labkit.precision.base import Availability, Backend
from labkit.precision.broken import MISTAKES, Broken
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.plain import BF16, FP32, Amp
from labkit.precision.te_backend import TransformerEngine
from labkit.precision.torchao_backend import TorchAO
from labkit.strict import nearest

_BACKENDS: dict[str, Callable[[], Backend]] = {
    "fp32": FP32,
    "bf16": BF16,
    "amp": Amp,
    "torchao": TorchAO,
    "te": TransformerEngine,
    "broken": Broken,
    **{f"broken-{mistake}": partial(Broken, mistake) for mistake in MISTAKES},
    "week16": student.Student,
    "emulated": student.emulated,
}


def backends() -> list[str]:
    """All names that `get_backend` takes."""
    return list(_BACKENDS)


def get_backend(name: str) -> Backend:
    """A fresh backend, for one model. LabError names the nearest name if there is no such backend."""
    if name not in _BACKENDS:
        raise LabError(f"there is no precision backend '{name}'{nearest(name, _BACKENDS)}")
    return _BACKENDS[name]()


def spec_of(config: PrecisionConfig, **where: Any) -> PrecisionSpec:
    """What a backend is given for `config`; where: device, ranks and tokens. LabError: no such backend or recipe."""
    recipe = get_backend(config.backend)._check_recipe(config.recipe)
    same: dict[str, Any] = config.model_dump(include={"fused", "fp8_parameters", "calibrate"})
    for table in ("amax_epsilon", "scales"):
        same[table] = {operand: value for operand, value in getattr(config, table).model_dump().items() if value}
    return PrecisionSpec(recipe, tuple(config.skip), **same, **where)


def availability(
    name: str, recipe: str | None = None, device: torch.device | str | None = None, fp8_parameters: bool = False
) -> Availability:
    """Can this machine run backend `name` with `recipe`? Never raises, whatever the import of the backend does."""
    try:
        return get_backend(name)._available(recipe, device, fp8_parameters)
    except LabError as error:
        return Availability(False, str(error))
