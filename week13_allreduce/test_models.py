"""The checks of the cost model (13.1) and of timing (13.5). Read them: nothing is hidden.

Your functions run elsewhere, called by name; only numbers and the ledger come back here.
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, field, once, same, task
from labkit.checks.traffic import LIBRARY
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import replay

# ---- 13.1: the model against the virtual wire. Messages as the collectives send them; what is in them is all the same.


def through_rank_0(group, n):
    x = torch.zeros(n)
    for peer in range(1, group.size):
        if group.rank == 0:
            group.recv(peer, out=x)
        elif group.rank == peer:
            group.send(x, 0)
    for peer in range(1, group.size):
        if group.rank == 0:
            group.send(x, peer)
        elif group.rank == peer:
            group.recv(0, out=x)


def everyone_to_everyone(group, n):
    for s in range(1, group.size):
        group.sendrecv(torch.zeros(n), dst=(group.rank + s) % group.size, src=(group.rank - s) % group.size)


def one_lap(group, n):
    chunk = torch.zeros(n // group.size)
    for _ in range(group.size - 1):
        group.sendrecv(chunk, dst=(group.rank + 1) % group.size, src=(group.rank - 1) % group.size)


def two_laps(group, n):
    one_lap(group, n)
    one_lap(group, n)


TRAFFIC = {
    "naive_all_reduce": through_rank_0,
    "one_shot_all_reduce": everyone_to_everyone,
    "ring_reduce_scatter": one_lap,
    "ring_all_gather": one_lap,
    "ring_all_reduce": two_laps,
}


def on_the_wire(collective, N, nbytes, alpha, bandwidth):
    """Seconds on the virtual wire: a switch, `alpha` seconds a message, `bandwidth` bytes/s. nbytes divides by 4 N."""
    ledgers = run_ranks(TRAFFIC[collective], nbytes // 4, size=N, backend="threads", timeout=60).ledgers
    return replay(ledgers, Topology.switch(N, alpha, bandwidth)).time


@once
def measured_cost(collective, N):
    """[messages, share] as the wire has them: seconds when only messages cost, and when only bytes cost."""
    nbytes = 4 * N
    return on_the_wire(collective, N, nbytes, 1.0, 1e15), on_the_wire(collective, N, nbytes, 0.0, 1.0) / nbytes


# The wire counts time in whole ticks, far below this.
WIRE = 1e-6


def cost_causes(collective, N, both):
    """What mistakes give for messages, and for share. `both`: a share of both ways came, so both were thought of."""
    if collective == "naive_all_reduce":
        way = "only the way to rank 0: the sum must come back, too"
        waits = "the way back waits for the way there: rank 0 sends when it has heard from all"
        one = "all at the same time: they share rank 0's wire, and follow one another"
        more = "N each way: rank 0 sends none to itself"
        return {waits if both else way: N - 1, one: 2, more: 2 * N}, {way: N - 1, one: 2, more: 2 * N}
    if collective == "one_shot_all_reduce":
        one = "one vector: N-1 of them leave by the same wire, one after another"
        twice = "in and out one after the other: they are different wires, so a step is one message long"
        chunk = "a chunk a step: each rank sends all of x to each other"
        return {one: 1, twice: 2 * (N - 1)}, {one: 1, twice: 2 * (N - 1), chunk: (N - 1) / N}
    laps = 2 if collective == "ring_all_reduce" else 1
    causes = {"N steps a lap: after N-1 steps a chunk has been everywhere": laps * N}
    shares = {
        "whole vectors at every step: a ring sends a chunk, n/N bytes": laps * (N - 1),
        "one chunk a lap: N-1 of them follow one another": laps / N,
        "whole vectors a lap: N-1 chunks of n/N bytes are (N-1)/N of one": laps,
        "rounded down to a whole number": laps * (N - 1) // N,
    }
    if laps == 2:
        lap = "one lap only: an all-reduce is a reduce-scatter and then an all-gather"
        causes[lap], shares[lap] = N - 1, (N - 1) / N
    return causes, shares


def continued(collective, N):
    """[messages, share] for any N. Messages, and share times N, are whole, and at most quadratic in N: they go on as the
    wire begins."""
    first = [measured_cost(collective, n) for n in (4, 5, 6)]
    a, b = ([round(cost[i] * n**i) for n, cost in zip((4, 5, 6), first)] for i in (0, 1))
    k = N - 4
    messages, times_N = (v[0] + k * (v[1] - v[0]) + k * (k - 1) // 2 * (v[2] - 2 * v[1] + v[0]) for v in (a, b))
    return messages, times_N / N


@task("13.1", points=8)
@pytest.mark.parametrize("collective", TRAFFIC)
def test_cost(collective, seed):
    """The cost is what the virtual wire replays. A single rank sends nothing."""
    # Below 4, several mistakes are one.
    draw = random.Random(f"{collective} {seed}")
    sizes = (*draw.sample(range(4, 20), 2), 2, 1, draw.randrange(20, 10**6))
    for N, got in zip(sizes, call_each(f"cost_model.{collective}_cost", [(N,) for N in sizes])):
        messages, share = continued(collective, N) if N >= 20 else measured_cost(collective, N) if N > 1 else (0, 0)
        both = abs(field(got, "share") - 2 * (N - 1)) < WIRE
        causes, shares = cost_causes(collective, N, both)
        same(field(got, "messages"), messages, tol=WIRE, what=f"messages for N = {N}", looks_like=causes)
        same(field(got, "share"), share, tol=WIRE, what=f"share for N = {N}", looks_like=shares)


def two_lines(draw, kind):
    """Pairs of costs (messages, share), `small` and `large`, drawn: what the case `kind` is about."""
    messages, share = draw.randrange(3, 30), draw.uniform(1.0, 9.0)
    more, less = draw.randrange(1, 20), draw.uniform(0.2, 0.8)
    small = (messages, share)
    return {
        "they cross": [(small, (messages + more, share * less))],
        "large never stays faster": [
            (small, (messages + more, share / less)),
            ((messages + more, share), (messages, share / less)),
            (small, (messages, share / less)),
            (small, (messages + more, share)),
        ],
        "large is never slower": [
            ((messages + more, share), (messages, share * less)),
            ((messages + more, share), (messages, share)),
            (small, (messages, share * less)),
            (small, small),
        ],
    }[kind]


@task("13.1", points=3)
@pytest.mark.parametrize("kind", ["they cross", "large never stays faster", "large is never slower"])
def test_crossover(kind, seed):
    """From which size on the other algorithm is faster."""
    draw = random.Random(f"{kind} {seed}")
    alpha, beta = draw.uniform(1e-5, 1e-4), 1e-9 / draw.uniform(10, 47)
    pairs = two_lines(draw, kind)
    if kind == "they cross":
        N = draw.randrange(4, 13)
        pairs.append((measured_cost("one_shot_all_reduce", N), measured_cost("ring_all_reduce", N)))
    else:  # or a constant would do
        (pair,) = two_lines(draw, "they cross")
        got = call_alone("scenarios.crossover", *pair, alpha, beta)
        found = got.item() if isinstance(got, torch.Tensor) and got.numel() == 1 else got
        expect(
            isinstance(found, (int, float)) and 0 < found < math.inf,
            f"large, {cost_text(pair[1])}, overtakes small, {cost_text(pair[0])}, at a size above 0; {found} came back",
        )
    for k, (small, large) in enumerate(pairs):
        alpha *= 1e-6 if k else 1  # the second pair crosses at a byte or two, and a fraction counts
        got = call_alone("scenarios.crossover", small, large, alpha, beta)
        what = (
            f"the size from which large, {cost_text(large)}, stays faster than small, {cost_text(small)}, alpha "
            f"{alpha:.6g} s, beta {beta:.6g} s/byte,"
        )
        messages, share = large[0] - small[0], small[1] - large[1]
        crossing = messages * alpha / (share * beta) if share else math.nan
        if kind == "they cross":
            same(
                got,
                crossing,
                tol=WIRE * crossing,
                what=what,
                looks_like={
                    "in numbers of 4 bytes, expected bytes": crossing / 4,
                    "the other way up: alpha / beta, not beta / alpha": messages * beta / (share * alpha),
                    "alpha alone: beta is missing": messages * alpha / share,
                    "all messages of `large`: those that it has more cost more": large[0] * alpha / (share * beta),
                },
            )
        else:
            never = kind == "large never stays faster"
            causes = {"the lines' formula alone: here they cross below 0 bytes, or the other way round": crossing}
            if never and share < 0:
                causes["a larger share loses in the end, however few the messages"] = 0.0
            if not never and not (messages and share):
                causes["equal counts too: no more messages and no larger share make `large` never slower"] = math.inf
            same(got, math.inf if never else 0.0, what=what, looks_like=causes)


def cost_text(cost):
    """A cost as a failure reports it."""
    return f"(messages {cost[0]:.6g}, share {cost[1]:.6g})"


def a_sweep(seed, noise, bent=False):
    """A ring's times on the wire from 1 KiB to 1 GiB, in no order, some twice, with relative noise: sizes, seconds, cost,
    alpha, beta. With noise one time is half as long again. `bent`: alpha is negative, as a fit finds where small messages
    are faster than the line."""
    draw = random.Random(f"{seed} {noise} {bent}")
    cost = measured_cost("ring_all_reduce", draw.randrange(3, 13))
    sizes = [2**k for k in (*range(10, 31), *draw.sample(range(10, 31), 4))]
    draw.shuffle(sizes)
    alpha, beta = 1e-5 * draw.uniform(0.5, 1.5), 1e-10 * draw.uniform(0.5, 1.5)
    if bent:
        alpha = -draw.uniform(0.2, 0.8) * cost[1] * min(sizes) * beta / cost[0]
    # Half of the noise or more each time, up or down: never by accident none.
    factors = [1 + draw.choice([-1, 1]) * noise * draw.uniform(0.5, 1.0) for _ in sizes]
    factors[sizes.index(2**20)] += 0.5 * (noise > 0)
    return sizes, [(cost[0] * alpha + cost[1] * n * beta) * f for n, f in zip(sizes, factors)], cost, alpha, beta


def least_squares(sizes, seconds, cost, power):
    """(alpha, beta) that make the sum of ((measured - fitted) / measured**power)**2 smallest."""
    T = torch.tensor(seconds, dtype=torch.float64)
    n = torch.tensor(sizes, dtype=torch.float64)
    rows = torch.stack([torch.full_like(T, cost[0]), cost[1] * n * 1e-10], 1) / T[:, None] ** power
    alpha, beta = torch.linalg.lstsq(rows, T[:, None] ** (1 - power)).solution[:, 0].tolist()
    return alpha, beta * 1e-10  # beta in units of 1e-10: the columns are then of like size


def same_line(got, alpha, beta, tol, cost, others):
    """Whether a fit's alpha and beta are these, to a relative `tol`; `others`: (alpha, beta) of other fits."""
    same(
        field(got, "alpha"),
        alpha,
        tol=tol * abs(alpha),
        what="alpha",
        looks_like={
            "of the whole run: divide by the number of messages": alpha * cost[0],
            "beta, where alpha is expected": beta,
            "equations that equal 1, and are not divided by the times": 1 / cost[0],
            **{text: other[0] for text, other in others.items()},
        },
    )
    same(
        field(got, "beta"),
        beta,
        tol=tol * beta,
        what="beta",
        looks_like={
            "of the whole run: divide by the share": beta * cost[1],
            "a bandwidth, expected seconds a byte": 1 / beta,
            **{text: other[1] for text, other in others.items()},
        },
    )


