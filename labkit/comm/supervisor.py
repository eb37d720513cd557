"""Watches a run of ranks until it ends: the one supervisor under threads, processes, torchrun and the grading sandbox.

A rank is "running" (waiting included), or has "returned", "raised" or "died". A run ends when

    all have returned       well
    one has failed          after a grace: most others end by themselves, and they show who disagrees with whom
    nobody can go on        all that run stand in calls, nothing moves, and the evidence proves a deadlock
    its time is over        as the medium counts time
"""

import time
from collections.abc import Sequence
from typing import Protocol

from labkit.comm.autopsy import Evidence, RanksFailed
from labkit.comm.diagnose import diagnose

FAILED, DEADLOCK, DEADLINE = "failed", "deadlock", "deadline"
GRACE = 0.5  # seconds for the others once one has failed
SETTLED = 0.05  # seconds without a move after which those others, if they all stand in calls, need no more time
LAST = 0.01  # seconds in which what has been said already is taken, when the time is over
STILL = 0.25  # seconds without a move before a deadlock is believed


class Medium(Protocol):
    """How ranks live and speak. What it alone may forbid (memory, a connection's rules) it raises, from `wait`."""

    @property
    def fault(self) -> str | None:  # in words, how two ranks that met in a call did not mean the same
        return None

    def wait(self, seconds: float) -> None: ...  # take what the ranks say, for `seconds` or less
    def states(self) -> list[str]: ...  # "running", "returned", "raised", "died", by rank
    def late(self) -> bool: ...  # whether the run's time is over
    def evidence(self) -> Sequence[Evidence]: ...  # what is known of each rank now
    def moves(self) -> object:  # equal to the last one as long as no rank has done anything
        return None

    def blocked(self) -> bool:  # whether every rank that runs may stand in a call of the group
        return False


def supervise(medium: Medium, settled: float = SETTLED, still: float = STILL) -> str | None:
    """Wait until the run ends: None if all ranks have returned, else FAILED, DEADLOCK or DEADLINE. It ends nobody."""
    last: object = None
    since, failed_at, diagnosed = time.perf_counter(), 0.0, False
    while True:
        states, now = medium.states(), time.perf_counter()
        if all(state == "returned" for state in states):
            return None
        if (moves := (states, medium.moves())) != last:
            last, since, diagnosed = moves, now, False
        if medium.fault or "raised" in states or "died" in states:
            failed_at = failed_at or now
            if now >= failed_at + GRACE or "running" not in states or (now - since > settled and medium.blocked()):
                return FAILED
        elif medium.late():
            medium.wait(LAST)  # on a busy machine the supervisor is late, too: what was said meanwhile counts
            return None if all(state == "returned" for state in medium.states()) else DEADLINE
        elif not diagnosed and now - since > still and medium.blocked():
            diagnosed = True  # once: as long as nothing moves, the answer stays the same
            if diagnose(list(medium.evidence()), "").certain:
                return DEADLOCK
        medium.wait(failed_at + GRACE - now if failed_at else 1.0)


def failure(
    evidence: list[Evidence], reason: str, *, timeout: float | None, backend: str, fault: str | None = None
) -> RanksFailed:
    """The error for a run that `supervise` has ended, from evidence taken before anybody was stopped."""
    known = DEADLINE if reason == DEADLINE else ""  # else the evidence itself decides
    autopsy = diagnose(evidence, known, timeout=timeout, backend=backend, fault=fault)
    error = next((e.error for e in evidence if e.rank == autopsy.guilty), None)
    return RanksFailed(autopsy, [e.ledger for e in evidence], error)
