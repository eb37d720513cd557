"""The checks of C.4: `lab check C.4`. Nothing is hidden but the runs that decide in grading.

At home the recorded runs of data/lab.npz decide, in grading others, which have a kind of fault that is not among them.
No run comes as it was recorded: its first rows are missing, every number is a little off, changes are larger or
smaller by a tenth, and the tensors are in other units and in another order. The ranks' seconds are drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from capstone.given.recorded import LAB, load
from capstone.given.records import Run, cut
from labkit.checks import call_alone, expect, same, task
from labkit.checks.causal import AHEAD, judge_causal
from labkit.checks.drawn import Draw
from labkit.checks.judge import note

GRADED = Path(__file__).resolve().parents[1] / "grading" / "data" / "health.npz"
SIGMA = 1.4826
SLOW, IN_TIME, KNOWN = 1.4, 32, 64  # times; rows; rows
PRECISION, RECALL, LEAD, SOON = 0.85, 0.75, 10, 12  # LEAD and SOON in rows


# ---- how unusual


def expected(
    x, width, known, floor, *, now=0, larger=False, middle=np.nanmedian, spread=None, sigma=SIGMA, base=2.0, sign=True
):
    """z by plain loops. The keywords are what wrong answers do."""
    z = np.zeros(x.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(x) / np.log(base)
    log[~np.isfinite(log)] = np.nan
    for s in range(len(x)):
        for n in range(x.shape[1]):
            past = log[max(0, s + now - width) : s + now, n]
            past = past[~np.isnan(past)]
            if np.isnan(log[s, n]) or len(past) < max(known, 1):
                continue
            usual = middle(past)
            scatter = sigma * (spread or middle)(np.abs(past - usual))
            scatter = max(scatter, floor) if larger else scatter + floor
            z[s, n] = (log[s, n] - usual) / scatter if scatter else np.inf
    return z if sign else np.abs(z)


def lower(values):
    """The lower of the middle two, where they are two."""
    return np.sort(values)[(len(values) - 1) // 2]


def rms(values):
    return np.sqrt(np.mean(values**2))


WRONGLY: dict[str, dict[str, Any]] = {
    "the row itself is among those that say what is usual": dict(now=1),
    "without the floor": dict(floor=0.0),
    "means, and not medians: an outlier moves them": dict(middle=np.mean),
    "the usual value is a mean, not a median: an outlier moves it": dict(middle=np.mean, spread=np.median),
    "the scatter is a mean, not a median: an outlier moves it": dict(spread=np.mean),
    "the scatter is a standard deviation: an outlier moves it": dict(spread=rms, sigma=1.0),
    "mean and standard deviation, and not medians: an outlier moves them": dict(middle=np.mean, spread=rms, sigma=1.0),
    "the lower of the middle two is usual, expected their mean": dict(middle=lower, spread=np.median),
    "the lower of the middle two, twice, expected their mean": dict(middle=lower),
    "the larger of scatter and floor: the floor is added": dict(larger=True),
    "natural logarithms: the floor is in log2": dict(base=np.e),
    "the scatter is not multiplied by 1.4826": dict(sigma=1.0),
    "z has no sign": dict(sign=False),
}


def judged_wrongly(got, want, x, width, known):
    """What shows where z is 0 and should not be, or the other way round."""
    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        return []
    fine = np.isfinite(x) & (x > 0)
    enough = np.array([fine[max(0, s - width) : s].sum(0) for s in range(len(x))]) >= known
    got, want = got.double().numpy(), want.numpy()
    judged = got != 0
    left_out, apart = fine & (want != 0) & ~judged, ~(np.abs(got - want) <= 1e-4) & judged & fine & enough
    facts = {
        "what is no positive number is judged: z is 0 there": (judged & ~fine & enough).any(),
        "less than `known` is recorded before, and it is judged": (judged & fine & ~enough).any() and not apart.any(),
        "`known` are recorded before, and it is not judged: they are enough": left_out.any() and not apart.any(),
    }
    return [text for text, holds in facts.items() if holds]


@task("C.4", points=2)
@pytest.mark.parametrize("recorded", ["everything", "not everything"])
def test_unusual(recorded, seed):
    """z against what was usual before"""
    draw = Draw(seed, "unusual", recorded)
    S, N, width, known = draw.size(40, 60), draw.size(2, 4), draw.size(8, 13), draw.size(4, 7)
    floor = float(draw.rng.uniform(0.05, 0.2))
    x = np.exp(draw.rng.normal(0, 0.7, (S, N)) + 0.02 * np.arange(S)[:, None]) * 10.0 ** draw.rng.integers(-4, 5, N)
    x[:, 0] = np.exp(draw.rng.normal(0, 0.02, S))  # it hardly moves, and the floor is most of its scatter
    if recorded == "not everything":
        x[draw.rng.random((S, N)) < 0.45] = np.nan
        for n in (0, 1):  # all of them late enough to be judged, if they were
            x[20:, n] = np.exp(draw.rng.normal(0, 0.3, S - 20))
            x[draw.rng.choice(np.arange(22, S), 6, replace=False), n] = [np.inf, 0.0, -1.0, -np.inf, 0.0, 0.0]
    x = x.astype(np.float32)
    got = call_alone("health.unusual", torch.from_numpy(x), width, known, floor)
    with np.errstate(all="ignore"):
        wide, how = x.astype(np.float64), dict(width=width, known=known, floor=floor)
        want = torch.from_numpy(expected(wide, **how)).round(decimals=6)
        likely = {text: torch.from_numpy(expected(wide, **how | wrong)) for text, wrong in WRONGLY.items()}
    # log2 x is at most 17: in fp32 2^-20 off, over a scatter of at least 0.05. A likeness is one to six digits.
    marks = {text: z.round(decimals=6) for text, z in likely.items()}
    if isinstance(got, torch.Tensor) and got.is_floating_point():
        got = got.round(decimals=6)
        if not any(z.shape == got.shape and z.equal(got.double()) for z in marks.values()):
            marks |= dict.fromkeys(judged_wrongly(got, want, x, width, known), got)
    same(got, want, tol=1e-4, what="z", looks_like=marks)


# ---- slow ranks


def seconds(draw, rows, ranks=(2, 3, 4, 8)):
    """Own seconds [rows, R] of the ranks of a healthy run: each has noise of its own, of up to 8 %, and all together
    drift as the machine's load does."""
    R, noise = ranks[int(draw.rng.integers(len(ranks)))], float(draw.rng.uniform(0.02, 0.08))
    load = np.cumsum(0.02 * draw.rng.standard_normal((rows, 1)), axis=0)
    level = float(draw.rng.uniform(-7, 2))
    return torch.from_numpy(np.exp(level + load + noise * draw.rng.standard_normal((rows, R))))


