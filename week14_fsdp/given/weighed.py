"""Is a rank's memory what FSDP may hold? Judged where a sandbox reads it from outside (task 14.4, in grading).

The meter of storages sees what torch tells it. A copy in NumPy, or any other that torch knows nothing of, it does not
see; the kernel does. So the grading sandbox reads the bytes of a rank's processes whenever a block begins to compute,
while the rank stands still, into `ledger.weighed`. At home nobody reads them.

What may be held beside what the rank held at first, in bytes: W the model, B a block, R the root, N ranks.

    between steps   the shards                                                              W/N
    forward         and the root; two blocks, a gather's message as it comes and as it goes 3 R + 4 B
    backward        and the shards' gradients; a block's gradient, flat, and under way      W/N + 3 B more

and the gradients that the check keeps of the steps before, W/N each. Whoever holds all of eight blocks is 8 B above the
shards. A hidden copy of one block or two is within this: for that there is the meter.
"""

from __future__ import annotations

import math
import os

from labkit.checks import expect
from labkit.checks.verdict import FORBIDDEN, CheckFailed
from labkit.comm.ledger import Ledger
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
        # Less than it must hold there: then it has thrown off ballast that it brought along, to be heavy at first.
        must = (1 + step) * part + block if label.startswith(("forward", "backward")) else 0.0
        if label == "between steps":
            must, step = (2 + step) * part, step + 1
        base = min(base, heavy - must)
    if not base > 0 or not step:
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
            limit += part + 3 * block
        left = min(left, limit - heavy)
        expect(
            heavy <= limit,
            f"rank {ledger.rank}, step {step + 1}: at the {label} its processes hold {(heavy - base) / 2**20:.1f} MiB "
            f"more than at first. Shards, gradients, the root and two blocks are at most "
            f"{(limit - base) / 2**20:.1f}, and the whole model is {whole / 2**20:.1f}",
        )
    return left
