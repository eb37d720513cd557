"""A command in a process of its own, without the seconds that importing torch takes.

A helper process imports what commands need and computes nothing; each command is forked from it. To the command that is
a fresh process: its own process group, working directory, environment, arguments and output, its own `__main__`. If it
runs ranks, those come from one more fork of the helper, where labkit's would import torch and its compiler once more.
What a fork cannot show, that the program starts from nothing, other tests show with `subprocess`.

One helper serves all of xdist's workers: its imports are 10 s of a processor. It ends with the last of them, and every
command with the connection that asked for it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# Append only what starts no thread when imported.
PRELOAD = [
    "grading.run",
    "grading.cli",
    "grading.gradebook.load",
    "labkit.compare.compare",
    "labkit.compare.report",
    "labkit.cli",
    "labkit.checks.plugin",
    "labkit.checks.runner",
    "labkit.comm.ranks",
    "labkit.comm.worker",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torchao.float8",
    "matplotlib.figure",
]
EXTRAS = ["nbgrader.apps"]  # an instructor's
START_LIMIT = 180.0  # seconds for importing them on a busy machine


def run(
    main: str, words: Sequence[object], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess:
    """As `subprocess.run([python, "-m", MODULE, *words], capture_output=True, text=True, ...)`; `main` is
    "module:function", which gets the words as a list."""
    return _run(["call", main, *words], cwd, env, timeout)


def python(
    *words: object, cwd: Path | str, env: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess:
    """As `subprocess.run([python, *words], capture_output=True, text=True, ...)`; the words are "-c" and a program,
    "-m" and a module, or a script, and what it gets."""
    return _run([*words] if words[0] in ("-c", "-m") else ["script", *words], cwd, env, timeout)


def _run(
    words: Sequence[object], cwd: Path | str, env: Mapping[str, str] | None, timeout: float
) -> subprocess.CompletedProcess:
    words = [str(word) for word in words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _connected() as link:
        order = json.dumps({"words": words, "cwd": str(cwd), "env": dict(os.environ if env is None else env)})
        data = order.encode() + b"\n"
        link.sendall(data[socket.send_fds(link, [data], [out.fileno(), err.fileno()]) :])
        link.settimeout(timeout)
        try:
            with link.makefile() as answers:
                status = answers.readline()
        except TimeoutError:
            status = None
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read().decode("utf-8", "replace"))
        if status is None:  # the connection closes, and the helper ends the command
            raise subprocess.TimeoutExpired(words, timeout, *told)
        assert status, f"the helper of tests/warm.py has died: {told}"
        return subprocess.CompletedProcess(words, int(status), *told)


# -- the helper, from outside -----------------------------------------------------------------------------------------
_TEMP = tempfile.gettempdir()  # tests set another one
_present: socket.socket | None = None  # open as long as this process may have commands to run


def _connected() -> socket.socket:
    """A connection to the helper, which is started if there is none."""
    global _present
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    folder = Path(_TEMP, f"labkit-warm-{os.getuid()}-{run}")
    if _present is None:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of the workers starts it
            try:
                _present = _connect(folder)
            except OSError:
                _start(folder)
                _present = _connect(folder)
    return _connect(folder)


def _connect(folder: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(folder / "socket"))
    except OSError:
        link.close()
        raise
    return link


def _start(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "socket").unlink()
    code = f"import sys; sys.path[:] = {sys.path!r}; from tests.warm import serve; serve({str(folder)!r})"
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    give_up = time.monotonic() + START_LIMIT
    while not (folder / "socket").exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the helper of tests/warm.py did not start: {(folder / 'said').read_text()}")
        time.sleep(0.02)


# -- the helper, inside -----------------------------------------------------------------------------------------------
def serve(folder: str) -> None:
    """The helper's loop; it ends when nobody is connected any more."""
    for name in PRELOAD:
        importlib.import_module(name)
    for name in EXTRAS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a command's garbage collection must not touch, and so copy, every page it shares with us
    assert threading.active_count() == 1, threading.enumerate()
    door = socket.socket(socket.AF_UNIX)
    beside = os.path.join(folder, "socket.new")
    door.bind(beside)
    door.listen(64)
    os.rename(beside, os.path.join(folder, "socket"))
    wake_in, wake_out = os.pipe()
    for descriptor in (wake_in, wake_out):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    links: dict[socket.socket, int | None] = {}  # a connection, and the command it has asked for
    came = False
    while links or not came:
        for ready in select.select([door, wake_in, *links], [], [])[0]:
            if ready is door:
                links[door.accept()[0]] = None
                came = True
            elif ready == wake_in:
                os.read(wake_in, 4096)
            elif ready in links:
                _serve(ready, links, [door.fileno(), wake_in, wake_out])
        for link, pid in list(links.items()):
            if pid is not None:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    with contextlib.suppress(OSError):  # it waits no longer
                        link.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                    link.close()
                    del links[link]
    for name in ("socket", "lock", "said"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _serve(link: socket.socket, links: dict[socket.socket, int | None], own: list[int]) -> None:
    """An order, or the end of a connection."""
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        part, ancillary, _, _ = link.recvmsg(1 << 16, socket.CMSG_SPACE(2 * array.array("i").itemsize))
        if not part:
            pid = links.pop(link)
            link.close()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return
        data += part
        for _, _, numbers in ancillary:
            descriptors += array.array("i", numbers)
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for descriptor in (*own, *(other.detach() for other in links)):
                os.close(descriptor)
            status = _become(json.loads(data), descriptors)
        finally:
            os._exit(status)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # before it does so itself: it may be ended at once
    for descriptor in descriptors:
        os.close(descriptor)
    links[link] = pid


def _become(order: dict, descriptors: list[int]) -> int:
    """In the command's process: be what the order says. Returns the exit status."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # asked for anew, of the environment
    kind, what, *words = order["words"]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.dirname(what) if kind == "script" else order["cwd"], *filter(None, named)]
    sys.argv[:] = [what if kind in ("call", "script") else kind, *words]
    _ranks_from_here()
    status = 0
    try:
        if kind == "call":
            module, _, function = what.partition(":")
            getattr(importlib.import_module(module), function)(words)
        elif kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            if kind == "script":
                main.__file__ = what
            text = what if kind == "-c" else Path(what).read_text()
            exec(compile(text, "<string>" if kind == "-c" else what, "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        import atexit

        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return status & 0xFF


def _ranks_from_here() -> None:
    """The command's first ForkServer is forked now, while nothing has computed, and waits: its ranks have all that is
    imported here."""
    from labkit.comm import forkserver

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            forkserver.serve(theirs.detach())
        finally:
            os._exit(70)
    theirs.close()
    real, own = forkserver.ForkServer, os.getpid()

    class Forked(real):
        def __init__(self) -> None:
            self.owner, self.lock, self.ready = own, threading.Lock(), False
            self.socket, self.errors, self.process = ours, tempfile.TemporaryFile(), _Child(pid)

    def first():
        forkserver.ForkServer = real
        return Forked() if os.getpid() == own else real()  # it is no helper of a process that the command forks

    forkserver.ForkServer = first


class _Child:
    """What ForkServer asks of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid, self.status = pid, None

    def poll(self) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        give_up = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired("a helper", timeout)
            time.sleep(0.01)
        return self.status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
