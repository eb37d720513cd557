"""What `lab plan` does: read what it is asked, search, print, write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.errors import LabError
from labkit.model.files import Model
from labkit.plan import explain, own
from labkit.plan.cases import FULL
from labkit.plan.constants import accuracy
from labkit.plan.machine import CHIPS, described, find_chip
from labkit.plan.memory import GIB
from labkit.plan.model import find_model
from labkit.plan.search import Cluster, Found, Goal, fp8_refusal, ranked, search, ties
from labkit.record.chips import Chip

G = 1e9
SHOWN = 10
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
LARGEST = 131_072  # GPUs
PER_NODE, IB = 8, 50.0  # where nobody says otherwise: an HGX board, and 400 Gbit/s a GPU
KINDS = ("weights", "grads", "optim", "gathered", "activ", "logits")  # as Memory has them
WHOLE = ("% of step", "GiB")  # heads of the columns that number the plans
COLUMNS = (
    ("GEMM", ("gemm",)),
    ("attn", ("attention",)),
    ("casts", ("casts",)),
    ("other", ("elementwise", "host")),
    ("TP", ("tensor",)),
    ("CP", ("context",)),
    ("EP", ("experts",)),
    ("DP", ("data",)),
    ("PP", ("pipeline",)),
    ("bubble", ("bubble",)),
    ("optim", ("optimizer",)),
)


@dataclass(frozen=True)
class Asked:
    """The command's options, as they were typed."""

    model: str = "8b"
    seq: int | None = None
    gpus: int = 64
    gpu: str = "h100"
    per_node: int | None = None
    nvlink: float | None = None
    ib: float | None = None
    batch_tokens: str = "4M"
    precision: str | None = None
    goal: str = "time"
    peak: float | None = None
    fp8_peak: float | None = None
    memory: float | None = None
    hbm: float | None = None
    explain: tuple[str, str] | None = None
    as_json: bool = False
    figure: Path | None = None
    write: Path | None = None


def plan(asked: Asked, console: Console | None = None) -> int:
    """Print the best plans. 0; LabError with one sentence where nothing can be answered."""
    console = console or Console(width=None)
    model, cluster = find_model(asked.model), machine(asked)
    model = model if asked.seq is None else model.replace(seq=asked.seq)
    gbs = sequences(asked.batch_tokens, model)
    precisions = wanted_precisions(asked, model, cluster.chip)
    if asked.goal not in ("time", "cost", "memory"):
        raise LabError(f"--goal is time, cost or memory, not '{asked.goal}'")
    goal = cast(Goal, asked.goal)
    found = search(model, cluster, gbs, precisions)
    if goal == "cost":
        found = cheapest(found, gbs, precisions)
    order = ranked(found, goal)
    if not order:
        raise LabError(nothing_fits(found, gbs, precisions))
    rows = order[:SHOWN]
    if asked.write:
        try:
            asked.write.write_text(table_of(found, rows[0]), encoding="utf-8")
        except OSError as error:
            raise LabError(f"cannot write {asked.write}: {error.strerror}") from None
    if asked.figure:
        from labkit.plan.pictures import anatomy

        anatomy(found, rows, asked.figure)
    if asked.as_json:
        print(json.dumps(answer(found, asked, rows), indent=1))
    elif asked.explain:
        a, b = (explain.chosen(found, text, order) for text in asked.explain)
        show_two(found, a, b, console)
    else:
        show(found, asked, rows, console)
    return 0


def machine(asked: Asked) -> Cluster:
    """The cluster. LabError: one that makes no sense, or a GPU that nobody knows and that is not described."""
    per_node, ib = PER_NODE, IB
    if asked.gpu.endswith(".toml"):
        mine = own.load(Path(asked.gpu))
        chip: Chip | None = mine.chip()
        per_node, ib = mine.per_node, mine.network_gbs or IB
    else:
        chip = find_chip(asked.gpu)
    per_node = per_node if asked.per_node is None else asked.per_node
    ib = ib if asked.ib is None else asked.ib
    given = (asked.peak, asked.fp8_peak, asked.memory, asked.hbm)
    if chip is None:
        if None in given:
            raise LabError(
                f"--gpu '{asked.gpu}' is not known (known: {', '.join(CHIPS)}): describe it by four numbers, --peak "
                "and --fp8-peak (dense TFLOP/s; 0 without FP8), --memory (GB) and --hbm (GB/s), or measure it: "
                "`lab plan --calibrate` writes a file for --gpu"
            )
        numbers = [float(one) for one in given if one is not None]
        chip = described(numbers[0], numbers[1], numbers[2], numbers[3] * G)
    else:
        chip = chip._replace(
            tflops=asked.peak or chip.tflops,
            fp8_tflops=chip.fp8_tflops if asked.fp8_peak is None else asked.fp8_peak,
            memory_gb=asked.memory or chip.memory_gb,
            hbm=asked.hbm * G if asked.hbm else chip.hbm,
        )
    nvlink = chip.nvlink if asked.nvlink is None else asked.nvlink
    for name, value in (("--nvlink", nvlink), ("--ib", ib), ("--memory", chip.memory_gb), ("--peak", chip.tflops)):
        if not 0 < value < 1e6:
            raise LabError(
                f"{name} {value:g} makes no sense: it is a number above 0, in GB/s (--memory: GB, --peak: TFLOP/s)"
            )
    if not 1 <= asked.gpus <= LARGEST or per_node < 1:
        raise LabError(f"--gpus lies between 1 and {LARGEST}, and --per-node is at least 1")
    per_node = min(per_node, asked.gpus)
    if asked.gpus % per_node:
        raise LabError(f"{asked.gpus} GPUs are not whole nodes of {per_node}: give --gpus as a multiple of --per-node")
    return Cluster(chip, asked.gpus, per_node, nvlink * G, ib * G)


