"""Sub-groups: named parts of a group, matched one by one, on threads and on processes alike."""

import pytest
import torch

from labkit.comm.group import Recv, Send
from labkit.comm.ranks import RankPool, RanksFailed, run_ranks
from labkit.errors import LabError


def grid(group):
    """The ranks 0 1 / 2 3: (dp, tp) = (columns, rows)."""
    return group.split([[0, 2], [1, 3]], name="dp"), group.split([[0, 1], [2, 3]], name="tp")


def two_by_two(group):
    """A correct program: rows and columns at work, out of step with one another."""
    dp, tp = grid(group)
    x = torch.tensor([float(10**group.rank)])
    got = [tp.all_reduce(x.clone()), dp.all_reduce(x.clone()), dp.all_gather(x), tp.all_gather(x, out=torch.zeros(2))]
    handle = dp.all_reduce(x.clone(), async_op=True)
    if group.rank < 2:  # only one row does more
        got.append(tp.reduce_scatter(torch.arange(4.0), out=torch.zeros(2)))
        tp.barrier()
    else:
        got.append(tp.broadcast(x.clone(), src=1))
    got.append(dp.sendrecv(x, dst=1 - dp.rank, src=1 - dp.rank))
    if tp.rank == 0:
        tp.send(x, 1)
    else:
        got.append(tp.recv(0, like=x))
    got += [handle.wait(), group.all_reduce(x.clone())]
    other = 1 - tp.rank
    got += [t for t in tp.batch([Send(x, other), Recv(other, like=x)]) if t is not None]
    return (dp.rank, dp.size, dp.ranks, dp.name, tp.rank, tp.ranks, tp.name), [t.tolist() for t in got]


