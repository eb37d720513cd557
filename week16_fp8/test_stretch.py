"""Self-checks of the stretch tasks, for no points: `lab check 16.11`, say. `lab check week16` leaves them out.

What is expected is found in float64, where each number that a format has is exact, and each power of two, too."""

import math

import numpy as np
import pytest
import torch

from labkit.checks import call_alone, expect, same, task
from week16_fp8.test_week16 import close, kept_and_given

RULES = ("floor", "ceil", "even", "rceil")


def random(seed, *more):
    return np.random.default_rng([seed % 2**63, *more])


def drawn(seed, R, C):
    """Normal numbers whose rows and columns differ in size by powers of two, so that every choice of block shows."""
    draw = random(seed, R, C)
    spread = [2.0 ** (2 * draw.standard_normal(shape)) for shape in ((R, 1), (1, C))]
    return torch.from_numpy((draw.standard_normal((R, C)) * spread[0] * spread[1]).astype(np.float32))


def e4m3(x):
    """The E4M3 codes of float64 numbers, which saturate."""
    return x.clamp(-448, 448).float().to(torch.float8_e4m3fn).view(torch.uint8)


def wrong_within(got, want, region):
    """`got`, if all that is wrong lies in `region`; else None."""
    like = isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == want.dtype
    return got if like and bool(region[got != want].all()) else None


# ---- 16.11


def mx_codes(amax, rule):
    """The code of the scale of each block, by the lecture's rules."""
    x = amax.double()
    part, above = torch.frexp(x.nan_to_num(1.0, posinf=2.0**128))  # amax = part 2^above, part in [1/2, 1)
    one_more = {
        "floor": part < 0,
        "ceil": part > 1 / 2,
        "even": torch.round(part * 16) == 16,  # 1 + 3 bits, half to even
        "rceil": part > 7 / 8,  # 448 = 7/8 * 2^9
    }[rule]
    codes = torch.where(x == 0, 0, above - 9 + one_more + 127).clamp(0, 254)
    return torch.where(x.isnan(), 255, codes).to(torch.uint8)


def mx(x, rule, block=32):
    """(elements, codes, values in float64) of x in blocks along its rows."""
    parts = x.float().split(block, 1)
    codes = torch.cat([mx_codes(part.abs().amax(1, keepdim=True), rule) for part in parts], 1)
    scale = torch.where(codes == 255, math.nan, 2.0 ** (codes.double() - 127))
    scale = scale.repeat_interleave(block, 1)[:, : x.shape[1]]
    elements = e4m3(x.double() / scale)
    return elements, codes, elements.view(torch.float8_e4m3fn).double() * scale


@task("16.11", points=0)
@pytest.mark.parametrize("rule", RULES)
def test_scale_codes(rule, seed):
    """Every positive BF16 number, and float32 beside each border of the rules"""
    draw = random(seed)
    bf16 = torch.from_numpy(draw.permutation(1 << 15).astype(np.int32) << 16).view(torch.float32)
    places = torch.tensor([1.0, 1.5, 1.75, 1.875, 1.9375]) * 2.0 ** torch.from_numpy(draw.integers(-110, 110, (60, 1)))
    near = [torch.nextafter(places.float(), torch.tensor(to)) for to in (0.0, math.inf)]
    amax = torch.cat([bf16, *(x.float().reshape(-1) for x in (places, *near))])
    amax = amax[torch.from_numpy(draw.permutation(len(amax)))].view(-1, 4)
    want, got = mx_codes(amax, rule), call_alone("stretch.mxfp8.scale_codes", amax, rule)
    log2 = torch.ceil(torch.log2(amax / 448)) if rule == "rceil" else torch.floor(torch.log2(amax)) - 8
    rounding = torch.where(amax.isfinite(), (log2 + 127).clamp(0, 254), want.float()).to(torch.uint8)
    same(got, want, what=f"the scales' codes by the rule {rule!r}", looks_like={
        **{f"the codes of {other!r}": mx_codes(amax, other) for other in RULES if other != rule},
        "log2 in float32 rounds, and is one off beside a power of two: the bits are exact":
            rounding if rule in ("floor", "rceil") else None,
        "right but where the code would fall below 0: it stops at 0": wrong_within(got, want, want == 0),
        "the scale is twice as large: 448 is 2^8 (1 + 3/4)": mx_codes(amax.double() * 2, rule) + amax.isinf().byte(),
        "right but for NaN: its code is 255": wrong_within(got, want, amax.isnan()),
    })  # fmt: skip