def disturbed(draw, work):
    """(the same with what is no fault: long steps of single ranks, one rank with more to do from the beginning, and
    less for all of them for a while; what rings for long steps, for the rank with more to do: (row, rank))."""
    rows, R = work.shape
    work = work.clone()
    long: set[tuple[int, int]] = set()

    def longer(rows, least, most):
        rank = int(draw.rng.integers(R))
        work[rows, rank] *= float(draw.rng.uniform(least, most))
        long.update((int(row) + later, rank) for row in np.atleast_1d(rows) for later in range(IN_TIME))

    for row in draw.rng.choice(rows, 6, replace=False):
        longer(row, 2, 8)
    more = int(draw.rng.integers(R))
    work[:, more] *= float(draw.rng.uniform(1.0, 1.5))
    hiccup = int(draw.rng.integers(KNOWN, rows - 12))  # a rank that has four long steps in a dozen
    longer(hiccup + draw.rng.choice(12, 4, replace=False), 4, 8)
    begin = int(draw.rng.integers(KNOWN, rows - 40))
    work[begin : begin + 40 + int(draw.rng.integers(0, 40))] *= float(draw.rng.uniform(1.4, 2.5))
    return work, long, {(row, more) for row in range(rows)}


def slowed(draw, work, begin, most=2.2):
    """(the same with a rank that is slow from `begin` on, its number, how many times as long it takes)."""
    rank = int(draw.rng.integers(work.shape[1]))
    work, times = work.clone(), float(draw.rng.uniform(SLOW, most))
    work[begin:, rank] *= times
    return work, rank, times


