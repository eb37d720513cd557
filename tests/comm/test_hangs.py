"""Ranks that deadlock, loop or die: the run ends, the autopsy names the guilty, nothing is left behind."""

import os
import re
import signal
import sys
import threading
import time
from functools import partial

import psutil
import pytest
import torch

from labkit.comm import helper as helpers
from labkit.comm import supervisor
from labkit.comm.processes import Output
from labkit.comm.ranks import RanksFailed, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "processes"])


# -- deadlocks --------------------------------------------------------------------------------------------------------
def send_send(group, n):
    other = 1 - group.rank
    group.send(torch.ones(n), other)
    group.recv(other, like=torch.ones(n))


@both
@pytest.mark.parametrize("n", [1, 1 << 20])
def test_send_send(fails, at, backend, n, nothing_left):
    a = fails(send_send, n, backend=backend, size=2, timeout=60)
    assert a.reason == "deadlock" and a.certain and a.involved == [0, 1]
    assert a.call.endswith(at(send_send, "group.send"))
    assert "sendrecv" in a.cause
    call = a.ranks[0].calls[0]
    assert (call.kind, call.peer, call.bytes, call.waits_for) == ("send", 1, 4 * n, [1]) and call.seconds > 0
    assert {(e.waiter, e.on) for e in a.edges} == {(0, 1), (1, 0)}


def past_each_other(group):
    """Each sends to its right, and receives from there."""
    right = (group.rank + 1) % group.size
    group.sendrecv(torch.ones(1), dst=right, src=right, like=torch.ones(1))


@both
def test_both_directions_to_the_wrong_rank(fails, backend, nothing_left):
    """sendrecv is used, so it is no advice: `dst` and `src` do not fit together."""
    a = fails(past_each_other, backend=backend, size=3, timeout=60)
    assert a.reason == "deadlock" and a.certain and a.involved == [0, 1, 2]
    assert re.search("Rank 0 (sends to|receives from) rank 1, but rank 1 (receives from|sends to) rank 2", a.cause)


def waits_on_a_handle(group):
    if group.rank == 0:
        handle = group.irecv(1, like=torch.ones(5))
        handle.wait()  # for ever


@both
def test_a_handle_that_waits(fails, at, backend, nothing_left):
    a = fails(waits_on_a_handle, backend=backend, timeout=60)
    call = a.ranks[0].calls[0]
    assert a.guilty == 1 and call.handle and (call.kind, call.peer, call.bytes) == ("recv", 1, 20)
    assert call.where.endswith(at(waits_on_a_handle, "for ever"))


# -- endless loops ----------------------------------------------------------------------------------------------------
def endless(group):
    if group.rank == 1:
        while True:
            pass  # endless
    group.barrier()


def endless_and_deaf(group):
    while group.rank == 1:
        try:
            for _ in range(10**12):
                pass
        except Exception:
            pass
    group.barrier()


def endless_alone(group):
    while group.rank == 2:
        pass


def swallows_everything(group):
    n = 0
    while group.rank == 0:
        try:  # noqa: SIM105  a `with` would be other code to end
            n += 1
        except BaseException:  # on threads the one that ends it escapes where the loop jumps back, outside of the try
            pass


@pytest.mark.thorough
@both
@pytest.mark.parametrize(
    "fn, guilty", [(endless, 1), (endless_and_deaf, 1), (endless_alone, 2), (swallows_everything, 0)]
)
def test_endless_loop(fails, at, backend, fn, guilty, nothing_left):
    a = fails(fn, backend=backend)
    assert (a.reason, a.guilty, a.ranks[guilty].state) == ("deadline", guilty, "running")
    file, _, line = a.call.rpartition(":")
    first = int(at(fn, "def ").rpartition(":")[2])
    assert file.endswith("test_hangs.py") and first < int(line) <= first + 7


def stuck_in_c(group, seconds):
    if group.rank == 0:
        time.sleep(seconds)  # stuck
    group.barrier()


def test_stuck_c_call_on_processes(fails, at, nothing_left):
    a = fails(stuck_in_c, 600, backend="processes")
    assert a.guilty == 0 and a.call.endswith(at(stuck_in_c, "# stuck")) and a.ranks[0].note == ""


def stuck_at_a_lock(group, lock):
    if group.rank == 0:
        lock.acquire()
    group.barrier()


def test_stuck_c_call_on_threads_says_what_it_cannot_do(fails):
    lock = threading.Lock()
    with lock:
        a = fails(stuck_at_a_lock, lock, backend="threads")
    assert a.guilty == 0 and "backend='processes'" in a.ranks[0].note and a.ranks[0].note in str(a)
    for thread in threading.enumerate():
        if thread.name == "rank 0":
            thread.join(60)  # once the call returns, the exception that waits for it ends the thread
            assert not thread.is_alive()


