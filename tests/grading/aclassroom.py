"""A class's folder, and what a command says there: for tests of what an instructor types."""

from __future__ import annotations

import contextlib
import io
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grading.cli import main
from labkit.checks.tasks import find_weeks

ROOT = Path(__file__).resolve().parents[2]
WEEKS = {week.name: week for week in find_weeks(ROOT)}
LONG_AGO, FAR_OFF = "2001-01-01T12:00:00+00:00", "2999-01-01T12:00:00+00:00"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def grade(folder, *words, status=0):
    """What a command says; its last line if it fails."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main([str(word) for word in words])
    assert status is None or (left.value.code or 0) == status, out.getvalue() + err.getvalue()
    return " ".join((out.getvalue() if status != 2 else err.getvalue()).split())


def modules(week):
    return sorted({f"{name.split('.')[0]}.py" for task in week.tasks for name in task.modules if task.kind == "auto"})


def download(path, week, *students):
    """A download of Moodle's: each student's modules of a week."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, student in enumerate(students, 100):
            for name in modules(week):
                archive.writestr(f"{student}_{number}_assignsubmission_file_/{name}", "x = 1\n")
    return path