class Table(NamedTuple):
    """Seconds of ranks, and which became slow: ((row, rank, how many times as long it takes from there on), ...).
    long and more: what may ring wrongly (`disturbed`)."""

    work: torch.Tensor
    slow: tuple = ()
    long: frozenset = frozenset()
    more: frozenset = frozenset()

    def alarms_of(self, alarms):
        """Of each slow rank the alarms that it asks for."""
        return [[one for one in alarms if one[1] == rank and at <= one[0] < at + IN_TIME] for at, rank, _ in self.slow]


CHANCE = (
    "long steps of a rank ring: it is slow when that lasts",
    "a rank rings that had more to do from the beginning",
)


def why_slow(tables, heard):
    """Causes, each of which explains nearly all that rang wrongly; or, if nothing did, all that did not ring."""
    if not any(heard):
        return ("it never rings",)
    wrongly, by = 0, Counter[str]()
    later, missed, found = list[float](), list[float](), list[float]()
    for table, alarms in zip(tables, heard):
        right = table.alarms_of(alarms)
        for number, ((_, _, times), its) in enumerate(zip(table.slow, right)):
            (found if its else later if number else missed).append(times)
        for row, who in alarms:
            if any([row, who] == its[0] for its in right if its):
                continue
            wrongly += 1
            crowd = {other for when, other in alarms if abs(when - row) <= 8}
            in_time = [its for (at, *_), its in zip(table.slow, right) if at <= row < at + IN_TIME]
            by.update(
                cause
                for cause, holds in {
                    "another rank is named: not the one that became slow": [] in in_time,
                    "it rings too late for a rank that became slow": any(
                        who == rank and row >= at + IN_TIME for at, rank, _ in table.slow
                    ),
                    "its own seconds alone: when all ranks take longer at once, none is slow": (
                        1 < len(crowd) >= table.work.shape[1] / 2
                    ),
                    CHANCE[0]: (row, who) in table.long,
                    CHANCE[1]: (row, who) in table.more,
                }.items()
                if holds
            )
    if wrongly:
        # Some ranks have had long steps, or more to do, wherever it rings: one alarm is no evidence.
        some = (cause for cause, n in by.items() if n >= 0.9 * wrongly and (n >= 3 or cause not in CHANCE))
        return tuple(some)
    if later and not missed:
        return ("one slow rank rings, and no other after it",)
    faint = missed and max(missed) < min(found, default=0.0)
    return ("it rings for slower ranks alone: 1.4 times as long is enough",) if faint else ()


@task("C.4", points=3)
def test_slow_ranks(seed):
    """A rank that became slow, by its number and in time; and none that did not"""
    draw = Draw(seed, "slow ranks")
    tables = []
    for number in range(16):
        work, *what_else = disturbed(draw, seconds(draw, draw.size(180, 240)))
        which = None
        if number % 2:
            at = draw.size(KNOWN + 16, len(work) - IN_TIME - 8)
            at = KNOWN if number == 3 else at  # as early as can be expected
            work, rank, times = slowed(draw, work, at, SLOW + 0.05 if number % 4 == 1 else 2.2)
            which = (at, rank, times)
        tables.append(Table(work.float(), (which,) if which else (), *what_else))
    at, later = KNOWN + 16, KNOWN + 60
    twice, one, times = slowed(draw, seconds(draw, 200, ranks=(4, 8)), at)
    other = (one + 1) % twice.shape[1]
    twice[later:, other] *= SLOW
    tables.append(Table(twice.float(), ((at, one, times), (later, other, SLOW))))
    tables = [tables[k] for k in draw.order(range(len(tables)))]
    heard = call_alone("scenarios.slow", [table.work for table in tables])
    expect(isinstance(heard, list) and len(heard) == len(tables), "for each run a list of alarms")
    for table, alarms in zip(tables, heard):
        was = [f"rank {rank} takes {times:.2f} times as long from row {at} on" for at, rank, times in table.slow]
        ok = len(alarms) == len(was) and all(table.alarms_of(alarms))
        expect(
            ok,
            f"of {table.work.shape[1]} ranks {' and '.join(was) or 'none becomes slow'}: one alarm for each slow rank "
            f"within {IN_TIME} rows is expected, and there rang, (row, rank), {alarms[:3]}",
            cause=() if ok else why_slow(tables, heard),
        )

    def slow(rows):
        return call_alone("scenarios.slow", [table.work[:n].clone() for table, n in zip(tables, rows)])

    first = [alarms[0] if alarms else None for alarms in heard]
    judge_causal(slow, [len(table.work) for table in tables], first, draw.rng)


