"""From evidence to autopsy: who waits for whom, and whose fault it is.

Matched ledgers (labkit.comm.match) give the wait-for graph. Its cycles, and the ranks at its ends, are the causes,
unless a rank raised or died, or calls met that do not fit.
"""

import os
import signal
from collections import Counter
from graphlib import CycleError, TopologicalSorter

from labkit.comm.autopsy import Autopsy, Call, Edge, Evidence, RankReport, RanksFailed
from labkit.comm.callsite import given, pick_frame, shown_path, with_owner
from labkit.comm.ledger import COLLECTIVES, Event, Ledger, say_ranks
from labkit.comm.match import Match, Mismatch

# What a library says when the *other* side is gone: a consequence, never the cause.
_CONSEQUENCES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "remote process exited",
    "NCCL communicator was aborted",
    "Connection refused",
    "Application timeout",
)
_GROUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "group.py")
_BUSY = "an endless loop, a slow computation, or a call that does not return"


def diagnose(
    evidence: list[Evidence], reason: str, *, timeout: float | None = None, backend: str = "", fault: str | None = None
) -> Autopsy:
    """Make the autopsy of a run from one Evidence per rank.

    reason: "deadline", "mismatch", or "" where the evidence will tell. fault: the transport's, where the ledger was off.
    """
    evidence = sorted(evidence, key=lambda e: e.rank)
    match = Match([e.ledger for e in evidence])
    reports = [_report(e, match) for e in evidence]
    edges = {
        (r.rank, on): Edge(r.rank, on, call.kind, call.where)
        for r in reports
        for call in reversed(r.calls)
        for on in call.waits_for
    }
    a = Autopsy(reason, "", None, [], "", reports, list(edges.values()), timeout=timeout, backend=backend)
    mismatch = match.mismatch() if match.usable else None
    if _blame_failure(a, evidence, mismatch):
        return a
    if mismatch is not None:
        _set(a, "mismatch", mismatch.guilty, mismatch.involved, mismatch.call, mismatch.cause)
    elif fault is not None:
        _set(a, "mismatch", None, [], "", fault[:1].upper() + fault[1:] + ".")
    else:
        _blame_waiting(a)
    return a


def _report(e: Evidence, match: Match) -> RankReport:
    calls = []
    events = list(e.ledger.events)
    if e.state == "running":
        by_index = {event.index: event for event in events}
        for event in e.ledger.open():
            subject = event if event.of is None else by_index.get(event.of, event)
            stood = round(max(0.0, e.now - event.begin), 3)
            missing = match.missing(e.rank, subject) if match.usable else []
            calls.append(_call(subject, event.where, stood, missing, event.kind == "wait"))
        calls.sort(key=lambda call: not call.waits_for)  # what is really missing first
    inside = e.state == "running" and any(file == _GROUP for file, _, _ in e.stack)
    error = _brief(e.text)
    if e.state == "died":
        error = f"killed by {_signal_name(e.signal)}" if e.signal else f"its process ended with status {e.status}"
    last = max((event.end for event in events if event.end is not None), default=0.0)
    state, where = ("waiting" if calls or inside else e.state), ("" if calls else _own_line(e.stack))
    idle, made = round(max(0.0, e.now - last), 3), len(events) + e.ledger.dropped
    return RankReport(e.rank, state, calls, where, idle, error, e.traceback, made, e.output, e.note)


def _call(event: Event, where: str, seconds: float, waits_for: list[int], handle: bool) -> Call:
    return Call(event.kind, event.peer, event.bytes, where, seconds, event.seq + 1, waits_for, handle, event.group)


# -- a rank raised or died --------------------------------------------------------------------------------------------
def _blame_failure(a: Autopsy, evidence: list[Evidence], mismatch: Mismatch | None) -> bool:
    died = [e for e in evidence if e.state == "died"]
    raised = [e for e in evidence if e.state == "raised"]
    first_hand = [e for e in raised if not any(words in e.text for words in _CONSEQUENCES)]
    failed = sorted(died + (first_hand or ([] if died else raised)), key=lambda e: e.order)
    if not failed:
        return False
    e, where = failed[0], a.ranks[failed[0].rank].where
    last = e.ledger.events[-1].where if e.ledger.events else ""
    if mismatch is not None and mismatch.message and _follows(e):
        # The ledgers know the mistake; what the library made of it (an abort, half a message) is only its consequence.
        a.reason, cause = "mismatch", mismatch.cause
        for other in died:
            if other.signal == signal.SIGABRT:
                a.ranks[other.rank].consequence = True
        for other in raised:
            if other is not e and other not in first_hand:
                a.ranks[other.rank].consequence = True
    else:
        a.reason, cause = e.state, _failure(e, where, last, mismatch)
    if mismatch is not None and (a.reason == "mismatch" or e.signal == signal.SIGABRT):
        # The library aborted the victim, not the culprit.
        _set(a, "", mismatch.guilty, sorted({e.rank, *mismatch.involved}), mismatch.call, cause)
    else:
        _set(a, "", e.rank, [e.rank], where or last, cause)
    return True


