"""Fit the constants, and report how wrong they are on unseen runs: python -m labkit.plan.fit [--write]

Least squares by Gauss and Newton, of log(predicted / measured), over data/shown.csv and data/own.csv: a row of a stack
with n rows counts 1/n; each constant may leave its start by its `width`; a row that is off by more than `DOUBT` counts
less (Huber 1964). Errors: without a whole software stack (stack out), or one row (row out), fit, then predict it.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from labkit.errors import run_command
from labkit.plan.cases import Array
from labkit.plan.constants import DATA, WIDTHS, Constants, share_of_stack
from labkit.plan.footprint import GIB, room
from labkit.plan.rows import Row, Runs, number, read, runs
from labkit.plan.step import step
from labkit.plan.validate import expected_bytes, summary
from labkit.record.files import writable

NOISE, DOUBT = 0.08, 0.10  # of a log: what releases of one stack differ by (5 to 10 %); beyond it a row is doubtful
NUDGE, LEAP, ROUNDS = 1e-3, 0.3, 8  # of log(constant): for the slope; the longest step; steps


def rows_with(field: str) -> Runs:
    """Make cases of the rows, of both files, that have a number in this field."""
    return runs([row for name in ("shown", "own") for row in read(DATA / f"{name}.csv") if number(row, field)])


class Data(NamedTuple):
    """The measured runs: their cases, log(seconds) and the software stack of each."""

    runs: Runs
    wanted: Array
    stacks: list[str]


def load_data() -> Data:
    found = rows_with("step_s")
    wanted = np.log([number(row, "step_s") or 0.0 for row in found.rows])
    return Data(found, wanted, [row["framework"] for row in found.rows])


def predict(found: Runs, k: Constants) -> Array:
    """Return log(seconds) of each row."""
    return np.log(found.spread(step(found.cases, k).total)[0])


def fit(found: Runs, wanted: Array, weights: Array, begin: Constants, rounds: int = ROUNDS) -> Constants:
    """Fit constants under which the rows' log(seconds) come nearest to `wanted`. A row of weight 0 is not seen."""
    width = np.array(list(WIDTHS.values()))
    origin, x = (np.log([getattr(k, name) for name in WIDTHS]) for k in (Constants(), begin))

    def at(logs: Array) -> Constants:
        return begin._replace(**dict(zip(WIDTHS, map(float, np.exp(logs)))))

    for _ in range(rounds):
        now = predict(found, at(x))
        slopes = np.stack([(predict(found, at(x + nudge)) - now) / NUDGE for nudge in NUDGE * np.eye(len(x))], axis=1)
        off = now - wanted
        trust = np.sqrt(weights * np.minimum(1, DOUBT / np.maximum(np.abs(off), 1e-12))) / NOISE
        # min over d of |trust (slopes d + off)|^2 + |(x + d - origin) / width|^2     [R,n] @ [n] + [R], [n]
        left = np.concatenate([slopes * trust[:, None], np.diag(1 / width)])
        right = np.concatenate([-off * trust, (origin - x) / width])
        x = x + np.clip(np.linalg.lstsq(left, right, rcond=None)[0], -LEAP, LEAP)
    return at(x)


def votes(groups: list[str], seen: Array) -> Array:
    """Return 1 / (rows of the same stack) for each row that is seen, else 0."""
    count = Counter(group for group, one in zip(groups, seen) if one)
    return np.array([1.0 / count[group] if one else 0.0 for group, one in zip(groups, seen)])


def left_out(data: Data, folds: list[str], begin: Constants, rounds: int = ROUNDS) -> Array:
    """Return log(predicted / measured) of each row, by constants that have not seen its fold."""
    off = np.zeros(len(data.wanted))
    for fold in sorted(set(folds)):
        mine = np.array([one == fold for one in folds])
        k = fit(data.runs, data.wanted, votes(data.stacks, ~mine), begin, rounds)
        off[mine] = (predict(data.runs, k) - data.wanted)[mine]
    return off


def within_sweeps(rows: list[Row], off: Array) -> float:
    """Return how far plans of one sweep are off against one another: the median |log error| around their sweep's median."""
    # It is what two plans on one machine must differ by to be distinguished.
    groups = [row.get("sweep_group", "") for row in rows]
    spread: list[float] = []
    for name in {one for one in groups if one and groups.count(one) >= 3}:
        some = off[[one == name for one in groups]]
        spread += list(np.abs(some - np.median(some)))
    return float(np.median(spread))


