"""Mutants of week 13: the reference with one line changed, the checks that must fail for it, and the cause to be told.

`tests/test_mutants13.py` runs each through the real machinery. A mutant fails exactly the checks named here, no other;
a cause that is printed is the one given here (or one of the given); where none is given, no case may print one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `function` of `module`, the line(s) `old` become `new`.

    task    whose checks run
    fails   checks that must fail: "test_name" (all its cases) or "test_name[part of a case's name"
    may     checks that may fail: a wrong answer can be right by luck in a chunk of one number
    causes  beginnings of sentences: every printed cause must begin with one, and each must be printed at least once
    verdicts    the words that may stand at a failing check
    """

    name: str
    task: str
    module: str
    function: str
    old: str
    new: str
    fails: tuple[str, ...]
    causes: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ("wrong",)
    may: tuple[str, ...] = ()
    cascade: bool = False  # run the tasks that stand on this one as well: none of their checks may fail
    deadline: float = 20.0  # seconds for a call: only an endless loop needs a short one

    def apply(self, text: str) -> str:
        """The module's text with the edit made. AssertionError if the place is not there, or there twice."""
        start = text.index(f"def {self.function}(")
        end = text.find("\ndef ", start + 1)
        body = text[start : end if end > 0 else len(text)]
        found = body.count(self.old)
        assert found == 1, f"{self.name}: {self.old!r} stands {found} times in {self.function}"
        return text[:start] + body.replace(self.old, self.new) + text[start + len(body) :]


# ---- 13.1
COST = [
    Mutant(
        "n instead of n/N",
        "13.1",
        "cost_model",
        "ring_all_reduce_cost",
        "share=2 * (N - 1) / N",
        "share=2 * (N - 1)",
        ("test_cost[ring_all_reduce",),
        ("whole vectors at every step",),
    ),
    Mutant(
        "N steps instead of N-1",
        "13.1",
        "cost_model",
        "ring_reduce_scatter_cost",
        "messages=N - 1",
        "messages=N",
        ("test_cost[ring_reduce_scatter", "test_cost_of_one_rank"),
        ("N steps a lap",),
    ),
    Mutant(
        "one lap only",
        "13.1",
        "cost_model",
        "ring_all_reduce_cost",
        "messages=2 * (N - 1)",
        "messages=N - 1",
        ("test_cost[ring_all_reduce",),
        ("one lap only",),
    ),
    Mutant(
        "one chunk a lap",
        "13.1",
        "cost_model",
        "ring_all_reduce_cost",
        "share=2 * (N - 1) / N",
        "share=2 / N",
        ("test_cost[ring_all_reduce", "test_cost_of_one_rank"),
        ("one chunk a lap",),
    ),
    Mutant(
        "the way to rank 0 only, in bytes",
        "13.1",
        "cost_model",
        "naive_all_reduce_cost",
        "share=2 * (N - 1)",
        "share=N - 1",
        ("test_cost[naive_all_reduce",),
        ("only the way to rank 0",),
    ),
    Mutant(
        "the way to rank 0 only",
        "13.1",
        "cost_model",
        "naive_all_reduce_cost",
        "messages=2 * (N - 1)",
        "messages=N - 1",
        ("test_cost[naive_all_reduce",),
        ("only the way to rank 0",),
    ),
    Mutant(
        "alpha without beta",
        "13.1",
        "cost_model",
        "crossover_bytes",
        "/ (saved_share * beta)",
        "/ saved_share",
        ("test_crossover[one-shot and ring",),
        ("alpha alone",),
    ),
    Mutant(
        "crossover of lines that never cross",
        "13.1",
        "cost_model",
        "crossover_bytes",
        "if saved_share <= 0:",
        "if False:",
        ("test_crossover[never faster",),
    ),
    Mutant(
        "plain least squares",
        "13.1",
        "cost_model",
        "fit_alpha_beta",
        "np.linalg.lstsq(rows / scale, np.ones_like(T), rcond=None)",
        "np.linalg.lstsq(rows * T[:, None] / scale, T, rcond=None)",
        ("test_fit_of_noisy_times",),
        ("least squares in plain seconds",),
    ),
    Mutant(
        "residuals upside down",
        "13.1",
        "cost_model",
        "fit_alpha_beta",
        "((T - fitted) / T)",
        "((fitted - T) / T)",
        ("test_fit_of_noisy_times",),
        ("fitted minus measured",),
    ),
]

