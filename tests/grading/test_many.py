"""`grade run --dask`: two worker processes, one of them killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grading import many
from labkit.errors import LabError
from tests.checks.miniweek import OPS
from tests.grading.test_run import KILLED, Course

pytestmark = pytest.mark.thorough

pytest.importorskip("distributed", reason="Dask is not installed")
ROOT = Path(__file__).resolve().parents[2]
needs_sandbox = pytest.mark.usefixtures("sandbox")
# A submission that says when it begins and goes on when it may: so a worker can be killed in the middle of one.
SLOW = OPS.replace("    return group.all_reduce(x)", "    import time; time.sleep(0.4)\n    return group.all_reduce(x)")

WRONG = OPS.replace("return group.all_reduce(x)", "return x")


def class_of(root, *files):
    """A class of a course with one week, and a submission of each file: s0, s1, ..."""
    course = Course(root)
    for number, ops in enumerate(files):
        course.hand_in(f"s{number}", ops)
    return course


def command(course, **wishes):
    return [sys.executable, "-c", KILLED, course.week.folder, course.folder, json.dumps(wishes)]


ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@needs_sandbox
@pytest.mark.timeout(900)  # a scheduler, two workers and a grader import torch one after another, on a busy machine
def test_two_workers_one_killed_nothing_lost_nothing_twice(tmp_path):
    course, root = class_of(tmp_path, SLOW, WRONG, SLOW), tmp_path
    from distributed import LocalCluster, Nanny  # noqa: F401  without Dask this fails here, where it says so

    where, processes, scheduler_file = course.week.folder.parent, [], root / "scheduler.json"

    def dask(kind, *words):
        words = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *words]
        processes.append(subprocess.Popen(words, cwd=where, env=ENV, stderr=subprocess.DEVNULL))

    try:
        dask("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", scheduler_file)
        _until(lambda: scheduler_file.exists() and scheduler_file.read_text().rstrip().endswith("}"))
        address = json.loads(scheduler_file.read_text())["address"]
        for i in range(2):
            dask("worker", address, "--nthreads", "1", "--no-nanny", "--local-directory", root / f"w{i}")
        _until(lambda: _workers(address) == 2)
        running = subprocess.Popen(
            command(course, dask=address), cwd=where, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(running)
        _until(course.marks)  # one is done, others are in the middle
        first = course.marks()
        processes[1].send_signal(signal.SIGKILL)
        said, errors = running.communicate(timeout=400)
        assert running.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = course.marks()
    assert {s: m.points for s, m in found.items()} == {"s0": 15, "s1": 9, "s2": 15}
    assert all(mark.complete for mark in found.values())
    assert {name: found[name] for name in first} == first, "what was done was not done again"
    assert len(json.loads(said)["made"]) == 3


def _workers(address):
    from distributed import Client

    try:
        with Client(address, timeout=20) as client:
            return len(client.scheduler_info()["workers"])
    except OSError:  # not yet
        return 0


def _until(ready, seconds=200):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_sandbox
@pytest.mark.timeout(900)
def test_local_workers_give_the_marks_that_this_machine_gives(tmp_path):
    course, said = class_of(tmp_path, OPS, WRONG), []
    for wishes in ({"dask": "local", "jobs": 2}, {"jobs": 2}):
        where = course.week.folder.parent
        done = subprocess.run(
            command(course, **wishes), cwd=where, env=ENV, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
        found = course.marks()
        said.append({n: (m.key, [(c["test"], c["verdict"], c["text"]) for c in m.cases]) for n, m in found.items()})
        with course.open() as cls, cls.writing():
            cls.db.execute("DELETE FROM mark")
    assert said[0] == said[1] and len(said[0]) == 2


def test_slots_that_another_account_made_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(many.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(many.os, "getuid", lambda: 12345)
    with pytest.raises(LabError, match="another account"), many.slot():
        pass


def test_a_machine_has_as_many_slots_as_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(many.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(many.os, "sched_getaffinity", lambda pid: {0, 1})
    with many.slot() as one, many.slot() as two:
        assert {one, two} == {0, 1}
        tries = []
        monkeypatch.setattr(many.time, "sleep", lambda seconds: tries.append(seconds) or _stop(tries))
        with pytest.raises(TimeoutError), many.slot():
            pass
    with many.slot() as free:
        assert free == 0


def _stop(tries):
    if len(tries) == 3:
        raise TimeoutError
