"""Why this plan and not its neighbours, in sentences made of the model's own numbers."""

from typing import Any, NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.plan import footprint
from labkit.plan.cases import FORMATS, FULL
from labkit.plan.constants import accuracy
from labkit.plan.footprint import FITS, GIB, MAY
from labkit.plan.search import PLAN, Found, ties
from labkit.plan.step import Step


class Part(NamedTuple):
    """How a part of a step is called: over its column, as a loss (computing itself is none), as the reason of another."""

    head: str
    loss: str
    reason: str


PARTS = {
    "gemm": Part("GEMM", "", "its products take longer"),
    "attention": Part("attn", "", "attention takes longer"),
    "casts": Part("casts", "", "FP8 casts"),
    "elementwise": Part("other", "", "norms and sums move more bytes"),
    "tensor": Part("TP", "TP messages", "tensor-parallel messages"),
    "context": Part("CP", "CP messages", "keys and values around the context ring"),
    "experts": Part("EP", "EP messages", "tokens on their way to experts"),
    "data": Part("DP", "DP messages", "gradients and weights of data parallelism"),
    "pipeline": Part("PP", "PP messages", "rows between stages"),
    "bubble": Part("bubble", "the bubble", "the pipeline's bubble"),
    "optimizer": Part("optim", "", "the optimizer"),
    "host": Part("other", "CPU launches", "the CPU is too slow"),
}
WORTH = 0.03  # share of a step for which a plan is mentioned at all
# What is alike in a neighbour: of a degree some other degrees, of ZeRO and the format all but what follows from memory.
LIKE = {
    "tp": ("pp", "cp", "ep", "format"),
    "pp": ("tp", "cp", "ep", "format"),
    "cp": ("tp", "pp", "format"),
    "ep": ("tp", "pp"),
    "zero": ("dp", "tp", "pp", "cp", "ep", "format"),
    "format": ("dp", "tp", "pp", "cp", "ep", "zero"),
}


def name(plan: dict[str, int]) -> str:
    """Name a plan in words that `--explain` reads again: dp16.tp4.pp1.mbs2.zero1.recompute.fp8."""
    shown = [f"{key}{plan[key]}" for key in ("dp", "tp", "pp")]
    shown += [f"{key}{plan[key]}" for key in ("vp", "cp", "ep") if plan[key] > 1]
    shown += [f"mbs{plan['mbs']}", f"zero{plan['zero']}"]
    shown += ["recompute"] * (plan["recompute"] == FULL) + [FORMATS[plan["format"]]] * (plan["format"] > 0)
    return ".".join(shown)


def parts(step: Step, row: int) -> dict[str, float]:
    return {key: float(value[row]) for key, value in step._asdict().items()}


def binding(found: Found, row: int) -> tuple[str, float]:
    """Return (what a plan loses most to, the share of its step that this costs); computing itself is no loss."""
    of = parts(found.step, row)
    most = max((key for key, part in PARTS.items() if part.loss), key=lambda key: of[key])
    share = of[most] / float(found.seconds[row])
    return (PARTS[most].loss, share) if share >= 0.01 else ("computing", 0.0)


def next_constraint(found: Found, best: int) -> str:
    """Name the least memory with which a plan would be faster by more than `WORTH`, and by how much."""
    faster = np.flatnonzero(~found.fits & (found.seconds < (1 - WORTH) * found.seconds[best]))
    if not faster.size:
        return f"More memory would gain less than {100 * WORTH:.0f} %."
    row = int(faster[np.argmin(found.room.least[faster])])
    gain = 1 - float(found.seconds[row] / found.seconds[best])
    need, have = float(found.room.least[row]) / GIB, float(found.cases.memory[row]) / GIB
    return f"With {need:.1f} GiB in place of {have:.1f}, {name(found.plan(row))} would be {100 * gain:.0f} % faster."


def doubt(found: Found, order: list[int]) -> list[str]:
    """Say, where the best plan may not fit, what decides it, and which is the best that surely does."""
    row = order[0]
    if found.fit[row] == FITS:
        return []
    least, most, have = (float(one[row]) / GIB for one in (found.room.least, found.room.most, found.cases.memory))
    sure = next((other for other in order if found.fit[other] == FITS), None)
    more = "no plan fits whatever the software"
    if sure is not None:
        longer = 100 * (float(found.seconds[sure] / found.seconds[row]) - 1)
        more = f"{name(found.plan(sure))} fits whatever the software, and takes {longer:.0f} % longer"
    return [
        f"{name(found.plan(row))} may fit: it needs {least:.0f} to {most:.0f} GiB of {have:.0f}. The least is with "
        f"gradients summed in BF16, a fused loss and the activation function computed again; {more}."
    ]


def neighbours(found: Found, best: int) -> list[str]:
    """Write a sentence for each plan that differs in one choice: the best of those with the other degrees alike."""
    out = []
    here = found.plan(best)
    for key in ("tp", "pp", "cp", "ep", "vp", "zero", "mbs", "recompute", "format"):
        column = getattr(found.cases, key)
        held = LIKE.get(key, [other for other in PLAN if other != key])
        same = np.all([getattr(found.cases, other) == here[other] for other in held], axis=0)
        values = sorted({int(value) for value in column[same]})
        below = [value for value in values if value < here[key]][-1:]
        above = [value for value in values if value > here[key]][:1]
        for value in below + above:
            rows = np.flatnonzero(same & (column == value))
            out.append(why_not(found, best, rows, key, value))
    return out


