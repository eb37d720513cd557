"""How to time a collective without fooling yourself (task 13.5).

Wrap a clock around one call on one rank, and at least five things go wrong:

  1. the first call is not like the others: connections open, buffers are allocated, kernels load. Warm up first,
     untimed;
  2. one call is noise. Time many, one after another, between two readings of the clock, and divide;
  3. ranks start at different moments, and then the early one times the late one's delay. Barrier before the clock
     starts;
  4. each rank has its own time, and the collective is only done when the slowest is. Report the maximum over the ranks,
     to all of them: a training step waits for it too;
  5. on a GPU a call returns when the work is *queued*. Read the clock only when the device has drained: `device_clock`;

and a sixth that makes the other five worthless: nobody looked whether the answer was right. Fast and wrong is easy:
return the input. (nccl-tests fixes the same six; its column `#wrong` is the sixth.)

Two bandwidths, as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), for n bytes in T seconds:

    algbw = n / T                           what the caller gets; n is the whole vector on one rank: for
                                            reduce-scatter the input, for all-gather the output
    busbw = algbw * factor(collective, N)   what each wire must have carried, whoever wrote the algorithm

The factor is the share of n that must leave every rank where the ranks do the adding: for reduce-scatter and all-gather
(N-1)/N, for all-reduce twice that; and 1 for broadcast, where the vector must pass the source's wire once. So busbw can
be held against the wire's bandwidth for any N, and algbw shows how long a step waits. A collective that sends more
than it must gets no credit for it: naive all-reduce moves much and has a low busbw. Where the switch adds (NVLS), less
has to leave a rank, and busbw exceeds the wire: then it is a score, no longer a speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Timing(NamedTuple):
    """One measurement, the same on every rank."""

    seconds: float  # for one call, on the slowest rank
    wrong: int  # wrong elements after one call on known data, summed over the ranks


def device_clock(device: torch.device | str) -> Callable[[], float]:
    """A clock (seconds) that waits until everything queued on `device` is done before it reads (given)."""
    if torch.device(device).type == "cuda":

        def clock() -> float:
            torch.cuda.synchronize(device)
            return time.perf_counter()

        return clock
    return time.perf_counter


def wall_time(run: Callable[[], object]) -> float:
    """Seconds for one call on this rank, taken the way everybody does at first: the worked (bad) example."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def time_collective(
    run: Callable[[], object],
    group,
    *,
    check: Callable[[], int] | None = None,
    warmup: int = 2,
    iterations: int = 5,
    clock: Callable[[], float] | None = None,
) -> Timing:
    """Task 13.5. Time `run` on all ranks of `group`, and say whether it computes the right thing.

    Tensors that are reduced must live on `group.device`: on a GPU that is not where `torch.tensor(...)` puts them.

    The six mistakes above decide what comes when. `run` is called `warmup + iterations` times in all, `check` once, the
    clock is read twice. Ask of every call: would it spoil the time if it stood between the two readings? Would it spoil
    the next call if it came before that one? (`check` fills memory with data of its own, and is itself a first call.)

    Args:
        run: performs the collective once. It is called again and again on the same memory.
        group: the ranks. All of them call this with the same arguments. `barrier` and `all_reduce` are yours to use.
        check: fills in known data, performs the collective once and returns the number of wrong elements on this rank.
            It comes first: the speed of a wrong collective interests nobody.
        warmup: untimed calls, 0 or more.
        iterations: timed calls, 1 or more.
        clock: reads seconds; by default `device_clock(group.device)`. Two readings, no more.

    Returns:
        Timing(seconds, wrong): seconds for one call, the maximum over the ranks; wrong, the sum over the ranks of what
        `check` returned (0 without one), to the last element: a vector of 4 GiB has 2**30 of them, and float32 counts
        to 2**24. Plain numbers, the same on every rank.
    """
    ### BEGIN SOLUTION 13.5 time a collective
    clock = clock or device_clock(group.device)  # 5: waits for the device
    wrong = check() if check else 0  # 6; before the warm-up, so that what it leaves in caches and memory is not timed
    for _ in range(warmup):  # 1
        run()
    group.barrier()  # 3: nobody's clock starts before the last rank is here
    begin = clock()
    for _ in range(iterations):  # 2
        run()
    seconds = (clock() - begin) / iterations  # mean over the calls of this rank
    # 4: T = max over r of seconds_r       [1] on every rank; #wrong = sum over r of wrong_r
    slowest = torch.tensor([seconds], dtype=torch.float64, device=group.device)
    total = torch.tensor([wrong], dtype=torch.int64, device=group.device)
    group.all_reduce(slowest, op="max")
    group.all_reduce(total, op="sum")
    return Timing(slowest.item(), int(total.item()))
    ### END SOLUTION


def algbw(nbytes: float, seconds: float) -> float:
    """Task 13.5. Algorithm bandwidth in bytes a second."""
    ### BEGIN SOLUTION 13.5 algbw
    return nbytes / seconds
    ### END SOLUTION


def busbw(collective: str, nbytes: float, seconds: float, N: int) -> float:
    """Task 13.5. Bus bandwidth in bytes a second, as nccl-tests defines it.

    Args:
        collective: "all_reduce", "all_gather", "reduce_scatter" or "broadcast"; anything else is a ValueError.
        nbytes: size of the whole vector on one rank (see above), bytes.
        seconds: for one call.
        N: ranks. For N = 1 nothing must leave a rank: 0.0, except for broadcast, whose factor is 1 for every N.
    """
    ### BEGIN SOLUTION 13.5 busbw
    # busbw = n / T * (share of n that must leave a rank)
    factor = {"all_reduce": 2 * (N - 1) / N, "all_gather": (N - 1) / N, "reduce_scatter": (N - 1) / N, "broadcast": 1.0}
    if collective not in factor:
        raise ValueError(f"collective must be one of {', '.join(factor)}, not {collective!r}")
    return algbw(nbytes, seconds) * factor[collective]
    ### END SOLUTION
