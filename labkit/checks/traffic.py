"""`sent`: what a rank put on the wire, judged from its ledger.

The ledger is written by the group (in grading: by the broker outside), not by the student's code. It proves a bound on
bytes and steps, and that the answer came through the group at all and not from a library collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.checks.verdict import FORBIDDEN, CheckFailed, wrong
from labkit.comm.ledger import COLLECTIVES, EMPTY, Ledger

# forbid= this where a collective is to be built
LIBRARY = " ".join(kind for kind in COLLECTIVES if kind not in EMPTY)


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
    forbid: str | Sequence[str] = (),
    looks_like: Mapping[str, Sequence[tuple[int, int]]] | None = None,
) -> None:
    """Pass if the rank's traffic is as stated; else raise CheckFailed.

    steps       exactly so many calls that sent something (a `sendrecv` or a `batch` is one)
    to          the only rank to send to
    at_most     bytes sent point to point; at_least likewise: 1 says that the answer cannot have come without a message
    forbid      kinds of calls not to be used: "all_reduce broadcast", or LIBRARY for all of them
    looks_like  {cause: what `sends` gives for this mistake}, told only if it is exactly that
    """
    who = f"rank {ledger.rank}"
    if ledger.gaps:
        raise CheckFailed(FORBIDDEN, f"{who} switched its ledger off: what it sent cannot be judged")
    banned = set(forbid.split() if isinstance(forbid, str) else forbid)
    used = next((event for event in ledger.events if event.kind in banned), None)
    if used is not None:
        raise CheckFailed(
            FORBIDDEN,
            f"{who} calls group.{used.kind} at {used.where}: this task asks you to build it "
            f"from send, recv and sendrecv",
        )
    total = ledger.sent_bytes
    if total < at_least:
        amount = f"only {total} bytes" if total else "nothing"
        raise CheckFailed(
            FORBIDDEN,
            f"{who} sent {amount} through its group, and the others cannot have its "
            f"data without: every number must travel by the group that was passed in",
        )
    cause = tuple(c for c, pattern in (looks_like or {}).items() if sends(ledger) == list(pattern))
    if at_most is not None and total > at_most:
        in_steps = f" in {steps} steps" if steps is not None else ""
        raise wrong(
            f"{who} sent too much",
            f"at most {at_most} bytes{in_steps}",
            f"{total} bytes in {ledger.steps} steps",
            cause,
        )
    if steps is not None and ledger.steps != steps:
        raise wrong(f"{who} needs the wrong number of steps", f"{steps}", f"{ledger.steps}", cause, known=True)
    others = sorted({peer for peer, _ in sends(ledger)} - {to})
    if to is not None and others:
        raise wrong(
            f"{who} sends to others", f"to rank {to} alone", f"to {', '.join(map(str, others))} too", cause, known=True
        )
