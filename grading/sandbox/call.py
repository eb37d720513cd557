"""The ranks of one call, from fork to verdict, watched from outside.

It ends as every run of ranks does (labkit.comm.supervisor), or when the submission uses too much of anything.

The deadline is fair on a busy machine. What counts is the time in which the ranks could run: a process that waited for
a processor, as the kernel counts it, did not. A call that has had too little of it when even the stretched deadline is
over is the grader's fault, not the student's. But only what others take is waiting: ranks that stand in each other's
way, or in that of what they have started, had the machine (`watch.Room`).
"""

import math
import os
import re
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from grading.sandbox import watch
from grading.sandbox.box import Box, BoxFailed, Rank
from grading.sandbox.broker import Broker, Endpoint
from grading.sandbox.command import outside
from grading.sandbox.frames import Broken, clean
from labkit.checks.verdict import CRASHED, FAULT, FORBIDDEN, HUNG, NOT_ATTEMPTED, OUT_OF_MEMORY, PASSED
from labkit.comm.autopsy import Autopsy, Evidence
from labkit.comm.diagnose import examine
from labkit.comm.processor import ENOUGH, STRETCH, lost, since, times
from labkit.comm.supervisor import DEADLINE, FAILED, failure, supervise

GROWS = 64  # a share of the memory it may use: what takes as much in a while is on its way to the limit
LATELY = 2.0  # seconds of that while: on a busy machine nothing may happen between two looks
LOOK = 0.2  # seconds between two looks at memory
MAX_OUTPUT = 16 << 20  # bytes that a rank may print
SHOWN = 4000  # characters of it that are kept
MAX_PROCESSES = 400  # in the whole tree, whatever the limits of one rank allow
MAX_FILES = 2000  # open in the whole tree: each may be a socket with 200 kB in it
CROWD = 0.5  # helpers of the ranks that want a processor, as a share of the processors


@dataclass
class End:
    """How a call ended. `verdict` PASSED means that every rank answered; `answers` are packed values by rank.

    autopsy   for hangs and crashes: see labkit.comm.autopsy
    fatal     the sandbox is no longer usable
    lost      seconds in which its ranks could not run, since others had the machine
    """

    verdict: str
    text: str = ""
    autopsy: Autopsy | None = None
    answers: list[bytes] = field(default_factory=list)
    ledgers: list = field(default_factory=list)
    printed: str = ""
    fatal: bool = False
    lost: float = 0.0


class Ended(Exception):
    """The call ends so, whatever its ranks are doing."""

    def __init__(self, verdict: str, text: str, fatal: bool = False) -> None:
        super().__init__(text)
        self.end = End(verdict, text, fatal=fatal)


