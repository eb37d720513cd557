"""Feedback as a learning platform takes it back: one .zip, in which every file is named so that it finds its student.

Moodle   NAME_NUMBER_assignsubmission_file_week13.html     the participant's number in this assignment, from the
         worksheet or the download's names (mod/assign/feedback/file/importziplib.php, 3.1 to 5.1)
Canvas   USER_ATTACHMENT_week13.html                       a user's number, and that of a file which they submitted,
         from the download's names (app/models/assignment.rb, infer_comment_context_from_filename)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grading.files import put, zipped
from grading.register.people import Person
from grading.register.schema import Class
from labkit.checks.tasks import Week


@dataclass
class Packed:
    """What was packed: for which system, whose pages, and who is left out since the platform's number is not known."""

    path: Path
    system: str
    people: list[Person] = field(default_factory=list)
    without: list[Person] = field(default_factory=list)


def pack(cls: Class, week: Week, pages: Sequence[tuple[Person, int, Path]], to: Path) -> Packed | None:
    """Pack the pages, each with its person and the number of the submission that counts; None where no platform is
    known that takes them back."""
    moodle, canvas = _numbers(cls, "moodle", week.name), _numbers(cls, "canvas", "")
    files = _numbers(cls, "canvas", week.name)
    system = "Moodle" if moodle else "Canvas" if files else ""
    if not system:
        return None
    # What a group submitted is every member's: each page goes to the file that one of them handed in.
    attached = {number: files[who.id] for who, number, _ in pages if who.id in files}
    packed, found = Packed(to, system), dict[str, bytes]()
    for who, submission, path in pages:
        if system == "Moodle":
            plain = "".join(" " if c in '_/\\:*?"<>|' or not c.isprintable() else c for c in who.name) or "student"
            name = f"{plain}_{moodle[who.id]}_assignsubmission_file_" if who.id in moodle else ""
        else:
            own = files.get(who.id, attached.get(submission))
            name = f"{canvas[who.id]}_{own}_" if own and who.id in canvas else ""
        if not name:
            packed.without.append(who)
            continue
        found[f"{name}{week.name}.html"] = path.read_bytes()
        packed.people.append(who)
    put(to, zipped(found), 0o640)
    return packed


def _numbers(cls: Class, platform: str, assignment: str) -> Mapping[int, str]:
    """person -> the number that a platform knows them by: the roster's, else of several the last."""
    rows = cls.db.execute(
        "SELECT person, value FROM alias WHERE (platform, assignment) = (?, ?) "
        "ORDER BY origin = 'roster', length(value), value",
        (platform, assignment),
    )
    return {row["person"]: row["value"] for row in rows if row["value"].isdigit()}
