"""Ranks that are killed under plain torchrun, elastic and static: at three places of a start, and in the middle.

The places are lines of the program, not moments: a rank kills itself there (`DIES`), or stands before a gate."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from capstone.given.struck import EVERY, PROGRAM, Job, ended, gate, reached, until
from capstone.test_survive import curve, resumed, weights
from labkit.checks.outside import Site
from tests.judged import ROOT

# By the number of the start: which rank dies where. Imported by every Python at its start.
DIES = """
import os, signal
plan = {"0": ("0", "came"), "1": ("1", "agreed"), "2": ("0", "connected"), "3": ("1", "agreed")}
rank, where = plan.get(os.environ.get("TORCHELASTIC_RESTART_COUNT"), ("", ""))
if rank and os.environ.get("RANK") == rank:
    import torch.distributed as dist
    from labkit.comm.torchrun import Attempt

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class Left(dist.PrefixStore):
        def check(self, keys):
            die()

    agree, joined = Attempt._agree, dist.init_process_group

    def _agree(self, store):
        name = agree(self, Left("", store) if where == "came" else store)
        return die() if where == "agreed" else name

    def init_process_group(*args, **how):
        joined(*args, **how)
        die()

    Attempt._agree = _agree
    if where == "connected":
        dist.init_process_group = init_process_group
"""


class Plain(Site):
    """torchrun as people type it: no variable is set for it."""

    static = False

    def _launch(self, program, ranks, restarts, said):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        elastic = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --rdzv-id {self.folder.name}".split()
        meet = ["--master-addr", "127.0.0.1", "--master-port", str(port)] if self.static else elastic
        sizes = f"--nnodes 1 --nproc-per-node {ranks} --max-restarts {restarts} --local-addr 127.0.0.1".split()
        words = [*sizes, "--monitor-interval", "0.1", "-m", program, str(self.given), str(self.left)]
        (self.folder / "sitecustomize.py").write_text(DIES)
        own = {key: value for key, value in os.environ.items() if not key.startswith("TORCH_DISABLE")}
        own |= {"PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]), "OMP_NUM_THREADS": "1"}
        own |= {"TMPDIR": str(self.folder)}
        argv = [sys.executable, "-m", "torch.distributed.run", *meet, *words]
        return subprocess.Popen(argv, cwd=ROOT, env=own, stdout=said, stderr=said, start_new_session=True)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("static", [False, True], ids=["elastic", "static"])
def test_a_killed_rank_comes_back(tmp_path: Path, static: bool):
    place, job = Plain(ROOT, tmp_path), Job(5, "restarts", steps=2 * EVERY + 2, bad=set(), batches=2 * EVERY + 2)
    place.static = static
    want = job.undisturbed(job.plan())
    job.lay(place)
    gate(place, 0, EVERY + 3)  # rank 0 goes one step further, and stands in its collectives
    gate(place, 1, EVERY + 2)
    try:
        place.start(PROGRAM, ranks=2, restarts=8)
        assert reached(place, EVERY + 2), place.said()  # four starts have died
        place.signal(0, signal.SIGKILL)
        assert reached(place, EVERY + 2, after=1), place.said()
        # Rank 1 is stopped and rank 0 is asked to end: it does not wait for it, and torchrun has no need to kill it.
        pids = place.pids(2)
        assert pids is not None
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[0], signal.SIGTERM)
        assert until(place, lambda: not place.state(pids[0]))
        os.kill(pids[1], signal.SIGKILL)
        for rank in range(2):
            gate(place, rank, None)
        assert ended(place) == 0, place.said()
    finally:
        place.close()
    assert "asked to end, and rank 1 does not answer" in (place.folder / "said").read_text(errors="replace")
    assert resumed(place) == [EVERY + 1] * 2
    assert not curve(place, want, job.steps) and not weights(place, job, want, job.steps)
    assert json.loads((place.left / "run" / "run.json").read_text())["status"] == "finished"
