"""`grade export`: a week's points, or the term's, as a table for a person, Canvas or Moodle.

What a table alone cannot tell is printed beside it: who is missing, whose points may change, and whose have.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grading.reports.one_week import again, class_of, missing, to_mend, waiting
from grading.reports.options import Course, Gradebook, Marks, RosterFile, Submissions

if TYPE_CHECKING:
    from grading.intake.policy import Rules
    from grading.intake.roster import Roster


class Format(StrEnum):
    csv = "csv"
    canvas = "canvas"
    moodle = "moodle"


def export(
    week: Annotated[
        str | None,
        typer.Argument(metavar="WEEK", help="The week. Without one: the term, a column for each week that has marks."),
    ] = None,
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.csv", help="The table.")],
    format: Annotated[
        Format,
        typer.Option(
            help="csv: everything; canvas: what Canvas' gradebook imports; moodle: its grading worksheet, filled in."
        ),
    ] = Format.csv,
    assignment: Annotated[
        str | None,
        typer.Option(
            metavar="TITLE",
            help="canvas: the assignment's title there. Default: the week's column in the roster, 'Week 13 (4711)', "
            "else a new assignment.",
        ),
    ] = None,
    roster: RosterFile = None,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="Give who handed nothing in, and whose deadline has passed, a zero.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also while a name that may have points to lose is not in the roster.")
    ] = False,
    automatic: Annotated[
        bool, typer.Option("--automatic", help="canvas: the automatic points alone, before anything is graded by hand.")
    ] = False,
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Write the class's points as CSV, or as the file that Canvas or Moodle imports. Without a WEEK: the whole term."""
    from functools import partial

    from grading.intake.excused import of_any_week
    from grading.intake.names import printable
    from grading.intake.roster import unknown_ids
    from grading.reports import canvas, changed, moodle
    from grading.reports import export as table
    from grading.reports.page import count
    from grading.reports.together import unequal

    _refuse_roster(to, course, roster)
    if format is not Format.canvas and (assignment or automatic):
        raise typer.BadParameter("--assignment and --automatic belong to --format canvas")
    if week is None:
        if format is not Format.csv:
            raise typer.BadParameter("--format canvas and moodle need a WEEK: they have a column for each assignment")
        _term(to, marks, submissions, gradebook, course, roster, zeros, anyway)
        return
    found, here = class_of(week, marks, gradebook, course)
    waits = waiting(found, submissions, marks)
    everybody = [*(one.student for one in here), *waits.new]
    rules, who, gone, away = missing(found, here, submissions, course, roster, waits.new)
    bare = [student for student in waits.new if student not in away]
    differ = unequal(here)
    for sentence in (
        *unknown_ids(who, rules, partial(of_any_week, marks, submissions)),
        *to_mend(everybody, marks, submissions, found, who, rules),
        *differ,
    ):
        typer.echo(sentence)
    given = [one for one in gone if one.over] if zeros else []
    if zeros and who is None:
        raise typer.BadParameter("--zeros needs a roster: --roster FILE, or [roster] in course.toml")
    if given and not anyway:
        _sure_of_zeros(found.name, given, everybody, who, rules)
    if not anyway:
        _sure_of_lateness(found.name, here, everybody, who, rules)
    if format is Format.moodle and who is None:
        raise typer.BadParameter("--format moodle needs Moodle's grading worksheet: --roster FILE")
    before = changed.read(to)
    out = sorted([*(one.student for one in here if one.excused), *away])
    if format is not Format.csv:
        if format is Format.moodle and who is not None:
            written, way = (
                moodle.export(found, here, to, who, rules, zeros=given, told=again(here)),
                "the assignment, Upload grading worksheet",
            )
        else:
            written = canvas.export(
                found,
                here,
                to,
                assignment=assignment,
                roster=who,
                rules=rules,
                zeros=given,
                excused=away,
                automatic_only=automatic,
                told=[] if automatic else again(here),
            )
            way = "Grades, Import"
            if who is not None and written.column:
                way += f", into the column {written.column!r} of {who.path.name}"
            elif who is not None:
                way += f", as a new assignment: {who.path.name} has no column of this title (--assignment)"
        late = _may_come(given, found, rules)
        differs = changed.told(before, changed.read(to))
        for sentence in (*written.told, *_told(gone, given, bare, out), *late, *waits.told(found), *differs):
            typer.echo(printable(sentence))
        typer.echo(
            f"{written.lines} of {len(here) + len(given) + len(away)} students are in {to}; "
            f"in {format.value.capitalize()}: {way}"
        )
        return
    table.export(found, here, to, absent=gone, excused=away, zeros=zeros)
    for sentence in (*_told(gone, given, bare, out), *_may_come(given, found, rules), *waits.told(found), *again(here)):
        typer.echo(sentence)
    for sentence in changed.told(before, changed.read(to)):
        typer.echo(printable(sentence))
    open_, rows = sum(s.total is None and not s.excused for s in here), len(here) + len(gone) + len(away)
    typer.echo(
        f"{count(rows, 'student is', 'students are')} in {to}"
        + (f"; {open_} have no total yet, their state says why" if open_ else "")
    )


