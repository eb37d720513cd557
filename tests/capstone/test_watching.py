"""16.8's and C.4's alarms on the health page: polled on a record that grows, they ring as on the finished one."""

import pytest
import torch

import capstone
from capstone.given.recorded import load
from capstone.running import ringing, watching
from labkit.watch import mine
from labkit.watch.alarms import Judge
from labkit.watch.source import Source
from tests.notebooks import Notebook, source
from tests.watch.lines import lines, record


def polled(steps, polls):
    """[(kind, step)] of the student's alarms after these polls; the last is at all steps."""
    judge, growing, before = Judge(mine.make_rules()), record([]), 0
    for now in (*polls, len(steps)):
        growing.add(steps[before:now])
        before = now
        found = judge.judge(growing)
    return sorted((alarm.kind, alarm.step) for alarm in found if alarm.kind in mine.PARTS)


def blown_up():
    """A run whose loss, norm and amaxes grow by a quarter a step from step 151 on."""
    steps = lines(200, probe_every=2)
    for line in steps[150:]:
        times = 1.25 ** (line["step"] - 150)
        line["loss"], line["grad_norm"] = line["loss"] * times, line["grad_norm"] * times
        for stat in line.get("scales", {}).values():
            stat["amax"], stat["scale"] = stat["amax"] * times, stat["scale"] / times
    return steps


def test_both_ring_however_the_record_was_polled_at():
    steps = blown_up()
    whole = polled(steps, ())
    assert {kind for kind, _ in whole} == set(mine.PARTS)
    assert all(step is not None and 150 < step < 180 for _, step in whole)
    assert polled(steps, (1, 7, 120, 150, 153, 154, 190)) == whole


def test_a_slow_rank_is_named():
    steps = lines(200, probe_every=2, ranks=4)
    for line in steps[120:]:
        line["rank_seconds"][2] *= 1.6
    judge = Judge(mine.make_rules())
    (alarm,) = [one for one in judge.judge(record(steps)) if one.kind == "your alarms (C.4)"]
    assert alarm.reason.startswith("rank 2: ") and 120 < alarm.step <= 120 + 32


def test_only_the_newest_rows_are_shown_and_what_lies_before_is_not_lost(monkeypatch):
    monkeypatch.setattr(watching, "BACK", 100)
    monkeypatch.setattr(watching, "AT_A_TIME", 30)
    assert polled(blown_up(), (95,)) == polled(blown_up(), ())


def test_what_was_not_recorded_is_no_alarm():
    steps = [{"step": line["step"], "loss": line["loss"], "grad_norm": line["grad_norm"]} for line in lines(120)]
    steps[60]["loss"] = None
    assert [step for _, step in polled(steps, (50,))] in ([], [61])  # a loss that is no number may ring


def test_the_lab_runs_come_back_as_a_folder_and_ring_on_the_page_as_in_the_lab():
    one = next(one for one in load() if one.fault == "growth")
    folder = ringing.folder_of(one)
    _, seen, alarms = Source(folder, mine=True).poll("")
    assert len(seen) == len(one.run.loss_S)
    again = watching.run_of(seen, 0, len(seen))
    for name, before, after in zip(one.run._fields, one.run, again):
        if name != "work_SR":
            torch.testing.assert_close(after, before, equal_nan=True, rtol=1e-5, atol=1e-9, msg=name)
    rows = [alarm.row for alarm in ringing.health.alarms(one.run)]
    assert [a.step for a in alarms if a.kind == "your alarms (C.4)"][:1] == [rows[0] + 1]


@pytest.mark.thorough  # Panel takes seconds to import
def test_the_notebooks_panel_cell():
    """The cell itself shows the page, with the student's alarms on it."""
    pn = pytest.importorskip("panel")
    (cell,) = [source(cell) for cell in Notebook(capstone).cells if "ringing.page" in source(cell)]
    view = eval(cell, {"ringing": ringing})
    assert isinstance(view, pn.viewable.Viewable)
    said = " ".join(pane.object for pane in view.select(pn.pane.HTML))
    assert "growth" in said and "your alarms (C.4)" in said and "not written yet" not in said
