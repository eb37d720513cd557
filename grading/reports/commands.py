"""`grade feedback`, `grade report`, `grade export`, `grade forget`. Each imports what it needs when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from grading.intake.policy import Rules
    from grading.intake.roster import Roster

Week = Annotated[str, typer.Argument(metavar="WEEK", help="The week, for example week13.")]
Marks = Annotated[Path, typer.Option("--marks", metavar="DIR", help="Where `grade run` put the marks.")]
Submissions = Annotated[Path, typer.Option("--submissions", metavar="DIR", help="What was handed in.")]
Gradebook = Annotated[
    Path | None,
    typer.Option(
        "--gradebook",
        metavar="DIR",
        help="nbgrader's course directory: points and comments by hand come from there. Default: this folder, or "
        "./gradebook.",
    ),
]

Course = Annotated[
    Path | None,
    typer.Option(
        "--course",
        metavar="FILE",
        help="Which attempt counts, deadlines, extensions. Default: course.toml, if it is here.",
    ),
]


RosterFile = Annotated[
    Path | None,
    typer.Option(
        "--roster",
        metavar="FILE.csv",
        help="Who is in the class: Canvas' exported gradebook, Moodle's grading worksheet, or a list of ids. Default: "
        "what \\[roster] in course.toml names.",
    ),
]


class Format(StrEnum):
    csv = "csv"
    canvas = "canvas"
    moodle = "moodle"


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `grade` application."""
    app.command(name="status")(status)
    app.command(name="feedback")(feedback)
    app.command(name="report")(report)
    app.command(name="export")(export)
    app.command(name="forget")(forget)


def status(
    week: Annotated[
        str | None, typer.Argument(metavar="WEEK", help="The week. Without one: a line for each week.")
    ] = None,
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
    roster: RosterFile = None,
) -> None:
    """Show in one table what has come, is graded, waits for a person, is late or missing."""
    from datetime import UTC, datetime

    from rich.console import Console

    from grading.gradebook.course import course_folder
    from grading.here import not_the_class
    from grading.intake.policy import find_rules
    from grading.reports import status as standing
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(submissions, marks)
    weeks, console = find_weeks(), Console()
    rules, book = find_rules(course, weeks), course_folder(gradebook)
    shown = 0
    for one in [find_week(week)] if week else weeks:
        found = standing.status(one, submissions, marks, book, rules, datetime.now(UTC), roster)
        if week and (found.rows or submissions.exists() or marks.exists() or rules.deadlines):
            shown += 1
            standing.show(found, console)
        elif not week and (found.come or found.graded or one.name in rules.deadlines):
            shown += 1
            console.print(standing.summary(found), highlight=False, soft_wrap=True)
    if not shown:
        console.print(
            f"No class is here: {submissions} holds no hand-in, {marks} no marks, and no course.toml a deadline. Type "
            "it in the class's folder, or name --submissions and --marks.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def feedback(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A page for each student: DIR/STUDENT/WEEK.html.")],
    student: Annotated[str | None, typer.Option(metavar="ID", help="Only this student's page.")] = None,
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
    printed: Annotated[
        bool,
        typer.Option(
            help=(
                "Show also what a student's code printed where it failed. It may have printed hidden data: only once "
                "nobody can hand in any more."
            )
        ),
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also while somebody may still hand in.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Write beside each page the text of a mail: DIR/STUDENT/WEEK.txt.")
    ] = False,
) -> None:
    """Write each student's page: points, why not all of them, own pictures, comments by hand, what to do next.

    Refused while anybody may still hand in, extensions included: pages tell of hidden data."""
    from rich.progress import track

    from grading.intake.names import some
    from grading.intake.policy import find_rules, refuse_while_open
    from grading.reports import mail, page
    from grading.reports.feedback import files_of, path_of, write_pages
    from labkit.checks.tasks import find_week, find_weeks

    weeks = find_weeks()
    refuse_while_open(find_rules(course, weeks), find_week(week, weeks).name, "feedback", anyway)
    found, here = class_of(week, marks, gradebook, course)
    if student is not None:
        here = _only(here, find_rules(course, weeks).among(student, [one.student for one in here]))
    pages = write_pages(found, here, to, files_of(submissions, found), printed=printed)
    for _ in track(pages, "pages", total=len(here), transient=True, disable=not _terminal()):
        pass
    for one in here:
        beside = path_of(to, found, one.student).with_suffix(".txt")
        if text or beside.exists():  # an older mail would speak of other points than its page
            page.write(beside, mail.text(found, one))
    unsure = sum(not s.settled for s in here)
    typer.echo(
        f"{len(here)} {'page is' if len(here) == 1 else 'pages are'} in {to}, for example "
        f"{path_of(to, found, here[0].student)}"
    )
    if unsure:
        typer.echo(
            f"{unsure} of them {'says' if unsure == 1 else 'say'} that a human will look: `grade report {week}` "
            "lists who and why"
        )
    if later := sum(bool(one.ungraded) for one in here):
        typer.echo(
            f"{later} of them {'says' if later == 1 else 'say'} that points by hand come later: "
            f"`grade status {found.name}` tells whose"
        )
    waits = waiting(found, submissions, marks)
    if bare := [] if student else waits.new:
        typer.echo(f"No page for {some(bare)}: handed in, and not graded yet")
    for sentence in (*waits.told(found), *again(here)):
        typer.echo(sentence)