def sequences(text: str, model: Model) -> int:
    """Sequences of a step. K is 1024, M 1024 squared."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)", text.strip().lower())
    tokens = float(match[1]) * UNITS[match[2]] if match else 0
    gbs = int(tokens // model.seq)
    if gbs < 1:
        raise LabError(
            f"--batch-tokens '{text}' holds no sequence of {model.seq} tokens: give a number such as 4M or 512K"
        )
    return gbs


def wanted_precisions(asked: Asked, model: Model, chip: Chip) -> tuple[str, ...]:
    if asked.precision not in (None, "bf16", "fp8"):
        raise LabError(f"--precision is bf16 or fp8, not '{asked.precision}'")
    refusal = fp8_refusal(model, chip)
    if asked.precision == "fp8" and refusal:
        raise LabError(f"--precision fp8 cannot run on this GPU or model: {refusal}")
    return (asked.precision,) if asked.precision else ("bf16",) if refusal else ("bf16", "fp8")


def cheapest(found: Found, gbs: int, precisions: tuple[str, ...]) -> Found:
    """The search on the number of GPUs, this one or half, a quarter ... of it, on which a token costs least."""
    best, cost = found, np.inf
    cluster = found.cluster
    while True:
        if rows := ranked(found, "time"):
            here = float(found.seconds[rows[0]]) * found.cluster.gpus
            # Fewer GPUs must be cheaper by more than the model's error, or they only take longer.
            if here < cost * np.exp(-accuracy()["tie"]) or cost == np.inf:
                best, cost = found, here
        if cluster.gpus % 2 or cluster.gpus == 1:
            return best
        gpus = cluster.gpus // 2
        cluster = cluster._replace(gpus=gpus, per_node=min(cluster.per_node, gpus))
        try:
            found = search(found.model, cluster, gbs, precisions)
        except LabError:
            return best


def nothing_fits(found: Found, gbs: int, precisions: tuple[str, ...]) -> str:
    """What is missing, and the smallest change that fits: more GPUs, or shorter sequences."""
    row = int(np.argmin(found.memory.needed))
    need, have = float(found.memory.needed[row]) / GIB, float(found.cases.memory[row]) / GIB
    said = (
        f"nothing fits: the leanest plan, {explain.name(found.plan(row))}, needs {need:.0f} GiB a GPU where "
        f"{have:.0f} are, {need - have:.0f} too many"
    )
    cluster = found.cluster
    while cluster.gpus * 2 <= LARGEST:
        cluster = cluster._replace(gpus=cluster.gpus * 2)
        try:
            more = search(found.model, cluster, max(gbs, cluster.gpus), precisions)
        except LabError:
            continue
        if more.fits.any():
            return f"{said}; it fits on {cluster.gpus} GPUs ({explain.name(more.plan(ranked(more, 'time')[0]))})"
    return f"{said}; no number of such GPUs up to {LARGEST} helps: take GPUs with more memory, or shorter sequences"


def show(found: Found, asked: Asked, rows: list[int], console: Console) -> None:
    """Three tables (plans and speed, where the step goes, memory), then the sentences. Each fits into 80 columns."""
    c, chip, best = found.cluster, found.cluster.chip, rows[0]
    tied, mfu, speed = ties(found, rows), found.mfu(), found.tokens_s_gpu()
    millions = found.model.parameters / 1e6
    size = f"{millions / 1e3:.3g} B" if millions >= 1e3 else f"{millions:.3g} M"
    say = lambda text: console.print(text, highlight=False, soft_wrap=not console.is_terminal)  # noqa: E731  # one line
    say(
        f"{size} parameters, {int(found.cases.gbs[best])} sequences of {found.model.seq} tokens a step, on "
        f"{c.gpus} {chip.name or asked.gpu} ({c.per_node} a node, {c.intra / G:g} and {c.inter / G:g} GB/s a GPU, "
        f"{chip.memory_gb:g} GB). {len(found.seconds):,} plans, {int(found.fits.sum()):,} fit."
    )
    degrees = ("dp", "tp", "pp", "vp", "cp", "ep", "zero", "mbs")
    first = _table(("", *degrees, "again", "prec", "step s", "tok/s/GPU", "MFU %"))
    for rank, (row, tie) in enumerate(zip(rows, tied), 1):
        p = found.plan(row)
        first.add_row(
            f"{rank}{'=' if tie else ' '}",
            *[str(p[key]) for key in degrees],
            "all" if p["recompute"] == FULL else "-",
            "fp8" if p["fp8"] else "bf16",
            f"{found.seconds[row]:.4g}",
            f"{speed[row]:,.0f}",
            f"{100 * mfu[row]:.1f}",
        )
    console.print(first)
    second = _table(("% of step", *[title for title, _ in COLUMNS]))
    for rank, row in enumerate(rows, 1):
        of = explain.parts(found.step, row)
        shares = [100 * sum(of[key] for key in keys) / float(found.seconds[row]) for _, keys in COLUMNS]
        second.add_row(str(rank), *[f"{share:.1f}" if share >= 0.05 else "-" for share in shares])
    console.print(second)
    third = _table(("GiB", "needed", *KINDS, "loses most to"))
    for rank, row in enumerate(rows, 1):
        kinds = (float(getattr(found.memory, kind)[row]) / GIB for kind in found.memory._fields)
        needed = float(found.memory.needed[row]) / GIB
        third.add_row(
            str(rank),
            *[f"{gib:.1f}" if gib >= 0.05 else "-" for gib in (needed, *kinds)],
            explain.binding(found, row)[0],
        )
    console.print(third)
    error, sigma = accuracy(), accuracy()["interval"]
    low, high = (float(found.seconds[best]) * np.exp(sign * sigma) for sign in (-1, 1))
    say(
        f"Steps are predicted: the best one lies between {low:.3g} and {high:.3g} s in four of five software stacks "
        f"that the model had not seen (mean error {100 * error['stack_out_mean']:.0f} %)."
    )
    say("MFU: of the BF16 peak, in FP8 too; full attention, nothing that is computed again.")
    if sum(tied) > 1:
        say(f"=: a tie with the best, within {100 * error['tie']:.0f} %, by which plans of one sweep were misjudged.")
    say(explain.next_constraint(found, best))
    say(f"\nWhy {explain.name(found.plan(best))}, and not")
    for sentence in explain.neighbours(found, best):
        say(f"  {sentence}")


def show_two(found: Found, a: int, b: int, console: Console) -> None:
    """Two plans, line by line."""
    for letter, row in (("A", a), ("B", b)):
        console.print(f"{letter}: {explain.name(found.plan(row))}", highlight=False, soft_wrap=True)
    table = _table(("", "A", "B", "difference"))
    for what, one, other in explain.compared(found, a, b):
        table.add_row(what, f"{one:.4g}", f"{other:.4g}", f"{other - one:+.3g}")
    console.print(table)
    for row in (a, b):
        if not found.fits[row]:
            console.print(f"{explain.name(found.plan(row))} does not fit.", highlight=False)
    if ties(found, [a, b]) == [True, True]:
        console.print("They are a tie: the model cannot tell them apart.", highlight=False)


def answer(found: Found, asked: Asked, rows: list[int]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": found.model.model_dump(),
        "gpus": found.cluster.gpus,
        "gpu": asked.gpu,
        "goal": asked.goal,
        "plans": explain.as_json(found, rows, accuracy()["interval"]),
        "tried": len(found.seconds),
        "fit": int(found.fits.sum()),
        "next_constraint": explain.next_constraint(found, rows[0]),
        "why_not": explain.neighbours(found, rows[0]),
        "accuracy": accuracy(),
    }


def table_of(found: Found, row: int) -> str:
    """The [parallel] table of a training's TOML file."""
    p = found.plan(row)
    lines = [f"{key} = {p[key]}" for key in ("dp", "tp", "pp", "vp", "cp", "ep", "zero")]
    lines += [f"micro_batch = {p['mbs']}", f"recompute = {str(p['recompute'] == FULL).lower()}"]
    return "\n".join(["[parallel]", *lines, f'precision = "{"fp8" if p["fp8"] else "bf16"}"']) + "\n"


def _table(heads: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in ("", "loses most to", *WHOLE) else "right", no_wrap=True)
    return table
