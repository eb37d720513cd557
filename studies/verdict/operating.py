"""How often the verdict says each of its words, by how large the gap really is: measured on a pool of real trainings.

    python -m studies.verdict.operating POOL OUT       writes the record OUT, and prints its rates

A comparison is drawn from the pool (studies.verdict.pool) as it would have been run: some BF16 runs, two runs of
the candidate and of a companion without a gap, two more if the candidate is undecided. labkit.compare.statistic judges
it. The pool knows the true gap: the difference of the means over all runs.

The runs of BF16 and of correct FP8 are cut in two. From one half come the spreads that "records" tell; comparisons are
drawn from the other. So no comparison knows its own pool.

A comparison's runs are independent draws from the pool's runs, each moved a little at random, by half their standard
deviation, and the whole brought back to the pool's mean and variance (the smoothed bootstrap, Silverman and Young 1987,
doi:10.1093/biomet/74.3.469): two copies of one run would hide its scatter.

**How sure.** The pool is a sample too. So every rate is computed again on pools drawn from its runs with replacement,
whose truth is their own mean; 90 % of those rates lie in the range that is told.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.compare.statistic import ACCEPTED, Spread, answers, tail
from labkit.record.clean import jsonable
from studies.verdict.pool import read_pool

WORDS = ("same", "undecided", "different")
COSTS = 0.5  # per cent: from here on a fault must be told


@dataclass(frozen=True)
class Design:
    """A way to compare. base: BF16 runs; first: of each candidate; more: of one that is undecided after them. weight:
    of the records' spread; 0: one's own model, of which nothing is known. wrong_by: the records' spread is the true one
    times this."""

    base: int
    first: int
    more: int = 0
    weight: float = 0.0
    wrong_by: float = 1.0


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
    """`count` runs from the smoothed pool `ys`: its mean, its variance (of n - 1), no two alike."""
    middle, n = ys.mean(), len(ys)
    moved = ys[rng.integers(n, size=count)] - middle + SMOOTH * ys.std() * rng.standard_normal(count)
    return middle + moved * math.sqrt(n / (n - 1) / (1 + SMOOTH**2))


@dataclass(frozen=True)
class Scene:
    """Where a comparison's runs come from: y of each run of three pools. records: standard deviation of one run in BF16
    and in FP8, as records tell it. gap: the candidate's runs are moved until their true gap is this, in per cent; None:
    they stay."""

    bf16: np.ndarray
    candidate: np.ndarray
    companion: np.ndarray
    records: tuple[float, float]
    gap: float | None = None

    def again(self, rng: np.random.Generator) -> Scene:
        """The same, with pools drawn from these; one that serves twice is drawn once."""
        pools = {id(ys): ys for ys in (self.bf16, self.candidate, self.companion)}
        new = {key: ys[rng.integers(len(ys), size=len(ys))] for key, ys in pools.items()}
        bf16, candidate, companion = (new[id(ys)] for ys in (self.bf16, self.candidate, self.companion))
        return replace(self, bf16=bf16, candidate=candidate, companion=companion)


def simulate(rng: np.random.Generator, design: Design, scene: Scene, comparisons: int) -> dict[str, float]:
    """Rates over so many comparisons: of each word; covered, that the interval at the end holds the true gap; runs of
    the candidate, on average; half the interval's width, the median, in per cent."""
    spreads = [spread * design.wrong_by for spread in scene.records]
    prior = Spread(spreads[0], spreads[1], design.weight) if design.weight else None
    there = float(scene.candidate.mean() - scene.bf16.mean())
    true = there if scene.gap is None else scene.gap
    first, each = design.first, design.first + design.more
    words, covered, trained, widths = dict.fromkeys(WORDS, 0), 0, 0, []
    for _ in range(comparisons):
        base = list(drawn(rng, scene.bf16, design.base))
        tested = drawn(rng, scene.candidate, each) + true - there
        companion = list(drawn(rng, scene.companion, first))
        for runs in (first, each):
            answer = answers(
                base,
                {"tested": list(tested[:runs]), "companion": companion},
                prior,
                2 if design.more else 1,
                plan=False,
            )["tested"]
            if answer.word != "undecided":
                break
        words[answer.word] += 1
        covered += answer.low <= true <= answer.high
        trained += answer.runs
        widths.append((answer.high - answer.low) / 2)
    rates = {word: count / comparisons for word, count in words.items()}
    more = {"covered": covered / comparisons, "runs": trained / comparisons, "half_width": float(np.median(widths))}
    return {**rates, **more}


