"""Grading anew: one task, before and after with the reason, and nothing silently."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from grading import history, marks
from grading import run as running
from grading.intake.policy import DEFAULTS
from grading.judge import explained
from grading.reports.feedback import feedback
from grading.reports.overview import overview
from grading.reports.record import told
from grading.reports.standing import Standing, standings
from labkit.checks.outcome import CaseResult, Outcome
from labkit.checks.tasks import find_weeks
from labkit.checks.verdict import NO_RESULT, NOT_ATTEMPTED
from labkit.checks.verdict import WRONG as WRONG_ANSWER
from tests.grading.reports.aclass import mark as made
from tests.grading.test_run import SOLVED, TWICE_WRONG, WRONG, course, grade, graded, mark  # noqa: F401  course is a fixture

UNSHUT = {"isolation": running.UNSANDBOXED}


def test_one_task_is_judged_anew_and_the_record_says_why(course):  # noqa: F811  the fixture
    week, _, folder, hand_in = course
    right = week.tests[0].read_text()
    weak = right.replace("2 * torch.stack(x).sum(0)", "got[0]")  # the test of 91.2 took every answer
    assert weak != right
    week.tests[0].write_text(weak)
    hand_in("anna", SOLVED)
    hand_in("ben", TWICE_WRONG)
    graded(course, **UNSHUT)
    before = {name: mark(course, name) for name in ("anna", "ben")}
    week.tests[0].write_text(right)
    graded(course, **UNSHUT, tasks=["91.2"], because="the test of 91.2 took every answer")
    after = {name: mark(course, name) for name in ("anna", "ben")}
    for name in ("anna", "ben"):
        old, new = ({t["id"]: t for t in m[name].tasks} for m in (before, after))
        assert old["91.1"] == new["91.1"] and list(old) == list(new)
        (change,) = history.of(folder, "week91", name)
        assert change.because == "the test of 91.2 took every answer" and "tests or files changed" in change.why
        assert change.asked == ["91.2"]
    assert history.of(folder, "week91", "anna")[0].tasks == []
    (task,) = history.of(folder, "week91", "ben")[0].tasks
    assert (task.id, task.before, task.after) == ("91.2", 5, 0) and ("wrong" in case for case in task.cases)
    assert (before["ben"].points, after["ben"].points, after["anna"].points) == (15, 10, 15)
    # A mark of which one part is of other tests than the rest is no whole mark of today's: it is made anew, and told.
    report = graded(course, **UNSHUT)
    assert sorted(report["made"]) == ["anna", "ben"]
    assert len(history.of(folder, "week91", "anna")) == 2
    assert history.of(folder, "week91", "anna")[1].tasks == []
    lines = told(week, next(s for s in standings(week, folder, folder, DEFAULTS) if s.student == "ben"), "91.2", folder)
    assert any("91.2 from 5 to 0 (the test of 91.2 took every answer" in line for line in lines)
    assert not any(line.startswith("91.1") for line in lines)

    def about(name, task):
        standing = next(s for s in standings(week, folder, folder, DEFAULTS) if s.student == name)
        return "\n".join(told(week, standing, task, folder))

    assert about("anna", "91.9").count("91.9: not judged of this attempt; `grade run week91 --task 91.9` does it") == 1
    once = "anna, attempt 1: 91.2 judged anew: nothing changed (the test of 91.2 took every answer; "
    assert once in about("anna", "91.2") and once in about("anna", None), "judged anew, though nothing came of it"
    assert once not in about("anna", "91.1") and "nothing changed" in about("anna", "91.1"), (
        "the whole week, afterwards"
    )
    assert "91.2 from 5 to 0" not in about("ben", "91.1")


def test_the_command_names_who_changed_from_what_to_what(course):  # noqa: F811  the fixture
    hand_in = course[3]
    hand_in("anna", WRONG)
    assert grade(course, "--unsandboxed").returncode == 0
    hand_in("anna", SOLVED)
    said = grade(course, "--unsandboxed", "--because", "she mended it").stdout
    assert "Marks that came out otherwise than before: 1" in said
    told = "anna, attempt 1: 91.1 from 4 to 10 (she mended it; what was handed in is read otherwise)"
    assert told in " ".join(said.split())
    said = grade(course, "--unsandboxed", "--task", "91.2").stdout
    assert "1 graded anew and unchanged" in said
    done = grade(course, "--unsandboxed", "--task", "91.9")
    assert done.returncode == 2 and "no task of this number; tests judge 91.1, 91.2, 91.4" in done.stderr
    assert grade(course, "--unsandboxed", "--task", "91.3").returncode == 2, "an essay"


@pytest.mark.thorough
def test_a_stretch_task_is_judged_when_it_is_named(course):  # noqa: F811  the fixture
    week, _, folder, hand_in = course
    hand_in("anna", SOLVED)
    hand_in("ben", SOLVED.replace("return 1\n", "return 2\n"))
    graded(course, **UNSHUT)
    before = {name: mark(course, name) for name in ("anna", "ben")}
    assert not any(task["kind"] == "stretch" for task in before["anna"].tasks)
    graded(course, **UNSHUT, tasks=["91.4"])
    for name, verdict in (("anna", "passed"), ("ben", "wrong")):
        found = mark(course, name)
        *others, stretch = found.tasks
        assert others == before[name].tasks and (found.points, found.key) == (before[name].points, before[name].key)
        assert (stretch["id"], stretch["points"], stretch["possible"]) == ("91.4", 0, 0)
        assert [case["verdict"] for case in stretch["cases"]] == [verdict]
    (change,) = history.of(folder, "week91", "ben")
    assert list(history.sentences(change)) == ["ben, attempt 1: 91.4 judged for the first time: 0 of 1 cases pass"]
    lines = told(week, next(s for s in standings(week, folder, folder, DEFAULTS) if s.student == "ben"), None, folder)
    assert "91.4 more: 0 of 1 cases pass, no points" in lines
    assert sorted(graded(course, **UNSHUT)["kept"]) == ["anna", "ben"], "a whole mark still, and the stretch task stays"
    assert mark(course, "ben").tasks[-1]["id"] == "91.4"


def test_a_stretch_task_that_nobody_attempted_is_no_finding():
    absent = {"kind": "stretch", "id": "13.8", "title": "tree", "possible": 0, "points": 0}
    hole = {**made("a").tasks[0]["cases"][0], "test": "t::test_tree", "behaviour": "The tree", "text": "not attempted"}
    standings_ = []
    for name, verdict in (("anna", NOT_ATTEMPTED), ("ben", WRONG_ANSWER)):
        one = made(name)
        one.tasks.append({**absent, "cases": [{**hole, "verdict": verdict}]})
        standings_.append(Standing(one, [1]))
    week13 = next(week for week in find_weeks() if week.name == "week13")
    assert [entry.task for entry in overview(week13, standings_).not_understood] == ["13.8"]
    assert overview(week13, standings_).not_understood[0].judged == 1
    assert not [entry for entry in overview(week13, standings_[:1]).behaviours if entry.task == "13.8"]
    assert "13.8</span>" not in feedback(week13, standings_[0]) and "13.8</span>" in feedback(week13, standings_[1])


def test_a_stretch_module_that_is_not_there_was_not_attempted():
    week = next(week for week in find_weeks() if week.name == "week13")
    case = CaseResult("13.8", "t", "More", "", Fraction(0), NOT_ATTEMPTED)
    for why, verdict in (
        ("There is no ops.py in this hand-in.", NOT_ATTEMPTED),
        (
            "There is no ops.py in this hand-in. ops2.py looks like it: a file counts under its own name only.",
            NO_RESULT,
        ),
        ("ops.py is a link.", NO_RESULT),
    ):
        outcome = Outcome([(week, ("13.8",))], 1, [case])
        explained(outcome, week, {"stretch.tree": why})
        assert [one.verdict for one in outcome.cases] == [verdict]


@pytest.mark.thorough
def test_a_stretch_task_whose_reference_fails_is_nobodys_mistake(course):  # noqa: F811  the fixture
    week, _, _, hand_in = course
    week.tests[0].write_text(
        week.tests[0].read_text().replace('call_alone("ops.more"), 1', 'call_alone("ops.more"), 3')
    )
    hand_in("anna", SOLVED)
    assert grade(course, "--unsandboxed").returncode == 0, "nobody has asked for it"
    done = grade(course, "--unsandboxed", "--task", "91.4")
    assert done.returncode == 2 and "the reference itself" in done.stderr and "91.4" in done.stderr
    assert not any(task["id"] == "91.4" for task in mark(course, "anna").tasks)


def test_without_a_whole_mark_no_task_is_judged_alone(course):  # noqa: F811  the fixture
    course[3]("anna", SOLVED)
    done = grade(course, "--unsandboxed", "--task", "91.2")
    assert done.returncode == 1 and "no task of it can be judged alone" in done.stdout
    assert not marks.path_of(course[2], "week91", "anna", 1).exists()


def test_killed_between_the_mark_and_its_line_the_next_run_writes_the_line(course):  # noqa: F811  the fixture
    folder, hand_in = course[2], course[3]
    hand_in("anna", WRONG)
    graded(course, **UNSHUT)
    history.begin(folder, mark(course, "anna"), "an appeal")
    new = mark(course, "anna")
    new.tasks[0]["points"], new.finished = 1, "2026-11-23T00:00:00+00:00"
    marks.write(folder, new)  # ... and here it is killed
    (change,) = history.settle(folder, "week91")
    assert change.because == "an appeal" and [task.id for task in change.tasks] == ["91.1"]
    assert history.of(folder, "week91", "anna") == [change] and history.settle(folder, "week91") == []
    assert not list((folder / "week91").rglob("*.before.json"))


def test_killed_before_the_new_mark_there_is_no_line(course):  # noqa: F811  the fixture
    folder = course[2]
    course[3]("anna", WRONG)
    graded(course, **UNSHUT)
    history.begin(folder, mark(course, "anna"))
    assert history.settle(folder, "week91") == [] and history.of(folder, "week91", "anna") == []


def test_a_damaged_line_is_told(course):  # noqa: F811  the fixture
    from labkit.errors import LabError

    path = course[2] / "week91" / "anna" / "1.history.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"when": 3}) + "\n")
    with pytest.raises(LabError, match="take the broken line out"):
        history.of(course[2], "week91", "anna")


def test_a_stretch_task_that_a_whole_run_leaves_out_is_no_loss_of_points():
    """It stood as "from 0 to none", though all its cases had passed."""
    old, new = made("anna"), made("anna")
    old.tasks = [
        *old.tasks,
        {"id": "13.13", "title": "race", "kind": "stretch", "points": 0, "possible": 0, "cases": []},
    ]
    (told,) = history.sentences(history.compare(old, new))
    assert told == "anna, attempt 1: 13.13 is judged no more until `--task 13.13`"
    old.tasks[-1]["points"] = 2
    assert next(history.sentences(history.compare(old, new))).startswith("anna, attempt 1: 13.13 from 2 to none")
