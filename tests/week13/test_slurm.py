"""bench.slurm, as far as one machine can show: its own lines start two torchruns, which meet and measure together.

`srun` and `scontrol` are stand-ins: two "nodes", both this machine. What no stand-in shows: a real network, NCCL, GPUs.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import week13_allreduce

ROOT = Path(week13_allreduce.__file__).parents[1]
SCRIPT = ROOT / "week13_allreduce" / "bench.slurm"
# Like srun with one task a node: the same command on every node, at the same time; the first failure is the status.
SRUN = """#!/bin/bash
echo "$@" > "$SEEN/srun"
pids=()
for node in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do SLURM_NODEID=$node SLURM_PROCID=$node "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "${status:-0}"
"""
SCONTROL = """#!/bin/bash
echo "$@" > "$SEEN/scontrol"
yes localhost | head -n 20000          # more than a pipe holds: a reader that hangs up after the first line is noticed
"""
TORCHRUN = f"""#!/bin/bash
exec {sys.executable} -m torch.distributed.run "$@"
"""
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")]


def free_port():
    """A port that nobody holds, in the script's range: 20000 to 39999."""
    for port in range(20000 + os.getpid() % 9000, 40000):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


@pytest.fixture
def cluster(tmp_path):
    """(environment of a job on two nodes, folder of what the stand-ins saw)."""
    # torchrun leaves its log folders in the temporary folder
    seen, tools, scratch, submit = (tmp_path / name for name in ("seen", "tools", "tmp", "submitted from"))
    for folder in (seen, tools, scratch, submit):
        folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (submit / "week13_allreduce").symlink_to(ROOT / "week13_allreduce")
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SEEN": str(seen),
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(ROOT),
        "SLURM_SUBMIT_DIR": str(submit),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_JOB_ID": str(free_port() - 20000),
    }
    return environment, seen, submit


def bash(*arguments, **kwargs):
    return subprocess.run(["bash", *arguments], capture_output=True, text=True, timeout=240, **kwargs)


def test_two_torchruns_meet_and_measure_together(cluster):
    environment, seen, submit = cluster
    assert re.search(r"^#SBATCH --ntasks-per-node=1$", SCRIPT.read_text(encoding="utf-8"), re.M)
    words = ["-e", "4K", "-f", "4", "--device", "cpu", "--budget", "0.01", "--contenders", "library,ring"]
    done = bash(str(SCRIPT), *words, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (seen / "scontrol").read_text().split() == ["show", "hostnames", "node[1-2]"]
    words = (seen / "srun").read_text().split()
    port = 20000 + int(environment["SLURM_JOB_ID"])
    flags = {"--nnodes": "2", "--nproc-per-node": "1", "--rdzv-endpoint": f"localhost:{port}"}
    flags |= {"--rdzv-id": environment["SLURM_JOB_ID"], "-m": "week13_allreduce.bench"}
    assert {flag: words[words.index(flag) + 1] for flag in flags} == flags
    # One record, in the folder the job was submitted from, of two ranks that are two nodes, with no wrong number.
    record = json.loads((submit / "runs" / f"bench-{environment['SLURM_JOB_ID']}" / "bench.json").read_text())
    assert (record["ranks"], record["nodes"], record["transport"]) == (2, 2, "gloo")
    assert {e["collective"] for e in record["series"]} == {"all_reduce", "all_gather", "reduce_scatter"}
    assert all(row["wrong"] == 0 for entry in record["series"] for row in entry["rows"])
    assert done.stdout.count("# all_reduce: ring") == 1  # one rank of all nodes speaks


def test_a_node_that_fails_fails_the_job(cluster):
    environment, _, _ = cluster
    done = bash(str(SCRIPT), "-b", "8K", "-e", "4K", "--device", "cpu", env=environment)
    assert done.returncode != 0 and "ascending" in done.stderr


def test_started_by_hand_it_says_how(cluster):
    environment, _, _ = cluster
    del environment["SLURM_SUBMIT_DIR"]
    done = bash(str(SCRIPT), env=environment)
    assert done.returncode != 0 and "start this with sbatch" in done.stderr
