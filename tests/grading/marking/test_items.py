"""Points by item in formgrader's comments, and sentences that are used again."""

import pytest

from grading.marking.items import Item, crowded, expanded, items, read
from labkit.checks.tasks import find_weeks

CODES = {"units": "State the unit of every number.", "why": "Say why."}
RUBRIC = [Item(1, "the reason", 4), Item(2, "an example", 2)]


@pytest.mark.parametrize("week", find_weeks(), ids=lambda week: week.name)
def test_every_weeks_written_task_has_items_that_add_up(week):
    for task in week.tasks:
        if task.kind == "written":
            found = items(week, task)
            assert len(found) >= 3 and sum(item.points for item in found) == task.points
            assert len({item.title for item in found}) == len(found)


def test_a_comment_is_read_by_items():
    comment = "1: 3 #units\n2: 1,5 no number #why\nWell written."
    marking = read([comment], RUBRIC, CODES)
    assert marking.points == {1: 3, 2: 1.5} and marking.total == 4.5 and marking.faults == []
    assert read(["Well written: 3 of 4."], RUBRIC, CODES) is None
    assert expanded(comment, RUBRIC, CODES).split("\n") == [
        "the reason: 3 of 4", "    State the unit of every number.", "an example: 1.5 of 2", "    no number Say why.",
        "Well written.",
    ]  # fmt: skip
    assert expanded("#units, please", [], CODES) == "State the unit of every number., please"


@pytest.mark.parametrize(
    "comment, fault",
    [
        ("1: 5\n2: 1", "item 1 has 5 points, and 4 are possible"),
        ("1: 3", "item 2, an example, has no points"),
        ("1: 3\n1: 2\n2: 0", "item 1 is there twice"),
        ("1: 3\n2: 1\n3: 1", "there is no item 3"),
        ("1: 3 #unit\n2: 1", "#unit is in no [comments]"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(comment, fault):
    assert any(fault in sentence for sentence in read([comment], RUBRIC, CODES).faults)


@pytest.mark.parametrize("line", ["1: 3; 2: 1", "1: 3, 2: 1", "1: 3/4"])
def test_several_items_in_one_line_are_no_item(line):
    assert read([line], RUBRIC, {}) is None
    (said,) = crowded(["Well written.", line, "2: 1 and words"])
    assert said in read(iter([f"2: 1\n{line}"]), RUBRIC, {}).faults, "its item is missing, and why"
    assert read([f"1: 3\n2: 1\n{line}"], RUBRIC, {}).faults == [], "words, where no item is missing"
