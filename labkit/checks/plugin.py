"""The pytest side: task marks, points, the `seed` fixture, a runner for `call`, and verdicts in place of tracebacks.

Plain `pytest week13_allreduce` loads it (by `-p labkit.checks.plugin` in pyproject.toml), and so does `lab check`,
which passes a `Checks` of its own. Without torch: it is loaded in every run of pytest in this repository.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Generator
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from labkit.checks import runner as seam
from labkit.checks.outcome import CaseResult, number
from labkit.checks.tasks import Week, load_week
from labkit.checks.verdict import FAULT, NO_RESULT, PASSED, CheckFailed
from labkit.errors import LabError

DEADLINE = 5.0  # seconds for one call at home


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labkit", "course tasks")
    group.addoption(
        "--seed", type=int, default=None, help="Seed of the tests' random data. Default: a new one each time."
    )
    group.addoption(
        "--deadline",
        type=float,
        default=DEADLINE,
        help=f"Seconds for one call of a task's function. Default: {DEADLINE:g}.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "task(id, points): which task a test judges, and its share of the task's points")
    if not any(isinstance(plugin, Checks) for plugin in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(Checks(seed=config.getoption("seed"), deadline=config.getoption("deadline")))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of this run's random data: at home a new one each time (printed; --seed repeats), in grading the class's."""
    return checks_of(request.config).seed


def checks_of(config: pytest.Config) -> Checks:
    return next(plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, Checks))


class Checks:
    """One session's tasks: gives each case its points and its `call`, and collects the results in `cases`.

    seed      of the random data; None: a new one
    deadline  seconds for one call
    runner    who runs calls; None: processes of this machine
    only      the ids of the tasks to run; None: all that pytest selected
    starts    called with the task and what begins; ends: with each CaseResult
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        deadline: float = DEADLINE,
        runner: seam.Runner | None = None,
        only: set[str] | None = None,
        starts: Callable[[str, str], None] | None = None,
        ends: Callable[[CaseResult], None] | None = None,
        expected: Callable[[int], None] | None = None,
    ) -> None:
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self.deadline, self.only = deadline, only
        self.starts, self.ends, self.expected = starts, ends, expected
        self.cases: list[CaseResult] = []
        self.broken: list[str] = []  # test files that could not be loaded
        self._runner: seam.Runner | None = runner
        self._own: seam.Runner | None = None
        _load.cache_clear()  # a kernel lives for days, and files change

    # -- collecting -------------------------------------------------------------------------------------------------
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not any("::" in str(arg) for arg in config.args):
            _agree(items)
        if self.only is not None:
            keep = [item for item in items if (mark := _mark(item)) is not None and mark.args[0] in self.only]
            config.hook.pytest_deselected(items=[item for item in items if item not in keep])
            items[:] = keep
        if self.expected is not None:
            self.expected(len(items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(str(report.longrepr))

    # -- running ----------------------------------------------------------------------------------------------------
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        if (mark := _mark(item)) is not None and self.starts is not None:
            self.starts(mark.args[0], title(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        mark = _mark(item)
        if mark is None:
            return (yield)
        week = _week(item)
        task = week.task(mark.args[0])
        needs = tuple(name for id in task.stands_on for name in week.task(id).functions)
        case = seam.Case(week.folder.parent, week.package, needs, self.deadline)
        begin = time.perf_counter()
        try:
            with seam.use_runner(self.runner), seam.use_case(case):
                return (yield)
        finally:
            item.stash[_SEEN] = (time.perf_counter() - begin, "\n".join(case.printed))
            item.stash[_ANSWERED] = case.answered

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        mark = _mark(item)
        if mark is None or (call.when != "call" and call.excinfo is None):
            return report
        verdict, text = PASSED, ""
        cause: tuple[str, ...] = ()
        if call.excinfo is not None:
            error = call.excinfo.value
            if isinstance(error, CheckFailed):
                verdict, text, cause = error.verdict, error.text, error.cause
                report.longrepr = f"{verdict}: {text}"  # the verdict, without the checker's own source around it
            elif item.stash.get(_ANSWERED, False) and isinstance(error, _FORM) and "allocate memory" not in str(error):
                # The same test takes the reference's answer; it is this answer that it cannot take apart.
                verdict = NO_RESULT
                text = f"the answer does not have the form that is asked for: {call.excinfo.exconly()}"
                report.longrepr = f"{verdict}: {text}"
            else:
                verdict, text = FAULT, f"the check itself failed, tell the course: {call.excinfo.exconly()}"
        seconds, printed = item.stash.get(_SEEN, (0.0, ""))
        if printed:
            report.sections.append(("printed by your function", printed))
        result = CaseResult(
            mark.args[0], item.nodeid, title(item), case_of(item), share(item), verdict, text, cause, printed, seconds
        )
        self.cases.append(result)
        if self.ends is not None:
            self.ends(result)
        return report

    @property
    def runner(self) -> seam.Runner:
        if self._runner is None:
            self._runner = self._own = seam.LocalRunner()
        return self._runner

    def pytest_sessionfinish(self) -> None:
        if self._own is not None:
            self._own.close()
            self._runner = self._own = None

    # -- telling ------------------------------------------------------------------------------------------------------
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.cases:
            return
        terminalreporter.section("points")
        for id in dict.fromkeys(case.task for case in self.cases):
            cases = [case for case in self.cases if case.task == id]
            earned, possible = sum(c.earned for c in cases), sum(c.possible for c in cases)
            terminalreporter.line(f"{id:>6}  {number(earned):>5} of {number(possible):>4}")
        terminalreporter.line(f"seed {self.seed}: repeat with --seed {self.seed}")


_SEEN: pytest.StashKey[tuple[float, str]] = pytest.StashKey()
_ANSWERED: pytest.StashKey[bool] = pytest.StashKey()
# What a test raises when it takes a value apart that is not what it seems.
_FORM = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError)


def title(item: pytest.Item) -> str:
    """What a test looks at: the first line of its docstring."""
    assert isinstance(item, pytest.Function)
    line = inspect.getdoc(item.function) or item.originalname.removeprefix("test_").replace("_", " ")
    return line.splitlines()[0].rstrip(".")


def case_of(item: pytest.Item) -> str:
    """Which of its cases, in the words of the parametrisation."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def share(item: pytest.Item) -> Fraction:
    """This case's part of its test's points: all cases of a test get the same, whichever of them run."""
    cases = 1
    for mark in item.iter_markers("parametrize"):
        cases *= len(mark.args[1])
    return _points(item) / cases


