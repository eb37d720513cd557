"""What a budget decides: the order of the arms, and what is said of it before anything starts."""

import pytest

from labkit.compare.plan import Plan, decisive_first, runs_of_decision
from labkit.compare.preset import load_preset


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
        name: max(ordered.index(each) for each in [("speed", name), *(("safety", run) for run in runs)])
        for name in (first, then)
        if (runs := runs_of_decision(plan.preset, name))
    }
    own = [i for i, (_, arm) in enumerate(ordered) if then in (arm, plan.preset.arms[arm].of)]
    assert ordered[:2] == [("speed", "bf16"), ("speed", first)]
    assert decided[first] < min(own) and decided[then] == decided[first] + 3
    looks = [i for i, (part, arm) in enumerate(ordered) if part == "safety" and plan.preset.arms[arm].look > 1]
    beside = [i for i, (part, arm) in enumerate(ordered) if part == "speed" and arm not in ("bf16", first, then)]
    assert decided[then] < min(looks) < max(looks) < min(beside) and len(beside) == 5