@task("13.1", points=2)
def test_fit_of_exact_times(seed):
    """Exact times give alpha, beta and residuals of zero; alpha may be negative."""
    sweeps = [a_sweep(seed, 0.0, bent) for bent in (False, True, False)]
    sizes, seconds, *line = sweeps[2]  # two measurements are enough
    sweeps[2] = (*map(list, zip(min(zip(sizes, seconds)), max(zip(sizes, seconds)))), *line)
    answers = call_each("scenarios.fit", [(sizes, seconds, cost) for sizes, seconds, cost, *_ in sweeps])
    for (sizes, _, cost, alpha, beta), got, bent in zip(sweeps, answers, (False, True, False)):
        # fp64 through a least-squares solver.
        cut = {"no less than 0: a negative alpha says that the times are no line in n": (0.0, math.nan)} if bent else {}
        same_line(got, alpha, beta, 1e-6, cost, cut)
        same(field(got, "residuals"), [0.0] * len(sizes), tol=1e-6, what="residuals")


@task("13.1", points=2)
def test_fit_of_noisy_times(seed):
    """Noisy times over six decades: the best line by relative errors."""
    sizes, seconds, cost, _, _ = a_sweep(seed, 0.05)
    got = call_alone("scenarios.fit", sizes, seconds, cost)
    alpha, beta = least_squares(sizes, seconds, cost, 1)
    plain = "least squares in plain seconds: the largest message decides alone; make the errors relative"
    half = "errors divided by the root of the time: divide by the time"
    others = {plain: least_squares(sizes, seconds, cost, 0), half: least_squares(sizes, seconds, cost, 0.5)}
    # A solver that squares the condition of unscaled columns still has four digits; the noise is of two.
    same_line(got, alpha, beta, 1e-4, cost, others)
    fitted = [cost[0] * got["alpha"] + cost[1] * n * got["beta"] for n in sizes]
    want = [(t - f) / t for t, f in zip(seconds, fitted)]
    same(
        field(got, "residuals"),
        want,
        tol=1e-6,
        what="residuals",
        looks_like={
            "fitted minus measured, expected measured minus fitted": [-r for r in want],
            "seconds, expected the share of the measured time": [t - f for t, f in zip(seconds, fitted)],
            "shares of the fitted time, expected of the measured": [(t - f) / f for t, f in zip(seconds, fitted)],
            "without their sign": [abs(r) for r in want],
            "in the order of the sizes, expected in the order of the measurements": [
                r for _, r in sorted(zip(sizes, want))
            ],
        },
    )


