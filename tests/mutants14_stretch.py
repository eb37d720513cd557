"""Mutants of week 14's stretch tasks: see `mutants14.py`."""

from tests.mutant import ANY, At

# Checks that fail together.
UNDER_DDP = ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]")

# ---- 14.7
hsdp = At("14.7", "stretch/hsdp")
HSDP = [
    hsdp("nothing crosses", "HSDP.cross",
        "if self.crossing:",
        "if False:",
        ("test_hsdp[2-2]", "test_hsdp[2-1]", "test_hsdp[1-2]"), "this node's mean"),
    hsdp("summed over the nodes", "HSDP.cross",
        'op="mean"',
        'op="sum"',
        ("test_hsdp[2-2]", "test_hsdp[2-1]"), "summed over the nodes"),
    hsdp("every micro-batch crosses", "HSDP.cross",
        "if self.crossing:",
        "if True:",
        "test_hsdp", "every micro-batch crosses"),
    hsdp("the root stays", "HSDP.finish",
        """        self.cross(self.root)
""",
        "",
        "test_hsdp", "this node's mean"),
    hsdp("waits where it posts", "HSDP.cross",
        "async_op=True))",
        """async_op=True))
            self.crossed[-1].wait()""",
        "test_hsdp"),
    hsdp("all cross in finish", "class HSDP",
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
""",
        "test_hsdp", "all shards cross after the backward"),
    hsdp("crosses before it has come", "HSDP.settle",
        """        super().settle()
        if unit is not None:
            self.cross(unit)
""",
        """        if unit is not None and unit.shard.grad is not None:
            self.cross(unit)
        super().settle()
""",
        "test_hsdp", "this node's mean", verdicts=ANY, seldom=True),
    hsdp("never waited for", "HSDP.finish",
        """            handle.wait()
""",
        """            pass
""",
        "test_hsdp", "this node's mean", "summed over the nodes", verdicts=ANY, seldom=True),
    hsdp("over all ranks", "HSDP.__init__",
        'super().__init__(model, blocks, mesh["shard"], dtype, prefetch)',
        "super().__init__(model, blocks, mesh.group, dtype, prefetch)",
        "test_hsdp", verdicts=ANY),
    hsdp("dtype is lost", "HSDP.__init__", 'mesh["shard"], dtype, prefetch', 'mesh["shard"], prefetch=prefetch', "test_hsdp"),
    hsdp("prefetch is lost", "HSDP.__init__", 'mesh["shard"], dtype, prefetch', 'mesh["shard"], dtype', "test_hsdp"),
]

# ---- 14.8
ring = At("14.8", "stretch/ring")
RINGS = "test_rings[4"
RING = [
    ring("waits where it posts", "ring_in_steps",
        """        yield
        came = coming.wait()
        going.wait()
""",
        """        came = coming.wait()
        going.wait()
        yield
""",
        UNDER_DDP, "it is waited for where it is posted"),
    ring("nobody else steps", "Ring.all_reduce",
        """            self.step(ring)
        ring = ring_in_steps""",
        """            pass
        ring = ring_in_steps""",
        (*UNDER_DDP, RINGS)),
    ring("the youngest alone steps", "Ring.all_reduce",
        "in list(self.under_way):",
        "in list(self.under_way)[-1:]:",
        ("test_ring_under_data_parallel[3]", RINGS)),
    ring("begins in wait", "Ring.all_reduce",
        """        self.step(ring)
        turn = """,
        "        turn = ",
        (*UNDER_DDP, RINGS)),
    ring("not divided", "Turn.wait", "self.tensor.div_(self.rings.size)", "pass", (*UNDER_DDP, RINGS), "the sum over the ranks"),
    ring("stored, not added", "ring_in_steps", "into += came", "into.copy_(came)", (*UNDER_DDP, RINGS)),
    ring("added in the second lap, too", "ring_in_steps", "into.copy_(came)", "into += came", (*UNDER_DDP, RINGS)),
    ring("a chunk too early", "ring_in_steps", "c = (r - s - 1) % N if", "c = (r - s) % N if", (*UNDER_DDP, RINGS), verdicts=ANY),
    ring("whole vectors", "Ring.all_reduce",
        """        ring = ring_in_steps(tensor, self.group)
""",
        """        ring_blocking(tensor, self.group)
        ring = iter(())
""",
        (*UNDER_DDP, RINGS)),
    ring("the library's", "Ring.all_reduce",
        """        ring = ring_in_steps(tensor, self.group)
""",
        """        self.group.all_reduce(tensor)
        ring = iter(())
""",
        ("test_ring_under_data_parallel", RINGS), verdicts=("wrong", "forbidden call")),
    ring("the newest ring first", "all_reduce",
        "in list(self.under_way)", "in list(reversed(self.under_way))", RINGS),
    ring("a second wait divides again", "wait",
        'self.op = "sum"', "pass", RINGS, "divided again", may="test_rings[1"),
    ring("async_op is ignored", "all_reduce",
        "return turn if async_op else turn.wait()", "return turn", "test_rings", verdicts=ANY),
    ring("torch.chunk", "ring_in_steps", "x_L.tensor_split(N)", "x_L.chunk(N)", RINGS, verdicts=ANY, may=UNDER_DDP),
]

# ---- 14.9
checkpoint = At("14.9", "stretch/checkpoint")
CHECKPOINT = [
    checkpoint("padding is data", "pieces",
        "min((r + 1) * mine, P)",
        "(r + 1) * mine",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    checkpoint("rounded down", "pieces",
        "S, mine = -(-P // N), -(-P // M)",
        "S, mine = max(1, P // N), -(-P // M)",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    checkpoint("one part is enough", "pieces",
        "    while at < end:",
        "    if at < end:",
        ("test_pieces", "test_checkpoint[4-2]", "test_checkpoint[4-3]", "test_checkpoint[2-3]"), verdicts=ANY),
    checkpoint("a part ends where it began", "pieces",
        "stop = min(S, start + end - at)",
        "stop = S",
        "test_pieces", verdicts=ANY, may="test_checkpoint"),
    checkpoint("no moments", "load",
        '        install(unit, optimizer, found, index["steps"])',
        """        found = {name: t if name == "shard" else t * 0 for name, t in found.items()}
        install(unit, optimizer, found, index["steps"])""",
        "test_checkpoint"),
    checkpoint("the first step again", "load",
        'install(unit, optimizer, found, index["steps"])',
        "install(unit, optimizer, found, 0)",
        "test_checkpoint"),
    checkpoint("whole parts are read", "load",
        'part = files.read(f"{u}.{name}.{whose}", start, stop, unit.shard.dtype)',
        'part = files.read(f"{u}.{name}.{whose}", 0, -(-unit.numel // index["ranks"]), unit.shard.dtype)[start:stop]',
        "test_checkpoint"),
    checkpoint("every rank writes everything", "save",
        'files.write(f"{u}.{name}.{group.rank}", vector)',
        'files.write(f"{u}.{name}.{group.rank}", group.all_gather(vector)[group.rank * unit.S :])',
        "test_checkpoint", verdicts=ANY),
    checkpoint("the index first", "save",
        """    group.barrier()
    if group.rank == 0:""",
        "    if group.rank == 0:",
        "test_checkpoint"),
    checkpoint("back before the index is there", "save",
        """"steps": steps})
    group.barrier()
""",
        """"steps": steps})
""",
        "test_checkpoint"),
    checkpoint("every rank writes the index", "save", "if group.rank == 0:", "if True:", "test_checkpoint"),
    checkpoint("another model is welcome", "load",
        'if index["numel"] !=',
        'if False and index["numel"] !=',
        "test_another_models_checkpoint", verdicts=ANY),
    checkpoint("as many numbers in all", "load",
        'if index["numel"] != [unit.numel for unit in fsdp.units]:',
        'if sum(index["numel"]) != sum(unit.numel for unit in fsdp.units):',
        "test_another_models_checkpoint"),
]

MUTANTS = [*HSDP, *RING, *CHECKPOINT]
