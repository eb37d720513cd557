"""The pytest side: task marks, points, the `seed` fixture, a runner for `call`, and verdicts in place of tracebacks."""

import contextlib
import errno
import hashlib
import inspect
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from labkit.checks.outcome import CaseResult, number
from labkit.checks.runner import Case, LocalRunner, Runner, use
from labkit.checks.tasks import load_week
from labkit.checks.verdict import FAULT, NO_RESULT, PASSED, CheckFailed
from labkit.errors import LabError

DEADLINE = 5.0  # seconds for one call at home
PATIENCE = 0.7  # seconds: a case that takes longer may hang, so the others of its task begin beside it
AT_ONCE = 6  # cases that run at once, then


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("labkit", "course tasks")
    group.addoption("--seed", type=int, help="Seed of the tests' random data. Default: a new one each time.")
    group.addoption("--deadline", type=float, default=DEADLINE, help="Seconds for one call of a task's function.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "task(id, points): which task a test judges, and its share of the task's points")
    if not any(isinstance(plugin, Checks) for plugin in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(Checks(seed=config.getoption("seed"), deadline=config.getoption("deadline")))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of a test's random data, from the run's: at home a new one each time (--seed repeats it), else the class's."""
    checks = next(plugin for plugin in request.config.pluginmanager.get_plugins() if isinstance(plugin, Checks))
    return seed_of(checks.seed, request.node)


def seed_of(seed: int, item: pytest.Item) -> int:
    """A test's own seed, 62 bits, by a hash."""
    # Whoever sees a test's data may find out with what seed they were drawn (some generators take 32 bits, a size shows
    # a remainder): that is of no use for any other test.
    name = getattr(item, "originalname", None) or item.name
    return int.from_bytes(hashlib.sha256(f"{seed} {item.path.parent.name} {name}".encode()).digest()[:8], "big") >> 2


class Checks:
    """One session's tasks: gives each case its points and its `call`, and collects the results in `cases`.

    seed, deadline, runner, progress: as of `run_checks`. only: the ids of the tasks to run; None: all selected ones.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        deadline: float = DEADLINE,
        runner: Runner | None = None,
        only: set[str] | None = None,
        progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    ) -> None:
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self.deadline, self.only, self.progress = deadline, only, progress
        self.total = 0
        self.cases: list[CaseResult] = []
        self.broken: list[str] = []  # test files that could not be loaded
        self.own = LocalRunner()
        self.runner = runner or self.own
        self._waiting: list[pytest.Function] = []  # cases that can be run ahead, and have not begun
        self._running: dict[pytest.Item, _Run] = {}
        _load.cache_clear()  # a kernel lives for days, and files change

    # -- collecting -------------------------------------------------------------------------------------------------
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not any("::" in str(arg) for arg in config.args):
            _agree(items)
        if self.only is not None:
            keep = [item for item in items if _task(item) in self.only]
            config.hook.pytest_deselected(items=[item for item in items if item not in keep])
            items[:] = keep
        self.total = len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(str(report.longrepr))

    # -- running ----------------------------------------------------------------------------------------------------
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        if (task := _task(item)) is not None:
            self.progress(len(self.cases), self.total, f"{task} {title(item)}")
        return (yield)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if getattr(self.runner, "side_by_side", False):
            ours = [item for item in session.items if _task(item) is not None and isinstance(item, pytest.Function)]
            self._waiting = [item for item in ours if _arguments(item, 0) is not None]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a case in a thread, a slow one beside the others of its task. None: pytest is to run it."""
        if pyfuncitem not in self._waiting and pyfuncitem not in self._running:
            return None
        run = self._running.get(pyfuncitem) or self._begin(pyfuncitem)
        while not run.done.wait(PATIENCE):
            free = AT_ONCE - sum(not other.done.is_set() for other in self._running.values())
            for item in [item for item in self._waiting if _task(item) == _task(pyfuncitem)][: max(0, free)]:
                self._begin(item)
        del self._running[pyfuncitem]
        pyfuncitem.stash[_SEEN] = (run.seconds, run.case)
        if run.error is not None:
            raise run.error
        return True

    def _begin(self, item: pytest.Function) -> "_Run":
        self._waiting.remove(item)
        arguments = _arguments(item, seed_of(self.seed, item)) or {}
        run = self._running[item] = _Run(item, self._case(item), self.runner, arguments)
        run.start()
        return run

    def _case(self, item: pytest.Item) -> Case:
        week = _load(item.path.parent)
        task = week.task(_task(item) or "")
        return Case(
            week.folder.parent,
            week.package,
            stands_on=tuple(name for id in task.stands_on for name in week.task(id).functions),
            timeout=self.deadline,
            task=f"task {task.id}",
            uses=task.uses,
            without=task.without,
            modules=task.modules,
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if _task(item) is None or item in self._waiting or item in self._running:
            return (yield)
        case, begin = self._case(item), time.perf_counter()
        judging = getattr(self.runner, "judging", contextlib.nullcontext)
        try:
            with use(self.runner, case), judging():
                return (yield)
        finally:
            item.stash[_SEEN] = (time.perf_counter() - begin, case)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        task = _task(item)
        if task is None or (call.when != "call" and call.excinfo is None):
            return report
        seconds, seen = item.stash.get(_SEEN, (0.0, Case(item.path, "")))
        printed, verdict, text = "\n".join(seen.printed), PASSED, "; ".join(seen.notes)
        cause: tuple[str, ...] = ()
        if call.excinfo is not None:
            error = call.excinfo.value
            if isinstance(error, CheckFailed):
                verdict, text, cause = error.verdict, error.text, error.cause
            elif seen.answered and not _of_this_machine(error):
                # The same test takes the reference's answer; it is this answer that it cannot take apart.
                verdict = NO_RESULT
                text = f"the answer does not have the required form: {call.excinfo.exconly()}"
            else:
                verdict, text = FAULT, f"the check itself failed, tell the course: {call.excinfo.exconly()}"
            if verdict != FAULT:
                report.longrepr = f"{verdict}: {text}"  # the verdict, without the checker's own source around it
        if printed:
            report.sections.append(("printed by your function", printed))
        case = item.callspec.id if hasattr(item, "callspec") else ""  # in the words of the parametrisation
        judged = (verdict, text, cause, printed, seconds)
        self.cases.append(CaseResult(task, item.nodeid, title(item), case, share(item), *judged))
        return report

    def pytest_sessionfinish(self) -> None:
        self.own.close()

    # -- reporting ----------------------------------------------------------------------------------------------------
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.cases:
            return
        terminalreporter.section("points")
        for id in dict.fromkeys(case.task for case in self.cases):
            cases = [case for case in self.cases if case.task == id]
            earned, possible = sum(c.earned for c in cases), sum(c.possible for c in cases)
            terminalreporter.line(f"{id:>6}  {number(earned):>5} of {number(possible):>4}")
        terminalreporter.line(f"seed {self.seed}: repeat with --seed {self.seed}")


_SEEN: pytest.StashKey[tuple[float, Case]] = pytest.StashKey()  # seconds, and what its calls left


class _Run(threading.Thread):
    """One case on a thread of its own. `done` is set at its end; then `error` is what it raised, or None."""

    def __init__(self, item: pytest.Function, case: Case, runner: Runner, arguments: dict[str, object]) -> None:
        super().__init__(name=item.name, daemon=True)
        self.function, self.case, self.runner, self.arguments = item.obj, case, runner, arguments
        self.done, self.seconds = threading.Event(), 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        begin = time.perf_counter()
        try:
            with use(self.runner, self.case):
                self.function(**self.arguments)
        except BaseException as error:  # pytest's own outcomes are no Exceptions
            self.error = error
        finally:
            self.seconds = time.perf_counter() - begin
            self.done.set()


def _arguments(item: pytest.Function, seed: int) -> dict[str, object] | None:
    """What a case is called with, if that is its parameters and the seed alone; else None."""
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    names = item.function.__code__.co_varnames[: item.function.__code__.co_argcount]
    if any(name != "seed" and name not in given for name in names):
        return None
    return {name: seed if name == "seed" else given[name] for name in names}


def _of_this_machine(error: BaseException) -> bool:
    """Whether this is why a test broke off that has had answers. Else the answers are: it takes the reference's."""
    if isinstance(error, RuntimeError):  # torch's allocator; no test of ours needs a GiB at once
        sizes = re.match(r"\[enforce fail at alloc_cpu.*allocate (\d+) bytes", str(error), re.S)
        return sizes is not None and int(sizes[1]) < 1 << 30
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
    return isinstance(error, (MemoryError, LabError)) or not isinstance(error, Exception)


def title(item: pytest.Item) -> str:
    """What a test looks at: the first line of its docstring."""
    assert isinstance(item, pytest.Function)
    line = inspect.getdoc(item.function) or item.originalname.removeprefix("test_").replace("_", " ")
    return line.splitlines()[0].rstrip(".")


def share(item: pytest.Item) -> Fraction:
    """This case's part of its test's points: all cases of a test get the same, whichever of them run."""
    return _points(item) / math.prod(len(mark.args[1]) for mark in item.iter_markers("parametrize"))


def _points(item: pytest.Item) -> Fraction:
    """The share of its task's points that the test (all its cases) has."""
    mark = item.get_closest_marker("task")
    assert mark is not None
    return Fraction(str(mark.kwargs["points"]))


def _task(item: pytest.Item) -> str | None:
    """The id of the task that a test judges; None of others."""
    mark = item.get_closest_marker("task")
    return None if mark is None else mark.args[0]


_load = cache(load_week)


def _agree(items: list[pytest.Item]) -> None:
    """Tests and registry must name the same tasks and points. Called when whole files were collected."""
    tests = {(item.path, item.originalname): item for item in items if isinstance(item, pytest.Function)}
    found: dict[tuple[Path, str], Fraction] = {}
    for (path, _), item in tests.items():
        if (id := _task(item)) is None:
            continue
        folder = path.parent
        try:
            week = _load(folder)
        except LabError as error:
            raise pytest.UsageError(str(error)) from None
        if id not in week:
            raise pytest.UsageError(f"{item.nodeid} judges task {id}, which is not in {folder.name}/tasks.toml")
        found[folder, id] = found.get((folder, id), Fraction(0)) + _points(item)
    for (folder, id), points in found.items():
        task = _load(folder).task(id)
        if task.kind == "auto" and points != Fraction(str(task.points)):
            raise pytest.UsageError(
                f"the tests of task {id} give {number(points)} points; {folder.name}/tasks.toml says {task.points}"
            )
