"""The checks of attention with split heads (15.2) and of sequence parallelism (15.3). Nothing is hidden.

Each rank gets its own slices only. What is right is computed here, unsharded and in float64; so is what one rank's
part alone gives, to recognise a forgotten sum. N ranks, B batch, T positions, D model width, H head width."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, field, same, task
from labkit.checks.drawn import Draw
from labkit.checks.held import grown
from labkit.checks.judge import close
from labkit.checks.traffic import calls_of, moved, phases
from week15_tp_attention.test_week15 import TIMES, both_times

# float32 against float64: some 300 roundings in a row (products over D, T and F, and back), each of at most 2**-24 of
# numbers no larger than a few times the largest result.
ROUNDINGS = 300 * 2.0**-24


def ring(nbytes, N, laps):
    """What a ring sends for nbytes: one lap for a gather or a scatter, two for an all-reduce."""
    return laps * (N - 1) * -(-nbytes // N)


def heads_of(heads, kv, N, r):
    """Rank r's query heads and the key/value heads that these read, as (first, one past the last), and the ranks that
    read the same ones."""

    def read(s):
        return heads * s // N * kv // heads, (heads * (s + 1) // N - 1) * kv // heads + 1

    mine = read(r)
    return (heads * r // N, heads * (r + 1) // N), mine, [s for s in range(N) if read(s) == mine]


def tables(T, H):
    angle = torch.outer(torch.arange(T, dtype=torch.float64), 10_000.0 ** (-torch.arange(0, H, 2).double() / H))
    return angle.cos(), angle.sin()


def turn(x_BTNH, cos_TR, sin_TR):
    a, b = x_BTNH.chunk(2, -1)
    cos, sin = cos_TR.unsqueeze(1), sin_TR.unsqueeze(1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(x, w, H, cos, sin, x_kv=None):
    """Causal attention with these weights, of as many heads as they have. x_kv: what k and v are made of, by default
    x as well."""
    reads = {"wq": x, "wk": x if x_kv is None else x_kv, "wv": x if x_kv is None else x_kv}
    q, k, v = ((read @ w[name].T).unflatten(-1, (-1, H)) for name, read in reads.items())
    q, k = turn(q, cos, sin), turn(k, cos, sin)
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], dim=2) for t in (k, v))
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) / H**0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return torch.einsum("bnqk,bknh->bqnh", scores.softmax(-1), v).flatten(-2) @ w["wo"].T


def with_gradients(function, dy, **leaves):
    """y and the gradients by name, in float64."""
    leaves = {name: t.double().requires_grad_() for name, t in leaves.items()}
    y = function(**leaves)
    y.backward(dy.double())
    return {"y": y.detach(), **{name: t.grad for name, t in leaves.items()}}


def cut(weights, heads, kv, N, r, H):
    """Rank r's slices of attention's weights."""
    query, keys, _ = heads_of(heads, kv, N, r)
    n, k = slice(query[0] * H, query[1] * H), slice(keys[0] * H, keys[1] * H)
    return {
        name: (t[:, n] if name == "wo" else t[n] if name == "wq" else t[k]).contiguous() for name, t in weights.items()
    }


def attention_weights(draw, D, heads, kv, H):
    shapes = {"wq": (heads * H, D), "wk": (kv * H, D), "wv": (kv * H, D), "wo": (D, heads * H)}
    return {name: draw.normal(*shape, scale=shape[1] ** -0.5) for name, shape in shapes.items()}


# ---- 15.2

SPLITS = [(8, 8, 4), (8, 4, 2), (12, 4, 4), (8, 2, 4), (8, 1, 4), (16, 4, 8), (32, 8, 16), (12, 3, 6)]


@task("15.2", points=4)
@pytest.mark.parametrize("heads, kv, N", SPLITS)
def test_split_heads(heads, kv, N, seed):
    """Which heads are a rank's; all of them, if it is alone"""
    draw = Draw(seed, "split", heads, kv, N)  # numbers that no table can know
    often = draw.size(1, 4) if min(kv, N) > 1 else 1
    heads, kv, ranks = draw.size(1, 9973, times=often * heads), often * kv, often * N
    every = call_each("attention.split_heads", [(heads, kv, N, r) for N in (ranks, 1) for r in range(N)])
    for N, got in ((ranks, every[:ranks]), (1, every[ranks:])):
        has = [heads_of(heads, kv, N, r)[1] for r in range(N)]
        ends = [end for r in range(N) for end in field(got[r], "kv")]
        turns = [end for r in range(N) for end in (r % kv, r % kv + 1)] if kv < N else []
        beyond = [end for r in range(N) for end in (r, r + 1)] if kv < N else []
        same(
            ends,
            [end for pair in has for end in pair],
            what=f"first and end of the key/value heads, rank by rank, {heads} over {kv} on {N} ranks,",
            looks_like={
                "dealt out in turns: query head n reads key/value head n // (n_heads / n_kv_heads)": turns,
                "one for each rank, beyond the last: with fewer of them several ranks read the same one": beyond,
                "in reversed order: rank 0 has the first ones": [end for pair in reversed(has) for end in pair],
                "the next rank's": [end for pair in (*has[1:], has[0]) for end in pair],
            },
        )
        want = sorted({tuple(heads_of(heads, kv, N, s)[2]) for s in range(N)})
        for r in range(N):
            query, _, _ = heads_of(heads, kv, N, r)
            same(field(got[r], "query"), list(query), what=f"query heads of rank {r} of {N}, {heads} over {kv},")
            parts = field(got[r], "replicas")
            got_parts = sorted(sorted(part) for part in parts) if isinstance(parts, list) else parts
            apart = got_parts == [list(range(s, N, kv)) for s in range(kv)]
            expect(
                got_parts == [list(part) for part in want],
                f"the parts with equal key/value heads, {heads} over {kv} on {N} ranks, are {[list(p) for p in want]}, "
                f"not {got_parts}",
                cause=("as far apart as there are key/value heads: neighbours read the same one",) if apart else (),
            )


