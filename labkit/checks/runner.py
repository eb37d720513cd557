"""`call`: run a student's function by name, somewhere else, and get plain values back.

    got, ledger = call("collectives.ring_all_reduce", [x0, x1, x2, x3], op="mean")

`inputs` has one entry for each rank: its first argument, or a tuple of positional ones. Rank r calls
`f(*inputs[r], group=group, **kwargs)`. A name is "module.function" in the package beside the test file;
"scenarios.f" is the week's own, which drives a student's objects and holds no expected value.

    got[r]           what rank r returned
    got.inputs[r]    what its positional arguments held after the call, as a tuple
    ledger[r]        what it sent; with `weighed=True` in a sandbox also the memory that it held (`weighed`)

A tensor in a positional argument is the caller's: who writes to it has failed, unless the call says `in_place=True`.
At home a `LocalRunner` runs it, in grading a sandbox's client. Values cross without pickle (labkit.checks.values).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from labkit.checks import remote, values
from labkit.checks.verdict import CRASHED, FAULT, HUNG, NO_RESULT, NOT_ATTEMPTED, PASSED, WRONG, CheckFailed, cause_line
from labkit.comm.autopsy import RanksFailed
from labkit.comm.callsite import theirs
from labkit.comm.processes import RankPool
from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.checks.outside import Site
    from labkit.comm.autopsy import Autopsy
    from labkit.comm.ledger import Ledger

# What the C++ runtime prints when the library aborts a rank: the autopsy has it in words.
_ABORT = re.compile(r"^(?:\[rank \d+\] )?(?:terminate called .*|\s*what\(\):.*)\n?", re.M)
MAX_PRINTED = 4000  # characters of what a case printed


@dataclass
class Setting:
    """What all calls of a test have in common.

    root        the folder that holds the package (a runner may take another tree: a submission's)
    stands_on   "module.function" that grading replaces by the reference's, so that no mistake counts twice
    timeout     seconds
    task        "task 13.4", for the text where an import is refused
    uses        what it may import of labkit (labkit.checks.boundary)
    without     packages that it must not find, torch among them: then arrays are NumPy's there (labkit.checks.bare)
    modules     the task's: in grading the course's text stands in for another one that cannot be imported
    """

    root: Path
    package: str
    _: KW_ONLY
    stands_on: tuple[str, ...] = ()
    timeout: float = 5.0
    task: str = "this task"
    uses: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass
class Job(Setting):
    """What is to be run. Nothing in it says what answer is expected, or for which test.

    inputs      positional arguments by rank; their number is the number of ranks
    with_group  whether the function gets `group=`
    each        without a group: call it once with each of `inputs[0]`'s tuples; the value is the list of values
    weighed     whether its memory is read at every span of computing, where the runner can (see `call`)
    given       whether in grading the course's text stands in for all modules of the student's: what comes back is
                what others' answers must be
    """

    function: str
    inputs: tuple[tuple, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    with_group: bool = True
    each: bool = False
    weighed: bool = False
    given: bool = False


def describe(job: Job, root: str) -> dict[str, Any]:
    """A job as plain data for its ranks: everything but the values."""
    return {
        **{key: value for key, value in vars(job).items() if key not in ("inputs", "kwargs", "timeout")},
        "root": root,
    }


@dataclass
class Reply:
    """What came of a job. If every rank returned: PASSED, and values, inputs and ledgers by rank; else what happened,
    why, if that is certain (`cause`), and the ledgers until then."""

    verdict: str = PASSED
    values: list[Any] = field(default_factory=list)
    inputs: list[tuple] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    text: str = ""
    cause: tuple[str, ...] = ()
    printed: str = ""


class Runner(Protocol):
    """Runs jobs: a Reply for whatever the student's code does. Optional: `side_by_side`, true where several threads may
    call `run`; `judging()`, a context for a case, which may end it by a CheckFailed; `site(case, folder)`, to start
    torchrun."""

    def run(self, job: Job) -> Reply: ...

    def close(self) -> None: ...


class Answers(list):
    """Return values by rank; `inputs[r]` are rank r's positional arguments after the call."""

    inputs: list[tuple]


@dataclass
class Case(Setting):
    """The test that is running: what its calls printed, and whether one has been answered. seed: of its random data."""

    seed: int = 0
    printed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a case that passes says (labkit.checks.judge.note)
    answered: bool = False
    replies: dict[bytes, Reply] = field(default_factory=dict)  # to calls that it shares with other cases


_here: ContextVar[tuple[Runner, Case] | None] = ContextVar("labkit_checks", default=None)


def call(
    name: str,
    inputs: list,
    *,
    timeout: float | None = None,
    weighed: bool = False,
    given: bool = False,
    in_place: bool = False,
    shared: bool = False,
    **kwargs: Any,
) -> tuple[Answers, list[Ledger]]:
    """Run "module.function" on len(inputs) ranks: (answers, ledgers) by rank. CheckFailed: hung, crashed, ...

    shared: where another case of this run has made the same call, its answer is taken; nothing runs.
    """
    if not isinstance(inputs, list) or not inputs:
        raise TypeError("inputs is a list with one entry for each rank")
    by_rank = tuple(entry if isinstance(entry, tuple) else (entry,) for entry in inputs)
    reply = _run(name, by_rank, timeout, in_place, shared, kwargs=kwargs, weighed=weighed, given=given)
    answers = Answers(reply.values)
    answers.inputs = reply.inputs
    return answers, reply.ledgers


def call_alone(name: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
    """Run "module.function" once, without ranks, in a process of its own. Returns its value; raises like `call`."""
    return _run(name, (args,), timeout, kwargs=kwargs, with_group=False).values[0]


def call_each(name: str, arguments: list[tuple]) -> list[Any]:
    """Run "module.function" with each of these tuples, in one process, without ranks; raises like `call`. It is asked
    in an order of the seed's, and so cannot tell a question by its number."""
    order = random.Random(f"{here()[1].seed} {name}").sample(range(len(arguments)), len(arguments))
    values = _run(name, (tuple(arguments[k] for k in order),), None, with_group=False, each=True).values[0]
    # Who answers is the student's process: a list of no values would satisfy every loop over it.
    if not isinstance(values, (list, tuple)) or len(values) != len(arguments):
        raise CheckFailed(NO_RESULT, f"{name} was called {len(arguments)} times, and as many values did not come back")
    return [value for _, value in sorted(zip(order, values), key=lambda pair: pair[0])]


@contextmanager
def site() -> Iterator[Site]:
    """A Site of the runner of the test that runs; what it printed goes with the case."""
    runner, case = here()
    if not hasattr(runner, "site"):
        raise CheckFailed(NO_RESULT, "this check starts torchrun, which this runner cannot")
    folder = Path(tempfile.mkdtemp(prefix="lab-site-"))
    try:
        place: Site = runner.site(case, folder)
        try:
            yield place
        finally:
            place.close()
            if said := place.said():
                case.printed.append(capped(said[-4000:]))
            case.answered = True
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(20):  # a process that was just killed may still be writing there
        # Folders in folders by the thousand, or closed to their owner, are no matter for rm.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
        if not folder.exists():
            return
        time.sleep(0.1)


@contextmanager
def use(runner: Runner, case: Case) -> Iterator[None]:
    """Inside the `with`, `call` works for this test and goes to this runner."""
    token = _here.set((runner, case))
    try:
        yield
    finally:
        _here.reset(token)


def here() -> tuple[Runner, Case]:
    """The runner and the case of the test that runs. LabError outside of one."""
    if (found := _here.get()) is None:
        raise LabError("call() works inside a task's test: use `lab check`, or pytest with labkit.checks.plugin")
    return found


def _run(
    name: str,
    inputs: tuple[tuple, ...],
    timeout: float | None,
    in_place: bool = False,
    shared: bool = False,
    **more: Any,
) -> Reply:
    """Run a job of the case at hand. `more` are fields of the Job that the case does not give."""
    runner, case = here()
    common = {each.name: getattr(case, each.name) for each in fields(Setting)}
    common |= {} if timeout is None else {"timeout": timeout}
    job = Job(function=name, inputs=inputs, **common, **more)
    key = values.pack((name, case.task, inputs, more["kwargs"])) if shared else b""
    try:
        reply = case.replies.get(key) or runner.run(job)
    except values.TooMuch as error:  # of a value that came back and is handed on
        raise CheckFailed(NO_RESULT if case.answered else FAULT, f"it cannot be handed on: {error}") from None
    except LabError as error:  # the ranks could not be started, say: not the student's doing
        raise CheckFailed(FAULT, f"the check could not be run: {error}") from None
    if shared and reply.verdict != FAULT:  # the grader's own trouble is not the other case's
        case.replies[key] = reply
    if reply.printed:
        case.printed.append(reply.printed)
    if reply.verdict != PASSED:
        raise CheckFailed(reply.verdict, reply.text, cause=reply.cause, ledgers=reply.ledgers)
    case.answered = True
    for rank, (before, after) in enumerate(zip(inputs, reply.inputs)):
        if not in_place and _written(before, after):
            who = f" of rank {rank}" if len(inputs) > 1 else ""
            cause = "an input was overwritten: it is the caller's, and what comes later reads it"
            text = f"after the call a tensor that went in{who} holds other numbers"
            raise CheckFailed(WRONG, f"{text}\n  {cause_line((cause,))}", cause=(cause,), ledgers=reply.ledgers)
    return reply


def _written(before: Any, after: Any) -> bool:
    """Whether a tensor in `before` has other numbers at its place in `after`."""
    import torch

    if isinstance(after, torch.Tensor):
        return values.pack(before) != values.pack(after)  # as it crossed: of a NumPy array a tensor, and NaN as it was
    if isinstance(before, dict) and isinstance(after, dict):
        return any(_written(value, after.get(key)) for key, value in before.items())
    if isinstance(before, (list, tuple)):
        after = list(after.values()) if isinstance(after, dict) else after
        return isinstance(after, (list, tuple)) and any(map(_written, before, after))
    return False


# -- at home ----------------------------------------------------------------------------------------------------------
class LocalRunner(contextlib.AbstractContextManager["LocalRunner"]):
    """Runs jobs on pools of rank processes of this machine, with the reader's own rights. `close()` ends them all.

    root: take the students' package from this folder instead of the job's. reference: the folder of a job's `stands_on`
    functions.
    """

    side_by_side = True  # see `Runner`

    def __init__(self, root: str | Path | None = None, reference: str | Path | None = None) -> None:
        self.root = Path(root).resolve() if root is not None else None
        self.reference = Path(reference).resolve() if reference is not None else None
        self._pools: set[RankPool] = set()
        self._free: set[RankPool] = set()
        self._lock, self._alone = threading.Lock(), threading.Lock()

    def run(self, job: Job) -> Reply:
        root = str(self.root or job.root)
        described = {**describe(job, root), "reference": str(self.reference) if self.reference else None}
        sent = [(described, values.pack((args, dict(job.kwargs)))) for args in job.inputs]
        printed = io.StringIO()
        where = "labkit.checks.bare:load" if job.without else "labkit.checks.remote:load"
        with self._pool(len(sent), printed) as pool, contextlib.nullcontext() if job.with_group else self._alone:
            try:
                results = pool.call(where, sent, job.timeout)
            except RanksFailed as error:
                reply = failed_reply(error.autopsy, root, error.ledgers, job.function if job.without else "")
            else:
                reply = read_answers(results, results.ledgers, job.with_group)
        reply.printed = capped(_ABORT.sub("", printed.getvalue()))
        return reply

    @contextmanager
    def _pool(self, size: int, printed: io.StringIO) -> Iterator[RankPool]:
        """A pool of `size` ranks that nobody else uses meanwhile."""
        with self._lock:
            pool = next((pool for pool in self._free if pool.size == size), None) or RankPool(size)
            self._pools.add(pool)
            self._free.discard(pool)
        pool.printed = printed
        try:
            yield pool
        finally:
            with self._lock:
                self._free.add(pool)

    def site(self, case: Case, folder: Path) -> Site:
        """Where a program runs under torchrun: the students' course, or the reference with the task's modules."""
        from labkit.checks.outside import Site, composed

        root = self.root or case.root
        if self.reference is not None:
            root = composed(folder / "course", root, self.reference, case)
        return Site(root, folder)

    def close(self) -> None:
        """End all rank processes."""
        with self._lock:
            pools, self._pools, self._free = self._pools, set(), set()
        for pool in pools:
            pool.close()

    def __exit__(self, *exc: Any) -> None:
        self.close()


# -- what came of a run, as a Reply ------------------------------------------------------------------------------------
def read_answers(packed: Sequence[bytes], ledgers: Sequence[Ledger], with_group: bool) -> Reply:
    """The Reply for what `remote.answer` gave on each rank. Every process answered; did every function?"""
    answers: list[tuple[Any, tuple]] = []
    failed: list[Reply] = []
    for rank, data in enumerate(packed):
        who = f"rank {rank}: " if with_group else ""
        try:
            match values.unpack(data):
                case (remote.OK, value, tuple(inputs)):
                    answers.append((value, inputs))
                case (remote.UNFINISHED, str(text)):
                    failed.append(Reply(NOT_ATTEMPTED, text=not_attempted(text)))
                case (remote.MISSING, str(text)):
                    failed.append(Reply(NO_RESULT, text=text))
                case (remote.RAISED, str(text)):
                    failed.append(Reply(CRASHED, text=who + text))
                case _:
                    raise ValueError("it has another form")
        except ValueError as error:
            return Reply(NO_RESULT, text=f"rank {rank}'s answer cannot be read: {error}")
    if failed:
        return min(failed, key=lambda reply: (NOT_ATTEMPTED, NO_RESULT, CRASHED).index(reply.verdict))
    return Reply(values=[value for value, _ in answers], inputs=[after for _, after in answers], ledgers=list(ledgers))


# A rank that has handed the function to an interpreter without torch stands in a line of labkit's: nobody's mistake.
_WAITS_FOR_BARE = re.compile(
    r"runs its own code at (?:<string>|(?:\S*/)?labkit/checks/bare\.py):\d+(?: \([^()]*\)|; not in the group yet)?"
)


def failed_reply(autopsy: Autopsy, root: str, ledgers: Sequence[Ledger] = (), alone: str = "") -> Reply:
    """The Reply for a run that failed, without `root` before files; alone: "module.function" that it waited for."""
    # The cause and where each rank stood say it all; the traceback comes without the machinery's frames.
    text = str(autopsy).partition("\n\n  waits for: ")[0].partition("\n\nRank ")[0]
    guilty = next((report for report in autopsy.ranks if report.rank == autopsy.guilty), None)
    if autopsy.reason == "raised" and guilty is not None and guilty.traceback:
        if guilty.error.startswith("NotImplementedError: "):  # a blank, met after the first message
            return Reply(NOT_ATTEMPTED, text=not_attempted(guilty.error.partition(": ")[2]), ledgers=list(ledgers))
        text += "\n\n" + own_lines(guilty.traceback, root)
    if alone:
        module, _, name = alone.rpartition(".")
        where = f"importing {module}.py, or the call, does not end"
        text = _WAITS_FOR_BARE.sub(f"waits for {name}, which runs in a process of its own: {where}", text)
    return Reply(
        HUNG if autopsy.reason in ("deadline", "deadlock") else CRASHED,
        text=text.replace(root + "/", ""),
        cause=(autopsy.cause.replace(root + "/", ""),) if autopsy.certain else (),
        ledgers=list(ledgers),
    )


def own_lines(traceback: str, root: str) -> str:
    """The frames of a formatted traceback that lie in `root` and are the author's own, and its last line."""
    lines = traceback.rstrip().splitlines()
    kept = []
    for here, after in itertools.pairwise(lines):
        file = here.partition('File "')[2].partition('"')[0]
        if file.startswith(root) and theirs(file):
            kept += [here, after]
    return "\n".join([*kept, lines[-1]]) if lines else ""


def not_attempted(text: str) -> str:
    """One line, with whatever the blank says: it names its own task."""
    return f"not attempted yet: {text or 'NotImplementedError'}"


def capped(text: str) -> str:
    more = len(text) - MAX_PRINTED
    return f"{text[:MAX_PRINTED]}\n... and {more} characters more" if more > 0 else text
