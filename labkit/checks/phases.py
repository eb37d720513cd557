"""`moved`: what a rank's collectives sent in one phase of a call, forward or backward, judged from its ledger.

A scenario calls `group.barrier()` before, between and behind the phases; `phases` cuts the ledger there. Bytes are ring
bytes (labkit.comm.algorithms): what a ring would send for the collectives that were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.checks.verdict import FORBIDDEN, NO_RESULT, CheckFailed, wrong
from labkit.comm.algorithms import ring_bytes
from labkit.comm.ledger import COLLECTIVES, EMPTY, WORLD, Event, Ledger

Calls = Sequence[tuple[str, int]]  # (kind, or "kind in group"; payload in bytes), in order


def phases(ledger: Ledger, names: Sequence[str] = ("forward", "backward")) -> dict[str, list[Event]]:
    """The ledger's events between its barriers, by name. What came before the first barrier and after the last is
    `names`' too: nothing may be sent there, so it is put into the first and the last phase."""
    if ledger.gaps:
        raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} switched its ledger off: what it sent cannot be judged")
    cuts = [at for at, event in enumerate(ledger.events) if event.kind == "barrier"]
    if len(cuts) != len(names) + 1:
        raise CheckFailed(
            NO_RESULT, f"rank {ledger.rank} called group.barrier() itself: the check cannot tell the phases apart"
        )
    edges = [0, *cuts[1:-1], len(ledger.events)]
    return {name: ledger.events[a:b] for name, a, b in zip(names, edges, edges[1:])}


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
    looks_like: Mapping[str, Calls] | None = None,
) -> None:
    """Pass if the rank made these calls in this phase, and no others, and sent no more; else raise CheckFailed.

    calls       {kind, or "kind in group": how often}; groups of one rank do not count
    at_most     ring bytes
    looks_like  {cause: what `calls_of` gives for this mistake}, told only if it is exactly that
    """
    made = calls_of(ledger, events)
    cause = tuple(c for c, pattern in (looks_like or {}).items() if made == list(pattern))
    counted: dict[str, int] = {}
    for name, _ in made:
        counted[name] = counted.get(name, 0) + 1
    who = f"rank {ledger.rank}, {phase}"
    if counted != {name: times for name, times in calls.items() if times}:
        raise wrong(f"{who}: the wrong messages", _told(calls), _told(counted), cause)
    total = ring_bytes(ledger, events)
    if total > at_most:
        each = ", ".join(f"{name} of {size}" for name, size in made)
        raise wrong(f"{who}: too much was sent", f"at most {at_most} bytes on a ring", f"{total}: {each}", cause)


def _told(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{times} {name}" for name, times in calls.items() if times) or "none"
