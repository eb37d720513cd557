"""Mutants of week 14: the reference with a line or two changed, the checks that must fail for it, and the cause to be
told.

`tests/test_mutants14.py` runs each through the real machinery, `tests/kills.py` on many seeds. A mutant fails exactly
the checks named here; a cause that is printed is one of those given here; where none is given, no case may print one.
"""

from __future__ import annotations

from tests.mutant import Mutant

WRONG, ANY = ("wrong",), ("wrong", "crashed", "hung", "no result", "forbidden call")

# Checks that fail together.
STAGES = ("test_stage[zero1]", "test_stage[zero2]", "test_stage[zero3]")
METERED = ("test_against_the_meter", "test_stage")
REPLICAS = ("test_data_parallel", "test_graphs_that_differ", "test_no_sync", "test_buckets", "test_leaves_early")
ZERO_STEP = ("test_zero_weights", "test_zero_clipping")
ALL_OF_ZERO = ("test_zero_weights", "test_zero_clipping", "test_zero_holds", "test_zero_traffic")
FLAT_UNITS = (
    "test_flat_parameter[2]",
    "test_flat_parameter[3]",
    "test_flat_parameter_bf16",
    "test_fsdp",
    "test_fsdp_memory",
    "test_fsdp_prefetch",
    "test_fsdp_recovers",
)
UNHIDDEN = ("test_exposed", "test_unions", "test_nothing_to_expose")

# ---- 14.1
MEMORY = [
    Mutant(
        "masters are never cut",
        "14.1",
        "memory",
        "memory",
        "masters=held * master",
        "masters=P * master",
        STAGES,
        ("whole: this stage cuts it",),
    ),
    Mutant(
        "gradients are cut one stage late",
        "14.1",
        "memory",
        "memory",
        "if cut >= 2:",
        "if cut >= 3:",
        ("test_stage[zero2]",),
        ("whole: this stage cuts it",),
    ),
    Mutant("one moment", "14.1", "memory", "memory", "moments=held * 8", "moments=held * 4", METERED, ("one moment",)),
    Mutant(
        "cut as one vector",
        "14.1",
        "memory",
        "memory",
        "part = -(-sizes.root // N) + sizes.blocks * -(-sizes.block // N)",
        "part = -(-P // N)",
        STAGES,
        ("cut as one vector",),
    ),
    Mutant(
        "rounded down",
        "14.1",
        "memory",
        "memory",
        "part = -(-sizes.root // N) + sizes.blocks * -(-sizes.block // N)",
        "part = P // N",
        STAGES,
    ),
    Mutant(
        "all blocks gathered",
        "14.1",
        "memory",
        "memory",
        "at_once = min(2, sizes.blocks)",
        "at_once = sizes.blocks",
        ("test_stage[zero3]",),
        ("all blocks at once",),
    ),
    Mutant(
        "one block gathered",
        "14.1",
        "memory",
        "memory",
        "at_once = min(2, sizes.blocks)",
        "at_once = 1",
        ("test_stage[zero3]",),
        ("one block: the next one",),
    ),
    Mutant(
        "masters in FP32, too",
        "14.1",
        "memory",
        "memory",
        "master = 4 if itemsize < 4 else 0",
        "master = 4",
        METERED,
        ("FP32 weights need no masters",),
    ),
    Mutant(
        "checkpointing changes nothing",
        "14.1",
        "memory",
        "memory",
        "if checkpointed else",
        "if False else",
        ("test_against_the_meter[checkpointed]",),
        ("as without checkpointing",),
    ),
    Mutant(
        "inputs of the blocks alone",
        "14.1",
        "memory",
        "memory",
        "sizes.blocks * sizes.width + sizes.saved",
        "sizes.blocks * sizes.width",
        ("test_against_the_meter[checkpointed]",),
        ("the inputs of the blocks alone",),
    ),
    Mutant(
        "activations of one block",
        "14.1",
        "memory",
        "memory",
        "else sizes.blocks * sizes.saved",
        "else sizes.saved",
        ("test_against_the_meter[plain]", "test_stage"),
        ("one block alone",),
    ),
    Mutant("logits once", "14.1", "memory", "memory", "(2 * itemsize + 4)", "itemsize", METERED, ("one copy",)),
    Mutant(
        "a batch too many",
        "14.1",
        "memory",
        "largest_batch",
        "// (one - none))",
        "// (one - none) + 1)",
        ("test_largest_batch",),
    ),
    Mutant(
        "tokens for sequences",
        "14.1",
        "memory",
        "largest_batch",
        "// (one - none))",
        "// (one - none) * seq_len)",
        ("test_largest_batch",),
        ("in tokens",),
    ),
    Mutant(
        "weights of two bytes",
        "14.1",
        "memory",
        "memory",
        "gradients = P * itemsize, 0, P * itemsize",
        "gradients = P * 2, 0, P * itemsize",
        ("test_against_the_meter", "test_stage[ddp]", "test_stage[zero1]", "test_stage[zero2]"),
        ("two bytes a parameter",),
    ),
    Mutant(
        "a negative batch",
        "14.1",
        "memory",
        "largest_batch",
        "return max(0, (capacity - none)",
        "return max(-99, (capacity - none)",
        ("test_largest_batch",),
        ("a negative batch",),
    ),
    Mutant(
        "logits in b bytes",
        "14.1",
        "memory",
        "memory",
        "(2 * itemsize + 4)",
        "3 * itemsize",
        ("test_stage",),
        ("three copies of b bytes",),
    ),
    Mutant(
        "the shards' gradients in b bytes",
        "14.1",
        "memory",
        "memory",
        "gradients = part * 4 +",
        "gradients = part * itemsize +",
        ("test_stage[zero3]",),
        ("the shards' gradients in b bytes",),
    ),
    Mutant(
        "any stage",
        "14.1",
        "memory",
        "memory",
        """    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, not {stage!r}")
    P, cut = parameters(sizes), STAGES.index(stage)
""",
        """    P, cut = parameters(sizes), (*STAGES, stage).index(stage) % len(STAGES)
""",
        ("test_unknown_stage",),
    ),
    Mutant(
        "every stage is refused",
        "14.1",
        "memory",
        "memory",
        "",
        "raise ValueError('no')",
        ("test_unknown_stage", "test_stage", "test_against_the_meter", "test_largest_batch"),
        verdicts=ANY,
    ),
]

