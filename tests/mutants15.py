"""Mutants of week 15: the reference with a line changed, the checks that must fail for it, and the causes to be told.

`tests/test_mutants15.py` runs them on thread ranks (`tests/kills.py`, also on many seeds) and some through the real
machinery. A mutant fails the checks named here and no others; a cause that is printed is one of those given; where none
is given, no case may print one.
"""

from tests.mutant import ANY, At

# Checks that fail together.
ATTENDS = (
    "test_attention[each its own]",
    "test_attention[grouped]",
    "test_attention[replicated twice]",
    "test_attention[one key/value head]",
)
SUMS = (
    "test_step[reduce_over_ranks",
    "test_linear[Row-cut]",
    "test_linear[Row-whole]",
    "test_sum_dtype",
    "test_two_linears",
)
RUNS = (
    "test_run[GPipe, 4 stages]",
    "test_run[1F1B, 4 stages]",
    "test_run[1F1B, fewer micro-batches]",
    "test_run[1F1B, odd]",
    "test_run[one stage]",
)

# ---- 15.1
linears = At("15.1", "linears")
LINEARS = [
    linears("backward of copy: no sum", "class Copy",
        "return summed(dy, ctx.group), None",
        "return dy, None",
        ("test_step[copy_to_ranks", "test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears"),
        "its own gradient alone", "its own outputs' part alone"),
    linears("backward of copy: right for equal ranks alone", "class Copy",
        "return summed(dy, ctx.group), None",
        "return summed(dy * 0, ctx.group) + ctx.group.size * dy, None",
        ("test_step[copy_to_ranks", "test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears"),
        "its own gradient N times"),
    linears("backward of reduce: a sum", "class Reduce",
        """return summed(x, group, dtype)

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None""",
        """ctx.group = group
        return summed(x, group, dtype)

    @staticmethod
    def backward(ctx, dy):
        return summed(dy, ctx.group), None, None""",
        SUMS, "N times too much", "the gradient N times"),
    linears("reduce forgets to sum", "class Reduce",
        "return summed(x, group, dtype)",
        "return x.clone()",
        SUMS, "its own addend alone"),
    linears("reduce: the mean", "class Reduce",
        "return summed(x, group, dtype)",
        "return summed(x, group, dtype) / group.size",
        SUMS, "the mean over the ranks, expected the sum"),
    linears("reduce: right for equal ranks alone", "class Reduce",
        "return summed(x, group, dtype)",
        "return group.all_reduce(torch.zeros_like(x)) + group.size * x",
        SUMS, "its own addend N times"),
    linears("reduce overwrites x", "class Reduce",
        "return summed(x, group, dtype)",
        "return group.all_reduce(x.detach()).clone()",
        ("test_step[reduce_over_ranks", "test_sum_dtype[float32]"), "an input was overwritten"),
    linears("backward of copy: in dy's memory", "class Copy",
        "return summed(dy, ctx.group), None",
        "return ctx.group.all_reduce(dy), None",
        "test_step[copy_to_ranks", "an input was overwritten", verdicts=ANY,
        may=("test_linear", "test_two_linears")),
    linears("gather: always along the last dimension", "class Gather",
        "ctx.group, ctx.dim = group, dim",
        "ctx.group, ctx.dim = group, (dim := -1)",
        ("test_step[gather_from_ranks-0]", "test_step[gather_from_ranks-1]"), "side by side along the last"),
    linears("scatter: its backward always along the last dimension", "class Scatter",
        "joined(dy, ctx.group, ctx.dim)",
        "joined(dy, ctx.group, -1)",
        ("test_step[scatter_to_ranks-0]", "test_step[scatter_to_ranks-1]"), "Rank", verdicts=("crashed",)),
    linears("backward of gather: a reduce-scatter", "class Gather",
        "return own_slice(dy, ctx.group, ctx.dim), None, None",
        "return own_slice(summed(dy, ctx.group), ctx.group, ctx.dim), None, None",
        ("test_step[gather_from_ranks", "test_linear[Column-whole]"), "the gradient N times"),
    linears("gather along the first dimension", "class Gather",
        "return joined(x, group, dim)",
        "return joined(x, group, 0)",
        ("test_step[gather_from_ranks--1]", "test_step[gather_from_ranks-1]", "test_linear[Column-whole]"), "side by side along the first dimension"),
    linears("scatter gives a view of the whole", "class Scatter",
        "return own_slice(x, group, dim)",
        "return x.chunk(group.size, dim)[group.rank]",
        "test_step[scatter_to_ranks", "a view of the whole"),
    linears("scatter: the next rank's slice", "class Scatter",
        "return own_slice(x, group, dim)",
        "return x.chunk(group.size, dim)[(group.rank + 1) % group.size].clone()",
        ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "slice r+1, expected slice r"),
    linears("backward of scatter: own slice, and zeros", "class Scatter",
        "return joined(dy, ctx.group, ctx.dim), None, None",
        ("return torch.cat([dy if r == ctx.group.rank else torch.zeros_like(dy) for r in range(ctx.group.size)], "
         "ctx.dim), None, None"),
        ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "its own slice, and zeros"),
    linears("scatter reads rank 0's gradient", "class Scatter",
        "return joined(dy, ctx.group, ctx.dim), None, None",
        "return torch.cat([dy] * ctx.group.size, ctx.dim), None, None",
        ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "its own slice N times"),
    linears("column: no copy in front", "class ColumnParallelLinear",
        "x = copy_to_ranks(x, self.group)",
        "x = x + 0",
        ("test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears"), "its own outputs' part alone"),
    linears("column: the weight is gathered", "class ColumnParallelLinear",
        "y = nn.functional.linear(x, self.weight, self.bias)",
        ("whole = gather_from_ranks(self.weight, self.group, 0); y = nn.functional.linear(x, whole[self.group.rank "
         "* len(self.weight) : (self.group.rank + 1) * len(self.weight)], self.bias)"),
        ("test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears"),
        "the weight is gathered before it is used"),
    linears("column: never gathered", "class ColumnParallelLinear",
        "gather_from_ranks(y, self.group) if self.gather else y",
        "y",
        "test_linear[Column-whole]"),
    linears("row: the bias N + 1 times", "class RowParallelLinear",
        "nn.functional.linear(x, self.weight)",
        "nn.functional.linear(x, self.weight, self.bias)",
        ("test_linear[Row-cut]", "test_linear[Row-whole]", "test_one_rank", "test_two_linears")),
    linears("row: the bias before the sum", "class RowParallelLinear",
        """y = reduce_over_ranks(addend, self.group, self.sum_dtype)
        return y + self.bias if self.bias is not None else y""",
        """addend = addend if self.bias is None else addend + self.bias
        return reduce_over_ranks(addend, self.group, self.sum_dtype)""",
        ("test_linear[Row-cut]", "test_linear[Row-whole]", "test_two_linears"), "the bias N times"),
    linears("row: no bias", "class RowParallelLinear",
        "return y + self.bias if self.bias is not None else y",
        "return y",
        ("test_linear[Row-cut]", "test_linear[Row-whole]", "test_one_rank", "test_two_linears"), "the bias is missing"),
    linears("row: no sum", "class RowParallelLinear",
        "y = reduce_over_ranks(addend, self.group, self.sum_dtype)",
        "y = addend",
        ("test_linear[Row-cut]", "test_linear[Row-whole]", "test_sum_dtype", "test_two_linears"),
        "its own addend alone"),
    linears("row: the sum's dtype is ignored", "class RowParallelLinear",
        "reduce_over_ranks(addend, self.group, self.sum_dtype)",
        "reduce_over_ranks(addend, self.group)",
        "test_sum_dtype[float32]"),
    linears("row: always summed in float32", "class RowParallelLinear",
        "reduce_over_ranks(addend, self.group, self.sum_dtype)",
        "reduce_over_ranks(addend, self.group, torch.float32)",
        "test_sum_dtype[bfloat16]"),
    linears("row: zeros", "class RowParallelLinear",
        "return y + self.bias if self.bias is not None else y",
        "return y * 0",
        ("test_linear[Row-cut]", "test_linear[Row-whole]", "test_one_rank", "test_sum_dtype", "test_two_linears"),
        "nothing but zeros"),
]

