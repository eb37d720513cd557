"""The numbers that results/README.md quotes, taken from the records there when `lab results` writes it.

The example of C.5: `laptop`, the run; beside it `torch` (parts = "torch"), `fp32` (nothing rounded), `bf16`, and
`first`, which was stopped. `GPU`: both ways on an H100, named "mine-fp8" and so on; `LONG`: the run there, with
what ran before and beside it. Times in seconds.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.record.plotting import CANDIDATES, INK, MUTED, WIDTH, Picture, label_ends, save, styled
from labkit.record.read import RunData, read_run

EXAMPLE = Path(__file__).parents[1] / "results" / "2026-11-23-laptop"
GPU = EXAMPLE.with_name("2026-11-24-h100")
LONG = EXAMPLE.with_name("2026-11-25-h100-whole")
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


def put_beside() -> dict[str, Any]:
    """What was put beside it by hand: predictions, times, the GPU's power, the same twice, BF16 twice."""
    return long().run["beside"]


def foretold() -> dict[str, Any]:
    """What was written before it."""
    return put_beside()["predictions"]


def long_step() -> float:
    return median(seconds for _, seconds in long().series("seconds"))


def long_rate() -> float:
    return long().steps[0]["tokens"] / long_step()


def foretold_step() -> float:
    return foretold()["seconds"][0][1]


def fitted(step: int) -> float:
    """The held-out loss that the power law predicts: it was fitted to the 1,229 steps before."""
    fit, millions = foretold()["fit"], step * long().steps[0]["tokens"] / 1e6
    return fit["E"] + fit["B"] * millions ** -fit["exponent"]


def long_heldout(step: int = 0) -> float:
    """At this step; 0: the last one."""
    held = dict(long().series("heldout"))
    return held[step or max(held)]


def trained(last: int) -> float:
    """The mean training loss of the fifty steps up to this one."""
    return mean(loss for step, loss in long().series("loss") if last - 50 < step <= last)


def readings(step: int) -> float:
    """How often the text had been read."""
    return step * long().steps[0]["tokens"] / long().run["corpus"]["tokens"]["train"]


def events(kind: str) -> list[dict[str, Any]]:
    return [event for event in long().events if event["kind"] == kind]


def seconds_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def recovery() -> float:
    """From the kill until a new process had read the checkpoint."""
    return seconds_between(put_beside()["times"]["killed"], events("resume")[1]["time"])


def done_again() -> int:
    """Steps that the kill cost."""
    return events("resume")[1]["dropped_steps"]


def long_minutes() -> float:
    """From the command until the last checkpoint was written."""
    return seconds_between(put_beside()["times"]["began"], events("checkpoint")[-1]["time"]) / 60


def joules() -> float:
    """A million tokens, at the watts that the GPU reported while it worked."""
    return put_beside()["power"]["watts"] * 1e6 / long_rate()


def first() -> dict[str, Any]:
    """The 1,229 steps of the same configuration, on another H100."""
    return put_beside()["first"]


def bf16_step() -> float:
    return put_beside()["bf16"][0]["seconds"]


def foretold_and_found() -> str:
    last = max(dict(long().series("heldout")))
    peak = max(line["memory"]["peak_bytes"] for line in long().steps) / 2**30
    rows = [
        ["a step, s", f"{foretold_step():.2f}", f"{long_step():.2f}"],
        ["minutes, the pause and the kill included", f"{foretold()['minutes']:.1f}", f"{long_minutes():.1f}"],
        ["memory, GiB", str(foretold()["gib"]), f"{peak:.1f}"],
        ["seconds from the kill until it went on", str(foretold()["recovery_seconds"]), f"{recovery():.0f}"],
        [f"held-out loss, step {last:,}", f"{foretold()['heldout']:.2f}", f"{long_heldout():.2f}"],
        ["training loss there", f"{foretold()['training']:.2f}", f"{trained(last):.2f}"],
        ["largest difference from the same run before, %", "0.5", f"{max(map(abs, apart('fp8'))):.1f}"],
    ]
    return markdown_table(["", "predicted", "the run"], rows)


# ---- the same twice


def held_twice(precision: str) -> tuple[dict[int, float], dict[int, float]]:
    """The held-out losses of the two runs in a precision, by step."""
    if precision == "fp8":
        return {int(step): loss for step, loss in first()["heldout"].items()}, dict(long().series("heldout"))
    one, two = ({int(step): loss for step, loss in run["heldout"].items()} for run in put_beside()["bf16"])
    return one, two


