"""A command in a process of its own, without the seconds that importing torch takes.

A helper process imports what commands need and computes nothing; each command is forked from it. To the command that is
a fresh process: its own session, working directory, environment, arguments and output, its own `__main__`. If it
runs ranks, those come from this helper too, where labkit's would import torch and its compiler once more.
What a fork cannot show, that the program starts from nothing, other tests show with `subprocess`.

One helper serves all of xdist's workers. It ends with the last of them, and every command with the line that requested
it. It pays (November 2026, one core): its imports take 4.6 s once; a command's own would take 1.7 s (`lab check`) to
3.7 s (`lab compare`), and as much again where it runs ranks. `make test` runs nine of them in labkit's tests alone.
"""

import contextlib
import fcntl
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.comm import forkserver, helper
from labkit.comm.forkserver import ForkLine
from labkit.errors import LabError

# Append only what starts no thread when imported.
PRELOAD = ["grading.run", "grading.cli", "grading.marking.session", "torch.distributed.fsdp", "torch._dynamo"]
PRELOAD += ["torchao.float8", "matplotlib.figure"]
PRELOAD += [f"labkit.{name}" for name in ("cli", "compare.compare", "compare.report", "checks.plugin", "checks.runner")]
PRELOAD += ["labkit.comm.ranks", "labkit.comm.worker"]
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
    setup = {"words": words, "cwd": str(cwd), "env": dict(os.environ if env is None else env), "folder": str(_folder())}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, contextlib.closing(_connected()) as line:
        line.fork("tests.warm:command", 1, setup, [out.fileno(), err.fileno()])
        ended = line.ended(timeout)
        outputs = []
        for file in (out, err):
            file.seek(0)
            outputs.append(file.read().decode("utf-8", "replace"))
        if not ended:  # the line closes, and the helper ends the command
            raise subprocess.TimeoutExpired(words, timeout, *outputs)
        return subprocess.CompletedProcess(words, ended[0][1], *outputs)


# -- the helper, from outside -----------------------------------------------------------------------------------------
_TEMP = tempfile.gettempdir()  # tests set another one
_present: ForkLine | None = None  # open as long as this process may have commands to run


def _folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    return Path(_TEMP, f"labkit-warm-{os.getuid()}-{run}")


def _connected() -> ForkLine:
    """A line to the helper, which is started if there is none."""
    global _present
    folder = _folder()
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


def _connect(folder: Path) -> ForkLine:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(folder / "socket"))
    except OSError:
        link.close()
        raise
    line = ForkLine(link)
    try:
        line.ready(START_LIMIT)
    except EOFError as error:  # it was about to end, since the others had closed
        raise ConnectionResetError(str(error)) from None
    return line


def _start(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "socket").unlink()
    code = f"import sys; sys.path[:] = {sys.path!r}; from tests.warm import serve; serve({str(folder)!r})"
    with open(folder / "output", "w") as output:
        apart = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "start_new_session": True}
        env, root = {**os.environ, "OMP_NUM_THREADS": "1"}, Path(__file__).parents[1]
        process = subprocess.Popen([sys.executable, "-c", code], cwd=root, env=env, **apart)
    give_up = time.monotonic() + START_LIMIT
    while not (folder / "socket").exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the helper of tests/warm.py did not start: {(folder / 'output').read_text()}")
        time.sleep(0.02)


# -- the helper, inside -----------------------------------------------------------------------------------------------
def serve(folder: str) -> None:
    """The helper's life; it ends when nobody is connected any more."""
    for name in PRELOAD:
        importlib.import_module(name)
    for name in EXTRAS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    door = socket.socket(socket.AF_UNIX)
    beside = os.path.join(folder, "socket.new")
    door.bind(beside)
    door.listen(64)
    os.rename(beside, os.path.join(folder, "socket"))
    forkserver.serve(door=door)
    for name in ("socket", "lock", "output"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def command(setup: dict, number: int, descriptors: list[int]) -> int:
    """In the command's process: be what the order says. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forkserver.renumber(descriptors, [1], [2])
    os.chdir(setup["cwd"])
    os.environ.clear()
    os.environ.update(setup["env"])
    tempfile.tempdir = None  # found anew, by the environment
    helper._own = _Shared(Path(setup["folder"]))
    kind, what, *words = setup["words"]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.dirname(what) if kind == "script" else setup["cwd"], *filter(None, named)]
    sys.argv[:] = [what if kind in ("call", "script") else kind, *words]
    status: object = 0
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
    return status & 0xFF


class _Shared(helper.Helper):
    """The fork server of a command's ranks: the one that it came from itself, with all that is imported there."""

    def __init__(self, folder: Path) -> None:
        self.owner, self.folder = os.getpid(), folder

    def line(self) -> ForkLine:
        return _connect(self.folder)

    def gone(self, error: Exception | None = None) -> LabError:
        return LabError(f"the helper of tests/warm.py: {error}")

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass
