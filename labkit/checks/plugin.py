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
from concurrent.futures import Future, wait
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from labkit.checks.outcome import CaseResult, number
from labkit.checks.runner import Case, LocalRunner, Reply, Runner, use
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
    mark = item.get_closest_marker("task")
    name = (mark and mark.kwargs.get("like")) or getattr(item, "originalname", None) or item.name
    return int.from_bytes(hashlib.sha256(f"{seed} {item.path.parent.name} {name}".encode()).digest()[:8], "big") >> 2


class Checks:
    """One session's tasks: gives each case its points and its `call`, and collects `cases`. only: the tasks to run."""

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
        self.replies: dict[bytes, Reply] = {}  # to calls that several cases share
        self.side_by_side = getattr(self.runner, "side_by_side", False)
        self._waiting: list[pytest.Function] = []  # cases that have not begun, where they may run side by side
        self._running: dict[pytest.Function, Future[None]] = {}
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
        if self.side_by_side:
            self._waiting = [item for item in session.items if isinstance(item, pytest.Function) and _task(item)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a case in a thread, a slow one beside the others of its task. None: pytest is to run it."""
        if not self.side_by_side or _task(pyfuncitem) is None:
            return None
        run = self._running.get(pyfuncitem) or self._begin(pyfuncitem)
        while not wait([run], PATIENCE).done:
            free = AT_ONCE - sum(not other.done() for other in self._running.values())
            for item in [item for item in self._waiting if _task(item) == _task(pyfuncitem)][: max(0, free)]:
                self._begin(item)
        del self._running[pyfuncitem]
        run.result()
        return True

    def _begin(self, item: pytest.Function) -> "Future[None]":
        """Start a case, which takes its parameters and `seed` alone, on a thread of its own."""
        self._waiting.remove(item)
        given = {"seed": seed_of(self.seed, item), **(item.callspec.params if hasattr(item, "callspec") else {})}
        arguments = {name: given[name] for name in inspect.signature(item.function).parameters}
        run = self._running[item] = Future[None]()

        def judge() -> None:
            try:
                with self._judged(item):
                    item.obj(**arguments)
                run.set_result(None)
            except BaseException as error:  # pytest's own outcomes are no Exceptions
                run.set_exception(error)

        threading.Thread(target=judge, name=item.name, daemon=True).start()
        return run

    @contextlib.contextmanager
    def _judged(self, item: pytest.Item) -> Generator[None, None, None]:
        """Inside, `call` works for this case; afterwards its stash holds the seconds, and what the calls left."""
        week = _load(item.path.parent)
        task = week.task(_task(item) or "")
        case = Case(
            week.folder.parent,
            week.package,
            stands_on=tuple(name for id in task.stands_on for name in week.task(id).functions),
            timeout=self.deadline,
            task=f"task {task.id}",
            uses=task.uses,
            without=task.without,
            modules=task.modules,
            replies=self.replies,
            seed=seed_of(self.seed, item),
        )
        begin = time.perf_counter()
        try:
            with use(self.runner, case):
                yield
        finally:
            item.stash[_SEEN] = (time.perf_counter() - begin, case)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if _task(item) is None or self.side_by_side:
            return (yield)
        with self._judged(item), getattr(self.runner, "judging", contextlib.nullcontext)():
            return (yield)

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
        # All cases of a test get the same part of its points, whichever of them run.
        share = _points(item) / math.prod(len(mark.args[1]) for mark in item.iter_markers("parametrize"))
        self.cases.append(CaseResult(task, item.nodeid, title(item), case, share, *judged))
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


def _of_this_machine(error: BaseException) -> bool:
    """Whether this is why a test broke off that has had answers. Else the answers are: it takes the reference's."""
    if isinstance(error, RuntimeError):  # torch's allocator; no test of ours needs a GiB at once
        sizes = re.match(r"\[enforce fail at alloc_cpu.*allocate (\d+) bytes", str(error), re.S)
        return sizes is not None and int(sizes[1]) < 1 << 30
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
    # A LabError is none: what is refused then (a ledger, a bandwidth of 0) is what came back.
    return isinstance(error, MemoryError) or not isinstance(error, Exception)


def title(item: pytest.Item) -> str:
    """What a test looks at: the first line of its docstring."""
    assert isinstance(item, pytest.Function)
    line = inspect.getdoc(item.function) or item.originalname.removeprefix("test_").replace("_", " ")
    return line.splitlines()[0].rstrip(".")


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
            said = f"the tests of task {id} give {number(points)} points"
            raise pytest.UsageError(f"{said}; {folder.name}/tasks.toml says {task.points}")
