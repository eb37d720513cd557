"""The checks of ZeRO-1 (14.3), as those of 14.2: against torch's own AdamW in one process, on the whole batch."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.checks import Draw, call, expect, same, task
from labkit.checks.held import grown
from labkit.comm.ledger import WORLD
from week14_fsdp.given.whole_batch import (
    F64,
    TOL,
    a_batch,
    answer,
    carried,
    draw,
    gradient,
    gradients_agree,
    only,
    registered,
    scaled,
    vector,
)


def options_of(weights):
    """AdamW's options, drawn: none is the default, and nobody has them by heart."""
    draw = Draw(int(2**40 * next(iter(weights)).flatten()[0].item()))
    betas = draw.size(70, 89) / 100, draw.size(950, 990) / 1000
    return {
        "lr": draw.size(5, 15) / 1000,
        "betas": betas,
        "eps": draw.size(2, 20) / 1e6,
        "weight_decay": draw.size(2, 4) / 10,
    }


def adamw(weights, by_rank, max_norm):
    """torch's own AdamW on the whole batch: weights after each step, and norms."""
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    optimizer = torch.optim.AdamW(list(w.values()), **options_of(weights.values()))
    after, norms = [], []
    for step, limit in enumerate(max_norm):
        optimizer.zero_grad()
        now = {n: t.detach() for n, t in w.items()}
        for name, g in gradient(now, [rank[step] for rank in by_rank]).items():
            w[name].grad = g
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), math.inf if limit is None else limit).item())
        if limit is not None and norms[-1] > limit:  # torch adds 1e-6 to the norm
            for t in w.values():
                t.grad.mul_((norms[-1] + 1e-6) / norms[-1])
        optimizer.step()
        after.append({n: t.detach().clone() for n, t in w.items()})
    return after, norms


