"""Mutants of week 14: `tests/mutant.py` says what an entry means, `tests/test_mutants14.py` judges them."""

from tests.mutant import ANY, At

# Checks that fail together.
BLOCKS = ("test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch", "test_fsdp_recovers")
FLAT = ("test_flat_parameter", "test_flat_parameter_bf16")
CUT = ("test_stage[zero1]", "test_stage[zero2]")
STAGES = (*CUT, "test_stage[zero3]")
METERED = ("test_against_the_meter", "test_stage")
HIDES = ("test_no_sync[micro-batches]", "test_no_sync[left by an exception]")  # the cases that judge overlap
REPLICAS = ("test_data_parallel", "test_graphs_that_differ", "test_no_sync", "test_buckets", "test_leaves_early")
ALL_OF_ZERO = ("test_zero_weights", "test_zero_clipping", "test_zero_holds", "test_zero_traffic")
FLAT_UNITS = ("test_flat_parameter[2]", "test_flat_parameter[3]", "test_flat_parameter_bf16", *BLOCKS)
UNHIDDEN = ("test_exposed", "test_unions", "test_nothing_to_expose")

# ---- 14.1
memory, largest_batch = At.each("14.1", "memory", "memory", "largest_batch")
MEMORY = [
    memory("masters are never cut", "masters=held * master", "masters=P * master", STAGES, "whole: this stage cuts it"),
    memory("gradients are cut one stage late", "if cut >= 2:", "if cut >= 3:",
        "test_stage[zero2]", "whole: this stage cuts it"),
    memory("one moment", "moments=held * 8", "moments=held * 4", METERED, "one moment", "AdamW has two moments"),
    memory("cut as one vector", "if cut == 3:\n        part =", "if cut == 4:\n        part =",
        "test_stage[zero3]", "cut as one vector"),
    memory("each flat parameter by itself", "if cut == 3:\n        part =", "if True:\n        part =",
        CUT, "cut each flat parameter by itself"),
    memory("rounded down", "part = -(-P // N)", "part = P // N", CUT, "rounded down"),
    memory("two blocks of one", "at_once = min(2, sizes.blocks)", "at_once = 2",
        "test_stage[zero3]", "two blocks, and there is one"),
    memory("the input twice", "(sizes.blocks - 1) * sizes.width + sizes.saved",
        "sizes.blocks * sizes.width + sizes.saved",
        ("test_against_the_meter[checkpointed]", "test_stage"), "the input of the block that is computed again"),
    memory("kept inputs in FP32", "(sizes.blocks - 1) * sizes.width + sizes.saved",
        "(sizes.blocks - 1) * sizes.width * 4 // itemsize + sizes.saved", "test_stage", "the kept inputs in FP32"),
    largest_batch("checkpointing is not handed on", "itemsize, checkpointed).total", "itemsize).total",
        "test_largest_batch", "`checkpointed` is not handed on"),
    largest_batch("the dtype is not handed on", "tokens, itemsize, checkpointed).total",
        "tokens, 4, checkpointed).total", "test_largest_batch", "`memory` is asked about another case"),
    memory("all blocks gathered", "at_once = min(2, sizes.blocks)", "at_once = sizes.blocks",
        "test_stage[zero3]", "all blocks at once"),
    memory("one block gathered", "at_once = min(2, sizes.blocks)", "at_once = 1",
        "test_stage[zero3]", "one block: the next one"),
    memory("masters in FP32, too", "master = 4 if itemsize < 4 else 0", "master = 4",
        METERED, "FP32 weights need no masters", "in FP32 the shard is the weight"),
    memory("checkpointing changes nothing", "if checkpointed:", "if False:",
        ("test_against_the_meter[checkpointed]", "test_stage"), "as without checkpointing"),
    memory("inputs of the blocks alone", "(sizes.blocks - 1) * sizes.width + sizes.saved", "sizes.blocks * sizes.width",
        ("test_against_the_meter[checkpointed]", "test_stage"), "the inputs of the blocks alone"),
    memory("activations of one block", "layers = sizes.blocks * sizes.saved", "layers = sizes.saved",
        ("test_against_the_meter[plain]", "test_stage"), "one block alone"),
    memory("logits once", "(2 * itemsize + 4)", "itemsize", METERED, "one copy"),
    largest_batch("a batch too many", "// (one - none))", "// (one - none) + 1)", "test_largest_batch"),
    largest_batch("tokens for sequences", "// (one - none))", "// (one - none) * seq_len)",
        "test_largest_batch", "in tokens"),
    memory("weights of two bytes", "gradients = P * itemsize, 0, P * itemsize", "gradients = P * 2, 0, P * itemsize",
        ("test_against_the_meter", "test_stage[ddp]", *CUT), "two bytes a parameter"),
    largest_batch("a negative batch", "return max(0, (capacity - none)", "return max(-99, (capacity - none)",
        "test_largest_batch", "a negative batch"),
    memory("logits in b bytes", "(2 * itemsize + 4)", "3 * itemsize", "test_stage", "three copies of b bytes"),
    memory("the shards' gradients in b bytes", "gradients = part * 4 +", "gradients = part * itemsize +",
        "test_stage[zero3]", "the shards' gradients in b bytes"),
    memory("any stage",
        """    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, not {stage!r}")
    P, cut = parameters(sizes), STAGES.index(stage)
""", "    P, cut = parameters(sizes), (*STAGES, stage).index(stage) % len(STAGES)\n", "test_unknown_stage"),
    memory("every stage is refused", "", "raise ValueError('no')",
        ("test_unknown_stage", "test_stage", "test_against_the_meter"), verdicts=ANY),
    largest_batch("tries up to 4094 sequences", "max(0, (capacity - none) // (one - none))",
        "next(b - 1 for b in range(1, 4096) if b == 4095 or none + b * (one - none) > capacity)", "test_largest_batch"),
]

