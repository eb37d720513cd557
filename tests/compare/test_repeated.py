"""The verdict repeated on GPUs: which runs a repetition takes, and that the record says what its own losses say."""

import json

import numpy as np
import pytest

from labkit.compare.statistic import Spread
from studies.verdict import show
from studies.verdict.repeated import BF16, Run, repetitions
from tests.compare.comparing import ROOT

pytestmark = pytest.mark.thorough  # of a study: no tool stands on it


def test_the_record_says_what_its_own_losses_say():
    """Gaps, spreads and every repetition, from the held-out losses that the record holds."""
    (record,) = (ROOT / "results").glob("*-verdict-repeats.json")
    found = json.loads(record.read_text())
    runs = [
        Run(call, kind, seed, dict(zip(found["steps"], losses, strict=True)))
        for call, kind, seed, *losses in found["heldout"]
    ]
    assert len({(one.call, one.kind, *one.held.values()) for one in runs}) == len(runs), "no run is there twice"
    ys = {row["kind"]: np.array([one.y for one in runs if one.kind == row["kind"]]) for row in found["kinds"]}
    for row in found["kinds"]:
        own = ys[row["kind"]]
        assert row["runs"] == len(own) and row["gap"] == pytest.approx(own.mean() - ys[BF16].mean(), abs=1e-4)
        if "spread" in row:
            assert row["spread"] == pytest.approx(np.std(own, ddof=1), abs=1e-4)
            parts = [np.std(ys[kind], ddof=1) ** 2 / len(ys[kind]) for kind in (row["kind"], BF16)]
            assert row["error"] == pytest.approx(0 if row["kind"] == BF16 else np.sqrt(sum(parts)), abs=1e-4)
            assert sum(row["rates"][word] for word in show.WORDS) == pytest.approx(1)
    again = repetitions(runs, Spread(*found["records"], 8))
    what = ("kind", "base", "call", "word")
    assert [[one[key] for key in what] for one in again] == [[one[key] for key in what] for one in found["repetitions"]]
    assert show.odd(found, "te-current", "same")["word"] == "undecided"
    assert show.repeated_times(found, "te-current") == show.repeated_times(found, "fine") == 8, "the page: each"
    assert "| BF16 | 2 | 3 | 2 | same |" in show.repetitions_table(found)
    for one, shown in zip(again, found["repetitions"]):
        assert (one["value"], one["low"]) == pytest.approx((shown["value"], shown["low"]), abs=1e-4)
