"""From evidence to autopsy: who waits for whom, and whose fault it is.

Matching the ledgers (labkit.comm.match) tells which call waits for which ranks: that is the wait-for graph. Its
cycles, and the ranks at its ends, are the causes, unless a rank raised or died, or calls met that do not fit.
"""
from __future__ import annotations

import signal
from collections import Counter

from labkit.comm.autopsy import Autopsy, Call, Edge, RankReport
from labkit.comm.ledger import COLLECTIVES, Ledger
from labkit.comm.match import Match, Mismatch, say_ranks
from labkit.comm.outcome import Evidence, RanksFailed
from labkit.comm.place import installed, shown_path

# What a library says when the *other* side is gone: a consequence, never the cause.
_CONSEQUENCES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed",
                 "remote process exited", "NCCL communicator was aborted", "Connection refused", "Application timeout")


def diagnose(evidence: list[Evidence], reason: str, *, timeout: float | None = None, backend: str = "",
             fault: str | None = None) -> Autopsy:
    """Make the autopsy of a run from one Evidence per rank.

    reason   "deadline", "raised", "died", or "" where none of these has happened (yet): then see `certain`
    fault    what the transport itself found wrong, in words; used where the ledger was off
    """
    evidence = sorted(evidence, key=lambda e: e.rank)
    match = Match([e.ledger for e in evidence])
    reports = [_report(e, match) for e in evidence]
    edges = [Edge(r.rank, on, call.kind, call.where) for r in reports for call in r.calls for on in call.waits_for]
    autopsy = Autopsy(reason, "", None, [], "", reports, _unique(edges), timeout=timeout, backend=backend)
    _blame(autopsy, evidence, match, fault)
    return autopsy


def _report(e: Evidence, match: Match) -> RankReport:
    calls = []
    if e.state == "running":
        by_index = {event.index: event for event in list(e.ledger.events)}
        for event in e.ledger.open():
            subject = by_index.get(event.of, event) if event.kind == "wait" else event
            calls.append(Call(subject.kind, subject.peer, subject.bytes, event.where, round(max(0.0, e.now - event.begin), 3),
                              subject.seq + 1, match.missing(e.rank, subject) if match.usable else [],
                              event.kind == "wait"))
        calls.sort(key=lambda call: not call.waits_for)     # what is really missing first
    file_line = _own_line(e.stack)
    ended = [event.end for event in list(e.ledger.events) if event.end is not None]
    error = e.error_text
    if e.state == "died":
        error = f"killed by {_signal_name(e.signal)}" if e.signal else f"its process ended with exit status {e.exitcode}"
    return RankReport(e.rank, "waiting" if calls else e.state, calls, "" if calls else file_line,
                      round(max(0.0, e.now - max(ended, default=0.0)), 3), error, e.traceback,
                      len(e.ledger.events) + e.ledger.dropped, e.output, e.note)


def _blame(a: Autopsy, evidence: list[Evidence], match: Match, fault: str | None) -> None:
    """Fill guilty, involved, call, cause and certain: the most direct cause first."""
    mismatch = match.mismatch() if match.usable else None
    died = sorted((e for e in evidence if e.state == "died"), key=lambda e: e.order)
    raised = sorted((e for e in evidence if e.state == "raised"), key=lambda e: e.order)
    first_hand = [e for e in raised if not any(mark in e.error_text for mark in _CONSEQUENCES)] or ([] if died else raised)
    failed = sorted(died + first_hand, key=lambda e: e.order)
    if failed:
        e = failed[0]
        report = a.ranks[e.rank]
        a.reason = e.state
        _set(a, e.rank, [e.rank], report.where or _last_call(e), _failure_sentence(e, report, mismatch), True)
        if mismatch is not None and e.signal == signal.SIGABRT:     # the library aborted the victim, not the culprit
            a.guilty, a.involved, a.call = mismatch.guilty, sorted({e.rank, *mismatch.involved}), mismatch.call
    elif mismatch is not None:
        a.reason = a.reason or "mismatch"
        _set(a, mismatch.guilty, mismatch.involved, mismatch.call, mismatch.cause, True)
    elif fault is not None:
        a.reason = a.reason or "mismatch"
        _set(a, None, [], "", _cap(fault) + ".", True)
    else:
        _blame_waiting(a)


