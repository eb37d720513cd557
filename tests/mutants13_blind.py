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
    """A place; called, it makes a Blind of a name, the old and the new text, and causes."""

    def __call__(self, name: str, old: str, new: str, *causes: str) -> Blind:
        return Blind(name, self.task, self.module, self.place, old, new, causes=causes)


naive_all_reduce_cost = Before("13.1", "cost_model", "naive_all_reduce_cost")
one_shot_all_reduce_cost = Before("13.1", "cost_model", "one_shot_all_reduce_cost")
ring_reduce_scatter_cost = Before("13.1", "cost_model", "ring_reduce_scatter_cost")
ring_all_gather_cost = Before("13.1", "cost_model", "ring_all_gather_cost")
ring_all_reduce_cost, crossover_bytes = Before.each("13.1", "cost_model", "ring_all_reduce_cost", "crossover_bytes")
fit_alpha_beta = Before("13.1", "cost_model", "fit_alpha_beta")
COST = [
    naive_all_reduce_cost("naive: all arrive at once", "", "return Cost(messages=2, share=2 * (N - 1))",
        "all at the same time"),
    naive_all_reduce_cost("naive: every wire at once", "", "return Cost(messages=2 * (N - 1), share=2)",
        "all at the same time"),
    naive_all_reduce_cost("naive: the way there only", "", "return Cost(messages=N - 1, share=N - 1)",
        "only the way to rank 0"),
    naive_all_reduce_cost("naive: N ranks, not N-1", "", "return Cost(messages=2 * N, share=2 * N)", "N each way"),
    naive_all_reduce_cost("naive: one rank pays", "", "return Cost(max(1, 2 * (N - 1)), max(1, 2 * (N - 1)))"),
    one_shot_all_reduce_cost("one-shot: all wires at once", "", "return Cost(messages=1, share=1)", "one vector"),
    one_shot_all_reduce_cost("one-shot: all ranks' messages", "", "return Cost(N * (N - 1), N * (N - 1))"),
    one_shot_all_reduce_cost("one-shot: chunks", "", "return Cost(messages=N - 1, share=(N - 1) / N)",
        "a chunk a step"),
    one_shot_all_reduce_cost("one-shot: there and back", "", "return Cost(2 * (N - 1), 2 * (N - 1))",
        "in and out one after"),
    ring_reduce_scatter_cost("reduce-scatter: all of n", "", "return Cost(messages=N - 1, share=1)",
        "whole vectors a lap"),
    ring_reduce_scatter_cost("reduce-scatter: halves", "", "return Cost(messages=N - 1, share=(N - 1) / 2)"),
    ring_all_gather_cost("all-gather: n is the shard", "", "return Cost(messages=N - 1, share=N - 1)",
        "whole vectors at every step"),
    ring_all_gather_cost("all-gather: N steps", "", "return Cost(messages=N, share=1)", "N steps a lap"),
    ring_all_gather_cost("all-gather: one message", "", "return Cost(messages=1, share=(N - 1) / N)"),
    ring_all_reduce_cost("ring: one lap", "", "return Cost(messages=N - 1, share=(N - 1) / N)", "one lap only"),
    ring_all_reduce_cost("ring: about two", "", "return Cost(messages=2 * (N - 1), share=2)", "whole vectors a lap"),
    ring_all_reduce_cost("ring: whole division", "", "return Cost(2 * (N - 1), 2 * (N - 1) // N)", "rounded down"),
    ring_all_reduce_cost("ring: 2N-1 steps", "", "return Cost(2 * N - 1, (2 * N - 1) / N)"),
    crossover_bytes("crossover: alpha and beta swapped", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * beta / (saved_share * alpha)
        """, "the other way up"),
    crossover_bytes("crossover: no cases", "",
        "return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)",
        "the lines' formula alone"),
    crossover_bytes("crossover: only equal shares", "",
        """
        if large.share == small.share:
            return math.inf
        return (large.messages - small.messages) * alpha / ((small.share - large.share) * beta)
        """, "the lines' formula alone"),
    crossover_bytes("crossover: a negative one is 0", "",
        """
        if large.share == small.share:
            return 0.0 if large.messages <= small.messages else math.inf
        return max(0.0, (large.messages - small.messages) * alpha / ((small.share - large.share) * beta))
        """, "the lines' formula alone", "a larger share"),
    crossover_bytes("crossover: equal costs never cross", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0 and extra_messages >= 0:
            return math.inf
        if saved_share < 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta)) if saved_share else 0.0
        """, "equal counts too"),
    crossover_bytes("crossover: equal shares are inf", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if saved_share <= 0:
            return math.inf
        return max(0.0, extra_messages * alpha / (saved_share * beta))
        """, "equal counts too"),
    crossover_bytes("crossover: fewer messages are enough", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return extra_messages * alpha / (saved_share * beta)
        """, "a larger share"),
    crossover_bytes("crossover: whichever way round", "",
        """
        extra_messages, saved_share = abs(large.messages - small.messages), abs(small.share - large.share)
        if extra_messages == 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta) if saved_share else math.inf
        """),
    crossover_bytes("crossover: 0 for inf", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 or saved_share <= 0:
            return 0.0
        return extra_messages * alpha / (saved_share * beta)
        """, "a larger share"),
    crossover_bytes("crossover: whole bytes", "",
        """
        extra_messages, saved_share = large.messages - small.messages, small.share - large.share
        if extra_messages <= 0 and saved_share >= 0:
            return 0.0
        if saved_share <= 0:
            return math.inf
        return float(2 ** math.ceil(math.log2(extra_messages * alpha / (saved_share * beta))))
        """),
    fit_alpha_beta("fit: plain seconds", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        beta, alpha = np.polyfit(n, T, 1)
        alpha, beta = alpha / cost.messages, beta / cost.share
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """, "least squares in plain seconds"),
    fit_alpha_beta("fit: half the weight", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        rows = np.stack([np.full_like(n, cost.messages), cost.share * n], axis=1) / np.sqrt(T)[:, None]
        scale = rows.max(axis=0)
        alpha, beta = np.linalg.lstsq(rows / scale, np.sqrt(T), rcond=None)[0] / scale
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """, "errors divided by the root"),
    fit_alpha_beta("fit: through the ends", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        low, high = n.argmin(), n.argmax()
        beta = (T[high] - T[low]) / (cost.share * (n[high] - n[low]))
        alpha = (T[low] - cost.share * n[low] * beta) / cost.messages
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """),
    fit_alpha_beta("fit: alpha from the smallest, beta from the largest", "",
        """
        n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        alpha = T[n.argmin()] / cost.messages
        beta = T[n.argmax()] / (cost.share * n.max())
        fitted = cost.messages * alpha + cost.share * n * beta
        return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
        """),
    fit_alpha_beta("fit: residuals in seconds", "((T - fitted) / T)", "(T - fitted)", "seconds, expected the share"),
    fit_alpha_beta("fit: residuals turned", "((T - fitted) / T)", "((fitted - T) / T)", "fitted minus measured"),
    fit_alpha_beta("fit: residuals over the fitted", "((T - fitted) / T)", "((T - fitted) / fitted)",
        "shares of the fitted"),
    fit_alpha_beta("fit: residuals without sign", "((T - fitted) / T)", "np.abs((T - fitted) / T)",
        "without their sign"),
    fit_alpha_beta("fit: residuals in order of size", "((T - fitted) / T)", "((T - fitted) / T)[np.argsort(n)]",
        "in the order of the sizes"),
    fit_alpha_beta("fit: no negative alpha", "Fit(float(alpha),", "Fit(max(0.0, float(alpha)),", "no less than 0"),
    fit_alpha_beta("fit: alpha of the whole", "Fit(float(alpha),", "Fit(float(alpha) * cost.messages,",
        "of the whole run"),
    fit_alpha_beta("fit: beta of the whole", "float(beta),", "float(beta) * cost.share,", "of the whole run"),
    fit_alpha_beta("fit: bandwidth for beta", "float(beta),", "1 / float(beta),", "a bandwidth"),
    fit_alpha_beta("fit: beta before alpha", "Fit(float(alpha), float(beta),", "Fit(float(beta), float(alpha),",
        "beta, where alpha is expected"),
    fit_alpha_beta("fit: through the origin", "np.stack([cost.messages / T,", "np.stack([0 * T + 1e-30,"),
    fit_alpha_beta("fit: negative alpha fitted again without",
        "fitted = cost",
        """if alpha < 0:
        alpha, beta = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())
    fitted = cost""", "no less than 0"),
]