_UNREADABLE = ("SyntaxError", "IndentationError", "TabError")


def _follows(e: Evidence) -> bool:
    """Whether a rank can have failed because a message had another size than its receiver's tensor."""
    return e.signal == signal.SIGABRT or e.text.startswith("RuntimeError")


def _failure(e: Evidence, where: str, last: str, mismatch: Mismatch | None) -> str:
    if e.state == "raised":
        if e.text.startswith(_UNREADABLE) and given(where.rpartition(":")[0]):
            where = ""  # the text names the file and line that Python cannot read; this one only asked for it
        text = f"Rank {e.rank} raised {e.text}" + (f" ({with_owner(where)})" if where else "")
        return text if text.endswith((".", ")", "!", "?")) else text + "."
    place = f" at {where}" if where else f", in or after the call at {last}" if last else ""
    if mismatch is not None and e.signal == signal.SIGABRT:
        return f"Rank {e.rank} was aborted by the communication library{place}. {mismatch.cause}"
    if e.signal == signal.SIGKILL:
        return (
            f"Rank {e.rank} was killed by SIGKILL{place}: by someone's kill, or by the kernel because memory ran out."
        )
    if e.signal in (signal.SIGSEGV, signal.SIGBUS):
        return (
            f"Rank {e.rank} died by {_signal_name(e.signal)}{place}: it used memory that is not there, as of a tensor "
            "whose storage was freed while a call, a view or another rank's message still needed it."
        )
    if e.signal:
        return f"Rank {e.rank} died by {_signal_name(e.signal)}{place}."
    return f"Rank {e.rank}'s process ended by itself with status {e.status}{place}, without returning."


# -- nobody failed: the wait-for graph --------------------------------------------------------------------------------
def _blame_waiting(a: Autopsy) -> None:
    """A cycle, a rank that has returned, a rank that does not come, or only slow: the most certain first."""
    state = {report.rank: report for report in a.ranks}
    pull = Counter(edge.on for edge in a.edges)  # how many wait for this rank
    cycle = _cycle(a.edges)
    gone = [rank for rank in pull if state[rank].state == "returned"]
    late = [rank for rank in pull if state[rank].state == "running"]
    if cycle:
        _blame_cycle(a, state, cycle)
    elif gone:
        rank = max(gone, key=lambda r: (pull[r], -r))
        waiters, verb = _waiters(a, rank)
        call = _call_on(state[waiters[0]], rank)
        which = "collective number" if call.kind in COLLECTIVES else "message number"
        cause = (
            f"Rank {rank} returned early: {say_ranks(waiters)} still {verb} for it, rank {waiters[0]} in {call} at "
            f"{with_owner(call.where)} ({which} {call.number}), which rank {rank} never {_counter_verb(call.kind)}."
        )
        _set(a, "deadlock", rank, sorted([rank, *waiters]), call.where, cause)
    elif late:
        rank = max(late, key=lambda r: (pull[r], -r))
        waiters, verb = _waiters(a, rank)
        where = state[rank].where
        cause = f"Rank {rank} did not come: it runs its own code at {where or '?'} ({_BUSY}), while "
        _set(a, "", rank, [rank], where, cause + f"{say_ranks(waiters)} {verb} for it.", certain=False)
    else:
        _blame_slow(a)


def _blame_cycle(a: Autopsy, state: dict[int, RankReport], cycle: list[int]) -> None:
    first = cycle.index(min(cycle))
    cycle = cycle[first:] + cycle[:first]
    calls = [_call_on(state[rank], on) for rank, on in zip(cycle, cycle[1:] + cycle[:1])]
    steps = "; ".join(f"rank {rank} waits in {call} at {with_owner(call.where)}" for rank, call in zip(cycle, calls))
    kinds = {call.kind for call in calls}
    if past := _past_each_other(state, cycle, calls):
        advice = past
    elif kinds == {"send"}:
        advice = (
            "All of them send first, and a send waits for its receiver: use sendrecv, which posts both "
            "directions together, or post with isend and wait for it later."
        )
    elif kinds == {"recv"}:
        advice = "All of them receive first, and nobody sends: use sendrecv, or let one side send first."
    elif len(groups := sorted({call.group for call in calls})) > 1:
        names = " and ".join(f'"{name}"' for name in groups)
        advice = (
            f"They call the groups {names} in crossed order: ranks that share groups must call them in the same order."
        )
    else:
        advice = "They do not make matching calls in the same order."
    cause = f"Deadlock of {say_ranks(sorted(cycle))}: {steps}. {advice}"
    where = next((call.where for call in calls if not given(call.where.rpartition(":")[0])), calls[0].where)
    _set(a, "deadlock", cycle[0], sorted(cycle), where, cause)


