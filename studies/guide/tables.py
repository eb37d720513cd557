"""What PARALLELISM_GUIDE.md.j2 shows: tables, counts and pictures, all from guide.json."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from labkit.plan.anatomy import draw_bars
from labkit.plan.constants import accuracy, constants
from labkit.plan.footprint import MAY, NOT, WORDS
from labkit.plan.machine import CHIPS, alone
from labkit.plan.model import find_model
from labkit.plan.work import rate
from labkit.record.plotting import Picture
from studies.guide import pictures, survey
from studies.guide.survey import FABRICS, GPUS, PRECISIONS, STANDARD, WORTH_TP, power_near, short

record = survey.load()
error = accuracy()
k = constants()
NAMES = {"8b": "8B", "13b": "13B", "70b": "70B", "405b": "405B", "8x7b": "8x7B"}
MARKS = {"agrees": "✓", "tie": "≈", "differs": "✗"}
MEMORY = 0.03  # of a step: where more memory would save as much, memory binds first
DP_WORTH = 0.05  # of a step: what rule 2 lets data parallelism cost
HIDING = k.drag * 2 / 3 / DP_WORTH  # how many times F / B tokens that takes: hidden messages still drag
AMPLE = 10  # rounds of micro-batches for each stage that waits: a bubble of a tenth


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell_of(model: str, gpus: int, fabric: str, precision: str) -> dict[str, Any]:
    key = (model, gpus, fabric, precision)
    return next(c for c in record["cells"] if (c["model"], c["gpus"], c["fabric"], c["precision"]) == key)


def constraint(cell: dict[str, Any]) -> str:
    """Say what binds, in at most three words."""
    if not cell["plan"]:
        return "does not fit"
    return f"memory; {cell['loses'][0]}" if cell["memory"] >= MEMORY else cell["loses"][0]


def mark_of(cell: dict[str, Any]) -> str:
    """Return what a published run of this model, machine and precision says of the choice."""
    keys = ("model", "gpus", "fabric", "precision")
    return " ".join(MARKS[one["mark"]] for one in record["published"] if all(one[key] == cell[key] for key in keys))


def matrix(model: str) -> str:

    def write(cell: dict[str, Any]) -> str:
        if not cell["plan"]:
            return "does not fit"
        return f"`{short(cell['plan'])}` {100 * cell['mfu']:.0f} % {mark_of(cell)}".strip() + f"<br>{constraint(cell)}"

    rows = [
        [f"{gpus:,} {precision.upper()}", *(write(cell_of(model, gpus, fabric, precision)) for fabric in FABRICS)]
        for gpus in GPUS
        for precision in PRECISIONS
    ]
    return table(["GPUs", *FABRICS], rows)


def fitting() -> list[dict[str, Any]]:
    # The fields of the matrix in which something fits.
    return [cell for cell in record["cells"] if cell["plan"]]


def kept(rule: int) -> tuple[int, int, list[dict[str, Any]]]:
    """Return (fields in which the best plan is what the rule says, fields that it speaks of, the others)."""
    speaks, right = [], []
    for cell in fitting():
        of, plan = cell["rules"], cell["plan"]
        if rule == 1 and of["least_cut"] is not None:
            holds = of["cut"] == of["least_cut"]
        elif rule == 2 and plan["dp"] > 1:
            if not above(cell):
                continue
            holds = of["dp_share"] <= DP_WORTH
        elif rule == 3:
            holds = of["tp"] <= power_near(of["widest"])
        elif rule == 4 and of["rounds"] is not None:
            holds = of["rounds"] >= AMPLE
        elif rule == 5 and of["could_keep"]:
            holds = not of["again"]
        else:
            continue
        speaks.append(cell)
        right.append(holds)
    return sum(right), len(speaks), [cell for cell, holds in zip(speaks, right) if not holds]


def above(cell: dict[str, Any]) -> bool:
    # Has a field the tokens that rule 2 needs?
    of = cell["rules"]
    return of["tokens"] * cell["plan"]["pp"] >= HIDING * of["hides"]


def below_words() -> str:
    """Count the fields that have not, and those that pay more: "61 of 90"."""
    below = [cell for cell in fitting() if cell["plan"]["dp"] > 1 and not above(cell)]
    return f"{sum(cell['rules']['dp_share'] > DP_WORTH for cell in below)} of {len(below)}"


def costs(rule: int, key: str) -> str:
    """Say what obeying a rule would cost where the planner does not: "2 % at the median, 9 % at most"."""
    found = [cell["rules"][key] for cell in kept(rule)[2] if cell["rules"][key] is not None]
    return f"{100 * np.median(found):.0f} % at the median and {100 * max(found):.0f} % at most"


def tokens_enough() -> float:
    """Return rule 2's tokens a GPU, on H100 in BF16 with 50 GB/s."""
    return HIDING * F("h100") / B(50) * 1e3


def unseen() -> str:
    """Say how far the planner is off on the published plans that no fit had seen."""
    known = [one for one in record["published"] if not one["seen"] and one["their_mfu"] is not None]
    off = [abs(one["their_mfu"] / one["mfu"] - 1) for one in known]
    return f"{100 * np.median(off):.0f} % at the median, {100 * max(off):.0f} % at most, over {len(off)} runs"


def kept_words(rule: int) -> str:
    yes, of, _ = kept(rule)
    return f"{yes} of {of}"


def broken(rule: int) -> dict[str, int]:
    """Count how often a rule breaks in each column of the matrix."""
    count = Counter(cell["fabric"] for cell in kept(rule)[2])
    return {fabric: count[fabric] for fabric in FABRICS}