time_collective, busbw, algbw = Before.each("13.5", "timing", "time_collective", "busbw", "algbw")
TIMING = [
    time_collective("check after the runs",
        """wrong = check() if check else 0
    for _ in range(warmup):
        run()
    group.barrier()""",
        """for _ in range(warmup):
        run()
    wrong = check() if check else 0
    group.barrier()"""),
    time_collective("check at the end",
        "    total = torch",
        """    wrong = check() if check else 0
    total = torch"""),
    time_collective("check never called", "check() if check else 0", "0", "0: what check"),
    time_collective("what check returns is dropped",
        "wrong = check() if check else 0",
        """check() if check else 0
    wrong = 0""", "0: what check"),
    time_collective("wrong or not", "check() if check else 0", "int(check() > 0) if check else 0",
        "the ranks with wrong"),
    time_collective("no check is one wrong", "check() if check else 0", "check() if check else 1"),
    time_collective("always two warm-ups", "range(warmup)", "range(2)"),
    time_collective("one warm-up at least", "range(warmup)", "range(max(1, warmup))"),
    time_collective("no warm-up at all", "range(warmup)", "range(0)", "the first, slow call"),
    time_collective("as many warm-ups as iterations", "range(warmup)", "range(iterations)"),
    time_collective("warm-up timed",
        """for _ in range(warmup):
        run()
    group.barrier()
    begin = clock()
    for _ in range(iterations):""",
        """group.barrier()
    begin = clock()
    for _ in range(warmup + iterations):""", "the warm-up is in it"),
    time_collective("no barrier at all", "    group.barrier()\n", ""),
    time_collective("barrier before the warm-up",
        """    for _ in range(warmup):
        run()
    group.barrier()
""",
        """    group.barrier()
    for _ in range(warmup):
        run()
"""),
    time_collective("barrier on the clock",
        """    group.barrier()
    begin = clock()
""",
        """    begin = clock()
    group.barrier()
"""),
    time_collective("barrier at the end, on the clock",
        "    seconds = (",
        """    group.barrier()
    seconds = ("""),
    time_collective("barrier at every call",
        """for _ in range(iterations):
        run()""",
        """for _ in range(iterations):
        group.barrier()
        run()"""),
    time_collective("a clock at every call",
        """begin = clock()
    for _ in range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """seconds = 0.0
    for _ in range(iterations):
        begin = clock()
        run()
        seconds += (clock() - begin) / iterations"""),
    time_collective("the best call",
        """begin = clock()
    for _ in range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """seconds = float('inf')
    for _ in range(iterations):
        begin = clock()
        run()
        seconds = min(seconds, clock() - begin)"""),
    time_collective("not divided", " / iterations", "", "all calls together"),
    time_collective("divided by all calls", " / iterations", " / (warmup + iterations)",
        "the warm-up calls are counted"),
    time_collective("one call too many", "range(iterations)", "range(iterations + 1)", "one call more"),
    time_collective("one call timed",
        """range(iterations):
        run()
    seconds = (clock() - begin) / iterations""",
        """range(1):
        run()
    seconds = clock() - begin
    for _ in range(iterations - 1):
        run()"""),
    time_collective("own time", '    group.all_reduce(slowest, op="max")\n', "", "this rank's own time"),
    time_collective("fastest rank",
        '    group.all_reduce(slowest, op="max")\n',
        """    slowest.neg_()
    group.all_reduce(slowest, op="max")
    slowest.neg_()
""", "the minimum over"),
    time_collective("sum of the ranks", 'all_reduce(slowest, op="max")', 'all_reduce(slowest, op="sum")',
        "the sum over"),
    time_collective("mean of the ranks",
        'all_reduce(slowest, op="max")',
        """all_reduce(slowest, op="sum")
    slowest /= group.size""", "the mean over"),
    time_collective("rank 0's time", "torch.tensor([seconds],", "torch.tensor([seconds if group.rank == 0 else 0.0],",
        "rank 0's time"),
    time_collective("own wrong", '    group.all_reduce(total, op="sum")\n', "", "this rank's own count"),
    time_collective("worst rank's wrong", 'all_reduce(total, op="sum")', 'all_reduce(total, op="max")',
        "the largest count"),
    time_collective("mean wrong", "int(total.item())", "int(total.item()) // group.size", "the mean over"),
    time_collective("clock ignored",
        "clock = clock or device_clock(group.device)", "clock = device_clock(group.device)", "clock= is ignored"),
    time_collective("a clock that waits for no device",
        "clock or device_clock(group.device)", "clock or time.perf_counter"),
    time_collective("time of day", "clock or device_clock(group.device)", "clock or time.time"),
    time_collective("a look at the clock first",
        "    wrong = check()",
        """    clock()
    wrong = check()"""),
    time_collective("reduced on the clock",
        "    seconds = (clock()",
        """    group.all_reduce(torch.zeros(1, device=group.device))
    seconds = (clock()"""),
    time_collective("only rank 0 checks", "check() if check else 0", "check() if check and group.rank == 0 else 0",
        "rank 0's count"),
    busbw("busbw: all-reduce once", "2 * (N - 1) / N", "(N - 1) / N", "half of it"),
    busbw("busbw: all-reduce 2", "2 * (N - 1) / N", "2.0 if N > 1 else 0.0"),
    busbw("busbw: all-gather of shards", '"all_gather": (N - 1) / N', '"all_gather": N - 1', "N-1 whole vectors"),
    busbw("busbw: reduce-scatter twice", '"reduce_scatter": (N - 1) / N', '"reduce_scatter": 2 * (N - 1) / N',
        "all-reduce's factor"),
    busbw("busbw: broadcast", '"broadcast": 1.0', '"broadcast": (N - 1) / N', "all-gather's and", "0: a broadcast"),
    busbw("busbw: broadcast alone is 0", '"broadcast": 1.0', '"broadcast": float(N > 1)', "0: a broadcast"),
    busbw("busbw: divided by the factor", "seconds) * factor[collective]", "seconds) / (factor[collective] or 1)",
        "divided by the factor", "the algorithm bandwidth"),
    busbw("busbw: any name",
        "raise ValueError",
        """return algbw(nbytes, seconds)
        raise ValueError"""),
    busbw("busbw: a KeyError", "raise ValueError", "raise KeyError", "a KeyError"),
    busbw("busbw: algbw", "* factor[collective]", "* 1.0", "the algorithm bandwidth"),
    busbw("busbw: at least one", "* factor[collective]", "* (factor[collective] or 1.0)", "the algorithm bandwidth"),
    algbw("algbw: gigabytes", "nbytes / seconds", "nbytes / seconds / 1e9", "in GB/s"),
    algbw("algbw: bits", "nbytes / seconds", "8 * nbytes / seconds", "in bits"),
    algbw("algbw: seconds a byte", "nbytes / seconds", "seconds / nbytes", "seconds a byte"),
    algbw("algbw: whole bytes", "nbytes / seconds", "nbytes // seconds", "rounded down"),
]

