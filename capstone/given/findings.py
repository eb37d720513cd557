"""The numbers that results/README.md quotes, taken from the records there when `lab results` writes it.

The example of C.5: `laptop`, the run; beside it `torch` (parts = "torch"), `fp32` (nothing rounded), `bf16`, and
`first`, which was stopped. `GPU`: both ways on an H100, named "mine-fp8" and so on. Times in seconds.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.record.plotting import CANDIDATES, INK, MUTED, WIDTH, Picture, label_ends, look, save
from labkit.record.read import RunData, read_run

EXAMPLE = Path(__file__).parents[1] / "results" / "2026-11-23-laptop"
GPU = EXAMPLE.with_name("2026-11-24-h100")
RUN = "laptop"
BESIDE = 200  # steps that were trained in other ways too
BLOCKS, RANKS = 4, 2  # of the decoder; of every run here
# Rounded in a block: for a token the gradients of the 7 linears' outputs and their inputs; and their weights.
OF_TOKEN, WEIGHTS = (4 * 128 + 2 * 384) + (6 * 128 + 384), 196_608


@cache
def read(run: str) -> RunData:
    return read_run(EXAMPLE / run)


@cache
def predicted(which: str = "second") -> dict[str, Any]:
    """What was written before "first", and before the run that counts."""
    return json.loads((EXAMPLE / "predictions.json").read_text(encoding="utf-8"))[which]


def foreseen(which: str = "second") -> float:
    """The predicted seconds of a step."""
    return sum(part[1] for part in predicted(which)["seconds"])


def foreseen_without() -> float:
    """The first prediction without its roundings."""
    return sum(part[1] for part in predicted("first")["seconds"] if "roundings" not in part[0])


def step(run: str = RUN) -> float:
    """The median of its steps."""
    return median(seconds for _, seconds in read(run).series("seconds"))


def quiet(run: str = RUN) -> float:
    """The tenth percentile of its steps: in the others, other programs may have run as well."""
    times = sorted(seconds for _, seconds in read(run).series("seconds"))
    return times[len(times) // 10]


def rate(run: str = RUN) -> float:
    """Tokens/s of the median step."""
    return read(run).steps[0]["tokens"] / step(run)


def minutes(run: str = RUN) -> float:
    """Of all its steps and of what stood between them, evaluations and checkpoints."""
    return sum(line["seconds"] + sum(line.get("aside", {}).values()) for line in read(run).steps) / 60


def megabytes(run: str = RUN) -> float:
    """Of the rank that held the most."""
    return max(line["memory"]["peak_bytes"] for line in read(run).steps) / 1e6


def heldout(run: str = RUN) -> float:
    """The last held-out loss."""
    return read(run).series("heldout")[-1][1]


def gaps(run: str) -> list[float]:
    """The differences, in per cent, of the run's losses from `RUN`'s, step by step."""
    here, there = dict(read(RUN).series("loss")), dict(read(run).series("loss"))
    return [100 * (there[s] / here[s] - 1) for s in range(1, BESIDE + 1)]


def gap(run: str) -> float:
    return max(map(abs, gaps(run)))


def first_gap(run: str) -> float:
    return abs(gaps(run)[0])


def cost_of_fp8() -> float:
    """Of held-out loss at step BESIDE, in per cent of FP32's."""
    mine, plain = (dict(read(run).series("heldout"))[BESIDE] for run in (RUN, "fp32"))
    return 100 * (mine / plain - 1)


