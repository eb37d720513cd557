"""Self-checks of NVFP4, for no points: `lab check 16.12`.

What is expected is found in float64. Two ways to write the same quotient may differ in float32's last bit, so numbers
are drawn anew until none lies so near a border that this would decide (`clear`)."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from labkit.checks import call_alone, field, same, task
from week16_fp8.test_stretch import e4m3, only
from week16_fp8.test_week16 import amaxes, close, drawn, equal, kept_and_given, laid_out, operands, random

NEAR = 2e-5  # float32's last bit is 1e-7, and a transform adds 16 numbers
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
Rounded = namedtuple("Rounded", "codes scales S wanted back clear")  # wanted: scales before rounding; back: float64


def e2m1(y, u=None):
    """(codes, clear) of float64 numbers: up where |y|'s place between its neighbours is above u, or to nearest."""
    size = y.abs().clamp(0, 6)
    low = torch.searchsorted(VALUES, size, right=True) - 1
    place = (size - VALUES[low]) / (VALUES[(low + 1).clamp(max=7)] - VALUES[low]).clamp(min=0.5)
    up = (place > 0.5) | ((place == 0.5) & (low % 2 == 1)) if u is None else u < place
    return (low + up + 8 * torch.signbit(y)).to(torch.uint8), (place - (0.5 if u is None else u)).abs() > NEAR


def nv(x, square=False, u=None, exact=False):
    """x in NVFP4; `exact`: with scales that are not rounded."""
    x, size = x.double(), (16 if square else 1, 16)
    amax = amaxes(x, *size)
    S = float(amax.max() / (6 * 448)) if 0 < amax.max() < torch.inf else 1.0
    wanted = torch.where(amax.isfinite(), amax / 6 / S, torch.nan)
    scales = wanted if exact else e4m3(wanted)
    scale = laid_out(scales.double(), x, *size) * S
    codes, apart = e2m1(torch.where(scale > 0, x / scale, 0.0), u)
    clear = torch.equal(*(e4m3(wanted * f).view(torch.uint8) for f in (1 - NEAR, 1 + NEAR)))
    clear &= bool((apart | ~(scale > 0) | (x == 0)).all())
    back = VALUES[(codes & 7).long()] * (1 - 2 * (codes >> 3).double()) * scale
    return Rounded(codes, scales, S, wanted, back, clear)


def settled(seed, make):
    """What `make` gives for the first seed from this one on whose roundings, its last, are all clear."""
    draws = (make(seed + 7919 * offset) for offset in range(200))
    return next(made for made in draws if all(one.clear for one in made[-1]))


@task("16.12", points=0)
@pytest.mark.parametrize("way", ["nearest", "stochastic"])
def test_to_e2m1(way, seed):
    """Every value, every place between two, beyond 6; noise on a grid that float32 has exactly"""
    draw = random(seed)
    y = torch.from_numpy(draw.permutation(np.arange(-8 * 64, 8 * 64 + 1) / 64.0)).float()
    y = torch.cat([y, -torch.zeros(3), torch.tensor([1e30, -1e30, 1e-30, 0.25, 2.5, 5.0, -3.5])])
    if way == "nearest":
        y = torch.cat([y, torch.nextafter(y, torch.tensor(9.0)), torch.nextafter(y, torch.tensor(-9.0))])
    u = None if way == "nearest" else torch.from_numpy(draw.integers(0, 64, y.shape) / 64.0)
    x, want = y.double(), e2m1(y.double(), u)[0]
    added = want if u is None else e2m1(x, 1 - u - 2.0**-9)[0]  # it goes up where noise is at least 1 - place
    same(call_alone("stretch.nvfp4.to_e2m1", y, u if u is None else u.float()), want, what=f"the codes, {way}", looks_like={
        "rounded towards zero": e2m1(x, 1.0)[0], "the sign is lost": want & 7,
        "minus zero is code 8": torch.where((want & 7) == 0, 0, want),
        "`y < 0` is not true of minus zero, which is code 8": torch.where(x == 0, 0, want),
        "steps of 0.5 throughout: they are 1 from 2 on, and 2 from 4 on": e2m1((x * 2).round() / 2)[0],
        "halves go up: half way goes to the even code": e2m1(x, 0.5 - 1e-12)[0] if u is None else None,
        "to nearest: noise is not looked at": e2m1(x)[0] if u is not None else None,
        "noise is added, and the sum rounded down: it goes up where noise is *below* the place": added,
        "by the sign: it is |y| that goes up": torch.where(torch.signbit(y), added, want),
    })  # fmt: skip


