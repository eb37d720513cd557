"""The checks of delayed scaling (16.3), of scales by block (16.4) and of the FP8 linear (16.5). Read them.

Expected products are computed in float64 from operands that torch's own cast has rounded. An FP32 sum of K terms may
differ from that by K roundings of 2^-24 of the sum of the terms' sizes (`sums`); everything before the sum must agree
exactly, so a wrong scale, format or block shows as a difference hundreds of times as large.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, same, task

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
LARGEST_FLOAT32 = torch.finfo(torch.float32).max


def drawn(seed, *shape, spread=2.0):
    """Normal numbers whose rows and columns differ in size by powers of two, so that every choice of block shows."""
    draw = np.random.default_rng(seed % 2**63)
    x = draw.standard_normal(shape) * 2.0 ** (spread * draw.standard_normal((shape[0], 1)))
    return torch.from_numpy((x * 2.0 ** (spread * draw.standard_normal(shape[1]))).astype(np.float32))


def random(seed, *more):
    return np.random.default_rng([seed % 2**63, *more])


def float32(number):
    """The number that float32 has: who computes in float32 has the same."""
    return float(np.float32(number))


def some_of(draw, *options):
    """More than half of all combinations, in any order: no two options go together, and each has all its values."""
    every = list(product(*options))
    return [every[k] for k in draw.permutation(len(every))[: len(every) // 2 + 1]]


def operands(seed, M, K, N, spread=2.0):
    """x [M, K], w [N, K] and dy [M, N]."""
    return [drawn(seed + i, *shape, spread=spread) for i, shape in enumerate(((M, K), (N, K), (M, N)))]


def size(seed, low, high):
    return int(np.random.default_rng((seed * 7919 + low) % 2**63).integers(low, high))


def one_scale(amax, fmt, epsilon, power_of_two):
    """16.2's rules for one number."""
    if not math.isfinite(amax) or max(amax, epsilon) == 0:
        return 1.0
    q = min(LARGEST[fmt] / max(amax, epsilon), LARGEST_FLOAT32)
    return math.ldexp(1.0, math.frexp(q)[1] - 1) if power_of_two else q


def scale_for(amax, fmt, epsilon=0.0, power_of_two=False):
    """`one_scale` of each: float32."""
    found = [one_scale(one, fmt, epsilon, power_of_two) for one in amax.reshape(-1).tolist()]
    return torch.tensor(found, dtype=torch.float32).reshape(amax.shape)


def cast(x, s, fmt):
    """round(x * s) by torch's cast; float64."""
    return (x.float() * s).clamp(-LARGEST[fmt], LARGEST[fmt]).to(DTYPES[fmt]).double()


# ---- 16.3


def delays(reduced, fmt, length, algorithm, margin, current=False, rolled=True):
    """The scales before each update and after the last, and the history, for amaxes that are reduced: [S, T]."""
    T = reduced.shape[1]
    scale, scales = torch.ones(T), [torch.ones(T)]
    past: list[torch.Tensor] = []
    for row in reduced:
        newest = torch.where(row.isfinite(), row, 0.0)
        past = [newest, *past][:length] if rolled else [newest]
        rows = [*past, *[torch.zeros(T)] * (length - len(past))]
        chosen = {
            "max": torch.stack(rows).amax(0),
            "most_recent": newest,
            "oldest": rows[-1],
            "max of those before": torch.stack(rows[1:] or rows).amax(0),
        }[algorithm]
        scale = torch.where(chosen > 0, scale_for(chosen * 2.0**margin, fmt), scale)
        scales.append(scale)
    if current:  # this step's amax for this step
        scales = [*scales[1:], scales[-1]]
    return torch.stack(scales), torch.stack([*past, *[torch.zeros(T)] * (length - len(past))])


def ulps(scales):
    """Two roundings to float32, and one to spare."""
    return scales.double() * 2.0**-22


