"""The study of the alarms: its plan, its bookkeeping on made-up runs, and one short real training of each fault."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from labkit.comm.ranks import run_ranks
from labkit.watch import study
from tests.watch.lines import lines


def test_the_plan_pairs_every_fault_with_a_clean_run_before_it():
    plan = list(study.trials())
    assert Counter(trial.fault is None for trial in plan) == {True: study.CLEAN, False: study.FAULTY}
    assert plan == list(study.trials()) and len({trial.name for trial in plan}) == len(plan)
    clean = set()
    for trial in plan:
        clean |= {trial.seed} if trial.fault is None else set()
        assert trial.seed in clean and (trial.fault is None or 100 <= trial.begin < 200)
    assert set(Counter(trial.fault for trial in plan if trial.fault).values()) == {study.FAULTY // len(study.FAULTS)}


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
    study.save(out, {"trial": {}, "lines": [study.thinned(line) for line in run], "events": []}, trial.name)


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
    found = study.judge(tmp_path)
    assert (found["harmful"], found["caught"], found["clean"]) == (4, 2, 4)
    assert [one["run"] for one in found["false"]] == [clean[1].name, faults[3].name]
    rows = [found["faults"][trial.fault] for trial in faults[:5]]
    assert [row["caught"] for row in rows] == [1, 0, 0, 0, 1] and [row["late"] for row in rows] == [0, 1, 1, 0, 0]
    assert rows[0]["median_lead"] == harm[0] - begin[0] - 4 and rows[4]["median_lead"] == 6 and rows[2]["early"] == 1
    assert found["folklore"]["not_finite"] == {"runs": 1, "after_a_drop": 0}


@pytest.mark.thorough
def test_each_fault_changes_a_training_from_its_step_on_and_not_before(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 26)

    def losses(fault):
        trial = study.Trial(3, fault, 12, 1.0)
        kept = run_ranks(study.run, trial, size=1, backend="threads", timeout=None)[0]["lines"]
        return [line["loss"] for line in kept]

    clean = losses(None)
    assert len(clean) == 26 and losses(None) == clean
    for fault in study.FAULTS:
        own = losses(fault)
        assert own[:11] == clean[:11] and own[-1] != clean[-1], fault
