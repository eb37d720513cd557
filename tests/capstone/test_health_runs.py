"""The recorded runs of C.4: the lab's and grading's are different runs, and either set can decide."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from capstone import health, test_health
from capstone.given.recorded import LAB, Recorded, load, packed
from capstone.given.records import Run, cut
from grading.tree import student_tree
from labkit.checks.drawn import Draw
from labkit.checks.tasks import find_weeks
from tests.capstone.record_health import UNSEEN
from tests.judged import ROOT

LAB_RUNS, GRADED_RUNS = load(LAB), load(test_health.GRADED)


def test_the_lab_and_grading_have_other_runs_and_grading_a_fault_more():
    kinds = [Counter(run.fault for run in runs) for runs in (LAB_RUNS, GRADED_RUNS)]
    assert set(kinds[1]) - set(kinds[0]) == {UNSEEN} and set(kinds[0]) < set(kinds[1])
    assert all(count >= 3 for counts in kinds for count in counts.values()), kinds
    starts = [{tuple(one.run.loss_S[:20].tolist()) for one in runs} for runs in (LAB_RUNS, GRADED_RUNS)]
    assert starts[0] and starts[1] and not starts[0] & starts[1]
    for one in (*LAB_RUNS, *GRADED_RUNS):
        assert (one.fault is None) == (one.at is None) == (one.harm is None)
        assert one.at is None or one.at <= one.harm < len(one.run.loss_S)


def test_students_get_the_labs_runs_alone():
    names = set(student_tree(ROOT, find_weeks(ROOT)).files)
    assert "capstone/data/lab.npz" in names and not [name for name in names if name.startswith("grading/")]


def test_what_is_stored_comes_back():
    run = GRADED_RUNS[0].run
    one = Recorded("odd", 3, 9, run._replace(loss_S=run.loss_S.clone().index_fill_(0, torch.tensor([5]), torch.inf)))
    with tempfile.TemporaryDirectory() as folder:
        np.savez_compressed(Path(folder) / "a.npz", **packed([one, GRADED_RUNS[1]]))
        first, second = load(Path(folder) / "a.npz")
    assert first[:3] == ("odd", 3, 9) and first.run.loss_S[5].isnan()
    for name, before, after in zip(Run._fields, GRADED_RUNS[1].run, second.run):
        # log2 in steps of 1/256 and 1/64: at most 0.55 % off, and a scale is made from two of them
        torch.testing.assert_close(after, before, rtol=0.012, atol=1e-5, equal_nan=True, msg=name)


def test_the_labs_runs_can_decide_alone(monkeypatch):
    """As at home, where grading's are not: the reference rings in time and never falsely."""
    monkeypatch.setattr(test_health, "GRADED", Path("nowhere"))
    for seed in range(3):
        hits = faults = false = 0
        for run, _, at, last, rank in test_health.cases(Draw(seed, "home")):
            rang = min(health.alarms(run), default=None, key=lambda alarm: alarm.row)
            hit = None not in (rang, at) and at <= rang.row <= last and rank == (-1 if rang.rank is None else rang.rank)
            hits, faults, false = hits + hit, faults + (at is not None), false + (rang is not None and not hit)
        found = (hits, faults, false)
        assert hits >= test_health.RECALL * faults and hits >= test_health.PRECISION * (hits + false), found


def test_alarms_are_the_same_on_every_record_that_ends_later():
    one = next(one for one in GRADED_RUNS if one.fault == UNSEEN)
    whole = health.alarms(one.run)
    assert whole and health.alarms(cut(one.run, 0)) == []
    for rows in range(10, len(one.run.loss_S), 17):
        assert health.alarms(cut(one.run, rows)) == [alarm for alarm in whole if alarm.row < rows]
