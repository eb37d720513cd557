"""Classes in a store of their own: a small one by name, and one of forty made of real outcomes of week 13
(week13_outcomes.json), with marks as `grade run` writes them, in no time."""

import contextlib
import copy
import csv
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

from grading.files import zipped
from grading.intake.arrival import Arrival, Key
from grading.mark import Mark
from grading.register.classes import init_class, open_class
from grading.register.counting import Counted
from grading.register.marks import HandMark, add_hand_mark, add_mark
from grading.register.people import Person, resolve
from grading.register.schema import Class
from grading.register.standing import Standing
from grading.register.submissions import Attempt, add_submission
from labkit.checks.outcome import number
from labkit.checks.tasks import Week, load_week
from labkit.checks.verdict import NOT_ATTEMPTED

ROOT = Path(__file__).resolve().parents[3]
RECORDED = json.loads(Path(__file__).with_name("week13_outcomes.json").read_text())
MUTANTS = tuple(RECORDED["mutants"])
WEEK = load_week(ROOT / "week13_allreduce")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DEADLINE = "[deadlines]\nweek13 = 2026-11-20T18:00:00+00:00\n"
LATE = DEADLINE + "[late]\nper_day = 0.1\ncloses_after_days = 5\n"
AWKWARD = (
    "O'Neill, Anna", 'Bob "the ring" Müller', '=HYPERLINK("http://x")', "+49 30", "-minus", "@mention", "two  blanks",
    "\u05d3\u05e0\u05d4 \u05db\u05d4\u05df", "\u0623\u062d\u0645\u062f, \u0633\u0627\u0631\u0629", "\u674e\u96f7",
    "<script>alert(1)</script>", "a/b;c\\d", "\u200b=hidden", "'=quoted", "'t Hooft", "..",
    "Zo\u00eb \u00c5ngstr\u00f6m", "comma,comma",
)  # fmt: skip
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Quiz (12),Week 13 (4711),Final Score
    Points Possible,,,,,10,100,
"Müller, Anna",101,u101,anna@x.org,A,3,,77
"O'Brien, Sean",102,u102,sean@x.org,A,4,,66
"=HYPERLINK(1)",103,u103,hy@x.org,B,,50,55
"Student, Test",999,,,,,,
"""
MOODLE = """Identifier,Full name,Email address,Status,Group,Grade,Maximum Grade,Last modified (grade),Feedback comments
Participant 501,Anna Müller,anna@x.org,Submitted,A,,100.00,-,-fine
Participant 502,Sean O'Brien,sean@x.org,Submitted,A,12,100.00,-,
Participant 503,=HYPERLINK(1),hy@x.org,No submission,B,,100.00,-,
"""


def tasks(*mutants: str, blank: Sequence[str] = ()) -> list[dict]:
    """Tasks of one who made these mutants' mistakes and left these tasks blank; the rest is the reference's."""
    found = copy.deepcopy(RECORDED["reference"])
    wrong = {case["test"]: case for name in mutants for case in RECORDED["mutants"][name]}
    for task in found:
        earned = Fraction(0)
        for case in task["cases"]:
            if task["id"] in blank:
                case.update(verdict=NOT_ATTEMPTED, text=RECORDED["blank"][case["test"]], points=0)
            elif case["test"] in wrong:
                case.update(wrong[case["test"]], points=0)
            earned += Fraction(str(case["points"]))
        if task["kind"] != "written":
            full = sum(Fraction(str(case["possible"])) for case in task["cases"])
            task["points"] = number(earned * Fraction(str(task["possible"])) / full) if full else 0
    return found


def mark(*mutants: str, blank: Sequence[str] = (), **fields) -> Mark:
    """A mark of such tasks; its submission is set when it is handed in."""
    made = Mark(0, "week13", "k", "5d" * 32, seed=20261121, tasks=tasks(*mutants, blank=blank), seconds=4.0)
    made.core_seconds, made.finished = 3.5, "2026-11-21T10:00:00+00:00"
    for key, value in fields.items():
        setattr(made, key, value)
    return scored(made)


def scored(made: Mark) -> Mark:
    """Sum the tasks."""
    auto = [task for task in made.tasks if task["kind"] == "auto"]
    made.points, made.possible = number(sum(t["points"] for t in auto)), sum(t["possible"] for t in auto)
    return made


def spoil(made: Mark, test: str, verdict: str, text: str, printed: str = "", cause: tuple = ()) -> Mark:
    """One case of a mark ends otherwise: `test` is a part of its node id."""
    for task in made.tasks:
        for case in task["cases"]:
            if test in case["test"]:
                task["points"] = number(task["points"] - case["points"])
                case.update(verdict=verdict, text=text, printed=printed, cause=list(cause), points=0)
                return scored(made)
    raise AssertionError(f"no case {test}")


def stand(
    name: str, *mutants: str, attempts: int = 1, by_hand: Mapping[str, HandMark] | None = None, **fields
) -> Standing:
    """Where somebody stands with such a mark, outside of any store. fields: of the mark, or factor and rule."""
    factor, rule = fields.pop("factor", 1.0), fields.pop("rule", "")
    made = mark(*mutants, **{"submission": 17, **fields})
    one = Attempt(
        made.submission, "week13", "", NOON, "platform", None, "folder", "d.zip", name, "", (), (), None, (1,)
    )
    numbers = tuple(range(one.id - attempts + 1, one.id + 1))
    counted = Counted(one, made, NOON, numbers, factor, factor < 1, False, rule)
    return Standing(Person(1, name, ""), WEEK, counted, by_hand=dict(by_hand or {}))


def hand(task: str, points: float | None, comment: str = "", **fields) -> dict[str, HandMark]:
    return {task: HandMark(task, points, comment=comment, **fields)}


@contextlib.contextmanager
def a_class(
    folder: Path, people: Sequence[str] | str, rules: str = "", weeks: Sequence[Week] = (WEEK,)
) -> Iterator[Class]:
    """An opened class of these people. people: ids, or a roster's text; rules: of course.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    roster = folder / "given.csv"
    roster.write_text(people if isinstance(people, str) else "student\n" + "".join(f'"{one}"\n' for one in people))
    if not (folder / "class.db").exists():
        init_class(folder, roster, "Europe/Berlin", weeks)
    roster.unlink()
    (folder / "course.toml").write_text(rules)
    with open_class(folder, weeks) as cls:
        yield cls