def mistaken(weights, by_rank, limits):
    """{cause: the weights after each step that this mistake gives}."""
    names, N = registered(weights), len(by_rank)
    sizes = [weights[n].numel() for n in names]
    S = -(-sum(sizes) // N)

    def clipped(norm, limit):
        return 1.0 if limit is None else min(1.0, limit / norm)

    def named(flat):
        return {n: part.view(weights[n].shape) for n, part in zip(names, flat[: sum(sizes)].split(sizes))}

    def own_parts(g, batches):
        owns = [vector(gradient(g, [batch]), names) for batch in batches]
        return named(torch.cat([own[r * S : (r + 1) * S] for r, own in enumerate(owns)]))

    def moved_up(g):
        used = vector(g, [n for n in names if n != "idle"])
        return named(torch.cat([used, used.new_zeros(sum(sizes) - len(used))]))

    def steps(count=lambda step: step, clip=clipped, mean=lambda w, batches: gradient(w, batches)):
        lr, (b1, b2), eps, decay = options_of(weights.values()).values()
        w, after = weights, []
        m = v = {n: torch.zeros_like(t) for n, t in w.items()}
        for step, limit in enumerate(limits, 1):
            g, k = mean(w, [rank[step - 1] for rank in by_rank]), count(step)
            g = scaled(g, clip(vector(g, names).norm().item(), limit))
            m = {n: b1 * m[n] + (1 - b1) * g[n] for n in w}
            v = {n: b2 * v[n] + (1 - b2) * g[n] ** 2 for n in w}
            shrunk = scaled(w, 1 - lr * decay)
            size = {n: (v[n] / (1 - b2**k)).sqrt() + eps for n in w}
            w = {n: shrunk[n] - lr / (1 - b1**k) * m[n] / size[n] for n in w}
            after.append(w)
        return after

    return {
        "the weights as they came in": [weights] * len(limits),
        "bias correction counts from 2: the first step is step 1": steps(lambda step: step + 1),
        "bias correction is always that of the first step": steps(lambda step: 1),
        "clipped, though no max_norm was given": steps(
            clip=lambda norm, limit: clipped(norm, 1.0 if limit is None else limit)
        ),
        "nothing is clipped": steps(clip=lambda norm, limit: 1.0),
        "clipped to 1, expected max_norm": steps(clip=lambda norm, limit: clipped(norm, limit and 1.0)),
        "scaled to max_norm, also what is shorter": steps(
            clip=lambda norm, limit: 1.0 if limit is None else limit / norm
        ),
        "a max_norm of 0 is taken for none: it leaves nothing of the gradient": steps(
            clip=lambda norm, limit: clipped(norm, limit or None)
        ),
        "each part by its rank's own gradient: nothing was averaged": steps(mean=own_parts),
        "parameters without a gradient are left out, and those behind them move up": steps(
            mean=lambda w, batches: moved_up(gradient(w, batches))
        ),
    }


UNCLIPPED = (None, None, None)  # a max_norm for each step


def large_weights(seed):
    """A model of about 4 MiB: the kernel reports what memory its moments take."""
    generator = Draw(seed)
    D, H, V = 60 + seed % 9, 2000 + seed % 41, 13
    weights = {"embed": 0.3 * generator.normal(V, D, dtype=F64), "scale": torch.ones(D, dtype=F64)}
    for k in range(2):
        weights[f"blocks.{k}.up"] = generator.normal(H, D, dtype=F64) / D**0.5
        weights[f"blocks.{k}.bias"] = torch.zeros(H, dtype=F64)
        weights[f"blocks.{k}.down"] = 0.3 * generator.normal(D, H, dtype=F64) / H**0.5
    return weights, generator


def limits_of(weights, by_rank, times):
    """The `max_norm` of each step, from how many times that step's norm it is."""
    limits: list[float | None] = []
    for by in times:
        limits.append(by and by * adamw(weights, by_rank, [*limits, None])[1][-1])
    return limits


def zero_case(seed, N, times=UNCLIPPED, large=False, idle=False, padded=True):
    weights, generator = large_weights(seed) if large else draw(seed, idle=idle)
    while (sum(t.numel() for t in weights.values()) % N > 0) != padded:  # there is to be padding, or none
        weights["idle"] = generator.normal(1 + weights.get("idle", torch.empty(0)).numel(), dtype=F64)
    by_rank = [[a_batch(weights, generator) for _ in times] for _ in range(N)]
    got, ledger = call(
        "scenarios.zero",
        [(steps,) for steps in by_rank],
        weights=weights,
        options=options_of(weights.values()),
        max_norm=limits_of(weights, by_rank, times),
        every=not large,
        weighed=large,
    )
    return weights, by_rank, got, ledger


@task("14.3", points=1)
def test_odd_steps(seed):
    """Fewer numbers than ranks, no limit, nobody with a gradient; in a part of the ranks, all on its device"""
    N, generator = 4, Draw(seed + 9)
    shapes = ((), (2,))
    tensors, *grads = [[generator.normal(*s, dtype=F64) for s in shapes] for _ in range(N + 1)]
    inputs = [(tensors, [own[0], None if r == 1 else own[1]]) for r, own in enumerate(grads)]
    got, _ = call("scenarios.odd_steps", [inputs[0], *inputs], options=options_of(tensors))
    w = [t.clone().requires_grad_() for t in tensors]
    optimizer, after = torch.optim.AdamW(w, **options_of(tensors)), []
    for times in (8, 0.125, 0):
        for i, t in enumerate(w):
            own = [g for r, g in enumerate(each[i] for each in grads) if (r, i) != (1, 1)]
            t.grad = times * torch.stack(own).sum(0) / N
        optimizer.step()
        after.append([t.detach().clone() for t in w])
    for r in range(N):
        steps, astray = answer(got[1 + r], 2)
        for k, want in enumerate(after):
            how = (
                "of three numbers",
                "of much smaller gradients: without a limit nothing is scaled",
                "by zeros: decay and moments go on",
            )
            what = f"the weights after a step {how[k]}"
            for one, t in zip(answer(answer(steps, 3)[k], 2), want):
                same(one, t, rank=r, tol=TOL, what=what)
        text = "a tensor that was made without device= meets the parameters, or is given to the group"
        expect(astray == [], f"rank {r}: {text}", known=True)


@task("14.3", points=4)
@pytest.mark.parametrize("N", [2, 3])
def test_zero_weights(N, seed):
    """The weights of AdamW in one process, step by step; nobody uses one of them"""
    weights, by_rank, got, ledger = zero_case(seed + 100 * N, N, idle=True)
    after, _ = adamw(weights, by_rank, UNCLIPPED)
    for r in range(N):
        mine = answer(got[r], 4)[0]
        expect(len(mine) == len(after), "not every step gave weights")
        for step in range(len(after)):
            weights_agree(mine[step], after, step, r, weights, by_rank, UNCLIPPED)
        only(ledger[r], "reduce_scatter", "all_gather", "all_reduce")


def weights_agree(got, after, step, r, weights, by_rank, limits):
    """The weights after a step, and what mistakes make of them."""

    def causes():
        return {cause: likely[step] for cause, likely in mistaken(weights, by_rank, limits).items()}

    gradients_agree(got, after[step], r, causes, f"step {step + 1}: the weights")


def norms_of(weights, by_rank, r):
    """What the norm of the first step's gradient is taken for: {cause: number}."""
    N, names = len(by_rank), registered(weights)
    mean = vector(gradient(weights, [rank[0] for rank in by_rank]), names)
    parts = [part.norm().item() for part in mean.split(-(-len(mean) // N))]
    whole = [vector(gradient(weights, [rank[0]]), names) for rank in by_rank]
    owns = [own.norm().item() for own in whole]
    return {
        "the norm of this rank's part alone: squares add up over the ranks": parts[r],
        "the sum of the parts' norms: add squares, then take the root": sum(parts),
        "the sum over the ranks, expected the mean": N * mean.norm().item(),
        "the mean of the parts' squares: they add up": mean.norm().item() / math.sqrt(N),
        "the square of it": mean.norm().item() ** 2,
        "this rank's own gradient, not the mean": owns[r],
        "each rank's part of its own gradient: nothing was averaged": math.hypot(
            *(own.split(-(-len(mean) // N))[q].norm().item() for q, own in enumerate(whole))
        ),
        "the mean of the ranks' own norms: the mean gradient is shorter": sum(owns) / N,
        "the norm of the ranks' own gradients together, before they were averaged": math.hypot(*owns),
    }


@task("14.3", points=4)
@pytest.mark.parametrize("N", [2, 4])
def test_zero_clipping(N, seed):
    """Clipping by the norm of the whole, averaged gradient, which is reported without clipping, too"""
    draw = Draw(seed, "clipping", N)
    times = (draw.rng.uniform(0.02, 0.1), None, draw.rng.uniform(1.2, 4.0), 0.0)
    weights, by_rank, got, _ = zero_case(seed + 1000 * N, N, times)
    limits = limits_of(weights, by_rank, times)
    after, norms = adamw(weights, by_rank, limits)
    for r in range(N):
        mine, got_norms, *_ = answer(got[r], 4)
        expect(isinstance(got_norms, list) and len(got_norms) == len(norms), "the norms did not come back")
        number = all(isinstance(norm, float) for norm in got_norms)
        expect(number, "step() gives the norm as a number: .item() takes it out of its tensor", known=True)
        causes = norms_of(weights, by_rank, r) | {"the norm after clipping, expected before": limits[0]}
        same(got_norms[0], norms[0], tol=TOL * norms[0], rank=r, what="the norm of the first step", looks_like=causes)
        for step in range(len(after)):
            weights_agree(mine[step], after, step, r, weights, by_rank, limits)
        same(got_norms, norms, tol=TOL * max(norms), rank=r, what="the norms (two steps do not clip)")
    some = [rank[0] for rank in by_rank[1:]]  # rank 0 has no gradient at all: zeros
    once = {"weights": weights, "options": options_of(weights.values())}
    got, _ = call("scenarios.zero", [([b],) for b in (None, *some)], **once, max_norm=(None,))
    norm = vector(gradient(weights, some), registered(weights)).norm().item() * (N - 1) / N
    for r in range(N):
        _, got_norms, *_ = answer(got[r], 4)
        same(got_norms, [norm], tol=TOL * norm, rank=r, what="the norm of a step in which rank 0 has no gradient")
    used = sorted(weights.keys() - {"idle"})
    step, name, value = draw.size(0, 2), used[draw.size(0, len(used) - 1)], (math.nan, math.inf)[draw.size(0, 1)]
    index = tuple(draw.size(0, n - 1) for n in weights[name].shape)
    spoiled = step, draw.size(0, N - 1), name, index, value
    got, _ = call("scenarios.zero", [(rank[:3],) for rank in by_rank], **once, max_norm=(1.0,) * 3, spoiled=spoiled)
    _, norms = adamw(weights, by_rank, (1.0,) * 3)
    for r in range(N):
        mine, got_norms, *_ = answer(got[r], 4)
        same(got_norms[:step], norms[:step], tol=TOL * max(norms), rank=r, what="the norms before one is not finite")
        end = mine[-1][name][index].item()
        expect(
            not math.isfinite(got_norms[step]) and math.isnan(end),
            f"rank {r}: rank {spoiled[1]}'s gradient of {name} has a number that is {value} in step {step + 1}. The norm "
            f"of this step is {got_norms[step]}, and the weight ends as {end}: a step must not leave it finite",
            cause=("a gradient that is not finite is hidden: nobody would see it",),
        )


@task("14.3", points=3)
@pytest.mark.parametrize("N", [2, 4])
def test_zero_holds(N, seed):
    """The optimizer holds at most three numbers for each of its own"""
    weights, by_rank, got, ledger = zero_case(seed + 2000 * N, N, large=True)
    after, _ = adamw(weights, by_rank, UNCLIPPED)
    P = sum(t.numel() for t in weights.values())
    S = -(-P // N)
    most = 3 * 8 * S + 256  # some single numbers besides: a norm, a step count. 256 bytes are 32 of them
    for r in range(N):
        mine, _, held, used = answer(got[r], 4)
        weights_agree(mine[-1], after, len(after) - 1, r, weights, by_rank, UNCLIPPED)
        expect(isinstance(held, int) and isinstance(used, int), "no bytes came back")
        expect(
            2 * 8 * S <= held <= most,
            f"rank {r} of {N} holds {held} bytes for the optimizer between steps; two moments of its part of {P} "
            f"numbers are {16 * S}, and its weights {8 * S} more",
            cause=("a view of the whole vector: it keeps all parts alive",)
            if used <= most < held
            else ("whole vectors on every rank: each is to hold its part alone",)
            if held >= 16 * P
            else (),
        )
        judge_memory(ledger[r], P, S)


def judge_memory(ledger, P, S):
    """What the kernel reports, in grading: no moment is kept where `owned` does not look. Nor at another rank, that is read
    before or after: messages of all ranks, of which each has as many behind it when it is read, move nothing between."""
    only(ledger, "reduce_scatter", "all_gather", "all_reduce")
    apart = next((event.group for event in carried(ledger) if event.group != WORLD), None)
    expect(
        apart is None, f'rank {ledger.rank} sends in a group "{apart}": a step\'s messages are of all ranks', known=True
    )
    sent = [(event.kind, event.bytes) for event in carried(ledger)]
    each = len(sent) // len(UNCLIPPED)
    same_each = sent == sent[:each] * len(UNCLIPPED)  # what else was sent moves the moment at which memory is read
    expect(same_each, f"rank {ledger.rank} does not send the same messages in each step")
    more = grown(ledger, "model made", "between steps", *(each * step for step in range(1, len(UNCLIPPED))))
    # What the module brings, and what the C library keeps, is half of that. Of 4 ranks whoever keeps whole moments does
    # so in less than 4 bytes each.
    room = P
    expect(
        more is None or more <= 24 * S + room,
        f"rank {ledger.rank}: between steps its processes hold {(more or 0) / 2**20:.1f} MiB more than before there "
        f"was an optimizer; its part is at most {24 * S / 2**20:.1f}, and all moments {16 * P / 2**20:.1f}",
    )


@task("14.3", points=3)
def test_zero_traffic(seed):
    """One reduce-scatter and one all-gather in each step, and one number for the norm"""
    # A limit on the norm is given, and never reached, not by a wrong norm either: that is 14.3's clipping.
    N, times = 3, [Draw(seed, "limits", k).rng.uniform(5, 20) for k in range(3)]
    weights, by_rank, got, ledger = zero_case(seed + 5000, N, times, padded=False)
    limits = limits_of(weights, by_rank, times)
    after, _ = adamw(weights, by_rank, limits)
    S = -(-sum(t.numel() for t in weights.values()) // N)
    for r in range(N):
        weights_agree(answer(got[r], 4)[0][-1], after, len(after) - 1, r, weights, by_rank, limits)
        only(ledger[r], "reduce_scatter", "all_gather", "all_reduce")
        events = carried(ledger[r])
        for kind in ("reduce_scatter", "all_gather"):
            summed = kind == "reduce_scatter" and any(
                e.kind == "all_reduce" and e.bytes > 8 * N * (S - 1) for e in events
            )
            same(
                [e.bytes for e in events if e.kind == kind],
                [8 * N * S] * 3,
                rank=r,
                what=f"bytes of each {kind} in three steps",
                looks_like={"an all-reduce: each rank gets the whole gradient, and needs its part": []}
                if summed
                else {},
            )
        rest = sum(e.bytes for e in events if e.kind == "all_reduce")
        expect(rest <= 3 * 64, f"rank {r} sends {rest} bytes by all_reduce in three steps; a norm is one number")
