"""`grade collect`: every attempt out of the exchange, a folder or an LMS's download, kept for good.

Collecting again only adds. Whether an attempt is known already is told by its content and its time:

    the hand-in tells its time (nbgrader)     known, if content and time are those of a receipt; with another content
                                              it has been changed in the exchange, which is told
    it does not (folders, LMS downloads)      known, if the content is that of the student's latest receipt; in a source
                                              that was collected to its end before, that of any

So a student who goes back to an older text has handed in a new attempt, and the same download collected twice has not.
An attempt keeps its number for ever.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grading.files import locked, put
from grading.intake import roster
from grading.intake.find import Entry, Found
from grading.intake.groups import by_member, group_name
from grading.intake.mistaken import refuse_another_weeks
from grading.intake.names import clean, is_exchange_name, shown, some
from grading.intake.namesakes import told_apart
from grading.intake.pack import TooMuch, digest_of, pack
from grading.intake.policy import Rules
from grading.intake.receipts import (
    CHANGED,
    GIVEN,
    MARKED,
    MARKER,
    NO_TIME,
    OWN,
    WITHDRAWN,
    Receipt,
    folder_of,
    handed_in_last,
    read_marker,
    read_receipts,
    receipts_in,
    write_marker,
    write_receipt,
)
from grading.intake.sources import opened
from grading.intake.times import CLAIMED, PUT
from grading.marks import BadId, checked, unquoted
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest

EVERYBODY = "*"  # in place of a student's id
LONG = timedelta(days=100)  # before a deadline nobody hands in so early: it is a slip in the year, or the month
Progress = Callable[[str, int, int], None]  # (what is done, how many are done, of how many)


@dataclass
class Report:
    """What a collection did. `refused` and `notes` are sentences for the instructor; `claims`: how many of the added
    tell their time by what their students can write, and nothing checks it; `timed`: known ones that got a time."""

    root: Path
    added: list[Receipt] = field(default_factory=list)
    known: int = 0
    withdrawn: int = 0  # of the known ones
    marked: int = 0  # whose time is by the platform's mark, and not the given one
    claims: int = 0
    timed: list[Receipt] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(
    sources: Sequence[str | Path],
    week: Week,
    to: str | Path,
    rules: Rules,
    *,
    given: datetime | None = None,
    students: Sequence[str] = (),
    worksheet: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Put every attempt of the sources that is not known yet below `to`/week13.

    given     the time by which everything new in the sources was handed in, where they do not tell it themselves
    students  only these, by the course's ids, or EVERYBODY; () is all. `given` then holds for their known attempts too
    worksheet  Moodle's of this assignment, which tells who is in a group: another one has other groups and numbers

    LabError for what is no source, a target that is something else, busy or full, an id that fits no folder's name, and
    late marks without a deadline, and hand-ins of another week (not for `students`: one may have mistaken the week)."""
    to = Path(to)
    report = Report(to / week.name)
    sheet = roster.read(worksheet) if worksheet else None
    groups = set[str]()
    try:
        with _locked(report.root, week) as ended:
            for source in map(Path, sources):
                if source.resolve() in (to.resolve(), report.root.resolve()):
                    raise LabError(f"{source} is where attempts are kept: collect from where they come from")
                with opened(source, week, to / f".collect-{week.name}") as whole:
                    found = by_member(whole, sheet)
                    _timed_or_refuse(found, source, week, rules, given)
                    if not students:
                        refuse_another_weeks(found, source, week)
                    groups |= {group_name(entry.group) for entry in found if entry.group}
                    ended = _collect(found, source, week, rules, given, students, ended, report, progress)
            report.notes += _long_ago(given, week, rules, report)
            report.notes += _not_the_last(week, rules, report)
            if many := report.marked:
                report.notes.append(
                    f"For {many} of them the platform's own mark decides, late or not by the deadline of course.toml, "
                    "and not --received: nothing is to be done. --student ID --received TIME gives one a time"
                )
            here = [unquoted(path.name) for path in report.root.iterdir() if path.is_dir()]
            for group in sorted(groups & {one for one in here if receipts_in(folder_of(report.root, one))}):
                report.notes.append(
                    f"{shown(group)} was collected before under the group's own name: "
                    f"`{shlex.join(['grade', 'withdraw', week.name, group])}` takes that back"
                )
            known = None
            with contextlib.suppress(LabError):  # a roster that cannot be read is told elsewhere, and stops nothing
                known = roster.of_rules(rules)
            report.notes += roster.extends_nobody(here, week, rules, known)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise LabError(
            f"{error.filename or to}: {why}: mend that and collect again, which goes on from here and loses nothing"
        ) from None
    return report


