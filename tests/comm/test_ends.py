"""Ranks that raise, return early or disagree: the run ends, the autopsy names the guilty, nothing is left behind."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from labkit.checks.outcome import decided
from labkit.comm.autopsy import Autopsy, Call, RankReport
from labkit.comm.group import Recv
from labkit.comm.match import EITHER
from labkit.comm.ranks import RanksFailed, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "processes"])


# -- a rank raises ----------------------------------------------------------------------------------------------------
def raises(group):
    if group.rank == 1:
        raise ValueError("boom")
    group.barrier()


@both
def test_a_rank_raises(fails, at, backend, nothing_left):
    a = fails(raises, backend=backend, timeout=60)
    assert (a.reason, a.guilty) == ("raised", 1)
    assert a.call.endswith(at(raises, "raise ValueError"))
    assert "Rank 1 raised ValueError: boom" in a.cause
    assert [r.state for r in a.ranks] == ["waiting", "raised", "waiting"]
    assert {(e.waiter, e.on) for e in a.edges} == {(0, 1), (2, 1)}
    assert a.ranks[0].calls[0].kind == "barrier"
    assert a.ranks[0].calls[0].where.endswith(at(raises, "group.barrier()"))
    assert 'raise ValueError("boom")' in str(a)  # the traceback, and in it no frame of labkit.comm
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
def test_all_raise_at_once(fails, backend, nothing_left):
    a = fails(all_raise, backend=backend, timeout=60)
    assert [r.state for r in a.ranks] == ["raised"] * 3


def leaves(group):
    if group.rank == 2:
        sys.exit(0)
    group.barrier()


@both
def test_sys_exit_is_not_success(fails, backend, nothing_left):
    a = fails(leaves, backend=backend, timeout=60)
    assert a.guilty == 2 and "SystemExit" in a.cause


def raises_early_without_deadline(group):
    if group.rank == 0:
        raise RuntimeError("no data")
    group.recv(0, like=torch.ones(1))


@both
def test_no_deadline_still_ends_when_one_raises(fails, backend, nothing_left):
    assert fails(raises_early_without_deadline, backend=backend, timeout=None).guilty == 0


# -- a rank returns while others wait for it --------------------------------------------------------------------------
def returns_early(group):
    if group.rank == 0:
        group.send(torch.ones(2), 1)
        return "done"
    if group.rank == 1:
        group.recv(0, like=torch.ones(2))
        return group.recv(0, like=torch.ones(2))  # a second one
    return None


@both
def test_a_rank_returns_early(fails, at, backend, nothing_left):
    a = fails(returns_early, backend=backend, timeout=60)  # ends before the deadline: nobody can change it any more
    assert (a.guilty, a.certain) == (0, True)
    assert a.call.endswith(at(returns_early, "a second one"))
    assert "Rank 0 returned early" in a.cause and "message number 2" in a.cause and "never sent" in a.cause
    assert [r.state for r in a.ranks] == ["returned", "waiting", "returned"]
    assert [(e.waiter, e.on, e.kind) for e in a.edges] == [(1, 0, "recv")]


def one_of_two(group):
    if group.rank == 1:
        group.send(torch.ones(1), 0)
    elif group.rank == 0:
        group.batch([Recv(1, like=torch.ones(1)), Recv(2, like=torch.ones(3))])


@both
def test_the_part_of_a_batch_that_is_missing_is_named(fails, backend, nothing_left):
    a = fails(one_of_two, backend=backend, timeout=60)
    assert a.guilty == 2 and a.involved == [0, 2] and "recv from rank 2" in a.cause
    assert [(c.peer, c.waits_for) for c in a.ranks[0].calls] == [(2, [2]), (1, [])]
    assert "waits in recv from rank 2 (12 bytes)" in str(a) and "1 more of the same call" in str(a)


def skips_the_barrier(group):
    if group.rank != 2:
        group.barrier()


@both
def test_a_rank_misses_a_collective(fails, backend, nothing_left):
    a = fails(skips_the_barrier, backend=backend, timeout=60)
    assert a.guilty == 2 and "barrier" in a.cause and "never joined" in a.cause


@both
def test_no_deadline_still_ends_when_the_hang_is_certain(fails, backend, nothing_left):
    assert fails(skips_the_barrier, backend=backend, timeout=None).guilty == 2


# -- ranks disagree ---------------------------------------------------------------------------------------------------
def other_collective(group):
    if group.rank == 2:
        group.broadcast(torch.ones(3))
    else:
        group.all_reduce(torch.ones(3))


def other_op(group):
    group.all_reduce(torch.ones(3), op="max" if group.rank == 1 else "sum")


def other_source(group):
    group.broadcast(torch.ones(3), src=1 if group.rank == 0 else 0)


def other_length(group):
    group.all_gather(torch.ones(4 if group.rank == 1 else 3))


@both
@pytest.mark.parametrize(
    "fn, guilty, words",
    [
        (other_collective, 2, ["all_reduce", "broadcast", "rank 2 left the common order"]),
        (other_op, 1, ["max", "sum", "rank 1 left"]),
        (other_source, 0, ["src 1", "src 0", "rank 0 left"]),
        (other_length, 1, ["[3] of float32", "[4] of float32", "rank 1 left"]),
    ],
)
def test_mismatched_collectives(fails, backend, fn, guilty, words, nothing_left):
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
@pytest.mark.parametrize("sent, expected", [(3, 4), (4, 3)])  # gloo: silence for the first, abort on the second
def test_message_sizes_differ(fails, backend, sent, expected, nothing_left):
    a = fails(wrong_length, sent, expected, backend=backend)
    assert f"[{sent}] of float32 ({4 * sent} bytes)" in a.cause and f"[{expected}] of float32" in a.cause, str(a)
    assert set(a.involved) == {0, 1}
    # The mistake heads it, and what the library made of it is one line at most.
    assert a.cause.startswith("Rank 0 sends") and a.reason == "mismatch"
    assert a.cause.endswith(EITHER)  # no more is certain of two lengths
    assert sum("gloo" in line for line in str(a).splitlines()) <= 1
    if backend == "threads":
        assert a.ranks[1].state == "waiting"  # told at once, not when all have returned


def wrong_dtype(group):
    if group.rank == 0:
        group.send(torch.ones(2), 1)
    elif group.rank == 1:
        group.recv(0, like=torch.ones(2, dtype=torch.int32))


@both
def test_message_dtypes_differ(fails, backend, nothing_left):
    a = fails(wrong_dtype, backend=backend)
    assert "float32" in a.cause and "int32" in a.cause
    if backend == "threads":
        assert a.ranks[1].state == "waiting"


def nobody_receives(group):
    if group.rank == 0:
        group.isend(torch.ones(2), 1)


@both
def test_a_message_that_nobody_receives(fails, backend, nothing_left):
    a = fails(nobody_receives, backend=backend)
    assert a.guilty == 0 and "never received" in a.cause


# -- how an autopsy reads ---------------------------------------------------------------------------------------------
def autopsy_of(*reports, reason="raised", guilty=None):
    return str(Autopsy(reason, "The cause.", guilty, [], "", list(reports), []))


def test_what_several_ranks_did_is_told_once():
    lengths = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({})"
    raised = [RankReport(r, "raised", error=lengths.format(51 + r % 2, 52 - r % 2), where="a.py:3") for r in range(4)]
    waits = [RankReport(r, "waiting", [Call("recv", 6, 8, "a.py:5", s, 1, [6])]) for r, s in ((4, 0.31), (5, 0.42))]
    text = autopsy_of(*raised, *waits, RankReport(6, "returned"), guilty=0)
    assert text.count("The size of tensor") == 1 and "  ranks 0 to 3   raised RuntimeError" in text
    assert "at a.py:3 (the numbers differ from rank to rank)\n" in text
    assert "  ranks 4 and 5  wait in recv from rank 6 (8 bytes) at a.py:5, for 0.3 to 0.4 s\n" in text
    other = RankReport(1, "raised", error=lengths.format(51, 52), where="a.py:4")
    assert autopsy_of(raised[0], other).count("The size of tensor") == 2, "another line is another mistake"


def test_ranks_that_ended_because_others_had_share_a_line():
    victims = [RankReport(r, "died", error="killed by SIGABRT", output="gloo says", consequence=True) for r in (1, 3)]
    victims.append(RankReport(4, "raised", error="RuntimeError: Socket closed", where="a.py:9", consequence=True))
    first = RankReport(0, "raised", error="ValueError: boom")
    text = autopsy_of(first, victims[0], RankReport(2, "returned"), *victims[1:])
    assert text.count("(a consequence)") == 1 and "  ranks 1, 3 and 4  ended because another rank had" in text
    assert "SIGABRT" not in text and "Socket closed" not in text and "gloo says" not in text


def one_raises_where_the_others_wait(group):
    if group.rank == 0:
        raise ValueError("boom")
    group.sendrecv(torch.ones(1), dst=(group.rank + 1) % group.size, src=(group.rank - 1) % group.size)


def test_the_victims_of_one_that_raises_are_no_causes(fails):
    a = fails(one_raises_where_the_others_wait, backend="processes", size=4, timeout=60)
    assert a.guilty == 0 and not a.ranks[0].consequence and str(a).count("consequence") <= 1, str(a)


def misspelt(group):
    return group.send_recv  # no such call


def through_labkit(group):
    accumulate(lambda: misspelt(group))  # theirs, which calls back


def accumulate(work):
    """Theirs, and it goes through labkit."""
    return decided([Asks(work)])


class Asks:
    def __init__(self, work):
        self.work = work

    @property
    def task(self):
        return self.work()


def test_a_module_that_cannot_be_read_is_named_and_not_the_line_that_imports_it():
    """The course's scenarios import a student's module: the mistake is where Python says."""
    for source, words in (
        ("compile('def g(:', 'linears.py', 'exec')", r"raised SyntaxError: [^(]*\(linears\.py, line 1\)$"),
        ("raise KeyError(3)", r"raised KeyError: 3 \(.*scenarios\.py:2, the course's line and not yours\)"),
    ):
        names: dict = {}
        exec(compile(f"def drive(group):\n    {source}\n", "/week15/scenarios.py", "exec"), names)
        with pytest.raises(RanksFailed) as failure:
            run_ranks(names["drive"], size=2, backend="threads")
        assert re.search(words, failure.value.autopsy.cause), failure.value.autopsy.cause
        assert ("scenarios" in failure.value.autopsy.cause) is ("KeyError" in words)


@both
def test_a_traceback_holds_no_frame_of_labkit(fails, at, backend):
    """Above their code stands what ran the rank, and between two functions of it what called one of them back."""
    a = fails(through_labkit, backend=backend, size=1, timeout=60)
    text = a.ranks[0].traceback
    assert (
        "AttributeError" in text and "in misspelt" in text and "in accumulate" in text and "in through_labkit" in text
    )
    assert "outcome.py" not in text and "threads.py" not in text and "worker.py" not in text, text
    assert a.ranks[0].where.endswith(at(misspelt, "no such call"))
