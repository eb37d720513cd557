"""Mutants of week 16: the reference with one place changed, the checks that must fail for it, and the cause to report.

`tests/test_mutants16.py` runs each through the real machinery.
"""

from tests.mutant import At

# Checks that fail together.
DECODES = ("test_decode[e4m3]", "test_decode[e5m2]")
SCALES = ("test_scale[e4m3]", "test_scale[e5m2]")
PREDICTED = ("test_predicted_sqnr[e4m3]", "test_predicted_sqnr[e5m2]")
POWERS = ("test_power_of_two[e4m3]", "test_power_of_two[e5m2]")
MEASURED = ("test_measure[e4m3]", "test_measure[e5m2]")
AUTOCAST = ("test_autocast[BF16 output]", "test_autocast[float32]")
ENCODES = (
    "test_encode_around_every_boundary[e4m3]",
    "test_encode_around_every_boundary[e5m2]",
    "test_encode_every_bf16_number[e4m3]",
    "test_encode_every_bf16_number[e5m2]",
)
OVER_RANKS = ("test_delayed_over_ranks[2]", "test_delayed_over_ranks[3]")
PRODUCTS = (
    "test_bf16_input",
    "test_linear[E4M3 only]",
    "test_linear[hybrid]",
    "test_micro_batches",
    "test_within_the_bound",
)
SKIPS = ("test_all_ranks_skip_together[2]", "test_all_ranks_skip_together[3]", "test_as_gradscaler")

decode, encode = At.each("16.1", "formats", "decode", "encode")
TASK_16_1 = [
    decode("subnormals as normal numbers", "np.where(e > 0, 2**f.mantissa_bits, 0)", "2**f.mantissa_bits",
        DECODES, "subnormals have no implicit 1"),
    decode("bias one too small", "- f.bias - f.mantissa_bits", "- f.bias + 1 - f.mantissa_bits",
        DECODES, "twice as large: the bias is 1 too small"),
    decode("sign ignored", "np.where(codes & 0x80, np.float32(-1), np.float32(1))", "np.float32(1)",
        DECODES, "the sign bit is ignored"),
    decode("infinity in E4M3",
        "np.where(top & (m == 2**f.mantissa_bits - 1), np.float32(np.nan), value)",
        "np.where(top & (m == 2**f.mantissa_bits - 1), np.float32(np.inf), value)", "test_decode[e4m3]"),
    decode("E4M3 as IEEE", "if f.has_infinity:", "if True:",
        "test_decode[e4m3]", "the largest exponent as IEEE 754 has it"),
    encode("rounds towards zero", "np.rint(", "np.floor(", ENCODES, "rounded towards zero: the nearer of two codes"),
    encode("rounds halves up",
        "np.rint(np.ldexp(y, f.mantissa_bits - binade))",
        "np.floor(np.ldexp(y, f.mantissa_bits - binade) + np.float32(0.5))",
        ENCODES, "halves are rounded up: half way goes to the c"),
    encode("no saturation", "return np.where(np.isnan(x),", "return np.where(np.isnan(x) | (np.abs(x) > f.largest),",
        ENCODES, "beyond the largest value there is NaN: our ta"),
    encode("subnormals flushed",
        "np.where(np.isnan(x), 0x7F, code)",
        "np.where(np.isnan(x), 0x7F, np.where(y < f.smallest_normal, 0, code))",
        ENCODES, "subnormals are flushed to zero: below the sma"),
    encode("sign lost", ".astype(np.uint8) | sign", ".astype(np.uint8)", ENCODES, "the sign is lost"),
    encode("zero by frexp",
        "np.frexp(np.fmax(y, np.float32(f.smallest_normal)))[1] - 1",
        "np.maximum(np.frexp(y)[1] - 1, 1 - f.bias)", ENCODES, "right but below the smallest normal number"),
    encode("NaN saturates", "np.where(np.isnan(x), 0x7F, code)", "code", ENCODES, "right but for NaN"),
    encode("BF16 bits as numbers", "x = bf16_to_float32(x) if x.dtype == np.uint16 else x", "x = x.astype(np.float32)",
        ("test_encode_every_bf16_number[e4m3]", "test_encode_every_bf16_number[e5m2]"),
        "uint16 holds the bits of BF16 numbers"),
    encode("by way of float16",
        "sign = np.signbit",
        """x = np.clip(x, -60000, 60000).astype(np.float16).astype(np.float32)
    sign = np.signbit""",
        ("test_encode_around_every_boundary[e4m3]", "test_encode_around_every_boundary[e5m2]"),
        may="test_encode_every_bf16_number"),
    decode("two formats and no other, to decode",
        "f = FORMATS[fmt]",
        'f = {name: FORMATS[name] for name in ("e4m3", "e5m2")}[fmt]', "test_decode"),
    encode("two formats and no other, to encode",
        "f = FORMATS[fmt]",
        'f = {name: FORMATS[name] for name in ("e4m3", "e5m2")}[fmt]',
        ("test_encode_every_bf16_number", "test_encode_around_every_boundary")),
    decode("NaN takes the whole exponent",
        "np.where(top & (m == 2**f.mantissa_bits - 1), np.float32(np.nan), value)",
        "np.where(top, np.float32(np.nan), value)", "test_decode[e4m3]", "the largest exponent is not all NaN's"),
    encode("ends at 240", "np.float32(f.largest)", "np.float32(f.largest if f.has_infinity else 240)",
        ("test_encode_around_every_boundary[e4m3]", "test_encode_every_bf16_number[e4m3]"), "it ends at 240"),
    encode("codes wrap", "np.float32(f.largest)", "np.float32(2.0**30)", ENCODES, "right but beyond the largest value"),
]

