"""Mutants of week 16's stretch tasks: see `mutants16.py`."""

from tests.mutant import ANY, At

# ---- 16.11
CODES = "test_scale_codes"
mxfp8 = At("16.11", "stretch.mxfp8")
MXFP8 = [
    mxfp8("floor, whatever the rule", "scale_codes", "}[rule]", '}["floor"]',
        ("test_scale_codes[ceil]", "test_scale_codes[even]", "test_scale_codes[rceil]"), "the codes of 'floor'",
        "the scales of 'floor'", may=("test_to_mx", "test_mx_product")),
    mxfp8("rceil is ceil", "scale_codes", "f > 3 / 4", "f > 0", "test_scale_codes[rceil]", "the codes of 'ceil'",
        may=("test_to_mx[rceil]", "test_mx_product[rceil]")),
    mxfp8("448 itself is too large", "scale_codes", "f > 3 / 4", "f >= 3 / 4", "test_scale_codes[rceil]",
        may="test_to_mx"),
    mxfp8("ceil of a power of two is the next", "scale_codes", "f > 0,", "f >= 0,", "test_scale_codes[ceil]",
        may="test_to_mx[ceil]"),
    mxfp8("even rounds to two bits", "scale_codes", "15 / 16", "7 / 8", "test_scale_codes[even]", may="test_to_mx"),
    mxfp8("half way goes down", "scale_codes", "f >= 15 / 16", "f > 15 / 16", "test_scale_codes[even]",
        may="test_to_mx[even]"),
    mxfp8("seven from the exponent", "scale_codes", "- 8 +", "- 7 +", (CODES, "test_to_mx", "test_mx_product"),
        "the scale is twice as large"),
    mxfp8("no stop at 0", "scale_codes", ".clamp(0, 254)", ".clamp(max=254)", (CODES, "test_to_mx"),
        "right but where the code would fall below 0"),
    mxfp8("a NaN like an infinity", "scale_codes", "torch.where(amax.isnan(), 255, codes)", "codes",
        (CODES, "test_to_mx"), "right but for NaN"),
    mxfp8("floor of log2", "scale_codes", "exponent(amax)", "torch.floor(torch.log2(amax)).clamp(-127, 128)", CODES,
        "log2 in float32 rounds", may="test_to_mx"),
    mxfp8("ceil of log2", "scale_codes", "(exponent(amax) - 8 + one_more + 127)",
        """(torch.where(amax.isfinite(), torch.ceil(torch.log2(amax / 448)), 120.0) + 127 if rule == "rceil" else
        exponent(amax) - 8 + one_more + 127)""",
        "test_scale_codes[rceil]", "log2 in float32 rounds", may="test_to_mx[rceil]"),
    mxfp8("the largest, not the largest size", "to_mx", "blocks.abs().amax(2)", "blocks.amax(2)",
        ("test_to_mx", "test_mx_product")),
    mxfp8("one scale a row", "to_mx", "blocks.abs().amax(2)",
        "blocks.abs().amax((1, 2))[:, None].expand(blocks.shape[:2])",
        ("test_to_mx", "test_mx_product"), "one scale for a whole row"),
    mxfp8("multiplied on the way there", "to_mx", "blocks / scale_of", "blocks * scale_of",
        ("test_to_mx", "test_mx_product"), "multiplied by the scale"),
    mxfp8("E5M2", "to_mx", ".to(torch.float8_e4m3fn)", ".to(torch.float8_e5m2)",
        ("test_to_mx", "test_mx_product"), "in E5M2"),
    mxfp8("whole blocks alone", "to_mx", "F.pad(x_RC.float(), (0, -C % BLOCK))", "x_RC.float()",
        ("test_to_mx", "test_mx_product", "test_mx_product_keeps"), verdicts=ANY),
    mxfp8("scaled in place", "to_mx", "", """
        R, C = x_RC.shape
        blocks = (F.pad(x_RC.float(), (0, -C % BLOCK)) if C % BLOCK else x_RC.float()).view(R, -1, BLOCK)
        codes = scale_codes(blocks.abs().amax(2), rule)
        scaled = blocks.div_(scale_of(codes)[..., None]).clamp(-LARGEST, LARGEST)
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)[:, :C], codes
        """,
        "test_to_mx"),
    mxfp8("divided on the way back", "from_mx", "* scale", "/ scale", ("test_from_mx", "test_mx_product"),
        "divided by the scale"),
    mxfp8("scales by turns", "from_mx", "scale_of(codes).repeat_interleave(BLOCK, 1)",
        "scale_of(codes).repeat(1, BLOCK)",
        ("test_from_mx", "test_mx_product"), "the scales' order"),
    mxfp8("code 255 is a power of two", "from_mx", "scale_of(codes)", "torch.exp2(codes.float() - 127)",
        "test_from_mx", "code 255 is NaN"),
    mxfp8("y from the master", "MXProduct.forward", "rounded(w_NK, rule).t()", "w_NK.t()", "test_mx_product",
        "w is not rounded"),
    mxfp8("y with w along N", "MXProduct.forward", "rounded(w_NK, rule).t()", "rounded(w_NK.t(), rule)",
        "test_mx_product", "w is rounded along N"),
    mxfp8("dx with the forward's w", "MXProduct.backward", "rounded(w_NK.t(), ctx.rule).t()",
        "rounded(w_NK, ctx.rule)", "test_mx_product", "w as the forward had rounded it"),
    mxfp8("dx with w rounded twice", "MXProduct.backward", "rounded(w_NK.t(), ctx.rule).t()",
        "rounded(rounded(w_NK, ctx.rule).t(), ctx.rule).t()", "test_mx_product", "w is rounded twice"),
    mxfp8("dx from dy itself", "MXProduct.backward", "rounded(dy_MN, ctx.rule)", "dy_MN", "test_mx_product",
        "dy is not rounded"),
    mxfp8("dw with the forward's x", "MXProduct.backward", "rounded(x_MK.t(), ctx.rule).t()",
        "rounded(x_MK, ctx.rule)", "test_mx_product", "x as the forward had rounded it"),
    mxfp8("dw with dx's dy", "MXProduct.backward", "rounded(dy_MN.t(), ctx.rule)", "rounded(dy_MN, ctx.rule).t()",
        "test_mx_product", "dy as dx had rounded it"),
    mxfp8("backward by another rule", "MXProduct.forward", "ctx.rule = rule", 'ctx.rule = "rceil"',
        "test_mx_product[floor]", "the scales of 'rceil'"),
    mxfp8("both roundings are kept, and x and w too", "MXProduct.forward", "ctx.rule = rule",
        "ctx.rule, ctx.turned = rule, (rounded(w_NK.t(), rule), rounded(x_MK.t(), rule))", "test_mx_product_keeps"),
    mxfp8("dx that nobody wants", "MXProduct.backward", "if ctx.needs_input_grad[0]:", "if True:",
        "test_mx_product_keeps"),
    mxfp8("y in FP32", "MXProduct.forward", "rounded(x_MK, rule) @ rounded(w_NK, rule).t()",
        "rounded(x_MK, rule).float() @ rounded(w_NK, rule).t().float()", "test_mx_product", verdicts=ANY),
]

MUTANTS = [*MXFP8]