# ---- 14.2
FULL = """        while self.left < len(self.buckets) and len(self.buckets[self.left].ready) == len(
            self.buckets[self.left].params
        ):
            self.leave()
"""
DDP = [
    Mutant(
        "summed", "14.2", "ddp", "DataParallel.leave", 'op="mean"', 'op="sum"', REPLICAS, ("the sum over the ranks",)
    ),
    Mutant(
        "divided twice",
        "14.2",
        "ddp",
        "DataParallel.finish",
        "p.grad = mean.view_as(p).clone()",
        "p.grad = mean.view_as(p) / self.group.size",
        REPLICAS,
        ("divided twice",),
    ),
    Mutant(
        "forward order",
        "14.2",
        "ddp",
        "DataParallel.fill",
        "in reversed(params)",
        "in params",
        ("test_no_sync", "test_buckets", "test_leaves_early"),
        ("in the order of registration", "all buckets leave after the backward"),
    ),
    Mutant(
        "leaves before it is full",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        FULL,
        "        while self.left < len(self.buckets) and self.buckets[self.left].ready:\n            self.leave()\n",
        REPLICAS,
        ("a bucket leaves before it is full",),
    ),
    Mutant(
        "leaves when another one is full",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        FULL,
        "        if len(bucket.ready) == len(bucket.params):\n            self.leave()\n",
        ("test_leaves_early",),
        ("a bucket leaves before it is full",),
        may=("test_graphs_that_differ",),
    ),
    Mutant(
        "a bucket that waited stays",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        FULL,
        """        if bucket is self.buckets[self.left] and len(bucket.ready) == len(bucket.params):
            self.leave()
""",
        ("test_leaves_early",),
        ("a bucket that waited",),
    ),
    Mutant(
        "leaves in the order of readiness",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        FULL,
        """        if len(bucket.ready) == len(bucket.params):
            self.buckets.remove(bucket)
            self.buckets.insert(self.left, bucket)
            self.leave()
""",
        ("test_graphs_that_differ", "test_leaves_early"),
        verdicts=ANY,
    ),
    Mutant(
        "what never became ready never leaves",
        "14.2",
        "ddp",
        "DataParallel.finish",
        """        while self.left < len(self.buckets):
            self.leave()
        for bucket in self.buckets:
""",
        """        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for bucket in self.buckets[: self.left]:
""",
        ("test_data_parallel", "test_graphs_that_differ[one rank skips a block]"),
        verdicts=ANY,
    ),
    Mutant(
        "a tied weight twice",
        "14.2",
        "ddp",
        "trainable",
        "[p for p in module.parameters() if p.requires_grad]",
        "[p for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]",
        REPLICAS,
        verdicts=ANY,
        may=("test_second_backward",),
    ),
    Mutant(
        "every backward is refused",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        "        if not self.sync:\n            return\n",
        "        raise RuntimeError('no')\n",
        (*REPLICAS, "test_second_backward"),
        verdicts=ANY,
    ),
    Mutant(
        "no_sync ignored",
        "14.2",
        "ddp",
        "DataParallel.no_sync",
        "self.sync, False",
        "self.sync, True",
        ("test_no_sync",),
        verdicts=ANY,
    ),
    Mutant(
        "every micro-batch travels",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        """        if not self.sync:
            return
        bucket = self.bucket_of[p]
        if p in bucket.ready:
            raise RuntimeError("a second backward before finish(): wrap all but the last in no_sync()")
""",
        """        bucket = self.bucket_of[p]
        if p in bucket.ready:
            mine = p.grad
            self.finish()
            p.grad = mine
""",
        ("test_no_sync", "test_second_backward"),
        ("every micro-batch is sent",),
        verdicts=ANY,
    ),
    Mutant(
        "no_sync is never left",
        "14.2",
        "ddp",
        "DataParallel.no_sync",
        "            self.sync = before\n",
        "            pass\n",
        ("test_no_sync",),
    ),
    Mutant(
        "no_sync is not left by an exception",
        "14.2",
        "ddp",
        "DataParallel.no_sync",
        "        try:\n            yield\n        finally:\n            self.sync = before\n",
        "        yield\n        self.sync = before\n",
        ("test_no_sync[left by an exception]",),
    ),
    Mutant(
        "after an exception the next no_sync ends it",
        "14.2",
        "ddp",
        "DataParallel.no_sync",
        """        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before
""",
        "        self.sync = False\n        yield\n        self.sync = True\n",
        ("test_no_sync[left by an exception]",),
        ("no_sync is not left by an exception",),
    ),
    Mutant(
        "finish forgets who never became ready",
        "14.2",
        "ddp",
        "DataParallel.finish",
        "                p.grad = mean.view_as(p).clone()\n",
        "                p.grad = mean.view_as(p).clone() if p in bucket.ready else None\n",
        ("test_data_parallel", "test_graphs_that_differ[one rank skips a block]"),
    ),
    Mutant(
        "micro-batches are forgotten",
        "14.2",
        "ddp",
        "DataParallel.no_sync",
        "            self.sync = before\n",
        "            self.sync = before\n            for p in self.params:\n                p.grad = None\n",
        ("test_no_sync",),
        ("the last micro-batch alone",),
    ),
    Mutant(
        "waits where it posts",
        "14.2",
        "ddp",
        "DataParallel.leave",
        "        self.left += 1\n",
        "        bucket.handle.wait()\n        self.left += 1\n",
        ("test_leaves_early",),
        ("it is waited for where it is posted",),
    ),
    Mutant(
        "all leave in finish",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        FULL,
        "",
        ("test_no_sync", "test_leaves_early"),
        ("all buckets leave after the backward",),
    ),
    Mutant(
        "a message for every parameter",
        "14.2",
        "ddp",
        "DataParallel.fill",
        "last.nbytes + p.nbytes > bucket_bytes",
        "True",
        ("test_buckets", "test_leaves_early"),
        ("a message for every parameter",),
    ),
    Mutant(
        "one bucket",
        "14.2",
        "ddp",
        "DataParallel.fill",
        "last.nbytes + p.nbytes > bucket_bytes",
        "False",
        ("test_no_sync", "test_buckets", "test_leaves_early"),
        ("all in one bucket",),
    ),
    Mutant(
        "the limit is reached, then closed",
        "14.2",
        "ddp",
        "DataParallel.fill",
        "last.nbytes + p.nbytes > bucket_bytes",
        "last.nbytes > bucket_bytes",
        ("test_buckets", "test_leaves_early"),
        may=("test_no_sync",),
    ),
    Mutant(
        "its own gradient stays",
        "14.2",
        "ddp",
        "DataParallel.finish",
        "p.grad = mean.view_as(p).clone()",
        "p.grad = torch.zeros_like(p) if p.grad is None else p.grad",
        REPLICAS,
        ("this rank's own gradient",),
    ),
    Mutant(
        "what was ready stays ready",
        "14.2",
        "ddp",
        "DataParallel.finish",
        "            bucket.ready.clear()\n",
        "",
        REPLICAS,
        verdicts=ANY,
        may=("test_second_backward",),
    ),
    Mutant(
        "a second backward is let in",
        "14.2",
        "ddp",
        "DataParallel.on_ready",
        "if p in bucket.ready:",
        "if False:",
        ("test_second_backward",),
    ),
]

