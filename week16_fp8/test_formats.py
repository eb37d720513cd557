"""The checks of the formats (16.1) and of scales (16.2). Read them: nothing is hidden.

Your functions run elsewhere, in an interpreter that has NumPy and no torch; arrays come back here as tensors. What is
expected comes from torch's own float8 casts, which are not there.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch

from labkit.checks import call_alone, call_each, expect, same, task
from labkit.checks.verdict import NO_RESULT, CheckFailed

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
LARGEST_FLOAT32 = torch.finfo(torch.float32).max
FLOOR_OF_LOG = "floor(log2 q) in float32: a rounding below a power of two, log2 is that power's; frexp is exact"
BOTH = pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])


def values(fmt):
    """The values of the 256 codes, float32."""
    return torch.arange(256, dtype=torch.uint8).view(DTYPES[fmt]).float()


def coded(x, fmt):
    """The code of each number by torch's cast, uint8; x float32. NaN as our table has it."""
    code = x.clamp(-LARGEST[fmt], LARGEST[fmt]).to(DTYPES[fmt]).view(torch.uint8)
    return torch.where(x.isnan(), 0x7F + 128 * torch.signbit(x).to(torch.uint8), code)


def likely_codes(x, fmt, got):
    """{cause: what it would have given}. Where all that is wrong lies in one region, the region is the cause."""
    f = torch.where(x.isnan(), 0.0, x.abs().clamp(max=LARGEST[fmt]))
    sign, code, real = 128 * torch.signbit(x).to(torch.uint8), coded(f, fmt), values(fmt).double()
    below = code - (real[code.int()] > f.double()).to(torch.uint8)  # of the two neighbours, the one nearer to 0
    half = (real[below.int()] + real[below.int() + 1]) / 2 == f.double()
    normal = 2.0**-6 if fmt == "e4m3" else 2.0**-14

    def as_they_are(code):
        return torch.where(x.isnan(), 0x7F, code) + sign

    likely = {
        "rounded towards zero: the nearer of two codes is expected": as_they_are(below),
        "halves are rounded up: half way goes to the code whose last mantissa bit is 0": as_they_are(
            torch.where(half, below + 1, code)
        ),
        "halves are rounded down: half way goes to the code whose last mantissa bit is 0": as_they_are(
            torch.where(half, below, code)
        ),
        "subnormals are flushed to zero: below the smallest normal number there are more codes": as_they_are(
            torch.where(f < normal, 0, code)
        ),
        "beyond the largest value there is NaN: our table saturates": as_they_are(
            torch.where(x.abs() > LARGEST[fmt], 0x7F, code)
        ),
        "the sign is lost": coded(x.abs(), fmt),
        "the codes of the other format": coded(x, "e5m2" if fmt == "e4m3" else "e4m3"),
        "it ends at 240, and E4M3 reaches 448: NaN takes S.1111.111 alone": as_they_are(code.clamp(max=0x77))
        if fmt == "e4m3"
        else None,
    }
    if isinstance(got, torch.Tensor) and got.shape == x.shape and got.dtype == torch.uint8:
        wrong = got != coded(x, fmt)
        known = any(isinstance(mark, torch.Tensor) and torch.equal(mark, got) for mark in likely.values())
        for region, where in {
            "right but beyond the largest value: our table saturates there": x.abs() > LARGEST[fmt],
            "right but for NaN: 0x7f with its sign bit is expected": x.isnan(),
            "right but for the sign of NaN and of -0: they have one": (x.isnan() | (x == 0)) & torch.signbit(x),
            "right but below the smallest normal number": x.abs() < normal,
        }.items():
            if not known and wrong.any() and bool(where[wrong].all()):
                likely[region] = got
    return likely