def why_not(found: Found, best: int, rows: np.ndarray, key: str, value: int) -> str:
    """Say what is wrong with the best of `rows`, which have another value of `key`."""
    again = "computing activations again" if value else "keeping all activations"
    label = {"recompute": again, "zero": f"ZeRO {value}"}.get(key, f"{key} {value}")
    if key == "format":
        label = FORMATS[value].upper()
    able = rows[found.fits[rows]]
    if not able.size:
        row = int(rows[np.argmin(found.room.least[rows])])
        most = max(found.memory._fields, key=lambda kind: float(getattr(found.memory, kind)[row]))
        need, have = float(found.room.least[row]) / GIB, float(found.cases.memory[row]) / GIB
        part = float(getattr(found.memory, most)[row]) / GIB
        return f"{label}: does not fit, {need:.0f} GiB of {have:.0f}, {part:.0f} of them {most}."
    row = int(able[np.argmin(found.seconds[able])])
    slower = float(found.seconds[row] / found.seconds[best] - 1)
    mine, theirs = parts(found.step, best), parts(found.step, row)
    sign = 1 if slower >= 0 else -1
    grown = max(mine, key=lambda part: sign * (theirs[part] - mine[part]))
    reason = PARTS[grown].reason
    if found.plan(row)["recompute"] > found.plan(best)["recompute"] and key != "recompute" and grown == "gemm":
        reason = "it fits only if activations are computed again, and products take longer"
    if grown == "tensor" and value > found.cluster.per_node and key == "tp":
        reason += f" leave the node of {found.cluster.per_node}"
    if grown == "bubble":
        plan, micro = found.plan(row), int(found.cases.micro[row])
        reason += f": {plan['pp']} stages for {micro} micro-batches"
        reason += f", {plan['vp']} times interleaved" * (plan["vp"] > 1)
    change = f"{mine[grown]:.3g} to {theirs[grown]:.3g} s"
    if ties(found, [best, row])[1] and slower >= 0:
        return f"{label}: a tie, {100 * slower:+.1f} %; {reason}, {change}."
    word = "slower" if slower >= 0 else "faster"
    return f"{label}: {100 * abs(slower):.0f} % {word}; {reason}, {change}."


def choose(found: Found, text: str, order: list[int]) -> int:
    """Return the row that `--explain` means: a rank in the list, or the quickest plan that has a name or a part of it."""
    if text.isdigit():
        if not 1 <= int(text) <= len(order):
            raise LabError(f"--explain {text}: the list has {len(order)} plans")
        return order[int(text) - 1]
    wanted = {part for part in text.lower().split(".") if part}
    like = [row for row in np.argsort(found.seconds).tolist() if wanted <= all_words(found.plan(row))]
    if not like:
        one = name(found.plan(order[0]))
        raise LabError(f"--explain '{text}': no plan of this model on this cluster has it; one is {one}")
    return next((row for row in like if found.fits[row]), like[0])


def all_words(plan: dict[str, int]) -> set[str]:
    """Return the words of a plan's name, and those that it leaves out: cp1, recompute's absence as keep, bf16."""
    ones = {f"{key}1" for key in ("vp", "cp", "ep") if plan[key] == 1}
    without = ["keep"] * (plan["recompute"] != FULL) + ["bf16"] * (not plan["format"])
    return {*name(plan).split("."), *ones, *without}


def compare_lines(found: Found, a: int, b: int) -> list[tuple[str, float, float]]:
    """Return (what, of a, of b) line by line: seconds by part, then GiB by kind. What neither plan has is left out."""

    def both(what: str, column: Any, unit: float = 1.0) -> tuple[str, float, float]:
        return what, float(column[a]) / unit, float(column[b]) / unit

    seconds = [both(f"  {part}, s", column) for part, column in found.step._asdict().items()]
    kinds = [both(f"  {kind}, GiB", column, GIB) for kind, column in found.memory._asdict().items()]
    of_step, of_memory = both("step, s", found.seconds), both("needed, GiB", found.room.expected, GIB)
    there = [line for line in seconds if max(line[1:]) > 0.0005 * of_step[1]]
    return [of_step, *there, of_memory, *[line for line in kinds if max(line[1:]) > 0.005]]


def as_json(found: Found, rows: list[int]) -> dict[str, Any]:
    """Give the answer as JSON has it, with the plans of these rows, best first."""
    tied, sigma = ties(found, rows), accuracy()["interval"]
    plans = [
        {
            "plan": found.plan(row),
            "name": name(found.plan(row)),
            "step_s": float(found.seconds[row]),
            "interval_s": [float(found.seconds[row] * np.exp(sign * sigma)) for sign in (-1, 1)],
            "tie": tie,
            "tokens_s_gpu": float(found.tokens_s_gpu()[row]),
            "mfu": float(found.mfu()[row]),
            "needed_gib": float(found.room.expected[row]) / GIB,
            "range_gib": [float(one[row]) / GIB for one in (found.room.least, found.room.most)],
            "fit": footprint.WORDS[int(found.fit[row])],
            "memory_gib": {kind: float(getattr(found.memory, kind)[row]) / GIB for kind in found.memory._fields},
            "parts_s": parts(found.step, row),
            "loses_to": binding(found, row),
        }
        for row, tie in zip(rows, tied)
    ]
    return {
        "model": found.model.model_dump(),
        "gpus": found.cluster.gpus,
        "plans": plans,
        "tried": len(found.seconds),
        "fit": int((found.fit == FITS).sum()),
        "may_fit": int((found.fit == MAY).sum()),
        "next_constraint": next_constraint(found, rows[0]),
        "why_not": neighbours(found, rows[0]),
        "accuracy": accuracy(),
    }
