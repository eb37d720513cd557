"""The checks of 15.1: `lab check 15.1`, `lab check week15`, or plain `pytest week15_tp_attention`. Nothing is hidden.

Your functions run elsewhere, on ranks that get their own slices only; numbers and the ledger come back. All numbers
are whole, so that float32 is exact in any order. N ranks, B batch, T positions, width inputs, out outputs."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import call, expect, field, same, task
from labkit.checks.drawn import Draw
from labkit.checks.traffic import moved, phases

BF16 = torch.bfloat16
BIAS_N_TIMES = "the bias N times: every rank added it before the sum"
OWN_PART = "its own outputs' part alone: the others' outputs read the same x"


def both_times(name, inputs, **more):
    """`call` of a scenario that runs all twice. The messages that are judged are the first time's, so its numbers have to
    be the second time's as well: junk travels as fast."""
    got, ledgers = call(name, inputs, **more)
    for r, one in enumerate(got):
        first = field(one, "in evaluation" if isinstance(one, dict) and "in evaluation" in one else "the first time")
        for key, again in one.items():
            if key in first and isinstance(again, torch.Tensor) and again.isfinite().all():  # else it is wrong itself
                # The numbers lie in another order in memory: two roundings in bfloat16 at most, of the largest.
                tol = 2.0**-6 * float(again.abs().max()) if again.numel() else 0.0
                same(first[key], again, rank=r, tol=tol, what=f"{key} at the first of two times")
    return got, ledgers


