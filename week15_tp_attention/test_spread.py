"""Self-checks of what is spread over ranks beyond the core: a sequence (15.11, 15.12) and experts (15.13), all stretch,
for no points: `lab check 15.11`, say. Nothing is hidden.

Each rank gets its own positions, tokens and experts only. What is right is computed here, on one rank, in float64."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, same, sent, task
from labkit.checks.drawn import Draw
from labkit.checks.judge import close
from labkit.checks.traffic import LIBRARY, phases
from labkit.comm.ledger import COLLECTIVES, EMPTY
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from week15_tp_attention.test_attention import attend, attention_weights, limit_of, tables, turn, with_gradients
from week15_tp_attention.test_week15 import both_times

# ---- 15.11


def in_order(T, N, r):
    return [(r * T // N, (r + 1) * T // N)]


def zigzag(T, N, r):
    c = T // (2 * N)
    return [(r * c, (r + 1) * c), (T - (r + 1) * c, T - r * c)]


LAYOUTS = {"in_order": in_order, "zigzag": zigzag}


def places(layout, T, N, r):
    return [position for first, end in layout(T, N, r) for position in range(first, end)]


@task("15.11", points=0)
def test_zigzag(seed):
    """Every position once, two pieces a rank, equal work in every step"""
    draw = Draw(seed, "zigzag")
    sizes = [(N * 2 * draw.size(1, 5), N) for N in (1, 2, 4, draw.size(5, 9))]
    for (T, N), ranks in zip(sizes, call_alone("scenarios.zigzag", sizes)):
        c, head = T // (2 * N), f"{T} positions on {N} ranks"
        for r, got in enumerate(ranks):
            good = isinstance(got, list) and all(isinstance(piece, list) and len(piece) == 2 for piece in got)
            expect(good and len(got) == 2, f"{head}: rank {r} must get two pieces (first, end), not {got}")
            expect(
                all(end - first == c for first, end in got) and got[0] < got[1],
                f"{head}: rank {r}'s pieces must have {c} positions each, the earlier one first: {got}",
            )
        firsts = sorted(first for got in ranks for first, _ in got)
        expect(firsts == list(range(0, T, c)), f"{head}: every position belongs to one rank: {ranks}")
        next_to = all(got[0][1] == got[1][0] for got in ranks) and N > 1
        for s in range(N):
            # Pairs of pieces that rank r sees in step s, whole or as triangles.
            work = [sum(key[0] <= query[0] for query in ranks[r] for key in ranks[(r - s) % N]) for r in range(N)]
            expect(
                len(set(work)) == 1,
                f"{head}, step {s}: the ranks see {work} pairs of pieces, and all wait for whoever sees most",
                cause=("the two pieces stand side by side: this is the sequence in order",) if next_to else (),
            )


@task("15.11", points=0)
def test_zigzag_refuses(seed):
    """Positions that cannot be cut in 2 N parts are refused in a sentence"""
    N = Draw(seed, "refused").size(2, 6)
    T = N * (2 * Draw(seed, "odd").size(3, 9) + 1)
    for answer in call_alone("scenarios.zigzag", [(T, N)])[0]:
        good = isinstance(answer, tuple) and answer[0] == "LabError" and str(T) in answer[1] and str(N) in answer[1]
        expect(good, f"{T} positions on {N} ranks: a LabError that names both is expected, and this came: {answer}")


@task("15.11", points=0)
def test_merge(seed):
    """Two parts of a softmax, where one may be empty and scores are large"""
    draw = Draw(seed, "merge")
    B, n, c, H = draw.size(1, 2), draw.size(1, 3), draw.size(3, 5), draw.size(3, 5)
    cases = []
    for scale, far in ((1.0, 0.0), (300.0, 0.0), (3.0, 600.0)):
        o1, o2 = draw.normal(B, n, c, H), draw.normal(B, n, c, H)
        cases.append((o1, draw.normal(B, n, c, scale=scale) + far, o2, draw.normal(B, n, c, scale=scale) + far))
    none = torch.full((B, n, c), -torch.inf)
    cases += [(o1 * 0, none, *cases[0][2:]), (*cases[1][:2], o2 * 0, none)]
    for number, (case, got) in enumerate(zip(cases, call_each("stretch.ring_attention.merge", cases))):
        o1, l1, o2, l2 = (x.double() for x in case)
        total = torch.logaddexp(l1, l2)
        o = (l1 - total).exp().unsqueeze(-1) * o1 + (l2 - total).exp().unsqueeze(-1) * o2
        good = isinstance(got, tuple) and len(got) == 2
        causes = {
            "the mean of both: each counts by its share of the denominator": (o1 + o2) / 2,
            "the sum of both: the weights add up to 1": o1 + o2,
        }
        # l is rounded at its own size, and o by what that changes: a few units in the last place of a score.
        tol = 8 * 2.0**-24 * max(1.0, float(total.abs().max()))
        what = ("scores of some", "scores of hundreds, apart", "scores of hundreds", "nothing first", "nothing behind")
        close(got[0] if good else got, o, tol=4 * tol, what=f"o of {what[number]}", looks_like=causes)
        close(got[1] if good else None, total, tol=tol, what=f"l of {what[number]}")


def softmax_attention(q, k, v, mask):
    """o of all queries, float64; mask [T, T] says who sees whom."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


