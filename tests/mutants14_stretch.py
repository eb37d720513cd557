"""Mutants of week 14's stretch tasks: see `mutants14.py`."""

from __future__ import annotations

from tests.mutant import Mutant

ANY = ("wrong", "crashed", "hung", "no result", "forbidden call")

# ---- 14.7
HSDP = [
    Mutant(
        "nothing crosses",
        "14.7",
        "stretch/hsdp",
        "HSDP.cross",
        "if self.crossing:",
        "if False:",
        ("test_hsdp[2-2]", "test_hsdp[2-1]", "test_hsdp[1-2]"),
        ("this node's mean",),
    ),
    Mutant(
        "summed over the nodes",
        "14.7",
        "stretch/hsdp",
        "HSDP.cross",
        'op="mean"',
        'op="sum"',
        ("test_hsdp[2-2]", "test_hsdp[2-1]"),
        ("summed over the nodes",),
    ),
    Mutant(
        "every micro-batch crosses",
        "14.7",
        "stretch/hsdp",
        "HSDP.cross",
        "if self.crossing:",
        "if True:",
        ("test_hsdp",),
        ("every micro-batch crosses",),
    ),
    Mutant(
        "the root stays",
        "14.7",
        "stretch/hsdp",
        "HSDP.finish",
        "        self.cross(self.root)\n",
        "",
        ("test_hsdp",),
        ("this node's mean",),
    ),
    Mutant(
        "waits where it posts",
        "14.7",
        "stretch/hsdp",
        "HSDP.cross",
        "async_op=True))",
        "async_op=True))\n            self.crossed[-1].wait()",
        ("test_hsdp",),
    ),
    Mutant(
        "all cross in finish",
        "14.7",
        "stretch/hsdp",
        "class HSDP",
        """            self.cross(unit)
        ### END SOLUTION

    def finish(self) -> None:
        \"\"\"Call it on all ranks after each backward. All that crosses has arrived.\"\"\"
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
        ("test_hsdp",),
        ("all shards cross after the backward",),
    ),
    Mutant(
        "crosses before it has come",
        "14.7",
        "stretch/hsdp",
        "HSDP.settle",
        """        super().settle()
        if unit is not None:
            self.cross(unit)
""",
        """        if unit is not None and unit.shard.grad is not None:
            self.cross(unit)
        super().settle()
""",
        ("test_hsdp",),
        ("this node's mean",),
        verdicts=ANY,
        seldom=True,
    ),
    Mutant(
        "never waited for",
        "14.7",
        "stretch/hsdp",
        "HSDP.finish",
        "            handle.wait()\n",
        "            pass\n",
        ("test_hsdp",),
        ("this node's mean", "summed over the nodes"),
        verdicts=ANY,
        seldom=True,
    ),
    Mutant(
        "over all ranks",
        "14.7",
        "stretch/hsdp",
        "HSDP.__init__",
        'super().__init__(model, blocks, mesh["shard"], dtype, prefetch)',
        "super().__init__(model, blocks, mesh.group, dtype, prefetch)",
        ("test_hsdp",),
        verdicts=ANY,
    ),
]

# ---- 14.8
RING = [
    Mutant(
        "waits where it posts",
        "14.8",
        "stretch/ring",
        "ring_in_steps",
        """        yield
        came = coming.wait()
        going.wait()
""",
        """        came = coming.wait()
        going.wait()
        yield
""",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
        ("it is waited for where it is posted",),
    ),
    Mutant(
        "nobody else steps",
        "14.8",
        "stretch/ring",
        "Ring.all_reduce",
        "            self.step(ring)\n        ring = ring_in_steps",
        "            pass\n        ring = ring_in_steps",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
    ),
    Mutant(
        "the youngest alone steps",
        "14.8",
        "stretch/ring",
        "Ring.all_reduce",
        "in list(self.under_way):",
        "in list(self.under_way)[-1:]:",
        ("test_ring_under_data_parallel[3]",),
    ),
    Mutant(
        "begins in wait",
        "14.8",
        "stretch/ring",
        "Ring.all_reduce",
        "        self.step(ring)\n        turn = ",
        "        turn = ",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
    ),
    Mutant(
        "not divided",
        "14.8",
        "stretch/ring",
        "Turn.wait",
        "self.tensor.div_(self.rings.size)",
        "pass",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
        ("the sum over the ranks",),
    ),
    Mutant(
        "stored, not added",
        "14.8",
        "stretch/ring",
        "ring_in_steps",
        "into += came",
        "into.copy_(came)",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
    ),
    Mutant(
        "added in the second lap, too",
        "14.8",
        "stretch/ring",
        "ring_in_steps",
        "into.copy_(came)",
        "into += came",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
    ),
    Mutant(
        "a chunk too early",
        "14.8",
        "stretch/ring",
        "ring_in_steps",
        "c = (r - s - 1) % N if",
        "c = (r - s) % N if",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
        verdicts=ANY,
    ),
    Mutant(
        "whole vectors",
        "14.8",
        "stretch/ring",
        "Ring.all_reduce",
        "        ring = ring_in_steps(tensor, self.group)\n",
        "        ring_blocking(tensor, self.group)\n        ring = iter(())\n",
        ("test_ring_under_data_parallel[2]", "test_ring_under_data_parallel[3]"),
    ),
    Mutant(
        "the library's",
        "14.8",
        "stretch/ring",
        "Ring.all_reduce",
        "        ring = ring_in_steps(tensor, self.group)\n",
        "        self.group.all_reduce(tensor)\n        ring = iter(())\n",
        ("test_ring_under_data_parallel",),
        verdicts=("forbidden call",),
    ),
]

# ---- 14.9
CHECKPOINT = [
    Mutant(
        "padding is data",
        "14.9",
        "stretch/checkpoint",
        "pieces",
        "min((r + 1) * mine, P)",
        "(r + 1) * mine",
        ("test_pieces",),
        may=("test_checkpoint",),
        verdicts=ANY,
    ),
    Mutant(
        "rounded down",
        "14.9",
        "stretch/checkpoint",
        "pieces",
        "S, mine = -(-P // N), -(-P // M)",
        "S, mine = max(1, P // N), -(-P // M)",
        ("test_pieces",),
        may=("test_checkpoint",),
        verdicts=ANY,
    ),
    Mutant(
        "one part is enough",
        "14.9",
        "stretch/checkpoint",
        "pieces",
        "    while at < end:",
        "    if at < end:",
        ("test_pieces", "test_checkpoint[4-2]", "test_checkpoint[4-3]", "test_checkpoint[2-3]"),
        verdicts=ANY,
    ),
    Mutant(
        "a part ends where it began",
        "14.9",
        "stretch/checkpoint",
        "pieces",
        "stop = min(S, start + end - at)",
        "stop = S",
        ("test_pieces",),
        may=("test_checkpoint",),
        verdicts=ANY,
    ),
    Mutant(
        "no moments",
        "14.9",
        "stretch/checkpoint",
        "load",
        '        install(unit, optimizer, found, index["steps"])',
        '        found = {name: t if name == "shard" else t * 0 for name, t in found.items()}\n'
        '        install(unit, optimizer, found, index["steps"])',
        ("test_checkpoint",),
    ),
    Mutant(
        "the first step again",
        "14.9",
        "stretch/checkpoint",
        "load",
        'install(unit, optimizer, found, index["steps"])',
        "install(unit, optimizer, found, 0)",
        ("test_checkpoint",),
    ),
    Mutant(
        "whole parts are read",
        "14.9",
        "stretch/checkpoint",
        "load",
        'part = files.read(f"{u}.{name}.{whose}", start, stop, unit.shard.dtype)',
        'part = files.read(f"{u}.{name}.{whose}", 0, -(-unit.numel // index["ranks"]), unit.shard.dtype)[start:stop]',
        ("test_checkpoint",),
    ),
    Mutant(
        "every rank writes everything",
        "14.9",
        "stretch/checkpoint",
        "save",
        'files.write(f"{u}.{name}.{group.rank}", vector)',
        'files.write(f"{u}.{name}.{group.rank}", group.all_gather(vector)[group.rank * unit.S :])',
        ("test_checkpoint",),
        verdicts=ANY,
    ),
    Mutant(
        "the index first",
        "14.9",
        "stretch/checkpoint",
        "save",
        "    group.barrier()\n    if group.rank == 0:",
        "    if group.rank == 0:",
        ("test_checkpoint",),
    ),
    Mutant(
        "back before the index is there",
        "14.9",
        "stretch/checkpoint",
        "save",
        '"steps": steps})\n    group.barrier()\n',
        '"steps": steps})\n',
        ("test_checkpoint",),
    ),
    Mutant(
        "every rank writes the index",
        "14.9",
        "stretch/checkpoint",
        "save",
        "if group.rank == 0:",
        "if True:",
        ("test_checkpoint",),
    ),
    Mutant(
        "another model is welcome",
        "14.9",
        "stretch/checkpoint",
        "load",
        'if index["numel"] !=',
        'if False and index["numel"] !=',
        ("test_another_models_checkpoint",),
        verdicts=ANY,
    ),
]

MUTANTS = [*HSDP, *RING, *CHECKPOINT]
