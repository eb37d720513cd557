"""How often the interval of the further steps (labkit.compare.equal_loss) holds their true number, on the recorded pool.

    python -m studies.verdict.tokens RECORD        puts the rates into the record of studies.verdict.operating

Comparisons are drawn and judged as in studies.verdict.operating; a BF16 run is drawn with its own slope. The pools' mean
gap over BF16's mean slope is the true number of steps.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from labkit.compare.equal_loss import further_steps, slope
from labkit.compare.statistic import tail
from labkit.errors import run_command
from studies.verdict.operating import BF16, CHOSEN, COMPARISONS, CORRECT, DESIGNS, Scene, judged

ADDED = "; python -m studies.verdict.tokens OUT"


def rates(rng: np.random.Generator, scene: Scene, comparisons: int = COMPARISONS) -> dict[str, float]:
    """Of one kind: the true further steps, the share of intervals that hold them, and their median half-width."""
    true, held, widths = scene.there / float(scene.bf16[:, 1].mean()), 0, []
    for answer, base in judged(rng, DESIGNS[CHOSEN], scene, comparisons):
        curves = [{1: math.exp(own / 100), 2: 1.0} for own in base[:, 1]]  # two evaluations have any slope
        found = further_steps(curves, 1, answer.gap, answer.low, answer.high)
        held += found is not None and found.low <= true <= found.high
        widths.append((found.high - found.low) / 2 if found else math.inf)
    out = {"steps": true, "steps covered": held / comparisons, "steps half_width": float(np.median(widths))}
    return {key: round(value, 4) for key, value in out.items()}


def study(found: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """The record with `rates` beside those of each kind that has some."""
    rng, half = np.random.default_rng(seed), found["train"]["steps"] // 2 + 1
    pools: dict[tuple, list[tuple[float, float]]] = {}
    for name, dose, blocks, _, *heldout in found["heldout"]:
        losses = dict(zip(map(int, found["steps"]), heldout, strict=True))
        pools.setdefault((name, dose, blocks), []).append((tail(losses, half), slope(losses, half)))
    bf16, correct = np.array(pools[BF16])[1::2], np.array(pools[CORRECT])[1::2, 0]
    for row in found["kinds"]:
        kind = row["kind"], row["dose"], row["blocks"]
        own = {BF16: bf16[:, 0], CORRECT: correct}.get(kind, np.array(pools[kind])[:, 0])
        if "rates" in row:
            companion = bf16[:, 0] if kind == BF16 else correct
            row["rates"] |= rates(rng, Scene(bf16, own, companion, tuple(found["records"])))
            print({key: row[key] for key in ("kind", "dose", "blocks")}, row["rates"], flush=True)
    return found | {"command": found["command"].removesuffix(ADDED) + ADDED}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.verdict.tokens", description="Coverage of further steps.")
    parser.add_argument("record", type=Path, help="what studies.verdict.operating wrote")
    a = parser.parse_args()
    found = study(json.loads(a.record.read_text(encoding="utf-8")))
    a.record.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    run_command("tokens", main)
