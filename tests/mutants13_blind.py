"""More wrong answers to 13.1, 13.5 and 13.6, written from the task texts alone, before their checks were read.

Who writes a check also knows which mistakes it finds. These were written first: by the modules' docstrings each is
wrong, whatever the checks do. Their causes were added when the checks were written; where none is given, none may be
reported. `tests/kills.py` runs them beside `mutants13.py`, each on many seeds.
"""

from tests.mutant import At, Mutant


class Blind(Mutant):
    """Nobody says which checks fail for it."""

    blind = True


class Before(At):
    """A task and its module; called, it makes a Blind of a name, a place, the old and the new text, and causes."""

    def __call__(self, name: str, place: str, old: str, new: str, *causes: str) -> Blind:
        return Blind(name, self.task, self.module, place, old, new, causes=causes)


cost = Before("13.1", "cost_model")
COST = [
    cost("naive: all arrive at once", "naive_all_reduce_cost", "", "return Cost(messages=2, share=2 * (N - 1))",
        "all at the same time"),
    cost("naive: every wire at once", "naive_all_reduce_cost", "", "return Cost(messages=2 * (N - 1), share=2)",
        "all at the same time"),
    cost("naive: the way there only", "naive_all_reduce_cost", "",
        "return Cost(messages=N - 1, share=N - 1)",
        "only the way to rank 0"),
    cost("naive: N ranks, not N-1", "naive_all_reduce_cost", "", "return Cost(messages=2 * N, share=2 * N)",
        "N each way"),
    cost("naive: one rank pays", "naive_all_reduce_cost", "", "return Cost(max(1, 2 * (N - 1)), max(1, 2 * (N - 1)))"),
    cost("one-shot: all wires at once", "one_shot_all_reduce_cost", "", "return Cost(messages=1, share=1)",
        "one vector"),
    cost("one-shot: all ranks' messages", "one_shot_all_reduce_cost", "", "return Cost(N * (N - 1), N * (N - 1))"),
    cost("one-shot: chunks", "one_shot_all_reduce_cost", "", "return Cost(messages=N - 1, share=(N - 1) / N)",
        "a chunk a step"),
    cost("one-shot: there and back", "one_shot_all_reduce_cost", "", "return Cost(2 * (N - 1), 2 * (N - 1))",
        "in and out one after"),
    cost("reduce-scatter: all of n", "ring_reduce_scatter_cost", "",
        "return Cost(messages=N - 1, share=1)",
        "whole vectors a lap"),
    cost("reduce-scatter: halves", "ring_reduce_scatter_cost", "", "return Cost(messages=N - 1, share=(N - 1) / 2)"),
    cost("all-gather: n is the shard", "ring_all_gather_cost", "",
        "return Cost(messages=N - 1, share=N - 1)",
        "whole vectors at every step"),
    cost("all-gather: N steps", "ring_all_gather_cost", "", "return Cost(messages=N, share=1)", "N steps a lap"),
    cost("all-gather: one message", "ring_all_gather_cost", "", "return Cost(messages=1, share=(N - 1) / N)"),
    cost("ring: one lap", "ring_all_reduce_cost", "", "return Cost(messages=N - 1, share=(N - 1) / N)", "one lap only"),
    cost("ring: about two", "ring_all_reduce_cost", "",
        "return Cost(messages=2 * (N - 1), share=2)",
        "whole vectors a lap"),
    cost("ring: whole division", "ring_all_reduce_cost", "", "return Cost(2 * (N - 1), 2 * (N - 1) // N)",
        "rounded down"),
    cost("ring: 2N-1 steps", "ring_all_reduce_cost", "", "return Cost(2 * N - 1, (2 * N - 1) / N)"),
    cost("crossover: alpha and beta swapped", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * beta / (saved_share * alpha)
        """,
        "the other way up"),
    cost("crossover: no cases", "crossover_bytes", "",
        "return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)",
        "the lines' formula alone"),
    cost("crossover: only equal shares", "crossover_bytes", "",
        """
        if large.share == small.share:
            return math.inf
        return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)
        """,
        "the lines' formula alone"),
    cost("crossover: a negative one is 0", "crossover_bytes", "",
        """
        if large.share == small.share:
            return 0.0 if large.messages <= small.messages else math.inf
        return max(0.0, (large.messages - small.messages) * alpha / ((small.share - large.share) * beta))
        """,
        "the lines' formula alone", "a larger share"),
    cost("crossover: equal costs never cross", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0 and extra_messages >= 0:
            return math.inf
        if saved_share < 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta)) if saved_share else 0.0
        """, "equal counts too"),
    cost("crossover: equal shares are inf", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta))
        """, "equal counts too"),
    cost("crossover: fewer messages are enough", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * alpha / (saved_share * beta)
        """, "a larger share"),
    cost("crossover: whichever way round", "crossover_bytes", "",
        """
        extra_messages, saved_share = abs(large.messages - small.messages), abs(small.share - large.share)
        if extra_messages == 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta) if saved_share else math.inf
        """),
    cost("crossover: 0 for inf", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 or saved_share <= 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta)
        """, "a larger share"),
    cost("crossover: whole bytes", "crossover_bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return float(2 ** math.ceil(math.log2(extra_messages * alpha / (saved_share * beta))))
        """),
    cost("fit: plain seconds", "fit_alpha_beta", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        beta, alpha = np.polyfit(n, T, 1)
        alpha, beta = alpha / cost.messages, beta / cost.share
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
        "least squares in plain seconds"),
    cost("fit: half the weight", "fit_alpha_beta", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        rows = np.stack([np.full_like(n, cost.messages), cost.share * n], axis=1) / np.sqrt(T)[:, None]
        scale = rows.max(axis=0)
        alpha, beta = np.linalg.lstsq(rows / scale, np.sqrt(T), rcond=None)[0] / scale
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """,
        "errors divided by the root"),
    cost("fit: through the ends", "fit_alpha_beta", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        low, high = n.argmin(), n.argmax()
        beta = (T[high] - T[low]) / (cost.share * (n[high] - n[low]))
        alpha = (T[low] - cost.share * n[low] * beta) / cost.messages
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """),
    cost("fit: alpha from the smallest, beta from the largest", "fit_alpha_beta", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        alpha = T[n.argmin()] / cost.messages
        beta = T[n.argmax()] / (cost.share * n.max())
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """),
    cost("fit: residuals in seconds", "fit_alpha_beta",
        "((T - fitted) / T)",
        "(T - fitted)",
        "seconds, expected the share"),
    cost("fit: residuals turned", "fit_alpha_beta",
        "((T - fitted) / T)",
        "((fitted - T) / T)",
        "fitted minus measured"),
    cost("fit: residuals over the fitted", "fit_alpha_beta",
        "((T - fitted) / T)",
        "((T - fitted) / fitted)",
        "shares of the fitted"),
    cost("fit: residuals without sign", "fit_alpha_beta",
        "((T - fitted) / T)",
        "np.abs((T - fitted) / T)",
        "without their sign"),
    cost("fit: residuals in order of size", "fit_alpha_beta",
        "((T - fitted) / T)",
        "((T - fitted) / T)[np.argsort(n)]",
        "in the order of the sizes"),
    cost("fit: no negative alpha", "fit_alpha_beta",
        "Fit(float(alpha),",
        "Fit(max(0.0, float(alpha)),",
        "no less than 0"),
    cost("fit: alpha of the whole", "fit_alpha_beta",
        "Fit(float(alpha),",
        "Fit(float(alpha) * cost.messages,",
        "of the whole run"),
    cost("fit: beta of the whole", "fit_alpha_beta", "float(beta),", "float(beta) * cost.share,", "of the whole run"),
    cost("fit: bandwidth for beta", "fit_alpha_beta", "float(beta),", "1 / float(beta),", "a bandwidth"),
    cost("fit: beta before alpha", "fit_alpha_beta",
        "Fit(float(alpha), float(beta),",
        "Fit(float(beta), float(alpha),",
        "beta, where alpha is expected"),
    cost("fit: through the origin", "fit_alpha_beta", "np.stack([cost.messages / T,", "np.stack([0 * T + 1e-30,"),
    cost("fit: negative alpha fitted again without", "fit_alpha_beta",
        "fitted = cost",
        """if alpha < 0:
        alpha, beta = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())
    fitted = cost""",
        "no less than 0"),
]

timing = Before("13.5", "timing")
TIMING = [
    timing("check after the runs", "time_collective",
        """wrong = check() if check else 0
    for _ in range(warmup):
        run()
    group.barrier()""",
        """for _ in range(warmup):
        run()
    wrong = check() if check else 0
    group.barrier()"""),
    timing("check at the end", "time_collective",
        "    total = torch",
        """    wrong = check() if check else 0
    total = torch"""),
    timing("check never called", "time_collective", "check() if check else 0", "0", "0: what check"),
    timing("what check returns is dropped", "time_collective",
        "wrong = check() if check else 0",
        """check() if check else 0
    wrong = 0""",
        "0: what check"),
    timing("wrong or not", "time_collective",
        "check() if check else 0",
        "int(check() > 0) if check else 0",
        "the ranks with wrong"),
    timing("no check is one wrong", "time_collective", "check() if check else 0", "check() if check else 1"),
    timing("always two warm-ups", "time_collective", "range(warmup)", "range(2)"),
    timing("one warm-up at least", "time_collective", "range(warmup)", "range(max(1, warmup))"),
    timing("no warm-up at all", "time_collective", "range(warmup)", "range(0)", "the first, slow call"),
    timing("as many warm-ups as iterations", "time_collective", "range(warmup)", "range(iterations)"),
    timing("warm-up timed", "time_collective",
        """for _ in range(warmup):
        run()
    group.barrier()
    begin = clock()
    for _ in range(iterations):""",
        """group.barrier()
    begin = clock()
    for _ in range(warmup + iterations):""",
        "the warm-up is in it"),
    timing("no barrier at all", "time_collective",
        """    group.barrier()
