"""The files that a mark was made from, for the pictures in them: read again by grading.intake, never run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grading.reports.standing import Standing
from labkit.checks.tasks import Week
from labkit.errors import LabError


def files_of(folder: Path, week: Week) -> Callable[[Standing], dict[str, bytes]]:
    """A function that gives the files (path -> bytes) of the attempt that counts. {} if it is not there any more, or is
    not the one that was marked."""
    if not folder.is_dir():
        return lambda standing: {}
    from grading.intake.find import find_submissions
    from grading.intake.load import load

    entries = {(entry.student, entry.attempt): entry for entry in find_submissions(folder, week)}

    def files(standing: Standing) -> dict[str, bytes]:
        entry = entries.get((standing.student, standing.mark.attempt))
        if entry is None:
            return {}
        try:
            submission = load(entry, week)
        except (OSError, LabError):
            return {}
        same = not standing.mark.submission or submission.digest == standing.mark.submission
        return dict(submission.files) if same else {}

    return files
