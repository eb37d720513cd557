"""C.3's checks are themselves checked: every mutant fails what it names and nothing else.

Single functions are judged on thread ranks. So is the run that meets bad batches, a full disk and a slow rank, in a
Site whose ranks are threads: a start costs milliseconds there, and not the import of torch three times. What signals do
is judged under torchrun.
"""

import importlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from capstone.given.struck import published, steps
from capstone.test_survive import Story, story_of
from labkit.checks.outside import Site
from labkit.checks.runner import Case, LocalRunner, use
from labkit.checks.verdict import WRONG, CheckFailed
from labkit.comm import threads
from tests import mutated
from tests.judged import Judged, ThreadRunner, cases_of, judge, package
from tests.kills import Plan
from tests.mutant import Mutant
from tests.mutants_survive import FUNCTIONS, RUN, STRUCK

PLAN = Plan("capstone", ("mutants_survive",))
WEEK = PLAN.week
CASES = [case for case in cases_of(WEEK.folder) if case.task == "C.3"]
DEADLINE = 60.0


def of(*tests: str) -> list[Judged]:
    return [case for case in CASES if case.name.partition("[")[0] in tests]


class ThreadSite(Site):
    """A Site whose program's ranks are threads of this process, on the package that it has imported. No signal reaches
    one of them alone, and no limit."""

    thread: threading.Thread | None = None

    def start(self, program: str, *, ranks: int, restarts: int) -> None:
        drawn = importlib.import_module(program)
        self.status = 1

        def run() -> None:
            try:
                results = threads.run(drawn.rank, (self.given, self.left), ranks, None)
                self.status = 3 if results[0]["paused"] else 0
            except Exception as error:
                (self.folder / "said").write_text(str(error))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def wait(self, seconds: float) -> int | None:
        assert self.thread is not None
        self.thread.join(seconds)
        return None if self.running else self.status

    def fill(self, rank: int, most: int | None, ranks: int = 2) -> bool:
        """A file lies where the next step's folder is to be, since one thread's files have no limit of their own."""
        if most is None:
            self.in_the_way.unlink(missing_ok=True)
        else:
            self.in_the_way = self.left / "run" / "checkpoints" / f"step-{max(steps(self)) + 1:08d}.partial"
            self.in_the_way.write_text("in the way")
        return True

    def close(self) -> None:
        for path in self.given.glob("until-*"):
            path.unlink()  # whoever waits goes on, and comes to an end
        if self.thread is not None:
            self.thread.join(60)


class Runner(ThreadRunner):
    """A ThreadRunner that has such a Site."""

    def site(self, case: Case, folder: Path) -> Site:
        return ThreadSite(self.root, folder)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Any]:
    """A function: the runner on the package with a mutant's edit."""
    made: list[ThreadRunner] = []

    def of_mutant(mutant: Mutant | None) -> ThreadRunner:
        one = package(tmp_path, WEEK, mutant)
        one.__class__ = Runner
        made.append(one)
        return one

    yield of_mutant
    for one in made:
        one.close()


def failed_of(cases: Sequence[Judged], runner: Any, seed: int) -> dict[str, CheckFailed]:
    found = {case.name: judge(case, seed, runner, WEEK, DEADLINE) for case in cases}
    return {name: why for name, why in found.items() if why is not None}


def fails_what_it_must(mutant: Mutant, cases: Sequence[Judged], failed: dict[str, CheckFailed]) -> None:
    mutated.fails_what_it_must(mutant, [(case.name, failed.get(case.name)) for case in cases], PLAN)


SINGLE = of(
    "test_one_message", "test_who_is_slow", "test_who_hangs", "test_who_acts", "test_what_is_kept", "test_way_back"
)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", FUNCTIONS, ids=lambda m: m.name)
def test_a_wrong_function_fails(mutant, runner):
    made = runner(mutant)
    killed = 0
    for seed in range(4):
        failed = failed_of(SINGLE, made, seed)
        killed += bool(failed)
        fails_what_it_must(mutant, SINGLE, failed)
    assert killed, "it survives"


def test_the_reference_passes_single_functions_on_many_seeds(runner):
    made = runner(None)
    for seed in range(20):
        assert not failed_of(SINGLE, made, seed)


GOES_ON = of("test_goes_on")


def test_the_reference_goes_on(runner):
    """Bad batches, a checkpoint that cannot be written, a slow rank; on threads."""
    assert not failed_of(GOES_ON, runner(None), 5)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", RUN, ids=lambda m: m.name)
def test_a_wrong_run_fails(mutant, runner):
    failed = failed_of(GOES_ON, runner(mutant), 6)
    assert failed, "it survives"
    fails_what_it_must(mutant, GOES_ON, failed)


def test_what_a_run_left_is_the_answer_of_every_case(runner):
    def broken(place: Site, seed: int, story: Story) -> None:
        (place.left / "run" / "checkpoints" / "step-²").mkdir(parents=True)
        story.wrong["killed"] = f"{published(place) or ''}"
        max(steps(place))

    made = runner(None)
    for case in [Case(made.root, WEEK.package) for _ in range(2)]:
        with use(made, case), pytest.raises(ValueError, match="empty"):
            [story_of("struck", broken, 0).of(fault) for fault in ("killed", "hung")]
        assert case.answered


# ---- under torchrun


def judged(cases: Sequence[Judged], root: Path, seed: int) -> dict[str, CheckFailed]:
    """What fails of these cases for the course in `root`, on processes that torchrun starts."""
    failed = {}
    with LocalRunner(root) as local:
        task = WEEK.task("C.3")
        case = Case(root, WEEK.package, timeout=DEADLINE, task="task C.3", uses=task.uses, modules=task.modules)
        for one in cases:
            with use(local, case):
                try:
                    one.run(seed)
                except CheckFailed as error:
                    failed[one.name] = error
    return failed


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STRUCK)
def test_a_run_that_does_not_survive_fails(name, tmp_path):
    aside = shutil.ignore_patterns("__pycache__", "results", "*.ipynb")
    shutil.copytree(WEEK.folder, tmp_path / WEEK.package, ignore=aside)
    path = tmp_path / WEEK.package / "survive.py"
    for mutant in STRUCK[name]:
        path.write_text(mutant.apply(path.read_text()))
    failed = judged(of("test_struck"), tmp_path, 7)
    assert set(failed) == {case for mutant in STRUCK[name] for case in mutant.fails}, {
        case: why.text for case, why in failed.items()
    }
    assert all(why.verdict == WRONG for why in failed.values())
