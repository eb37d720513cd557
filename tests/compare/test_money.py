"""What a renter reads and is asked about minutes and money, and the order of the arms that a budget decides."""

import io

import pytest
from rich.console import Console

from labkit.compare import compare
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan, decisive_first
from labkit.compare.preset import load_preset
from labkit.compare.session import Session
from labkit.compare.summary import note_call, together
from labkit.errors import LabError
from labkit.record.read import read_run
from labkit.record.run import RunRecord
from labkit.record.schema import Call, Item


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def plan(tmp_path):
    return Plan(load_preset("h100", []), tmp_path, 1, todo=[("speed", "bf16"), ("safety", "te-delayed")])


def decisive(plan, name):
    """The runs that a candidate's first verdict needs: its own, the baseline's, and the control's."""
    arms = {run: plan.preset.arms[arm.of or run] for run, arm in plan.preset.arms.items() if arm.look == 1}
    return [run for run, of in arms.items() if of is plan.preset.arms[name] or of.role in ("baseline", "broken")]


def prompted(plan, monkeypatch, answer, terminal=True, minutes=None):
    said = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdin", Terminal(answer) if terminal else io.StringIO(answer))
    compare.ask_without_budget(plan, Console(file=said, width=200), Budget(minutes, 3.0))
    return said.getvalue()


def test_a_start_without_a_budget_says_what_it_will_cost_and_asks(plan, monkeypatch):
    shown = prompted(plan, monkeypatch, "y\n")
    minutes = sum(item.predicted_s for item in plan.items()) / 60
    assert f"this starts 2 trainings, predicted to take {minutes:.1f} minutes, {minutes / 20:.2f} at 3.00" in shown
    for answer in ("n\n", "\n"):
        with pytest.raises(LabError, match="nothing was started"):
            prompted(plan, monkeypatch, answer)
    assert prompted(plan, monkeypatch, "", terminal=False), "without a terminal nobody is asked"


def test_one_recipe_fits_into_ten_minutes_and_both_into_thirteen_by_the_prediction(tmp_path):
    """On an H100: four BF16 runs, the control, two runs of each of the two fastest, then every other speed window."""
    preset = load_preset("h100", [])
    rates = {name: arm.expect.speed or 0 for name, arm in preset.arms.items() if arm.role == "candidate"}
    assert {*sorted(rates, key=rates.get)[-2:]} == {*preset.judged}
    plan = Plan(preset, tmp_path, 1, memory_gib=79.2, requested=preset.judged)
    plan.todo = [("speed", arm) for arm in preset.timed] + [("safety", arm) for arm in preset.trained]
    plan.todo = decisive_first(plan)
    # Arms like these took 14.1 minutes on an H100 where 14.3 are predicted, two of the windows not among them.
    assert 14.5 < sum(item.predicted_s for item in plan.sure() if item.arm != "week16") / 60 < 15.5
    last = {name: max(plan.todo.index(("safety", run)) for run in decisive(plan, name)) for name in plan.requested}
    minutes = {name: sum(item.predicted_s for item in plan.sure()[: at + 1]) / 60 for name, at in last.items()}
    assert 5 < minutes["te-current"] < 10 - 1 / 6 < minutes["te-delayed"] < 13 - 1 / 6  # ten seconds are the report's


def test_a_further_run_waits_for_its_first(tmp_path):
    preset = load_preset("h100", [])
    plan = Plan(preset, tmp_path, 1, requested=preset.judged)
    session = Session(plan, Budget(minutes=10), Console(file=io.StringIO()), leader=False)
    first, second, other = (plan.item("safety", arm) for arm in ("te-current", "te-current-2", "te-delayed-2"))
    session.budget.left.append(first)
    assert session._decide(second) is None and session.budget.left == [first, second]
    assert session._decide(other) == []
    assert session.budget.late(other, after=600.0) and not Budget().late(other, after=600.0)


# ---- in which order the arms run


def plan_of(tmp_path, *settings, judged=("te-delayed", "te-current")):
    preset = load_preset("h100", settings)
    todo = [("speed", arm) for arm in preset.timed]
    todo += [("safety", arm) for arm in preset.arms if arm in preset.trained or (preset.arms[arm].of or arm) in judged]
    return Plan(preset, tmp_path, 1, todo=todo, requested=list(judged), memory_gib=80.0)


@pytest.mark.parametrize("first, then", [("te-current", "te-delayed"), ("te-delayed", "te-current")])
def test_one_recipe_is_answered_in_speed_and_loss_before_the_next_begins(tmp_path, first, then):
    plan = plan_of(tmp_path, f'repeat.judged=["{first}", "{then}"]')
    ordered = decisive_first(plan)
    assert sorted(ordered) == sorted(plan.todo)
    decided = {
        name: max(ordered.index(each) for each in [("speed", name), *(("safety", run) for run in decisive(plan, name))])
        for name in (first, then)
    }
    own = [i for i, (_, arm) in enumerate(ordered) if then in (arm, plan.preset.arms[arm].of)]
    assert ordered[:2] == [("speed", "bf16"), ("speed", first)]
    assert decided[first] < min(own) and decided[then] == decided[first] + 3
    looks = [i for i, (part, arm) in enumerate(ordered) if part == "safety" and plan.preset.arms[arm].look > 1]
    beside = [i for i, (part, arm) in enumerate(ordered) if part == "speed" and arm not in ("bf16", first, then)]
    assert decided[then] < min(looks) < max(looks) < min(beside) and len(beside) == 5


def call(seconds, cost=None, **more):
    return Call(began=0.0, seconds=seconds, cost=cost, **more)


@pytest.mark.parametrize(
    "earlier, last, shown",
    [
        ([], call(600), ""),
        ([call(3)], call(600), ""),  # a look that ran nothing
        ([call(600)], call(300), " With the calls before it 15.0 minutes."),
        ([call(600, 0.5)], call(300, 0.25, ended=True), " With the calls before it 15.0 minutes, 0.75 in all."),
        ([call(600, 0.5)], call(300), " With the calls before it 15.0 minutes."),  # one without a price: no sum
        ([call(600, ended=False), call(60)], call(300), " With the calls before it at least 16.0 minutes."),
    ],
)
def test_all_calls_are_summed(earlier, last, shown):
    assert together(earlier, last) == shown


def test_a_call_replaces_what_it_wrote_and_nothing_else(tmp_path):
    """Two calls by a clock of our own: one killed while its second arm ran, one that finished."""
    record = RunRecord.create(tmp_path / "run", kind="compare", command="lab compare", hardware={})
    clock = iter([1000.0, 1000.0 + 5, 1000.0 + 605]).__next__
    killed = Budget(10, 3.0, clock=clock)
    note_call(record, killed)
    killed.took(Item(part="speed", arm="bf16", predicted_s=500.0), 600.0)
    note_call(record, killed)
    again = Budget(10, 3.0, clock=iter([9000.0, *[9000.0 + 120] * 2]).__next__)
    note_call(record, again)
    again.took(Item(part="speed", arm="fp8", predicted_s=90.0), 100.0)
    note_call(record, again, ended=True)
    record.close()
    killed, again = read_run(tmp_path / "run").comparison.results.calls
    assert (killed.ended, killed.seconds, [item.arm for item in killed.items]) == (False, 605.0, ["bf16"])
    assert (again.ended, again.seconds, [item.arm for item in again.items]) == (True, 120.0, ["fp8"])
