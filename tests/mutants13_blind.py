"""More wrong answers to 13.1, 13.5 and 13.6, written from the task texts alone, before their checks were read.

Who writes a check also knows which mistakes it finds. These were written first: by the modules' docstrings each is
wrong, whatever the checks do. `tests/kills.py` runs them beside `mutants13.py`, each on many seeds.
"""

from __future__ import annotations

from dataclasses import replace

from tests.mutant import Mutant


class Blind(Mutant):
    """What is true of it, `CAUSES` says."""

    blind = True


def _cost(name: str, function: str, new: str) -> Blind:
    return Blind(name, "13.1", "cost_model", function, "", new)


def _timing(name: str, old: str, new: str, function: str = "time_collective") -> Blind:
    return Blind(name, "13.5", "timing", function, old, new)


def _ring(name: str, function: str, old: str, new: str) -> Blind:
    return Blind(name, "13.6", "topology", function, old, new)


COST = [
    _cost("naive: all arrive at once", "naive_all_reduce_cost", "return Cost(messages=2, share=2 * (N - 1))"),
    _cost("naive: every wire at once", "naive_all_reduce_cost", "return Cost(messages=2 * (N - 1), share=2)"),
    _cost("naive: the way there only", "naive_all_reduce_cost", "return Cost(messages=N - 1, share=N - 1)"),
    _cost("naive: N ranks, not N-1", "naive_all_reduce_cost", "return Cost(messages=2 * N, share=2 * N)"),
    _cost("naive: one rank pays", "naive_all_reduce_cost", "return Cost(max(1, 2 * (N - 1)), max(1, 2 * (N - 1)))"),
    _cost("one-shot: all wires at once", "one_shot_all_reduce_cost", "return Cost(messages=1, share=1)"),
    _cost("one-shot: all ranks' messages", "one_shot_all_reduce_cost", "return Cost(N * (N - 1), N * (N - 1))"),
    _cost("one-shot: chunks", "one_shot_all_reduce_cost", "return Cost(messages=N - 1, share=(N - 1) / N)"),
    _cost("one-shot: there and back", "one_shot_all_reduce_cost", "return Cost(2 * (N - 1), 2 * (N - 1))"),
    _cost("reduce-scatter: all of n", "ring_reduce_scatter_cost", "return Cost(messages=N - 1, share=1)"),
    _cost("reduce-scatter: halves", "ring_reduce_scatter_cost", "return Cost(messages=N - 1, share=(N - 1) / 2)"),
    _cost("all-gather: n is the shard", "ring_all_gather_cost", "return Cost(messages=N - 1, share=N - 1)"),
    _cost("all-gather: N steps", "ring_all_gather_cost", "return Cost(messages=N, share=1)"),
    _cost("all-gather: one message", "ring_all_gather_cost", "return Cost(messages=1, share=(N - 1) / N)"),
    _cost("ring: one lap", "ring_all_reduce_cost", "return Cost(messages=N - 1, share=(N - 1) / N)"),
    _cost("ring: about two", "ring_all_reduce_cost", "return Cost(messages=2 * (N - 1), share=2)"),
    _cost("ring: whole division", "ring_all_reduce_cost", "return Cost(2 * (N - 1), 2 * (N - 1) // N)"),
    _cost("ring: 2N-1 steps", "ring_all_reduce_cost", "return Cost(2 * N - 1, (2 * N - 1) / N)"),
    _cost(
        "crossover: alpha and beta swapped",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * beta / (saved_share * alpha)
        """,
    ),
    _cost(
        "crossover: no cases",
        "crossover_bytes",
        "return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)",
    ),
    _cost(
        "crossover: only equal shares",
        "crossover_bytes",
        """
        if large.share == small.share:
            return math.inf
        return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)
        """,
    ),
    _cost(
        "crossover: a negative one is 0",
        "crossover_bytes",
        """
        if large.share == small.share:
            return 0.0 if large.messages <= small.messages else math.inf
        return max(0.0, (large.messages - small.messages) * alpha / ((small.share - large.share) * beta))
        """,
    ),
    _cost(
        "crossover: equal costs never cross",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0 and extra_messages >= 0:
            return math.inf
        if saved_share < 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta)) if saved_share else 0.0
        """,
    ),
    _cost(
        "crossover: equal shares are inf",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta))
        """,
    ),
    _cost(
        "crossover: fewer messages are enough",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * alpha / (saved_share * beta)
        """,
    ),
    _cost(
        "crossover: whichever way round",
        "crossover_bytes",
        """
        extra_messages, saved_share = abs(large.messages - small.messages), abs(small.share - large.share)
        if extra_messages == 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta) if saved_share else math.inf
        """,
    ),
    _cost(
        "crossover: 0 for inf",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 or saved_share <= 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta)
        """,
    ),
    _cost(
        "crossover: whole bytes",
        "crossover_bytes",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return float(2 ** math.ceil(math.log2(extra_messages * alpha / (saved_share * beta))))
        """,
    ),
    _cost(
        "fit: plain seconds",
        "fit_alpha_beta",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        beta, alpha = np.polyfit(n, T, 1)
        alpha, beta = alpha / cost.messages, beta / cost.share
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
    ),
    _cost(
        "fit: half the weight",
        "fit_alpha_beta",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        rows = np.stack([np.full_like(n, cost.messages), cost.share * n], axis=1) / np.sqrt(T)[:, None]
        scale = rows.max(axis=0)
        alpha, beta = np.linalg.lstsq(rows / scale, np.sqrt(T), rcond=None)[0] / scale
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
    ),
    _cost(
        "fit: through the ends",
        "fit_alpha_beta",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        low, high = n.argmin(), n.argmax()
        beta = (T[high] - T[low]) / (cost.share * (n[high] - n[low]))
        alpha = (T[low] - cost.share * n[low] * beta) / cost.messages
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
    ),
    _cost(
        "fit: alpha from the smallest, beta from the largest",
        "fit_alpha_beta",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        alpha = T[n.argmin()] / cost.messages
        beta = T[n.argmax()] / (cost.share * n.max())
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
    ),
    *[
        Blind(name, "13.1", "cost_model", "fit_alpha_beta", old, new)
        for name, old, new in [
            ("fit: residuals in seconds", "((T - fitted) / T)", "(T - fitted)"),
            ("fit: residuals turned", "((T - fitted) / T)", "((fitted - T) / T)"),
            ("fit: residuals over the fitted", "((T - fitted) / T)", "((T - fitted) / fitted)"),
            ("fit: residuals without sign", "((T - fitted) / T)", "np.abs((T - fitted) / T)"),
            ("fit: residuals in order of size", "((T - fitted) / T)", "((T - fitted) / T)[np.argsort(n)]"),
            ("fit: no negative alpha", "Fit(float(alpha),", "Fit(max(0.0, float(alpha)),"),
            ("fit: alpha of the whole", "Fit(float(alpha),", "Fit(float(alpha) * cost.messages,"),
            ("fit: beta of the whole", "float(beta),", "float(beta) * cost.share,"),
            ("fit: bandwidth for beta", "float(beta),", "1 / float(beta),"),
            ("fit: beta before alpha", "Fit(float(alpha), float(beta),", "Fit(float(beta), float(alpha),"),
            ("fit: through the origin", "np.stack([cost.messages / T,", "np.stack([0 * T + 1e-30,"),
            (
                "fit: negative alpha fitted again without",
                "fitted = cost",
                "if alpha < 0:\n        alpha, beta = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())\n"
                "    fitted = cost",
            ),
        ]
    ],
]

