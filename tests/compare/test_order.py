"""What a budget decides: the order of the arms, and what is said of it before anything starts."""

import pytest

from labkit.compare.announce import decided_inside
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan, cheapest_first, runs_of_decision
from labkit.compare.preset import load_preset


def plan_of(tmp_path, *settings, judged=("te-delayed", "te-current")):
    preset = load_preset("h100", settings)
    todo = [("speed", arm) for arm in preset.timed]
    todo += [("safety", arm) for arm in preset.arms if arm in preset.trained or (preset.arms[arm].of or arm) in judged]
    return Plan(preset, tmp_path, 1, todo=todo, requested=list(judged), memory_gib=80.0)


@pytest.mark.parametrize("dear, cheap", [("te-delayed", "te-current"), ("te-current", "te-delayed")])
def test_the_decision_that_takes_the_fewest_seconds_comes_first(tmp_path, dear, cheap):
    plan = plan_of(tmp_path, f"arms.{dear}.expect.safety=100000")
    ordered = cheapest_first(plan)
    assert sorted(ordered) == sorted(plan.todo)
    arms = [arm for part, arm in ordered if part == "safety"]
    last = {name: max(arms.index(run) for run in runs_of_decision(plan.preset, name)) for name in (dear, cheap)}
    assert last[cheap] < last[dear], "one is decided before the other goes on"
    assert max(last.values()) < min(i for i, arm in enumerate(arms) if plan.preset.arms[arm].look > 1)


def test_what_the_budget_decides_is_known_before(tmp_path):
    plan = plan_of(tmp_path, "arms.te-delayed.expect.safety=100000")
    plan.todo = cheapest_first(plan)
    whole = sum(item.predicted_s for item in plan.sure()) / 60
    assert decided_inside(plan, Budget(minutes=whole + 1)) == (["te-delayed", "te-current"], [])
    assert decided_inside(plan, Budget(minutes=whole - 2)) == (["te-current"], ["te-delayed"])
    assert decided_inside(plan, Budget(minutes=1)) == ([], ["te-delayed", "te-current"])