# ---- 13.5: timing, by a clock that moves only while the timed function runs

FIRST, LATER = 0.5, 2.0**-20  # seconds; sums of these are exact in fp64, and none is a number of microseconds


def a_while(seed):
    """The seconds of a call: nobody knows them without a clock."""
    return random.Random(f"a while {seed}").randrange(1, 1000) * LATER


@task("13.5", points=2)
def test_time_without_the_first_call(seed):
    """The first, slow call is not in the time, and the time is for one call"""
    draw, later = random.Random(seed), a_while(seed)
    warmup, iterations = draw.randint(2, 4), draw.randint(5, 9)
    got, _ = call("scenarios.timed", [(FIRST, later, None)], warmup=warmup, iterations=iterations)
    same(
        seconds(got[0]),
        later,
        looks_like={
            "the first, slow call is in it: is the warm-up outside the clock?": (FIRST + (iterations - 1) * later)
            / iterations,
            "the warm-up is in it: read the clock after it": (FIRST + (iterations + warmup - 1) * later) / iterations,
            "all calls together: divide by the number of iterations": iterations * later,
            "the warm-up calls are counted among the iterations": iterations * later / (iterations + warmup),
            "one call more than the iterations": (iterations + 1) * later / iterations,
        },
    )


@task("13.5", points=2)
def test_time_of_the_slowest(seed):
    """All ranks report the slowest rank's time"""
    draw = random.Random(f"slowest {seed}")
    first = [units * LATER for units in draw.sample(range(1, 1000), draw.randint(2, 4))]
    for own in (first, [*first[1:], first[0]]):  # a second time: another rank is the slowest
        N = len(own)
        got, _ = call("scenarios.timed", [(t, t, None) for t in own], warmup=1, iterations=4)
        causes = {
            "this rank's own time: reduce with max over the ranks": own,
            "rank 0's time: reduce with max over the ranks": [own[0]] * N,
            "the mean over the ranks, expected the maximum": [sum(own) / N] * N,
            "the minimum over the ranks, expected the maximum": [min(own)] * N,
            "the sum over the ranks, expected the maximum": [sum(own)] * N,
            "all calls together: divide by the number of iterations": [4 * max(own)] * N,
            "the warm-up calls are counted among the iterations": [4 * max(own) / 5] * N,
        }
        on_every_rank([seconds(answer) for answer in got], max(own), "the result", causes)


