"""`grade rename`: a file that a student misnamed counts under its right name (renames.py keeps the decision)."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

from grading.intake.arrange import plain
from grading.intake.find import find_submissions
from grading.intake.load import load
from grading.intake.names import harmless, shown
from grading.intake.policy import DEFAULTS, Rules
from grading.intake.receipts import MARKER
from grading.intake.released import released_week
from grading.intake.renames import read_names, write_names
from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.strict import nearest


def rename(
    submissions: Path,
    week: Week,
    student: str,
    old: str,
    new: str,
    *,
    attempt: int | None = None,
    undo: bool = False,
    rules: Rules = DEFAULTS,
) -> str:
    """Rename one file of one attempt, or take that back; a sentence on what was done.

    LabError where attempts were not collected, and for a file, a name or an attempt that is not there or is taken."""
    if not any((root / MARKER).is_file() for root in (submissions / week.name, submissions)):
        raise LabError(
            f"{submissions} was not made by `grade collect`: rename the file in it yourself, or collect first"
        )
    found = find_submissions(submissions, week)
    student = rules.among(student, [entry.student for entry in found])
    theirs = [entry for entry in found if entry.student == student]
    chosen = [entry for entry in theirs if entry.attempt == (attempt or theirs[-1].attempt)]
    if not chosen:
        which = f"attempt {attempt} of {student!r}" if theirs else f"hand-in of {student!r}"
        close = "" if theirs else nearest(student, sorted({entry.student for entry in found})[:200])
        raise LabError(f"there is no {which} in {submissions}{close}: `grade status {week.name}` lists what has come")
    entry, names = chosen[0], read_names(chosen[0].path)
    where = f"attempt {entry.attempt} of {shown(student)}"
    if undo:
        if old not in names:
            raise LabError(f"{shown(old)} of {where} is not renamed: {', '.join(map(shown, names)) or 'nothing'} is")
        write_names(entry.path, {name: to for name, to in names.items() if name != old})
        return f"{where}: {shown(old)} counts under its own name again; now `grade run {week.name}`"
    files = load(replace(entry, renamed=()), week).files
    if old not in files:
        raise LabError(f"{where} holds no {shown(old)}{nearest(old, list(files)[:200])}")
    if why := harmless(new):
        raise LabError(f"{shown(new)} {why}: choose a name inside of the hand-in")
    released = released_week(week)
    known = [*released.modules.values(), week.notebook.name]
    if Path(new).name not in {Path(name).name for name in known} and (
        Path(new).suffix != Path(old).suffix or difflib.get_close_matches(Path(new).name, known, 1, 0.8)
    ):
        raise LabError(f"{week.name} reads no file {shown(new)}{nearest(new, known)}")
    others = {name: to for name, to in names.items() if name != old}
    handed_out = [plain(released.files[own]) for own in released.modules.values() if Path(own).name == Path(new).name]
    untouched = new in files and plain(files[new]) in handed_out
    if new in others.values() or (new in files and new not in others and not untouched):
        raise LabError(f"{where} holds a {shown(new)} already, and that one counts")
    write_names(entry.path, {**others, old: new})
    return f"{where}: {shown(old)} counts as {shown(new)}; now `grade run {week.name}`"
