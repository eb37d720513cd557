"""The verdict repeated on GPUs: which runs a repetition takes, and that the record says what its own losses say."""

import json

import numpy as np
import pytest

from labkit.compare.statistic import Spread, answers
from studies.verdict import show
from studies.verdict.repeated import BF16, Run, repetitions
from tests.compare.comparing import ROOT

pytestmark = pytest.mark.thorough  # of a study: no tool stands on it
PRIOR = Spread(0.064, 0.10, 8)
WHOLE = ROOT / "week16_fp8" / "results" / "2026-11-22-h200-whole"


def run(call: int, kind: str, gap: float, seed: int = 0) -> Run:
    """Held-out losses of 4 evaluations; those of the second half lie `gap` per cent from 3 nats."""
    late = 3.0 * np.exp(gap / 100)
    return Run(call, kind, seed, {10: 9.0, 20: 7.0, 30: float(late), 40: float(late)})


def four(call: int) -> list[Run]:
    return [run(call, BF16, gap) for gap in (-0.06, -0.02, 0.02, 0.06)]


def test_repetitions_use_no_run_of_a_candidate_twice_and_their_own_calls_bf16():
    current = [run(call, "te-current", gap) for call in (0, 1) for gap in (0.03, -0.03)]
    fine = [run(call, "fine", gap) for call in (0, 1) for gap in (0.75, 0.81)]
    lone = run(0, "fine", 0.9)
    found = repetitions([*four(0), *four(1), *current, *fine, lone, run(2, "fine", 0.7), run(2, "fine", 0.7)], PRIOR)
    shown = {(one.kind, one.call): one for one in found if one.kind != BF16}
    assert len(shown) == 4 and all(one.base == one.call and one.answer.runs == 2 for one in shown.values())
    assert {one.answer.word for one in found if one.kind == "te-current"} == {"same"}
    assert {one.answer.word for one in found if one.kind == "fine"} == {"different"}
    assert shown["fine", 0].answer.gap == pytest.approx(0.78), (
        "the third waits for a fourth, the third call has no BF16"
    )


def test_who_is_undecided_has_two_more_runs_and_is_judged_by_all_four():
    odd = [run(0, "te-current", gap) for gap in (0.30, 0.12, 0.02, -0.04, 0.0, 0.04)]
    found = [one for one in repetitions([*four(0), *odd], PRIOR) if one.kind == "te-current"]
    first = answers([one.y for one in four(0)], {"te-current": [one.y for one in odd[:2]], "fine": []}, PRIOR, 2)
    assert first["te-current"].word == "undecided", "or the case shows nothing"
    assert [one.answer.runs for one in found] == [4, 2] and found[0].answer.gap == pytest.approx(0.10)
    cut = [one for one in repetitions([*four(0), *odd[:3]], PRIOR) if one.kind == "te-current"]
    assert [(one.answer.runs, one.answer.word) for one in cut] == [(2, "undecided")], "its second look is not there"


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
    assert [(one.kind, one.base, one.call, one.answer.word) for one in again] == [
        (one["kind"], one["base"], one["call"], one["word"]) for one in found["repetitions"]
    ]
    assert show.odd(found, "te-current", "same")["word"] == "undecided"
    assert show.repeated_times(found, "te-current") == show.repeated_times(found, "fine") == 8, "the page: each"
    assert "| BF16 | 2 | 3 | 2 | same |" in show.repetitions_table(found)
    for one, shown in zip(again, found["repetitions"]):
        assert (one.answer.gap, one.answer.low) == pytest.approx((shown["value"], shown["low"]), abs=1e-4)
