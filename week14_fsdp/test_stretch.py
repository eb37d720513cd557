"""Self-checks of the stretch tasks, for no points: `lab check 14.7`, say. `lab check week14` leaves them out."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.checks import Draw, call, call_each, expect, same, task
from week14_fsdp.given.whole_batch import (
    F64,
    TOL,
    a_batch,
    added,
    answer,
    carried,
    draw,
    gradient,
    loss_of,
    only,
    part,
    registered,
    scaled,
    spans,
    vector,
    wait_of,
)
from week14_fsdp.test_ddp import ddp_steps, judge_gradients
from week14_fsdp.test_fsdp import computed_beside, cut, judge_fsdp, unit_names


@task("14.7", points=0)
@pytest.mark.parametrize("M, P", [(2, 2), (2, 1), (1, 2)])
def test_hsdp(M, P, seed):
    """Gradients of one process on the whole batch; inside gather and scatter, across one all-reduce a step"""
    N, blocks, micro = M * P, 4, (1, 3)
    weights, generator = draw(seed + 10 * M + P, blocks)
    by_rank = [[[a_batch(weights, generator) for _ in range(m)] for m in micro] for _ in range(N)]
    given, sizes = [(steps,) for steps in by_rank], {"replicate": M, "shard": P}
    got, ledger = call("scenarios.hybrid", given, weights=weights, **sizes)

    def of_node(w, step, r):
        node = by_rank[r // P * P : (r // P + 1) * P]
        return scaled(added(*[gradient(w, [mb]) for rank in node for mb in rank[step]]), 1 / P)

    def summed(w, step, r):
        return scaled(added(*[gradient(w, [mb]) for rank in by_rank for mb in rank[step]]), 1 / P)

    causes = {"this node's mean: nothing crossed": of_node, "summed over the nodes, expected the mean": summed}
    judge_fsdp(weights, by_rank, got, parts=P, also=causes if M > 1 else {})
    parts = [8 * -(-vector(weights, names).numel() // P) for names in unit_names(weights)]
    _, plain = call("scenarios.hybrid", given, weights=weights, dtype="float32", prefetch=False, **sizes)
    for r in range(N):
        gathers = [e for e in carried(plain[r]) if e.kind == "all_gather"]
        expect(
            all(e.dtype == "float32" for e in gathers), f"rank {r}: dtype=float32 is not what is gathered", known=True
        )
        ahead = [e for e in gathers if computed_beside(plain[r], e)]
        expect(
            not ahead, f"rank {r}: {len(ahead)} gathers are under way beside a block, with prefetch=False", known=True
        )
        only(ledger[r], "all_gather", "reduce_scatter", "all_reduce")
        inside = [e.group for e in carried(ledger[r]) if e.kind != "all_reduce"]
        across = [e for e in carried(ledger[r]) if e.kind == "all_reduce"]
        expect(set(inside) == {"shard"}, f"rank {r} gathers and scatters over {sorted(set(inside))}, expected shard")
        expect(
            all(e.group == "replicate" for e in across),
            f"rank {r} all-reduces over {sorted({e.group for e in across})}, expected replicate",
        )
        same(
            sorted(e.bytes for e in across),
            sorted(len(micro) * parts),
            rank=r,
            what="the bytes that cross in two steps, sorted,",
            looks_like={"every micro-batch crosses: only the last one need": sorted(sum(micro) * parts)},
        )
        ends = [at for label, at in spans(ledger[r]) if label == "backward 0"]
        first = 0
        for step, count in enumerate(micro):
            begin, end = ends[first + count - 2] if first + count > 1 else -1, ends[first + count - 1]
            first += count
            here = across[step * len(parts) : (step + 1) * len(parts)]
            early = sum(begin < e.index < end for e in here)
            expect(
                early >= blocks - 2,
                f"rank {r}, step {step + 1}: {early} shards cross before the last block's backward, and {blocks - 2} "
                f"are ready by then",
                cause=("all shards cross after the backward: nothing is hidden",) if not early else (),
            )
            waits = [wait_of(ledger[r], e) for e in here]
            expect(all(at < math.inf for at in waits), f"rank {r}: an all-reduce is never waited for")
            expect(
                all(at > end for at in waits),
                f"rank {r}, step {step + 1}: a shard on its way across is waited for before the backward is over",
            )


def even(seed, blocks):
    """Weights whose blocks are equally large, and the bytes of one."""
    generator = Draw(seed)
    V, D, H = 11 + seed % 3, 4 + seed % 2, 5 + seed % 4
    weights = {"embed": generator.normal(V, D, dtype=F64), "scale": torch.ones(D, dtype=F64)}
    for k in range(blocks):
        weights[f"blocks.{k}.up"] = 0.4 * generator.normal(H, D, dtype=F64)
        weights[f"blocks.{k}.bias"] = 0.4 * generator.normal(H, dtype=F64)
        weights[f"blocks.{k}.down"] = 0.4 * generator.normal(D, H, dtype=F64)
    return weights, 8 * (2 * D * H + H), generator


@task("14.8", points=0)
@pytest.mark.parametrize("N", [1, 4])
def test_rings(N, seed):
    """Rings beside each other: the oldest steps first; a mean is divided once; without async_op it is there at once"""
    generator = Draw(seed)
    lengths = (2 * N, 3 * N, N - 1)
    x = [[generator.whole(L, most=99, dtype=F64) for L in lengths] for _ in range(N)]
    got, ledger = call("scenarios.rings", [(vectors,) for vectors in x])
    for r in range(N):
        for k, L in enumerate(lengths):
            mean = torch.stack([vectors[k] for vectors in x]).mean(0)
            what = f"the mean of {L} numbers, " + ("as it comes back" if k == 2 else "after a second wait(),")
            same(answer(got[r], 3)[k], mean, rank=r, tol=TOL, what=what, looks_like={"divided again": mean / N})
        begin = [e.bytes // 8 for e in carried(ledger[r]) if e.kind == "send"][:5]
        expect(
            N == 1 or begin == [2, 2, 3, 2, 3],
            f"rank {r}: the oldest ring steps first; chunks of {begin} left",
            known=True,
        )


@task("14.8", points=0)
@pytest.mark.parametrize("N", [1, 2, 3])
def test_ring_under_data_parallel(N, seed):
    """Rings that step whenever a bucket leaves: right gradients, messages beside the backward"""
    blocks = 6
    weights, limit, generator = even(seed + N, blocks)
    by_rank = ddp_steps(seed, N, [None] * N, weights, generator)
    got, ledger = call(
        "scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit, ringed=True
    )
    judge_gradients(got, by_rank, weights)
    reverse = [weights[n].numel() for n in registered(weights)[::-1]]
    buckets = [sum(reverse[3 * k : 3 * k + 3]) for k in range(blocks)]  # a block each
    scale, embed = reverse[3 * blocks :]
    buckets += [scale + embed] if 8 * (scale + embed) <= limit else [scale, embed]
    laps = 2 * (N - 1)
    most = sum(laps * 8 * -(-numbers // N) for numbers in buckets)
    for r in range(N):
        only(ledger[r], "send", "recv")
        sends = [e for e in carried(ledger[r]) if e.kind == "send"]
        expect(
            len(sends) == 2 * laps * len(buckets),
            f"rank {r} sends {len(sends)} chunks in two steps; {len(buckets)} rings of {laps} are "
            f"{2 * laps * len(buckets)}",
        )
        amount = sum(e.bytes for e in sends)
        expect(amount <= 2 * most, f"rank {r} sends {amount} bytes in two steps; chunks are at most {2 * most}")
        expect(
            all(e.peer == (r + 1) % N for e in sends), f"rank {r} sends to others than its right neighbour in the ring"
        )
        marks = [at for label, at in spans(ledger[r]) if label.startswith("backward")]
        for step in range(2):
            own = marks[blocks * step : blocks * (step + 1)]
            begin, here = own[0], [e for e in carried(ledger[r]) if own[0] < e.index < own[-1]]
            # Block k's bucket leaves after its backward has begun: then each ring that has begun steps once.
            early = sum(min(laps, blocks - 1 - i) for i in range(blocks - 1))
            found = sum(e.kind == "send" for e in here)
            expect(
                found >= early,
                f"rank {r}, step {step + 1}: {found} chunks are sent before block 0's backward; {early}, if every ring "
                f"under way takes a step whenever a bucket leaves",
            )
            for e in here:
                after = min(at for at in own if at > e.index)
                expect(
                    after < wait_of(ledger[r], e) < math.inf,
                    f"rank {r}, step {step + 1}: a chunk ({e.kind}) is waited for before the next block's backward has "
                    f"begun, or never",
                    cause=("it is waited for where it is posted: nothing is hidden",)
                    if begin < wait_of(ledger[r], e) <= e.index + 2
                    else (),
                )


@task("14.9", points=0)
@pytest.mark.parametrize("N, M", [(4, 2), (4, 3), (2, 3)])
def test_checkpoint(N, M, seed):
    """Written by some ranks, read by others: the same training goes on"""
    weights, generator = draw(seed + 7 * N + M)
    other = {name: generator.normal(*t.shape, dtype=F64) for name, t in weights.items()}
    options = {"lr": 0.01 * (1 + seed % 5), "weight_decay": 0.1}
    batches = [[a_batch(weights, generator) for _ in range(n)] for n in (N, N, M, M)]
    # One process sees what N ranks saw in two steps, then what M saw.
    w, alone = {name: t.clone() for name, t in weights.items()}, []
    optimizer = torch.optim.AdamW(w.values(), **options)
    for step in batches:
        alone.append(({name: t.clone() for name, t in w.items()}, [loss_of(w, batch) for batch in step]))
        mean = gradient(w, step)
        for name, t in w.items():
            t.grad = mean[name]
        optimizer.step()
    kept, ledger = call(
        "scenarios.resharded", [(list(own),) for own in zip(*batches[:2])], weights=weights, options=options
    )
    units = unit_names(weights)
    P = [vector(weights, names).numel() for names in units]
    parts: dict[str, torch.Tensor] = {}
    held = 3 * sum(-(-numbers // N) for numbers in P)
    for r in range(N):
        own = part(kept[r], "parts")
        expect(
            isinstance(own, dict) and all(isinstance(t, torch.Tensor) for t in own.values()),
            f"rank {r} wrote no vectors",
        )
        expect(
            not parts.keys() & own.keys(), f"rank {r} writes over another rank's {sorted(parts.keys() & own.keys())}"
        )
        parts |= own
        amount = sum(t.numel() for t in own.values())
        expect(
            amount <= held, f"rank {r} writes {amount} numbers; its part of the weights and of two moments are {held}"
        )
        wrote = [at for label, at in spans(ledger[r]) if label == "write"]
        barriers = [e.index for e in ledger[r].events if e.kind == "barrier"]
        listed = [at for label, at in spans(ledger[r]) if label == "index"]
        saved = next(at for label, at in spans(ledger[r]) if label == "saved")
        last = max(wrote, default=-1)
        expect((len(listed) == 1) == (r == 0), f"rank {r} writes the index {len(listed)} times; rank 0 does, once")
        expect(
            any(last < at < (listed or [saved])[0] for at in barriers),
            f"rank {r}: the index must be written when all ranks have written their parts: a barrier stands between",
        )
        expect(
            any(max(last, *listed) < at < saved for at in barriers)
            if listed
            else len([b for b in barriers if b > last]) > 1,
            f"rank {r}: save() returns before it is known that the index is there",
        )
    about = part(kept[0], "about")
    got, _ = call(
        "scenarios.resharded",
        [(list(own),) for own in zip(*batches[2:])],
        weights=other,
        options=options,
        parts=parts,
        about=about,
    )
    for r in range(M):
        expect(part(got[r], "done") == 2, f"rank {r}: load() returned {got[r]['done']!r}, and 2 steps were made")
        for u, names in enumerate(units):
            wanted = cut(alone[2][0], names, M, r)
            same(part(got[r], "loaded")[u], wanted, rank=r, tol=TOL, what=f"the shard of unit {u} after load()")
        numbers = sum(stop - start for _, start, stop in part(got[r], "read"))
        needed = 3 * sum(max(0, min(p, (r + 1) * -(-p // M)) - r * -(-p // M)) for p in P)
        expect(
            numbers == needed,
            f"rank {r} reads {numbers} numbers; its own part of the weights and of two moments are {needed}",
        )
        for k in (0, 1):
            same(
                float(part(got[r], "losses")[k]),
                alone[2 + k][1][r].item(),
                rank=r,
                tol=TOL,
                what=f"the loss of step {3 + k}, the {('first', 'second')[k]} after load(),",
            )
        for u, names in enumerate(units):
            same(part(got[r], "ends")[u], cut(w, names, M, r), rank=r, tol=TOL, what=f"unit {u} after the fourth step")


@task("14.9", points=0)
def test_pieces(seed):
    """Where the numbers lie: every number once, padding never"""
    sizes = [(10, 4, 3), (10, 3, 4), (7, 4, 2), (3, 4, 4), (5, 4, 4), (12, 4, 2), (1, 3, 2), (17 + seed % 9, 4, 3)]
    cases = [(P, N, r, M) for P, N, M in sizes for r in range(M)]
    for (P, N, r, M), got in zip(cases, call_each("stretch.checkpoint.pieces", cases)):
        S, mine = math.ceil(P / N), math.ceil(P / M)
        expect(isinstance(got, list), f"pieces({P}, {N}, {r}, {M}) must be a list")
        numbers = [whose * S + k for whose, start, stop in got for k in range(start, stop)]
        same(
            numbers,
            list(range(min(P, r * mine), min(P, (r + 1) * mine))),
            what=f"the numbers of the vector in pieces({P}, {N}, {r}, {M})",
        )
        inside = all(0 <= start < stop <= S for _, start, stop in got)
        expect(inside, f"pieces({P}, {N}, {r}, {M}) leaves the parts of {S} numbers: {got}")


@task("14.9", points=0)
def test_another_models_checkpoint(seed):
    """A checkpoint of another model is refused"""
    weights, _ = draw(seed + 5)
    result, _ = call("scenarios.another_model", [()], weights=weights)
    for what, gave in zip(("a larger model", "a model of as many numbers, cut into other units"), result[0]):
        expect(gave == "ValueError", f"a checkpoint of {what} must be a ValueError; it gave {gave}", known=True)
