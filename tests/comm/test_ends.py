"""Every way in which a run of ranks can go wrong: it ends, the autopsy names the guilty, nothing is left behind."""
from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import threading
import time

import pytest
import torch

from labkit.comm.ranks import RanksFailed, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "processes"])
DEADLINE = 1.5


def fails(fn, *args, backend, size=3, timeout=DEADLINE, within=20.0):
    """Run, expect RanksFailed, and expect it soon: `within` is generous for a busy machine, far below "for ever"."""
    start = time.perf_counter()
    with pytest.raises(RanksFailed) as caught:
        run_ranks(fn, *args, size=size, backend=backend, timeout=timeout)
    assert time.perf_counter() - start < within
    json.dumps(caught.value.autopsy.to_json())      # plain data
    return caught.value.autopsy


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return next(start + i for i, line in enumerate(lines) if text in line)


def at(fn, text):
    return f"test_ends.py:{line_of(fn, text)}"


# -- a rank raises ----------------------------------------------------------------------------------------------------
def raises(group):
    if group.rank == 1:
        raise ValueError("boom")
    group.barrier()


@both
def test_a_rank_raises(backend, nothing_left):
    a = fails(raises, backend=backend, timeout=60)
    assert (a.reason, a.guilty) == ("raised", 1)
    assert a.call.endswith(at(raises, "raise ValueError"))
    assert "Rank 1 raised ValueError: boom" in a.cause
    assert [r.state for r in a.ranks] == ["waiting", "raised", "waiting"]
    assert {(e.waiter, e.on) for e in a.edges} == {(0, 1), (2, 1)}
    assert a.ranks[0].calls[0].kind == "barrier"
    assert a.ranks[0].calls[0].where.endswith(at(raises, "group.barrier()"))
    assert 'raise ValueError("boom")' in str(a)         # the traceback, and in it no frame of labkit.comm
    assert "labkit/comm" not in str(a)


@both
def test_the_exception_itself_is_kept(backend, nothing_left):
    with pytest.raises(RanksFailed) as caught:
        run_ranks(raises, size=2, backend=backend, timeout=60)
    assert isinstance(caught.value.error, ValueError) and caught.value.error.args == ("boom",)
    assert len(caught.value.ledgers) == 2 and caught.value.ledgers[0].events[0].kind == "barrier"


def all_raise(group):
    raise ValueError(f"rank {group.rank}")


@both
def test_all_raise_at_once(backend, nothing_left):
    a = fails(all_raise, backend=backend, timeout=60)
    assert [r.state for r in a.ranks] == ["raised"] * 3


def leaves(group):
    if group.rank == 2:
        sys.exit(0)
    group.barrier()


@both
def test_sys_exit_is_not_success(backend, nothing_left):
    a = fails(leaves, backend=backend, timeout=60)
    assert a.guilty == 2 and "SystemExit" in a.cause


def raises_early_without_deadline(group):
    if group.rank == 0:
        raise RuntimeError("no data")
    group.recv(0, like=torch.ones(1))


@both
def test_no_deadline_still_ends_when_one_raises(backend, nothing_left):
    assert fails(raises_early_without_deadline, backend=backend, timeout=None).guilty == 0


# -- a rank returns while others wait for it -----------------------------------------------------------------------------
def returns_early(group):
    if group.rank == 0:
        group.send(torch.ones(2), 1)
        return "done"
    if group.rank == 1:
        group.recv(0, like=torch.ones(2))
        return group.recv(0, like=torch.ones(2))    # a second one
    return None


@both
def test_a_rank_returns_early(backend, nothing_left):
    a = fails(returns_early, backend=backend, timeout=60)     # ends before the deadline: nobody can change it any more
    assert (a.guilty, a.certain) == (0, True)
    assert a.call.endswith(at(returns_early, "a second one"))
    assert "Rank 0 returned early" in a.cause and "message number 2" in a.cause and "never sent" in a.cause
    assert [r.state for r in a.ranks] == ["returned", "waiting", "returned"]
    assert [(e.waiter, e.on, e.kind) for e in a.edges] == [(1, 0, "recv")]


def skips_the_barrier(group):
    if group.rank != 2:
        group.barrier()


@both
def test_a_rank_misses_a_collective(backend, nothing_left):
    a = fails(skips_the_barrier, backend=backend, timeout=60)
    assert a.guilty == 2 and "barrier" in a.cause and "never joined" in a.cause


