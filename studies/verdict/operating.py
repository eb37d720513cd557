"""How often the verdict says each of its words, by how large the gap really is: measured on a pool of real trainings.

    python -m studies.verdict.operating POOL OUT       writes the record OUT

A comparison is drawn from the pool (studies.verdict.pool) as it would have been run, and judged by
labkit.compare.statistic; the pool's means are the true gap. Every rate is computed again on pools drawn from the pool;
the range reported holds 90 % of those rates. Of each kind it is also measured how often the interval of the further
steps (labkit.compare.equal_loss) holds their true number, the mean gap over BF16's mean slope.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.compare.equal_loss import further_steps, slope
from labkit.compare.statistic import ACCEPTED, Answer, Spread, answers, tail
from labkit.errors import run_command
from studies.verdict.pool import read_pool
from studies.writing import as_lines

WORDS = ("same", "undecided", "different")
COSTS = 0.5  # per cent: from here on a fault must be found


@dataclass(frozen=True)
class Design:
    base: int  # BF16 runs
    first: int  # runs of each candidate
    more: int = 0  # of one that is undecided after them
    weight: float = 0.0  # of the records' standard deviation; 0: one's own model, of which nothing is known
    wrong_by: float = 1.0  # the records' standard deviation is the true one times this


COMPARISONS, POOLS, PER_POOL = 1000, 40, 100
SMOOTH = 0.5  # of a pool's standard deviation
GAPS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8)  # per cent
BF16, CORRECT = ("bf16", 0.0, 0), ("none", 0.0, 4)  # kinds of the pool
CHOSEN, OWN = "records, 4 + 2 + 2", "no records, 4 + 3 + 3"
DESIGNS = {
    CHOSEN: Design(4, 2, 2, weight=8),
    "records, one look, 4 + 2": Design(4, 2, weight=8),
    "records, one look, 4 + 4": Design(4, 4, weight=8),
    "records trusted blindly, 4 + 2": Design(4, 2, weight=1e6),
    "records count half, 4 + 2 + 2": Design(4, 2, 2, weight=4),
    "records half of the truth": Design(4, 2, 2, weight=8, wrong_by=0.5),
    "records twice the truth": Design(4, 2, 2, weight=8, wrong_by=2.0),
    "no records, 4 + 2 + 2": Design(4, 2, 2),
    OWN: Design(4, 3, 3),
    "no records, one look, 4 + 3": Design(4, 3),
}


def drawn(rng: np.random.Generator, ys: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` runs from the smoothed pool `ys`, y or [y, slope] of each: its mean and variance, no two alike."""
    # Silverman and Young 1987, doi:10.1093/biomet/74.3.469: two copies of one run would hide its variation.
    middle, n = ys.mean(0), len(ys)
    noise = SMOOTH * ys.std(0) * rng.standard_normal((count, *ys.shape[1:]))
    moved = ys[rng.integers(n, size=count)] - middle + noise
    return middle + moved * math.sqrt(n / (n - 1) / (1 + SMOOTH**2))


@dataclass(frozen=True)
class Scene:
    """Where a comparison's runs come from: y of each run of three pools. sloped: [y, slope] of BF16's, in their place."""

    bf16: np.ndarray
    candidate: np.ndarray
    companion: np.ndarray
    records: tuple[float, float]  # standard deviation of one run in BF16 and in FP8, as records know it
    gap: float | None = None  # per cent: the candidate's runs are moved until their true gap is this
    sloped: np.ndarray | None = None

    @property
    def there(self) -> float:
        """The pools' gap, per cent."""
        return float(self.candidate.mean() - self.bf16.mean())

    def redraw(self, rng: np.random.Generator) -> "Scene":
        """Draw new pools from these; one that serves twice is drawn once."""
        pools = {id(ys): ys for ys in (self.bf16, self.candidate, self.companion)}
        new = {key: ys[rng.integers(len(ys), size=len(ys))] for key, ys in pools.items()}
        bf16, candidate, companion = (new[id(ys)] for ys in (self.bf16, self.candidate, self.companion))
        return replace(self, bf16=bf16, candidate=candidate, companion=companion, sloped=None)


def judged(
    rng: np.random.Generator, design: Design, scene: Scene, comparisons: int
) -> Iterator[tuple[Answer, np.ndarray]]:
    """Draw and judge so many comparisons: each one's answer, and its BF16 runs."""
    spreads = [spread * design.wrong_by for spread in scene.records]
    prior = Spread(spreads[0], spreads[1], design.weight) if design.weight else None
    moved = 0.0 if scene.gap is None else scene.gap - scene.there
    first, each = design.first, design.first + design.more
    for _ in range(comparisons):
        base = drawn(rng, scene.bf16 if scene.sloped is None else scene.sloped, design.base)
        tested = drawn(rng, scene.candidate, each) + moved
        companion = list(drawn(rng, scene.companion, first))
        for runs in (first, each):
            given = {"tested": list(tested[:runs]), "companion": companion}
            ys = list(base.reshape(design.base, -1)[:, 0])
            answer = answers(ys, given, prior, 2 if design.more else 1, plan=False)["tested"]
            if answer.word != "undecided":
                break
        yield answer, base