def _past_each_other(state: dict[int, RankReport], cycle: list[int], calls: list[Call]) -> str:
    """A sentence if dst or src is wrong: a rank is ready for the other direction, but with another rank. Else ""."""
    for rank, on, call in zip(cycle, cycle[1:] + cycle[:1], calls):
        other = {"send": "recv", "recv": "send"}.get(call.kind)
        peers = sorted({mine.peer for mine in state[on].calls if mine.kind == other and mine.peer not in (None, rank)})
        if peers and not any(mine.kind == other and mine.peer == rank for mine in state[on].calls):
            does, word = ("receives", "from") if call.kind == "send" else ("sends", "to")
            mine = "sends to" if call.kind == "send" else "receives from"
            return (
                f"Rank {rank} {mine} rank {on}, but rank {on} {does} {word} {say_ranks(peers)} meanwhile: "
                f"dst and src do not fit together (whoever sends to the right receives from the left)."
            )
    return ""


def _blame_slow(a: Autopsy) -> None:
    """Nobody waits for a call that is missing."""
    running = [r for r in a.ranks if r.state == "running"]
    waiting = [r for r in a.ranks if r.state == "waiting" and r.calls]
    unknown = [r for r in a.ranks if r.state == "waiting" and not r.calls]
    involved = [r.rank for r in running or unknown or waiting]
    who = f"R{say_ranks(involved)[1:]}"
    guilty, call, cause = None, "", "Every rank returned."
    if running:
        r = max(running, key=lambda r: (r.seconds, -r.rank))
        guilty, call = r.rank, r.where
        cause = f"{who} did not finish; rank {guilty} runs its own code at {call or '?'} ({_BUSY})."
    elif unknown:
        call, places = unknown[0].where, ", ".join(sorted({r.where for r in unknown}))
        cause = (
            f"{who} did not come out of the group's calls at {places}; the ledger was off, so it is not known "
            f"who waits for whom: leave it on to learn more."
        )
    elif waiting:
        first = waiting[0].calls[0]
        call = first.where
        cause = (
            f"{who} had met their partners and were still transferring ({first}, {first.bytes} bytes, "
            f"at {call}): give it more time with timeout=, or send less."
        )
    _set(a, "", guilty, involved, call, cause, certain=False)


def _cycle(edges: list[Edge]) -> list[int]:
    """The ranks of one cycle of the wait-for graph, in order, or []."""
    graph: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(sorted(edge.waiter for edge in edges), ()))
    for edge in edges:
        graph.add(edge.on, edge.waiter)
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1][:-1]  # it ends where it began
    return []


# -- runs that ended, but are wrong -----------------------------------------------------------------------------------
def examine(ledgers: list[Ledger]) -> Autopsy | None:
    """What is wrong with a run whose ranks all returned: a receive filled with too little, a message for nobody."""
    if any(ledger.gaps or ledger.dropped for ledger in ledgers):
        return None
    match = Match(ledgers)
    evidence = [Evidence(rank, ledger, "returned") for rank, ledger in enumerate(ledgers)]
    if match.mismatch() is not None:
        return diagnose(evidence, "mismatch")
    for rank, ledger in enumerate(ledgers):
        for e in ledger.events:
            missing = match.missing(rank, e)
            if missing:
                autopsy = diagnose(evidence, "mismatch")
                cause = (
                    f"Rank {rank} called {_call(e, e.where, 0.0, [], False)} at {e.where}, which {say_ranks(missing)} "
                    f"never {_counter_verb(e.kind)}; all have returned, so it was for nothing."
                )
                _set(autopsy, "", rank, sorted([rank, *missing]), e.where, cause)
                return autopsy
    return None


def refuse_wrong(ledgers: list[Ledger], backend: str) -> None:
    """Raise RanksFailed if the ranks all returned but `examine` finds something."""
    autopsy = examine(ledgers)
    if autopsy is not None:
        autopsy.backend = backend
        raise RanksFailed(autopsy, ledgers)


def _brief(error: str) -> str:
    """An error's text; of a library's page on the other side's end, only the words that say so."""
    words = next((words for words in _CONSEQUENCES if words in error), None)
    return f"{error.partition(':')[0]}: {words}" if words else error


# -- small words ------------------------------------------------------------------------------------------------------
def _set(
    a: Autopsy, reason: str, guilty: int | None, involved: list[int], call: str, cause: str, certain: bool = True
) -> None:
    a.reason = a.reason or reason
    a.guilty, a.involved, a.call, a.cause, a.certain = guilty, involved, call, cause, certain


def _waiters(a: Autopsy, rank: int) -> tuple[list[int], str]:
    waiters = sorted(edge.waiter for edge in a.edges if edge.on == rank)
    return waiters, "waits" if len(waiters) == 1 else "wait"


def _call_on(report: RankReport, on: int) -> Call:
    return next(call for call in report.calls if on in call.waits_for)


def _counter_verb(kind: str) -> str:
    return {"send": "received", "recv": "sent"}.get(kind, "joined")


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _own_line(stack: list[tuple[str, int, str]]) -> str:
    number = pick_frame([file for file, _, _ in stack])
    return f"{shown_path(stack[number][0])}:{stack[number][1]}" if number is not None else ""
