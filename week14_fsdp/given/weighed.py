"""Is a rank's memory what FSDP may hold? Judged where a sandbox reads it from outside (task 14.4, in grading).

The meter of storages sees what torch reports to it. A copy in NumPy, or any other that torch knows nothing of, it does not
see; the kernel does. So the grading sandbox reads the bytes of a rank's processes whenever a block begins to compute,
while the rank stands still, into `ledger.weighed`. At home nobody reads them.

What may be held beside what the rank held at first, in bytes: W the model, B a block, R the root, N ranks.

    the model made  all of it, in its own parameters; no code of the student's has run      W
    between steps   the shards                                                              W/N
    forward         and the root; two blocks, a gather's message as it comes and as it goes 3 R + 4 B
    backward        and gradients: of the shards that have one; a block's, flat, under way  B/N each, 3 B more

and the gradients that the check keeps of the steps before, W/N each. Whoever holds all of eight blocks is 8 B above the
shards. A hidden copy of one block or two is within this: for that there is the meter.

Neither the meter nor the kernel sees what has come and waits in the group. The ledger does: `judge_under_way`.
"""

from __future__ import annotations

import math
import os

from labkit.checks import expect
from labkit.checks.verdict import FORBIDDEN, CheckFailed
from labkit.comm.ledger import Event, Ledger
from week14_fsdp.given.whole_batch import carried, spans, wait_of

MESSAGE = "all_gather"


def judge_weighed(ledger: Ledger, whole: int, root: int, block: int, blocks: int, N: int) -> float:
    """Pass if `scenarios.fsdp`, a micro-batch in each step, held no more than it may; CheckFailed if it did. Returns
    the bytes that were left at the tightest moment; without a reading, infinity."""
    left = math.inf
    if not ledger.weighed:
        return left
    part = whole / N
    # Half a block for objects, and of every tensor of 64 KiB and more the unused end of its last page.
    room = block / 2 + 6 * blocks * os.sysconf("SC_PAGE_SIZE")
    held = [(label, index, ledger.weighed.get(index, 0)) for label, index in spans(ledger)]
    base, step = math.inf, 0
    for label, _, heavy in held:
        # At first there is the whole model, and no code of the student's has run. Later it may hold less than it must:
        # then it has made room in what was there before.
        must = (1 + step) * part + block if label.startswith(("forward", "backward")) else whole
        if label == "between steps":
            must, step = (2 + step) * part, step + 1
        base = min(base, heavy - must)
    if not base > 0 or not step or ledger.events[0].label != "model made":
        raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} does not note when it computes: its memory cannot be judged")
    gathered = [wait_of(ledger, event) for event in carried(ledger) if event.kind == MESSAGE]
    step = begun = 0
    backward = False  # it has begun: then a forward is a recomputation
    for label, index, heavy in held:
        word, _, k = label.partition(" ")
        if label == "between steps":
            step, begun, backward = step + 1, sum(at < index for at in gathered), False
        if word not in ("forward", "backward"):
            continue
        backward = backward or word == "backward"
        needed = 2 + int(k) if word == "forward" else 2 * blocks - int(k)  # the root's; the last block may have stayed
        expect(
            sum(at < index for at in gathered) - begun >= needed,
            f"rank {ledger.rank}: the {word} of block {k} begins before the block was gathered",
        )
        limit = base + (1 + step) * part + 3 * root + 4 * block + room
        if backward:
            limit += (blocks - 1 - int(k)) * block / N + 3 * block
        left = min(left, limit - heavy)
        expect(
            heavy <= limit,
            f"rank {ledger.rank}, step {step + 1}: at the {label} its processes hold {(heavy - base) / 2**20:.1f} MiB "
            f"more than at first. Shards, gradients, the root and two blocks are at most "
            f"{(limit - base) / 2**20:.1f}, and the whole model is {whole / 2**20:.1f}",
        )
    return left


def judge_second_gathers(ledger: Ledger, sizes: list[int]) -> None:
    """Between the last block's forward and a block's backward, it and the blocks behind it have come again."""
    blocks = len(sizes) - 1
    at: dict[str, int] = {}
    for label, index in spans(ledger):
        at.setdefault(label, index)  # of two forwards the first: the second is the recomputation
        word, _, k = label.partition(" ")
        if word == "backward" and int(k) < blocks - 1:  # the last one may have stayed
            came = [e for e in carried(ledger) if e.kind == MESSAGE and at[f"forward {blocks - 1}"] < e.index < index]
            came = [e.bytes for e in came if wait_of(ledger, e) < index]
            needed = sorted(sizes[1 + int(k) : blocks])
            expect(
                all(came.count(size) >= needed.count(size) for size in needed),
                f"rank {ledger.rank}: {len(came)} blocks have come when the backward of block {k} begins, since the "
                f"last block's forward; of {blocks} that were freed {len(needed)} must have, the last one may stay",
                cause=("each block is gathered once: then nothing was freed before the backward",) * (not came),
            )
        if label == "backward 0":
            at = {}


def judge_under_way(ledger: Ledger, blocks: int) -> None:
    """Pass if in each step of `scenarios.fsdp` gathers run one block ahead and gradients follow: what a message brings
    is memory from its post on, also while it waits in the group; so is a gradient until it is sent."""
    sent = carried(ledger)
    marks: list[tuple[str, int, int]] = []  # of this step: word, block, place
    begin, ahead = 0, False
    for label, index in spans(ledger):
        word, _, k = label.partition(" ")
        if word in ("forward", "backward"):
            marks.append((word, int(k), index))
        if label == "between steps":
            here = [event for event in sent if begin <= event.index < index]
            ahead |= _one_step(ledger, marks, here, blocks)
            begin, marks = index, []
    expect(
        ahead,
        f"rank {ledger.rank}: no gather is under way while a block computes, expected that of the next block",
        known=True,
    )


def _one_step(ledger: Ledger, marks: list[tuple[str, int, int]], here: list[Event], blocks: int) -> bool:
    """Whether a gather was ever one block ahead; CheckFailed if one was further, or gradients pile up."""
    who = f"rank {ledger.rank}: when the"
    gathers = [event for event in here if event.kind == MESSAGE]
    again = len(gathers) - 1 - blocks  # blocks gathered a second time: the last one may have stayed
    backward = ahead = False
    for word, k, now in marks:
        backward = backward or word == "backward"  # then a forward is a recomputation
        posted = sum(event.index < now for event in gathers)
        most = 1 + blocks + again - max(k - 1, 0) if backward else 1 + min(k + 2, blocks)
        expect(
            posted <= most,
            f"{who} {word} of block {k} begins, {posted} gathers were posted in this step; the root, and the blocks up "
            f"to the one that comes next, are {most}",
            cause=("blocks are gathered that are not next: what comes of it is held until it is used",),
        )
        ahead = ahead or (posted == most and 0 < k < blocks - 1)
        if word == "forward":
            continue
        gradients = [event for event in here if event.kind == "reduce_scatter" and event.index < now]
        waiting = sum(wait_of(ledger, event) > now for event in gradients)
        expect(
            len(gradients) >= blocks - 2 - k,  # that of block k+1 is on its way; one more may be late
            f"{who} backward of block {k} begins, {len(gradients)} gradients were sent, and {blocks - 1 - k} blocks "
            f"have one",
            cause=("gradients are kept and sent later: they pile up",),
        )
        expect(
            waiting <= 2,
            f"{who} backward of block {k} begins, {waiting} gradients are under way, expected one at a time",
            cause=("gradients are sent and not waited for: they pile up",),
        )
    return ahead
