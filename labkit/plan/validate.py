"""Hold the model to measured runs: python -m labkit.plan.validate FILE.csv

Columns as in data/shown.csv. Printed are each run's predicted and measured step, the errors by GPU and framework,
Kendall's tau and the regret of each sweep, and memory. A row of an unknown model or machine is reported and left out.
"""

import sys
from collections import defaultdict
from typing import Any

import numpy as np

from labkit.errors import LabError, run_command
from labkit.plan.cases import Array
from labkit.plan.constants import accuracy, constants
from labkit.plan.footprint import FITS, FRAGMENTS, GIB, MAY, NOT, WORDS, Room, memory, room
from labkit.plan.rows import Row, Runs, number, read, runs
from labkit.plan.step import step

NO = ("no", "oom", "false", "0")


def summary(errors: Array | list[float]) -> dict[str, float]:
    """Return n, and mean, median and 90 % quantile of |predicted / measured - 1|."""
    size = np.abs(errors)
    p90 = float(np.quantile(size, 0.9))
    return {"n": len(errors), "mean": float(size.mean()), "median": float(np.median(size)), "p90": p90}


def expected_bytes(found: Runs) -> Array:
    """Return the bytes of each row as its source counted them: by nvidia-smi, reserved, or allocated."""
    total, need = found.spread(memory(found.cases).total)[0], found.spread(room(found.cases, 0.0).expected)[0]
    kinds = [row.get("mem_kind", "") for row in found.rows]
    smi, reserved = (np.array([word in kind for kind in kinds]) for word in ("smi", "reserved"))
    return np.select([smi, reserved], [need, total * (1 + FRAGMENTS)], total)


def judge(rows: list[Row]) -> dict[str, Any]:
    found = runs(rows)
    seconds, least, most = found.spread(step(found.cases, constants()).total)
    sigma, of_memory = accuracy()["interval"], accuracy()["memory"]
    need = room(found.cases, of_memory)
    held, needed = expected_bytes(found), found.spread(need.expected)[0]
    lowest, highest = found.spread(need.least)[1], found.spread(need.most)[2]
    fit = Room(needed, lowest, highest).fits(found.spread(found.cases.memory)[0])  # whatever the row leaves open
    each = []
    for i, row in enumerate(found.rows):
        measured, gib = number(row, "step_s"), number(row, "mem_gib")
        size = held[i] / GIB
        each.append(
            {
                "id": row.get("id", str(i + 1)),
                **{key: row.get(key, "") for key in ("gpu", "framework", "sweep_group", "mem_kind")},
                "predicted_s": float(seconds[i]),
                "least_s": float(least[i] * np.exp(-sigma)),
                "most_s": float(most[i] * np.exp(sigma)),
                "measured_s": measured,
                "error": float(seconds[i] / measured - 1) if measured else None,
                "gib": float(size),
                "measured_gib": gib,
                "gib_error": float(size / gib - 1) if gib else None,
                "fit": WORDS[int(fit[i])],
                "ran": row.get("fits", "yes").lower() not in NO,
            }
        )
    return {"rows": each, "left_out": found.left_out, **summaries(each)}


def summaries(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the runs: errors of all, by GPU, by framework, of memory; sweeps; and what was called fitting."""
    from scipy.stats import kendalltau  # here: it takes a second to import

    timed = [one for one in each if one["error"] is not None]
    errors = defaultdict(list)
    for label, key, what in (("time", "", "error"), ("time, ", "gpu", "error"), ("time, ", "framework", "error"),
                             ("memory, ", "mem_kind", "gib_error")):  # fmt: skip
        for one in each:
            if one[what] is not None:
                errors[label + one.get(key, "")].append(one[what])
    groups = defaultdict(list)
    for one in timed:
        groups[one["sweep_group"]].append(one)
    sweeps = {}
    for name, members in sorted(groups.items()):
        if name and len(members) >= 3:
            predicted, took = (np.array([one[key] for one in members]) for key in ("predicted_s", "measured_s"))
            # regret: how much longer than the best step that of the plan predicted best is, as a share
            regret = float(took[int(np.argmin(predicted))] / took.min() - 1)
            sweeps[name] = {"n": len(members), "tau": float(kendalltau(predicted, took).statistic), "regret": regret}
    inside = [one["least_s"] <= one["measured_s"] <= one["most_s"] for one in timed]
    ran, out_of_memory = ([one["fit"] for one in each if one["ran"] == did] for did in (True, False))
    return {
        "errors": {name: summary(off) for name, off in errors.items()},
        "inside_interval": float(np.mean(inside)) if timed else None,
        "sweeps": sweeps,
        "out_of_memory": len(out_of_memory),
        "called_fitting": out_of_memory.count(WORDS[FITS]),
        "ran": len(ran),
        "called_too_large": ran.count(WORDS[NOT]),
        "may_fit": sum(one["fit"] == WORDS[MAY] for one in each),
    }


def show(found: dict[str, Any]) -> None:
    heads = f"{'predicted s':>12s} {'interval':>19s} {'measured s':>11s} {'error %':>8s} {'GiB':>7s} {'meas.':>7s}"
    print(f"{'run':40s} {heads}")
    for one in found["rows"]:
        between = f"{one['least_s']:.4g} to {one['most_s']:.4g}"
        measured = f"{one['measured_s']:.4g}" if one["measured_s"] else "-"
        error = f"{100 * one['error']:+.1f}" if one["error"] is not None else "-"
        gib = f"{one['measured_gib']:.1f}" if one["measured_gib"] else "-"
        note = f"  {one['fit']}" + ("" if one["ran"] else "; ran out of memory")
        print(
            f"{one['id'][:40]:40s} {one['predicted_s']:12.4f} {between:>19s} {measured:>11s} {error:>8s} "
            f"{one['gib']:7.1f} {gib:>7s}{note}"
        )
    for sentence in found["left_out"]:
        print(f"left out: {sentence}")
    print(f"\n{'error, %':40s} {'runs':>5s} {'mean':>6s} {'median':>6s} {'p90':>6s}")
    for name, one in found["errors"].items():
        mean, median, p90 = (100 * one[what] for what in ("mean", "median", "p90"))
        print(f"{name[:40]:40s} {one['n']:5.0f} {mean:6.1f} {median:6.1f} {p90:6.1f}")
    if found["inside_interval"] is not None:
        print(f"inside their interval: {100 * found['inside_interval']:.0f} %")
    for name, one in found["sweeps"].items():
        print(f"sweep {name}: {one['n']} plans, Kendall's tau {one['tau']:.3f}, regret {100 * one['regret']:.1f} %")
    print(
        f"ran out of memory: {found['out_of_memory']}, of them called fitting: {found['called_fitting']}; "
        f"ran: {found['ran']}, of them called too large: {found['called_too_large']}; may fit: {found['may_fit']}"
    )


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        raise LabError("usage: python -m labkit.plan.validate FILE.csv")
    show(judge(read(argv[0])))
    return 0


if __name__ == "__main__":
    run_command("validate", lambda: main(sys.argv[1:]))
