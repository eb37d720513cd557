"""week16_fp8/results/crossover/README.md says what its records say: its tables and numbers are computed again here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from labkit.crossover import record as records
from labkit.crossover.grid import BASE, FP8, TIE, Shape, reason, speedup, without_waiting

RESULTS = Path(records.__file__).parents[2] / "week16_fp8" / "results"
if not (RESULTS / "crossover").exists():
    pytest.skip("week 16's results are not in this tree", allow_module_level=True)
RECORD = records.load(RESULTS / "crossover")
HAVE = records.cells(RECORD)
README = (RESULTS / "crossover" / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())
NAMES = {
    "te-delayed": "TE delayed",
    "te-current": "TE current",
    "te-block": "TE block",
    "torchao-tensorwise": "torchao tensorwise",
    "torchao-rowwise": "torchao rowwise",
}


def of(arm):
    return {shape: cell for (shape, name), cell in HAVE.items() if name == arm}


def large(arm):
    return [cell for shape, cell in of(arm).items() if shape.M * shape.K * shape.N >= 2**36]


def rate(arm):
    """TFLOP/s of the products."""
    return median(c.shape.flops / c.parts["product"] for c in large(arm)) / 1e12


def price(arm):
    """ps a number."""
    return median(c.parts["quantise"] / (c.M * c.K + c.K * c.N + c.M * c.N) for c in large(arm)) * 1e12


def queue(arm):
    return median(c.queue for c in of(arm).values() if c.parts["launch"]) * 1e6


def gains(arm):
    return {shape: speedup(HAVE[shape, BASE], cell) for shape, cell in of(arm).items()}


def rows():
    for arm in FP8:
        won = sum(gain > 1 + TIE for gain in gains(arm).values())
        yield (
            f"| {NAMES[arm]} | {won} | {max(gains(arm).values()):.2f} | {price(arm):.1f} | {rate(arm):.0f} | "
            f"{queue(arm):.0f} |"
        )


def break_even(arm):
    """n at which 6 n^3 / rate saves what 3 n^2 numbers cost."""
    return 3 * price(arm) * 1e-12 / (6 * (1 / rate(BASE) - 1 / rate(arm)) * 1e-12)


def sentences():
    errors = [c.error for c in HAVE.values() if c.arm in FP8]
    yield f"{min(errors):.3f} to {max(errors):.3f}"
    yield f"for BF16 {max(c.error for c in of(BASE).values()):.4f}"
    yield f"BF16: {rate(BASE):.0f} TFLOP/s, {queue(BASE):.0f} us"
    yield f"6 n (1/{rate(BASE):.0f} - 1/{rate('te-current'):.0f})"
    current, rowwise = break_even("te-current"), break_even("torchao-rowwise")
    yield f"n = {current:,.0f} for TE current, {rowwise:,.0f} for torchao rowwise"
    small, middle = Shape(1024, 1024, 1024), Shape(4096, 4096, 4096)
    yield f"TE current has {without_waiting(HAVE[small, BASE], HAVE[small, 'te-current']):.2f}"
    alone = without_waiting(HAVE[middle, BASE], HAVE[middle, "te-current"])
    yield f"would be {alone:.2f} times as fast, and the step is {gains('te-current')[middle]:.2f} times as fast"
    lost = [shape for shape, gain in gains("te-current").items() if gain < 1 - TIE]
    saved = [s for s in lost if without_waiting(HAVE[s, BASE], HAVE[s, "te-current"]) > 1 + TIE]
    assert all(reason(HAVE[s, BASE], HAVE[s, "te-current"]) == "launch" for s in lost)
    yield f"Of the {len(lost)} shapes at which TE current loses, {len(saved)} would win but for this"
    calm = [c.spread for c in HAVE.values() if not c.parts["launch"]]
    busy = [c.spread for c in HAVE.values() if c.parts["launch"]]
    yield f"differ by {median(calm):.0%} in the median cell and by {max(calm):.0%} in the worst".replace("%", " %")
    worst = max((c for c in HAVE.values() if not c.parts["launch"]), key=lambda c: c.spread)
    assert worst.arm == BASE
    yield f"a BF16 step of {worst.seconds * 1e3:.1f} ms"
    yield f"differ by up to {max(busy):.0%}".replace("%", " %")


@pytest.mark.parametrize("line", list(rows()))
def test_every_row(line):
    assert line in README.splitlines()


@pytest.mark.parametrize("words", list(sentences()))
def test_every_number_in_the_text(words):
    assert words in TEXT


def test_what_the_words_say():
    assert queue(BASE) * 8 < queue("te-current") < queue(BASE) * 10 and 900 < queue("te-current") < 1100
    better = [
        gains("te-delayed")[s] / gains("te-current")[s]
        for s, c in of("te-delayed").items()
        if not c.parts["launch"] and s.M * s.K * s.N < 2**42
    ]
    assert round(min(better), 2) >= 1.02 and round(max(better), 2) <= 1.08, (min(better), max(better))
    assert 0.75 < rate("te-block") / rate("te-current") < 0.85
    assert 2.5 < price("torchao-rowwise") / price("torchao-tensorwise") < 3.5
    assert rate("torchao-rowwise") == max(map(rate, FP8))


def test_the_record_is_whole_and_tells_nothing_private():
    assert RECORD["status"] == "finished" and len(RECORD["cells"]) == 27 * 7 and records.todo(RECORD) == []
    assert all(cell.fp8_kernels == (cell.arm in FP8) for cell in HAVE.values())
    for word in (RECORD["versions"][name] for name in ("torch", "torchao", "transformer-engine")):
        assert word in TEXT
    assert RECORD["started"][:10] in TEXT and RECORD["hardware"]["gpus"][0]["driver"] in TEXT
    for file in RESULTS.rglob("*.json"):
        if "crossover" in file.name or "matrix" in file.name:
            assert not re.search(r"/root/|/home/|/tmp/|GPU-[0-9a-f]{8}", file.read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w./-]+\.(?:json|png|md)", README))
    for path in (RESULTS / "crossover").glob("*.*"):
        assert path.name in named | {"README.md"}


def test_the_table_file_is_the_records():
    text = (RESULTS / "crossover" / "crossover.md").read_text(encoding="utf-8")
    assert text == "\n\n".join(records.table(RECORD, arm) for arm in RECORD["arms"] if arm != BASE) + "\n"


def test_the_matrix_record():
    tried = json.loads((RESULTS / "h200-matrix.json").read_text(encoding="utf-8"))["tried"]
    assert f"all {len(tried)} combinations" in TEXT and f"All {sum(e['ok'] for e in tried)} ran" in TEXT
