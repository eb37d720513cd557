"""One sandbox, from outside: start it, have ranks forked in it, end ranks, end it.

Everything is killed with it: bubblewrap's own process dies with this one (--die-with-parent), and with it the process
namespace that all of the submission's processes live in.
"""

import contextlib
import json
import os
import platform
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grading.sandbox import filters, watch
from grading.sandbox.command import INSIDE, command
from labkit.comm.forkserver import ForkLine
from labkit.errors import LabError

START_LIMIT = 120.0  # seconds until torch is imported, on a machine that may be busy
ANSWER_LIMIT = 30.0  # seconds for forking ranks
LAST_WORD = 0.05  # seconds between "tell where you are" and the end
FIRST_UID = 0x6A0000  # as root, each sandbox's processes belong to a user id that nobody else has
BOXES = 64  # sandboxes of one process that have a user id each
MIB = 1 << 20
# What ranks find imported, since all or many need it: a sandbox holds labkit without what Python has compiled of it.
IMPORTED = (
    "torch",
    "numpy",
    "labkit.checks.remote",
    "labkit.checks.elsewhere",
    "labkit.checks.held",
    "labkit.comm.link",
    "labkit.comm.mesh",
    "labkit.comm.topology",
)


@dataclass(frozen=True)
class Limits:
    """What a submission may use.

    tree        bytes of memory of all its processes together, beyond what the idle sandbox holds
    memory      bytes of address space that one process may add
    disk        bytes of a file, of /tmp, of /dev/shm, each for every rank
    processes   a rank's processes and threads
    files       a process's open files
    uses        what of labkit is in the sandbox, beyond what every task has: see labkit.checks.boundary
    weeks       folders of earlier weeks, reference solutions and all, that the judged one imports: in there, too
    """

    tree: int = 2048 * MIB
    memory: int = 2048 * MIB
    disk: int = 64 * MIB
    processes: int = 64
    files: int = 256
    uses: tuple[str, ...] = ()
    weeks: tuple[str, ...] = ()


@dataclass
class Rank:
    """A forked rank's three connections, and what the zygote calls it."""

    id: int
    link: socket.socket
    output: int
    trace: int
    status: int | None = None  # its exit code when it has ended; minus the signal that ended it

    def close(self) -> None:
        self.link.close()
        for descriptor in (self.output, self.trace):
            os.close(descriptor)


class BoxFailed(Exception):
    """The sandbox does not work: the grader's matter, or the submission has destroyed it."""


