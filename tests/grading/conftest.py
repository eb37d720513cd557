"""The small course, and a student tree of it."""
from __future__ import annotations

import pytest

from grading.release import release
from tests.grading.minicourse import make


@pytest.fixture
def course(tmp_path):
    return make(tmp_path / "course")


@pytest.fixture
def tree(tmp_path, course):
    """A student tree with week91 in it."""
    release(tmp_path / "tree", ["week91"], source=course)
    return tmp_path / "tree"