@both
def test_no_deadline_still_ends_when_the_hang_is_certain(backend, nothing_left):
    assert fails(skips_the_barrier, backend=backend, timeout=None).guilty == 2


# -- ranks disagree ---------------------------------------------------------------------------------------------------
def other_collective(group):
    if group.rank == 2:
        group.broadcast(torch.ones(3))
    else:
        group.all_reduce(torch.ones(3))


def other_op(group):
    group.all_reduce(torch.ones(3), op="max" if group.rank == 1 else "sum")


def other_root(group):
    group.broadcast(torch.ones(3), root=1 if group.rank == 0 else 0)


def other_length(group):
    group.all_gather(torch.ones(4 if group.rank == 1 else 3))


@both
@pytest.mark.parametrize("fn, guilty, words", [
    (other_collective, 2, ["all_reduce", "broadcast", "rank 2 left the common order"]),
    (other_op, 1, ["max", "sum", "rank 1 left"]),
    (other_root, 0, ["root 1", "root 0", "rank 0 left"]),
    (other_length, 1, ["[3] of float32", "[4] of float32", "rank 1 left"])])
def test_mismatched_collectives(backend, fn, guilty, words, nothing_left):
    a = fails(fn, backend=backend)
    assert a.guilty == guilty
    assert all(word in a.cause for word in [*words, "number 1"]), a.cause
    assert a.call.split(":")[0].endswith("test_ends.py")


def wrong_length(group, sent, expected):
    if group.rank == 0:
        group.send(torch.ones(sent), 1)
    elif group.rank == 1:
        group.recv(0, like=torch.ones(expected))


@both
@pytest.mark.parametrize("sent, expected", [(3, 4), (4, 3)])   # gloo accepts the first in silence, and aborts on the second
def test_message_sizes_differ(backend, sent, expected, nothing_left):
    a = fails(wrong_length, sent, expected, backend=backend)
    assert f"[{sent}] of float32 ({4 * sent} bytes)" in a.cause and f"[{expected}] of float32" in a.cause, str(a)
    assert set(a.involved) == {0, 1} or a.guilty == 1


def wrong_dtype(group):
    if group.rank == 0:
        group.send(torch.ones(2), 1)
    elif group.rank == 1:
        group.recv(0, like=torch.ones(2, dtype=torch.int32))


@both
def test_message_dtypes_differ(backend, nothing_left):
    a = fails(wrong_dtype, backend=backend)
    assert "float32" in a.cause and "int32" in a.cause


def nobody_receives(group):
    if group.rank == 0:
        group.isend(torch.ones(2), 1)


@both
def test_a_message_that_nobody_receives(backend, nothing_left):
    a = fails(nobody_receives, backend=backend)
    assert a.guilty == 0 and "never received" in a.cause


# -- deadlocks ----------------------------------------------------------------------------------------------------------
def send_send(group, n):
    other = 1 - group.rank
    group.send(torch.ones(n), other)
    group.recv(other, like=torch.ones(n))


@both
@pytest.mark.parametrize("n", [1, 1 << 20])
def test_send_send(backend, n, nothing_left):
    a = fails(send_send, n, backend=backend, size=2, timeout=60)
    assert a.reason == "deadlock" and a.certain and a.involved == [0, 1]
    assert a.call.endswith(at(send_send, "group.send"))
    assert "sendrecv" in a.cause
    call = a.ranks[0].calls[0]
    assert (call.kind, call.peer, call.bytes, call.waits_for) == ("send", 1, 4 * n, [1]) and call.seconds > 0
    assert {(e.waiter, e.on) for e in a.edges} == {(0, 1), (1, 0)}


def ring_of_recvs(group):
    group.recv((group.rank - 1) % group.size, like=torch.ones(1))
    group.send(torch.ones(1), (group.rank + 1) % group.size)


@both
def test_everybody_receives_first(backend, nothing_left):
    a = fails(ring_of_recvs, backend=backend, timeout=60)
    assert a.involved == [0, 1, 2] and "receive first" in a.cause


def crossed(group):
    if group.rank == 0:
        group.all_reduce(torch.ones(1))
    elif group.rank == 1:
        group.recv(0, like=torch.ones(1))
    else:
        for _ in range(600):
            time.sleep(0.1)