def waiting(week, submissions: Path, marks: Path):
    """What was handed in and has no mark yet (grading.intake.pending)."""
    from grading import marks as marking
    from grading.intake.pending import entries_of, pending

    known = marking.all_marks(marks, week.name) if (marks / week.name).is_dir() else ()
    return pending(week, entries_of(submissions, week), known)


def again(here: list) -> list[str]:
    """Sentences on points by hand that a person should look at: given before what they are for changed, or more than
    there are."""
    from grading.reports.canvas import names

    old = [f"{one.student}, {', '.join(one.before)}" for one in here if one.before]
    theirs = [one.student for one in here if one.again and not one.before]
    return [
        *([f"points by hand are of an earlier hand-in, `grade load` first: {names(old)}"] if old else []),
        *([f"graded by hand before the answer changed, look again: {names(theirs)}"] if theirs else []),
        *(f"more points by hand than there are: {one.student}, {', '.join(one.above)}" for one in here if one.above),
    ]


def report(
    week: Week,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The page: one self-contained file.")],
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    gradebook: Gradebook = None,
    course: Course = None,
) -> None:
    """Draw the class's page, what it has not understood first, and print its short form."""
    from rich.console import Console

    from grading.reports.class_page import render, write_page
    from grading.reports.overview import overview

    found, here = class_of(week, marks, gradebook, course)
    seen = overview(found, here)
    seen.absent = [one.student for one in _missing(found, here, submissions, course, None)[2]]
    write_page(seen, to)
    render(seen, Console())
    for sentence in waiting(found, submissions, marks).told(found):
        typer.echo(sentence)
    typer.echo(f"The page is {to}")


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
        bool, typer.Option("--anyway", help="Zeros also while somebody who handed in is not found in the roster.")
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
    rules, who, gone, away = _missing(found, here, submissions, course, roster, waits.new)
    bare = [student for student in waits.new if student not in away]
    differ = unequal(here)
    for sentence in (*unknown_ids(who, rules), *_to_mend(everybody, marks, submissions, found, who, rules), *differ):
        typer.echo(sentence)
    given = [one for one in gone if one.over] if zeros else []
    if zeros and who is None:
        raise typer.BadParameter("--zeros needs a roster: --roster FILE, or [roster] in course.toml")
    if given and not anyway:
        _sure_of_zeros(given, everybody, who, rules)
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

    from grading import marks as marking
    from grading.intake.names import printable
    from grading.intake.policy import find_rules
    from grading.intake.roster import of_rules, strangers
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
    parts, without, behind = [], [], []
    for week in weeks:
        if (marks / week.name).is_dir() and any(marking.all_marks(marks, week.name)):
            found, here = class_of(week.name, marks, gradebook, course)
            waits = waiting(found, submissions, marks)
            own, _, gone, _ = _missing(found, here, submissions, course, roster, waits.new)
            everybody = [*(one.student for one in here), *waits.new]
            told = (*waits.told(found), *again(here), *_to_mend(everybody, marks, submissions, found, who, own))
            behind += [f"{found.name}: {sentence}" for sentence in told]
            if zeros and not anyway:
                _sure_of_zeros([a for a in gone if a.over], everybody, who, own)
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


def forget(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="The student's id.")],
    marks: Marks = Path("marks"),
    submissions: Submissions = Path("submitted"),
    feedback: Annotated[Path, typer.Option("--feedback", metavar="DIR", help="Where feedback was put.")] = Path(
        "feedback"
    ),
    gradebook: Gradebook = None,
    course: Course = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove everything that is stored of one student: marks, what was handed in, feedback, rows in the gradebook.

    Shows first what will go, and asks. Interrupted? The same command removes the rest. Status 1: something is left that
    only you can remove, or could not be searched.
    """
    from grading.gradebook.course import course_folder, course_root
    from grading.intake.policy import FILE
    from grading.marks import unquoted
    from grading.reports.forget import find, size
    from grading.reports.forget import forget as remove
    from grading.reports.page import count, one_line
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError
    from labkit.strict import nearest

    weeks, book = find_weeks(), course_folder(gradebook)
    places = find(
        student, weeks, marks=marks, submissions=submissions, feedback=feedback, course=book, rules=course or Path(FILE)
    )
    if not places.found and not places.told and not places.unread:
        known = sorted({unquoted(path.name) for week in weeks for path in _folders(marks, submissions, week.name)})
        raise LabError(
            f"nothing is stored of {student!r} here{nearest(student, known) if known else ''}; other folders: --marks, "
            "--submissions, --feedback, --gradebook"
        )
    if course_root(book) is None:
        typer.echo("No course directory of nbgrader's is here or in ./gradebook, so none was searched: --gradebook DIR")
    if places.found:
        typer.echo(f"Of {one_line(student)} there is:")
    for place in places.found:
        files, total = (0, 0) if place.is_rows else size(place.path)
        much = count(place.rows, "row") if place.is_rows else f"{count(files, 'file')}, {total / 1000:,.1f} kB"
        typer.echo(f"  {place.what}: {place.path} ({much})")
    if places.found and not yes:
        typer.confirm("Remove all of it for good?", abort=True)
    for place in remove(places):
        typer.echo(f"removed: {place.what}, {place.path}")
    for sentence in (*places.told, *places.unread):
        typer.echo(f"left to you: {sentence}")
    raise typer.Exit(1 if places.told or places.unread else 0)


def _folders(marks: Path, submissions: Path, week: str) -> list[Path]:
    """The students' own folders of a week."""
    places = (marks / week, submissions / week)
    return [path for place in places if place.is_dir() for path in place.iterdir() if path.is_dir()]