def _refuse_roster(to: Path, course: Path | None, roster: Path | None) -> None:
    """LabError if the table would be written over the roster: with it, who handed nothing in would be forgotten."""
    from grading.intake.policy import find_rules
    from grading.intake.roster import of_rules
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError

    who = of_rules(find_rules(course, find_weeks()), roster)
    if who is not None and to.exists() and to.samefile(who.path):
        raise LabError(f"--to {to} is the roster, and would be written over: choose another name")


def _term(
    to: Path,
    marks: Path,
    submissions: Path,
    gradebook: Path | None,
    course: Path | None,
    roster: Path | None,
    zeros: bool,
    anyway: bool,
) -> None:
    """The table of all weeks that have marks."""
    from datetime import UTC, datetime
    from functools import partial

    from grading import marks as marking
    from grading.intake.excused import of_any_week
    from grading.intake.names import printable
    from grading.intake.policy import find_rules
    from grading.intake.roster import of_rules, strangers, unknown_ids
    from grading.reports import changed, term
    from grading.reports.canvas import names
    from grading.reports.page import count
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError

    weeks = find_weeks()
    rules = find_rules(course, weeks)
    who = of_rules(rules, roster)
    if zeros and who is None:
        raise typer.BadParameter("--zeros needs a roster: --roster FILE, or [roster] in course.toml")
    parts, without = [], []
    behind = unknown_ids(who, rules, partial(of_any_week, marks, submissions))
    for week in weeks:
        if (marks / week.name).is_dir() and any(marking.all_marks(marks, week.name)):
            found, here = class_of(week.name, marks, gradebook, course)
            waits = waiting(found, submissions, marks)
            own, _, gone, _ = missing(found, here, submissions, course, roster, waits.new)
            everybody = [*(one.student for one in here), *waits.new]
            told = (*waits.told(found), *again(here), *to_mend(everybody, marks, submissions, found, who, own))
            behind += [f"{found.name}: {sentence}" for sentence in told]
            if zeros and not anyway:
                _sure_of_zeros(found.name, [a for a in gone if a.over], everybody, who, own)
            if not anyway:
                _sure_of_lateness(found.name, here, everybody, who, own)
            if zeros:
                behind += _may_come([one for one in gone if one.over], found, rules)
            parts.append(term.Part(found, here, gone, waits.new, own))
        elif bare := waiting(week, submissions, marks).new:
            waits = count(len(bare), "hand-in is", "hand-ins are")
            without.append(f"{week.name} has no column: {waits} not graded yet")
        elif week.name in rules.deadlines and rules.deadlines[week.name] < datetime.now(UTC):
            without.append(f"{week.name} has no column: its deadline has passed, and nothing of it is here")
    if not parts:
        raise LabError(f"there are no marks in {marks}: run `grade run WEEK` first")
    made, before = term.table(parts, who, rules, zeros=zeros), changed.read(to)
    term.write(made, to)
    behind += [printable(sentence) for sentence in changed.told(before, changed.read(to))]
    typer.echo(f"{count(len(made.rows) - 1, 'student')} and {count(len(parts), 'week')} are in {to}")
    if made.open:
        typer.echo(f"{made.open} have no total yet: the last column tells which week is open, and why")
    if made.excused:
        typer.echo(f"Excused, and out of `total` and `possible`: {names(made.excused)}")
    strange = set[str]()
    if who is not None:
        for part in parts:
            here = [one.student for one in part.standings]
            strange |= {student for student, _ in strangers(here, who, part.rules or rules)}
    if strange:
        typer.echo(f"Not in the roster, with a line of their own: {names(sorted(strange))}")
    for sentence in (*without, *behind):
        typer.echo(sentence)