""",
        ""),
    timing("barrier before the warm-up", "time_collective",
        """    for _ in range(warmup):
        run()
    group.barrier()
""",
        """    group.barrier()
    for _ in range(warmup):
        run()
"""),
    timing("barrier on the clock", "time_collective",
        """    group.barrier()
    begin = clock()
""",
        """    begin = clock()
    group.barrier()
"""),
    timing("barrier at the end, on the clock", "time_collective",
        "    seconds = (",
        """    group.barrier()
    seconds = ("""),
    timing("barrier at every call", "time_collective",
        """for _ in range(iterations):
        run()""",
        """for _ in range(iterations):
        group.barrier()
        run()"""),
    timing("a clock at every call", "time_collective",
        """begin = clock()
    for _ in range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """seconds = 0.0
    for _ in range(iterations):
        begin = clock()
        run()
        seconds += (clock() - begin) / iterations"""),
    timing("the best call", "time_collective",
        """begin = clock()
    for _ in range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """seconds = float('inf')
    for _ in range(iterations):
        begin = clock()
        run()
        seconds = min(seconds, clock() - begin)"""),
    timing("not divided", "time_collective", " / iterations", "", "all calls together"),
    timing("divided by all calls", "time_collective",
        " / iterations",
        " / (warmup + iterations)",
        "the warm-up calls are counted"),
    timing("one call too many", "time_collective", "range(iterations)", "range(iterations + 1)", "one call more"),
    timing("one call timed", "time_collective",
        """range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """range(1):
        run()
    seconds = clock() - begin
    for _ in range(iterations - 1):
        run()"""),
    timing("own time", "time_collective",
        """    group.all_reduce(slowest, op="max")
""",
        "",
        "this rank's own time"),
    timing("fastest rank", "time_collective",
        """    group.all_reduce(slowest, op="max")
""",
        """    slowest.neg_()
    group.all_reduce(slowest, op="max")
    slowest.neg_()
""",
        "the minimum over"),
    timing("sum of the ranks", "time_collective",
        'all_reduce(slowest, op="max")',
        'all_reduce(slowest, op="sum")',
        "the sum over"),
    timing("mean of the ranks", "time_collective",
        'all_reduce(slowest, op="max")',
        """all_reduce(slowest, op="sum")
    slowest /= group.size""",
        "the mean over"),
    timing("rank 0's time", "time_collective",
        "torch.tensor([seconds],",
        "torch.tensor([seconds if group.rank == 0 else 0.0],",
        "rank 0's time"),
    timing("own wrong", "time_collective",
        """    group.all_reduce(total, op="sum")
""",
        "",
        "this rank's own count"),
    timing("worst rank's wrong", "time_collective",
        'all_reduce(total, op="sum")',
        'all_reduce(total, op="max")',
        "the largest count"),
    timing("mean wrong", "time_collective", "int(total.item())", "int(total.item()) // group.size", "the mean over"),
    timing("clock ignored", "time_collective",
        "clock = clock or device_clock(group.device)",
        "clock = device_clock(group.device)",
        "clock= is ignored"),
    timing("a clock that waits for no device", "time_collective",
        "clock or device_clock(group.device)",
        "clock or time.perf_counter"),
    timing("time of day", "time_collective", "clock or device_clock(group.device)", "clock or time.time"),
    timing("a look at the clock first", "time_collective",
        "    wrong = check()",
        """    clock()
    wrong = check()"""),
    timing("reduced on the clock", "time_collective",
        "    seconds = (clock()",
        """    group.all_reduce(torch.zeros(1, device=group.device))
    seconds = (clock()"""),
    timing("only rank 0 checks", "time_collective",
        "check() if check else 0",
        "check() if check and group.rank == 0 else 0",
        "rank 0's count"),
    timing("busbw: all-reduce once", "busbw", "2 * (N - 1) / N", "(N - 1) / N", "half of it"),
    timing("busbw: all-reduce 2", "busbw", "2 * (N - 1) / N", "2.0 if N > 1 else 0.0"),
    timing("busbw: all-gather of shards", "busbw",
        '"all_gather": (N - 1) / N',
        '"all_gather": N - 1',
        "N-1 whole vectors"),
    timing("busbw: reduce-scatter twice", "busbw",
        '"reduce_scatter": (N - 1) / N',
        '"reduce_scatter": 2 * (N - 1) / N',
        "all-reduce's factor"),
    timing("busbw: broadcast", "busbw",
        '"broadcast": 1.0',
        '"broadcast": (N - 1) / N',
        "all-gather's and", "0: a broadcast"),
    timing("busbw: broadcast alone is 0", "busbw", '"broadcast": 1.0', '"broadcast": float(N > 1)', "0: a broadcast"),
    timing("busbw: divided by the factor", "busbw",
        "seconds) * factor[collective]",
        "seconds) / (factor[collective] or 1)",
        "divided by the factor", "the algorithm bandwidth"),
    timing("busbw: any name", "busbw",
        "raise ValueError",
        """return algbw(nbytes, seconds)
        raise ValueError"""),
    timing("busbw: a KeyError", "busbw", "raise ValueError", "raise KeyError", "a KeyError"),
    timing("busbw: algbw", "busbw", "* factor[collective]", "* 1.0", "the algorithm bandwidth"),
    timing("busbw: at least one", "busbw",
        "* factor[collective]",
        "* (factor[collective] or 1.0)",
        "the algorithm bandwidth"),
    timing("algbw: gigabytes", "algbw", "nbytes / seconds", "nbytes / seconds / 1e9", "in GB/s"),
    timing("algbw: bits", "algbw", "nbytes / seconds", "8 * nbytes / seconds", "in bits"),
    timing("algbw: seconds a byte", "algbw", "nbytes / seconds", "seconds / nbytes", "seconds a byte"),
    timing("algbw: whole bytes", "algbw", "nbytes / seconds", "nbytes // seconds", "rounded down"),
]

