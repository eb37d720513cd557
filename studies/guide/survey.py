"""What the guide is written from: python -m studies.guide.survey [--write]

Every answer of PARALLELISM_GUIDE.md is one call of the planner, kept in guide.json; a test calls it again for cells
that it draws.

    cells        the decision matrix: MODELS x GPUS x FABRICS x precision
    map          the same on more numbers of GPUs, of one fabric: the picture
    rules        for each cell, what the five rules say about it
    published    plans that others ran (published.csv), beside the planner's own
    anatomy      three plans of one model on one cluster
    short, again where rules 4 and 5 break, in numbers
    errors       each measured run, and what constants that had not seen its software stack predict
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.errors import LabError, run_command
from labkit.plan import explain, fit
from labkit.plan.cases import FULL
from labkit.plan.constants import Constants, accuracy, constants
from labkit.plan.footprint import GIB, WORDS
from labkit.plan.model import find_model
from labkit.plan.request import Request, count_sequences, find_cluster
from labkit.plan.search import Found, ranked, search, ties
from labkit.plan.work import rate
from labkit.record.files import writable
from studies.writing import as_lines

HERE = Path(__file__).parent
FILE = HERE / "guide.json"
MODELS = ("8b", "13b", "70b", "405b", "8x7b")
GPUS = (8, 64, 256, 1024, 4096)
MAP_GPUS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PRECISIONS = ("bf16", "fp8")
STANDARD = "IB 50"  # the fabric of the map and of the anatomy


class Fabric(NamedTuple):
    """How the GPUs hang together: options of `lab plan`, and words."""

    gpu: str
    per_node: int
    ib: float
    words: str


FABRICS = {
    "IB 25": Fabric("h100", 8, 25.0, "H100, 8 on NVLink; 25 GB/s a GPU between nodes"),
    "IB 50": Fabric("h100", 8, 50.0, "the same with 50 GB/s"),
    "IB 100": Fabric("h100", 8, 100.0, "the same with 100 GB/s"),
    "NVL72": Fabric("gb200", 64, 50.0, "GB200, 64 of a rack's 72 on NVLink; 50 GB/s between racks"),
    "PCIe": Fabric("h100-pcie", 8, 25.0, "H100 PCIe, 8 in a machine without NVLink; 25 GB/s between machines"),
}
# Of the anatomy: everything sharded; as much tensor parallelism as there is.
NAIVE = ("zero3.tp1.cp1.pp1", "tp8.pp1.cp1")
WORTH_TP = 0.10  # of the products' time: what rule 3 lets tensor-parallel messages cost


def make_request(model: str, gpus: int, fabric: str, precision: str) -> Request:
    of, tokens = FABRICS[fabric], "4M" if gpus <= 256 else "16M"  # what pre-training takes on so many GPUs
    cluster = Request(gpus=gpus, gpu=of.gpu, per_node=min(of.per_node, gpus), ib=of.ib)
    return replace(cluster, model=model, batch_tokens=tokens, precision=precision)


def find_plans(request: Request, gbs: int | None = None) -> Found:
    model = find_model(request.model)
    model = model.replace(seq=request.seq) if request.seq else model
    gbs = gbs or count_sequences(request.batch_tokens, model)
    return search(model, find_cluster(request), gbs, (request.precision or "bf16",))


def cell(model: str, gpus: int, fabric: str, precision: str) -> dict[str, Any]:
    """Return the planner's answer, with what the rules need of it. `plan` None: nothing fits."""
    key = {"model": model, "gpus": gpus, "fabric": fabric, "precision": precision}
    try:
        found = find_plans(make_request(model, gpus, fabric, precision))
        order = ranked(found, "time")
    except LabError:
        order = []
    if not order:
        return {**key, "plan": None}
    row = order[0]
    lost, share = explain.binding(found, row)
    return {
        **key,
        "plan": found.plan(row),
        "name": explain.name(found.plan(row)),
        "mfu": round(float(found.mfu()[row]), 4),
        "step_s": float(f"{found.seconds[row]:.5g}"),
        "loses": [lost, round(share, 4)],
        "gib": round(float(found.room.expected[row]) / GIB, 3),
        "have": round(float(found.cases.memory[row]) / GIB, 3),
        "memory": round(max(0.0, 1 - float(found.seconds.min() / found.seconds[row])), 4),  # what unlimited would save
        "ties": int(sum(ties(found, order))),
        "rules": rules(found, row),
    }


