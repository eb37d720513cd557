"""`grade run --dask`: two worker processes, one of them killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grading import judge, many, marks
from grading.intake import find_submissions
from grading.intake.load import load
from grading.pool import Todo
from labkit.checks.tasks import load_week
from tests.checks.miniweek import OPS, make_week

pytestmark = pytest.mark.thorough

pytest.importorskip("distributed", reason="Dask is not installed")
ROOT = Path(__file__).resolve().parents[2]
needs_sandbox = pytest.mark.usefixtures("sandbox")
# A submission that says when it begins and goes on when it may: so a worker can be killed in the middle of one.
SLOW = OPS.replace("    return group.all_reduce(x)", "    import time; time.sleep(0.4)\n    return group.all_reduce(x)")

WRONG = OPS.replace("return group.all_reduce(x)", "return x")


def hand_in(root, *files):
    """A course with one week, and a submission of each file: s0, s1, ..."""
    week = load_week(make_week(root / "course"))
    for number, ops in enumerate(files):
        folder = root / "submitted" / f"s{number}" / "week91"
        folder.mkdir(parents=True)
        (folder / "ops.py").write_text(ops)
    return week, root


def command(root, *more):
    return [
        sys.executable,
        "-m",
        "grading.cli",
        "run",
        "week91",
        "--submissions",
        str(root / "submitted"),
        "--marks",
        str(root / "marks"),
        *more,
    ]


ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@needs_sandbox
@pytest.mark.timeout(900)  # a scheduler, two workers and a grader import torch one after another, on a busy machine
def test_two_workers_one_killed_nothing_lost_nothing_twice(tmp_path):
    week, root = hand_in(tmp_path, SLOW, WRONG, SLOW)
    from distributed import LocalCluster, Nanny  # noqa: F401  without Dask this fails here, where it says so

    where = week.folder.parent
    scheduler_file = root / "scheduler.json"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "distributed.cli.dask_scheduler",
                "--port",
                "0",
                "--host",
                "127.0.0.1",
                "--no-dashboard",
                "--scheduler-file",
                str(scheduler_file),
            ],
            cwd=where,
            env=ENV,
            stderr=subprocess.DEVNULL,
        )
    ]
    try:
        _until(scheduler_file.exists)
        address = json.loads(scheduler_file.read_text())["address"]
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "distributed.cli.dask_worker",
                    address,
                    "--nthreads",
                    "1",
                    "--no-nanny",
                    "--no-dashboard",
                    "--local-directory",
                    str(root / f"w{i}"),
                ],
                cwd=where,
                env=ENV,
                stderr=subprocess.DEVNULL,
            )
            for i in range(2)
        ]
        processes += workers
        _until(lambda: _workers(address) == 2)
        running = subprocess.Popen(
            command(root, "--dask", address),
            cwd=where,
            env=ENV,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(running)
        _until(lambda: list((root / "marks").glob("week91/*/1.json")))  # one is done, others are in the middle
        first = {path: path.stat().st_mtime_ns for path in (root / "marks").glob("week91/*/1.json")}
        workers[0].send_signal(signal.SIGKILL)
        said, errors = running.communicate(timeout=400)
        assert running.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = {mark.student: mark for mark in marks.all_marks(root / "marks", "week91")}
    assert {s: m.points for s, m in found.items()} == {"s0": 15, "s1": 9, "s2": 15}
    assert all(mark.complete for mark in found.values())
    assert {path: path.stat().st_mtime_ns for path in first} == first  # what was done was not done again
    assert said.count(" of 3  ") == 3


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
    week, root = hand_in(tmp_path, OPS, WRONG)
    for more, folder in ((("--dask", "local", "--jobs", "2"), "dask"), (("--jobs", "2"), "plain")):
        done = subprocess.run(
            command(root, *more), cwd=week.folder.parent, env=ENV, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
        if folder == "dask":
            told = _told(root)
            seed = (root / "marks" / "week91" / ".seed.json").read_bytes()
            for path in (root / "marks").glob("week91/*/1.json"):
                path.unlink()
    assert _told(root) == told and len(told) == 2 and (root / "marks" / "week91" / ".seed.json").read_bytes() == seed


def _told(root):
    return {
        m.student: (m.key, [(c["test"], c["verdict"], c["text"]) for c in m.cases])
        for m in marks.all_marks(root / "marks", "week91")
    }


def test_no_scheduler_is_one_sentence(monkeypatch):
    monkeypatch.setattr(many, "ANSWER", 1.0)
    from labkit.errors import LabError

    with pytest.raises(LabError, match="no Dask scheduler answers"), many.connected("tcp://127.0.0.1:1", 1):
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


@pytest.mark.parametrize("changed", [[True, False], [True]])
def test_what_changed_since_it_was_listed_goes_to_no_worker_and_is_not_lost(changed, tmp_path, monkeypatch):
    from distributed import Client

    week, root = hand_in(tmp_path, *[OPS] * len(changed))
    entries = find_submissions(root / "submitted", week)
    todo = [Todo(entry, "other" if it else load(entry, week).digest) for entry, it in zip(entries, changed)]
    monkeypatch.setattr(many, "on_worker", lambda job: 1 / 0)
    begun = []
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        rest = client, todo, week, root / "marks", judge.Settings(1), begun.append, lambda item, mark: None
        left = many.grade_all(*rest)
    assert sorted(one.entry.student for one in left) == [one.entry.student for one in todo]
    assert begun == [one for one, it in zip(todo, changed) if not it]