@dataclass
class Box:
    """The sandbox of one submission at a time, whose package lies in `folder`. Use `start()`, then `fork`; `close()` at
    the end. What lies in `folder` may be exchanged while no rank is alive.

    A process forked from the one that started it may use it as well, and end it; but not two at a time.

    number  of this sandbox among those that this process has at a time
    off     defences to switch off, by name: for tests. Those of inside/jail.py, of command.py ("network",
            "files", "labkit", "environment", "readonly", "devices"), "user" (as root: become another user), of call.py
            ("deadline", "excuse", "output", "watch"), of runner.py ("text", "judging") and of broker.py ("broker")
    """

    folder: Path
    limits: Limits = Limits()
    off: frozenset[str] = frozenset()
    number: int = 0
    process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start bubblewrap and wait until torch is imported. BoxFailed with what it said, if it does not come."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start bubblewrap. `link` has something to read once `wait` will not wait long."""
        ours, theirs = socket.socketpair()
        self.link = ForkLine(ours)
        root = os.geteuid() == 0
        uid = FIRST_UID + os.getpid() % 65536 * BOXES + self.number
        settings = {
            "uid": uid if root and "user" not in self.off else None,
            "off": sorted(self.off),
            "import": IMPORTED,
            "uses": list(self.limits.uses),
            "filter": filters.program(platform.machine()).hex(),
            "clone": filters.number("clone", platform.machine()),
        }
        reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(
                command(
                    self.folder,
                    theirs.fileno(),
                    json.dumps(settings),
                    self.limits.disk,
                    self.off,
                    self.limits.uses,
                    self.limits.weeks,
                ),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=[theirs.fileno()],
                close_fds=True,
                start_new_session=True,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
        self.said = reader
        os.set_blocking(reader, False)
        self._life, self._owner = os.pidfd_open(self.pid), os.getpid()

    def wait(self) -> None:
        """Wait until torch is imported."""
        try:
            self.link.ready(START_LIMIT)
            self.zygote = (watch.tree(self.pid)[2:] or [0])[0]
            self._standing = watch.standing(self.zygote)
        except (OSError, EOFError) as error:
            why = self._why(error)
            self.close()
            raise BoxFailed(why) from None

    @property
    def alive(self) -> bool:
        return self.process is not None and not select.select([self._life], [], [], 0.0)[0]

    @property
    def idle(self) -> bool:
        """Whether nothing is in it but the zygote, as that was when it started."""
        return (
            self.alive and watch.tree(self.pid)[2:] == [self.zygote] and watch.standing(self.zygote) == self._standing
        )

    @property
    def pid(self) -> int:
        """The root of its processes."""
        assert self.process is not None
        return self.process.pid

    def processor(self) -> float:
        """Seconds of processor that it has used so far: bubblewrap, the zygote, and all ranks that have ended."""
        return sum(watch.total(pid) for pid in watch.tree(self.pid)[:3]) if self.alive else 0.0

    def fork(self, count: int, hidden: Sequence[str] = (), weighed: bool = False) -> list[Rank]:
        """`count` new ranks, to which these packages are hidden. BoxFailed if the sandbox does not answer.

        weighed   their memory is to be read from outside (see inside/steady.py)"""
        ranks, theirs = [], []
        for _ in range(count):
            here, there = socket.socketpair()
            out, out_write = os.pipe()
            trace, trace_write = os.pipe()
            ranks.append(Rank(0, here, out, trace))
            theirs += [there.detach(), out_write, trace_write]
        setup = {"off": sorted(self.off), "limits": asdict(self.limits), "hidden": list(hidden), "weighed": weighed}
        try:
            ids = self.link.fork(f"{INSIDE}.rank:main", count, setup, theirs, limit=ANSWER_LIMIT)
        except (OSError, EOFError, LabError) as error:
            for rank in ranks:
                rank.close()
            raise BoxFailed(f"no ranks could be started: {self._why(error)}") from None
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        for rank, id in zip(ranks, ids):
            rank.id = id
            rank.link.setblocking(False)
            os.set_blocking(rank.output, False)
            os.set_blocking(rank.trace, False)
        return ranks

    def kill(self, ranks: list[Rank], ask: bool = False) -> None:
        """Have these ranks ended; `ended` tells when they are. `ask`: first they write where they are."""
        ids = [rank.id for rank in ranks]
        with contextlib.suppress(OSError):  # it is gone, and they with it
            if ask:
                self.link.signal(ids, signal.SIGUSR1)
                time.sleep(LAST_WORD)
            self.link.signal(ids, signal.SIGKILL)

    def ended(self, wait: float = 0.0) -> list[tuple[int, int]]:
        """(id, exit code) of ranks that have ended since the last call; waits `wait` seconds for one."""
        try:
            return self.link.ended(wait)
        except (OSError, EOFError):
            time.sleep(0.01)  # its end of the socket is closed: it is about to die
            return []

    def close(self) -> None:
        """Kill everything in it, and wait until nothing is left."""
        if self.process is None:
            return
        self.link.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            self.process.kill()
        # The kernel ends the whole namespace before bubblewrap's own child can be reaped.
        select.select([self._life], [], [])
        if self._owner == os.getpid():
            self.process.wait()
        for descriptor in (self.said, self._life):
            os.close(descriptor)
        self.process = None

    def _why(self, error: Exception) -> str:
        """In words, what went wrong with it, and what it said."""
        try:
            said = os.read(self.said, 4000).decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        gone = "" if isinstance(error, (TimeoutError, LabError)) else "has ended: "
        return f"the sandbox {gone}{error}: {said or 'it said nothing'}"


def try_out(folder: Path) -> str | None:
    """Start a sandbox and fork a rank in it: None if that works, else what went wrong, in words."""
    box = Box(folder)
    try:
        box.start()
        ranks = box.fork(1)
        box.kill(ranks)
        for rank in ranks:
            rank.close()
        return None
    except (BoxFailed, LabError, OSError) as error:
        return str(error)
    finally:
        box.close()
