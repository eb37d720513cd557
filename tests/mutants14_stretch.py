"""Mutants of week 14's stretch tasks: see `mutants14.py`."""

from tests.mutant import ANY, At

# Checks that fail together.
UNDER_DDP = ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]")

# ---- 14.7
cross, finish, HSDP, settle = At.each("14.7", "stretch/hsdp", "HSDP.cross", "HSDP.finish", "class HSDP", "HSDP.settle")
init = At("14.7", "stretch/hsdp", "HSDP.__init__")
HSDP = [
    cross("nothing crosses", "if self.crossing:", "if False:",
        ("test_hsdp[2-2]", "test_hsdp[2-1]", "test_hsdp[1-2]"), "this node's mean"),
    cross("summed over the nodes", 'op="mean"', 'op="sum"',
        ("test_hsdp[2-2]", "test_hsdp[2-1]"), "summed over the nodes"),
    cross("every micro-batch crosses", "if self.crossing:", "if True:", "test_hsdp", "every micro-batch crosses"),
    finish("the root stays", "        self.cross(self.root)\n", "", "test_hsdp", "this node's mean"),
    cross("waits where it posts",
        "async_op=True))",
        """async_op=True))
            self.crossed[-1].wait()""", "test_hsdp"),
    HSDP("all cross in finish",
        """            self.cross(unit)
        ### END SOLUTION

    def finish(self) -> None:
        \"""Call it on all ranks after each backward. All that crosses has arrived.\"""
        ### BEGIN SOLUTION 14.7 finish
        super().finish()
        self.cross(self.root)
""",
        """            pass
        ### END SOLUTION

    def finish(self) -> None:
        ### BEGIN SOLUTION 14.7 finish
        super().finish()
        for unit in self.units:
            self.cross(unit)
""", "test_hsdp", "all shards cross after the backward"),
    settle("crosses before it has come",
        """        super().settle()
        if unit is not None:
            self.cross(unit)
""",
        """        if unit is not None and unit.shard.grad is not None:
            self.cross(unit)
        super().settle()
""", "test_hsdp", "this node's mean", verdicts=ANY, seldom=True),
    finish("never waited for", "            handle.wait()\n", "            pass\n",
        "test_hsdp", "this node's mean", "summed over the nodes", verdicts=ANY, seldom=True),
    init("over all ranks",
        'super().__init__(model, blocks, mesh["shard"], dtype, prefetch)',
        "super().__init__(model, blocks, mesh.group, dtype, prefetch)", "test_hsdp", verdicts=ANY),
    init("dtype is lost", 'mesh["shard"], dtype, prefetch', 'mesh["shard"], prefetch=prefetch', "test_hsdp"),
    init("prefetch is lost", 'mesh["shard"], dtype, prefetch', 'mesh["shard"], dtype', "test_hsdp"),
]

