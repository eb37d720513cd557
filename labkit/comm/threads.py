"""Ranks on threads of this process: for exploring in a notebook, ready in milliseconds.

They share globals, torch's random generator and the interpreter's lock, have no process group, so no FSDP2, and cannot
be ended in a C call (`time.sleep`, a product).
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.comm.autopsy import Evidence, Results
from labkit.comm.callsite import describe_error, stack_of
from labkit.comm.diagnose import refuse_wrong
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.rendezvous import RankEnded, Rendezvous, ThreadTransport
from labkit.comm.supervisor import failure, supervise

LOOK = 0.1  # seconds between two polls of ranks that say nothing
ENDING = 1.0  # seconds spent trying to end a rank in an endless Python loop


class _Rank(threading.Thread):
    def __init__(self, fn: Callable, args: tuple, group: Group, changed: threading.Condition) -> None:
        super().__init__(name=f"rank {group.rank}", daemon=True)  # daemon: a stuck C call must not keep the program
        self.fn, self.args_, self.group, self.changed = fn, args, group, changed
        self.value: Any = None
        self.error: BaseException | None = None
        self.failed_at, self.state = float("inf"), "running"
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

    def evidence(self) -> Evidence:
        where = describe_error(self.error) if self.error is not None else {"stack": stack_of(self.ident)}
        # A mismatch ended it inside the call; its open event says which.
        state, ledger = "running" if self.state == "ended" else self.state, self.group.ledger
        how: dict[str, Any] = dict(now=ledger.now(), order=self.failed_at, error=self.error)
        return Evidence(self.group.rank, ledger, state, **how, **where)


class _Run:
    """The ranks of one run, as the supervisor sees them."""

    def __init__(self, fn: Callable, args: tuple, size: int, timeout: float | None) -> None:
        start = time.perf_counter()
        self.deadline = start + timeout if timeout is not None else float("inf")
        self.rendezvous, self.changed = Rendezvous(size), threading.Condition()
        ends = [ThreadTransport(self.rendezvous, rank, self.rendezvous.world) for rank in range(size)]
        groups = [Group(end, Ledger(end.rank, size, start=start)) for end in ends]
        self.ranks = [_Rank(fn, args, group, self.changed) for group in groups]

    @property
    def fault(self) -> str | None:
        return self.rendezvous.fault

    def wait(self, seconds: float) -> None:
        with self.changed:
            if "running" in self.states():
                self.changed.wait(min(seconds, LOOK))

    def states(self) -> list[str]:
        return [rank.state for rank in self.ranks]

    def moves(self) -> object:
        return self.rendezvous.version

    def blocked(self) -> bool:
        return all(self.rendezvous.waiting[r.group.rank] for r in self.ranks if r.state == "running")

    def late(self) -> bool:
        return time.perf_counter() >= self.deadline

    def evidence(self) -> list[Evidence]:
        return [rank.evidence() for rank in self.ranks]

    def end(self) -> None:
        """Leave no thread behind that could be ended."""
        self.rendezvous.end()
        give_up = time.perf_counter() + ENDING
        while (alive := [r for r in self.ranks if r.is_alive()]) and time.perf_counter() < give_up:
            for rank in alive:
                rank.end()
            alive[0].join(0.005)


def run(fn: Callable, args: tuple, size: int, timeout: float | None) -> Results:
    """Run `fn(group, *args)` on `size` threads. See labkit.comm.ranks.run_ranks."""
    job = _Run(fn, args, size, timeout)
    try:
        for rank in job.ranks:
            rank.start()
        reason = supervise(job)
        if reason is None:
            ledgers = [rank.group.ledger for rank in job.ranks]
            refuse_wrong(ledgers, "threads")
            return Results([rank.value for rank in job.ranks], ledgers)
        evidence = job.evidence()  # before anything is ended: afterwards nobody waits any more
    finally:
        job.end()  # also when the reader presses Ctrl-C
    for rank, e in zip(job.ranks, evidence):
        if rank.is_alive():
            e.note = (
                "This thread could not be ended: it stands in a C call, or it catches every exception. It may go "
                "on using the CPU until the kernel is restarted; backend='processes' would have ended it"
            )
    raise failure(evidence, reason, timeout=timeout, backend="threads", fault=job.fault)
