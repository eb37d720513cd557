"""labkit.checks.outside's Site for grading: torchrun and its ranks in one sandbox.

In there is what the other sandbox has, all of labkit besides, and two folders: /given, read-only, and /left. The
network is a loopback of its own. **The ranks of one submission are not shut away from one another**: they need a port,
a common disk, and signals; a rank could write what another one should. So what C.3 judges is the numbers of a training
that nobody saw before, and asks nothing about who sent what.
"""

import json
import os
import resource
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grading.sandbox import watch
from grading.sandbox.box import FIRST_UID, Limits
from grading.sandbox.command import INSIDE, walls
from labkit.checks.outside import SHUTDOWN, Site, torchrun
from labkit.comm.processor import Able
from labkit.errors import LabError

SECONDS = 420.0  # for all that one site does, in which its processes could run
LEFT = 128 << 20  # bytes that may lie in /left
DEEP = 30  # folders in folders there
LOOK = 0.5  # seconds between two looks at what it uses
MEMORY = 2  # times Limits.tree: ranks that import torch share less than ranks that are forked
LAST_UID = FIRST_UID + (1 << 22)  # behind those of the boxes: a site has another user than its submission's ranks


class _Able(Able):
    """As a program's ranks wait for what they have started themselves, they could run: the machine was theirs."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site, self.room, self.begin = site, watch.Room(), time.monotonic()

    def look(self, pids: Sequence[int]) -> float:
        tree = watch.tree(self.site.process.pid) if self.site.process is not None else []
        self.room.look(watch.running(tree, [])[1], tree)
        return max(super().look(pids), min(time.monotonic() - self.begin, self.room.each(len(pids))))


class BoxedSite(Site):
    """A Site whose program runs on the course in `root`, in a sandbox."""

    def __init__(self, root: Path, folder: Path, limits: Limits) -> None:
        super().__init__(root, folder)
        self.limits = replace(limits, processes=256)
        self.uid = LAST_UID + os.getpid() % 65536 if os.geteuid() == 0 else None
        self.spent = self.able()
        self.why = ""
        self.left.chmod(0o777)  # the ranks are another user; what lies around it is the judge's alone
        for path in (self.root, *self.root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def able(self) -> Able:
        return _Able(self)

    def _launch(self, program: str, ranks: int, restarts: int, said: Any) -> subprocess.Popen[bytes]:
        for path in self.given.iterdir():
            path.chmod(0o644)
        hosts = self.folder / "hosts"  # torchrun looks for a free port of "localhost"
        hosts.write_text("127.0.0.1 localhost sandbox\n")
        hosts.chmod(0o644)
        more = ["--ro-bind", str(self.given), "/given", "--bind", str(self.left), "/left"]
        more += ["--ro-bind", str(hosts), "/etc/hosts"]
        more += [word for name, value in SHUTDOWN.items() for word in ("--setenv", name, value)]
        argv = walls(self.root, self.limits.disk, frozenset({"labkit"}), (), self.limits.weeks, more)
        settings = json.dumps({**asdict(self.limits), "uid": self.uid})
        argv += ["-m", f"{INSIDE}.launch", settings, *torchrun(program, ["/given", "/left"], ranks, restarts)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, close_fds=True, start_new_session=True
        )
        threading.Thread(target=self._guard, args=(process,), daemon=True).start()
        return process

    def _guard(self, process: subprocess.Popen[bytes]) -> None:
        """End it when it uses more than it may: from outside, whatever its processes are."""
        while process.poll() is None:
            try:
                self.why = self._too_much(process)
            except Exception as error:
                self.why = f"nobody can watch it any more: {error}"
            if self.why:
                self.why = f"it was ended: {self.why}"
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                return
            time.sleep(LOOK)

    def _too_much(self, process: subprocess.Popen[bytes]) -> str:
        if self.spent.look(self.processes()) > SECONDS:
            return f"{SECONDS:.0f} s are over"
        if sum(map(watch.memory, watch.tree(process.pid))) > MEMORY * self.limits.tree:
            return "it wanted more memory than a submission may use"
        if _size(self.left) > LEFT or _size(self.folder / "said") > LEFT:
            return "it wrote more than a submission may leave"
        return ""

    def pids(self, ranks: int) -> dict[int, int] | None:
        """None also where torchrun has more children: one of a rank's making (CLONE_PARENT) could stand for it."""
        own = [one for agent in self._first()[:1] for one in watch.children(agent)]
        return super().pids(ranks) if len(own) == ranks else None

    def _first(self) -> list[int]:
        """What bubblewrap's process 1 has started, torchrun first, and then whatever has lost its parent."""
        if self.process is None or not self.running:
            return []
        return [one for init in watch.children(self.process.pid) for one in watch.children(init)]

    def _agent(self) -> int | None:
        return next(iter(self._first()), None)

    def _real(self, pid: int) -> int | None:
        """Of torchrun's own processes, which its ranks are, the one that is `pid` in there."""
        ranks = [one for agent in self._first()[:1] for one in watch.children(agent)]
        return next((one for one in ranks if watch.inside(one)[1:2] == [pid]), None)

    def _behind(self, pid: int) -> list[int]:
        """With all that it has started, and all that has lost its parent: no rank goes on behind its own back."""
        return [one for root in (pid, *self._first()[1:]) for one in watch.tree(root)]

    def _limit_files(self, pid: int, most: int | None) -> None:
        """By a process that is the same user: root in a container may set nobody else's limits."""
        soft = self.limits.disk if most is None else most
        child = os.fork()
        if child == 0:
            try:
                if self.uid is not None:
                    os.setgroups([])
                    os.setresgid(self.uid, self.uid, self.uid)
                    os.setresuid(self.uid, self.uid, self.uid)
                hard = min(resource.prlimit(pid, resource.RLIMIT_FSIZE)[1], self.limits.disk)  # it may have lowered it
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (min(soft, hard), hard))
            except BaseException:
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise LabError("the limits of a rank in the sandbox cannot be set")

    def _everybody(self) -> list[int]:
        return []  # the kernel ends the whole namespace

    def said(self) -> str:
        return super().said() + (f"\n{self.why}\n" if self.why else "")


def _size(path: Path) -> int:
    """Bytes of the files below, as the disk has them; no link is followed. More than may be left where folders lie too
    deep, or are too many."""
    total, todo = 0, [(str(path), 0)]
    for at, depth in todo:
        with suppress(FileNotFoundError, PermissionError):
            about = os.lstat(at)
            total += max(4096, about.st_blocks * 512)
            if stat.S_ISDIR(about.st_mode):
                todo += [(os.path.join(at, name), depth + 1) for name in os.listdir(at)]
        if depth > DEEP or len(todo) > LEFT // 4096:
            return LEFT + 1
    return total