def of_all_rings(found: str) -> str:
    """A solution of 13.6 that looks at all `rings`, and returns what it `found`."""
    return f"""
                from itertools import permutations

                rings = ([0, *rest] for rest in permutations(range(1, topology.size)))
                return {found}
                """


bottleneck, best_ring = Before.each("13.6", "topology", "bottleneck", "best_ring")
RING = [
    bottleneck("nothing shared", "", "return min((alone(hop, topology) for hop in used), default=math.inf)",
        "each hop as if it were alone"),
    bottleneck("slowest hop over the fullest link", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min((alone(hop, topology) for hop in used), default=math.inf)
                return slowest / max(on_link.values(), default=1)
                """, "the slowest hop over the fullest"),
    bottleneck("slowest hop over the hops on its slowest link", "",
        """
                if not used:
                    return math.inf
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = min(used, key=lambda hop: alone(hop, topology))
                link = min(topology.path(*slowest), key=lambda name: topology.links[name].bandwidth)
                return topology.links[link].bandwidth / on_link[link]
                """, "the slowest link alone"),
    bottleneck("each hop over the hops on its slowest link", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                slowest = [min(topology.path(*hop), key=lambda name: topology.links[name].bandwidth) for hop in used]
                return min((topology.links[name].bandwidth / on_link[name] for name in slowest), default=math.inf)
                """, "each hop on the slowest link of its way"),
    bottleneck("each hop over the fullest link on its way", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (alone(hop, topology) / max(on_link[name] for name in topology.path(*hop)) for hop in used),
                    default=math.inf,
                )
                """, "each hop over the fullest link"),
    bottleneck("the fullest link", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                most = max(on_link.values())
                return min(topology.links[name].bandwidth / n for name, n in on_link.items() if n == most)
                """, "the fullest link alone"),
    bottleneck("the slowest link", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                if not on_link:
                    return math.inf
                name = min(on_link, key=lambda name: topology.links[name].bandwidth)
                return topology.links[name].bandwidth / on_link[name]
                """, "the slowest link alone"),
    bottleneck("there and back share", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                back = Counter(name for a, b in used for name in topology.path(b, a))
                return min(
                    (topology.links[name].bandwidth / (n + back[name]) for name, n in on_link.items()),
                    default=math.inf,
                )
                """, "there and back"),
    bottleneck("the way back", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(b, a))
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """, "the ways back"),
    bottleneck("first link of the way", "",
        """
                on_link = Counter(topology.path(a, b)[0] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """, "only the first link"),
    bottleneck("last link of the way", "",
        """
                on_link = Counter(topology.path(a, b)[-1] for a, b in used)
                return min((topology.links[name].bandwidth / n for name, n in on_link.items()), default=math.inf)
                """, "only the last link"),
    bottleneck("links one after another", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                ways = [sum(on_link[x] / topology.links[x].bandwidth for x in topology.path(*hop)) for hop in used]
                return 1 / max(ways) if ways else math.inf
                """, "a way's links one after"),
    bottleneck("a link counts twice at most", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                return min(
                    (topology.links[name].bandwidth / min(n, 2) for name, n in on_link.items()), default=math.inf
                )
                """, "a third hop"),
    bottleneck("all hops share all links", "",
        """
                names = {name for a, b in used for name in topology.path(a, b)}
                return min((topology.links[name].bandwidth / len(used) for name in names), default=math.inf)
                """, "every link as if"),
    bottleneck("mean of the links", "",
        """
                on_link = Counter(name for a, b in used for name in topology.path(a, b))
                rates = [topology.links[name].bandwidth / n for name, n in on_link.items()]
                return sum(rates) / len(rates) if rates else math.inf
                """, "the mean"),
    bottleneck("fastest link", "return min((", "return max((", "the fastest"),
    bottleneck("no hops are no bandwidth", "default=math.inf", "default=0.0", "0, expected math.inf"),
    bottleneck("bandwidth times hops", "bandwidth / count", "bandwidth * count", "times the number"),
    bottleneck("idle links too",
        "return min((",
        """if not used:
        return min(link.bandwidth for link in topology.links.values())
    return min((""", "an idle link's"),
    best_ring("in order", "", "return list(range(topology.size))", "the ranks in their own order"),
    best_ring("backwards", "", "return [0, *range(topology.size - 1, 0, -1)]",
        "the ranks in their own order, backwards"),
    best_ring("nearest first", "",
        """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: alone((order[-1], rank), topology)))
                return order
                """, "always the fastest next hop"),
    best_ring("nearest first, shared", "",
        """
                order = [0]
                while len(order) < topology.size:
                    left = [rank for rank in range(topology.size) if rank not in order]
                    order.append(max(left, key=lambda rank: bottleneck(list(pairwise([*order, rank])), topology)))
                return order
                """, "always the next hop that slows"),
    best_ring("the best open path", "",
        of_all_rings("max(rings, key=lambda order: bottleneck(list(pairwise(order)), topology))"),
        "the best open path"),
    best_ring("sum of the hops", "",
        of_all_rings("max(rings, key=lambda order: sum(alone(hop, topology) for hop in hops(order)))"),
        "the largest sum"),
    best_ring("shortest time of all hops", "",
        of_all_rings("min(rings, key=lambda order: sum(1 / alone(hop, topology) for hop in hops(order)))"),
        "the smallest sum"),
    best_ring("slowest hop alone", "",
        of_all_rings("max(rings, key=lambda order: min((alone(hop, topology) for hop in hops(order)), default=0))"),
        "each hop as if it were alone"),
    # where all are equal, that comes first
    best_ring("fewest hops on a link", "",
        """
                from itertools import permutations

                def fullest(order):
                    return max(Counter(x for a, b in hops(order) for x in topology.path(a, b)).values(), default=0)

                return min(([0, *rest] for rest in permutations(range(1, topology.size))), key=fullest)
                """, "the fewest hops", "the ranks in their own order"),
    best_ring("fewest links", "",
        of_all_rings("min(rings, key=lambda order: sum(len(topology.path(a, b)) for a, b in hops(order)))"),
        "the fewest links", "the ranks in their own order"),
    best_ring("a thousand tries", "",
        """
                from itertools import islice, permutations

                rings = ([0, *rest] for rest in islice(permutations(range(1, topology.size)), 1000))
                return max(rings, key=lambda order: ring_bandwidth(order, topology))
                """),
    best_ring("half of the rings: each read one way only", "",
        """
                from itertools import permutations

                ways = (rest for rest in permutations(range(1, topology.size)) if not rest or rest[0] <= rest[-1])
                return max(([0, *rest] for rest in ways), key=lambda order: ring_bandwidth(order, topology))
                """),
    best_ring("exchanges while they help", "",
        """
                order, better = list(range(topology.size)), True
                while better:
                    better = False
                    for i in range(1, len(order) - 1):
                        other = [*order[:i], order[i + 1], order[i], *order[i + 2 :]]
                        if ring_bandwidth(other, topology) > ring_bandwidth(order, topology):
                            order, better = other, True
                return order
                """, "neighbours exchanged"),
    # of several equally slow ones the first
    best_ring("the slowest ring", "", of_all_rings("min(rings, key=lambda order: ring_bandwidth(order, topology))"),
        "the ranks in their own order"),
    best_ring("even ranks, then odd ones", "", "return [*range(0, topology.size, 2), *range(1, topology.size, 2)]"),
    best_ring("first improvement", "if rank not in order:", "if rank not in order and best == list(range(N)):"),
    best_ring("one rank left out", "    return best", "    return best[:-1] if N > 1 else best"),
    best_ring("0 again at the end", "    return best", "    return [*best, 0]"),
    best_ring("does not begin with 0", "    return best", "    return [*best[1:], 0]"),
    best_ring("hops for ranks", "    return best", "    return hops(best)"),
    best_ring("turns back too early", "bandwidth <= best_bandwidth", "bandwidth <= 1.5 * best_bandwidth"),
]

MUTANTS = [*COST, *TIMING, *RING]