# ---- 14.8
ring_in_steps, all_reduce, wait = At.each("14.8", "stretch/ring", "ring_in_steps", "Ring.all_reduce", "Turn.wait")
RINGS = "test_rings[4"
RING = [
    ring_in_steps("waits where it posts",
        """        yield
        came = coming.wait()
        going.wait()
""",
        """        came = coming.wait()
        going.wait()
        yield
""",
        UNDER_DDP, "it is waited for where it is posted"),
    all_reduce("nobody else steps",
        """            self.step(ring)
        ring = ring_in_steps""",
        """            pass
        ring = ring_in_steps""", (*UNDER_DDP, RINGS)),
    all_reduce("the youngest alone steps", "in list(self.under_way):", "in list(self.under_way)[-1:]:",
        ("test_ring_under_data_parallel[3]", RINGS)),
    all_reduce("begins in wait",
        """        self.step(ring)
        turn = """, "        turn = ", (*UNDER_DDP, RINGS)),
    wait("not divided", "self.tensor.div_(self.rings.size)", "pass", (*UNDER_DDP, RINGS), "the sum over the ranks"),
    ring_in_steps("stored, not added", "into += came", "into.copy_(came)", (*UNDER_DDP, RINGS)),
    ring_in_steps("added in the second lap, too", "into.copy_(came)", "into += came", (*UNDER_DDP, RINGS)),
    ring_in_steps("a chunk too early", "c = (r - s - 1) % N if", "c = (r - s) % N if",
        (*UNDER_DDP, RINGS), verdicts=ANY),
    all_reduce("whole vectors",
        "        ring = ring_in_steps(tensor, self.group)\n",
        """        ring_blocking(tensor, self.group)
        ring = iter(())
""", (*UNDER_DDP, RINGS)),
    all_reduce("the library's",
        "        ring = ring_in_steps(tensor, self.group)\n",
        """        self.group.all_reduce(tensor)
        ring = iter(())
""", ("test_ring_under_data_parallel", RINGS), verdicts=("wrong", "forbidden call")),
    At("14.8", "stretch/ring", "all_reduce")("the newest ring first", "in list(self.under_way)",
        "in list(reversed(self.under_way))", RINGS),
    At("14.8", "stretch/ring", "wait")("a second wait divides again", 'self.op = "sum"', "pass",
        RINGS, "divided again", may="test_rings[1"),
    At("14.8", "stretch/ring", "all_reduce")("async_op is ignored", "return turn if async_op else turn.wait()",
        "return turn", "test_rings", verdicts=ANY),
    ring_in_steps("torch.chunk", "x_L.tensor_split(N)", "x_L.chunk(N)", RINGS, verdicts=ANY, may=UNDER_DDP),
]

# ---- 14.9
pieces, load, save = At.each("14.9", "stretch/checkpoint", "pieces", "load", "save")
CHECKPOINT = [
    pieces("padding is data", "min((r + 1) * mine, P)", "(r + 1) * mine",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    pieces("rounded down", "S, mine = -(-P // N), -(-P // M)", "S, mine = max(1, P // N), -(-P // M)",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    pieces("one part is enough", "    while at < end:", "    if at < end:",
        ("test_pieces", "test_checkpoint[4-2]", "test_checkpoint[4-3]", "test_checkpoint[2-3]"), verdicts=ANY),
    pieces("a part ends where it began", "stop = min(S, start + end - at)", "stop = S",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    load("no moments",
        '        install(unit, optimizer, found, index["steps"])',
        """        found = {name: t if name == "shard" else t * 0 for name, t in found.items()}
        install(unit, optimizer, found, index["steps"])""", "test_checkpoint"),
    load("the first step again",
        'install(unit, optimizer, found, index["steps"])', "install(unit, optimizer, found, 0)", "test_checkpoint"),
    load("whole parts are read",
        'part = files.read(f"{u}.{name}.{whose}", start, stop, unit.shard.dtype)',
        'part = files.read(f"{u}.{name}.{whose}", 0, -(-unit.numel // index["ranks"]), unit.shard.dtype)[start:stop]',
        "test_checkpoint"),
    save("every rank writes everything",
        'files.write(f"{u}.{name}.{group.rank}", vector)',
        'files.write(f"{u}.{name}.{group.rank}", group.all_gather(vector)[group.rank * unit.S :])',
        "test_checkpoint", verdicts=ANY),
    save("the index first",
        """    group.barrier()
    if group.rank == 0:""", "    if group.rank == 0:", "test_checkpoint"),
    save("back before the index is there",
        """"steps": steps})
    group.barrier()
""", '"steps": steps})\n', "test_checkpoint"),
    save("every rank writes the index", "if group.rank == 0:", "if True:", "test_checkpoint"),
    load("another model is welcome", 'if index["numel"] !=', 'if False and index["numel"] !=',
        "test_another_models_checkpoint", verdicts=ANY),
    load("as many numbers in all",
        'if index["numel"] != [unit.numel for unit in fsdp.units]:',
        'if sum(index["numel"]) != sum(unit.numel for unit in fsdp.units):', "test_another_models_checkpoint"),
]

MUTANTS = [*HSDP, *RING, *CHECKPOINT]
