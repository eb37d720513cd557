"""Ranks that raise, return early or disagree: the run ends, the autopsy names the guilty, nothing is left behind."""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from labkit.comm.autopsy import Autopsy, Call, RankReport
from labkit.comm.group import Recv
from labkit.comm.match import EITHER
from labkit.comm.ranks import RanksFailed, run_ranks
from tests.comm.test_split import grid

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
    assert [r.state for r in a.ranks] == ["waiting", "raised", "waiting"]
    assert a.ranks[1].error == "ValueError: boom" and a.ranks[1].error in a.cause
    assert {(e.waiter, e.on) for e in a.edges} == {(0, 1), (2, 1)}
    assert a.ranks[0].calls[0].kind == "barrier"
    assert a.ranks[0].calls[0].where.endswith(at(raises, "group.barrier()"))
    assert re.findall('File "(.*)"', a.ranks[1].traceback) == [__file__], "no frame of labkit.comm"
    assert str(a).endswith(a.ranks[1].traceback.rstrip())


@both
def test_the_exception_itself_is_kept(backend, nothing_left):
    with pytest.raises(RanksFailed) as caught:
        run_ranks(raises, size=2, backend=backend, timeout=60)
    assert isinstance(caught.value.error, ValueError) and caught.value.error.args == ("boom",)
    assert len(caught.value.ledgers) == 2 and caught.value.ledgers[0].events[0].kind == "barrier"


def raises_early_without_deadline(group):
    if group.rank == 0:
        raise RuntimeError("no data")
    group.recv(0, like=torch.ones(1))


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
    assert "(message number 2), which rank 0 never sent" in a.cause and a.reason == "deadlock"
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
    missing, met = a.ranks[0].calls
    assert a.guilty == 2 and a.involved == [0, 2] and str(missing) in a.cause
    assert [(c.peer, c.bytes, c.waits_for) for c in (missing, met)] == [(2, 12, [2]), (1, 4, [])]
    assert "(and 1 more of the same call)" in str(a)


# -- ranks disagree ---------------------------------------------------------------------------------------------------
def wrong_message(group, sent, expected):
    if group.rank == 0:
        group.send(torch.ones(sent), 1)
    elif group.rank == 1:
        group.recv(0, like=expected)


@both
@pytest.mark.parametrize(
    "sent, expected, dtype",
    [(3, 4, torch.float32), (4, 3, torch.float32), (2, 2, torch.int32)],  # gloo: silence, an abort, silence
)
def test_messages_that_do_not_fit(fails, backend, sent, expected, dtype, nothing_left):
    a = fails(wrong_message, sent, torch.ones(expected, dtype=dtype), backend=backend)
    assert f"[{sent}] of float32 ({4 * sent} bytes)" in a.cause and f"[{expected}] of {str(dtype)[6:]}" in a.cause
    assert set(a.involved) == {0, 1}
    # The mistake heads it, and what the library made of it is one line at most.
    assert a.cause.startswith("Rank 0 sends") and a.reason == "mismatch"
    assert a.cause.endswith(EITHER) == (sent != expected)  # no more is certain of two lengths
    assert sum("gloo" in line for line in str(a).splitlines()) <= 1
    if backend == "threads":
        assert a.ranks[1].state == "waiting"  # at once, not when all have returned


def nobody_receives(group):
    if group.rank == 0:
        group.isend(torch.ones(2), 1)


def ring_of_recvs(group):
    group.recv((group.rank - 1) % group.size, like=torch.ones(1))
    group.send(torch.ones(1), (group.rank + 1) % group.size)


def crossed_beside_a_busy_rank(group):
    if group.rank == 0:
        group.all_reduce(torch.ones(1))
    elif group.rank == 1:
        group.recv(0, like=torch.ones(1))
    else:
        for _ in range(600):
            time.sleep(0.1)


def mismatch_in_a_part(group):
    dp, tp = grid(group)
    dp.all_reduce(torch.ones(3))
    tp.all_reduce(torch.ones(3 if group.rank != 3 else 4))


def wrong_message_in_a_part(group):
    _, tp = grid(group)
    if tp.rank == 0:
        tp.send(torch.ones(3), 1)
    else:
        tp.recv(0, like=torch.ones(3 if group.rank == 1 else 5))


def crossed_groups(group):
    dp, tp = grid(group)
    first, second = (dp, tp) if group.rank in (0, 3) else (tp, dp)
    first.all_reduce(torch.ones(1))  # crossed
    second.all_reduce(torch.ones(1))


def splits_differ(group):
    group.split([[0, 1], [2, 3]] if group.rank != 1 else [[0, 2], [1, 3]], name="tp")
    group.barrier()


def never_received_in_a_part(group):
    _, tp = grid(group)
    if group.rank == 2:
        tp.isend(torch.ones(1), 1)
    group.barrier()


@dataclass(frozen=True)
class Failing:
    """A run that fails, and what its autopsy says; None: not compared."""

    fn: Callable
    words: tuple[str, ...] = ()  # of the cause
    size: int = 3
    timeout: float | None = 60.0
    reason: str | None = None
    guilty: int | None = None
    involved: list[int] | None = None
    certain: bool | None = None
    states: list[str] | None = None


