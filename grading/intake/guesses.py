"""What a name in a download may mean. These are all the guesses that there are, and EXAMPLES has one of each kind.

    nbgrader     STUDENT+ASSIGNMENT+TIMESTAMP[+RANDOM]/           the exchange's inbound/ (exchange/default/submit.py)
    Canvas       NAME[_LATE]_USER_ATTACHMENT_FILE                 lib/content_zipper.rb; anonymous: [LATE_]anon_ID_...
    Moodle       NAME_NUMBER_assignsubmission_PLUGIN_[FILE]       mod/assign: a folder for each student, or one file
                                                                  each; of all without a group no number
    Blackboard   ASSIGNMENT_LOGIN_attempt_TIME[_FILE]             Learn's Assignment File Download
    ILIAS        LAST_FIRST_LOGIN_NUMBER/                         ilExSubmission::getDirectoryNameFromUserData
    Gradescope   submission_NUMBER/ and submission_metadata.yml   which says whose each folder is
    a folder     ID/, ID.zip, ID.ipynb, ID.py                     an instructor's own, or clones of git

A name is in part a student's to choose, and may be read in several ways: `readings` gives them all, and the register's
people decide which holds (downloads.py).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from grading.intake.arrival import Key
from grading.intake.stamps import read_stamp
from labkit.checks.tasks import Week

TITLES = {
    "canvas": "Canvas", "moodle": "Moodle", "nbgrader": "nbgrader", "blackboard": "Blackboard", "ilias": "ILIAS",
    "gradescope": "Gradescope",
}  # fmt: skip
CODE = (".py", ".ipynb")
BLIND = ("Participant", "Teilnehmerin", "Teilnehmer")  # what Moodle calls everybody under blind marking: no name
TWICE = "carries the platform's mark twice, so that it may be one student's or another's"
_EXCHANGE = re.compile(r"(?P<student>.+)\+(?P<assignment>[^+]+)\+(?P<stamp>\d{4}-\d\d-\d\d.*?)(?:\+[\w=-]{12})?")
# What is before it is the student's name, of whatever letters and marks Canvas leaves in it; what is behind, a file's.
_CANVAS = re.compile(r"(?=_(?P<late>LATE_)?(?P<user>\d+)_(?P<attachment>\d+)_(?P<file>.+)$)", re.DOTALL)
_CANVAS_TEXT = re.compile(r"(?P<student>.+?)_(?P<late>LATE_)?(?P<user>\d+)__?(?P<file>(?:text|link)\.html)")
_CANVAS_ANON = re.compile(r"(?P<late>LATE_)?(?P<user>anon_[^\W_]+)_(?:(?P<attachment>\d+)_)?(?P<file>.+)")
_AGAIN = re.compile(r"-\d{1,2}(?=\.[^.]+$)")  # what Canvas puts into the name of a file that is handed in again
_MOODLE = re.compile(r"(?P<student>.+?)(?:_(?P<number>\d+))?_assignsubmission_[a-z]+(?:_(?P<file>.*))?", re.DOTALL)
_MOODLES = re.compile(r"(?=_\d+_assignsubmission_)")  # with a lookahead: two of them may share a letter
_BLACKBOARD = re.compile(
    r"(?P<who>.+?)_attempt_(?P<stamp>\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)(?:_(?P<file>.+)|\.txt)", re.DOTALL
)
_ILIAS = re.compile(r"(?P<who>[^_]+_.+)_\d+", re.DOTALL)
ILIAS_LATE = re.compile(r"(?:Late Submission|Versp(?:ä|ae|a)tete (?:Abgabe|Einreichung)) - ")


@dataclass(frozen=True)
class Guess:
    """One reading of a name.

    label     what the platform calls the student
    file      the student's own name for the file; "" for a folder of files
    order     a number that rises with time
    late      the platform's own mark; None if it makes none
    doubt     why this may not be so, as the end of a sentence
    unit      what tells two of one label apart: Moodle's name with the number, which is another in each assignment
    """

    how: str
    label: str
    keys: tuple[Key, ...]
    file: str = ""
    order: int = 0
    late: bool | None = None
    received: datetime | None = None
    doubt: str = ""
    unit: str = ""

    @property
    def name(self) -> str:
        """The person's name in it, which proposes."""
        return next((key.value for key in self.keys if key.platform == "name"), "")

    @property
    def number(self) -> str:
        """Moodle's number in it: a participant's, or a group's; "" of other platforms."""
        return next((key.value for key in self.keys if key.platform == "moodle"), "")