def class_of(week: str, marks: Path, gradebook: Path | None, course: Path | None) -> tuple:
    """(the week, where each student stands in it)."""
    from grading.gradebook.course import course_folder
    from grading.gradebook.items import expanded, items
    from grading.here import not_the_class
    from grading.intake.policy import find_rules
    from grading.reports.standing import standings
    from labkit.checks.tasks import find_week, find_weeks

    not_the_class(marks)
    found = find_week(week)
    rules = find_rules(course, find_weeks())
    here = standings(found, marks, course_folder(gradebook), rules)
    rubrics = {
        task.id: items(found, task) for task in found.tasks if task.kind == "written" and any(s.by_hand for s in here)
    }
    for given in (given for s in here for given in s.by_hand.values()):
        given.comments = [expanded(comment, rubrics.get(given.task, ()), rules.comments) for comment in given.comments]
    return found, here


def _missing(
    week, here: list, submissions: Path, course: Path | None, roster: Path | None, bare: list[str] | None = None
) -> tuple:
    """(the course's rules, which know who is who in this week, the roster or None, who of it handed nothing in, who is
    excused and has no mark). `bare`: whose hand-in has no mark yet. Those of `here` who are excused are so then."""
    from datetime import UTC, datetime

    from grading.intake.excused import Excused
    from grading.intake.namesakes import of_week
    from grading.intake.policy import find_rules
    from grading.intake.roster import absent, of_rules
    from labkit.checks.tasks import find_weeks

    rules = of_week(find_rules(course, find_weeks()), submissions, week)
    who = of_rules(rules, roster)
    students = [*(s.student for s in here), *(bare or ())]
    gone = absent(week.name, students, who, rules, datetime.now(UTC)) if who is not None else []
    excused = Excused(week.name, rules, who)
    for one in here:
        if one.student in excused:
            one.excuse()
    away = [student for student in (*(bare or ()), *(one.student for one in gone)) if student in excused]
    away += excused.elsewhere([*students, *away])
    return rules, who, [one for one in gone if one.student not in away], sorted(away)


def _to_mend(students: list[str], marks: Path, submissions: Path, week, who: Roster | None, rules: Rules) -> list[str]:
    """Sentences on what makes points other than they look: extensions, excuses, names and withdrawals."""
    from grading.intake.excused import Excused
    from grading.intake.roster import under_two_names, without_effect
    from grading.intake.withdraw import only_withdrawn

    return [
        *without_effect(students, week, who, rules),
        *Excused(week.name, rules, who).slips(students, marks, submissions),
        *under_two_names(students, week, who, rules),
        *only_withdrawn(submissions, week, students, who, rules),
    ]


def _sure_of_zeros(given: list, students: list[str], who: Roster | None, rules: Rules) -> None:
    """LabError if one of the zeros may be somebody's who handed in and is not found in the roster."""
    from grading.intake.names import some
    from grading.intake.roster import strangers
    from labkit.errors import LabError

    if given and who is not None and (unknown := strangers(sorted(set(students)), who, rules)):
        raise LabError(
            f"a zero may be somebody's who handed in: {some([student for student, _ in unknown])} is not found in "
            f"{who.path.name}, and 0 points would go to {some(list(map(str, given)))}. [ids] in course.toml says who "
            "it is; `grade withdraw` takes out who left the class; --anyway if nobody of the roster"
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


def _only(standings: list, student: str) -> list:
    from labkit.errors import LabError
    from labkit.strict import nearest

    found = [s for s in standings if s.student == student]
    if not found:
        raise LabError(f"there is no mark of {student!r}{nearest(student, [s.student for s in standings][:30])}")
    return found


def _terminal() -> bool:
    import sys

    return sys.stderr.isatty() and sys.stdout.isatty()
