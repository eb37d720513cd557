"""The checks of the vocabulary's parts (15.4) and of messages behind products (15.5). Nothing is hidden.

N ranks, B batch, T positions, D model width, V vocabulary. Each rank gets its own rows of the vocabulary only.
"""

from __future__ import annotations

import pytest
import torch

from labkit.checks import call, expect, same, sends, sent, task
from labkit.checks.drawn import Draw
from labkit.checks.judge import close
from labkit.checks.traffic import LIBRARY, moved, nothing_inside, phases
from labkit.comm.algorithms import ring_bytes
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from week15_tp_attention.test_week15 import both_times

# Four numbers of float32 a token, and a few numbers for all tokens together.
NUMBERS_A_TOKEN = 4


def ring(nbytes, N, laps):
    """What a ring sends for nbytes: one lap for a gather or a scatter, two for an all-reduce."""
    return laps * (N - 1) * -(-nbytes // N)


def rows(x, N):
    """The whole table's rows by rank: the first ranks have one more."""
    return [part.contiguous() for part in x.tensor_split(N)]


# ---- 15.4


@task("15.4", points=3)
@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_embedding(ragged, seed):
    """Rows of a table that no rank has whole; a ragged one is BF16"""
    N, draw, dtype = 4, Draw(seed, "embedding", ragged), torch.bfloat16 if ragged else torch.float32
    most = 3 if ragged else 9  # of whole numbers, so that BF16 holds the sum over all tokens
    B, T, D, V = draw.size(1, 3), draw.size(6, 12), draw.size(3, 6), draw.size(3, 6, times=N) + 3 * ragged
    table, dy = (draw.whole(*shape, most=most, dtype=dtype) for shape in ((V, D), (B, T, D)))
    tokens, message = draw.ids(V, B, T), dtype.itemsize * B * T * D
    parts = rows(table, N)
    ends = [sum(map(len, parts[: r + 1])) for r in range(N)]
    tokens.view(-1)[:N] = torch.tensor(ends) - 1  # every rank's last row, at least
    gradient = rows(torch.zeros(V, D, dtype=dtype).index_add(0, tokens.flatten(), dy.flatten(0, 1)), N)
    got, ledgers = both_times("scenarios.embedding", [(tokens, part, dy) for part in parts], V=V)

    def looked_up(r, masked, first=None, count=None):
        """What rank r looks up, by default of its own rows; row 0 of its own for other tokens, unless these are masked."""
        index = tokens - (ends[r] - len(parts[r]) if first is None else first)
        mine = (index >= 0) & (index < (count or len(parts[r])))
        return parts[r][torch.where(mine, index, 0)] * (mine.unsqueeze(-1) if masked else 1)

    for r in range(N):
        causes = {
            "its own rows alone, zeros elsewhere: nothing was summed": looked_up(r, True),
            "for others' tokens a row 0 came too, where zeros are due": sum(looked_up(s, False) for s in range(N)),
            "V // N rows for every rank: the first ranks have one more": sum(
                looked_up(s, True, s * (V // N), V // N) for s in range(N)
            ),
            "r times its own rows before it: the first ranks have one more": sum(
                looked_up(s, True, s * len(parts[s])) for s in range(N)
            ),
        }
        same(got[r]["y"], table[tokens], rank=r, what="y", looks_like=causes)
        times = {"N times too much: the gradient of y is whole already": N * gradient[r]}
        same(got[r]["weight"], gradient[r], rank=r, what="dL/dW", looks_like=times)
        halves = phases(ledgers[r], times=2)
        gathered = {
            "the table is gathered before it is used": [
                ("all_gather", dtype.itemsize * N * len(parts[r]) * D),
                ("all_reduce", message),
            ]
        }
        moved(
            ledgers[r],
            "forward",
            halves["forward"],
            calls={"all_reduce": 1},
            at_most=ring(message, N, 2),
            looks_like=gathered,
        )
        moved(ledgers[r], "backward", halves["backward"], calls={}, at_most=0)


def few_numbers(ledger, events, tokens, V, N):
    """Forward may send a few numbers a token, in whatever calls."""
    limit = ring(4 * NUMBERS_A_TOKEN * tokens, N, 2) + 64
    total = ring_bytes(ledger, events)
    whole = any(event.bytes >= 4 * V * tokens for event in events)
    cause = ("whole logits travel: V numbers a token, where the loss needs a few",) if whole else ()
    expect(
        total <= limit,
        f"rank {ledger.rank}, forward: {total} bytes on a ring for {tokens} tokens; {NUMBERS_A_TOKEN} numbers a token, "
        f"summed, are {limit}",
        cause=cause,
    )
    expect(total > 0, f"rank {ledger.rank} sent nothing forward, and no rank knows all logits")


def targets_of(draw, V, N, B, T):
    """Targets, every rank's rows among them, of which some do not count, up to a third."""
    targets, places = draw.ids(V, B, T).flatten(), draw.order(range(B * T))
    targets[places[:N]] = torch.tensor([V * r // N for r in range(N)])
    targets[places[N : N + draw.size(1, B * T // 3)]] = -100
    return targets.reshape(B, T)


def mean_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def one_hot(targets, V):
    """1 at each target, as float64; nothing for those that do not count."""
    return torch.nn.functional.one_hot(targets.clamp_min(0), V).double() * (targets >= 0).unsqueeze(-1)


def loss_causes(z, targets, V, N, r):
    """What mistakes of the loss give on rank r, in float64."""
    counts, parts = targets != -100, z.tensor_split(N, -1)
    at = z.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    owner = torch.cat([torch.full((part.shape[-1],), s) for s, part in enumerate(parts)])[targets.clamp_min(0)]
    peaks = torch.stack([part.amax(-1) for part in parts])
    own_maxima = (parts_sum(parts, peaks).log() - (at - peaks.gather(0, owner.unsqueeze(0))[0]))[counts].mean()
    local = (torch.logsumexp(parts[r], -1) - at)[counts].mean()
    right, top = (torch.logsumexp(z, -1) - at)[counts], z.amax(-1)[counts]
    # What others have at their index 0, less the maximum.
    heads = torch.stack([part[..., 0] for part in parts])
    strays = (heads.sum(0) - heads.gather(0, owner.unsqueeze(0))[0])[counts] - (N - 1) * top
    ignored = (torch.logsumexp(z, -1) - z.amax(-1))[~counts].sum()
    # A part's at_target is 0 for others' tokens: the largest logit of all has been subtracted.
    off = [
        (torch.logsumexp(z, -1) - z.gather(-1, ((targets + d).clamp(0, V - 1)).unsqueeze(-1))[..., 0]) for d in (1, -1)
    ]
    return {
        "each rank subtracted a maximum of its own: the sums do not fit together": own_maxima,
        "the denominator is of this rank's logits alone": local,
        "ignored targets count in the mean": right.sum() / counts.numel(),
        "ignored targets have a loss": (right.sum() + ignored) / counts.numel(),
        "ignored targets' loss is added to the others'": (right.sum() + ignored) / counts.sum(),
        "a rank that does not have the target adds a logit all the same": (right - strays).mean(),
        "a target 0 does not count: it is a row like any other": (torch.logsumexp(z, -1) - at)[targets > 0].mean(),
        "the sum over the tokens, expected the mean": right.sum(),
        "the maximum is subtracted twice from the target's logit, or added back once too often": (right + top).mean(),
        "the maximum is subtracted in the sum and not from the target's logit": (right - top).mean(),
        "every rank subtracted the maximum from the target's logit, also those that do not have it": (
            right + (N - 1) * top
        ).mean(),
        "the logit behind the target's": off[0][counts].mean(),
        "the logit before the target's": off[1][counts].mean(),
    }


def parts_sum(parts, peaks):
    return sum((part - peak.unsqueeze(-1)).exp().sum(-1) for part, peak in zip(parts, peaks))


OUT_OF_RANGE = "exp left float32: of each token subtract the largest of its own logits over all ranks, on every rank"


@task("15.4", points=4)
@pytest.mark.parametrize(
    "large, apart, dtype",
    [(0, 0, torch.float32), (1, 0, torch.float32), (1, 1, torch.float32), (0, 0, torch.bfloat16)],
    ids=["small", "hundreds", "far apart", "bfloat16"],
)
def test_cross_entropy(large, apart, dtype, seed):
    """The loss, from a few numbers a token; far apart: tokens by hundreds, and on each of them the ranks"""
    N, draw = 4, Draw(seed, "loss", large + apart)
    # float64's exp ends at 709, and at -745 it is 0.
    size, apart = large * draw.size(800, 999) * (-1) ** draw.size(0, 1), apart * draw.size(800, 999)
    # A rank's logits of a token, in BF16 too, are several times what may be sent for it.
    B, T, V = draw.size(1 + (apart > 0), 2), draw.size(9, 12), draw.size(40, 50, times=N) + 3
    logits, targets, scale = draw.normal(B, T, V), targets_of(draw, V, N, B, T), float(draw.size(2, 9))
    # Every rank's largest logit is at a place of its own, a few units (or hundreds) from the others'.
    heights = torch.stack([torch.from_numpy(draw.rng.permutation(N)) for _ in range(B * T)]).reshape(B, T, N) - 1.5
    for r, part in enumerate(logits.tensor_split(N, -1)):
        part += (apart or 2) * heights[..., r : r + 1] + size
    if apart:
        logits -= size * ((torch.arange(B)[:, None] + torch.arange(T)) % 3).unsqueeze(-1)
        stands_out = logits == logits.amax(-1, keepdim=True)  # of every second token one logit, far above its rank's
        # Not of those that do not count: nothing but their largest logit would be left, and their loss 0.
        logits += apart * (stands_out & ((torch.arange(T) % 2 == 0) & (targets >= 0)).unsqueeze(-1))
    logits = logits.to(dtype)
    z = logits.double().requires_grad_()
    want = mean_loss(z, targets)
    (want * scale).backward()
    assert z.grad is not None
    gradient = [part.contiguous() for part in z.grad.tensor_split(N, -1)]
    inputs = [(part.contiguous(), targets, scale) for part in logits.tensor_split(N, -1)]
    got, ledgers = both_times("scenarios.loss", inputs, V=V)
    for r in range(N):
        causes = loss_causes(z.detach(), targets, V, N, r)
        # A logit of hundreds is off by 2**-15 in float32, before anything is done with it; sums of V/N, N, B T numbers.
        tol = (V // N + N + B * T) * 2.0**-24 * (310 if large else 11)
        if large and isinstance(got[r]["y"], torch.Tensor):
            lost = (logits.tensor_split(N, -1)[r] - logits.amax(-1, keepdim=True)).exp().sum(-1)[targets != -100] == 0
            local = [cause for cause in causes if cause.startswith("the denominator is")] if lost.any() else []
            finite = bool(got[r]["y"].isfinite().all())
            expect(finite, f"the loss of rank {r} is not finite", cause=(OUT_OF_RANGE, *local))
        most = tol * max(1.0, want.item() / 310)  # far apart the loss is above a thousand
        close(got[r]["y"], want.detach(), tol=most, rank=r, what="the loss", looks_like=causes)
        counts = (targets != -100).sum()
        slope = (targets != -100).unsqueeze(-1) * scale / counts
        p, hot = z.detach().softmax(-1).tensor_split(N, -1)[r], one_hot(targets, V).tensor_split(N, -1)[r]
        stray = one_hot(torch.zeros_like(targets), p.shape[-1]) * (hot.sum(-1, keepdim=True) == 0)
        unscaled = {
            "the target's 1 is not subtracted": p * slope,
            "the 1 is subtracted also where another rank has the target": (p - hot - stray) * slope,
            "the denominator in backward is of this rank's logits alone": (p / p.sum(-1, keepdim=True) - hot) * slope,
            "the gradient that came from behind is left out": gradient[r] / scale,
            "ignored targets have a gradient": gradient[r]
            + scale / counts * (z.detach().softmax(-1) * (targets == -100).unsqueeze(-1)).tensor_split(N, -1)[r],
            "divided by all tokens, also those that do not count": gradient[r] * counts / targets.numel(),
        }
        tol = tol * scale / 10 + (2.0**-9 * float(gradient[r].abs().max()) if dtype == torch.bfloat16 else 0)
        close(got[r]["logits"], gradient[r], tol=tol, rank=r, what="dL/dz", dtype=dtype, looks_like=unscaled)
        halves = phases(ledgers[r], times=2)
        few_numbers(ledgers[r], halves["forward"], targets.numel(), V, N)
        moved(ledgers[r], "backward", halves["backward"], calls={}, at_most=0)


@task("15.4", points=3)
def test_head(seed):
    """From the last norm's output to the loss, and back"""
    N, draw = 4, Draw(seed, "head")
    B, T, D, V = draw.size(2, 3), draw.size(9, 12), draw.size(4, 8), draw.size(40, 50, times=N) + 2
    x, weight, targets = draw.normal(B, T, D), draw.normal(V, D, scale=2.0), targets_of(draw, V, N, B, T)
    x64, w64 = x.double().requires_grad_(), weight.double().requires_grad_()
    want = mean_loss(x64 @ w64.T, targets)
    want.backward()
    assert x64.grad is not None
    got, ledgers = both_times("scenarios.head", [(x, part, targets) for part in rows(weight, N)], V=V)
    tol = 300 * 2.0**-24  # of numbers up to 10 or so: sums over D, V and B T
    p = (x.double() @ weight.double().T).softmax(-1)
    p = (p - one_hot(targets, V)) * (targets != -100).unsqueeze(-1) / (targets != -100).sum()
    for r in range(N):
        causes = loss_causes(x.double() @ weight.double().T, targets, V, N, r)
        close(got[r]["y"], want.detach(), tol=10 * tol, rank=r, what="the loss", looks_like=causes)
        own = {
            "its own logits' part alone: backward's sum is missing": p.tensor_split(N, -1)[r]
            @ rows(weight, N)[r].double()
        }
        close(got[r]["x"], x64.grad, tol=tol, rank=r, what="dL/dx", looks_like=own)
        close(got[r]["weight"], rows(w64.grad, N)[r], tol=tol, rank=r, what="dL/dW")
        halves = phases(ledgers[r], times=2)
        few_numbers(ledgers[r], halves["forward"], targets.numel(), V, N)
        moved(ledgers[r], "backward", halves["backward"], calls={"all_reduce": 1}, at_most=ring(4 * x.numel(), N, 2))


# ---- 15.5

LATENCY, BANDWIDTH = 1e-5, 1e9  # of the virtual wire: seconds a message, bytes a second


def on_the_wire(ledgers, label, seconds):
    """Seconds on a switch where each span called `label` takes `seconds`, and any other span nothing."""
    for ledger in ledgers:
        for event in ledger.events:
            if event.kind == "compute":
                event.seconds = seconds if event.label == label else 0.0
    return replay(ledgers, Topology.switch(len(ledgers), LATENCY, BANDWIDTH)).time


def index_of_wait(ledger, event):
    """Where the rank waited for `event`: itself, if it blocked there; None if it never waited."""
    if event.blocking:
        return event.index
    return next((other.index for other in ledger.events if other.kind == "wait" and other.of == event.index), None)


def hidden(ledger, event, span, what):
    """Pass if `event` was posted before the span and waited for behind it."""
    who, wait = f"rank {ledger.rank}: {what}", index_of_wait(ledger, event)
    if wait is None:
        expect(False, f"{who} was never waited for", known=True)
    elif event.index > span.index and event.begin < span.end:
        cause = "posted inside the span: what the message waits for, and its post, stand in front of it"
        expect(False, f"{who} is posted inside the span {span.label!r} that is to hide it", cause=(cause,))
    elif event.index > span.index:
        cause = "posted behind the product, it travels when there is nothing left to hide it"
        expect(False, f"{who} is posted behind the span {span.label!r} that is to hide it", cause=(cause,))
    elif wait < span.index:
        cause = "waited for before the product: the rank stands still until the message is through"
        expect(False, f"{who} is waited for before the span {span.label!r} that is to hide it", cause=(cause,))
    nothing_inside(ledger, span)


def in_spans(got, wants, label, rank):
    """Pass if the products in the spans called `label` gave these, in any layout, one in each, and nothing else."""
    inside = [result for result, (_, where) in zip(got["results"], got["products"]) if where == label]
    expect(
        [result.numel() for result in inside] == [want.numel() for want in wants],
        f"rank {rank}: in the spans {label!r} there must be {len(wants)} product(s) of {wants[0].numel()} numbers, one "
        f"in each, and nothing else; there are {[result.numel() for result in inside] or 'none'}",
        known=True,
    )
    for result, want in zip(inside, wants):
        expect(
            torch.equal(result.double().flatten().sort().values, want.double().flatten().sort().values),
            f"rank {rank}: what the product in a span {label!r} gives is not the result",
        )


@task("15.5", points=8)
@pytest.mark.parametrize("N", [2, 4])
def test_overlapped_linear(N, seed):
    """Backward's all-reduce beside the product for dW"""
    draw = Draw(seed, "overlapped", N)
    B, T, wide, out = draw.size(2, 3), draw.size(5, 6), draw.size(2, 4), draw.size(7, 9)
    lead = (B, T) if N == 2 else (B * T,)  # a linear's dimensions are "..., inputs"
    x, weights = draw.whole(*lead, wide), [draw.whole(out, wide) for _ in range(N)]
    dys = [draw.whole(*lead, out) for _ in range(N)]
    got, ledgers = call("scenarios.overlapped", [(x, dys[r], weights[r]) for r in range(N)])
    dx = sum(dy @ w for dy, w in zip(dys, weights))
    for r in range(N):
        sums = [event for event in ledgers[r].events if event.kind == "all_reduce"]
        waited = all(index_of_wait(ledgers[r], event) is not None for event in sums)
        expect(waited, f"rank {r}: the all-reduce was never waited for", known=True)
        same(got[r]["y"], x @ weights[r].T, rank=r, what="y")
        own = {"its own outputs' part alone: the others' outputs read the same x": dys[r] @ weights[r]}
        same(got[r]["x"], dx, rank=r, what="dL/dx", looks_like=own)
        dW = dys[r].flatten(0, -2).T @ x.flatten(0, -2)
        causes = {
            "N times too much: it is complete already": N * dW,
            "summed over the ranks: each has a weight of its own": torch.stack(dys).sum(0).flatten(0, -2).T
            @ x.flatten(0, -2),
            "the first sequence's alone": dys[r][0].T @ x[0] if len(lead) > 1 else None,
        }
        same(got[r]["weight"], dW, rank=r, what="dL/dW", looks_like=causes)
        halves = phases(ledgers[r])
        moved(ledgers[r], "forward", halves["forward"], calls={}, at_most=0)
        moved(ledgers[r], "backward", halves["backward"], calls={"all_reduce": 1}, at_most=ring(4 * x.numel(), N, 2))
        spans = [event for event in halves["backward"] if event.kind == "compute" and event.label == "dW"]
        expect(len(spans) == 1, f"rank {r}: backward must have one span 'dW', and it has {len(spans)}", known=True)
        message = next(event for event in halves["backward"] if event.kind == "all_reduce")
        hidden(ledgers[r], message, spans[0], "the all-reduce")
        in_spans(got[r], [dW], "dW", r)
    travels = 2 * (N - 1) * (LATENCY + -(-4 * x.numel() // N) / BANDWIDTH)
    for product in (0.5 * travels, 2 * travels):
        time = on_the_wire(ledgers, "dW", product)
        same(
            time,
            max(travels, product),
            tol=1e-6 * travels,
            what=f"seconds on the wire, with a product of {product:.3g} s beside an all-reduce of {travels:.3g} s,",
            looks_like={"one after the other: nothing is hidden": travels + product},
        )


@task("15.5", points=7)
@pytest.mark.parametrize("N", [2, 4])
def test_product_in_chunks(N, seed):
    """A product whose gather is already on its way"""
    draw = Draw(seed, "chunks", N)
    B, t, wide, out = draw.size(2, 3), draw.size(2, 3), draw.size(3, 5), draw.size(2, 6)
    dtype = torch.float32 if N == 2 else torch.float64
    x, weights = ([draw.whole(*shape, dtype=dtype) for _ in range(N)] for shape in ((B, t, wide), (out, wide)))
    whole, chunk = torch.cat(x, 1), x[0].nbytes
    for in_order in (True, False):
        got, ledgers = call("scenarios.chunks", [(x[r], weights[r]) for r in range(N)], in_order=in_order)
        for r in (*range(1, N), 0):  # on rank 0 several mistakes give the same
            right = [((r + 1) % N, chunk)] * (N - 1)
            left = ((r - 1) % N, chunk)
            turned = (
                ("to the left: rank r's right neighbour is r+1",) if N > 2 and set(sends(ledgers[r])) == {left} else ()
            )
            last = {"the last step sends, too: after N-1 steps every chunk has been everywhere": [right[0]] * N}
            sent(
                ledgers[r],
                steps=N - 1,
                at_most=(N - 1) * chunk,
                forbid=f"{LIBRARY} barrier",
                at_least=1,
                looks_like=last,
            )
            text = f"rank {r} must send one chunk a step to rank {(r + 1) % N}: {sends(ledgers[r])}"
            expect(sends(ledgers[r]) == right, text, cause=turned)
            arrived = torch.cat([x[(r - s) % N] for s in range(N)], 1)
            other = torch.cat([x[(2 * r - s) % N] for s in range(N)], 1)
            causes = {
                "in the order of arrival, expected in rank order": arrived @ weights[r].T,
                "its own positions N times: what arrived was not multiplied": torch.cat([x[r]] * N, 1) @ weights[r].T,
                "step s multiplies the positions of rank r-s, and stores them as rank r+s's": other @ weights[r].T,
            }
            same(got[r]["y"], whole @ weights[r].T, rank=r, what="y", looks_like=causes)
            spans = [event for event in ledgers[r].events if event.kind == "compute" and event.label == "product"]
            expect(len(spans) == N, f"rank {r} must have {N} spans 'product', and it has {len(spans)}", known=True)
            for kind, what in (("send", "message"), ("recv", "receive")):
                posted = [event for event in ledgers[r].events if event.kind == kind]
                for s, event in enumerate(posted):
                    hidden(ledgers[r], event, spans[s], f"{what} {s}")
            in_spans(got[r], [x[(r - s) % N] @ weights[r].T for s in range(N)], "product", r)
        travels = LATENCY + chunk / BANDWIDTH
        for product in (0.5 * travels, 2 * travels):
            time = on_the_wire(ledgers, "product", product)
            same(
                time,
                (N - 1) * max(travels, product) + product,
                tol=1e-6 * travels,
                what=f"seconds on the wire, with {N} products of {product:.3g} s and messages of {travels:.3g} s,",
                looks_like={"one after the other: nothing is hidden": (N - 1) * travels + N * product},
            )
