"""Feedback as a learning platform takes it back: one .zip, in which every file is named as the platform named it.

Both platforms find a student by the name of a file, so the names come from the platform's own bulk download of the
hand-ins. Nothing has to be remembered between the two.

    Moodle   NAME_NUMBER_assignsubmission_file/week13.html     the download's folder, our page in it. The assignment:
             Grading action, Upload multiple feedback files in a zip (mod/assign/feedback/file/importziplib.php, 4.5:
             NAME_NUMBER_PLUGINTYPE_PLUGIN, then the file's own name). Before 4.1 the folder's name ends in "_", and
             an upload without it is not understood: the folder is called as in the download. Where that has a group's
             folder, a member's is called so with the member's name and number: the upload knows no groups
    Canvas   NAME_USER_ATTACHMENT_week13.html                  a file of the download, with our name behind its numbers.
             The assignment: Re-upload submissions (app/models/assignment.rb, infer_comment_context_from_filename: the
             first two numbers are a user and an attachment of theirs; what comes back is a comment's attachment)
"""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from grading.files import put
from grading.intake.contents import BadArchive, members
from grading.intake.mistaken import refuse_another_weeks
from grading.intake.names import clean, harmless, lms_name, noise
from grading.intake.policy import Rules
from grading.intake.sources import MAX_DIRECTORY, opened
from grading.reports import page
from grading.reports.feedback import path_of
from grading.reports.standing import Standing
from labkit.checks.tasks import Week
from labkit.errors import LabError

_CANVAS = re.compile(r"(?P<head>(?:[^\d_]\w*?_)?(?:LATE_)?\d+_\d+)_.+")
_MOODLE = re.compile(r"(?P<head>.+?_assignsubmission_[a-z]+_?)(?P<file>.*)", re.S)


