"""`grade publish`: everything that leaves for the class in one week, from where everybody stands.

    published/week13/canvas.csv, moodle.csv   the platform's own table with the grades filled in
        all.csv                               the class's points
        class.html                            the class's page: what it has not understood comes first
        feedback/STUDENT/week13.html          a page for each student
        upload.zip                            the pages, named as Canvas or Moodle takes them back
    published/term.csv                        a line for each student, a column for each week, their sum

What blocks is asked first, of grading.register.problems alone. Pages hold hidden data, so as long as somebody may still
hand in, everything but the pages is written. What was published stands in class.db; the next time says what changed.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grading.intake.names import count, some
from grading.mark import in_words
from grading.marking.items import expanded, items
from grading.publish import page
from grading.publish.class_page import write_page
from grading.publish.feedback import feedback
from grading.publish.overview import Overview, overview
from grading.publish.page import FEEDBACK, PUBLISHED, folder_name
from grading.publish.platforms import CANVAS, MOODLE, WORKSHEET, Filled, fill, keep_worksheet, read_sheet
from grading.publish.table import term_table, week_table, worth, write
from grading.publish.upload import Packed, pack
from grading.register.classes import ROSTER
from grading.register.deadlines import refuse_while_open
from grading.register.people import Person, everybody, key_of
from grading.register.problems import problems
from grading.register.schema import Class
from grading.register.standing import Standing, standings
from labkit.checks.tasks import Week
from labkit.errors import LabError

SHOWN = 20  # names in one sentence


@dataclass
class Published:
    """What was written. notes: sentences on who is left out, and why; changed: (person, total before, now) of those
    whose published total is another one now."""

    folder: Path
    standings: list[Standing]
    overview: Overview
    grades: Filled | None = None
    pages: list[tuple[Person, int, Path]] = field(default_factory=list)
    packed: Packed | None = None
    notes: list[str] = field(default_factory=list)
    changed: list[tuple[Person, float | None, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Wishes:
    """How to publish.

    table       the platform's exported table, kept for this week; None takes the one that the class's folder holds
    assignment  Canvas' title of the column; kept for this week
    zeros       0 for those who handed nothing in and whose deadline has passed; kept for this week. None: as last time
    pages       also while somebody may still hand in
    printed     the pages show what a student's code printed where it failed"""

    table: Path | None = None
    assignment: str | None = None
    zeros: bool | None = None
    pages: bool = False
    printed: bool = False


def publish(cls: Class, week: Week, wishes: Wishes) -> Published:
    """Write everything. LabError, with the command that fixes each, while something blocks."""
    if blocking := [one for one in problems(cls, week) if one.blocks]:
        lines = [f"{one.sentence}\n    {one.command}" if one.command else one.sentence for one in blocking]
        raise LabError(f"nothing of {week.name} was published:\n" + "\n".join(lines))
    here = standings(cls, week)
    folder, called = cls.folder / PUBLISHED / week.name, {one.id: key_of(cls, one) for one in everybody(cls)}
    made = Published(folder, here, overview(week, here))
    if not made.overview.standings:
        raise LabError(
            f"nothing of {week.name} is graded: run `grade collect {week.name}`, then `grade run {week.name}`"
        )
    with cls.writing():  # a table that is refused leaves what was wished before
        wishes = _remembered(cls, week, wishes)
        made.grades = _grades(cls, week, here, folder, wishes)
    write(week_table(week, here, called, zeros=bool(wishes.zeros)), folder / "all.csv")
    write_page(made.overview, folder / "class.html")
    write(_term(cls, called), folder.with_name("term.csv"))
    try:
        if not wishes.pages:
            refuse_while_open(cls, week.name, "feedback pages")
    except LabError as error:
        made.notes.append(f"no feedback pages: {error}")
        (folder / "upload.zip").unlink(missing_ok=True)  # of `--anyway`, before something changed
        _remove_pages(folder / FEEDBACK, week)
    else:
        comments = _comments(cls, week, here)
        made.pages = list(_pages(cls, made, called, comments, printed=wishes.printed))
        made.packed = pack(cls, week, made.pages, folder / "upload.zip")
        paged = {one.id for one, _, _ in made.pages}
        graded = (one for one in here if one.counted is not None and not one.excused)
        if open_ := [one.person.called for one in graded if one.person.id not in paged]:
            made.notes.append(
                f"no page for {count(len(open_), 'student')}, not graded to the end: {some(open_, SHOWN)}"
            )
    made.notes += made.grades.notes if made.grades else []
    if made.grades is None and made.packed and made.packed.system == MOODLE:
        made.notes.append(
            f"no grades for Moodle without this assignment's worksheet: grade publish {week.name} FILE.csv"
        )
    if made.packed and made.packed.without:
        names = some([one.called for one in made.packed.without], SHOWN)
        made.notes.append(f"not in upload.zip, since {made.packed.system}'s number is not known: {names}")
    made.changed = _keep(cls, week, made, bool(wishes.zeros))
    return made


