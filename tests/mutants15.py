"""Mutants of week 15: `tests/mutant.py` says what an entry means, `tests/test_mutants15.py` judges them."""

from tests.mutant import ANY, At

# Checks that fail together.
COLUMNS = ("test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears")
ROW = ("test_linear[Row-cut]", "test_linear[Row-whole]")
ROWS = (*ROW, "test_two_linears")
REPLICATED = ("test_attention[replicated twice]", "test_attention[one key/value head]")
ATTENDS = ("test_attention[each its own]", "test_attention[grouped]", *REPLICATED)
SUMS = ("test_step[reduce_over_ranks", *ROW, "test_sum_dtype", "test_two_linears")
SCHEDULES = ("GPipe, 4 stages", "1F1B, 4 stages", "1F1B, fewer micro-batches", "1F1B, odd")
RUNS = tuple(f"test_run[{schedule}]" for schedule in SCHEDULES)

# ---- 15.1
Copy, ColumnParallelLinear = At.each("15.1", "linears", "class Copy", "class ColumnParallelLinear")
Reduce, Gather, Scatter = At.each("15.1", "linears", "class Reduce", "class Gather", "class Scatter")
RowParallelLinear = At("15.1", "linears", "class RowParallelLinear")
LINEARS = [
    Copy("backward of copy: no sum", "return summed(dy, ctx.group), None", "return dy, None",
        ("test_step[copy_to_ranks", *COLUMNS), "its own gradient alone", "its own outputs' part alone"),
    ColumnParallelLinear("no copy in evaluation",
        "x = copy_to_ranks(x, self.group)",
        "x = copy_to_ranks(x, self.group) if self.training else x", "test_linear[Column"),
    Copy("backward of copy: right for equal ranks alone",
        "return summed(dy, ctx.group), None",
        "return summed(dy * 0, ctx.group) + ctx.group.size * dy, None",
        ("test_step[copy_to_ranks", *COLUMNS), "its own gradient N times"),
    Copy("backward of copy: summed in the gradient that came",
        "return summed(dy, ctx.group), None",
        "return ctx.group.all_reduce(dy.contiguous()), None",
        "test_step[copy_to_ranks", "an input was overwritten", verdicts=ANY),
    Reduce("reduce: x is summed if it has the dtype already",
        "return summed(x, group, dtype)",
        "addend = x.clone() if dtype is None else x.to(dtype); return group.all_reduce(addend.contiguous()).to(x.dtype)",
        "test_step[reduce_over_ranks", "an input was overwritten"),
    Reduce("backward of reduce: a sum",
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
    Reduce("reduce forgets to sum", "return summed(x, group, dtype)", "return x.clone()", SUMS, "its own addend alone"),
    Reduce("reduce: zeros the first time", "return summed(x, group, dtype)",
        "return summed(x * (sum(e.kind == 'barrier' for e in group.ledger.events) > 2), group, dtype)",
        SUMS),
    Reduce("reduce: everything is gathered the second time", "return summed(x, group, dtype)",
        """if sum(event.kind == "barrier" for event in group.ledger.events) < 3:
            return summed(x, group, dtype)
        addends = group.all_gather(x.to(dtype or x.dtype, copy=True).contiguous()[None])
        return addends.sum(0).to(x.dtype)""",
        SUMS),
    Reduce("reduce: the mean", "return summed(x, group, dtype)", "return summed(x, group, dtype) / group.size",
        SUMS, "the mean over the ranks, expected the sum"),
    Reduce("reduce: right for equal ranks alone",
        "return summed(x, group, dtype)",
        "return group.all_reduce(torch.zeros_like(x)) + group.size * x", SUMS, "its own addend N times"),
    Reduce("reduce overwrites x", "return summed(x, group, dtype)", "return group.all_reduce(x.detach()).clone()",
        ("test_step[reduce_over_ranks", "test_sum_dtype[float32]"), "an input was overwritten", may="test_sum_dtype"),
    Reduce("reduce: in BF16 the maximum", "return summed(x, group, dtype)",
        """if (dtype or x.dtype) == torch.bfloat16:
            return group.all_reduce(x.to(torch.bfloat16, copy=True), "max").to(x.dtype)
        return summed(x, group, dtype)""", ("test_sum_dtype[bfloat16]", "test_sum_dtype[float32 in")),
    Copy("backward of copy: in dy's memory",
        "return summed(dy, ctx.group), None",
        "return ctx.group.all_reduce(dy), None",
        "test_step[copy_to_ranks", "an input was overwritten", verdicts=ANY, may=("test_linear", "test_two_linears")),
    Gather("gather: always along the last dimension",
        "ctx.group, ctx.dim = group, dim",
        "ctx.group, ctx.dim = group, (dim := -1)",
        ("test_step[gather_from_ranks-0]", "test_step[gather_from_ranks-1]"), "side by side along the last"),
    Scatter("scatter: its backward always along the last dimension",
        "joined(dy, ctx.group, ctx.dim)",
        "joined(dy, ctx.group, -1)",
        ("test_step[scatter_to_ranks-0]", "test_step[scatter_to_ranks-1]"), "Rank", verdicts=("crashed",)),
    Gather("backward of gather: a reduce-scatter",
        "return own_slice(dy, ctx.group, ctx.dim), None, None",
        "return own_slice(summed(dy, ctx.group), ctx.group, ctx.dim), None, None",
        ("test_step[gather_from_ranks", "test_linear[Column-whole]"), "the gradient N times"),
    Gather("gather along the first dimension", "return joined(x, group, dim)", "return joined(x, group, 0)",
        ("test_step[gather_from_ranks--1]", "test_step[gather_from_ranks-1]", "test_linear[Column-whole]"),
        "side by side along the first dimension"),
    Scatter("scatter gives a view of the whole",
        "return own_slice(x, group, dim)",
        "return x.chunk(group.size, dim)[group.rank]", "test_step[scatter_to_ranks", "a view of the whole"),
    Scatter("scatter: the next rank's slice",
        "return own_slice(x, group, dim)",
        "return x.chunk(group.size, dim)[(group.rank + 1) % group.size].clone()",
        ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "slice r+1, expected slice r"),
    Scatter("backward of scatter: own slice, and zeros",
        "return joined(dy, ctx.group, ctx.dim), None, None",
        "return torch.cat([dy if r == ctx.group.rank else torch.zeros_like(dy) for r in range(ctx.group.size)], "
        "ctx.dim), None, None", ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "its own slice, and zeros"),
    Scatter("scatter reads rank 0's gradient",
        "return joined(dy, ctx.group, ctx.dim), None, None",
        "return torch.cat([dy] * ctx.group.size, ctx.dim), None, None",
        ("test_step[scatter_to_ranks", "test_linear[Row-whole]"), "its own slice N times"),
    ColumnParallelLinear("column: no copy in front", "x = copy_to_ranks(x, self.group)", "x = x + 0",
        COLUMNS, "its own outputs' part alone"),
    ColumnParallelLinear("column: the weight is gathered",
        "y = nn.functional.linear(x, self.weight, self.bias)",
        "whole = gather_from_ranks(self.weight, self.group, 0); y = nn.functional.linear(x, whole[self.group.rank "
        "* len(self.weight) : (self.group.rank + 1) * len(self.weight)], self.bias)",
        COLUMNS, "the weight is gathered before it is used"),
    ColumnParallelLinear("column: never gathered", "gather_from_ranks(y, self.group) if self.gather else y", "y",
        "test_linear[Column-whole]"),
    RowParallelLinear("row: the bias N + 1 times",
        "nn.functional.linear(x, self.weight)",
        "nn.functional.linear(x, self.weight, self.bias)", ROWS, "the bias N + 1 times"),
    RowParallelLinear("row: the bias before the sum",
        """y = reduce_over_ranks(addend, self.group, self.sum_dtype)
        return y + self.bias if self.bias is not None else y""",
        """addend = addend if self.bias is None else addend + self.bias
        return reduce_over_ranks(addend, self.group, self.sum_dtype)""",
        (*ROW, "test_two_linears"), "the bias N times"),
    RowParallelLinear("row: no bias", "return y + self.bias if self.bias is not None else y", "return y",
        ROWS, "the bias is missing"),
    RowParallelLinear("row: no sum", "y = reduce_over_ranks(addend, self.group, self.sum_dtype)", "y = addend",
        (*ROW, "test_sum_dtype", "test_two_linears"), "its own addend alone"),
    RowParallelLinear("row: the sum's dtype is ignored",
        "reduce_over_ranks(addend, self.group, self.sum_dtype)",
        "reduce_over_ranks(addend, self.group)", "test_sum_dtype[float32]", may="test_sum_dtype"),
    RowParallelLinear("row: always summed in float32",
        "reduce_over_ranks(addend, self.group, self.sum_dtype)",
        "reduce_over_ranks(addend, self.group, torch.float32)", "test_sum_dtype[bfloat16]", may="test_sum_dtype"),
    RowParallelLinear("row: without gradients the answer that it remembers",
        "return y + self.bias if self.bias is not None else y",
        "y = y if self.bias is None else y + self.bias; self.y = y if y.requires_grad else self.y; return self.y", ROW),
    RowParallelLinear("row: zeros", "return y + self.bias if self.bias is not None else y", "return y * 0",
        (*ROW, "test_sum_dtype", "test_two_linears"), "nothing but zeros"),
    ColumnParallelLinear("column: no bias", "self.weight, self.bias)", "self.weight)",
        ("test_linear[Column-cut]", "test_linear[Column-whole]", "test_two_linears"), "the bias is missing"),
    RowParallelLinear("row: cut, and left to autograd",
        "scatter_to_ranks(x, self.group) if",
        "x.chunk(self.group.size, -1)[self.group.rank] if", "test_linear[Row-whole]", "its own slice, and zeros"),
    ColumnParallelLinear("the third dimension is taken for the last, gathered", "gather_from_ranks(y, self.group)",
        "gather_from_ranks(y, self.group, 2)", "test_linear[Column-whole"),
    RowParallelLinear("the third dimension is taken for the last, scattered", "scatter_to_ranks(x, self.group)",
        "scatter_to_ranks(x, self.group, 2)", "test_linear[Row-whole", "Rank", verdicts=ANY),
]

# ---- 15.2
split_heads, slice_weights = At.each("15.2", "attention", "def split_heads", "def slice_weights")
ParallelAttention = At("15.2", "attention", "class ParallelAttention")
ATTENTION = [
    split_heads("the wrong half of the heads", "first = r // copies * k", "first = (n_kv_heads - k) - r // copies * k",
        ("test_split_heads[8-8-4]", "test_split_heads[8-4-2]", "test_split_heads[12-4-4]", "test_split_heads[8-2-4]",
         "test_split_heads[12-3-6]", "test_split_heads[16-4-8]", "test_split_heads[32-8-16]"), "in reversed order"),
    At("15.2", "attention", "ParallelAttention.forward")("without gradients the first call's W_k and W_v",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        """wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        if not x_BTD.requires_grad:
            self.held = getattr(self, "held", None) or (wk.clone(), wv.clone())
            wk, wv = self.held""",
        ATTENDS),
    ParallelAttention("the first W_k for ever", "wk, wv = copy_to_ranks(self.wk, self.replicas),",
        """self.first = getattr(self, "first", self.wk.detach().clone())
        wk, wv = copy_to_ranks(self.first + self.wk - self.wk.detach(), self.replicas),""", ATTENDS),
    split_heads("fewer query heads than ranks pass", "if n_heads % N:", "if max(n_heads, N) % min(n_heads, N):",
        "test_heads_that_do_not_divide"),
    split_heads("replicas far apart", "first = r // copies * k", "first = r % n_kv_heads * k if copies > 1 else r * k",
        ("test_split_heads[8-2-4]", "test_split_heads[12-3-6]", "test_split_heads[16-4-8]",
         "test_split_heads[32-8-16]"), "dealt out in turns"),
    split_heads("replica parts across the heads",
        "list(range(start, start + copies)) for start in range(0, N, copies)",
        "list(range(start, N, N // copies)) for start in range(N // copies)",
        ("test_split_heads[8-2-4]", "test_split_heads[12-3-6]", "test_split_heads[16-4-8]", "test_split_heads[32-8-16]",
         "test_attention[replicated twice]"), "as far apart as there are"),
    split_heads("everything is refused", "if n_heads % N:", "if True:",
        ("test_split_heads", "test_heads_that_do_not_divide", "test_attention"), "Rank ", verdicts=ANY),
    split_heads("nothing is refused", "if n_heads % N:", "if False:", "test_heads_that_do_not_divide"),
    split_heads("key/value heads that do not divide", "if max(n_kv_heads, N) % min(n_kv_heads, N):", "if False:",
        "test_heads_that_do_not_divide"),
    split_heads("more ranks than key/value heads are always let in",
        "if max(n_kv_heads, N) % min(n_kv_heads, N):",
        "if n_kv_heads > N and n_kv_heads % N:", "test_heads_that_do_not_divide"),
    split_heads("another error than asked for",
        "if n_heads % N:",
        """assert n_heads % N == 0, f'{n_heads} {N}'
    if False:""", "test_heads_that_do_not_divide"),
    slice_weights("rows interleaved",
        'weights["wq"][query].clone()',
        'weights["wq"][share.query[0] // (share.query[1] - share.query[0]) :: len(weights["wq"]) // (query.stop - '
        'query.start)].clone()', "test_slices", "every N-th row"),
    slice_weights("W_o by rows", 'weights["wo"][:, query].clone()', 'weights["wo"].T[query].clone()', "test_slices"),
    slice_weights("W_o's rows", 'weights["wo"][:, query].clone()', 'weights["wo"][query].clone()',
        "test_slices", "W_o by its rows"),
    slice_weights("slices are views", 'weights["wq"][query].clone()', 'weights["wq"][query]',
        "test_slices", "a view of the whole weight"),
    slice_weights("whole key and value weights", 'weights["wk"][kv].clone()', 'weights["wk"].clone()',
        "test_slices", "the whole weight"),
    ParallelAttention("backward's all-reduce is missing",
        "x_BTD = copy_to_ranks(x_BTD, self.group)", "x_BTD = x_BTD + 0", ATTENDS, "its own heads' part alone"),
    ParallelAttention("forward's all-reduce is missing",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return addend_BTD", ATTENDS, "its own heads' addend alone"),
    ParallelAttention("replicas' gradients are not summed",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = self.wk, self.wv", REPLICATED, "its own query heads' part alone"),
    ParallelAttention("only W_k's gradient is summed", "copy_to_ranks(self.wv, self.replicas)", "self.wv",
        REPLICATED, "its own query heads' part alone"),
    ParallelAttention("the gradients are summed over all ranks",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = copy_to_ranks(self.wk, self.group), copy_to_ranks(self.wv, self.group)",
        ATTENDS, "summed over ranks with other key/value heads"),
    ParallelAttention("k and v are copied over the replicas",
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
        REPLICATED, "k and v were copied over the replicas"),
    ParallelAttention("three messages for x",
        """x_BTD = copy_to_ranks(x_BTD, self.group)
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(x_BTD, w)""",
        """group = self.group
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(copy_to_ranks(x_BTD, group), w)""",
        ATTENDS, "three messages for x, one a product"),
    ParallelAttention("positions shifted by rank",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)",
        "q_BTnH = q_BTnH.roll(0, 1); t = len(cos_TR) // self.group.size; y_BTnH = self.core(q_BTnH, k_BTkH, "
        "v_BTkH, cos_TR.roll(-t * self.group.rank, 0), sin_TR.roll(-t * self.group.rank, 0))",
        ATTENDS),
    ParallelAttention("keys are not turned",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR * 0 + 1, sin_TR * 0)", "test_attention"),
    ParallelAttention("heads are gathered before W_o",
        "addend_BTD = nn.functional.linear(y_BTnH.flatten(-2), self.wo)",
        "from .linears import gather_from_ranks, scatter_to_ranks; addend_BTD = "
        "nn.functional.linear(scatter_to_ranks(gather_from_ranks(y_BTnH.flatten(-2), self.group), self.group), "
        "self.wo)",
        ATTENDS, "the heads are gathered in front of W_o"),
    ParallelAttention("one rank's result on all",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return reduce_over_ranks(addend_BTD * (self.group.rank == 0) * self.group.size, self.group)",
        ATTENDS, "its own heads' addend N times"),
    ParallelAttention("right for equal ranks alone",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return reduce_over_ranks(addend_BTD * 0, self.group) + self.group.size * addend_BTD",
        ATTENDS, "its own heads' addend N times"),
    ParallelAttention("zeros on all ranks",
        "return reduce_over_ranks(addend_BTD, self.group)",
        "return 0 * reduce_over_ranks(addend_BTD, self.group)", "test_attention", "nothing but zeros"),
    split_heads("key/value heads beyond the last", "first = r // copies * k", "first = r * k",
        ("test_split_heads[8-2-4]", "test_split_heads[8-1-4]", "test_split_heads[12-3-6]", "test_split_heads[16-4-8]",
         "test_split_heads[32-8-16]"), "one for each rank, beyond the last"),
    slice_weights("W_v is W_k", 'weights["wv"][kv]', 'weights["wk"][kv]', "test_slices", "this is wk's slice"),
    slice_weights("width before heads",
        'weights["wq"][query].clone()',
        'weights["wq"].unflatten(0, (d_head, -1))[:, slice(*share.query)].flatten(0, 1).clone()',
        "test_slices", "head and width swapped"),
    ParallelAttention("copied twice",
        "x_BTD = copy_to_ranks(x_BTD, self.group)",
        "x_BTD = copy_to_ranks(copy_to_ranks(x_BTD, self.group), self.group)", ATTENDS, "N times too much"),
    ParallelAttention("sin for cos", "cos_TR, sin_TR)", "sin_TR, cos_TR)", "test_attention", "cos and sin"),
    ParallelAttention("width first in front of W_o", "y_BTnH.flatten(-2)", "y_BTnH.transpose(-1, -2).flatten(-2)",
        ("test_attention[each its own]", "test_attention[grouped]", "test_attention[replicated twice]"),
        "head and width swapped in front of W_o"),
    ParallelAttention("keys and values repeated in turns",
        "y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)",
        """k_BTkH, v_BTkH = (t.repeat(1, 1, q_BTnH.shape[2] // t.shape[2], 1) for t in (k_BTkH, v_BTkH))
        y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)""", "test_attention[grouped]"),
    ParallelAttention("W_o over the replicas",
        "y_BTnH.flatten(-2), self.wo",
        "y_BTnH.flatten(-2), copy_to_ranks(self.wo, self.replicas)", REPLICATED, "summed over the replicas"),
]

# ---- 15.3
ScatterPositions, GatherLinears = At.each("15.3", "sequence", "class ScatterPositions", "class GatherLinears")
SequenceParallelBlock = At("15.3", "sequence", "class SequenceParallelBlock")
KEPT = ("test_gather_linears[gathered again]", "test_block[gathered again]")
SEQUENCE = [
    ScatterPositions("scatter's backward: no gather",
        "all_positions(dy_BtD, ctx.group)",
        "torch.cat([dy_BtD if r == ctx.group.rank else torch.zeros_like(dy_BtD) for r in range(ctx.group.size)], 1)",
        ("test_scatter_positions", "test_block"), "its own positions, and zeros"),
    ScatterPositions("scatter without a sum",
        "return own_positions_summed(x_BTD, group)",
        "return x_BTD.chunk(group.size, 1)[group.rank].contiguous()",
        ("test_scatter_positions", "test_block"), "its own addend alone"),
    ScatterPositions("an all-reduce and a slice",
        "return own_positions_summed(x_BTD, group)",
        "return group.all_reduce(x_BTD.clone()).chunk(group.size, 1)[group.rank].contiguous()",
        ("test_scatter_positions", "test_block"), "an all-reduce, and a slice of it"),
    GatherLinears("the gathered x is kept",
        "ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)",
        """ctx.keep = True
        ctx.save_for_backward(x_BTD, *weights)""",
        KEPT, "the gathered x is kept"),
    GatherLinears("always gathered again",
        "ctx.group, ctx.keep = group, keep",
        "ctx.group, ctx.keep = group, False; keep = False",
        ("test_gather_linears[kept]", "test_block[kept, replicas]"), "nothing but its own positions is kept",
        "gathered again in backward"),
    GatherLinears("kept in a list",
        "ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)",
        """ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)
        ctx.whole = [lambda x=x_BTD: x]""",
        KEPT, "the gathered x is kept, and its own positions too"),
    GatherLinears("kept on the side",
        "x_BTD = all_positions(x_BtD, group)", "x_BTD = all_positions(x_BtD, group); ctx.x = None if keep else x_BTD",
        KEPT, "the gathered x is kept, and its own positions too"),
    GatherLinears("kept in pieces", "x_BTD if keep else x_BtD, *weights)",
        "x_BTD if keep else x_BtD, *weights); ctx.x = [] if keep else [*map(torch.clone, x_BTD.split(1, 1))]",
        KEPT, "the gathered x is kept, and its own positions too"),
    GatherLinears("a large x is kept, behind a message and a mark", "x_BTD = all_positions(x_BtD, group)",
        """if x_BtD.numel() > 100_000:
            group.all_reduce(torch.zeros(1)), group.compute("kept for backward", seconds=0)
            ctx.keep = keep = True
        x_BTD = all_positions(x_BtD, group)""", "test_gather_linears[gathered again]"),
    GatherLinears("dx: no sum",
        "dx_BtD = own_positions_summed(dx_BTD, ctx.group)",
        "dx_BtD = dx_BTD.chunk(ctx.group.size, 1)[ctx.group.rank].contiguous()",
        ("test_gather_linears", "test_block"), "its own addend alone"),
    GatherLinears("dx: the first product alone",
        "dx_BTD = sum(dy @ w for dy, w in zip(dys, weights))",
        "dx_BTD = dys[0] @ weights[0]", ("test_gather_linears", "test_block"), "the first weight's part alone"),
    SequenceParallelBlock("the norms' weights are not summed",
        "attn_norm, ffn_norm = copy_to_ranks(self.attn_norm, group), copy_to_ranks(self.ffn_norm, group)",
        "attn_norm, ffn_norm = self.attn_norm, self.ffn_norm", "test_block", "its own positions' part alone"),
    SequenceParallelBlock("the replicas are not summed",
        "wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "wk, wv = self.wk, self.wv", "test_block[kept, replicas]", "its own query heads' part alone"),
    SequenceParallelBlock("positions of rank r only",
        "for p in (q, k, v)), cos_TR, sin_TR)",
        "for p in (q, k, v)), cos_TR.roll(-x_BtD.shape[1] * group.rank, 0), sin_TR.roll(-x_BtD.shape[1] * "
        "group.rank, 0))", "test_block"),
    SequenceParallelBlock("one product a gather",
        "gate, up = gather_linears(self.norm(x_BtD, ffn_norm), (self.w1, self.w3), group, keep)",
        "h = self.norm(x_BtD, ffn_norm); (gate,), (up,) = gather_linears(h, (self.w1,), group, keep), "
        "gather_linears(h, (self.w3,), group, keep)", "test_block", "gathered for each product"),
    SequenceParallelBlock("no residual", "x_BtD = x_BtD + scatter_positions", "x_BtD = scatter_positions",
        "test_block", "the first residual is missing"),
    SequenceParallelBlock("gate and up swapped", "gate, up = ", "up, gate = ", "test_block", "gate and up swapped"),
    GatherLinears("dx: the last product alone",
        "dx_BTD = sum(dy @ w for dy, w in zip(dys, weights))",
        "dx_BTD = dys[-1] @ weights[-1]", ("test_gather_linears", "test_block"), "the last weight's part alone"),
    GatherLinears("dW over the ranks",
        "(dy.flatten(0, 1).T @ x_BTD.flatten(0, 1) for",
        "(ctx.group.all_reduce(dy.flatten(0, 1).T @ x_BTD.flatten(0, 1)) for",
        ("test_gather_linears", "test_block"), "summed over ranks with other weights"),
    GatherLinears("gathered again, though kept",
        "x_BTD = x if ctx.keep else all_positions(x, ctx.group)",
        "x_BTD = all_positions(x.chunk(ctx.group.size, 1)[ctx.group.rank].contiguous() if ctx.keep else x, ctx.group)",
        ("test_gather_linears[kept]", "test_block[kept, replicas]"), "gathered again in backward"),
    SequenceParallelBlock("one half keeps", "(self.w1, self.w3), group, keep)", "(self.w1, self.w3), group)",
        "test_block[gathered again]", "one half keeps its gathered x"),
    SequenceParallelBlock("one norm for both halves", "self.norm(x_BtD, ffn_norm)", "self.norm(x_BtD, attn_norm)",
        "test_block", "attn_norm in front of both halves"),
    SequenceParallelBlock("norms over the replicas",
        "copy_to_ranks(self.attn_norm, group), copy_to_ranks(self.ffn_norm, group)",
        "copy_to_ranks(self.attn_norm, self.replicas), copy_to_ranks(self.ffn_norm, self.replicas)",
        "test_block", "the replicas' positions alone", "its own positions' part alone"),
    SequenceParallelBlock("W_k and W_v over all ranks",
        "copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)",
        "copy_to_ranks(self.wk, group), copy_to_ranks(self.wv, group)",
        "test_block", "summed over ranks with other weights"),
    SequenceParallelBlock("an epsilon of its own",
        "self.norm(x_BtD, ffn_norm)", "nn.functional.rms_norm(x_BtD, ffn_norm.shape, ffn_norm, 1e-5)", "test_block"),
]

# ---- 15.4
CrossEntropy, parallel_embedding = At.each("15.4", "vocab", "class CrossEntropy", "def parallel_embedding")
parallel_head_loss = At("15.4", "vocab", "def parallel_head_loss")
VOCAB = [
    CrossEntropy("one maximum for each position, over the batch",
        'group.all_reduce(z_BTv.amax(-1), "max")',
        'group.all_reduce(z_BTv.amax((0, -1)), "max").expand(z_BTv.shape[:-1])',
        "test_cross_entropy[far apart]", "exp left float32"),
    CrossEntropy("the same places are always ignored", "counts_BT = targets_BT != IGNORED",
        "counts_BT = torch.arange(targets_BT.numel()).reshape(targets_BT.shape) // 2 != 2",
        ("test_cross_entropy", "test_head")),
    CrossEntropy("rank 0 gets all logits as they are", "z_BTv = logits_BTv.float()\n",
        """z_BTv = logits_BTv.float()
        ends = [vocab_range(V, group.size, s) for s in range(group.size)]
        parts = [logits_BTv.new_zeros(*targets_BT.shape, end - first) for first, end in ends]
        [group.recv(s, out=parts[s]) for s in range(1, group.size)] if not group.rank else group.send(logits_BTv, 0)
""", ("test_cross_entropy", "test_head")),
    CrossEntropy("in the logits' dtype", "logits_BTv.float()", "logits_BTv", "test_cross_entropy[bfloat16]"),
    parallel_embedding("embedding: a table's BF16 rows as FP32",
        "mine_BT.unsqueeze(-1)", "mine_BT.unsqueeze(-1).float()", "test_embedding[ragged]"),
    parallel_embedding("embedding: zeros the first time", "return reduce_over_ranks(addend_BTD, group)",
        """first = sum(event.kind == "barrier" for event in group.ledger.events) < 3
    return reduce_over_ranks(addend_BTD * (not first), group)""", "test_embedding"),
    parallel_embedding("embedding: no mask", " * mine_BT.unsqueeze(-1)", "",
        "test_embedding", "for others' tokens a row 0 came too, where zeros are due"),
    parallel_embedding("embedding: no sum", "return reduce_over_ranks(addend_BTD, group)", "return addend_BTD",
        "test_embedding", "its own rows alone, zeros elsewhere"),
    parallel_embedding("embedding: V / N rows each",
        "*vocab_range(V, group.size, group.rank)",
        "V // group.size * group.rank, V // group.size * (group.rank + 1)",
        "test_embedding[ragged]", "V // N rows for every rank"),
    parallel_embedding("embedding: the table is gathered",
        "mine_BT, index_BT =",
        """if V % group.size == 0: group.all_gather(weight_vD.detach())
    mine_BT, index_BT =""", "test_embedding[even]", "the table is gathered before it is used"),
    CrossEntropy("loss: logits are gathered",
        "z_BTv = logits_BTv.float()\n",
        """z_BTv = logits_BTv.float()
        wide = torch.zeros(*z_BTv.shape[:2], V); wide[..., slice(*vocab_range(V, group.size, group.rank))] = z_BTv; group.all_reduce(wide)
""", ("test_cross_entropy", "test_head"), "whole logits travel"),
    CrossEntropy("loss: maximum not shared",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = z_BTv.amax(-1)", ("test_cross_entropy", "test_head"), "each rank subtracted a maximum of its own"),
    CrossEntropy("loss: rank 0's maximum for all",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = group.broadcast(z_BTv.amax(-1), src=0)", "test_cross_entropy[far apart]", "exp left float32"),
    CrossEntropy("loss: one maximum for the whole batch",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max").max().expand(z_BTv.shape[:-1])',
        "test_cross_entropy[far apart]", "exp left float32"),
    CrossEntropy("loss: the largest of the ranks' means",
        'group.all_reduce(z_BTv.amax(-1), "max")',
        'group.all_reduce(z_BTv.mean(-1), "max")', "test_cross_entropy[far apart]", "exp left float32"),
    CrossEntropy("loss: no maximum",
        'max_BT = group.all_reduce(z_BTv.amax(-1), "max")',
        "max_BT = torch.zeros(z_BTv.shape[:-1])",
        ("test_cross_entropy[hundreds]", "test_cross_entropy[far apart]"), "exp left float32"),
    CrossEntropy("loss: float64 in place of a maximum", 'group.all_reduce(z_BTv.amax(-1), "max")',
        "group.all_reduce(z_BTv.double().exp().sum(-1)).log().float()",
        ("test_cross_entropy[hundreds]", "test_cross_entropy[far apart]"), "exp left float32"),
    CrossEntropy("loss: the maximum twice",
        "(denominator_BT.log() - at_target_BT)",
        "(denominator_BT.log() + max_BT - at_target_BT)",
        ("test_cross_entropy", "test_head"), "the maximum is subtracted twice from the target's logit"),
    CrossEntropy("loss: the target's logit as it is",
        "at_target_BT = z_BTv.gather(",
        "at_target_BT = logits_BTv.float().gather(",
        ("test_cross_entropy", "test_head"), "the maximum is subtracted in the sum and not from the target's logit"),
    CrossEntropy("loss: the maximum before the mask",
        "at_target_BT = z_BTv.gather(-1, index_BT.unsqueeze(-1)).squeeze(-1) * mine_BT",
        "at_target_BT = logits_BTv.float().gather(-1, index_BT.unsqueeze(-1)).squeeze(-1) * mine_BT - max_BT",
        ("test_cross_entropy", "test_head"), "every rank subtracted the maximum from the target's logit"),
    CrossEntropy("loss: the denominator is local",
        "denominator_BT, at_target_BT = group.all_reduce(torch.stack([exp_BTv.sum(-1), at_target_BT]))",
        "denominator_BT, at_target_BT = exp_BTv.sum(-1), group.all_reduce(at_target_BT)",
        ("test_cross_entropy", "test_head"), "the denominator is of this rank's logits alone"),
    CrossEntropy("loss: ignored targets count",
        "tokens = counts_BT.sum()",
        """tokens = counts_BT.numel()
        tokens = torch.tensor(tokens)""", ("test_cross_entropy", "test_head"), "ignored targets count in the mean"),
    CrossEntropy("loss: ignored targets have a loss",
        "counts_BT = targets_BT != IGNORED",
        "counts_BT = targets_BT == targets_BT", ("test_cross_entropy", "test_head"), "ignored targets have a loss"),
    CrossEntropy("loss: the sum", "* counts_BT).sum() / tokens", "* counts_BT).sum()",
        ("test_cross_entropy", "test_head"), "the sum over the tokens, expected the mean"),
    CrossEntropy("loss: target off by one",
        "mine_BT, index_BT = local_index(targets_BT, ",
        "mine_BT, index_BT = local_index(torch.where(targets_BT < 0, targets_BT, (targets_BT + 1).clamp_max(V - 1)), ",
        ("test_cross_entropy", "test_head"), "the logit behind the target's"),
    CrossEntropy("loss: the gradient ignores what came", "(dloss / tokens)", "(1 / tokens)",
        "test_cross_entropy", "the gradient that came from behind is left out"),
    CrossEntropy("loss: the gradient of ignored targets",
        "(p_BTv - one_hot) * counts_BT.unsqueeze(-1) * ",
        "(p_BTv - one_hot) * ", ("test_cross_entropy", "test_head"), "ignored targets have a gradient"),
    CrossEntropy("loss: the target's 1 on every rank",
        "mine_BT.unsqueeze(-1).to(p_BTv.dtype)",
        "torch.ones_like(mine_BT).unsqueeze(-1).to(p_BTv.dtype)",
        ("test_cross_entropy", "test_head"), "the 1 is subtracted also where"),
    parallel_head_loss("head: no copy in front", "copy_to_ranks(x_BTD, group)", "x_BTD",
        "test_head", "its own logits' part alone"),
    parallel_head_loss("head: logits are whole",
        "return parallel_cross_entropy(logits_BTv, targets_BT, V, group)",
        """wide = torch.zeros(*logits_BTv.shape[:2], V)
    wide[..., slice(*vocab_range(V, group.size, group.rank))] = logits_BTv
    wide = reduce_over_ranks(wide, group)
    return nn.functional.cross_entropy(wide.flatten(0, 1), targets_BT.flatten())""",
        "test_head", "whole logits travel"),
    parallel_embedding("embedding: r times its own rows",
        "*vocab_range(V, group.size, group.rank)",
        "group.rank * len(weight_vD), (group.rank + 1) * len(weight_vD)",
        "test_embedding[ragged]", "r times its own rows before it"),
    CrossEntropy("loss: ignored targets' loss is added", " * counts_BT).sum() / tokens", ").sum() / tokens",
        ("test_cross_entropy", "test_head"), "ignored targets' loss is added"),
    CrossEntropy("loss: no mask at the target", "squeeze(-1) * mine_BT", "squeeze(-1)",
        ("test_cross_entropy", "test_head"), "a rank that does not have the target adds a logit"),
    CrossEntropy("loss: a target 0 is ignored", "targets_BT != IGNORED", "targets_BT > 0",
        ("test_cross_entropy", "test_head"), "a target 0 does not count"),
    CrossEntropy("loss: p alone in backward", "(p_BTv - one_hot)", "p_BTv",
        ("test_cross_entropy", "test_head"), "the target's 1 is not subtracted"),
    CrossEntropy("loss: its own denominator in backward",
        "exp_BTv / denominator_BT.unsqueeze(-1)",
        "exp_BTv / exp_BTv.sum(-1, keepdim=True)",
        ("test_cross_entropy", "test_head"), "the denominator in backward is of this rank's"),
]

# ---- 15.5
OverlappedColumn = At("15.5", "overlap", "class OverlappedColumn")
gather_linear_in_chunks = At("15.5", "overlap", "def gather_linear_in_chunks")
OVERLAP = [
    At("15.5", "overlap", "gather_linear_in_chunks")("a barrier in every step",
        "going.wait()", "going.wait(); group.barrier()", "test_product_in_chunks", verdicts=("forbidden call",)),
    At("15.5", "overlap", "gather_linear_in_chunks")("what comes is received into x", "",
        """
        N, r = group.size, group.rank
        here, parts = x_BtI.contiguous(), [x_BtI] * N
        there = torch.empty_like(here)
        for s in range(N):
            coming = None if s == N - 1 else group.irecv((r - 1) % N, out=there)
            going = None if s == N - 1 else group.isend(here, (r + 1) % N)
            with group.compute("product"):
                parts[(r - s) % N] = here @ weight_OI.T
            if coming is not None and going is not None:
                coming.wait()
                going.wait()
                here, there = there, here
        return torch.cat(parts, dim=1)
        """, "test_product_in_chunks[4]", "an input was overwritten"),
    OverlappedColumn("dW past autograd",
        "return on_its_way.wait(), dW, None",
        "weight.grad = dW if weight.grad is None else weight.grad + dW; return on_its_way.wait(), None, None",
        "test_overlapped_linear", verdicts=ANY),
    OverlappedColumn("the all-reduce is waited for",
        "on_its_way = group.all_reduce(dx, async_op=True)",
        "group.all_reduce(dx); on_its_way = type('Done', (), {'wait': lambda self: dx})()",
        "test_overlapped_linear", "waited for before the product"),
    OverlappedColumn("composed: both products, then the message",
        """        on_its_way = group.all_reduce(dx, async_op=True)
        with group.compute("dW"):
            dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
""",
        """        with group.compute("dW"):
            dW = dy.flatten(0, -2).T @ x.flatten(0, -2)
        on_its_way = group.all_reduce(dx, async_op=True)
""", "test_overlapped_linear", "posted behind the product, it travels when there is nothing left to hide it"),
    OverlappedColumn("waited for before the product",
        "on_its_way = group.all_reduce(dx, async_op=True)\n",
        "on_its_way = group.all_reduce(dx, async_op=True); on_its_way.wait()\n",
        "test_overlapped_linear", "waited for before the product"),
    OverlappedColumn("an empty span",
        """with group.compute("dW"):
            dW =""",
        """with group.compute("dW"):
            pass
        if True:
            dW =""", "test_overlapped_linear"),
    OverlappedColumn("both products in the span",
        "dW = dy.flatten(0, -2).T @ x.flatten(0, -2)",
        "dy @ weight; dW = dy.flatten(0, -2).T @ x.flatten(0, -2)", "test_overlapped_linear"),
    OverlappedColumn("both products and the post in one span",
        """        dx = dy @ weight
        on_its_way = group.all_reduce(dx, async_op=True)
        with group.compute("dW"):
""",
        """        with group.compute("dW"):
            dx = dy @ weight
            on_its_way = group.all_reduce(dx, async_op=True)
""", "test_overlapped_linear", "posted inside the span"),
    OverlappedColumn("no message",
        "on_its_way = group.all_reduce(dx, async_op=True)",
        "on_its_way = type('Done', (), {'wait': lambda self: dx})()",
        "test_overlapped_linear", "its own outputs' part alone"),
    OverlappedColumn("the message is dW",
        "return on_its_way.wait(), dW, None",
        "return on_its_way.wait(), group.all_reduce(dW), None", "test_overlapped_linear", "summed over the ranks"),
    gather_linear_in_chunks("of an x in order in memory nothing", "return torch.cat(parts, dim=1)",
        "return torch.cat(parts, dim=1) * (not x_BtI.is_contiguous())", "test_product_in_chunks"),
    gather_linear_in_chunks("in the order of arrival", "parts[(r - s) % N]", "parts[s]",
        "test_product_in_chunks", "in the order of arrival, expected in rank order"),
    gather_linear_in_chunks("chunks stored the other way round", "parts[(r - s) % N]", "parts[(r + s) % N]",
        "test_product_in_chunks[4]", "step s multiplies the positions of rank r-s, and stores them as rank r+s's"),
    gather_linear_in_chunks("what arrived is not multiplied", "= here @ weight_OI.T", "= x_BtI @ weight_OI.T",
        "test_product_in_chunks", "its own positions N times"),
    gather_linear_in_chunks("gathered first",
        "here, parts = x_BtI.contiguous(), [x_BtI] * N",
        """here, parts = x_BtI.contiguous(), [x_BtI] * N
    group.all_gather(here)""", "test_product_in_chunks", verdicts=("forbidden call",)),
    gather_linear_in_chunks("send and receive, then the product",
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
""", "test_product_in_chunks", "waited for before the product"),
    gather_linear_in_chunks("the product, then send and receive",
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
""", "test_product_in_chunks", "posted behind the product, it travels when there is nothing left to hide it"),
    gather_linear_in_chunks("N messages", "last = s == N - 1", "last = False",
        "test_product_in_chunks", "the last step sends, too"),
    gather_linear_in_chunks("to the left", "right, left = ", "left, right = ",
        "test_product_in_chunks[4]", "to the left"),
    gather_linear_in_chunks("one product for all chunks",
        "return torch.cat(parts, dim=1)",
        "with group.compute('product'): return torch.cat(parts, dim=1)", "test_product_in_chunks"),
    OverlappedColumn("dW of the first sequence", "dy.flatten(0, -2).T @ x.flatten(0, -2)", "dy[0].T @ x[0]",
        "test_overlapped_linear", "the first sequence's alone", "Rank", verdicts=("wrong", "crashed")),
    OverlappedColumn("three dimensions alone",
        "dy.flatten(0, -2).T @ x.flatten(0, -2)",
        "dy.flatten(0, 1).T @ x.flatten(0, 1)", "test_overlapped_linear[4", "Rank", verdicts=ANY),
]

# ---- 15.6
run_schedule, gpipe, one_f_one_b = At.each("15.6", "pipeline", "def run_schedule", "def gpipe", "def one_f_one_b")
bubble, in_flight = At.each("15.6", "pipeline", "def bubble", "def in_flight")
PIPELINE = [
    run_schedule("the loss has a graph", "[y.detach()] if last", "[y] if last", "test_run"),
    run_schedule("gradients are sent and not waited for", "    for sent in on_their_way:\n        sent.wait()\n", "",
        (*RUNS, "test_run[one at a time]")),
    gpipe("GPipe: one at a time",
        'return [("F", m) for m in range(M)] + [("B", m) for m in range(M)]',
        'return [(kind, m) for m in range(M) for kind in "FB"]', "test_schedule[gpipe]", "one micro-batch at a time"),
    gpipe("GPipe: one stage backwards",
        '[("B", m) for m in range(M)]',
        '[("B", m if p % 2 == 0 else M - 1 - m) for m in range(M)]', "test_schedule[gpipe]"),
    gpipe("GPipe: the last one goes back first",
        '[("B", m) for m in range(M)]', '[("B", m) for m in reversed(range(M))]', "test_schedule[gpipe]"),
    one_f_one_b("1F1B that is GPipe", "warmup = min(P - p - 1, M)", "return gpipe(P, M, p)",
        "test_schedule[one_f_one_b]", "this is GPipe"),
    one_f_one_b("1F1B: one forward too many", "warmup = min(P - p - 1, M)", "warmup = min(P - p, M)",
        "test_schedule[one_f_one_b]", "one forward too many before the first backward"),
    one_f_one_b("1F1B: one forward too few", "warmup = min(P - p - 1, M)", "warmup = min(max(P - p - 2, 0), M)",
        "test_schedule[one_f_one_b]", "one forward too few before the first backward"),
    one_f_one_b("1F1B: right for M = P alone", "warmup = min(P - p - 1, M)", "warmup = max(M - p - 1, 0)",
        "test_schedule[one_f_one_b]", "right only for as many micro-batches as stages"),
    one_f_one_b("1F1B: more stages than micro-batches", "warmup = min(P - p - 1, M)", "warmup = P - p - 1",
        "test_schedule[one_f_one_b]"),
    bubble("bubble over busy", "(P - 1) / (M + P - 1)", "(P - 1) / M", "test_bubble", "idle over busy"),
    bubble("the busy fraction", "(P - 1) / (M + P - 1)", "M / (M + P - 1)", "test_bubble", "the busy fraction"),
    in_flight("in flight at the end", "most = max(most, now)", "most = now",
        "test_in_flight", "what is left at the end"),
    in_flight("all forwards are in flight", 'now += 1 if kind == "F" else -1', 'now += 1 if kind == "F" else 0',
        "test_in_flight", "all forwards"),
    run_schedule("all sends are waited for",
        "p, P = group.rank, group.size",
        "p, P = group.rank, group.size; group.isend = lambda tensor, dst: (group.send(tensor, dst), type('Done', "
        "(), {'wait': lambda self: None})())[1]",
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]"), "Deadlock of ranks",
        verdicts=("hung",)),
    run_schedule("the sum over micro-batches",
        "dy = torch.tensor(1.0 / M, device=y.device)",
        "dy = torch.tensor(1.0, device=y.device)", "test_run", "M times too much"),
    run_schedule("the mean M times", "torch.stack(losses).mean()", "torch.stack(losses).sum()",
        "test_run", "the sum over the micro-batches, expected the mean"),
    run_schedule("activations freed early",
        "x, y, sent = kept.pop(m)",
        "x, y, sent = kept.pop(m) if len(kept) < 2 else (kept.pop(m)[0], list(kept.values())[-1][1], None)",
        RUNS, "Rank", verdicts=("crashed",)),
    run_schedule("nothing is dropped after a backward", "x, y, sent = kept.pop(m)", "x, y, sent = kept[m]",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]", "test_run[1F1B, odd]", "test_run[one at a time]"),
        "nothing is dropped after a backward"),
    run_schedule("inputs are not dropped after a backward",
        "        x, y, sent = kept.pop(m)\n",
        """        x, y, sent = kept.pop(m)
        on_their_way.append(type("Done", (), {"wait": lambda self, x=x: None})())
""",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]"), "nothing is dropped after a backward",
        "something of a micro-batch stays", may=("test_run[1F1B, odd]", "test_run[one at a time]")),
    run_schedule("backward of the newest", "x, y, sent = kept.pop(m)", "x, y, sent = kept.pop(max(kept))",
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]")),
    run_schedule(".grad is set, not added up",
        """        with group.compute(f"B{m}"):
            y.backward(dy)""",
        """        stage.zero_grad()
        with group.compute(f"B{m}"):
            y.backward(dy)""", "test_run", "the last micro-batch's alone"),
    run_schedule("the schedule is ignored: one at a time",
        "kept, losses, on_their_way = {}, [], []",
        "kept, losses, on_their_way = {}, [], []; steps = [(kind, m) for m in range(M) for kind in 'FB']",
        RUNS, "one micro-batch at a time"),
    run_schedule("the schedule is ignored: GPipe",
        "kept, losses, on_their_way = {}, [], []",
        "kept, losses, on_their_way = {}, [], []; steps = gpipe(P, M, p)",
        ("test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]", "test_run[1F1B, odd]",
         "test_run[one at a time]"), "all forwards before the first backward"),
    run_schedule("the gradient does not travel", "isend(x.grad, p - 1)", "isend(torch.zeros_like(x.grad), p - 1)",
        ("test_run[GPipe, 4 stages]", "test_run[1F1B, 4 stages]", "test_run[1F1B, fewer micro-batches]",
         "test_run[1F1B, odd]", "test_run[one at a time]"), "nothing but zeros"),
    run_schedule("no spans",
        """        with group.compute(f"B{m}"):
            y.backward(dy)""", "        y.backward(dy)", "test_run"),
    bubble("bubble: both ends", "(P - 1) / (M + P - 1)", "2 * (P - 1) / (M + 2 * (P - 1))",
        "test_bubble", "both ends count"),
    in_flight("in flight: every step", 'now += 1 if kind == "F" else -1', "now += 1", "test_in_flight", "all steps"),
    in_flight("in flight: behind backwards", "most = max(most, now)", 'most = max(most, now) if kind == "B" else most',
        "test_in_flight", "looked at behind backwards"),
]

# ---- 15.8
interleaved = At("15.8", "stretch.interleaved", "def interleaved")
STRETCH = [
    interleaved("no micro-batches are refused", "if M % P:", "if False:", "test_interleaved_refuses"),
    interleaved("one forward too few ahead", "(P - p - 1)", "(P - p - 2)", "test_interleaved"),
    interleaved("one forward too many ahead", "(P - p - 1)", "(P - p)", "test_interleaved"),
    interleaved("not in groups",
        "for start in range(0, M, P) for c in range(v) for m in range(P)",
        "for c in range(v) for start in range(0, M, P) for m in range(P)", "test_interleaved"),
    interleaved("as far ahead as the paper", "(P - p - 1)", "2 * (P - p - 1)",
        "test_interleaved", "as far ahead as the paper's"),
    interleaved("chunks from the first in backward", "m, v - 1 - c", "m, c", "test_interleaved"),
]

# ---- 15.9
gathering, summing = At.each("15.9", "stretch.collective_matmul", "def gathering", "def summing")
GatherLinear, LinearReduce = At.each("15.9", "stretch.collective_matmul", "class GatherLinear", "class LinearReduce")
COLLECTIVE = [
    gathering("waited for before the product",
        "        with group.compute",
        """        coming and coming.wait()
        with group.compute""", "test_collective_matmul", "forward or backward goes one after the other"),
    gathering("in the order of arrival", "ys[owner] = product(xs[owner])", "ys[s] = product(xs[owner])",
        "test_collective_matmul"),
    summing("the sum is not passed on", "mine += coming.wait()", "coming.wait()",
        "test_collective_matmul", "its own addend alone: nobody else's was added"),
    summing("the addend waits for the sum",
        '        with group.compute("product"):',
        """        coming and (coming.wait(), going.wait())
        with group.compute("product"):""", "test_collective_matmul", "forward or backward goes one after the other"),
    At("15.9", "stretch.collective_matmul", "LinearReduce.forward")("chunks of the positions",
        "rows = x.flatten(0, -2)",
        "rows = x.transpose(0, 1).flatten(0, -2); T, B = x.transpose(0, 1).shape[:2]; chunks = min(chunks, T)",
        "test_linear_reduce"),
    summing("another rank's positions", "xs[(r - s - 1) % N]", "xs[(r - s) % N]", "test_collective_matmul"),
    GatherLinear("dW of its own positions",
        "dy_BTO.flatten(0, 1).T @ x_BTI.flatten(0, 1), None",
        "dy_BTO.chunk(ctx.group.size, 1)[ctx.group.rank].flatten(0, 1).T @ x_BTI.chunk(ctx.group.size, "
        "1)[ctx.group.rank].flatten(0, 1), None", "test_collective_matmul[gather"),
    GatherLinear("backward by the library",
        "dx_BtI = summing(dy_BTO, lambda dy: dy @ weight_OI, ctx.group)",
        "dx_BtI = ctx.group.reduce_scatter((dy_BTO @ weight_OI).transpose(0, 1).contiguous()).transpose(0, 1)",
        "test_collective_matmul[gather", verdicts=("forbidden call",)),
    LinearReduce("each sum waited for",
        "on_their_way.append(group.all_reduce(into, async_op=True))",
        "group.all_reduce(into)", "test_linear_reduce", "one after the other: nothing is hidden"),
    LinearReduce("dy summed again", "return dy @ weight_OI,", "return 2 * dy @ weight_OI,",
        "test_linear_reduce", "N times too much", may="test_linear_reduce"),
    LinearReduce("no sum", "on_their_way.append(group.all_reduce(into, async_op=True))", "pass",
        "test_linear_reduce", "its own addend alone"),
    LinearReduce("a short chunk more, where the rows do not divide",
        "rows.chunk(chunks), y.chunk(chunks)",
        "rows.split(max(1, len(rows) // chunks)), y.split(max(1, len(rows) // chunks))", "test_linear_reduce"),
]

MUTANTS = [*LINEARS, *ATTENTION, *SEQUENCE, *VOCAB, *OVERLAP, *PIPELINE, *STRETCH, *COLLECTIVE]
