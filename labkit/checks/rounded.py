"""`close`: as `same`, for answers that carry roundings, so that no mistake gives one exact wrong answer.

Right is what lies within `tol` of an answer in float64. A cause is told if the wrong answer lies within `tol` of what
the mistake gives, and what the mistake gives lies several `tol` away from the right answer in several places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from labkit.checks.judge import EVIDENCE, same

APART = 8  # tolerances between a mistake and the right answer, where it counts as evidence


def close(
    got: Any,
    want: torch.Tensor,
    *,
    tol: float,
    rank: int | None = None,
    what: str = "the result",
    dtype: torch.dtype = torch.float32,
    looks_like: Mapping[str, torch.Tensor | None] | None = None,
) -> None:
    """Pass if `got`, of `dtype`, is within `tol` of `want`, float64. looks_like: {cause: the answer of this mistake, in
    float64; or None where there is none}."""
    marks = {cause: got for cause, mark in (looks_like or {}).items() if _is(got, mark, want, tol)}
    if want.dim() == 0 and isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == dtype:
        # A single number: `same` asks for several places where it compares tensors.
        same(float(got), float(want), tol=tol, rank=rank, what=what, looks_like=dict.fromkeys(marks, float(got)))
    else:
        same(got, want.to(dtype), tol=tol, rank=rank, what=what, looks_like=marks)


def _is(got: Any, mark: torch.Tensor | None, want: torch.Tensor, tol: float) -> bool:
    if mark is None or not isinstance(got, torch.Tensor) or got.shape != mark.shape:
        return False
    if not ((got.double() - mark.double()).abs() <= tol).all():
        return False
    if mark.shape != want.shape:
        return True
    shows = int(((mark.double() - want.double()).abs() > APART * tol).sum())
    return shows >= min(EVIDENCE, want.numel())
