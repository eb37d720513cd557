"""Two machines, as far as one can show: two torchrun agents in two network namespaces, joined by a virtual wire.

An agent is killed, with its rank, and started again: the run loses at most the steps since its last checkpoint. What
this does not show: another disk, NCCL, GPUs, clocks that differ.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from capstone.given import struck
from capstone.given.struck import EVERY, PROGRAM, Job, gate
from capstone.test_survive import curve, resumed, weights
from labkit.checks.outside import Site
from tests.judged import ROOT

CLUSTER = ROOT / "capstone" / "cluster"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def test_slurm_sets_for_its_ranks_what_kubernetes_does():
    script = (CLUSTER / "train.slurm").read_text()
    assert re.search(r"^#SBATCH --ntasks-per-node=1$", script, re.M)
    assert variables().items() <= dict(re.findall(r"^export (\w+)=(\S+)", script, re.M)).items()


def variables() -> dict[str, str]:
    """What the Kubernetes file sets for its ranks."""
    return dict(re.findall(r'{name: (\w+), value: "(\w+)"}', (CLUSTER / "pytorchjob.yaml").read_text()))


@pytest.mark.parametrize("script", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("[cw]*/**/*.slurm")))
def test_srun_gives_a_task_the_cpus_of_the_job(tmp_path, script):
    """Slurm 22.05 and newer: from a variable of its own."""
    for name, line in (("scontrol", "printf 'gpu01\\ngpu02\\n'"), ("srun", "echo $SRUN_CPUS_PER_TASK")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "32", "SLURM_SUBMIT_DIR": str(ROOT)}
    own |= dict(SLURM_JOB_NODELIST="gpu[01-02]", SLURM_JOB_ID="4711", SLURM_JOB_NUM_NODES="2")
    words = ["bash", str(ROOT / script), "config.toml", "runs/first"]
    assert subprocess.run(words, env=own, capture_output=True, text=True, timeout=60).stdout == "32\n"


def _has_its_own(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:  # it has ended
        return False


@pytest.fixture
def machines() -> Iterator[list[int]]:
    """Two processes that each hold a network namespace; an interface "wire" in each, and between them a cable."""
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "ip")):
        pytest.skip("needs unshare, nsenter and ip")
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "600"], stderr=subprocess.DEVNULL) for _ in ADDRESSES]
    try:
        pids, give_up = [holder.pid for holder in holders], time.monotonic() + 60
        while not all(map(_has_its_own, pids)):
            if any(holder.poll() is not None for holder in holders) or time.monotonic() > give_up:
                pytest.skip("this machine permits no network namespaces")
            time.sleep(0.02)
        first, second = map(str, pids)
        words = ["ip", "link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second]
        made = subprocess.run(words, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"this machine permits no virtual wire: {made.stderr.strip()}")
        for pid, address in zip(pids, ADDRESSES):
            for line in ("link set lo up", f"addr add {address}/24 dev wire", "link set wire up"):
                subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *line.split()], check=True)
        yield pids
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def agent(machine: int, number: int, place: Site) -> subprocess.Popen[bytes]:
    """torchrun on one of the machines."""
    own = {**os.environ, **variables(), "GLOO_SOCKET_IFNAME": "wire", "PYTHONPATH": str(ROOT)}
    own |= {"TMPDIR": str(place.folder)}  # torchrun leaves its workers' logs there
    meet = f"--rdzv-backend c10d --rdzv-id two --rdzv-endpoint {ADDRESSES[0]}:29400 --local-addr {ADDRESSES[number]}"
    host = f"--rdzv-conf is_host={number == 0}".lower()
    sizes = "--nnodes 2 --nproc-per-node 1 --max-restarts 3 --monitor-interval 0.1"
    command = ["nsenter", "-t", str(machine), "-n", sys.executable, "-m", "torch.distributed.run"]
    command += [*meet.split(), *host.split(), *sizes.split(), "-m", PROGRAM, str(place.given), str(place.left)]
    with (place.folder / f"said-{number}").open("ab") as said:
        return subprocess.Popen(command, cwd=ROOT, env=own, stdout=said, stderr=said)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_agent_that_is_killed_comes_again(machines, tmp_path):
    place, job = Site(ROOT, tmp_path), Job(3, "machines", steps=2 * EVERY + 2, bad=set(), batches=2 * EVERY + 2)
    want, halt = job.undisturbed(job.plan()), EVERY + 2
    job.lay(place)
    for rank in range(2):
        gate(place, rank, halt)
    agents = [agent(machine, number, place) for number, machine in enumerate(machines)]

    def outputs() -> str:
        return "\n".join((place.folder / f"said-{number}").read_text()[-3000:] for number in range(2))

    def come_to(step: int, starts: int) -> bool:
        """Whether they come there before an agent ends. Agents that wait for one another end by themselves."""
        while not (there := len(resumed(place)) >= starts and step in struck.steps(place)):
            if any(one.poll() is not None for one in agents):
                break
            time.sleep(0.05)
        return there

    try:
        assert come_to(halt, 0), outputs()
        # The machine is lost: the agent, and its rank.
        lost = [pid for pid in (place.pids(2) or {}).values() if psutil.Process(pid).ppid() == agents[1].pid]
        assert len(lost) == 1
        for pid in (agents[1].pid, *lost):
            os.kill(pid, signal.SIGKILL)
        agents[1].wait()
        agents[1] = agent(machines[1], 1, place)
        for rank in range(2):
            gate(place, rank, None)
        assert come_to(job.steps, 1), outputs()
        assert [one.wait() for one in agents] == [0, 0], outputs()
    finally:
        for one in agents:
            one.kill()
            one.wait()
    assert resumed(place) == [EVERY + 1], "from the newest checkpoint on"
    assert not curve(place, want, job.steps)
    assert not weights(place, job, want, job.steps)