def _points(item: pytest.Item) -> Fraction:
    """The share of its task's points that the test (all its cases) has; 0 for a test of no task."""
    mark = _mark(item)
    return Fraction(str(mark.kwargs["points"])) if mark is not None else Fraction(0)


def _mark(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("task")


@cache
def _load(folder: Path) -> Week:
    return load_week(folder)


def _week(item: pytest.Item) -> Week:
    return _load(item.path.parent)


def _agree(items: list[pytest.Item]) -> None:
    """Tests and registry must name the same tasks and points. Called when whole files were collected."""
    tests = {(item.path, item.originalname): item for item in items if isinstance(item, pytest.Function)}
    judged = [
        (path.parent, mark.args[0], item) for (path, _), item in tests.items() if (mark := _mark(item)) is not None
    ]
    found: dict[tuple[Path, str], Fraction] = {}
    try:
        weeks = {folder: _load(folder) for folder, _, _ in judged}
    except LabError as error:
        raise pytest.UsageError(str(error)) from None
    for folder, id, item in judged:
        if id not in weeks[folder]:
            raise pytest.UsageError(f"{item.nodeid} judges task {id}, which is not in {folder.name}/tasks.toml")
        found[folder, id] = found.get((folder, id), Fraction(0)) + _points(item)
    for (folder, id), points in found.items():
        task = weeks[folder].task(id)
        if task.kind == "auto" and points != Fraction(str(task.points)):
            raise pytest.UsageError(
                f"the tests of task {id} give {number(points)} points; {folder.name}/tasks.toml says {task.points}"
            )
