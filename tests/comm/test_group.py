"""What every call of a Group returns, on threads and on processes alike."""

import re

import pytest
import torch

from labkit.comm.group import Handle, Recv, Send
from labkit.errors import LabError

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
REDUCIBLE = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
REDUCIBLE += [torch.int8, torch.uint8, torch.int32, torch.int64]
MOVABLE = [*REDUCIBLE, torch.int16, torch.bool, torch.complex64, *FLOAT8]


def same(a, b):
    """Equal values, shape and dtype; float8 has no equality of its own."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.dtype in FLOAT8:
        a, b = a.float(), b.float()
    assert torch.equal(a, b)


def tensors(dtype):
    """Awkward tensors with small whole values, exact in every dtype."""
    base = torch.arange(24).reshape(4, 6).remainder(5).to(dtype)
    return {
        "plain": base,
        "transposed": base.t(),
        "strided": base[:, ::2],
        "empty": base[:0],
        "scalar": base[1, 1],
        "one row": base[2],
    }


# -- messages ---------------------------------------------------------------------------------------------------------
def exchange_all(group, dtype):
    other, got = 1 - group.rank, {}
    for name, x in tensors(dtype).items():
        got[name] = group.sendrecv(x, dst=other, src=other)
        if group.rank == 0:
            group.send(x, 1)
        else:
            got[name + " recv"] = group.recv(0, like=x)
            out = torch.empty_like(x)
            if x.dim() == 2:
                out = torch.zeros(12, 12, dtype=dtype)[: x.shape[0], ::2][:, : x.shape[1]]
            assert group.recv(0, out=out) is out
            got[name + " out"] = out
        if group.rank == 0:
            group.send(x, 1)
    return got


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_messages_of_every_dtype(run, dtype):
    for got in run(exchange_all, dtype):
        for name, x in tensors(dtype).items():
            for kind in ("", " recv", " out"):
                if name + kind in got:
                    same(got[name + kind], x)


def both_ways(group):
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    x = torch.tensor([float(group.rank)])
    out = torch.empty(1)
    got = group.batch([Recv(left, like=x), Send(x * 10, right), Send(x * 100, left), Recv(right, out=out)])
    assert got[1] is None and got[2] is None and got[3] is out and group.batch([]) == []
    return got[0], got[3]


def test_batch_goes_both_ways_and_keeps_the_order(run):
    for rank, (from_left, from_right) in enumerate(run(both_ways, size=4)):
        assert from_left.item() == 10 * ((rank - 1) % 4) and from_right.item() == 100 * ((rank + 1) % 4)


def test_messages_keep_their_order(run):
    assert run(in_order) == [None, [0, 1, 2, 3, 4]]


def in_order(group):
    if group.rank == 0:
        handles = [group.isend(torch.tensor([i]), 1) for i in range(5)]
        for handle in handles:
            assert isinstance(handle, Handle) and handle.wait() is None
        return None
    handles = [group.irecv(0, like=torch.tensor([0])) for _ in range(5)]
    assert handles[4].wait().item() == 4  # waited for in another order
    values = [handle.wait() for handle in handles]
    assert handles[0].wait() is values[0]  # a second wait gives the same
    return [v.item() for v in values]


def test_a_message_whose_handle_was_dropped_arrives(run):
    """Also when its receiver comes after the handle is gone: gloo alone forgets it then."""
    assert run(dropped) == [None, 7]


def dropped(group):
    other = group.split([range(group.size)], "other")
    if group.rank == 0:
        group.isend(torch.tensor([7]), 1)
        other.send(torch.tensor([0]), 1)  # the handle is gone: now rank 1 may come
        return None
    other.recv(0, like=torch.tensor([0]))
    return group.recv(0, like=torch.tensor([0])).item()


# -- collectives ------------------------------------------------------------------------------------------------------
def reduce_all(group, dtype, op):
    x = (torch.arange(8).reshape(4, 2) % 3 + 1 + group.rank).to(dtype)
    wide = torch.zeros(4, 4, dtype=dtype)
    wide[:, ::2] = x
    inplace, strided, scalar = x.clone(), wide[:, ::2], x[0, 0].clone()
    assert group.all_reduce(inplace, op=op) is inplace
    assert group.all_reduce(strided, op=op) is strided
    group.all_reduce(scalar, op=op)
    group.all_reduce(x[:0].clone(), op=op)
    part = group.reduce_scatter(x, op=op)
    assert torch.equal(wide[:, 1::2], torch.zeros(4, 2, dtype=dtype))  # what lies between is not touched
    assert group.reduce_scatter(x[:0], op=op).shape == (0, 2)
    handles = [group.all_reduce(x.clone(), op=op, async_op=True), group.reduce_scatter(x, op=op, async_op=True)]
    return inplace, strided.clone(), scalar, part, [h.wait() for h in handles]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
def test_reductions(run, op, size):
    for dtype in REDUCIBLE:
        if op == "mean" and not dtype.is_floating_point:
            continue
        inputs = torch.stack([torch.arange(8).reshape(4, 2) % 3 + 1 + r for r in range(size)])
        # At most 6 ** 4 = 1296: int8 and uint8 wrap, float16 and bfloat16 round each partial product to 8 or 11 bits.
        reduced = {"max": torch.amax, "min": torch.amin, "prod": torch.prod}.get(op, torch.sum)(inputs, 0)
        want = reduced / size if op == "mean" else reduced
        if dtype == torch.bfloat16 and op == "prod" and size == 4:
            continue
        want = want.to(dtype)
        for rank, (inplace, strided, scalar, part, handles) in enumerate(run(reduce_all, dtype, op, size=size)):
            same(inplace, want)
            same(strided, want)
            same(scalar, want[0, 0])
            same(part, want.chunk(size)[rank])
            same(handles[0], want)
            same(handles[1], want.chunk(size)[rank])


def gather_all(group, dtype):
    x = torch.arange(6).reshape(3, 2).add(group.rank).remainder(4).to(dtype)
    handle = group.all_gather(x, async_op=True)
    return *(group.all_gather(part) for part in (x, x.t(), x[0, 0], x[:0])), handle.wait()


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_all_gather(run, dtype):
    xs = [torch.arange(6).reshape(3, 2).add(r).remainder(4).to(dtype) for r in range(3)]
    for plain, transposed, scalar, empty, waited in run(gather_all, dtype, size=3):
        want = torch.cat([x.float() if dtype in FLOAT8 else x for x in xs]).to(dtype)
        same(plain, want)
        same(waited, want)
        same(transposed, torch.cat([x.float().t() if dtype in FLOAT8 else x.t() for x in xs]).to(dtype))
        assert scalar.shape == (3,) and empty.shape == (0, 2)


def broadcast_all(group, dtype):
    got = []
    for src in range(group.size):
        for x in tensors(dtype).values():
            y = x.clone() if group.rank == src else torch.zeros(x.shape, dtype=dtype)
            assert group.broadcast(y, src=src) is y
            got.append(y)
        wide = torch.full((3, 4), float(group.rank)).to(dtype)
        group.broadcast(wide[:, 1::2], src=src)
        got.append(wide)
        got.append(group.broadcast(torch.tensor([group.rank]), src, async_op=True).wait())
    group.barrier()
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int16, torch.bool], ids=str)
def test_broadcast(run, dtype):
    per_src = len(tensors(dtype)) + 2
    for rank, got in enumerate(run(broadcast_all, dtype, size=3)):
        for src in range(3):
            mine = got[src * per_src : (src + 1) * per_src]
            for x, y in zip(tensors(dtype).values(), mine):
                same(x, y)
            wide = torch.full((3, 4), float(rank))
            wide[:, 1::2] = src
            same(wide.to(dtype), mine[-2])  # only the columns that were passed
            assert mine[-1].item() == src


def many(group):
    """Collectives under way together, and messages of another shape between them."""
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    first, second = group.all_reduce(a, async_op=True), group.all_gather(b, async_op=True)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    got = group.sendrecv(torch.full((group.rank, 2), 3.0), dst=right, src=left, like=torch.empty(left, 2))
    return second.wait(), first.wait(), got


def test_several_at_once(run):
    for rank, (gathered, summed, got) in enumerate(run(many, size=4)):
        assert gathered.tolist() == [2.0] * 4 and summed.item() == 4.0
        same(got, torch.full(((rank - 1) % 4, 2), 3.0))


def with_gradients(group):
    w = torch.nn.Parameter(torch.full((2,), float(group.rank)))
    group.all_reduce(w)
    got = group.sendrecv(w * 2, dst=1 - group.rank, src=1 - group.rank)
    return w.detach().clone(), got.requires_grad, group.all_gather(w).requires_grad, w.is_leaf


def test_no_gradient_goes_through(run):
    for w, received, gathered, leaf in run(with_gradients):
        assert w.tolist() == [1.0, 1.0] and not received and not gathered and leaf


# -- mistakes: one sentence, and nothing has been posted --------------------------------------------------------------
X = torch.ones(4)
MISTAKES = {
    "dst=2 is no rank of this group": lambda g: g.send(X, 2),
    "a rank of parts=2 is no rank": lambda g: g.split([[0, 2]], "x"),
    "in ascending order": lambda g: g.split([[1, 0]], "x"),
    "no rank is in two": lambda g: g.split([[0], [0, 1]], "x"),
    "each lists at least one": lambda g: g.split([[0], []], "x"),
    "name='world'": lambda g: g.split([[0]], "world"),
    "name='a b'": lambda g: g.split([[0]], "a b"),
    r"out is \[5\] of float32, and the result is \[8\]": lambda g: g.all_gather(X, out=torch.ones(5)),
    "out is .* of float64": lambda g: g.all_gather(X, out=torch.ones(8).double()),
    r"out is \[1\]": lambda g: g.reduce_scatter(X, out=torch.ones(1)),
    "out= shares memory with another tensor of the same": lambda g: g.reduce_scatter(X, out=X[:2]),
    "seconds=-1": lambda g: g.compute("x", seconds=-1),
    "src=-1 is no rank": lambda g: g.recv(-1, like=X),
    "src=7 is no rank": lambda g: g.broadcast(X, src=7),
    "cannot message itself": lambda g: g.sendrecv(X, dst=g.rank, src=1 - g.rank),
    "dst=1.0 is no rank of this group": lambda g: g.send(X, 1.0),
    "src=True is no rank": lambda g: g.recv(True, like=X),
    "tensor must be a torch.Tensor; got list": lambda g: g.all_reduce([1.0]),
    "tensor is on meta, but this group's tensors on cpu": lambda g: g.send(X.to("meta"), 1 - g.rank),
    "needs like=": lambda g: g.recv(1 - g.rank),
    "like must be a torch.Tensor": lambda g: g.recv(1 - g.rank, like=(4,)),
    "out must be a torch.Tensor": lambda g: g.recv(1 - g.rank, out=4),
    "op='avg' is unknown: choose one of sum, mean, max, min, prod": lambda g: g.all_reduce(X, op="avg"),
    "the mean of int32 is no integer": lambda g: g.all_reduce(X.int(), op="mean"),
    "the mean of uint8": lambda g: g.reduce_scatter(X.byte(), op="mean"),
    "float8_e4m3fn cannot be reduced": lambda g: g.all_reduce(X.to(torch.float8_e4m3fn)),
    "bool cannot be reduced": lambda g: g.all_reduce(X.bool()),
    r"2 equal parts, which shape \[3\] does not": lambda g: g.reduce_scatter(X[:3]),
    r"shape \[\] does not": lambda g: g.reduce_scatter(X[0]),
    "batch takes Send": lambda g: g.batch([X]),
    "shares memory": lambda g: g.sendrecv(X, dst=1 - g.rank, src=1 - g.rank, out=X[2:].new_empty(0).set_(X)),
    "shares memory with another": lambda g: g.batch([Recv(1 - g.rank, out=X[:3]), Recv(1 - g.rank, out=X[2:])]),
}


def make_mistakes(group):
    texts = {}
    for words, mistake in MISTAKES.items():
        try:
            mistake(group)
        except LabError as error:
            texts[words] = str(error)
    assert not group.ledger.events
    return texts, group.all_reduce(torch.ones(1)).item()


def test_mistakes_are_shown_in_one_sentence(run):
    for texts, total in run(make_mistakes):
        for words in MISTAKES:
            assert words in texts and re.search(f"^.*{words}.*$", texts[words]), (words, texts.get(words))
        assert total == 2.0


def halves(group):
    x = torch.arange(4.0) + 10 * group.rank
    group.sendrecv(x[:2], dst=1 - group.rank, src=1 - group.rank, out=x[2:])  # side by side is not overlapping
    return x


def test_parts_of_one_tensor(run):
    assert [t.tolist() for t in run(halves)] == [[0, 1, 10, 11], [10, 11, 0, 1]]