PART = 'group "tp" (ranks 2 and 3)'
CROSSED = (
    *(f'rank {r} waits in all_reduce in group "{of}"' for r, of in ((0, "dp"), (1, "tp"))),
    '"dp" and "tp" in crossed',
)
X = torch.ones(3)
FAILING = {
    "all raise": Failing(lambda g: 1 // 0, ("ZeroDivisionError",), states=["raised"] * 3),
    "one leaves": Failing(lambda g: sys.exit(0) if g.rank == 2 else g.barrier(), ("SystemExit",), guilty=2),
    "no deadline": Failing(raises_early_without_deadline, timeout=None, guilty=0),
    "one skips the barrier": Failing(
        lambda g: g.rank == 2 or g.barrier(), ("barrier", "never joined"), timeout=None, guilty=2
    ),
    "another collective": Failing(
        lambda g: g.broadcast(X) if g.rank == 2 else g.all_reduce(X),
        ("number 1", "all_reduce", "broadcast", "rank 2 left the common"),
        timeout=1.5,
        guilty=2,
    ),
    "another op": Failing(
        lambda g: g.all_reduce(X, op="max" if g.rank == 1 else "sum"),
        ("number 1", "max", "sum", "rank 1 left"),
        timeout=1.5,
        guilty=1,
    ),
    "one of two with another op": Failing(
        lambda g: g.all_reduce(X, op="max" if g.rank == 1 else "sum"),
        ("one of them is wrong",),
        size=2,
        timeout=1.5,
        involved=[0, 1],
    ),
    "another source": Failing(
        lambda g: g.broadcast(X, src=1 if g.rank == 0 else 0),
        ("number 1", "src 1", "src 0", "rank 0 left"),
        timeout=1.5,
        guilty=0,
    ),
    "another length": Failing(
        lambda g: g.all_gather(X[:2] if g.rank == 1 else X),
        ("[3] of float32", "[2] of float32", "rank 1 left"),
        timeout=1.5,
        guilty=1,
    ),
    "nobody receives": Failing(nobody_receives, ("never received",), guilty=0),
    "all receive": Failing(ring_of_recvs, ("receive first",), reason="deadlock", involved=[0, 1, 2]),
    "crossed, and one is busy": Failing(crossed_beside_a_busy_rank, ("same order",), timeout=1.5, involved=[0, 1]),
    "in a part": Failing(mismatch_in_a_part, (f"1 of {PART}", "[4] of"), size=4, timeout=1.5, involved=[2, 3]),
    "a message in a part": Failing(wrong_message_in_a_part, ("Rank 2 sends", f"1 in {PART}"), size=4, timeout=1.5),
    "crossed groups": Failing(crossed_groups, CROSSED, 4, reason="deadlock", certain=True, involved=[0, 1, 2, 3]),
    "an outsider": Failing(
        lambda g: g.split([[0, 1]], "pair").barrier(), ('rank 2 is outside of group "pair"',), reason="raised", guilty=2
    ),
    "splits differ": Failing(splits_differ, ("split", "tp: 0 2 | 1 3"), size=4, timeout=3, guilty=1),
    "never received in a part": Failing(
        never_received_in_a_part, ('send to rank 3 in group "tp"', "never received"), size=4, guilty=2
    ),
}


@both
@pytest.mark.parametrize("name", FAILING)
def test_a_run_that_fails(fails, backend, name, nothing_left):
    case = FAILING[name]
    a = fails(case.fn, backend=backend, size=case.size, timeout=case.timeout)
    for field in ("reason", "guilty", "involved", "certain"):
        if (want := getattr(case, field)) is not None:
            assert getattr(a, field) == want, (field, str(a))
    assert case.states is None or [r.state for r in a.ranks] == case.states
    assert all(word in a.cause for word in case.words), a.cause
    assert a.call.split(":")[0].endswith("test_ends.py")


# -- how an autopsy reads ---------------------------------------------------------------------------------------------
def autopsy_of(*reports, reason="raised", guilty=None):
    return str(Autopsy(reason, "The cause.", guilty, [], "", list(reports), []))


def test_what_several_ranks_did_is_shown_once():
    lengths = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({})"
    raised = [RankReport(r, "raised", error=lengths.format(51 + r % 2, 52 - r % 2), where="a.py:3") for r in range(4)]
    waits = [RankReport(r, "waiting", [Call("recv", 6, 8, "a.py:5", s, 1, [6])]) for r, s in ((4, 0.31), (5, 0.42))]
    assert autopsy_of(*raised, *waits, RankReport(6, "returned"), guilty=0).splitlines()[2:] == [
        f"  ranks 0 to 3   raised {raised[0].error} at a.py:3 (the numbers differ from rank to rank)",
        "  ranks 4 and 5  wait in recv from rank 6 (8 bytes) at a.py:5, for 0.3 to 0.4 s",
        "  rank 6         returned",
    ]
    other = RankReport(1, "raised", error=lengths.format(51, 52), where="a.py:4")
    assert autopsy_of(raised[0], other).count("The size of tensor") == 2, "another line is another mistake"


def test_a_module_that_cannot_be_read_is_named_and_not_the_line_that_imports_it():
    """The course's scenarios import a student's module: the mistake is where Python says."""
    for source, words in (
        ("compile('def g(:', 'linears.py', 'exec')", r"raised SyntaxError: [a-z ]*\(linears\.py, line 1\)$"),
        ("raise KeyError(3)", r"raised KeyError: 3 \(.*scenarios\.py:2, the course's line and not yours\)"),
    ):
        names: dict = {}
        exec(compile(f"def drive(group):\n    {source}\n", "/week15/scenarios.py", "exec"), names)
        with pytest.raises(RanksFailed) as failure:
            run_ranks(names["drive"], size=2, backend="threads")
        assert re.search(words, failure.value.autopsy.cause), failure.value.autopsy.cause
