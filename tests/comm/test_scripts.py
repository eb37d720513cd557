"""Whole programs that run ranks: with and without a main guard, interrupted, killed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labkit.comm.ranks import run_ranks
from tests.waiting import until

pytestmark = pytest.mark.thorough

ROOT = str(Path(__file__).resolve().parents[2])
ENV = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}


JOB = """
import os, sys, time
from labkit.comm.ranks import run_ranks
class Answer:
    def __init__(self, rank): self.rank = rank
def job(group, directory=None):
    if directory:
        open(f"{directory}/pid{group.rank}", "w").write(str(os.getpid()))
        group.barrier()
        while group.rank == 0: pass
        time.sleep(600)
    return Answer(group.rank)
"""


def test_script_without_guard_runs_once(tmp_path):
    """No rank imports it: its function and its class travel, and the answers are of that class again."""
    (tmp_path / "s.py").write_text(
        JOB
        + """
print("begins")
print([type(a) is Answer and a.rank for a in run_ranks(job, size=2, backend="processes", timeout=60)])
"""
    )
    done = subprocess.run([sys.executable, tmp_path / "s.py"], capture_output=True, text=True, timeout=120, env=ENV)
    assert done.stdout.splitlines() == ["begins", "[0, 1]"], done.stderr


WAITING = (
    JOB
    + """
if __name__ == "__main__":
    import tempfile
    tempfile.tempdir = sys.argv[1]
    try:
        run_ranks(job, sys.argv[1], size=2, backend="processes", timeout=None)
    except KeyboardInterrupt:
        print("interrupted")
"""
)


def started(tmp_path):
    """A program whose ranks run for ever: (process, pids of the ranks and of the helper)."""
    (tmp_path / "s.py").write_text(WAITING)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "s.py"), str(tmp_path)], env=ENV, stdout=subprocess.PIPE, text=True
    )
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    with open(f"/proc/{pids[0]}/stat") as file:
        helper = int(file.read().rpartition(")")[2].split()[1])
    return process, [*pids, helper]


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
@pytest.mark.parametrize(
    "who, number", [("program", signal.SIGKILL), ("helper", signal.SIGKILL), ("program", signal.SIGINT)]
)
def test_who_is_ended_leaves_nothing_behind(gone, tmp_path, who, number):
    process, pids = started(tmp_path)
    os.kill(pids[-1] if who == "helper" else process.pid, number)
    out, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert out.strip() == "interrupted" and process.returncode == 0
    else:
        assert process.returncode != 0
    assert all(gone(p) for p in pids)
    assert not list(tmp_path.glob("labkit-*"))


def test_ctrl_c_on_threads_leaves_no_thread(nothing_left):
    spinning = threading.Barrier(3)

    def spin(group):
        spinning.wait()
        while True:
            pass

    def press():  # once both spin, however long they take to start
        spinning.wait()
        signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(spin, size=2, backend="threads", timeout=None)
    presser.join()
