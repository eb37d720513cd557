"""The checks of data parallel (14.2). Read them: nothing is hidden.

Your class runs elsewhere, on ranks, with a network whose weights and batches are drawn here. What it must give is found
here by one process on the whole batch (given/whole_batch.py). What was sent and when comes from the ledger. The network
notes in it when a block begins to compute.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import pytest
import torch

from labkit.checks import call, expect, same, task
from labkit.checks.verdict import WRONG, CheckFailed
from week14_fsdp.given.whole_batch import (
    a_batch,
    added,
    answer,
    carried,
    draw,
    follow,
    gradient,
    gradients_agree,
    judge_refused,
    only,
    registered,
    scaled,
    spans,
    wait_of,
)


def greedy(tensors, limit, any_before=False, fits=lambda size, t, limit: size + t.nbytes <= limit):
    """The sizes of buckets, as the task says. Wrong answers: any_before, the last bucket of the dtype is joined though
    others came behind it; fits, another rule for whether a tensor joins a bucket of this size."""
    buckets: list[int] = []
    last: dict[torch.dtype, int] = {}
    for t in tensors:
        at = last.get(t.dtype)
        if at is not None and (any_before or at + 1 == len(buckets)) and fits(buckets[at], t, limit):
            buckets[at] += t.nbytes
        else:
            last[t.dtype] = len(buckets)
            buckets.append(t.nbytes)
    return buckets


RULES = {
    "the limit is looked at before a parameter is added, not with it": lambda size, t, limit: size < limit,
    "a full bucket takes one more: the limit is looked at before a parameter is added, not with it": lambda size, t, limit: (
        size <= limit
    ),
    "four bytes a number, whatever its dtype": lambda size, t, limit: size + 4 * t.numel() <= limit,
}


def blocks_of(weights, limit):
    """The blocks that have a parameter in each bucket; -1 for the root, whose gradients are complete at the end: the
    head is tied to the embedding."""
    found: list[set[int]] = []
    size, dtype = 0, None
    for name in registered(weights)[::-1]:
        size += weights[name].nbytes
        if size > limit or weights[name].dtype != dtype:
            dtype = weights[name].dtype
            size, found = weights[name].nbytes, [*found, set()]
        found[-1].add(int(name.split(".")[1]) if name.startswith("blocks.") else -1)
    return found


def complete(buckets, use):
    """At which of the rank's block backwards (0 is the first) each bucket's last gradient comes; len(use) where only
    `finish()` knows: it has the root's, or one that this rank does not use."""
    order = list(use)[::-1]
    last = {k: place for place, k in enumerate(order)}
    return [max(last.get(k, len(order)) for k in blocks) for blocks in buckets]


def may_leave(buckets, use):
    """Likewise, from where on it may leave: no bucket overtakes those before it."""
    own = complete(buckets, use)
    return [max(own[: i + 1]) for i in range(len(own))]


def orders_in_which_one_waits(weights, limit):
    """Orders of the blocks in which a full bucket waits for one before it, and another block's backward follows."""
    buckets, L = blocks_of(weights, limit), sum("up" in name for name in weights)
    return [
        list(use)
        for use in permutations(range(L))
        if any(own < leave < L - 1 for own, leave in zip(complete(buckets, use), may_leave(buckets, use)))
    ]