@task("13.5", points=2)
@pytest.mark.parametrize("warm", [pytest.param(True, id="with a warm-up"), pytest.param(False, id="without one")])
def test_time_order_of_things(warm, seed):
    """check, warm-up, barrier, clock, iterations, clock: nothing more"""
    warmup, iterations = random.Random(seed).sample(range(3, 8), 2)
    warmup = warmup if warm else 0
    got, ledger = call("scenarios.timed", [(LATER, LATER, 0)] * 2, warmup=warmup, iterations=iterations)
    for r in range(2):
        seconds(got[r])
        entries = [entry.split() for entry in got[r][1]]
        did = [words[0] for words in entries]
        want = ["check"] + ["run"] * warmup + ["clock"] + ["run"] * iterations + ["clock"]
        # How many calls of the group came before each: they show where the barrier stands.
        calls = [int(words[2]) for words in entries]
        waits = [k for k, event in enumerate(ledger[r].events) if event.kind == "barrier"]
        order = []
        for k, word in enumerate(did[: 4 * len(want)]):  # enough to see the difference, whatever came back
            order += ["barrier"] * sum(calls[max(k - 1, 0)] <= at < calls[k] for at in waits[: 4 * len(want)])
            order.append(word)
        at = want.index("clock")
        expect(
            did == want,
            f"rank {r} did things in another order\n  expected  {' '.join([*want[:at], 'barrier', *want[at:]])}\n"
            f"  got       {' '.join(order)}",
            known=True,
        )
        first, last = did.index("clock"), len(did) - 1
        expect(
            any(event.kind == "barrier" for event in ledger[r].events[calls[first - 1] : calls[first]]),
            f"rank {r} reads the clock without a barrier just before it: it would time how late the others start",
            known=True,
        )
        between = ledger[r].events[calls[first] : calls[last]]
        expect(
            not between,
            f"rank {r} calls group.{between[0].kind if between else ''} between the two readings: it is timed, too",
            known=True,
        )


