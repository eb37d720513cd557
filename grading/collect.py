"""`grade collect week13 download.zip [worksheet.csv]`: every attempt of a download into the class's store, for good.

What is known already is not there twice, so a download may be collected again, and a collection that was interrupted
goes on by the same command. An attempt's archive is in place before the store has it.
"""

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console

from grading.files import locked
from grading.intake.arrival import GIVEN, Arrival, Key
from grading.intake.downloads import Download, Known, read_download
from grading.intake.names import count, forms, letters, printable, shown, some
from grading.intake.rosters import Roster, read_roster
from grading.intake.wrong_week import refuse_another_weeks
from grading.register.deadlines import extend, read_time
from grading.register.people import everybody, learn, owner, person, same_assignment
from grading.register.schema import SUBMITTED, Class
from grading.register.submissions import Added, add_submission, end_collection
from labkit.checks.tasks import Week
from labkit.errors import LabError

SCRATCH = ".collecting"  # beside what is kept
LONG = timedelta(days=100)  # before a deadline nobody hands in so early: it is a slip in the year, or the month
Progress = Callable[[str, int, int], None]  # (what is done, how many are done, of how many)


@dataclass
class Report:
    """What a collection did. kept: each arrival, and what became of it; notes: sentences on what was passed over."""

    week: Week
    download: Download
    kept: list[tuple[Arrival, Added]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def new(self) -> list[tuple[Arrival, Added]]:
        return [one for one in self.kept if one[1].new]


def collect(
    cls: Class,
    week: Week,
    source: Path,
    worksheet: Path | None = None,
    received: datetime | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Keep what is new in a download, and take over what it says of the rest.

    worksheet   Moodle's grading worksheet of this assignment: whose everything is, when it came, extensions, groups
    received    when everything without a submission time was handed in, or by when

    LabError for what is no download, for another week's, for a time that has not come, and while another collects."""
    if received is not None and received > datetime.now(UTC):
        raise LabError(f"--received {received.isoformat()} has not come yet: it is when the submissions were there")
    sheet = read_roster(worksheet, cls.zone or UTC) if worksheet else None
    place = cls.folder / SUBMITTED
    place.mkdir(mode=0o700, exist_ok=True)
    with locked(place, "another `grade collect` is running in this class: wait for its end"):
        scratch = place / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)  # of a collection that was killed
        scratch.mkdir(mode=0o700)
        try:
            called = {form for one in everybody(cls) for form in forms(one.name)}
            known = Known(week, partial(_owner, cls), lambda name: letters(name) in called, cls.zone, sheet)
            download = read_download(source, known, scratch, lambda done, total: progress("reading", done, total))
            refuse_another_weeks([Path(str(one.files)) for one in download.arrivals], source, week)
            report = Report(week, download, notes=list(download.notes))
            if sheet:
                _take_sheet(cls, week, sheet, report)
            for done, arrival in enumerate(download.arrivals):
                progress("keeping", done, len(download.arrivals))
                if arrival.received is None and received is not None:
                    arrival.received, arrival.timed = received, GIVEN
                report.kept.append((arrival, add_submission(cls, week, arrival)))
            if download.digest:
                end_collection(cls, week, download.digest)
        except OSError as error:
            raise LabError(
                f"{error.filename or place}: {error.strerror or error}: fix that and collect again, which goes on from "
                "here and loses nothing"
            ) from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    report.notes += _slips(cls, week, received, report)
    return report


def _owner(cls: Class, keys: Sequence[Key]) -> tuple[int, str] | None:
    found, _ = owner(cls, keys)
    return None if found is None else (found, person(cls, found).name)


def _take_sheet(cls: Class, week: Week, sheet: Roster, report: Report) -> None:
    """Keep what Moodle's worksheet says of everybody in it, also of who has handed nothing in: the number in this
    assignment, and the extension."""
    strangers = []
    with cls.writing():
        for line in sheet.lines:
            number = [Key("moodle", line.participant, week.name)] if line.participant else []
            who = owner(cls, line.keys)[0] or owner(cls, [*number, Key("name", line.name)])[0]
            if who is None:
                strangers.append(line.name or line.participant)
                continue
            same_assignment(cls, who, number, sheet.path.name)
            learn(cls, who, number)
            if line.due is not None or not sheet.problems:  # where a time cannot be read, nothing is taken back
                extend(cls, who, week.name, line.due)
    report.notes += sheet.problems
    kept = [line for line in sheet.lines if line.submitted]  # in Moodle: some as a draft
    if drafts := [line.name for line in kept if line.row.get("Status", "").startswith(("Draft", "Entwurf"))]:
        report.notes.append(f"{some(drafts)} left a draft in Moodle and did not submit it. It counts all the same")
    if strangers:
        report.notes.append(
            f"{count(len(strangers), 'person')} of {sheet.path.name} not in the class: {some(strangers)}. Have they "
            f"joined? `grade init {shlex.quote(str(cls.folder))} --roster FILE` takes a newer roster"
        )


def _slips(cls: Class, week: Week, received: datetime | None, report: Report) -> list[str]:
    """What is to be known of what was collected: what has no time, and times that look like slips. What has no owner is
    a problem of the class (grading.register.problems)."""
    notes, due = [], cls.rules.deadlines.get(week.name)
    if report.download.how == "moodle" and not any(arrival.received for arrival, _ in report.kept):
        notes.append(
            f"Submission times and owners are in Moodle's grading worksheet: `grade collect {week.name} "
            f"{shlex.quote(report.download.source)} WORKSHEET.csv`"
        )
    if received is not None and due is not None and due - received > LONG:
        notes.append(
            f"--received {received.isoformat(' ', 'minutes')} is {(due - received).days} days before the deadline: if "
            "the date is a slip, `grade submission NUMBER time TIME` puts each right"
        )
    if due is None and any(arrival.late for arrival, _ in report.new):
        notes.append(
            f"{report.download.source} marks some as late, and course.toml has no deadline of {week.name} by which to "
            "say how late: write it there"
        )
    if untimed := sum(arrival.received is None for arrival, _ in report.new):
        notes.append(
            f"{count(untimed, 'new submission')} without a submission time: collect again with --received TIME, which is "
            "taken as the latest for the whole download"
        )
    for arrival, added in report.kept:
        notes += [f"{added.id} ({shown(arrival.label)}): {sentence}" for sentence in arrival.attention if added.new]
        if added.withdrawn:
            notes.append(
                f"{added.id} ({shown(arrival.label)}) is withdrawn, and stays so: `grade submission "
                f"{added.id} withdraw --undo` lets it count again"
            )
    return notes


# -- what a person sees of it -----------------------------------------------------------------------------------------
def command(cls: Class, week: Week, source: Path, worksheet: Path | None, received: str | None) -> int:
    """`grade collect`: the collection with its progress, and one summary. Status 1: something was passed over."""
    console = Console()
    with Console(stderr=True).status("reading ...") as line:
        given = read_time(cls, received) if received else None
        words = (cls, week, source, worksheet, given)
        report = collect(*words, lambda what, done, total: line.update(f"{what} {done} of {total}"))
    for sentence in dict.fromkeys(report.notes):
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
    people = {one.id for _, added in report.kept for one in added.members}
    nobody = sum(not added.members for _, added in report.kept)
    console.print(
        f"{week.name}: {count(len(report.kept), 'submission')} of {count(len(people), 'person', 'people')} in "
        f"{shown(report.download.source)}, {len(report.new)} new" + (f", {nobody} of nobody known" if nobody else ""),
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    return 1 if report.download.notes else 0
