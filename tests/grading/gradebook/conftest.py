"""A small course, and nbgrader's directory of it. All of this needs nbgrader, which is an instructor's extra."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

NBGRADER = importlib.util.find_spec("nbgrader") is not None


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """(the small course, its course directory), made once: nbgrader takes seconds to make a database."""
    if not NBGRADER:
        pytest.skip("nbgrader is not installed: pip install '.[grading]'")
    from grading.gradebook.init import init
    from tests.grading.gradebook.samples import make

    root = tmp_path_factory.mktemp("gradebook")
    source = make(root / "source")
    init(root / "course", source=source)
    return source, root / "course"


@pytest.fixture
def source(template, tmp_path):
    """The small course, to be changed."""
    shutil.copytree(template[0], tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def course(template, tmp_path):
    """A course directory of its own."""
    from grading.gradebook.course import open_course

    shutil.copytree(template[1], tmp_path / "course")
    return open_course(tmp_path / "course")


@pytest.fixture
def week(source):
    from labkit.checks.tasks import find_week, find_weeks

    return find_week("week91", find_weeks(source))


@pytest.fixture
def marks(tmp_path):
    return tmp_path / "marks"