def hidden_deadlock(group):
    with group.ledger.off():
        group.send(torch.ones(1), 1 - group.rank)  # hidden


@both
def test_a_hang_while_the_ledger_is_off(fails, at, backend, nothing_left):
    a = fails(hidden_deadlock, backend=backend, size=2)
    assert a.involved == [0, 1] and a.call.endswith(at(hidden_deadlock, "# hidden")) and "switched off" in str(a)
    assert [(r.state, r.calls, r.where) for r in a.ranks] == [("waiting", [], a.call)] * 2


# -- a rank dies ------------------------------------------------------------------------------------------------------
def dies(group, how):
    group.barrier()
    if group.rank == 1:
        how()
    group.recv(1, like=torch.ones(1)) if group.rank == 0 else group.barrier()


def segfault():
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize(
    "how, words",
    [(partial(signal.raise_signal, 9), "SIGKILL"), (segfault, "storage was freed"), (partial(os._exit, 3), "status 3")],
)
def test_a_rank_dies(fails, at, how, words, nothing_left):
    a = fails(dies, how, backend="processes", timeout=None)
    assert (a.reason, a.guilty) == ("died", 1) and words in a.cause
    # Its last call, where nothing more is known.
    assert a.call.endswith(at(segfault, "string_at") if how is segfault else at(dies, "group.barrier()"))
    assert bool(a.ranks[1].traceback) == (how is segfault)
    assert a.ranks[1].state == "died"


def leaves_behind_a_stopped_helper(group):
    group.barrier()
    if group.rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
        os._exit(3)
    group.recv(1, like=torch.ones(1))


def test_a_death_that_is_shown_late_is_the_cause_all_the_same(fails, helper, nothing_left):
    """On a busy machine the others' "closed by peer" arrives seconds before the helper's word of the exit."""
    server, grace = psutil.Process(helpers._own.process.pid), supervisor.GRACE

    def wake():
        while server.status() != psutil.STATUS_STOPPED:
            time.sleep(0.05)
        time.sleep(6 * grace)
        server.resume()

    waker = threading.Thread(target=wake, daemon=True)
    waker.start()
    a = fails(leaves_behind_a_stopped_helper, backend="processes", timeout=60, grace=grace)
    waker.join()
    assert (a.reason, a.guilty, a.ranks[1].error) == ("died", 1, "its process ended with status 3")


def last_words_before_a_wait(group):
    if group.rank == 1:
        print("the disk is on fire", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_last_words_outlast_the_wait_for_the_others(fails, monkeypatch, nothing_left):
    """A dead rank's connections are at their end and say so whenever they are asked: nobody asks again."""
    prefixes = []
    real = Output.forward
    monkeypatch.setattr(
        Output, "forward", lambda output, *args, **more: prefixes.append(output.prefix) or real(output, *args, **more)
    )
    a = fails(last_words_before_a_wait, backend="processes", timeout=60, grace=supervisor.GRACE)
    assert a.ranks[1].output.strip() == "the disk is on fire" and str(a).endswith(a.ranks[1].output.rstrip())
    assert [rank.state for rank in a.ranks] == ["running", "died", "running"]
    assert 0 < prefixes.count("[rank 1] ") < 50


def test_a_long_line_is_passed_on_before_it_ends(capsys):
    output = Output("stdout", "")
    with open(output.theirs, "wb", buffering=0) as theirs:
        for _ in range(33):  # 64 KiB fill the pipe
            theirs.write(b"y" * (1 << 16))
            output.forward()
    os.close(output.fd)
    assert capsys.readouterr().out.count("y") > 1 << 20


def finishes(group, seconds):
    time.sleep(seconds)
    return group.rank


@pytest.mark.parametrize("able", [True, False])
def test_a_rank_that_waits_for_a_processor_is_not_late(able, monkeypatch):
    """The kernel tells who had to wait. Three seconds of a deadline of two are too many, unless most were waiting.
    (Seven of those who were not: who looks late must find them there, and four times the deadline would be enough.)"""
    begin = time.monotonic()
    monkeypatch.setattr(
        "labkit.comm.processes.times", lambda pid: (0.0, 0.0 if able else 0.95 * (time.monotonic() - begin))
    )
    run = partial(run_ranks, finishes, 7.0 if able else 3.0, size=2, backend="processes", timeout=2.0)
    if able:
        with pytest.raises(RanksFailed) as caught:
            run()
        assert caught.value.autopsy.reason == "deadline"
    else:
        assert list(run()) == [0, 1]
