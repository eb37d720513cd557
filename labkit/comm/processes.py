"""Ranks as processes of their own: what the caller does.

A `Crew` has `size` rank processes forked by the helper (labkit.comm.forkserver) and joined to one process group. For
each job it sends the function, reads results, output and exit statuses as they come, keeps the deadline, and, when a
run fails, takes the evidence (the ledgers on disk, tracebacks asked for by a signal, exit statuses), ends the ranks
and writes the autopsy.

The deadline counts from the moment all ranks have imported what the job needs: a slow `import` is not a slow algorithm.
What ranks print appears on the caller's stdout and stderr, line by line with the rank in front, so it shows up in the
notebook cell or the test that ran them.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from labkit.comm import worker
from labkit.comm.diagnose import diagnose, refuse_wrong
from labkit.comm.ledger import Ledger, read_sink
from labkit.comm.member import Member, parse_trace
from labkit.comm.outcome import Evidence, RanksFailed, Results
from labkit.comm.serialization import frame, pack, pack_job, unpack
from labkit.errors import LabError

GRACE = 0.5  # seconds for the others once one has raised or died
STILL = 1.0  # seconds without any progress before a deadlock is believed
LOOK = 0.25  # seconds between two looks at the ranks' progress
START_LIMIT = 120.0  # seconds for joining the process group
LOAD_LIMIT = 120.0  # seconds for importing what the job needs
OUTPUT_LIMIT = 4 << 20  # bytes that a rank may print in a job with a deadline: an endless print floods no notebook


class Crew:
    """`size` rank processes, started when a job needs them and kept until `close()` or a failure."""

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, device
        self.members: list[Member] = []
        self.directory = ""
        self.jobs = 0

    def run(self, fn: Callable, args: tuple, timeout: float | None) -> Results:
        """One job on all ranks. See labkit.comm.ranks.run_ranks."""
        if worker.importing_main:
            raise LabError(
                "this script starts ranks while it is being imported: put the lines that call run_ranks "
                'under `if __name__ == "__main__":` (every rank imports the script to find its functions)'
            )
        sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # results may hold the script's own classes
        job, needs = pack_job(fn, args)
        if any(_readable(m.report) for m in self.members):  # one died between two jobs
            self.close()
        finished = False
        try:
            if not self.members:
                self._start()
            results = self._run(job, needs, timeout)
            if results is None:  # a module that the ranks hold has changed on disk since they read it
                self.close()
                self._start()
                results = self._run(job, needs, timeout)
            finished = True
            return results
        finally:
            if not finished:  # failure, or Ctrl-C: nothing stays
                self.close()

    # -- start and end --------------------------------------------------------------------------------------------
    def _start(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="labkit-ranks-")
        setup = {
            "size": self.size,
            "device": self.device,
            "directory": self.directory,
            "cwd": os.getcwd(),
            "environ": dict(os.environ),
            "argv": sys.argv,
            "path": sys.path,
            "cores": _cores(),
        }
        for rank in range(self.size):
            self.members.append(Member(rank, self.size, setup))
        reason = self._watch("here", START_LIMIT)
        if reason:
            self._fail_early("could not join the process group")

    def close(self) -> None:
        """End all ranks and remove every trace of them."""
        members, self.members = self.members, []
        alive = [m for m in members if m.status is None]
        if alive:
            try:
                self._signal(alive, signal.SIGKILL)
            except LabError:
                pass  # the helper is gone, and its ranks with it
            for member in alive:
                if select.select([member.report], [], [], 10.0)[0]:
                    member.read_status()
        for member in members:
            for fd in (member.out, member.err):
                member.forward(fd, last=True)
            member.close()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = ""

    def _signal(self, members: list[Member], number: int) -> None:
        if members:
            members[0].helper.request({"do": "signal", "pids": [m.pid for m in members], "signal": int(number)})

    # -- one job --------------------------------------------------------------------------------------------------
    def _run(self, job: bytes, needs: dict[str, Any], timeout: float | None) -> Results | None:
        """Run the job; None if the ranks' code is out of date."""
        self.jobs += 1
        sink = os.path.join(self.directory, f"ledger{self.jobs}.{{rank}}")
        data = frame("job", pack(({"path": sys.path, "needs": needs, "sink": sink}, job)))
        for member in self.members:
            member.fresh(OUTPUT_LIMIT if timeout is not None else None)
            member.send(data)
        if self._watch("load", LOAD_LIMIT):
            self._fail_early("could not load the job")
        if any(m.stale for m in self.members):
            return None
        start = time.perf_counter()
        for member in self.members:
            member.phase = ""
            member.send(frame("go", pack(start)))
        reason = self._watch("done", timeout, start, sink)
        seconds = time.perf_counter() - start
        if reason:
            self._fail(reason, start, sink, timeout)
        for member in self.members:
            for fd in (member.out, member.err):
                member.forward(fd, last=True)
            _remove(sink.format(rank=member.rank))
        ledgers = [m.ledger for m in self.members]
        refuse_wrong(ledgers, "processes")
        values = [unpack(m.value) for m in self.members]
        if any(ledger.gaps for ledger in ledgers):
            self.close()  # a message that nobody recorded may still be under way: the next job must not receive it
        return Results(values, ledgers, seconds)

    def _watch(self, goal: str, limit: float | None, start: float | None = None, sink: str = "") -> str | None:
        """Serve the connections until every rank has reached `goal` (None), or there is a reason to end."""
        start = time.perf_counter() if start is None else start
        deadline = start + limit if limit is not None else float("inf")
        look, sizes, since, failed_at, asked = start + LOOK, None, start, None, False
        while True:
            now = time.perf_counter()
            if all(m.phase == goal for m in self.members):
                return None
            failed = [m for m in self.members if m.state in ("raised", "died")]
            if failed:
                failed_at = failed_at or now
                if now >= failed_at + GRACE or all(m.state != "running" for m in self.members):
                    return "failed"
            if now >= deadline:
                return "deadline"
            if sink and now >= look:
                look = now + LOOK
                latest = [_size(sink.format(rank=m.rank)) for m in self.members]
                latest.append(sum(m.state == "running" for m in self.members))
                if latest != sizes:
                    sizes, since, asked = latest, now, False
                elif not asked and not failed and now - since >= STILL:
                    asked = True  # once: as long as nothing moves, the answer stays the same
                    if diagnose([self._evidence(m, start, sink) for m in self.members], "").certain:
                        return "deadlock"
            self._serve(min(deadline, look if sink else now + 1.0, (failed_at or now) + GRACE) - now)

    def _serve(self, seconds: float) -> None:
        """Wait for something to happen on any connection, and deal with it."""
        reads: dict[int, Member] = {}
        for m in self.members:
            for fd in (m.out, m.err):
                reads[fd] = m
            if m.status is None:
                reads[m.report] = m
                reads[m.control.fileno()] = m
        writes = [m for m in self.members if m.to_send and m.status is None]
        poll = select.poll()
        for fd, m in reads.items():
            if fd not in m.ended:
                poll.register(fd, select.POLLIN)
        for m in writes:
            poll.register(m.control.fileno(), select.POLLIN | select.POLLOUT)
        for fd, what in poll.poll(max(0.0, min(seconds, 1.0)) * 1000):
            m = reads[fd]
            if what & select.POLLOUT:
                m.flush()
            if fd in (m.out, m.err):
                m.forward(fd)
            elif fd == m.report:
                self._take(m)  # a result that was sent before the end counts
                m.read_status()
            elif what & ~select.POLLOUT:
                self._take(m)

    def _take(self, m: Member) -> None:
        for kind, payload in m.take():
            m.phase = kind
            if kind == "load":
                m.stale = payload == b"stale"
            elif kind == "done":
                m.value, ledger = unpack(payload)
                m.ledger, m.state = Ledger.from_json(ledger), "returned"
            elif kind == "fail":
                m.failure, m.state, m.order = unpack(payload), "raised", time.perf_counter()

    # -- failure --------------------------------------------------------------------------------------------------
    def _evidence(self, m: Member, start: float, sink: str) -> Evidence:
        ledger = m.ledger or read_sink(sink.format(rank=m.rank), m.rank, self.size)
        e = Evidence(m.rank, ledger, m.state, now=time.perf_counter() - start, order=m.order)
        if m.state == "raised":
            e.error_text, e.traceback, e.stack = m.failure["text"], m.failure["traceback"], m.failure["stack"]
            e.error = _unpack_error(m.failure)
        elif m.state == "died":
            if os.WIFSIGNALED(m.status):
                e.signal = os.WTERMSIG(m.status)
            else:
                e.exitcode = os.WEXITSTATUS(m.status)
        return e

    def _fail(self, reason: str, start: float, sink: str, timeout: float | None) -> None:
        """Take the evidence, end the ranks, raise RanksFailed."""
        evidence = [self._evidence(m, start, sink) for m in self.members]
        silent = [m for m in self.members if m.state == "running"]
        stacks = self._ask_where(silent)
        for e, m in zip(evidence, self.members):
            if m.state == "died":
                e.stack = parse_trace(os.path.join(self.directory, f"trace{m.rank}"))
                e.traceback = "".join(
                    f'  File "{file}", line {line}, in {name}\n' for file, line, name in reversed(e.stack)
                )
            elif m.rank in stacks:
                e.stack = stacks[m.rank]
            m.forward(m.err, last=True)
            e.output = "\n".join(m.last_words.decode("utf-8", "replace").strip().splitlines()[-8:])
        autopsy = diagnose(evidence, reason if reason == "deadline" else "", timeout=timeout, backend="processes")
        error = next((e.error for e in evidence if e.rank == autopsy.guilty), None)
        raise RanksFailed(autopsy, [e.ledger for e in evidence], error)

    def _ask_where(self, members: list[Member]) -> dict[int, list[tuple[str, int, str]]]:
        """Each rank's main thread: (file, line, function), innermost first. Works inside C calls, too."""
        paths = {m.rank: os.path.join(self.directory, f"trace{m.rank}") for m in members}
        before = {rank: _size(path) for rank, path in paths.items()}
        try:
            self._signal(members, worker.ASK)
        except LabError:
            return {}
        give_up = time.perf_counter() + 1.0
        while time.perf_counter() < give_up and any(_size(path) == before[rank] for rank, path in paths.items()):
            time.sleep(0.01)
        time.sleep(0.02)  # the last lines of the last one
        return {rank: parse_trace(path) for rank, path in paths.items()}

    def _fail_early(self, what: str) -> None:
        """Before the function ran: the sentence is enough, there is nothing to dissect."""
        failed = min((m for m in self.members if m.state in ("raised", "died")), key=lambda m: m.order, default=None)
        if failed is None:
            late = [m.rank for m in self.members if m.phase not in ("here", "load")]
            raise LabError(f"the ranks {what} within {LOAD_LIMIT:g} s; late: ranks {late}")
        if failed.state == "raised":
            error = _unpack_error(failed.failure)
            if isinstance(error, LabError):
                raise error
            raise LabError(
                f"rank {failed.rank} {what}: {failed.failure['text']}\n{failed.failure['traceback']}"
            ) from error
        failed.forward(failed.err, last=True)
        words = failed.last_words.decode("utf-8", "replace").strip().splitlines()[-3:]
        raise LabError(f"rank {failed.rank} {what}: its process died (wait status {failed.status}) " + " ".join(words))


def _unpack_error(failure: dict[str, Any]) -> BaseException | None:
    try:
        return unpack(failure["error"]) if failure["error"] is not None else None
    except Exception:  # a class that only the rank could import
        return None


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