RINGS = {  # name: (layout, N, query heads, key/value heads, scale of the queries)
    "in order, 2": ("in_order", 2, 2, 2, 1.0),
    "in order, 4": ("in_order", 4, 2, 1, 1.0),
    "zigzag, 2": ("zigzag", 2, 4, 2, 60.0),
    "zigzag, 4": ("zigzag", 4, 4, 2, 1.0),
    "zigzag, 1": ("zigzag", 1, 2, 1, 1.0),
}
LATENCY, BANDWIDTH = 1e-5, 1e9  # of the virtual wire: seconds a message, bytes a second


@task("15.11", points=0)
@pytest.mark.parametrize("name", RINGS)
def test_ring_attention(name, seed):
    """Output and gradients of one rank's attention; bytes; work, rank by rank; messages beside it"""
    kind, N, n, k, scale = RINGS[name]
    layout, draw = LAYOUTS[kind], Draw(seed, name)
    B, H, c = draw.size(1, 2), draw.size(4, 6), draw.size(2, 4)
    T = 2 * N * c
    q, dO = draw.normal(B, n, T, H, scale=scale), draw.normal(B, n, T, H)
    keys, values = draw.normal(B, k, T, H), draw.normal(B, k, T, H)
    causal = torch.ones(T, T).tril().bool()
    whole = with_gradients(lambda q, k, v: softmax_attention(q, k, v, causal), dO, q=q, k=keys, v=values)
    rank_of = torch.empty(T, dtype=torch.long)
    own = [places(layout, T, N, r) for r in range(N)]
    for r in range(N):
        rank_of[own[r]] = r
    alone = causal & (rank_of.unsqueeze(0) == rank_of.unsqueeze(1))
    alone = with_gradients(lambda q, k, v: softmax_attention(q, k, v, alone), dO, q=q, k=keys, v=values)
    everything = torch.ones_like(causal)
    seen = with_gradients(lambda q, k, v: softmax_attention(q, k, v, everything), dO, q=q, k=keys, v=values)

    def part_of(r):
        """What rank r's queries alone bring to the gradients."""
        theirs = dO * (rank_of == r).unsqueeze(-1)
        return with_gradients(lambda q, k, v: softmax_attention(q, k, v, causal), theirs, q=q, k=keys, v=values)

    inputs = [tuple(x[:, :, own[r]].contiguous() for x in (q, keys, values, dO)) for r in range(N)]
    got, ledgers = call("scenarios.ring", inputs, pieces=[layout(T, N, r) for r in range(N)])
    # A score is rounded at its own size, and its softmax by as much.
    loud = max(1.0, float((q.double().norm(dim=-1).max() * keys.double().norm(dim=-1).max()) / H**0.5))
    for r in range(N):
        brought = part_of(r)
        for key in ("y", "q", "k", "v"):
            causes = {"later positions are seen: attention is causal": seen[key][:, :, own[r]]}
            if key in ("y", "q"):
                causes["its own keys alone: nothing has come around"] = alone[key][:, :, own[r]]
            else:
                causes["its own queries' part alone: the others' has not come home"] = brought[key][:, :, own[r]]
            # One rank has nothing to send; and loud scores leave one key to each query, whatever else is seen.
            causes = causes if N > 1 and scale == 1.0 else {}
            want = whole[key][:, :, own[r]]
            what = "o" if key == "y" else f"dL/d{key}"
            limit = limit_of(whole[key]) * loud
            close(got[r][key], want, tol=limit, rank=r, what=what, looks_like=causes)
        judge_ring_bytes(ledgers[r], 4 * 2 * B * k * (T // N) * H, n // k, N)
        judge_work(got[r]["work"], layout, T, N, r, 2 * B * n * H)
        judge_beside(ledgers[r], N)
        kept, most = got[r]["kept"], B * n * (T // N)
        text = f"rank {r} keeps {kept} numbers for backward beside q, k, v and o; l has {most}"
        expect(kept <= most, text, known=True)
    if N > 1:
        judge_ring_time(ledgers, 4 * 2 * B * k * (T // N) * H)


def judge_ring_bytes(ledger, block, group, N):
    """N-1 blocks of k and v forward, as many backward, and as many of their gradients. To the right neighbour."""
    r, halves = ledger.rank, phases(ledger)
    sent(ledger, to=(r + 1) % N if N > 1 else None, at_least=1 if N > 1 else 0, forbid=LIBRARY)
    for half, laps in (("forward", 1), ("backward", 2)):
        total = sum(event.bytes for event in halves[half] if event.kind == "send")
        causes = {
            "keys and values are repeated for every query head before they travel": group * laps * (N - 1) * block,
            "an own gradient travels all the way round, too: it can wait at home": (laps * (N - 1) + 1) * block,
            "all travels once more than there are ranks to see it": laps * N * block,
        }
        right = laps * (N - 1) * block
        cause = tuple(text for text, nbytes in causes.items() if total == nbytes > right)
        expect(total <= right, f"rank {r}, {half}: {total} bytes are sent, and {right} are enough", cause=cause)


def judge_work(products, layout, T, N, r, unit):
    """Multiplications by owner of the keys: those of pairs of pieces that are seen. Two products forward, five
    backward; `unit` is of a pair of positions in two products."""
    mine = layout(T, N, r)
    c = mine[0][1] - mine[0][0]
    outside = sum(size for (size, _), span in products if not span.startswith("attend"))
    expect(not outside, f"rank {r}: {outside} multiplications stand outside the spans 'attend 0' to 'attend {N - 1}'")
    for half, times, barriers in (("forward", 2, 1), ("backward", 5, 2)):
        found, most, full = [], [], []
        for owner in range(N):
            pairs = sum(key <= query for query in mine for key in layout(T, N, owner))
            found.append(sum(size for (size, at), span in products if at == barriers and span == f"attend {owner}"))
            most.append(times * unit // 2 * pairs * c * c)
            full.append(times * unit // 2 * len(mine) ** 2 * c * c)
        expect(
            all(a <= b for a, b in zip(found, most)),
            f"rank {r}, {half}: {found} multiplications for the keys of ranks 0 to {N - 1}, and {most} are enough",
            cause=("every pair of pieces is multiplied, seen or not",) if found == full else (),
        )


def judge_beside(ledger, N):
    """Of the N spans each way, all but the last have a block on its way beside them."""
    r, waits = ledger.rank, {event.of: event.index for event in ledger.events if event.kind == "wait"}
    for half, events in phases(ledger).items():
        spans = [event for event in events if event.kind == "compute" and event.label.startswith("attend ")]
        owners = [f"attend {(r - s) % N}" for s in range(N)]
        labels = [event.label for event in spans]
        expect(
            half == "before" or labels == owners,
            f"rank {r}, {half}: the spans must be {', '.join(owners)}, and are {', '.join(labels) or 'none'}",
        )
        for span in spans[:-1]:
            coming = [
                event
                for event in events
                if event.kind == "recv"
                and event.index < span.index
                and not event.blocking
                and waits.get(event.index, -1) > span.index
            ]
            expect(
                bool(coming),
                f"rank {r}, {half}: while it computes '{span.label}', no block is on its way",
                cause=("the next block is posted behind this one's products, or waited for before them",),
            )


def judge_ring_time(ledgers, block):
    """With spans three times as long as a message, one message is seen: the last gradients' way home."""
    N, travels = len(ledgers), LATENCY + block / BANDWIDTH
    for ledger in ledgers:
        for event in ledger.events:
            if event.kind == "compute":
                event.seconds = 3 * travels
    same(
        replay(ledgers, Topology.switch(N, LATENCY, BANDWIDTH)).time / travels,
        6 * N + 1,
        tol=1e-3,
        what="messages' times that a forward and a backward take, with spans of three each,",
        looks_like={
            "the gradients' messages are waited for where they are posted": 6 * N + N - 1,
            "nothing is hidden": 6 * N + 3 * (N - 1),
        },
    )


# ---- 15.12


@task("15.12", points=0)
@pytest.mark.parametrize("which", ["to_heads", "to_positions"])
def test_turn(which, seed):
    """Positions for heads, or heads for positions, and back"""
    N, draw = 4, Draw(seed, which)
    B, t, m, H = draw.size(2, 3), draw.size(2, 3), draw.size(2, 3), draw.size(1, 3)
    x, dy = draw.whole(B, N * t, N * m, H), draw.whole(B, N * t, N * m, H)
    turns = which == "to_heads"

    def cut(whole, r, along):
        return whole.chunk(N, dim=along)[r].contiguous()

    inputs = [(cut(x, r, 1 if turns else 2), cut(dy, r, 2 if turns else 1)) for r in range(N)]
    got, ledgers = both_times("scenarios.turned", inputs, which=which)
    for r in (*range(1, N), 0):
        mine, yours = inputs[r]
        want, back = cut(x, r, 2 if turns else 1), cut(dy, r, 1 if turns else 2)
        # Joined along the dimension that was cut, or merely laid out anew: right numbers, no message needed.
        along = 1 if turns else 2
        parts = [x.chunk(N, 1)[s].chunk(N, 2)[r] if turns else x.chunk(N, 2)[s].chunk(N, 1)[r] for s in range(N)]
        causes = {
            "its own numbers, laid out anew: nothing came from the others": mine.reshape(want.shape),
            "the parts are joined in another order than the ranks'": torch.cat(parts[::-1], along),
        }
        same(got[r]["y"], want, rank=r, what="y", looks_like=causes)
        own = {"its own numbers, laid out anew: nothing came from the others": yours.reshape(back.shape)}
        same(got[r]["x"], back, rank=r, what="dL/dx", looks_like=own)
        judge_turns(ledgers[r], 4 * mine.numel(), N)


def judge_turns(ledger, held, N, weights=None):
    """Point to point (N-1)/N of what the turns turn, each way; backward an all-reduce of the weights' gradients, if
    there are any. Causes are reported of a single turn: of four, some can be right."""
    r = ledger.rank
    expect(not ledger.gaps, f"rank {r} switched its ledger off: what it sent cannot be judged")
    for half, events in phases(ledger, times=2).items():
        p2p = sum(event.bytes for event in events if event.kind == "send")
        most = (N - 1) * held // N
        causes = {
            "the own part is sent, too": held,
            "every rank sends all that it has to all others: a gather": (N - 1) * held,
        }
        what = f"rank {r}, {half}: {p2p} bytes point to point, and {most} are enough"
        expect(
            p2p <= most, what, cause=() if weights else tuple(text for text, nbytes in causes.items() if p2p == nbytes)
        )
        used = [event for event in events if event.kind in COLLECTIVES and event.kind not in EMPTY]
        reduced = sum(event.bytes for event in used if event.kind == "all_reduce")
        others = sorted({event.kind for event in used if event.kind != "all_reduce"})
        expect(not others, f"rank {r}, {half}: {', '.join(others)} is called, and turns are all that is needed")
        limit = (weights or 0) if half == "backward" else 0
        expect(reduced <= limit, f"rank {r}, {half}: {reduced} bytes are all-reduced, and {limit} are enough")


def by_rank(x, dy, weights, cut, H, cos, sin):
    """Gradients of the layer, "wq0" and so on, as if each rank had weights of its own for its positions."""

    def layer(x, **w):
        def products(of, name):
            return torch.cat([of[:, own] @ w[f"{name}{r}"].T for r, own in enumerate(cut)], 1)

        q, k, v = (products(x, name).unflatten(-1, (-1, H)) for name in ("wq", "wk", "wv"))
        q, k, v = (t.transpose(1, 2) for t in (turn(q, cos, sin), turn(k, cos, sin), v))
        mask = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        return products(softmax_attention(q, k, v, mask).transpose(1, 2).flatten(-2), "wo")

    copies = {f"{name}{r}": w for name, w in weights.items() for r in range(len(cut))}
    return with_gradients(layer, dy, x=x, **copies)


LAYERS = {"2 ranks": (2, 4, 2), "4 ranks": (4, 8, 4), "each its own": (3, 3, 3), "one rank": (1, 2, 1)}


@task("15.12", points=0)
@pytest.mark.parametrize("name", LAYERS)
def test_ulysses(name, seed):
    """Output, gradients and bytes of the layer"""
    N, n, k = LAYERS[name]
    draw = Draw(seed, "ulysses", name)
    B, t, H, D = draw.size(1, 2), draw.size(2, 4), draw.size(1, 2, times=2), draw.size(9, 14)
    T = N * t
    weights = attention_weights(draw, D, n, k, H)
    x, dy = draw.normal(B, T, D), draw.normal(B, T, D)
    cos, sin = tables(T, H)

    def run(x, dy, cos, sin):
        return with_gradients(lambda x, **w: attend(x, w, H, cos, sin), dy, x=x, **weights)

    whole, cut = run(x, dy, cos, sin), [slice(r * t, (r + 1) * t) for r in range(N)]
    inputs = [(x[:, own].contiguous(), dy[:, own].contiguous(), weights, cos.float(), sin.float()) for own in cut]
    got, ledgers = both_times("scenarios.ulysses_layer", inputs, n_heads=n, n_kv_heads=k)
    addends = by_rank(x, dy, weights, cut, H, cos, sin)
    for r, own in enumerate(cut):
        here = run(x[:, own], dy[:, own], cos[own], sin[own])
        for key in ("y", "x", *weights):
            want = whole[key][:, own] if key in ("y", "x") else whole[key]
            what = "y" if key == "y" else f"dL/d{key}"
            causes = {}
            if N > 1 and key in ("y", "x"):
                causes["its own positions alone: no rank sees another's keys"] = here[key]
            if N > 1 and key in weights:
                causes["its own positions' addend: all ranks use this weight"] = addends[f"{key}{r}"]
            close(got[r][key], want, tol=limit_of(want), rank=r, what=what, looks_like=causes)
        held = 4 * B * t * H * (2 * n + 2 * k)  # q and the output, k and v
        judge_turns(ledgers[r], held, N, sum(w.nbytes for w in weights.values()))


@task("15.12", points=0)
def test_ulysses_refuses(seed):
    """Heads that cannot be dealt out are refused in a sentence"""
    draw = Draw(seed, "refused")
    for n, k in ((3 * draw.size(1, 3, times=2) + 1, 1), (draw.size(1, 4, times=6), 2)):
        wrong = n if n % 3 else k
        weights = attention_weights(draw, 4, n, k, 2)
        got, _ = call("scenarios.ulysses_refuses", [(weights,)] * 3, n_heads=n, n_kv_heads=k)
        for r, (kind, text) in enumerate(got):
            expect(
                kind == "LabError" and str(wrong) in text and "3" in text,
                f"rank {r}: {n} query and {k} key/value heads on 3 ranks: a LabError that names {wrong} and 3 is "
                f"expected: {kind}: {text}",
            )


# ---- 15.13


@task("15.13", points=0)
@pytest.mark.parametrize("N", [2, 4])
def test_uneven_exchange(N, seed):
    """Uneven parts to all ranks, some of them empty, and back"""
    draw = Draw(seed, "exchange", N)
    sizes = [[draw.size(0, 4) for _ in range(N)] for _ in range(N)]  # [r][s]: rows from r to s
    for r in range(N):
        sizes[r][r] = draw.size(1, 4)
    sizes[0][N - 1], sizes[N - 1][0] = 0, draw.size(2, 5)
    wide = draw.size(3, 5)
    xs = [draw.whole(sum(row), wide) for row in sizes]
    come = [[sizes[s][r] for s in range(N)] for r in range(N)]
    dys = [draw.whole(sum(row), wide) for row in come]
    got, ledgers = both_times("scenarios.exchanged", [(xs[r], sizes[r], come[r], dys[r]) for r in range(N)])
    for r in range(N):
        want = torch.cat([xs[s].split(sizes[s])[r] for s in range(N)])
        same(got[r]["y"], want, rank=r, what="what came")
        same(got[r]["x"], torch.cat([dys[s].split(come[s])[r] for s in range(N)]), rank=r, what="dL/dx")
        for half, rows in (("forward", sizes[r]), ("backward", come[r])):
            judge_rows(ledgers[r], half, 4 * wide * (sum(rows) - rows[r]))


def judge_rows(ledger, half, most, padded=None):
    r, events = ledger.rank, phases(ledger, times=2)[half]
    used = sorted({event.kind for event in events if event.kind in LIBRARY.split()})
    expect(not used, f"rank {r}, {half}: {', '.join(used)} is called: this task asks for messages of their own size")
    total = sum(event.bytes for event in events if event.kind == "send")
    cause = ("every part is filled up to the largest",) if padded is not None and total == padded > most else ()
    expect(total == most, f"rank {r}, {half}: {total} bytes are sent, and {most} are expected", cause=cause)
    empty = sum(event.kind == "send" and not event.bytes for event in events)
    expect(not empty, f"rank {r}, {half}: {empty} messages have no rows: who gets none gets no message", known=True)


def feed_forward(x, up, down):
    return torch.nn.functional.silu(x @ up.T) @ down.T


SPREADS = {  # name: (ranks, experts, choices, which experts get nothing)
    "2 ranks": (2, 4, 2, ()),
    "4 ranks, one expert unused": (4, 8, 2, (3,)),
    "one rank gets everything": (3, 6, 2, (0, 1, 4, 5)),
    "a rank without tokens": (3, 3, 1, ()),
    "one rank": (1, 3, 2, ()),
}


@task("15.13", points=0)
@pytest.mark.parametrize("name", SPREADS)
def test_spread_experts(name, seed):
    """Output and every gradient as of one process; bytes of the rows that move, and of counts"""
    N, E, K, unused = SPREADS[name]
    draw, e = Draw(seed, name), E // N
    D, F = draw.size(4, 7), draw.size(5, 8)
    tokens = [draw.size(5, 9) for _ in range(N)]
    if name == "a rank without tokens":
        tokens[N - 1] = 0
    used = [expert for expert in range(E) if expert not in unused]
    chosen = [torch.tensor([draw.order(used)[:K] for _ in range(S)], dtype=torch.long).reshape(S, K) for S in tokens]
    xs, dys = [draw.normal(S, D) for S in tokens], [draw.normal(S, D) for S in tokens]
    gates = [draw.normal(S, K).abs() + 0.1 for S in tokens]
    up, down = draw.normal(E, F, D, scale=D**-0.5), draw.normal(E, D, F, scale=F**-0.5)

    def experts(x, gates, up, down, picked):
        rows = [
            [gates[s, j] * feed_forward(x[s], up[i], down[i]) for j, i in enumerate(p)] for s, p in enumerate(picked)
        ]
        return torch.stack([torch.stack(row).sum(0) for row in rows]) if rows else x[:0]

    def run(xs, gates, dys, chosen):
        picked = torch.cat(chosen).tolist()
        return with_gradients(
            lambda **leaves: experts(picked=picked, **leaves),
            torch.cat(dys),
            x=torch.cat(xs),
            gates=torch.cat(gates),
            up=up,
            down=down,
        )

    whole = run(xs, gates, dys, chosen)
    inputs = [
        (xs[r], chosen[r], gates[r], dys[r], up[r * e : (r + 1) * e].clone(), down[r * e : (r + 1) * e].clone())
        for r in range(N)
    ]
    got, ledgers = both_times("scenarios.spread", inputs)
    own = [run([xs[r]], [gates[r]], [dys[r]], [chosen[r]]) if tokens[r] else None for r in range(N)]
    one = torch.ones_like
    plain = run(xs, list(map(one, gates)), dys, chosen)
    sizes = [[int((chosen[r] // e == s).sum()) for s in range(N)] for r in range(N)]
    for r in range(N):
        here_alone = own[r]
        mine, here = slice(sum(tokens[:r]), sum(tokens[: r + 1])), slice(r * e, (r + 1) * e)
        for key in ("y", "x", "gates", "up", "down"):
            want = whole[key][here if key in ("up", "down") else mine]
            causes = {}
            if key == "y":
                causes["the sum of its experts' outputs: gates are left out"] = plain["y"][mine]
            elif key in ("up", "down") and N > 1:
                causes["its own tokens' part alone: other ranks' rows were here, too"] = (
                    here_alone[key][here] if here_alone is not None else None
                )
                causes["the mean over the ranks: an expert's rows all are on its rank"] = want / N
            what = "y" if key == "y" else f"dL/d {key}"
            close(got[r][key], want, tol=limit_of(whole[key]), rank=r, what=what, looks_like=causes)
        out, come = sum(sizes[r]) - sizes[r][r], sum(sizes[s][r] for s in range(N)) - sizes[r][r]
        largest = max(size for row in sizes for size in row)
        rows = 4 * D * (out + come)
        judge_rows(ledgers[r], "forward", rows + 8 * e * (N - 1), 8 * D * (N - 1) * largest + 8 * e * (N - 1))
        judge_rows(ledgers[r], "backward", rows, 8 * D * (N - 1) * largest)
        if out:
            sent(ledgers[r], at_least=1)
