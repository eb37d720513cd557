"""What a renter reads and is asked about minutes and money."""

import io

import pytest
from rich.console import Console

from labkit.compare import compare, speed_verdict
from labkit.compare.announce import decided_inside
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan, decisive_first
from labkit.compare.preset import load_preset
from labkit.compare.session import Session
from labkit.errors import LabError
from labkit.record.schema import TimedRow


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def plan(tmp_path):
    return Plan(load_preset("h100", []), tmp_path, 1, todo=[("speed", "bf16"), ("safety", "te-delayed")])


def prompted(plan, monkeypatch, answer, terminal=True, minutes=None):
    said = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdin", Terminal(answer) if terminal else io.StringIO(answer))
    compare.ask_without_budget(plan, Console(file=said, width=200), Budget(minutes, 3.0))
    return said.getvalue()


def test_a_start_without_a_budget_says_what_it_will_cost_and_asks(plan, monkeypatch):
    shown = prompted(plan, monkeypatch, "y\n")
    minutes = sum(item.predicted_s for item in plan.items()) / 60
    assert f"this starts 2 trainings, predicted to take {minutes:.1f} minutes, {minutes / 20:.2f} at 3.00" in shown
    with pytest.raises(LabError, match="nothing was started"):
        prompted(plan, monkeypatch, "n\n")
    with pytest.raises(LabError, match="nothing was started"):
        prompted(plan, monkeypatch, "\n")


def test_without_a_terminal_nobody_is_asked(plan, monkeypatch):
    assert prompted(plan, monkeypatch, "", terminal=False)


def test_a_billion_tokens(plan):
    rows = {name: TimedRow(label=name.upper(), tokens_per_s=rate) for name, rate in (("bf16", 5e4), ("fp8", 1e5))}
    shown = speed_verdict.cost_sentence(rows, 3.6)
    assert shown == "At 3.60 an hour, a billion tokens cost 10.00 with FP8, 20.00 with BF16."
    assert speed_verdict.cost_sentence(rows, None) == speed_verdict.cost_sentence({}, 3.6) == ""


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
    assert decided_inside(plan, Budget(minutes=10)) == (["te-current"], ["te-delayed"])
    assert decided_inside(plan, Budget(minutes=13))[1] == []
    assert decided_inside(plan, Budget(minutes=1))[0] == []


def test_a_further_run_waits_for_its_first(tmp_path):
    preset = load_preset("h100", [])
    plan = Plan(preset, tmp_path, 1, requested=preset.judged)
    session = Session(plan, Budget(minutes=10), Console(file=io.StringIO()), leader=False)
    first, second, other = (plan.item("safety", arm) for arm in ("te-current", "te-current-2", "te-delayed-2"))
    session.budget.left.append(first)
    assert session._decide(second).word == "later" and session.budget.left == [first, second]
    assert session._decide(other).word == "run"