def ring(nbytes, N, laps):
    """What a ring sends for nbytes: one lap for a gather or a scatter, two for an all-reduce."""
    return laps * (N - 1) * -(-nbytes // N)


def everywhere(x, N):
    return [x] * N


def side_by_side(x, N, dim):
    """`x` as its N equal slices."""
    return [part.contiguous() for part in x.chunk(N, dim)]


def total(x):
    return torch.stack(list(x)).sum(0)


STEPS = {  # step: (ranks, forward's message, backward's message)
    "copy_to_ranks": (3, None, "all_reduce"),
    "reduce_over_ranks": (4, "all_reduce", None),
    "gather_from_ranks": (4, "all_gather", None),
    "scatter_to_ranks": (3, None, "all_gather"),
}
CUTS = [(name, dim) for name in STEPS for dim in ((-1, 0, 1) if "from" in name or "scatter" in name else (-1,))]


def one_step(name, N, draw, dim) -> tuple[list, ...]:
    """What goes in, by rank (x, dy); what must come out (y, dx); what mistakes give for each."""
    shape = [draw.size(1, 3), draw.size(2, 5), draw.size(2, 4)]
    shape[dim] *= N
    whole = [draw.whole(*shape) for _ in range(N)]
    if name == "copy_to_ranks":
        x, dy = everywhere(whole[0], N), [draw.whole(*shape) for _ in range(N)]
        causes = [
            {
                "its own gradient alone: what each rank's use brings must be added up": g,
                "its own gradient N times: right only where all ranks hold the same": N * g,
            }
            for g in dy
        ]
        return x, dy, x, everywhere(total(dy), N), everywhere({}, N), causes
    if name == "reduce_over_ranks":
        x, dy = whole, everywhere(draw.whole(*shape), N)
        forward = [
            {
                "its own addend alone: nothing was summed": own,
                "its own addend N times: right only where all ranks hold the same": N * own,
                "the mean over the ranks, expected the sum": total(x) / N,
            }
            for own in x
        ]
        times_N = {"the gradient N times: it is whole, and every rank has it already": N * dy[0]}
        return x, dy, everywhere(total(x), N), dy, forward, everywhere(times_N, N)
    parts = [draw.whole(*whole[0].chunk(N, dim)[0].shape) for _ in range(N)]
    joined = torch.cat(parts, dim)
    if name == "gather_from_ranks":
        dy = everywhere(draw.whole(*shape), N)
        own = side_by_side(dy[0], N, dim)
        back = [{"the gradient N times: it is whole, and every rank's is the same one": N * g} for g in own]
        first = {
            f"side by side along the {which} dimension": torch.cat(parts, d)
            for which, d in (("first", 0), ("second", 1), ("last", 2))
            if d != dim % 3
        }
        return parts, dy, everywhere(joined, N), own, everywhere(first, N), back
    x = everywhere(whole[0], N)
    own = side_by_side(x[0], N, dim)
    forward = [{"slice r+1, expected slice r": own[(r + 1) % N]} for r in range(N)]
    back = []
    for r in range(N):
        padded = [g if k == r else torch.zeros_like(g) for k, g in enumerate(parts)]
        back.append(
            {
                "its own slice, and zeros: the others' gradients are missing": torch.cat(padded, dim),
                "its own slice N times: right only where all ranks hold the same": torch.cat([parts[r]] * N, dim),
            }
        )
    return x, parts, own, everywhere(joined, N), forward, back


@task("15.1", points=4)
@pytest.mark.parametrize("name, dim", CUTS)
def test_step(name, dim, seed):
    """A step and its transposed, along every dimension"""
    N, forward, backward = STEPS[name]
    x, dy, y, dx, y_causes, dx_causes = one_step(name, N, Draw(seed, name, dim), dim)
    more = {} if dim == -1 else {"dim": dim}
    if name == "reduce_over_ranks":
        more = {"dtype": "float32"}  # x's own: the sum needs other memory all the same
    got, ledgers = both_times("scenarios.step", list(zip(x, dy)), which=name, **more)
    for r in range(N):
        zeros = {"nothing but zeros": torch.zeros_like(y[r])}
        same(got[r]["y"], y[r], rank=r, what="y", looks_like=y_causes[r] | zeros)
        same(got[r]["x"], dx[r], rank=r, what="dL/dx", looks_like=dx_causes[r])
        expect(
            got[r]["kept"] == y[r].nbytes,
            f"rank {r}: y has {y[r].nbytes} bytes, and keeps {got[r]['kept']}",
            cause=("a view of the whole: it keeps all of it",),
        )
        parts = phases(ledgers[r], times=2)
        for phase, kind in (("forward", forward), ("backward", backward)):
            size = 4 * max(x[r].numel(), y[r].numel())
            limit = ring(size, N, 2 if kind == "all_reduce" else 1)
            moved(ledgers[r], phase, parts[phase], calls={kind: 1} if kind else {}, at_most=limit if kind else 0)


TIMES = 4  # forward and backward, with another x and other weights again; forward alone, with others each time


def linear_case(kind, N, whole_end, draw, biased=True):
    """A linear's data, for each time: x, dy, weight and bias by rank; y, dx, dW, db by rank; the unsharded bias. x has
    two dimensions, or four: a linear's are "..., inputs"."""
    lead = (draw.size(1, 3), 3, draw.size(2, 4)) if whole_end else (draw.size(2, 4),)
    width, out = draw.size(2, 4, times=N), draw.size(2, 4, times=N)
    dy, shapes = draw.whole(*lead, out), ((*lead, width), (out, width), (out,))
    drawn = [[draw.whole(*shape) for shape in shapes] for _ in range(TIMES)]
    return [one_linear(kind, N, whole_end, x, dy, w, b * biased) for x, w, b in drawn]


def one_linear(kind, N, whole_end, x, dy, w, b):
    y, dx = x @ w.T + b, dy @ w
    dw, db = dy.flatten(0, -2).T @ x.flatten(0, -2), dy.flatten(0, -2).sum(0)
    if kind == "Column":
        ends = everywhere(y, N) if whole_end else side_by_side(y, N, -1)
        dys = everywhere(dy, N) if whole_end else side_by_side(dy, N, -1)
        data = (everywhere(x, N), dys, side_by_side(w, N, 0), side_by_side(b, N, 0))
        return data, (ends, everywhere(dx, N), side_by_side(dw, N, 0), side_by_side(db, N, 0)), b
    xs = everywhere(x, N) if whole_end else side_by_side(x, N, -1)
    dxs = everywhere(dx, N) if whole_end else side_by_side(dx, N, -1)
    data = (xs, everywhere(dy, N), side_by_side(w, N, 1), everywhere(b, N))
    return data, (everywhere(y, N), dxs, side_by_side(dw, N, 1), everywhere(db, N)), b


def linear_causes(kind, N, r, whole_end, data, want, b):
    """What a linear's mistakes give, for y and dL/dx of rank r."""
    x, dy, w, _ = (part[r] for part in data)
    if kind == "Column":
        own = dy.chunk(N, -1)[r] if whole_end else dy
        return {"the bias is missing": want[0][r] - data[3][r].repeat(N if whole_end else 1)}, {OWN_PART: own @ w}
    mine = x.chunk(N, -1)[r] if whole_end else x
    zeros = torch.cat([part * (s == r) for s, part in enumerate(want[1][r].chunk(N, -1))], -1)
    return {
        BIAS_N_TIMES: want[0][r] + (N - 1) * b,
        "the bias N + 1 times: every rank added it before the sum, and once behind": want[0][r] + N * b,
        "the bias is missing": want[0][r] - b,
        "its own addend alone: nothing was summed": mine @ w.T + b,
    }, {
        "N times too much: the gradient of y is whole already": N * want[1][r],
        "its own slice, and zeros: the others' gradients are missing": zeros if whole_end else None,
    }


@task("15.1", points=7)
@pytest.mark.parametrize("whole_end", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("kind", ["Column", "Row"])
def test_linear(kind, whole_end, seed):
    """Column- and row-parallel linears; a single rank's is an ordinary one"""
    judge_linear(kind, {"Column": 3, "Row": 4}[kind], whole_end, Draw(seed, kind, whole_end))
    # One of the two cases has no bias there.
    judge_linear(kind, 1, whole_end, Draw(seed, kind, "one rank"), Draw(seed, kind).size(0, 1) == whole_end)


def judge_linear(kind, N, whole_end, draw, biased=True):
    cases = linear_case(kind, N, whole_end, draw, biased)
    names = ("x", "weight", "bias") if biased else ("x", "weight")
    later = [[dict(zip(names, (x[r], w[r], b[r]))) for (x, _, w, b), _, _ in cases[1:]] for r in range(N)]
    options = {"gather" if kind == "Column" else "scatter": whole_end}
    x, dy, weight, bias = cases[0][0]
    inputs = list(zip(x, dy, weight, bias if biased else [None] * N, later))
    got, ledgers = call("scenarios.linear", inputs, kind=kind, **options)
    (_, first, _), (data, want, b), *others = cases
    for r in range(N):
        y_causes, dx_causes = linear_causes(kind, N, r, whole_end, data, want, b) if N > 1 else ({}, {})
        zeros = {"nothing but zeros": torch.zeros_like(want[0][r])}
        same(got[r]["y"], want[0][r], rank=r, what="y", looks_like=y_causes | zeros)
        same(got[r]["x"], want[1][r], rank=r, what="dL/dx", looks_like=dx_causes)
        times_N = {"N times too much: each rank's gradient is complete already": N * want[2][r]}
        same(got[r]["weight"], want[2][r], rank=r, what="dL/dW", looks_like=times_N)
        if biased:
            times_N = {"N times too much: each rank's gradient is complete already": N * want[3][r]}
            same(got[r]["bias"], want[3][r], rank=r, what="dL/db", looks_like=times_N)
        for name, value in zip(("y", *names), first):
            same(got[r]["in evaluation"][name], value[r], rank=r, what=f"{name} after .eval()")
        for y, (_, value, _) in zip(got[r]["without gradients"], others, strict=True):
            same(y, value[0][r], rank=r, what="y under no_grad, of another x and other weights")
        judge_linear_messages(kind, N, whole_end, data, ledgers[r])


def judge_linear_messages(kind, N, whole_end, data, ledger):
    """A column-parallel linear sends the gradient of x, a row-parallel one y; their ends' slices, where requested."""
    x, dy, w, _ = (part[ledger.rank] for part in data)
    gathers = {
        "the weight is gathered before it is used: its slice is all that is needed": [("all_gather", 4 * N * w.numel())]
    }
    wide = 4 * x.numel() * (1 if kind == "Column" or whole_end else N)
    long = 4 * dy.numel() * (N if kind == "Column" and not whole_end else 1)
    if kind == "Column":
        forward, backward = (
            ({"all_gather": 1} if whole_end else {}, ring(long, N, 1)),
            ({"all_reduce": 1}, ring(wide, N, 2)),
        )
    else:
        forward, backward = (
            ({"all_reduce": 1}, ring(long, N, 2)),
            ({"all_gather": 1} if whole_end else {}, ring(wide, N, 1)),
        )
    parts = phases(ledger, times=2, alone=TIMES - 2)
    for phase, (calls, limit) in (("forward", forward), ("backward", backward)):
        calls = calls if N > 1 else {}
        moved(ledger, phase, parts[phase], calls=calls, at_most=limit if calls else 0, looks_like=gathers)


DTYPES = [(BF16, None), (BF16, "float32"), (torch.float32, "bfloat16")]  # of x; requested


@task("15.1", points=2)
@pytest.mark.parametrize("dtype, requested", DTYPES, ids=["bfloat16", "float32", "float32 in bfloat16"])
def test_sum_dtype(dtype, requested, seed):
    """The ranks' addends are sent in the dtype that was requested, and y keeps x's"""
    N, draw, wide = 4, Draw(seed, "dtype", requested), requested == "float32"
    B, T, out = draw.size(1, 3), draw.size(2, 4), N * draw.size(2, 4)
    # One addend of each output is a multiple of 4 from 256 on. In float32 the others are 1: in bfloat16 300 + 1 is 300
    # again, so a sum there depends on the order; 303 rounded once is 304. Else each counts, and no sum reaches 512.
    large = 256 + 4 * draw.ids(63 if wide else 16, out)
    others = [torch.ones(out, dtype=torch.int64) if wide else 20 + draw.ids(40, out) for _ in range(N)]
    ones = torch.ones(B, T, 1, dtype=dtype)
    biased = Draw(seed, "bias").size(0, 2) == DTYPES.index((dtype, requested))  # one of the three
    bias = torch.zeros(out, dtype=dtype) if biased else None
    weights = [torch.where(torch.arange(out) % N == r, large, others[r]).to(dtype).unsqueeze(1) for r in range(N)]
    dy = draw.whole(B, T, out, dtype=dtype)
    options, requested = {"sum_dtype": requested} if requested else {}, requested or "bfloat16"
    got, ledgers = both_times("scenarios.linear", [(ones, dy, w, bias) for w in weights], kind="Row", **options)
    exact = torch.cat(weights, 1).sum(1, dtype=torch.int64).expand(B, T, out)
    for r in range(N):
        # In bfloat16 each of the N-1 sums may be off by 1, half a unit between 256 and 512, and the result's last too.
        want, parts = exact.to(torch.float32).to(BF16).to(dtype), phases(ledgers[r], times=2)
        sums = sorted({event.dtype for event in parts["forward"] if event.kind == "all_reduce"})
        # How many sums there are, and where, is judged below.
        text = f"rank {r} summed in {' and in '.join(sums)}, and {requested} was requested"
        expect(sums in ([], [requested]), text, known=True)
        same(got[r]["y"], want, rank=r, tol=0.0 if wide else N, what="y")
        size = (4 if wide else 2) * exact.numel()
        moved(ledgers[r], "forward", parts["forward"], calls={"all_reduce": 1}, at_most=ring(size, N, 2))
        moved(ledgers[r], "backward", parts["backward"], calls={}, at_most=0)


@task("15.1", points=2)
def test_two_linears(seed):
    """Column, then row: two messages, one forward and one backward"""
    N, draw = 4, Draw(seed, "two")
    B, T, width, F, out = draw.size(1, 2), draw.size(2, 4), draw.size(3, 6), draw.size(2, 3, times=N), draw.size(3, 6)
    x, dy = draw.whole(B, T, width, most=3), draw.whole(B, T, out, most=3)
    w1, b1, w2, b2 = (draw.whole(*shape, most=3) for shape in ((F, width), (F,), (out, F), (out,)))
    leaves = {name: t.double().requires_grad_() for name, t in zip(("x", "w1", "b1", "w2", "b2"), (x, w1, b1, w2, b2))}
    y = (leaves["x"] @ leaves["w1"].T + leaves["b1"]).square() @ leaves["w2"].T + leaves["b2"]
    y.backward(dy.double())
    cut = [side_by_side(t, N, dim) for t, dim in ((w1, 0), (b1, 0), (w2, 1))]
    got, ledgers = both_times("scenarios.two_linears", [(x, dy, *(part[r] for part in cut), b2) for r in range(N)])
    dims = {"w1": 0, "b1": 0, "w2": 1}
    for r in range(N):
        alone = x.double().requires_grad_()  # what the network computes of it with rank r's slices
        addend = (alone @ cut[0][r].double().T + cut[1][r]).square() @ cut[2][r].double().T
        addend.backward(dy.double())
        assert alone.grad is not None
        causes = {
            BIAS_N_TIMES: (y.detach() + (N - 1) * b2).float(),
            "its own addend alone: nothing was summed": (addend.detach() + b2).float(),
        }
        same(got[r]["y"], y.detach().float(), rank=r, what="y", looks_like=causes)
        for name, value in leaves.items():
            assert value.grad is not None
            want = value.grad.float()
            want = side_by_side(want, N, dims[name])[r] if name in dims else want
            causes = {OWN_PART: alone.grad.float()} if name == "x" else {}
            same(got[r][name], want, rank=r, what=f"dL/d{name}", looks_like=causes)
        parts = phases(ledgers[r], times=2)
        for phase, numbers in (("forward", y.numel()), ("backward", x.numel())):
            limit = ring(4 * numbers, N, 2)
            moved(ledgers[r], phase, parts[phase], calls={"all_reduce": 1}, at_most=limit)