def hand_in(
    cls: Class,
    whose: str | Sequence[str],
    made: Mark | None = None,
    *,
    files: Mapping[str, bytes] | None = None,
    at: datetime | None = NOON,
    days_late: float = 0,
    place: int = 0,
    **fields,
) -> int:
    """A submission of this person, or of these of a group, with this mark; its number. whose: ids, or e-mails; place: the
    week's among the class's."""
    week = cls.weeks[place]
    at = at + timedelta(days=days_late) if at else None
    keys = [[Key("id", one)] for one in ([whose] if isinstance(whose, str) else whose)]
    arrival = Arrival(
        whose if isinstance(whose, str) else "Group A",
        keys[0] if isinstance(whose, str) else [],
        zipped(files if files is not None else {"collectives.py": f"# {whose} {at}\n".encode()}),
        at,
        "folder",
        "download.zip",
        group="" if isinstance(whose, str) else "Group A",
        members=[] if isinstance(whose, str) else keys,
        **fields,
    )
    number_ = add_submission(cls, week, arrival).id
    if made is not None:
        made.submission, made.assignment = number_, week.name
        add_mark(cls, made)
    return number_


def hand_points(cls: Class, submission: int, task: str, points: float | None, comment: str = "", **fields) -> None:
    add_hand_mark(cls, cls.weeks[0], submission, HandMark(task, points, comment=comment, marker="marker", **fields))


def person(cls: Class, id: str) -> int:
    return resolve(cls, id).id


def forty(folder: Path, seed: int = 4) -> contextlib.AbstractContextManager[Class]:
    """Forty students: most with one to three mistakes, some blank, full, or hung; one floods."""
    rng = random.Random(seed)
    common = rng.sample(MUTANTS, 12)
    names = [*AWKWARD, *(f"student{n:02}" for n in range(40 - len(AWKWARD)))]
    roster = io.StringIO()
    roster.write("student,name\n")
    csv.writer(roster).writerows([f"id{n:02}", name] for n, name in enumerate(names))
    with a_class(folder, roster.getvalue()) as cls:
        for place in range(40):
            chosen = [rng.choice(common if rng.random() < 0.7 else MUTANTS) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            blank = tuple(task for task in ("13.3", "13.4", "13.5", "13.6") if rng.random() < 0.08)
            one = mark(*chosen, blank=blank)
            one.seconds = round(3 + 6 * rng.random() + 8 * one.verdicts().get("hung", 0), 2)
            one.core_seconds = round(0.8 * one.seconds, 2)
            if place == 20:
                printed = "rank 0 \x1b[31mhere\x1b[0m\n" + "x" * 3000 + "\n<b>bold</b>\n" * 40
                text = "the result of rank 0 is wrong\n  expected  1\n  got       2\n  cause unknown"
                spoil(one, "test_reduce_scatter[even", "wrong", text, printed)
            hand_in(cls, f"id{place:02}", one)
    return open_class(folder, [WEEK])
