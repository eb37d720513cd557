"""Section 9: a cluster, a naive plan on it, and what the planner makes of yours.

Four machines of eight H200, one network card of 50 GB/s a machine; Llama's 70B in bfloat16; steps of 16
sequences of 8192 tokens. Somebody proposes what is said to always work: tensor parallelism inside the machine, FSDP
over the machines.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from labkit.errors import LabError
from labkit.plan import explain
from labkit.plan.footprint import GIB
from labkit.plan.model import find_model
from labkit.plan.request import Request, count_sequences, find_cluster
from labkit.plan.search import Found, ranked, search

CASE = Request(model="70b", gpus=32, gpu="h200", ib=50 / 8, batch_tokens="128K", precision="bf16")
NAIVE = {"tp": 8, "pp": 1, "cp": 1, "zero": 3}
PARTS = {
    "products and attention": ("gemm", "attention"),
    "norms, optimizer": ("elementwise", "casts", "host", "optimizer"),
    "tensor-parallel messages": ("tensor",),
    "context-parallel messages": ("context",),
    "data-parallel messages": ("data",),
    "between stages": ("pipeline",),
    "bubble": ("bubble",),
}


class Priced(NamedTuple):
    """A plan as the planner sees it: its name, seconds of a step, by part, and GiB that a GPU needs of `room`."""

    name: str
    seconds: float
    parts: dict[str, float]
    gib: float
    room: float


@cache
def searched() -> Found:
    """Every plan on the cluster."""
    model = find_model(CASE.model)
    return search(model, find_cluster(CASE), count_sequences(CASE.batch_tokens, model), ("bf16",))


def priced(**degrees: Any) -> Priced:
    """The quickest plan with these degrees (tp, pp, cp, zero, mbs, vp, ...; what is not given is the planner's choice),
    one that fits if there is one. LabError: no plan has them, and why that may be."""
    found = searched()
    unknown = [key for key in degrees if key not in ("dp", "tp", "pp", "vp", "cp", "zero", "mbs", "recompute")]
    if unknown:
        raise LabError(f"{unknown[0]} is no degree: give tp, pp, cp, vp, zero, mbs or recompute")
    rows = [
        row for row in range(len(found.seconds)) if all(found.plan(row)[key] == value for key, value in degrees.items())
    ]
    if not rows:
        requested = ", ".join(f"{key} {value}" for key, value in degrees.items())
        raise LabError(
            f"no plan has {requested}: dp x tp x pp x cp is 32, heads and key/value heads divide by tp, 16 sequences by "
            "dp x mbs, and ZeRO 3 goes with one stage"
        )
    row = min(rows, key=lambda i: (not found.fits[i], found.seconds[i]))
    of = explain.parts(found.step, row)
    return Priced(
        explain.name(found.plan(row)),
        float(found.seconds[row]),
        {label: sum(of[key] for key in keys) for label, keys in PARTS.items()},
        float(found.room.expected[row]) / GIB,
        float(found.cases.memory[row]) / GIB,
    )


def best() -> Priced:
    """The planner's own."""
    found = searched()
    return priced(
        **{key: value for key, value in found.plan(ranked(found, "time")[0]).items() if key not in ("ep", "format")}
    )


def side_by_side(**plans: Priced) -> str:
    """A table: the step of each plan, its parts, its memory."""
    lines = ["seconds of a step".ljust(28) + "".join(f"{name:>14s}" for name in plans)]
    lines += ["predicted".ljust(28) + "".join(f"{one.seconds:14.2f}" for one in plans.values())]
    for label in PARTS:
        if any(one.parts[label] >= 0.005 for one in plans.values()):
            lines += [f"  {label}".ljust(28) + "".join(f"{one.parts[label]:14.2f}" for one in plans.values())]
    fits = (f"{one.gib:.0f}{'' if one.gib <= one.room else ' (no)'}" for one in plans.values())
    room = next(iter(plans.values())).room
    lines += [f"GiB, of {room:.0f}".ljust(28) + "".join(f"{text:>14s}" for text in fits), ""]
    return "\n".join(lines + [f"{name}: {one.name}" for name, one in plans.items()])


def table(**mine: Any) -> str:
    """`side_by_side` of the naive plan, the one with these degrees, and the planner's own. A plan that cannot be is
    reported below; one of which a degree is None (the prediction was skipped) is left out."""
    plans, refused = {"naive": priced(**NAIVE)}, ""
    if None not in mine.values():
        try:
            plans["yours"] = priced(**mine)
        except LabError as error:
            refused = f"\nyours: {error}"
    return side_by_side(**plans, planner=best()) + refused
