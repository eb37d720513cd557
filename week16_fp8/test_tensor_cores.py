"""Self-checks of the FP8 linear on tensor cores (16.10), for no points: `lab check 16.10`.

A CPU multiplies FP8 codes in any order and of any size, so these checks look at the calls: what a GPU would refuse, or
compute with fewer bits, is wrong here too. Values are held to the products of 16.5's rounded operands.
"""

import math

import pytest
import torch

from labkit.checks import call_alone, expect, same, task
from week16_fp8.test_week16 import DTYPES, cast, drawn, size, sums, ulps, unseen, whole

NAMES = {fmt: str(dtype) for fmt, dtype in DTYPES.items()}


def codes(x, s, fmt):
    return cast(x, s, fmt).to(DTYPES[fmt]).view(torch.uint8)


def by_16(seed, low):
    """Three sizes, no two of them equal: multiples of 16."""
    return (16 * size(seed + i, low + 3 * i, low + 3 * i + 3) for i in range(3))


@task("16.10", points=0)
def test_both_ways(seed):
    """The codes in both orders, and the inverse scale"""
    powers = {"input": False, "weight": True, "grad": False}
    for number, (slot, dtype) in enumerate(
        (("input", torch.bfloat16), ("weight", torch.float32), ("grad", torch.bfloat16), ("input", torch.float32))
    ):
        x = (drawn(seed + number, 20 + seed % 9, 33) * 1e-3).to(dtype)
        amax = float(x.abs().max())
        epsilon = {"input": amax / 8, "weight": amax * 3, "grad": amax * 5}
        fmt = "e5m2" if slot == "grad" else "e4m3"
        s = whole(x, fmt, epsilon[slot], powers[slot])[1]
        order = bool(number % 2)  # any order in memory
        copies, inverse, looked = call_alone("scenarios.turned", x, order, slot, "e4m3", "e5m2", powers, epsilon)
        what = f"of {slot!r} {list(x.shape)}"
        unseen(looked, "both_ways")
        expect(inverse.shape == (), f"the inverse scale has shape {list(inverse.shape)}: a scalar is asked for")
        same(
            float(inverse),
            float(1 / s),
            tol=float(ulps(1 / s)),
            what=f"the inverse scale {what}",
            looks_like={"the scale itself: a product is multiplied by what comes back": float(s)},
        )
        want = codes(x, s, fmt)
        for name, (dtype8, strides, found), one in zip(("x8", "x8 turned"), copies, (want, want.t())):
            expect(dtype8 == NAMES[fmt], f"{name} {what} is {dtype8}, and {slot!r} has {NAMES[fmt]}", known=True)
            expect(tuple(found.shape) == tuple(one.shape), f"{name} {what} has shape {list(found.shape)}", known=True)
            expect(
                tuple(strides) == (one.shape[1], 1),
                f"{name} {what} has strides {list(strides)}, and lies along its rows with {[one.shape[1], 1]}",
                cause=("a view that is turned moves no byte: the copy is to lie in memory in its own order",),
            )
            same(found, one.contiguous(), what=f"the codes of {name} {what}")
    for what, bad in (("zeros", None), ("an infinity", math.inf), ("a NaN", math.nan)):
        x = torch.zeros(16, 32) if bad is None else drawn(seed, 16, 32).index_fill(0, torch.tensor([2]), bad)
        for slot, fmt in (
            ("input", "e4m3"),
            ("grad", "e5m2"),
        ):  # E5M2 has an infinity of its own: saturated all the same
            copies, inverse, _ = call_alone("scenarios.turned", x, False, slot, "e4m3", "e5m2", False, {})
            same(float(inverse), 1.0, what=f"the inverse scale of an operand with {what}")
            same(copies[0][2], codes(x, torch.tensor(1.0), fmt), what=f"the codes in {fmt} of an operand with {what}")


def seen_rightly(products, what, shape, a, b, dtype, fast):
    """One FP8 product of [R, S] @ [S, C], in the orders and with the sums that are asked for."""
    R, S, C = shape
    others = [name for name, *_ in products if name != "_scaled_mm"]
    expect(
        not others,
        f"{what} is computed by {', '.join(others)}: one torch._scaled_mm is asked for",
        cause=("the codes are widened and multiplied in another type: that is 16.5's emulation",),
    )
    expect(len(products) == 1, f"{what} takes {len(products)} products, and one is asked for", known=True)
    _, (dtype_a, shape_a, strides_a), (dtype_b, shape_b, strides_b), out, with_fast = products[0]
    expect(
        tuple(shape_a) == (R, S) and tuple(shape_b) == (S, C),
        f"{what} multiplies {list(shape_a)} @ {list(shape_b)}, and [{R}, {S}] @ [{S}, {C}] is asked for",
        known=True,
    )
    expect(
        (dtype_a, dtype_b) == (NAMES[a], NAMES[b]),
        f"{what} multiplies {dtype_a} @ {dtype_b}, and {NAMES[a]} @ {NAMES[b]} is asked for",
        known=True,
    )
    for name, strides, want in (("a", strides_a, (S, 1)), ("b", strides_b, (1, S))):
        expect(
            tuple(strides) == want,
            f"in {what} {name} has strides {list(strides)}: both operands must lie along the {S} that are summed, "
            f"{list(want)}. A CPU computes it all the same, a GPU refuses",
            known=True,
        )
    expect(
        bool(with_fast) == fast,
        f"{what} is summed with use_fast_accum = {with_fast}, and {fast} is asked for",
        cause=("gradients need true FP32 sums; y is fast",),
    )
    expect(out == str(dtype), f"{what} comes out as {out}, and {dtype} is asked for", known=True)


