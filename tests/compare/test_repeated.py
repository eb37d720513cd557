"""The verdict repeated on GPUs: which runs a repetition takes, and that the record says what its own losses say."""

import json
import shutil

import numpy as np
import pytest

from labkit.compare.statistic import Spread, answers
from labkit.errors import LabError
from labkit.record.clean import jsonable
from studies.verdict import show
from studies.verdict.repeated import BF16, Run, repetitions, runs_of, study
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


def test_bf16_is_held_against_another_calls_bf16():
    moved = [run(1, BF16, gap) for gap in (0.94, 0.98, 1.02, 1.06)]
    found = repetitions([*four(0), *moved], PRIOR)
    assert [(one.kind, one.base, one.call) for one in found] == [(BF16, 1, 0), (BF16, 0, 1)]
    assert [one.answer.gap for one in found] == pytest.approx([-1.04, 0.96]) and found[0].answer.word == "different"
    odd = [run(1, BF16, gap) for gap in (0.30, 0.12, 0.02, -0.04)]
    (other,) = (one for one in repetitions([*four(0), *odd], PRIOR) if one.call == 1)
    assert other.answer.runs == 4 and other.answer.gap == pytest.approx(0.10), "undecided by two"


def test_runs_are_those_that_were_trained_to_the_end_in_their_order(tmp_path):
    runs, _ = runs_of([WHOLE], 3)
    kinds = [one.kind for one in runs]
    assert kinds.count(BF16) == 3, "BF16 and its two twins"
    assert {one.call for one in runs} == {3} and {max(one.held) for one in runs} == {400}
    assert {"te-delayed", "te-current", "fine"} <= set(kinds)
    assert kinds.index(BF16) < kinds.index("te-delayed") < kinds.index("te-current"), "as the preset trains them"
    twice, _ = runs_of([WHOLE, WHOLE], 0)
    assert sorted(one.kind for one in twice) == sorted(2 * kinds)


def test_other_trainings_and_other_folders_are_refused(tmp_path):
    demo = ROOT / "results" / "2026-11-23-cpu-demo"
    with pytest.raises(LabError, match="2026-11-23-cpu-demo: another training than that of"):
        study([[WHOLE], [demo]])
    with pytest.raises(LabError, match="another training than that of the runs beside it"):
        study([[WHOLE, demo]])
    shutil.copy(WHOLE / "run.json", tmp_path)
    with pytest.raises(LabError, match="no arm of .* was trained to its end"):
        runs_of([WHOLE, tmp_path], 0)
    with pytest.raises(LabError):
        runs_of([tmp_path / "nowhere"], 0)


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


def another(place, number: int):
    """The whole comparison once more, as if it had run on another day."""
    folder = shutil.copytree(WHOLE, place / f"again-{number}")
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "started": f"2026-11-2{number}T00:00:00Z"}))
    return folder


def test_an_earlier_record_stands_for_its_calls(tmp_path):
    record, (second, third) = tmp_path / "first.json", (another(tmp_path, number) for number in (4, 5))
    first = study([[WHOLE], [second]])
    record.write_text(json.dumps(jsonable(first)))
    again, whole = study([[record], [third]]), study([[WHOLE], [second], [third]])
    for key in ("calls", "train", "steps", "heldout", "records"):
        assert jsonable(again[key]) == jsonable(whole[key]), key
    assert [row["gap"] for row in again["kinds"]] == pytest.approx([row["gap"] for row in whole["kinds"]], abs=1e-4)
    assert study([[third], [record]])["heldout"] == whole["heldout"], "in any place"
    for twice in ([[record], [WHOLE]], [[WHOLE], [WHOLE]]):
        with pytest.raises(LabError, match="2026-11-22-h200-whole is there already: the same runs would count twice"):
            study(twice)


def test_a_record_is_read_as_a_configuration_is(tmp_path):
    record, first = tmp_path / "first.json", jsonable(study([[WHOLE]]))
    train = dict(first["train"])
    assert train.pop("loss_chunk") == 0, "a setting that came later, at its default"
    record.write_text(json.dumps({**first, "train": train}))
    assert study([[record], [another(tmp_path, 4)]])["train"] == first["train"]
    with pytest.raises(LabError):
        study([[record, WHOLE]])
    record.write_text(json.dumps({**first, "train": {**train, "steps": "x"}}))
    with pytest.raises(LabError, match="first.json: steps must be"):
        study([[record]])