scale_from_amax, predicted_sqnr = At.each("16.2", "scaling", "scale_from_amax", "predicted_sqnr")
TASK_16_2 = [
    scale_from_amax("a scalar becomes a vector",
        "return np.where(known, scale, 1).astype(np.float32)",
        "return np.atleast_1d(np.where(known, scale, 1).astype(np.float32))", SCALES),
    predicted_sqnr("squares in float32", "np.abs(x.astype(np.float64)) * scale", "np.abs(x) * np.float32(scale)",
        PREDICTED),
    scale_from_amax("twice the margin, not two to it", "2.0**margin)", "(2.0 * margin if margin else 1.0))",
        ("test_scale[e4m3]", "test_scale[e5m2]", "test_power_of_two[e4m3]", "test_power_of_two[e5m2]",
         "test_nothing_to_go_by")),
    scale_from_amax("a margin where nothing is known",
        "np.where(known, scale, 1)",
        "np.where(known, scale, 2.0**-margin)", "test_nothing_to_go_by"),
    scale_from_amax("scale inverted",
        "FORMATS[fmt].largest / (np.where(known, held, 1) * 2.0**margin)",
        "(np.where(known, held, 1) * 2.0**margin) / FORMATS[fmt].largest",
        ("test_epsilon", "test_nothing_to_go_by", "test_power_of_two[e4m3]", "test_power_of_two[e5m2]",
         "test_scale[e4m3]", "test_scale[e5m2]"), "upside down: amax is to land on the largest v"),
    scale_from_amax("epsilon after the division", "np.maximum(amax, epsilon), 0)", "amax, 0)",
        ("test_epsilon", "test_nothing_to_go_by"), "epsilon comes after the division: it bounds a",
        "epsilon is ignored", may="test_power_of_two"),
    scale_from_amax("epsilon added", "np.maximum(amax, epsilon), 0)", "amax + epsilon, 0)",
        "test_epsilon", "epsilon is added to amax: amax counts as the ", may="test_power_of_two"),
    scale_from_amax("margin the wrong way", "* 2.0**margin", "/ 2.0**margin",
        SCALES, "the margin goes the wrong way: it makes room,",
        may=("test_power_of_two[e4m3]", "test_power_of_two[e5m2]", "test_nothing_to_go_by")),
    scale_from_amax("power of two rounded up", "np.exp2(np.frexp(scale)[1] - 1.0)", "np.exp2(np.ceil(np.log2(scale)))",
        POWERS, "rounded up to a power of two: amax saturates"),
    scale_from_amax("power of two to the nearest",
        "np.exp2(np.frexp(scale)[1] - 1.0)",
        "np.exp2(np.round(np.log2(scale)))", POWERS, "rounded to the nearest power of two: above th"),
    scale_from_amax("infinite scale", "np.minimum(scale, LARGEST_FLOAT32)", "scale",
        ("test_nothing_to_go_by", "test_power_of_two[e4m3]", "test_power_of_two[e5m2]"), "infinite for a tiny amax"),
    scale_from_amax("zero block", "np.where(known, scale, 1)", "np.where(known, scale, 0)", "test_nothing_to_go_by"),
    predicted_sqnr("no saturation in theory", "noise = np.where(y > f.largest, (y - f.largest) ** 2, noise)", "pass",
        PREDICTED, "nothing saturates in it"),
    predicted_sqnr("no flush in theory", "noise = np.where(y < f.smallest_subnormal / 2, y**2, noise)", "pass",
        PREDICTED, "nothing is flushed in it: below half the smal"),
    predicted_sqnr("a whole step", " / 12", " / 1  ", PREDICTED, "step^2 in place of step^2 / 12"),
    scale_from_amax("no epsilon for zeros", "known = held > 0", "known = (held > 0) & (amax != 0)",
        ("test_epsilon", "test_nothing_to_go_by"), "0 with an epsilon counts as epsilon"),
    predicted_sqnr("zeros make noise", "y < f.smallest_subnormal / 2", "(y > 0) & (y < f.smallest_subnormal / 2)",
        "test_predicted_sqnr"),
    scale_from_amax("the margin is lost with powers of two", "np.exp2(np.frexp(scale)[1] - 1.0)",
        "np.exp2(np.frexp(scale * 2.0**margin)[1] - 1.0)", "test_power_of_two"),
]

TASK_16_2 += [
    predicted_sqnr("no subnormals in theory", "np.maximum(np.frexp(y)[1] - 1, 1 - f.bias)", "np.frexp(y)[1] - 1",
        "test_predicted_sqnr", "the step goes on shrinking below the smallest normal number"),
    predicted_sqnr("half a step squared", " / 12", " / 4", "test_predicted_sqnr", "(step / 2)^2"),
    scale_from_amax("floor of log2",
        "np.exp2(np.frexp(scale)[1] - 1.0)",
        "np.exp2(np.floor(np.log2(scale.astype(np.float32))))", "test_power_of_two", "floor(log2 q) in float32"),
]