# ---- 15.2
attention = At("15.2", "attention")
ATTENTION = [
    # on two ranks both are true; where another case tells which, the other is not said
    attention("the wrong half of the heads", "def split_heads",
        "first = r // copies * k",
        "first = (n_kv_heads - k) - r // copies * k",
        ("test_split_heads[8-8-4]", "test_split_heads[8-4-2]", "test_split_heads[12-4-4]", "test_split_heads[8-2-4]",
         "test_split_heads[12-3-6]", "test_split_heads[16-4-8]", "test_split_heads[32-8-16]"),
        "in reversed order", "the next rank's", seldom=True),
    attention("replicas far apart", "def split_heads",
        "first = r // copies * k",
        "first = r % n_kv_heads * k if copies > 1 else r * k",
        ("test_split_heads[8-2-4]", "test_split_heads[12-3-6]", "test_split_heads[16-4-8]", "test_split_heads[32-8-16]"),
        "dealt out in turns"),
    attention("replica parts across the heads", "def split_heads",
        "list(range(start, start + copies)) for start in range(0, N, copies)",
        "list(range(start, N, N // copies)) for start in range(N // copies)",
        ("test_split_heads[8-2-4]", "test_split_heads[12-3-6]", "test_split_heads[16-4-8]",
         "test_split_heads[32-8-16]", "test_attention[replicated twice]")),
    attention("nothing is refused", "def split_heads", "if n_heads % N:", "if False:", "test_heads_that_do_not_divide"),
    attention("key/value heads that do not divide", "def split_heads",
        "if max(n_kv_heads, N) % min(n_kv_heads, N):",
        "if False:",
        "test_heads_that_do_not_divide"),
    attention("more ranks than key/value heads are always let in", "def split_heads",
        "if max(n_kv_heads, N) % min(n_kv_heads, N):",
        "if n_kv_heads > N and n_kv_heads % N:",
        "test_heads_that_do_not_divide"),
    attention("another error than asked for", "def split_heads",
        "if n_heads % N:",
        """assert n_heads % N == 0, f'{n_heads} {N}'
    if False:""",
        "test_heads_that_do_not_divide"),
    attention("rows interleaved", "def slice_weights",
        'weights["wq"][query].clone()',
        ('weights["wq"][share.query[0] // (share.query[1] - share.query[0]) :: len(weights["wq"]) // (query.stop - '
         'query.start)].clone()'),
        "test_slices", "every N-th row"),
    attention("W_o by rows", "def slice_weights",
        'weights["wo"][:, query].clone()',
        'weights["wo"].T[query].clone()',
        "test_slices"),
    attention("W_o's rows", "def slice_weights",
        'weights["wo"][:, query].clone()',
        'weights["wo"][query].clone()',
        "test_slices", "W_o by its rows"),
    attention("slices are views", "def slice_weights",
        'weights["wq"][query].clone()',
        'weights["wq"][query]',
        "test_slices", "a view of the whole weight"),
    attention("whole key and value weights", "def slice_weights",
        'weights["wk"][kv].clone()',
        'weights["wk"].clone()',
        "test_slices", "the whole weight"),
    attention("backward's all-reduce is missing", "class ParallelAttention",
        "x_BTD = copy_to_ranks(x_BTD, self.group)",
        "x_BTD = x_BTD + 0",
        ATTENDS, "its own heads' part alone"),
    attention("forward's all-reduce is missing", "class ParallelAttention",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return addend_BTD",
        ATTENDS, "its own heads' addend alone"),
    attention("replicas' gradients are not summed", "class ParallelAttention",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = self.wk, self.wv",
        ("test_attention[replicated twice]", "test_attention[one key/value head]"), "its own query heads' part alone"),
    attention("only W_k's gradient is summed", "class ParallelAttention",
        "copy_to_ranks(self.wv, self.replicas)",
        "self.wv",
        ("test_attention[replicated twice]", "test_attention[one key/value head]"), "its own query heads' part alone"),
    attention("the gradients are summed over all ranks", "class ParallelAttention",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = copy_to_ranks(self.wk, self.group), copy_to_ranks(self.wv, self.group)",
        ATTENDS, "summed over ranks with other key/value heads"),
    attention("k and v are copied over the replicas", "class ParallelAttention",
        """wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(x_BTD, w).unflatten(-1, (-1, self.d_head))
            for w in (self.wq, wk, wv)
        )
""",
        """q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(x_BTD, w).unflatten(-1, (-1, self.d_head))
            for w in (self.wq, self.wk, self.wv)
        )
        k_BTkH, v_BTkH = copy_to_ranks(k_BTkH, self.replicas), copy_to_ranks(v_BTkH, self.replicas)
""",
        ("test_attention[replicated twice]", "test_attention[one key/value head]"),
        "k and v were copied over the replicas"),
    attention("three messages for x", "class ParallelAttention",
        """x_BTD = copy_to_ranks(x_BTD, self.group)
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(x_BTD, w)""",
        """group = self.group
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(copy_to_ranks(x_BTD, group), w)""",
        ATTENDS, "three messages for x, one a product"),
    attention("positions shifted by rank", "class ParallelAttention",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)",
        ("q_BTnH = q_BTnH.roll(0, 1); t = len(cos_TR) // self.group.size; y_BTnH = self.core(q_BTnH, k_BTkH, "
         "v_BTkH, cos_TR.roll(-t * self.group.rank, 0), sin_TR.roll(-t * self.group.rank, 0))"),
        ATTENDS),
    attention("keys are not turned", "class ParallelAttention",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR * 0 + 1, sin_TR * 0)",
        "test_attention"),
    attention("heads are gathered before W_o", "class ParallelAttention",
        "addend_BTD = nn.functional.linear(y_BTnH.flatten(-2), self.wo)",
        ("from .linears import gather_from_ranks, scatter_to_ranks; addend_BTD = "
         "nn.functional.linear(scatter_to_ranks(gather_from_ranks(y_BTnH.flatten(-2), self.group), self.group), "
         "self.wo)"),
        ATTENDS, "the heads are gathered in front of W_o"),
    attention("one rank's result on all", "class ParallelAttention",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return reduce_over_ranks(addend_BTD * (self.group.rank == 0) * self.group.size, self.group)",
        ATTENDS, "its own heads' addend N times"),
    attention("right for equal ranks alone", "class ParallelAttention",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return reduce_over_ranks(addend_BTD * 0, self.group) + self.group.size * addend_BTD",
        ATTENDS, "its own heads' addend N times"),
    attention("zeros on all ranks", "class ParallelAttention",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return 0 * reduce_over_ranks(addend_BTD, self.group)",
        "test_attention", "nothing but zeros"),
]

