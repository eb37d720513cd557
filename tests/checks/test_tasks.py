"""The registry: read without running anything, wrong entries named, names resolved."""

import pytest

from labkit.checks.tasks import find_weeks, load_week, select
from labkit.errors import LabError
from tests.checks.miniweek import REGISTRY, make_week


def test_a_week_is_read(tmp_path):
    week = load_week(make_week(tmp_path))
    assert (week.name, week.package, week.title) == ("week91", "week91_mini", "Mini")
    assert [t.id for t in week.tasks] == ["91.1", "91.2", "91.3", "91.4"]
    assert week.task("91.2").stands_on == ("91.1",) and "91.2" in week and "91.9" not in week
    assert week.task("91.1").cell == "task-91-1" and week.task("91.1").modules == ("ops",)
    assert week.points("auto") == 15 and week.points() == 20


@pytest.mark.parametrize(
    "old, new, part",
    [
        ('id = "91.2"', 'id = "91.1"', "two tasks 91.1"),
        ('id = "91.2"', 'id = "two"', "WEEK.NUMBER"),
        ('kind = "written"', 'kind = "oral"', "kind must be one of"),
        ("points = 10", 'points = "ten"', "points"),
        ("points = 10", "points = -1", "above 0"),
        ("points = 0", "points = 3", "stretch"),
        ('stands_on = ["91.1"]', 'stands_on = ["91.7"]', "stands on 91.7"),
        ('title = "Mini"', 'titel = "Mini"', "title"),
        ('functions = ["ops.twice"]', 'function = ["ops.twice"]', "did you mean 'functions'"),
        ("[[task]]", "[[task]", "not valid TOML"),
        ("stands_on =", 'without = ["torch"]\nstands_on =', "stands on no other"),
    ],
)
def test_a_wrong_registry_is_one_sentence_with_its_file(tmp_path, old, new, part):
    folder = make_week(tmp_path, registry=REGISTRY.replace(old, new, 1))
    with pytest.raises(LabError, match=part) as caught:
        load_week(folder)
    assert str(folder / "tasks.toml") in str(caught.value)


def test_weeks_are_found_from_inside_them(tmp_path):
    with pytest.raises(LabError, match="no week's folder"):
        load_week(tmp_path)
    folder = make_week(tmp_path)
    (folder / "deep" / "er").mkdir(parents=True)
    for start in (tmp_path, folder, folder / "deep" / "er"):
        assert [w.folder for w in find_weeks(start)] == [folder]
    assert "week13" in [w.name for w in find_weeks("/")], "elsewhere: the course that labkit belongs to"


def test_names_select_tasks(tmp_path):
    weeks = [load_week(make_week(tmp_path))]

    def ids(*names):
        return [id for _, chosen in select(names, weeks) for id in chosen]

    assert ids() == ids("week91") == ids("week91_mini/") == ["91.1", "91.2", "91.3"]
    assert ids("91.2", "91.1", "91.2") == ["91.1", "91.2"]
    assert ids("91.4") == ["91.4"], "a stretch task is checked when it is named"
    with pytest.raises(LabError, match="did you mean 'week91'"):
        ids("week19")
    with pytest.raises(LabError, match="no task or week 'zzz'"):
        ids("zzz")