reduce_amax, delayed_update = At.each("16.3", "delayed", "reduce_amax", "update")
scaling_update = At("16.3", "delayed", "DelayedScaling.update")
TASK_16_3 = [
    reduce_amax("infinity comes out of the reduction", "(~amax_T.isfinite()).float()", "amax_T.isnan().float()",
        OVER_RANKS),
    delayed_update("history not rolled",
        "torch.cat([newest_T[None], self.history_HT[:-1]])",
        "torch.cat([torch.maximum(newest_T, self.history_HT[0])[None], self.history_HT[1:]])",
        ("test_delayed[e4m3-max]", "test_delayed[e4m3-most_recent]", "test_delayed[e5m2-max]",
         "test_delayed[e5m2-most_recent]", "test_delayed_over_ranks[2]", "test_delayed_over_ranks[3]",
         "test_what_tells_nothing"), "the history does not move, or it grows"),
    delayed_update("only the newest", "self.history_HT.amax(0) if", "self.history_HT[0] if",
        ("test_delayed[e4m3-max]", "test_delayed[e5m2-max]", "test_delayed_over_ranks[2]", "test_delayed_over_ranks[3]",
         "test_what_tells_nothing"), "the algorithm is most_recent"),
    delayed_update("always the maximum", 'if self.algorithm == "max" else newest_T', "if True else newest_T",
        ("test_delayed[e4m3-most_recent]", "test_delayed[e5m2-most_recent]", *OVER_RANKS, "test_what_tells_nothing"),
        "the algorithm is max"),
    delayed_update("amax not reduced over ranks", "amax_T = reduce_amax(amax_T, group)", "pass",
        OVER_RANKS, "this rank's own amaxes: they are not reduced "),
    reduce_amax("NaN lost in the reduction", "return torch.where(bad_T > 0, torch.nan, most_T)", "return most_T",
        OVER_RANKS, "another rank's NaN or infinity is lost"),
    delayed_update("margin left out", "margin=self.margin", "margin=0",
        ("test_delayed[e4m3-max]", "test_delayed[e4m3-most_recent]", "test_delayed[e5m2-max]",
         "test_delayed[e5m2-most_recent]"), "the margin is ignored"),
    delayed_update("no scale where nothing is known", "torch.where(chosen_T > 0, found_T, self.scale_T)", "found_T",
        ("test_delayed[e4m3-most_recent]", "test_delayed[e5m2-most_recent]", "test_what_tells_nothing"),
        "where nothing is known the scale is 1 again", may=OVER_RANKS),
    delayed_update("NaN in the history", "torch.where(amax_T.isfinite(), amax_T, 0.0)", "amax_T",
        ("test_delayed_over_ranks[2]", "test_delayed_over_ranks[3]", "test_what_tells_nothing"),
        "infinite and NaN amaxes enter the history"),
    delayed_update("oldest first",
        "torch.cat([newest_T[None], self.history_HT[:-1]])",
        "torch.cat([self.history_HT[1:], newest_T[None]])",
        ("test_delayed[e4m3-max]", "test_delayed[e4m3-most_recent]", "test_delayed[e5m2-max]",
         "test_delayed[e5m2-most_recent]", "test_delayed_over_ranks[2]", "test_delayed_over_ranks[3]"),
        "the oldest amax comes first", may="test_what_tells_nothing"),
    reduce_amax("sum over the ranks", 'op="max"', 'op="sum"', OVER_RANKS, "the sum over the ranks"),
    reduce_amax("a maximum without a flag",
        "bad_T = (~amax_T.isfinite()).float()",
        'return group.all_reduce(amax_T.clone(), op="max")', OVER_RANKS, "some maximum has lost a NaN"),
]

TASK_16_3 += [
    reduce_amax("one rank's zero voids the others' amax",
        "(~amax_T.isfinite())",
        "(~amax_T.isfinite() | (amax_T == 0))", OVER_RANKS, "one rank's 0 voids the others' amaxes"),
    delayed_update("the most recent of this rank",
        """if group is not None:
            amax_T = reduce_amax(amax_T, group)
        newest_T = torch.where(amax_T.isfinite(), amax_T, 0.0)""",
        """own_T = amax_T
        if group is not None:
            amax_T = reduce_amax(amax_T, group)
        newest_T = torch.where(amax_T.isfinite(), amax_T, 0.0)
        if self.algorithm != "max":
            self.history_HT = torch.cat([newest_T[None], self.history_HT[:-1]])
            found_T = scaling.scale_from_amax(own_T.numpy(), self.fmt, margin=self.margin)
            self.scale_T = torch.where(newest_T > 0, torch.from_numpy(found_T), self.scale_T)
            return""",
        OVER_RANKS),
    delayed_update("the most recent starts over",
        "torch.where(chosen_T > 0, found_T, self.scale_T)",
        'torch.where((chosen_T > 0) | (self.algorithm != "max"), found_T, self.scale_T)',
        ("test_what_tells_nothing", "test_delayed[e4m3-most_recent]", "test_delayed[e5m2-most_recent]"),
        "where nothing is known the scale is 1 again", may=OVER_RANKS),
]