@task("13.5", points=0.5)
def test_time_by_the_devices_clock(seed):
    """Without clock=, the device's clock"""
    later = a_while(seed)
    got, _ = call("scenarios.timed_by_default", [(later,)])
    devices, result = got[0] if isinstance(got[0], tuple) and len(got[0]) == 2 else ([], None)
    expect(
        devices == ["cpu"],
        "without clock=, the clock is to be device_clock(group.device): on a GPU, any other reads before it is done",
        known=True,
    )
    same(field(result, "seconds"), later, what="seconds by that clock")


@task("13.5", points=0.5)
def test_time_on_the_groups_device(seed):
    """What is reduced lies on group.device, and plain numbers come back"""
    start, later, wrong = (random.Random(f"elsewhere {seed}").randrange(1, 10**6) for _ in range(3))
    got, _ = call("scenarios.timed_elsewhere", [(start, later, wrong)] * 2)
    for r, answer in enumerate(got):
        expect(isinstance(answer, tuple) and len(answer) == 2, "nothing came back", known=True)
        astray, result = answer
        expect(
            astray == [],
            f"rank {r} calls {told_calls(astray)} with a tensor that does not lie on group.device: where that is a "
            f"GPU, torch.tensor(...) without device= lies on the CPU, and the call refuses it",
            known=True,
        )
        for name in ("seconds", "wrong"):
            expect(
                not isinstance(field(result, name), torch.Tensor),
                f"rank {r}: {name} is a tensor, and a Timing holds plain numbers: on a GPU this one would lie there "
                f"still. .item() takes the number out",
                known=True,
            )
        same(field(result, "seconds"), later, rank=r, what="seconds by a clock that each reading moves")
        # Added or not: test_time_counts_wrong_elements judges that.
        found = field(result, "wrong")
        same(found, 2 * wrong if found != wrong else wrong, rank=r, what="wrong")