def same_codes(got, x, fmt, bits=None):
    """As `same`, and shows the first number that has the wrong code."""
    want, likely, where = coded(x, fmt), likely_codes(x, fmt, got), ""
    if bits is not None:
        likely["uint16 holds the bits of BF16 numbers, and they were taken as whole numbers"] = coded(
            bits.to(torch.int32).float(), fmt
        )
    if isinstance(got, torch.Tensor) and got.shape == want.shape and got.dtype == want.dtype and (got != want).any():
        at = int((got != want).reshape(-1).nonzero()[0])
        number, a, b = x.reshape(-1)[at].item(), int(want.reshape(-1)[at]), int(got.reshape(-1)[at])
        given = f", of the bits 0x{int(bits.reshape(-1)[at]):04x}" if bits is not None else ""
        real = values(fmt).tolist()
        where = f" (the first wrong one: {number:.9g}{given}, is 0x{a:02x} = {real[a]:g}, got 0x{b:02x} = {real[b]:g})"
    same(got, want, what=f"the codes in {fmt}{where}", looks_like=likely)


def shuffled(seed, count):
    """0 .. count-1 in an order of the seed's."""
    return torch.from_numpy(np.random.default_rng(seed % 2**63).permutation(count))


class Unseen(NamedTuple):
    """A format that is in no table: the codes' values follow from the fields, one by one."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinity: bool

    def value(self, code):
        """Of one code below 0x80, by the two lines of the lecture."""
        e, m = code >> self.mantissa_bits, code & (2**self.mantissa_bits - 1)
        if e == 2**self.exponent_bits - 1 and (self.has_infinity or m == 2**self.mantissa_bits - 1):
            return math.inf if self.has_infinity and m == 0 else math.nan
        part = m / 2**self.mantissa_bits
        return 2.0 ** (e - self.bias) * (1 + part) if e else 2.0 ** (1 - self.bias) * part

    def values(self):
        """As `values`."""
        positive = torch.tensor([self.value(code) for code in range(128)])
        return torch.cat([positive, -positive])

    def finite(self):
        """The positive ones in order, from 0 on."""
        positive = self.values()[:128]
        return positive[positive.isfinite()]

    def coded(self, x):
        """As `coded`: between two codes the nearer, half way the even one."""
        real = self.finite().double()
        y = x.double().abs().clamp(max=float(real[-1])).nan_to_num(0.0)
        above = torch.searchsorted(real, y).clamp(min=1)
        to_it, from_below = real[above] - y, y - real[above - 1]
        code = torch.where((to_it < from_below) | ((to_it == from_below) & (above % 2 == 0)), above, above - 1)
        return (torch.where(x.isnan(), 0x7F, code) + 128 * torch.signbit(x)).to(torch.uint8)

    def fields(self):
        """Of a Format."""
        real = self.finite()
        numbers = {"largest": real[-1], "smallest_normal": 2.0 ** (1 - self.bias), "smallest_subnormal": real[1]}
        return {**self._asdict(), **{name: float(number) for name, number in numbers.items()}}


def an_unseen(fmt, seed):
    """A format with other fields than `fmt`, which spends its largest exponent as `fmt` does."""
    draw = np.random.default_rng([seed % 2**63, len(fmt), ord(fmt[1])])
    E = int(draw.choice([3, 5] if fmt == "e4m3" else [3, 4, 6]))
    shift = int(draw.integers(3, 60)) * int(
        draw.choice([-1, 1])
    )  # so many that tables of all are no answer; all float32
    return Unseen(E, 7 - E, 2 ** (E - 1) - 1 + shift, fmt == "e5m2")


def both_formats(what, known, fmt, unseen, other):
    """What came back for a format of the lecture, and what to hold against the other one: called once that is right."""
    got = call_alone("given.unseen.both", what, known, fmt, unseen, other.fields())
    if not isinstance(got, tuple) or len(got) != 3:
        raise CheckFailed(NO_RESULT, f"{what} gave no answer that can be read")

    def judge(want: torch.Tensor) -> None:
        text = f"in a format with {other}, which the check has put into FORMATS, "
        if isinstance(got[1], str):
            expect(
                False, f"{text}{what} raises {got[1]}: field sizes and bias stand there, for every format", known=True
            )
        alone = f"{what} of one number, of shape (),"
        if isinstance(got[2], str):
            expect(False, f"{alone} raises {got[2]}: any shape is expected", known=True)
        same(got[2], got[0].reshape(-1)[:1], what=f"what {alone} gives")
        cause = f"right for {fmt}, and not for other fields: sizes, bias and limits stand in FORMATS"
        same(got[1], want, what=f"{text}what {what} gives", looks_like={cause: got[1]} if what == "decode" else {})

    return got[0], judge


@task("16.1", points=3)
@BOTH
def test_decode(fmt, seed):
    """All 256 codes, in any order and shape; and those of a format that is drawn"""
    codes = shuffled(seed, 256).to(torch.uint8).reshape(2 + 2 * (seed % 2), -1, 8)
    want, other = values(fmt)[codes.long()], an_unseen(fmt, seed)
    got, judge = both_formats("decode", codes, fmt, codes.flip(0), other)
    normal = 2.0**-6 if fmt == "e4m3" else 2.0**-14
    small = want.isfinite() & (want.abs() < normal)
    same(
        got,
        want,
        what=f"the values of {fmt}",
        looks_like={
            "twice as large: the bias is 1 too small": want * 2,
            "half as large: the bias is 1 too large": want / 2,
            "subnormals are half as large: their exponent is 1 - bias": torch.where(small, want / 2, want),
            "subnormals have no implicit 1": torch.where(small, torch.copysign(normal + want.abs(), want), want),
            "the sign bit is ignored": want.abs(),
            "an infinity where the format has none: E4M3 has only S.1111.111 to spare": torch.where(
                want.isnan(), math.inf, want
            ),
            "the largest exponent is not all NaN's: E4M3 spends S.1111.111 alone, and reaches 448": torch.where(
                want.abs() >= 256, math.nan, want
            )
            if fmt == "e4m3"
            else None,
            "the largest exponent as IEEE 754 has it: E4M3 has no infinity, and spends S.1111.111 alone on NaN": (
                torch.where(want.abs() > 256, math.nan, torch.where(want.abs() == 256, want * math.inf, want))
            )
            if fmt == "e4m3"
            else None,
        },
    )
    zeros = got.reshape(-1)[codes.reshape(-1) == 128]
    expect(bool(torch.signbit(zeros).all()), f"the code 0x80 of {fmt} is -0.0, and 0.0 came back", known=True)
    judge(other.values()[codes.flip(0).long()])


@task("16.1", points=5)
@BOTH
def test_encode_every_bf16_number(fmt, seed):
    """All 65536 BF16 numbers, given as their bits; also in a format that is drawn"""
    order = shuffled(seed, 1 << 16).to(torch.int32)
    bits = torch.from_numpy(order.numpy().astype(np.uint16)).reshape(64, -1)
    x = (order << 16).view(torch.float32).reshape(64, -1)
    other = an_unseen(fmt, seed)
    got, judge = both_formats("encode", bits, fmt, bits.flip(0), other)
    same_codes(got, x, fmt, bits)
    judge(other.coded(x.flip(0)))


@task("16.1", points=4)
@BOTH
def test_encode_around_every_boundary(fmt, seed):
    """float32: every value, every half between two, and what lies next to them; also in a format that is drawn"""
    steps, other = values(fmt)[:128], an_unseen(fmt, seed)
    x, y = (boundaries(one[one.isfinite()], seed) for one in (steps, other.finite()))  # 0 and the positive ones
    got, judge = both_formats("encode", x, fmt, y, other)
    same_codes(got, x, fmt)
    judge(other.coded(y))


def boundaries(steps, seed):
    """A format's values, the halves between them, and their neighbours, in an order of the seed's."""
    half = (steps[1:] + steps[:-1]) / 2
    places = torch.cat([steps, half, torch.tensor([steps[-1] * 1.03, 1e30, math.inf])])
    near = [torch.nextafter(places, torch.tensor(to)) for to in (-math.inf, math.inf)]
    x = torch.cat([places, *near, torch.tensor([1e-45, 1e-39, 0.0, math.nan, math.nan])])
    return torch.cat([x, -x])[shuffled(seed, 2 * len(x))]


# ---- 16.2


def amaxes(seed, shape, low=-12.0, high=6.0):
    """Amaxes over many powers of ten, float32."""
    draw = np.random.default_rng(seed % 2**63)
    return torch.from_numpy(np.asarray(10 ** draw.uniform(low, high, shape), dtype=np.float32))


def margin_of(seed, *more):
    """Of so many that no table has them, and none whose double is its power of two."""
    return int(np.random.default_rng([seed % 2**63, 16, *more]).integers(3, 21))


def quotient(amax, fmt, margin=0, epsilon=0.0):
    """largest / (max(amax, epsilon) 2^margin), float64."""
    return LARGEST[fmt] / (amax.double().clamp(min=epsilon) * 2.0**margin)


@task("16.2", points=2)
@BOTH
def test_scale(fmt, seed):
    """largest / amax, with a margin"""
    for k, (shape, margin) in enumerate((((3, 5), 0), ((7,), margin_of(seed, 0)), ((), margin_of(seed, 1)), ((), 0))):
        amax = amaxes(seed + k, shape)
        q = quotient(amax, fmt, margin)
        got = call_alone("scaling.scale_from_amax", amax, fmt, margin=margin)
        same(
            got,
            q.float(),
            tol=q * 2.0**-22,  # two roundings to float32, and one to spare
            what=f"the scale for {fmt} with margin {margin}",
            looks_like={
                "upside down: amax is to land on the largest value": (1 / q).float(),
                "the margin goes the wrong way: it makes room, so the scale gets smaller": (q * 4.0**margin).float()
                if margin
                else None,
                "the margin is ignored": (q * 2.0**margin).float() if margin else None,
                "rounded down to a whole number": q.floor().float(),
                "the other format's largest value": quotient(amax, "e5m2" if fmt == "e4m3" else "e4m3", margin).float(),
            },
        )


@task("16.2", points=2)
def test_epsilon(seed):
    """An amax below epsilon counts as epsilon"""
    epsilon, fmt = float(amaxes(seed, (1,), -7.0, -3.0)[0]), ("e4m3", "e5m2")[margin_of(seed) % 2]
    factors = torch.tensor([0.0, 1e-6, 0.01, 0.5, 0.99, 1.01, 2.0, 1e3, 1e6])
    amax = (epsilon * factors.double()).float()
    q = quotient(amax, fmt, 0, epsilon)
    floor = (LARGEST[fmt] / amax.double()).clamp(max=LARGEST_FLOAT32)
    same(
        call_alone("scaling.scale_from_amax", amax, fmt, epsilon=epsilon),
        q.float(),
        tol=q * 2.0**-22,
        what=f"the scale with epsilon {epsilon:.3g} for amax / epsilon = {factors.tolist()}",
        looks_like={
            "epsilon comes after the division: it bounds amax, not the scale": torch.where(
                amax > 0, floor.clamp(min=epsilon), 1.0
            ).float(),
            "epsilon is ignored": torch.where(amax > 0, floor, 1.0).float(),
            "epsilon is added to amax: amax counts as the larger of the two": (
                LARGEST[fmt] / (amax.double() + epsilon)
            ).float(),
        },
    )


def likely_scales(got, want, tol, amax, epsilon):
    """{cause: got} if that is all that is wrong with the scales for amaxes that tell nothing."""
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or not got.is_floating_point():
        return {}
    wrong = ~((got.double() - want.double()).abs() <= tol)
    tiny = (amax > 0) & (amax < 1e-30)
    causes = {
        "0 with an epsilon counts as epsilon: the scale is 1 without an epsilon alone": (amax == 0) & (got == 1)
        if epsilon
        else None,
        "infinite for a tiny amax: the largest float32 in its place": tiny & got.isinf() if not epsilon else None,
        "amax that is infinite or NaN: the scale is 1, with an epsilon too": ~amax.isfinite(),
    }
    return {
        text: got for text, where in causes.items() if where is not None and wrong.any() and bool(where[wrong].all())
    }


def beside_the_border(seed, fmt, margin):
    """Two amaxes around the border below which the quotient leaves float32, wherever the margin comes in, and one so large
    that amax 2^margin does."""
    below, above, large = np.random.default_rng([seed % 2**63, margin]).uniform(0.2, 1.0, 3).tolist()
    border = LARGEST[fmt] / LARGEST_FLOAT32
    most = min(LARGEST_FLOAT32, LARGEST[fmt] * 2.0 ** (125 - margin))  # the scale is then no subnormal
    return border * 2.0 ** (-margin - 6 * below), border * 2.0 ** (6 * above), most * 2.0 ** (large - 1.0)


@task("16.2", points=2)
def test_nothing_to_go_by(seed):
    """Blocks of zeros, NaN, infinity and next to nothing still get a finite scale above 0"""
    for fmt, epsilon in product(LARGEST, (0.0, float(amaxes(seed, (1,), -7.0, -3.0)[0]))):
        margin = margin_of(seed, ord(fmt[1]), epsilon > 0)
        amax = torch.tensor([0.0, math.inf, math.nan, *beside_the_border(seed, fmt, margin)])[shuffled(seed, 18) % 6]
        q, known = quotient(amax, fmt, margin, epsilon), amax.isfinite() & (amax.clamp(min=epsilon) > 0)
        want = torch.where(known, q.clamp(max=LARGEST_FLOAT32), 1.0).float()  # the 1 has no margin
        got = call_alone("scaling.scale_from_amax", amax, fmt, epsilon=epsilon, margin=margin)
        what = f"the scale for amax = {amax.tolist()}, {fmt}, epsilon {epsilon}, margin {margin}"
        tol = want.double() * 2.0**-21
        same(got, want, tol=tol, what=what, looks_like=likely_scales(got, want, tol, amax, epsilon))


@task("16.2", points=2)
@BOTH
def test_power_of_two(fmt, seed):
    """The largest power of two that is not above the quotient"""
    exact = LARGEST[fmt] / 2.0 ** torch.arange(-20, 20, 3)  # quotients that are powers of two
    above = torch.nextafter(exact, torch.tensor(math.inf))  # the quotient is a rounding below one
    for epsilon in (0.0, float(amaxes(seed, (1,), -7.0, -3.0)[0])):
        margin = margin_of(seed, epsilon > 0)
        tiny = torch.tensor(beside_the_border(seed, fmt, margin)[:2])
        amax = torch.cat([amaxes(seed, (8,)), exact, exact * 1.25, above, tiny])[shuffled(seed, 52)]
        power_of_two(amax, fmt, margin, epsilon)


def power_of_two(amax, fmt, margin, epsilon):
    q = quotient(amax, fmt, margin, epsilon).clamp(max=LARGEST_FLOAT32)
    power, bare = torch.frexp(q)[1], torch.frexp(quotient(amax, fmt, margin).clamp(max=LARGEST_FLOAT32))[1]
    same(
        call_alone("scaling.scale_from_amax", amax, fmt, margin=margin, epsilon=epsilon, power_of_two=True),
        torch.exp2(power - 1.0).float(),
        what=f"the scale for {fmt} with margin {margin}, epsilon {epsilon:.3g}",
        looks_like={
            "epsilon is ignored": torch.exp2(bare - 1.0).float() if epsilon else None,
            "no power of two": q.float(),
            "rounded to the nearest power of two: above the quotient, amax saturates": torch.exp2(
                torch.round(torch.log2(q))
            ).float(),
            "rounded up to a power of two: amax saturates": torch.exp2(torch.ceil(torch.log2(q))).float(),
            FLOOR_OF_LOG: torch.exp2(torch.floor(torch.log2(q.float()))),
        },
    )


def noise_of(y, fmt, flushed=0.5, saturated=True, subnormals=True, binade=-1):
    """The mean square error of rounding each y >= 0, by 16.2's theory; y float32, the noise float64. The keywords are
    what wrong answers leave out, or have elsewhere."""
    real, smallest, largest = values(fmt).double(), values(fmt)[1], LARGEST[fmt]
    held = y.clamp(max=largest)
    code = held.to(DTYPES[fmt]).view(torch.uint8)
    low = (code - (real[code.int()] > held).to(torch.uint8)).clamp(max=0x7D if fmt == "e4m3" else 0x7A).int()
    noise = (real[low + 1] - real[low]) ** 2 / 12
    # By exponents, of any y.
    bits, least = (3, -6) if fmt == "e4m3" else (2, -14)
    steps = 4.0 ** ((torch.frexp(y)[1] + binade).clamp(min=least if subnormals else None, max=127) - bits).double() / 12
    if not subnormals or binade != -1:
        noise = steps
    noise = torch.where(y < smallest * flushed, y.double() ** 2, noise)
    return torch.where(y > largest, (y.double() - largest) ** 2 if saturated else steps, noise)


@task("16.2", points=2)
@BOTH
def test_predicted_sqnr(fmt, seed):
    """What theory predicts on the plateau and on both cliffs"""
    draw = np.random.default_rng(seed % 2**63)
    # Of 8 significant bits each, x * scale is exact in float32; and an odd multiple of 1/256 between 1.1 and 1.9 takes
    # no x to a power of two or to the largest value: what lies just on a border is a matter of rounding.
    x = torch.from_numpy(draw.standard_normal((16, 50 + seed % 13)).astype(np.float32)).bfloat16().float()
    top = math.frexp(LARGEST[fmt] / float(x.abs().max()))[1] - 1
    low, far = (14, 24) if fmt == "e4m3" else (29, 40)  # nearly all subnormal; nearly all flushed
    powers = [-1, -3, 3, 5, -far // 2, -low, -far, -100]  # and one where the squares leave float32
    scales = [math.ldexp(1 + (2 * int(draw.integers(14, 115)) + 1) / 256, top + k) for k in powers]
    holes = x.clone()
    holes[::3, ::5] = 0.0
    xs = [*[x] * (len(scales) - 1), holes]
    for case, power in ((1, -83), (2, 70)):  # x whose own squares leave float32, below and above
        xs[case], scales[case] = x * 2.0**power, scales[case] * 2.0**-power
    got = call_each("scaling.predicted_sqnr", [(x, s, fmt) for x, s in zip(xs, scales)])
    for x, s, one in zip(xs, scales, got):
        y = x.abs() * s

        def sqnr(noise, y=y):
            return float(10 * torch.log10((y.double() ** 2).sum() / noise.sum()))

        same(
            one,
            sqnr(noise_of(y, fmt)),
            tol=1e-3,  # dB: a thousand float32 additions, one after another, are 2.6e-4 dB
            what=f"the SQNR in dB of {fmt} for the scale {s:g}, where amax * scale is "
            f"{float(y.max()) / LARGEST[fmt]:.3g} times the largest value",
            looks_like={
                "nothing saturates in it: beyond the largest value the error is the difference": sqnr(
                    noise_of(y, fmt, saturated=False)
                ),
                "nothing is flushed in it: below half the smallest subnormal the error is the number": sqnr(
                    noise_of(y, fmt, flushed=0.0)
                ),
                "all below the smallest subnormal is flushed in it: from half of it on it is rounded up": sqnr(
                    noise_of(y, fmt, flushed=1.0)
                ),
                "the binade is one too high: frexp's exponent is one more than log2": sqnr(noise_of(y, fmt, binade=0)),
                "the mean of the ratios: the ratio of the two sums is expected": float(
                    10 * torch.log10((y.double() ** 2 / noise_of(y, fmt)).mean())
                ),
                "20 log10: of a ratio of powers it is 10": 2 * sqnr(noise_of(y, fmt)),
                "the scale is left out": float(
                    10 * torch.log10((x.double() ** 2).sum() / noise_of(x.abs(), fmt).sum())
                ),
                "step^2 in place of step^2 / 12: an error lies anywhere within a step": sqnr(12 * noise_of(y, fmt)),
                "(step / 2)^2 in place of step^2 / 12: that is the largest error, not the mean": sqnr(
                    3 * noise_of(y, fmt)
                ),
                "the step goes on shrinking below the smallest normal number: subnormals are evenly spaced": sqnr(
                    noise_of(y, fmt, subnormals=False)
                ),
            },
        )