def a_limit(weights, seed, suits=lambda weights, limit: True):
    """Bytes of a bucket: so that there are several, that it matters from which end they are filled, and that the first
    one to leave is full before block 0's backward."""
    tensors = [weights[n] for n in registered(weights)]
    sizes, reverse = [t.nbytes for t in tensors], tensors[::-1]
    early = sum(t.nbytes for n, t in weights.items() if n.startswith("blocks.") and not n.startswith("blocks.0."))
    limits = sorted(range(max(sizes), sum(sizes) // 2, 4), key=lambda limit: (limit * 7919 + seed) % 10007)
    return next(
        (
            limit
            for limit in limits
            if len(greedy(reverse, limit)) >= 3
            and greedy(reverse, limit) not in (greedy(tensors, limit), sizes, sizes[::-1])
            and greedy(reverse, limit)[0] <= min(early, sum(sizes) / 2)
            and suits(weights, limit)
        ),
        None,
    )


def reached_between_dtypes(weights, limit):
    """Whether a bucket is exactly as large as the limit, and who does not look at dtypes, joins a bucket that is not the
    last, or has another rule, fills others."""
    own = [weights[n] for n in registered(weights)[::-1]]
    blind = [t.view(torch.uint8) for t in own]
    blind_to_width = greedy(own, limit, fits=RULES["four bytes a number, whatever its dtype"])
    others = greedy(own, limit - 1), greedy(blind, limit), greedy(own, limit, any_before=True)
    return greedy(own, limit) not in (*others, blind_to_width)


class Step(NamedTuple):
    """What a ledger reports of a rank's step: the messages, and the places of the last micro-batch's block backwards."""

    sent: list
    marks: list[int]


def steps_of(ledger, by_rank, blocks):
    """Each step of a rank; None if the steps did not send equally many messages."""
    events, marks = carried(ledger), [i for label, i in spans(ledger) if label.startswith("backward")]
    mine, found = by_rank[ledger.rank], []
    each, rest = divmod(len(events), len(mine))
    lengths = [[blocks if use is None else len(use) for *_, use in step] for step in mine]
    if rest or len(marks) != sum(map(sum, lengths)):
        return None
    for step, counts in enumerate(lengths):
        own, marks = marks[: sum(counts)], marks[sum(counts) :]
        found.append(Step(events[step * each : (step + 1) * each], own[-counts[-1] :]))
    return found


def left_too_early(ledgers, by_rank, weights, limit):
    """A sentence if a rank posted a bucket before its own gradients in it were complete."""
    blocks = sum("up" in name for name in weights)
    buckets = blocks_of(weights, limit)
    sizes = greedy([weights[n] for n in registered(weights)[::-1]], limit)
    for ledger in ledgers:
        for step, batches in zip(steps_of(ledger, by_rank, blocks) or (), by_rank[ledger.rank]):
            if [e.bytes for e in step.sent] != sizes:
                return None  # other buckets than the task's: which gradients they hold is not known
            use = range(blocks) if batches[-1][2] is None else batches[-1][2]
            for i, (event, at) in enumerate(zip(step.sent, complete(buckets, use))):
                if at < len(step.marks) and event.index < step.marks[at]:
                    return f"a bucket leaves before it is full: bucket {i}, as rank {ledger.rank} posts it"
    return None


def ddp_steps(seed, N, uses, weights, generator, micro=1):
    """A batch for each rank and step: [rank][step][micro]."""
    return [
        [
            [a_batch(weights, generator, use) for _ in range(m)]
            for m in (micro if isinstance(micro, list) else [micro] * 2)
        ]
        for use in uses
    ]


def judge_ddp(got, by_rank, weights, ledgers, limit):
    """The gradients of each step; where they are wrong for no reason that the numbers show, the ledger may show it."""
    try:
        judge_gradients(got, by_rank, weights)
    except CheckFailed as failed:
        early = left_too_early(ledgers, by_rank, weights, limit)
        if early is None or failed.cause or failed.verdict != WRONG:
            raise
        expect(False, failed.text.rpartition("\n")[0], cause=(early,))


def judge_gradients(got, by_rank, weights):
    N = len(by_rank)
    for step, (w, want) in enumerate(follow(weights, by_rank)):
        for r in range(N):
            found, _, held = answer(got[r], 3)
            expect(len(found) > step, "a step gave no gradients")
            own = added(*[gradient(w, [mb]) for mb in by_rank[r][step]])
            last = scaled(added(*[gradient(w, [rank[step][-1]]) for rank in by_rank]), 1 / N)
            causes = {
                "the mean is added to this rank's own gradient: it takes its place": added(want, own),
                "the sum over the ranks, expected the mean": scaled(want, N),
                "divided twice: the group's mean divides already": scaled(want, 1 / N),
                "this rank's own gradient: nothing was averaged": own,
            }
            if len(by_rank[r][step]) > 1:
                causes |= {"the last micro-batch alone: those before it must add up": last}
                reached = added(*[gradient(w, [rank[step][-1]]) for rank in by_rank])
                dropped = {name: g if bool(reached[name].any()) else torch.zeros_like(g) for name, g in want.items()}
                if any(not torch.equal(dropped[name], g) for name, g in want.items()):
                    causes["zeros for what the last micro-batch did not reach: those before it left a gradient"] = (
                        dropped
                    )
            gradients_agree(found[step], want, r, causes, f"step {step + 1}: the gradients")
            expect(
                held <= 128, f"rank {r}: beside weights and gradients {held} bytes are held after finish()", known=True
            )


@task("14.2", points=4)
@pytest.mark.parametrize("N", [2, 3])
def test_data_parallel(N, seed):
    """The gradients of one process on the whole batch; a tied weight, and one that nobody uses"""
    weights, generator = draw(seed + N, idle=True)
    by_rank = ddp_steps(seed, N, [None] * N, weights, generator)
    limit = a_limit(weights, seed)
    got, ledger = call("scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit)
    judge_ddp(got, by_rank, weights, ledger, limit)
    total = sum(t.nbytes for t in weights.values())
    for r in range(N):
        only(ledger[r], "all_reduce")
        amount = sum(e.bytes for e in carried(ledger[r]))
        expect(
            amount == 2 * total,
            f"rank {r} sent {amount} bytes in 2 steps; the gradients are {2 * total}: each number in one message",
        )


@task("14.2", points=4)
@pytest.mark.parametrize(
    "uses",
    [
        pytest.param([[0, 1, 2], [0]], id="one rank skips blocks"),  # all that is in its first bucket
        pytest.param([[0, 1, 1, 2], [2, 1, 0]], id="twice, and in another order"),
    ],
)
def test_graphs_that_differ(uses, seed):
    """Ranks whose graphs differ: unused here and used there, used twice, another order"""
    weights, generator = draw(seed + 10)
    by_rank = ddp_steps(seed, 2, uses, weights, generator)
    limit = a_limit(weights, seed)
    got, ledger = call("scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit)
    judge_ddp(got, by_rank, weights, ledger, limit)
    for r in range(2):
        only(ledger[r], "all_reduce")
        posts = carried(ledger[r])
        each, total = len(posts) // 2, 2 * sum(t.nbytes for t in weights.values())
        amount = sum(e.bytes for e in posts)
        expect(amount == total, f"rank {r} sent {amount} bytes in 2 steps; the gradients are {total}")
        steps = [[e.bytes for e in posts[:each]], [e.bytes for e in posts[each:]]]
        expect(steps[0] == steps[1], f"rank {r} sent messages of {steps[0]} and {steps[1]} bytes in two equal steps")
        for step in (posts[k : k + each] for k in range(0, len(posts), each)):
            first = min(wait_of(ledger[r], event) for event in step)
            text = f"rank {r} waits for a bucket before all have left: what finish() has to send leaves first"
            expect(step[-1].index < first, text, known=True)


@task("14.2", points=4)
@pytest.mark.parametrize(
    "interrupted, last_use",
    [
        pytest.param(False, None, id="micro-batches"),
        pytest.param(True, None, id="left by an exception"),
        pytest.param(False, [0, 2], id="the last skips a block"),
    ],
)
def test_no_sync(interrupted, last_use, seed):
    """no_sync: gradients add up here, and travel once, also those that the last micro-batch does not reach"""
    weights, generator = draw(seed + 20)
    by_rank = ddp_steps(seed, 2, [None] * 2, weights, generator, micro=[3, 1, 2])
    if last_use:
        by_rank = [[[*step[:-1], a_batch(weights, generator, last_use)] for step in steps] for steps in by_rank]
    limit = a_limit(weights, seed)
    got, ledger = call(
        "scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit, interrupted=interrupted
    )
    for r in range(2):
        came_out = answer(got[r], 3)[1]
        expect(came_out is (True if interrupted else None), f"rank {r}: no_sync swallowed an exception")
    judge_ddp(got, by_rank, weights, ledger, limit)
    total = sum(t.nbytes for t in weights.values())
    for r in range(2):
        events = carried(ledger[r])
        amount = sum(e.bytes for e in events)
        expect(
            amount == 3 * total,
            f"rank {r} sent {amount} bytes; 3 steps send {3 * total}, whatever the micro-batches",
            cause=("every micro-batch is sent: inside no_sync nothing travels",) if amount == 6 * total else (),
        )
        if last_use:
            continue  # a bucket with what was not reached waits for finish(), and others wait for it
        expect(any(not e.blocking for e in events), f"rank {r}: nothing is under way while the backward runs")
        # Each step's last backward must hide something again: whoever never leaves no_sync sends all in finish().
        # Step 2 has one micro-batch. So no later no_sync ends what an exception left.
        steps = steps_of(ledger[r], by_rank, sum("up" in name for name in weights))
        expect(steps is not None, f"rank {r}: {len(events)} messages in 3 steps; every step sends the same buckets")
        least = greedy([weights[n] for n in registered(weights)[::-1]], limit)[0]  # the first bucket that leaves
        hides = [sum(e.bytes for e in s.sent if e.index < s.marks[-1]) >= least for s in steps or ()]
        expect(
            all(hides),
            f"rank {r}, step {1 + hides.index(False) if False in hides else 0}: no full bucket leaves before the last "
            f"block's backward" + (", after an exception inside no_sync" if interrupted else ""),
            cause=("no_sync is not left by an exception: nothing but `finally` runs then",)
            * (interrupted and hides in ([True, False, True], [False] * 3))
            + ("no_sync is never left", "all buckets leave after the backward: nothing is hidden") * (not any(hides)),
        )


@task("14.2", points=1)
def test_odd_cases(seed):
    """One rank; micro-batches that are all inside no_sync; buckets of more than a MiB"""
    weights, generator = draw(seed + 60, idle=True)
    limit = a_limit(weights, seed)
    for N, options in ((1, {}), (2, {"silent": True})):
        by_rank = ddp_steps(seed, N, [None] * N, weights, generator, micro=[2, 1])
        got, ledger = call(
            "scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit, **options
        )
        judge_ddp(got, by_rank, weights, ledger, limit)
    weights, generator = draw(seed + 61, width=9000)
    limit = 2 << 20  # of 4 MiB, in parameters below one
    batches = [[[a_batch(weights, generator)]] for _ in range(2)]
    got, ledger = call("scenarios.data_parallel", [(steps,) for steps in batches], weights=weights, bucket_bytes=limit)
    judge_ddp(got, batches, weights, ledger, limit)
    want = greedy([weights[n] for n in registered(weights)[::-1]], limit)
    for r in range(2):
        same([e.bytes for e in carried(ledger[r])], want, rank=r, what=f"the bytes of the buckets (at most {limit})")


@task("14.2", points=3)
def test_buckets(seed):
    """Buckets: in the order of their gradients, filled up to the limit, of one dtype, one message each"""
    limit, turn = None, 0
    while limit is None:  # few models have no such limit
        weights, generator = draw(seed + 30 + 100_003 * turn)
        weights["scale"] = weights["scale"].float()  # in the middle; two ranks' FP32 numbers have one sum
        limit, turn = a_limit(weights, seed, reached_between_dtypes), turn + 1
    own = [weights[n] for n in registered(weights)[::-1]]
    by_rank = ddp_steps(seed, 2, [None] * 2, weights, generator)
    got, ledger = call("scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit)
    judge_ddp(got, by_rank, weights, ledger, limit)
    tensors = [weights[n] for n in registered(weights)]
    sizes = [t.nbytes for t in tensors]
    for r in range(2):
        only(ledger[r], "all_reduce")
        want = 2 * greedy(own, limit)
        same(
            [e.bytes for e in carried(ledger[r])],
            want,
            rank=r,
            what=f"the bytes of the buckets (at most {limit}) in two steps",
            looks_like={
                "the last bucket of this dtype is joined, though another came behind it": 2 * greedy(own, limit, True),
                "a bucket that would be exactly as large as the limit is not filled": 2 * greedy(own, limit - 1),
                **{cause: 2 * greedy(own, limit, fits=rule) for cause, rule in RULES.items()},
                "in the order of registration: gradients come in the reverse of it": 2 * greedy(tensors, limit),
                "a message for every parameter": 2 * sizes[::-1],
                "all in one bucket: nothing can leave before the end": 2 * greedy(own, sum(sizes)),
            },
        )


@task("14.2", points=3)
def test_leaves_early(seed):
    """A bucket leaves as soon as it is full, and is waited for after the backward"""
    weights, generator = draw(seed + 40, blocks=4)
    limit = a_limit(weights, seed, suits=orders_in_which_one_waits)
    swapped = orders_in_which_one_waits(weights, limit)
    # On rank 1 a full bucket waits for one before it, and must leave with that one.
    uses = [list(range(4)), swapped[seed % len(swapped)]]
    by_rank = ddp_steps(seed, 2, uses, weights, generator)
    got, ledger = call("scenarios.data_parallel", [(s,) for s in by_rank], weights=weights, bucket_bytes=limit)
    judge_ddp(got, by_rank, weights, ledger, limit)
    buckets, want = blocks_of(weights, limit), 2 * greedy([weights[n] for n in registered(weights)[::-1]], limit)
    for r, use in enumerate(uses):
        events = carried(ledger[r])
        expect(len(events) == 2 * len(buckets), f"rank {r} sent {len(events)} buckets, expected {2 * len(buckets)}")
        same([e.bytes for e in events], want, rank=r, what="the bytes of the buckets in two steps")
        full = complete(buckets, use)
        steps = steps_of(ledger[r], by_rank, 4)
        expect(steps is not None, f"rank {r} reports other spans than a backward of each block")
        for step in steps:
            over = step.marks[-1]
            for i, (event, leaves) in enumerate(zip(step.sent, may_leave(buckets, use))):
                if leaves + 1 < len(step.marks):
                    waited_first = full[i] < leaves
                    expect(
                        event.index < step.marks[leaves + 1],
                        f"rank {r} runs blocks {use}: bucket {i} is full"
                        + (", and so are those before it," if waited_first else "")
                        + f" before block {use[::-1][leaves + 1]}'s backward, and leaves after it has begun",
                        cause=("all buckets leave after the backward: nothing is hidden",)
                        if all(e.index > over for e in step.sent)
                        else ("a bucket that waited does not leave with the one that it waited for",)
                        if waited_first and step.sent[i - 1].index < step.marks[leaves + 1]
                        else (),
                    )
                waited = wait_of(ledger[r], event)
                expect(
                    waited > over,
                    f"rank {r}: bucket {i} is waited for before the backward is over",
                    cause=("it is waited for where it is posted: the backward stands still meanwhile",)
                    if event.blocking or waited == event.index + 1
                    else (),
                )


@task("14.2", points=1)
def test_second_backward(seed):
    """A second backward before finish() is refused, on every rank, and nothing hangs, whether a bucket left or not"""
    weights, generator = draw(seed + 50)
    for use in (None, [0]):  # the last blocks' buckets leave first: without them all wait
        limit = a_limit(weights, seed)
        judge_refused("a second backward before finish()", weights, generator, seed, use, bucket_bytes=limit)
