"""The numbers that results/README.md quotes, taken from the records there when `lab results` writes it.

The example of C.5: `laptop`, the run; beside it `torch` (parts = "torch"), `fp32` (nothing rounded), `bf16`, and
`first`, which was stopped. `GPU`: both ways on an H100, named "mine-fp8" and so on; `LONG`: the run there; `AGAIN`: its
first steps once more, with BF16's beside them. Times in seconds.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.record.plotting import CANDIDATES, INK, MUTED, WIDTH, Picture, label_ends, look, save
from labkit.record.read import RunData, read_run

EXAMPLE = Path(__file__).parents[1] / "results" / "2026-11-23-laptop"
GPU = EXAMPLE.with_name("2026-11-24-h100")
LONG = EXAMPLE.with_name("2026-11-24-h100-run")
AGAIN = EXAMPLE.with_name("2026-11-25-h100-run")
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
    return read(RUN).run["beside"]["predictions"][which]


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


def gpu_spread(way: str) -> str:
    """Its fastest and slowest step, without the first ones."""
    times = [seconds for number, seconds in on_gpu(way).series("seconds") if number > 8]
    return f"{1e3 * min(times):.0f} to {1e3 * max(times):.0f} ms"


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


# ---- the run on an H100


@cache
def long() -> RunData:
    return read_run(LONG / "c5")


@cache
def foretold() -> dict[str, Any]:
    """What was written before it."""
    return long().run["beside"]["predictions"]


def trial(precision: str, micro_batches: int) -> dict[str, Any]:
    """Eight steps, before it."""
    wanted = (precision, micro_batches)
    return next(one for one in long().run["beside"]["trial"] if (one["precision"], one["accumulation"]) == wanted)


def scales_ms() -> float:
    """In which FP8's two scales are divided out of each result, in a step: its longest kernel. BF16 has none."""
    return trial("fp8", 1)["longest"][0]["ms"]


def long_step() -> float:
    return median(seconds for _, seconds in long().series("seconds"))


def long_rate() -> float:
    return long().steps[0]["tokens"] / long_step()


def foretold_step() -> float:
    return sum(part[1] for part in foretold()["seconds"])


def foretold_loss(step: int) -> float:
    fit, millions = foretold()["fit"], step * long().steps[0]["tokens"] / 1e6
    return fit["E"] + fit["B"] * millions ** -fit["exponent"]


def long_heldout(step: int = 0) -> float:
    """At this step; 0: the last one."""
    held = dict(long().series("heldout"))
    return held[step or max(held)]


def trained(last: int) -> float:
    """The mean training loss of the fifty steps up to this one."""
    return mean(loss for step, loss in long().series("loss") if last - 50 < step <= last)


def slower_rate(step: int) -> float:
    """Held out, of BF16 at a third of the learning rate: the record that the prediction was fitted to."""
    return dict(read_run(LONG.parents[2] / "week16_fp8/results/2026-11-22-h200-whole/arms/bf16").series("heldout"))[
        step
    ]


def events(kind: str) -> list[dict[str, Any]]:
    return [event for event in long().events if event["kind"] == kind]


def recovery() -> float:
    """From the kill until a new process had read the checkpoint."""
    killed = datetime.fromisoformat(long().run["beside"]["killed"])
    return (datetime.fromisoformat(events("resume")[1]["time"]) - killed).total_seconds()


def done_again() -> int:
    """Steps that the kill cost."""
    return events("resume")[1]["dropped_steps"]


def joules() -> float:
    """A million tokens, at the watts that the GPU reported while it worked."""
    return long().run["beside"]["power"]["watts"] * 1e6 / long_rate()


def trials() -> str:
    """Which number of micro-batches, and what a step waits for."""
    rows = []
    for one in long().run["beside"]["trial"]:
        gib = f"{one['peak_bytes'] / 2**30:.1f}"
        times = f"{one['seconds']:.3f}", f"{one['busy_seconds']:.3f}"
        rows.append([one["precision"].upper(), str(one["accumulation"]), *times, f"{one['kernels']:,}", gib])
    return markdown_table(["", "micro-batches", "s a step", "kernels busy, s", "kernels", "GiB"], rows)


def foretold_and_found() -> str:
    last = max(dict(long().series("heldout")))
    peak = max(line["memory"]["peak_bytes"] for line in long().steps) / 2**30
    rows = [
        ["a step, s", f"{foretold_step():.2f}", f"{trial('fp8', 1)['seconds']:.2f}", f"{long_step():.2f}"],
        ["memory, GiB", str(foretold()["gib"]), f"{trial('fp8', 1)['peak_bytes'] / 2**30:.1f}", f"{peak:.1f}"],
        [f"held-out loss, step {last:,}", f"{foretold_loss(last):.2f}", "", f"{long_heldout():.2f}"],
    ]
    return markdown_table(["", "predicted", "trial", "the run"], rows)