def _blame_waiting(a: Autopsy) -> None:
    state = {report.rank: report for report in a.ranks}
    cycle = _cycle(a.edges)
    pull = Counter(edge.on for edge in a.edges)
    gone = [r for r in pull if state[r].state == "returned"]
    busy = [r for r in pull if state[r].state == "running"]
    running = [r for r in a.ranks if r.state == "running"]
    waiting = [r for r in a.ranks if r.state == "waiting"]
    if cycle:
        a.reason = a.reason or "deadlock"
        steps = "; ".join(f"rank {r} waits in {_call_on(state[r], on)} at {_where_on(state[r], on)}"
                          for r, on in zip(cycle, cycle[1:] + cycle[:1]))
        _set(a, min(cycle), sorted(cycle), _where_on(state[min(cycle)], cycle[(cycle.index(min(cycle)) + 1) % len(cycle)]),
             f"Deadlock of {say_ranks(sorted(cycle))}: {steps}. {_advice(state, cycle)}", True)
    elif gone:
        a.reason = a.reason or "deadlock"
        rank = max(gone, key=lambda r: (pull[r], -r))
        waiter = next(e for e in a.edges if e.on == rank)
        call = next(c for c in state[waiter.waiter].calls if rank in c.waits_for)
        _set(a, rank, sorted({rank, *(e.waiter for e in a.edges if e.on == rank)}), waiter.where,
             f"Rank {rank} returned early: {say_ranks(sorted({e.waiter for e in a.edges if e.on == rank}))} still "
             f"wait{'s' if pull[rank] == 1 else ''} for it, rank {waiter.waiter} in {call} at {call.where} "
             f"({_ordinal(call)}), which rank {rank} never {_counter_verb(call.kind)}.", True)
    elif busy:
        rank = max(busy, key=lambda r: (pull[r], -r))
        r = state[rank]
        _set(a, rank, [rank], r.where, f"Rank {rank} did not come: it runs its own code at {r.where or '?'} "
             f"(an endless loop, a slow computation, or a call that does not return), while "
             f"{say_ranks(sorted({e.waiter for e in a.edges if e.on == rank}))} wait{'s' if pull[rank] == 1 else ''} for it.")
    elif waiting and not running:
        r = waiting[0]
        _set(a, None, [w.rank for w in waiting], r.calls[0].where,
             f"{_cap(say_ranks([w.rank for w in waiting]))} had met their partners and were still transferring ({r.calls[0]}, "
             f"{r.calls[0].bytes} bytes, at {r.calls[0].where}): give it more time with timeout=, or send less.")
    elif running:
        r = max(running, key=lambda r: (r.seconds, -r.rank))
        _set(a, r.rank, [x.rank for x in running], r.where,
             f"{_cap(say_ranks([x.rank for x in running]))} did not finish; rank {r.rank} runs its own code at {r.where or '?'} (an "
             f"endless loop, a slow computation, or a call that does not return).")
    else:
        _set(a, None, [], "", "Every rank returned.", False)


def _set(a: Autopsy, guilty: int | None, involved: list[int], call: str, cause: str, certain: bool = False) -> None:
    a.guilty, a.involved, a.call, a.cause, a.certain = guilty, involved, call, cause, certain


def _failure_sentence(e: Evidence, report: RankReport, mismatch: Mismatch | None) -> str:
    if e.state == "raised":
        text = f"Rank {e.rank} raised {e.error_text}" + (f" ({report.where})" if report.where else "")
        text += "" if text.endswith((".", ")", "!", "?")) else "."
        return text
    last = _last_call(e)
    doing = f" at {report.where}" if report.where else f", in or after the call at {last}" if last else ""
    if mismatch is not None and e.signal == signal.SIGABRT:
        return f"Rank {e.rank} was aborted by the communication library{doing}. {mismatch.cause}"
    if e.signal == signal.SIGKILL:
        return (f"Rank {e.rank} was killed by SIGKILL{doing}: by someone's kill, or by the kernel because memory ran out.")
    if e.signal:
        return f"Rank {e.rank} died by {_signal_name(e.signal)}{doing}."
    return f"Rank {e.rank}'s process ended by itself with exit status {e.exitcode}{doing}, without returning."