def _grades(cls: Class, week: Week, here: Sequence[Standing], folder: Path, wishes: Wishes) -> Filled | None:
    """Fill the platform's table: the one that was named, else this assignment's worksheet, else Canvas' gradebook, if
    the roster was one: it holds for all weeks. LabError for another file than a platform's."""
    kept = (cls.archive(week, 0).with_name(WORKSHEET), cls.folder / ROSTER)
    for path in [wishes.table] if wishes.table else [one for one in kept if one.is_file()]:
        sheet = read_sheet(cls, week, path)
        if sheet is not None and (sheet.table.system == CANVAS or path != kept[1]):
            to = folder / f"{sheet.table.system.lower()}.csv"
            filled = fill(sheet, week, here, to, assignment=wishes.assignment, zeros=bool(wishes.zeros))
            if wishes.table:
                keep_worksheet(cls, week, path)
            return filled
    if wishes.table:
        raise LabError(
            f"{wishes.table} is neither Canvas' gradebook (Grades, Export) nor Moodle's grading worksheet (the "
            "assignment, Grading action, Download grading worksheet)"
        )
    return None


def _pages(
    cls: Class, made: Published, called: Mapping[int, str], comments: Mapping[int, Mapping[str, str]], *, printed: bool
) -> Iterator[tuple[Person, int, Path]]:
    """The page of everybody whose points are decided. A page of before of somebody who has none now goes."""
    written, week, to = set(), made.overview.week, made.folder / FEEDBACK
    for one in made.standings:
        if one.mark is None or one.counted is None or not (one.excused or one.total is not None):
            continue
        text = feedback(week, one, comments[one.person.id], printed=printed)
        place = page.write(to / folder_name(called[one.person.id]) / f"{week.name}.html", text)
        written.add(place)
        yield one.person, one.mark.submission, place
    _remove_pages(to, week, written)


def _remove_pages(to: Path, week: Week, but: Collection[Path] = ()) -> None:
    for old in to.glob(f"*/{week.name}.*"):
        if old.with_suffix(".html") not in but:
            old.unlink()
            with contextlib.suppress(OSError):  # the folder of somebody who has other pages, or left their own there
                old.parent.rmdir()


def _comments(cls: Class, week: Week, here: Sequence[Standing]) -> dict[int, dict[str, str]]:
    """person -> task -> what people wrote, as students read it: a rubric's items by titles, codes as sentences."""
    commented = {id for one in here for id, given in one.by_hand.items() if given.comment}
    rubrics = {id: items(week, week.task(id)) for id in commented if week.task(id).kind == "written"}
    return {
        one.person.id: {
            id: expanded(given.comment, rubrics.get(id, ()), cls.rules.comments)
            for id, given in one.by_hand.items()
            if given.comment
        }
        for one in here
    }


