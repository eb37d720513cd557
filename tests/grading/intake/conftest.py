"""A week, and a folder of submissions."""

import pytest

from tests.grading.intake.handed_in import make_week


@pytest.fixture
def week(tmp_path):
    return make_week(tmp_path / "course")


@pytest.fixture(scope="session")
def week_of_all(tmp_path_factory):
    """The same week, made once: for properties, which ask for it a hundred times."""
    return make_week(tmp_path_factory.mktemp("course"))


@pytest.fixture
def folder(tmp_path):
    """The folder of submissions."""
    (tmp_path / "submitted").mkdir()
    return tmp_path / "submitted"