# ---- 15.3
sequence = At("15.3", "sequence")
SEQUENCE = [
    sequence("scatter's backward: no gather", "class ScatterPositions",
        "all_positions(dy_BtD, ctx.group)",
        "torch.cat([dy_BtD if r == ctx.group.rank else torch.zeros_like(dy_BtD) for r in range(ctx.group.size)], 1)",
        ("test_scatter_positions", "test_block"), "its own positions, and zeros"),
    sequence("scatter without a sum", "class ScatterPositions",
        "return own_positions_summed(x_BTD, group)",
        "return x_BTD.chunk(group.size, 1)[group.rank].contiguous()",
        ("test_scatter_positions", "test_block"), "its own addend alone"),
    sequence("an all-reduce and a slice", "class ScatterPositions",
        "return own_positions_summed(x_BTD, group)",
        "return group.all_reduce(x_BTD.clone()).chunk(group.size, 1)[group.rank].contiguous()",
        ("test_scatter_positions", "test_block"), "an all-reduce, and a slice of it"),
    sequence("the gathered x is kept", "class GatherLinears",
        "ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)",
        """ctx.keep = True
        ctx.save_for_backward(x_BTD, *weights)""",
        ("test_gather_linears[gathered again]", "test_block[gathered again]"), "the gathered x is kept"),
    sequence("always gathered again", "class GatherLinears",
        "ctx.group, ctx.keep = group, keep",
        "ctx.group, ctx.keep = group, False; keep = False",
        ("test_gather_linears[kept]", "test_block[kept, replicas]"), "nothing but its own positions is kept"),
    sequence("kept in a list", "class GatherLinears",
        "ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)",
        """ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)
        ctx.whole = [lambda x=x_BTD: x]""",
        "test_gather_linears[gathered again]", "the gathered x is kept, and its own positions too"),
    sequence("kept on the side", "class GatherLinears",
        """ctx.group, ctx.keep = group, keep
        x_BTD = all_positions(x_BtD, group)""",
        """ctx.group, ctx.keep = group, keep
        x_BTD = all_positions(x_BtD, group)
        ctx.x = None if keep else x_BTD""",
        "test_gather_linears[gathered again]", "the gathered x is kept, and its own positions too"),
    sequence("dx: no sum", "class GatherLinears",
        "dx_BtD = own_positions_summed(dx_BTD, ctx.group)",
        "dx_BtD = dx_BTD.chunk(ctx.group.size, 1)[ctx.group.rank].contiguous()",
        ("test_gather_linears", "test_block"), "its own addend alone"),
    sequence("dx: the first product alone", "class GatherLinears",
        "dx_BTD = sum(dy @ w for dy, w in zip(dys, weights))",
        "dx_BTD = dys[0] @ weights[0]",
        ("test_gather_linears", "test_block")),
    sequence("the norms' weights are not summed", "class SequenceParallelBlock",
        "attn_norm, ffn_norm = copy_to_ranks(self.attn_norm, group), copy_to_ranks(self.ffn_norm, group)",
        "attn_norm, ffn_norm = self.attn_norm, self.ffn_norm",
        "test_block", "its own positions' part alone"),
    sequence("the replicas are not summed", "class SequenceParallelBlock",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = self.wk, self.wv",
        "test_block[kept, replicas]", "its own query heads' part alone"),
    sequence("positions of rank r only", "class SequenceParallelBlock",
        "for p in (q, k, v)), cos_TR, sin_TR)",
        ("for p in (q, k, v)), cos_TR.roll(-x_BtD.shape[1] * group.rank, 0), sin_TR.roll(-x_BtD.shape[1] * "
         "group.rank, 0))"),
        "test_block"),
    sequence("one product a gather", "class SequenceParallelBlock",
        "gate, up = gather_linears(self.norm(x_BtD, ffn_norm), (self.w1, self.w3), group, keep)",
        ("h = self.norm(x_BtD, ffn_norm); (gate,), (up,) = gather_linears(h, (self.w1,), group, keep), "
         "gather_linears(h, (self.w3,), group, keep)"),
        "test_block"),
    sequence("no residual", "class SequenceParallelBlock",
        "x_BtD = x_BtD + scatter_positions",
        "x_BtD = scatter_positions",
        "test_block"),
    sequence("gate and up swapped", "class SequenceParallelBlock", "gate, up = ", "up, gate = ", "test_block"),
]

