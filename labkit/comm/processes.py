"""Ranks as processes of their own, forked by the helper (labkit.comm.helper): what the caller does and knows of them."""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TextIO

from labkit.comm import helper
from labkit.comm.autopsy import Evidence, Results
from labkit.comm.callsite import cut
from labkit.comm.diagnose import refuse_wrong
from labkit.comm.forkserver import MOST, ForkLine
from labkit.comm.ledger import Ledger, read_sink
from labkit.comm.processor import ENOUGH, STRETCH, lost, since, times
from labkit.comm.serialization import pack_job, unpack
from labkit.comm.supervisor import GRACE, Medium, failure, supervise
from labkit.comm.worker import ASK, parse_trace
from labkit.errors import LabError

STILL = 1.0  # seconds without any progress before a deadlock is believed
LOOK = 0.25  # seconds between two polls of the ranks' progress
START_LIMIT = 120.0  # seconds for joining the process group, and again for importing what the job needs
END_LIMIT = 10.0  # seconds for the helper to report how a rank ended that has closed its connection
STALLED = 60  # seconds without a byte in the middle of a message, after which a rank is no longer listened to
OUTPUT_LIMIT = 4 << 20  # bytes that a rank may print in a job with a deadline: an endless print floods no notebook
DROPPED = b"\n(this rank prints too much: the rest of its output is dropped)"


