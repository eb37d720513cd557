"""The fork server: a process that has imported what others need and never computed. They are forked from it.

Orders go over a line: a socket with one JSON object a line, and the children's descriptors beside it.

    {"fork": "module:function", "count": 4, "setup": {...}, "descriptors": 12, "import": [...], "directory": ""}
        -> {"forked": [pid, ...]}, or {"error": "why"}
        Each child calls function(setup, number, its share of the descriptors) and ends with the status it returns.
    {"signal": 9, "to": [pid, ...]}
    {"descriptors": 1}: a further line
    -> {"ready": pid} as a line begins; {"ended": pid, "status": n} as a child of it ends (n < 0: by the signal -n)

When a line closes, its children are killed, each with its whole session, and its directory is removed.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from labkit.errors import LabError

ANSWER_LIMIT = 60.0  # seconds for forking, and for what has to be imported before
MOST = 250  # descriptors that the kernel takes in one message


# -- forking ----------------------------------------------------------------------------------------------------------
def leader() -> int:
    """os.fork, but the child leads a session of its own and, on Linux, is killed when its parent dies."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:  # it died before the call
                os._exit(70)
    return pid


def fork(function: Callable[..., int | None], *args: Any, by: Callable[[], int] = leader) -> int:
    """Run function(*args) in a child without the interpreter's cleaning up; its status is what that returns. The pid."""
    pid = by()
    if pid != 0:
        return pid
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = function(*args) or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a closed or replaced one
                stream.flush()
        os._exit(status)


def renumber(descriptors: Sequence[int], *numbers: Sequence[int]) -> None:
    """In a child: its descriptors get these numbers, each one or more, and lose their own."""
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in descriptors]  # above the numbers that are taken below
    for fd in descriptors:
        os.close(fd)
    for fd, wanted in zip(above, numbers):
        for number in wanted:
            os.dup2(fd, number)
        os.close(fd)