# ---- 15.4
vocab = At("15.4", "vocab")
VOCAB = [
    vocab("one maximum for each position, over the batch", "class CrossEntropy",
        'group.all_reduce(z_BTv.amax(-1), "max")',
        'group.all_reduce(z_BTv.amax((0, -1)), "max").expand(z_BTv.shape[:-1])',
        "test_cross_entropy[far apart]", "exp left float32"),
    vocab("in the logits' dtype", "class CrossEntropy",
        "logits_BTv.float()",
        "logits_BTv",
        "test_cross_entropy[bfloat16]"),
    vocab("embedding: no mask", "def parallel_embedding",
        " * mine_BT.unsqueeze(-1)",
        "",
        "test_embedding", "for others' tokens a row 0 came too, where zeros are due"),
    vocab("embedding: no sum", "def parallel_embedding",
        "return reduce_over_ranks(addend_BTD, group)",
        "return addend_BTD",
        "test_embedding", "its own rows alone, zeros elsewhere"),
    vocab("embedding: V / N rows each", "def parallel_embedding",
        "*vocab_range(V, group.size, group.rank)",
        "V // group.size * group.rank, V // group.size * (group.rank + 1)",
        "test_embedding[ragged]"),
    vocab("embedding: the table is gathered", "def parallel_embedding",
        "mine_BT, index_BT =",
        """if V % group.size == 0: group.all_gather(weight_vD.detach())
    mine_BT, index_BT =""",
        "test_embedding[even]", "the table is gathered before it is used"),
    vocab("loss: logits are gathered", "class CrossEntropy",
        """z_BTv = logits_BTv.float()
""",
        """z_BTv = logits_BTv.float()
        wide = torch.zeros(*z_BTv.shape[:2], V); wide[..., slice(*vocab_range(V, group.size, group.rank))] = z_BTv; group.all_reduce(wide)
""",
        ("test_cross_entropy", "test_head"), "whole logits travel"),
    vocab("loss: maximum not shared", "class CrossEntropy",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = z_BTv.amax(-1)",
        ("test_cross_entropy", "test_head"), "each rank subtracted a maximum of its own"),
    vocab("loss: rank 0's maximum for all", "class CrossEntropy",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = group.broadcast(z_BTv.amax(-1), src=0)",
        "test_cross_entropy[far apart]", "exp left float32"),
    vocab("loss: one maximum for the whole batch", "class CrossEntropy",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max").max().expand(z_BTv.shape[:-1])',
        "test_cross_entropy[far apart]", "exp left float32"),
    vocab("loss: no maximum", "class CrossEntropy",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = torch.zeros(z_BTv.shape[:-1])",
        ("test_cross_entropy[hundreds]", "test_cross_entropy[far apart]"), "exp left float32"),
    vocab("loss: the maximum twice", "class CrossEntropy",
        "(denominator_BT.log() - at_target_BT)",
        "(denominator_BT.log() + max_BT - at_target_BT)",
        ("test_cross_entropy", "test_head"), "the maximum is subtracted twice from the target's logit"),
    vocab("loss: the target's logit as it is", "class CrossEntropy",
        "at_target_BT = z_BTv.gather(",
        "at_target_BT = logits_BTv.float().gather(",
        ("test_cross_entropy", "test_head"), "the maximum is subtracted in the sum and not from the target's logit"),
    vocab("loss: the maximum before the mask", "class CrossEntropy",
        "at_target_BT = z_BTv.gather(-1, index_BT.unsqueeze(-1)).squeeze(-1) * mine_BT",
        "at_target_BT = logits_BTv.float().gather(-1, index_BT.unsqueeze(-1)).squeeze(-1) * mine_BT - max_BT",
        ("test_cross_entropy", "test_head"), "every rank subtracted the maximum from the target's logit"),
    vocab("loss: the denominator is local", "class CrossEntropy",
        "denominator_BT, at_target_BT = group.all_reduce(torch.stack([exp_BTv.sum(-1), at_target_BT]))",
        "denominator_BT, at_target_BT = exp_BTv.sum(-1), group.all_reduce(at_target_BT)",
        ("test_cross_entropy", "test_head"), "the denominator is of this rank's logits alone"),
    vocab("loss: ignored targets count", "class CrossEntropy",
        "tokens = counts_BT.sum()",
        """tokens = counts_BT.numel()
        tokens = torch.tensor(tokens)""",
        ("test_cross_entropy", "test_head"), "ignored targets count in the mean"),
    vocab("loss: ignored targets have a loss", "class CrossEntropy",
        "counts_BT = targets_BT != IGNORED",
        "counts_BT = targets_BT == targets_BT",
        ("test_cross_entropy", "test_head"), "ignored targets have a loss"),
    vocab("loss: the sum", "class CrossEntropy",
        "* counts_BT).sum() / tokens",
        "* counts_BT).sum()",
        ("test_cross_entropy", "test_head"), "the sum over the tokens, expected the mean"),
    vocab("loss: target off by one", "class CrossEntropy",
        "mine_BT, index_BT = local_index(targets_BT, ",
        "mine_BT, index_BT = local_index(torch.where(targets_BT < 0, targets_BT, (targets_BT + 1).clamp_max(V - 1)), ",
        ("test_cross_entropy", "test_head"), "the logit behind the target's"),
    vocab("loss: the gradient ignores what came", "class CrossEntropy",
        "(dloss / tokens)",
        "(1 / tokens)",
        "test_cross_entropy", "the gradient that came from behind is left out"),
    vocab("loss: the gradient of ignored targets", "class CrossEntropy",
        "(p_BTv - one_hot) * counts_BT.unsqueeze(-1) * ",
        "(p_BTv - one_hot) * ",
        ("test_cross_entropy", "test_head"), "ignored targets have a gradient"),
    vocab("loss: the target's 1 on every rank", "class CrossEntropy",
        "mine_BT.unsqueeze(-1).to(p_BTv.dtype)",
        "torch.ones_like(mine_BT).unsqueeze(-1).to(p_BTv.dtype)",
        ("test_cross_entropy", "test_head")),
    vocab("head: no copy in front", "def parallel_head_loss",
        "copy_to_ranks(x_BTD, group)",
        "x_BTD",
        "test_head", "its own logits' part alone"),
    vocab("head: logits are whole", "def parallel_head_loss",
        "return parallel_cross_entropy(logits_BTv, targets_BT, V, group)",
        """wide = torch.zeros(*logits_BTv.shape[:2], V)
    wide[..., slice(*vocab_range(V, group.size, group.rank))] = logits_BTv
    wide = reduce_over_ranks(wide, group)
    return nn.functional.cross_entropy(wide.flatten(0, 1), targets_BT.flatten())""",
        "test_head", "whole logits travel"),
]