class Output:
    """The reading end of a pipe: passes whole lines on to the caller's stream, each with `prefix`, up to `room` bytes."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name, self.prefix = name, prefix
        self.room = sys.maxsize  # -1: it has been said that there is none
        self.stream: TextIO | None = None
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self.last_words, self.end, self._partial = b"", False, b""

    def forward(self, last: bool = False) -> None:
        """Pass on what has come: whole lines, or everything at the end of a job."""
        text = self._partial
        with contextlib.suppress(OSError):
            for _ in range(16):  # then let the others speak: a rank can write as fast as this reads
                data = os.read(self.fd, 1 << 16)
                self.end = not data
                text += data
        lines, _, self._partial = text.rpartition(b"\n")
        if self._partial and (last or len(self._partial) > 1 << 20):
            lines, self._partial = text, b""
        self.last_words = (self.last_words + lines + b"\n")[-4000:]
        if len(lines) <= self.room:
            self.room -= len(lines)
        else:
            lines = lines[: self.room] + DROPPED if self.room >= 0 else b""
            self.room = -1
        if lines:
            stream = self.stream or getattr(sys, self.name)
            stream.write("".join(f"{self.prefix}{line}\n" for line in lines.decode("utf-8", "replace").split("\n")))
            stream.flush()

    def tail(self, lines: int) -> list[str]:
        return self.last_words.decode("utf-8", "replace").strip().splitlines()[-lines:]


class RankProcess:
    """One rank process. control: messages in both directions (labkit.comm.worker); out, err: what it prints."""

    def __init__(self, rank: int, size: int, directory: str) -> None:
        self.rank, self.size, self.pid = rank, size, 0
        # What faulthandler writes, and its ledger.
        self.trace, self.sink = os.path.join(directory, f"trace{rank}"), os.path.join(directory, f"ledger{rank}")
        self.had = (0.0, 0.0)  # its `times` when its job began (labkit.comm.processor)
        ours, theirs = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED, 0))
        self.control = Connection(ours.detach())
        prefix = f"[rank {rank}] " if size > 1 else ""
        self.out, self.err = self.outputs = Output("stdout", prefix), Output("stderr", prefix)
        self.theirs = [theirs.detach(), self.out.theirs, self.err.theirs]
        self.end = False  # it has closed its connection, or died: that would wake the caller for ever
        self.status: int | None = None  # its exit status; minus the signal that ended it
        self.fresh()

    def fresh(self, output_limit: int = sys.maxsize) -> None:
        self.state, self.order = "running", float("inf")
        self.answer, self.out.room, self.err.room = b"", output_limit, output_limit
        self.ledger: Ledger | None = None
        self.failure: dict[str, Any] = {}  # `describe_error` of what it raised, and the exception itself

    def send(self, kind: str, content: Any) -> None:
        """Say something to a rank that listens: it does so until its job begins."""
        with contextlib.suppress(OSError):  # it is gone: its exit status says how
            self.control.send((kind, content))

    def take(self) -> None:
        """What it has said. It has "returned" when it has reached what all are to reach now."""
        try:
            while self.control.poll():
                kind, content = self.control.recv()
                self.state = "raised" if kind == "fail" else "returned"
                if kind == "done":
                    self.answer, self.ledger = content
                elif kind == "fail":
                    self.failure, self.order = content, time.perf_counter()
                    try:
                        self.failure["error"] = unpack(self.failure["error"])
                    except Exception:  # a class that only the rank could import
                        self.failure["error"] = None
        except (EOFError, OSError):
            self.end = True

    def died(self, status: int) -> None:
        self.take()  # a result that was sent before the end counts
        self.status, self.end = status, True
        if self.state == "running":
            self.state, self.order = "died", time.perf_counter()

    def evidence(self, now: float) -> Evidence:
        ledger = self.ledger or read_sink(self.sink, self.rank, self.size)
        status = self.status if self.state == "died" else None
        return Evidence(self.rank, ledger, self.state, now=now, order=self.order, status=status, **self.failure)

    def close(self) -> None:
        for output in self.outputs:
            output.forward(last=True)
            os.close(output.fd)
        self.control.close()


class RankPool(contextlib.AbstractContextManager["RankPool"], Medium):
    """`size` rank processes that are kept between jobs: `with RankPool(4) as pool: pool.run(fn, x, timeout=5.0)`.

    Each job gets a fresh Group and ledger; modules stay imported and globals set. After one that failed, the next gets
    new processes."""

    def __init__(self, size: int = 4, *, device: str = "cpu") -> None:
        check_size(size)
        if 3 * size > MOST:  # each has three connections
            raise LabError(f"size={size}: a pool has at most {MOST // 3} rank processes")
        self.size, self.device = size, device
        self.workers: list[RankProcess] = []
        self.directory = ""
        self._line: ForkLine | None = None
        self.printed: TextIO | None = None  # what the ranks print goes there, not to the caller's own streams

    def run(self, fn: Callable, *args: Any, timeout: float | None = 5.0) -> Results:
        """Like `run_ranks(fn, *args, size=pool.size, backend="processes", timeout=timeout)`, without the start-up."""
        results = self.call("labkit.comm.serialization:load", [({}, pack_job(fn, args))] * self.size, timeout)
        results[:] = [unpack(answer) for answer in results]
        return results

    def call(self, load: str, jobs: Sequence[tuple[dict[str, Any], bytes]], timeout: float | None) -> Results:
        """One job on all ranks: "module:function"(*jobs[r]) gives what rank r runs. RanksFailed, or LabError: no start."""
        check_timeout(timeout)
        if self._line is not None:
            self._take_ends()
            if any(worker.end for worker in self.workers):  # one died between two jobs
                self.close()
        try:
            if not self.workers:
                self._start()
            return self._run(load, jobs, timeout)
        except BaseException:  # failure, or Ctrl-C: nothing stays
            self.close()
            raise

    def signal(self, number: int) -> None:
        """Send a signal to every rank that is there. May be called from a signal handler while a job runs."""
        for worker in self.workers:
            if worker.pid and worker.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def close(self) -> None:
        workers, self.workers = self.workers, []
        if self._line is not None:
            alive, give_up = {w.pid for w in workers if w.pid and w.status is None}, time.monotonic() + 10.0
            with contextlib.suppress(OSError, EOFError):  # the helper is gone, and its ranks with it
                self._line.signal([*alive], signal.SIGKILL)
                while alive and time.monotonic() < give_up:
                    alive.difference_update(pid for pid, _ in self._line.ended(1.0))
            self._line.close()
            self._line = None
        for worker in workers:
            worker.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # -- one job --------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="labkit-ranks-")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        setup = {"size": self.size, "device": self.device, "directory": self.directory, "cores": cores}
        setup |= {"cwd": os.getcwd(), "environ": dict(os.environ), "argv": sys.argv}
        self.workers = [RankProcess(rank, self.size, self.directory) for rank in range(self.size)]
        theirs = [fd for worker in self.workers for fd in worker.theirs]
        try:
            self._line, pids = helper.fork_ranks(setup, theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        for worker, pid in zip(self.workers, pids):
            worker.pid = pid
        self._take_ends()  # those that ended while they were made are reported once
        self._reach("here", "could not join the process group")

    def _run(self, load: str, jobs: Sequence[tuple[dict[str, Any], bytes]], timeout: float | None) -> Results:
        for worker, (head, body) in zip(self.workers, jobs):
            worker.fresh(OUTPUT_LIMIT if timeout is not None else sys.maxsize)
            worker.send("job", {"load": load, "head": head, "body": body, "path": sys.path, "ledger": worker.sink})
        self._reach("load", "could not load the job")
        self._begin("done", timeout)
        for worker in self.workers:
            worker.send("go", self.start)
        reason = supervise(self, settled=GRACE, still=STILL)
        if reason:
            # On a busy machine the helper reports an exit later than other ranks what they raised because of it.
            self.wait(0)
            give_up = time.perf_counter() + END_LIMIT
            while any(w.end and w.state == "running" for w in self.workers) and time.perf_counter() < give_up:
                self.wait(LOOK)
            raise failure(self._evidence_with_stacks(), reason, timeout=timeout, backend="processes")
        for worker in self.workers:
            for output in worker.outputs:
                output.forward(last=True)
            with contextlib.suppress(OSError):
                os.unlink(worker.sink)
        ledgers = [worker.ledger for worker in self.workers if worker.ledger is not None]
        refuse_wrong(ledgers, "processes")
        results = Results([worker.answer for worker in self.workers], ledgers)
        if any(ledger.gaps for ledger in ledgers):
            self.close()  # a message that nobody recorded may still be under way: the next job must not receive it
        return results

    def _reach(self, goal: str, what: str) -> None:
        """Wait until every rank has said `goal`. LabError, in one sentence, if one fails: no function has run yet."""
        self._begin(goal, START_LIMIT)
        if not supervise(self):
            return
        failed = min((w for w in self.workers if w.state in ("raised", "died")), key=lambda w: w.order, default=None)
        if failed is None:
            late = [w.rank for w in self.workers if w.state == "running"]
            raise LabError(f"the ranks {what} within {START_LIMIT:g} s; late: ranks {late}")
        if failed.state == "died":
            failed.err.forward(last=True)
            said = f"its process died (status {failed.status}) {' '.join(failed.err.tail(3))}"
        else:
            error, said = failed.failure["error"], "{text}\n{traceback}".format(**failed.failure)
            if isinstance(error, LabError):
                raise error
        raise LabError(f"rank {failed.rank} {what}: {said}")

    def _begin(self, goal: str, limit: float | None) -> None:
        self.goal, self.start = goal, time.perf_counter()
        self.deadline = self.start + limit if limit is not None else float("inf")
        for worker in self.workers:
            worker.state = "running" if worker.status is None else "died"
            worker.had = times(worker.pid)
            worker.out.stream = worker.err.stream = self.printed

    # -- for the supervisor ---------------------------------------------------------------------------------------
    def wait(self, seconds: float) -> None:
        assert self._line is not None
        handlers: dict[int, Callable[[], None]] = {self._line.fileno(): self._take_ends}
        for worker in self.workers:
            handlers |= {output.fd: output.forward for output in worker.outputs if not output.end}
            if not worker.end:
                handlers[worker.control.fileno()] = worker.take
        poll = select.poll()
        for fd in handlers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000 * min(seconds, LOOK)):
            handlers[fd]()

    def _take_ends(self) -> None:
        assert self._line is not None
        try:
            ended = dict(self._line.ended())
        except (OSError, EOFError):  # the helper died, and they with it
            ended = {worker.pid: 255 for worker in self.workers}
        for worker in self.workers:
            if worker.status is None and worker.pid in ended:
                worker.died(ended[worker.pid])

    def states(self) -> list[str]:
        return [worker.state for worker in self.workers]

    def moves(self) -> object:
        """How long the ledgers on disk are."""
        return [_size(worker.sink) for worker in self.workers] if self.goal == "done" else []

    def blocked(self) -> bool:
        return self.goal == "done"  # the evidence decides

    def late(self) -> bool:
        """Whether its time is over, in which every rank must have been able to run (labkit.comm.processor)."""
        now = time.perf_counter()
        if now < self.deadline:
            return False
        spent, limit = now - self.start, self.deadline - self.start
        away = lost(spent, [since(w.had, times(w.pid)) for w in self.workers if w.state == "running"])
        return spent - away >= ENOUGH * limit or spent >= STRETCH * limit

    def evidence(self) -> list[Evidence]:
        now = time.perf_counter() - self.start
        return [worker.evidence(now) for worker in self.workers]

    def _evidence_with_stacks(self) -> list[Evidence]:
        assert self._line is not None
        evidence, running = self.evidence(), [worker for worker in self.workers if worker.state == "running"]
        before = {worker.trace: _size(worker.trace) for worker in running}
        with contextlib.suppress(OSError):
            self._line.signal([worker.pid for worker in running], ASK)  # answered inside C calls, too
            give_up = time.perf_counter() + 1.0
            while time.perf_counter() < give_up and any(_size(path) == size for path, size in before.items()):
                time.sleep(0.01)
            time.sleep(0.02)  # the last lines of the last one
        for e, worker in zip(evidence, self.workers):
            if worker.state in ("died", "running"):
                e.stack = parse_trace(worker.trace)
            if worker.state == "died":
                frames = cut(e.stack[::-1], lambda at: at[0])
                e.traceback = "".join(f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames)
            worker.err.forward(last=True)
            e.output = "\n".join(worker.err.tail(8))
        return evidence


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else -1


def check_size(size: Any) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise LabError(f"size={size!r} must be a whole number of ranks, at least 1")


def check_timeout(timeout: Any) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise LabError(f"timeout={timeout!r} must be a number of seconds above 0, or None for no deadline")
