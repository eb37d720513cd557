"""Fit the constants, and report how wrong they are on unseen runs: python -m labkit.plan.fit [--write]

Least squares by Gauss and Newton, of log(predicted / measured), over data/shown.csv and data/own.csv: a row of a stack
with n rows counts 1/n; each constant may leave its start by its `width`; a row that is off by more than `DOUBT` counts
less (Huber 1964). Errors: without a whole software stack (stack out), or one row (row out), fit, then predict it.
"""

import sys
from collections import Counter
from typing import NamedTuple

import numpy as np

from labkit.errors import run_command
from labkit.plan.cases import Array
from labkit.plan.constants import DATA, WIDTHS, Constants
from labkit.plan.footprint import GIB, room
from labkit.plan.rows import Row, Runs, number, read, runs
from labkit.plan.step import step
from labkit.plan.validate import expected_bytes, summary
from labkit.record.files import writable

NOISE, DOUBT = 0.08, 0.10  # of a log: what releases of one stack differ by (5 to 10 %); beyond it a row is doubtful
NUDGE, LEAP, ROUNDS = 1e-3, 0.3, 8  # of log(constant): for the slope; the longest step; steps


class Data(NamedTuple):
    """The measured runs: their cases, the logarithm of what was measured, and the software stack of each."""

    runs: Runs
    wanted: Array
    stacks: list[str]


def load_data(field: str = "step_s") -> Data:
    """Load the rows, of both files, that have a number in this field."""
    found = runs([row for name in ("shown", "own") for row in read(DATA / f"{name}.csv") if number(row, field)])
    wanted = np.log([number(row, field) or 0.0 for row in found.rows])
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


def fit_all() -> tuple[Constants, dict[str, float]]:
    """Return (constants, their accuracy)."""
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
    out["interval"] = within(np.abs(stack_out), votes(stacks, everything))
    out["tie"] = within_sweeps(found.rows, row_out)
    out["memory"] = memory_off()
    return k, out


def memory_off() -> float:
    """Return by what share four of five stacks leave the range from lean to plain software, where memory was measured."""
    found, wanted, stacks = load_data("mem_gib")
    need, off = room(found.cases, 0.0), wanted - np.log(expected_bytes(found) / GIB)
    above = off - np.log(found.spread(need.most)[2] / found.spread(need.expected)[0])
    below = np.log(found.spread(need.least)[1] / found.spread(need.expected)[0]) - off
    return within(np.maximum(0.0, np.maximum(above, below)), votes(stacks, np.ones(len(off))))


def within(off: Array, weights: Array) -> float:
    """Return the least |log error| within which rows of 80 % of all votes lie."""
    return float(np.quantile(off, 0.8, weights=weights, method="inverted_cdf"))


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
    written = write_text(*fit_all())
    print(written)
    if "--write" in argv:
        (DATA / "fitted.toml").write_text(written)
    return 0


if __name__ == "__main__":
    run_command("fit", lambda: main(sys.argv[1:]))