@task("16.12", points=0)
@pytest.mark.parametrize("square", [False, True], ids=["1 x 16", "16 x 16"])
def test_to_nvfp4(square, seed):
    """Ragged ends, an outlier, zeros, tiny values; stochastic and to nearest; NaN, infinity; BF16"""
    plain = ((torch.float32, False, bad) for bad in (-torch.inf, torch.nan, 0.0))
    for dtype, stochastic, bad in ((torch.bfloat16, True, 1.0), (torch.float32, False, 1.0), *plain):

        def make(seed, dtype=dtype, stochastic=stochastic, bad=bad):
            draw = random(seed, 4)
            R, C = (16 * int(draw.integers(2, 4)) + int(draw.integers(1, 16)) for _ in range(2))
            x = drawn(seed, R, C) * bool(bad)
            x[row := int(draw.integers(16, R)), -1] = 64 * x.abs().max()
            x[row, :16] = x[0, :16] = 0.0
            x[:16, 16:32] *= 2.0**-30  # a block whose scale is 0
            x[1, 1] *= bad
            u = torch.from_numpy(draw.random((R, C), dtype=np.float32)) if stochastic else None
            return x.to(dtype), u, [nv(x.to(dtype), square, u)]

        x, u, [want] = settled(seed, make)
        got, noise = call_alone("scenarios.nv_there", x, square, u)
        codes, scales, S = (field(got, name) for name in ("codes_RC", "scales", "S"))
        text, most = f" of {tuple(x.shape)}, blocks of {16 if square else 1} x 16", x.float().abs().max()
        same(float(S), want.S, tol=want.S * 2.0**-22, what=f"S{text}, the largest {float(most)}", looks_like={
            "S is amax / 6: the block scales reach 448": float(most / 6), "S is left out": 1.0,
            "S is amax / 448: elements reach 6": float(most / 448), "upside down: x ~ element * s * S": float(6 * 448 / most),
        } if 0 < most < torch.inf else {})  # fmt: skip
        same(scales, want.scales, what="the scales" + text, looks_like={
            "the other kind of block": nv(x, not square).scales, "to 448: a block's amax goes to 6": e4m3(want.wanted * 6 / 448),
            "powers of two: an E4M3 scale has a mantissa": e4m3(torch.exp2(want.wanted.log2().floor())),
            "a scale of 0 is raised to 2^-6, the smallest normal one": e4m3(want.wanted.clamp(min=2.0**-6)),
        })  # fmt: skip
        same(codes, only(~want.back.isnan(), want.codes, codes), what="the codes" + text, looks_like={  # free if NaN
            "to nearest: noise is not looked at": nv(x, square).codes if stochastic else None,
            "divided by the scale before it was rounded": nv(x, square, u, exact=True).codes,
        })  # fmt: skip
        equal(noise, [f"torch.float32 {list(x.shape)}"] * stochastic, "what noise is called with")


def hadamard(x, signs):
    """x D H, float64: the sign of an entry of H is the parity of the bits that both its indices have."""
    H = [[(-1) ** bin(a & b).count("1") / 4 for b in range(16)] for a in range(16)]
    return ((x.double().unflatten(1, (-1, 16)) * signs) @ torch.tensor(H, dtype=torch.float64)).flatten(1)


def signs_of(seed):
    return torch.tensor([1, -1, 1, *random(seed, 6).choice([-1, 1], 13)]).float()


@task("16.12", points=0)
def test_transformed(seed):
    """Small whole numbers, which BF16 has and whose sums are exact; no signs; a length that does not divide"""
    draw = random(seed, 5)
    x = torch.from_numpy(draw.integers(-99, 100, (int(draw.integers(3, 9)), 16 * int(draw.integers(2, 5)))))
    x, signs, ones = x.bfloat16(), signs_of(seed), torch.ones(16)
    got, alone, error = call_alone("scenarios.nv_transformed", x, signs)
    want = hadamard(x, signs).float()
    same(got, want, what="x D H", looks_like={
        "the signs are not looked at": hadamard(x, ones).float(),
        "H D: the signs come first": (hadamard(x, ones).unflatten(1, (-1, 16)) * signs).flatten(1).float(),
        "not divided by 4: H's columns have length 1": 4 * want, "divided by 16: H's columns have length 1": want / 4,
    })  # fmt: skip
    same(alone, x, what="x without signs (it stays as it is)")
    equal(error, "ValueError", "the error for a length that 16 does not divide")


@task("16.12", points=0)
@pytest.mark.parametrize("tricks", ["all", "none", "no squares", "transform alone"])
def test_nv_product(tricks, seed):
    """Three products, with each trick where it belongs; dw in the master's dtype"""
    square, signs = tricks == "all", signs_of(seed) if tricks != "none" else None
    noisy = tricks in ("all", "no squares")

    def make(seed):
        draw = random(seed, 7)
        M, K, N = 16 * int(draw.integers(2, 4)), *(int(draw.integers(18, 32)) for _ in range(2))
        x, w, dy = operands(seed, M, K, N)  # N is not M: noise is given by shape
        dyt, xt = (t if signs is None else hadamard(t, signs) for t in (dy.t(), x.t()))
        u, v = (torch.from_numpy(draw.random(t.shape, dtype=np.float32)) if noisy else None for t in (dy, dyt))
        pairs = ((x,), (w, square)), ((dy, False, u), (w.t(), square)), ((dyt, False, v), (xt,))
        return x, w, dy, u, v, pairs, [nv(*one) for pair in pairs for one in pair]

    x, w, dy, u, v, pairs, rounded = settled(seed, make)
    products = call_alone("scenarios.nv_product", x, w, dy, square, signs, u, v)
    for i, (got, name, ((a, *_), (b, *_))) in enumerate(zip(products, ("y", "dx", "dw"), pairs)):
        qa, qb = (one.back for one in rounded[2 * i : 2 * i + 2])
        plain = nv(x.t()).back.t() if name == "dw" else qb.t()
        close(got, qa, qb.t(), name, {
            "dy is rounded to nearest": nv(a).back @ qb.t(), "the other kind of block for w": qa @ nv(b, not square).back.t(),
            "without the transform": nv(dy.t(), u=v).back @ plain if name == "dw" else qa @ plain,
            "the transform on one side alone: it does not cancel": qa @ plain,
        })  # fmt: skip
    y, _, dw = call_alone("scenarios.nv_product", x.bfloat16(), w, dy.bfloat16(), square, signs, u, v)
    what = "the type of y of a BF16 x, and whether dw of an FP32 master has BF16 values alone"
    equal([y.dtype, torch.equal(dw, dw.bfloat16().float())], [torch.bfloat16, False], what)


@task("16.12", points=0)
def test_nv_product_keeps(seed):
    """What is kept for the backward, and no gradient that nobody wants"""
    kept_and_given("scenarios.nv_kept", *operands(seed, 140, 150, 130))