@task("15.2", points=2)
def test_heads_that_do_not_divide(seed):
    """What does not divide is refused in a sentence, and nothing else"""
    draw, cases = Draw(seed, "refused"), []
    for heads_fit, kv_fit, more in [*2 * [(1, 1, 0), (1, 1, 1), (1, 0, 0), (1, 0, 1), (0, 1, 1)]]:
        rules = None
        while rules != (heads_fit, kv_fit, more):  # more: ranks than key/value heads
            kv, N = draw.size(2, 24), draw.size(2, 24)
            heads = draw.size(1, 9, times=math.lcm(kv, N) if heads_fit else kv)
            rules = (heads % N == 0, max(kv, N) % min(kv, N) == 0, kv < N)
        cases.append((heads, kv, N))
    kv, more = draw.size(1, 9), draw.size(2, 9)
    cases += [(kv * more, kv, kv * more * draw.size(2, 5))]  # more ranks than query heads
    cases = [cases[k] for k in draw.order(range(len(cases)))]
    for (heads, kv, N), (kind, text) in zip(cases, call_alone("scenarios.refusals", cases)):
        what = f"{heads} query and {kv} key/value heads on {N} ranks"
        if heads % N == 0 and max(kv, N) % min(kv, N) == 0:
            expect(kind == "nothing", f"{what} divide, and {kind} came: {text}", known=True)
            continue
        expect(kind == "LabError", f"{what}: a LabError is expected, and {kind} came: {text}", known=True)
        numbers = (str(heads) if heads % N else str(kv), str(N))
        expect(
            all(number in text for number in numbers),
            f"{what}: the sentence must name {' and '.join(numbers)}: {text}",
            known=True,
        )