class Call:
    """`run()` it once. `jobs` are a (head, body) for each rank; `seconds` is the deadline. Nothing that the submission
    does makes it last longer than `most`."""

    def __init__(
        self, box: Box, jobs: list[tuple[dict, bytes]], seconds: float, baseline: int, most: float = math.inf
    ) -> None:
        self.box, self.seconds, self.baseline = box, seconds, baseline
        self.most = max(seconds, min(STRETCH * seconds, most))
        weighed = jobs[0][0].get("weighed", False)
        self.ranks: list[Rank] = box.fork(len(jobs), jobs[0][0].get("without", ()), weighed)
        self.broker = Broker([rank.link for rank in self.ranks], box.off, self._weigher() if weighed else None)
        self.jobs = jobs
        self.begin = time.monotonic()
        self.output = [b""] * len(jobs)
        self.printed = [0] * len(jobs)
        self.selector = selectors.DefaultSelector()
        for rank, connections in enumerate(self.ranks):
            self.selector.register(connections.link, selectors.EVENT_READ, ("link", rank))
            self.selector.register(connections.output, selectors.EVENT_READ, ("output", rank))
        self.selector.register(box.link, selectors.EVENT_READ, ("box", 0))
        self.stacks: dict[int, list[tuple[str, int, str]]] = {}
        self.mains: list[int] = []  # the ranks' own processes, as seen from here
        self.looked, self.own = self.begin, times(os.getpid())
        self.looks = self.helpers = self.held = 0
        self.overdue = False
        # Until two looks can be compared nobody knows: a rank is born with what it shares with its siblings.
        self.growing = "watch" not in box.off
        self.past: deque[tuple[float, int]] = deque()  # (time, bytes held) of its looks, lately
        self.room = watch.Room()
        self.lost = 0.0  # seconds up to the last look in which the ranks could not run
        self._ended()  # of those that ended while they were made, nobody will hear again

    def _weigher(self) -> Callable[[int], int]:
        """What tells the bytes that a rank holds."""
        level = len(watch.inside(self.box.zygote)) - 1  # a rank's id is its number among the zygote's processes
        by_id = {numbers[level]: pid for pid in watch.children(self.box.zygote) if (numbers := watch.inside(pid))}

        pids = [by_id.get(rank.id) for rank in self.ranks]
        own = [watch.unnamed(pid) if pid is not None else frozenset() for pid in pids]  # no student's code has run yet
        return lambda rank: watch.held(pid, own[rank]) if (pid := pids[rank]) is not None else 0

    def run(self) -> End:
        """Watch until it ends, then kill what is left of it."""
        try:
            try:
                weigh = self.broker.weigh
                if weigh is not None and not all(map(weigh, range(len(self.ranks)))):
                    raise BoxFailed("this kernel does not tell what memory a rank holds")
                for endpoint, (head, body) in zip(self.broker.endpoints, self.jobs):  # until now no code of a student's
                    self.broker.send(endpoint, "job", head, body)
                reason = supervise(self)
                end = self._answered() if reason is None else self._failed(reason)
            except Ended as over:
                end = over.end
            except Broken as broken:
                end = End(FORBIDDEN, f"a rank did not keep to the rules of its connection: {broken}")
            except BoxFailed as error:
                end = End(FAULT, str(error), fatal=True)
            self._finish(end)
            end.lost = self.lost
            return end
        finally:
            self.selector.close()
            for rank in self.ranks:
                rank.close()

    # -- what the supervisor asks -----------------------------------------------------------------------------------
    @property
    def fault(self) -> str | None:
        return self.broker.fault

    def wait(self, seconds: float) -> None:
        """Whatever the ranks and the sandbox have to say. Raises Ended for what is no deadline and no failure."""
        self._take(max(0.0, min(seconds, 0.05)))
        now = time.monotonic()
        if now - self.looked > LOOK:
            self._look(now)

    def states(self) -> list[str]:
        return [endpoint.state for endpoint in self.broker.endpoints]

    def moves(self) -> object:
        return self.broker.version

    def blocked(self) -> bool:
        return all(endpoint.blocked for endpoint in self.broker.endpoints if endpoint.state == "running")

    def late(self) -> bool:
        """The deadline, in which the ranks must have been able to run. Raises Ended where they were not, for long."""
        spent = time.monotonic() - self.begin
        if spent < self.seconds or "deadline" in self.box.off:
            return False
        able = self._able(spent)
        if able >= ENOUGH * self.seconds or self._crowded():
            # Too late it is. What takes more and more memory is heard out, to get the same verdict on a slow machine.
            self.overdue = self.growing and spent < self.most
            return not self.overdue
        if spent >= STRETCH * self.seconds:
            raise Ended(
                FAULT,
                f"the machine is overloaded: of {spent:.0f} s this call's processes could run for "
                f"{max(0.0, able):.1f} s; it says nothing about the submission: try it again alone",
            )
        return False

    def evidence(self) -> list[Evidence]:
        return [self._evidence(endpoint) for endpoint in self.broker.endpoints]

    # -- watching ---------------------------------------------------------------------------------------------------
    def _take(self, wait: float) -> None:
        """Whatever the ranks and the sandbox have to say."""
        for endpoint in self.broker.endpoints:
            if endpoint.outbox:
                self.broker.write(endpoint)
                wait = min(wait, 0.002)
        for key, _ in self.selector.select(wait):
            what, rank = key.data
            if what == "link":
                if not self.broker.read(self.broker.endpoints[rank]):
                    self.selector.unregister(key.fileobj)
            elif what == "output":
                self._print(rank, key.fd)
            else:
                self._ended()

    def _print(self, rank: int, descriptor: int) -> None:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(descriptor)
        self.printed[rank] += len(data)
        self.output[rank] += data[: max(0, 4 * SHOWN - len(self.output[rank]))]
        if self.printed[rank] > MAX_OUTPUT and "output" not in self.box.off:
            raise Broken(f"rank {rank} printed more than {MAX_OUTPUT >> 20} MiB")

    def _ended(self) -> None:
        by_id = {rank.id: (endpoint, rank) for endpoint, rank in zip(self.broker.endpoints, self.ranks)}
        for id, status in self.box.ended():
            if id in by_id:
                endpoint, rank = by_id[id]
                rank.status = status
                self.broker.read(endpoint)  # its last words may still be on the way
                if endpoint.state == "running":
                    endpoint.state, endpoint.changed = "died", time.perf_counter()
        if not self.box.alive:
            raise BoxFailed("the sandbox ended by itself")

    # -- time and limits --------------------------------------------------------------------------------------------
    def _able(self, spent: float) -> float:
        """Seconds for which the ranks that still run could run, had they and what they started not been in their own
        way. While the judge who carries their messages waits for a processor, they could not; while it computes they
        could: it is their messages and their processes that it computes for."""
        judge = since(self.own, times(os.getpid()))
        able = spent - lost(spent, [*map(times, self.mains), judge])
        if "excuse" not in self.box.off:
            able = max(able, min(spent, self.room.each(len(self.mains))))
        return able

    def _crowded(self) -> bool:
        """Whether the submission's own further processes and threads keep the machine busy: then it is no excuse that
        its ranks had to wait."""
        return "excuse" not in self.box.off and self.helpers > self.looks * CROWD * len(os.sched_getaffinity(0))

    def _look(self, now: float) -> None:
        """At what it uses. Raises Ended if that is too much."""
        self.looked = now
        zygote = self.box.zygote
        pids = [pid for pid in watch.tree(self.box.pid)[2:] if pid != zygote]  # without bubblewrap's two
        self.mains = watch.children(zygote)
        helpers, every = watch.running(pids, self.mains)
        self.looks, self.helpers = self.looks + 1, self.helpers + helpers
        self.room.look(every, pids)
        spent = now - self.begin
        self.lost = 0.0 if self._crowded() else max(self.lost, min(spent, spent - self._able(spent)))
        if "watch" in self.box.off:
            return
        if len(pids) > MAX_PROCESSES:
            raise Ended(CRASHED, f"it had started {len(pids)} processes; {MAX_PROCESSES} is the limit", fatal=True)
        # What lies in sockets and pipes is the kernel's memory, which no process's size shows.
        if (files := sum(map(watch.files, pids))) > MAX_FILES:
            raise Ended(OUT_OF_MEMORY, f"it had {files} files open; {MAX_FILES} is the limit", fatal=True)
        self.held = watch.at_most(pids)
        self.past.append((now, self.held))
        while self.past[0][0] < now - LATELY:
            self.past.popleft()
        self.growing = len(self.past) < 2 or self.held - self.past[0][1] > self.box.limits.tree / GROWS
        if self.held <= self.box.limits.tree:
            return
        used = watch.memory_of([zygote, *pids]) - self.baseline
        if used > self.box.limits.tree:
            raise Ended(
                OUT_OF_MEMORY,
                f"it used {used / 2**30:.1f} GiB of memory; a submission may use {self.box.limits.tree / 2**30:.1f}",
                fatal=True,
            )

    # -- what it means ----------------------------------------------------------------------------------------------
    def _answered(self) -> End:
        if self.overdue:
            return End(HUNG, f"it answered only after its deadline of {self.seconds:g} s")
        ledgers = [endpoint.ledger for endpoint in self.broker.endpoints]
        wrong = examine(ledgers)
        if wrong is not None:
            return End(CRASHED, autopsy=wrong, ledgers=ledgers)
        return End(PASSED, answers=[endpoint.answer for endpoint in self.broker.endpoints], ledgers=ledgers)

    def _failed(self, reason: str) -> End:
        endpoints = self.broker.endpoints
        first = min((m for m in endpoints if m.state == "raised"), key=lambda m: m.changed, default=None)
        if first is not None and not self.broker.fault:
            kind, text = first.failure["kind"], first.failure["text"]
            if kind == "unfinished":
                return End(NOT_ATTEMPTED, text.partition(": ")[2])
            if kind == "memory":
                return End(OUT_OF_MEMORY, f"rank {first.rank}: {text}")
        killed = [m.rank for m, r in zip(endpoints, self.ranks) if m.state == "died" and r.status == -signal.SIGKILL]
        if killed:
            # Not ours, and a rank cannot send it to itself: the kernel was out of memory, or a person did it.
            return End(FAULT, f"rank {killed[0]} was killed from outside the sandbox: this machine is short of memory?")
        own = [
            m.rank for m, r in zip(endpoints, self.ranks) if m.state == "died" and r.status == 120 and not m.born
        ]  # once it is shut in, any status is its own
        if own:
            return End(FAULT, f"rank {own[0]} could not be shut in: {self._said(own[0])}")
        fatal = reason == DEADLINE and not self._where()
        failed = failure(self.evidence(), reason, timeout=self.seconds, backend="sandbox", fault=self.broker.fault)
        verdict = CRASHED if reason == FAILED else HUNG
        return End(verdict, autopsy=failed.autopsy, ledgers=failed.ledgers, fatal=fatal)

    def _evidence(self, endpoint: Endpoint) -> Evidence:
        e = Evidence(endpoint.rank, endpoint.ledger, endpoint.state, now=endpoint.ledger.now(), order=endpoint.changed)
        status = self.ranks[endpoint.rank].status
        if endpoint.state == "died" and status is not None:
            e.status = status
            e.output = self._said(endpoint.rank)[-2000:]
        elif endpoint.state == "raised":
            e.text, e.traceback = endpoint.failure["text"], endpoint.failure["traceback"]
            e.stack = outside(endpoint.failure["stack"])
        elif endpoint.state == "running":
            e.stack = outside(self.stacks.get(endpoint.rank, []))
        return e

    def _where(self) -> bool:
        """Kill the ranks; on the way they write down where they are. What they write is a claim, and shown as such.
        Returns whether they ended in time; if not, the next call needs a new sandbox."""
        try:
            self._kill(ask=True)
        except BoxFailed:
            return False
        for rank, connections in enumerate(self.ranks):
            try:
                text = os.read(connections.trace, 1 << 16).decode("utf-8", "replace")
            except OSError:
                continue
            frames = re.findall(r'^  File "(.{1,300}?)", line (\d{1,9}) in (.{1,100})$', text, re.M)
            self.stacks[rank] = [(clean(file, 300), int(number), clean(name, 100)) for file, number, name in frames]
        return True

    # -- the end ----------------------------------------------------------------------------------------------------
    def _kill(self, ask: bool = False) -> None:
        """End all ranks, and wait until the zygote says so; a sandbox in which that fails is ended whole."""
        self.box.kill([rank for rank in self.ranks if rank.status is None], ask)
        deadline = time.monotonic() + 5.0
        by_id = {rank.id: rank for rank in self.ranks}
        while any(rank.status is None for rank in self.ranks):
            for id, status in self.box.ended(0.2):
                if id in by_id:
                    by_id[id].status = status
            if not self.box.alive or time.monotonic() > deadline:
                raise BoxFailed("the sandbox did not end its ranks")

    def _finish(self, end: End) -> None:
        if not end.fatal:
            try:
                self._kill()
            except BoxFailed:
                end.fatal = True  # the verdict stands; the next call gets a new sandbox
        for rank, connections in enumerate(self.ranks):
            try:
                while len(self.output[rank]) < 4 * SHOWN and (data := os.read(connections.output, 1 << 16)):
                    self.output[rank] += data
            except OSError:
                pass
        parts = [
            (f"[rank {rank}] " if len(self.ranks) > 1 else "") + text
            for rank in range(len(self.ranks))
            if (text := self._said(rank))
        ]
        end.printed = "\n".join(parts)

    def _said(self, rank: int) -> str:
        return clean(self.output[rank].decode("utf-8", "replace"), SHOWN).strip("\n")
