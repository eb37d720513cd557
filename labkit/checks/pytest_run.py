"""`run_checks`: one run of checks by pytest in this process, behind `lab check`, the notebook and the grader."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from labkit.checks import expected
from labkit.checks.outcome import Outcome, decided
from labkit.checks.tasks import Week, find_weeks, select
from labkit.errors import LabError

# Nothing of pytest's that a verdict does not need: no cache, no conftest files, no rewriting of asserts, no tracebacks
# (they parse sources, and Python 3.11 fails at that now and then beside the threads that check).
_OFF = ("cacheprovider", "faulthandler", "doctest", "junitxml", "logging", "unraisableexception", "threadexception")
_HOW = ("--capture=no", "--noconftest", "--import-mode=importlib", "--assert=plain", "--tb=no")
QUIET = (*(f"-pno:{name}" for name in _OFF), *_HOW)


def run_checks(
    names: Sequence[str] = (),
    *,
    weeks: Sequence[Week] | None = None,
    seed: int | None = None,
    deadline: float | None = None,
    runner=None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Outcome:
    """Check tasks and weeks by name; no name means everything in the course.

    weeks     where to look for them; default: the weeks of the course that the working directory lies in
    seed      of the random data; None: a new one, which the Outcome holds
    runner    who runs the students' functions (labkit.checks.runner.Runner); default: processes of this machine
    progress  called as each case begins: (cases done, cases in all, the task and what the test looks at)

    LabError: an unknown name, no pytest, a test file that cannot be loaded.
    """
    selection = select(names, find_weeks() if weeks is None else weeks)
    try:
        import pytest
    except ImportError:
        raise LabError("checks need pytest: pip install pytest") from None
    if runner is None:
        expected.remember({})
        from labkit.comm import helper

        helper.server()  # it imports torch while this process does: nothing above this line imports it
    from labkit.checks.plugin import DEADLINE, Checks

    begin = time.perf_counter()
    only = {id for _, ids in selection for id in ids}
    checks = Checks(seed=seed, deadline=deadline or DEADLINE, runner=runner, only=only, progress=progress)
    outcome = Outcome(selection, checks.seed)
    tested = [week for week, ids in selection if any(week.task(id).kind != "written" for id in ids)]
    if files := [str(test) for week in tested for test in week.tests]:
        _forget(selection)
        root = os.path.commonpath([week.folder.parent for week, _ in selection])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _own_environment():
            # An empty configuration: somebody's addopts or plugins must not change a verdict.
            own = ["-c", os.devnull, f"--rootdir={root}", "-p", "labkit.checks.plugin", *QUIET]
            status = pytest.main([*own, *files], [checks])
        _forget(selection)
        if checks.broken:
            raise LabError("a test file cannot be loaded; tell the course:\n" + "\n".join(checks.broken))
        if status == pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise LabError(f"the checks could not be run; tell the course:\n{printed.getvalue().strip()}")
    outcome.cases, outcome.seconds = decided(checks.cases), time.perf_counter() - begin
    return outcome


def _forget(selection: list[tuple[Week, tuple[str, ...]]]) -> None:
    """Let pytest load the test files anew."""
    # A notebook's kernel lives for days, and another copy of the course has modules of the same names.
    for week, _ in selection:
        for test in week.tests:
            sys.modules.pop(f"{week.package}.{test.stem}", None)


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """pytest's own variables out of the way, and back afterwards."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PYTEST_")}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            del os.environ[name]
        os.environ.update(before)
