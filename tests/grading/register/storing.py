"""A class in a folder, and what a test does to it: submissions from memory, marks without a judge."""

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grading.intake.arrival import PLATFORM, Arrival, Key
from grading.mark import Mark
from grading.register.classes import init_class, open_class
from grading.register.marks import add_mark
from grading.register.submissions import add_submission
from labkit.checks.tasks import find_weeks

ROOT = Path(__file__).resolve().parents[3]
WEEKS = find_weeks(ROOT)
WEEK = next(week for week in WEEKS if week.name == "week13")
DUE = datetime(2026, 11, 20, 23, 59, tzinfo=UTC)
BEFORE, AFTER = DUE - timedelta(hours=1), DUE + timedelta(days=5)
DEADLINE = f"[deadlines]\nweek13 = {DUE.isoformat()}\n"
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Müller, Anna",4501,S001,anna@x.org,A
"O'Brien, Sean",4502,S002,sean@x.org,A
"Doe, Jane",4503,S003,jane@x.org,A
"""


@contextlib.contextmanager
def opened(folder: Path, roster: str = CANVAS, rules: str = ""):
    """A class of this roster, made at its first call; course.toml is what `rules` says."""
    if not (folder / "class.db").exists():
        given = folder.with_name(f"{folder.name}-roster.csv")
        given.write_text(roster, encoding="utf-8")
        init_class(folder, given, "Europe/Berlin", WEEKS)
    if rules:
        (folder / "course.toml").write_text(rules, encoding="utf-8")
    with open_class(folder, WEEKS) as cls:
        yield cls


def canvas(name: str, number: str) -> list[Key]:
    return [Key("canvas", number), Key("name", name)]


def moodle(name: str, number: str, email: str = "", week: str = "week13") -> list[Key]:
    """As Moodle's download names somebody; with an e-mail where a worksheet came with it."""
    return [Key("moodle", number, week), *([Key("email", email)] if email else []), Key("name", name)]


def hand_in(cls, label, keys, content=b"work", received=BEFORE, **more):
    """An attempt arrives; the number of the submission."""
    more = {"how": "canvas", "source": "download.zip", "timed": PLATFORM, **more}
    return add_submission(cls, WEEK, Arrival(label, keys, content, received, **more))


def give_mark(cls, number, points=60.0, written=False, **fields):
    """The submission is graded: task 13.2 has these points of 100, and 13.9, if there is to be a written one, none."""
    tasks = [{"id": "13.2", "title": "ring", "kind": "auto", "cell": "task-13-2", "points": points, "possible": 100,
              "cases": []}]  # fmt: skip
    if written:
        tasks.append({"id": "13.7", "title": "why", "kind": "written", "cell": "task-13-7", "points": None,
                      "possible": 10, "cases": []})  # fmt: skip
    given = {"points": points, "possible": 100, "content": f"content of {number}", "key": "k", "tasks": tasks, **fields}
    add_mark(cls, Mark(number, "week13", **given))