def elements(run: str = RUN) -> int:
    """Rounded in a step by one rank."""
    return BLOCKS * (read(run).steps[0]["tokens"] // RANKS * OF_TOKEN + WEIGHTS)


def measured_ns() -> float:
    """What FP8 costs a step beside FP32, for each rounded element."""
    return 1e9 * (quiet() - quiet("fp32")) / elements()


def promised_ns() -> float:
    return 1e9 * (foreseen("first") - foreseen_without()) / elements("first")


def epochs() -> float:
    """How often the run read its text."""
    return read(RUN).steps[-1]["tokens"] / read(RUN).run["corpus"]["tokens"]["train"]


def resumed() -> int:
    """The step at which the run was paused, and gone on with."""
    return next(event["step"] for event in read(RUN).events if event["kind"] == "paused")


def sums() -> str:
    """The first prediction, part by part."""
    rows = [[part, f"{seconds:.3f}", how] for part, seconds, how in predicted("first")["seconds"]]
    return markdown_table(["part", "s", "how"], [*rows, ["**a step**", f"**{foreseen('first'):.2f}**", ""]])


def outcomes() -> str:
    """Both predictions beside what came."""
    first, second = predicted("first"), predicted()
    return markdown_table(
        ["", "first prediction", "first run", "second prediction", "the run"],
        [
            ["sequences of 256 tokens a step", str(first["sequences"]), "", str(second["sequences"]), ""],
            ["a step, s", f"{foreseen('first'):.2f}", f"{step('first'):.2f}", f"{foreseen():.2f}", f"{step():.2f}"],
            ["all, minutes", "", "", f"{second['minutes']:.1f}", f"{minutes():.1f}"],
            [
                "memory of a rank, MB",
                f"{first['megabytes']:,}",
                f"{megabytes('first'):,.0f}",
                f"{second['megabytes']:,}",
                f"{megabytes():,.0f}",
            ],
            ["held-out loss", f"{first['heldout']:.1f}", "", f"{second['heldout']:.1f}", f"{heldout():.3f}"],
        ],
    )


def beside() -> str:
    """Held-out losses and undisturbed steps of the other ways."""
    names = {RUN: "mine, FP8", "torch": "torch, FP8", "fp32": "mine, FP32"}
    rows = []
    for run, name in names.items():
        held = dict(read(run).series("heldout"))
        losses = [f"{held[step]:.4f}" for step in (BESIDE // 2, BESIDE)]
        rows.append([name, *losses, "" if run == RUN else f"{gap(run):.2f}", f"{quiet(run):.2f}"])
    heads = [
        "",
        f"held out, step {BESIDE // 2}",
        f"step {BESIDE}",
        "largest difference of a step's loss, %",
        "s a step",
    ]
    return markdown_table(heads, rows)


@cache
def on_gpu(way: str) -> RunData:
    return read_run(GPU / way)


def gpu_step(way: str) -> float:
    """The median of its steps, without the first ones, in which torch's way is compiled."""
    return median(seconds for number, seconds in on_gpu(way).series("seconds") if number > 8)


def gpu_rate(way: str) -> float:
    """Tokens/s of the median step."""
    return on_gpu(way).steps[0]["tokens"] / gpu_step(way)


def gpu_gib(way: str) -> float:
    """At the peak."""
    return max(line["memory"]["peak_bytes"] for line in on_gpu(way).steps) / 2**30


def gpu_product() -> float:
    """Milliseconds that FP8 costs one linear's forward and backward in a micro-batch, beside BF16."""
    linears = len(on_gpu("mine-fp8").run["conversion"]["converted"]) * on_gpu("mine-fp8").config["accumulation"]
    return 1e3 * (gpu_step("mine-fp8") - gpu_step("mine-bf16")) / linears


def gpu_table() -> str:
    """Both ways in both precisions."""
    rows = []
    for way in ("torch-bf16", "mine-bf16", "torch-fp8", "mine-fp8"):
        parts, precision = way.split("-")
        losses = dict(on_gpu(way).series("loss"))
        speed = f"{gpu_rate(way):,.0f}", f"{1e3 * gpu_step(way):.0f}"
        ends = f"{losses[1]:.4f}", f"{losses[max(losses)]:.2f}"
        rows.append([parts, precision.upper(), *speed, f"{gpu_gib(way):.1f}", *ends])
    last = len(on_gpu("mine-fp8").steps)
    return markdown_table(["parts", "", "tokens/s", "ms a step", "GiB", "loss, step 1", f"step {last}"], rows)


def drawn(folder: Path) -> Picture:
    """Losses over the steps, with what was predicted for their end."""
    train, held = read(RUN).series("loss"), read(RUN).series("heldout")
    last, end = train[-1][0], predicted()["heldout"]
    colour = CANDIDATES[0]
    with look() as figure:
        fig = figure(WIDTH, 3.0)
        ax = fig.subplots()
        ax.plot(*zip(*train), color=MUTED, linewidth=0.6, alpha=0.7)
        ax.plot(*zip(*held), color=colour, linewidth=1.6, marker="o", markersize=3)
        ax.plot([last], [end], marker="X", markersize=9, color=INK, linestyle="none", clip_on=False)
        ax.axvline(resumed(), color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        ax.text(resumed(), train[5][1], "  SIGTERM, and gone on", fontsize=8.5, color=MUTED, va="top")
        ax.set_xlabel("step")
        ax.set_ylabel("loss")
        ax.set_xlim(0, last)
        fig.subplots_adjust(left=0.08, right=0.78, bottom=0.16, top=0.95)
        ends = [(last, end, f"predicted: {end:.1f}", INK), (last, heldout(), f"held out: {heldout():.2f}", colour)]
        label_ends(ax, [*ends, (last, train[-1][1], "training", MUTED)])
        alt = (
            f"Training loss and held-out loss over {last:,} steps. Held out it ends at {heldout():.2f}; predicted were "
            f"{end:.1f}. A dotted line at step {resumed():,} marks where the run was paused and went on; the curves "
            "show nothing there."
        )
        return save(fig, folder, "laptop-loss", "The run of the example", alt)
