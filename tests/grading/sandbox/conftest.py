"""One field of attack for each test file, and the canary week judged on it; skipped where the kernel gives no sandbox."""

import pytest

from grading.sandbox.runner import parts_of
from labkit.checks import load_week, run_checks
from tests.checks.miniweek import make_week
from tests.grading.sandbox.attacking import PACKAGE, Field
from tests.grading.sandbox.canary import OPS, REGISTRY, TESTS


@pytest.fixture(scope="session", autouse=True)
def _isolation(sandbox):
    pass


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("field"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    """The canary's."""
    return load_week(make_week(tmp_path_factory.mktemp("course"), OPS, TESTS, REGISTRY))


@pytest.fixture(scope="module")
def graded(field, week):
    """The outcome of an ops.py of the canary week."""

    def run(ops, tasks=("91.1", "91.2", "91.3"), off=(), parts=None, **options):
        (field.folder / PACKAGE / "ops.py").write_bytes(ops if isinstance(ops, bytes) else ops.encode())
        runner = field.runner(off, **options)
        runner.parts = parts_of(week) if parts is None else parts
        outcome = run_checks(tasks, weeks=[week], runner=runner, seed=7)
        assert not outcome.faults, outcome.faults
        return outcome

    return run
