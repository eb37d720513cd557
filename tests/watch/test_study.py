"""The study of the alarms: its plan, its bookkeeping on made-up runs, and one short real training of each fault."""

import math

import pytest

from labkit.comm.ranks import run_ranks
from labkit.record.run import RunRecord
from studies.alarms import study
from tests.watch.lines import lines


def made(out, trial, rings=None, harm=None, nan=None):
    run = lines(study.STEPS, trial.seed, eval_every=5, probe_every=2)
    clean = lines(study.STEPS, trial.seed, eval_every=5)
    for line, usual in zip(run, clean):
        if "heldout" in usual:
            line["heldout"] = (3 - line["step"] / 400) * (1.05 if harm and line["step"] >= harm else 1.0)
        if rings and line["step"] == rings:
            line["grad_norm"] *= 1e4
        if nan and line["step"] == nan:
            line["loss"], line["skipped"] = math.nan, True
    with RunRecord.create(out / trial.name, kind="train", hardware={}) as record:
        for line in run:
            record.step(**line)
    study.pack(out / trial.name)


def test_what_counts_as_caught_early_late_false_and_harmless(tmp_path):
    plan = list(study.trials())[:9]
    clean, faults = [t for t in plan if t.fault is None], [t for t in plan if t.fault]
    made(tmp_path, clean[0])
    made(tmp_path, clean[1], rings=250)  # falsely
    made(tmp_path, clean[2])
    begin = [trial.begin for trial in faults]
    harm = [5 * (at // 5) + 25 for at in begin]
    made(tmp_path, faults[0], rings=begin[0] + 4, harm=harm[0])  # in time
    made(tmp_path, faults[1], rings=harm[1] + 20, harm=harm[1])  # too late
    made(tmp_path, faults[2], rings=begin[2] - 20, harm=harm[2])  # before the fault: of no use
    made(tmp_path, faults[3], rings=begin[3] + 4)  # no harm: a false alarm
    made(tmp_path, faults[4], rings=begin[4] + 3, nan=begin[4] + 9)
    rows = study.rows(tmp_path)
    found = study.judge(rows)
    assert (found["runs"], found["clean_runs"]) == (8, 3)
    assert (found["harmful"], found["caught"], found["clean"]) == (4, 2, 4)
    assert [one["run"] for one in found["false"]] == [clean[1].name, faults[3].name]
    shown = [found["faults"][trial.fault] for trial in faults[:5]]
    assert [row["caught"] for row in shown] == [1, 0, 0, 0, 1] and [row["late"] for row in shown] == [0, 1, 1, 0, 0]
    assert shown[0]["median_lead"] == harm[0] - begin[0] - 4 and shown[4]["median_lead"] == 6 and shown[2]["early"] == 1
    assert shown[0]["kinds"] == {"gradient spike": 1} and found["caught_without_the_learning_rate"] == 2
    assert found["caught_before_the_evaluation"] == 2 and found["harm_in_the_fault's_step"] == 0
    assert found["folklore"]["not_finite"] == 1 and found["folklore"]["not_finite_after_a_drop"] == 0
    kept = study.record(rows, "command")
    assert kept["rows"] == rows and kept["looked_at_before"]["caught"] == 2 and kept["caught"] == 0
    assert {"date", "hardware", "versions", "planned"} <= kept.keys()


@pytest.mark.thorough
def test_each_fault_changes_a_training_from_its_step_on_and_not_before(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "STEPS", 26)
    losses = {}
    for trial in (study.Trial(3), *(study.Trial(3, fault, 12, 0.9) for fault in study.FAULTS)):
        run_ranks(study.run, trial, tmp_path, size=1, backend="threads", timeout=None)
        losses[trial.fault] = [line["loss"] for line in study.load(tmp_path, trial)]
    clean = losses.pop(None)
    assert len(clean) == 26
    for fault, own in losses.items():
        assert own[:11] == clean[:11] and own[-1] != clean[-1], fault
