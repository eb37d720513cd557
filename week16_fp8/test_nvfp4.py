"""Self-checks of NVFP4, for no points: `lab check 16.12`.

What is expected is found in float64. Two ways to write the same quotient may differ in float32's last bit, so numbers
are drawn anew until none lies so near a border that this would decide (`clear`)."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from labkit.checks import call_alone, expect, field, same, task
from week16_fp8.test_stretch import drawn, e4m3, operands, random
from week16_fp8.test_week16 import close, kept_and_given

NEAR = 2e-5  # float32's last bit is 1e-7, and a transform adds 16 numbers
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
# codes, scales and S as NVFP4 has them; the scales before rounding; x after a way there and back, float64; whether no border is near.
Rounded = namedtuple("Rounded", "codes scales S wanted back clear")


def neighbour(y):
    """Of float64 numbers: the number in VALUES of the one at or below |y|, and |y|'s place between it and the next."""
    size = y.abs().clamp(0, 6)
    low = torch.searchsorted(VALUES, size, right=True) - 1
    return low, (size - VALUES[low]) / (VALUES[(low + 1).clamp(max=7)] - VALUES[low]).clamp(min=0.5)


def e2m1(y, u=None):
    """(codes, clear) of float64 numbers."""
    low, place = neighbour(y)
    up = (place > 0.5) | ((place == 0.5) & (low % 2 == 1)) if u is None else u < place
    return (low + up + 8 * torch.signbit(y)).to(torch.uint8), (place - (0.5 if u is None else u)).abs() > NEAR


def nv(x, square=False, u=None, exact=False):
    """x in NVFP4; `exact`: with scales that are not rounded."""
    x, rows = x.double(), 16 if square else 1
    whole = torch.nn.functional.pad(x.abs(), (0, -x.shape[1] % 16, 0, -len(x) % rows))
    amax = whole.unflatten(1, (-1, 16)).unflatten(0, (-1, rows)).amax((1, 3))
    S = float(amax.max() / (6 * 448))
    S = S if 0 < S < torch.inf else 1.0
    wanted = torch.where(amax.isfinite(), amax / 6 / S, torch.nan)
    scales = wanted if exact else e4m3(wanted)
    scale = scales.double().repeat_interleave(rows, 0)[: len(x)].repeat_interleave(16, 1)[:, : x.shape[1]] * S
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
    x, sign = y.double(), 8 * torch.signbit(y).byte()
    want, (low, place) = e2m1(x, u)[0], neighbour(x)
    added = want if u is None else e2m1(x, 1 - u - 2.0**-9)[0]  # it goes up where noise is at least 1 - place
    same(call_alone("stretch.nvfp4.to_e2m1", y, u if u is None else u.float()), want, what=f"the codes, {way},", looks_like={
        "rounded towards zero": low.byte() + sign,
        "steps of 0.5 throughout: they are 1 from 2 on, and 2 from 4 on": e2m1((x * 2).round() / 2)[0],
        "the sign is lost": want & 7, "minus zero is code 8": torch.where((want & 7) == 0, 0, want),
        "halves go up: half way goes to the even code": (low + (place >= 0.5)).byte() + sign if u is None else None,
        "to nearest: noise is not looked at": e2m1(x)[0] if u is not None else None,
        "noise is added, and the sum rounded down: it goes up where noise is *below* the place": added,
        "by the sign: it is |y| that goes up": torch.where(sign > 0, added, want),
    })  # fmt: skip