def ranged(rng: np.random.Generator, design: Design, scene: Scene) -> dict[str, Any]:
    """`simulate`'s rates, and for each the range that 90 % of the pools drawn again give."""
    rates = simulate(rng, design, scene, COMPARISONS)
    again = [simulate(rng, design, scene.again(rng), PER_POOL) for _ in range(POOLS)]
    ends = {key: np.quantile([one[key] for one in again], (0.05, 0.95)) for key in (*WORDS, "covered")}
    told: dict[str, Any] = {key: round(value, 4) for key, value in rates.items()}
    return {**told, "range": {key: [round(float(end), 4) for end in both] for key, both in ends.items()}}


def spread_of(ys: np.ndarray) -> float:
    return float(np.std(ys, ddof=1))


def study(about: dict[str, Any], runs: list[dict[str, Any]], seed: int = 0) -> dict[str, Any]:
    """All that is told of a pool, as plain values."""
    rng, half = np.random.default_rng(seed), about["train"]["steps"] // 2 + 1
    kinds: dict[tuple, list[float]] = {}
    for run in runs:
        kinds.setdefault((run["kind"], run["dose"], run["blocks"]), []).append(tail(run["heldout"], half))
    ys = {kind: np.array(values) for kind, values in kinds.items()}
    every, correct = ys[BF16], ys[CORRECT]
    records = spread_of(every[::2]), spread_of(correct[::2])
    bf16, fp8, chosen = every[1::2], correct[1::2], DESIGNS[CHOSEN]
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
        error = math.hypot(spread_of(values) / len(values) ** 0.5, spread_of(every) / len(every) ** 0.5)
        row = {"kind": kind, "dose": dose, "blocks": blocks, "runs": len(values), "gap": gap, "error": error}
        row["spread"] = spread_of(values)
        if (kind, dose, blocks) == BF16:
            row["rates"] = ranged(rng, chosen, Scene(bf16, bf16, bf16, records))
        elif np.isfinite(values).all():
            own = fp8 if (kind, dose, blocks) == CORRECT else values
            row["rates"] = ranged(rng, chosen, Scene(bf16, own, fp8, records))
        out["kinds"].append(row)
        print(kind_line(row), flush=True)
    for name, design in DESIGNS.items():
        row = {"design": name, "BF16": ranged(rng, design, Scene(bf16, bf16, bf16, records))}
        for gap in (0.0, ACCEPTED, COSTS):
            row[f"FP8 at {gap:g} %"] = ranged(rng, design, Scene(bf16, fp8, fp8, records, gap))
        out["designs"].append(row)
        print("\n".join(design_lines(row)), flush=True)
    scenes = [Scene(bf16, fp8, fp8, records, gap) for gap in GAPS]
    out["curve"] = [{"gap": scene.gap, **ranged(rng, chosen, scene)} for scene in scenes]
    out["steps"] = list(runs[0]["heldout"])
    out["heldout"] = [[run["kind"], run["dose"], run["blocks"], run["seed"], *run["heldout"].values()] for run in runs]
    return out


def told(row: dict[str, Any], word: str) -> str:
    low, high = row["range"][word]
    return f"{word} {100 * row[word]:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def kind_line(row: dict[str, Any]) -> str:
    what = f"{row['kind']} {row['dose']:.4g}, {row['blocks']} blocks, {row['runs']} runs"
    head = f"{what:<38} gap {row['gap']:+.3f} +- {row['error']:.3f} %, spread {row['spread']:.3f} %"
    if "rates" not in row:
        return head
    return f"{head}: " + ", ".join(told(row["rates"], word) for word in (*WORDS, "covered"))


def design_lines(row: dict[str, Any]) -> list[str]:
    out = [str(row["design"])]
    for at, rates in row.items():
        if at != "design":
            words = ", ".join(told(rates, word) for word in (*WORDS, "covered"))
            out.append(f"    {at:<14} {words}; {rates['runs']:.2f} runs, half width {rates['half_width']:.3f} %")
    return out


def written(found: dict[str, Any]) -> str:
    """JSON with a line for each key, and one for each run."""
    runs = ",\n  ".join(json.dumps(run) for run in found["heldout"])
    rows = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items() if key != "heldout"]
    return "{\n" + ",\n".join([*rows, f' "heldout": [\n  {runs}\n ]']) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.verdict.operating", description="Error rates on a pool.")
    parser.add_argument("pool", type=Path, help="what studies.verdict.pool wrote")
    parser.add_argument("out", type=Path, help="JSON: the rates, and the held-out losses that they come from")
    asked = parser.parse_args()
    asked.out.write_text(written(jsonable(study(*read_pool(asked.pool)))), encoding="utf-8")


if __name__ == "__main__":
    main()