ring = Before("13.6", "topology")
RING = [
    ring("nothing shared", "bottleneck", "",
        "return min((alone(hop, topology) for hop in used), default=math.inf)",
        "each hop as if it were alone"),
    ring("slowest hop over the fullest link", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min((alone(hop, topology) for hop in used), default=math.inf)
                return slowest / max(on_link.values(), default=1)
                """,
        "the slowest hop over the fullest"),
    ring("slowest hop over the hops on its slowest link", "bottleneck", "",
        """
                if not used:
                    return math.inf
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min(used, key=lambda hop: alone(hop, topology))
                link = min(topology.path(*slowest), key=lambda name: topology.links[name].bandwidth)
                return topology.links[link].bandwidth / on_link[link]
                """,
        "the slowest link alone"),
    ring("each hop over the hops on its slowest link", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = [min(topology.path(*hop), key=lambda name: topology.links[name].bandwidth) for hop in used]
                return min((topology.links[name].bandwidth / on_link[name] for name in slowest), default=math.inf)
                """,
        "each hop on the slowest link of its way"),
    ring("each hop over the fullest link on its way", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (alone(hop, topology) / max(on_link[name] for name in topology.path(*hop)) for hop in used),
                    default=math.inf,
                )
                """,
        "each hop over the fullest link"),
    ring("the fullest link", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                most = max(on_link.values())
                return min(topology.links[name].bandwidth / n for name, n in on_link.items() if n == most)
                """,
        "the fullest link alone"),
    ring("the slowest link", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                name = min(on_link, key=lambda name: topology.links[name].bandwidth)
                return topology.links[name].bandwidth / on_link[name]
                """,
        "the slowest link alone"),
    ring("there and back share", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                back = Counter(name for a, b in used for name in topology.path(b, a))
                return min(
                    (topology.links[name].bandwidth / (n + back[name]) for name, n in on_link.items()),
                    default=math.inf,
                )
                """,
        "there and back"),
    ring("the way back", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(b, a))
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
        "the ways back"),
    ring("first link of the way", "bottleneck", "",
        """
                on_link = Counter(topology.path(a, b)[0] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
        "only the first link"),
    ring("last link of the way", "bottleneck", "",
        """
                on_link = Counter(topology.path(a, b)[-1] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """,
        "only the last link"),
    ring("links one after another", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                ways = [sum(on_link[x] / topology.links[x].bandwidth for x in topology.path(*hop)) for hop in used]
                return 1 / max(ways) if ways else math.inf
                """,
        "a way's links one after"),
    ring("a link counts twice at most", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (topology.links[name].bandwidth / min(n, 2) for name, n in on_link.items()), default=math.inf
                )
                """,
        "a third hop"),
    ring("all hops share all links", "bottleneck", "",
        """
                names = {name for a, b in used for name in topology.path(a, b)}
                return min((topology.links[name].bandwidth / len(used) for name in names), default=math.inf)
                """,
        "every link as if"),
    ring("mean of the links", "bottleneck", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                rates = [topology.links[name].bandwidth / n for name, n in on_link.items()]
                return sum(rates) / len(rates) if rates else math.inf
                """,
        "the mean"),
    ring("fastest link", "bottleneck", "return min((", "return max((", "the fastest"),
    ring("no hops are no bandwidth", "bottleneck", "default=math.inf", "default=0.0", "0, expected math.inf"),
    ring("bandwidth times hops", "bottleneck", "bandwidth / count", "bandwidth * count", "times the number"),
    ring("idle links too", "bottleneck",
        "return min((",
        """if not used:
        return min(link.bandwidth for link in topology.links.values())
    return min((""",
        "an idle link's"),
    ring("in order", "best_ring", "", "return list(range(topology.size))", "the ranks in their own order"),
    ring("backwards", "best_ring", "",
        "return [0, *range(topology.size - 1, 0, -1)]",
        "the ranks in their own order, backwards"),
    ring("nearest first", "best_ring", "",
        """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: alone((order[-1], rank), topology)))
                return order
                """,
        "always the fastest next hop"),
    ring("nearest first, shared", "best_ring", "",
        """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: bottleneck(list(pairwise([*order, rank])), topology)))
                return order
                """,
        "always the next hop that slows"),
    ring("the best open path", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: bottleneck(list(pairwise(order)), topology))
                """,
        "the best open path"),
    ring("sum of the hops", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: sum(alone(hop, topology) for hop in hops(order)))
                """,
        "the largest sum"),
    ring("shortest time of all hops", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: sum(1 / alone(hop, topology) for hop in hops(order)))
                """,
        "the smallest sum"),
    ring("slowest hop alone", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return max(rings, key=lambda order: min((alone(hop, topology) for hop in hops(order)), default=0))
                """,
        "each hop as if it were alone"),
    # where all are equal, that comes first
    ring("fewest hops on a link", "best_ring", "",
        """
                from itertools import permutations

                def fullest(order):
                    return max(Counter(x for a, b in hops(order) for x in topology.path(a, b)).values(), default=0)

                return min(([0, *rest] for rest in permutations(range(1, topology.size))), key=fullest)
                """,
        "the fewest hops", "the ranks in their own order"),
    ring("fewest links", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: sum(len(topology.path(a, b)) for a, b in hops(order)))
                """,
        "the fewest links", "the ranks in their own order"),
    ring("a thousand tries", "best_ring", "",
        """
                from itertools import islice, permutations

                rings = ([0, *rest] for rest in islice(permutations(range(1, topology.size)), 1000))
                return max(rings, key=lambda order: ring_bandwidth(order, topology))
                """),
    ring("half of the rings: each read one way only", "best_ring", "",
        """
                from itertools import permutations

                ways = (rest for rest in permutations(range(1, topology.size)) if not rest or rest[0] <= rest[-1])
                return max(([0, *rest] for rest in ways), key=lambda order: ring_bandwidth(order, topology))
                """),
    ring("exchanges while they help", "best_ring", "",
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
        "neighbours exchanged"),
    # of several equally slow ones the first
    ring("the slowest ring", "best_ring", "",
        """
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return min(rings, key=lambda order: ring_bandwidth(order, topology))
                """,
        "the ranks in their own order"),
    ring("even ranks, then odd ones", "best_ring", "",
        "return [*range(0, topology.size, 2), *range(1, topology.size, 2)]"),
    ring("first improvement", "best_ring", "if rank not in order:", "if rank not in order and best == list(range(N)):"),
    ring("one rank left out", "best_ring", "    return best", "    return best[:-1] if N > 1 else best"),
    ring("0 again at the end", "best_ring", "    return best", "    return [*best, 0]"),
    ring("does not begin with 0", "best_ring", "    return best", "    return [*best[1:], 0]"),
    ring("hops for ranks", "best_ring", "    return best", "    return hops(best)"),
    ring("turns back too early", "best_ring", "bandwidth <= best_bandwidth", "bandwidth <= 1.5 * best_bandwidth"),
]

MUTANTS = [*COST, *TIMING, *RING]
