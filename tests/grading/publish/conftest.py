"""The class of forty, made once."""

from __future__ import annotations

import pytest

from grading.register.standing import standings
from tests.grading.publish.aclass import WEEK, forty


@pytest.fixture(scope="session")
def klass(tmp_path_factory):
    """Where the forty stand."""
    with forty(tmp_path_factory.mktemp("class") / "autumn") as cls:
        return standings(cls, WEEK)