scale_of = At("16.4", "casts", "scale_of")
block_scales, on_grid, block_forward = At.each("16.4", "blockwise", "block_scales", "on_grid", "forward")
block_backward, BlockProduct = At.each("16.4", "blockwise", "backward", "class BlockProduct")
TASK_16_4 = [
    block_scales("the format is ignored", "fmt, epsilon", '"e4m3", epsilon',
        ("test_block_scales[1 x 128]", "test_block_scales[128 x 128]"), "`fmt` is ignored"),
    scale_of("epsilon bounds the scale, tensors", "amax.double().clamp(min=epsilon)", "amax.double()",
        ("test_block_product", "test_block_scales[1 x 128]", "test_block_scales[128 x 128]", "test_scale_of"),
        "epsilon comes after the division: it bounds a", "the epsilons are ignored"),
    block_scales("block axes swapped",
        """    R, C = x_RC.shape
    rows""",
        """    if not square:
        s = block_scales(x_RC.t(), True, fmt, epsilon=epsilon, power_of_two=power_of_two)
        return s.t().repeat_interleave(BLOCK, 0)[: x_RC.shape[0]]
    R, C = x_RC.shape
    rows""",
        ("test_block_product", "test_block_scales[1 x 128]", "test_on_grid"), "x has blocks of 128 x 128"),
    block_scales("a whole block of zeros more", "(0, -C % BLOCK, 0,", "(0, BLOCK - C % BLOCK, 0,",
        "test_block_scales[128 x 128]"),
    block_scales("one scale for all blocks",
        "blocks.amax(dim=(1, 3))",
        "blocks.amax().expand(blocks.shape[0], blocks.shape[2])",
        ("test_block_product", "test_block_scales[1 x 128]", "test_block_scales[128 x 128]", "test_on_grid"),
        "one scale for the whole tensor"),
    block_scales("square blocks for all", "rows = BLOCK if square else 1", "rows = BLOCK",
        ("test_block_product", "test_block_scales[1 x 128]", "test_on_grid"), "the other shape of block",
        verdicts=("crashed", "wrong"), may="test_block_product_keeps"),
    on_grid("not scaled back", '"e4m3").div_(scale)', '"e4m3")',
        ("test_block_product", "test_on_grid"), "not scaled back"),
    on_grid("E5M2 in blocks", '"e4m3")', '"e5m2")',
        ("test_block_product", "test_on_grid"), "in E5M2: the block recipe is E4M3 throughout"),
    block_forward("weight in rows", '_rounded(w_NK, "weight", recipe)', '_rounded(w_NK, "input", recipe)',
        "test_block_product", "the weight has blocks of 1 x 128"),
    block_backward("x as the forward had it",
        '_rounded(x_MK.t(), "input", ctx.recipe).t()',
        '_rounded(x_MK, "input", ctx.recipe)', "test_block_product", "x as the forward had rounded it: this product"),
    block_backward("dy as dx had it",
        '_rounded(dy_MN.t(), "grad", ctx.recipe)',
        '_rounded(dy_MN, "grad", ctx.recipe).t()',
        "test_block_product", "dy as dx had rounded it: this product sums ov"),
    block_backward("dy not rounded", '_rounded(dy_MN, "grad", ctx.recipe) @ w8_NK', "dy_MN @ w8_NK",
        "test_block_product", "dy is not rounded"),
    block_backward("epsilon of another slot",
        '_rounded(dy_MN, "grad", ctx.recipe)',
        '_rounded(dy_MN, "input", ctx.recipe)',
        "test_block_product", "the epsilons are ignored", "dy has the epsilon of x"),
    scale_of("one number alone is looked at",
        "held = amax.double().clamp(min=epsilon)",
        "held = amax.double().clamp(min=epsilon)\n    if held.numel() == 1 and held.item() == 0: return torch.ones_like(amax).float()",
        "test_scale_of"),
    scale_of("through NumPy", "held = amax.double()", "held = torch.from_numpy(amax.numpy()).double()",
        "test_scale_of"),
    BlockProduct("y in float64",
        """        return _rounded(x_MK, "input", recipe) @ w8_NK.t()
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        \"""(dx [M, K], dw [N, K], None); None for what needs no gradient.\"""
        ### BEGIN SOLUTION 16.4 the backward products
""",
        """        return (_rounded(x_MK, "input", recipe) @ w8_NK.t()).double()
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        ### BEGIN SOLUTION 16.4 the backward products
        dy_MN = dy_MN.float()
""",
        "test_block_product"),
    block_scales("no squares of fewer than 128 rows",
        "rows = BLOCK if square else 1",
        "rows = BLOCK if square and R >= BLOCK else 1", "test_block_scales[128", "the other shape of block"),
]

KEEPS = "test_block_product_keeps"
TASK_16_4 += [
    block_scales("one block's NaN spoils all",
        "size = x_RC.float().abs()",
        "size = x_RC.float().abs() + (x_RC.float().sum() * 0)",
        ("test_block_scales", "test_on_grid"), "one block that is not finite spoils the others"),
    block_scales("a NaN is overlooked", "x_RC.float().abs()", "x_RC.float().abs().nan_to_num(0.0, 0.0, 0.0)",
        "test_block_scales", "NaN and infinity in a block", may="test_on_grid"),
    block_forward("x as the forward had rounded it is kept, too",
        "ctx.recipe = recipe",
        'ctx.recipe, ctx.x8 = recipe, _rounded(x_MK, "input", recipe)', KEEPS),
    block_backward("dx that nobody wants", "if ctx.needs_input_grad[0]:", "if True:", KEEPS),
    block_backward("dw that nobody wants", "if ctx.needs_input_grad[1]:", "if True:", KEEPS),
    block_forward("dx from the master", "ctx.save_for_backward(x_MK, w8_NK)", "ctx.save_for_backward(x_MK, w_NK)",
        "test_block_product", "the master is multiplied"),
    block_backward("x rounded twice",
        '_rounded(x_MK.t(), "input", ctx.recipe).t()',
        '_rounded(_rounded(x_MK, "input", ctx.recipe).t(), "input", ctx.recipe).t()',
        "test_block_product", "x is rounded twice"),
    block_backward("dy rounded twice",
        '_rounded(dy_MN.t(), "grad", ctx.recipe)',
        '_rounded(_rounded(dy_MN, "grad", ctx.recipe).t(), "grad", ctx.recipe)',
        "test_block_product", "dy is rounded twice"),
    scale_of("floor of log2, tensors",
        "torch.exp2(torch.frexp(scale)[1] - 1.0)",
        "torch.exp2(torch.floor(torch.log2(scale.float())))",
        "test_scale_of", "floor(log2 q) in float32", may="test_block_product"),
]