def rules(found: Found, row: int) -> dict[str, Any]:
    """Return what the five rules of the guide need of a cell: what each predicts, and what the best plan has."""
    c, k, plan, of = found.cases, constants(), found.plan(row), explain.parts(found.step, row)
    flops = float(rate(c, k, True)[row])
    kept = found.fits & (c.recompute != FULL) & (c.zero < 3)
    cut = c.tp * c.pp * c.cp
    per_gpu = float(c.gbs[row] * c.seq[row] / c.gpus[row])
    node = min(found.cluster.per_node, found.cluster.gpus)
    near, far = k.wire * found.cluster.intra, k.network * found.cluster.inter * node
    narrow = np.inf if found.cluster.gpus <= node else far
    hides = flops / min(near, narrow)  # tokens a GPU and step: 4 bytes a parameter over the wire, 4 FLOPs in backward

    def obeyed(which: np.ndarray) -> float | None:
        return float(found.seconds[which].min() / float(found.seconds[row]) - 1) if which.any() else None

    least_cut = float(cut[kept].min()) if kept.any() else np.inf
    widest = 1 + WORTH_TP * 4.5 * float(c.hidden[row]) * near / (k.tp_left * flops)
    return {
        "cut": int(cut[row]),
        "least_cut": int(least_cut) if kept.any() else None,
        "least_cut_costs": obeyed(kept & (cut == least_cut)),
        "tokens": round(per_gpu),
        "hides": round(hides),
        "dp_share": round(of["data"] / float(found.seconds[row]), 4),
        "widest": round(widest, 2),
        "tp": plan["tp"],
        "narrow_costs": obeyed(found.fits & (c.tp <= power_near(widest))),
        "bubble_share": round(of["bubble"] / float(found.seconds[row]), 4),
        "rounds": round(float(c.micro[row]) * plan["vp"] / (plan["pp"] - 1), 2) if plan["pp"] > 1 else None,
        "again": plan["recompute"] == FULL,
        "could_keep": bool(kept.any()),
    }


def power_near(x: float) -> int:
    """Return the power of two nearest to x, in its logarithm."""
    return int(2 ** max(0, round(float(np.log2(x)))))


