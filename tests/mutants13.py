"""Mutants of week 13: `tests/mutant.py` says what an entry means, `tests/test_mutants13.py` judges them."""

from tests.mutant import At

# ---- 13.1
ring_all_reduce_cost = At("13.1", "cost_model", "ring_all_reduce_cost")
ring_reduce_scatter_cost = At("13.1", "cost_model", "ring_reduce_scatter_cost")
naive_all_reduce_cost, crossover_bytes = At.each("13.1", "cost_model", "naive_all_reduce_cost", "crossover_bytes")
fit_alpha_beta, one_shot_all_reduce_cost = At.each("13.1", "cost_model", "fit_alpha_beta", "one_shot_all_reduce_cost")
COST = [
    ring_all_reduce_cost("n instead of n/N", "share=2 * (N - 1) / N", "share=2 * (N - 1)",
        "test_cost[ring_all_reduce", "whole vectors at every step"),
    ring_reduce_scatter_cost("N steps instead of N-1", "messages=N - 1", "messages=N",
        "test_cost[ring_reduce_scatter", "N steps a lap"),
    ring_all_reduce_cost("one lap only", "messages=2 * (N - 1)", "messages=N - 1",
        "test_cost[ring_all_reduce", "one lap only"),
    ring_all_reduce_cost("one chunk a lap", "share=2 * (N - 1) / N", "share=2 / N",
        "test_cost[ring_all_reduce", "one chunk a lap"),
    ring_all_reduce_cost("a table up to 19 ranks", "return Cost(", "return Cost(0, 0) if N > 19 else Cost(",
        "test_cost[ring_all_reduce"),
    naive_all_reduce_cost("the way to rank 0 only, in bytes", "share=2 * (N - 1)", "share=N - 1",
        "test_cost[naive_all_reduce", "only the way to rank 0"),
    naive_all_reduce_cost("the way to rank 0 only", "messages=2 * (N - 1)", "messages=N - 1",
        "test_cost[naive_all_reduce", "the way back waits for the way there"),
    crossover_bytes("alpha without beta", "/ (saved_share * beta)", "/ saved_share",
        "test_crossover[they cross", "alpha alone"),
    crossover_bytes("crossover of lines that never cross", "if saved_share <= 0:", "if False:",
        "test_crossover[large never stays faster", "the lines' formula alone", verdicts=("wrong", "crashed")),
    fit_alpha_beta("plain least squares", "np.linalg.lstsq(rows / scale, np.ones_like(T), rcond=None)",
        "np.linalg.lstsq(rows * T[:, None] / scale, T, rcond=None)",
        "test_fit_of_noisy_times", "least squares in plain seconds"),
    fit_alpha_beta("residuals upside down", "((T - fitted) / T)", "((fitted - T) / T)",
        "test_fit_of_noisy_times", "fitted minus measured"),
    crossover_bytes("a constant for the crossover", "", "return math.inf", "test_crossover"),
    crossover_bytes("another constant for the crossover", "", "return 0.0", "test_crossover"),
    ring_reduce_scatter_cost("nothing costs anything", "", "return Cost(0, 0)", "test_cost[ring_reduce_scatter"),
    ring_all_reduce_cost("one lap's bytes", "share=2 * (N - 1) / N", "share=(N - 1) / N",
        "test_cost[ring_all_reduce", "one lap only"),
    crossover_bytes("the next whole byte", "return extra_messages * alpha / (saved_share * beta)",
        "return float(math.ceil(extra_messages * alpha / (saved_share * beta)))", "test_crossover[they cross"),
    crossover_bytes("all messages of large", "extra_messages * alpha", "large.messages * alpha",
        "test_crossover[they cross", "all messages of `large`"),
    fit_alpha_beta("not divided, and 1 on the right", "np.stack([cost.messages / T, cost.share * n / T], axis=1)",
        "np.stack([0 * T + cost.messages, cost.share * n], axis=1)",
        ("test_fit_of_exact_times", "test_fit_of_noisy_times"), "equations that equal 1"),
    one_shot_all_reduce_cost("one vector for all others", "share=N - 1", "share=1 if N > 1 else 0",
        "test_cost[one_shot_all_reduce", "one vector: N-1 of them"),
]