def readings(name: str, folder: bool, week: Week, zone: tzinfo | None = None) -> list[Guess]:
    """How the name of a file or folder may be read; [] if it is no platform's. A second and a third reading is there
    where somebody's name or file may have been chosen to look so.

    zone   of times without one: the class's"""
    found = [*_exchange(name, week, zone), *_moodle(name, week), *_blackboard(name, zone), *_canvas(name, week)]
    return [*found, *(_ilias(name) if folder and not found else [])]


def another_assignments(name: str) -> bool:
    """Whether it is a folder of nbgrader's exchange, of whatever assignment."""
    return _EXCHANGE.fullmatch(name) is not None


def plain(name: str, folder: bool) -> Guess:
    """The name of a folder, or of an archive or module without its ending, read as somebody's id, e-mail or name."""
    stem = name
    if not folder:
        stem = os.path.splitext(name)[0]
        stem = os.path.splitext(stem)[0] if stem.lower().endswith(".tar") else stem
    keys = [Key("id", stem), *([Key("email", stem)] if "@" in stem else []), Key("name", stem)]
    return Guess("folder", stem, tuple(keys), "" if folder else name)


def _exchange(name: str, week: Week, zone: tzinfo | None) -> Iterator[Guess]:
    found = _EXCHANGE.fullmatch(name)
    if found and found["assignment"] in (week.name, week.package):
        received, doubt = read_stamp(found["stamp"], zone)
        yield Guess("nbgrader", found["student"], (Key("nbgrader", found["student"]),), received=received, doubt=doubt)


def _moodle(name: str, week: Week) -> Iterator[Guess]:
    """Before Moodle's mark is a name, behind it a file, and a student may choose both: with two marks nobody can tell
    whose it is."""
    found = _MOODLE.fullmatch(name)
    if found and len(_MOODLES.findall(name)) > 1:
        yield Guess("moodle", name, (), found["file"] or "", doubt=TWICE)
    elif found:
        student, number = found["student"].strip(), found["number"]
        numbers, names = [Key("moodle", number or "", week.name)], [Key("name", student)]
        keys = (*(numbers if number else []), *(names if student not in BLIND else []))
        unit = f"{student}_{number}" if number else student
        yield Guess("moodle", student if student not in BLIND else unit, keys, found["file"] or "", unit=unit)


def _blackboard(name: str, zone: tzinfo | None) -> Iterator[Guess]:
    if found := _BLACKBOARD.fullmatch(name):
        day, clock = found["stamp"][:10], found["stamp"][11:].replace("-", ":")
        received, _ = read_stamp(f"{day}T{clock}")  # in the platform's own zone, which is taken for the class's
        received = received.replace(tzinfo=zone) if received is not None and zone is not None else None
        for login in _endings(found["who"]):
            yield Guess("blackboard", login, (Key("id", login),), found["file"] or name, received=received)


def _canvas(name: str, week: Week) -> Iterator[Guess]:
    whole = _CANVAS_ANON.fullmatch(name) or _CANVAS_TEXT.fullmatch(name)
    for found in [whole] if whole else _CANVAS.finditer(name):
        student = found.groupdict().get("student", "") if whole else name[: found.start()]
        if (student or whole) and not student.endswith("_LATE"):
            user, order = found["user"], int((found.groupdict().get("attachment") or "0")[:18])
            key = Key("canvas", user, week.name if user.startswith("anon_") else "")
            keys = (key, *([Key("name", student)] if student else []))
            label = f"{student}_{user}" if student else user
            yield Guess("canvas", label, keys, _AGAIN.sub("", found["file"]), order, bool(found["late"]))


def _ilias(name: str) -> Iterator[Guess]:
    if found := _ILIAS.fullmatch(name):
        for login in _endings(found["who"])[:-1]:
            yield Guess("ilias", name, (Key("id", login),))


def _endings(text: str) -> list[str]:
    """ "jdoe" and "Jane_jdoe" of "Doe_Jane_jdoe", and the whole: a login may have "_" in it."""
    parts = text.split("_")
    return ["_".join(parts[at:]) for at in range(len(parts) - 1, -1, -1)]


