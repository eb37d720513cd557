"""What a gap costs in tokens: the further steps until the loss is the baseline's, and the speed at equal loss.

    slope    = - d ln(loss) / d step of the baseline's own held-out curve, least squares over the judged steps
    steps    = gap / slope
    speed    = times * S / (S + steps)      S: the steps that were trained; times: tokens/s over the baseline's

The interval is a bootstrap: gaps from the verdict's own interval, slopes from the baseline's runs. `python -m
studies.verdict.operating` measures how often it holds the true steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, linear_regression

ASSUMED = (
    "At equal loss the further steps are counted that the gap takes, if a recipe makes up for it at the pace at which "
    "{baseline}'s own held-out loss falls over the judged steps; a longer training falls more slowly, and there the same "
    "gap costs more."
)
DRAWS, ENDS, REACH = 4000, (0.05, 0.95), 1.6449  # REACH: where the normal distribution has these ends


@dataclass(frozen=True)
class Further:
    """Steps beyond the `trained` ones until the loss is the baseline's, and their interval; below 0: so many fewer."""

    steps: float
    low: float
    high: float
    trained: int

    def speed(self, times: float) -> tuple[float, float, float] | None:
        """(speed at equal loss, low, high), from tokens/s over the baseline's; None where no step would be left."""
        left = [self.trained + steps for steps in (self.steps, self.high, self.low)]
        value, low, high = (times * self.trained / steps if steps > 0 else math.inf for steps in left)
        return (value, low, high) if math.isfinite(high) else None


def further_steps(
    baseline: Sequence[Mapping[int, float]], from_step: int, gap: float, low: float, high: float
) -> Further | None:
    """What a gap in per cent, with its interval, is in steps; None if it is not known, or the baseline does not learn.

    baseline: each run's {step: held-out loss}, in nats.
    """
    slopes = [slope(run, from_step) for run in baseline]
    if not slopes or not all(math.isfinite(x) for x in (gap, low, high)) or not all(one > 0 for one in slopes):
        return None
    import numpy as np  # here: `lab --help` need not wait for it

    rng, runs = np.random.default_rng(0), np.array(slopes)
    # Each draw of the normal distribution once, in a random order: the ends are no matter of luck.
    normal = rng.permutation([NormalDist().inv_cdf((draw + 0.5) / DRAWS) for draw in range(DRAWS)])
    gaps = (low + high) / 2 + (high - low) / 2 / REACH * normal
    ends = np.quantile(gaps / runs[rng.integers(len(runs), size=(DRAWS, len(runs)))].mean(1), ENDS)
    return Further(gap / float(runs.mean()), float(ends[0]), float(ends[1]), max(map(max, baseline)))


def slope(heldout: Mapping[int, float], from_step: int) -> float:
    """By how many per cent a run's held-out loss falls in a step, from `from_step` on; NaN from fewer than two losses."""
    kept = {step: 100 * math.log(loss) for step, loss in heldout.items() if step >= from_step and 0 < loss < math.inf}
    return -linear_regression(list(kept), list(kept.values())).slope if len(kept) > 1 else math.nan
