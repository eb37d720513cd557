"""PARALLELISM_GUIDE.md: what it shows is what the planner answers now. (That the page is what its template makes of
studies/guide/guide.json, and its pictures' words: tests/test_results.py.)"""

import random
from pathlib import Path

import pytest

from labkit.plan.constants import constants
from studies.guide import survey
from studies.guide import tables as guide
from studies.guide.survey import FABRICS, GPUS, MODELS, PRECISIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "PARALLELISM_GUIDE.md").read_text(encoding="utf-8")
SAID = survey.load()
CELLS = [(m, n, f, p) for m in MODELS for n in GPUS for f in FABRICS for p in PRECISIONS]


def key(cell):
    return cell["model"], cell["gpus"], cell["fabric"], cell["precision"]


def same(old, new):
    """Equal, numbers to their last digits: another NumPy may sum in another order."""
    assert old.keys() == new.keys()
    for name, value in old.items():
        if isinstance(value, float):
            assert new[name] == pytest.approx(value, rel=1e-3, abs=2e-4), name
        elif isinstance(value, dict):
            same(value, new[name])
        elif isinstance(value, list):
            assert new[name][0] == value[0] and new[name][1] == pytest.approx(value[1], rel=1e-3, abs=2e-4), name
        else:
            assert new[name] == value, f"{name}: python -m studies.guide.survey --write, then lab results"


def test_a_drawn_sample_is_what_the_planner_answers():
    """Other cells each time, so that what is stale is found sooner or later; other constants are reported at once."""
    assert SAID["constants"] == pytest.approx(constants()._asdict()), "python -m studies.guide.survey --write"
    assert [key(cell) for cell in SAID["cells"]] == CELLS
    for at in random.sample(range(len(CELLS)), 12):
        same(SAID["cells"][at], survey.cell(*CELLS[at]))


@pytest.mark.thorough
def test_all_of_it_is_what_the_planner_answers():
    now = survey.everything(lambda text: None)
    assert now.keys() == SAID.keys()
    for name in ("cells", "map", "published", "anatomy", "errors"):
        assert len(now[name]) == len(SAID[name])
        for old, new in zip(SAID[name], now[name]):
            same(old, new)
    for name in ("short", "again"):
        same(SAID[name], now[name])


def test_marks_are_where_the_published_runs_are():
    marked = [cell for cell in SAID["cells"] if guide.mark_of(cell)]
    there = {tuple(one[name] for name in ("model", "gpus", "fabric", "precision")) for one in SAID["published"]}
    assert {key(cell) for cell in marked} == there & set(CELLS) and len(marked) >= 6
    for one in SAID["published"]:
        if one["mark"] == "differs":  # said why: slower, too large, or not tried
            assert one["gain"] is None or one["gain"] > 0.05 or one["fit"] == "does not fit"
        if one["mark"] == "agrees":
            assert one["fit"] != "does not fit"


@pytest.mark.parametrize("rule", [1, 2, 3, 4, 5])
def test_a_rule_is_counted_where_it_speaks(rule):
    """Counts add up, the page has them, and a rule that the planner broke in a third of the fields is no rule."""
    yes, of, broken = guide.kept(rule)
    assert yes + len(broken) == of <= len(guide.fitting()) and f"{yes} of {of}" in PAGE
    assert yes >= of * 2 / 3
    assert sum(guide.broken(rule).values()) == len(broken)