# ---- 14.3
ZERO = [
    Mutant(
        "moments are parts of whole ones",
        "14.3",
        "zero",
        "ShardedAdamW.__init__",
        """        self.m = self.params[0].new_zeros(self.S)
        self.v = self.params[0].new_zeros(self.S)
""",
        """        self.m = self.params[0].new_zeros(group.size * self.S)[: self.S]
        self.v = self.params[0].new_zeros(group.size * self.S)[: self.S]
""",
        ("test_zero_holds",),
        ("a view of the whole vector",),
    ),
    Mutant(
        "a part of the weights that keeps them all",
        "14.3",
        "zero",
        "ShardedAdamW.__init__",
        "        self.v = self.params[0].new_zeros(self.S)\n",
        """        self.v = self.params[0].new_zeros(self.S)
        self.w_S = flatten(self.params, group.size * self.S)[group.rank * self.S : (group.rank + 1) * self.S]
""",
        ("test_zero_holds",),
        ("a view of the whole vector",),
    ),
    Mutant(
        "whole vectors are kept",
        "14.3",
        "zero",
        "ShardedAdamW.__init__",
        "        self.v = self.params[0].new_zeros(self.S)\n",
        """        self.v = self.params[0].new_zeros(self.S)
        self.kept = flatten(self.params, group.size * self.S), flatten(self.params, group.size * self.S)
""",
        ("test_zero_holds",),
        ("whole vectors on every rank",),
    ),
    Mutant(
        "the norm of one part",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "g_S.square().sum().sqrt()",
        ("test_zero_clipping",),
        ("the norm of this rank's part alone",),
    ),
    Mutant(
        "norms added",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "self.group.all_reduce(g_S.norm())",
        ("test_zero_clipping",),
        ("the sum of the parts' norms",),
    ),
    Mutant(
        "the norm's square",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "self.group.all_reduce(g_S.square().sum())",
        ("test_zero_clipping",),
        ("the square of it",),
    ),
    Mutant(
        "the norm of its own gradient",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "sum(p.grad.square().sum() for p in self.params if p.grad is not None).sqrt()",
        ("test_zero_clipping",),
        ("this rank's own gradient, not the mean",),
    ),
    Mutant(
        "the mean of the ranks' norms",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        """sum(p.grad.square().sum() for p in self.params if p.grad is not None).sqrt()
        norm = self.group.all_reduce(norm, op="mean")""",
        ("test_zero_clipping",),
        ("the mean of the ranks' own norms",),
    ),
    Mutant(
        "the squares of the ranks' own gradients",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "self.group.all_reduce(g_S.square().sum()).sqrt()",
        """sum(p.grad.square().sum() for p in self.params if p.grad is not None)
        norm = self.group.all_reduce(norm).sqrt()""",
        ("test_zero_clipping",),
        ("the norm of the ranks' own gradients together",),
    ),
    Mutant(
        "a norm only where it clips",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "        return norm.item()\n",
        "        return norm.item() if max_norm else 0.0\n",
        ("test_zero_clipping",),
    ),
    Mutant(
        "gradients summed",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        'op="mean"',
        'op="sum"',
        ("test_zero_weights", "test_zero_clipping", "test_zero_holds"),
        may=("test_zero_traffic",),
    ),
    Mutant("padding of ones", "14.3", "zero", "flatten", "flat.new_zeros(", "flat.new_ones(", ("test_zero_clipping",)),
    Mutant(
        "nobody reads the new weights",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "p.copy_(new.view_as(p))",
        "pass",
        ALL_OF_ZERO,
        ("the weights as they came in",),
    ),
    Mutant(
        "the neighbour's weights",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "[r * S : (r + 1) * S].clone()",
        "[(r + 1) % N * S : ((r + 1) % N + 1) * S].clone()",
        ALL_OF_ZERO,
    ),
    Mutant(
        "always the first step", "14.3", "zero", "ShardedAdamW.step", "self.steps += 1", "self.steps = 1", ALL_OF_ZERO
    ),
    Mutant(
        "nothing is clipped",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        "g_S * clip_scale(norm, max_norm)",
        "g_S",
        ("test_zero_clipping",),
        may=("test_zero_traffic",),
    ),
    Mutant(
        "whole moments in a closure",
        "14.3",
        "zero",
        "ShardedAdamW.__init__",
        "        self.v = self.params[0].new_zeros(self.S)\n",
        """        self.v = self.params[0].new_zeros(self.S)
        self.step = hidden(self, [torch.zeros_like(p) for p in self.params], [torch.zeros_like(p) for p in self.params])


def hidden(self, M, V):
    @torch.no_grad()
    def step(max_norm=None):
        grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)
        g_S = self.group.reduce_scatter(flatten(grads, self.group.size * self.S), op="mean")
        norm = self.group.all_reduce(g_S.square().sum()).sqrt()
        whole = self.group.all_gather(g_S) * clip_scale(norm, max_norm)
        self.steps += 1
        lengths = [p.numel() for p in self.params]
        for p, g, m, v in zip(self.params, whole[: sum(lengths)].split(lengths), M, V):
            adamw_(p, g.view_as(p), m, v, self.steps, *self.options)
        return norm.item()

    return step


class Rest:
    def rest(self):
        pass
""",
        ("test_zero_holds",),
        ("whole vectors on every rank",),
    ),
    Mutant(
        "the whole gradient to everybody",
        "14.3",
        "zero",
        "ShardedAdamW.step",
        'self.group.reduce_scatter(flatten(grads, N * S), op="mean")',
        'self.group.all_reduce(flatten(grads, N * S), op="mean")[r * S : (r + 1) * S]',
        ("test_zero_traffic",),
        verdicts=ANY,
    ),
]

