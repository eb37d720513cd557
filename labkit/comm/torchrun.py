"""Ranks that torchrun started: this process is one of them. Every rank calls `run_ranks` and gets all results.

The first rank to notice a failure collects the evidence and reports; the others leave silently. With `timeout=None`
there is no deadline and no search for deadlocks.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import torch
import torch.distributed as dist

from labkit.comm.attempt import Attempt
from labkit.comm.autopsy import Evidence, Results
from labkit.comm.callsite import describe_error, stack_of
from labkit.comm.diagnose import refuse_wrong
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.serialization import pack_value, unpack
from labkit.comm.supervisor import DEADLINE, FAILED, failure, supervise
from labkit.comm.transport import join, stay_inside
from labkit.errors import LabError

ANSWER = 3.0  # seconds that the others get to send their evidence
LEAVE = 2.0  # seconds after the report before they leave, so that it is printed first
SILENT = 3.0  # seconds without a beat of a rank until one that is asked to end no longer waits for it
RECENT = 2000  # events of each ledger that travel on failure
PIECE = 4 << 20  # bytes of one message to the store, which hangs up on more than 8 MiB


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: leaving matters more
        sys.stderr.write(text)
        sys.stderr.flush()


def _leave(text: str = "") -> NoReturn:
    """End this process now, also from inside a C call of the main thread."""
    _say(text)
    os._exit(1)


class _Home:
    """What this process keeps between calls: its process group and its connection to the store."""

    def __init__(self, device: str) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        if one_machine:
            stay_inside()
        if device == "cuda" and local >= (have := torch.cuda.device_count()):
            raise LabError(f"local rank {local} has no GPU, there are {have}: start fewer, or use device='cpu'")
        joined, self.attempt = dist.is_initialized(), Attempt()  # kept: it may serve the store
        self.transport = join(device, local, store=self.attempt.store(), rank=self.rank, world_size=self.size)
        if not joined:
            atexit.register(self._leave_group)
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
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        start = f"torchrun --nproc-per-node {size or 4} ..."
        raise LabError(f"backend='torchrun' needs a program started by {start} ({', '.join(missing)} not set)")
    world = int(os.environ["WORLD_SIZE"])
    if size is not None and size != world:
        raise LabError(f"torchrun started {world} ranks, but size={size}: leave size out, or start {size}")
    if _home is None:
        _home = _Home(device)
    elif (joined := _home.transport.device.type) != device:
        raise LabError(f"these ranks were joined for device={joined!r}: use the same device in every run_ranks")
    return _Job(_home, timeout).run(fn, args)


class _Job:
    """One run, seen from one of its ranks: what the supervisor, on a thread of its own, can know of the others."""

    fault = None

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
        self._meet("start")
        self.ledger = Ledger(self.rank, self.size)
        self.deadline = time.perf_counter() + self.timeout if self.timeout is not None else float("inf")
        watch = threading.Thread(target=self._watch, name="labkit watch", daemon=True)
        watch.start()
        try:
            value = fn(Group(self.home.transport, self.ledger), *args)
            data = pack_value((value, self.ledger.to_json()))
        except (Exception, SystemExit) as error:
            self._report(FAILED, error)  # raises RanksFailed, or never returns
        self.state = "returned"
        self._put(f"value/{self.rank}", data)
        keys = [f"value/{r}" for r in range(self.size)]
        while not self.store.check(keys):  # others still run; the watch ends us if one of them fails
            time.sleep(0.01)
        self.over.set()
        watch.join()
        values, ledgers = zip(*(unpack(self._get(key)) for key in keys))
        if self.rank > 0:
            self.store.add("left", 1)
        else:
            self._meet("left")  # it may serve the store, so it is the last to leave
            for key in keys:
                for number in range(int(self.store.get(key))):
                    self.store.delete_key(f"{key}/{number}")
                self.store.delete_key(key)
        results = Results(values, [*map(Ledger.from_json, ledgers)])
        refuse_wrong(results.ledgers, "torchrun")
        return results

    def _put(self, key: str, data: bytes) -> None:
        # In pieces, and how many under the key itself, last: the key is there when all of them are. A ledger of a long
        # run alone is 20 MB.
        pieces = range(0, len(data), PIECE)
        for number, start in enumerate(pieces):
            piece = data[start : start + PIECE]
            self.store.set(f"{key}/{number}", piece)  # type: ignore[arg-type]  # it takes bytes as well
        self.store.set(key, str(len(pieces)))

    def _get(self, key: str) -> bytes:
        return b"".join(self.store.get(f"{key}/{number}") for number in range(int(self.store.get(key))))

    def _meet(self, name: str) -> None:
        self.store.add(name, 1)
        while self.store.add(name, 0) < self.size:
            time.sleep(0.005)

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
        if self.home.heard() and not self.over.is_set():
            self._leave_the_dead()

    def _leave_the_dead(self) -> None:
        """Asked to end: leave now if a rank is dead or stopped, for a collective with it never returns."""
        now = time.perf_counter()
        for rank in range(self.size):
            beat = self.store.add(f"beat/{rank}", 0)
            if rank not in self.beats or self.beats[rank][0] != beat:
                self.beats[rank] = beat, now
            elif now - self.beats[rank][1] > SILENT:
                _leave(f"rank {self.rank}: asked to end, and rank {rank} does not answer; leaving\n")

    def states(self) -> list[str]:
        """All at once: who reports has given the others their grace."""
        state = "returned" if self.over.is_set() else "raised" if self.store.check(["failed"]) else "running"
        return [state] * self.size

    def moves(self) -> object:
        return None

    def blocked(self) -> bool:
        return False  # no rank sees the others' ledgers before a run has failed

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
            data = self.ledger.to_json()
            data["dropped"] += max(0, len(data["events"]) - RECENT)
            data["events"] = data["events"][-RECENT:]
            where = describe_error(error) if error is not None else {"stack": stack_of(self.main)}
            state = "raised" if error is not None else self.state
            evidence = {**where, "state": state, "now": self.ledger.now(), "order": time.time(), "ledger": data}
            self.store.set(f"evidence/{self.rank}", json.dumps(evidence))

    def evidence(self) -> list[Evidence]:
        """What the ranks have published, once they had time to."""
        keys = [f"evidence/{r}" for r in range(self.size)]
        give_up = time.perf_counter() + ANSWER
        while not self.store.check(keys) and time.perf_counter() < give_up:
            time.sleep(0.05)
        found = []
        for rank, key in enumerate(keys):
            if self.store.check([key]):
                data = json.loads(self.store.get(key))
                found.append(Evidence(rank, Ledger.from_json(data.pop("ledger")), **data))
            else:
                why = "It did not answer: its process has died, or a C call holds the interpreter"
                found.append(Evidence(rank, Ledger(rank, self.size), note=why))
        return found