def published() -> list[dict[str, Any]]:
    """Return, for each published plan, what the planner says about it, and what it would take there."""
    out = []
    with (HERE / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for one in rows:
        where = (one["gpu"], float(one["ib"]))
        cluster = Request(gpus=int(one["gpus"]), gpu=where[0], per_node=int(one["per_node"]), ib=where[1])
        request = replace(cluster, model=one["model"], precision=one["precision"], seq=int(one["seq"]))
        found = find_plans(request, int(one["gbs"]))
        order = ranked(found, "time")
        best = order[0]
        same = found.cases.recompute != FULL  # none of them computes activations again
        for key in ("tp", "pp", "vp", "cp", "ep", "zero", "mbs"):
            if one[key]:
                same &= getattr(found.cases, key) == float(one[key])
        size = {key: int(one[key] or 1) for key in ("tp", "pp", "vp", "cp", "ep", "mbs")}
        dp = int(one["gpus"]) // (size["tp"] * size["pp"] * size["cp"])
        theirs = {**size, "dp": dp, "zero": int(one["zero"] or 1), "recompute": 0}
        row = min(map(int, np.flatnonzero(same)), key=lambda i: found.seconds[i], default=None)
        flops = float(found.cases.model_flops[best] / found.cases.peak[best])
        out.append(
            {
                **{key: one[key] for key in ("model", "gpu", "precision", "source")},
                "gpus": int(one["gpus"]),
                "fabric": next((name for name, of in FABRICS.items() if (of.gpu, of.ib) == where), None),
                "theirs": short(theirs),
                "mfu": float(one["tok_s_gpu"]) * flops if one["tok_s_gpu"] else float(one["mfu"]),
                "seen": one["seen"] == "yes",
                "ours": short(found.plan(best)),
                "our_mfu": float(found.mfu()[best]),
                **dict.fromkeys(("their_mfu", "fit", "needs", "gain")),
                "mark": mark(found, best, row),
            }
        )
        if row is not None:
            gain = float(found.seconds[row] / found.seconds[best] - 1)
            out[-1] |= {"their_mfu": float(found.mfu()[row]), "fit": WORDS[int(found.fit[row])], "gain": gain}
            out[-1]["needs"] = float(found.room.least[row]) / GIB
    return out


def mark(found: Found, best: int, row: int | None) -> str:
    """Compare two choices: agrees (the same degrees), tie (within the model's error) or differs."""
    if row is None:
        return "differs"
    ours, theirs = found.plan(best), found.plan(row)
    if all(ours[key] == theirs[key] for key in ("tp", "pp", "cp", "ep")):
        return "agrees"
    close = float(np.log(found.seconds[row] / found.seconds[best])) <= accuracy()["tie"]
    return "tie" if close and found.fits[row] else "differs"


def short(plan: dict[str, int]) -> str:
    """Name a plan by its degrees above 1, its ZeRO stage where it is 3, and whether activations are computed again."""
    words = [f"{key}{plan[key]}" for key in ("dp", "tp", "pp", "cp", "ep") if plan[key] > 1]
    words += ["zero3"] * (plan["zero"] >= 3) + ["recompute"] * (plan["recompute"] == FULL)
    return ".".join(words) or "dp1"


def anatomy(model: str = "70b", gpus: int = 256) -> list[dict[str, Any]]:
    """Return the best plan, and the best of two naive kinds that fit."""
    found = find_plans(make_request(model, gpus, STANDARD, "bf16"))
    order = ranked(found, "time")
    rows = [order[0], *(explain.choose(found, text, order) for text in NAIVE)]
    return [
        {
            "name": explain.name(found.plan(row)),
            "parts": explain.parts(found.step, row),
            "mfu": float(found.mfu()[row]),
            "loses": list(explain.binding(found, row)),
        }
        for row in rows
    ]


def short_step(model: str = "405b", gpus: int = 4096) -> dict[str, Any]:
    """Return a cell with a step of 2M tokens: too few sequences for rule 4."""
    found = find_plans(replace(make_request(model, gpus, STANDARD, "bf16"), batch_tokens="2M"))
    row = ranked(found, "time")[0]
    return {
        "model": model,
        "gpus": gpus,
        "plan": found.plan(row),
        "mfu": float(found.mfu()[row]),
        "rules": rules(found, row),
        "loses": list(explain.binding(found, row)),
    }


def again() -> dict[str, Any]:
    """Return what a cut costs for 8B on eight H100, and what computing again costs, against unlimited memory."""
    found = find_plans(make_request("8b", 8, STANDARD, "bf16"))
    free, full = float(found.seconds.min()), found.cases.recompute == FULL
    rows = [int(np.argmin(np.where(found.fits & which, found.seconds, np.inf))) for which in (~full, full)]
    cut, repeated = ({"name": short(found.plan(row)), "loss": 1 - free / float(found.seconds[row])} for row in rows)
    return {"cut": cut["name"], "cut_loss": cut["loss"], "again": repeated["name"], "again_loss": repeated["loss"]}


def errors() -> list[dict[str, Any]]:
    data = fit.load_data()
    off = fit.left_out(data, data.stacks, Constants())
    return [
        {"id": row["id"], "stack": stack, "measured": float(np.exp(log)), "off": round(float(one), 4)}
        for row, stack, log, one in zip(data.runs.rows, data.stacks, data.wanted, off)
    ]


def everything(say=print) -> dict[str, Any]:
    cells = []
    for model in MODELS:
        for gpus in GPUS:
            cells += [cell(model, gpus, fabric, precision) for fabric in FABRICS for precision in PRECISIONS]
        say(f"{model}: done")
    of_map = [cell(model, gpus, STANDARD, "bf16") for model in MODELS for gpus in MAP_GPUS]
    for one in of_map:
        one.pop("rules", None)
    return {
        "constants": constants()._asdict(),
        "cells": cells,
        "map": of_map,
        "published": published(),
        "anatomy": anatomy(),
        "short": short_step(),
        "again": again(),
        "errors": errors(),
    }


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def main(argv: list[str]) -> int:
    if "--write" in argv:
        writable(FILE.parent)
    record = everything()
    if "--write" in argv:
        FILE.write_text(as_lines(record), encoding="utf-8")
        print(f"written: {FILE.name}; now `lab results`")
    return 0


if __name__ == "__main__":
    run_command("survey", lambda: main(sys.argv[1:]))