rounding, rounded_weight = At.each("16.5", "linear", "rounding", "rounded_weight")
linear_backward, linear_forward = At.each("16.5", "linear", "FP8Product.backward", "FP8Product.forward")
TASK_16_5 = [
    rounding("E5M2 forward", "fmt = recipe.format(slot)", "fmt = recipe.backward",
        ("test_bf16_input", "test_frozen_input", "test_linear", "test_micro_batches", "test_rounding"),
        "the forward is in E5M2: activations and weigh", "the forward is in E4M3: the recipe says"),
    rounding("E4M3 backward", "fmt = recipe.format(slot)", "fmt = recipe.forward",
        ("test_bf16_input", "test_frozen_input", "test_linear", "test_micro_batches", "test_rounding"),
        "dy is in the other format"),
    rounding("no epsilon", "recipe.epsilon.get(slot, 0.0)", "0.0",
        "test_rounding", "epsilon is ignored", may="test_linear"),
    rounding("another operand's kind of scale", "recipe.powers(slot)", 'recipe.powers("input")',
        "test_rounding", "power_of_two is ignored", may="test_linear"),
    rounded_weight("stale weight cache",
        "if is_first_microbatch is False:",
        "if is_first_microbatch is not None and self._kept is not None:",
        "test_micro_batches", "a stale weight: the first one that was ever k"),
    rounded_weight("nothing kept", "if is_first_microbatch is False:", "if False:",
        "test_micro_batches", "the weight as it is now: what was kept is to "),
    rounded_weight("None keeps", "        if is_first_microbatch:\n", "        if is_first_microbatch is not False:\n",
        "test_micro_batches", "the call with None has replaced what was kept"),
    linear_backward("gradient not scaled back", "casts.unscaled(dy8_MN @ w8_NK, s_dy, s_w)", "dy8_MN @ w8_NK",
        PRODUCTS),
    linear_forward("scale applied twice",
        "casts.unscaled(x8_MK @ w8_NK.t(), s_x, s_w)",
        "casts.unscaled(x8_MK @ w8_NK.t(), s_x * s_w, s_w)", PRODUCTS),
    linear_backward("dy not rounded for dw",
        "casts.unscaled((dy8_MN.t() @ x8_MK)",
        "casts.unscaled(((dy_MN * s_dy).t() @ x8_MK)",
        ("test_bf16_input", "test_frozen_input", "test_linear[E4M3 only]", "test_linear[hybrid]", "test_micro_batches"),
        "dy is not rounded", may="test_within_the_bound"),
    linear_forward("master in the backward",
        "ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)",
        "ctx.save_for_backward(x8_MK, (w_NK.detach() * s_w).to(x_MK.dtype), s_x, s_w)",
        ("test_bf16_input", "test_linear[E4M3 only]", "test_linear[hybrid]", "test_micro_batches"),
        "the master is multiplied"),
    linear_backward("gradient for all", "if ctx.needs_input_grad[1]:", "if False:",
        ("test_bf16_input", "test_frozen_input", "test_linear[E4M3 only]", "test_linear[hybrid]", "test_micro_batches",
         "test_within_the_bound"), verdicts=("no result", "wrong")),
    linear_forward("two dtypes in a product", "w8_NK = w8_NK.to(x_MK.dtype)", "pass",
        ("test_bf16_input", "test_frozen_input"), verdicts=("crashed",)),
    rounded_weight("kept with its graph", "self.weight.detach()", "self.weight",
        "test_micro_batches", "round the weight without its gradient"),
    linear_forward("master over the rounded weight's scale",
        "ctx.save_for_backward(x8_MK, w8_NK, s_x, s_w)",
        "ctx.save_for_backward(x8_MK, w_NK.detach().to(x_MK.dtype), s_x, s_w)",
        PRODUCTS, "the master is multiplied, and the scale"),
    linear_backward("dw divided in BF16",
        "casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)",
        "casts.unscaled(dy8_MN.t() @ x8_MK, s_dy, s_x)", "test_bf16_input"),
]

TASK_16_5 += [
    linear_forward("scales multiplied first",
        "casts.unscaled(x8_MK @ w8_NK.t(), s_x, s_w)",
        "(x8_MK @ w8_NK.t()) / (s_x * s_w)", "test_linear", "the scales are multiplied first"),
    linear_backward("scales multiplied first, for dw",
        "casts.unscaled((dy8_MN.t() @ x8_MK).to(ctx.master), s_dy, s_x)",
        "(dy8_MN.t() @ x8_MK).to(ctx.master) * (1 / (s_dy * s_x))", "test_linear", "the scales are multiplied first"),
    linear_forward("x is kept, too",
        "ctx.recipe, ctx.master = recipe, w_NK.dtype",
        "ctx.recipe, ctx.master, ctx.x = recipe, w_NK.dtype, x_MK", "test_frozen_input"),
    rounding("scaled back before the product",
        "return casts.rounded(x, s, fmt), s",
        "return casts.rounded(x, s, fmt) / s.to(x.dtype), s",
        "test_rounding", "scaled back already", may=(*PRODUCTS, "test_frozen_input")),
    linear_backward("scaled back before the product, in BF16",
        "dx_MK = dw_NK = None",
        """dx_MK = dw_NK = None
        dy8_MN, w8_NK, x8_MK = ((q / s).to(dy_MN.dtype) for q, s in ((dy8_MN, s_dy), (w8_NK, s_w), (x8_MK, s_x)))
        s_dy, s_w, s_x = torch.ones(3)""",
        "test_bf16_input", "scaled back before the product", may=PRODUCTS),
    linear_backward("dx that nobody wants, of tensors", "if ctx.needs_input_grad[0]:", "if True:", "test_frozen_input"),
]

