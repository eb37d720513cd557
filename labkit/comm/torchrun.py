"""Ranks that torchrun started: this process is one of them. Every rank calls `run_ranks` and gets all results.

The first rank to notice a failure collects the evidence and reports; the others leave silently. With `timeout=None`
there is no deadline and no search for deadlocks.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from labkit.comm.autopsy import Evidence, Results
from labkit.comm.callsite import describe_error, stack_of
from labkit.comm.diagnose import refuse_wrong
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.serialization import pack, pack_value, unpack
from labkit.comm.supervisor import DEADLINE, FAILED, Medium, failure, supervise
from labkit.comm.transport import NO_LIMIT, join, stay_inside
from labkit.errors import LabError

PATIENCE = timedelta(minutes=10)  # a start that does not come together in it ends
SAYS = 10.0  # seconds until it is said for whom a rank waits
ANSWER = 3.0  # seconds that the others get to send their evidence
LEAVE = 2.0  # seconds after the report before they leave, so that it is printed first
SILENT = 3.0  # seconds without a beat of a rank until one that is asked to end no longer waits for it
RECENT = 2000  # events of each ledger that travel on failure, by the store


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: leaving matters more
        sys.stderr.write(text)
        sys.stderr.flush()


def _leave(text: str = "") -> NoReturn:
    """End this process now, also from inside a C call of the main thread."""
    _say(text)
    os._exit(1)


class Attempt:
    """One start of the ranks: `store()` connects to its own part of the store. LabError: not all came within PATIENCE."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.address, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.missing: list[int] | None = None  # None: nothing has answered yet
        # With the agent's store nobody serves one; otherwise rank 0 does, unless its program already has.
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        serves = self.rank == 0 and not agents and not dist.is_initialized()
        said = threading.Timer(SAYS, lambda: print(f"labkit: {self._waits(SAYS)}", file=sys.stderr, flush=True))
        said.daemon = True
        said.start()
        try:
            self._base = self._connect(serves)
            self.name = self._agree(self._base)
        except (dist.DistError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise LabError(f"{self._waits(PATIENCE.total_seconds())}; gave up: {first}") from None
        finally:
            said.cancel()

    def store(self) -> dist.Store:
        return dist.PrefixStore(f"labkit/{self.name}", self._connect(False))

    def _connect(self, serves: bool) -> dist.TCPStore:
        how: dict[str, Any] = dict(is_master=serves, wait_for_workers=False, multi_tenant=True, timeout=PATIENCE)
        return dist.TCPStore(self.address, self.port, self.size, **how)

    def _agree(self, store: dist.Store) -> str:
        # torchrun starts dead ranks again on the store of the first time, where keys of the dead are still, and its
        # restart count begins anew. So each leaves a random word; rank 0 proposes all words that it finds; who finds
        # their own agrees.
        self.missing = list(range(self.size))
        came = [f"labkit/came/{rank}" for rank in self.missing]
        word, until = uuid.uuid4().hex, time.monotonic() + PATIENCE.total_seconds()
        store.set(came[self.rank], word)
        while time.monotonic() < until:
            if self.rank == 0:
                self.missing = [rank for rank, key in enumerate(came) if not store.check([key])]
                if not self.missing:
                    store.set("labkit/proposed", ".".join(store.get(key).decode() for key in came))
            words = store.get("labkit/proposed").decode() if store.check(["labkit/proposed"]) else ""
            if word in words.split("."):
                name = uuid.uuid5(uuid.NAMESPACE_OID, words).hex
                agreed = [f"labkit/{name}/agreed/{rank}" for rank in range(self.size)]
                store.set(agreed[self.rank], "1")
                if store.check(agreed):
                    return name
                self.missing = [rank for rank, key in enumerate(agreed) if not store.check([key])]
            time.sleep(0.02)
        raise OSError("not all ranks came")

    def _waits(self, seconds: float) -> str:
        others = ", ".join(str(rank) for rank in self.missing or () if rank != self.rank)
        whom = f"rank {others}" if self.missing is not None else "an answer"
        return (
            f"rank {self.rank} of {self.size} has waited {seconds:.0f} s for {whom} at {self.address}:{self.port}, "
            "since RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set; if no launcher started the others, unset them"
        )


class _Home:
    """What this process keeps between calls: its process group and its connection to the store."""

    def __init__(self, device: str) -> None:
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            stay_inside()
        joined, self.attempt = dist.is_initialized(), Attempt()  # kept: it may serve the store
        self.rank, self.size = self.attempt.rank, self.attempt.size
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.transport = join(device, local, store=self.attempt.store(), rank=self.rank, world_size=self.size)
        if not joined:
            atexit.register(self._leave_group)
        # For what stands around a job: calls that it left behind in its own groups cannot meet with that.
        self.around = dist.new_group(backend="gloo", timeout=NO_LIMIT)
        # A connection of our own: the group's may stand in a blocking wait while the watch needs an answer.
        self.store = self.attempt.store()
        self.jobs, self.failed, self.parent = 0, False, os.getppid()
        self.ending = False  # by SIGTERM to end
        # A signal is heard here also while the main thread stands in a C call, where no handler of Python's runs.
        self.signals, heard = os.pipe()
        os.set_blocking(self.signals, False)
        os.set_blocking(heard, False)
        with contextlib.suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(heard, warn_on_full_buffer=False)

    def heard(self) -> bool:
        """Whether SIGTERM has come."""
        with contextlib.suppress(BlockingIOError):
            self.ending = self.ending or signal.SIGTERM in os.read(self.signals, 4096)
        return self.ending

    def _leave_group(self) -> None:
        if not self.failed and dist.is_initialized():
            dist.destroy_process_group()
        elif self.failed and self.heard():  # all is said, and taking a torch apart takes seconds on a busy machine
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            _leave()


_home: _Home | None = None


def run(fn: Callable, args: tuple, size: int | None, timeout: float | None, device: str) -> Results:
    """Run `fn(group, *args)` as this process's rank. See labkit.comm.ranks.run_ranks."""
    global _home
    world = int(os.environ["WORLD_SIZE"])
    if size is not None and size != world:
        raise LabError(f"torchrun started {world} ranks, but size={size}: leave size out, or start {size}")
    if _home is None:
        _home = _Home(device)
    elif (joined := _home.transport.device.type) != device:
        raise LabError(f"these ranks were joined for device={joined!r}: use the same device in every run_ranks")
    return _Job(_home, timeout).run(fn, args)


class _Job(Medium):
    """One run, seen from one of its ranks, who sees no other's ledger before the run has failed. The supervisor has a
    thread of its own."""

    def __init__(self, home: _Home, timeout: float | None) -> None:
        self.home, self.timeout = home, timeout
        home.jobs += 1
        self.store = dist.PrefixStore(f"job/{home.jobs}", home.store)
        self.rank, self.size = home.rank, home.size
        self.state, self.published, self.guard = "running", False, threading.Lock()
        self.over = threading.Event()
        self.main = threading.get_ident()
        self.beats: dict[int, tuple[int, float]] = {}  # since then, of each rank: its last beat, and when it came

    def run(self, fn: Callable, args: tuple) -> Results:
        dist.barrier(self.home.around)
        self.ledger = Ledger(self.rank, self.size)
        self.deadline = time.perf_counter() + self.timeout if self.timeout is not None else float("inf")
        watch = threading.Thread(target=self._watch, name="labkit watch", daemon=True)
        watch.start()
        try:
            value = fn(Group(self.home.transport, self.ledger), *args)
            data = pack_value((value, self.ledger))
            self.state, found = "returned", [b""] * self.size
            dist.all_gather_object(found, data, self.home.around)  # the watch ends us if one that still runs fails
        except (Exception, SystemExit) as error:
            self._report(FAILED, error)  # raises RanksFailed, or never returns
        self.over.set()
        watch.join()
        dist.barrier(self.home.around)  # nobody needs the store any more, which goes with the rank that serves it
        values, ledgers = map(list, zip(*map(unpack, found)))
        refuse_wrong(ledgers, "torchrun")
        return Results(values, ledgers)

    # -- for the supervisor ---------------------------------------------------------------------------------------
    def _watch(self) -> None:
        try:
            reason = supervise(self)
            if reason == DEADLINE:
                self._report(reason)
            elif reason is not None:
                self._follow()
        except Exception as error:  # nobody is left who would end us
            if not self.over.is_set():
                _leave(f"rank {self.rank}: torchrun does not answer ({error}); leaving\n")

    def wait(self, seconds: float) -> None:
        self.over.wait(0.1 if self.timeout is not None else 0.5)
        if os.getppid() != self.home.parent:
            raise OSError("its agent has died")
        self.store.add(f"beat/{self.rank}", 1)
        now, asked = time.perf_counter(), self.home.heard() and not self.over.is_set()
        for rank in range(self.size if asked else 0):
            # If it is dead or stopped a collective with it never returns: leave now.
            beat = self.store.add(f"beat/{rank}", 0)
            if rank not in self.beats or self.beats[rank][0] != beat:
                self.beats[rank] = beat, now
            elif now - self.beats[rank][1] > SILENT:
                _leave(f"rank {self.rank}: asked to end, and rank {rank} does not answer; leaving\n")

    def states(self) -> list[str]:
        """All at once: who reports has given the others their grace."""
        state = "returned" if self.over.is_set() else "raised" if self.store.check(["failed"]) else "running"
        return [state] * self.size

    def late(self) -> bool:
        return time.perf_counter() >= self.deadline

    # -- failure --------------------------------------------------------------------------------------------------
    def _report(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """Be the one who reports, or follow the first. With an error (main thread): raise. Else: print and leave."""
        self.home.failed = True
        self._publish(error)
        if int(self.store.compare_set("failed", "", str(self.rank))) != self.rank:
            self._follow()
        self.over.set()
        failed = failure(self.evidence(), reason, timeout=self.timeout, backend="torchrun")
        failed.error = error
        if error is None:
            _say(f"{failed}\n")
        self.store.set("reported", "1")
        if error is None:
            _leave()
        raise failed from None

    def _follow(self) -> NoReturn:
        """Another rank reports: give evidence, wait until it has, leave without a word."""
        self._publish()
        give_up = time.perf_counter() + 2 * ANSWER
        while not self.store.check(["reported"]) and time.perf_counter() < give_up:
            time.sleep(0.05)
        time.sleep(LEAVE)
        _leave()

    def _publish(self, error: BaseException | None = None) -> None:
        """Put this rank's evidence into the store, once."""
        with self.guard:
            if self.published:  # what it was doing first is the truth, later errors follow from it
                return
            self.published = True
            ledger, events = copy(self.ledger), list(self.ledger.events)
            ledger.events, ledger.dropped = events[-RECENT:], ledger.dropped + len(events[:-RECENT])
            where = describe_error(error) if error is not None else {"stack": stack_of(self.main)}
            state = "raised" if error is not None else self.state
            evidence = Evidence(self.rank, ledger, state, now=ledger.now(), order=time.time(), **where)
            self.store.set(f"evidence/{self.rank}", pack(evidence))  # type: ignore[arg-type]  # it takes bytes as well

    def evidence(self) -> list[Evidence]:
        """What the ranks have published, once they had time to."""
        keys = [f"evidence/{r}" for r in range(self.size)]
        give_up = time.perf_counter() + ANSWER
        while not self.store.check(keys) and time.perf_counter() < give_up:
            time.sleep(0.05)
        why = "It did not answer: its process has died, or a C call holds the interpreter"
        found = [Evidence(rank, Ledger(rank, self.size), note=why) for rank in range(self.size)]
        return [unpack(self.store.get(key)) if self.store.check([key]) else e for key, e in zip(keys, found)]