@contextlib.contextmanager
def _locked(root: Path, week: Week) -> Iterator[list[str]]:
    """The week's folder, made, marked and locked; which collections into it came to their end."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root, f"another `grade collect` into {root} is running: wait for its end"):
        if not (root / MARKER).exists():
            if any(not entry.name.startswith(".") for entry in os.scandir(root)):
                raise LabError(f"{root} holds something else already: name an empty folder with --to")
            write_marker(root, week.name, [])
        yield read_marker(root, week.name)


def _collect(
    found: Found,
    source: Path,
    week: Week,
    rules: Rules,
    given: datetime | None,
    students: Sequence[str],
    ended: list[str],
    report: Report,
    progress: Progress,
) -> list[str]:
    """Keep what is new of one source; which collections came to their end now."""
    digests: list[tuple[Entry, str]] = []
    whole = hashlib.sha256()
    for done, entry in enumerate(found):
        progress("reading", done, len(found))
        try:
            digests.append((entry, digest_of(entry)))
            whole.update(f"{entry.student}\0{digests[-1][1]}\n".encode())
        except (OSError, TooMuch) as error:
            why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
            report.refused.append(f"{shown(entry.student)}: {shown(entry.path.name)} {why}: it was not collected")
    before = whole.hexdigest() in ended
    digests = told_apart(digests, found.notes, report.root, week, rules)
    report.notes += found.notes
    everybody, gone = len(digests), list[tuple[Entry, Receipt]]()
    older: list[Receipt] = []
    ids: dict[str, set[str]] = {}
    called: dict[str, set[str]] = {}
    first: dict[tuple[str, str], Receipt] = {}
    for receipt in read_receipts(report.root, week.name):
        if receipt.group:
            first.setdefault((receipt.group, receipt.digest), receipt)
        ids.setdefault(receipt.called, set()).add(receipt.student)
        if receipt.called and receipt.called != receipt.student:
            called.setdefault(receipt.student, set()).add(receipt.called)
    if students:
        digests = _only(students, digests, source, rules)
    for done, (entry, digest) in enumerate(digests):
        progress("keeping", done, len(digests))
        student = _id(entry.student, report, rules)
        try:
            checked(student)
            folder = folder_of(report.root, student)
            theirs, back = receipts_in(folder), receipts_in(folder / WITHDRAWN)
            received, timed = _time(entry, week, rules, given, sure=bool(students) and EVERYBODY not in students)
            new = not students and all(one.group != entry.group for one in theirs)
            if new and (of := first.get((entry.group, digest))):
                received, timed = of.received, of.timed  # who is new in the group has it since the others have
            report.marked += given is not None and timed == GIVEN and received != given and entry.late is not None
            known = _known(theirs, entry, digest, received, timed, before) or any(one.digest == digest for one in back)
            if entry.received and received != entry.received and (students or not known):
                when = entry.received.isoformat(" ", "minutes")
                said = f"was last written {when}" if entry.timed == PUT else f"says {when}, which its student can write"
                holds = received.isoformat(" ", "minutes") if received else "no time"
                report.notes.append(f"{shown(entry.path.name)} {said}: {holds}, by --received, holds")
            if known:
                report.known += 1
                gone += [(entry, one) for one in back if one.digest == digest][-1:]
                if timed == GIVEN and theirs and digest not in (theirs[-1].digest, *(one.digest for one in back)):
                    older += theirs[-1:]
                _number(theirs, digest, entry.participant)
                if students and timed == GIVEN and any(one.digest == digest for one in theirs):
                    _retime(theirs, digest, received, report)
                continue
            received, timed, told = _if_changed(entry, theirs, digest, received, timed)
            report.notes += told
            number = max((receipt.attempt for receipt in (*theirs, *back)), default=0) + 1
            for old in sorted(ids.get(entry.student, set()) - {student}):
                report.notes.append(
                    f"{shown(entry.student)} was {shown(old)} by the [ids] of then and is {shown(student)} now; both "
                    f"are here: {shlex.join(['grade', 'withdraw', week.name, old])} takes the old one back"
                )
            if entry.student != student and (others := sorted(called.get(student, set()) - {entry.student})):
                report.notes.append(
                    f"{shown(student)} is {shown(entry.student)} by [ids], and {some(others)} as well: if they are not "
                    f"one student, correct it, and `grade withdraw {week.name} {shlex.quote(student)}`"
                )
            if entry.student != student:
                called.setdefault(student, set()).add(entry.student)
            name = entry.parts[0][0] if len(entry.parts) == 1 else ""
            report.claims += entry.timed == CLAIMED and timed == OWN
            report.added.append(
                _keep(
                    entry,
                    Receipt(
                        student,
                        number,
                        received,
                        timed,
                        digest,
                        name,
                        str(source),
                        datetime.now(UTC).isoformat(timespec="seconds"),
                        entry.late,
                        dict(entry.left_out),
                        list(entry.notes),
                        [*entry.attention, *told],
                        folder / f"{number}.zip",
                        entry.student,
                        entry.participant,
                        entry.group,
                    ),
                )
            )
        except BadId as error:
            report.refused.append(f"{error}: {shown(entry.path.name)} was not collected")
        except TooMuch as error:
            report.refused.append(f"{shown(student)}: {shown(entry.path.name)} {error}: it was not collected")
    progress("keeping", len(digests), len(digests))
    report.withdrawn += len(gone)
    report.notes += _stay_back(gone, everybody, source, week, given)
    report.notes += [] if students else _read_again(older, source, week, given)
    if not before and not students:
        ended = [*ended, whole.hexdigest()]
        write_marker(report.root, week.name, ended)
    return ended


def _only(
    students: Sequence[str], digests: list[tuple[Entry, str]], source: Path, rules: Rules
) -> list[tuple[Entry, str]]:
    """What of a source these students handed in. LabError for one of whom nothing is there: a slip in the id."""
    if EVERYBODY in students:
        return digests
    called = {name: set(rules.called(name)) for name in students}
    here = [{entry.student, rules.id_of(entry.student), entry.participant} for entry, _ in digests]
    for name, names in called.items():
        if not names & set().union(*here):
            known = sorted({rules.id_of(entry.student) for entry, _ in digests})
            raise LabError(f"nothing of {name!r} is in {source}{nearest(name, known[:200])}")
    wanted = set().union(*called.values())
    return [one for one, names in zip(digests, here) if wanted & names]


def _number(theirs: list[Receipt], digest: str, participant: str) -> None:
    """Receipts of before Moodle's numbers were kept learn them, when the same content comes once more."""
    for receipt in theirs:
        if receipt.digest == digest and participant and not receipt.participant:
            receipt.participant = participant
            write_receipt(receipt)