convert, gradients_of = At.each("16.6", "convert", "convert", "gradients_of")
TASK_16_6 = [
    convert("weights not copied", "new.weight.copy_(old.weight)", "pass",
        "test_the_weights_are_copied", "what `make` drew: the weights are not copied"),
    convert("biases not copied", "new.bias.copy_(old.bias)", "pass",
        "test_the_weights_are_copied", "what `make` drew: the biases are not copied"),
    convert("a name without a linear below is an error",
        "if not any(_means(wanted, name) for name in modules):",
        "if not any(_means(wanted, n[:k]) for n, m in modules.items() if isinstance(m, nn.Linear) for k in range(len(n) + 1) if (n + '.')[k] == '.'):",
        ("test_which_linears", "test_the_weights_are_copied"), verdicts=("crashed",)),
    convert("subclasses are passed over", "not isinstance(old, nn.Linear)", "type(old) is not nn.Linear",
        ("test_which_linears", "test_skip_and_multiple")),
    convert("head converted",
        "any(_means(wanted, place) for wanted in skip for place in above)",
        'any(_means(wanted, place) for wanted in skip for place in above) and name != "head"',
        ("test_a_wrong_skip_list_is_an_error", "test_which_linears"), "the head is among them: its output are logits"),
    convert("shapes not looked at", "old.in_features % multiple or old.out_features % multiple", "False",
        ("test_a_wrong_skip_list_is_an_error", "test_skip_and_multiple", "test_which_linears"),
        "shapes are not looked at: FP8 kernels take mu"),
    convert("only one dimension",
        "old.in_features % multiple or old.out_features % multiple",
        "old.in_features % multiple",
        "test_which_linears", "out_features are not looked at", may="test_skip_and_multiple"),
    convert("only the other dimension",
        "old.in_features % multiple or old.out_features % multiple",
        "old.out_features % multiple",
        "test_which_linears", "in_features are not looked at", may="test_skip_and_multiple"),
    convert("tied weights torn", "holders[id(old.weight)] > 1", "False",
        "test_which_linears", "weights that another module holds are among them", may="test_skip_and_multiple"),
    convert("names by their ends",
        "any(_means(wanted, place) for wanted in skip for place in above)",
        "any(place.endswith(wanted) for wanted in skip for place in above)",
        "test_which_linears", "'overhead' is not called 'head': names are co"),
    convert("reported and not done", "setattr(modules[around], last, new.train(old.training))", "pass",
        ("test_which_linears", "test_a_wrong_skip_list_is_an_error"), "the report says so, and the model was not cha"),
    convert("mode lost", "new.train(old.training)", "new", "test_the_weights_are_copied"),
    convert("misspelt skip accepted", "if not any(_means(wanted, name) for name in modules):", "if False:",
        "test_a_wrong_skip_list_is_an_error"),
    convert("nothing converted is no error", "if not report.converted:", "if False:",
        "test_a_wrong_skip_list_is_an_error"),
    gradients_of("autocast around backward",
        """        part = loss(out.float(), y) / len(batches)
        part.backward()""",
        """            part = loss(out.float(), y) / len(batches)
            part.backward()""",
        AUTOCAST, "the backward runs inside autocast"),
    gradients_of("no autocast", "with autocast():", "if True:", AUTOCAST, "there is no autocast around the forward"),
    gradients_of("sum of the micro-batches", " / len(batches)", "", AUTOCAST, "the sum over the micro-batches"),
    gradients_of("loss in BF16", "out.float()", "out",
        "test_autocast[BF16 output]", "the loss gets the output in BF16"),
    gradients_of("autocast around all, loss in BF16",
        """        part = loss(out.float(), y) / len(batches)
        part.backward()""",
        """            part = loss(out, y) / len(batches)
            part.backward()""",
        AUTOCAST, "the backward runs inside autocast",
        "the backward runs inside autocast, and the loss gets the output in BF16"),
    convert("everything is refused", "", "raise ValueError('no')",
        ("test_which_linears", "test_the_weights_are_copied", "test_skip_and_multiple",
         "test_a_wrong_skip_list_is_an_error"), verdicts=("crashed",)),
    convert("a part of a name is enough",
        "if not any(_means(wanted, name) for name in modules):",
        "if not any(wanted in name for name in modules):", "test_a_wrong_skip_list_is_an_error"),
]