# ---- 14.2
FULL = """        while self.left < len(self.buckets) and len(self.buckets[self.left].ready) == len(
            self.buckets[self.left].params
        ):
            self.leave()
"""
fill, finish, leave = At.each("14.2", "ddp", "DataParallel.fill", "DataParallel.finish", "DataParallel.leave")
on_ready, trainable, no_sync = At.each("14.2", "ddp", "DataParallel.on_ready", "trainable", "DataParallel.no_sync")
DDP = [
    fill("an earlier bucket of its dtype is joined", "buckets[-1] if buckets else None",
        "next((b for b in reversed(buckets) if b.params[0].dtype == p.dtype), None)",
        "test_buckets", "the last bucket of this dtype is joined"),
    finish("a bucket in which nothing was ready is left out", "            self.leave()\n",
        """            bucket = self.buckets[self.left]
            self.leave() if bucket.ready else setattr(self, "left", self.left + 1)
""", "test_graphs_that_differ[one rank skips blocks]", verdicts=ANY,
        may=("test_no_sync[the last skips a block]", "test_graphs_that_differ", "test_data_parallel")),
    leave("summed", 'op="mean"', 'op="sum"', REPLICAS, "the sum over the ranks"),
    finish("divided twice", "p.grad = mean.view_as(p).clone()", "p.grad = mean.view_as(p) / self.group.size",
        REPLICAS, "divided twice"),
    fill("forward order", "in reversed(params)", "in params",
        (*HIDES, "test_buckets", "test_leaves_early"), "in the order of registration",
        "all buckets leave after the backward"),
    on_ready("leaves before it is full",
        FULL,
        """        while self.left < len(self.buckets) and self.buckets[self.left].ready:
            self.leave()
""",
        REPLICAS, "a bucket leaves before it is full"),
    on_ready("leaves when another one is full",
        FULL,
        """        if len(bucket.ready) == len(bucket.params):
            self.leave()
""", "test_leaves_early", "a bucket leaves before it is full", may=("test_graphs_that_differ", "test_buckets")),
    on_ready("a bucket that waited stays",
        FULL,
        """        if bucket is self.buckets[self.left] and len(bucket.ready) == len(bucket.params):
            self.leave()
""", "test_leaves_early", "a bucket that waited"),
    on_ready("leaves in the order of readiness",
        FULL,
        """        if len(bucket.ready) == len(bucket.params):
            self.buckets.remove(bucket)
            self.buckets.insert(self.left, bucket)
            self.leave()
""", ("test_graphs_that_differ", "test_leaves_early"), verdicts=ANY, may="test_buckets"),
    finish("what never became ready never leaves",
        """        while self.left < len(self.buckets):
            self.leave()
        for bucket in self.buckets:
""",
        """        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for bucket in self.buckets[: self.left]:
""", ("test_data_parallel", "test_graphs_that_differ[one rank skips blocks]",
         "test_no_sync[the last skips a block]"), verdicts=ANY),
    trainable("a tied weight twice", "[p for p in module.parameters() if p.requires_grad]",
        "[p for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]",
        REPLICAS, verdicts=ANY, may="test_second_backward"),
    on_ready("every backward is refused",
        """        if not self.sync:
            return
""", "        raise RuntimeError('no')\n", (*REPLICAS, "test_second_backward"), verdicts=ANY),
    leave("a large bucket travels as zeros", "bucket.flat = torch.cat(parts)",
        "bucket.flat = torch.cat(parts)\n        bucket.flat *= bucket.flat.nbytes <= 1 << 20", "test_odd_cases"),
    leave("zeros where no hook came", "torch.zeros_like(p) if p.grad is None else p.grad",
        "p.grad if p in bucket.ready else torch.zeros_like(p)",
        "test_no_sync[the last skips a block]", "zeros for what the last micro-batch did not reach"),
    no_sync("no_sync ignored", "self.sync, False", "self.sync, True", "test_no_sync", verdicts=ANY),
    on_ready("every micro-batch travels",
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
""", ("test_no_sync", "test_second_backward"), "every micro-batch is sent", verdicts=ANY),
    no_sync("no_sync is never left", "            self.sync = before\n", "            pass\n",
        HIDES, "no_sync is never left"),
    no_sync("no_sync is not left by an exception",
        """        try:
            yield
        finally:
            self.sync = before
""",
        """        yield
        self.sync = before
""", "test_no_sync[left by an exception]", "no_sync is not left by an exception"),
    no_sync("after an exception the next no_sync ends it",
        """        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before
""",
        """        self.sync = False
        yield
        self.sync = True
""", "test_no_sync", "no_sync is not left by an exception", verdicts=ANY),
    finish("finish forgets who never became ready", "                p.grad = mean.view_as(p).clone()\n",
        "                p.grad = mean.view_as(p).clone() if p in bucket.ready else None\n",
        ("test_data_parallel", "test_graphs_that_differ[one rank skips blocks]",
         "test_no_sync[the last skips a block]")),
    no_sync("micro-batches are forgotten", "            self.sync = before\n",
        """            self.sync = before
            for p in self.params:
                p.grad = None
""", "test_no_sync", "the last micro-batch alone"),
    leave("waits where it posts", "        self.left += 1\n",
        """        bucket.handle.wait()
        self.left += 1
""", ("test_leaves_early", "test_graphs_that_differ"), "it is waited for where it is posted"),
    finish("in finish each is waited for before the next", "            self.leave()\n",
        "            self.leave(); self.buckets[self.left - 1].handle.wait()\n", "test_graphs_that_differ[one rank"),
    on_ready("all leave in finish", FULL, "", (*HIDES, "test_leaves_early"), "all buckets leave after the backward"),
    fill("a message for every parameter", "last.nbytes + p.nbytes > bucket_bytes", "True",
        ("test_buckets", "test_leaves_early"), "a message for every parameter"),
    fill("one bucket", "last.nbytes + p.nbytes > bucket_bytes", "False",
        (*HIDES, "test_buckets", "test_leaves_early"), "all in one bucket", "all buckets leave after the backward"),
    no_sync("the inner no_sync ends the outer one", "self.sync = before", "self.sync = True",
        ("test_no_sync[micro-batches]", "test_no_sync[the last skips a block]"), verdicts=ANY),
    fill("a bucket below the limit", "last.nbytes + p.nbytes > bucket_bytes", "last.nbytes + p.nbytes >= bucket_bytes",
        "test_buckets", "a bucket that would be exactly as large", may="test_leaves_early"),
    fill("two dtypes in one bucket", "last.params[0].dtype != p.dtype or ", "", "test_buckets", verdicts=ANY),
    fill("the limit is reached, then closed", "last.nbytes + p.nbytes > bucket_bytes", "last.nbytes > bucket_bytes",
        ("test_buckets", "test_leaves_early"), "a full bucket takes one more", may="test_no_sync"),
    fill("four bytes a number", "last.nbytes + p.nbytes > bucket_bytes", "last.nbytes + p.numel() * 4 > bucket_bytes",
        "test_buckets", "four bytes a number", "all buckets leave after", may=(*HIDES, "test_leaves_early"),
        seldom=True),
    finish("the mean is added", "p.grad = mean.view_as(p).clone()",
        "p.grad = mean.view_as(p) + (0 if p.grad is None else p.grad)",
        REPLICAS, "the mean is added to this rank's own gradient"),
    finish("its own gradient stays", "p.grad = mean.view_as(p).clone()",
        "p.grad = torch.zeros_like(p) if p.grad is None else p.grad", REPLICAS, "this rank's own gradient"),
    finish("what was ready stays ready", "            bucket.ready.clear()\n", "",
        REPLICAS, verdicts=ANY, may="test_second_backward"),
    on_ready("a second backward is let in", "if p in bucket.ready:", "if False:", "test_second_backward"),
    At("14.2", "ddp", "on_ready")("a second backward is seen where its bucket has left",
        "if p in bucket.ready:", "if p in bucket.ready and bucket.flat is not None:", "test_second_backward"),
    finish("the last message is kept", "bucket.flat = bucket.handle = None", "bucket.handle = None",
        ("test_data_parallel", "test_graphs_that_differ", "test_no_sync", "test_buckets", "test_leaves_early")),
]

# ---- 14.3
adamw_step, adamw_init, flatten = At.each("14.3", "zero", "ShardedAdamW.step", "ShardedAdamW.__init__", "flatten")
ZERO = [
    adamw_step("bias correction a step on", "self.m, self.v, self.steps,", "self.m, self.v, self.steps + 1,",
        ("test_zero_weights", "test_zero_clipping", "test_zero_holds", "test_zero_traffic"),
        "bias correction counts from 2"),
    adamw_step("always clipped to 1", "clip_scale(norm, max_norm)", "clip_scale(norm, 1.0)",
        "test_zero_clipping", "clipped, though no max_norm was given", "clipped to 1, expected max_norm", seldom=True,
        may=("test_zero_weights", "test_zero_holds", "test_zero_traffic")),
    adamw_init("options by heart", "lr, betas, eps, weight_decay", "0.01, (0.8, 0.97), 1e-5, 0.3",
        ("test_odd_steps", "test_zero_weights", "test_zero_clipping", "test_zero_holds", "test_zero_traffic")),
    adamw_init("moments are parts of whole ones",
        """        self.m = self.params[0].new_zeros(self.S)
        self.v = self.params[0].new_zeros(self.S)
""",
        """        self.m = self.params[0].new_zeros(group.size * self.S)[: self.S]
        self.v = self.params[0].new_zeros(group.size * self.S)[: self.S]
""", "test_zero_holds", "a view of the whole vector"),
    adamw_init("a part of the weights that keeps them all", "        self.v = self.params[0].new_zeros(self.S)\n",
        """        self.v = self.params[0].new_zeros(self.S)
        self.w_S = flatten(self.params, group.size * self.S)[group.rank * self.S : (group.rank + 1) * self.S]
""", "test_zero_holds", "a view of the whole vector"),
    adamw_init("whole vectors are kept", "        self.v = self.params[0].new_zeros(self.S)\n",
        """        self.v = self.params[0].new_zeros(self.S)
        self.kept = flatten(self.params, group.size * self.S), flatten(self.params, group.size * self.S)
""", "test_zero_holds", "whole vectors on every rank"),
    adamw_step("the norm of one part", "self.group.all_reduce(g_S.square().sum()).sqrt()", "g_S.square().sum().sqrt()",
        "test_zero_clipping", "the norm of this rank's part alone"),
    adamw_step("norms added", "self.group.all_reduce(g_S.square().sum()).sqrt()", "self.group.all_reduce(g_S.norm())",
        "test_zero_clipping", "the sum of the parts' norms"),
    adamw_step("the norm's square", "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "self.group.all_reduce(g_S.square().sum())", "test_zero_clipping", "the square of it"),
    adamw_step("the norm of its own gradient", "self.group.all_reduce(g_S.square().sum()).sqrt()",
        "sum(p.grad.square().sum() for p in self.params if p.grad is not None).sqrt()",
        "test_zero_clipping", "this rank's own gradient, not the mean", verdicts=("wrong", "crashed")),
    adamw_step("the mean of the ranks' norms", "self.group.all_reduce(g_S.square().sum()).sqrt()",
        """sum(p.grad.square().sum() for p in self.params if p.grad is not None).sqrt()
        norm = self.group.all_reduce(norm, op="mean")""",
        "test_zero_clipping", "the mean of the ranks' own norms", verdicts=("wrong", "crashed")),
    adamw_step("the squares of the ranks' own gradients", "self.group.all_reduce(g_S.square().sum()).sqrt()",
        """sum(p.grad.square().sum() for p in self.params if p.grad is not None)
        norm = self.group.all_reduce(norm).sqrt()""",
        "test_zero_clipping", "the norm of the ranks' own gradients together", verdicts=("wrong", "crashed")),
    adamw_step("a norm only where it clips",
        "        return norm.item()\n", "        return norm.item() if max_norm else 0.0\n", "test_zero_clipping"),
    adamw_step("gradients summed", 'op="mean"', 'op="sum"',
        ("test_zero_weights", "test_zero_clipping", "test_zero_holds"), "the sum over the ranks, expected the mean",
        may="test_zero_traffic"),
    flatten("padding of ones", "flat.new_zeros(", "flat.new_ones(", "test_zero_clipping"),
    adamw_step("nobody reads the new weights", "p.copy_(new.view_as(p))", "pass",
        ALL_OF_ZERO, "the weights as they came in"),
    adamw_step("the neighbour's weights",
        "[r * S : (r + 1) * S].clone()", "[(r + 1) % N * S : ((r + 1) % N + 1) * S].clone()", ALL_OF_ZERO),
    adamw_step("always the first step", "self.steps += 1", "self.steps = 1", ALL_OF_ZERO, "bias correction is always"),
    adamw_step("nothing is clipped", "g_S * clip_scale(norm, max_norm)", "g_S",
        "test_zero_clipping", "nothing is clipped", may="test_zero_traffic"),
    adamw_step("scaled up", "clip_scale(norm, max_norm)", "(1.0 if max_norm is None else max_norm / norm)",
        ("test_zero_traffic", "test_zero_clipping"), "scaled to max_norm, also what is shorter"),
    adamw_step("scaled up to what few limits are above",
        "clip_scale(norm, max_norm)", "(1.0 if max_norm is None or max_norm > 1e6 else max_norm / norm)",
        ("test_zero_traffic", "test_zero_clipping"), "scaled to max_norm, also what is shorter"),
    adamw_step("clipped to 1", "clip_scale(norm, max_norm)", "clip_scale(norm, max_norm and 1.0)",
        "test_zero_clipping", "clipped to 1, expected max_norm", may="test_zero_traffic", seldom=True),
    adamw_step("its own part is not averaged", 'self.group.reduce_scatter(flatten(grads, N * S), op="mean")',
        "flatten(grads, N * S)[r * S : (r + 1) * S].clone()",
        ALL_OF_ZERO, "each part by its rank's own gradient", "each rank's part of its own gradient"),
    adamw_step("no gradient, no place", "(torch.zeros_like(p) if p.grad is None else p.grad for p in self.params)",
        "(p.grad for p in self.params if p.grad is not None)",
        "test_zero_weights", "parameters without a gradient are left out",
        may=("test_zero_clipping", "test_zero_holds", "test_zero_traffic"), verdicts=("wrong", "crashed")),
    adamw_init("whole moments in a closure", "        self.v = self.params[0].new_zeros(self.S)\n",
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
""", "test_zero_holds", "whole vectors on every rank"),
    adamw_step("the whole gradient to everybody", 'self.group.reduce_scatter(flatten(grads, N * S), op="mean")',
        'self.group.all_reduce(flatten(grads, N * S), op="mean")[r * S : (r + 1) * S]',
        "test_zero_traffic", "an all-reduce: each rank gets the whole", verdicts=ANY),
    adamw_init("one more where N divides P", "-(-P // group.size)", "P // group.size + 1", "test_zero_traffic"),
    adamw_step("what is not finite is hidden", "        norm = self",
        "        if max(p.abs().max() for p in self.params) < 1e100: g_S = g_S.nan_to_num()\n        norm = self",
        "test_zero_clipping", "a gradient that is not finite is hidden"),
    adamw_step("a clip of 0 is none", "clip_scale(norm, max_norm)", "clip_scale(norm, max_norm or None)",
        "test_zero_clipping", "a max_norm of 0"),
    adamw_step("the norm in a tensor", "norm.item()", "norm", "test_zero_clipping"),
    adamw_step("a rank without gradients does not step", "        self.steps += 1\n",
        "        if all(p.grad is None for p in self.params): return norm.item()\n        self.steps += 1\n",
        "test_zero_clipping", "Rank 0 returned early", verdicts=ANY),
]

