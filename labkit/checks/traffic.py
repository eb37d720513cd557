"""What a rank sent, judged from its ledger: `sent` for a whole call, `moved` for one phase of it, forward or backward.

For phases a scenario calls `group.barrier()` before, between and behind them; `phases` cuts the ledger there.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from labkit.checks.verdict import FORBIDDEN, NO_RESULT, WRONG, CheckFailed, wrong
from labkit.comm.algorithms import ring_bytes
from labkit.comm.ledger import COLLECTIVES, EMPTY, WORLD, Event, Ledger

BARRIERS = 2  # for each rank, beside a scenario's three, where messages are judged: when they come is seen
# forbid= this where a collective is to be built
LIBRARY = " ".join(kind for kind in COLLECTIVES if kind not in EMPTY)
Calls = Sequence[tuple[str, int]]  # (kind, or "kind in group"; payload in bytes), in order


def sends(ledger: Ledger) -> list[tuple[int, int]]:
    """What the rank sent, in its program order: [(to, bytes)]."""
    return [(event.peer, event.bytes) for event in ledger.events if event.kind == "send" and event.peer is not None]


def sent(
    ledger: Ledger,
    *,
    steps: int | None = None,
    at_most: int | None = None,
    at_least: int = 0,
    to: int | None = None,
    forbid: str = "",
    looks_like: Mapping[str, Sequence[tuple[int, int]]] | None = None,
) -> None:
    """Pass if the rank's traffic is as stated; else raise CheckFailed.

    steps       exactly so many calls that sent something (a `sendrecv` or a `batch` is one)
    to          the only rank to send to
    at_most     bytes sent point to point; at_least likewise: 1 says that the answer cannot have come without a message
    forbid      kinds of calls not to be used: "all_reduce broadcast", or LIBRARY for all of them
    looks_like  {cause: what `sends` gives for this mistake}, named only if it is exactly that
    """
    who = f"rank {ledger.rank}"
    forbidden = functools.partial(CheckFailed, FORBIDDEN)
    _whole(ledger)
    why = {"split": "this task has one group, its own"}  # which ranks meet is a message that no byte shows
    why |= dict.fromkeys(forbid.split(), "this task asks you to build it from send, recv and sendrecv")
    for event in ledger.events:
        if event.kind in why:
            raise forbidden(f"{who} calls group.{event.kind} at {event.where}: {why[event.kind]}")
    if (barriers := ledger.count("barrier")) > 3 + BARRIERS * ledger.size:
        raise forbidden(f"{who} calls group.barrier() {barriers} times, and this task needs none")
    total = ledger.sent_bytes
    if total < at_least:
        amount = f"only {total} bytes" if total else "nothing"
        need = "the others cannot have its data without: every number must travel by the group that was passed in"
        raise forbidden(f"{who} sent {amount} through its group, and {need}")
    waited = {event.of for event in ledger.events if event.kind == "wait"}
    early = next((e for e in ledger.events if not e.blocking and e.peer is not None and e.index not in waited), None)
    if early is not None:
        text = f"{who} posts a {early.kind} at {early.where} and never waits for it"
        raise CheckFailed(WRONG, f"{text}: until wait() its tensor is the group's, and others use it now")
    cause = tuple(c for c, pattern in (looks_like or {}).items() if sends(ledger) == list(pattern))
    if at_most is not None and total > at_most:
        in_steps = f" in {steps} steps" if steps is not None else ""
        got = f"{total} bytes in {ledger.steps} steps"
        raise wrong(f"{who} sent too much", f"at most {at_most} bytes{in_steps}", got, cause)
    if steps is not None and ledger.steps != steps:
        raise wrong(f"{who} needs the wrong number of steps", f"{steps}", f"{ledger.steps}", cause, known=True)
    others = sorted({peer for peer, _ in sends(ledger)} - {to})
    if to is not None and others:
        got = f"to {', '.join(map(str, others))} too"
        raise wrong(f"{who} sends to others", f"to rank {to} alone", got, cause, known=True)


def _whole(ledger: Ledger) -> None:
    if ledger.gaps:
        raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} switched its ledger off: what it sent cannot be judged")


def phases(
    ledger: Ledger, names: Sequence[str] = ("forward", "backward"), times: int = 1, alone: int = 0
) -> dict[str, list[Event]]:
    """The ledger's events between its barriers, by name; what comes before the first or after the last belongs to it.
    times: how often all phases were run; these are of the first time, and the others' messages must be the same.
    alone: how often the first phase's stand once more, alone, behind the last."""
    _whole(ledger)
    cuts = [at for at, event in enumerate(ledger.events) if event.kind == "barrier"]
    if len(cuts) != len(names) * times + 1:
        what = f"rank {ledger.rank} called group.barrier() itself"
        raise CheckFailed(NO_RESULT, f"{what}: the check cannot tell the phases apart")
    edges = [0, *cuts[1:-1], cuts[-1] if times > 1 else len(ledger.events), len(ledger.events)]
    runs = [ledger.events[a:b] for a, b in itertools.pairwise(edges)]
    *every, rest = (calls_of(ledger, events) for events in runs)
    # Else what is judged would not be what computed the answer.
    for name, first, *others in zip(names, *(every[n * len(names) :] for n in range(times))):
        if others != [first] * len(others):
            who = f"rank {ledger.rank}, {name}: not the same messages every time"
            raise wrong(who, f"{first}", f"{others}")
    if rest != alone * every[0]:
        raise wrong(f"rank {ledger.rank}: other messages without gradients", f"{alone} times {every[0]}", f"{rest}")
    return dict(zip(names, runs))


