"""Ranks on threads of this process: for exploring in a notebook.

Ready in milliseconds, and functions defined in a notebook cell work. The price: the ranks share one interpreter, so
they share globals and torch's random generator, they take turns at Python code, and there is no FSDP2 (no process
group).

What can be ended and what cannot. A rank that waits in the group is woken. A rank in an endless Python loop gets an
exception that `except Exception` does not catch, again and again. A thread that stands in a C call (`time.sleep`, a
matrix product, a lock) cannot be ended from outside; the autopsy says so, and names backend="processes", where it
can.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.comm.diagnose import diagnose, refuse_wrong
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.outcome import Evidence, RanksFailed, Results, tell
from labkit.comm.rendezvous import Exchange, RankEnded

GRACE = 0.5  # seconds that the others get once one rank has raised: most end by themselves, or raise the same
STILL = 0.25  # seconds without any change before a deadlock is believed
ENDING = 1.0  # seconds spent trying to end a rank in an endless Python loop


class _Rank(threading.Thread):
    def __init__(self, fn: Callable, args: tuple, group: Group, changed: threading.Condition) -> None:
        super().__init__(name=f"rank {group.rank}", daemon=True)  # daemon: a stuck C call must not keep the program
        self.fn, self.args_, self.group, self.changed = fn, args, group, changed
        self.value: Any = None
        self.error: BaseException | None = None
        self.failed_at = float("inf")
        self.state = "running"
        self.guard = threading.Lock()
        self.leaving = False  # past this point no exception may be sent: the thread id could be someone else's

    def run(self) -> None:
        try:
            self._run()
            for _ in range(50):  # an exception that is already on its way arrives here, not in threading's own code
                pass
        except RankEnded:
            pass

    def _run(self) -> None:
        state = "ended"
        try:
            self.value = self.fn(self.group, *self.args_)
            state = "returned"
        except RankEnded:
            pass
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: whatever it is, it is this rank's
            self.error, self.failed_at, state = error, time.perf_counter(), "raised"
        while not self.leaving:
            try:
                with self.guard:
                    self.leaving = True
            except RankEnded:
                continue
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def end(self) -> None:
        """Raise RankEnded in this thread at its next Python instruction."""
        with self.guard:
            if not self.leaving and self.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(RankEnded))


def run(fn: Callable, args: tuple, size: int, timeout: float | None) -> Results:
    """Run `fn(group, *args)` on `size` threads. See labkit.comm.ranks.run_ranks."""
    start = time.perf_counter()
    exchange, changed = Exchange(size), threading.Condition()
    ranks = [_Rank(fn, args, Group(exchange.transport(r), Ledger(r, size, start=start)), changed) for r in range(size)]
    try:
        for rank in ranks:
            rank.start()
        reason = _watch(ranks, exchange, changed, start, timeout)
        if reason is None:
            ledgers = [r.group.ledger for r in ranks]
            refuse_wrong(ledgers, "threads")
            return Results([r.value for r in ranks], ledgers, time.perf_counter() - start)
        evidence = [_evidence(r) for r in ranks]  # before anything is ended: afterwards nobody waits any more
    finally:
        _end(ranks, exchange)  # also when the reader presses Ctrl-C
    for rank, e in zip(ranks, evidence):
        if rank.is_alive():
            e.note = (
                "This thread could not be ended: it stands in a C call, or it catches every exception. It may go "
                "on using the CPU until the kernel is restarted; backend='processes' would have ended it"
            )
    autopsy = diagnose(
        evidence, "deadline" if reason == "deadline" else "", timeout=timeout, backend="threads", fault=exchange.fault
    )
    error = next((e.error for e in evidence if e.rank == autopsy.guilty), None)
    raise RanksFailed(autopsy, [r.group.ledger for r in ranks], error)


def _watch(
    ranks: list[_Rank], exchange: Exchange, changed: threading.Condition, start: float, timeout: float | None
) -> str | None:
    """Wait until all have returned (None), or there is a reason to end the run."""
    deadline = start + timeout if timeout is not None else float("inf")
    version, since, failed_at = -1, start, None
    while True:
        with changed:
            states = [r.state for r in ranks]
            if all(state == "returned" for state in states):
                return None
            now = time.perf_counter()
            wake = min(deadline, now + 0.1, failed_at + GRACE if failed_at else deadline)
            if "running" in states:
                changed.wait(max(0.0, wake - now))
            states = [r.state for r in ranks]
        now = time.perf_counter()
        if exchange.version != version:
            version, since = exchange.version, now
        blocked = all(exchange.waiting[r.group.rank] for r in ranks if r.state == "running")
        if exchange.fault or "raised" in states:
            # A moment for the others: who disagrees with whom is only seen once all have come.
            failed_at = failed_at or now
            if now >= failed_at + GRACE or "running" not in states or (blocked and now - since > 0.05):
                return "mismatch" if exchange.fault else "raised"
        elif "running" not in states:
            continue
        elif now >= deadline:
            return "deadline"
        elif blocked and now - since > STILL and diagnose([_evidence(r) for r in ranks], "").certain:
            return "deadlock"


def _evidence(rank: _Rank) -> Evidence:
    ledger = rank.group.ledger
    e = Evidence(rank.group.rank, ledger, rank.state, now=ledger.now(), order=rank.failed_at, error=rank.error)
    if rank.state == "ended":  # a mismatch ended it inside the call; its open event says which
        e.state = "running"
    elif rank.error is not None:
        told = tell(rank.error)
        e.error_text, e.traceback, e.stack = told["text"], told["traceback"], told["stack"]
    else:
        frame = sys._current_frames().get(rank.ident)
        while frame is not None:
            e.stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
    return e


def _end(ranks: list[_Rank], exchange: Exchange) -> None:
    """Leave no thread behind that could be ended."""
    exchange.end()
    give_up = time.perf_counter() + ENDING
    while (alive := [r for r in ranks if r.is_alive()]) and time.perf_counter() < give_up:
        for rank in alive:
            rank.end()
        alive[0].join(0.005)