TASK_16_6 += [
    convert("'layers.1' is 'layers.10', too",
        "any(_means(wanted, place) for wanted in skip for place in above)",
        'any(f".{wanted}" in f".{name}" for wanted in skip)',
        "test_skip_and_multiple", "'layers.1' means no 'layers.10'", may="test_a_wrong_skip_list_is_an_error"),
    convert("a name's children stay",
        "any(_means(wanted, place) for wanted in skip for place in above)",
        "any(_means(wanted, name) for wanted in skip)",
        ("test_skip_and_multiple", "test_a_wrong_skip_list_is_an_error"), "what is below a named module"),
    convert("whole paths, or last names",
        "any(_means(wanted, place) for wanted in skip for place in above)",
        'any(place == wanted or ("." not in wanted and _means(wanted, place)) for wanted in skip for place in above)',
        "test_skip_and_multiple", "a name is a module's whole path, or the end of one"),
    convert("whole paths alone", "any(_means(wanted, place) for wanted in skip for place in above)", "name in skip",
        ("test_which_linears", "test_skip_and_multiple", "test_a_wrong_skip_list_is_an_error"),
        "'router' means every module of that name"),
    convert("ties of embeddings alone",
        "holders[id(old.weight)] > 1",
        "any(isinstance(m, nn.Embedding) and m.weight is old.weight for m in modules.values())",
        "test_which_linears", "two linears that share a weight are among them", may="test_skip_and_multiple"),
    convert("ties of linears alone",
        "holders[id(old.weight)] > 1",
        "sum(isinstance(m, nn.Linear) and m.weight is old.weight for m in modules.values()) > 1",
        "test_which_linears", "a weight that the embedding shares is among them", may="test_skip_and_multiple"),
    gradients_of("what grad held is lost",
        "total = 0.0",
        """model.zero_grad()
    total = 0.0""",
        "test_autocast", "what `grad` held before is lost"),
]

loss_scale_update, after, unscale = At.each("16.7", "loss_scaling", "update", "after", "unscale_")
TASK_16_7 = [
    loss_scale_update("never below 1",
        "self.scale * self.backoff_factor, 0",
        "max(1.0, self.scale * self.backoff_factor), 0", "test_as_gradscaler"),
    loss_scale_update("shrinks by the growth factor",
        "self.scale * self.backoff_factor, 0",
        "self.scale / self.growth_factor, 0", SKIPS[2]),
    after("a checkpoint of step 0 is none", "self.checkpoint, 0", "self.checkpoint or None, 0", "test_recovery"),
    unscale("only infinities", "~g.isfinite()", "g.isinf()",
        ("test_all_ranks_skip_together[3]", "test_as_gradscaler"), "NaN passes", may="test_all_ranks_skip_together[2]"),
    unscale("a rank alone", 'bad = group.all_reduce(bad, op="max")', "pass",
        ("test_all_ranks_skip_together[2]", "test_all_ranks_skip_together[3]"), "this rank's own gradients alone"),
    unscale("not unscaled", "g.mul_(1.0 / self.scale)", "pass",
        "test_as_gradscaler", "untouched: gradients are divided by the scale"),
    loss_scale_update("good steps not in a row",
        "self.scale * self.backoff_factor, 0",
        "self.scale * self.backoff_factor, self.good", SKIPS, "good steps are counted on over a bad one: the"),
    loss_scale_update("grows one step late", "self.good == self.growth_interval", "self.good > self.growth_interval",
        SKIPS, "it grows one step late"),
    loss_scale_update("never grows", "self.good == self.growth_interval", "False", SKIPS, "it never grows"),
    loss_scale_update("grows into infinity", "grown.item() if grown.isfinite() else self.scale", "grown.item()",
        "test_as_gradscaler", "it becomes infinite"),
    after("bad steps counted on",
        """            self.in_row = 0
            return STEP""",
        "            return STEP", "test_recovery", "good steps in between do not begin the count "),
    after("the loss not looked at", "if finite and not loss_is_bad:", "if finite:",
        "test_recovery", "a loss that is not finite, with finite gradie"),
    after("the gradients not looked at", "if finite and not loss_is_bad:", "if not loss_is_bad:",
        "test_recovery", "the gradients are not looked at"),
    after("rollback lowers nothing", "if action != SKIP:", "if action == LOWER:",
        "test_recovery", "a rollback does not lower the rate"),
    after("the gradient is the reason of both",
        '"loss" if loss_is_bad else "gradient"',
        '"loss" if finite else "gradient"', "test_recovery", "where loss and gradients are both bad"),
    loss_scale_update("grows beyond float32",
        "grown.item() if grown.isfinite() else self.scale",
        "self.scale * self.growth_factor", "test_as_gradscaler", "it grows beyond float32"),
    after("no way back without a checkpoint",
        "action, to, self.in_row = ROLL_BACK, self.checkpoint, 0",
        "action, to, self.in_row = ROLL_BACK if self.checkpoint is not None else LOWER, self.checkpoint, 0",
        "test_recovery"),
]

TASK_16_7 += [
    unscale("finite by the sum", "(~g.isfinite()).any()", "(~g.sum().isfinite())", SKIPS, "judged by a sum"),
    unscale("finite by the squares", "(~g.isfinite()).any()", "(~g.square().sum().isfinite())",
        SKIPS, "judged by a sum"),
    after("counts on after a rollback",
        "action, to, self.in_row = ROLL_BACK, self.checkpoint, 0",
        "action, to = ROLL_BACK, self.checkpoint", "test_recovery", "it counts on after a rollback"),
]

