"""Shapes, arms, and what a cell of the map says. Nothing here imports torch."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from labkit.errors import LabError

BASE = "bf16"
# name -> (precision backend, recipe, label)
ARMS = {
    BASE: ("bf16", "bf16", "BF16 nn.Linear"),
    "te-bf16": ("te", "bf16", "TE BF16"),
    "te-delayed": ("te", "delayed", "TE FP8 delayed"),
    "te-current": ("te", "current", "TE FP8 current"),
    "te-block": ("te", "block", "TE FP8 block"),
    "torchao-tensorwise": ("torchao", "tensorwise", "torchao FP8 tensorwise"),
    "torchao-rowwise": ("torchao", "rowwise", "torchao FP8 rowwise"),
}
FP8 = tuple(name for name in ARMS if "bf16" not in name)
PARTS = ("product", "quantise", "launch")
# What FP8 pays for: the letter that stands in the map's cell, and its words.
REASONS = {"quantise": "q", "launch": "w", "product": "p"}
WORDS = {"q": "quantising", "w": "waiting: the GPU for the CPU's launches", "p": "its products are no faster"}
TIE = 0.02  # nobody is faster within this: about what two measurements of the same differ by


class Shape(NamedTuple):
    """M tokens, K inputs, N outputs."""

    M: int
    K: int
    N: int

    @property
    def flops(self) -> float:
        """Of forward and backward: three products."""
        return 6.0 * self.M * self.K * self.N

    def __str__(self) -> str:
        return f"{self.M}x{self.K}x{self.N}"


@dataclass(frozen=True)
class Cell:
    M: int
    K: int
    N: int
    arm: str
    seconds: float | None = None  # of one forward and backward
    spread: float | None = None  # (largest - smallest) / median of its repeats
    queue: float | None = None  # seconds that the CPU needs to queue them
    parts: dict[str, float] = field(default_factory=dict)  # seconds by PARTS, which add up to `seconds`
    error: float | None = None  # |y - y_exact| / |y_exact|, the proof of what rounded
    fp8_kernels: bool | None = None  # did the device run FP8 products? None: a CPU has no kernels to inspect
    why_not: str = ""  # the sentence if it could not be measured; then the rest is empty

    @property
    def shape(self) -> Shape:
        return Shape(self.M, self.K, self.N)

    @property
    def took(self) -> float:
        return self.seconds or 0.0

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in (None, "", {})}


def parse_sizes(text: str, name: str) -> list[int]:
    """Parse "1024,4K" to [1024, 4096]; LabError for what is no list of positive whole numbers."""
    sizes = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\d{1,9})([kK]?)", word)
        if not found or not int(found[1]):
            raise LabError(f"--{name} takes sizes by comma, for example 1024,4K; '{word}' is none")
        sizes.append(int(found[1]) * (1024 if found[2] else 1))
    if not sizes:
        raise LabError(f"--{name} names no size: write for example --{name} 1024,4K")
    return sorted(set(sizes))


def shapes(M: Iterable[int], K: Iterable[int], N: Iterable[int]) -> list[Shape]:
    """Return all combinations, the small ones first: a run that is stopped early has the most cells."""
    return sorted((Shape(*each) for each in itertools.product(M, K, N)), key=lambda s: (s.flops, s))


def parse_arms(text: str | None) -> list[str]:
    """Parse names of arms by comma, the baseline always first; None: all. LabError names an unknown one."""
    wanted = list(ARMS) if text is None else [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in ARMS:
            raise LabError(f"there is no arm '{word}'; there are: {', '.join(ARMS)}")
    if not set(wanted) - {BASE}:
        raise LabError(f"--arms names nothing to hold against {BASE}; there are: {', '.join(list(ARMS)[1:])}")
    return [BASE, *(name for name in ARMS if name in wanted and name != BASE)]


def speedup(base: Cell | None, cell: Cell | None) -> float | None:
    """Return how many times as fast as the baseline it is; None if either was not measured."""
    return base.took / cell.took if base and cell and base.took and cell.took else None


def without_waiting(base: Cell, cell: Cell) -> float | None:
    """Return the speed-up of the kernels alone, as if the CPU kept up; None if either was not measured."""
    mine, theirs = (c.parts.get("product", 0.0) + c.parts.get("quantise", 0.0) for c in (cell, base))
    return theirs / mine if mine and theirs else None


def extra(base: Cell, cell: Cell) -> dict[str, float]:
    # The seconds by part that `cell` needs more than the baseline (negative: saves).
    return {part: cell.parts.get(part, 0.0) - base.parts.get(part, 0.0) for part in PARTS}


def reason(base: Cell | None, cell: Cell | None) -> str | None:
    """Why FP8 does not win here: "launch" where its kernels alone would, else the part that costs most more, or None."""
    gain = speedup(base, cell)
    if not base or not cell or gain is None or gain > 1 + TIE or cell.arm not in FP8:
        return None
    alone = without_waiting(base, cell)
    if cell.parts.get("launch") and alone and alone > 1 + TIE:
        return "launch"
    more = extra(base, cell)
    return max(more, key=lambda part: more[part])


def describe(base: Cell, cell: Cell) -> str:
    gain, why = speedup(base, cell), reason(base, cell)
    if gain is None:
        return f"{ARMS[cell.arm][2]} at {cell.shape}: not measured" + (f" ({cell.why_not})" if cell.why_not else "")
    more = extra(base, cell)
    costs = more["product"] * 1e6
    saved = f"its products save {-costs:,.0f} us" if costs < 0 else f"its products cost {costs:,.0f} us more"
    verdict = "wins" if gain > 1 + TIE else "ties" if gain >= 1 - TIE else "loses"
    tail = f"; why: {WORDS[REASONS[why]]}" if why else ""
    kernels = f" ({without_waiting(base, cell):.2f} without waiting)" if cell.parts.get("launch") else ""
    return (
        f"{ARMS[cell.arm][2]} at {cell.shape} {verdict}, {gain:.2f} times{kernels}: {saved}, quantising costs "
        f"{more['quantise'] * 1e6:,.0f} us and waiting {more['launch'] * 1e6:,.0f} us more{tail}"
    )