def _stay_back(
    gone: Sequence[tuple[Entry, Receipt]], everybody: int, source: Path, week: Week, given: datetime | None
) -> list[str]:
    """A sentence on what is in the source and was withdrawn, with the commands that bring it back and give it another
    time. Nobody else gets that time, and who is in time by the platform's mark needs none."""
    if not gone:
        return []
    was, stays, them = ("was", "stays", "it") if len(gone) == 1 else ("were", "stay", "them")
    undo = [
        f"`{shlex.join(['grade', 'withdraw', week.name, '--from', where, '--undo'])}`"
        for where in sorted({receipt.source for _, receipt in gone})
    ]
    told = (
        f"{len(gone)} of what is in {source} {was} withdrawn before, and {stays} so "
        f"({some(sorted({receipt.student for _, receipt in gone}))}): {' and '.join(undo)} "
        f"{'brings' if len(undo) == 1 else 'bring'} {them} back"
    )
    untimed = [receipt for entry, receipt in gone if entry.received is None and entry.late is not False]
    if untimed:
        one = len({receipt.received for receipt in untimed}) > 1  # of several collections: each has its own right time
        names = [EVERYBODY] if len(gone) == everybody else sorted({receipt.student for receipt in untimed})
        words = ["grade", "collect", week.name, "--from", str(source)]
        words += [word for name in (["ID"] if one else names) for word in ("--student", name)]
        words += ["--received", given.isoformat() if given and not one else "TIME"]
        told += f", and then `{shlex.join(words)}` gives {f'one of {them}' if one else them} another time"
    return [told]