TIMING = [
    _timing(
        "check after the runs",
        "wrong = check() if check else 0\n    for _ in range(warmup):\n        run()\n    group.barrier()",
        "for _ in range(warmup):\n        run()\n    wrong = check() if check else 0\n    group.barrier()",
    ),
    _timing("check at the end", "    total = torch", "    wrong = check() if check else 0\n    total = torch"),
    _timing("check never called", "check() if check else 0", "0"),
    _timing(
        "what check returns is dropped", "wrong = check() if check else 0", "check() if check else 0\n    wrong = 0"
    ),
    _timing("wrong or not", "check() if check else 0", "int(check() > 0) if check else 0"),
    _timing("no check is one wrong", "check() if check else 0", "check() if check else 1"),
    _timing("always two warm-ups", "range(warmup)", "range(2)"),
    _timing("one warm-up at least", "range(warmup)", "range(max(1, warmup))"),
    _timing("no warm-up at all", "range(warmup)", "range(0)"),
    _timing("as many warm-ups as iterations", "range(warmup)", "range(iterations)"),
    _timing(
        "warm-up timed",
        "for _ in range(warmup):\n        run()\n    group.barrier()\n    begin = clock()\n"
        "    for _ in range(iterations):",
        "group.barrier()\n    begin = clock()\n    for _ in range(warmup + iterations):",
    ),
    _timing("no barrier at all", "    group.barrier()\n", ""),
    _timing(
        "barrier before the warm-up",
        "    for _ in range(warmup):\n        run()\n    group.barrier()\n",
        "    group.barrier()\n    for _ in range(warmup):\n        run()\n",
    ),
    _timing(
        "barrier on the clock",
        "    group.barrier()\n    begin = clock()\n",
        "    begin = clock()\n    group.barrier()\n",
    ),
    _timing("barrier at the end, on the clock", "    seconds = (", "    group.barrier()\n    seconds = ("),
    _timing(
        "barrier at every call",
        "for _ in range(iterations):\n        run()",
        "for _ in range(iterations):\n        group.barrier()\n        run()",
    ),
    _timing(
        "a clock at every call",
        "begin = clock()\n    for _ in range(iterations):\n        run()\n    seconds = (clock() - begin) / iterations",
        "seconds = 0.0\n    for _ in range(iterations):\n        begin = clock()\n        run()\n"
        "        seconds += (clock() - begin) / iterations",
    ),
    _timing(
        "the best call",
        "begin = clock()\n    for _ in range(iterations):\n        run()\n    seconds = (clock() - begin) / iterations",
        "seconds = float('inf')\n    for _ in range(iterations):\n        begin = clock()\n        run()\n"
        "        seconds = min(seconds, clock() - begin)",
    ),
    _timing("not divided", " / iterations", ""),
    _timing("divided by all calls", " / iterations", " / (warmup + iterations)"),
    _timing("one call too many", "range(iterations)", "range(iterations + 1)"),
    _timing(
        "one call timed",
        "range(iterations):\n        run()\n    seconds = (clock() - begin) / iterations",
        "range(1):\n        run()\n    seconds = clock() - begin\n    for _ in range(iterations - 1):\n        run()",
    ),
    _timing("own time", '    group.all_reduce(slowest, op="max")\n', ""),
    _timing(
        "fastest rank",
        '    group.all_reduce(slowest, op="max")\n',
        '    slowest.neg_()\n    group.all_reduce(slowest, op="max")\n    slowest.neg_()\n',
    ),
    _timing("sum of the ranks", 'all_reduce(slowest, op="max")', 'all_reduce(slowest, op="sum")'),
    _timing(
        "mean of the ranks", 'all_reduce(slowest, op="max")', 'all_reduce(slowest, op="sum")\n    slowest /= group.size'
    ),
    _timing("rank 0's time", "torch.tensor([seconds],", "torch.tensor([seconds if group.rank == 0 else 0.0],"),
    _timing("own wrong", '    group.all_reduce(total, op="sum")\n', ""),
    _timing("worst rank's wrong", 'all_reduce(total, op="sum")', 'all_reduce(total, op="max")'),
    _timing("mean wrong", "int(total.item())", "int(total.item()) // group.size"),
    _timing("clock ignored", "clock = clock or device_clock(group.device)", "clock = device_clock(group.device)"),
    _timing("a clock that waits for no device", "clock or device_clock(group.device)", "clock or time.perf_counter"),
    _timing("time of day", "clock or device_clock(group.device)", "clock or time.time"),
    _timing("a look at the clock first", "    wrong = check()", "    clock()\n    wrong = check()"),
    _timing(
        "reduced on the clock",
        "    seconds = (clock()",
        "    group.all_reduce(torch.zeros(1, device=group.device))\n    seconds = (clock()",
    ),
    _timing("only rank 0 checks", "check() if check else 0", "check() if check and group.rank == 0 else 0"),
    *[
        _timing(name, old, new, "busbw")
        for name, old, new in [
            ("busbw: all-reduce once", "2 * (N - 1) / N", "(N - 1) / N"),
            ("busbw: all-reduce 2", "2 * (N - 1) / N", "2.0 if N > 1 else 0.0"),
            ("busbw: all-gather of shards", '"all_gather": (N - 1) / N', '"all_gather": N - 1'),
            ("busbw: reduce-scatter twice", '"reduce_scatter": (N - 1) / N', '"reduce_scatter": 2 * (N - 1) / N'),
            ("busbw: broadcast", '"broadcast": 1.0', '"broadcast": (N - 1) / N'),
            ("busbw: broadcast alone is 0", '"broadcast": 1.0', '"broadcast": float(N > 1)'),
            ("busbw: divided by the factor", "seconds) * factor[collective]", "seconds) / (factor[collective] or 1)"),
            ("busbw: any name", "raise ValueError", "return algbw(nbytes, seconds)\n        raise ValueError"),
            ("busbw: a KeyError", "raise ValueError", "raise KeyError"),
            ("busbw: algbw", "* factor[collective]", "* 1.0"),
            ("busbw: at least one", "* factor[collective]", "* (factor[collective] or 1.0)"),
        ]
    ],
    _timing("algbw: gigabytes", "nbytes / seconds", "nbytes / seconds / 1e9", "algbw"),
    _timing("algbw: bits", "nbytes / seconds", "8 * nbytes / seconds", "algbw"),
    _timing("algbw: seconds a byte", "nbytes / seconds", "seconds / nbytes", "algbw"),
    _timing("algbw: whole bytes", "nbytes / seconds", "nbytes // seconds", "algbw"),
]

