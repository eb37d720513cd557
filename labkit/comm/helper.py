"""This program's fork server: it imports torch with the first run and forks all rank processes."""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

from labkit.comm import forkserver
from labkit.comm.forkserver import ForkLine
from labkit.errors import LabError

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
# What the first of a pair imports later, at its first call: 1.4 s of each rank's life, torchao 3 s, sympy (a first
# backward from a given gradient, which checks call) 0.6 s. On a CPU alone: a helper that had asked CUDA anything could
# not fork ranks that use a GPU.
ON_CPU = {
    "torch.distributed.fsdp": "torch._dynamo",
    "torchao.float8": "torchao.float8",
    "labkit.checks.remote": "torch.fx.experimental.symbolic_shapes",
}


class Helper:
    """A fork server with torch, beside this program: it forks rank processes."""

    def __init__(self) -> None:
        self.owner, self._lock = os.getpid(), threading.Lock()
        ours, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the helper
        code = f"import sys; sys.path[:] = {sys.path}; from labkit.comm.helper import serve; serve({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code],  # type: ignore[attr-defined]  # untyped there
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,  # Ctrl-C in a terminal is for the caller
        )
        theirs.close()
        self._line = ForkLine(ours)

    def line(self) -> ForkLine:
        """A line of the caller's own. LabError if the helper is gone."""
        try:
            with self._lock:
                line = self._line.further()
            line.ready(START_LIMIT)
            return line
        except (OSError, EOFError) as error:
            self.close()
            raise self.gone(error) from error

    def gone(self, error: Exception) -> LabError:
        self.errors.seek(0)
        *_, said = self.errors.read().decode("utf-8", "replace").strip().rpartition("\n")
        why = said or "it said nothing; was it killed for lack of memory?"
        return LabError(f"the helper process that starts ranks does not answer ({error}): {why}")

    def alive(self) -> bool:
        return self.owner == os.getpid() and self._line.fileno() >= 0 and self.process.poll() is None

    def close(self) -> None:
        self._line.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:  # it is still importing: nothing to clean up yet
                self.process.kill()
                self.process.wait()


def serve(descriptor: int) -> None:
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)
    parent = os.getppid()
    import torch.distributed  # noqa: F401  the point of it all

    import labkit.comm.worker  # noqa: F401  what its children run

    try:
        forkserver.serve(link, parent=parent)
    finally:
        os._exit(0)


_own: Helper | None = None
_lock = threading.Lock()


def server() -> Helper:
    """The program's helper, started if there is none. It serves all runs until the program ends, or `shutdown()`."""
    global _own
    with _lock:
        if _own is None or not _own.alive():
            _own = Helper()
        return _own


def fork_ranks(setup: dict[str, Any], descriptors: list[int]) -> tuple[ForkLine, list[int]]:
    """Fork the rank processes of a pool (labkit.comm.worker): their line, and their pids. LabError if it cannot be."""
    later = [module for first, module in ON_CPU.items() if first in sys.modules] if setup["device"] == "cpu" else []
    modules = [module for module in WORTH_SHARING if module in sys.modules] + later
    helper = server()
    line = helper.line()
    try:
        work = "labkit.comm.worker:work"
        return line, line.fork(work, setup["size"], setup, descriptors, modules, setup["directory"])
    except (OSError, EOFError, LabError) as error:
        line.close()
        refused = LabError(f"a rank process could not be started: {error}")
        raise refused if isinstance(error, LabError) else helper.gone(error) from error


@atexit.register
def shutdown() -> None:
    """End the helper now. The next run of rank processes starts another."""
    global _own
    with _lock:
        if _own is not None:
            _own.close()
        _own = None