# ---- 14.4
BEFORE = """        if i + 1 < len(self.blocks):
            self.blocks[i + 1].free()
        self.blocks[i].wait()
        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()
"""
FSDP = [
    Mutant(
        "the neighbour's shard",
        "14.4",
        "fsdp",
        "FlatParameter.__init__",
        "flat[r * self.S : (r + 1) * self.S].clone()",
        "flat[(r + 1) % N * self.S : ((r + 1) % N + 1) * self.S].clone()",
        FLAT_UNITS,
        ("the neighbour's part",),
    ),
    Mutant(
        "a shard that keeps everything",
        "14.4",
        "fsdp",
        "FlatParameter.__init__",
        "(r + 1) * self.S].clone()",
        "(r + 1) * self.S]",
        ("test_flat_parameter[2]", "test_flat_parameter[3]", "test_fsdp_memory"),
        ("a view of the whole vector",),
    ),
    Mutant(
        "views that copy",
        "14.4",
        "fsdp",
        "FlatParameter.wait",
        "p.data = view",
        "p.data = view.clone()",
        ("test_flat_parameter", "test_fsdp_memory[plain]"),
        ("a copy",),
        verdicts=ANY,
    ),
    Mutant(
        "a shard in BF16",
        "14.4",
        "fsdp",
        "FlatParameter.__init__",
        "(r + 1) * self.S].clone()",
        "(r + 1) * self.S].clone().to(dtype or flat.dtype)",
        ("test_flat_parameter_bf16",),
        ("rounded to BF16",),
    ),
    Mutant(
        "scatter in BF16",
        "14.4",
        "fsdp",
        "FlatParameter.reduce",
        """        return self.group.reduce_scatter(g_NS, op="mean", async_op=True)
""",
        """        g_S = self.group.reduce_scatter(g_NS.to(self.full.dtype), op="mean").to(self.shard.dtype)

        class Done:
            def wait(self):
                return g_S

        return Done()
""",
        ("test_flat_parameter_bf16",),
        ("a sum of BF16 numbers in BF16",),
        may=("test_fsdp_memory",),
    ),
    Mutant(
        "never freed",
        "14.4",
        "fsdp",
        "FlatParameter.free",
        "        self.full.untyped_storage().resize_(0)",
        "        self.full.untyped_storage()",
        ("test_flat_parameter", "test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch"),
    ),
    Mutant(
        "freed in name",
        "14.4",
        "fsdp",
        "FlatParameter.free",
        """            p.data = stand_in(view)
        self.full.untyped_storage().resize_(0)""",
        """            p.data = stand_in(view)
        self.full, self.kept = self.full.new_empty(self.full.shape), self.full
        self.full.untyped_storage().resize_(0)""",
        (
            "test_flat_parameter",
            "test_flat_parameter_bf16",
            "test_fsdp",
            "test_fsdp_memory",
            "test_fsdp_prefetch",
            "test_fsdp_recovers",
        ),
        verdicts=ANY,
    ),
    Mutant(
        "gathered once for both directions",
        "14.4",
        "fsdp",
        "FSDP.after_forward",
        "self.blocks[i].free()",
        "pass",
        ("test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch"),
        ("each block is gathered once",),
    ),
    Mutant(
        "no prefetch in the forward",
        "14.4",
        "fsdp",
        "FSDP.before_forward",
        "self.blocks[i + 1].gather()",
        "pass",
        ("test_fsdp_prefetch",),
        ("it is posted after the other block",),
    ),
    Mutant(
        "prefetch waits in the forward",
        "14.4",
        "fsdp",
        "FSDP.before_forward",
        "self.blocks[i + 1].gather()",
        "self.blocks[i + 1].wait()",
        ("test_fsdp_prefetch",),
        ("it is waited for where it is posted",),
    ),
    Mutant(
        "no prefetch in the backward",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "self.blocks[i - 1].gather()",
        "pass",
        ("test_fsdp_prefetch",),
        ("it is posted after the other block",),
    ),
    Mutant(
        "prefetch waits in the backward",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "self.blocks[i - 1].gather()",
        "self.blocks[i - 1].wait()",
        ("test_fsdp_prefetch",),
        ("it is waited for where it is posted",),
    ),
    Mutant(
        "prefetch in the wrong direction",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "self.blocks[i - 1].gather()",
        "self.blocks[min(i + 1, len(self.blocks) - 1)].gather()",
        ("test_fsdp[2 ranks]", "test_fsdp[3 ranks, checkpointed]", "test_fsdp_memory", "test_fsdp_prefetch"),
    ),
    Mutant(
        "two blocks ahead",
        "14.4",
        "fsdp",
        "FSDP.before_forward",
        "            self.blocks[i + 1].gather()\n",
        "            for block in self.blocks[i + 1 : i + 3]:\n                block.gather()\n",
        ("test_fsdp_memory",),
    ),
    Mutant(
        "three blocks whole in the backward",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        BEFORE,
        """        self.blocks[i].wait()
        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()
        if i + 1 < len(self.blocks):
            self.blocks[i + 1].free()
""",
        ("test_fsdp_memory",),
    ),
    Mutant(
        "everything at the start",
        "14.4",
        "fsdp",
        "FSDP.begin",
        "        self.root.wait()\n",
        "        for unit in self.units:\n            unit.wait()\n",
        ("test_fsdp_memory", "test_fsdp_prefetch"),
        ("it is waited for where it is posted",),
    ),
    Mutant(
        "summed",
        "14.4",
        "fsdp",
        "FlatParameter.reduce",
        'op="mean"',
        'op="sum"',
        FLAT_UNITS,
        ("the sum over the ranks",),
    ),
    Mutant(
        "the last micro-batch alone",
        "14.4",
        "fsdp",
        "FlatParameter.add",
        "self.shard.grad = g_S if self.shard.grad is None else self.shard.grad + g_S",
        "self.shard.grad = g_S",
        ("test_fsdp",),
        ("the last micro-batch alone",),
    ),
    Mutant(
        "the neighbour's gradient",
        "14.4",
        "fsdp",
        "FlatParameter.reduce",
        "reduce_scatter(g_NS,",
        "reduce_scatter(g_NS.roll(-self.S),",
        FLAT_UNITS,
        ("the neighbour's part of the gradient",),
    ),
    Mutant(
        "the recomputation prefetches",
        "14.4",
        "fsdp",
        "FSDP.before_forward",
        "if self.prefetch and not self.backward and",
        "if self.prefetch and",
        ("test_fsdp[3 ranks, checkpointed]", "test_fsdp_memory[checkpointed]", "test_fsdp_prefetch[checkpointed]"),
        verdicts=ANY,
    ),
    Mutant(
        "gradients are not dropped",
        "14.4",
        "fsdp",
        "FlatParameter.reduce",
        "        for param in self.params:\n            param.grad = None\n",
        "",
        ("test_flat_parameter", "test_flat_parameter_bf16", "test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch"),
        ("gradients that were averaged before",),
        verdicts=ANY,
    ),
    Mutant(
        "an earlier forward is left",
        "14.4",
        "fsdp",
        "FSDP.begin",
        "            unit.free()\n",
        "            pass\n",
        ("test_fsdp_recovers",),
        verdicts=ANY,
    ),
    Mutant(
        "a gradient is lost",
        "14.4",
        "fsdp",
        "FSDP.send_gradient",
        "        self.settle()\n",
        "",
        ("test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch", "test_fsdp_recovers"),
        verdicts=ANY,
    ),
    Mutant(
        "an all-reduce, and a cut",
        "14.4",
        "fsdp",
        "FlatParameter.add",
        "g_S = handle.wait()",
        "g_S = self.group.all_reduce(handle.wait().clone()) / self.group.size",
        FLAT_UNITS,
        verdicts=ANY,
    ),
    Mutant(
        "the padding is not zero",
        "14.4",
        "zero",
        "flatten",
        "flat.new_zeros(",
        "flat.new_ones(",
        (
            "test_flat_parameter[2]",
            "test_flat_parameter[3]",
            "test_flat_parameter_bf16",
            "test_fsdp",
            "test_fsdp_prefetch",
            "test_fsdp_recovers",
        ),
        may=("test_fsdp_memory",),
    ),
    Mutant(
        "every backward is refused",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "        if i in self.begun:\n            raise",
        "        if True:\n            raise",
        ("test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch", "test_fsdp_recovers", "test_fsdp_refuses"),
        verdicts=ANY,
    ),
    Mutant(
        "a second backward is let in",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "if i in self.begun:",
        "if False:",
        ("test_fsdp_refuses[a second backward of one forward]", "test_fsdp_refuses[a second backward, of one block]"),
        verdicts=ANY,
    ),
    Mutant(
        "a second backward of one block is let in",
        "14.4",
        "fsdp",
        "FSDP.before_backward",
        "if i in self.begun:",
        "if i in self.reduced:",
        ("test_fsdp_refuses[a second backward, of one block]",),
    ),
    Mutant(
        "finish is not missed",
        "14.4",
        "fsdp",
        "FSDP.begin",
        "if self.backward:",
        "if False:",
        ("test_fsdp_refuses[a forward after a backward without finish()]",),
        verdicts=ANY,
    ),
    Mutant(
        "freed before it computes",
        "14.4",
        "fsdp",
        "FSDP.before_forward",
        "        self.blocks[i].wait()\n",
        "        self.blocks[i].wait()\n        self.blocks[i].free()\n",
        ("test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch", "test_fsdp_recovers"),
        verdicts=ANY,
    ),
    Mutant(
        "the recomputation frees",
        "14.4",
        "fsdp",
        "FSDP.after_forward",
        "if not self.backward and i + 1",
        "if i + 1",
        ("test_fsdp[3 ranks, checkpointed", "test_fsdp_memory[checkpointed", "test_fsdp_prefetch[checkpointed"),
        verdicts=ANY,
    ),
]

