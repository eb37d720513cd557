"""Ranks under torchrun: the same interface, and an autopsy instead of a hang."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.thorough

ROOT = str(Path(__file__).resolve().parents[2])
PROGRAM = """
import atexit, json, os, signal, sys, threading, time, torch
from labkit.comm.ranks import RanksFailed, run_ranks
from labkit.errors import LabError

def work(group, what):
    x = group.all_reduce(torch.tensor([group.rank + 1.0]))
    open(f"{sys.argv[2]}/pid{group.rank}", "w").write(str(os.getpid()))
    both, alone = group.split([[0, 1]], "both"), group.split([[0], [1]], "alone")
    assert both.all_gather(x, out=torch.zeros(2)).tolist() == [3.0, 3.0] and alone.ranks == (group.rank,)
    group.barrier()
    if what == "raise" and group.rank == 1:
        raise ValueError("boom")
    if what == "send":
        both.send(x, 1 - group.rank)            # both send
    if what == "wait":
        open(f"{sys.argv[2]}/waits{group.rank}", "w").close()
        time.sleep(600)
    if what == "die" and group.rank == 1:
        os.kill(os.getpid(), 9)
    if what != "ok":
        group.barrier()
    if what == "much":  # 12 MB; torch's store takes 8 MiB in one message
        x = torch.arange(3.0 * 2**20) + group.rank
    return {"sum": x, "rank": group.rank, "size": group.size, "device": str(group.device)}

if __name__ == "__main__":
    ended = threading.Event()
    if sys.argv[1] == "die":
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
    atexit.register(lambda: open(f"{sys.argv[2]}/apart{os.environ['RANK']}", "w").close())
    try:
        run_ranks(work, "ok", size=5)
    except LabError as error:
        assert "torchrun started 2 ranks, but size=5" in str(error), error
    a, b = results = run_ranks(work, "ok", size=2, timeout=60.0)
    assert a["sum"].item() == b["sum"].item() == 3
    assert (a["rank"], b["rank"], a["size"], a["device"]) == (0, 1, 2, "cpu")
    assert [e.kind for e in results.ledgers[1].events] == ["all_reduce", "split", "split", "all_gather", "barrier"]
    print("FINE", flush=True)
    try:
        last = run_ranks(work, sys.argv[1], timeout={"send": 3.0, "raise": 60.0}.get(sys.argv[1]))
        assert all(torch.equal(value["sum"], torch.arange(3.0 * 2**20) + rank) for rank, value in enumerate(last))
        print("MUCH", len(last), flush=True)
    except RanksFailed as failure:
        print("AUTOPSY", json.dumps(failure.autopsy.to_json()), flush=True)
        if sys.argv[1] == "die":
            ended.wait()  # torchrun sees that rank 1 has died
        raise
"""


def command(tmp_path, what):
    """Two ranks, with a free port of the system's choice: (Python's arguments, the environment)."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "hsn0"}
    # torchrun leaves a folder of logs in the temporary folder
    return [*words, str(tmp_path / "program.py"), what, str(tmp_path)], {**env, "TMPDIR": str(tmp_path)}


def torchrun(tmp_path, what):
    """(exit status, stdout, stderr) of such a program; its ranks are gone. The ranks start from nothing, torchrun
    itself has torch already."""
    words, env = command(tmp_path, what)
    done = warm.python(*words, cwd=tmp_path, env=env)
    for rank in range(2):
        pid = int((tmp_path / f"pid{rank}").read_text())
        assert not os.path.exists(f"/proc/{pid}")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("apart", ["0", "1"], ids=["torchrun serves the store", "rank 0 serves it"])
def test_a_rank_may_return_more_than_the_store_takes_at_once(tmp_path, monkeypatch, apart):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", apart)
    code, out, err = torchrun(tmp_path, "much")
    assert code == 0 and out.count("MUCH 2") == 2, err
    assert all((tmp_path / f"apart{rank}").exists() for rank in range(2))  # nobody asked them to end


def test_a_rank_raises(tmp_path):
    code, out, err = torchrun(tmp_path, "raise")
    assert out.count("FINE") == 2, err  # the run before it: every rank got the results of all
    assert code != 0 and out.count("AUTOPSY") == 1
    autopsy = json.loads(out.split("AUTOPSY", 1)[1])
    assert (autopsy["reason"], autopsy["guilty"], autopsy["backend"]) == ("raised", 1, "torchrun")
    assert autopsy["call"].endswith("program.py:13") and autopsy["ranks"][1]["error"] == "ValueError: boom"
    assert [r["state"] for r in autopsy["ranks"]] == ["waiting", "raised"] and autopsy["cause"] in err


def test_send_send_at_the_deadline(tmp_path):
    code, _, err = torchrun(tmp_path, "send")
    words = ["did not end within 3 s", "Deadlock of ranks 0 and 1", "program.py:15", 'in group "both"', "sendrecv"]
    assert code != 0 and all(word in err for word in words), err
    assert err.count("waits in") <= 4  # once, not by every rank


def test_a_killed_rank_ends_all(tmp_path):
    code, out, err = torchrun(tmp_path, "die")
    guilty, other = json.loads(out.split("AUTOPSY", 1)[1])["ranks"][::-1]
    assert code != 0 and "SIGKILL" in err  # how it died only torchrun knows, and says
    assert guilty["note"] and not guilty["events"] and other["events"] and not other["note"]
    # Rank 0 has said why, and does not take its interpreter apart: on a busy machine that took 6 s of torchrun's 30.
    assert out.count("AUTOPSY") == 1 and "RanksFailed" in err and not (tmp_path / "apart0").exists()


def test_a_killed_agent_leaves_no_ranks_behind(tmp_path, gone):
    words, env = command(tmp_path, "wait")
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    # Not by what they print: gloo prints as well, and its words may stand in the middle of theirs.
    give_up = time.monotonic() + 200
    while not all((tmp_path / f"waits{rank}").exists() for rank in range(2)):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    process.kill()
    process.stdout.close()  # nobody listens any more: a rank that cannot print must leave all the same
    process.stderr.close()
    process.wait()
    assert all(gone(int((tmp_path / f"pid{rank}").read_text())) for rank in range(2))
