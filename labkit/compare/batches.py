"""The search for an arm's micro-batch: the preset's, halved until it fits, or by speed.batch = "largest" all that fits.
A try is a training on fresh processes; after `LOOK` steps its memory is known, a line over the batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.comm.autopsy import RanksFailed
from labkit.record.schema import Try

SCATTERED = 0.05  # half of the steps' 10th to 90th percentile, of the median: beyond it a GPU is timed once more
LOOK = 3  # steps of a try: from the second on the optimizer's states are there
CALM = 2  # steps after these in which the allocator must not run short
OTHERS = 3  # tries of an arm beside the one that is timed, for predictions: 2 and 4 on an H100 (2026-11-24)
GROWTH = 2  # times the largest batch that fitted is as far as a line is believed
GIB = 2**30


@dataclass(frozen=True)
class Search:
    """What was tried. first: sequences to begin with; have: bytes of a GPU, None: the first batch that fits will do."""

    first: int
    have: float | None = None
    tries: Sequence[Try] = ()

    @property
    def micro_batch_size(self) -> int:
        """Sequences of the next try; those of the last one if it is the one to time; 0 if not even one fits."""
        too_many = [each.micro_batch_size for each in self.tries if not each.fitted or each.short]
        limit = min(too_many, default=math.inf)
        fitted = {each.micro_batch_size: each for each in self.tries if each.fitted}
        low = max((size for size in fitted if size < limit), default=0)
        if not low:  # half of what was too much, down to one sequence
            if limit == 1 and 1 in fitted:
                return 1  # short of memory, but there is nothing smaller
            return int(limit) // 2 if too_many else self.first
        if self.have is None or low + 1 == limit:
            return low
        # Two tries give the line itself; with one it is too steep, so at least one sequence more is tried. After a try
        # that was out or short of memory (the allocator frees and asks anew in each step) come one less, two less, four
        # less.
        other, need = min(fitted.keys() - {low}, key=lambda size: abs(size - low), default=0), fitted[low].need
        at = fitted[other].need if other else fitted[low].rest
        each_one = max(1.0, (need - at) / (low - other))
        room = min(low + int((self.have - need) // each_one), GROWTH * low)
        if room <= low and other:
            return low
        return max(low + 1, min(room, int(limit) - 2 ** (len(too_many) - 1) if too_many else room))

    def after(self, tried: Try) -> "Search":
        return Search(self.first, self.have, [*self.tries, tried])


def describe(tries: Sequence[Try]) -> str:
    """ "tried with 8 (55.4 GiB), 13 (out of memory), 12 (77.8 GiB, short of memory) sequences a GPU"."""
    each = []
    for one in tries:
        why = f"{one.need / GIB:.3g} GiB" if one.fitted else "out of memory"
        each.append(f"{one.micro_batch_size} ({why}{', short of memory' if one.short else ''})")
    return f"tried with {', '.join(each)} sequences a GPU"


def out_of_memory(failure: RanksFailed) -> bool:
    """Did a rank ask for more memory than its GPU has? torch, CUDA's libraries and NCCL say so in their own words."""
    said = f"{failure.error!r} {failure.autopsy.cause}".lower()
    return any(words in said for words in ("outofmemoryerror", "out of memory", "alloc_failed"))
