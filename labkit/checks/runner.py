"""`call`: run a student's function by name, somewhere else, and get plain values back.

    got, ledger = call("collectives.ring_all_reduce", [x0, x1, x2, x3], op="mean")

How inputs map to ranks: `inputs` is a list with one entry for each rank, so its length is the number of ranks. An
entry is the first argument of that rank's call; a tuple is several positional arguments; an empty tuple is none. The
rank's group comes by keyword, `group=`, and so do all further arguments, equal on every rank: rank r calls
`f(*inputs[r], group=group, **kwargs)`.

    got[r]           what rank r returned
    got.inputs[r]    what its positional arguments held after the call, as a tuple: for functions that work in place
    ledger[r]        what it sent

`call_alone("cost_model.crossover_bytes", small, large, alpha, beta)` is for functions that know no ranks; it gives the
value. `call_each("cost_model.ring_all_reduce_cost", [(8,), (3,)])` calls it with each of these arguments in turn, in
one process, and gives the list of values: where several questions make one case, it costs one process, not several.

A name is "module.function" in the week's package, the folder beside the test file. "scenarios.f" is the week's own
scenarios.py: functions that drive the student's objects where one call is not enough, and that hold no expected value.

Who runs it is replaceable. A `Runner` gets a `Job` and gives a `Reply`; at home that is
`labkit.checks.local.LocalRunner`, in grading a sandbox's client. The test file is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from labkit.checks.verdict import FAULT, NO_RESULT, PASSED, CheckFailed
from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.comm.ledger import Ledger


@dataclass(frozen=True)
class Job:
    """What is to be run. Nothing in it tells what answer is expected, or for which test.

    root        the folder that holds the package (a runner may take another tree: a submission's)
    inputs      positional arguments by rank; their number is the number of ranks
    with_group  whether the function gets `group=`
    stands_on   "module.function" names that a grading runner replaces by the reference's, so that no mistake counts
                twice
    timeout     seconds
    each        without a group: call it once with each of `inputs[0]`'s tuples; the value is the list of values
    """

    root: Path
    package: str
    function: str
    inputs: tuple[tuple, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    with_group: bool = True
    stands_on: tuple[str, ...] = ()
    timeout: float = 5.0
    each: bool = False


@dataclass
class Reply:
    """What came of it. `verdict` is PASSED if every rank returned; then values, inputs and ledgers are there, by rank.

    Otherwise `text` tells the reader what happened; `cause` holds the sentence on the cause, if one is certain.
    `printed` is what the function printed, if anything: shown when the case fails."""

    verdict: str = PASSED
    values: list[Any] = field(default_factory=list)
    inputs: list[tuple] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    text: str = ""
    cause: tuple[str, ...] = ()
    printed: str = ""


class Runner(Protocol):
    """Runs jobs. `run` gives a Reply for whatever the student's code does, and never raises because of it."""

    def run(self, job: Job) -> Reply: ...

    def close(self) -> None: ...


class Answers(list):
    """Return values by rank; `inputs[r]` are rank r's positional arguments after the call."""

    inputs: list[tuple]


@dataclass
class Case:
    """The test that is running: where its week is, what its task stands on, how long a call may take; what its calls
    printed, and whether one has been answered."""

    root: Path
    package: str
    stands_on: tuple[str, ...] = ()
    timeout: float = 5.0
    printed: list[str] = field(default_factory=list)
    answered: bool = False


_runner: ContextVar[Runner | None] = ContextVar("labkit_runner", default=None)
_case: ContextVar[Case | None] = ContextVar("labkit_case", default=None)


def call(name: str, inputs: list, *, timeout: float | None = None, **kwargs: Any) -> tuple[Answers, list[Ledger]]:
    """Run "module.function" on len(inputs) ranks (see above). Returns (answers by rank, ledgers by rank).

    Raises CheckFailed if there is no answer: hung, crashed, not attempted, no such function."""
    if not isinstance(inputs, list) or not inputs:
        raise TypeError("inputs is a list with one entry for each rank")
    by_rank = tuple(entry if isinstance(entry, tuple) else (entry,) for entry in inputs)
    reply = _run(name, by_rank, kwargs, True, timeout)
    answers = Answers(reply.values)
    answers.inputs = reply.inputs
    return answers, reply.ledgers


def call_alone(name: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
    """Run "module.function" once, without ranks, in a process of its own. Returns its value; raises like `call`."""
    return _run(name, (args,), kwargs, False, timeout).values[0]


def call_each(name: str, arguments: list[tuple], *, timeout: float | None = None) -> list[Any]:
    """Run "module.function" with each of these tuples of arguments, one after the other in one process, without ranks.
    Returns the values in order; raises like `call`, for the first that has none."""
    values = _run(name, (tuple(arguments),), {}, False, timeout, each=True).values[0]
    # Who answers is the student's process: a list of no values would satisfy every loop over it.
    if not isinstance(values, (list, tuple)) or len(values) != len(arguments):
        raise CheckFailed(NO_RESULT, f"{name} was called {len(arguments)} times, and as many values did not come back")
    return list(values)


@contextmanager
def use_runner(runner: Runner) -> Iterator[Runner]:
    """Inside the `with`, `call` goes to this runner."""
    token = _runner.set(runner)
    try:
        yield runner
    finally:
        _runner.reset(token)


@contextmanager
def use_case(case: Case) -> Iterator[Case]:
    """Inside the `with`, `call` works for this test."""
    token = _case.set(case)
    try:
        yield case
    finally:
        _case.reset(token)


def _run(
    name: str,
    inputs: tuple[tuple, ...],
    kwargs: dict[str, Any],
    with_group: bool,
    timeout: float | None,
    each: bool = False,
) -> Reply:
    case, runner = _case.get(), _runner.get()
    if case is None or runner is None:
        raise LabError(
            "call() works inside a task's test: run it by `lab check`, or by pytest with labkit.checks.plugin"
        )
    job = Job(
        case.root,
        case.package,
        name,
        inputs,
        kwargs,
        with_group,
        case.stands_on,
        case.timeout if timeout is None else timeout,
        each,
    )
    try:
        reply = runner.run(job)
    except LabError as error:  # the ranks could not be started, say: not the student's doing
        raise CheckFailed(FAULT, f"the check could not be run: {error}") from None
    if reply.printed:
        case.printed.append(reply.printed)
    if reply.verdict != PASSED:
        raise CheckFailed(reply.verdict, reply.text, cause=reply.cause)
    case.answered = True
    return reply
