"""Mutants of week 13's stretch tasks: see `mutants13.py`."""

from tests.mutant import ANY, At

# ---- 13.8
tree_all_reduce, tree_all_reduce_cost = At.each("13.8", "stretch/tree", "tree_all_reduce", "tree_all_reduce_cost")
TREE = [
    tree_all_reduce("a round too few", "range((N - 1).bit_length())]", "range(N.bit_length() - 1)]", "test_tree"),
    tree_all_reduce("the sum stays at rank 0", "in reversed(rounds):", "in []:", "test_tree"),
    tree_all_reduce("never divided", "finish_(x_L, op, N)", "pass", "test_tree[mean", "every number is 2 times"),
    tree_all_reduce_cost("rounds rounded down", "rounds = (N - 1).bit_length()", "rounds = N.bit_length() - 1",
        "test_tree_cost"),
    tree_all_reduce_cost("the ring's share", "share=2 * rounds", "share=2 * (N - 1) / N", "test_tree_cost"),
]

# ---- 13.9
halving_doubling_all_reduce = At("13.9", "stretch/halving_doubling", "halving_doubling_all_reduce")
HALVES = [
    halving_doubling_all_reduce("three ranks are welcome", "if N & (N - 1):", "if False:",
        "test_halving_doubling_needs_a_power_of_two"),
    halving_doubling_all_reduce("near pairs first",
        """first, end, d = 0, N, N // 2
    while d:
        middle = first + d
        keep, give = ((first, middle), (middle, end)) if not r & d else ((middle, end), (first, middle))
        combine_(part(*keep), group.sendrecv(part(*give), dst=r ^ d, src=r ^ d, like=part(*keep)), op)
        (first, end), d = keep, d // 2
    finish_(part(first, end), op, N)
    d = 1
    while d < N:
        theirs = (first + d, end + d) if not r & d else (first - d, end - d)
        group.sendrecv(part(first, end), dst=r ^ d, src=r ^ d, out=part(*theirs))
        first, end, d = min(first, theirs[0]), max(end, theirs[1]), d * 2""",
        """first, end, d = 0, N, 1
    while d < N:
        middle = (first + end) // 2
        keep, give = ((first, middle), (middle, end)) if not r & d else ((middle, end), (first, middle))
        combine_(part(*keep), group.sendrecv(part(*give), dst=r ^ d, src=r ^ d, like=part(*keep)), op)
        (first, end), d = keep, d * 2
    finish_(part(first, end), op, N)
    while d := d // 2:
        wide = end - first
        theirs = (end, end + wide) if not r & d else (first - wide, first)
        group.sendrecv(part(first, end), dst=r ^ d, src=r ^ d, out=part(*theirs))
        first, end = min(first, theirs[0]), max(end, theirs[1])""", "test_halving_doubling"),
]

# ---- 13.10
hierarchical_all_reduce = At("13.10", "stretch/hierarchical", "hierarchical_all_reduce")
LEVELS = [
    hierarchical_all_reduce("nothing crosses", "ring_all_reduce(shard, across, op)", "pass", "test_hierarchical"),
    hierarchical_all_reduce("summed over the nodes, whatever the operation", "ring_all_reduce(shard, across, op)",
        "ring_all_reduce(shard, across)", ("test_hierarchical[mean", "test_hierarchical[max"),
        "every number is 2 times"),
    hierarchical_all_reduce("its own chunk alone", "return ring_all_gather(shard, inner, x_L.numel(), out=x_L)",
        "return x_L", "test_hierarchical"),
    hierarchical_all_reduce("any number of ranks is welcome", "if group.size % per_node:", "if False:",
        "test_hierarchical_needs_whole_nodes"),
    hierarchical_all_reduce("the whole vector crosses, from every rank",
        "shard = ring_reduce_scatter(x_L, inner, op)\n    ring_all_reduce(shard, across, op)\n"
        "    return ring_all_gather(shard, inner, x_L.numel(), out=x_L)",
        "ring_all_reduce(x_L, inner, op)\n    return ring_all_reduce(x_L, across, op)", "test_hierarchical"),
    hierarchical_all_reduce("the levels exchanged",
        "inner = InOrder(group, range(node * per_node, (node + 1) * per_node))\n"
        "    across = InOrder(group, range(place, group.size, per_node))",
        "across = InOrder(group, range(node * per_node, (node + 1) * per_node))\n"
        "    inner = InOrder(group, range(place, group.size, per_node))", "test_hierarchical"),
]