@task("15.2", points=3)
@pytest.mark.parametrize("heads, kv, N", [(8, 4, 4), (8, 2, 4)], ids=["split", "replicated"])
def test_slices(heads, kv, N, seed):
    """The slices of the whole weights"""
    draw = Draw(seed, "slices", kv)
    H = draw.size(1, 3, times=2)
    D = heads * H + draw.size(1, 5)  # so that W_o has more rows than columns: a slice of the wrong ones shows
    shapes = {"wq": (heads * H, D), "wk": (kv * H, D), "wv": (kv * H, D), "wo": (D, heads * H)}
    dtype = torch.float64 if kv == 2 else torch.float32
    weights = {name: draw.whole(*shape, most=999, dtype=dtype) for name, shape in shapes.items()}
    for r in range(N):
        query, keys, _ = heads_of(heads, kv, N, r)
        got, kept = call_alone("scenarios.slices", weights, (query, keys), H)
        want, t_o = cut(weights, heads, kv, N, r, H), weights["wo"]
        interleaved = {
            name: t[:, r::N] if name == "wo" else t[r :: len(t) // len(want[name])] for name, t in weights.items()
        }
        for name, t in want.items():
            # By heads, the width in front: [H, heads, ...] in place of [heads, H, ...].
            first, end = query if name in ("wq", "wo") else keys
            heads_last = (
                (weights[name].T if name == "wo" else weights[name]).unflatten(0, (H, -1))[:, first:end].flatten(0, 1)
            )
            other = {"wk": "wv", "wv": "wk"}.get(name)
            causes = {
                "every N-th row: a head's rows stand together": interleaved[name],
                "head and width swapped: a head's rows stand together": heads_last.T if name == "wo" else heads_last,
                f"this is {other}'s slice": want[other] if other else None,
                "the whole weight": weights[name],
                "the first rank's slice": cut(weights, heads, kv, N, 0, H)[name] if r else None,
                "W_o by its rows: what a rank's heads give goes into its columns": t_o[query[0] * H : query[1] * H]
                if name == "wo"
                else None,
            }
            same(field(got, name), t, rank=r, what=name, looks_like=causes)
            expect(
                kept[name] <= t.nbytes,
                f"rank {r}: {name} has {t.nbytes} bytes, and keeps {kept[name]}",
                cause=("a view of the whole weight: it keeps all of it",),
            )


def attention_case(seed, heads, kv, N):
    """Data by rank; slices, and y and gradients, for each of the times; what mistakes give the second time, and each
    rank's part alone."""
    draw = Draw(seed, "attention", heads, kv, N)
    B, T, H = draw.size(1, 2), draw.size(6, 9), draw.size(2, 3, times=2)
    T += max(1, kv // N) * H == B * T  # or x, and what a rank has of W_k, would be equally large messages
    D = draw.size(12, 20)
    every = [attention_weights(draw, D, heads, kv, H) for _ in range(TIMES)]
    xs, dy = [draw.normal(B, T, D) for _ in range(TIMES)], draw.normal(B, T, D)
    cos, sin = tables(T, H)
    weights, x = every[1], xs[1]
    doubled = {name: w.double() for name, w in weights.items()}

    def run(w, x):
        return with_gradients(lambda x, **w: attend(x, w, H, cos, sin), dy, x=x, **w)

    slices = [[cut(w, heads, kv, N, r, H) for r in range(N)] for w in every]
    wanted = [run(w, x) for w, x in zip(every, xs)]
    whole = wanted[1]
    through_kv = with_gradients(lambda x_kv: attend(x.double(), doubled, H, cos, sin, x_kv), dy, x_kv=x)
    whole["x through k and v"] = through_kv["x_kv"]
    whole["sin for cos"] = attend(x.double(), doubled, H, sin, cos)
    wide = [w | {"wo": w["wo"].unflatten(1, (H, -1)).transpose(1, 2).flatten(1)} for w in slices[1]]
    whole["width first"] = sum(attend(x.double(), {k: t.double() for k, t in w.items()}, H, cos, sin) for w in wide)
    return (xs, dy, cos.float(), sin.float()), slices, wanted, [run(w, x) for w in slices[1]], H


ATTENTIONS = {  # name: (query heads, key/value heads, ranks) of each layer
    "each its own": [(4, 4, 2)],
    "grouped": [(8, 4, 2), (2, 1, 1)],
    "replicated twice": [(8, 2, 4)],
    "one key/value head": [(4, 1, 4)],
}


@task("15.2", points=16)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name, seed):
    """Output, gradients and messages of the layer"""
    for heads, kv, N in ATTENTIONS[name]:
        (xs, dy, cos, sin), slices, wanted, alone, H = attention_case(seed, heads, kv, N)
        later = [[own[r] | {"x": x} for own, x in zip(slices[1:], xs[1:])] for r in range(N)]
        inputs = [(xs[0], dy, slices[0][r], later[r], cos, sin) for r in range(N)]
        got, ledgers = call("scenarios.attention_layer", inputs, n_heads=heads, n_kv_heads=kv)
        for r in range(N):
            own = [one | cut({w: one[w] for w in slices[0][r]}, heads, kv, N, r, H) for one in wanted]
            replicas = heads_of(heads, kv, N, r)[2]
            judge_attention(got[r], own[1], alone, r, replicas)
            in_evaluation(got[r], own, [limit_of] * TIMES, r)
            judge_attention_messages(ledgers[r], xs[1], slices[1][r], N, len(replicas))


def judge_attention(got, want, alone, r, replicas):
    own, twice = alone[r], len(replicas)
    for name in ("y", "x", "wq", "wk", "wv", "wo"):
        what = "y" if name == "y" else f"dL/d{name}"
        causes = {"nothing but zeros": torch.zeros_like(want[name])}
        if name == "y":
            causes["its own heads' addend alone: nothing was summed"] = own["y"]
            causes["its own heads' addend N times: right only where all ranks hold the same"] = len(alone) * own["y"]
            causes["cos and sin swapped"] = want["sin for cos"]
            causes["head and width swapped in front of W_o"] = want["width first"]
        elif name == "wo" and len(replicas) > 1:
            shared = "summed over the replicas: they share W_k and W_v, and each has columns of its own of W_o"
            causes[shared] = sum(alone[s]["wo"] for s in replicas)
        elif name == "x":
            causes["N times too much: summed over the ranks more than once"] = len(alone) * want["x"]
            causes["its own heads' part alone: backward's sum is missing"] = own["x"]
            if len(replicas) > 1:
                # Each replica then brings the gradient of all query heads back through its own W_k and W_v.
                causes[
                    "k and v were copied over the replicas, and not the weights: their part comes once a replica"
                ] = want["x"] + (twice - 1) * want["x through k and v"]
        elif len(replicas) > 1 and name in ("wk", "wv"):
            causes["its own query heads' part alone: the replicas' gradients must be added up"] = own[name]
            causes["the mean over the replicas, expected the sum"] = want[name] / twice
        if name in ("wk", "wv") and len(alone) > 1 and len(replicas) < len(alone):
            causes["summed over ranks with other key/value heads: only replicas share a weight"] = sum(
                a[name] for a in alone
            )
        close(got[name], want[name], tol=limit_of(want[name]), rank=r, what=what, looks_like=causes)


def in_evaluation(got, wanted, limits, r):
    """A module does the same after .eval(), and under no_grad; x and its weights were others each time."""
    for y, want, limit in zip(got["without gradients"], wanted[2:], limits[2:], strict=True):
        close(y, want["y"], tol=limit(want["y"]), rank=r, what="y under no_grad, of another x and other weights")
    for name, found in got["in evaluation"].items():
        what = f"{'y' if name == 'y' else f'dL/d{name}'} after .eval()"
        close(found, wanted[0][name], tol=limits[0](wanted[0][name]), rank=r, what=what)


def limit_of(want):
    return ROUNDINGS * max(1.0, float(want.abs().max()))


def judge_attention_messages(ledger, x, w, N, copies):
    """One all-reduce over the ranks each way, and backward the replicas' of dW_k and dW_v: two, or one."""
    parts, full = phases(ledger, times=2, alone=TIMES - 2), 4 * x.numel()
    kv = 4 * (w["wk"].numel() + w["wv"].numel())
    heads = {
        "the heads are gathered in front of W_o: its slice needs this rank's alone": [
            ("all_gather", 4 * N * x[..., 0].numel() * len(w["wq"])),
            ("all_reduce", full),
        ]
    }
    moved(
        ledger,
        "forward",
        parts["forward"],
        calls={"all_reduce": min(1, N - 1)},
        at_most=ring(full, N, 2),
        looks_like=heads,
    )
    sums = sum(e.kind == "all_reduce" and e.group == "replicas" for e in parts["backward"]) if copies > 1 else 0
    calls = {
        "all_reduce": min(1, N - 1),
        "all_reduce in replicas": (sums if sums in (1, 2) else 2) if copies > 1 else 0,
    }
    three = {"three messages for x, one a product: their addends can be added up before": [("all_reduce", full)] * 3}
    # Rounded up for each of two messages.
    most = ring(full, N, 2) + ring(kv, copies, 2) + 2 * copies
    moved(ledger, "backward", parts["backward"], calls=calls, at_most=most, looks_like=three)


# ---- 15.3

OTHERS = "summed over ranks with other weights"
GATHERED_AGAIN = "gathered again in backward, though it was kept"


@task("15.3", points=2)
def test_scatter_positions(seed):
    """From addends to positions, and back"""
    N, draw = 4, Draw(seed, "scatter")
    B, t, D = draw.size(2, 3), draw.size(1, 3), draw.size(2, 5)
    x, dy = [draw.whole(B, N * t, D) for _ in range(N)], [draw.whole(B, t, D) for _ in range(N)]
    total, back = torch.stack(x).sum(0).split(t, 1), torch.cat(dy, 1)
    got, ledgers = both_times("scenarios.scattered", list(zip(x, dy)))
    for r in range(N):
        own = {"its own addend alone: nothing was summed": x[r].split(t, 1)[r]}
        same(got[r]["y"], total[r].contiguous(), rank=r, what="y", looks_like=own)
        padded = torch.cat([dy[r] if s == r else torch.zeros_like(dy[r]) for s in range(N)], 1)
        own = {"its own positions, and zeros: the others' gradients are missing": padded}
        same(got[r]["x"], back, rank=r, what="dL/dx", looks_like=own)
        parts, limit = phases(ledgers[r], times=2), ring(4 * back.numel(), N, 1)
        twice = {"an all-reduce, and a slice of it: twice the bytes": [("all_reduce", 4 * back.numel())]}
        moved(ledgers[r], "forward", parts["forward"], calls={"reduce_scatter": 1}, at_most=limit, looks_like=twice)
        moved(ledgers[r], "backward", parts["backward"], calls={"all_gather": 1}, at_most=limit)


@task("15.3", points=3)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "gathered again"])
def test_gather_linears(keep, seed):
    """Several products of one gathered x: values, bytes, and what is kept for backward"""
    N, draw = 4, Draw(seed, "gather", keep)
    B, t, D = draw.size(2, 3), draw.size(2, 3), draw.size(3, 6)
    widths = [draw.size(2, 5) for _ in range(3 if keep else 2)]
    x = [draw.whole(B, t, D) for _ in range(N)]
    weights = [[draw.whole(width, D) for width in widths] for _ in range(N)]
    dys = [[draw.whole(B, N * t, width) for width in widths] for _ in range(N)]
    whole = torch.cat(x, 1)
    addends = [torch.stack([dy @ w for dy, w in zip(dys[r], weights[r])]).sum(0) for r in range(N)]
    dx = torch.stack(addends).sum(0).split(t, 1)
    ends = {  # of several products
        f"the {which} weight's part alone: every product reads x": torch.stack(
            [dys[s][k] @ weights[s][k] for s in range(N)]
        ).sum(0)
        for which, k in (("first", 0), ("last", -1))
    }
    got, ledgers = call("scenarios.gathered", list(zip(x, dys, weights)), keep=keep)
    size = whole.numel()
    for r in range(N):
        for k, w in enumerate(weights[r]):
            same(got[r]["ys"][k], whole @ w.T, rank=r, what=f"y {k}")
            want = dys[r][k].flatten(0, 1).T @ whole.flatten(0, 1)
            summed = {
                f"{OTHERS}: these rows are its own": sum(dy[k].flatten(0, 1).T @ whole.flatten(0, 1) for dy in dys)
            }
            same(got[r]["weights"][k], want, rank=r, what=f"dL/dW {k}", looks_like=summed)
        own = {
            "its own addend alone: what the others computed from its positions is missing": addends[r]
            .split(t, 1)[r]
            .contiguous()
        } | {cause: part.split(t, 1)[r].contiguous() for cause, part in ends.items()}
        same(got[r]["x"], dx[r].contiguous(), rank=r, what="dL/dx", looks_like=own)
        wanted, text = (size, "the gathered x") if keep else (size // N, "its own positions of x")
        same(
            got[r]["kept"],
            wanted,
            rank=r,
            what=f"how many numbers are kept for backward ({text}, beside the weights)",
            looks_like={
                "the gathered x is kept": size,
                "nothing but its own positions is kept": size // N,
                "the gathered x is kept, and its own positions too": size + size // N,
            },
        )
        parts, lap = phases(ledgers[r]), ring(4 * size, N, 1)
        moved(ledgers[r], "forward", parts["forward"], calls={"all_gather": 1}, at_most=lap)
        calls = {"reduce_scatter": 1} | ({} if keep else {"all_gather": 1})
        again = {GATHERED_AGAIN: {"all_gather": 1, "reduce_scatter": 1}} if keep else {}
        moved(
            ledgers[r], "backward", parts["backward"], calls=calls, at_most=lap if keep else 2 * lap, looks_like=again
        )
    if not keep:
        judge_memory(draw)


def judge_memory(draw):
    """What the kernel reports, in grading: the gathered x is kept nowhere, in no list and no NumPy array."""
    N, t, D, width = 4, 256 + draw.size(1, 40), 1024, 2
    # Numbers that need all their bits, and few of each rank's positions in a sum: nobody keeps them in fewer.
    x, dy = [draw.normal(1, t, D) for _ in range(N)], torch.zeros(1, N * t, width)
    for r in range(N):
        dy[0, [r * t + draw.size(0, t - 1) for _ in range(3)]] = draw.whole(3, width)
    weight = draw.whole(width, D)
    inputs = [*((one, [], [weight]) for one in x), (None, [dy], [])]
    got, ledgers = call("scenarios.weighed", inputs, keep=False, weighed=True)
    whole, by, mine = torch.cat(x, 1)[0].double(), dy[0].double().T, x[0].nbytes
    want, tol = (by @ whole).float(), 13 * 2.0**-24 * (by.abs() @ whole.abs())  # 12 products and their sum
    for r in range(N):
        expect(isinstance(got[r], list) and len(got[r]) == 1, f"rank {r}: no gradients came back")
        same(got[r][0], want, tol=tol, rank=r, what="dL/dW of a large x")
        marks = [e.index for e in ledgers[r].events if e.kind == "compute" and e.label == "kept for backward"]
        made = calls_of(ledgers[r], [e for e in ledgers[r].events if e.index < max(marks, default=0)])
        # Else memory would be read before all of x has been there.
        text = f"rank {r}: forward of a large x is to be one gather, its end noted once: {made}, {len(marks)} times"
        expect(len(marks) == 1 and made == [("all_gather in part", N * mine)], text, known=True)
        more = grown(ledgers[r], "inputs made", "kept for backward", 1)
        # Its own positions may be there twice, laid out for the message; what the module brings, and y, are less than
        # as much again. The others' positions are three times as much.
        expect(
            more is None or more <= 2 * mine,
            f"rank {r}: between forward and backward its processes hold {(more or 0) / 2**20:.1f} MiB more than "
            f"before: its own positions of x are {mine / 2**20:.1f}, and the gathered x {N * mine / 2**20:.1f}",
            cause=("the gathered x is kept, though keep=False",),
        )


def whole_block(x, N, H, cos, sin, leaves, eps, first=1, second=1):
    """The block in float64, with a leaf of its own for whatever a rank holds: norms' weights by position, [T, D], so
    that a rank's part of their gradients is known, and each rank's slices. first, second: 0 leaves a residual out."""

    def norm(x, weight_TD):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight_TD

    def own(r):
        return {name: leaves[f"{name} {r}"] for name in ("wq", "wk", "wv", "wo", "w1", "w3", "w2")}

    h = norm(x, leaves["attn_norm"])
    x = first * x + sum(attend(h, own(r), H, cos, sin) for r in range(N))
    h = norm(x, leaves["ffn_norm"])
    return second * x + sum(
        (torch.nn.functional.silu(h @ w["w1"].T) * (h @ w["w3"].T)) @ w["w2"].T for w in map(own, range(N))
    )


@task("15.3", points=5)
@pytest.mark.parametrize("keep, heads, kv", [(True, 8, 2), (False, 8, 8)], ids=["kept, replicas", "gathered again"])
def test_block(keep, heads, kv, seed):
    """A whole block on T/N positions"""
    N, draw = 4 if keep else 8, Draw(seed, "block", keep)
    B, t, H = draw.size(1 + keep, 2), draw.size(2, 3), draw.size(1, 2 + keep, times=2)
    D = draw.size(12, 20) if keep else draw.size(512, 640)  # heads and features keep less than x
    T, F, eps = N * t, draw.size(3, 4 + 2 * keep, times=N), draw.size(1, 9) / 10
    dy, (cos, sin) = draw.normal(B, T, D), tables(T, H)
    every, wanted = [], []  # by time: x and weights by rank; y and gradients, x, and the leaves that have them
    for _ in range(TIMES):
        x = draw.normal(B, T, D)
        weights = attention_weights(draw, D, heads, kv, H)
        ffn = {
            name: draw.normal(*s, scale=s[1] ** -0.5) for name, s in zip(("w1", "w3", "w2"), 2 * [(F, D)] + [(D, F)])
        }
        norms = {name: 1 + draw.normal(D, scale=0.3) for name in ("attn_norm", "ffn_norm")}
        slices = [
            cut(weights, heads, kv, N, r, H)
            | {name: w.chunk(N, 1 if name == "w2" else 0)[r].contiguous() for name, w in ffn.items()}
            for r in range(N)
        ]
        leaves = {f"{name} {r}": w for r in range(N) for name, w in slices[r].items()}
        leaves |= {name: w.expand(T, D) for name, w in norms.items()}
        found = with_gradients(lambda x, **all: whole_block(x, N, H, cos, sin, all, eps), dy, x=x, **leaves)
        every.append([own | norms | {"x": part.contiguous()} for own, part in zip(slices, x.split(t, 1))])
        wanted.append((found, x, leaves))
    found, x, leaves = wanted[1]
    doubled = {name: leaf.double() for name, leaf in leaves.items()}
    swapped = {f"{a} {r}": doubled[f"{b} {r}"] for r in range(N) for a, b in (("w1", "w3"), ("w3", "w1"))}
    one_norm = {"ffn_norm": doubled["attn_norm"]}
    variants = {
        "the first residual is missing": ({}, 0, 1),
        "the second residual is missing": ({}, 1, 0),
        "gate and up swapped": (swapped, 1, 1),
        "attn_norm in front of both halves": (one_norm, 1, 1),
    }
    ys = {c: whole_block(x.double(), N, H, cos, sin, doubled | other, eps, *r) for c, (other, *r) in variants.items()}
    ys["`eps` is ignored"] = whole_block(x.double(), N, H, cos, sin, doubled, 1e-5)
    dys = dy.split(t, 1)
    parts = [list(part) for part in sorted({tuple(heads_of(heads, kv, N, r)[2]) for r in range(N)})]
    begin = [(own.pop("x"), dys[r].contiguous(), own) for r, own in enumerate(every[0])]
    inputs = [(*begin[r], [own[r] for own in every[1:]], cos.float(), sin.float()) for r in range(N)]
    got, ledgers = call("scenarios.block", inputs, parts=parts, d_head=H, keep=keep, eps=eps)
    for r in range(N):
        own, replicas = {cause: y.split(t, 1)[r] for cause, y in ys.items()}, heads_of(heads, kv, N, r)[2]
        judge_block(got[r], found, r, t, replicas, own)
        mine = [block_wanted(found, r, t, replicas) for found, _, _ in wanted]
        in_evaluation(got[r], mine, [lambda _, found=found: tolerance(found) for found, _, _ in wanted], r)
        judge_block_messages(ledgers[r], 4 * B * T * D, 4 * D, every[1][r], N, len(replicas), keep)
        # x, the sum behind the first half, and two of each norm, before and after its weight: 6; heads and features: up
        # to 1. A gathered x is N = 8, and takes the place of all of its half: 9 with the other half's x, and the heads.
        most, limit = max(got[r]["kept"]), 9 * B * t * D
        text = f"rank {r} keeps {most} numbers beside its weights for backward; {limit} are enough"
        expect(keep or most <= limit, text, known=True)


def tolerance(found):
    return ROUNDINGS * max(1.0, *(float(value.abs().max()) for value in found.values()))


def block_wanted(found, r, t, replicas):
    """Rank r's y and gradients."""
    want = {name: found[name].split(t, 1)[r] for name in ("y", "x")}
    want |= {name: found[name].sum(0) for name in ("attn_norm", "ffn_norm")}
    for name in ("wq", "wk", "wv", "wo", "w1", "w3", "w2"):
        copies = replicas if name in ("wk", "wv") else [r]
        want[name] = torch.stack([found[f"{name} {s}"] for s in copies]).sum(0)
    return want


def judge_block(got, found, r, t, replicas, y_causes):
    tol, wanted = tolerance(found), block_wanted(found, r, t, replicas)

    def judge(name, causes):
        what = "y" if name == "y" else f"dL/d{name}"
        close(got[name], wanted[name], tol=tol, rank=r, what=what, looks_like=causes)

    for name in ("y", "x"):
        judge(name, {"nothing but zeros": torch.zeros_like(wanted[name])} | (y_causes if name == "y" else {}))
    for name in ("attn_norm", "ffn_norm"):
        parts = found[name].split(t)
        causes = {"its own positions' part alone: the ranks' must be added up": parts[r].sum(0)}
        if len(replicas) > 1:
            some = sum(parts[s].sum(0) for s in replicas)
            causes["the replicas' positions alone: every rank's must be added up"] = some
        judge(name, causes)
    for name in ("wq", "wk", "wv", "wo", "w1", "w3", "w2"):
        copies = replicas if name in ("wk", "wv") else [r]
        own = found[f"{name} {r}"]
        causes = {"its own query heads' part alone: the replicas' gradients must be added up": own}
        if len(copies) == 1:
            causes = {}
        causes[OTHERS] = sum(g for other, g in found.items() if other.startswith(f"{name} "))
        judge(name, causes)


def judge_block_messages(ledger, full, norm, w, N, copies, keep):
    """Forward two laps for each half. Backward the same; two gathers more if nothing is kept; the sums of the gradients
    of two norms, and of the replicas' W_k and W_v."""
    parts, lap = phases(ledger, times=2, alone=TIMES - 2), ring(full, N, 1)
    made = sum(event.kind == "all_gather" for event in parts["forward"])
    each = {
        "gathered for each product: all of a half read the same x": {"all_gather": max(made, 3), "reduce_scatter": 2}
    }
    moved(
        ledger,
        "forward",
        parts["forward"],
        calls={"all_gather": 2, "reduce_scatter": 2},
        at_most=4 * lap,
        looks_like=each,
    )
    gathers = 2 if keep else 4
    calls = {"all_gather": gathers, "reduce_scatter": 2, "all_reduce": 2}
    kv = 4 * (w["wk"].numel() + w["wv"].numel())
    if copies > 1:
        calls["all_reduce in replicas"] = 2
    most = (gathers + 2) * lap + 2 * ring(norm, N, 2) + ring(kv, copies, 2) + 2 * copies
    half = "one half keeps its gathered x: `keep` is for both"
    causes = {half if not keep else GATHERED_AGAIN: calls | {"all_gather": 3}}
    causes |= {GATHERED_AGAIN: calls | {"all_gather": 4}} if keep else {}
    moved(ledger, "backward", parts["backward"], calls=calls, at_most=most, looks_like=causes)