@both
def test_crossed_order_is_seen_beside_a_busy_rank(backend, nothing_left):
    a = fails(crossed, backend=backend)
    assert a.involved == [0, 1] and "same order" in a.cause


def waits_on_a_handle(group):
    if group.rank == 0:
        handle = group.irecv(1, like=torch.ones(5))
        handle.wait()       # for ever


@both
def test_a_handle_that_waits(backend, nothing_left):
    a = fails(waits_on_a_handle, backend=backend, timeout=60)
    call = a.ranks[0].calls[0]
    assert a.guilty == 1 and call.handle and (call.kind, call.peer, call.bytes) == ("recv", 1, 20)
    assert call.where.endswith(at(waits_on_a_handle, "for ever"))


# -- endless loops ------------------------------------------------------------------------------------------------------
def endless(group):
    if group.rank == 1:
        while True:
            pass        # endless
    group.barrier()


def endless_and_deaf(group):
    n = 0
    while group.rank == 1:
        try:
            n += len(str(n))
        except Exception:
            pass
    group.barrier()


def endless_alone(group):
    while group.rank == 2:
        pass


@both
@pytest.mark.parametrize("fn, guilty", [(endless, 1), (endless_and_deaf, 1), (endless_alone, 2)])
def test_endless_loop(backend, fn, guilty, nothing_left):
    a = fails(fn, backend=backend)
    assert (a.reason, a.guilty) == ("deadline", guilty)
    assert "did not end within 1.5 s" in str(a) and "endless loop" in a.cause
    file, _, line = a.call.rpartition(":")
    first = line_of(fn, "def ")
    assert file.endswith("test_ends.py") and first < int(line) <= first + 7
    assert a.ranks[guilty].state == "running"


def swallows_everything(group):
    n = 0
    while group.rank == 0:
        try:
            n += 1
        except BaseException:
            pass


@both
def test_endless_loop_that_catches_everything(backend, nothing_left):
    # On threads the exception escapes where the loop jumps back, outside of the try.
    assert fails(swallows_everything, backend=backend).guilty == 0


def stuck_in_c(group, seconds):
    if group.rank == 0:
        time.sleep(seconds)     # stuck
    group.barrier()


def test_stuck_c_call_on_processes(nothing_left):
    a = fails(stuck_in_c, 600, backend="processes")
    assert a.guilty == 0 and a.call.endswith(at(stuck_in_c, "# stuck")) and a.ranks[0].note == ""


def test_stuck_c_call_on_threads_says_what_it_cannot_do():
    a = fails(stuck_in_c, 4, backend="threads")
    assert a.guilty == 0 and "could not be ended" in a.ranks[0].note and "backend='processes'" in str(a)
    for thread in threading.enumerate():
        if thread.name == "rank 0":
            thread.join(60)     # once the call returns, the exception that waits for it ends the thread
            assert not thread.is_alive()


# -- a rank dies --------------------------------------------------------------------------------------------------------
def dies(group, how):
    group.barrier()
    if group.rank == 1:
        how()
    group.recv(1, like=torch.ones(1)) if group.rank == 0 else group.barrier()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    import ctypes
    ctypes.string_at(0)


def leave():
    os._exit(3)


@pytest.mark.parametrize("how, words", [(kill, "SIGKILL"), (segfault, "SIGSEGV"), (leave, "exit status 3")])
@pytest.mark.parametrize("timeout", [60, None])
def test_a_rank_dies(how, words, timeout, nothing_left):
    a = fails(dies, how, backend="processes", timeout=timeout)
    assert (a.reason, a.guilty) == ("died", 1) and words in a.cause
    if how is not segfault:
        assert a.call.endswith(at(dies, "group.barrier()"))     # its last call; nothing more is known
    assert a.ranks[1].state == "died"


def test_a_crash_shows_where(nothing_left):
    a = fails(dies, segfault, backend="processes", timeout=60)
    assert a.call.endswith(at(segfault, "string_at")) and "Rank 1's traceback" in str(a)


def complains(group):
    if group.rank == 1:
        os.write(2, b"the disk is on fire\n")
        os.abort()
    group.barrier()


def test_last_words(nothing_left):
    a = fails(complains, backend="processes", timeout=60)
    assert "the disk is on fire" in a.ranks[1].output and "last words on stderr:\nthe disk is on fire" in str(a)