RING = [
    *[
        _ring(name, "bottleneck", "", new)
        for name, new in [
            ("nothing shared", "return min((alone(hop, topology) for hop in used), default=math.inf)"),
            (
                "slowest hop over the fullest link",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min((alone(hop, topology) for hop in used), default=math.inf)
                return slowest / max(on_link.values(), default=1)
                """,
            ),
            (
                "slowest hop over the hops on its slowest link",
                """
                if not used:
                    return math.inf
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min(used, key=lambda hop: alone(hop, topology))
                link = min(topology.path(*slowest), key=lambda name: topology.links[name].bandwidth)
                return topology.links[link].bandwidth / on_link[link]
                """,
            ),
            (
                "each hop over the hops on its slowest link",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = [min(topology.path(*hop), key=lambda name: topology.links[name].bandwidth) for hop in used]
                return min((topology.links[name].bandwidth / on_link[name] for name in slowest), default=math.inf)
                """,
            ),
            (
                "each hop over the fullest link on its way",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (alone(hop, topology) / max(on_link[name] for name in topology.path(*hop)) for hop in used),
                    default=math.inf,
                )
                """,
            ),
            (
                "the fullest link",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                most = max(on_link.values())
                return min(topology.links[name].bandwidth / n for name, n in on_link.items() if n == most)
                """,
            ),
            (
                "the slowest link",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                name = min(on_link, key=lambda name: topology.links[name].bandwidth)
                return topology.links[name].bandwidth / on_link[name]
                """,
            ),
            (
                "there and back share",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                back = Counter(name for a, b in used for name in topology.path(b, a))
                return min(
                    (topology.links[name].bandwidth / (n + back[name]) for name, n in on_link.items()),
                    default=math.inf,
                )
                """,
            ),
            (
                "the way back",
                """
                on_link = Counter(name for a, b in used for name in topology.path(b, a))
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
            ),
            (
                "first link of the way",
                """
                on_link = Counter(topology.path(a, b)[0] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
            ),
            (
                "last link of the way",
                """
                on_link = Counter(topology.path(a, b)[-1] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
            ),
            (
                "links one after another",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                ways = [sum(on_link[x] / topology.links[x].bandwidth for x in topology.path(*hop)) for hop in used]
                return 1 / max(ways) if ways else math.inf
                """,
            ),
            (
                "a link counts twice at most",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (topology.links[name].bandwidth / min(n, 2) for name, n in on_link.items()), default=math.inf
                )
                """,
            ),
            (
                "all hops share all links",
                """
                names = {name for a, b in used for name in topology.path(a, b)}
                return min((topology.links[name].bandwidth / len(used) for name in names), default=math.inf)
                """,
            ),
            (
                "mean of the links",
                """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                rates = [topology.links[name].bandwidth / n for name, n in on_link.items()]
                return sum(rates) / len(rates) if rates else math.inf
                """,
            ),
        ]
    ],
    _ring("fastest link", "bottleneck", "return min((", "return max(("),
    _ring("no hops are no bandwidth", "bottleneck", "default=math.inf", "default=0.0"),
    _ring("bandwidth times hops", "bottleneck", "bandwidth / count", "bandwidth * count"),
    _ring(
        "idle links too",
        "bottleneck",
        "return min((",
        "if not used:\n        return min(link.bandwidth for link in topology.links.values())\n    return min((",
    ),
    *[
        _ring(name, "best_ring", "", new)
        for name, new in [
            ("in order", "return list(range(topology.size))"),
            ("backwards", "return [0, *range(topology.size - 1, 0, -1)]"),
            (
                "nearest first",
                """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: alone((order[-1], rank), topology)))
                return order
                """,
            ),
            (
                "nearest first, shared",
                """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: bottleneck(list(pairwise([*order, rank])), topology)))
                return order
                """,
            ),
            (
                "the best open path",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: bottleneck(list(pairwise(order)), topology))
                """,
            ),
            (
                "sum of the hops",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: sum(alone(hop, topology) for hop in hops(order)))
                """,
            ),
            (
                "shortest time of all hops",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: sum(1 / alone(hop, topology) for hop in hops(order)))
                """,
            ),
            (
                "slowest hop alone",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: min((alone(hop, topology) for hop in hops(order)), default=0))
                """,
            ),
            (
                "fewest hops on a link",
                """
                from itertools import permutations

                def fullest(order):
                    return max(Counter(x for a, b in hops(order) for x in topology.path(a, b)).values(), default=0)

                return min(([0, *rest] for rest in permutations(range(1, topology.size))), key=fullest)
                """,
            ),
            (
                "fewest links",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: sum(len(topology.path(a, b)) for a, b in hops(order)))
                """,
            ),
            (
                "a thousand tries",
                """
                from itertools import islice, permutations

                rings = ([0, *rest] for rest in islice(permutations(range(1, topology.size)), 1000))
                return max(rings, key=lambda order: ring_bandwidth(order, topology))
                """,
            ),
            (
                "half of the rings: each read one way only",
                """
                from itertools import permutations

                ways = (rest for rest in permutations(range(1, topology.size)) if not rest or rest[0] <= rest[-1])
                return max(([0, *rest] for rest in ways), key=lambda order: ring_bandwidth(order, topology))
                """,
            ),
            (
                "exchanges while they help",
                """
                order, better = list(range(topology.size)), True
                while better:
                    better = False
                    for i in range(1, len(order) - 1):
                        other = [*order[:i], order[i + 1], order[i], *order[i + 2 :]]
                        if ring_bandwidth(other, topology) > ring_bandwidth(order, topology):
                            order, better = other, True
                return order
                """,
            ),
            (
                "the slowest ring",
                """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: ring_bandwidth(order, topology))
                """,
            ),
            ("even ranks, then odd ones", "return [*range(0, topology.size, 2), *range(1, topology.size, 2)]"),
        ]
    ],
    _ring(
        "first improvement", "best_ring", "if rank not in order:", "if rank not in order and best == list(range(N)):"
    ),
    _ring("one rank left out", "best_ring", "    return best", "    return best[:-1] if N > 1 else best"),
    _ring("0 again at the end", "best_ring", "    return best", "    return [*best, 0]"),
    _ring("does not begin with 0", "best_ring", "    return best", "    return [*best[1:], 0]"),
    _ring("hops for ranks", "best_ring", "    return best", "    return hops(best)"),
    _ring("turns back too early", "best_ring", "bandwidth <= best_bandwidth", "bandwidth <= 1.5 * best_bandwidth"),
]

