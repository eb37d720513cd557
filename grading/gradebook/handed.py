"""What an attempt handed in, for formgrader's view: by path, as grading/intake finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from grading.marks import Mark
from labkit.checks.tasks import Week


def files_of(folder: Path, week: Week) -> Callable[[Mark], Mapping[str, bytes]]:
    """The function that gives a mark's files: {} where the attempt is not in `folder` (any more).

    LabError if there is no such folder: loading would take the students' work out of formgrader."""
    from grading.intake.find import find_submissions
    from grading.intake.load import load

    entries = {(entry.student, entry.attempt): entry for entry in find_submissions(folder, week)}

    def files(mark: Mark) -> Mapping[str, bytes]:
        entry = entries.get((mark.student, mark.attempt))
        return load(entry, week).files if entry else {}

    return files
