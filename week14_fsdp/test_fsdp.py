"""The checks of FSDP (14.4), as those of 14.2: against one process on the whole batch, and the ledger."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import combinations, pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from labkit.checks import Draw, call, expect, same, task
from week14_fsdp.given.weighed import judge_second_gathers, judge_under_way, judge_weighed
from week14_fsdp.given.whole_batch import (
    F64,
    TOL,
    a_batch,
    added,
    answer,
    carried,
    close_to,
    draw,
    follow,
    gradient,
    judge_refused,
    loss_of,
    only,
    part,
    registered,
    scaled,
    spans,
    vector,
    wait_of,
)

KEPT = "a gather that was under way at free() was kept: its weights are those of before"
LITTLE = 128  # bytes: what may be held beside what is named. A step count, say; no copy of a vector is as small


def shapes_of(seed, N):
    """Tensors of odd shapes that do not divide by N, and of more numbers than a slip of bytes could hide."""
    generator = Draw(seed)
    while True:
        shapes = [tuple(generator.size(1, 7) for _ in range(d)) for d in (2, 1, 3, 0, 2)]
        P = sum(math.prod(s) for s in shapes)
        if (N == 1 or P % N) and P > LITTLE:
            return shapes, P, generator


def flat_case(seed, N, dtype=None):
    """A FlatParameter's life on N ranks: tensors, gradients by rank, P, S, answers, ledgers.

    Gradients are whole numbers: an even one above 256 on rank 0, and 1 on the others. BF16 holds each of them, and not
    their sum; FP32 does, in any order. One gradient is None on the last rank, and
    one number somewhere is infinite."""
    shapes, P, generator = shapes_of(seed, N)
    tensors = [generator.normal(*s) for s in shapes]
    grads = [[torch.ones(s) if r else 256 + 2.0 * (1.0 + generator.ids(59, *s)) for s in shapes] for r in range(N)]
    grads[N - 1][1] = None
    spoiled = grads[generator.size(0, N - 1)][[0, 2, 3, 4][generator.size(0, 3)]].view(-1)
    spoiled[generator.size(0, len(spoiled) - 1)] = math.inf  # as it comes: who steps must see it
    inputs = [(tensors, own) for own in grads]
    if N == 3 and not dtype:  # in a part of the ranks: the first stays out
        got, ledger = call("scenarios.flat_parameter", [inputs[0], *inputs], dtype=dtype, aside=True)
        return tensors, grads, P, -(-P // N), got[1:], ledger[1:]
    got, ledger = call("scenarios.flat_parameter", inputs, dtype=dtype)
    return tensors, grads, P, -(-P // N), got, ledger


def laid_out(tensors, N, S):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    return torch.cat([flat, flat.new_zeros(N * S - flat.numel())])


@task("14.4", points=5)
@pytest.mark.parametrize("N", [2, 3])
def test_flat_parameter(N, seed):
    """A flat parameter: parts, padding, views, memory that comes and goes; on two ranks, and on one alone"""
    for ranks in (1, 2) if N == 2 else (N,):
        judge_flat(ranks, seed)


def judge_flat(N, seed):
    tensors, grads, _, S, got, _ = flat_case(seed + 10 * N, N)
    flat = laid_out(tensors, N, S)
    for r in range(N):
        seen = got[r]
        same(
            part(seen, "shard"),
            flat[r * S : (r + 1) * S],
            rank=r,
            what="the shard",
            looks_like={"the neighbour's part": flat.roll(-S)[r * S : (r + 1) * S] if N > 1 else None},
        )
        expect(part(seen, "is_parameter") is True, "shard must be an nn.Parameter: the optimizer steps it")
        ready = part(seen, "on its way")
        expect(N == 1 or ready is False, f"`whole` is {ready} before wait(): the gather is on its way", known=True)
        expect(
            part(seen, "kept") == 4 * S,
            f"the shard's memory is {part(seen, 'kept')} bytes, its numbers are {4 * S}",
            cause=("a view of the whole vector: it keeps all parts alive",) if part(seen, "kept") == 4 * N * S else (),
        )
        for i, t in enumerate(tensors):
            same(part(seen, "gathered")[i], t, rank=r, what=f"parameter {i} after wait()")
            same(
                part(seen, "alias")[i],
                torch.full_like(t, 7.0),
                rank=r,
                what=f"parameter {i} after `full` was filled with 7",
                looks_like={"a copy: it does not look at `full`": t},
            )
            same(
                part(seen, "again")[i],
                t + 1,
                rank=r,
                what=f"parameter {i}, gathered again after the shards were stepped,",
                looks_like={KEPT: t},
            )
        expect(part(seen, "bytes") == 4 * N * S, f"`full` holds {part(seen, 'bytes')} bytes, expected {4 * N * S}")
        expect(part(seen, "shapes") == [list(t.shape) for t in tensors], "a freed parameter keeps its shape")
        astray = N == 3 and part(seen, "astray")
        expect(not astray, f"rank {r}: a tensor that was made without device= meets the parameters", known=True)
    judge_flat_grad(tensors, grads, S, got)
    judge_flat_memory(S, got, 4)


def judge_flat_memory(S, got, itemsize):
    """While it is free it owns its part, perhaps in `full`'s dtype too, and at the end the part's gradient."""
    low = itemsize % 4
    for r, seen in enumerate(got):
        begins, freed = part(seen, "begins"), part(seen, "freed")
        text = f"after free() `full` and the parameters still hold {freed} bytes"
        expect(isinstance(freed, int) and freed <= 64, text, known=True)
        text = f"`full` and the parameters hold {begins} bytes before it is gathered: it begins free"
        expect(begins <= 64, text, known=True)
        for when, most in (("before it is gathered", 4 + low), ("after free()", 8 + low)):
            held = part(seen, "owned")[when]
            expect(
                held <= most * S + LITTLE,
                f"rank {r}: the flat parameter holds {held} bytes {when}; its part of {S} numbers is {4 * S}",
                cause=("a copy of the whole is kept: free() must leave this rank's part alone",),
            )


def judge_flat_grad(tensors, grads, S, got):
    N = len(grads)
    filled = [laid_out([torch.zeros_like(t) if g is None else g for t, g in zip(tensors, own)], N, S) for own in grads]
    total = torch.stack(filled).sum(0)
    moved = torch.stack([laid_out([g for g in own if g is not None], N, S) for own in grads]).sum(0)
    for r in range(N):
        here = slice(r * S, (r + 1) * S)
        same(
            part(got[r], "grad"),
            total[here] / N,
            rank=r,
            tol=1e-4,  # one division, of numbers below 400: 400 * 2**-24
            what="shard.grad",
            looks_like={
                "the sum over the ranks, expected the mean": total[here],
                "a gradient that is None is left out, and those behind it move up: it counts as zeros": moved[here] / N,
            },
        )
        expect(
            part(got[r], "dropped") is True,
            "the parameters' own gradients must be dropped: they are as large as the whole",
        )


@task("14.4", points=3)
def test_flat_parameter_bf16(seed):
    """Gathered in BF16, kept and summed in FP32"""
    N = 3  # a third is rounded
    tensors, grads, _, S, got, ledger = flat_case(seed + 77, N, "bfloat16")
    flat = laid_out(tensors, N, S)
    for r in range(N):
        shard = part(got[r], "shard")
        same(
            shard,
            flat[r * S : (r + 1) * S],
            rank=r,
            what="the shard",
            looks_like={
                "rounded to BF16: what the optimizer steps stays FP32": flat[r * S : (r + 1) * S].bfloat16().float()
            },
        )
        for i, t in enumerate(tensors):
            same(part(got[r], "gathered")[i], t.bfloat16(), rank=r, what=f"parameter {i} after wait()")
            stale = dict.fromkeys(
                (KEPT, "the shards were rounded before they were stepped: round them each time"), t.bfloat16()
            )
            what = f"parameter {i}, gathered again after the shards were stepped,"
            same(part(got[r], "again")[i], (t + 1).bfloat16(), rank=r, what=what, looks_like=stale)
        full = part(got[r], "bytes")
        expect(full == 2 * N * S, f"`full` holds {full} bytes for {N * S} numbers of BF16, expected {2 * N * S}")
        sent = [(e.kind, e.dtype) for e in carried(ledger[r])]
        times = sum(k == "all_gather" for k, _ in sent)
        expect(
            times == 3,
            f"rank {r} gathers {times} times what was made whole, freed, begun, freed, and made whole again",
            cause=("`gather` posts a message although it is whole, or one is under way",) if times > 3 else (),
        )
        expect(
            {d for k, d in sent if k == "all_gather"} == {"bfloat16"},
            f"rank {r} gathers in {', '.join(d for k, d in sent if k == 'all_gather')}; BF16 is half the bytes",
            cause=("`dtype` is ignored: `full` has the weights' own",)
            if {d for k, d in sent if k == "all_gather"} == {"float32"}
            else (),
        )
        expect(
            [d for k, d in sent if k == "reduce_scatter"] == ["float32"],
            f"rank {r}'s gradient travels in {[d for k, d in sent if k == 'reduce_scatter']}, expected one in float32",
            cause=("a sum of BF16 numbers in BF16 is rounded at every rank: send FP32",)
            if [d for k, d in sent if k == "reduce_scatter"] == ["bfloat16"]
            else (),
        )
    judge_flat_grad(tensors, grads, S, got)
    judge_flat_memory(S, got, 2)


def unit_names(weights):
    """Names of each unit: the root, then the blocks."""
    names = registered(weights)
    blocks = sum("up" in n for n in names)
    return [
        [n for n in names if not n.startswith("blocks.")],
        *([n for n in names if n.startswith(f"blocks.{k}.")] for k in range(blocks)),
    ]


def unit_called(u):
    return "the root" if u == 0 else f"block {u - 1}"


def turned(weights, N, generator):
    """What each rank multiplies its shards by between forward and backward, so that the backward's own gathers show; and
    {name: the same} of the weights. No shard of the root and of the last block, which may stay whole, nor of the block
    before, which may be on its way by then."""
    units = unit_names(weights)
    by = torch.tensor([-1, *(sign / 2**k for k in (1, 2, 3) for sign in (-1, 1))], dtype=F64)
    by = by[generator.ids(len(by), N, len(units))]
    by[:, [0, -2, -1]] = 1
    names, whole = [name for own in units for name in own], [len(vector(weights, own)) for own in units]
    flat = torch.cat([by[:, u].repeat_interleave(-(-P // N))[:P] for u, P in enumerate(whole)])
    parts = flat.split([weights[name].numel() for name in names])
    return by.tolist(), {name: part.view(weights[name].shape) for name, part in zip(names, parts)}


def kept_over(steps, by_rank, step, gradient):
    """A step's gradient if no `finish()` drops the parameters' own: each averages all that came since the start."""
    own = [
        scaled(added(*[gradient(w, [rank[k][m]]) for rank in by_rank]), 1 / len(by_rank))
        for k, (w, _) in enumerate(steps[: step + 1])
        for m in range(len(by_rank[0][k]))
    ]
    mine = len(by_rank[0][step])
    return added(*[added(*own[: len(own) - m]) for m in range(mine)])


def cut(tensors, names, N, r):
    flat = vector(tensors, names)
    S = -(-flat.numel() // N)
    return torch.cat([flat, flat.new_zeros(N * S - flat.numel())])[r * S : (r + 1) * S]


def fsdp_case(seed, N, micro=(1, 2, 1), weights=None, generator=None, T=5, **options):
    """Weights, batches by rank, answers, ledgers, and the function that gives the right gradient."""
    if weights is None:
        weights, generator = draw(seed, blocks=4)
    by_rank = [[[a_batch(weights, generator, T=T) for _ in range(m)] for m in micro] for _ in range(N)]
    turns, times = turned(weights, N, generator)
    got, ledger = call("scenarios.fsdp", list(zip(by_rank, turns)), weights=weights, **options)
    again = {"run": partial(checkpoint, use_reentrant=False)} if options.get("checkpointed") else {}
    return weights, by_rank, got, ledger, partial(gradient, turned=times, **again)


def judge_fsdp(weights, by_rank, got, right=gradient, parts=None, also=None):
    """Losses, gradients of the shards, shards. right: gives the gradient.

    parts: into how many the model is cut, if there are more ranks. also: {cause: whole gradients}, of the step's
    weights, its number and a rank."""
    N = len(by_rank)
    P = parts or N
    steps = follow(weights, by_rank, gradient=right)
    last, mean = steps[-1]
    end = {n: t - 0.03125 * mean[n] for n, t in last.items()}
    for r in range(N):
        seen = got[r]
        for step, (w, want) in enumerate(steps):
            losses = [loss_of(w, mb).item() for mb in by_rank[r][step]]
            same(
                [float(x) for x in answer(part(seen, "losses"), len(steps))[step]],
                losses,
                rank=r,
                tol=TOL,
                what=f"step {step + 1}: the losses",
            )
            grads = answer(answer(part(seen, "grads"), len(steps))[step], len(unit_names(weights)), "a step")
            several = len(by_rank[r][step]) > 1
            again = kept_over(steps, by_rank, step, right) if step else {}
            only_last = scaled(added(*[right(w, [rank[step][-1]]) for rank in by_rank]), 1 / N) if several else {}
            first = scaled(added(*[gradient(w, [mb]) for rank in by_rank for mb in rank[step]]), 1 / N)
            for u, names in enumerate(unit_names(weights)):
                expect(
                    grads[u] is not None,
                    f"step {step + 1}: rank {r}'s shard.grad of {unit_called(u)} is None after finish(): what `reduce` "
                    f"began has to be given to `add`",
                    known=True,
                )
                fingerprints(
                    grads[u],
                    cut(want, names, P, r % P),
                    r,
                    f"step {step + 1}: shard.grad of {unit_called(u)}",
                    {
                        "the sum over the ranks, expected the mean": N * cut(want, names, P, r % P),
                        "the neighbour's part of the gradient": cut(want, names, P, (r + 1) % P),
                        "the backward computes with what the forward gathered: it frees that, and gathers the shards again": cut(
                            first, names, P, r % P
                        ),
                        "the last micro-batch alone: gradients add up until the step": cut(only_last, names, P, r % P)
                        if several
                        else None,
                        "gradients that were averaged before are there again: `reduce` drops the parameters' own": cut(
                            again, names, P, r % P
                        )
                        if step
                        else None,
                        **{cause: cut(mark(w, step, r), names, P, r % P) for cause, mark in (also or {}).items()},
                    },
                )
        for u, names in enumerate(unit_names(weights)):
            same(
                answer(part(seen, "shards"), len(unit_names(weights)))[u],
                cut(end, names, P, r % P),
                rank=r,
                tol=TOL,
                what="a shard after the last step",
            )
        expect(
            part(seen, "held") <= 8 * len(weights) + LITTLE,  # each weight's stand-in is one number
            f"rank {r} holds {seen['held']} bytes beside its shards after finish(): weights that are still gathered, or "
            f"a copy",
            known=True,
        )


def fingerprints(got, want, rank, what, causes):
    """As `same`, with causes that may differ by the rounding of FP64."""
    found = tuple(
        cause
        for cause, mark in causes.items()
        if mark is not None
        and close_to(got, mark)
        and mark.shape == want.shape
        and int(((mark - want).abs() > 1e-6).sum()) >= 3
    )
    if isinstance(got, torch.Tensor) and not close_to(got, want) and found:
        expect(False, f"{what} of rank {rank} is not that of one process on the whole batch", cause=found)
    same(got, want, rank=rank, tol=TOL, what=what)


@task("14.4", points=7)
@pytest.mark.parametrize(
    "N, options",
    [
        pytest.param(2, {}, id="2 ranks"),
        pytest.param(3, {"checkpointed": True}, id="3 ranks, checkpointed"),
        pytest.param(2, {"prefetch": False}, id="without prefetch"),
    ],
)
def test_fsdp(N, options, seed):
    """Losses and gradients of one process on the whole batch"""
    weights, by_rank, got, ledger, right = fsdp_case(seed + N + 7 * len(options), N, **options)
    for r in range(N):
        only(ledger[r], "all_gather", "reduce_scatter")
        judge_traffic(ledger[r], weights, N, backwards=4)
    judge_fsdp(weights, by_rank, got, right)
    for r in range(N):
        ahead = [e for e in carried(ledger[r]) if e.kind == "all_gather" and computed_beside(ledger[r], e)]
        expect(
            options.get("prefetch", True) or not ahead,
            f"rank {r}: {len(ahead)} gathers are under way while a block computes, and prefetch=False was requested",
            cause=("`prefetch` is ignored",),
        )


def computed_beside(ledger, event):
    """Blocks that begin to compute while a message is under way."""
    return [label for label, at in spans(ledger) if event.index < at < wait_of(ledger, event)]


def judge_traffic(ledger, weights, N, backwards):
    """Bytes by kind: every block gathered for the forward and for the backward (the last one may stay), the root once,
    every gradient scattered once."""
    sizes = [8 * N * -(-vector(weights, names).numel() // N) for names in unit_names(weights)]
    gathered = sorted(e.bytes for e in carried(ledger) if e.kind == "all_gather")
    stays = backwards * [sizes[0], sizes[-1], *(2 * sizes[1:-1])]
    every = backwards * [sizes[0], *(2 * sizes[1:])]
    more = sorted({unit_called(sizes.index(size)) for size in Counter(gathered) - Counter(every) if size in sizes})
    third = f". More often is {', '.join(more)}: still whole, or begun where nobody computes it"
    expect(
        gathered in (sorted(stays), sorted(every)),
        f"rank {ledger.rank} gathers {sum(gathered)} bytes in {len(gathered)} messages; the root once and each block "
        f"twice are {sum(every)} in {len(every)} messages for {backwards} backwards "
        f"(or {sum(stays)}, if the last block stays)" + third * (len(more) > 0),
        cause=("each block is gathered once: then nothing was freed before the backward",)
        if gathered == sorted(backwards * sizes)
        else (),
        known=not Counter(stays) - Counter(gathered) and len(more) > 0,
    )
    same(
        sorted(e.bytes for e in carried(ledger) if e.kind == "reduce_scatter"),
        sorted(backwards * sizes),
        rank=ledger.rank,
        what="the bytes of the reduce-scatters, sorted,",
    )
    sent = [e.bytes for e in carried(ledger) if e.kind == "reduce_scatter"]
    expect(
        all(size == sizes[0] for size in sent[len(sizes) - 1 :: len(sizes)]),
        f"rank {ledger.rank} does not send the root's gradient after those of the blocks",
        known=True,
    )
    judge_second_gathers(ledger, sizes)


def memory_case(seed, checkpointed):
    """Two steps of two ranks on eight large blocks: as `fsdp_case`, and the bytes of each unit."""
    N, blocks = 2, 8
    generator = Draw(seed)
    D, H, V = 60 + seed % 9, 1000 + seed % 41, 13  # blocks of about 1 MiB: the kernel reports what memory they take
    weights = {"embed": 0.3 * generator.normal(V, D, dtype=F64), "scale": torch.ones(D, dtype=F64)}
    for k in range(blocks):
        weights[f"blocks.{k}.up"] = generator.normal(H, D, dtype=F64) / D**0.5
        weights[f"blocks.{k}.bias"] = torch.zeros(H, dtype=F64)
        weights[f"blocks.{k}.down"] = 0.3 * generator.normal(D, H, dtype=F64) / H**0.5
    found = fsdp_case(seed, N, (1, 1), weights, generator, T=1, checkpointed=checkpointed, weighed=True)
    return *found, [8 * vector(weights, names).numel() for names in unit_names(weights)]


@task("14.4", points=6)
@pytest.mark.parametrize("checkpointed", [pytest.param(False, id="plain"), pytest.param(True, id="checkpointed")])
def test_fsdp_memory(checkpointed, seed):
    """At most two blocks are whole at a time"""
    weights, by_rank, got, ledger, right, sizes = memory_case(seed, checkpointed)
    N, blocks = len(by_rank), len(sizes) - 1
    for one in ledger:
        judge_traffic(one, weights, N, backwards=2)
    judge_fsdp(weights, by_rank, got, right)
    (V, D), H = weights["embed"].shape, len(weights["blocks.0.bias"])
    # Held at the worst moment, with all that is honest: shards and their gradients; root whole with its gradient, twice
    # while it is laid out; two blocks whole; of gradients those of one block, their flat copy, and the one under way
    # with its result. Activations: some hundred numbers, for two tokens, in each block.
    root, block, whole = sizes[0], sizes[1], sum(sizes)
    activations = 8 * 2 * blocks * (6 * D + 4 * H) + 8 * 4 * 2 * V
    limit = 2 * whole / N + 3 * root + 2 * block + 3 * block + activations
    for r in range(N):
        together, peak = part(got[r], "whole"), part(got[r], "peak")
        expect(
            isinstance(together, list) and len(together) == 2,
            f"rank {r} has {len(together)} blocks whole at a time, expected 2 (one computes, one is on its way): in "
            f"the {'backward' if part(got[r], 'in_backward') else 'forward'}, blocks {', '.join(map(str, together))}",
            known=True,
        )
        expect(
            isinstance(peak, int) and peak <= limit,
            f"rank {r} holds {peak} bytes at its peak; shards, their gradients, the root, two blocks and their "
            f"gradients are at most {limit:.0f}, and the whole model is {whole}",
        )
        judge_under_way(ledger[r], blocks)
        judge_weighed(ledger[r], whole, root, block, blocks, N)


@task("14.4", points=6)
@pytest.mark.parametrize("checkpointed", [pytest.param(False, id="plain"), pytest.param(True, id="checkpointed")])
def test_fsdp_prefetch(checkpointed, seed):
    """The next block is on its way while this one computes, in both directions, and the last one's gradient"""
    N = 2
    weights, by_rank, got, ledger, right = fsdp_case(seed + 31, N, (1, 1), checkpointed=checkpointed)
    for one in ledger:
        judge_traffic(one, weights, N, backwards=2)
    judge_fsdp(weights, by_rank, got, right)
    sizes = [8 * N * -(-vector(weights, names).numel() // N) for names in unit_names(weights)]
    blocks = len(sizes) - 1
    for r in range(N):
        marks = spans(ledger[r])
        starts = [i for i, (label, _) in enumerate(marks) if label == "forward 0"][:: 2 if checkpointed else 1]
        expect(len(starts) == 2, f"rank {r} reports {len(starts)} times that the first block computes, in two steps")
        for step, start in enumerate(starts):
            here = marks[start : starts[step + 1] if step + 1 < len(starts) else None]
            begin = here[0][1]
            at: dict[str, int] = {}
            for label, index in here:
                at.setdefault(label, index)  # of two forwards the first: the second is the recomputation
            every = {f"{direction} {k}" for direction in ("forward", "backward") for k in range(blocks)}
            expect(every <= at.keys(), f"rank {r}, step {step + 1}: not every block reports that it computes")
            for k in range(blocks):
                for direction, other in (("forward", k - 1), ("backward", k + 1)):
                    if not 0 <= other < blocks:
                        continue
                    now, before = at[f"{direction} {k}"], at[f"{direction} {other}"]
                    mine = [
                        e
                        for e in carried(ledger[r])
                        if e.kind == "all_gather" and e.bytes == sizes[k + 1] and e.index < now
                    ]
                    expect(
                        bool(mine),
                        f"rank {r}, step {step + 1}: block {k} computes its {direction}, and was never gathered",
                    )
                    event = mine[-1]
                    waited = wait_of(ledger[r], event)
                    expect(
                        event.index < before < waited < now,
                        f"rank {r}, step {step + 1}, {direction}: the gather of block {k} must be posted before block "
                        f"{other} computes, and waited for after",
                        cause=("it is waited for where it is posted: nothing is hidden",)
                        if event.index < before and waited == event.index + 1
                        else ("it is posted after the other block has begun: nothing is hidden",)
                        if event.index > before
                        else (),
                    )
            last = at["backward 0"]
            early = [e for e in carried(ledger[r]) if begin < e.index < last]
            expect(any(e.kind == "all_gather" for e in early), f"rank {r} gathers everything before it computes")
            gradients = [e for e in early if e.kind == "reduce_scatter"]
            piled = any(wait_of(ledger[r], e) > later.index for e, later in pairwise(gradients))
            expect(
                not piled,
                f"rank {r}, step {step + 1}: two gradients are under way, one at a time is expected",
                known=True,
            )
            hidden = [e for e in gradients if computed_beside(ledger[r], e)]
            expect(
                len(gradients) >= blocks - 2 and len(hidden) == len(gradients),  # that of block 1 may come late
                f"rank {r}, step {step + 1}: {len(hidden)} gradients are under way while another block's backward runs, "
                f"expected {blocks - 1}",
                cause=("the gradient is waited for where it is sent: nothing is hidden",)
                if len(gradients) >= blocks - 2
                else (),
            )


@task("14.4", points=2)
def test_fsdp_recovers(seed):
    """Evaluations and a forward that raises leave nothing behind; what no backward reached has zeros, and is sent"""
    N = 2
    weights, generator = draw(seed + 63, blocks=3)
    batches = [a_batch(weights, generator) for _ in range(N)]
    turns, times = turned(weights, N, generator)
    got, ledger = call("scenarios.interrupted", list(zip(batches, turns)), weights=weights)
    doubled, sizes = scaled(weights, 2.0), [8 * len(cut(weights, names, N, 0)) * N for names in unit_names(weights)]
    want, past = gradient(doubled, batches, times), gradient(doubled, [(*batches[0][:2], (0, 1)), *batches[1:]])
    for r in range(N):
        losses, grads, whole, reached, alone, unused = answer(got[r], 6)
        sent = [e.bytes for e in carried(ledger[r]) if e.kind == "reduce_scatter"]
        text = f"rank {r} averages {len(sent)} gradients of {sum(sent)} bytes in five steps of {len(sizes)} units and"
        text = f"{text} {sum(sizes)} bytes: all in each, also what its own backward did not reach"
        expect(sorted(sent) == sorted(5 * sizes), text, known=True)
        marks, gathers = spans(ledger[r]), [e.index for e in carried(ledger[r]) if e.kind == "all_gather"]
        starts = [index for label, index in marks if label == "forward 0"]  # two evaluations, one that raises, a step
        ahead = sum(i < starts[0] for i in gathers)
        usual = sum(starts[2] < i < starts[3] for i in gathers)
        text = (
            f"rank {r} gathers {ahead} units before block 0 computes in an evaluation, and {usual} in a step: as many"
        )
        expect(ahead == usual, text, known=True)
        one, zero = ([index for label, index in marks if label == f"backward {k}"] for k in (1, 0))
        late, was = (any(a < i < b for i in gathers) for a, b in ((one[1], zero[2]), (one[0], zero[0])))
        text = (
            f"rank {r}: after a backward that did not reach all blocks, block 0 is gathered behind block 1's backward"
        )
        expect(was or not late, f"{text}: the next one must be on its way again", known=True)
        text = f"rank {r}: {whole} blocks are whole after a forward without a backward, two at most"
        expect(whole <= 2, text, known=True)
        for loss in answer(losses, 2):
            judge_loss(loss, weights, doubled, batches[r], r)
        for u, names in enumerate(unit_names(weights)):
            same(answer(grads, len(unit_names(weights)))[u], cut(want, names, N, r), rank=r, tol=TOL, what="shard.grad")
            zeros = torch.zeros_like(cut(want, names, N, r))
            what = f"shard.grad of {unit_called(u)}, which the loss does not reach,"
            if u != 1:
                mine = answer(reached, len(unit_names(weights)))[u]
                expect(mine is not None, f"{what} is None after finish(): it has zeros", known=True)
                same(mine, zeros, rank=r, what=what)
            if u:
                mine, what = (
                    answer(unused, len(unit_names(weights)) - 1)[u - 1],
                    "shard.grad where rank 0 skips block 2",
                )
                same(mine, cut(past, names, N, r), rank=r, tol=TOL, what=what)
            none = answer(alone, len(unit_names(weights)))[u] is None
            expect(not none, f"shard.grad of {unit_called(u)} is None where the loss reaches no block", known=True)


def judge_loss(loss, weights, doubled, batch, r):
    """The loss after the shards were doubled, or that of a model some of whose units still have the weights of before."""
    units, what = unit_names(weights), "the loss after the shards were doubled"
    stale = "what an earlier forward gathered is still whole: its weights are those of before"
    for size in range(1, len(units) + 1):
        for old in combinations(units, size):
            mark = loss_of(doubled | {n: weights[n] for names in old for n in names}, batch)
            if close_to(loss, mark) and not close_to(mark, loss_of(doubled, batch)):
                expect(False, f"{what} of rank {r} is wrong", cause=(stale,))
    same(loss, loss_of(doubled, batch), rank=r, tol=TOL, what=what)


SECOND, NO_FINISH = "a second backward of one forward", "a forward after a backward without finish()"


@task("14.4", points=1)
@pytest.mark.parametrize(
    "what", [f"{what}{blocks}" for what in (SECOND, NO_FINISH) for blocks in ("", ", of one block")]
)
def test_fsdp_refuses(what, seed):
    """What would give wrong numbers is refused, on every rank, and nothing hangs"""
    attempt, one_block, _ = what.partition(", of one block")
    weights, generator = draw(seed + 71, blocks=1 if one_block else 3)

    def mine(mean, r):
        return torch.cat([cut(mean, names, 2, r) for names in unit_names(weights)])

    judge_refused(attempt, weights, generator, seed, mine=mine)