measure, see = At.each("16.8", "scale_tracker", "measure", "Alarm.see")
TASK_16_8 = [
    measure("in the tensor's own dtype", "size.double() * scale", "x.detach().abs() * scale",
        MEASURED, "in x's own dtype"),
    measure("the scale is forgotten", "size.double() * scale", "size.double()", MEASURED, "the scale is left out"),
    measure("zeros count as lost",
        "((size != 0) & (y <= f.smallest_subnormal / 2)).sum().item() / some",
        "(y <= f.smallest_subnormal / 2).sum().item() / size.numel()",
        MEASURED, "zeros count as lost: they were nothing before"),
    measure("all below the smallest lost", "y <= f.smallest_subnormal / 2", "y < f.smallest_subnormal",
        MEASURED, "everything below the smallest subnormal: more"),
    measure("per cent", ".double().mean().item()", ".double().mean().item() * 100",
        MEASURED, "per cent: a share is expected"),
    see("alarm that always fires",
        "        if not bool(",
        """        return True
        if not bool(""",
        "test_alarms", "it rings at the first step of every run"),
    see("alarm that never fires",
        "        if not bool(",
        """        return False
        if not bool(""",
        "test_alarms", "it never rings"),
    see("the folklore",
        "        if not bool(",
        """        before, self.past = (self.past or [scale_T])[-1], [scale_T]
        return bool((scale_T < before / 4).any())
        if not bool(""",
        "test_alarms", "the folklore itself"),
    see("absolute thresholds",
        "        if not bool(",
        """        return bool((amax_T > 100).any() or not amax_T.isfinite().all())
        if not bool(""",
        "test_alarms", "thresholds in absolute numbers"),
]

TASK_16_1 += [
    decode("subnormals half as large", "np.maximum(e, 1) - f.bias", "e - f.bias",
        "test_decode", "subnormals are half as large"),
    decode("the lecture's biases", "f.bias - f.mantissa_bits", '(7 if fmt == "e4m3" else 15) - f.mantissa_bits',
        "test_decode", "right for e"),
    encode("NaN and -0 without a sign", "    sign = np.signbit(x)", "    sign = (x < 0)",
        ENCODES, "right but for the sign of NaN"),
]

TASK_16_2 += [
    predicted_sqnr("SQNR of x and its error, whose squares leave FP32",
        "np.sum(y**2) / np.sum(noise)",
        "np.sum(np.asarray(x) ** 2) / (np.sum(noise) / scale**2)", "test_predicted_sqnr"),
    scale_from_amax("a whole quotient", ".largest / (", ".largest // (",
        ("test_scale", "test_epsilon", "test_nothing_to_go_by", "test_power_of_two"), "rounded down to a whole number"),
    predicted_sqnr("all below the smallest flushed", "f.smallest_subnormal / 2", "f.smallest_subnormal",
        "test_predicted_sqnr", "all below the smallest subnormal"),
    predicted_sqnr("mean of the ratios", "np.sum(y**2) / np.sum(noise)", "np.mean(y**2 / noise)",
        "test_predicted_sqnr", "the mean of the ratios"),
    predicted_sqnr("a binade too high", "np.frexp(y)[1] - 1,", "np.frexp(y)[1],",
        "test_predicted_sqnr", "the binade is one too high"),
]

TASK_16_3 += [
    scaling_update("the oldest decides", "else newest_T", "else self.history_HT[-1]",
        ("test_delayed[e4m3-most_recent]", "test_delayed[e5m2-most_recent]", "test_what_tells_nothing", *OVER_RANKS),
        "the oldest amax"),
    scaling_update("a bad amax repeats the last",
        "torch.where(amax_T.isfinite(), amax_T, 0.0)",
        "torch.where(amax_T.isfinite(), amax_T, self.history_HT[0])",
        ("test_what_tells_nothing", *OVER_RANKS), "an amax that is not finite repeats"),
    scaling_update("infinity as the largest float32",
        "torch.where(amax_T.isfinite(), amax_T, 0.0)",
        "torch.nan_to_num(amax_T)", "test_what_tells_nothing", "an infinite amax enters the history as"),
    scaling_update("the newest does not count",
        '        chosen_T = self.history_HT.amax(0) if self.algorithm == "max" else newest_T',
        '        chosen_T = self.history_HT[1:].amax(0) if self.algorithm == "max" and len(self.history_HT) > 1 else newest_T',
        ("test_delayed[e4m3-max]", "test_delayed[e5m2-max]", "test_what_tells_nothing", *OVER_RANKS),
        "the newest amax does not count"),
    scaling_update("always E4M3", "self.fmt, margin", '"e4m3", margin',
        ("test_delayed[e5m2-max]", "test_delayed[e5m2-most_recent]", "test_what_tells_nothing"), "the other format's"),
]

TASK_16_1 += [
    decode("no number alone", "value = np.where(top & (m == 0), sign * np.float32(np.inf), value)",
        "value[top & (m == 0)] *= np.inf", "test_decode[e5m2]"),
    encode("halves are rounded down",
        "np.rint(np.ldexp(y, f.mantissa_bits - binade))",
        "np.ceil(np.ldexp(y, f.mantissa_bits - binade) - np.float32(0.5))", ENCODES, "halves are rounded down"),
]
TASK_16_2 += [
    scale_from_amax("powers without epsilon", "np.frexp(scale)[1]",
        "np.frexp(np.minimum(FORMATS[fmt].largest / np.where(amax > 0, amax, 1) / 2.0**margin, LARGEST_FLOAT32))[1]",
        "test_power_of_two", "epsilon is ignored"),
]
TASK_16_3 += [
    scaling_update("a quotient that leaves float32",
        "torch.from_numpy(scaling.scale_from_amax(chosen_T.numpy(), self.fmt, margin=self.margin))",
        "scaling.FORMATS[self.fmt].largest / (chosen_T * 2.0**self.margin)", "test_what_tells_nothing"),
]

MUTANTS = [*TASK_16_1, *TASK_16_2, *TASK_16_3, *TASK_16_4, *TASK_16_5, *TASK_16_6, *TASK_16_7, *TASK_16_8]