def _remembered(cls: Class, week: Week, wishes: Wishes) -> Wishes:
    """Title and zeros as they are wished now, else as they are kept for this week. They are kept."""
    query = "SELECT zeros, title FROM publishing WHERE assignment = ?"
    zeros, title = cls.db.execute(query, (week.name,)).fetchone() or (0, None)
    now = (zeros if wishes.zeros is None else int(wishes.zeros), wishes.assignment or title)
    cls.db.execute("INSERT OR REPLACE INTO publishing (assignment, zeros, title) VALUES (?, ?, ?)", (week.name, *now))
    return replace(wishes, zeros=bool(now[0]), assignment=now[1])


def _term(cls: Class, called: Mapping[int, str]) -> list[list[Any]]:
    """The term's table: each week that was published."""
    zeros = dict(cls.db.execute("SELECT assignment, zeros FROM publishing").fetchall())
    parts = [(week, standings(cls, week), bool(zeros[week.name])) for week in cls.weeks if week.name in zeros]
    names = {"canvas": "Canvas ID", "id": "ID", "email": "E-mail"}
    keys: dict[int, dict[str, str]] = {}
    query = "SELECT person, platform, value FROM alias WHERE assignment = '' ORDER BY platform, value"
    for row in cls.db.execute(query):
        if row["platform"] in names and row["value"].casefold() != called.get(row["person"], row["value"]).casefold():
            theirs = keys.setdefault(row["person"], {})
            column = names[row["platform"]]
            theirs[column] = "; ".join(filter(None, (theirs.get(column), row["value"])))
    return term_table(parts, called, keys)


def _keep(cls: Class, week: Week, made: Published, zeros: bool) -> list[tuple[Person, float | None, float | None]]:
    """Put down what was published; whose total is another one than the last time."""
    rows = cls.db.execute("SELECT person, total FROM published WHERE assignment = ? ORDER BY at", (week.name,))
    before, now, changed = {row["person"]: row["total"] for row in rows}, datetime.now(UTC).isoformat(), []
    with cls.writing():
        for one in made.standings:
            id = one.person.id
            total = worth(one, zeros)
            if before.get(id) == total:  # a first total is no change
                continue
            changed += [(one.person, before[id], total)] if id in before else []
            row = (week.name, id, total, now)
            cls.db.execute("INSERT INTO published (assignment, person, total, at) VALUES (?, ?, ?, ?)", row)
    return changed


def sentences(cls: Class, week: Week, made: Published) -> Iterator[str]:
    """What to say of it, at the end what to do with each file."""
    yield from made.notes
    if made.changed:
        out = {one.person.id for one in made.standings if one.excused}
        points = [
            f"{who.called} {in_words(was)} -> {'excused' if who.id in out else in_words(now)}"
            for who, was, now in made.changed
        ]
        yield f"changed since it was published last: {some(points, SHOWN)}"
    if made.grades:
        into = f"into the column {made.grades.column!r}" if made.grades.column else "as a new assignment"
        way = "the assignment, Upload grading worksheet" if made.grades.system == MOODLE else f"Grades, Import, {into}"
        many = f"{len(made.grades.grades)} of {count(len(made.standings), 'student')}"
        yield f"{made.grades.path}: {many}; in {made.grades.system}: {way}"
    if made.packed:
        way = {
            "Moodle": "the assignment, Grading action, Upload multiple feedback files in a zip",
            "Canvas": "the assignment, Re-upload submissions",
        }[made.packed.system]
        yield f"{made.packed.path}: {count(len(made.packed.people), 'page')}; in {made.packed.system}: {way}"
    elif made.pages:
        example = made.pages[0][2]
        yield f"{example.parent.parent}: {count(len(made.pages), 'page')}, for example {example}"
    term = made.folder.with_name("term.csv")
    yield f"{made.folder / 'class.html'}: the class; {made.folder / 'all.csv'}: its points; {term}: the term's"