def nothing_inside(ledger: Ledger, span: Event) -> None:
    """CheckFailed if a message was posted or waited for inside a span of computing."""
    end = float("inf") if span.end is None else span.end
    inside = [e.kind for e in ledger.events[span.index + 1 :] if e.kind != "compute" and e.begin < end]
    if inside:
        what = f"rank {ledger.rank}: in the span {span.label!r} stands {', '.join(inside)}"
        raise CheckFailed(WRONG, f"{what}: no message belongs in a span")


def calls_of(ledger: Ledger, events: Sequence[Event]) -> list[tuple[str, int]]:
    """What these events sent, as `Calls`: collectives of groups of one rank send nothing and are left out."""
    found = []
    for event in events:
        group = ledger.group_of(event)
        if event.kind == "send" or (event.kind in COLLECTIVES and event.kind not in EMPTY and len(group.ranks) > 1):
            found.append((event.kind if event.group == WORLD else f"{event.kind} in {event.group}", event.bytes))
    return found


def moved(
    ledger: Ledger,
    phase: str,
    events: Sequence[Event],
    *,
    calls: Mapping[str, int],
    at_most: int,
    looks_like: Mapping[str, Calls | Mapping[str, int]] | None = None,
) -> None:
    """Pass if the rank made these calls in this phase, and no others, and sent no more; else raise CheckFailed.

    calls       {kind, or "kind in group": how often}; groups of one rank do not count
    at_most     ring bytes
    looks_like  {cause: what `calls_of` gives for this mistake, or how often as in `calls`}, named only if exactly that
    """
    made = calls_of(ledger, events)
    counted = Counter(name for name, _ in made)
    fits = {
        c: counted == Counter(x) if isinstance(x, Mapping) else made == list(x) for c, x in (looks_like or {}).items()
    }
    cause = tuple(c for c, fit in fits.items() if fit)
    who = f"rank {ledger.rank}, {phase}"
    if counted != Counter(calls):
        raise wrong(f"{who}: the wrong messages", _count(calls), _count(counted), cause)
    total = ring_bytes(ledger, events)
    if total > at_most:
        each = ", ".join(f"{name} of {size}" for name, size in made)
        raise wrong(f"{who}: too much was sent", f"at most {at_most} bytes on a ring", f"{total}: {each}", cause)


def _count(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{times} {name}" for name, times in calls.items() if times) or "none"
