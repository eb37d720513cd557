"""Points by item in formgrader's comments, comments used again, and two markers who do not see one another."""

from __future__ import annotations

import pytest
import typer

from grading.gradebook.commands import load as load_all
from grading.gradebook.course import SAMPLE
from grading.gradebook.items import Item, crowded, expanded, items, read
from grading.gradebook.load import load
from grading.intake.policy import Rules
from grading.reports.by_hand import all_by_hand
from grading.rubric import commands
from grading.rubric.apply import apply
from grading.rubric.second import agreement, kappa, sample, second
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError
from tests.grading.gradebook.samples import by_hand, handed, mark, put_marks, scores

RULES = Rules(comments={"units": "State the unit of every number.", "why": "Say why."})
RUBRIC = [Item(1, "the reason", 4), Item(2, "an example", 2)]


@pytest.mark.parametrize("week", find_weeks(), ids=lambda week: week.name)
def test_every_weeks_written_task_has_items_that_add_up(week):
    for task in week.tasks:
        if task.kind == "written":
            found = items(week, task)
            assert len(found) >= 3 and sum(item.points for item in found) == task.points
            assert len({item.title for item in found}) == len(found)


def test_a_comment_is_read_by_items():
    marking = read(["1: 3 #units\n2: 1,5 no number #why\nWell written."], RUBRIC, RULES.comments)
    assert marking.points == {1: 3, 2: 1.5} and marking.total == 4.5 and marking.faults == []
    assert read(["Well written: 3 of 4."], RUBRIC, RULES.comments) is None
    said = expanded("1: 3 #units\n2: 1,5 no number #why\nWell written.", RUBRIC, RULES.comments)
    assert said.split("\n") == [
        "the reason: 3 of 4",
        "    State the unit of every number.",
        "an example: 1.5 of 2",
        "    no number Say why.",
        "Well written.",
    ]
    assert expanded("#units, please", [], RULES.comments) == "State the unit of every number., please"


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
def test_what_cannot_be_meant_is_told(comment, fault):
    assert any(fault in sentence for sentence in read([comment], RUBRIC, RULES.comments).faults)


@pytest.mark.parametrize("line", ["1: 3; 2: 1", "1: 3, 2: 1", "1: 3/4"])
def test_several_items_in_one_line_are_no_item_and_told_as_such(line):
    assert read([line], RUBRIC, {}) is None
    told = [f"`{line}` is no item: one item a line, and a space before words"]
    assert crowded(["Well written.", line, "2: 1 and words"]) == told
    assert told[0] in read(iter([f"2: 1\n{line}"]), RUBRIC, {}).faults, "its item is missing, and why"
    assert read([f"1: 3\n2: 1\n{line}"], RUBRIC, {}).faults == [], "words, where no item is missing"


