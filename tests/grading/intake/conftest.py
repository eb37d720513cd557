"""A week, and functions that read a submission of it in one step."""

from __future__ import annotations

import pytest

from grading.intake import arrange, find_submissions, load
from tests.grading.intake.handed_in import make_week


@pytest.fixture
def week(tmp_path):
    return make_week(tmp_path / "course")


@pytest.fixture
def folder(tmp_path):
    """The folder of submissions."""
    (tmp_path / "submitted").mkdir()
    return tmp_path / "submitted"


@pytest.fixture
def read(folder, week):
    """The one submission that lies in the folder, loaded."""

    def one():
        (entry,) = find_submissions(folder, week)
        return load(entry, week)

    return one


@pytest.fixture
def arranged(read, week):
    """The one submission that lies in the folder, arranged."""
    return lambda: arrange(read(), week)


@pytest.fixture(scope="session")
def week_of_all(tmp_path_factory):
    """The same week, made once: for properties, which ask for it a hundred times."""
    return make_week(tmp_path_factory.mktemp("course"))