def simulate(rng: np.random.Generator, design: Design, scene: Scene, comparisons: int) -> dict[str, float]:
    """Rates over so many comparisons: of each word, of intervals that hold the true gap; mean runs; median half-width;
    where BF16's runs have slopes the same of the further steps."""
    true = scene.there if scene.gap is None else scene.gap
    found = list(judged(rng, design, scene, comparisons))
    words = [answer.word for answer, _ in found]
    rates = {word: words.count(word) / comparisons for word in WORDS}
    rates["covered"], half_width = held_by([(answer.low, answer.high) for answer, _ in found], true)
    rates |= {"runs": sum(answer.runs for answer, _ in found) / comparisons, "half_width": half_width}
    if scene.sloped is None:
        return rates
    steps, ends = true / float(scene.sloped[:, 1].mean()), []
    for answer, base in found:
        curves = [{1: math.exp(own / 100), 2: 1.0} for own in base[:, 1]]  # two evaluations have any slope
        further = further_steps(curves, 1, answer.gap, answer.low, answer.high)
        ends.append((further.low, further.high) if further else (math.inf, math.inf))
    held, width = held_by(ends, steps)
    return {**rates, "steps": steps, "steps covered": held, "steps half_width": width}


def held_by(intervals: list[tuple[float, float]], true: float) -> tuple[float, float]:
    """Return (the share of these intervals that holds the true value, the median of half their widths)."""
    widths = [(high - low) / 2 if high < math.inf else high for low, high in intervals]
    return sum(low <= true <= high for low, high in intervals) / len(intervals), float(np.median(widths))


def simulate_ranges(rng: np.random.Generator, design: Design, scene: Scene) -> dict[str, Any]:
    """Return `simulate`'s rates, and for each the range that 90 % of the pools drawn again give."""
    rates = simulate(rng, design, scene, COMPARISONS)
    again = [simulate(rng, design, scene.redraw(rng), PER_POOL) for _ in range(POOLS)]
    ends = {key: np.quantile([one[key] for one in again], (0.05, 0.95)) for key in (*WORDS, "covered")}
    rounded: dict[str, Any] = {key: round(value, 4) for key, value in rates.items()}
    return {**rounded, "range": {key: [round(float(end), 4) for end in both] for key, both in ends.items()}}


def std(ys: np.ndarray) -> float:
    """Return the standard deviation of n - 1."""
    return float(np.std(ys, ddof=1))


def standard_error(own: np.ndarray, base: np.ndarray) -> float:
    """Return that of the difference of two means."""
    return math.hypot(std(own) / len(own) ** 0.5, std(base) / len(base) ** 0.5)


def study(about: dict[str, Any], runs: list[dict[str, Any]], seed: int = 0) -> dict[str, Any]:
    """Return all that is reported of a pool, as plain values."""
    rng, half = np.random.default_rng(seed), about["train"]["steps"] // 2 + 1
    kinds: dict[tuple, list[float]] = {}
    for run in runs:
        kinds.setdefault((run["kind"], run["dose"], run["blocks"]), []).append(tail(run["heldout"], half))
    ys = {kind: np.array(values) for kind, values in kinds.items()}
    every, correct = ys[BF16], ys[CORRECT]
    slopes = [slope(run["heldout"], half) for run in runs if run["kind"] == BF16[0]]
    records = std(every[::2]), std(correct[::2])
    bf16, fp8, chosen = every[1::2], correct[1::2], DESIGNS[CHOSEN]
    sloped = np.stack([every, slopes], axis=1)[1::2]
    out: dict[str, Any] = {
        **about,
        "kind": "verdict study",
        "command": f"{about['command']} POOL; python -m studies.verdict.operating POOL OUT",
        "records": records,
        "comparisons": {"of each rate": COMPARISONS, "pools drawn again": POOLS, "comparisons of each": PER_POOL},
        "kinds": [],
        "designs": [],
    }
    for (kind, dose, blocks), values in ys.items():
        gap = float(values.mean() - every.mean())
        row = {"kind": kind, "dose": dose, "blocks": blocks, "runs": len(values), "gap": gap}
        row |= {"error": standard_error(values, every), "spread": std(values)}
        if np.isfinite(values).all():
            # Half of the runs of BF16 and of correct FP8 serve as records, the other half is drawn from.
            own = {BF16: bf16, CORRECT: fp8}.get((kind, dose, blocks), values)
            scene = Scene(bf16, own, bf16 if own is bf16 else fp8, records, sloped=sloped)
            row["rates"] = simulate_ranges(rng, chosen, scene)
        out["kinds"].append(row)
    for name, design in DESIGNS.items():
        row = {"design": name, "BF16": simulate_ranges(rng, design, Scene(bf16, bf16, bf16, records))}
        for gap in (0.0, ACCEPTED, COSTS):
            row[f"FP8 at {gap:g} %"] = simulate_ranges(rng, design, Scene(bf16, fp8, fp8, records, gap))
        out["designs"].append(row)
    scenes = [Scene(bf16, fp8, fp8, records, gap) for gap in GAPS]
    out["curve"] = [{"gap": scene.gap, **simulate_ranges(rng, chosen, scene)} for scene in scenes]
    out["steps"] = list(runs[0]["heldout"])
    out["heldout"] = [[run["kind"], run["dose"], run["blocks"], run["seed"], *run["heldout"].values()] for run in runs]
    return out


def main() -> None:
    pool, out = map(Path, sys.argv[1:])
    out.write_text(as_lines(study(*read_pool(pool))), encoding="utf-8")


if __name__ == "__main__":
    run_command("operating", main)
