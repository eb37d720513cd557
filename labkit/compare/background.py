"""A comparison that goes on when the terminal or the ssh connection dies, and how to find it again.
RUN/.process.json: `Process`, of the last detached run; RUN/compare.log: what it prints; RUN/.stop: asks for a pause."""

import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from labkit.errors import LabError
from labkit.record.files import explained, replace_file
from labkit.record.read import is_alive

PROCESS, LOG, STOP = ".process.json", "compare.log", ".stop"
DETACHED = "--detached"  # `python -m labkit --detached OUT WORDS`: `lab WORDS`, through `attend`
CRASHED = 70  # exit status of a detached run that ended with an error of its own (sysexits.h: EX_SOFTWARE)
STARTED = 30.0  # seconds in which a new process says that it is there


@dataclass(frozen=True)
class Process:
    """A detached run. start: as `start_of` gives it; began: since 1970; exit: None while it runs, or if it was killed."""

    pid: int
    start: float
    began: float
    exit: int | None = None

    @property
    def alive(self) -> bool:
        # The kernel keeps a start relative to the machine's, whose own time is known to the second.
        return self.exit is None and abs(start_of(self.pid) - self.start) < 3.0


def start_of(pid: int) -> float:
    """When a process started, in seconds since 1970; infinite if there is none, or only its unread exit status."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.create_time()
    return math.inf


def process_of(out: Path) -> Process | None:
    """The last detached run of this folder; None if there was none, or its file cannot be read."""
    try:
        found = json.loads((out / PROCESS).read_bytes())
        return Process(**{**found, "start": float(found["start"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def going(out: Path) -> bool:
    """Does another process write in this folder, or is about to?"""
    process = process_of(out)
    itself = process and process.pid == os.getpid()
    return not itself and bool((process and process.alive) or is_alive(out))


def refuse_company(out: Path) -> None:
    """LabError if a run goes on in a folder beside `out`: two on one GPU spoil each other's times, and do not fit."""
    for file in sorted(out.absolute().parent.glob("*/run.json")):
        if file.parent != out.absolute() and going(file.parent):
            other = f"a run goes on in {out.parent / file.parent.name} (`lab status` shows it)"
            apart = "on other GPUs (CUDA_VISIBLE_DEVICES) give --out in another folder"
            raise LabError(f"the GPU is taken: {other}; wait for it, or pause a comparison with --stop; {apart}")


def died(out: Path) -> Process | None:
    """The last detached run, if it ended without finishing: killed, or by an error of its own."""
    process = process_of(out)
    ended = process is not None and process.pid != os.getpid() and not process.alive
    return process if process and ended and process.exit in (None, CRASHED) else None


def tail(file: Path, most: int) -> bytes:
    """The last `most` bytes of a file that may be growing; b"" if it cannot be read."""
    with suppress(OSError), open(file, "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
        return stream.read()
    return b""


def last_words(out: Path, lines: int = 12) -> str:
    """The last lines of the log; "" if there are none."""
    text = tail(out / LOG, 1 << 14).decode("utf-8", errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def begin(out: Path) -> None:
    """Clear what earlier runs left; a detached run keeps its own file, and a request to stop that came meanwhile."""
    process = process_of(out)
    if process is None or process.pid != os.getpid():
        (out / PROCESS).unlink(missing_ok=True)
        (out / STOP).unlink(missing_ok=True)


def detach(out: Path, words: list[str]) -> Process:
    """Start `lab WORDS` for the run in `out`, apart from this terminal. LabError if it does not come up."""
    begin(out)
    command = [sys.executable, "-u", "-m", "labkit", DETACHED, str(out), *words]
    with explained(f"in {out}"), open(out / LOG, "ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    until, ended = time.monotonic() + STARTED, False
    while not ended and time.monotonic() < until:
        ended, process = child.poll() is not None, process_of(out)
        if process and process.pid == child.pid:
            return process
        time.sleep(0.02)
    raise LabError(f"the detached run did not start; its last words: {last_words(out, 3) or 'none'}")


def attend(command: Callable[[list[str]], None], out: Path, words: list[str]) -> None:
    """In the detached process: say that it is there, call `command`, say how it ended, and end likewise."""
    process, status = Process(os.getpid(), start_of(os.getpid()), time.time()), CRASHED
    _write(out, process)
    try:
        command(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            _write(out, replace(process, exit=status))
    sys.exit(status)


def _write(out: Path, process: Process) -> None:
    replace_file(out / PROCESS, json.dumps(asdict(process)))
