"""The small course, a student tree of it, and whether a submission can be shut in here."""

import hypothesis
import pytest

from grading.release import release
from grading.sandbox.isolation import missing
from labkit.doctor import grading as probes
from tests.grading.minicourse import make

# Properties try the same examples in every run, however busy the machine is, and leave no folder behind. Fixtures of
# one test serve all of its examples.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("same")


@pytest.fixture
def course(tmp_path):
    return make(tmp_path / "course")


@pytest.fixture
def tree(tmp_path, course):
    """A student tree with week91 in it."""
    release(tmp_path / "tree", ["week91"], source=course)
    return tmp_path / "tree"


@pytest.fixture(scope="session")
def sandbox():
    """Skips where the kernel gives no sandbox."""
    lacking = [check.detail for check in probes.sandbox() if not check.ok]
    if lacking:
        pytest.skip(f"no sandbox on this machine: {lacking[0]}")
    if why := missing():  # the machine has all that is needed: then this is a failure, and nothing to skip
        pytest.fail(f"no sandbox starts here: {why}")