# What is true of them, written when the checks were: of the others no cause may be told.
_SLOWEST, _LINES = ("the slowest link alone",), ("the lines' formula alone",)
CAUSES: dict[str, tuple[str, ...]] = {
    "naive: the way there only": ("only the way to rank 0",),
    "all-gather: n is the shard": ("whole vectors at every step",),
    "all-gather: N steps": ("N steps a lap",),
    "ring: one lap": ("one lap only",),
    "ring: about two": ("whole vectors a lap",),
    "reduce-scatter: all of n": ("whole vectors a lap",),
    "crossover: alpha and beta swapped": ("the other way up",),
    "crossover: no cases": _LINES,
    "crossover: only equal shares": _LINES,
    "crossover: a negative one is 0": _LINES,
    "fit: plain seconds": ("least squares in plain seconds",),
    "fit: half the weight": ("errors divided by the root",),
    "fit: residuals in seconds": ("seconds, expected the share",),
    "fit: residuals turned": ("fitted minus measured",),
    "fit: residuals over the fitted": ("shares of the fitted",),
    "fit: residuals without sign": ("without their sign",),
    "fit: residuals in order of size": ("in the order of the sizes",),
    "fit: no negative alpha": ("no less than 0",),
    "fit: negative alpha fitted again without": ("no less than 0",),
    "fit: alpha of the whole": ("of the whole run",),
    "fit: beta of the whole": ("of the whole run",),
    "fit: bandwidth for beta": ("a bandwidth",),
    "fit: beta before alpha": ("beta, where alpha is asked",),
    "check never called": ("0: what check",),
    "what check returns is dropped": ("0: what check",),
    "wrong or not": ("the ranks with wrong",),
    "no warm-up at all": ("the first, slow call",),
    "warm-up timed": ("the warm-up is in it",),
    "not divided": ("all calls together",),
    "divided by all calls": ("the warm-up calls are counted",),
    "one call too many": ("one call more",),
    "own time": ("this rank's own time",),
    "fastest rank": ("the minimum over",),
    "sum of the ranks": ("the sum over",),
    "mean of the ranks": ("the mean over",),
    "rank 0's time": ("rank 0's time",),
    "own wrong": ("this rank's own count",),
    "worst rank's wrong": ("the largest count",),
    "mean wrong": ("the mean over",),
    "clock ignored": ("clock= is ignored",),
    "only rank 0 checks": ("rank 0's count",),
    "busbw: all-reduce once": ("half of it",),
    "busbw: all-gather of shards": ("N-1 whole vectors",),
    "busbw: reduce-scatter twice": ("all-reduce's factor",),
    "busbw: broadcast": ("all-gather's and", "0: a broadcast"),
    "busbw: broadcast alone is 0": ("0: a broadcast",),
    "busbw: divided by the factor": ("divided by the factor", "the algorithm bandwidth"),
    "busbw: a KeyError": ("a KeyError",),
    "busbw: algbw": ("the algorithm bandwidth",),
    "busbw: at least one": ("the algorithm bandwidth",),
    "algbw: gigabytes": ("in GB/s",),
    "algbw: bits": ("in bits",),
    "algbw: seconds a byte": ("seconds a byte",),
    "algbw: whole bytes": ("rounded down",),
    "nothing shared": ("each hop as if it were alone",),
    "slowest hop over the fullest link": ("the slowest hop over the fullest",),
    "slowest hop over the hops on its slowest link": _SLOWEST,
    "each hop over the hops on its slowest link": ("each hop on the slowest link of its way",),
    "each hop over the fullest link on its way": ("each hop over the fullest link",),
    "the fullest link": ("the fullest link alone",),
    "the slowest link": _SLOWEST,
    "there and back share": ("there and back",),
    "the way back": ("the ways back",),
    "first link of the way": ("only the first link",),
    "last link of the way": ("only the last link",),
    "links one after another": ("a way's links one after",),
    "a link counts twice at most": ("a third hop",),
    "all hops share all links": ("every link as if",),
    "mean of the links": ("the mean",),
    "fastest link": ("the fastest",),
    "bandwidth times hops": ("times the number",),
    "no hops are no bandwidth": ("0, expected math.inf",),
    "idle links too": ("an idle link's",),
    "in order": ("the ranks in their own order",),
    "backwards": ("the ranks in their own order, backwards",),
    "nearest first": ("always the fastest next hop",),
    "nearest first, shared": ("always the next hop that slows",),
    "the best open path": ("the best open path",),
    "sum of the hops": ("the largest sum",),
    "shortest time of all hops": ("the smallest sum",),
    "slowest hop alone": ("each hop as if it were alone",),
    "fewest hops on a link": (
        "the fewest hops",
        "the ranks in their own order",
    ),  # where all are equal, that comes first
    "fewest links": ("the fewest links", "the ranks in their own order"),
    "exchanges while they help": ("neighbours exchanged",),
    "the slowest ring": ("the ranks in their own order",),  # of several equally slow ones the first
}

MUTANTS = [replace(mutant, causes=CAUSES.get(mutant.name, ())) for mutant in (*COST, *TIMING, *RING)]
