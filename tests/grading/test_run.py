"""`grade run` on a small week: marks in the store, reruns, kills, faults, refusals. The sandbox has its own tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grading import judge, pool
from grading import run as running
from grading.benchmarks.kills import left
from grading.intake.arrival import Arrival, Key
from grading.mark import SANDBOXED, UNSANDBOXED
from grading.register.classes import init_class, open_class
from grading.register.marks import marks_of
from grading.register.people import everybody
from grading.register.submissions import add_submission, attempts, rename, withdraw
from grading.run import Wishes
from labkit.checks.markers import strip
from labkit.checks.tasks import load_week
from labkit.errors import LabError
from tests import warm
from tests.checks.miniweek import OPS, make_week
from tests.grading.publish.aclass import zipped

ROOT = Path(__file__).resolve().parents[2]
needs_sandbox = pytest.mark.usefixtures("sandbox")
SOLVED = OPS
BLANK = strip(OPS)
WRONG = OPS.replace("return group.all_reduce(x)", "return x")
TWICE_WRONG = OPS.replace("return 2 * total(x, group)", "return 3 * total(x, group)")
STUDENTS = (
    "good", "blank", "wrong", 'third, "O\'Neil" é', "empty", "renamed", "anna", "ben", *"abcde", "s0", "s1", "s2",
)  # fmt: skip
UNSHUT = {"isolation": UNSANDBOXED}


class Course:
    """A course of one small week, and a class of it."""

    def __init__(self, root):
        self.week = load_week(make_week(root / "course"))
        self.folder = root / "class"
        roster = root / "roster.csv"
        quoted = ['"' + name.replace('"', '""') + '"' for name in STUDENTS]
        roster.write_text("\n".join(["student", *quoted]), encoding="utf-8")
        init_class(self.folder, roster, "UTC", [self.week])

    def open(self):
        return open_class(self.folder, [self.week])

    def hand_in(self, student, *files):
        """An attempt of one text for ops.py, or of (name, text) pairs; its number."""
        whole = zipped(dict(one if isinstance(one, tuple) else ("ops.py", one) for one in files))
        with self.open() as cls:
            arrival = Arrival(student, [Key("id", student)], whole, None, "folder", "by hand")
            return add_submission(cls, self.week, arrival).id

    def marks(self):
        """student -> the newest mark of the last attempt."""
        with self.open() as cls:
            names = {one.id: one.name for one in everybody(cls)}
            found = {names[one.members[0]]: marks_of(cls, one.id) for one in attempts(cls, "week91")}
        return {name: every[-1].mark for name, every in found.items() if every}

    def run(self, **wishes):
        """A run in this process."""
        with self.open() as cls:
            return running.run(cls, self.week, Wishes(**wishes))


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def graded(course, **wishes):
    """A run in a process of its own: a grader forks its judges, and must not have computed. Names, or the refusal."""
    done = warm.run(
        "tests.grading.test_run:reported", [course.week.folder, course.folder, json.dumps(wishes)], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def reported(words):
    """What `graded` runs: the report as JSON."""
    week, folder, wishes = words
    week = load_week(week)
    with open_class(folder, [week]) as cls:
        wishes = {name: tuple(it) if isinstance(it, list) else it for name, it in json.loads(wishes).items()}
        try:
            report = running.run(cls, week, Wishes(**wishes))
        except LabError as error:
            print(json.dumps({"refused": str(error)}))
            return
    said = {name: [report.names[m.submission] for m in getattr(report, name)] for name in ("made", "kept")}
    said |= {"unreadable": report.unreadable, "changes": [c.why for c in report.changes]}
    print(json.dumps({name: sorted(it) if name in ("made", "kept") else it for name, it in said.items()}))


def verdicts(one):
    return {case["test"].rpartition("::")[2]: case["verdict"] for case in one.cases}


@needs_sandbox
def test_each_gets_what_it_earned_and_a_rerun_does_only_what_changed(course):
    for student, text in {"good": SOLVED, "blank": BLANK, "wrong": WRONG, STUDENTS[3]: TWICE_WRONG}.items():
        course.hand_in(student, text)
    course.hand_in("empty", ("readme.txt", "nothing"))
    number = course.hand_in("renamed", ("ops (1).py", SOLVED), ("runs/mine/run.json", "{}"))
    first = graded(course, jobs=2)
    assert first["kept"] == [] and len(first["made"]) == 6
    found = course.marks()
    points = {"good": 15, "blank": 0, "wrong": 9, STUDENTS[3]: 10, "empty": 0, "renamed": 0}
    assert {name: mark.points for name, mark in found.items()} == points
    # 91.2 stands on 91.1, and is judged with the reference's: one mistake counts once.
    assert verdicts(found["wrong"])["test_twice"] == "passed"
    for student, sentence in (("empty", "no ops.py"), ("renamed", "ops (1).py")):
        one = found[student]
        assert any(sentence in note for note in one.notes), one.notes  # under the class's table
        assert {case["verdict"] for case in one.cases} == {"no result"} and one.complete
        assert all(sentence in case["text"] for case in one.cases), one.cases[0]["text"]
    assert not any(".py" in note or "record of a run" in note for note in found["good"].notes)
    page = "Handed in with the record of a run: runs/mine. It is read with the written task."
    assert page in found["renamed"].notes, "which formgrader's first cell shows"
    assert all(m.isolation == SANDBOXED and m.possible == 15 for m in found.values())

    assert graded(course, jobs=1)["made"] == []
    course.hand_in("blank", SOLVED)
    with course.open() as cls:
        rename(cls, number, "ops (1).py", "ops.py")
    again = graded(course, jobs=1)
    assert again["made"] == ["blank", "renamed"] and len(again["kept"]) == 5
    assert (course.marks()["blank"].points, course.marks()["renamed"].points) == (15, 15)
    assert course.marks()["blank"].seed == found["good"].seed
    # Other tests: everybody again.
    test = course.week.folder / "test_week91.py"
    test.write_text(test.read_text().replace('== "ops"', '== "ops" != ""'))
    assert len(graded(course, jobs=2)["made"]) == 7


@needs_sandbox
@pytest.mark.thorough
def test_marks_do_not_depend_on_jobs_or_order(course):
    for student, text in {"a": SOLVED, "b": WRONG, "c": BLANK, "d": TWICE_WRONG}.items():
        course.hand_in(student, text)

    def found():
        fields = ("test", "verdict", "text", "points")
        return {name: [[c[f] for f in fields] for c in mark.cases] for name, mark in course.marks().items()}

    graded(course, jobs=1)
    alone = found()
    with course.open() as cls, cls.writing():
        cls.db.execute("DELETE FROM mark")
    graded(course, jobs=4)
    assert found() == alone


KILLED = "import sys; from tests.grading.test_run import reported; reported(sys.argv[1:])"


@pytest.mark.thorough
@needs_sandbox
def test_killed_at_any_moment_it_goes_on_and_leaves_no_process(course):
    for number in range(5):
        course.hand_in("abcde"[number], SOLVED if number % 2 else WRONG)
    command = [sys.executable, "-c", KILLED, course.week.folder, course.folder, '{"jobs": 2}']
    for written in (0, 1, 3):  # killed before the first mark, after the first, after the third
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 150
        while len(course.marks()) < written or not (course.folder / ".work" / "week91" / ".lock").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = course.marks()
    assert not left(str(course.folder), 20), "processes that stay"
    # A judge that is dying has no command line any more, and may still have the lock, which it inherited.
    deadline = time.monotonic() + 20
    while "refused" in (done := graded(course, jobs=2)):
        assert time.monotonic() < deadline, done
    assert len(done["made"]) + len(done["kept"]) == 5 and len(done["kept"]) == len(before) >= 3
    after = course.marks()
    assert {name: after[name] for name in before} == before
    assert {name: after[name].points for name in "abe"} == {"a": 9, "b": 15, "e": 9}
    assert not (course.folder / ".work" / "week91" / "run").exists()
    with course.open() as cls:
        assert cls.db.execute("SELECT count(*) FROM mark").fetchone()[0] == 5, "none twice"


def test_an_appeal_repeats_one_verdict_and_keeps_nothing(course, tmp_path, untimed):
    course.hand_in("anna", WRONG)
    with course.open() as cls:
        entries = [running.entry_of(cls, course.week, one) for one in attempts(cls, "week91")]
        once, again = (running.again(course.week, entries, 7, tmp_path / "work", **UNSHUT)[0] for _ in range(2))
        assert once.points == 9 and once.seed == 7 and once.tasks[0]["points"] == again.tasks[0]["points"]
    wrong = [[case["text"] for case in mark.cases if case["verdict"] == "wrong"] for mark in (once, again)]
    assert wrong[0] == wrong[1] != [], "the same numbers"
    assert not course.marks()


def test_a_judge_that_dies_is_no_zero_but_a_matter_for_a_human(course, monkeypatch, untimed):
    course.hand_in("good", SOLVED)
    tries = course.folder / "tries"

    def dies(entry, week, settings, box):
        with open(tries, "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(judge, "grade", dies)
    report = course.run(**UNSHUT)
    assert len(tries.read_text()) == 1 + pool.RETRIES
    assert [m.complete for m in report.made] == [False] and "judge ended" in report.made[0].attention[0]
    assert course.marks()["good"].possible == 15
    # An incomplete mark is not kept: the next run tries again.
    monkeypatch.setattr(judge, "grade", lambda entry, week, settings, box: judge.failed(entry, week, settings, "still"))
    report = course.run(**UNSHUT)
    assert [report.names[m.submission] for m in report.made] == ["good"]


@pytest.fixture
def untimed(monkeypatch):
    """The reference is not measured before the submissions."""
    monkeypatch.setattr(running, "_timed", lambda week, settings, *rest: settings)


def test_an_archive_that_is_not_what_was_collected_is_not_judged(course, untimed):
    numbers = [course.hand_in(name, SOLVED) for name in "ab"]
    with course.open() as cls:
        cls.archive(course.week, numbers[0]).write_bytes(b"other")
        cls.archive(course.week, numbers[1]).unlink()
    report = course.run(**UNSHUT)
    assert not report.all and [number for number, _ in report.unreadable] == numbers


def test_without_isolation_it_refuses_and_unsandboxed_marks_say_so(course, monkeypatch):
    course.hand_in("good", SOLVED)
    monkeypatch.setenv("PATH", "/nonexistent")
    # Before anything is graded: the reference is not to blame.
    with pytest.raises(LabError, match="^submissions cannot be shut in on this machine .*bubblewrap.*--unsandboxed"):
        course.run()
    assert not course.marks()
    graded(course, **UNSHUT)
    one = course.marks()["good"]
    assert one.points == 15 and one.isolation == UNSANDBOXED and "UNSANDBOXED" in one.attention[-1]


@needs_sandbox
def test_a_reference_that_does_not_pass_stops_everything(course):
    course.hand_in("good", SOLVED)
    (course.week.folder / "ops.py").write_text(WRONG)
    done = graded(course)
    assert "the reference itself" in done["refused"] and "91.1" in done["refused"] and not course.marks()


def test_only_those_who_are_named_are_judged_and_nothing_to_grade_is_one_sentence(course, monkeypatch, untimed):
    monkeypatch.setattr(judge, "grade", lambda entry, week, settings, box: judge.failed(entry, week, settings, "x"))
    with pytest.raises(LabError, match="there is no submission of week91"):
        course.run()
    first, second, gone = (course.hand_in("anna", SOLVED), course.hand_in("ben", WRONG), course.hand_in("ben", SOLVED))
    with course.open() as cls:
        withdraw(cls, [gone])
        assert running.chosen_numbers(cls, course.week, ["ben"]) == (second,)
        assert running.chosen_numbers(cls, course.week, [str(first), "ben"]) == (first, second)
        with pytest.raises(LabError, match="handed in nothing"):
            running.chosen_numbers(cls, course.week, ["good"])
    assert [m.submission for m in course.run(numbers=(second,), **UNSHUT).made] == [second]
    with course.open() as cls, pytest.raises(LabError, match="nobody"):
        running.chosen_numbers(cls, course.week, [str(gone)])


def test_the_seed_is_made_once_and_two_runs_at_once_are_refused(course):
    course.hand_in("good", SOLVED)
    with course.open() as cls:
        seed = running.class_seed(cls, course.week)
        assert running.class_seed(cls, course.week) == seed < 2**62
    with course.open() as cls, running._locked(cls, course.week):
        assert running.class_seed(cls, course.week) == seed
        with pytest.raises(LabError, match="another `grade run"):
            course.run()


@needs_sandbox
def test_what_the_week_declares_of_labkit_is_in_the_sandbox_and_the_rest_is_refused_by_name(course):
    week = course.week
    course.hand_in("anna", SOLVED.replace("import torch\n", "import torch\nfrom labkit.strict import Config\n", 1))
    graded(course)
    mark = course.marks()["anna"]
    assert mark.points == 0 and mark.complete
    assert all("labkit.strict is not part of " in case["text"] for case in mark.cases)
    assert "labkit.strict is not part of task 91.1: of labkit it stands on labkit.comm" in mark.cases[0]["text"]
    registry = week.folder / "tasks.toml"
    registry.write_text('uses = ["labkit.strict"]\n' + registry.read_text())
    assert graded(course)["made"] == ["anna"], "other tests, so another mark"
    mark = course.marks()["anna"]
    assert mark.points == mark.possible == 15