@task("16.11", points=0)
@pytest.mark.parametrize("rule", RULES)
def test_to_mx(rule, seed):
    """Ragged rows; an outlier, zeros, tiny values, a NaN, an infinity; float32 and BF16"""
    draw = random(seed, 1)
    for dtype, ragged in ((torch.float32, 1), (torch.bfloat16, 1), (torch.float32, 0)):
        R, C = int(draw.integers(9, 20)), 32 * int(draw.integers(3, 6)) + ragged * int(draw.integers(1, 32))
        x = drawn(seed, R, C)
        x[0, :32], x[1, :32], x[2, 3], x[3, -1], x[4, 5] = 0.0, x[1, :32] * 2.0**-125, math.nan, -math.inf, 3e5
        x[5, :32] = 2.0 * (1 + torch.arange(32) / 32)  # its amax is 4 (1 - 1/64): it saturates under floor and even
        x = x.to(dtype)
        elements, codes, _ = mx(x, rule)
        other, told = "rceil" if rule == "floor" else "floor", f"{R} x {C}, {dtype}, {rule!r}"
        got = call_alone("stretch.mxfp8.to_mx", x, rule)
        expect(isinstance(got, (tuple, list)) and len(got) == 2, "to_mx gives a pair: the elements, and the scales")
        same(got[1], codes, what=f"the scales' codes of {told}", looks_like={
            f"the codes of {other!r}": mx(x, other)[1], "blocks of 16: MX has 32": mx(x, rule, 16)[1],
            "one scale for a whole row": mx(x, rule, C)[1].expand_as(codes),
        })  # fmt: skip
        known = (codes != 255).repeat_interleave(32, 1)[:, :C]  # what stands in a block of NaN is nobody's matter
        scale = (2.0 ** (codes.double() - 127)).repeat_interleave(32, 1)[:, :C]
        whole = torch.is_tensor(got[0]) and got[0].shape == elements.shape and got[0].dtype == elements.dtype
        same(torch.where(known, got[0], elements) if whole else got[0], elements, what=f"the elements' codes of {told}",
            looks_like={cause: torch.where(known, mark, elements) for cause, mark in {
                "multiplied by the scale: it is what an element is multiplied by to come back": e4m3(x.double() * scale),
                "in E5M2: MXFP8 has E4M3 elements":
                    (x.double() / scale).clamp(-448, 448).float().to(torch.float8_e5m2).view(torch.uint8),
                "the sign is lost": elements & 0x7F,
            }.items()})  # fmt: skip


@task("16.11", points=0)
def test_from_mx(seed):
    """Elements and scales of every code, as numbers"""
    draw = random(seed, 2)
    R, C = int(draw.integers(40, 60)), 32 * int(draw.integers(6, 9)) + int(draw.integers(1, 32))
    elements = torch.from_numpy(draw.integers(0, 256, (R, C)).astype(np.uint8))
    codes = torch.from_numpy(draw.integers(100, 150, (R, -(-C // 32))).astype(np.uint8))
    codes[0, :6] = torch.tensor([0, 1, 119, 247, 254, 255])
    values = elements.view(torch.float8_e4m3fn).double()

    def by(scale):
        return (values * scale.repeat_interleave(32, 1)[:, :C]).float()

    power = torch.where(codes == 255, math.nan, 2.0 ** (codes.double() - 127))
    same(call_alone("stretch.mxfp8.from_mx", elements, codes), by(power), what="the values", looks_like={
        "divided by the scale: it is what an element is multiplied by": by(1 / power),
        "code 255 is NaN, and 2^128 came": by(torch.where(codes == 255, math.inf, power)),
        "the scales' order: 32 neighbours share one, they do not take turns":
            (values * power.repeat(1, 32)[:, :C]).float(),
    })  # fmt: skip


@task("16.11", points=0)
@pytest.mark.parametrize("rule", ["floor", "rceil"])
def test_mx_product(rule, seed):
    """Three products, each rounded along what it sums over; BF16, too"""
    draw = random(seed, 3)
    M, K, N = (32 * int(draw.integers(2, 4)) + int(draw.integers(1, 32)) for _ in range(3))
    x, w, dy = drawn(seed, M, K), drawn(seed + 1, N, K), drawn(seed + 2, M, N)

    def q(t, how=rule):
        return mx(t, how)[2]

    def turned(t):
        return q(t.t()).t()

    y, dx, dw = call_alone("scenarios.mx_product", x, w, dy, rule)
    other = "rceil" if rule == "floor" else "floor"
    close(y, q(x), q(w).t(), "y", {
        f"the scales of {other!r}": q(x, other) @ q(w, other).t(), "w is not rounded": q(x) @ w.double().t(),
        "w is rounded along N: this product sums over K": q(x) @ turned(w).t(),
    })  # fmt: skip
    close(dx, q(dy), turned(w), "dx", {
        "w as the forward had rounded it: this product sums over N": q(dy) @ q(w),
        "w is rounded twice, along K and then along N": q(dy) @ turned(q(w).float()),
        f"the scales of {other!r}": q(dy, other) @ q(w.t(), other).t(),
        "w is not rounded": q(dy) @ w.double(), "dy is not rounded": dy.double() @ turned(w),
    })  # fmt: skip
    close(dw, q(dy.t()), turned(x), "dw", {
        "x as the forward had rounded it: this product sums over the tokens": q(dy.t()) @ q(x),
        "dy as dx had rounded it: this product sums over the tokens": q(dy).t() @ turned(x),
        "x is rounded twice, along K and then along the tokens": q(dy.t()) @ turned(q(x).float()),
        "x is not rounded": q(dy.t()) @ x.double(), "dy is not rounded": dy.t().double() @ turned(x),
    })  # fmt: skip
    low = call_alone("scenarios.mx_product", x.bfloat16(), w.bfloat16(), dy.bfloat16(), rule)
    for got, name in zip(low, ("y", "dx", "dw")):
        expect(got.dtype == torch.bfloat16, f"{name} of BF16 operands is {got.dtype}: it has x's own dtype", known=True)


@task("16.11", points=0)
def test_mx_product_keeps(seed):
    """What is kept for the backward, and no gradient that nobody wants"""
    kept_and_given("scenarios.mx_kept", drawn(seed, 70, 80), drawn(seed + 1, 60, 80), drawn(seed + 2, 70, 60))