def gradescope(text: str, zone: tzinfo | None = None) -> dict[str, tuple[list[list[Key]], datetime | None]]:
    """What submission_metadata.yml says of each folder: the keys of each who handed it in, and when. It is YAML as Ruby
    writes it, of which these lines are read and no other."""
    found: dict[str, tuple[list[list[Key]], datetime | None]] = {}
    folder, inside = "", False
    for line in text.splitlines():
        if top := re.fullmatch(r"(\w+):\s*", line):
            folder, inside = top[1], False
            found[folder] = ([], None)
        elif folder and (part := re.fullmatch(r"  :(\w+):\s*(.*)", line)):
            inside = part[1] == "submitters"
            if part[1] == "created_at":
                stamp = re.sub(r"(\.\d{1,6})\d*", r"\1", part[2].strip("'\""))
                found[folder] = found[folder][0], read_stamp(stamp, zone)[0]
        elif inside and (part := re.fullmatch(r"  (-)? +:(name|sid|email):\s*(.*)", line)):
            if part[1]:
                found[folder][0].append([])
            value, platform = _scalar(part[3]), {"sid": "id"}.get(part[2], part[2])
            if value and found[folder][0]:
                found[folder][0][-1].append(Key(platform, value))
    return found


def _scalar(text: str) -> str:
    text = text.strip()
    if text[:1] == "'":
        return text.strip("'").replace("''", "'")
    if text[:1] == '"':
        return re.sub(r"\\(?:x(..)|u(....))", lambda m: chr(int(m[1] or m[2], 16)), text.strip('"'))
    return text


# (name, how it is read, the keys that decide, the student's own file); a folder's name ends in "/".
EXAMPLES: tuple[tuple[str, str, list[str], str], ...] = (
    ("doejane_4567_89012_homework.zip", "canvas", ["canvas 4567"], "homework.zip"),
    ("garcía_LATE_77_90000_lab-1.zip", "canvas late", ["canvas 77"], "lab.zip"),
    ("ใจดีสมชาย_LATE_4503_90005_cost_model.py", "canvas late", ["canvas 4503"], "cost_model.py"),
    ("שָׁלוֹם_4507_90008_ring.py", "canvas", ["canvas 4507"], "ring.py"),
    ("o_neil_4508_90009_ring.py", "canvas", ["canvas 4508"], "ring.py"),
    ("doe_4509_90010_x_4501_1_ring.py", "canvas", ["canvas 4509", "canvas 4501"], "x_4501_1_ring.py"),
    ("LATE_anon_X9z_92000_work.zip", "canvas late", ["canvas anon_X9z week91"], "work.zip"),
    ("poe_99_text.html", "canvas", ["canvas 99"], "text.html"),
    ("Jane O'Doe_1234_assignsubmission_file_/", "moodle", ["moodle 1234 week91"], ""),
    ("Ana_B_1236_assignsubmission_file_ring.py", "moodle", ["moodle 1236 week91"], "ring.py"),
    ("Default group_assignsubmission_file/", "moodle", [], ""),
    ("Participant_501_assignsubmission_file/", "moodle", ["moodle 501 week91"], ""),
    ("Bob_17_assignsubmission_file__99_assignsubmission_file_/", "moodle", [], "_99_assignsubmission_file_"),
    ("a+b+week91+2026-11-20 18:00:00.000001 UTC+AbCdEf_-1234/", "nbgrader", ["nbgrader a+b"], ""),
    ("ada+week91+2026-06-22 10:00:00.000000 CEST/", "nbgrader", ["nbgrader ada"], ""),
    ("bob+week92+2026-11-20 17:00:00.0 UTC+zzzzzzzzzzzz/", "", [], ""),
    ("Week 13_jdoe_attempt_2026-11-20-17-30-00_ring.py", "blackboard", ["id jdoe", "id Week 13_jdoe"], "ring.py"),
    ("Doe_Jane_jdoe_312/", "ilias", ["id jdoe", "id Jane_jdoe"], ""),
    ("roemax_66_92_x_assignsubmission_file_ring.py", "moodle", ["canvas 66"], "ring.py"),
    ("anna/", "", [], ""),
    ("jane doe.zip", "", [], ""),
    ("x_assignsubmission_/", "", [], ""),
)