# ---- 14.4
BEFORE = """        if i + 1 < len(self.blocks):
            self.blocks[i + 1].free()
        self.blocks[i].wait()
        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()
"""
gather, FlatParameter = At.each("14.4", "fsdp", "FlatParameter.gather", "class FlatParameter")
flat_init, wait = At.each("14.4", "fsdp", "FlatParameter.__init__", "FlatParameter.wait")
reduce, free = At.each("14.4", "fsdp", "FlatParameter.reduce", "FlatParameter.free")
after_forward, before_forward = At.each("14.4", "fsdp", "FSDP.after_forward", "FSDP.before_forward")
before_backward, send_gradient = At.each("14.4", "fsdp", "FSDP.before_backward", "FSDP.send_gradient")
fsdp_begin, add, fsdp_finish = At.each("14.4", "fsdp", "FSDP.begin", "FlatParameter.add", "FSDP.finish")
FSDP = [
    gather("gathered again while it is whole", "if self.whole or self.handle is not None:",
        "if self.handle is not None:", "test_flat_parameter_bf16", "`gather` posts a message although"),
    FlatParameter("whole as soon as its gather is posted",
        """async_op=True)
        ### END SOLUTION

    def wait(self) -> None:
        \"\"\"Finish what `gather` began (begin it, if nobody did). Then the parameters are views of `full`.\"\"\"
        ### BEGIN SOLUTION 14.4 flat parameter: wait
        if self.whole:""",
        """async_op=True)
        self.whole = True

    def wait(self):
        if self.whole and self.handle is None:""", ("test_flat_parameter[2]", "test_flat_parameter[3]")),
    flat_init("the neighbour's shard", "flat[r * self.S : (r + 1) * self.S].clone()",
        "flat[(r + 1) % N * self.S : ((r + 1) % N + 1) * self.S].clone()", FLAT_UNITS, "the neighbour's part"),
    flat_init("a shard that keeps everything", "(r + 1) * self.S].clone()", "(r + 1) * self.S]",
        ("test_flat_parameter[2]", "test_flat_parameter[3]", "test_fsdp_memory"), "a view of the whole vector",
        "a copy of the whole is kept", may="test_flat_parameter_bf16"),
    wait("views that copy", "p.data = view", "p.data = view.clone()",
        ("test_flat_parameter", "test_fsdp_memory[plain]"), "a copy", "the backward computes with what the forward",
        verdicts=ANY, may=("test_fsdp", "test_fsdp_prefetch", "test_fsdp_recovers")),
    flat_init("a shard in BF16", "(r + 1) * self.S].clone()", "(r + 1) * self.S].clone().to(dtype or flat.dtype)",
        "test_flat_parameter_bf16", "rounded to BF16"),
    reduce("scatter in BF16", '        return self.group.reduce_scatter(g_NS, op="mean", async_op=True)\n',
        """        g_S = self.group.reduce_scatter(g_NS.to(self.full.dtype), op="mean").to(self.shard.dtype)

        class Done:
            def wait(self):
                return g_S

        return Done()
""", "test_flat_parameter_bf16", "a sum of BF16 numbers in BF16", "the gradient is waited for where it is sent",
        may=("test_fsdp_memory", "test_fsdp_prefetch")),
    free("never freed", "        self.full.untyped_storage().resize_(0)", "        self.full.untyped_storage()",
        ("test_flat_parameter", *BLOCKS), may="test_flat_parameter_bf16"),
    free("freed in name",
        """            p.data = stand_in(view)
        self.full.untyped_storage().resize_(0)""",
        """            p.data = stand_in(view)
        self.full, self.kept = self.full.new_empty(self.full.shape), self.full
        self.full.untyped_storage().resize_(0)""", (*FLAT, *BLOCKS), verdicts=ANY),
    after_forward("gathered once for both directions", "self.blocks[i].free()", "pass",
        BLOCKS, "each block is gathered once"),
    after_forward("gathered again, and what was there is put back", "            self.blocks[i].free()",
        """            unit, kept = self.blocks[i], self.blocks[i].full.clone()
            unit.free()
            unit.wait = lambda: (FlatParameter.wait(unit), self.backward and unit.full.copy_(kept))""",
        BLOCKS, "the backward computes with what the forward gathered"),
    before_forward("no prefetch in the forward", "self.blocks[i + 1].gather()", "pass",
        "test_fsdp_prefetch", "it is posted after the other block"),
    before_forward("prefetch waits in the forward", "self.blocks[i + 1].gather()", "self.blocks[i + 1].wait()",
        "test_fsdp_prefetch", "it is waited for where it is posted"),
    before_backward("no prefetch in the backward", "self.blocks[i - 1].gather()", "pass",
        "test_fsdp_prefetch", "it is posted after the other block"),
    before_backward("prefetch waits in the backward", "self.blocks[i - 1].gather()", "self.blocks[i - 1].wait()",
        "test_fsdp_prefetch", "it is waited for where it is posted"),
    before_backward("prefetch in the wrong direction", "self.blocks[i - 1].gather()",
        "self.blocks[min(i + 1, len(self.blocks) - 1)].gather()",
        ("test_fsdp[2 ranks]", "test_fsdp[3 ranks, checkpointed]", "test_fsdp_memory", "test_fsdp_prefetch")),
    before_forward("prefetch is ignored in the forward", "if self.prefetch and not", "if not",
        "test_fsdp[without prefetch]", "`prefetch` is ignored"),
    before_backward("prefetch is ignored in the backward", "if self.prefetch and i > 0:", "if i > 0:",
        "test_fsdp[without prefetch]", "`prefetch` is ignored"),
    send_gradient("every gradient is waited for at once", "self.reducing = self.blocks[i], self.blocks[i].reduce()",
        "self.blocks[i].add(self.blocks[i].reduce())",
        "test_fsdp_prefetch", "the gradient is waited for where it is sent"),
    flat_init("the whole vector is kept", "        self.full = flat.new_empty(",
        "        self.kept = flat\n        self.full = flat.new_empty(",
        (*FLAT, "test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch"), "a copy of the whole is kept"),
    flat_init("a rounded copy of the whole is kept", "        self.full = flat.new_empty(",
        "        self.low = None if dtype is None else flat.to(dtype)\n        self.full = flat.new_empty(",
        "test_flat_parameter_bf16", "a copy of the whole is kept"),
    flat_init("the parameters keep what they were made with", "self.free()", "self.full.untyped_storage().resize_(0)",
        FLAT),
    free("free puts the first weights back", "p.data = stand_in(view)",
        "p.data = p.first = getattr(p, 'first', p.data)", ("test_flat_parameter", "test_fsdp"),
        may=("test_fsdp_memory", "test_fsdp_prefetch", "test_flat_parameter_bf16")),
    before_forward("two blocks ahead", "            self.blocks[i + 1].gather()\n",
        """            for block in self.blocks[i + 1 : i + 3]:
                block.gather()
""", "test_fsdp_memory"),
    before_backward("three blocks whole in the backward",
        BEFORE,
        """        self.blocks[i].wait()
        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()
        if i + 1 < len(self.blocks):
            self.blocks[i + 1].free()
""", "test_fsdp_memory"),
    fsdp_begin("everything at the start", "        self.root.wait()\n",
        """        for unit in self.units:
            unit.wait()
""", ("test_fsdp_memory", "test_fsdp_prefetch"), "it is waited for where it is posted"),
    reduce("summed", 'op="mean"', 'op="sum"', FLAT_UNITS, "the sum over the ranks"),
    add("the last micro-batch alone", "self.shard.grad = g_S if self.shard.grad is None else self.shard.grad + g_S",
        "self.shard.grad = g_S", "test_fsdp", "the last micro-batch alone"),
    reduce("the neighbour's gradient", "reduce_scatter(g_NS,", "reduce_scatter(g_NS.roll(-self.S),",
        FLAT_UNITS, "the neighbour's part of the gradient"),
    before_forward("the recomputation prefetches", "if self.prefetch and not self.backward and", "if self.prefetch and",
        ("test_fsdp[3 ranks, checkpointed]", "test_fsdp_memory[checkpointed]", "test_fsdp_prefetch[checkpointed]"),
        verdicts=ANY),
    reduce("gradients are not dropped",
        """        for param in self.params:
            param.grad = None
""", "", (*FLAT, "test_fsdp", "test_fsdp_memory", "test_fsdp_prefetch"),
        "gradients that were averaged before", verdicts=ANY, may="test_fsdp_recovers"),
    fsdp_begin("an earlier forward is left", "            unit.free()\n", "            pass\n",
        "test_fsdp_recovers", "what an earlier forward gathered is still whole", verdicts=ANY),
    send_gradient("a gradient is lost", "        self.settle()\n", "", BLOCKS, verdicts=ANY),
    add("an all-reduce, and a cut", "g_S = handle.wait()",
        "g_S = self.group.all_reduce(handle.wait().clone()) / self.group.size", FLAT_UNITS, verdicts=ANY),
    At("14.4", "zero", "flatten")("the padding is not zero", "flat.new_zeros(", "flat.new_ones(",
        ("test_flat_parameter[2]", "test_flat_parameter[3]", "test_flat_parameter_bf16", "test_fsdp",
         "test_fsdp_prefetch", "test_fsdp_recovers"), may="test_fsdp_memory"),
    before_backward("every backward is refused",
        """        if i in self.begun:
            raise""",
        """        if True:
            raise""", (*BLOCKS, "test_fsdp_refuses"), verdicts=ANY),
    before_backward("a second backward is let in", "if i in self.begun:", "if False:",
        ("test_fsdp_refuses[a second backward of one forward]",
         "test_fsdp_refuses[a second backward of one forward, of one block]"), verdicts=ANY),
    before_backward("a second backward of one block is let in", "if i in self.begun:", "if i in self.reduced:",
        "test_fsdp_refuses[a second backward of one forward, of one block]"),
    fsdp_begin("finish is not missed", "if self.backward:", "if False:",
        "test_fsdp_refuses[a forward after a backward without finish()]", verdicts=ANY),
    At("14.4", "fsdp", "before_backward")("a backward that begins before the last block is none",
        "self.backward = True", "self.backward = self.backward or i == len(self.blocks) - 1",
        "test_fsdp_refuses[a forward after a backward without finish()]", verdicts=ANY, may="test_fsdp_recovers"),
    reduce("gradients are dropped when the message is there",
        """        for param in self.params:
            param.grad = None
        return self.group.reduce_scatter(g_NS, op="mean", async_op=True)""",
        """        handle, params = self.group.reduce_scatter(g_NS, op="mean", async_op=True), self.params
        class Later:
            def wait(self):
                for param in params: param.grad = None
                return handle.wait()
        return Later()""",
        FLAT, verdicts=ANY, may=("test_fsdp", "test_fsdp_memory", "test_fsdp_recovers")),
    At("14.4", "fsdp", "before_backward")("a rank that used no weight of a block sends in finish",
        "            self.send_gradient(i + 1)",
        "            if any(p.grad is not None for p in self.blocks[i + 1].params): self.send_gradient(i + 1)",
        "test_fsdp_recovers", verdicts=ANY),
    reduce("BF16 gradients divided in BF16", "(g.to(self.shard.dtype) for g in grads), self.group.size * self.S)",
        "((g / self.group.size).to(self.shard.dtype) * self.group.size for g in grads), self.group.size * self.S)",
        "test_flat_parameter_bf16"),
    before_forward("freed before it computes", "        self.blocks[i].wait()\n",
        """        self.blocks[i].wait()
        self.blocks[i].free()
""",
        BLOCKS, verdicts=ANY),
    after_forward("the recomputation frees", "if not self.backward and i + 1", "if i + 1",
        ("test_fsdp[3 ranks, checkpointed", "test_fsdp_memory[checkpointed", "test_fsdp_prefetch[checkpointed"),
        verdicts=ANY),
    At("14.4", "fsdp", "after_forward")("an evaluation frees nothing", "not self.backward and i + 1 < len(self.blocks)",
        "not self.backward and i + 1 < len(self.blocks) and torch.is_grad_enabled()", "test_fsdp_recovers"),
    free("free lets a gather go on", "            self.handle.wait()\n            self.handle = None",
        "            return", FLAT, "a gather that was under way at free() was kept", may="test_fsdp_recovers"),
    send_gradient("two gradients under way",
        "        self.settle()\n        self.reducing = self.blocks[i], self.blocks[i].reduce()\n",
        "        handle = self.blocks[i].reduce()\n        self.settle()\n        self.reducing = self.blocks[i], handle\n",
        "test_fsdp_prefetch"),
    fsdp_finish("nothing to finish where no block had a backward", "        for i in reversed",
        "        if not self.backward: return\n        for i in reversed", "test_fsdp_recovers"),
    fsdp_finish("block 0 alone is left to average", "if i not in self.reduced:", "if i == 0:", "test_fsdp_recovers"),
]

