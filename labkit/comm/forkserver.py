"""A helper process that has imported torch and never computed, and forks rank processes from that state.

Importing torch takes seconds, forking milliseconds. Forking the caller itself would be as fast, but a process that has
computed with torch (its thread pools are running) hangs in the child, so the helper does nothing but import and fork.

It leaves nothing behind. When the caller ends, in whatever way, the socket between them closes: the helper kills its
ranks, removes their directories and exits. Each rank asks the kernel to be killed with the helper (Linux). Each rank
leads its own session, and the whole session is killed with it; only a child that leaves for a session of its own
escapes.

One helper serves all runs of a program; it starts with the first and stays until the program ends, or `shutdown()`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from labkit.errors import LabError

LENGTH = struct.Struct("!I")
START_LIMIT = 180.0  # seconds for importing torch on a busy machine
# Heavy modules that ranks may need: imported once in the helper if the caller has them, instead of once per rank.
# Append only what starts no thread when imported.
WORTH_SHARING = [
    "numpy",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "labkit.checks.remote",
]
# FSDP2 and every optimizer import torch._dynamo at their first call, 1.4 s of each rank's life, and torchao brings half
# of torch's compiler along, 3 s. So whoever has the first of a pair gets the second with the helper. On a CPU alone:
# importing them asks CUDA nothing (torch 2.13), but with a GPU it is untried, and a helper that had asked could not
# fork ranks that use one.
ON_CPU = {"torch.distributed.fsdp": "torch._dynamo", "torchao.float8": "torchao.float8"}


# -- the caller's side ----------------------------------------------------------------------------------------------
class ForkServer:
    """Talks to the helper: one request, one answer."""

    def __init__(self) -> None:
        self.owner, self.lock = os.getpid(), threading.Lock()
        ours, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()
        code = (
            f"import sys; sys.path[:] = {[p for p in sys.path]!r}\n"
            f"from labkit.comm.forkserver import serve; serve({theirs.fileno()})"
        )
        self.process = subprocess.Popen(
            [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )  # Ctrl-C in a terminal is for the caller
        theirs.close()
        self.socket = ours
        self.ready = False

    def request(self, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Send one message, with file descriptors, and return the answer. LabError if the helper is gone."""
        with self.lock:
            try:
                if not self.ready:
                    self.socket.settimeout(START_LIMIT)
                    _receive(self.socket)
                    self.ready = True
                    self.socket.settimeout(60.0)
                _send(self.socket, message, fds)
                answer, _ = _receive(self.socket)
            except (OSError, EOFError, ValueError) as error:
                self.close()
                raise LabError(
                    f"the helper process that starts ranks ended or does not answer "
                    f"({error or 'it exited'}): {self._last_words()}"
                ) from error
            except BaseException:  # Ctrl-C between question and answer: the next answer would be the wrong one
                self.close()
                raise
        if "error" in answer:
            raise LabError(f"a rank process could not be started: {answer['error']}")
        return answer

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.socket.fileno() >= 0 and self.process.poll() is None

    def close(self) -> None:
        """End the helper and all its ranks."""
        self.socket.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:  # it is still importing: nothing to clean up yet
                self.process.kill()
                self.process.wait()

    def _last_words(self) -> str:
        try:
            self.errors.seek(0)
            lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        except (OSError, ValueError):
            lines = []
        return lines[-1] if lines else "it said nothing; was it killed for lack of memory?"


_server: ForkServer | None = None
_lock = threading.Lock()


def server() -> ForkServer:
    """The program's helper, started if there is none."""
    global _server
    with _lock:
        if _server is None or not _server.alive():
            _server = ForkServer()
        return _server


@atexit.register
def shutdown() -> None:
    """End the helper now. The next run of rank processes starts another."""
    global _server
    with _lock:
        if _server is not None and _server.owner == os.getpid():
            _server.close()
        _server = None


# -- the helper's side ----------------------------------------------------------------------------------------------
def serve(fd: int) -> None:
    """Main loop of the helper; never returns."""
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    caller = os.getppid()
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    os.set_blocking(wake_in, False)
    ranks: dict[int, tuple[int, str]] = {}  # pid: (descriptor on which to report its end, its directory)
    import torch.distributed  # noqa: F401  the point of it all

    from labkit.comm import worker  # noqa: F401

    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    try:
        _send(link, {"ready": True})
        while os.getppid() == caller:
            # The time-out covers a caller that died while some child of its own still holds the other end of the link.
            readable, _, _ = select.select([link, wake_in], [], [], 2.0)
            if wake_in in readable:
                os.read(wake_in, 4096)
            _reap(ranks)
            if link in readable:
                message, fds = _receive(link)
                _send(link, _handle(message, fds, ranks, (link.fileno(), wake_in, wake_out)))
    except (EOFError, OSError):
        pass
    finally:
        for pid in ranks:
            _kill(pid, signal.SIGKILL)
        for pid in ranks:
            os.waitpid(pid, 0)
        for _, directory in ranks.values():
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)


def _handle(message: dict, fds: list[int], ranks: dict[int, tuple[int, str]], own: Sequence[int]) -> dict:
    if message["do"] == "signal":
        for pid in message["pids"]:
            if pid in ranks:  # not reaped: the number is still this rank's
                _kill(pid, message["signal"])
        return {}
    try:
        for name in message["modules"]:
            if name not in sys.modules:
                __import__(name)
        control, out, err, report = fds
        pid = os.fork()
        if pid == 0:
            _become_rank(control, out, err, [report, *own, *(fd for fd, _ in ranks.values())], message)
        for fd in (control, out, err):
            os.close(fd)
        ranks[pid] = (report, message["setup"]["directory"])
        return {"pid": pid}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _become_rank(control: int, out: int, err: int, foreign: Sequence[int], message: dict) -> None:
    """In the child: leave the helper's world, then work. Never returns."""
    status = 70
    gc.freeze()  # or the rank's garbage collection touches, and so copies, every page it shares with the helper
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _die_with_parent(message["helper"])
        for fd in foreign:
            os.close(fd)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        from labkit.comm import worker

        status = worker.work(control, message["setup"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(status)


def _die_with_parent(helper: int) -> None:
    """Linux: SIGKILL for this process when the helper dies. Elsewhere the helper's own clean-up has to do."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != helper:  # it died before the call
            os._exit(70)


def _reap(ranks: dict[int, tuple[int, str]]) -> None:
    while ranks:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _kill(pid, signal.SIGKILL)  # whatever it started and left in its session's group
        report, _ = ranks.pop(pid, (None, ""))
        if report is not None:
            try:
                os.write(report, LENGTH.pack(status))
            except OSError:
                pass
            os.close(report)


def _kill(pid: int, number: int) -> None:
    for kill in (os.killpg, os.kill) if number == signal.SIGKILL else (os.kill,):
        try:
            kill(pid, number)
            return
        except (ProcessLookupError, PermissionError):
            continue


# -- messages -------------------------------------------------------------------------------------------------------
def _send(link: socket.socket, message: dict, fds: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    data = LENGTH.pack(len(data)) + data
    sent = socket.send_fds(link, [data], list(fds)) if fds else link.send(data)
    link.sendall(data[sent:])


def _receive(link: socket.socket) -> tuple[dict, list[int]]:
    data, fds, _, _ = socket.recv_fds(link, 1 << 16, 8)
    while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        more = link.recv(1 << 16) if data else b""
        if not more:
            raise EOFError
        data += more
    return json.loads(data[LENGTH.size :]), list(fds)