# ---- 13.2
SCATTER = ("13.2", "collectives", "ring_reduce_scatter")
SCATTER_SUMS = ("test_reduce_scatter[even", "test_reduce_scatter[ragged", "test_reduce_scatter[shorter")
IN_X = "test_reduce_scatter_in_x"
SCATTER_VALUES = (*SCATTER_SUMS, "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X)
TINY = ("test_reduce_scatter[shorter",)
REDUCE_SCATTER = [
    Mutant(
        "off-by-one chunk",
        *SCATTER,
        "finish_(chunk[r], op, N)",
        "finish_(chunk[(r + 1) % N], op, N)",
        SCATTER_VALUES,
        ("chunk r+1 without rank r+1's numbers",),
        cascade=True,
    ),
    Mutant(
        "one step short",
        *SCATTER,
        "range(N - 1)",
        "range(N - 2)",
        (*SCATTER_VALUES, "test_reduce_scatter_traffic"),
        ("your own chunk, nothing added",),
    ),
    Mutant(
        "remainder ignored",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "chunk = x_L[:x_L.numel() // N * N].tensor_split(N)",
        (
            "test_reduce_scatter[ragged",
            "test_reduce_scatter[shorter",
            "test_reduce_scatter_op",
            "test_reduce_scatter_bf16",
            IN_X,
        ),
        ("chunk r of the first 20 numbers", "chunk r of the first 99 numbers"),
    ),
    Mutant(
        "sum for mean",
        *SCATTER,
        "finish_(chunk[r], op, N)",
        "chunk[r]",
        ("test_reduce_scatter_op[mean",),
        ("the sum over the ranks, expected the mean",),
    ),
    Mutant(
        "mean for sum",
        *SCATTER,
        "finish_(chunk[r], op, N)",
        'finish_(chunk[r], "mean", N)',
        (*SCATTER_SUMS, "test_reduce_scatter_op[max", "test_reduce_scatter_bf16", IN_X),
        ("the mean over the ranks, expected the sum",),
    ),
    Mutant(
        "max as sum",
        *SCATTER,
        "like=acc), op)",
        'like=acc), "sum")',
        ("test_reduce_scatter_op[max",),
        ("the sum over the ranks, expected the max",),
    ),
    Mutant(
        "accumulation in the wrong dtype",
        *SCATTER,
        "like=acc), op)",
        "like=acc).bfloat16().to(acc.dtype), op)",
        (*SCATTER_SUMS[:2], "test_reduce_scatter_op", IN_X),
        ("what arrives is rounded to bfloat16",),
        may=TINY,
    ),
    Mutant(
        "result in the wrong dtype",
        *SCATTER,
        "finish_(chunk[r], op, N)",
        "finish_(chunk[r], op, N).float()",
        ("test_reduce_scatter_bf16",),
    ),
    Mutant(
        "deadlock order",
        *SCATTER,
        "combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)",
        "group.send(chunk[(r - s - 1) % N], right); combine_(acc, group.recv(left, like=acc), op)",
        (*SCATTER_VALUES, "test_reduce_scatter_traffic"),
        ("Deadlock of ranks",),
        ("hung",),
    ),
    Mutant(
        "a rank returns early",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N)\n    if r == 0 and N == 4: return chunk[0]",
        ("test_reduce_scatter[even, N=4", "test_reduce_scatter_bf16", "test_reduce_scatter_traffic[even"),
        ("Rank 0 returned early",),
        ("hung",),
    ),
    Mutant(
        "only right for 2 ranks",
        *SCATTER,
        "acc = chunk[(r - s - 2) % N]",
        "acc = chunk[r]",
        (
            "test_reduce_scatter[even, N=4",
            *SCATTER_SUMS[1:],
            "test_reduce_scatter_op",
            "test_reduce_scatter_bf16",
            IN_X,
            "test_reduce_scatter_traffic[ragged",
        ),
        ("Rank",),
        ("wrong", "crashed"),
    ),
    Mutant(
        "N steps instead of N-1",
        *SCATTER,
        "range(N - 1)",
        "range(N)",
        ("test_reduce_scatter[one rank", "test_reduce_scatter_traffic"),
        ("N steps: the last one is too many",),
        ("wrong", "crashed"),
    ),
    Mutant(
        "the wrong direction",
        *SCATTER,
        "right, left = ",
        "left, right = ",
        (
            "test_reduce_scatter[even, N=4",
            *SCATTER_SUMS[1:],
            "test_reduce_scatter_op",
            "test_reduce_scatter_bf16",
            IN_X,
            "test_reduce_scatter_traffic[ragged",
        ),
        ("the ring runs the wrong way", "Rank"),
        ("wrong", "crashed"),
    ),
    Mutant(
        "like= forgotten",
        *SCATTER,
        ", like=acc)",
        ")",
        (
            *SCATTER_SUMS[1:],
            "test_reduce_scatter_op",
            "test_reduce_scatter_bf16",
            IN_X,
            "test_reduce_scatter_traffic[ragged",
        ),
        ("Rank",),
        ("crashed",),
    ),
    Mutant(
        "a copy comes back",
        *SCATTER,
        "return finish_(chunk[r], op, N)",
        "return finish_(chunk[r], op, N).clone()",
        (IN_X,),
        ("a copy came back",),
    ),
    Mutant(
        "the lap in other memory",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "chunk = x_L.clone().tensor_split(N)",
        (IN_X,),
        ("x is untouched",),
    ),
    Mutant(
        "built-in collective",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "return group.all_reduce(x_L, op).tensor_split(N)[r]",
        (
            "test_reduce_scatter",
            "test_reduce_scatter_op",
            "test_reduce_scatter_bf16",
            IN_X,
            "test_reduce_scatter_traffic",
        ),
        verdicts=("forbidden call",),
    ),
    Mutant(
        "nothing comes back",
        *SCATTER,
        "return finish_(chunk[r], op, N)",
        "finish_(chunk[r], op, N)",
        ("test_reduce_scatter", "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X),
        verdicts=("no result",),
    ),
    Mutant(
        "a list comes back",
        *SCATTER,
        "return finish_(chunk[r], op, N)",
        "return finish_(chunk[r], op, N).tolist()",
        ("test_reduce_scatter", "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X),
        verdicts=("no result",),
    ),
    Mutant(
        "one rank crashes",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N); {0: 1, 1: 2, 2: 3, 4: 5}[r]",
        ("test_reduce_scatter[even, N=4", *SCATTER_SUMS[1:], "test_reduce_scatter_bf16", "test_reduce_scatter_traffic"),
        ("Rank 3 raised KeyError: 3",),
        ("crashed",),
    ),
    Mutant(
        "a rank ends its process",
        *SCATTER,
        "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N); __import__('os')._exit(0) if r == 3 else None",
        ("test_reduce_scatter[even, N=4", *SCATTER_SUMS[1:], "test_reduce_scatter_bf16", "test_reduce_scatter_traffic"),
        ("Rank 3's process ended by itself",),
        ("crashed",),
    ),
]

# ---- 13.3
GATHER = ("13.3", "collectives", "ring_all_gather")
GATHER_SUMS = ("test_all_gather[even", "test_all_gather[ragged", "test_all_gather[shorter", "test_all_gather_bf16")
ALL_GATHER = [
    Mutant(
        "one step short",
        *GATHER,
        "range(N - 1)",
        "range(N - 2)",
        (*GATHER_SUMS, "test_all_gather_into_out", "test_all_gather_traffic"),
        ("chunk r+1 was never stored",),
        cascade=True,
    ),
    Mutant(
        "N steps instead of N-1",
        *GATHER,
        "range(N - 1)",
        "range(N)",
        ("test_all_gather[one rank", "test_all_gather_traffic"),
        ("N steps: the last one brings chunk r",),
        ("wrong", "crashed"),
    ),
    Mutant(
        "what comes is not stored",
        *GATHER,
        "out=chunk[",
        "like=chunk[",
        (*GATHER_SUMS, "test_all_gather_into_out"),
        ("nothing that came was stored", "chunk r+1 was never stored", "only your own chunk is there"),
    ),
    Mutant(
        "own chunk not stored",
        *GATHER,
        "chunk[r].copy_(shard)",
        "pass",
        ("test_all_gather", "test_all_gather_bf16"),
        ("your own chunk was never stored",),
    ),
    Mutant(
        "the result in other memory",
        *GATHER,
        "shard.new_empty(numel) if out is None else out",
        "shard.new_empty(numel)",
        ("test_all_gather_into_out",),
        ("only your own chunk is there",),
    ),
    Mutant(
        "the shard comes back",
        *GATHER,
        "return out",
        "return shard",
        (
            "test_all_gather[even",
            "test_all_gather[ragged",
            "test_all_gather[shorter",
            "test_all_gather_bf16",
            "test_all_gather_into_out",
        ),
        ("your own shard alone",),
    ),
    Mutant(
        "remainder ignored",
        *GATHER,
        "out.tensor_split(N)",
        "out[:numel // N * N].tensor_split(N)",
        (
            "test_all_gather[ragged",
            "test_all_gather[shorter",
            "test_all_gather_bf16",
            "test_all_gather_into_out",
            "test_all_gather_traffic[ragged",
        ),
        ("Rank",),
        ("crashed", "wrong"),
    ),
    Mutant(
        "endless loop",
        *GATHER,
        "chunk = out.tensor_split(N)",
        "chunk = out.tensor_split(N)\n    while N == 3 and r == 1: pass",
        ("test_all_gather_bf16",),
        verdicts=("hung",),
        deadline=2.0,
    ),
    Mutant(
        "built-in collective",
        *GATHER,
        "chunk[r].copy_(shard)",
        "chunk[r].copy_(shard); [group.broadcast(chunk[k], k) for k in range(N)]; return out",
        ("test_all_gather", "test_all_gather_bf16", "test_all_gather_into_out", "test_all_gather_traffic"),
        verdicts=("forbidden call",),
    ),
]

# ---- 13.4
REDUCE = ("13.4", "collectives", "ring_all_reduce")
FIRST_LINE = "shard = ring_reduce_scatter(x_L, group, op)"
LAST_LINE = "return ring_all_gather(shard, group, x_L.numel(), out=x_L)"
REDUCE_SUMS = ("test_all_reduce[even", "test_all_reduce[ragged", "test_all_reduce[shorter")
REDUCE_VALUES = (*REDUCE_SUMS, "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place")
ALL_REDUCE = [
    Mutant(
        "the second lap is missing",
        *REDUCE,
        LAST_LINE,
        "return x_L",
        (*REDUCE_VALUES, "test_all_reduce_traffic"),
        ("partial sums, only chunk r is complete",),
    ),
    Mutant(
        "copy instead of in place",
        *REDUCE,
        FIRST_LINE,
        "x_L = x_L.clone(); " + FIRST_LINE,
        ("test_all_reduce_in_place",),
        ("x is untouched",),
    ),
    Mutant(
        "the second lap in other memory",
        *REDUCE,
        ", out=x_L)",
        ")",
        ("test_all_reduce_in_place",),
        ("x holds what the first lap left",),
    ),
    Mutant(
        "a copy comes back",
        *REDUCE,
        LAST_LINE,
        LAST_LINE + ".clone()",
        ("test_all_reduce_in_place",),
        ("a copy came back",),
    ),
    Mutant(
        "all data to every rank",
        *REDUCE,
        FIRST_LINE,
        "return one_shot_all_reduce(x_L, group, op)",
        ("test_all_reduce_traffic",),
        ("all of x goes to every rank",),
    ),
    Mutant(
        "everything through rank 0",
        *REDUCE,
        FIRST_LINE,
        "return naive_all_reduce(x_L, group, op)",
        ("test_all_reduce_traffic",),
        ("everything goes through rank 0",),
    ),
    Mutant(
        "built-in collective",
        *REDUCE,
        FIRST_LINE,
        "return group.all_reduce(x_L, op)",
        (
            "test_all_reduce",
            "test_all_reduce_op",
            "test_all_reduce_bf16",
            "test_all_reduce_in_place",
            "test_all_reduce_traffic",
        ),
        verdicts=("forbidden call",),
    ),
    Mutant(
        "built-in collective in disguise",
        *REDUCE,
        FIRST_LINE,
        'd = torch.distributed; d.all_reduce(x_L, d.ReduceOp.MAX if op == "max" else d.ReduceOp.SUM); '
        "return finish_(x_L, op, group.size)",
        (*REDUCE_VALUES, "test_all_reduce_traffic"),
        verdicts=("forbidden call",),
    ),
    Mutant(
        "input returned",
        *REDUCE,
        FIRST_LINE,
        "return x_L",
        (*REDUCE_VALUES, "test_all_reduce_traffic"),
        ("x as it came in, nothing added",),
        ("wrong", "forbidden call"),
    ),
    Mutant(
        "another rank's data through a shared global",
        *REDUCE,
        FIRST_LINE,
        "torch.shared = {**getattr(torch, 'shared', {}), group.rank: x_L.clone()}; "
        "return x_L.copy_(sum(torch.shared.values()))",
        (*REDUCE_VALUES, "test_all_reduce_traffic"),
        ("x as it came in, nothing added",),
        ("wrong", "forbidden call"),
    ),
    Mutant(
        "op forgotten",
        *REDUCE,
        "ring_reduce_scatter(x_L, group, op)",
        "ring_reduce_scatter(x_L, group)",
        ("test_all_reduce_op",),
        ("the sum over the ranks, expected the mean", "the sum over the ranks, expected the max"),
    ),
    Mutant(
        "remainder ignored",
        *REDUCE,
        FIRST_LINE,
        "n = x_L.numel() // group.size * group.size\n    if n < x_L.numel(): "
        "ring_all_reduce(x_L[:n], group, op); return x_L\n    " + FIRST_LINE,
        (
            "test_all_reduce[ragged",
            "test_all_reduce[shorter",
            "test_all_reduce_op",
            "test_all_reduce_bf16",
            "test_all_reduce_in_place",
        ),
        ("the last 3 numbers are still your own",),
    ),
    Mutant(
        "accumulation in the wrong dtype",
        *REDUCE,
        FIRST_LINE,
        "keep = x_L; x_L = x_L.bfloat16(); "
        + FIRST_LINE.replace("shard", "shard")
        + "; return keep.copy_(ring_all_gather(shard, group, x_L.numel(), out=x_L))",
        ("test_all_reduce", "test_all_reduce_op", "test_all_reduce_in_place"),
        may=("test_all_reduce[one rank", "test_all_reduce[shorter"),
    ),
    Mutant(
        "NaN",
        *REDUCE,
        LAST_LINE,
        LAST_LINE + ".mul_(float('nan'))",
        ("test_all_reduce", "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place"),
    ),
]

# ---- 13.5
TIMING = ("13.5", "timing", "time_collective")
TIME = [
    Mutant(
        "no warm-up",
        *TIMING,
        "for _ in range(warmup):",
        "for _ in range(0):",
        ("test_time_without_the_first_call", "test_time_order_of_things"),
        ("the first, slow call is in it",),
    ),
    Mutant(
        "no maximum",
        *TIMING,
        'group.all_reduce(slowest, op="max")',
        "pass",
        ("test_time_of_the_slowest",),
        ("this rank's own time",),
    ),
    Mutant(
        "mean for maximum",
        *TIMING,
        'op="max"',
        'op="mean"',
        ("test_time_of_the_slowest",),
        ("the mean over the ranks",),
    ),
    Mutant("no barrier", *TIMING, "group.barrier()", "pass", ("test_time_order_of_things",)),
    Mutant(
        "all iterations together",
        *TIMING,
        "(clock() - begin) / iterations",
        "clock() - begin",
        ("test_time_without_the_first_call", "test_time_of_the_slowest"),
        ("all calls together",),
    ),
    Mutant(
        "own count of wrong elements",
        *TIMING,
        'group.all_reduce(total, op="sum")',
        "pass",
        ("test_time_counts_wrong_elements",),
        ("this rank's own count",),
    ),
    Mutant(
        "the answer is not checked",
        *TIMING,
        "wrong = check() if check else 0",
        "wrong = 0",
        ("test_time_counts_wrong_elements", "test_time_order_of_things"),
    ),
    Mutant(
        "half a bus bandwidth",
        "13.5",
        "timing",
        "busbw",
        '"all_reduce": 2 * (N - 1) / N',
        '"all_reduce": (N - 1) / N',
        ("test_busbw[all_reduce",),
        ("half of it",),
    ),
    Mutant(
        "GB/s",
        "13.5",
        "timing",
        "algbw",
        "nbytes / seconds",
        "nbytes / seconds / 1e9",
        ("test_algbw", "test_busbw", "test_busbw_at_the_edge"),
        ("in GB/s",),
    ),
    Mutant(
        "any name will do",
        "13.5",
        "timing",
        "busbw",
        "if collective not in factor:",
        "if False:",
        ("test_busbw_at_the_edge",),
        ("a KeyError of the dictionary",),
    ),
]

# ---- 13.6
RING = [
    Mutant(
        "shared links count in full",
        "13.6",
        "topology",
        "bottleneck",
        "bandwidth / count",
        "bandwidth",
        ("test_bottleneck[one link", "test_best_ring[two sockets", "test_best_ring[four machines"),
        ("each hop as if it were alone",),
    ),
    Mutant(
        "GB/s",
        "13.6",
        "topology",
        "bottleneck",
        "topology.links[name].bandwidth / count",
        "topology.links[name].bandwidth / count / 1e9",
        ("test_bottleneck",),
        ("in GB/s, expected bytes/s",),
        may=("test_best_ring",),
    ),
    Mutant(
        "the fastest hop",
        "13.6",
        "topology",
        "bottleneck",
        "return min(",
        "return max(",
        ("test_bottleneck",),
        ("the fastest hop",),
        may=("test_best_ring",),
    ),
    Mutant(
        "the ranks in their own order",
        "13.6",
        "topology",
        "best_ring",
        "\n    extend([0])",
        "",
        ("test_best_ring[own cables", "test_best_ring[two sockets", "test_best_ring[four machines"),
        ("the ranks in their own order",),
    ),
    Mutant("no ring at all", "13.6", "topology", "best_ring", "return best", "return best[1:]", ("test_best_ring",)),
]

MUTANTS = [*COST, *REDUCE_SCATTER, *ALL_GATHER, *ALL_REDUCE, *TIME, *RING]