def _read_again(newer: list[Receipt], source: Path, week: Week, given: datetime | None) -> list[str]:
    """A sentence on whose newer attempts are here than what a source gives that was collected before: an old download,
    or a new one in which they put their earlier files back."""
    late = sorted({one.student for one in newer if given and one.received and one.received < given})
    if not late or given is None:
        return []
    words = [
        "grade",
        "collect",
        week.name,
        "--from",
        str(source),
        *(word for one in late for word in ("--student", one)),
    ]
    return [
        f"{source} gives what was collected before, and newer attempts of {some(late)} stay the last. If they put "
        f"their earlier files back by {given.isoformat(' ', 'minutes')}: "
        f"`{shlex.join([*words, '--received', given.isoformat()])}`"
    ]


def _retime(theirs: list[Receipt], digest: str, received: datetime | None, report: Report) -> None:
    """The instructor tells when a known attempt was handed in: Moodle's pages show it, and its download does not. Of
    several attempts with this content the last one is meant."""
    receipt = [one for one in theirs if one.digest == digest][-1]
    if (receipt.received, receipt.timed) != (received, GIVEN):
        receipt.received, receipt.timed = received, GIVEN
        receipt.notes = [note for note in receipt.notes if note != NO_TIME]
        write_receipt(receipt)
        report.timed.append(receipt)


def _long_ago(given: datetime | None, week: Week, rules: Rules, report: Report) -> list[str]:
    """A sentence if --received is long before the deadline, or before all that was collected earlier: a slip in the
    date takes lateness away."""
    new = [one for one in report.added if one.timed == GIVEN]
    if given is None or not new:
        return []
    fresh = {(one.student, one.attempt) for one in report.added}
    before = [
        one.received
        for one in read_receipts(report.root, week.name)
        if one.received is not None and (one.student, one.attempt) not in fresh
    ]
    due = rules.deadlines.get(week.name)
    if before and given < min(before):
        what = f"before all that was collected earlier, of which the first came {min(before).isoformat(' ', 'minutes')}"
    elif due is not None and due - given > LONG:
        what = f"{(due - given).days} days before the deadline"
    else:
        return []
    who = sorted({one.student for one in new}) if report.known else [EVERYBODY]  # nobody else gets another time
    words = shlex.join(word for one in who for word in ("--student", one))
    return [
        f"--received {given.isoformat(' ', 'minutes')} is {what}: if the date is a slip, {words} --received TIME puts "
        "it right"
    ]


def _not_the_last(week: Week, rules: Rules, report: Report) -> list[str]:
    """A sentence on new attempts that do not count, since earlier ones of their students have later times, where one of
    the two times is only an upper bound: --received tells by when something came."""
    if rules.attempts.policy != "last":
        return []
    behind = []
    for one in report.added:
        theirs = receipts_in(folder_of(report.root, one.student))
        last = handed_in_last(theirs)
        if last.attempt < one.attempt and GIVEN in (one.timed, last.timed):
            behind.append(f"attempt {one.attempt} of {shown(one.student)}, by attempt {last.attempt}")
    if not behind:
        return []
    return [
        f"{len(behind)} of the new attempts {'has' if len(behind) == 1 else 'have'} an earlier time than an attempt "
        f"before it, which still counts ({some(sorted(behind))}): --student ID --received TIME puts it right"
    ]