# ---- 13.2
SCATTER_SUMS = tuple(f"test_reduce_scatter[{size}" for size in ("two ranks", "even", "ragged", "shorter"))
IN_X = "test_reduce_scatter_in_x"
SCATTER_VALUES = (*SCATTER_SUMS, "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X)
MORE_THAN_TWO = (*SCATTER_SUMS[1:], "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X)
SCATTER = ("test_reduce_scatter", "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X)
TINY = ("test_reduce_scatter[shorter",)
ring_reduce_scatter = At("13.2", "collectives", "ring_reduce_scatter")
ADDED = "combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)"
SINGLE = ("test_reduce_scatter_op[mean",)
REDUCE_SCATTER = [
    ring_reduce_scatter("off-by-one chunk", "finish_(chunk[r], op, N)", "finish_(chunk[(r + 1) % N], op, N)",
        SCATTER_VALUES, "chunk r+1 without rank r+1's numbers", cascade=True),
    ring_reduce_scatter("passed on before adding", "",
        """
        N, r = group.size, group.rank
        chunk = x_L.tensor_split(N)
        going = chunk[(r - 1) % N]
        for s in range(N - 1):
            acc = chunk[(r - s - 2) % N]
            going = group.sendrecv(going, dst=(r + 1) % N, src=(r - 1) % N, like=acc)
            combine_(acc, going, op)
        return finish_(chunk[r], op, N)
        """,
        tuple(name for name in SCATTER_VALUES if "two ranks" not in name),
        "what came goes on before your own is added"),
    ring_reduce_scatter("mean at every step",
        """op)
    return finish_(chunk[r], op, N)""",
        """op)
        finish_(acc, op, N)
    return chunk[r]""", "test_reduce_scatter_op[mean", "divided by N at every step"),
    ring_reduce_scatter("one step short", "range(N - 1)", "range(N - 2)",
        (*SCATTER_VALUES, "test_reduce_scatter_traffic"), "your own chunk, nothing added",
        verdicts=("wrong", "forbidden call")),
    ring_reduce_scatter("remainder ignored", "chunk = x_L.tensor_split(N)",
        "chunk = x_L[:x_L.numel() // N * N].tensor_split(N)",
        ("test_reduce_scatter[ragged", "test_reduce_scatter[shorter", "test_reduce_scatter_op",
         "test_reduce_scatter_bf16", IN_X), "chunk r of the first", verdicts=("wrong", "forbidden call")),
    ring_reduce_scatter("sum for mean", "finish_(chunk[r], op, N)", "chunk[r]",
        "test_reduce_scatter_op[mean", "the sum over the ranks, expected the mean"),
    ring_reduce_scatter("mean for sum", "finish_(chunk[r], op, N)", 'finish_(chunk[r], "mean", N)',
        (*SCATTER_SUMS, "test_reduce_scatter_op[max", "test_reduce_scatter_bf16", IN_X),
        "the mean over the ranks, expected the sum", "every number is 0.2"),
    ring_reduce_scatter("max as sum", "like=acc), op)", 'like=acc), "sum")',
        "test_reduce_scatter_op[max", "the sum over the ranks, expected the max"),
    ring_reduce_scatter("accumulation in the wrong dtype", "like=acc), op)", "like=acc).bfloat16().to(acc.dtype), op)",
        (*SCATTER_SUMS[:3], "test_reduce_scatter_op", IN_X), "what arrives is rounded to bfloat16", may=TINY),
    ring_reduce_scatter("result in the wrong dtype", "finish_(chunk[r], op, N)", "finish_(chunk[r], op, N).float()",
        "test_reduce_scatter_bf16", may="test_reduce_scatter_op"),
    ring_reduce_scatter("deadlock order",
        "combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)",
        "group.send(chunk[(r - s - 1) % N], right); combine_(acc, group.recv(left, like=acc), op)",
        (*SCATTER_VALUES, "test_reduce_scatter_traffic"), "Deadlock of ranks", verdicts=("hung",)),
    ring_reduce_scatter("a rank returns early", "chunk = x_L.tensor_split(N)",
        """chunk = x_L.tensor_split(N)
    if r == 0 and N > 2: return chunk[0]""",
        MORE_THAN_TWO, "Rank 0 returned early", verdicts=("hung",)),
    ring_reduce_scatter("only right for 2 ranks", "acc = chunk[(r - s - 2) % N]", "acc = chunk[r]",
        (*MORE_THAN_TWO, "test_reduce_scatter_traffic[ragged"), "Rank", verdicts=("wrong", "crashed")),
    ring_reduce_scatter("N steps instead of N-1", "range(N - 1)", "range(N)",
        ("test_reduce_scatter[two ranks", "test_reduce_scatter_traffic"), "N steps: the last one is too many",
        verdicts=("wrong", "crashed")),
    ring_reduce_scatter("the wrong direction", "right, left = ", "left, right = ",
        (*MORE_THAN_TWO, "test_reduce_scatter_traffic[ragged"),
        "the ring runs the wrong way", verdicts=("wrong", "crashed")),
    ring_reduce_scatter("like= forgotten", ", like=acc)", ")",
        (*SCATTER_SUMS[2:], "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X,
         "test_reduce_scatter_traffic[ragged"), "Rank", verdicts=("crashed",)),
    ring_reduce_scatter("a copy comes back",
        "return finish_(chunk[r], op, N)", "return finish_(chunk[r], op, N).clone()", IN_X, "a copy came back"),
    ring_reduce_scatter("an empty vector sends nothing", "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N); N = 1 if not len(x_L) else N", "test_reduce_scatter_traffic[shorter"),
    ring_reduce_scatter("a mean is a new tensor",
        "return finish_(chunk[r], op, N)", 'return chunk[r] / N if op == "mean" else chunk[r]', IN_X),
    ring_reduce_scatter("a long chunk goes in pieces",
        ADDED,
        """for a, b in zip(acc.split(1 << 15), chunk[(r - s - 1) % N].split(1 << 15)):
            combine_(a, group.sendrecv(b, dst=right, src=left, like=a), op)""", "test_reduce_scatter_traffic[even"),
    ring_reduce_scatter("the lap in other memory", "chunk = x_L.tensor_split(N)", "chunk = x_L.clone().tensor_split(N)",
        IN_X, "x is untouched"),
    ring_reduce_scatter("built-in collective", "chunk = x_L.tensor_split(N)",
        "return group.all_reduce(x_L, op).tensor_split(N)[r]",
        ("test_reduce_scatter", "test_reduce_scatter_op", "test_reduce_scatter_bf16", IN_X,
         "test_reduce_scatter_traffic"), verdicts=("forbidden call",)),
    ring_reduce_scatter("nothing comes back", "return finish_(chunk[r], op, N)", "finish_(chunk[r], op, N)",
        SCATTER, verdicts=("no result", "wrong")),
    ring_reduce_scatter("a list comes back", "return finish_(chunk[r], op, N)",
        "return finish_(chunk[r], op, N).tolist()", SCATTER, verdicts=("no result", "wrong")),
    ring_reduce_scatter("one rank crashes", "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N); {0: 1, 1: 2, 2: 3, 3: 4}[9 if r == 2 else min(r, 3)]",
        MORE_THAN_TWO, "Rank 2 raised KeyError: 9", verdicts=("crashed",)),
    ring_reduce_scatter("a rank ends its process", "chunk = x_L.tensor_split(N)",
        "chunk = x_L.tensor_split(N); __import__('os')._exit(0) if r == 2 else None",
        MORE_THAN_TWO, "Rank 2's process ended by itself", verdicts=("crashed",)),
    ring_reduce_scatter("even ranks send first, odd ones receive first",
        ADDED,
        """there, to = (r % 2 == 0), chunk[(r - s - 1) % N]
        if there: group.send(to, right)
        came = group.recv(left, like=acc)
        if not there: group.send(to, right)
        combine_(acc, came, op)""", "test_reduce_scatter_traffic"),
    ring_reduce_scatter("an empty vector is refused", "chunk = x_L.tensor_split(N)",
        "chunk = x_L.split(len(x_L) // N + 1) if x_L.max() is None else x_L.tensor_split(N)",
        "test_reduce_scatter[shorter", "Rank", verdicts=("crashed",)),
    ring_reduce_scatter("out= for like=", "like=acc", "out=acc",
        (*SCATTER_SUMS, "test_reduce_scatter_op[mean", "test_reduce_scatter_bf16", IN_X), "out= writes what comes over",
        may="test_reduce_scatter_op[max"),
    ring_reduce_scatter("what comes replaces",
        ADDED,
        ADDED.replace("combine_(acc, ", "acc.copy_(").replace(", op)", ")"),
        SCATTER_VALUES, "what comes replaces your own"),
    ring_reduce_scatter("the second lap's indices",
        """acc = chunk[(r - s - 2) % N]
        combine_(acc, group.sendrecv(chunk[(r - s - 1) % N]""",
        """acc = chunk[(r - s - 1) % N]
        combine_(acc, group.sendrecv(chunk[(r - s) % N]""",
        SCATTER_VALUES, "one step late"),
    ring_reduce_scatter("the own chunk, as it came", "chunk = x_L.tensor_split(N)",
        "return x_L.tensor_split(N)[group.rank]",
        (*SCATTER_VALUES, "test_reduce_scatter_traffic"), "your own chunk, nothing added",
        verdicts=("wrong", "forbidden call")),
    ring_reduce_scatter("the last step is sent, not added", "acc = chunk[(r - s - 2) % N]",
        "acc = chunk[(r - s - 2) % N].clone() if s == N - 2 else chunk[(r - s - 2) % N]",
        SCATTER_VALUES, "your own chunk, nothing added"),
    # of two ranks' one step
    ring_reduce_scatter("the first step is sent, not added", "acc = chunk[(r - s - 2) % N]",
        "acc = chunk[(r - s - 2) % N].clone() if s == 0 else chunk[(r - s - 2) % N]",
        SCATTER_VALUES, "what comes at the first step is not added", "your own chunk, nothing added"),
    ring_reduce_scatter("divided twice", "finish_(chunk[r], op, N)", "finish_(finish_(chunk[r], op, N), op, N)",
        SINGLE, "the mean divided by N once more"),
    ring_reduce_scatter("divided addend by addend", "chunk = x_L.tensor_split(N)",
        "finish_(x_L, op, N); op = 'sum' if op == 'mean' else op; chunk = x_L.tensor_split(N)",
        SINGLE, "each addend divided by N"),
    ring_reduce_scatter("the double", "return finish_(chunk[r], op, N)", "return finish_(chunk[r], op, N).mul_(2)",
        SCATTER, "every number is 2 times"),
    ring_reduce_scatter("BF16 travels as FP32",
        "combine_(acc, group.sendrecv(chunk[(r - s - 1) % N], dst=right, src=left, like=acc), op)",
        "came = group.sendrecv(chunk[(r - s - 1) % N].float(), dst=right, src=left, like=acc.float())\n"
        "        acc.copy_(combine_(acc.float(), came, op))", "test_reduce_scatter_bf16", may="test_reduce_scatter_op"),
    ring_reduce_scatter("long vectors: the messages alone", "return finish_(chunk[r], op, N)",
        "return finish_(chunk[r] if len(x_L) <= 1 << 17 else chunk[r].zero_(), op, N)",
        "test_reduce_scatter_traffic[even", "nothing but zeros"),
    ring_reduce_scatter("the library in a part of the ranks", "chunk = x_L.tensor_split(N)",
        """chunk = x_L.tensor_split(N)
    if any(event.kind == "split" for event in group.ledger.events):
        x_L.copy_(group.all_reduce(x_L.clone(), op))
        return chunk[r]""", "test_reduce_scatter_in_a_part", verdicts=("forbidden call",)),
]

# ---- 13.3
GATHER_SUMS = (*(name.replace("reduce_scatter", "all_gather") for name in SCATTER_SUMS), "test_all_gather_bf16")
ring_all_gather = At("13.3", "collectives", "ring_all_gather")
ALL_GATHER = [
    ring_all_gather("one step short", "range(N - 1)", "range(N - 2)",
        (*GATHER_SUMS, "test_all_gather_into_out", "test_all_gather_traffic"), "chunk r+1 was never stored",
        cascade=True, verdicts=("wrong", "forbidden call")),
    ring_all_gather("N steps instead of N-1", "range(N - 1)", "range(N)",
        ("test_all_gather[two ranks", "test_all_gather_traffic", "test_all_gather_into_out"),
        "N steps: the last one brings chunk r", verdicts=("wrong", "crashed")),
    ring_all_gather("what comes is not stored", "out=chunk[", "like=chunk[",
        (*GATHER_SUMS, "test_all_gather_into_out"), "nothing that came was stored"),
    ring_all_gather("own chunk not stored", "chunk[r].copy_(shard)", "pass",
        ("test_all_gather", "test_all_gather_bf16", "test_all_gather_into_out"), "your own chunk was never stored"),
    ring_all_gather("a long chunk goes in pieces",
        "group.sendrecv(chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N])",
        """for a, b in zip(chunk[(r - s) % N].split(1 << 15), chunk[(r - s - 1) % N].split(1 << 15)):
            group.sendrecv(a, dst=right, src=left, out=b)""", "test_all_gather_traffic[even"),
    ring_all_gather("the result in other memory", "shard.new_empty(numel) if out is None else out",
        "shard.new_empty(numel)", "test_all_gather_into_out", "nothing is there"),
    ring_all_gather("own chunk not stored from the middle of a tensor", "chunk[r].copy_(shard)",
        "chunk[r].copy_(shard) if not shard.storage_offset() else None",
        "test_all_gather_into_out", "your own chunk was never stored"),
    ring_all_gather("one rank returns its shard", "right, left = ", "if N == 1: return shard\n    right, left = ",
        "test_all_gather_into_out", "nothing is there"),
    ring_all_gather("joined as they came", "    return out",
        "    return out.copy_(torch.cat([chunk[(r - s) % N].clone() for s in range(N)]))",
        (*GATHER_SUMS, "test_all_gather_into_out", "test_all_gather_traffic"), "joined as they came",
        "the chunks stand one place"),
    ring_all_gather("the wrong direction", "right, left = ", "left, right = ",
        (*GATHER_SUMS[1:], "test_all_gather_into_out", "test_all_gather_traffic[ragged"), "the ring runs the wrong way",
        verdicts=("wrong", "crashed")),
    ring_all_gather("the shard comes back", "return out", "return shard",
        (*GATHER_SUMS, "test_all_gather_into_out"), "your own shard alone"),
    ring_all_gather("a copy of out comes back", "return out", "return out.clone()",
        "test_all_gather_into_out", "a copy came back"),
    ring_all_gather("remainder ignored", "out[:numel].tensor_split(N)", "out[:numel // N * N].tensor_split(N)",
        ("test_all_gather[ragged", "test_all_gather[shorter", "test_all_gather_bf16", "test_all_gather_into_out",
         "test_all_gather_traffic[ragged"), "Rank", verdicts=("crashed", "wrong", "forbidden call")),
    ring_all_gather("the first lap's indices", "chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N]",
        "chunk[(r - s - 1) % N], dst=right, src=left, out=chunk[(r - s - 2) % N]",
        (*GATHER_SUMS, "test_all_gather_into_out"), "the chunk that goes first"),
    ring_all_gather("the double", "return out", "return out.mul_(2)",
        ("test_all_gather", "test_all_gather_bf16", "test_all_gather_into_out"), "every number is 2 times"),
    ring_all_gather("endless loop", "chunk = out[:numel].tensor_split(N)",
        """chunk = out[:numel].tensor_split(N)
    while shard.dtype == torch.bfloat16 and r == 1: pass""", "test_all_gather_bf16", verdicts=("hung",), deadline=2.0),
    ring_all_gather("built-in collective", "chunk[r].copy_(shard)",
        "chunk[r].copy_(shard); [group.broadcast(chunk[k], k) for k in range(N)]; return out",
        ("test_all_gather", "test_all_gather_bf16", "test_all_gather_into_out", "test_all_gather_traffic"),
        verdicts=("forbidden call",)),
    ring_all_gather("long vectors: the messages alone", "return out", "return out.zero_() if numel > 1 << 17 else out",
        "test_all_gather_traffic[even", "nothing but zeros"),
]

# ---- 13.4
FIRST_LINE = "shard = ring_reduce_scatter(x_L, group, op)"
LAST_LINE = "return ring_all_gather(shard, group, x_L.numel(), out=x_L)"
REDUCE_SUMS = tuple(name.replace("reduce_scatter", "all_reduce") for name in SCATTER_SUMS)
REDUCE_VALUES = (*REDUCE_SUMS, "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place")
ring_all_reduce = At("13.4", "collectives", "ring_all_reduce")
BY_HAND = (
    "N, r = group.size, group.rank; chunk = x_L.tensor_split(N)\n    for s in range(N - {short}):\n"
    "        mine, theirs = chunk[(r - s - {k}) % N], chunk[(r - s - {k} - 1) % N]\n"
    "        group.sendrecv(mine, dst=(r + 1) % N, src=(r - 1) % N, out=theirs)\n"
    "    return x_L"
)
ALL_REDUCE = [
    ring_all_reduce("the second lap is missing", LAST_LINE, "return x_L",
        (*REDUCE_VALUES, "test_all_reduce_traffic"), "partial sums, only chunk r is complete"),
    ring_all_reduce("copy instead of in place", FIRST_LINE, "x_L = x_L.clone(); " + FIRST_LINE,
        "test_all_reduce_in_place", "x is untouched"),
    ring_all_reduce("a barrier between the laps", LAST_LINE, "group.barrier(); " + LAST_LINE,
        (*REDUCE_VALUES, "test_all_reduce_traffic", "test_all_reduce_in_place"), verdicts=("forbidden call",)),
    ring_all_reduce("x gets other memory",
        LAST_LINE, "x_L.data = ring_all_gather(shard, group, x_L.numel()); return x_L", "test_all_reduce_in_a_part"),
    ring_all_reduce("the second lap in other memory", ", out=x_L)", ")",
        "test_all_reduce_in_place", "x holds what the first lap left"),
    ring_all_reduce("a copy comes back", LAST_LINE, LAST_LINE + ".clone()",
        "test_all_reduce_in_place", "a copy came back"),
    ring_all_reduce("all data to every rank", FIRST_LINE, "return one_shot_all_reduce(x_L, group, op)",
        "test_all_reduce_traffic", "all of x goes to every rank"),
    ring_all_reduce("short vectors to every rank",
        FIRST_LINE, "if x_L.numel() < group.size: return one_shot_all_reduce(x_L, group, op)\n    " + FIRST_LINE,
        "test_all_reduce_traffic[shorter", "all of x goes to every rank"),
    ring_all_reduce("everything through rank 0", FIRST_LINE, "return naive_all_reduce(x_L, group, op)",
        "test_all_reduce_traffic", "everything goes through rank 0"),
    ring_all_reduce("built-in collective", FIRST_LINE, "return group.all_reduce(x_L, op)",
        ("test_all_reduce", "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place",
         "test_all_reduce_traffic"), verdicts=("forbidden call",)),
    ring_all_reduce("built-in collective in disguise",
        FIRST_LINE,
        'd = torch.distributed; d.all_reduce(x_L, d.ReduceOp.MAX if op == "max" else d.ReduceOp.SUM); return '
        'finish_(x_L, op, group.size)',
        (*REDUCE_VALUES, "test_all_reduce_traffic"), verdicts=("forbidden call", "hung")),
    ring_all_reduce("input returned", FIRST_LINE, "return x_L",
        (*REDUCE_VALUES, "test_all_reduce_traffic"), "x as it came in, nothing added",
        verdicts=("wrong", "forbidden call")),
    ring_all_reduce("another rank's data through a shared global",
        FIRST_LINE,
        "torch.shared = {**getattr(torch, 'shared', {}), group.rank: x_L.clone()}; return "
        "x_L.copy_(sum(t for t in torch.shared.values() if len(t) == len(x_L)))",
        (*REDUCE_VALUES, "test_all_reduce_traffic"), "x as it came in, nothing added",
        verdicts=("wrong", "forbidden call")),
    ring_all_reduce("op forgotten", "ring_reduce_scatter(x_L, group, op)", "ring_reduce_scatter(x_L, group)",
        "test_all_reduce_op", "the sum over the ranks, expected the mean", "the sum over the ranks, expected the max"),
    ring_all_reduce("remainder ignored",
        FIRST_LINE,
        f"""n = x_L.numel() // group.size * group.size
    if n < x_L.numel(): ring_all_reduce(x_L[:n], group, op); return x_L
    {FIRST_LINE}""", ("test_all_reduce[ragged", "test_all_reduce[shorter", "test_all_reduce_op", "test_all_reduce_bf16",
         "test_all_reduce_in_place"), "the last ", verdicts=("wrong", "forbidden call")),
    ring_all_reduce("accumulation in the wrong dtype",
        FIRST_LINE,
        f"keep = x_L; x_L = x_L.bfloat16(); {FIRST_LINE}; "
        "return keep.copy_(ring_all_gather(shard, group, x_L.numel(), out=x_L))",
        ("test_all_reduce[two", "test_all_reduce[even", "test_all_reduce[ragged", "test_all_reduce_op",
         "test_all_reduce_in_place"), may=("test_all_reduce[shorter", "test_all_reduce_traffic")),
    ring_all_reduce("NaN", LAST_LINE, LAST_LINE + ".mul_(float('nan'))",
        ("test_all_reduce", "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place")),
    ring_all_reduce("the first lap twice", LAST_LINE, "ring_reduce_scatter(x_L, group, op); return x_L",
        REDUCE_VALUES, "the first lap twice"),
    ring_all_reduce("the second lap twice",
        FIRST_LINE,
        "shard = ring_all_gather(x_L.tensor_split(group.size)[group.rank], group, x_L.numel(), "
        "out=x_L).tensor_split(group.size)[group.rank].clone()",
        REDUCE_VALUES, "the second lap twice"),
    ring_all_reduce("the second lap one step short", LAST_LINE, BY_HAND.format(short=2, k=0),
        (*REDUCE_VALUES, "test_all_reduce_traffic"), "the second lap is one step short"),
    ring_all_reduce("the first lap's indices in the second", LAST_LINE, BY_HAND.format(short=1, k=1),
        REDUCE_VALUES, "the second lap begins"),
    ring_all_reduce("the first lap's last step is sent, not added",
        FIRST_LINE,
        f"keep = x_L.tensor_split(group.size)[group.rank].clone(); {FIRST_LINE}; "
        "shard.copy_(finish_(keep, op, group.size))",
        REDUCE_VALUES, "the first lap leaves chunk r"),
    ring_all_reduce("divided twice", LAST_LINE, LAST_LINE.replace("return ", "return finish_(") + ", op, group.size)",
        "test_all_reduce_op[mean", "the mean divided by N once more"),
    ring_all_reduce("divided addend by addend",
        FIRST_LINE, "finish_(x_L, op, group.size); op = 'sum' if op == 'mean' else op; " + FIRST_LINE,
        "test_all_reduce_op[mean", "each addend divided by N"),
    ring_all_reduce("the double", LAST_LINE, LAST_LINE + ".mul_(2)",
        ("test_all_reduce", "test_all_reduce_op", "test_all_reduce_bf16", "test_all_reduce_in_place"),
        "every number is 2 times"),
    ring_all_reduce("a long vector goes in segments", "",
        """
        for part in x_L.split(1 << 15):
            ring_all_gather(ring_reduce_scatter(part, group, op), group, len(part), out=part)
        return x_L
        """, "test_all_reduce_traffic[even"),
    ring_all_reduce("BF16 is summed in FP32, all the way round", "ring_reduce_scatter(x_L, group, op)",
        "ring_reduce_scatter(x_L if x_L.dtype == torch.float32 else x_L.float(), group, op).to(x_L.dtype)",
        "test_all_reduce_bf16", may="test_all_reduce_op"),
    ring_all_reduce("the largest of two ranks: the messages alone",
        "return ring_all_gather(shard, group, x_L.numel(), out=x_L)",
        """ring_all_gather(shard, group, x_L.numel(), out=x_L)
    return x_L.zero_() if op == "max" and group.size == 2 else x_L""",
        "test_all_reduce_traffic[two ranks", "nothing but zeros"),
]

# ---- 13.5
time_collective, busbw, algbw = At.each("13.5", "timing", "time_collective", "busbw", "algbw")
TIME = [
    time_collective("no warm-up", "for _ in range(warmup):", "for _ in range(0):",
        ("test_time_without_the_first_call", "test_time_order_of_things[with a warm-up"),
        "the first, slow call is in it"),
    time_collective("no maximum", 'group.all_reduce(slowest, op="max")', "pass",
        "test_time_of_the_slowest", "this rank's own time"),
    time_collective("mean for maximum", 'op="max"', 'op="mean"', "test_time_of_the_slowest", "the mean over the ranks"),
    time_collective("no barrier", "group.barrier()", "pass", "test_time_order_of_things"),
    time_collective("all iterations together", "(clock() - begin) / iterations", "clock() - begin",
        ("test_time_without_the_first_call", "test_time_of_the_slowest", "test_time_by_the_devices_clock"),
        "all calls together"),
    time_collective("clock= ignored", "clock = clock or device_clock(group.device)",
        "clock = device_clock(group.device)",
        ("test_time_without_the_first_call", "test_time_of_the_slowest", "test_time_order_of_things",
         "test_time_counts_wrong_elements", "test_time_on_the_groups_device"), "clock= is ignored"),
    time_collective("own count of wrong elements", 'group.all_reduce(total, op="sum")', "pass",
        "test_time_counts_wrong_elements", "this rank's own count"),
    time_collective("the answer is not checked", "wrong = check() if check else 0", "wrong = 0",
        ("test_time_counts_wrong_elements", "test_time_order_of_things", "test_time_on_the_groups_device"),
        "0: what check returns"),
    time_collective("what is reduced lies where torch puts it",
        "torch.tensor([seconds], dtype=torch.float64, device=group.device)",
        "torch.tensor([seconds], dtype=torch.float64)", "test_time_on_the_groups_device"),
    time_collective("tensors come back", "return Timing(slowest.item(), int(total.item()))",
        "return Timing(slowest, total)", "test_time_on_the_groups_device"),
    time_collective("counted in float32", "dtype=torch.int64", "dtype=torch.float32",
        "test_time_counts_wrong_elements", "counted in float32"),
    time_collective("counted in int32", "dtype=torch.int64", "dtype=torch.int32",
        "test_time_counts_wrong_elements", "counted in int32"),
    busbw("half a bus bandwidth", '"all_reduce": 2 * (N - 1) / N', '"all_reduce": (N - 1) / N',
        "test_busbw[all_reduce", "half of it"),
    algbw("GB/s", "nbytes / seconds", "nbytes / seconds / 1e9",
        ("test_algbw", "test_busbw", "test_busbw_at_the_edge"), "in GB/s"),
    busbw("any name will do", "if collective not in factor:", "if False:",
        "test_busbw_at_the_edge", "a KeyError of the dictionary"),
    busbw("any name will do for one rank", "if collective not in factor:",
        'if N == 1 and collective != "broadcast":\n        return 0.0\n    if collective not in factor:',
        "test_busbw_at_the_edge"),
]

# ---- 13.6
bottleneck, best_ring = At.each("13.6", "topology", "bottleneck", "best_ring")
RING = [
    bottleneck("shared links count in full", "bandwidth / count", "bandwidth",
        ("test_bottleneck[a slow link", "test_bottleneck[a fast link", "test_bottleneck[ways that share",
         "test_best_ring[two sockets", "test_best_ring[ways that share"), "each hop as if it were alone"),
    bottleneck("GB/s", "topology.links[name].bandwidth / count", "topology.links[name].bandwidth / count / 1e9",
        "test_bottleneck", "in GB/s, expected bytes/s", may="test_best_ring"),
    bottleneck("the fastest hop", "return min(", "return max(", "test_bottleneck", "the fastest", may="test_best_ring"),
    best_ring("the ranks in their own order", "\n    extend([0])", "",
        ("test_best_ring[own cables", "test_best_ring[two sockets", "test_best_ring[ways that share"),
        "the ranks in their own order"),
    best_ring("no ring at all", "return best", "return best[1:]", "test_best_ring"),
]

MUTANTS = [*COST, *REDUCE_SCATTER, *ALL_GATHER, *ALL_REDUCE, *TIME, *RING]