@dataclass
class Packed:
    """What was packed. `told`: sentences on who is left out."""

    path: Path
    system: str
    students: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def pack(
    week: Week,
    standings: Sequence[Standing],
    feedback: Path,
    like: Sequence[Path],
    to: Path,
    rules: Rules,
    groups: Mapping[str, str] = MappingProxyType({}),
    strangers: Collection[str] = (),
) -> Packed:
    """Pack the pages that `grade feedback` wrote.

    feedback    its folder
    like        the platform's own bulk downloads of this assignment, which tell the names
    rules       the course's, which know who has which number in this week
    groups      of whom a group handed it in, its name in the download
    strangers   who is not in the roster: a group, say, whose number in Moodle is somebody else's as a participant

    LabError for what is no download of Canvas or Moodle, for one of each, and for another week's."""
    named: dict[str, tuple[str, str]] = {}
    participants: dict[str, tuple[str, str]] = {}
    for source in like:
        found, numbered = _names(source, rules)
        named |= found
        participants |= numbered
    systems = {system for system, _ in named.values()}
    if len(systems) != 1:
        raise LabError(
            f"{', '.join(map(str, like))}: {'nothing' if not systems else 'not everything'} in it is named as in "
            "one of Canvas' or Moodle's bulk downloads: give the .zip as the platform gave it. Where no platform takes "
            f"files back, `grade feedback {week.name} --text` writes the text of a mail beside each page"
        )
    for source in like:
        with tempfile.TemporaryDirectory() as scratch, opened(source, week, Path(scratch) / "download") as handed_in:
            refuse_another_weeks(handed_in, source, week, f"nothing was packed: give the download of {week.name}")
    packed = Packed(to, systems.pop())
    without, unknown, unknown_here = [], [], list[str]()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for standing in standings:
            written = path_of(feedback, week, standing.student)
            place = _place(standing, named, participants, rules)
            if packed.system == "Moodle" and standing.student in strangers:
                unknown_here.append(standing.student)
                continue
            if place is None and standing.student in groups:
                place = _of_member(standing, groups[standing.student], named | participants, rules)
            if not written.is_file():
                without.append(standing.student)
            elif place is None:
                unknown.append(standing.student)
            else:
                archive.writestr(_stamped(place[1].format(file=f"{week.name}.html")), written.read_bytes())
                packed.students.append(standing.student)
    if not packed.students:
        raise LabError(
            f"there is no page to pack in {feedback}: run `grade feedback {week.name} --to {feedback}` first, or name "
            "with --feedback the folder that its --to named"
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    put(to, whole.getvalue(), 0o640)
    reasons = (
        (without, "has no page: run `grade feedback` again"),
        (unknown, "is not in the download"),
        (unknown_here, "is not in the roster: whose page it is in Moodle is not known, and it is left out"),
    )
    for students, why in reasons:
        packed.told += [f"{page.one_line(student, 60)} {why}" for student in students]
    return packed


def _stamped(name: str) -> zipfile.ZipInfo:
    """The same pages give the same archive: no time of today in it."""
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return info


def _place(
    standing: Standing, named: dict[str, tuple[str, str]], participants: dict[str, tuple[str, str]], rules: Rules
) -> tuple[str, str] | None:
    """Where a student's page goes; None if the downloads do not tell. Whose number is known, of the attempt that counts
    first, is found by it alone: the bare name may be another one's."""
    theirs = rules.participants(standing.student)
    if not theirs:
        return named.get(standing.student)
    mine = [theirs.get(standing.mark.attempt, ""), *reversed(theirs.values())]
    return next((participants[one] for one in mine if one in participants), None)


def _of_member(
    standing: Standing, group: str, places: dict[str, tuple[str, str]], rules: Rules
) -> tuple[str, str] | None:
    """Where a member's page goes: where the group's would, with their own name and number in place of its."""
    own = next(reversed(rules.participants(standing.student).values()), "")
    if not own or group not in places:
        return None
    system, to = places[group]
    escaped = [name.replace("{", "{{").replace("}", "}}") for name in (group, own)]
    return (system, escaped[1] + to.removeprefix(escaped[0])) if to.startswith(escaped[0]) else None


def _names(source: Path, rules: Rules) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """student -> (system, the name in the archive with {file} where ours goes), the latest attachment of each; and the
    same of Moodle's participants."""
    participants: dict[str, tuple[str, str]] = {}
    found: dict[str, tuple[int, str, str]] = {}
    numbers: dict[str, set[str]] = {}
    for name in _listed(source):
        parts = name.split("/")
        for part in parts[:2]:
            if (named := lms_name(part)) is None:
                continue
            pattern = _MOODLE if named.system == "Moodle" else _CANVAS
            if (head := pattern.fullmatch(part)) is None:
                continue
            numbers.setdefault(named.student, set()).add(named.number)
            folder = named.system == "Moodle" and not head["file"]  # else a file's name, behind whose "_" ours goes
            end = "/{file}" if folder else "{file}" if named.system == "Moodle" else "_{file}"
            to = head["head"].replace("{", "{{").replace("}", "}}") + end
            if named.participant:
                participants[named.participant] = (named.system, to)
            for student in (named.student, f"{named.student}_{named.number}"):
                if student not in found or found[student][0] <= named.order:
                    found[student] = (named.order, named.system, to)
            break
    for student, several in numbers.items():  # two people of one name: `grade collect` told them apart by number
        if len(several) > 1 and found[student][1] == "Moodle":
            del found[student]
    called = {student: (system, to) for student, (_, system, to) in found.items()}
    return {**called, **{rules.id_of(student): told for student, told in called.items()}}, participants


def _listed(source: Path) -> list[str]:
    """Paths in a download, which may be the .zip or an unpacked folder."""
    if source.is_dir():
        return [clean(path.relative_to(source).as_posix()) for path in sorted(source.rglob("*")) if path.is_file()]
    try:
        with source.open("rb") as file:
            found = [clean(member.name) for member in members(file, MAX_DIRECTORY)]
    except OSError as error:
        raise LabError(f"{source} cannot be read ({error.strerror}): name the platform's download") from None
    except BadArchive as error:
        raise LabError(f"{source} {error}: download it again, as a .zip") from None
    return [name for name in found if not noise(name) and not harmless(name)]