def _sure_of_zeros(week: str, given: list, students: list[str], who: Roster | None, rules: Rules) -> None:
    """LabError if one of the zeros may be somebody's who is not found in the roster, and handed in, is excused or has
    more time."""
    from datetime import UTC, datetime

    from grading.intake.excused import Excused
    from grading.intake.names import some
    from grading.intake.roster import still_to_come, strangers
    from labkit.errors import LabError

    if not given or who is None:
        return
    zeros = f"{who.path.name}, and 0 points of {week} would go to {some(list(map(str, given)))}"
    if unknown := strangers(sorted(set(students)), who, rules):
        raise LabError(
            f"a zero may be somebody's who handed in: {some([student for student, _ in unknown])} is not found in "
            f"{zeros}. [ids] in course.toml says who it is; `grade withdraw` takes out who left the class; --anyway if "
            "nobody of the roster"
        )
    if lost := Excused(week, rules, who).not_found():
        raise LabError(
            f"a zero may be somebody's who is excused: {some(lost)} of [excused] is not found in {zeros}. Write in "
            "[ids] of course.toml what this platform calls them, or [excused] with the roster's name; --anyway if "
            "nobody of the roster"
        )
    if lost := still_to_come(week, students, who, rules, datetime.now(UTC)):
        raise LabError(
            f"a zero may be somebody's whose deadline has not passed: {some(lost)} of [extensions] is not found in "
            f"{zeros}. Write in [ids] of course.toml what this platform calls them, or [extensions] with the roster's "
            "name; take it out of who left the class; --anyway if nobody of the roster"
        )


def _sure_of_lateness(week: str, here: list, students: list[str], who: Roster | None, rules: Rules) -> None:
    """LabError if somebody lost points for being late, and an extension of this week reaches nobody: it may be
    theirs."""
    from grading.intake.names import some
    from grading.intake.roster import extended_unknown
    from labkit.errors import LabError

    late = [one.student for one in here if one.factor < 1 and not one.excused]
    if who is None or not late:
        return
    if lost := extended_unknown(week, students, who, rules):
        raise LabError(
            f"points may be lost that nobody should lose: {some(lost)} of [extensions] is not found in "
            f"{who.path.name}, and {some(late)} lost points of {week} for being late. Write [extensions] "
            "with the roster's name, or in "
            "[ids] of course.toml what this platform calls them; take it out of who left the class; --anyway if it is "
            "nobody's of these"
        )


def _may_come(given: list, week, rules: Rules) -> list[str]:
    """A sentence if somebody who gets a zero may still hand in late, by their own deadline."""
    from datetime import UTC, datetime, timedelta

    more = timedelta(minutes=rules.late.grace_minutes, days=rules.late.closes_after_days or 0)
    until = max((one.due + more for one in given), default=None)
    if until is None or until < datetime.now(UTC):
        return []
    return [f"{week.name} can be handed in late until {until.isoformat(' ', 'minutes')}: these zeros may change"]


def _told(gone: list, given: list, bare: list[str], out: list[str]) -> list[str]:
    """Sentences on who handed nothing in, on `bare`, whose hand-in is not graded yet, and on `out`: who is excused."""
    from grading.reports.canvas import names
    from grading.reports.page import count

    zero = {one.student: str(one) for one in given}
    left = [str(one) for one in gone if one.student not in zero]
    return [
        *(
            [f"{count(len(zero), 'student')} handed nothing in, 0 points: {names(sorted(zero.values()))}"]
            if zero
            else []
        ),
        *([f"{count(len(left), 'student')} handed nothing in (--zeros gives 0 points): {names(left)}"] if left else []),
        *(
            [f"{count(len(bare), 'hand-in is', 'hand-ins are')} not graded yet, and no zero: {names(bare)}"]
            if bare
            else []
        ),
        *(
            [f"{count(len(out), 'student is', 'students are')} excused, no points and no zero: {names(out)}"]
            if out
            else []
        ),
    ]