class _Line:
    """One end of a line."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self._text = link, b""
        self.descriptors: list[int] = []  # that have come and belong to orders which are to be obeyed

    def read(self, most: int = 0) -> list[dict[str, Any]]:
        """What has come, with so many descriptors at most. EOFError or OSError at the end of the line."""
        data, descriptors, _, _ = socket.recv_fds(self.link, 1 << 16, most)
        if not data:
            raise EOFError("it exited")
        self.descriptors += descriptors
        *lines, self._text = (self._text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self.link, [data], list(descriptors)) if descriptors else 0
        self.link.sendall(data[sent:])


# -- the server -------------------------------------------------------------------------------------------------------
class _Server:
    def __init__(self, by: Callable[[], int], door: socket.socket | None, close: bool) -> None:
        self.by, self.door, self.close = by, door, close
        self.lines: list[_Line] = []
        self.owners: dict[int, _Line] = {}  # of the children that are alive: for which line they were forked
        self.directories: dict[_Line, str] = {}
        self.wake, self.woken = os.pipe()
        for fd in (self.wake, self.woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)

    def add(self, link: socket.socket) -> None:
        self.lines.append(line := _Line(link))
        self._tell(line, {"ready": os.getpid()})

    def step(self, wait: float | None) -> None:
        links = {line.link.fileno(): line for line in self.lines}
        doors = [self.door.fileno()] if self.door is not None else []
        for fd in select.select([self.wake, *doors, *links], [], [], wait)[0]:
            if fd == self.wake:
                os.read(self.wake, 4096)
            elif fd in links:
                try:
                    orders = links[fd].read(MOST)
                except (EOFError, OSError):
                    self.drop(links[fd])
                    continue
                for order in orders:
                    self._obey(links[fd], order)
            elif self.door is not None:
                self.add(self.door.accept()[0])
        self._reap()

    def drop(self, line: _Line) -> None:
        self.lines.remove(line)
        line.link.close()
        for pid in self._children(line):
            self._kill(pid, signal.SIGKILL)
        self._clean_up(line)

    def _children(self, line: _Line) -> set[int]:
        return {pid for pid, owner in self.owners.items() if owner is line}

    def _tell(self, line: _Line, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # its holder is gone: the line's end comes next
            line.send(message)

    def _obey(self, line: _Line, order: dict[str, Any]) -> None:
        if "signal" in order:
            for pid in self._children(line).intersection(order["to"]):  # not reaped: the number is still this child's
                self._kill(pid, order["signal"])
            return
        count = order["descriptors"]
        descriptors, line.descriptors = line.descriptors[:count], line.descriptors[count:]
        if "fork" in order:
            self._tell(line, self._fork(line, order, descriptors))
        else:
            self.add(socket.socket(fileno=descriptors[0]))

    def _fork(self, line: _Line, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        self.directories[line], pids = order["directory"], []
        try:
            module, _, name = order["fork"].partition(":")
            wanted = [one for one in (*order["import"], module) if one not in sys.modules]
            for one in wanted:
                importlib.import_module(one)
            if wanted:
                gc.freeze()
            function = getattr(sys.modules[module], name)
            each = len(descriptors) // order["count"]
            for number in range(order["count"]):
                own = descriptors[each * number : each * (number + 1)]
                pid = fork(self._become, function, order["setup"], number, own, descriptors, by=self.by)
                self.owners[pid] = line
                pids.append(pid)
            return {"forked": pids}
        except Exception as error:
            for pid in pids:
                self._kill(pid, signal.SIGKILL)
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            for fd in descriptors:
                os.close(fd)

    def _become(self, function: Callable, setup: dict, number: int, own: list[int], others: list[int]) -> int | None:
        """In the child: let go of what is the server's or its siblings', then be what the order says."""
        if self.close:
            for fd in {*others, self.wake, self.woken}.difference(own):
                os.close(fd)
            for link in (*(line.link for line in self.lines), *([self.door] if self.door is not None else [])):
                link.close()
        return function(setup, number, own)

    def _reap(self) -> None:
        while self.owners:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._kill(pid, signal.SIGKILL, group_only=True)  # whatever it started and left in its session's group
            if (line := self.owners.pop(pid, None)) is not None:
                if line in self.lines:
                    self._tell(line, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})
                self._clean_up(line)

    def _clean_up(self, line: _Line) -> None:
        if line not in self.lines and not self._children(line) and (directory := self.directories.pop(line, "")):
            shutil.rmtree(directory, ignore_errors=True)

    def _kill(self, pid: int, number: int, group_only: bool = False) -> None:
        whole = number == signal.SIGKILL and self.by is leader
        for kill in ([os.killpg] if whole else []) + ([] if group_only else [os.kill]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                return kill(pid, number)


def serve(
    link: socket.socket | None = None,
    *,
    door: socket.socket | None = None,
    by: Callable[[], int] = leader,
    parent: int | None = None,
    close: bool = True,
) -> None:
    """Serve until all lines have closed and their children are gone.

    link: the first line; when it closes, all others do. door: a listening socket, through which lines come. close:
    whether children let go of the server's and their siblings' descriptors. parent: all lines close when it dies."""
    gc.collect()
    gc.freeze()  # a child's garbage collection must not touch, and so copy, every page it shares with this process
    server = _Server(by, door, close)
    if link is not None:
        server.add(link)
    while not server.lines:
        server.step(None)
    while server.lines or server.owners:
        server.step(None if parent is None else 2.0)
        orphan = parent is not None and os.getppid() != parent
        if orphan or (link is not None and all(line.link is not link for line in server.lines)):
            for line in list(server.lines):
                server.drop(line)


# -- a line, seen from its holder -------------------------------------------------------------------------------------
class ForkLine(_Line):
    """Orders to a fork server. Of one thread at a time. EOFError, OSError or TimeoutError if it does not answer."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._answers: list[dict[str, Any]] = []
        self._ended: list[tuple[int, int]] = []

    def fileno(self) -> int:
        return self.link.fileno()

    def ready(self, limit: float) -> None:
        self._answer(limit)

    def fork(
        self,
        function: str,
        count: int,
        setup: Mapping[str, Any],
        descriptors: Sequence[int],
        modules: Iterable[str] = (),
        directory: str = "",
        limit: float = ANSWER_LIMIT,
    ) -> list[int]:
        """`count` children that run "module:function", with these descriptors shared out. Their pids; LabError: none."""
        order = {"fork": function, "count": count, "setup": setup, "import": [*modules], "directory": directory}
        self.send({**order, "descriptors": len(descriptors)}, descriptors)
        answer = self._answer(limit)
        if "error" in answer:
            raise LabError(answer["error"])
        return answer["forked"]

    def signal(self, pids: Sequence[int], number: int) -> None:
        self.send({"signal": int(number), "to": [*pids]})

    def further(self) -> "ForkLine":
        """Another line to the same server, for another holder."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.send({"descriptors": 1}, [theirs.fileno()])
        return ForkLine(ours)

    def ended(self, wait: float | None = 0.0) -> list[tuple[int, int]]:
        """(pid, exit status) of children that have ended since the last call; waits `wait` seconds for one."""
        if not self._ended:
            self._read(wait)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """All children are killed; the server does not wait with that for anybody."""
        self.link.close()

    def _answer(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        while not self._answers and (left := deadline - time.monotonic()) > 0:
            self._read(left)
        if not self._answers:
            self.close()  # what comes now is no answer to the next order
            raise TimeoutError(f"no answer within {limit:g} s")
        return self._answers.pop(0)

    def _read(self, wait: float | None) -> None:
        for message in self.read() if select.select([self.link], [], [], wait)[0] else ():
            if "ended" in message:
                self._ended.append((message["ended"], message["status"]))
            else:
                self._answers.append(message)
