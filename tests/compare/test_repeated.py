"""The verdict repeated on GPUs: which runs a repetition takes, and that the record says what its own losses say."""

import json
import shutil

import numpy as np
import pytest

from labkit.compare.statistic import Spread, answers
from labkit.errors import LabError
from labkit.record.clean import jsonable
from studies.verdict import repeated, show
from studies.verdict.repeated import BF16, Run, quads_of, repetitions, runs_of, study
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


def test_a_run_counts_by_the_second_half_of_its_evaluations():
    assert run(0, BF16, 0.5).y - run(0, BF16, 0.0).y == pytest.approx(0.5)


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


def test_a_call_without_four_bf16_runs_lends_none():
    assert list(quads_of([*four(0)[:3], *four(1)])) == [1] and repetitions(four(0)[:3], PRIOR) == []


def test_runs_are_those_that_were_trained_to_the_end_in_their_order(tmp_path):
    runs, _ = runs_of([WHOLE], 3)
    kinds = [one.kind for one in runs]
    assert kinds.count(BF16) == 3, "BF16 and its two twins"
    assert {one.call for one in runs} == {3} and {max(one.held) for one in runs} == {400}
    assert {"te-delayed", "te-current", "fine"} <= set(kinds)
    assert kinds.index(BF16) < kinds.index("te-delayed") < kinds.index("te-current"), "as the preset trains them"
    twice, _ = runs_of([WHOLE, WHOLE], 0)
    assert sorted(one.kind for one in twice) == sorted(2 * kinds)


def test_a_control_that_was_rejected_is_no_run(monkeypatch):
    real = repeated.heldout_of
    monkeypatch.setattr(repeated, "heldout_of", lambda run: {s: loss for s, loss in real(run).items() if s < 400})
    with pytest.raises(LabError, match="no arm of .* was trained to its end"):
        runs_of([WHOLE], 0)


def test_a_gaps_standard_error_is_of_both_means(monkeypatch):
    gaps = (-0.06, -0.02, 0.02, 0.06, 0.0, 0.1)
    runs = [run(0, kind, gap + more) for kind, more in ((BF16, 0.0), ("fine", 0.8)) for gap in gaps]
    monkeypatch.setattr(repeated, "runs_of", lambda folders, call: (runs, {}))
    fine = next(row for row in study([[WHOLE]])["kinds"] if row["kind"] == "fine")
    assert fine["gap"] == pytest.approx(0.8)
    assert fine["error"] == pytest.approx(np.std(gaps, ddof=1) * (1 / 6 + 1 / 6) ** 0.5)


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


def test_a_loss_that_is_not_finite_survives_the_record(tmp_path):
    record = tmp_path / "first.json"
    first = study([[WHOLE]])
    first["heldout"][3][-1] = float("inf")
    record.write_text(json.dumps(jsonable(first)))
    assert study([[record]])["heldout"][3][-1] == float("inf")


GOOD = {"steps": [1], "heldout": [[0, "bf16", 0, 1.0]], "train": {}, "calls": [[]]}
BAD = [{"heldout": [[0, "bf16", 0, 1.0, 2.0]]}, {"heldout": []}, {"heldout": [["0", "bf16", 0, 1.0]]}, {"steps": []}]
BAD += [{"heldout": [[0, "bf16", 0, None]]}, {"heldout": [[1, "bf16", 0, 1.0]]}, {"train": None}]


@pytest.mark.parametrize("wrong", ["{", "[]", "{}", *(json.dumps({**GOOD, **bad}) for bad in BAD)])
def test_a_file_that_is_no_record_is_refused(tmp_path, wrong):
    (tmp_path / "other.json").write_text(wrong)
    for name in ("other.json", "nowhere.json"):
        with pytest.raises(LabError, match=f"{name}: no record that"):
            study([[tmp_path / name]])


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


def test_a_record_of_another_training_is_refused(tmp_path):
    record = tmp_path / "first.json"
    first = jsonable(study([[WHOLE]]))
    record.write_text(json.dumps({**first, "train": {**first["train"], "lr": 1e-4}}))
    with pytest.raises(LabError, match="another training than that of"):
        study([[record], [another(tmp_path, 4)]])


def test_marks_beyond_the_axis_stand_side_by_side(tmp_path, monkeypatch):
    found = json.loads((ROOT / "results" / "2026-11-23-verdict-study.json").read_text())
    row = next(row for row in found["kinds"] if "rates" in row)
    found["kinds"] = [{**row, "gap": gap} for gap in (0.9, -1.4, -0.2, 0.1, 2.0)] + [{"kind": "e5m2", "gap": 0.3}]
    kept = []
    monkeypatch.setattr(show.plot, "save", lambda fig, *_: kept.append(fig))
    show.draw(found, tmp_path, "operating")
    ax, edge = kept[0].axes[0], show.GAPS[-1] * 1.06
    at = [line.get_xdata()[0] for line in ax.lines if line.get_marker() in show.MARKS.values()]
    assert at == pytest.approx([0.1, 0.2, *(edge + show.APART * (i + 0.5) for i in range(3))])
    assert ax.get_xlim()[1] == pytest.approx(edge + 3 * show.APART)


def test_tables_and_picture_tell_every_arm(tmp_path):
    found = study([[WHOLE]])
    assert "| BF16 | 3 |" in show.repeats_table(found) and "| all E5M2 (wrong) | 1 |" in show.repeats_table(found)
    assert "NVIDIA H200" in show.calls_table(found)
    drawn = show.repeats_picture(found, tmp_path, "repeats")
    assert drawn.png.is_file() and "BF16" in drawn.alt