def told_calls(names):
    """The calls that the student's process says it made: known names, each once."""
    known = dict.fromkeys(name for name in names if isinstance(name, str) and name in LIBRARY.split())
    return " and ".join(f"group.{name}" for name in known) or "the group"


@task("13.5", points=1.5)
def test_time_counts_wrong_elements(seed):
    """Wrong elements are added over the ranks"""
    draw, later = random.Random(seed), a_while(seed)
    counts = [draw.randint(3, 5), 0, draw.randint(20, 40)]
    got, _ = call("scenarios.timed", [(later, later, wrong) for wrong in counts], warmup=1, iterations=1)
    for answer in got:
        slower = {"infinity, as if a wrong collective took no time: seconds are expected, too": math.inf}
        same(seconds(answer), later, what="seconds for one call of a wrong collective", looks_like=slower)
    causes = {
        "this rank's own count: add over the ranks": counts,
        "rank 0's count: add over the ranks": [counts[0]] * 3,
        "the ranks with wrong elements, expected the elements": [2] * 3,
        "the largest count, expected the sum": [max(counts)] * 3,
        "the mean over the ranks, expected the sum": [sum(counts) // 3] * 3,
        "0: what check returns, added over the ranks, is expected": [0] * 3,
    }
    on_every_rank([field(answer[0], "wrong") for answer in got], sum(counts), "wrong", causes)
    # Each is a number of float32, and their sum, which is odd, is none.
    many = draw.randrange(2**23 + 1, 2**24, 2), draw.randrange(2**23 + 2, 2**24, 2)
    got, _ = call("scenarios.timed", [(later, later, wrong) for wrong in many], warmup=0, iterations=1)
    rounded = "counted in float32, which has no such number: reduce whole numbers, in int64"
    near = {rounded: [float(torch.tensor(sum(many)).float())] * 2}
    on_every_rank([field(answer[0], "wrong") for answer in got], sum(many), "wrong", near, 0)
    # Each is a number of int32: as many as a vector of 4 GiB has, and more.
    every = [draw.randrange(2**30 + 1, 2**31, 2) for _ in range(2)]
    got, _ = call("scenarios.timed", [(later, later, wrong) for wrong in every], warmup=0, iterations=1)
    turned = "counted in int32, which ends below it: reduce in int64"
    near = {turned: [sum(every) - 2**32] * 2}
    on_every_rank([field(answer[0], "wrong") for answer in got], sum(every), "wrong", near, 0)
    for count in (None, counts[0]):
        got, _ = call("scenarios.timed", [(later, later, count)], warmup=1, iterations=1)
        without = "without a check" if count is None else "on one rank"
        same(field(got[0][0], "wrong"), count or 0, what=f"wrong {without}")


def on_every_rank(got, want, what, causes, rel_tol=1e-6):
    """Each rank's answer is `want`. A cause, {sentence: answers by rank}, is reported if it explains all of them."""

    def explains(marks):
        return all(isinstance(g, (int, float)) and math.isclose(g, m, rel_tol=rel_tol) for g, m in zip(got, marks))

    for r, one in enumerate(got):
        marks = {text: marks[r] for text, marks in causes.items() if explains(marks)}
        same(one, want, rank=r, what=what, looks_like=marks)


def seconds(answer):
    """The seconds of scenarios.timed's answer, if the clock that was passed in was read for it."""
    expect(isinstance(answer, tuple) and len(answer) == 2, "nothing came back", known=True)
    log = answer[1]
    form = isinstance(log, list) and all(isinstance(entry, str) for entry in log)
    entries = [entry.split() for entry in log] if form else []
    expect(
        form and all(len(words) > 2 and words[2].isdecimal() for words in entries),
        "what your code did on the way came back in no form that can be read",
        known=True,
    )
    expect(
        any(words[0] == "clock" for words in entries),
        "the clock that was passed in was never read",
        cause=("clock= is ignored: device_clock is only what stands in where no clock is passed",),
    )
    return field(answer[0], "seconds", "the Timing")


def a_measurement(seed):
    """Bytes and seconds, whose quotient is no whole number."""
    draw = random.Random(seed)
    return 1024 * draw.randint(1, 1000), draw.uniform(0.3, 1.3)


def in_other_units(n, T, share=1.0):
    """A bandwidth of `share` of n bytes in T seconds, as it is often mistaken: for causes."""
    return {
        "in GB/s, expected bytes/s": share * n / T / 1e9,
        "in bits, expected bytes": 8 * share * n / T,
        "seconds a byte, expected bytes a second": share * T / n,
        "rounded down: bandwidths are no whole numbers": share * (n // T),
    }


@task("13.5", points=0.5)
def test_algbw(seed):
    """Algorithm bandwidth"""
    n, T = a_measurement(seed)
    same(call_alone("timing.algbw", n, T), n / T, tol=1e-9 * n, looks_like=in_other_units(n, T))


def must_leave(collective, N):
    """The share of the vector that must leave every rank."""
    return {"all_reduce": 2 * (N - 1) / N, "broadcast": 1.0}.get(collective, (N - 1) / N)


@task("13.5", points=2)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_busbw(collective, seed):
    """Bus bandwidth, as nccl-tests has it"""
    n, T = a_measurement(seed)
    draw = random.Random(f"{collective} {seed}")
    N, few = draw.randint(4, 64), draw.randint(2, 3)  # for 3, N-1 is 2
    share = must_leave(collective, N)
    others = {
        "the algorithm bandwidth: the factor is missing": 1.0,
        "half of it: an all-reduce moves everything twice": share / 2 if collective == "all_reduce" else math.nan,
        "all-reduce's factor": must_leave("all_reduce", N),
        "all-gather's and reduce-scatter's factor": must_leave("all_gather", N)
        if collective == "broadcast"
        else math.nan,
        "N-1 whole vectors: n is the whole vector already": N - 1.0,
        "divided by the factor, expected times": 1 / share,
    }
    same(
        call_alone("timing.busbw", collective, n, T, N),
        share * n / T,
        tol=1e-9 * n,
        what=f"the bus bandwidth of {collective} on {N} ranks",
        looks_like={text: factor * n / T for text, factor in others.items()} | in_other_units(n, T, share),
    )
    what = f"the bus bandwidth of {collective} on {few} ranks"
    same(
        call_alone("timing.busbw", collective, n, T, few), must_leave(collective, few) * n / T, tol=1e-9 * n, what=what
    )


@task("13.5", points=1)
def test_busbw_at_the_edge(seed):
    """Bus bandwidth of a single rank, and of an unknown collective"""
    n, T = a_measurement(seed)
    wanted = {"all_reduce": 0.0, "all_gather": 0.0, "reduce_scatter": 0.0, "broadcast": n / T}
    answers = call_each("timing.busbw", [(collective, n, T, 1) for collective in wanted])
    for (collective, want), got in zip(wanted.items(), answers):
        same(
            got,
            want,
            tol=1e-9 * n,
            what=f"busbw of {collective} for N = 1",
            looks_like={"the algorithm bandwidth, though nothing must leave a single rank": n / T}
            if collective != "broadcast"
            else {"0: a broadcast's factor is 1 for every N": 0.0} | in_other_units(n, T),
        )
    draw, letters = random.Random(f"names {seed}"), "abcdefghijklmnopqrstuvwxyz_-"
    unknown = [
        "",
        "reduce",
        "all_to_all",
        "allreduce",
        "all-reduce",
        "ALL_REDUCE",
        "".join(draw.choices(letters, k=15)),
    ]
    for name in wanted:
        k = draw.randrange(len(name))
        unknown.append(name[:k] + draw.choice(letters.replace(name[k], "")) + name[k + 1 :])
    arguments = [(name, N) for N in (draw.randint(2, 64), 1) for name in unknown]
    for (name, N), got in zip(arguments, call_each("scenarios.refusal", arguments)):
        expect(
            got == "ValueError",
            f"{name!r}, an unknown collective, must be a ValueError, for N = {N} too, but it gave {got}",
            cause=(
                ("a KeyError of the dictionary: look whether the name is in it, and raise ValueError yourself",)
                if got == "KeyError"
                else ()
            ),
            known=True,
        )