# ---- all of it


def everything_rings(draw):
    """All that rings is reported, not the first alone: of two ranks one becomes slow, then the loss is no number; and a
    record without probes, with one rank or none, or without a row, rings for nothing but that."""
    rows, at = 160, draw.size(KNOWN, KNOWN + 8)
    spoilt = at + 2 * IN_TIME + draw.size(8, 20)
    work, rank, _ = slowed(draw, seconds(draw, rows, ranks=(2,)), at)
    loss_S, norm_S = (torch.from_numpy(np.exp(0.01 * draw.rng.standard_normal(rows))).float() for _ in range(2))
    (loss_S, norm_S)[draw.size(0, 1)][spoilt:] = (np.nan, np.inf, -np.inf)[draw.size(0, 2)]
    none = [loss_S, norm_S, torch.zeros(0, dtype=torch.int64), torch.zeros(0), *torch.zeros(4, 0, 3)]
    runs = [Run(*[*none, work_SR.float()]) for work_SR in (work, work[:, :1], work[:, :0])]
    runs = [runs[0], *(cut(runs[k], n) for k, n in ((0, spoilt), (1, rows), (1, spoilt), (2, spoilt), (0, 0), (2, 0)))]
    four, one, _ = slowed(draw, seconds(draw, rows, ranks=(4,)), at)
    later, other = at + IN_TIME + 8, (one + 1) % 4
    four[later:, other] *= SLOW
    runs.append(cut(Run(*[*none, four.float()]), spoilt))
    rang = call_alone("scenarios.rang", [tuple(run) for run in runs])
    expect(isinstance(rang, list) and len(rang) == len(runs), "for each run a list of alarms")
    last = [row for row, who in rang[0] if who == -1]
    mine = [row for row, who in rang[0] if who == rank and at <= row < at + IN_TIME]
    expect(
        len(mine) == 1 and last[:1] == [spoilt] and rang[0] == sorted(rang[0]),
        f"rank {rank} of two was slow from row {at} on, and from row {spoilt} on there is no number: both are to ring, "
        f"in the order of rows, and there rang, (row, rank), {rang[0]}",
        known=True,
    )
    both = [
        [row for row, who in rang[-1] if who == rank and begin <= row < begin + IN_TIME]
        for rank, begin in ((one, at), (other, later))
    ]
    expect(
        all(both),
        f"of four ranks {one} was slow from row {at} on, and {other} from row {later} on: both are to ring, and there "
        f"rang, (row, rank), {rang[-1]}",
        known=True,
    )
    for run, alarms, want in zip(runs[1:-1], rang[1:-1], (mine, [spoilt], [], [], [], [])):
        expect(
            [row for row, _ in alarms[:1]] == want,
            f"a record of {len(run.loss_S)} rows and {run.work_SR.shape[1]} ranks, without probes: there rang, (row, "
            f"rank), {alarms}, expected at rows {want}",
            known=True,
        )


