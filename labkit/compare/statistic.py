"""Is the loss the same? Decided from repeated runs, with an error rate that is known.

One run has one number: the mean of its held-out loss over the second half of its evaluations, as a logarithm.

    y = 100 * mean over steps > from_step of ln(loss)                        a difference of y is a gap in per cent

A run that stands high at one evaluation stands high at the next, so the standard error comes from runs alone. BF16 is
trained several times, each from weights moved by a rounding error of their own, and so is every candidate:

    gap = mean(y of the candidate) - mean(y of BF16)          error^2 = s_c^2 / n_c + s_b^2 / n_b

Candidates share one s_c: all are FP8 with the same data and steps. Records of the same training tell how far its runs
scatter: a spread s0 that counts like v0 further deviations (the moderated t of Smyth 2004, doi:10.2202/1544-6115.1027):

    s^2 = (v0 s0^2 + sum of squared deviations) / (v0 + v),   v = sum over arms of (runs - 1)

gap / error is held against Student's t with Welch's degrees of freedom (Welch 1947), BF16's and FP8's spreads unequal.

    same        the 90 % interval lies within +-0.25 %: two one-sided tests at 5 % (Schuirmann 1987)
    different   otherwise, if zero is excluded at 1 %, divided by the number of candidates (Bonferroni)
    undecided   otherwise; `needed` says how many runs would decide it

0.25 % is DeepSeek-V3's published FP8 gap (arXiv:2412.19437, section 3.3). "same" comes first: a gap of 0.1 % known to a
hundredth is a difference, and an accepted one. Better by more than 0.25 % is as different as worse.

Whoever is undecided is trained and judged again, so each of `looks` looks has its share of both error rates. The
interval that belongs to it covers the true gap at least nine times in ten however many looks it took.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACCEPTED = 0.25  # per cent
OUTSIDE = 0.10  # share of intervals that may miss the true gap
WRONG = 0.01  # share of comparisons without any gap that may say "different"
MOST = 64  # runs of each arm: nobody trains more to decide


@dataclass(frozen=True)
class Spread:
    """What records say of this training: standard deviations of y, per cent, and how many deviations they count for."""

    baseline: float
    candidate: float
    weight: float


@dataclass(frozen=True)
class Sample:
    """Runs of one arm: how many, the variance of one, and its degrees of freedom; (inf, 0): unknown."""

    runs: int
    variance: float
    freedom: float

    def more(self, runs: int) -> "Sample":
        """With so many runs in all, if their variance stays what it seems."""
        new = max(0, runs - self.runs)
        return Sample(self.runs + new, self.variance, self.freedom + new)


@dataclass(frozen=True)
class Answer:
    """Of one candidate. word: same, different, undecided; gap, error, low, high in per cent, infinite if unknown, gap
    if a loss is not finite; freedom: Welch's."""

    word: str
    gap: float
    low: float
    high: float
    error: float
    freedom: float
    runs: int
    needed: int | None = None  # see `answers`


def tail(heldout: Mapping[int, float], from_step: int) -> float:
    """y of a run, from {step: held-out loss}: of steps >= from_step. NaN without any; inf if one is not finite."""
    kept = [loss for step, loss in heldout.items() if step >= from_step]
    if not kept:
        return math.nan
    if not all(math.isfinite(loss) and loss > 0 for loss in kept):
        return math.inf
    return 100 * math.fsum(map(math.log, kept)) / len(kept)


def answers(
    baseline: Sequence[float],
    candidates: Mapping[str, Sequence[float]],
    prior: Spread | None = None,
    looks: int = 1,
    *,
    plan: bool = True,
) -> dict[str, Answer]:
    """The answer for each candidate. baseline, candidates: y of each run (`tail`); looks: how many there are in all;
    plan: find `needed` too, the runs of each arm that would decide an undecided one, if all is as it seems.

    ValueError: no run of the baseline, or one whose loss is not finite.
    """
    if not baseline or not all(map(math.isfinite, baseline)):
        raise ValueError("the baseline has no run, or one without a finite loss")
    # A candidate without a run, or with one that has no tail (NaN), is undecided.
    sound = {name: ys for name, ys in candidates.items() if ys and all(map(math.isfinite, ys))}
    weight, before = (prior.weight, (prior.baseline, prior.candidate)) if prior else (0.0, (0.0, 0.0))
    base = _variance([baseline], before[0], weight)
    own = _variance(list(sound.values()), before[1], weight)
    wrong, outside = WRONG / max(1, len(candidates)) / looks, OUTSIDE / looks
    out = {}
    for name, ys in candidates.items():
        if name in sound:
            gap = math.fsum(ys) / len(ys) - math.fsum(baseline) / len(baseline)
            arms = Sample(len(baseline), *base), Sample(len(ys), *own)
            word, reach, error, freedom = _word(gap, *arms, wrong, outside)
            needed = _needed(gap, *arms, wrong, outside) if plan and word == "undecided" else None
            out[name] = Answer(word, gap, gap - reach, gap + reach, error, freedom, len(ys), needed)
        else:
            lost = any(math.isinf(y) for y in ys)
            word, gap = ("different", math.inf) if lost else ("undecided", math.nan)
            out[name] = Answer(word, gap, -math.inf, math.inf, math.inf, 0.0, len(ys))
    return out


def quantile(share: float, freedom: float) -> float:
    """|t| that Student's t exceeds, on both sides together, with this probability."""
    from scipy.special import stdtrit  # here: `lab --help` need not wait for it

    return float(stdtrit(freedom, 1 - share / 2))


def _variance(arms: Sequence[Sequence[float]], spread: float, weight: float) -> tuple[float, float]:
    """(variance of one run, degrees of freedom), of arms that share it."""
    squares, freedom = weight * spread**2, weight
    for ys in arms:
        mean = math.fsum(ys) / len(ys)
        squares, freedom = squares + math.fsum((y - mean) ** 2 for y in ys), freedom + len(ys) - 1
    return (squares / freedom, freedom) if freedom > 0 else (math.inf, 0.0)


def _error(base: Sample, own: Sample) -> tuple[float, float]:
    """(standard error of the gap, Welch's degrees of freedom); (inf, 0) where a spread is unknown."""
    if not base.freedom or not own.freedom:
        return math.inf, 0.0
    parts = base.variance / base.runs, own.variance / own.runs
    if not (total := sum(parts)):  # bitwise equal runs
        return 0.0, base.freedom + own.freedom
    return math.sqrt(total), total**2 / (parts[0] ** 2 / base.freedom + parts[1] ** 2 / own.freedom)


def _word(gap: float, base: Sample, own: Sample, wrong: float, outside: float) -> tuple[str, float, float, float]:
    """(word, half the interval, error, degrees of freedom). wrong, outside: error rates of this look."""
    error, freedom = _error(base, own)
    if math.isinf(error):
        return "undecided", math.inf, error, freedom
    reach = quantile(outside, freedom) * error
    if abs(gap) + reach <= ACCEPTED:
        return "same", reach, error, freedom
    return "different" if abs(gap) > quantile(wrong, freedom) * error else "undecided", reach, error, freedom


def _needed(gap: float, base: Sample, own: Sample, wrong: float, outside: float) -> int | None:
    """Runs of each arm that would give another word than undecided; None if MOST would not."""
    tried = range(own.runs + 1, MOST + 1)
    return next((n for n in tried if _word(gap, base.more(n), own.more(n), wrong, outside)[0] != "undecided"), None)