@task("16.10", points=0)
def test_product(seed):
    """One FP8 product, its orders and its sum"""
    for number, (a, b, dtype, fast) in enumerate(
        (("e4m3", "e4m3", torch.bfloat16, True), ("e5m2", "e4m3", torch.float32, False))
    ):
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
        zeros_a, zeros_b = (torch.zeros(n, S, dtype=torch.uint8) for n in (R, C))
        one = torch.tensor(1.0)
        got, _ = call_alone("scenarios.one_product", zeros_a, zeros_b, "e4m3", "e4m3", one, one, "float32", False)
        found = got if isinstance(got, str) else "none"
        expect(
            found == "ValueError",
            f"[{R}, {S}] @ [{S}, {C}]: ValueError is asked for, and there was {found}",
            known=True,
        )


def held(got, a, b, what):
    """a @ b, of rounded operands in float64, within the roundings of an FP32 sum, of two scales, and of the result."""
    want = a @ b
    expect(
        isinstance(got, torch.Tensor) and got.shape == want.shape,
        f"{what} has shape {list(getattr(got, 'shape', []))}, and {list(want.shape)} is asked for",
        known=True,
    )
    # Two inverse scales, rounded, and multiplied one after the other: four roundings of 2^-24.
    tol = sums(a, b) + (2.0**-22 + (2.0**-8 if got.dtype == torch.bfloat16 else 2.0**-24)) * want.abs()
    same(got.float(), want.float(), tol=tol, what=what)


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
        epsilon = {"grad": 3 * float(dy.abs().max())}
        how = {"backward": backward, "power_of_two": powers, "epsilon": epsilon}
        got = call_alone("scenarios.on_tensor_cores", x, w, dy, turned, **how)
        expect(len(got) == 5, f"forward and backward of [{M}, {K}] and [{N}, {K}] fail with {got[0]}")
        y, dx, dw, there, again = got

        def back(one, slot, fmt="e4m3", powers=powers, epsilon=epsilon):
            q, s = whole(one, fmt, epsilon.get(slot, 0.0), powers[slot])
            return q / s.double()

        x8, w8, dy8 = back(x, "input"), back(w, "weight"), back(dy, "grad", backward)
        seen_rightly(there, "y", (M, K, N), "e4m3", "e4m3", dtype, True)
        first = [one for one in again if tuple(one[1][1]) == (M, N)]
        second = [one for one in again if tuple(one[1][1]) != (M, N)]
        seen_rightly(first, "dx", (M, N, K), backward, "e4m3", dtype, False)
        seen_rightly(second, "dw", (N, M, K), backward, "e4m3", master, False)
        held(y, x8, w8.t(), "y")
        held(dx, dy8, w8, "dx")
        held(dw, dy8.t(), x8, "dw")


@task("16.10", points=0)
def test_what_is_kept(seed):
    """The codes alone, of what the backward needs"""
    M, K, N = by_16(seed, 4)
    x, w, dy = drawn(seed, M, K), drawn(seed + 1, N, K), drawn(seed + 2, M, N)
    for dtype in (torch.float32, torch.bfloat16):
        for needs in ((True, True), (True, False), (False, True)):
            given, kept = call_alone("scenarios.tensor_cores_kept", x.to(dtype), w, dy.to(dtype), needs)
            for name, needed, there in zip(("x", "w"), needs, given):
                expect(
                    there == needed,
                    f"{name} needs {'a' if needed else 'no'} gradient, and the backward gave {'one' if there else 'None'}",
                    known=True,
                )
            least = needs[1] * M * K + needs[0] * N * K  # dw multiplies x, dx multiplies w
            # Scalars; less than a row of either.
            expect(
                kept <= least + 64,
                f"{kept} bytes are kept for the backward, and the codes that it multiplies take {least}",
                known=True,
            )


@task("16.10", points=0)
def test_odd_sizes(seed):
    """ValueError in the forward, whichever of the three does not divide by 16"""
    for odd, needs_weight in ((0, True), (0, False), (1, True), (2, True)):
        M, K, N = (16 * size(seed + i, 2, 5) + 8 * (i == odd) for i in range(3))
        x, w, dy = drawn(seed, M, K), drawn(seed, N, K), drawn(seed, M, N)
        got = call_alone("scenarios.on_tensor_cores", x, w, dy, needs_weight=needs_weight)
        name, early = got if len(got) == 2 else ("none", True)
        expect(
            name == "ValueError" and early,
            f"M, K, N = {M}, {K}, {N}: ValueError in the forward is asked for, and there was {name}"
            + ("" if early else " in the backward"),
            cause=("dw sums over M, the tokens: they must divide by 16, too",) if odd == 0 else (),
        )
