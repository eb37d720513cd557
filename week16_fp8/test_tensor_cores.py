"""Self-checks of the FP8 linear on tensor cores (16.10), for no points: `lab check 16.10`.

A CPU multiplies FP8 codes in any order and of any size, so these checks look at the calls: what a GPU would refuse, or
compute with fewer bits, is wrong here too. Values are held to the products of 16.5's rounded operands."""

import pytest
import torch

from labkit.checks import call_alone, expect, same, task
from week16_fp8.test_week16 import (
    DTYPES,
    back,
    cast,
    drawn,
    equal,
    kept_and_given,
    operands,
    operands_of,
    size,
    sums,
    ulps,
    unseen,
    whole,
    without_scale,
)

NAMES = {fmt: str(dtype) for fmt, dtype in DTYPES.items()}


def codes(x, s, fmt):
    return cast(x, s, fmt).to(DTYPES[fmt]).view(torch.uint8)


def by_16(seed, low):
    """Three sizes, no two of them equal: multiples of 16."""
    return (16 * size(seed + i, low + 3 * i, low + 3 * i + 3) for i in range(3))


@task("16.10", points=0)
def test_both_ways(seed):
    """The codes in both orders, and the inverse scale"""
    kinds = ("input", torch.bfloat16), ("weight", torch.float32), ("grad", torch.bfloat16), ("input", torch.float32)
    for number, (slot, x, recipe, (fmt, *_), s) in enumerate(operands_of(seed, 33, *kinds)):
        order, what = bool(number // 8 % 2), f"of {slot!r} {list(x.shape)}"  # any order in memory
        copies, inverse, looked = call_alone("scenarios.turned", x, order, slot, *recipe)
        unseen(looked, "both_ways")
        equal(list(inverse.shape), [], f"the shape of the inverse scale {what}")
        same(float(inverse), float(1 / s), tol=float(ulps(1 / s)), what=f"the inverse scale {what}", looks_like={
            "the scale itself: a product is multiplied by what comes back": float(s),
        })  # fmt: skip
        want = codes(x, s, fmt)
        for name, (dtype, strides, found), one in zip(("x8", "x8 turned"), copies, (want, want.t())):
            equal([dtype, *found.shape], [NAMES[fmt], *one.shape], f"dtype and shape of {name} {what}")
            equal(list(strides), [one.shape[1], 1], f"the strides of {name} {what}",
                ("a view that is turned moves no byte: the copy is to lie in memory in its own order",))  # fmt: skip
            same(found, one.contiguous(), what=f"the codes of {name} {what}")
    for what, x in without_scale(seed, 16, 32):
        for slot, fmt in (("input", "e4m3"), ("grad", "e5m2")):  # E5M2 has an infinity: saturated all the same
            copies, inverse, _ = call_alone("scenarios.turned", x, False, slot, "e4m3", "e5m2", False, {})
            same(float(inverse), 1.0, what=f"the inverse scale of an operand with {what}")
            same(copies[0][2], codes(x, torch.tensor(1.0), fmt), what=f"the codes in {fmt} of an operand with {what}")


def seen_rightly(products, what, shape, a, b, dtype, fast):
    """One FP8 product of [R, S] @ [S, C], in the orders and with the sums that are expected."""
    R, S, C = shape
    equal({name for name, *_ in products}, {"_scaled_mm"}, f"what multiplies {what}",
        ("the codes are widened and multiplied in another type: that is 16.5's emulation",))  # fmt: skip
    equal(len(products), 1, f"the number of products for {what}")
    _, (dtype_a, shape_a, strides_a), (dtype_b, shape_b, strides_b), out, with_fast = products[0]
    equal([*shape_a, *shape_b], [R, S, S, C], f"the shapes of a and b in {what} = a @ b")
    equal([dtype_a, dtype_b, out], [NAMES[a], NAMES[b], str(dtype)], f"the types of a, b and a @ b in {what}")
    equal([*strides_a, *strides_b], [S, 1, 1, S], f"the strides of a and b in {what}: both must lie along the {S} that "
        "are summed. A CPU computes it all the same, a GPU refuses")  # fmt: skip
    equal(bool(with_fast), fast, f"use_fast_accum of {what}", ("gradients need true FP32 sums; y is fast",))


def held(got, a, b, what):
    """a @ b, of rounded operands in float64, within the roundings of an FP32 sum, of two scales, and of the result."""
    want = a @ b
    equal(list(getattr(got, "shape", [])), list(want.shape), f"the shape of {what}")
    # Two inverse scales, rounded, and multiplied one after the other: four roundings of 2^-24.
    tol = sums(a, b) + (2.0**-22 + (2.0**-8 if got.dtype == torch.bfloat16 else 2.0**-24)) * want.abs()
    same(got.float(), want.float(), tol=tol, what=what)


@task("16.10", points=0)
def test_product(seed):
    """One FP8 product, its orders and its sum"""
    kinds = ("e4m3", "e4m3", torch.bfloat16, True), ("e5m2", "e4m3", torch.float32, False)
    for number, (a, b, dtype, fast) in enumerate(kinds):
        R, S, C = by_16(seed + number, 1)
        R += 5  # free
        (qa, s_a), (qb, s_b) = whole(drawn(seed, R, S), a), whole(drawn(seed + 1, C, S), b)
        words = (qa.to(DTYPES[a]).view(torch.uint8), qb.to(DTYPES[b]).view(torch.uint8), a, b, 1 / s_a, 1 / s_b)
        got, products = call_alone("scenarios.one_product", *words, str(dtype).partition(".")[2], fast)
        what = f"the product [{R}, {S}] @ [{S}, {C}]"
        expect(isinstance(got, torch.Tensor), f"{what} fails with {got}")
        seen_rightly(products, what, (R, S, C), a, b, dtype, fast)
        held(got, qa / s_a.double(), (qb / s_b.double()).t(), what)
    for R, S, C in ((16, 24, 32), (16, 32, 24)):
        zeros, one = [torch.zeros(n, S, dtype=torch.uint8) for n in (R, C)], torch.tensor(1.0)
        got, _ = call_alone("scenarios.one_product", *zeros, "e4m3", "e4m3", one, one, "float32", False)
        equal(got if isinstance(got, str) else "none", "ValueError", f"the error of [{R}, {S}] @ [{S}, {C}]")


@task("16.10", points=0)
@pytest.mark.parametrize("backward", ["e5m2", "e4m3"], ids=["hybrid", "E4M3 only"])
def test_linear(backward, seed):
    """Output and gradients: three FP8 products, each along what it sums"""
    for number, (dtype, master) in enumerate(((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32))):
        M, K, N = by_16(seed + number, 1)
        x, w = drawn(seed, M, K, spread=0.5).to(dtype), (drawn(seed + 1, N, K, spread=0.5) * 0.05).to(master)
        dy = (drawn(seed + 2, M, N) * 1e-5).to(dtype)
        turned = bool((seed + number) % 2)  # a gradient comes in any order
        powers = {"input": not number, "weight": bool(number), "grad": not number}
        epsilon = 3 * float(dy.abs().max())
        how = {"backward": backward, "power_of_two": powers, "epsilon": {"grad": epsilon}}
        got = call_alone("scenarios.on_tensor_cores", x, w, dy, turned, **how)
        expect(len(got) == 5, f"forward and backward of [{M}, {K}] and [{N}, {K}] fail with {got[0]}")
        y, dx, dw, there, again = got
        x8, w8 = (back(one, "e4m3", 0.0, powers[slot]) for one, slot in ((x, "input"), (w, "weight")))
        dy8 = back(dy, backward, epsilon, powers["grad"])
        first, second = ([one for one in again if (tuple(one[1][1]) == (M, N)) == is_dx] for is_dx in (True, False))
        seen_rightly(there, "y", (M, K, N), "e4m3", "e4m3", dtype, True)
        seen_rightly(first, "dx", (M, N, K), backward, "e4m3", dtype, False)
        seen_rightly(second, "dw", (N, M, K), backward, "e4m3", master, False)
        for one, a, b, what in ((y, x8, w8.t(), "y"), (dx, dy8, w8, "dx"), (dw, dy8.t(), x8, "dw")):
            held(one, a, b, what)


@task("16.10", points=0)
def test_what_is_kept(seed):
    """The codes alone, of what the backward needs"""
    x, w, dy = operands(seed, *by_16(seed, 4))
    for dtype in (torch.float32, torch.bfloat16):
        kept_and_given("scenarios.tensor_cores_kept", x.to(dtype), w, dy.to(dtype), codes=True)


@task("16.10", points=0)
def test_odd_sizes(seed):
    """ValueError in the forward, whichever of the three does not divide by 16"""
    for odd, needs_weight in ((0, True), (0, False), (1, True), (2, True)):
        M, K, N = (16 * size(seed + i, 2, 5) + 8 * (i == odd) for i in range(3))
        x, w, dy = operands(seed, M, K, N)
        got = call_alone("scenarios.on_tensor_cores", x, w, dy, needs_weight=needs_weight)
        found = got if len(got) == 2 else ("none", True)
        equal(found, ("ValueError", True), f"the error for M, K, N = {M}, {K}, {N}, and whether the forward raises it",
            ("dw sums over M, the tokens: they must divide by 16, too",) if odd == 0 else ())  # fmt: skip