def whatever_comes(draw):
    """What rings up to a row is the same whatever comes after it: nothing, or numbers far larger or smaller, or none.
    Each rule is judged, not the one that rings first: a slow rank, a loss, a norm, weights, what saturates."""
    rows, T = 2 * draw.size(64, 70), 3
    S, P = 3 * rows, 3 * rows // 2
    work, _, _ = slowed(draw, seconds(draw, S, ranks=(2, 4)), rows - IN_TIME - 8)

    def noise(*size):
        return torch.from_numpy(draw.rng.standard_normal(size)).float()

    curves = (0.01 * noise(2, S)).exp()
    curves[:, rows - 4 :] *= 8.0
    grows = 0.002 * (1 + 0.1 * noise(P))
    grows[rows // 2 - 4 :] += 0.1
    over_PT = torch.zeros(P, T)
    over_PT[rows // 2 - 4 :, 0] = 0.25
    tables = torch.ones(P, T), (0.01 * noise(P, T)).exp(), over_PT, torch.zeros(P, T)
    whole = Run(*[*curves, 2 * torch.arange(P), grows.cumsum(0).exp(), *tables, work.float()])
    runs = [cut(whole, rows)]
    for times in (32.0, 1 / 32, math.nan):
        later = Run(*(x.clone() for x in whole))
        for x in (*later[:2], *later[3:6]):  # what saturates goes on, and is what is usual at the end
            x[rows if len(x) == S else rows // 2 :] *= times
        later.work_SR[rows:, 0] *= 3.0
        runs.append(later)
    rang = call_alone("scenarios.rang", [tuple(run) for run in runs])
    expect(isinstance(rang, list) and len(rang) == len(runs), "for each run a list of alarms")
    for alarms in rang[1:]:
        early = [[row, who] for row, who in alarms if row < rows]
        expect(
            early == rang[0],
            f"of a record that ends at row {rows} there rings, (row, rank), {rang[0]}, and of one that goes on otherwise, "
            f"up to that row {early}",
            cause=AHEAD,
        )


def shaken(draw, recorded, work):
    """A recorded run as it is judged, with these seconds of ranks: (Run, row of the fault, row of the harm)."""
    _, at, harm, run = recorded
    T, gone = run.amax_PT.shape[1], 2 * draw.size(0, 15)  # rows before the record begins
    there = run.probe_P >= gone
    stretch, order = float(draw.rng.uniform(0.9, 1.1)), torch.from_numpy(draw.rng.permutation(T))
    units_T = torch.from_numpy(draw.rng.integers(-10, 11, T)).float()

    def other(x, noise, units):
        log = x.log2()
        usual = log.nanmedian(0).values
        return torch.exp2(usual + stretch * (log - usual) + noise * draw.normal(*x.shape) + units)

    loss_S = other(run.loss_S[:, None], 0.005, float(draw.rng.uniform(-1, 1)))[:, 0]
    norm_S = other(run.norm_S[:, None], 0.03, float(draw.rng.integers(-10, 11)))[:, 0]
    weight_P = other(run.weight_P[:, None], 1e-4, float(draw.rng.uniform(-3, 3)))[:, 0]
    amax_PT = other(run.amax_PT, 0.01, units_T)
    scale_PT = run.scale_PT * run.amax_PT / amax_PT
    shares = (share.clone() for share in (run.over_PT, run.under_PT))
    tables = [table[there][:, order].contiguous() for table in (scale_PT, amax_PT, *shares)]
    curves = loss_S[gone:].contiguous(), norm_S[gone:].contiguous()
    rest = run.probe_P[there] - gone, weight_P[there], *tables, work[: len(curves[0])].float()
    made = Run(*(x for x in (*curves, *rest)))
    at, harm = (None if row is None else row - gone for row in (at, harm))
    return made, at, harm


def cases(draw):
    """[(Run, what it is, row of the fault or None, the last row in time, the rank or -1)], in a random order. Where a
    record ends says nothing of where its harm was done, nor whether any was."""
    runs = load(GRADED if GRADED.exists() else LAB)
    healthy, kinds = [r for r in runs if r.fault is None], sorted({r.fault for r in runs if r.fault is not None})
    found = []
    for number in range(18):
        one = healthy[int(draw.rng.integers(len(healthy)))]
        work, *_ = disturbed(draw, seconds(draw, len(one.run.loss_S)))
        run, _, _ = shaken(draw, one, work)
        run = cut(run, draw.size(KNOWN + IN_TIME + 40, len(run.loss_S)))
        if number % 3:
            found.append((run, "healthy", None, None, -1))
            continue
        at = draw.size(KNOWN + 16, len(run.loss_S) - IN_TIME - 8)
        slow, rank, _ = slowed(draw, run.work_SR, at)
        found.append((run._replace(work_SR=slow), "slow rank", at, at + IN_TIME - 1, rank))
    for kind in kinds:
        its = [r for r in runs if r.fault == kind]
        for k in draw.rng.permutation(len(its))[:3]:
            work, *_ = disturbed(draw, seconds(draw, len(its[k].run.loss_S)))
            run, at, harm = shaken(draw, its[k], work)
            last = max(harm, at + SOON)
            found.append((cut(run, draw.size(min(last + 1, len(run.loss_S)), len(run.loss_S))), kind, at, last, -1))
    return [found[k] for k in draw.order(range(len(found)))]


@task("C.4", points=5)
@pytest.mark.parametrize("number", [1, 2])
def test_alarms(number, seed):
    """Precision, recall and lead time, judged by the first alarm of each run, each time as the runs are drawn"""
    draw = Draw(seed, "alarms", number)
    some = cases(draw)
    whole = [len(run.loss_S) for run, *_ in some]

    def rang(rows):
        return call_alone("scenarios.rang", [tuple(cut(run, n)) for (run, *_), n in zip(some, rows)], timeout=30.0)

    heard = rang(whole)
    expect(isinstance(heard, list) and len(heard) == len(some), "for each run a list of alarms")
    rows = [[row for row, _ in alarms] for alarms in heard]
    expect(all(one == sorted(one) for one in rows), "alarms are expected in the order of rows", known=True)
    first = [min(alarms) if alarms else None for alarms in heard]
    judge_causal(rang, whole, first, draw.rng)
    hits, false, leads, missed, nameless, found = 0, 0, [], [], 0, set()
    for (_, what, at, last, rank), alarm in zip(some, first):
        who = None
        if at is not None and alarm is not None and at <= alarm[0] <= last:
            who = alarm[1]
            leads += [last - alarm[0]] if what == "growth" and who == rank else []
        if who == rank:
            hits += 1
            found.add(what)
            continue
        false += alarm is not None
        missed += [what] if at is not None else []
        nameless += who == -1
    faults = sum(at is not None for _, _, at, _, _ in some)
    middle = sorted(leads)[len(leads) // 2] if leads else 0
    precision, recall = hits / max(1, hits + false), hits / faults
    text = (
        f"{hits} of {faults} faults were announced, with {false} false alarms in {len(some)} runs: precision "
        f"{precision:.2f} (at least {PRECISION}), recall {recall:.2f} (at least {RECALL}), lead time {middle} rows (at "
        f"least {LEAD})"
    )
    healthy = [alarm for (_, _, at, *_), alarm in zip(some, first) if at is None]
    rings, never_found = sum(alarm is not None for alarm in healthy), sorted({*missed} - found)
    by = {
        "it rings at the first row of every run": all(alarm is not None and alarm[0] <= 1 for alarm in first),
        "it never rings": all(alarm is None for alarm in first),
        "slow ranks ring without their number": 1 < nameless == missed.count("slow rank"),
        "most healthy runs ring: look at what rings in them": 2 * rings > len(healthy),
        "it rings for no fault of these kinds: " + ", ".join(never_found): len(never_found) > 0,
    }
    cause = tuple(cause for cause, holds in by.items() if holds)[:1]
    more = f"; missed: {', '.join(sorted(missed))}" if missed else ""
    expect(recall >= RECALL and precision >= PRECISION and middle >= LEAD, text + more, cause=cause)
    whatever_comes(Draw(seed, "whatever comes", number))
    everything_rings(Draw(seed, "everything", number))
    note(text)