# ---- 14.5
KERNELS = 'kernels = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "kernel"]'
OVERLAP = [
    Mutant(
        "hidden is exposed",
        "14.5",
        "overlap",
        "exposed",
        "if running[True] and not running[False] else 0",
        "if running[True] else 0",
        ("test_exposed",),
        ("hidden communication is counted",),
    ),
    Mutant(
        "overlapping messages are summed",
        "14.5",
        "overlap",
        "exposed",
        "alone += piece if running[True] and not running[False] else 0",
        "alone += piece * running[True] if not running[False] else 0",
        ("test_exposed",),
        ("lengths are summed",),
    ),
    Mutant(
        "copies compute",
        "14.5",
        "overlap",
        "exposed",
        'e.get("cat") == "kernel"',
        'e.get("cat") in ("kernel", "gpu_memcpy")',
        UNHIDDEN,
        ("copies count as computing",),
    ),
    Mutant(
        "copies communicate",
        "14.5",
        "overlap",
        "exposed",
        KERNELS,
        KERNELS.replace('== "kernel"', 'in ("kernel", "gpu_memcpy")').replace(
            "[e for", '[e | {"name": e["name"].replace("Memcpy", "ncclKernel")} for'
        ),
        UNHIDDEN,
        ("copies count as communication",),
    ),
    Mutant(
        "what the host asked for",
        "14.5",
        "overlap",
        "exposed",
        KERNELS,
        'kernels = [\n        e | {"name": e["name"].replace("nccl:", "ncclKernel")}\n'
        '        for e in trace["traceEvents"]\n'
        '        if e.get("ph") == "X" and (e.get("cat") == "kernel" or e["name"].startswith("nccl"))\n    ]',
        UNHIDDEN,
        ("what the host asked for",),
    ),
    Mutant(
        "the difference of lengths",
        "14.5",
        "overlap",
        "exposed",
        "    return Exposed(",
        "    alone = max(0, communication - computing)\n    return Exposed(",
        ("test_exposed",),
        ("the difference of two lengths",),
    ),
    Mutant(
        "a kernel inside another",
        "14.5",
        "overlap",
        "exposed",
        "",
        """
kernels = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "kernel"]

def union(kind):
    joined = []
    for e in sorted((e for e in kernels if is_communication(e["name"]) == kind), key=lambda e: e["ts"]):
        begin, end = e["ts"], e["ts"] + e["dur"]
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return joined

def length(spans):
    return sum(end - begin for begin, end in spans)

comm, work = union(True), union(False)
both = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in comm for b in work)
alone = length(comm) - both
return Exposed(length(work), length(comm), alone, 1 - alone / length(comm) if length(comm) else 1.0)
""",
        ("test_exposed", "test_unions"),
        ("a kernel inside a longer one",),
        may=("test_nothing_to_expose",),
    ),
    Mutant(
        "the exposed share",
        "14.5",
        "overlap",
        "exposed",
        "1 - alone / communication",
        "alone / communication",
        ("test_exposed",),
        ("the exposed share",),
    ),
    Mutant(
        "computing is summed",
        "14.5",
        "overlap",
        "exposed",
        "computing += piece if running[False] else 0",
        "computing += piece * running[False]",
        ("test_unions", "test_nothing_to_expose"),
        ("the sum of the kernels' lengths",),
    ),
    Mutant(
        "communication is summed",
        "14.5",
        "overlap",
        "exposed",
        "communication += piece if running[True] else 0",
        "communication += piece * running[True]",
        ("test_exposed", "test_unions"),
        ("the sum of the kernels' lengths",),
    ),
    Mutant(
        "nothing is hidden where nothing was sent",
        "14.5",
        "overlap",
        "exposed",
        "if communication else 1.0",
        "if communication else 0.0",
        ("test_nothing_to_expose",),
    ),
]

MUTANTS = [*MEMORY, *DDP, *ZERO, *FSDP, *OVERLAP]
