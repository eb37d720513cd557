"""The class of forty, week 13's registry, and words of a page."""

from __future__ import annotations

import pytest

from grading.reports.standing import standings
from labkit.checks.tasks import load_week
from tests.grading.reports.aclass import ROOT, forty


@pytest.fixture(scope="session")
def week():
    return load_week(ROOT / "week13_allreduce")


@pytest.fixture(scope="session")
def marks_folder(tmp_path_factory):
    """Marks of forty students on disk. Tests that change marks write their own."""
    folder = tmp_path_factory.mktemp("class") / "marks"
    forty(folder)
    return folder


@pytest.fixture(scope="session")
def klass(week, marks_folder):
    return standings(week, marks_folder, marks_folder)