# ---- 15.5
overlap = At("15.5", "overlap")
OVERLAP = [
    overlap("a barrier in every step", "gather_linear_in_chunks",
        "going.wait()",
        "going.wait(); group.barrier()",
        "test_product_in_chunks", verdicts=("forbidden call",)),
    overlap("the all-reduce is waited for", "class OverlappedColumn",
        "on_its_way = group.all_reduce(dx, async_op=True)",
        "group.all_reduce(dx); on_its_way = type('Done', (), {'wait': lambda self: dx})()",
        "test_overlapped_linear", "waited for before the product"),
    overlap("composed: both products, then the message", "class OverlappedColumn",
        """        on_its_way = group.all_reduce(dx, async_op=True)
        with group.compute("dW"):
            dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
""",
        """        with group.compute("dW"):
            dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
        on_its_way = group.all_reduce(dx, async_op=True)
""",
        "test_overlapped_linear", "posted behind the product, it travels when there is nothing left to hide it"),
    overlap("waited for before the product", "class OverlappedColumn",
        """on_its_way = group.all_reduce(dx, async_op=True)
""",
        """on_its_way = group.all_reduce(dx, async_op=True); on_its_way.wait()
""",
        "test_overlapped_linear", "waited for before the product"),
    overlap("an empty span", "class OverlappedColumn",
        """with group.compute("dW"):
            dW =""",
        """with group.compute("dW"):
            pass
        if True:
            dW =""",
        "test_overlapped_linear"),
    overlap("both products in the span", "class OverlappedColumn",
        "dW = dy.flatten(0, -2).T @ x.flatten(0, -2)",
        "dy @ weight; dW = dy.flatten(0, -2).T @ x.flatten(0, -2)",
        "test_overlapped_linear"),
    overlap("both products and the post in one span", "class OverlappedColumn",
        """        dx = dy @ weight
        on_its_way = group.all_reduce(dx, async_op=True)
        with group.compute("dW"):
""",
        """        with group.compute("dW"):
            dx = dy @ weight
            on_its_way = group.all_reduce(dx, async_op=True)
""",
        "test_overlapped_linear", "posted inside the span"),
    overlap("no message", "class OverlappedColumn",
        "on_its_way = group.all_reduce(dx, async_op=True)",
        "on_its_way = type('Done', (), {'wait': lambda self: dx})()",
        "test_overlapped_linear", "its own outputs' part alone"),
    overlap("the message is dW", "class OverlappedColumn",
        "return on_its_way.wait(), dW, None",
        "return on_its_way.wait(), group.all_reduce(dW), None",
        "test_overlapped_linear"),
    overlap("in the order of arrival", "def gather_linear_in_chunks",
        "parts[(r - s) % N]",
        "parts[s]",
        "test_product_in_chunks", "in the order of arrival, expected in rank order"),
    overlap("chunks stored the other way round", "def gather_linear_in_chunks",
        "parts[(r - s) % N]",
        "parts[(r + s) % N]",
        "test_product_in_chunks[4]", "step s multiplies the positions of rank r-s, and stores them as rank r+s's"),
    overlap("what arrived is not multiplied", "def gather_linear_in_chunks",
        "= here @ weight_OI.T",
        "= x_BtI @ weight_OI.T",
        "test_product_in_chunks", "its own positions N times"),
    overlap("gathered first", "def gather_linear_in_chunks",
        "here, parts = x_BtI.contiguous(), [x_BtI] * N",
        """here, parts = x_BtI.contiguous(), [x_BtI] * N
    group.all_gather(here)""",
        "test_product_in_chunks", verdicts=("forbidden call",)),
    overlap("send and receive, then the product", "def gather_linear_in_chunks",
        """        coming = None if last else group.irecv(left, like=here)
        going = None if last else group.isend(here, right)
        with group.compute("product"):
            parts[(r - s) % N] = here @ weight_OI.T
        if coming is not None and going is not None:
            here = coming.wait()
            going.wait()
""",
        """        nxt = here if last else group.sendrecv(here, dst=right, src=left)
        with group.compute("product"):
            parts[(r - s) % N] = here @ weight_OI.T
        here = nxt
""",
        "test_product_in_chunks", "waited for before the product"),
    overlap("the product, then send and receive", "def gather_linear_in_chunks",
        """        coming = None if last else group.irecv(left, like=here)
        going = None if last else group.isend(here, right)
        with group.compute("product"):
            parts[(r - s) % N] = here @ weight_OI.T
        if coming is not None and going is not None:
            here = coming.wait()
            going.wait()
""",
        """        with group.compute("product"):
            parts[(r - s) % N] = here @ weight_OI.T
        here = here if last else group.sendrecv(here, dst=right, src=left)
""",
        "test_product_in_chunks", "posted behind the product, it travels when there is nothing left to hide it"),
    overlap("N messages", "def gather_linear_in_chunks", "last = s == N - 1", "last = False", "test_product_in_chunks"),
    overlap("to the left", "def gather_linear_in_chunks",
        "right, left = ",
        "left, right = ",
        "test_product_in_chunks[4]", "to the left"),
    overlap("one product for all chunks", "def gather_linear_in_chunks",
        "return torch.cat(parts, dim=1)",
        "with group.compute('product'): return torch.cat(parts, dim=1)",
        "test_product_in_chunks"),
]