def _id(found: str, report: Report, rules: Rules) -> str:
    """Under which id somebody is kept. Who was collected before [ids] spoke of them stays who they were: under another
    id they would be there twice, in the marks and in the gradebook as well."""
    id = rules.id_of(found)
    with contextlib.suppress(BadId):
        if id != found and receipts_in(folder_of(report.root, found)):
            twice = bool(receipts_in(folder_of(report.root, id)))
            report.notes.append(
                f"{shown(found)} and {shown(id)} are one student by [ids], and both are in {report.root}: "
                f"{shlex.join(['grade', 'withdraw', report.root.name, found])} takes the first one back, with its marks"
                if twice
                else f"{shown(found)} was collected before [ids] called them {shown(id)}, and keeps that name in "
                f"{report.root}; extensions and rosters know both"
            )
            return id if twice else found
    return id


def _keep(entry: Entry, receipt: Receipt) -> Receipt:
    """Put one attempt in place, and then its receipt."""
    receipt.path.parent.mkdir(exist_ok=True)
    put(receipt.path, lambda file: receipt.left_out.update(pack(entry, file)))
    if receipt.timed == MARKED:
        receipt.notes.append(NO_TIME)
    write_receipt(receipt)
    return receipt


def _known(
    theirs: list[Receipt], entry: Entry, digest: str, received: datetime | None, timed: str, before: bool
) -> bool:
    """Whether an entry is an attempt that is kept. A platform gives what lies there in every download, also after
    another attempt came by another way: there only what the platform itself gave last can have changed."""
    if timed == PUT:  # touched since, perhaps by who keeps the exchange; the text is known
        return any(r.digest == digest for r in theirs)
    if timed == OWN:
        return any(r.digest == digest and (r.timed != OWN or r.received == received) for r in theirs)
    last = [*theirs[-1:], *[r for r in theirs if _way(r) == _way(entry)][-1:]]
    return any(r.digest == digest for r in (theirs if before else last))


def _way(one: Entry | Receipt) -> str:
    """How it came: from Moodle, which numbers students, from Canvas, which marks what is late, or otherwise."""
    return "Moodle" if one.participant else "Canvas" if one.late is not None else ""


def _if_changed(
    entry: Entry, theirs: list[Receipt], digest: str, received: datetime | None, timed: str
) -> tuple[datetime | None, str, list[str]]:
    """A student owns what lies in the exchange, and can change it under its old time. Then it was handed in anew, and
    not before the old text was collected."""
    old = [r for r in theirs if r.received == received and r.digest != digest]
    if timed != OWN or not old or not is_exchange_name(clean(entry.path.name)):
        return received, timed, []
    return (
        datetime.fromisoformat(old[0].collected),
        CHANGED,
        [
            f"{shown(entry.path.name)} was changed in the exchange after it was collected: what it was is attempt "
            f"{old[0].attempt}, and what it is now counts as handed in after that"
        ],
    )


def _time(entry: Entry, week: Week, rules: Rules, given: datetime | None, sure: bool) -> tuple[datetime | None, str]:
    """(when an entry was handed in, how that is known). What a student could write, and nothing checks, weighs less
    than what the instructor tells. A late mark, or none, weighs more than the time of a whole download: what is not
    marked was in time, and what is marked was at least a little late. sure: it is told of this very student, and weighs
    more than a mark."""
    due = rules.deadlines.get(week.name)
    if entry.received and entry.timed == PUT:
        return (given, GIVEN) if given and given < entry.received else (entry.received, PUT)
    if entry.received and entry.timed == CLAIMED and given and entry.received < given:
        return given, GIVEN
    if entry.received:
        return entry.received, OWN
    if sure and given:
        return given, GIVEN
    if entry.late and due:
        just_after = due + timedelta(minutes=rules.late.grace_minutes, seconds=1)
        return (max(given, just_after), GIVEN) if given else (just_after, MARKED)
    if entry.late is False and due and given:
        return min(given, due), GIVEN
    return given, GIVEN if given else ""


def _timed_or_refuse(found: Found, source: Path, week: Week, rules: Rules, given: datetime | None) -> None:
    late = [entry.student for entry in found if entry.late and not entry.received]
    if late and not given and week.name not in rules.deadlines:
        raise LabError(
            f"{source} marks {len(late)} as late and tells no time ({shown(late[0])}, for one): write the "
            f"deadline of {week.name} into course.toml, or tell by --received by when they were handed in"
        )