def apart(precision: str) -> list[float]:
    """By how many per cent the second run's held-out loss lies above the first's, from step 200 on."""
    one, two = held_twice(precision)
    return [100 * (two[step] / one[step] - 1) for step in sorted(one.keys() & two.keys()) if step >= 200]


def against_bf16(step: int) -> float:
    """By how many per cent the mean of FP8's held-out losses lies above the mean of BF16's."""
    fp8, bf16 = (mean(held[step] for held in held_twice(which) if step in held) for which in ("fp8", "bf16"))
    return 100 * (fp8 / bf16 - 1)


def whole_against_bf16(step: int) -> float:
    """The whole run's alone, against BF16's longer one: what was predicted."""
    return 100 * (long_heldout(step) / held_twice("bf16")[0][step] - 1)


def twice() -> str:
    """Held-out losses of both runs in both precisions, up to BF16's last."""
    steps = range(200, max(held_twice("bf16")[0]) + 1, 200)
    rows = []
    for precision, name in (("fp8", "FP8"), ("bf16", "BF16")):
        for held, which in zip(held_twice(precision), ("before", "the run") if precision == "fp8" else ("1", "2")):
            rows.append([f"{name}, {which}", *(f"{held[step]:.3f}" if step in held else "" for step in steps)])
    return markdown_table(["step", *map(str, steps)], rows)


# ---- an earlier run, of another vocabulary: what was tried before it


def earlier() -> dict[str, Any]:
    return put_beside()["earlier"]


def trial(precision: str, micro_batches: int) -> dict[str, Any]:
    """Eight steps, before it."""
    wanted = (precision, micro_batches)
    return next(one for one in earlier()["trial"] if (one["precision"], one["accumulation"]) == wanted)


def trials() -> str:
    """Which number of micro-batches, and what a step waits for."""
    rows = []
    for one in [*earlier()["trial"], first()["trial"][0] | {"new": ", one kernel divides"}]:
        gib = f"{one['peak_bytes'] / 2**30:.1f}"
        times = f"{one['seconds']:.3f}", f"{one['busy_seconds']:.3f}"
        name = one["precision"].upper() + one.get("new", "")
        rows.append([name, str(one["accumulation"]), *times, f"{one['kernels']:,}", gib])
    return markdown_table(["", "micro-batches", "s a step", "kernels busy, s", "kernels", "GiB"], rows)


def scales_ms(one: dict[str, Any]) -> float:
    """In which FP8's two scales are divided out of each result, in a step: its longest kernel. BF16 has none."""
    return one["longest"][0]["ms"]


def earlier_missed() -> float:
    """By how much its loss at step 2,000 lay below the prediction."""
    fit, millions = earlier()["predictions"]["fit"], 2000 * long().steps[0]["tokens"] / 1e6
    return fit["E"] + fit["B"] * millions ** -fit["exponent"] - earlier()["heldout"]["2000"]


def drawn_long(folder: Path) -> Picture:
    """Losses over the steps, with the curve that was predicted, the pause and the kill."""
    train, held = long().series("loss"), long().series("heldout")
    last, shown = train[-1][0], [(step, loss) for step, loss in train if loss < 5]
    line, end = [(step, fitted(step)) for step in range(100, last + 1, 20)], foretold()["heldout"]
    with styled() as figure:
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
        ax.set_ylim(0.8, 5)
        fig.subplots_adjust(left=0.08, right=0.78, bottom=0.16, top=0.95)
        ends = [(last, fitted(last), "fitted before", INK), (last, held[-1][1], "held out", CANDIDATES[0])]
        label_ends(ax, [*ends, (last, trained(last), "training", MUTED)])
        alt = (
            f"Training loss and held-out loss over {last:,} steps on one H100, and the power law fitted to the 1,229 "
            f"steps before. The held-out loss was to reach {end:.2f} and reached {held[-1][1]:.2f}; from step 2,600 on "
            f"it hardly falls. The training loss falls to {trained(last):.2f}. Dotted lines mark where the run was "
            "paused and where its rank was killed; the curves show nothing there."
        )
        return save(fig, folder, "h100-loss", "The run on one H100", alt)


def drawn(folder: Path) -> Picture:
    """Losses over the steps, with what was predicted for their end."""
    train, held = read(RUN).series("loss"), read(RUN).series("heldout")
    last, end = train[-1][0], predicted()["heldout"]
    colour = CANDIDATES[0]
    with styled() as figure:
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
