"""Self-checks of the stretch tasks, for no points: `lab check 16.11`, say. `lab check week16` leaves them out.

What is expected is found in float64, where each number that a format has is exact, and each power of two, too."""

import numpy as np
import pytest
import torch

from labkit.checks import call_alone, same, task
from week16_fp8.test_week16 import amaxes, close, drawn, equal, kept_and_given, operands, random

RULES = ("floor", "ceil", "even", "rceil")


def e4m3(x, dtype=torch.float8_e4m3fn):
    """Float64 numbers in E4M3, which saturates."""
    return x.clamp(-448, 448).float().to(dtype)


def mx_codes(amax, rule):
    """The code of the scale of each block, by the lecture's rules."""
    part, above = torch.frexp(amax.double().nan_to_num(1.0, posinf=2.0**128))  # amax = part 2^above, part in [1/2, 1)
    up = {"floor": part < 0, "ceil": part > 1 / 2, "even": part >= 31 / 32, "rceil": part > 7 / 8}  # 448 = 7/8 * 2^9
    codes = torch.where(amax == 0, 0, above - 9 + up[rule] + 127).clamp(0, 254)
    return codes.masked_fill(amax.isnan(), 255).to(torch.uint8)


def scales(codes, C):
    """2^(c - 127) of each block's code, for each of C columns; float64."""
    codes = codes.repeat_interleave(32, 1)[:, :C].double()
    return torch.where(codes == 255, torch.nan, 2.0 ** (codes - 127))


def mx(x, rule):
    """(elements, codes, values in float64, scales) of x in blocks along its rows."""
    codes = mx_codes(amaxes(x.float(), 1, 32), rule)
    scale = scales(codes, x.shape[1])
    elements = e4m3(x.double() / scale)
    return elements.view(torch.uint8), codes, elements.double() * scale, scale


def only(where, want, got):
    """`want` there, and elsewhere what came, if that is a tensor like it."""
    alike = torch.is_tensor(got) and got.shape == want.shape and got.dtype == want.dtype
    return torch.where(where, want, got) if alike else want


@task("16.11", points=0)
@pytest.mark.parametrize("rule", RULES)
def test_scale_codes(rule, seed):
    """Every positive BF16 number, and float32 beside each border of the rules"""
    draw = random(seed)
    bf16 = torch.from_numpy(draw.permutation(1 << 15).astype(np.int32) << 16).view(torch.float32)
    places = torch.tensor([1.0, 1.5, 1.75, 1.875, 1.9375]) * 2.0 ** torch.from_numpy(draw.integers(-110, 110, (60, 1)))
    near = [torch.nextafter(places.float(), torch.tensor(to)) for to in (0.0, torch.inf)]
    amax = torch.cat([bf16, torch.full((8,), torch.inf), *(x.float().reshape(-1) for x in (places, *near))])
    amax = amax[torch.from_numpy(draw.permutation(len(amax)))].view(-1, 2, 2)
    want, got = mx_codes(amax, rule), call_alone("stretch.mxfp8.scale_codes", amax, rule)
    log2 = torch.ceil(torch.log2(amax / 448)) if rule == "rceil" else torch.floor(torch.log2(amax)) - 8
    f, turns = torch.frexp(amax)[0] * 2 - 1, {"ceil": 1 / 2, "even": 31 / 32, "rceil": 7 / 8}.get(rule, 2)
    rounding = torch.where(amax.isfinite(), (log2 + 127).clamp(0, 254), want.float()).to(torch.uint8)
    same(got, want, what=f"the scales' codes by the rule {rule!r}", looks_like={
        **{f"the codes of {other!r}": mx_codes(amax, other) for other in RULES if other != rule},
        "log2 in float32 rounds, and is one off beside a power of two: the bits are exact":
            rounding if rule in ("floor", "rceil") else None,
        "right but where the code would fall below 0: it stops at 0": only(want != 0, want, got),
        "the scale is twice as large: 448 is 2^8 (1 + 3/4)": mx_codes(amax.double() * 2, rule) + amax.isinf().byte(),
        "right but for NaN: its code is 255": only(~amax.isnan(), want, got),
        "right but for an infinity: it counts as 2^128": only(~amax.isinf(), want, got),
        f"right but exactly where {rule!r} turns": only((torch.frexp(amax)[0] != turns) & amax.isfinite(), want, got),
        "one more from too small an f on: 3 bits of mantissa round to 2 from 1 + 15/16 on":
            only((f < 1 / 2) | (f >= 15 / 16) | ~amax.isfinite(), want, got) if rule == "even" else None,
    })  # fmt: skip