def others() -> str:
    heads = ["run", "its plan", "measured MFU %", "predicted", "too large: GiB"]
    heads += ["the planner's own", "predicted", "same?", "source"]
    rows = []
    for one in record["published"]:
        run = f"{NAMES[one['model']]}, {one['gpus']:,} {one['gpu'].upper()}, {one['precision'].upper()}"
        run += " *" * one["seen"]
        predicted = "not tried" if one["their_mfu"] is None else f"{100 * one['their_mfu']:.0f}"
        needs = f"{one['needs']:.0f}" if one["fit"] == WORDS[NOT] else "may fit" if one["fit"] == WORDS[MAY] else ""
        theirs = [f"`{one['theirs']}`", f"{100 * one['mfu']:.0f}", predicted, needs]
        rows.append(
            [run, *theirs, f"`{one['ours']}`", f"{100 * one['our_mfu']:.0f}", MARKS[one["mark"]], one["source"]]
        )
    return table(heads, rows)


def lean_only() -> str:
    """Count the fields whose best plan fits with lean software alone: "166 of 224"."""
    cells = fitting()
    return f"{sum(cell['gib'] > cell['have'] for cell in cells)} of {len(cells)}"


def matched() -> str:
    """Count the published plans that the planner's own agree or tie with: "8 of 10"."""
    marks = [one["mark"] for one in record["published"]]
    return f"{sum(mark != 'differs' for mark in marks)} of {len(marks)}"


def by_stack() -> str:
    """Write the table of runs, mean error and the worst, of each stack that the constants had not seen."""
    groups = defaultdict(list)
    for one in record["errors"]:
        groups[one["stack"]].append(100 * np.expm1(one["off"]))
    rows = [
        [name, str(len(off)), f"{np.mean(np.abs(off)):.1f}", f"{max(off, key=abs):+.1f}"]
        for name, off in sorted(groups.items(), key=lambda item: np.mean(np.abs(item[1])))
    ]
    return table(["stack, left out of the fit", "runs", "mean error %", "worst %"], rows)


def F(gpu: str) -> float:
    """Return the TFLOP/s of large BF16 products."""
    return float(rate(alone(CHIPS[gpu], 1), k, False)[0]) / 1e12


def B(ib: float) -> float:
    """Return the GB/s that a node of eight sends over its network cards."""
    return k.network * 8 * ib


def widths() -> str:
    """Write the table of the widest tensor parallelism that rule 3 allows, by model and link, in BF16."""
    gpus = [FABRICS[fabric].gpu for fabric in (STANDARD, "NVL72", "PCIe")]
    links = [(gpu, k.wire * CHIPS[gpu].nvlink) for gpu in gpus] + [("h100", k.network * 50)]  # GB/s of a GPU
    rows = []
    for name in ("8b", "70b", "405b"):
        hidden = find_model(name).hidden
        widest = [1 + WORTH_TP * 4.5 / k.tp_left * hidden * gbs / F(gpu) / 1e3 for gpu, gbs in links]
        rows.append([f"{NAMES[name]}, h = {hidden:,}", *(f"{one:.1f}" for one in widest)])
    return table(["tp at most", "H100, NVLink", "GB200, NVLink", "H100 PCIe", "H100, network at 50 GB/s"], rows)


def short_step() -> str:
    one = record["short"]
    of, long = one["rules"], cell_of(one["model"], one["gpus"], STANDARD, "bf16")
    return (
        f"{NAMES[one['model']]} on {one['gpus']:,} H100 with 2M tokens a step has {of['rounds']:.1f} rounds at best, "
        f"as `{short(one['plan'])}`: the bubble takes {100 * of['bubble_share']:.0f} %, "
        f"and MFU is {100 * one['mfu']:.0f} % in place of {100 * long['mfu']:.0f} % "
        "with 16M."
    )


def halving() -> str:
    """Say what a cut costs where the other way is to compute again."""
    one = record["again"]
    return (
        f"8B on 8 H100 as `{one['cut']}` is {100 * one['cut_loss']:.0f} % slower than a plan that memory does not "
        f"hold; with activations computed again, as `{one['again']}`, {100 * one['again_loss']:.0f} %."
    )


def typical_ties() -> int:
    """Count the plans within the tie, in the median field."""
    return int(np.median([cell["ties"] for cell in fitting()]))


def describe(model: str) -> str:
    m = find_model(model)
    experts = f", {m.experts} experts of which a token takes {m.topk}" if m.experts else ""
    return f"{m.layers} layers of width {m.hidden:,}, {m.heads} heads on {m.kv_heads}{experts}; sequences of {m.seq:,}."


def published_mfu(which: str, model: str, gpu: str, precision: str = "fp8") -> str:
    """Return a published run's MFU in per cent: "mfu" as measured, "their_mfu" as predicted."""
    runs = [one for one in record["published"] if not one["seen"]]
    run = next(one for one in runs if (one["model"], one["gpu"], one["precision"]) == (model, gpu, precision))
    return f"{100 * run[which]:.0f}"


def map_picture(scratch: Path) -> Picture:
    return pictures.degrees_map(record["map"], scratch, "plan-map")


def anatomy_picture(scratch: Path) -> Picture:
    bars = [(one["name"], one["parts"]) for one in record["anatomy"]]
    losses = [
        f"{one['name']} takes {sum(one['parts'].values()):.3g} s and loses most to {one['loses'][0]}"
        for one in record["anatomy"]
    ]
    return draw_bars(bars, scratch, "plan-anatomy", "Three plans' steps by part: " + "; ".join(losses) + ".")


def errors_picture(scratch: Path) -> Picture:
    return pictures.off_by_stack(record["errors"], error["interval"], scratch, "plan-errors")