def fit_all(say: Callable[[str], None]) -> tuple[Constants, dict[str, float]]:
    """Return (constants, their accuracy); `say` gets a line for each error."""
    data = load_data()
    found, wanted, stacks = data
    everything = np.ones(len(wanted))
    k = fit(found, wanted, votes(stacks, everything), Constants())
    seen = predict(found, k) - wanted
    stack_out = left_out(data, stacks, Constants())
    row_out = left_out(data, [str(i) for i in range(len(wanted))], k, 2)
    out: dict[str, float] = {}
    for name, off in (("seen", seen), ("stack_out", stack_out), ("row_out", row_out)):
        size = summary(np.exp(off) - 1)
        out |= {f"{name}_{what}": size[what] for what in ("mean", "median", "p90")}
        say(f"{name:10s} " + "  ".join(f"{what} {100 * size[what]:5.1f} %" for what in ("mean", "median", "p90")))
    by_stack = {name: np.abs(np.exp(stack_out[[one == name for one in stacks]]) - 1) for name in sorted(set(stacks))}
    for name, size in by_stack.items():
        say(f"    stack out, {name:26s} {len(size):3d} rows, mean {100 * size.mean():5.1f} %")
    out["stacks_mean"] = float(np.mean([size.mean() for size in by_stack.values()]))
    say(f"a stack's mean error, all stacks alike: {100 * out['stacks_mean']:.1f} %")
    out["interval"] = kept_by(0.8, np.abs(stack_out), votes(stacks, everything))
    out["tie"] = within_sweeps(found.rows, row_out)
    out["memory"] = memory_off()
    say(f"memory: four of five stacks within {100 * out['memory']:.0f} % of what their runs took")
    out["scaled_mean"] = one_row_shown(stack_out, stacks, out["interval"])
    say(f"after one step of a stack was shown, its others: mean {100 * out['scaled_mean']:.1f} %")
    return k, out


def memory_off() -> float:
    """Return by what share four of five stacks leave the range from lean to plain software, where memory was measured."""
    found = rows_with("mem_gib")
    need, expected = room(found.cases, 0.0), expected_bytes(found)
    off = np.log([number(row, "mem_gib") or 0.0 for row in found.rows] / (expected / GIB))
    above = off - np.log(found.spread(need.most)[2] / found.spread(need.expected)[0])
    below = np.log(found.spread(need.least)[1] / found.spread(need.expected)[0]) - off
    beyond = np.maximum(0.0, np.maximum(above, below))
    return kept_by(0.8, beyond, votes([row["framework"] for row in found.rows], np.ones(len(off))))


def one_row_shown(off: Array, stacks: list[str], interval: float) -> float:
    """Return the mean error of a stack's other rows after each in turn has scaled them, all stacks alike."""
    means = []
    for stack in sorted(set(stacks)):
        mine = off[[one == stack for one in stacks]]
        left = [
            np.expm1(b - share_of_stack(a, interval)) for i, a in enumerate(mine) for j, b in enumerate(mine) if i != j
        ]
        means += [float(np.mean(np.abs(left)))] if left else []
    return float(np.mean(means))


def kept_by(share: float, off: Array, weights: Array) -> float:
    """Return the least |log error| within which rows of this share of all votes lie: a weighted quantile."""
    order = np.argsort(off)
    reached = np.cumsum(weights[order]) >= share * weights.sum() - 1e-9
    return float(off[order][np.argmax(reached)])


def write_text(k: Constants, found: dict[str, float]) -> str:
    lines = [
        "# Written by `python -m labkit.plan.fit --write`; what each means: labkit/plan/constants.py",
        "[constants]",
    ]
    lines += [f"{name} = {value:.4g}" for name, value in k._asdict().items()]
    lines += ["", "# Of log(predicted / measured); see labkit/plan/fit.py", "[accuracy]"]
    return "\n".join(lines + [f"{name} = {value:.4f}" for name, value in found.items()]) + "\n"


def main(argv: list[str]) -> int:
    if "--write" in argv:
        writable(DATA)
    written = write_text(*fit_all(print))
    print(written)
    if "--write" in argv:
        (DATA / "fitted.toml").write_text(written)
    return 0


if __name__ == "__main__":
    run_command("fit", lambda: main(sys.argv[1:]))