def test_a_correct_two_by_two_program(run):
    results = run(two_by_two, size=4)
    v = [1.0, 10.0, 100.0, 1000.0]
    for r, (who, got) in enumerate(results):
        row, column = (r // 2 * 2, r // 2 * 2 + 1), (r % 2, r % 2 + 2)
        assert who == (r // 2, 2, column, "dp", r % 2, row, "tp")
        across, down = v[r ^ 1], v[r ^ 2]
        own = ([0.0, 2.0], [4.0, 6.0])[r % 2] if r < 2 else [v[3]]
        want = [[v[r] + across], [v[r] + down], [v[i] for i in column], [v[i] for i in row], own, [down]]
        want += ([[across]] if r % 2 else []) + [[v[r] + down], [1111.0], [across]]
        assert got == want


def test_the_ledger_tells_ranks_of_the_whole_run(run):
    ledger = run(two_by_two, size=4).ledgers[3]
    assert ledger.groups == {"world": (0, 1, 2, 3), "dp": (1, 3), "tp": (2, 3)}
    messages = [(e.kind, e.peer, e.group, e.seq) for e in ledger.events if e.kind in ("send", "recv")]
    assert messages == [
        ("send", 1, "dp", 0),
        ("recv", 1, "dp", 0),
        ("recv", 2, "tp", 0),
        ("send", 2, "tp", 0),
        ("recv", 2, "tp", 1),
    ]
    (sent,) = [e for e in ledger.events if e.kind == "broadcast"]
    assert (sent.peer, sent.group, sent.seq) == (3, "tp", 2)  # its src=1 is rank 3 of the run
    assert [(e.op, e.group) for e in ledger.events if e.kind == "split"] == [
        ("dp: 0 2 | 1 3", "world"),
        ("tp: 0 1 | 2 3", "world"),
    ]
    assert [e.seq for e in ledger.events if e.kind == "all_reduce"] == [0, 0, 2, 2]  # tp, dp, dp, world after 2 splits


def names(group):
    first, second = group.split([[0, 1], [2]], "a"), group.split([[0, 1, 2]], "a")
    inner = second.split([[0, 2], [1]], "b")
    deep = inner.split([[0]] if inner.size == 1 else [[1]], "c")
    return (first.name, second.name, inner.name, deep.name), inner.ranks, deep.ranks, repr(inner), repr(deep)


def test_names_and_parts_of_parts(run):
    got = run(names, size=3)
    for who, *_ in got:
        assert who == ("a", "a#2", "a#2/b", "a#2/b/c")
    assert [inner for _, inner, *_ in got] == [(0, 2), (1,), (0, 2)]
    assert [deep for _, _, deep, *_ in got] == [(), (1,), (2,)]
    assert got[2][3] == "Group('a#2/b': rank 1 of 2, ranks 0 and 2, cpu)"


def strided(group):
    out = torch.zeros(4, 2)[:, ::2]
    got = group.all_gather(torch.full((2, 1), float(group.rank)), out=out)
    part = torch.zeros(2, 2)[:, 0]
    assert got is out and group.reduce_scatter(torch.ones(4), op="mean", out=part) is part
    return out.flatten().tolist(), part.tolist()


def test_out_need_not_be_contiguous(run):
    assert list(run(strided)) == [([0.0, 0.0, 1.0, 1.0], [1.0, 1.0])] * 2


# -- what is wrong ends with an autopsy that names the group ----------------------------------------------------------
OUTSIDE = {
    "send": lambda g: g.send(torch.ones(1), 0),
    "recv": lambda g: g.recv(0, like=torch.ones(1)),
    "all_gather": lambda g: g.all_gather(torch.ones(1)),
    "reduce_scatter": lambda g: g.reduce_scatter(torch.ones(1)),
    "broadcast": lambda g: g.broadcast(torch.ones(1)),
    "barrier": lambda g: g.barrier(),
    "split": lambda g: g.split([[0]]),
    "device_mesh": lambda g: g.device_mesh(),
}


def every_call_from_outside(group):
    pair = group.split([[0, 1]], name="pair")
    if group.rank == 2:
        for call in OUTSIDE.values():
            with pytest.raises(LabError, match='rank 2 is outside of group "pair"'):
                call(pair)


def test_no_call_is_open_to_a_rank_outside(run):
    run(every_call_from_outside, size=3)


def same_peer_two_groups(group):
    """Messages of one pair of ranks in two groups do not mix, whatever their order."""
    a, b = group.split([[0, 1]], "a"), group.split([[0, 1]], "b")
    x, y = torch.tensor([1.0]), torch.tensor([2.0, 2.0])
    if group.rank == 0:
        sending = a.isend(x, 1), b.isend(y, 1)
        return [handle.wait() for handle in sending]
    second = b.irecv(0, like=y)
    return [a.recv(0, like=x).tolist(), second.wait().tolist()]


def test_messages_of_two_groups_do_not_mix(run):
    assert run(same_peer_two_groups)[1] == [[1.0], [2.0, 2.0]]


def without_a_ledger(group):
    _, tp = grid(group)
    with group.ledger.off():
        tp.all_reduce(torch.ones(1 + group.rank % 2))


def test_the_meeting_point_itself_names_the_group():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(without_a_ledger, size=4, backend="threads", timeout=20)
    assert 'met in group "tp" (ranks ' in caught.value.autopsy.cause


def parts_of_parts(group, sizes):
    """Groups of so many neighbours, and each rank of them alone; what the ranks alone and the neighbours add up to."""
    found = []
    for size in sizes:
        near = group.split([list(range(k, k + size)) for k in range(0, group.size, size)], "near")
        alone = near.split([[r] for r in range(near.size)], "alone")
        one = torch.tensor([1.0])
        found.append((float(alone.all_reduce(one.clone())), float(near.all_reduce(one.clone()))))
    return found


def test_jobs_of_one_pool_may_cut_parts_of_different_groups_alike():
    """ "near/alone" of rank 0 is one group, whether "near" had two ranks or four."""
    with RankPool(4) as pool:
        for size in (2, 4, 2):
            assert pool.run(parts_of_parts, [size], timeout=60.0)[0] == [(1.0, float(size))]