def histories(seed, N, S, T):
    """Amaxes by rank [S, T], with an outlier, a step of zeros, and on several ranks one that is NaN or infinite."""
    draw = np.random.default_rng(seed % 2**63)
    found = [torch.from_numpy((2.0 ** draw.uniform(-12, 4, (S, T))).astype(np.float32)) for _ in range(N)]
    found[int(draw.integers(N))][int(draw.integers(1, S // 2)), 0] = 3e4
    for rank in found:
        rank[S // 2, 1] = 0.0
    return found, draw


@task("16.3", points=4)
@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_delayed(fmt, algorithm, seed):
    """One rank: blind at first, then from the history"""
    S, T, length, margin = size(seed, 9, 14), size(seed, 3, 7), size(seed, 3, 6), size(seed, 1, 21)
    (amax,), _ = histories(seed, 1, S, T)
    got, _ = call("scenarios.delay", [amax], fmt=fmt, length=length, algorithm=algorithm, margin=margin, alone=True)
    rules = (amax, fmt, length, algorithm, margin)
    scales, history = delays(*rules)
    other = "most_recent" if algorithm == "max" else "max"
    same(
        got[0][0],
        scales,
        tol=ulps(scales),
        what=f"the scales by step, {algorithm} of {length}, {fmt}, margin {margin},",
        looks_like={
            "this step's amax decides this step's scale: that is current scaling": delays(*rules, current=True)[0],
            f"the algorithm is {other}": delays(amax, fmt, length, other, margin)[0],
            "the oldest amax of the history decides": delays(amax, fmt, length, "oldest", margin)[0],
            "the newest amax does not count yet": delays(amax, fmt, length, "max of those before", margin)[0],
            "the other format's largest value": delays(
                amax, "e4m3" if fmt == "e5m2" else "e5m2", length, algorithm, margin
            )[0],
            "the history does not move, or it grows: after `length` steps an outlier must be forgotten": delays(
                amax, fmt, S + 1, algorithm, margin
            )[0],
            "the margin is ignored": delays(amax, fmt, length, algorithm, 0)[0] if margin else None,
        },
    )
    same(
        got[0][1],
        history,
        what="the history, the newest amax first,",
        looks_like={"the oldest amax comes first": history.flip(0)},
    )


def _known(amax, length):
    """Of each scale [S + 1, T], whether one of the last `length` amaxes before it says something."""
    known = amax.isfinite() & (amax > 0)
    rows = [known[max(0, step - length) : step].any(0) for step in range(len(amax) + 1)]
    return torch.stack([torch.ones_like(rows[0]), *rows[1:]])


@task("16.3", points=2)
def test_what_tells_nothing(seed):
    """Amaxes that are 0, NaN or infinite leave the scale as it was"""
    S, T, length = size(seed, 9, 14), size(seed, 4, 7), 2
    (amax,), draw = histories(seed, 1, S, T)
    for bad in (math.nan, math.inf, 0.0):
        for column in range(T):
            amax[int(draw.integers(S)), column] = bad
    amax[2:5, 2] = torch.tensor([math.nan, math.inf, 0.0])  # longer than the history
    amax[-2, 1:], amax[-1, 1:] = math.inf, math.nan  # what the history ends with
    amax[0, 0] = 1e-42  # its quotient leaves float32
    for algorithm, rows in (("max", length), ("most_recent", length), ("max", 1)):
        tells_nothing(amax, rows, algorithm)


def tells_nothing(amax, length, algorithm):
    got, _ = call("scenarios.delay", [amax], fmt="e5m2", length=length, algorithm=algorithm, margin=0, alone=True)
    scales, history = delays(amax, "e5m2", length, algorithm, 0)
    known, other = (_known(amax, length), "most_recent") if algorithm == "max" else (_known(amax, 1), "max")
    raw, repeated = amax[-length:].flip(0), [torch.zeros(amax.shape[1])]
    for row in amax:
        repeated.append(torch.where(row.isfinite(), row, repeated[-1]))
    same(
        got[0][1],
        history,
        what="the history",
        looks_like={
            "infinite and NaN amaxes enter the history: they tell nothing, and enter as 0": raw,
            "an infinite amax enters the history: it tells nothing, and enters as 0": raw.nan_to_num(0.0, math.inf),
            "a NaN enters the history: it tells nothing, and enters as 0": raw.nan_to_num(math.nan, 0.0),
            "an infinite amax enters the history as the largest float32: it tells nothing, and enters as 0": (
                raw.nan_to_num(0.0)
            ),
            "an amax that is not finite repeats the one before: it tells nothing, and enters as 0": torch.stack(
                repeated[-length:]
            ).flip(0),
        },
    )
    same(
        got[0][0],
        scales,
        tol=ulps(scales),
        what=f"the scales by step, {algorithm},",
        looks_like={
            "where nothing is known the scale is 1 again: it stays as it was": torch.where(known, scales, 1.0),
            f"the algorithm is {other}": delays(amax, "e5m2", length, other, 0)[0],
        },
    )
    same(got.inputs[0][0], amax, what="the amaxes after the updates, which are not to be changed,")


@task("16.3", points=4)
@pytest.mark.parametrize("N", [2, 3])
def test_delayed_over_ranks(N, seed):
    """The maximum over the ranks, also where one holds a NaN or a 0; one message of 2 T numbers"""
    S, T, length = size(seed, 6, 9), size(seed, 4, 7), 4
    for algorithm in ("max", "most_recent"):
        over_ranks(N, seed, S, T, length, algorithm)
    amax = [torch.tensor([5.0, 4.0, 3.0, 1.0, 2.0]) * (seed % 9 + r + 1) for r in range(N)]
    amax[0][0], amax[N - 1][1:3] = math.nan, math.inf
    most = torch.stack(amax).amax(0)
    got, _ = call("delayed.reduce_amax", [(one,) for one in amax])
    for place in range(N):
        same(
            got[place],
            torch.where(most.isfinite(), most, math.nan),
            rank=place,
            what="the reduced amaxes, of which some rank's was NaN or infinite",
        )


def over_ranks(N, seed, S, T, length, algorithm):
    amax = histories(seed, N, S, T)[0]
    # A maximum loses a NaN or keeps it by who holds it and where: so every rank holds some, in every place.
    for step in range(1, S):
        for place in range(T):
            if (step + place) % 2 == 0:
                amax[(step // 2 + place // 2) % N][step, place] = math.nan
    amax[seed % N][S // 2, S % 2], amax[0][S - 1, S % 2], amax[N - 1][S - 2, (S - 1) % 2] = math.inf, 2.0, math.inf
    for step in range(S):  # one rank has nothing but zeros in a tensor, and the others have values
        place = next(k for k in range(T) if all(bool(one[step, k].isfinite()) for one in amax))
        amax[(seed + step) % N][step, place] = 0.0
    got, ledgers = call("scenarios.delay", amax, fmt="e4m3", length=length, algorithm=algorithm, margin=0)
    stacked = torch.stack(amax)
    finite = stacked.isfinite().all(0)
    reduced = torch.where(finite, torch.where(stacked.isfinite(), stacked, 0.0).amax(0), math.nan)
    lost = torch.where(stacked.isfinite(), stacked, 0.0).amax(0)
    summed = torch.where(finite, stacked.sum(0), math.nan)
    voided = torch.where((stacked == 0).any(0), 0.0, reduced)
    rules = ("e4m3", length, algorithm, 0)
    scales, history = delays(reduced, *rules)
    other_way = "most_recent" if algorithm == "max" else "max"
    for place, own in enumerate(amax):
        likely = {
            "this rank's own amaxes: they are not reduced over the ranks": delays(own, *rules)[1],
            "another rank's NaN or infinity is lost: the others' maximum came out, NaN is expected": delays(
                lost, *rules
            )[1],
            "the sum over the ranks, expected the maximum": delays(summed, *rules)[1],
            "one rank's 0 voids the others' amaxes: their maximum counts": delays(voided, *rules)[1],
        }
        came, other = got[place][1], delays(lost, *rules)[1]
        if isinstance(came, torch.Tensor) and came.shape == other.shape and not torch.equal(came, other):
            theirs = torch.stack([delays(one, *rules)[1] == came for one in amax]).any(0)  # some rank's own number
            some = torch.where(theirs & (history == 0), came, history)
            likely["some maximum has lost a NaN, and others have not: a flag of its own must travel"] = some
        same(came, history, rank=place, what="the history", looks_like=likely)
        same(
            got[place][0],
            scales,
            rank=place,
            tol=ulps(scales),
            what=f"the scales by step, {algorithm},",
            looks_like={
                f"the algorithm is {other_way}": delays(reduced, "e4m3", length, other_way, 0)[0],
                "this rank's own amaxes: they are not reduced over the ranks": delays(own, *rules)[0],
                "another rank's NaN or infinity is lost: the others' maximum came out, NaN is expected": delays(
                    lost, *rules
                )[0],
            },
        )
        calls = [event for event in ledgers[place].events if event.bytes]
        expect(
            len(calls) <= S and all(event.kind == "all_reduce" and event.bytes <= 8 * T for event in calls),
            f"rank {place}: each update may make one all_reduce of at most {8 * T} bytes; in {S} updates there were "
            + ", ".join(f"{event.kind} of {event.bytes}" for event in calls[:6]),
        )


# ---- 16.4


def amaxes(x, rows, columns):
    """The largest size in each block, block after block."""
    bands = [band.abs().amax(0) for band in x.split(rows)]
    return torch.stack([torch.stack([block.max() for block in band.split(columns)]) for band in bands])


def laid_out(blocks, x, rows, columns):
    """What belongs to blocks, for each number of x."""
    R, C = x.shape
    return blocks[torch.arange(R) // rows][:, torch.arange(C) // columns]


def by_block(x, rows, columns, epsilon=0.0, power_of_two=True, fmt="e4m3"):
    """(scales by block, by element)."""
    scales = scale_for(amaxes(x.float(), rows, columns), fmt, epsilon, power_of_two)
    return scales, laid_out(scales, x, rows, columns)


def on_grid(x, rows=1, columns=128, **how):
    """Rounded in blocks, and scaled back; float64."""
    s = by_block(x, rows, columns, **how)[1]
    return cast(x, s, "e4m3") / s.double()


FLOOR_OF_LOG = "floor(log2 q) in float32: a rounding below a power of two, log2 is that power's; frexp is exact"


def floored(amax, fmt):
    return torch.exp2(torch.floor(torch.log2((LARGEST[fmt] / amax.double()).float().clamp(max=LARGEST_FLOAT32))))


def unseen(looked, name):
    """No value was looked at from Python."""
    expect(
        not looked,
        f"{name} may not look at a value from Python, and it called {', '.join(sorted(set(looked)))}: a GPU "
        "would have to be waited for, once a tensor",
        known=True,
    )


@task("16.4", points=2)
def test_scale_of(seed):
    """The scale as a tensor: 16.2's rules"""
    draw = np.random.default_rng(seed % 2**63)
    amax = torch.from_numpy((10 ** draw.uniform(-10, 5, (6, 4 + seed % 5))).astype(np.float32))
    amax[::2, :4] = torch.tensor([0.0, math.nan, math.inf, 1e-44])
    # The quotient is a rounding below a power of two.
    amax[1, :4] = torch.nextafter(448 / 2.0 ** torch.tensor([-9, -3, 5, 11]), torch.tensor(math.inf))
    for fmt, power_of_two, epsilon in product(LARGEST, (False, True), (0.0, float32(10 ** draw.uniform(-6, -3)))):
        want = scale_for(amax, fmt, epsilon, power_of_two)
        got, looked = call_alone("scenarios.scale_unseen", amax, fmt, epsilon, power_of_two)
        nearest = torch.exp2(torch.round(torch.log2((LARGEST[fmt] / amax.double()).clamp(max=LARGEST_FLOAT32)))).float()
        regions = {
            "right but for an infinite amax: the scale is 1": amax.isinf(),
            "right but for a tiny amax: the largest float32 in place of infinity": (amax > 0) & (amax < 1e-40),
        }
        bad = got != want if isinstance(got, torch.Tensor) and got.shape == want.shape else torch.zeros(0)
        same(
            got,
            want,
            tol=0.0 if power_of_two else ulps(want),
            what=f"the scales for {fmt}, power of two: {power_of_two}, epsilon {epsilon}",
            looks_like={
                "epsilon comes after the division: it bounds amax, not the scale": scale_for(
                    amax, fmt, 0.0, power_of_two
                ).clamp(min=epsilon)
                if epsilon
                else None,
                FLOOR_OF_LOG: torch.where(want == 1, want, floored(amax, fmt))
                if power_of_two and not epsilon
                else None,
                "epsilon is ignored": scale_for(amax, fmt, 0.0, power_of_two) if epsilon else None,
                "rounded to the nearest power of two: above the quotient, amax saturates": torch.where(
                    amax.isfinite() & (amax > 0), nearest, 1.0
                )
                if power_of_two and not epsilon
                else None,
                "epsilon is added to amax: amax counts as the larger of the two": scale_for(
                    amax.double() + epsilon, fmt
                )
                if epsilon
                else None,
            }
            | {text: got for text, where in regions.items() if bad.any() and bool(where[bad].all())},
        )
        unseen(looked, "scale_of")


@task("16.4", points=3)
@pytest.mark.parametrize("square", [False, True], ids=["1 x 128", "128 x 128"])
def test_block_scales(square, seed):
    """Both shapes of block, with ragged ends, an outlier, a block of zeros, and some that are not finite"""
    R, C = size(seed, 130, 300), size(seed + 1, 270, 400)
    x = drawn(seed, R, C)
    x[size(seed, 0, R), size(seed, 0, C)] = 3e5
    x[:128, :128] = 0.0
    rows, columns = (128, 128) if square else (1, 128)
    draw = random(seed, square)
    ways = some_of(draw, LARGEST, (False, True), (False, True))  # five of eight
    for kind, (fmt, power, some) in zip(("whole", "ragged", "spoilt", "few rows", "whole rows"), ways):
        options = {"fmt": fmt, "power_of_two": power, "epsilon": float32(some * 2.0 ** draw.uniform(-9, 0))}
        if kind == "few rows":  # and whole columns
            finite = x.nan_to_num(0.0)
            x = finite[: 100 + seed % 20, :256]
        if kind == "whole rows":  # and few columns
            x = finite[-128:, -100 - seed % 20 :]
        R, C = x.shape
        if kind == "spoilt":  # two blocks, and the others' scales are as they were
            x[size(seed, 0, 30) : 128 : 30, size(seed, 128, 256)], x[R - 1, C - 1] = math.nan, -math.inf
        want = by_block(x, rows, columns, **options)[0]
        over, both = (by_block(x.nan_to_num(0.0, inf, inf), rows, columns, **options)[0] for inf in (None, 0.0))
        got = call_alone("scenarios.blocks_of", x, square, **options)
        whole = by_block(x, R, C, **options)[0]
        same(
            got,
            want,
            tol=0.0 if power else ulps(want),
            what=f"the scales of {R} x {C} in blocks of {rows} x {columns}, {kind}, {options}",
            looks_like={
                "the blocks lie along the columns: 128 x 1, and 1 x 128 is expected": by_block(x, 128, 1, **options)[0],
                "one scale for the whole tensor": whole.expand(want.shape) if kind != "spoilt" else None,
                "one block that is not finite spoils the others' scales": torch.ones_like(want)
                if kind == "spoilt"
                else None,
                "NaN in a block is passed over, and infinity is the largest float32: the scale is 1": over
                if kind == "spoilt"
                else None,
                "NaN and infinity in a block are passed over: the scale is 1": both if kind == "spoilt" else None,
                "the largest number of a block, not the largest size: no absolute value": by_block(
                    x.clamp(min=0.0), rows, columns, **options
                )[0],
                "the other shape of block": by_block(x, 1 if square else 128, 128, **options)[0],
                "`fmt` is ignored": by_block(x, rows, columns, **{**options, "fmt": "e4m3"})[0],
            },
        )


@task("16.4", points=2)
def test_on_grid(seed):
    """Rounded in blocks and scaled back, in x's own dtype"""
    for dtype, square, power in some_of(random(seed, 4), (torch.float32, torch.bfloat16), *[(False, True)] * 2):
        x = drawn(seed, size(seed, 100, 200), size(seed + 1, 129, 300)).to(dtype)
        x[-1, -1] = math.nan
        rows = 128 if square else 1
        s = by_block(x, rows, 128, power_of_two=power)[1]
        # Half way between two numbers a scale's last bit decides.
        below, above = ((cast(x, t, "e4m3") / t.double()).bfloat16() for t in (s * (1 - 2.0**-22), s * (1 + 2.0**-22)))
        x[(below != above) & ~x.isnan()] = 0.0
        if power:  # no bit of the scale decides: exactly half way the code is the one whose last bit is 0
            draw, largest = random(seed, 40), laid_out(amaxes(x.float(), rows, 128), x, rows, 128)
            half = (2 * draw.integers(0, 16, x.shape) + 1) * 2.0 ** draw.integers(-10, 3, x.shape)
            some = torch.from_numpy(draw.random(x.shape) < 0.25) & (x.abs() < largest)
            x = torch.where(some, torch.from_numpy(half).copysign(x) / s, x).to(dtype)
        want = on_grid(x, rows, power_of_two=power).to(dtype)
        same(
            call_alone("blockwise.on_grid", x, square, power_of_two=power),
            want,
            # The last bit of BF16; the scale's roundings and one more.
            tol=0.0
            if power
            else (2.0**-8 if dtype == torch.bfloat16 else 2.0**-21) * want.abs().double().nan_to_num(0.0),
            what=f"x on its grid, {dtype}, square: {square}, powers of two: {power}",
            looks_like={
                "not scaled back": cast(x, s, "e4m3").to(dtype),
                "in E5M2: the block recipe is E4M3 throughout": (cast(x, s, "e5m2") / s.double()).to(dtype),
            },
        )


def sums(a, b):
    """The tolerance of an FP32 sum of a @ b: K + 1 roundings of the sum of the terms' sizes, float64."""
    return (a.shape[1] + 1) * 2.0**-24 * (a.abs() @ b.abs()) + 2.0**-149


@task("16.4", points=4)
def test_block_product(seed):
    """Three products, each rounded along what it sums over"""
    M, K, N = (size(seed + i, low, low + 90) for i, low in enumerate((130, 140, 150)))
    x, w, dy = operands(seed, M, K, N)
    draw = random(seed, 44)
    blocks = {"input": amaxes(x, 1, 128), "weight": amaxes(w, 128, 128), "grad": amaxes(dy, 1, 128)}
    epsilon = {slot: float32(of.median() * 2.0 ** draw.uniform(2, 4)) for slot, of in blocks.items()}  # of most blocks
    powers = unequal(draw)
    for e, p2 in ((dict.fromkeys(epsilon, 0.0), powers), (epsilon, {slot: not one for slot, one in powers.items()})):
        y, dx, dw = call_alone("scenarios.block_product", x, w, dy, epsilon=e, power_of_two=p2)

        def one(t, slot, rows=1, e=e, p2=p2):
            return on_grid(t, rows, epsilon=e[slot], power_of_two=p2[slot])

        def bare(t, slot, rows=1, p2=p2):
            return on_grid(t, rows, power_of_two=p2[slot])

        x8, w8, dy8 = one(x, "input"), one(w, "weight", 128), one(dy, "grad")
        text = f" of [{M}, {K}] @ [{K}, {N}], powers of two: {p2}, epsilons: {e}"
        xs, ws, dys = bare(x, "input"), bare(w, "weight", 128), bare(dy, "grad")
        no_epsilon = "the epsilons are ignored"
        close(
            y,
            x8,
            w8.t(),
            "y" + text,
            {
                "the weight has blocks of 1 x 128": x8 @ one(w, "input").t(),  # whose are 1 x 128
                "x has blocks of 128 x 128": one(x, "input", 128) @ w8.t(),
                no_epsilon: xs @ ws.t(),
            },
        )
        close(
            dx,
            dy8,
            w8,
            "dx" + text,
            {
                "the weight has blocks of 1 x 128": dy8 @ one(w, "input"),
                "dy is not rounded": dy.double() @ w8,
                no_epsilon: dys @ ws,
                "dy is rounded by x's rules": one(dy, "input") @ w8,
                "the master is multiplied: w is rounded once, and turned": dy8 @ w.double(),
                "dy has the blocks of the third product, along the tokens": one(dy.t(), "grad").t() @ w8,
            },
        )
        dyt8, xt8 = one(dy.t(), "grad"), one(x.t(), "input").t()
        close(
            dw,
            dyt8,
            xt8,
            "dw" + text,
            {
                "x and dy as the other products had rounded them: this one sums over the tokens": dy8.t() @ x8,
                "rounded twice: along the features, and then along the tokens": one(dy8.t().float(), "grad")
                @ one(x8.t().float(), "input").t(),
                "x is rounded twice: along the features, and then along the tokens": dyt8
                @ one(x8.t().float(), "input").t(),
                "dy is rounded twice: along the features, and then along the tokens": one(dy8.t().float(), "grad")
                @ xt8,
                "x as the forward had rounded it: this product sums over the tokens": dyt8 @ x8,
                "dy as dx had rounded it: this product sums over the tokens": dy8.t() @ xt8,
            },
        )


@task("16.4", points=1)
def test_block_product_keeps(seed):
    """What is kept for the backward, and no gradient that nobody wants"""
    kept_and_given("scenarios.block_kept", *operands(seed, 140, 150, 130))


def equal(found, want, what, cause=()):
    """What is counted or named is what is expected."""
    expect(found == want, f"{what}: {want} is expected, and there is {found}", cause=cause, known=True)


def kept_and_given(scenario, x, w, dy, codes=False):
    """A product's backward gives what is needed and None for the rest, and keeps no more than x and w take, or the
    `codes` of what it multiplies."""
    for needs in ((True, True), (True, False), (False, True)):
        given, kept = call_alone(scenario, x, w, dy, needs)
        has = [one is not None for one in given]
        equal(has, list(needs), f"whether the backward gives x and w a gradient, which {list(needs)} need")
        for one, right, what in zip(given, (dy.double() @ w.double(), dy.double().t() @ x.double()), "xw"):
            if one is not None:  # how large it is, other cases ask
                alike = one.shape == right.shape and (one.double() * right).sum() / one.double().norm() / right.norm()
                expect(alike > 0.2, f"the gradient of {what} has not the product's direction")
                off = apart_from(one.double(), right)  # BF16 alone is 2^-8, 8 bits are 2^-5
                expect(off > 2.0**-7, f"the gradient of {what} is of operands in full width", known=True)
        # Scalars, less than a row; 8 KiB: tables of a format's values. dw multiplies x, dx multiplies w.
        most = needs[1] * x.numel() + needs[0] * w.numel() + 64 if codes else x.nbytes + w.nbytes + 8192
        expect(kept <= most, f"{kept} bytes are kept for the backward, whose products need at most {most}", known=True)


def close(got, a, b, what, mistakes):
    """A product of rounded operands within FP32's roundings. Mistakes are recognised within the same tolerance."""
    want, tol = a @ b, sums(a, b)
    likely = {}
    if isinstance(got, torch.Tensor) and got.shape == want.shape:
        for cause, other in mistakes.items():
            apart = bool(((other - want).abs() > 16 * tol).any())  # so that the two can be told from one another
            if apart and bool(((got.double() - other).abs() <= 2 * tol + 1e-6 * other.abs()).all()):
                likely[cause] = got
    same(got, want.float(), tol=tol, what=what, looks_like=likely)


# ---- 16.5


def whole(x, fmt, epsilon=0.0, power_of_two=False):
    """(values of x * s, s) with one scale; float64 and float32."""
    s = scale_for(x.float().abs().max(), fmt, epsilon, power_of_two)
    return cast(x, s, fmt), s


def back(x, fmt, epsilon=0.0, power_of_two=False):
    """x rounded with one scale and scaled back, float64."""
    q, s = whole(x, fmt, epsilon, power_of_two)
    return q / s.double()


SLOTS = ("input", "weight", "grad")


def unequal(draw):
    """Of each slot whether its scales are powers of two: not the same for all."""
    one, other = (bool(bit) for bit in draw.integers(2, size=2))
    return {"input": one, "weight": not one, "grad": other}


def operands_of(seed, columns, *kinds):
    """Of each (slot, dtype) and all kinds of rules: slot, x, its recipe, its rules (format, epsilon, power of two), its
    scale."""
    draw = random(seed, columns)
    for number, ((slot, dtype), power, high, for_all) in enumerate(product(kinds, *[(False, True)] * 3)):
        x = (drawn(seed + number, 20 + seed % 9, columns) * 1e-3).to(dtype)
        # Of the others something else; for itself an epsilon above its amax, or below it, or none.
        factor = 2.0 ** (draw.uniform(1.2, 5) if high else draw.uniform(-5, -1))
        epsilon = {one: float32(float(x.abs().max()) * 2.0 ** draw.uniform(6, 8)) for one in SLOTS}
        epsilon[slot] = float32(float(x.abs().max()) * factor)
        if not high and draw.integers(2):
            del epsilon[slot]
        powers = power if for_all else {one: power == (one == slot) for one in SLOTS}
        forward, backward = draw.permutation(list(LARGEST)).tolist()
        rules = (backward if slot == "grad" else forward, epsilon.get(slot, 0.0), power)
        yield slot, x, (forward, backward, powers, epsilon), rules, whole(x, *rules)[1]


def without_scale(seed, R, C):
    """Operands whose scale is 1, and their names."""
    x = drawn(seed, R, C)
    yield "zeros", torch.zeros(R, C)
    for what, bad in (("an infinity", math.inf), ("a NaN", math.nan)):
        yield what, x.index_fill(0, torch.tensor([2]), bad)


@task("16.5", points=2)
def test_rounding(seed):
    """One operand: its format, its epsilon, its scale"""
    kinds = ("input", torch.float32), ("weight", torch.bfloat16), ("grad", torch.float32)
    every = list(operands_of(seed, 30, *kinds))
    found = call_each("scenarios.one_rounding", [(x, slot, *recipe) for slot, x, recipe, _, _ in every])
    for (slot, x, recipe, (fmt, epsilon, p2), s), got in zip(every, found):
        amax = float(x.abs().max())
        expect(isinstance(got, tuple) and len(got) == 2, "a pair is expected: the values, and the scale")
        what = f"the scale of {slot!r}, format {fmt}, power of two: {p2} of {recipe[2]}, epsilon {epsilon:.3g},"
        if isinstance(got[1], torch.Tensor) and got[1].shape == s.shape and got[1].dtype == s.dtype:
            causes = {
                "epsilon is ignored": one_scale(amax, fmt, 0.0, p2),
                "epsilon and power_of_two are ignored": one_scale(amax, fmt, 0.0, False),
                "power_of_two is ignored": one_scale(amax, fmt, epsilon, not p2),
            }
            same(got[1].item(), s.item(), tol=float(ulps(s)), what=what, looks_like=causes)
        same(got[1], s, tol=ulps(s), what=what)
        q = cast(x, got[1], fmt).to(x.dtype)  # with the scale that came, which may be a rounding away
        same(
            got[0],
            q,
            what=f"the values of {slot!r} times the scale",
            looks_like={
                "scaled back already: the values go into the product, and the scale is divided out after it": (
                    q.double() / s.double()
                ).to(x.dtype)
            },
        )
    for number, (what, x) in enumerate(without_scale(seed, 5, 6)):
        power = (seed + number) % 2 == 0
        values, scale = call_alone("scenarios.one_rounding", x, "input", "e4m3", "e5m2", power, {})
        same(scale, torch.tensor(1.0), what=f"the scale of an operand with {what}")
        same(values, cast(x, scale, "e4m3").float(), what=f"the values of an operand with {what}")


def near(seed):
    M, K, N = (size(seed + i, low, low + 40) for i, low in enumerate((20, 30, 40)))
    x, w, dy = drawn(seed, M, K, spread=0.5), drawn(seed + 1, N, K, spread=0.5) * 0.05, drawn(seed + 2, M, N) * 1e-5
    return x, w, dy, drawn(seed + 3, 1, N)[0] * 0.1


@task("16.5", points=6)
@pytest.mark.parametrize("backward", ["e5m2", "e4m3"], ids=["hybrid", "E4M3 only"])
def test_linear(backward, seed):
    """Output and gradients: three products of rounded operands, of ordinary size and tiny"""
    x, w, dy, bias = near(seed)
    draw, sizes = random(seed, 5), [float(t.abs().max()) for t in (x, w, dy)]
    powers = unequal(draw)
    other = {slot: not one for slot, one in powers.items()}
    high, low = (  # epsilons above the amaxes, and below them
        {slot: float32(one * 2.0 ** draw.uniform(*of)) for slot, one in zip(SLOTS, sizes)}
        for of in ((1.2, 4), (-4, -1))
    )
    a_linear({"backward": backward, "power_of_two": powers}, x, w, dy, bias)
    a_linear({"backward": backward, "power_of_two": bool(draw.integers(2)), "epsilon": low}, x, w, dy, bias)
    a_linear({"forward": "e5m2", "backward": backward, "epsilon": high, "power_of_two": other}, x, w, dy, bias)
    # Every number here is far inside float32's range, and no product of two scales is.
    a_linear({"backward": backward}, x * 2.0**-62, w * 2.0**-56, dy * 2.0**-50, torch.zeros_like(bias))


def a_linear(recipe, x, w, dy, bias):
    M, K = x.shape
    forward, backward = recipe.get("forward", "e4m3"), recipe["backward"]
    epsilon, powers = recipe.get("epsilon", {}), recipe.get("power_of_two", False)
    rules = {slot: (epsilon.get(slot, 0.0), powers if isinstance(powers, bool) else powers[slot]) for slot in SLOTS}
    # Three dimensions, as a decoder has: the same rows.
    x3, dy3 = torch.stack([x, x.flip(0)]), torch.stack([dy, dy.flip(0)])
    y, dx, dw, db = call_alone("scenarios.linear_step", x3, w, bias, dy3, **recipe)
    flat, dflat = x3.reshape(-1, K), dy3.reshape(2 * M, -1)
    three = (flat, forward, *rules["input"]), (w, forward, *rules["weight"]), (dflat, backward, *rules["grad"])
    (x8, w8, dy8), (s_x, s_w, s_dy) = (back(*one) for one in three), (float(whole(*one)[1]) for one in three)

    def multiplied(product, a, b):  # as float32 has the scales' product
        scales = float(np.float32(a) * np.float32(b)) if a * b < 3.4e38 else math.inf
        return {"the scales are multiplied first, and their product leaves float32": product * a * b / scales}

    other = back(dflat, "e4m3" if backward == "e5m2" else "e5m2", *rules["grad"])
    lost = cast(dflat, torch.tensor(1.0), backward)
    expect(y.shape == dy3.shape and dx.shape == x3.shape, f"y has shape {list(y.shape)} and dx {list(dx.shape)}")
    _near(
        y.reshape(2 * M, -1) - bias,
        x8,
        w8.t(),
        "y without the bias",
        {
            "nothing is rounded": flat.double() @ w.double().t(),
            "w is not rounded, and its scale is divided out": x8 @ w.double().t() / s_w,
            **multiplied(x8 @ w8.t(), s_x, s_w),
            "the forward is in E5M2: activations and weights belong in E4M3": back(flat, "e5m2", *rules["input"])
            @ back(w, "e5m2", *rules["weight"]).t(),
            "the forward is in E4M3: the recipe says in which format": back(flat, "e4m3", *rules["input"])
            @ back(w, "e4m3", *rules["weight"]).t(),
            "power_of_two is ignored": back(flat, forward, rules["input"][0])
            @ back(w, forward, rules["weight"][0]).t(),
            "x is rounded by the weight's rules": back(flat, forward, *rules["weight"]) @ w8.t(),
            "the weight is rounded by x's rules": x8 @ back(w, forward, *rules["input"]).t(),
        },
        extra=2.0**-22 * ((x8 @ w8.t() + bias).abs() + bias.abs().double()),
    )
    _near(
        dx.reshape(2 * M, -1),
        dy8,
        w8,
        "dx",
        {
            "dy is not rounded": dflat.double() @ w8,
            "dy is in the other format": other @ w8,
            "dy's rules are not the recipe's": back(dflat, backward) @ w8,
            "dy is rounded with the scale 1: gradients as small as these become 0": lost @ w8,
            "the master is multiplied: the weight as the forward had rounded it is expected": dy8 @ w.double(),
            "the master is multiplied, and the scale of the rounded weight is divided out": dy8 @ w.double() / s_w,
            **multiplied(dy8 @ w8, s_dy, s_w),
        },
    )
    _near(
        dw,
        dy8.t(),
        x8,
        "dw",
        {
            "dy is not rounded": dflat.double().t() @ x8,
            "dy is in the other format": other.t() @ x8,
            "x is not rounded: the backward takes what the forward had rounded": dy8.t() @ flat.double(),
            "x is not rounded, and its scale is divided out": dy8.t() @ flat.double() / s_x,
            **multiplied(dy8.t() @ x8, s_dy, s_x),
        },
    )
    same(db, dflat.sum(0), tol=2 * M * 2.0**-23 * float(dflat.abs().sum(0).max()), what="the bias's gradient")


def _near(got, a, b, what, mistakes, extra=0.0):
    """As `_close`, with two more roundings for dividing out the scales, and `extra`."""
    want = a @ b
    tol = sums(a, b) + 2.0**-21 * want.abs() + extra
    likely = {}
    if isinstance(got, torch.Tensor) and got.shape == want.shape:
        for cause, other in mistakes.items():
            smaller = (other.abs().max() / want.abs().max()).clamp(max=1.0)  # numbers divided by a scale round less
            close = (got.double() - other).abs() <= 4 * tol * smaller
            if bool(((other - want).abs() > 16 * tol).any()) and bool(close.all()):
                likely[cause] = got
    same(got, want.float(), tol=tol + 2.0**-24 * want.abs(), what=what, looks_like=likely)


@task("16.5", points=1)
def test_bf16_input(seed):
    """BF16 activations and a float32 master: y and dx in BF16, dw in float32"""
    x, w, dy, _ = near(seed)
    x, dy = x.bfloat16(), dy.bfloat16()
    y, dx, dw, _ = call_alone("scenarios.linear_step", x, w, None, dy)
    x8, w8, dy8 = back(x, "e4m3"), back(w, "e4m3"), back(dy, "e5m2")
    products = {
        "y": (y, x8, w8.t(), torch.bfloat16),
        "dx": (dx, dy8, w8, torch.bfloat16),
        "dw": (dw, dy8.t(), x8, torch.float32),
    }
    for what, (got, a, b, dtype) in products.items():
        # BF16 rounds by 2^-8 of a number: the sum, two divisions by a scale, and perhaps the two scales before.
        tol = 5 * 2.0**-8 * (a @ b).abs() + sums(a, b)
        low = a.bfloat16().double() @ b.bfloat16().double()
        alike = isinstance(got, torch.Tensor) and got.shape == low.shape
        alike = alike and bool(((got - low).abs() <= 2.0**-8 * low.abs() + sums(a, b)).all())
        cause = "scaled back before the product: BF16 then rounds the operands once more"
        what = f"{what} of a BF16 x and a float32 weight"
        same(got, (a @ b).to(dtype), tol=tol, what=what, looks_like={cause: got if alike else None})
    coarse = torch.equal(dw, dw.bfloat16().float())
    expect(not coarse, "dw was divided by the scales in BF16: its dtype is the master's, float32", known=True)


@task("16.5", points=1)
def test_within_the_bound(seed):
    """The error against exact products stays below the bound that is derived, and is no accident"""
    x, w, dy, _ = near(seed)
    gone, lost = size(seed, 0, len(x)), size(seed + 1, 0, len(dy))
    x[gone], dy[lost] = x[gone] * 2.0**-40, dy[lost] * 2.0**-40  # far below the smallest subnormal
    y, dx, dw, _ = call_alone("scenarios.linear_step", x, w, None, dy, training=False)
    u, eta = {"e4m3": 2.0**-4, "e5m2": 2.0**-3}, {"e4m3": 2.0**-10, "e5m2": 2.0**-17}

    def error(t, fmt):
        return u[fmt] * t.abs().double() + eta[fmt] / scale_for(t.abs().max(), fmt).double()

    for what, got, a, fa, b, fb in (
        ("y", y, x, "e4m3", w.t(), "e4m3"),
        ("dx", dx, dy, "e5m2", w, "e4m3"),
        ("dw", dw, dy.t(), "e5m2", x, "e4m3"),
    ):
        a64, b64, ea, eb = a.double(), b.double(), error(a, fa), error(b, fb)
        bound = ea @ b64.abs() + a64.abs() @ eb + ea @ eb + sums(a64, b64)
        off = (got.double() - a64 @ b64).abs()
        expect(bool((off <= bound).all()), f"{what}: the error is up to {float((off / bound).max()):.3g} of its bound")
        share, least = (apart_from(one, a64 @ b64) for one in (got.double(), back(a, fa) @ back(b, fb)))
        expect(
            share > least / 2,
            f"{what}: an error of {share:.1g} of the numbers, besides a common factor: was anything rounded to 8 bits? "
            f"Then it is {least:.1g}",
        )
    expect(
        not y[gone].any() and not dx[lost].any(),
        f"a row 2^-40 times as large as the others is not lost: FP8 has no exponents for it ({gone} of x, {lost} of dy)",
        known=True,
    )


def apart_from(got, exact):
    """The error as a share of the numbers, with a factor that all of them have divided out."""
    factor = (got * exact).sum() / exact.square().sum()
    return float((got - factor * exact).abs().sum() / exact.abs().sum())


@task("16.5", points=1)
def test_frozen_input(seed):
    """What needs no gradient gets none, the weight's is the same, and no more is kept than x and w take"""
    x, w, dy = operands(seed, 140, 150, 130)
    for dtype in (torch.float32, torch.bfloat16):
        kept_and_given("scenarios.linear_kept", x.to(dtype), w, dy.to(dtype))
    x, w, dy, _ = near(seed)
    _, dx, dw, _ = call_alone("scenarios.linear_step", x, w, None, dy, needs_input=False)
    expect(dx is None, "x needs no gradient, and it got one")
    _near(dw, back(dy, "e5m2").t(), back(x, "e4m3"), "dw", {})


@task("16.5", points=3)
def test_micro_batches(seed):
    """The weight is rounded for the first micro-batch, and kept for the others"""
    x, w, dy, _ = near(seed)
    few = min(len(x), min(w.shape) - 1)  # tokens, so that only the weight has the weight's shape
    x, dy = x[:few], dy[:few]
    draw = random(seed, 55)
    runs = [[first] + [False] * int(draw.integers(1, 3)) for first in (True, None, False)] + [[None]]
    flags = [None] * int(draw.integers(2)) + [True, False] + [one for k in draw.permutation(4) for one in runs[k]]
    # No multiples of one another.
    weights = [drawn(seed + 5 + k, *w.shape, spread=0.5) * 0.05 for k in range(len(flags))]
    y, dx, dw, graph, anew = call_alone("scenarios.micro_batches", x, weights, flags, dy)
    expect(
        not graph,
        "the weight that was kept hangs on the first micro-batch's graph, which that one's backward has used up",
        cause=("round the weight without its gradient: the master gets its own through w_NK",),
    )
    x8, dy8 = back(x, "e4m3"), back(dy, "e5m2")
    kept, fresh = flags.index(True), 0  # whose rounding was kept, and whose was the last
    for k, flag in enumerate(flags):
        before, kept = kept, k if flag else kept
        source = k if flag is None else kept
        fresh = fresh if flag is False else k
        w8 = back(weights[source], "e4m3")
        own, first = back(weights[k], "e4m3"), flags.index(True)
        what = f"of call {k} (is_first_microbatch = {', '.join(map(str, flags[: k + 1]))})"
        causes = {"the weight as it is now: what was kept is to be taken": x8 @ own.t()}
        if kept != first:
            causes["a stale weight: the first one that was ever kept"] = x8 @ back(weights[first], "e4m3").t()
        if flag is None:
            causes["None takes what was kept: it rounds the weight as it is"] = x8 @ back(weights[before], "e4m3").t()
        if flag is False:
            causes["the call with None has replaced what was kept: it is to keep nothing"] = (
                x8 @ back(weights[fresh], "e4m3").t()
            )
        _near(y[k], x8, w8.t(), f"y {what}", causes)
        _near(dx[k], dy8, w8, f"dx {what}", {"the weight as it is now: what was kept is to be taken": dy8 @ own})
        ok = anew[k] == 0 or flag is not False
        expect(ok, f"y {what}: a weight was rounded again, and the rounded one is to be kept and taken", known=True)
    extra = 2.0**-20 * (dy8.t().abs() @ x8.abs())
    _near(dw / len(flags), dy8.t(), x8, "dw, summed over all and divided by their number,", {}, extra=extra)
    error = call_alone("scenarios.taken_too_early", x, w)
    expect(
        error == "RuntimeError", f"False before any True: RuntimeError is expected, and there was {error}", known=True
    )
