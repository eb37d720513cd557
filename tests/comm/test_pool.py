"""Rank processes that are kept between jobs, several runs at once, and what a rank leaves behind."""

import os
import socket
import subprocess
import threading
import time

import pytest
import torch

from labkit.comm import helper as helpers
from labkit.comm import processes
from labkit.comm.ranks import RankPool, RanksFailed, run_ranks
from tests.waiting import until


def pid(group):
    return os.getpid()


def fail(group):
    raise ValueError("once")


def forgets(group):
    if group.rank == 0:
        with group.ledger.off():
            group.isend(torch.ones(3), 1)
    return os.getpid()


def die_later(group, word):
    """Once there is a word, which comes after the job."""

    def wait():
        while not os.path.exists(word):
            time.sleep(0.02)
        os._exit(5)

    threading.Thread(target=wait, daemon=True).start()
    return os.getpid()


def wait_for_ends(pool, count):
    """Wait until the helper has reported so many ends; the pool has still to hear of them."""
    until(lambda: pool._line.link.recv(1 << 16, socket.MSG_PEEK).count(b"ended") >= count)


def test_pool_keeps_its_processes_until_a_job_fails(gone, nothing_left, tmp_path):
    with RankPool(2) as pool:
        first = pool.run(pid)
        assert pool.run(pid) == first and len(set(first)) == 2
        with pytest.raises(RanksFailed, match="once"):
            pool.run(fail)
        second = pool.run(pid)
        assert not set(first) & set(second)
        assert pool.run(forgets) == second
        third = pool.run(pid)  # a message that no ledger shows may still be under way: not with these processes
        assert not set(second) & set(third)
        assert pool.run(die_later, str(tmp_path / "word")) == third
        (tmp_path / "word").touch()
        wait_for_ends(pool, 2)
        assert all(gone(p) for p in third)
        assert len(pool.run(pid)) == 2  # dead between two jobs: new ones
        assert len(pool.run(pid).ledgers) == 2
    assert len(pool.run(pid)) == 2
    pool.close()


def floods(group):
    while True:
        print("y" * 1000)


def test_an_endless_print_does_not_flood(helper, capsys, monkeypatch, nothing_left):
    assert processes.OUTPUT_LIMIT <= 4 << 20
    monkeypatch.setattr(processes, "OUTPUT_LIMIT", 64 << 10)  # so much is printed before the deadline on any machine
    with pytest.raises(RanksFailed, match="endless loop"):
        run_ranks(floods, size=2, backend="processes", timeout=1.0)
    out = capsys.readouterr().out
    assert len(out) < 2 * (80 << 10) and out.count("the rest of its output is dropped") == 2


def test_from_two_threads_at_once(helper, nothing_left):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(run_ranks(pid, size=2, backend="processes", timeout=60)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and len({p for pids in found for p in pids}) == 4


def starts_children(group):
    child = subprocess.Popen(["sleep", "600"])
    print(f"child {child.pid}")
    group.barrier()  # who has not come so far half a second after the exit is ended before its child is born
    if group.rank == 1:
        os._exit(3)


def test_children_of_ranks_end_with_them(gone, helper, capsys, nothing_left):
    with pytest.raises(RanksFailed, match="status 3"):
        run_ranks(starts_children, size=2, backend="processes", timeout=60)
    pids = [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "child" in line]
    assert len(pids) == 2 and all(gone(p) for p in pids)


def test_shutdown_and_again(nothing_left):
    run_ranks(pid, size=2, backend="processes", timeout=60)
    process = helpers._own.process
    helpers.shutdown()
    assert process.poll() is not None
    assert len(run_ranks(pid, size=1, backend="processes", timeout=60)) == 1