# ---- 14.5
KERNELS = 'kernels = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "kernel"]'
exposed = At("14.5", "overlap", "exposed")
OVERLAP = [
    exposed("older NCCL computes", 'is_communication(e["name"])', 'e["name"].startswith("ncclDevKernel")',
        ("test_exposed", "test_unions"), "kernels of older NCCL", may="test_nothing_to_expose"),
    exposed("a memset computes", 'e.get("cat") == "kernel"', 'e.get("cat") in ("kernel", "gpu_memset")',
        ("test_exposed", "test_unions"), "a memset counts as computing", may=UNHIDDEN),
    exposed("whole microseconds",
        """changes += [(e["ts"], kind, 1), (e["ts"] + e["dur"], kind, -1)]""",
        """changes += [(int(e["ts"]), kind, 1), (int(e["ts"]) + int(e["dur"]), kind, -1)]""",
        ("test_exposed", "test_unions"), "times are cut", may="test_nothing_to_expose"),
    exposed("every event has a category", 'e.get("cat") == "kernel"', 'e["cat"] == "kernel"',
        UNHIDDEN, verdicts=("crashed",)),
    exposed("hidden is exposed", "if running[True] and not running[False] else 0", "if running[True] else 0",
        "test_exposed", "hidden communication is counted"),
    exposed("overlapping messages are summed", "alone += piece if running[True] and not running[False] else 0",
        "alone += piece * running[True] if not running[False] else 0",
        "test_exposed", "lengths are summed", may="test_nothing_to_expose"),
    exposed("copies compute", 'e.get("cat") == "kernel"', 'e.get("cat") in ("kernel", "gpu_memcpy")',
        UNHIDDEN, "copies count as computing"),
    exposed("copies communicate",
        KERNELS,
        KERNELS.replace('== "kernel"', 'in ("kernel", "gpu_memcpy")').replace(
            "[e for", '[e | {"name": e["name"].replace("Memcpy", "ncclKernel")} for'
        ),
        UNHIDDEN, "copies count as communication"),
    exposed("what the host asked for",
        KERNELS,
        """kernels = [
        e | {"name": e.get("name", "").replace("nccl:", "ncclKernel")}
        for e in trace["traceEvents"]
        if e.get("ph") == "X" and (e.get("cat") == "kernel" or e.get("name", "").startswith("nccl"))
    ]""",
        UNHIDDEN, "what the host asked for"),
    exposed("the difference of lengths", "    return Exposed(",
        """    alone = max(0, communication - computing)
    return Exposed(""", "test_exposed", "the difference of two lengths"),
    exposed("a kernel inside another", "",
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
""", ("test_exposed", "test_unions"), "a kernel inside a longer one", may="test_nothing_to_expose"),
    exposed("the exposed share", "1 - alone / communication", "alone / communication",
        "test_exposed", "the exposed share", may="test_nothing_to_expose"),
    exposed("computing is summed", "computing += piece if running[False] else 0", "computing += piece * running[False]",
        ("test_unions", "test_nothing_to_expose"), "the sum of the kernels' lengths"),
    exposed("communication is summed", "communication += piece if running[True] else 0",
        "communication += piece * running[True]",
        ("test_exposed", "test_unions"), "the sum of the kernels' lengths", may="test_nothing_to_expose"),
    exposed("nothing is hidden where nothing was sent", "if communication else 1.0", "if communication else 0.0",
        "test_nothing_to_expose", "nothing was sent, so nothing is exposed"),
    exposed("labels compute", 'e.get("cat") == "kernel"', 'e.get("cat") in ("kernel", "gpu_user_annotation")',
        UNHIDDEN, "labels over other events count as computing"),
    exposed("no span", 'e.get("ph") == "X" and ', "", UNHIDDEN, "what is no span counts"),
    exposed("whatever is called nccl", 'is_communication(e["name"])', '"nccl" in e["name"]',
        UNHIDDEN, "whatever has nccl in its name communicates"),
    exposed("begins and ends are cut",
        """changes += [(e["ts"], kind, 1), (e["ts"] + e["dur"], kind, -1)]""",
        """changes += [(int(e["ts"]), kind, 1), (int(e["ts"] + e["dur"]), kind, -1)]""",
        ("test_exposed", "test_unions"), "begins and ends are cut", may="test_nothing_to_expose"),
    exposed("what is hidden does not count", "communication += piece if running[True] else 0",
        "communication += piece if running[True] and not running[False] else 0",
        ("test_exposed", "test_unions"), "communication is its exposed part alone", "its exposed part alone"),
    exposed("a flag", "running[kind] += sign", "running[kind] = max(sign, 0)",
        ("test_exposed", "test_unions"), "a flag in place of a count", may="test_nothing_to_expose"),
    exposed("the first event's process",
        KERNELS,
        KERNELS.replace(" if ", ' if e.get("pid") == trace["traceEvents"][0].get("pid") and '), UNHIDDEN),
]

# Found by writers who looked for what no check looks at.
LOOSE = [
    memory("unknown stages pass", "    if stage not in STAGES:",
        '    stage = {"fsdp": "zero3", "zero0": "ddp"}.get(stage.lower(), stage.lower())\n    if stage not in STAGES:',
        "test_unknown_stage"),
    finish("nothing travels without a backward", "while self.left < len(self.buckets):",
        "while self.left < len(self.buckets) and any(bucket.ready for bucket in self.buckets):",
        "test_odd_cases", may=("test_graphs_that_differ", "test_data_parallel", "test_no_sync"), verdicts=ANY),
    finish("None where nobody used it", "p.grad = mean.view_as(p).clone()",
        "p.grad = mean.view_as(p).clone() if p.grad is not None or bool(mean.any()) else None",
        ("test_data_parallel", "test_odd_cases", "test_no_sync[the last skips a block]")),
    adamw_step("AdamW's options are ignored", "*self.options)", "self.options[0], (0.9, 0.95), 1e-8, 0.1)",
        ("test_odd_steps", "test_zero_clipping", "test_zero_weights"), may=("test_zero_holds", "test_zero_traffic")),
    adamw_step("zeros are no step", "self.steps += 1", "if norm == 0:\n            return 0.0\n        self.steps += 1",
        "test_odd_steps"),
    adamw_step("a limit that nobody asked for", "clip_scale(norm, max_norm)",
        "clip_scale(norm, 1.0 if max_norm is None else max_norm)",
        "test_odd_steps", "clipped, though no max_norm was given", seldom=True,
        may=("test_zero_weights", "test_zero_clipping", "test_zero_holds", "test_zero_traffic")),
    adamw_step("ranks of the whole", "self.group.size, self.group.rank, self.S",
        "self.group.size, self.group.ranks[self.group.rank], self.S", "test_odd_steps", verdicts=ANY),
    gather("rounded once", "part = self.shard.detach().to(self.full.dtype)",
        "self.low = part = getattr(self, 'low', self.shard.detach().clone().to(self.full.dtype)) if "
        "self.full.dtype != self.shard.dtype else self.shard.detach()",
        "test_flat_parameter_bf16", "the shards were rounded before they were stepped"),
    flat_init("full is made anywhere", "flat.new_empty(N * self.S, dtype=dtype)",
        "torch.empty(N * self.S, dtype=dtype or flat.dtype)", "test_flat_parameter[3"),
    reduce("infinite gradients are hidden", "else p.grad for", "else p.grad.nan_to_num() for",
        FLAT),
    fsdp_finish("prefetch ends with a backward that stops early", "        self.backward = False",
        "        self.backward = False\n        self.prefetch = self.prefetch and len(self.begun) == len(self.blocks)",
        "test_fsdp_recovers"),
    fsdp_begin("one block needs no finish()", "if self.backward:", "if self.reducing is not None:",
        "test_fsdp_refuses[a forward after a backward without finish(), of one block"),
    exposed("a kernel must name its stream",
        KERNELS,
        KERNELS.replace(" if ", ' if (e.get("cat") != "kernel" or e["args"]["stream"] >= 0) and ', 1),
        UNHIDDEN, verdicts=("crashed",)),
]

MUTANTS = [*MEMORY, *DDP, *ZERO, *FSDP, *OVERLAP, *LOOSE]
