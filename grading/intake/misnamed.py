"""A file that a student misnamed: under which names it may count, when an instructor decides so."""

import difflib
from pathlib import PurePosixPath

from grading.intake.names import harmless, shown
from grading.intake.released import plain, released_week
from grading.intake.submission import Submission
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest


def refuse_rename(read: Submission, week: Week, old: str, new: str) -> None:
    """LabError where a submission holds no file `old`, where `new` is no name that the week reads, and where such a
    file is there already and was worked on.

    read   the submission, with what else is renamed in it"""
    if old not in read.files:
        raise LabError(f"{read.name} holds no {shown(old)}{nearest(old, list(read.files)[:200])}")
    if why := harmless(new):
        raise LabError(f"{shown(new)} {why}: choose a name inside of the submission")
    released, last = released_week(week), PurePosixPath(new).name
    known = [*released.modules.values(), week.notebook.name]
    if last not in {PurePosixPath(name).name for name in known} and (
        PurePosixPath(new).suffix != PurePosixPath(old).suffix or difflib.get_close_matches(last, known, 1, 0.8)
    ):
        raise LabError(f"{week.name} reads no file {shown(new)}{nearest(new, known)}")
    handed_out = [plain(released.files[own]) for own in released.modules.values() if PurePosixPath(own).name == last]
    if new in read.files and plain(read.files[new]) not in handed_out:
        raise LabError(f"{read.name} holds a {shown(new)} already, and that one counts")
