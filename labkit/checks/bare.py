"""A function judged in a fresh interpreter where some packages do not exist: `without = ["torch"]` in tasks.toml.

`Process` is this side, in the rank; `main` is the other, and imports no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.checks import remote, values

if TYPE_CHECKING:
    from labkit.comm.group import Group


def load(job: dict[str, Any], body: bytes) -> Callable[[Group], bytes]:
    """What a rank at home runs, as `remote.load`."""
    process = Process(job)
    return lambda group: process.answer(body)


class Process:
    """An interpreter without these packages, that waits for a job's arguments."""

    def __init__(self, job: dict[str, Any]) -> None:
        here = str(Path(__file__).resolve().parents[2])
        path = [here, *(entry for entry in sys.path if entry not in ("", here))]
        self.link, theirs = Pipe()
        code = f"import sys; sys.path[:] = {path!r}; from labkit.checks import bare; bare.main({theirs.fileno()})"
        # -S, and the path from here: neither a .pth file nor the folder it runs in adds anything to it.
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        try:
            self.link.send_bytes(json.dumps(job).encode())
            self.link.recv_bytes()  # NumPy is there: what comes now is the function's own time
        except (OSError, EOFError):
            pass  # `answer` finds the same

    def answer(self, body: bytes) -> bytes:
        """`remote.answer` packed, for packed (args, kwargs). The process has ended."""
        try:
            self.link.send_bytes(body)
            answer = self.link.recv_bytes(values.MAX_BYTES)
        except (OSError, EOFError):
            answer = None
        self.link.close()
        status = self.process.wait()
        if answer is None:
            return values.pack((remote.RAISED, f"its process ended without an answer (status {status})"))
        return answer


def main(descriptor: int) -> None:
    """The fresh interpreter: take a job, run it, send the packed answer."""
    link = Connection(descriptor)
    try:
        job = json.loads(link.recv_bytes())
        link.send_bytes(b"ready")
        args, kwargs = values.unpack(link.recv_bytes(), values.NumPy())
    except EOFError:
        return
    np.random.seed(0)
    result = values.pack(remote.answer(None, job, args, kwargs), values.NumPy())
    sys.stdout.flush()
    sys.stderr.flush()
    link.send_bytes(result)
    os._exit(0)  # whatever it has left running