# -- small words ----------------------------------------------------------------------------------------------------
def _cycle(edges: list[Edge]) -> list[int]:
    """The ranks of one cycle of the wait-for graph, in order, or []."""
    graph: dict[int, list[int]] = {}
    for edge in edges:
        graph.setdefault(edge.waiter, []).append(edge.on)
    done: set[int] = set()
    for start in sorted(graph):
        path, stack = [], [(start, iter(graph.get(start, ())))]
        on_path = {start}
        path.append(start)
        while stack:
            node, rest = stack[-1]
            nxt = next(rest, None)
            if nxt is None:
                stack.pop()
                path.pop()
                on_path.discard(node)
                done.add(node)
            elif nxt in on_path:
                return path[path.index(nxt):]
            elif nxt not in done:
                stack.append((nxt, iter(graph.get(nxt, ()))))
                path.append(nxt)
                on_path.add(nxt)
    return []


def _advice(state: dict[int, RankReport], cycle: list[int]) -> str:
    kinds = {next(c.kind for c in state[r].calls if on in c.waits_for)
             for r, on in zip(cycle, cycle[1:] + cycle[:1])}
    if kinds == {"send"}:
        return "All of them send first, and a send waits for its receiver: use sendrecv, which posts both directions together."
    if kinds == {"recv"}:
        return "All of them receive first, and nobody sends: use sendrecv, or let one side send first."
    return "They do not make matching calls in the same order."


def _call_on(report: RankReport, on: int) -> Call:
    return next(c for c in report.calls if on in c.waits_for)


def _where_on(report: RankReport, on: int) -> str:
    return _call_on(report, on).where


def _unique(edges: list[Edge]) -> list[Edge]:
    return list({(e.waiter, e.on): e for e in reversed(edges)}.values())[::-1]


def _cap(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ordinal(call: Call) -> str:
    return f"collective number {call.number}" if call.kind in COLLECTIVES else f"message number {call.number} between them"


def _counter_verb(kind: str) -> str:
    return {"send": "received", "recv": "sent"}.get(kind, "joined")


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_call(e: Evidence) -> str:
    return e.ledger.events[-1].where if e.ledger.events else ""


def _own_line(stack: list[tuple[str, int, str]]) -> str:
    """The innermost line of the user's code: not the standard library, an installed package, or labkit.comm."""
    for file, line, _ in stack:
        if not installed(file) and not file.startswith("<frozen"):
            return f"{shown_path(file)}:{line}"
    return f"{shown_path(stack[0][0])}:{stack[0][1]}" if stack else ""


# -- runs that ended, but are wrong ------------------------------------------------------------------------------------
def examine(ledgers: list[Ledger]) -> Autopsy | None:
    """What is wrong with a run whose ranks all returned, or None.

    gloo fills a long receive with a short message and says nothing, and nobody misses a message that was posted by
    `isend` and never received. The ledgers show both."""
    if any(ledger.gaps or ledger.dropped for ledger in ledgers):
        return None
    match = Match(ledgers)
    evidence = [Evidence(rank, ledger, "returned") for rank, ledger in enumerate(ledgers)]
    if match.mismatch() is not None:
        return diagnose(evidence, "mismatch")
    for rank, ledger in enumerate(ledgers):
        for e in ledger.events:
            missing = match.missing(rank, e) if e.kind != "wait" else []
            if missing:
                autopsy = diagnose(evidence, "mismatch")
                what = str(Call(e.kind, e.peer, e.bytes, e.where, 0.0, e.seq + 1))
                _set(autopsy, rank, [rank, *missing], e.where, f"Rank {rank} called {what} at {e.where}, which "
                     f"{say_ranks(missing)} never {_counter_verb(e.kind)}; all have returned, so it was for nothing.", True)
                return autopsy
    return None


def refuse_wrong(ledgers: list[Ledger], backend: str) -> None:
    """Raise RanksFailed if the ranks all returned but `examine` finds something."""
    autopsy = examine(ledgers)
    if autopsy is not None:
        autopsy.backend = backend
        raise RanksFailed(autopsy, ledgers)