# ---- once more, with one kernel that divides


@cache
def again() -> RunData:
    return read_run(AGAIN / "c5")


def again_beside() -> dict[str, Any]:
    """What was put beside it by hand: the predictions, the trial, BF16."""
    return again().run["beside"]


def again_step() -> float:
    return median(seconds for _, seconds in again().series("seconds"))


def again_spread() -> tuple[float, float]:
    """The tenth and the ninetieth percentile of its steps."""
    times = sorted(seconds for _, seconds in again().series("seconds"))
    return times[len(times) // 10], times[9 * len(times) // 10]


def dividing_ms() -> float:
    """In which both scales are divided out of each result, in a step: of its kernels the longest."""
    return again_beside()["trial"][0]["longest"][0]["ms"]


def against_bf16(step: int) -> float:
    """By how many per cent FP8's held-out loss lies above BF16's."""
    return 100 * (dict(again().series("heldout"))[step] / again_beside()["bf16"]["heldout"][str(step)] - 1)


def held_beside() -> str:
    """Held-out losses of FP8 and BF16."""
    here, there = dict(again().series("heldout")), again_beside()["bf16"]["heldout"]
    steps = range(200, max(here) + 1, 200)
    rows = [
        ["FP8", *(f"{here[step]:.3f}" for step in steps)],
        ["BF16", *(f"{there[str(step)]:.3f}" for step in steps)],
        ["FP8 against BF16, %", *(f"{against_bf16(step):+.1f}" for step in steps)],
    ]
    return markdown_table(["step", *map(str, steps)], rows)


def foretold_again() -> str:
    """What was predicted for it, and what came."""
    told, one, bf16 = again_beside()["predictions"], again_beside()["trial"][0], again_beside()["bf16"]
    peak = max(line["memory"]["peak_bytes"] for line in again().steps) / 2**30
    foreseen_step = sum(part[1] for part in told["seconds"])
    rows = [
        ["a step, s", f"{foreseen_step:.2f}", f"{one['seconds']:.2f}", f"{again_step():.2f}", f"{bf16['seconds']:.2f}"],
        ["dividing scales out, ms", f"{1e3 * told['seconds'][2][1]:.0f}", f"{dividing_ms():.0f}", "", "none"],
        ["kernels busy, s", "", f"{one['busy_seconds']:.2f}", "", ""],
        ["memory, GiB", str(told["gib"]), "", f"{peak:.1f}", f"{bf16['peak_bytes'] / 2**30:.1f}"],
    ]
    return markdown_table(["", "predicted", "trial", "the run", "BF16"], rows)


def drawn_long(folder: Path) -> Picture:
    """Losses over the steps, with the curve that was predicted, the pause and the kill."""
    train, held = long().series("loss"), long().series("heldout")
    last, shown = train[-1][0], [(step, loss) for step, loss in train if loss < 5]
    line = [(step, foretold_loss(step)) for step in range(100, last + 1, 20)]
    with look() as figure:
        fig = figure(WIDTH, 3.2)
        ax = fig.subplots()
        ax.plot(*zip(*shown), color=MUTED, linewidth=0.6, alpha=0.7)
        ax.plot(*zip(*line), color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
        ax.plot(*zip(*held), color=CANDIDATES[0], linewidth=1.6, marker="o", markersize=3)
        for event, name, side in zip(events("resume"), ("SIGTERM ", " killed"), ("right", "left")):
            ax.axvline(event["step"], color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
            ax.text(event["step"], 4.9, name, fontsize=8.5, color=MUTED, va="top", ha=side)
        ax.set_xlabel("step of 65,536 tokens")
        ax.set_ylabel("loss")
        ax.set_xlim(0, last)
        ax.set_ylim(1, 5)
        fig.subplots_adjust(left=0.08, right=0.78, bottom=0.16, top=0.95)
        ends = [(last, foretold_loss(last), "predicted", INK), (last, held[-1][1], "held out", CANDIDATES[0])]
        label_ends(ax, [*ends, (last, trained(last), "training", MUTED)])
        alt = (
            f"Training loss and held-out loss over {last:,} steps on one H100, and the curve that was predicted for "
            f"the latter. It was to reach {foretold_loss(last):.2f} and reached {held[-1][1]:.2f}; the training loss "
            f"lies at {trained(last):.2f}. Dotted lines mark where the run was paused and where its rank was killed; "
            "the curves show nothing there."
        )
        return save(fig, folder, "h100-loss", "The run on one H100", alt)


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
