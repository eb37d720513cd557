"""`grade run --dask ADDRESS`: the same submissions on Dask workers, on this machine or on many.

What travels to a worker is the submission's bytes, the seed and the week's name; what comes back is a mark, kept here
as it comes. A worker has bubblewrap, and a copy of this course in its working directory, whose text is compared. What
a worker was doing when it died Dask gives to another.

A worker runs each submission in a process of its own. On one machine no more of them run at a time than it has cores,
however many workers it has: a slot is a lock file, and the kernel frees it when its holder dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.intake.submission import read_submission
from grading.mark import Mark
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

if TYPE_CHECKING:
    from grading.judge import Settings
    from grading.pool import Todo

LOCAL = "local"
ANSWER = 20.0  # seconds in which a scheduler must answer
PATIENCE = 900.0  # seconds for one submission, its wait for a slot aside


@contextlib.contextmanager
def connected(address: str, jobs: int) -> Iterator[Any]:
    """A Dask client: of the scheduler at `address`, or of `jobs` worker processes of this machine for "local"."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise LabError("--dask needs Dask: pip install 'dask[distributed]'") from None
    with contextlib.ExitStack() as opened:
        if address == LOCAL:
            cluster = opened.enter_context(
                LocalCluster(
                    n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
                )
            )
            yield opened.enter_context(Client(cluster))
            return
        try:
            client = opened.enter_context(Client(address, timeout=ANSWER))
        except (OSError, ValueError) as error:
            raise LabError(
                f"no Dask scheduler answers at {address!r} ({error}): start one with `dask scheduler`, and "
                "workers with `dask worker ADDRESS` in a copy of this course"
            ) from None
        if not client.scheduler_info()["workers"]:
            raise LabError(f"the scheduler at {address} has no workers: start some with `dask worker {address}`")
        yield client


def grade_all(
    client: Any, todo: list[Todo], week: Week, settings: Settings, ends: Callable[[Todo, Mark], None]
) -> list[Todo]:
    """Grade `todo` on the client's workers. Returns those where the grader has failed."""
    from distributed import as_completed

    from grading import judge  # not above: it imports torch, which a worker itself never needs

    expected = judge.tests_hash(week), judge.environment_hash(settings.isolation)
    width = 2 * max(1, sum(worker["nthreads"] for worker in client.scheduler_info()["workers"].values()))
    waiting, failed = list(reversed(todo)), []
    running: dict[str, Todo] = {}
    queue = as_completed()
    while waiting or running:
        while waiting and len(running) < width:  # not all at once: submissions are read when their turn comes
            item = waiting.pop()
            submission = read_submission(item.entry.path, item.entry.renamed)
            job = pickle.dumps((item.entry, submission, week.name, settings, expected))
            future = client.submit(on_worker, job, pure=False)
            running[future.key] = item
            queue.add(future)
        future = next(queue)
        item = running.pop(future.key)
        mark = Mark.from_json(future.result()) if future.status == "finished" else None
        if mark is not None and mark.complete:
            ends(item, mark)
        else:  # the grader's own machine says why, if it fails there as well
            item.tries += 1
            failed.append(item)
        future.release()
    return failed


def on_worker(job: bytes) -> str:
    """On a worker: grade one submission in a process of its own; the mark as JSON."""
    with slot():
        # As this worker: if it is killed, so is the judge.
        done = subprocess.run(
            [sys.executable, "-m", "grading.many"],
            input=job,
            capture_output=True,
            timeout=PATIENCE,
            preexec_fn=_die_with_parent,
        )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RuntimeError(said[-1] if said else f"the judge ended with status {done.returncode}")
    return done.stdout.decode()


def once() -> None:
    """In the judge's process: the job on stdin, the mark on stdout."""
    from grading import judge

    entry, submission, name, settings, expected = pickle.load(sys.stdin.buffer)
    week = next((week for week in find_weeks() if week.name == name), None)
    if week is None or (judge.tests_hash(week), judge.environment_hash(settings.isolation)) != expected:
        sys.exit(
            f"this worker's course, labkit, Python or torch is not the one of `grade run`: bring {name} up to "
            "date there"
        )
    with tempfile.TemporaryDirectory(prefix="grade-") as work:
        mark = judge.grade(entry, week, dataclasses.replace(settings, work=Path(work)), submission)
    sys.stdout.write(mark.to_json())


@contextlib.contextmanager
def slot() -> Iterator[int]:
    """One of this machine's slots: as many as it has cores. Waits for a free one."""
    folder = Path(tempfile.gettempdir()) / f"grade-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise LabError(f"{folder} is another account's: it could hold up grading. Remove it, or set TMPDIR.")
    number, held = len(os.sched_getaffinity(0)), None
    while held is None:
        for index in range(number):
            file = open(folder / str(index), "w")  # noqa: SIM115  closed where the lock is given back
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = index, file
                break
            except BlockingIOError:
                file.close()
        else:
            time.sleep(0.1)
    with held[1]:
        yield held[0]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    once()