def test_items_become_formgraders_points_and_nothing_typed_is_written_over(
    course, week, source, marks, monkeypatch, capsys
):
    load(
        course,
        week,
        put_marks(marks, *(mark(name) for name in ("anna", "ben", "cleo", "dora", "emil"))),
        files=lambda m: handed(),
    )
    by_hand(course, "anna", "task-91-2", comment="1: 3 #units\n2: 2")
    by_hand(course, "ben", "task-91-2", points=1, comment="1: 3\n2: 2")
    by_hand(course, "cleo", "task-91-2", comment="1: 9\n2: 2")
    by_hand(course, "dora", "task-91-2", points=4, comment="Fine.")
    by_hand(course, "emil", "task-91-2", comment="1 3 2 2 #nosuch")
    done = apply(course, week, RULES)
    assert done.given == ["anna, 91.2: 5 points"] and done.same == 0
    assert [sentence.split(":")[0] for sentence in done.told] == ["ben, 91.2", "cleo, 91.2", "emil, 91.2"]
    assert done.told[-1] == (
        "emil, 91.2: no points, and no line of the comment begins with an item, as `1: 4` does; "
        "#nosuch is in no [comments] of course.toml"
    )
    by_hand(course, "emil", "task-91-2", comment="1: 3; 2: 2")
    assert apply(course, week, RULES).told[-1] == (
        "emil, 91.2: no points, and `1: 3; 2: 2` is no item: one item a line, and a space before words"
    )
    by_hand(course, "dora", "task-91-2", points=4, comment="Fine. #units #unitz")
    assert "dora, 91.2: #unitz is in no [comments] of course.toml" in apply(course, week, RULES).told
    assert [scores(course, name)["task-91-2"][1:] for name in ("anna", "ben", "cleo", "dora")] == [
        (5, False),
        (1, False),
        (None, True),
        (4, False),
    ]
    assert [(item.number, mean, many) for _, item, mean, many in done.means] == [(1, 3, 2), (2, 2, 2)]
    monkeypatch.chdir(source)
    with pytest.raises(typer.Exit):
        commands.rubric("week91", course.root, None)  # without course.toml: anna's #units is a fault, and left out
    assert ["1", "4", "3.0", "1", "the", "reason"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    again = apply(course, week, RULES, items_decide=True)
    assert again.given == ["ben, 91.2: 5 points, 1 before"] and again.same == 1
    load(course, week, marks, files=lambda m: handed())
    assert scores(course, "anna")["task-91-2"][1] == 5, "a later load keeps them"


@pytest.mark.thorough
def test_a_second_marker_sees_nothing_of_the_first_and_the_two_are_compared(
    course, week, source, marks, tmp_path, monkeypatch, capsys
):
    names = [f"s{n}" for n in range(6)]
    everybody = [*(mark(name) for name in names), mark("empty", unanswered=["91.2"])]
    load(course, week, put_marks(marks, *everybody), files=lambda m: handed())
    for name, points in zip(names, (3, 4, 2, 0, 1, 4)):
        by_hand(course, name, "task-91-2", comment=f"1: {points}\n2: 1 #why")
    apply(course, week, RULES)
    chosen = second(
        week, marks, tmp_path / "second", course, share=0.5, files=lambda m: handed(), rules=RULES, source=source
    )
    assert len(chosen) == 3 and set(chosen) < set(names)
    assert chosen == sample(names, "week91", 0.5)
    from grading.gradebook.course import open_course

    other = open_course(tmp_path / "second")
    assert not [given for tasks in all_by_hand(other.root, week).values() for given in tasks.values() if given.comments]
    assert all(scores(other, name)["task-91-2"][1] is None for name in chosen)
    first = {name: all_by_hand(course.root, week)[name]["91.2"].points for name in chosen}
    monkeypatch.chdir(source)
    with pytest.raises(LabError, match="is the second marker's course directory: `grade second week91 --to"):
        load_all("week91", marks, marks, tmp_path / "second", None)
    # Nobody has marked anything there, or one of three: that is no agreement.
    half = agreement(week, course.root, other.root, RULES, marks)
    assert (half.sample, half.both, half.open, half.lost) == (3, 0, ([], chosen), [])
    by_hand(other, chosen[0], "task-91-2", comment=f"1: {int(first[chosen[0]]) - 1}\n2: 1")
    apply(other, week, RULES)
    monkeypatch.chdir(source)
    with pytest.raises(typer.Exit) as left:
        commands.agree("week91", other.root, course.root, None)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        left.value.exit_code == 1 and f"not marked by the second yet: 2 of 3 answers ({chosen[1]}; {chosen[2]})" in said
    )
    assert "1 of the sample's 3 answers marked by both" in said
    put_aside = (other.root / SAMPLE).read_text()
    (other.root / SAMPLE).write_text(put_aside.replace('"week91": [', '"week91": ["gone", '))
    assert agreement(week, course.root, other.root, RULES, marks).lost == ["gone"], "it was killed before it was filled"
    for shift, name in zip((0, 0, -1), chosen):
        own = int(first[name]) - 1
        by_hand(other, name, "task-91-2", comment=f"1: {max(0, own + shift) if own else 1}\n2: 1")
    with pytest.raises(typer.Exit):
        commands.agree("week91", other.root, course.root, None)
    said = " ".join(capsys.readouterr().out.split())
    waits = "2 of them by items alone, of which `grade rubric week91 --gradebook"
    assert waits in said and "of them by items alone" not in said.replace(waits, ""), "formgrader has no points yet"
    apply(other, week, RULES)
    found = agreement(week, course.root, other.root, RULES, marks)
    assert found.both == found.sample == 3 and found.open == ([], []) and found.items_only == (0, 0)
    with pytest.raises(typer.Exit):
        commands.agree("week91", other.root, course.root, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "To settle one, change the items in the comment" in said and f"with --gradebook {other.root}." in said
    assert "`grade rubric week91 --items-decide`" in said, "else a sum that differs from typed points is told, and left"
    with pytest.raises(LabError, match="`grade second week91 --to .*nowhere` makes it"):
        agreement(week, course.root, tmp_path / "nowhere", RULES, marks)
    assert "to be settled (more than 10% of a task's points apart)" in said
    with pytest.raises(LabError, match="is the first marker's own course directory"):
        agreement(week, course.root, course.root / ".", RULES, marks)
    settle = {student: (one, two) for student, _, one, two in found.settle}
    assert set(settle) == {name for name in chosen if first[name] != all_by_hand(other.root, week)[name]["91.2"].points}
    (reason, example) = found.items
    assert reason[1].number == 1 and reason[2] == 3 and example[5] == 0 and example[6] == 1
    with pytest.raises(LabError, match="first marker's"):
        second(week, marks, course.root, course, share=1, files=lambda m: handed(), rules=RULES, source=source)


@pytest.mark.thorough
def test_what_a_group_handed_in_is_one_answer_wherever_it_was_marked(course, week, source, marks, tmp_path):
    """Ten members were ten answers, of which six had not been marked by the first, who had marked each group once."""
    group = {"group": "Team_70", "submission": "same"}
    everybody = [mark("alone"), *(mark(name, **group) for name in ("anna", "ben", "cem"))]
    load(course, week, put_marks(marks, *everybody), files=lambda m: handed())
    by_hand(course, "ben", "task-91-2", comment="1: 3\n2: 1")
    by_hand(course, "alone", "task-91-2", comment="1: 4\n2: 2")
    apply(course, week, RULES)
    to = tmp_path / "second"
    chosen = second(week, marks, to, course, share=1, files=lambda m: handed(), rules=RULES, source=source)
    assert chosen == ["alone", "anna"]
    from grading.gradebook.course import open_course

    other = open_course(to)
    for name in chosen:
        by_hand(other, name, "task-91-2", comment="1: 2\n2: 1")
    assert agreement(week, course.root, other.root, RULES, marks).open == ([], chosen)
    apply(other, week, RULES)
    found = agreement(week, course.root, other.root, RULES, marks)
    assert (found.sample, found.both, found.open) == (2, 2, ([], []))
    assert [(student, one, two) for student, _, one, two in found.settle] == [("alone", 6, 3), ("anna", 4, 3)]
    assert [(item.number, many, one) for _, item, many, one, *_ in found.items] == [(1, 2, 3.5), (2, 2, 1.5)]
    for book, name in ((course, "ben"), (other, "anna")):  # they handed in again
        with book.gradebook() as open_:
            open_.find_grade("task-91-2", "lab", "week91", name).needs_manual_grade = True
            open_.db.commit()
    found = agreement(week, course.root, other.root, RULES, marks)
    assert (found.both, found.open, found.items_only) == (1, (["anna"], ["anna"]), (0, 0)), (
        "points of an earlier answer"
    )


@pytest.mark.thorough
def test_points_for_two_different_hand_ins_are_no_agreement(course, week, source, marks, tmp_path, monkeypatch, capsys):
    """Anna handed in again after both had marked her: the first's points of the new answer stood against the second's
    of the old one."""
    load(course, week, put_marks(marks, mark("anna", submission="old"), mark("ben")), files=lambda m: handed())
    to = tmp_path / "second"
    from grading.gradebook.course import open_course

    def ask():
        second(
            week,
            marks,
            to,
            course,
            share=1,
            files=lambda m: handed(m.submission or "Because."),
            rules=RULES,
            source=source,
        )
        return open_course(to)

    other = ask()
    for book in (course, other):
        for name in ("anna", "ben"):
            by_hand(book, name, "task-91-2", points=5)
    assert agreement(week, course.root, to, RULES, marks).both == 2
    put_marks(marks, mark("anna", submission="new", attempt=2, received="2026-10-06T12:30:00+02:00"))
    found = agreement(week, course.root, to, RULES, marks)
    assert found.open == (["anna"], ["anna"]) and found.other == ({"anna"}, {"anna"}), "neither has seen it"
    load(course, week, marks, files=lambda m: handed(m.submission or "Because."))
    by_hand(course, "anna", "task-91-2", points=2)
    found = agreement(week, course.root, to, RULES, marks)
    assert (found.both, found.settle, found.open, found.other) == (1, [], ([], ["anna"]), (set(), {"anna"}))
    monkeypatch.chdir(source)
    with pytest.raises(typer.Exit):
        commands.agree("week91", to, course.root, None, marks)
    said = " ".join(capsys.readouterr().out.split())
    assert "not marked by the second yet: 1 of 2 answers (anna); another hand-in of anna counts now: run `grade" in said
    assert "run `grade second` again" in said
    other = ask()
    found = agreement(week, course.root, to, RULES, marks)
    assert found.open == ([], ["anna"]) and found.other == (set(), set()), "it is there, and not marked"
    by_hand(other, "anna", "task-91-2", points=2)
    assert agreement(week, course.root, to, RULES, marks).both == 2


def test_kappa_is_one_for_agreement_and_nought_for_chance():
    assert kappa([(0, 0), (4, 4), (2, 2)]) == 1
    assert kappa([(0, 0), (0, 4), (4, 0), (4, 4)]) == pytest.approx(0)
    assert kappa([(3, 3), (3, 3)]) is None
    assert kappa([(0, 4), (4, 0)]) == pytest.approx(-1)


@pytest.mark.thorough
def test_nought_points_are_points_and_a_members_own_come_before_the_others(course, week, source, marks, tmp_path):
    group = {"group": "Team_70", "submission": "same"}
    everybody = [mark("alone"), mark("waits"), *(mark(name, **group) for name in ("anna", "ben"))]
    load(course, week, put_marks(marks, *everybody), files=lambda m: handed())
    given = {"alone": "1: 0\n2: 0", "anna": "1: 3\n2: 1", "ben": "1: 0\n2: 0"}
    for name, comment in given.items():
        by_hand(course, name, "task-91-2", comment=comment)
    apply(course, week, RULES)
    by_hand(course, "waits", "task-91-2", comment="1: 3\n2: 1")
    to = tmp_path / "second"
    chosen = second(week, marks, to, course, share=1, files=lambda m: handed(), rules=RULES, source=source)
    from grading.gradebook.course import open_course

    other = open_course(to)
    for name in chosen:
        by_hand(other, name, "task-91-2", **({"points": 4} if name == "waits" else {"comment": given[name]}))
    apply(other, week, RULES)
    found = agreement(week, course.root, other.root, RULES, marks)
    assert (found.open, found.items_only, found.settle) == ((["waits"], []), (1, 0), [])
