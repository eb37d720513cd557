"""Who runs in the benchmark, and how one of them is measured on the ranks.

The table names functions as "module:function" and imports them when they run, so that the benchmark stands on
nobody's unfinished task: a blank raises NotImplementedError on its first call, on all ranks alike, and is left out
with a sentence.

How one point is measured: known data, one call, every number compared. Then loops of calls between two marks, each on
fresh small numbers, behind a barrier and one untimed call, so that nobody's late start is timed. Of the ranks the
slowest counts; of the loops the median on a GPU, the fastest on a CPU, where other programs interrupt. The ledger is
off.

On a GPU the marks are CUDA events, and the loop queues its calls without waiting for any, as a training step does. So
two things go on, and the slower one decides: the CPU queues, the GPU works. `seconds` is what a caller gets. Beside it
stand `queue`, the CPU's time to queue one call, and `gpu`, the GPU's own time: there the GPU is held up until all calls
are queued, so that it never waits for the CPU.

A tensor that NCCL's stream has used returns to torch's memory pool only when that stream has passed it. So calls that
are queued but not done each hold memory of their own, and a long loop over large vectors can run out and end in
cudaFree, with the GPU waiting (results/README.md). Loops are therefore short (20 calls, and `budget`), and one that is
held up goes before the timed ones: in it the pool grows to the most that a loop can hold.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from labkit.record.measure import Stopwatch

PERIOD = 8191  # prime: a chunk that lands at a wrong place never looks right
BLOCK = 1 << 26  # numbers compared at once
CYCLES = 2e9  # of a GPU's clock in a second, about


class Contender(NamedTuple):
    """One line of the table."""

    path: str  # "module:function"
    cost: str  # function of cost_model (or of the module itself) that models it: "module:function"
    copies: float  # memory it needs, in vectors, besides the one it is given


_C, _S, _M = "week13_allreduce.collectives", "week13_allreduce.stretch", "week13_allreduce.cost_model"
CONTENDERS: dict[str, dict[str, Contender]] = {
    "all_reduce": {
        "library": Contender(f"{__name__}:library_all_reduce", f"{_M}:ring_all_reduce_cost", 0),
        "ring": Contender(f"{_C}:ring_all_reduce", f"{_M}:ring_all_reduce_cost", 1),
        "sliced": Contender(f"{__name__}:sliced_ring", f"{_M}:ring_all_reduce_cost", 1),
        "two_way": Contender(f"{__name__}:two_way_ring", f"{_M}:ring_all_reduce_cost", 1),
        "pipelined": Contender(f"{_S}.pipelined:pipelined_ring_all_reduce", f"{_M}:ring_all_reduce_cost", 1),
        "naive": Contender(f"{_C}:naive_all_reduce", f"{_M}:naive_all_reduce_cost", 2),
        "one_shot": Contender(f"{_C}:one_shot_all_reduce", f"{_M}:one_shot_all_reduce_cost", math.inf),
        "tree": Contender(f"{_S}.tree:tree_all_reduce", f"{_S}.tree:tree_all_reduce_cost", 1),
        "halving": Contender(
            f"{_S}.halving_doubling:halving_doubling_all_reduce", f"{_S}.halving_doubling:halving_doubling_cost", 0.5
        ),
        "two_level": Contender(f"{__name__}:two_level", f"{__name__}:two_level_cost", 1),
    },
    "all_gather": {
        "library": Contender(f"{__name__}:library_all_gather", f"{_M}:ring_all_gather_cost", 2),
        "ring": Contender(f"{_C}:ring_all_gather", f"{_M}:ring_all_gather_cost", 2),
    },
    "reduce_scatter": {
        "library": Contender(f"{__name__}:library_reduce_scatter", f"{_M}:ring_reduce_scatter_cost", 1),
        "ring": Contender(f"{_C}:ring_reduce_scatter", f"{_M}:ring_reduce_scatter_cost", 1),
    },
}
DEFAULT = ("library", "ring", "pipelined")


def load(path: str) -> Callable:
    """The function that "module:function" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def library_all_reduce(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    return group.all_reduce(x_L, op)


def library_all_gather(shard: torch.Tensor, group, numel: int) -> torch.Tensor:
    return group.all_gather(shard)


def library_reduce_scatter(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    return group.reduce_scatter(x_L, op)


def sliced_ring(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.12's ring, one way round: only its slices."""
    return load(CONTENDERS["all_reduce"]["pipelined"].path)(x_L, group, op, slices=2, directions=1)


def two_way_ring(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.12's ring, both ways round, its chunks whole."""
    return load(CONTENDERS["all_reduce"]["pipelined"].path)(x_L, group, op, slices=1, directions=2)


def _half(N: int) -> int:
    """Ranks a node, where the machine is taken for two nodes; all of them, where it cannot be halved."""
    return N // 2 if N % 2 == 0 else N


def two_level(x_L: torch.Tensor, group, op: str = "sum") -> torch.Tensor:
    """Task 13.10's all-reduce, as if the first half of the ranks were one node and the second another."""
    return load(f"{_S}.hierarchical:hierarchical_all_reduce")(x_L, group, _half(group.size), op)


def two_level_cost(N: int) -> NamedTuple:
    """Its cost on a switch: two laps of P, and between them two of M nodes, with 1/P of the vector."""
    P = _half(N)
    return load(f"{_M}:Cost")(messages=2 * (P - 1) + 2 * (N // P - 1), share=2 * (N - 1) / N)


def measure(
    group, collective: str, contender: str, sizes: list[int], dtype: str, op: str, budget: float
) -> dict[str, Any]:
    """Job on every rank: one contender over all `sizes` (bytes of the whole vector, ascending).

    budget: seconds of timed calls for each size, about. Returns {"rows": [...], "note": why sizes or all of it are
        missing}.
    Rows: size, count (nccl-tests': a rank's own part for all-gather and reduce-scatter), wrong, and what `timed` gives.
    """
    entry, N = CONTENDERS[collective][contender], group.size
    kind = getattr(torch, dtype)
    fitting, note = _that_fit(group, sizes, min(entry.copies, N))
    rows: list[dict[str, Any]] = []
    if not fitting:
        return {"rows": rows, "note": note}
    with group.ledger.off():
        buffer = torch.empty(fitting[-1] // kind.itemsize, dtype=kind, device=group.device)  # the one allocation
        for size in fitting:
            numel = size // kind.itemsize // N * N
            x_L = buffer[:numel]
            own = x_L[: numel // N] if collective == "all_gather" else x_L
            function, more = load(entry.path), (numel,) if collective == "all_gather" else (op,)
            run = partial(function, own, group, *more)
            try:
                wrong = _wrong(run, own, collective, group, op)
            except NotImplementedError as blank:
                return {"rows": [], "note": f"{blank}: not written yet, left out"}
            except ValueError as refused:  # on all ranks alike: halving and doubling on three, say
                return {"rows": [], "note": f"left out: {refused}"}
            small = torch.randn(PERIOD, device=group.device) * 1e-30
            rows.append(
                {
                    "size": numel * kind.itemsize,
                    "count": numel if collective == "all_reduce" else numel // N,
                    "wrong": wrong,
                    **timed(run, partial(_spread, own, small), group, budget),
                }
            )
            if own.is_cuda:
                torch.cuda.empty_cache()  # the next size's temporaries are larger: these would only be in the way
    return {"rows": rows, "note": note}


def timed(run: Callable[[], Any], refill: Callable[[], object], group, budget: float) -> dict[str, Any]:
    """Time `run` on all ranks alike; `refill` gives it fresh small numbers before each loop.

    Returns {"seconds" for one call, "iterations" in a loop}; on a GPU also queue, gpu (see above) and mallocs: how
    often the pool asked the device for memory inside the timed loops. 0, or that is timed too."""
    gpu = group.device.type == "cuda"
    loops = 5 if gpu else 3
    # Each in-place sum multiplies by N: from 1e-30 on, so many calls stay below 1e+30, without an infinity or a zero.
    most = max(3, min(20, int(60 / math.log10(max(group.size, 2))) - 8))

    def loop(iterations: int, held: float = 0.0) -> list[float]:
        """One loop, the GPU held up for as many seconds; [seconds, queue] for one call, the maximum over the ranks."""
        refill()
        group.barrier()
        if held:
            torch.cuda._sleep(int(held * CYCLES))
        run()
        watch, begin = Stopwatch(group.device), time.perf_counter()
        watch.start()
        for _ in range(iterations):
            run()
        queue = (time.perf_counter() - begin) / iterations
        slowest = torch.tensor([watch.lap() / iterations, queue], dtype=torch.float64, device=group.device)
        return group.all_reduce(slowest, "max").tolist()

    loop(1)
    # Derived from times that all ranks share, or their loops would not match.
    once, queue = loop(1)
    iterations = min(most, max(2 if gpu else 1, int(budget / loops / once)))
    if not gpu:
        return {"seconds": min(loop(iterations) for _ in range(loops))[0], "iterations": iterations}
    loop(iterations, held=2 * (iterations + 1) * queue + 1e-4)
    mallocs = _mallocs(group.device)
    times = [loop(iterations) for _ in range(loops)]
    found = {name: statistics.median(values) for name, values in zip(("seconds", "queue"), zip(*times))}
    found |= {"gpu": found["seconds"], "iterations": iterations, "mallocs": _mallocs(group.device) - mallocs}
    if found["queue"] > 0.5 * found["seconds"]:  # else the GPU's queue was never empty
        few = min(iterations, 8)  # a stream takes a thousand operations or so, not more
        ahead = 2 * (few + 1) * found["queue"] + 1e-4
        found["gpu"] = min(found["seconds"], statistics.median(loop(few, ahead)[0] for _ in range(3)))
    return found


def _mallocs(device: torch.device) -> int:
    """How often torch's memory pool has asked the device for more."""
    return torch.cuda.memory_stats(device).get("num_device_alloc", 0) if device.type == "cuda" else 0


def _wrong(run: Callable[[], torch.Tensor], own: torch.Tensor, collective: str, group, op: str) -> int:
    """Wrong numbers in the result of one call on known data, on all ranks together.

    Whole numbers that any order of additions sums exactly, in bf16 too: below 256 in size for up to 256 ranks."""
    N, r = group.size, group.rank
    reach = max(1, min(15, 256 // N))
    place = torch.arange(PERIOD, device=group.device)
    parts = [((place * 7 + k * 13) % (2 * reach + 1) - reach).to(own.dtype) for k in range(N)]
    _spread(own, parts[r])
    got = run()
    if collective == "all_gather":
        wrong = sum(_differ(chunk, part) for chunk, part in zip(got.tensor_split(N), parts))
    else:
        total = torch.stack(parts).double()
        want = total.amax(0) if op == "max" else total.sum(0)
        want = want.to(own.dtype)
        want = want / N if op == "mean" else want
        wrong = _differ(got, want, r * got.numel() if collective == "reduce_scatter" else 0)
    count = torch.tensor([wrong], dtype=torch.int64, device=group.device)
    return int(group.all_reduce(count).item())


def _spread(x: torch.Tensor, pattern: torch.Tensor) -> None:
    """Fill x with `pattern` over and over."""
    whole = x.numel() // PERIOD * PERIOD
    x[:whole].view(-1, PERIOD).copy_(pattern)
    x[whole:].copy_(pattern[: x.numel() - whole])


def _differ(got: torch.Tensor, pattern: torch.Tensor, offset: int = 0) -> int:
    """How many numbers of `got` differ from the repeated pattern, whose first one stands at -offset."""
    wrong, block = 0, BLOCK // PERIOD * PERIOD
    pattern = pattern.roll(-(offset % PERIOD))
    for begin in range(0, got.numel(), block):  # in blocks: the comparison needs memory too
        part = got[begin : begin + block]
        whole = part.numel() // PERIOD * PERIOD
        wrong += int((part[:whole].view(-1, PERIOD) != pattern).sum())
        wrong += int((part[whole:] != pattern[: part.numel() - whole]).sum())
    return wrong


def _that_fit(group, sizes: list[int], copies: float) -> tuple[list[int], str]:
    """The sizes for which every rank has the memory. They must agree: one that runs out leaves the others waiting."""
    if group.device.type != "cuda":
        return sizes, ""
    torch.cuda.empty_cache()
    free = torch.tensor([torch.cuda.mem_get_info(group.device)[0]], dtype=torch.float64, device=group.device)
    least = -group.all_reduce(-free, "max").item()
    fitting = [size for size in sizes if size * (1 + copies) + (1 << 30) < least]
    short = len(sizes) - len(fitting)
    return fitting, f"{short} largest sizes left out: no memory for {1 + copies:g} vectors" if short else ""