# ---- 15.6
pipeline = At("15.6", "pipeline")
PIPELINE = [
    pipeline("the loss has a graph", "def run_schedule",
        "[y.detach()] if last",
        "[y] if last",
        "test_run"),
    pipeline("gradients are sent and not waited for", "def run_schedule",
        "    for sent in on_their_way:\n        sent.wait()\n",
        "",
        (*RUNS[:-1], "test_run[one at a time]")),
    pipeline("GPipe: one at a time", "def gpipe",
        'return [("F", m) for m in range(M)] + [("B", m) for m in range(M)]',
        'return [(kind, m) for m in range(M) for kind in "FB"]',
        "test_schedule[gpipe]", "one micro-batch at a time"),
    pipeline("GPipe: one stage backwards", "def gpipe",
        '[("B", m) for m in range(M)]',
        '[("B", m if p % 2 == 0 else M - 1 - m) for m in range(M)]',
        "test_schedule[gpipe]"),
    pipeline("GPipe: the last one goes back first", "def gpipe",
        '[("B", m) for m in range(M)]',
        '[("B", m) for m in reversed(range(M))]',
        "test_schedule[gpipe]"),
    pipeline("1F1B that is GPipe", "def one_f_one_b",
        "warmup = min(P - p - 1, M)",
        "return gpipe(P, M, p)",
        "test_schedule[one_f_one_b]", "this is GPipe"),
    pipeline("1F1B: one forward too many", "def one_f_one_b",
        "warmup = min(P - p - 1, M)",
        "warmup = min(P - p, M)",
        "test_schedule[one_f_one_b]", "one forward too many before the first backward"),
    pipeline("1F1B: one forward too few", "def one_f_one_b",
        "warmup = min(P - p - 1, M)",
        "warmup = min(max(P - p - 2, 0), M)",
        "test_schedule[one_f_one_b]", "one forward too few before the first backward"),
    pipeline("1F1B: right for M = P alone", "def one_f_one_b",
        "warmup = min(P - p - 1, M)",
        "warmup = max(M - p - 1, 0)",
        "test_schedule[one_f_one_b]", "right only for as many micro-batches as stages"),
    pipeline("1F1B: more stages than micro-batches", "def one_f_one_b",
        "warmup = min(P - p - 1, M)",
        "warmup = P - p - 1",
        "test_schedule[one_f_one_b]"),
    pipeline("bubble over busy", "def bubble", "(P - 1) / (M + P - 1)", "(P - 1) / M", "test_bubble", "idle over busy"),
    pipeline("the busy fraction", "def bubble",
        "(P - 1) / (M + P - 1)",
        "M / (M + P - 1)",
        "test_bubble", "the busy fraction"),
    pipeline("in flight at the end", "def in_flight", "most = max(most, now)", "most = now", "test_in_flight"),
    pipeline("all forwards are in flight", "def in_flight",
        'now += 1 if kind == "F" else -1',
        'now += 1 if kind == "F" else 0',
        "test_in_flight"),
    pipeline("all sends are waited for", "def run_schedule",
        "p, P = group.rank, group.size",
        ("p, P = group.rank, group.size; group.isend = lambda tensor, dst: (group.send(tensor, dst), type('Done', "
         "(), {'wait': lambda self: None})())[1]"),
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]"), "Deadlock of ranks",
        verdicts=("hung",)),
    pipeline("the sum over micro-batches", "def run_schedule",
        "dy = torch.tensor(1.0 / M, device=y.device)",
        "dy = torch.tensor(1.0, device=y.device)",
        "test_run", "M times too much"),
    pipeline("the mean M times", "def run_schedule",
        "torch.stack(losses).mean()",
        "torch.stack(losses).sum()",
        "test_run", "the sum over the micro-batches, expected the mean"),
    pipeline("activations freed early", "def run_schedule",
        "x, y, sent = kept.pop(m)",
        "x, y, sent = kept.pop(m) if len(kept) < 2 else (kept.pop(m)[0], list(kept.values())[-1][1], None)",
        RUNS, "Rank", verdicts=("crashed",)),
    pipeline("nothing is dropped after a backward", "def run_schedule",
        "x, y, sent = kept.pop(m)",
        "x, y, sent = kept[m]",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]", "test_run[1F1B, odd]", "test_run[one at a time]"),
        "nothing is dropped after a backward"),
    pipeline("inputs are not dropped after a backward", "def run_schedule",
        """        x, y, sent = kept.pop(m)
""",
        """        x, y, sent = kept.pop(m)
        on_their_way.append(type("Done", (), {"wait": lambda self, x=x: None})())
""",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]"), "nothing is dropped after a backward"),
    pipeline("backward of the newest", "def run_schedule",
        "x, y, sent = kept.pop(m)",
        "x, y, sent = kept.pop(max(kept))",
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]")),
    pipeline(".grad is set, not added up", "def run_schedule",
        """        with group.compute(f"B{m}"):
            y.backward(dy)""",
        """        stage.zero_grad()
        with group.compute(f"B{m}"):
            y.backward(dy)""",
        "test_run", "the last micro-batch's alone"),
    pipeline("the schedule is ignored: one at a time", "def run_schedule",
        "kept, losses, on_their_way = {}, [], []",
        "kept, losses, on_their_way = {}, [], []; steps = [(kind, m) for m in range(M) for kind in 'FB']",
        RUNS, "one micro-batch at a time"),
    pipeline("the schedule is ignored: GPipe", "def run_schedule",
        "kept, losses, on_their_way = {}, [], []",
        "kept, losses, on_their_way = {}, [], []; steps = gpipe(P, M, p)",
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]",
         "test_run[one at a time]"), "all forwards before the first backward"),
    pipeline("the gradient does not travel", "def run_schedule",
        "isend(x.grad, p - 1)",
        "isend(torch.zeros_like(x.grad), p - 1)",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]",
         "test_run[1F1B, odd]", "test_run[one at a time]"), "nothing but zeros"),
    pipeline("no spans", "def run_schedule",
        """        with group.compute(f"B{m}"):
            y.backward(dy)""",
        "        y.backward(dy)",
        "test_run"),
]

