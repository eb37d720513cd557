"""`same` and its kin: is this the right answer, and if not, what is it?

A cause is named only if one of the fingerprints `looks_like={cause: the answer that this mistake gives}` matches
exactly, and differs from the right answer in several places (`EVIDENCE`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from labkit.checks.runner import here
from labkit.checks.values import Opaque
from labkit.checks.verdict import NO_RESULT, WRONG, CheckFailed, cause_line, wrong

EVIDENCE = 3  # numbers in which a fingerprint must differ from the right answer; see `drawn.tensors` for their range
APART = 8  # tolerances between a mistake's answer and the right one, where it counts as evidence (`close`)
SHOWN = 5  # numbers shown from the first difference on
LISTED = 50  # numbers shown of a list


def same(
    got: Any,
    want: Any,
    *,
    rank: int | None = None,
    looks_like: Mapping[str, Any] | None = None,
    tol: float | torch.Tensor = 0.0,
    what: str = "the result",
) -> None:
    """Pass if `got` is `want`; else raise CheckFailed with both, the first difference, and the cause.

    want        a tensor (then type, shape and dtype must agree too), a number, or a list of numbers
    rank        whose answer it is, for the text
    looks_like  {cause in one sentence: the answer that this mistake would give}
    tol         largest absolute difference allowed, a number or, for a tensor, one of want's shape. State its reason
                where you pass it
    what        what is compared, for the text: "x after the call"
    """
    who = f"{what} of rank {rank}" if rank is not None else what
    if isinstance(want, torch.Tensor):
        _same_tensor(got, want, who, looks_like or {}, tol)
    elif isinstance(tol, torch.Tensor):
        raise TypeError("tol is a number where no tensor is wanted")
    elif isinstance(want, (list, tuple)):
        _same_numbers(got, want, who, looks_like or {}, tol)
    else:
        _same_number(got, want, who, looks_like or {}, tol)


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
    """As `same`, for answers that carry roundings: pass if `got`, of `dtype`, is within `tol` of `want`, float64.

    looks_like  {cause: this mistake's answer, float64, or None}, named if `got` is within `tol` of it, and it lies
                `APART` tolerances away from `want` in several places
    """
    marks = {cause: got for cause, mark in (looks_like or {}).items() if _within(got, mark, want, tol)}
    if want.dim() == 0 and isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == dtype:
        # A single number: `same` asks for several places where it compares tensors.
        same(float(got), float(want), tol=tol, rank=rank, what=what, looks_like=dict.fromkeys(marks, float(got)))
    else:
        same(got, want.to(dtype), tol=tol, rank=rank, what=what, looks_like=marks)


def note(text: str) -> None:
    """Say this beside the case if it passes: by how much it met what is asked for."""
    here()[1].notes.append(text)


def expect(ok: bool, text: str, *, cause: tuple[str, ...] = (), known: bool = False) -> None:
    """Pass if `ok`; else `text` is the verdict's text; known: it says what is wrong, so no `cause` is missing."""
    if not ok:
        raise CheckFailed(WRONG, text if known and not cause else f"{text}\n  {cause_line(cause)}", cause=cause)


def field(got: Any, name: str, what: str = "the result") -> Any:
    """Field `name` of a named tuple that came back, or a clear verdict if there is none."""
    if isinstance(got, dict) and name in got:
        return got[name]
    raise CheckFailed(NO_RESULT, f"{what} must have a field {name!r}, but {_describe(got)} came back")


def _same_tensor(got: Any, want: torch.Tensor, who: str, looks_like: Mapping[str, Any], tol: Any) -> None:
    if not isinstance(got, torch.Tensor):
        hint = "; does every path of the function return it?" if got is None else ""
        raise CheckFailed(NO_RESULT, f"{who} must be a tensor of {_kind(want)}, but {_describe(got)} came back{hint}")
    cause = _recognise(got, want, looks_like)
    if got.shape != want.shape:
        raise wrong(f"{who} has the wrong shape", _kind(want), _kind(got), cause, known=True)
    if got.dtype != want.dtype:
        raise wrong(f"{who} has the wrong dtype", _kind(want), _kind(got), cause, known=True)
    if not want.numel():
        return
    a, b = got.double().reshape(-1), want.double().reshape(-1)
    limit = tol.double().reshape(-1) if isinstance(tol, torch.Tensor) else tol
    good = ((a - b).abs() <= limit) & a.isfinite()  # no tolerance, be it infinite itself, makes an infinity right
    good |= (a == b) | (a.isnan() & b.isnan())  # equal infinities; a NaN that is wanted
    bad = (~good).nonzero().reshape(-1)
    if not len(bad):
        return
    first, total = int(bad[0]), a.numel()
    nonfinite = int((~a.isfinite() & b.isfinite()).sum())
    text = f"{who}: {len(bad)} of {total} numbers differ" + (f", {nonfinite} are NaN or infinite" if nonfinite else "")
    where = [int(index) for index in np.unravel_index(first, want.shape)]
    what = f"{text}; first at index {where[0] if len(where) == 1 else where}, from there on"
    wanted, given = (_listed(x.reshape(-1)[first : first + SHOWN + 1].tolist(), SHOWN) for x in (want, got))
    cause = cause or _scaled(a, b, torch.finfo(want.dtype).eps if want.dtype.is_floating_point else 0.0)
    raise wrong(what, wanted, given, cause)


def _scaled(a: torch.Tensor, b: torch.Tensor, eps: float) -> tuple[str, ...]:
    """The cause if every number of `a` is the same multiple of b's, but for one rounding each (`eps`); else ()."""
    there = b != 0
    if int(there.sum()) < EVIDENCE or not a.isfinite().all() or not b.isfinite().all():
        return ()
    factor = float((a[there] / b[there]).median())
    if not torch.allclose(a, factor * b, rtol=2 * eps, atol=0.0):
        return ()
    if (a[there] == b[there]).any():
        return ()  # a number that is right refutes it: a rounding of a coarse dtype looks like a factor near 1
    return (f"every number is {factor:.4g} times the one expected" if factor else "nothing but zeros",)


def _recognise(got: torch.Tensor, want: torch.Tensor, looks_like: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for cause, mark in looks_like.items():
        if isinstance(mark, torch.Tensor) and mark.shape == got.shape:
            a, b = got.double(), mark.double()
            # Evidence: in how many numbers does this mistake show? Of another shape it shows in all of them.
            shows = int((b != want.double()).sum()) if b.shape == want.shape else b.numel()
            if shows >= EVIDENCE and ((a == b) | (a.isnan() & b.isnan())).all():
                found.append(cause)
    return tuple(found)


def _within(got: Any, mark: torch.Tensor | None, want: torch.Tensor, tol: float) -> bool:
    if mark is None or not isinstance(got, torch.Tensor) or got.shape != mark.shape:
        return False
    near = bool(((got.double() - mark.double()).abs() <= tol).all())
    if not near or mark.shape != want.shape:
        return near
    shows = int(((mark.double() - want.double()).abs() > APART * tol).sum())
    return shows >= min(EVIDENCE, want.numel())


def _same_number(got: Any, want: float, who: str, looks_like: Mapping[str, Any], tol: float) -> None:
    number = _number(got)
    if number is None:
        raise CheckFailed(NO_RESULT, f"{who} must be a number, but {_describe(got)} came back")
    if _close(number, want, tol):
        return
    cause = tuple(c for c, mark in looks_like.items() if _exactly(number, mark) and not _close(mark, want, tol))
    raise wrong(f"{who} is wrong", _short(want), _short(number), cause)


def _same_numbers(got: Any, want: list | tuple, who: str, looks_like: Mapping[str, Any], tol: float) -> None:
    if isinstance(got, torch.Tensor):
        got = got.tolist()
    whole = isinstance(got, (list, tuple))
    if odd := [x for x in got if _number(x) is None] if whole else [got]:
        back = f"{_describe(odd[0])} came back" + " in it" * whole
        raise CheckFailed(NO_RESULT, f"{who} must be a list of {len(want)} numbers, but {back}")
    numbers = [n for x in got if (n := _number(x)) is not None]
    if len(numbers) == len(want) and all(_close(a, b, tol) for a, b in zip(numbers, want)):
        return
    alike = (c for c, mark in looks_like.items() if len(mark) == len(numbers) and all(map(_exactly, numbers, mark)))
    cause = tuple(alike)
    text = "is wrong" if len(numbers) == len(want) else f"has {len(numbers)} numbers, not {len(want)}"
    raise wrong(f"{who} {text}", _listed(want), _listed(numbers), cause)


def _listed(numbers: list | tuple, most: int = LISTED) -> str:
    """A list as a text that can be read, however long it is."""
    return ", ".join(map(_short, numbers[:most])) + (", ..." if len(numbers) > most else "")


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.dtype.is_complex:
        return value.item()
    return value if isinstance(value, (int, float)) else None


def _close(a: float, b: float, tol: float) -> bool:
    return a == b or abs(a - b) <= tol or (math.isnan(a) and math.isnan(b))


def _exactly(a: float, b: Any) -> bool:
    """Equal but for the rounding of a formula written in another order, or of a solver."""
    return isinstance(b, (int, float)) and math.isclose(a, b, rel_tol=1e-6)


def _kind(tensor: torch.Tensor) -> str:
    return f"shape {list(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"


def _short(x: Any) -> str:
    return f"{x:.7g}" if isinstance(x, float) else str(x)


def _describe(value: Any) -> str:
    """A value that is not what was expected, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {_kind(value)}"
    if isinstance(value, Opaque):
        return f"an object of type {value.kind}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