# ---- 13.11
to_topology, parse_topo = At.each("13.11", "stretch/smi", "to_topology", "parse_topo")
BOTH = ("test_real_outputs", "test_link_graph")
CROSS = tuple(f"test_link_graph[{name}" for name in ("cables, and PCIe", "two sockets"))
OLD = ("test_link_graph[a switch", *CROSS)
MATRIX = [
    to_topology("pairs in one order alone", "if a != b}", "if a < b}", BOTH, verdicts=ANY),
    to_topology("nothing crosses between sockets", '{here}->socket{there}": smp', '{here}->socket{there}": 0.0',
        ("test_real_outputs[topo_cube", "test_real_outputs[topo_two_sockets", *CROSS), verdicts=ANY),
    parse_topo("network cards are GPUs", 'gpus = [name for name in devices if name.startswith("GPU")]',
        "gpus = devices",
        ("test_real_outputs[topo_nvswitch", "test_real_outputs[topo_cube", "test_real_outputs[topo_two_sockets", *OLD),
        verdicts=ANY),
    parse_topo("titles of two words are devices",
        'list(itertools.takewhile(lambda title: title not in ("CPU", "NUMA", "GPU"), titles))',
        "titles", BOTH, verdicts=ANY),
    parse_topo("today's symbols alone", "symbol = OLDER.get(symbol, symbol)", "symbol = symbol",
        (*OLD, "test_link_graph[its"), verdicts=ANY),
    to_topology("two GPUs are on a switch", "len(linked) > 2 and len(", "len(", "test_link_graph[one bridge"),
    to_topology("one digit of NVLinks", "int(symbol[2:])", "int(symbol[2])",
        ("test_link_graph[a switch", "test_link_graph[one")),
    to_topology("one link between the sockets for both ways", 'f"socket{here}->socket{there}": smp',
        'f"socket{min(here, there)}->socket{max(here, there)}": smp', CROSS),
    to_topology("across, without the PCIe links on the way",
        'path = {f"{a}.up": pcie, f"socket{here}->socket{there}": smp, f"{b}.down": pcie}',
        'path = {f"socket{here}->socket{there}": smp}', CROSS),
    to_topology("NV everywhere is a switch, whatever the numbers",
        "len({symbols[pair] for pair in itertools.permutations(linked, 2)}) == 1",
        'all(symbol.startswith("NV") for symbol in symbols.values())',
        ("test_link_graph[unequal", "test_link_graph[its")),
    to_topology("a switch only where every GPU has NVLink", "switched = len(linked) > 2 and",
        "switched = len(linked) == N > 2 and", "test_link_graph[its"),
    to_topology("NVLink and PCIe are one link",
        'side = ".nvlink" if symbol.startswith("NV") and len(linked) < N else ""', 'side = ""', "test_link_graph[its"),
    parse_topo("a lost row is filled from the columns", "if name not in rows]:", "if False]:", "test_no_matrix"),
    parse_topo("a short row is read as far as it goes", "if len(words) < N:", "if False:", "test_no_matrix"),
    parse_topo("any word is a symbol", "else not SYMBOL.fullmatch(symbol)", "else False", "test_no_matrix"),
]

# ---- 13.12
pipelined_ring_all_reduce = At("13.12", "stretch/pipelined", "pipelined_ring_all_reduce")
SLICES = [
    pipelined_ring_all_reduce("one addition short", "if t < N - 1:", "if t < N - 2:", "test_pipelined"),
    pipelined_ring_all_reduce("divided at every step",
        "            if t == N - 2:\n                finish_",
        "            if True:\n                finish_", "test_pipelined[mean"),
    pipelined_ring_all_reduce("the other half stays", "zip((+1, -1), x_L.tensor_split(directions))",
        "zip((+1,), x_L.tensor_split(directions))", "test_pipelined"),
    pipelined_ring_all_reduce("both halves go right", "zip((+1, -1), x_L", "zip((+1, +1), x_L", "test_pipelined"),
    pipelined_ring_all_reduce("one slice after the other walks the ring",
        "    for t in range(steps):\n        for k in range(slices):",
        "    for k in range(slices):\n        for t in range(steps):", "test_pipelined"),
    pipelined_ring_all_reduce("a batch for each direction", "return group.batch(parts)[1::2]",
        "return [group.batch(parts[i : i + 2])[1] for i in range(0, len(parts), 2)]", "test_pipelined"),
    pipelined_ring_all_reduce("all in the first slice", "chunk.tensor_split(slices) for",
        "(chunk, *(chunk[:0] for _ in range(slices - 1))) for", "test_pipelined"),
    pipelined_ring_all_reduce("always two directions", "x_L.tensor_split(directions)", "x_L.tensor_split(2)",
        "test_pipelined"),
]

# ---- 13.13
fastest_all_reduce = At("13.13", "stretch/fastest", "fastest_all_reduce")
RACE = [
    fastest_all_reduce("nobody sends", 'if best == "ring":', 'if best:\n        return\n    elif best == "ring":',
        "test_race_entry"),
    fastest_all_reduce("summed twice", '    if best == "ring":',
        '    ring_all_reduce(x_L, group)\n    if best == "ring":', "test_race_entry"),
]

MUTANTS = [*TREE, *HALVES, *LEVELS, *MATRIX, *SLICES, *RACE]