@task("16.12", points=0)
@pytest.mark.parametrize("square", [False, True], ids=["1 x 16", "16 x 16"])
def test_to_nvfp4(square, seed):
    """Ragged ends, an outlier, zeros, tiny values; stochastic and to nearest; NaN, infinity; BF16"""
    for dtype, stochastic, bad in (
        (torch.float32, True, 1.0), (torch.bfloat16, False, 1.0), *((torch.float32, False, bad) for bad in (-torch.inf, torch.nan, 0.0))
    ):  # fmt: skip

        def make(seed, dtype=dtype, stochastic=stochastic, bad=bad):
            draw = random(seed, 4)
            R, C = (16 * int(draw.integers(2, 4)) + int(draw.integers(1, 16)) for _ in range(2))
            x = drawn(seed, R, C) * bool(bad)
            x[size := int(draw.integers(16, R)), -1] = 64 * x.abs().max()
            x[size, :16] = x[0, :16] = 0.0
            x[:16, 16:32] *= 2.0**-30  # a block whose scale is 0
            x[1, 1] *= bad
            x, u = x.to(dtype), torch.from_numpy(draw.random((R, C), dtype=np.float32)) if stochastic else None
            return x, u, [nv(x, square, u)]

        x, u, [want] = settled(seed, make)
        got, asked = call_alone("scenarios.nv_there", x, square, u)
        told, most = f" of {tuple(x.shape)}, blocks of {16 if square else 1} x 16", x.float().abs().max()
        if special := not 0 < most < torch.inf:
            told += f", the largest {float(most)}"
        same(float(field(got, "S")), want.S, tol=want.S * 2.0**-22, what="S" + told, looks_like=None if special else {
            "S is amax / 6: the block scales reach 448": float(most / 6), "S is left out": 1.0,
            "S is amax / 448: elements reach 6": float(most / 448), "upside down: x ~ element * s * S": float(6 * 448 / most),
        })  # fmt: skip
        same(field(got, "scales"), want.scales, what="the scales" + told, looks_like={
            "the other kind of block": nv(x, not square).scales,
            "powers of two: an E4M3 scale has a mantissa": e4m3(torch.exp2(want.wanted.log2().floor())),
            "to 448: a block's amax goes to 6": e4m3(want.wanted * 6 / 448),
            "a scale of 0 is raised to 2^-6, the smallest normal one": e4m3(want.wanted.clamp(min=2.0**-6)),
        })  # fmt: skip
        codes = torch.where(want.back.isnan(), want.codes, field(got, "codes_RC"))  # in a block of NaN any may stand
        same(codes, want.codes, what="the codes" + told, looks_like={
            "to nearest: noise is not looked at": nv(x, square).codes if stochastic else None,
            "divided by the scale before it was rounded": nv(x, square, u, exact=True).codes,
        })  # fmt: skip
        once, asked = [["torch.float32", list(x.shape)]] * stochastic, [[kind, list(shape)] for kind, shape in asked]
        expect(asked == once, f"noise is called with {asked}, and with {once} is asked for", known=True)


def hadamard(x, signs):
    """x D H, float64: the sign of an entry of H is the parity of the bits that both its indices have."""
    odd = torch.tensor([[bin(a & b).count("1") % 2 for b in range(16)] for a in range(16)])
    return ((x.double().unflatten(1, (-1, 16)) * signs) @ ((1 - 2.0 * odd) / 4).double()).flatten(1)


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
        "not divided by 4: H's columns have length 1": 4 * want,
        "divided by 16: H's columns have length 1": want / 4,
    })  # fmt: skip
    same(alone, x, what="x without signs, which stays as it is,")
    expect(error == "ValueError", f"a length that 16 does not divide: ValueError, not {error}", known=True)


def signs_of(seed):
    signs = torch.from_numpy(random(seed, 6).choice([-1.0, 1.0], 16)).float()
    signs[:3] = torch.tensor([1.0, -1.0, 1.0])
    return signs


@task("16.12", points=0)
@pytest.mark.parametrize("tricks", ["all", "none", "no squares"])
def test_nv_product(tricks, seed):
    """Three products, with each trick where it belongs; dw in the master's dtype"""
    square, signs = tricks == "all", signs_of(seed) if tricks != "none" else None

    def turn(t):
        return t.double() if signs is None else hadamard(t, signs)

    def make(seed):
        draw = random(seed, 7)
        M, K, N = 16 * int(draw.integers(2, 4)), *(int(draw.integers(18, 32)) for _ in range(2))
        N += N == M
        x, w, dy = operands(seed, M, K, N)
        some = None if signs is None else draw
        u, v = (some and torch.from_numpy(some.random(shape, dtype=np.float32)) for shape in ((M, N), (N, M)))
        pairs = ((x,), (w, square)), ((dy, False, u), (w.t(), square)), ((turn(dy.t()), False, v), (turn(x.t()),))
        return x, w, dy, u, v, pairs, [nv(*one) for pair in pairs for one in pair]

    x, w, dy, u, v, pairs, rounded = settled(seed, make)
    products = call_alone("scenarios.nv_product", x, w, dy, square, signs, u, v)
    for i, (got, name, ((a, *_), (b, *_))) in enumerate(zip(products, ("y", "dx", "dw"), pairs)):
        qa, qb = (one.back for one in rounded[2 * i : 2 * i + 2])
        close(got, qa, qb.t(), name, {
            "dy is rounded to nearest": nv(a).back @ qb.t(),
            "the other kind of block for w": qa @ nv(b, not square).back.t(),
            "without the transform": nv(dy.t(), u=v).back @ nv(x.t()).back.t() if name == "dw" else qa @ qb.t(),
            "the transform on one side alone: it does not cancel": qa @ nv(x.t()).back.t() if name == "dw" else qa @ qb.t(),
        })  # fmt: skip
    y, _, dw = call_alone("scenarios.nv_product", x.bfloat16(), w, dy.bfloat16(), square, signs, u, v)
    expect(y.dtype == torch.bfloat16, f"y of a BF16 x is {y.dtype}", known=True)
    expect(not torch.equal(dw, dw.bfloat16().float()), "dw of an FP32 master has BF16 values alone", known=True)


@task("16.12", points=0)
def test_nv_product_keeps(seed):
    """What is kept for the backward, and no gradient that nobody wants"""
    kept_and_given("scenarios.nv_kept", *operands(seed, 140, 150, 130))
