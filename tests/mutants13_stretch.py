"""Mutants of week 13's stretch tasks: see `mutants13.py`."""

from tests.mutant import ANY, At

# ---- 13.8
tree = At("13.8", "stretch/tree")
TREE = [
    tree(
        "a round too few", "tree_all_reduce", "range((N - 1).bit_length())]", "range(N.bit_length() - 1)]", "test_tree"),
    tree("the sum stays at rank 0", "tree_all_reduce", "in reversed(rounds):", "in []:", "test_tree"),
    tree(
        "never divided", "tree_all_reduce", "finish_(x_L, op, N)", "pass", "test_tree[mean", "every number is 2 times"),
    tree("rounds rounded down", "tree_all_reduce_cost", "rounds = (N - 1).bit_length()",
        "rounds = N.bit_length() - 1", "test_tree_cost"),
    tree("the ring's share", "tree_all_reduce_cost", "share=2 * rounds", "share=2 * (N - 1) / N", "test_tree_cost"),
]

# ---- 13.9
halving_doubling = At("13.9", "stretch/halving_doubling")
HALVES = [
    halving_doubling("three ranks are welcome", "halving_doubling_all_reduce", "if N & (N - 1):", "if False:",
        "test_halving_doubling_needs_a_power_of_two"),
    halving_doubling("near pairs first", "halving_doubling_all_reduce",
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
hierarchical = At("13.10", "stretch/hierarchical")
LEVELS = [
    hierarchical(
        "nothing crosses", "hierarchical_all_reduce", "ring_all_reduce(shard, across, op)", "pass", "test_hierarchical"),
    hierarchical("summed over the nodes, whatever the operation", "hierarchical_all_reduce",
        "ring_all_reduce(shard, across, op)", "ring_all_reduce(shard, across)",
        ("test_hierarchical[mean", "test_hierarchical[max"), "every number is 2 times"),
    hierarchical("its own chunk alone", "hierarchical_all_reduce",
        "return ring_all_gather(shard, inner, x_L.numel(), out=x_L)", "return x_L", "test_hierarchical"),
    hierarchical("any number of ranks is welcome", "hierarchical_all_reduce", "if group.size % per_node:",
        "if False:", "test_hierarchical_needs_whole_nodes"),
    hierarchical("the whole vector crosses, from every rank", "hierarchical_all_reduce",
        "shard = ring_reduce_scatter(x_L, inner, op)\n    ring_all_reduce(shard, across, op)\n"
        "    return ring_all_gather(shard, inner, x_L.numel(), out=x_L)",
        "ring_all_reduce(x_L, inner, op)\n    return ring_all_reduce(x_L, across, op)", "test_hierarchical"),
    hierarchical("the levels exchanged", "hierarchical_all_reduce",
        "inner = InOrder(group, range(node * per_node, (node + 1) * per_node))\n"
        "    across = InOrder(group, range(place, group.size, per_node))",
        "across = InOrder(group, range(node * per_node, (node + 1) * per_node))\n"
        "    inner = InOrder(group, range(place, group.size, per_node))", "test_hierarchical"),
]

# ---- 13.11
smi = At("13.11", "stretch/smi")
BOTH = ("test_real_outputs", "test_link_graph")
CROSS = tuple(f"test_link_graph[{name}" for name in ("cables, and PCIe", "two sockets"))
OLD = ("test_link_graph[a switch", *CROSS)
MATRIX = [
    smi("pairs in one order alone", "to_topology", "if a != b}", "if a < b}", BOTH, verdicts=ANY),
    smi("nothing crosses between sockets", "to_topology", '{here}->socket{there}": smp',
        '{here}->socket{there}": 0.0', ("test_real_outputs[topo_cube", "test_real_outputs[topo_two_sockets", *CROSS),
        verdicts=ANY),
    smi("network cards are GPUs", "parse_topo", 'gpus = [name for name in devices if name.startswith("GPU")]',
        "gpus = devices",
        ("test_real_outputs[topo_nvswitch", "test_real_outputs[topo_cube", "test_real_outputs[topo_two_sockets", *OLD),
        verdicts=ANY),
    smi("titles of two words are devices", "parse_topo",
        'list(itertools.takewhile(lambda title: title not in ("CPU", "NUMA", "GPU"), titles))', "titles", BOTH,
        verdicts=ANY),
    smi("today's symbols alone", "parse_topo", "symbol = OLDER.get(symbol, symbol)", "symbol = symbol",
        (*OLD, "test_link_graph[its"), verdicts=ANY),
    smi("two GPUs are on a switch", "to_topology", "len(linked) > 2 and len(", "len(", "test_link_graph[one bridge"),
    smi("one digit of NVLinks", "to_topology", "int(symbol[2:])", "int(symbol[2])", ("test_link_graph[a switch", "test_link_graph[one")),
    smi("one link between the sockets for both ways", "to_topology", 'f"socket{here}->socket{there}": smp',
        'f"socket{min(here, there)}->socket{max(here, there)}": smp', CROSS),
    smi("across, without the PCIe links on the way", "to_topology",
        'path = {f"{a}.up": pcie, f"socket{here}->socket{there}": smp, f"{b}.down": pcie}',
        'path = {f"socket{here}->socket{there}": smp}', CROSS),
    smi("NV everywhere is a switch, whatever the numbers", "to_topology",
        "len({symbols[pair] for pair in itertools.permutations(linked, 2)}) == 1",
        'all(symbol.startswith("NV") for symbol in symbols.values())',
        ("test_link_graph[unequal", "test_link_graph[its")),
    smi("a switch only where every GPU has NVLink", "to_topology", "switched = len(linked) > 2 and",
        "switched = len(linked) == N > 2 and", "test_link_graph[its"),
    smi("NVLink and PCIe are one link", "to_topology", 'side = ".nvlink" if symbol.startswith("NV") and len(linked) < N else ""',
        'side = ""', "test_link_graph[its"),
    smi("a lost row is filled from the columns", "parse_topo", "if name not in rows]:", "if False]:", "test_no_matrix"),
    smi("a short row is read as far as it goes", "parse_topo", "if len(words) < N:", "if False:", "test_no_matrix"),
    smi("any word is a symbol", "parse_topo", "else not SYMBOL.fullmatch(symbol)", "else False", "test_no_matrix"),
]

# ---- 13.12
pipelined = At("13.12", "stretch/pipelined")
SLICES = [
    pipelined("one addition short", "pipelined_ring_all_reduce", "if t < N - 1:", "if t < N - 2:", "test_pipelined"),
    pipelined("divided at every step", "pipelined_ring_all_reduce",
        "            if t == N - 2:\n                finish_", "            if True:\n                finish_",
        "test_pipelined[mean"),
    pipelined("the other half stays", "pipelined_ring_all_reduce", "zip((+1, -1), x_L.tensor_split(directions))",
        "zip((+1,), x_L.tensor_split(directions))", "test_pipelined"),
    pipelined("both halves go right", "pipelined_ring_all_reduce", "zip((+1, -1), x_L", "zip((+1, +1), x_L", "test_pipelined"),
    pipelined("one slice after the other walks the ring", "pipelined_ring_all_reduce",
        "    for t in range(steps):\n        for k in range(slices):", "    for k in range(slices):\n        for t in range(steps):",
        "test_pipelined"),
    pipelined("a batch for each direction", "pipelined_ring_all_reduce", "return group.batch(parts)[1::2]",
        "return [group.batch(parts[i : i + 2])[1] for i in range(0, len(parts), 2)]", "test_pipelined"),
    pipelined("all in the first slice", "pipelined_ring_all_reduce", "chunk.tensor_split(slices) for",
        "(chunk, *(chunk[:0] for _ in range(slices - 1))) for", "test_pipelined"),
    pipelined("always two directions", "pipelined_ring_all_reduce", "x_L.tensor_split(directions)",
        "x_L.tensor_split(2)", "test_pipelined"),
]

# ---- 13.13
fastest = At("13.13", "stretch/fastest")
RACE = [
    fastest("nobody sends", "fastest_all_reduce", 'if best == "ring":',
        'if best:\n        return\n    elif best == "ring":', "test_race_entry"),
    fastest("summed twice", "fastest_all_reduce", '    if best == "ring":',
        '    ring_all_reduce(x_L, group)\n    if best == "ring":', "test_race_entry"),
]

MUTANTS = [*TREE, *HALVES, *LEVELS, *MATRIX, *SLICES, *RACE]
