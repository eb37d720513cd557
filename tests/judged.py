"""A week's cases, judged in this process: the same test functions, on ranks that are threads.

A call costs milliseconds, since no sandbox, fork or import lies between. What ends its process, or hangs where no rank
communicates, would end or hang the judge: that is for the real machinery.
"""

import contextlib
import importlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # activation checkpointing imports it: on a rank that is ended in the import, it stays half done

from labkit.checks import load_week, remote, values
from labkit.checks.pytest_run import QUIET
from labkit.checks.runner import Case, Job, Reply, failed_reply, read_answers, use
from labkit.checks.tasks import Week
from labkit.checks.verdict import CRASHED, NO_RESULT, CheckFailed
from labkit.comm import threads
from labkit.comm.autopsy import RanksFailed
from tests.mutant import Mutant

ROOT = Path(__file__).resolve().parents[1]
_NUMPY = values.NumPy()


@dataclass(frozen=True)
class Judged:
    """One case: a test function with its parameters, as pytest names it."""

    name: str
    task: str
    item: pytest.Function

    def run(self, seed: int) -> None:
        given = dict(self.item.callspec.params) if hasattr(self.item, "callspec") else {}
        self.item.function(**given, **({"seed": seed} if "seed" in self.item.fixturenames else {}))


def named(case: str, names: Sequence[str]) -> bool:
    """Whether one of the names means this case: "test", or "test[the beginning of a case's name"."""
    return any(case == name or case.startswith(name if "[" in name else name + "[") for name in names)


@cache
def cases_of(week: Path) -> tuple[Judged, ...]:
    """All cases of a week's tests, as pytest collects them."""
    found: list[Judged] = []

    class Collected:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            for item in session.items:
                if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("task")):
                    found.append(Judged(item.name, mark.args[0], item))

    files = [str(test) for test in load_week(week).tests]
    own = ["-c", os.devnull, f"--rootdir={week.parent}", "-p", "labkit.checks.plugin", *QUIET]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main([*own, "--collect-only", *files], [Collected()])
    assert status == pytest.ExitCode.OK, said.getvalue()
    return tuple(found)


class ThreadRunner:
    """Runs jobs in this process: the package comes from `root`, ranks are threads.

    A task that must do without torch gets NumPy's arrays, as in a process that has none."""

    def __init__(self, root: Path, package: str) -> None:
        self.root, self.package = root, package
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(root))
        self.before = self._forget()
        importlib.invalidate_caches()
        torch.set_num_threads(1)

    def run(self, job: Job) -> Reply:
        module, _, name = job.function.rpartition(".")
        try:
            function = getattr(importlib.import_module(f"{job.package}.{module}"), name)
        except (ImportError, AttributeError) as error:
            return Reply(NO_RESULT, text=str(error))
        remote.settle()
        np.random.seed(0)
        sent = [values.pack((args, dict(job.kwargs))) for args in job.inputs]
        pack, unpack = values.pack, values.unpack
        if job.without:
            pack, unpack = partial(values.pack, arrays=_NUMPY), partial(values.unpack, arrays=_NUMPY)
        if not job.with_group:
            args, kwargs = unpack(sent[0])
            try:
                value = [function(*each) for each in args] if job.each else function(*args, **kwargs)
            except Exception as error:
                return Reply(CRASHED, text=remote.format_error(error, str(self.root)))
            return read_answers([pack((remote.OK, value, args))], [], False)

        def rank(group: Any) -> bytes:
            args, kwargs = unpack(sent[group.rank])
            try:
                return pack((remote.OK, function(*args, group=group, **kwargs), args))
            except Exception as error:
                if group.size > 1:  # others may wait for this rank: the run must end
                    raise
                return pack((remote.RAISED, remote.format_error(error, str(self.root))))

        try:
            results = threads.run(rank, (), len(sent), job.timeout)
        except RanksFailed as error:
            return failed_reply(error.autopsy, str(self.root), error.ledgers)
        return read_answers(results, results.ledgers, True)

    def close(self) -> None:
        """The package is again the one that was imported before: other tests of this process use it."""
        sys.path.remove(str(self.root))
        self._forget()
        sys.modules.update(self.before)

    def _forget(self) -> dict[str, Any]:
        """The package's modules, out of sys.modules."""
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == self.package}


def judge(case: Judged, seed: int, runner: ThreadRunner, week: Week, deadline: float) -> CheckFailed | None:
    """Why the case fails, or None."""
    with use(runner, Case(runner.root, week.package, timeout=deadline, without=week.task(case.task).without)):
        try:
            case.run(seed)
        except CheckFailed as failed:
            return failed
        except Exception as error:  # an answer that the test cannot take apart: no points either (labkit.checks.plugin)
            return CheckFailed(NO_RESULT, repr(error))
    return None


def package(folder: Path, week: Week, mutant: Mutant | None) -> ThreadRunner:
    """The week's Python files in `folder`, with the mutant's edit, imported anew.

    AssertionError for a mutant that here would find what its task must do without."""
    aside = shutil.ignore_patterns("__pycache__", "results", "*.ipynb")
    shutil.copytree(week.folder, folder / week.package, ignore=aside)
    if mutant is not None:
        assert not any(name in mutant.new for name in week.task(mutant.task).without), mutant.name
        path = folder / week.package / f"{mutant.module.replace('.', '/')}.py"
        path.write_text(mutant.apply(path.read_text()))
    return ThreadRunner(folder, week.package)