@task("16.11", points=0)
@pytest.mark.parametrize("rule", RULES)
def test_to_mx(rule, seed):
    """Ragged rows; an outlier, zeros, tiny values, a NaN, an infinity; float32 and BF16"""
    draw = random(seed, 1)
    for dtype, ragged in ((torch.float32, 1), (torch.bfloat16, 1), (torch.float32, 0)):
        R, C = int(draw.integers(9, 20)), 32 * int(draw.integers(3, 6)) + ragged * int(draw.integers(1, 32))
        x = drawn(seed, R, C)
        x[0, :32], x[1, :32], x[2, 3], x[3, -1], x[4, 5] = 0.0, x[1, :32] * 2.0**-125, torch.nan, -torch.inf, 3e5
        x[5, :32] = 2.0 * (1 + torch.arange(32) / 32)  # its amax is 4 (1 - 1/64): it saturates under floor and even
        x = x.to(dtype)
        elements, codes, values, scale = mx(x, rule)
        text, got = f"{R} x {C}, {dtype}, {rule!r}", call_alone("stretch.mxfp8.to_mx", x, rule)
        equal(len(got) if isinstance(got, (tuple, list)) else 1, 2, "how many tensors to_mx gives: elements and scales")
        same(got[1], codes, what=f"the scales' codes of {text}", looks_like={
            **{f"the codes of {other!r}": mx(x, other)[1] for other in RULES if other != rule},
            "one scale for a whole row": mx_codes(x.float().abs().amax(1, keepdim=True), rule).expand_as(codes),
        })  # fmt: skip
        known, in_e5m2 = ~values.isnan(), e4m3(x.double() / scale, torch.float8_e5m2)  # free in a block of NaN
        same(got[0], only(known, elements, got[0]), what=f"the elements' codes of {text}", looks_like={
            "multiplied by the scale: it is what an element is multiplied by to come back":
                only(known, e4m3(x.double() * scale).view(torch.uint8), got[0]),
            "in E5M2: MXFP8 has E4M3 elements": only(known, in_e5m2.view(torch.uint8), got[0]),
        })  # fmt: skip


@task("16.11", points=0)
def test_from_mx(seed):
    """Elements and scales of every code, as numbers"""
    draw = random(seed, 2)
    R, C = int(draw.integers(40, 60)), 32 * int(draw.integers(6, 9)) + int(draw.integers(1, 32))
    elements = torch.from_numpy(draw.integers(0, 256, (R, C)).astype(np.uint8))
    codes = torch.from_numpy(draw.integers(100, 150, (R, -(-C // 32))).astype(np.uint8))
    codes[0, :6] = torch.tensor([0, 1, 119, 247, 254, 255])
    values, scale = elements.view(torch.float8_e4m3fn).double(), scales(codes, C)
    by_turns = scales(codes, 32 * codes.shape[1])[:, ::32].repeat(1, 32)[:, :C]
    got = call_alone("stretch.mxfp8.from_mx", elements, codes)
    same(got, (values * scale).float(), what="the values", looks_like={
        "divided by the scale: it is what an element is multiplied by": (values / scale).float(),
        "code 255 is NaN, and 2^128 came": (values * scale.nan_to_num(torch.inf)).float(),
        "the scales' order: 32 neighbours share one, they do not take turns": (values * by_turns).float(),
    })  # fmt: skip


@task("16.11", points=0)
@pytest.mark.parametrize("rule", ["floor", "rceil"])
def test_mx_product(rule, seed):
    """Three products, each rounded along what it sums over; BF16, too"""
    draw = random(seed, 3)
    M, K, N = (32 * int(draw.integers(2, 4)) + (rule == "floor") * int(draw.integers(1, 32)) for _ in range(3))
    x, w, dy = operands(seed, M, K, N, spread=4.0)  # scales that differ by powers of two show in subnormals alone
    products = (  # what is summed, and both operands along it, with what else they have
        ("y", "K", ("x", x, "M"), ("w", w, "N")),
        ("dx", "N", ("dy", dy, "M"), ("w", w.t(), "K")),
        ("dw", "M", ("dy", dy.t(), "N"), ("x", x.t(), "K")),
    )
    other = "rceil" if rule == "floor" else "floor"
    for got, (name, summed, *pair) in zip(call_alone("scenarios.mx_product", x, w, dy, rule), products):
        a, b = (mx(one, rule)[2] for _, one, _ in pair)
        likely = {f"the scales of {other!r}": mx(pair[0][1], other)[2] @ mx(pair[1][1], other)[2].t()}
        for who, one, across in pair:
            turned = mx(one.t(), rule)[2].t()
            for cause, wrong in {
                f"{who} is rounded along {across}: {name} sums over {summed}": turned,
                f"{who} is rounded twice, along {across} and then along {summed}": mx(turned, rule)[2],
                f"{who} is not rounded": one.double(),
            }.items():
                likely[cause] = wrong @ b.t() if one is pair[0][1] else a @ wrong.t()
        close(got, a, b.t(), name, likely)
    low = call_alone("scenarios.mx_product", x.bfloat16(), w.bfloat16(), dy.bfloat16(), rule)
    equal([got.dtype for got in low], [torch.bfloat16] * 3, "the types of y, dx and dw of BF16 operands")


@task("16.11", points=0)
def test_mx_product_keeps(seed):
    """What is kept for the backward, and no gradient that nobody wants"""
    kept_and_given("scenarios.mx_kept", *operands(seed, 140, 150, 130))