# ---- 15.8
interleaved = At("15.8", "stretch.interleaved")
STRETCH = [
    interleaved("no micro-batches are refused", "def interleaved",
        "if M % P:",
        "if False:",
        "test_interleaved_refuses"),
    interleaved("one forward too few ahead", "def interleaved", "(P - p - 1)", "(P - p - 2)", "test_interleaved"),
    interleaved("one forward too many ahead", "def interleaved", "(P - p - 1)", "(P - p)", "test_interleaved"),
    interleaved("not in groups", "def interleaved",
        "for start in range(0, M, P) for c in range(v) for m in range(P)",
        "for c in range(v) for start in range(0, M, P) for m in range(P)",
        "test_interleaved"),
    interleaved("as far ahead as the paper", "def interleaved",
        "(P - p - 1)",
        "2 * (P - p - 1)",
        "test_interleaved", "as far ahead as the paper's"),
    interleaved("chunks from the first in backward", "def interleaved", "m, v - 1 - c", "m, c", "test_interleaved"),
]

# ---- 15.9
collective_matmul = At("15.9", "stretch.collective_matmul")
COLLECTIVE = [
    collective_matmul("waited for before the product", "def gathering",
        "        with group.compute",
        """        coming and coming.wait()
        with group.compute""",
        "test_collective_matmul", "forward or backward goes one after the other"),
    collective_matmul("in the order of arrival", "def gathering",
        "ys[owner] = product(xs[owner])",
        "ys[s] = product(xs[owner])",
        "test_collective_matmul"),
    collective_matmul("the sum is not passed on", "def summing",
        "mine += coming.wait()",
        "coming.wait()",
        "test_collective_matmul", "its own addend alone: nobody else's was added"),
    collective_matmul("the addend waits for the sum", "def summing",
        '        with group.compute("product"):',
        """        coming and (coming.wait(), going.wait())
        with group.compute("product"):""",
        "test_collective_matmul", "forward or backward goes one after the other"),
    collective_matmul("another rank's positions", "def summing",
        "xs[(r - s - 1) % N]",
        "xs[(r - s) % N]",
        "test_collective_matmul"),
    collective_matmul("dW of its own positions", "class GatherLinear",
        "dy_BTO.flatten(0, 1).T @ x_BTI.flatten(0, 1), None",
        ("dy_BTO.chunk(ctx.group.size, 1)[ctx.group.rank].flatten(0, 1).T @ x_BTI.chunk(ctx.group.size, "
         "1)[ctx.group.rank].flatten(0, 1), None"),
        "test_collective_matmul[gather"),
    collective_matmul("backward by the library", "class GatherLinear",
        "dx_BtI = summing(dy_BTO, lambda dy: dy @ weight_OI, ctx.group)",
        "dx_BtI = ctx.group.reduce_scatter((dy_BTO @ weight_OI).transpose(0, 1).contiguous()).transpose(0, 1)",
        "test_collective_matmul[gather", verdicts=("forbidden call",)),
    collective_matmul("each sum waited for", "class LinearReduce",
        "on_their_way.append(group.all_reduce(into, async_op=True))",
        "group.all_reduce(into)",
        "test_linear_reduce", "one after the other: nothing is hidden"),
    collective_matmul("dy summed again", "class LinearReduce",
        "return dy @ weight_OI,",
        "return 2 * dy @ weight_OI,",
        "test_linear_reduce", "N times too much", may="test_linear_reduce"),
    collective_matmul("no sum", "class LinearReduce",
        "on_their_way.append(group.all_reduce(into, async_op=True))",
        "pass",
        "test_linear_reduce", "its own addend alone"),
]

MUTANTS = [*LINEARS, *ATTENTION, *SEQUENCE, *VOCAB, *OVERLAP, *PIPELINE, *STRETCH, *COLLECTIVE]
