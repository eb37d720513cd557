"""The week's pictures, drawn from what your functions did (given/experiments.py), from trainings and from records.

    codes_over            the 256 codes, and where a real tensor falls on them: with scale 1, and with its own
    plateau               SQNR against scale: a plateau and two cliffs, measured and predicted
    poison                one outlier in a tensor, in a history, in blocks
    watched               recorded runs with faults, and where alarms ring in them
    paired_gap            held-out loss against the baseline's: twin, FP8, broken FP8
    milliseconds          one linear on a GPU, by the class of its kernels
    loss_curves           losses of several runs
    gaps                  the gap and its interval of each arm of given/tricks.py
    error_by_bits         SQNR against bits a value, all formats of the week

Each returns a `Picture`: PNG and SVG in `folder`, and `alt`, what it shows in words. Nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.compare.arms import Arm
from labkit.compare.figures import loss as loss_figures
from labkit.compare.figures import rates as speed_figures
from labkit.compare.repeats import gaps_of, interval
from labkit.compare.statistic import ACCEPTED, Answer
from labkit.record.plotting import (
    BAND,
    GRID,
    INK,
    MUTED,
    PAPER,
    THIN,
    WIDTH,
    Picture,
    folder_or_temp,
    margins,
    save,
    styled,
)
from labkit.record.schema import Band, Judged, TimedRow, Verdict
from week16_fp8 import formats
from week16_fp8.given import further, pairs, records, tricks
from week16_fp8.given.experiments import Codes, Memory, Poison, Watched, codes, own_scale

BLUE, RED, ORANGE, GREEN = "#005a9c", "#a11212", "#b34700", "#007a63"


# ---- 1: codes


def codes_over(x: np.ndarray, fmt: str, name: str = "gradient", folder: Path | None = None) -> Picture:
    """|x| as a histogram over powers of two, above the values of the positive codes; once with scale 1, once
    with the tensor's own. Codes that x uses are drawn tall."""
    values = formats.decode(np.arange(128, dtype=np.uint8), fmt)
    real = values[np.isfinite(values) & (values > 0)]
    scales = (1.0, own_scale(x, fmt))
    found = [codes(x, scale, fmt) for scale in scales]
    size = np.abs(x[x != 0]).astype(np.float64)
    low = min(np.log2(real[0]), np.log2(np.quantile(size, 0.001))) - 2
    high = np.log2(real[-1]) + 2
    with styled() as figure:
        fig = figure(WIDTH, 3.6)
        axes = fig.subplots(2, 1, sharex=True)
        margins(fig, 0.35, 0.5, left=0.09, right=0.98, hspace=0.5)
        for ax, scale, one, words in zip(axes, scales, found, ("scale 1: a bare cast", "scale = largest / amax")):
            _codes_panel(ax, size * scale, real, one, (low, high), f"{words}  ({_power(scale)})")
        axes[1].set_xlabel("|value x scale|, as a power of two")
        for ax in axes:
            ax.set_ylabel("share")
        text = "; ".join(
            f"{words}: {one.lost:.1%} become 0, different magnitudes left: {one.used}"
            for words, one in zip(("with scale 1", "with its own scale"), found)
        )
        alt = f"Histogram of a {name}'s magnitudes over {fmt.upper()}'s codes, twice. {text}."
        note = (
            "Bars: the tensor. Ticks below: a positive code each, tall where the tensor uses it. Shaded: becomes 0. "
            "The scale moves the tensor over the codes; it changes neither."
        )
        return save(fig, folder_or_temp(folder), "codes", f"A {name} over the codes of {fmt.upper()}", alt, note)


def _codes_panel(
    ax: Any, size: np.ndarray, real: np.ndarray, one: Codes, span: tuple[float, float], title: str
) -> None:
    edges = np.arange(np.floor(span[0]), np.ceil(span[1]) + 0.5, 0.5)
    share, _ = np.histogram(np.log2(size), bins=edges)
    tall = share / max(1, size.size)
    top = max(tall.max(), 0.01)
    ax.bar(edges[:-1], tall, width=0.5, align="edge", color=BLUE, edgecolor="none", alpha=0.75)
    both = one.counts[:128] + one.counts[128:]
    at = np.log2(real)
    used = both[1 : 1 + len(real)] > 0
    ax.vlines(at[used], -0.30 * top, -0.04 * top, color=INK, linewidth=0.7)
    ax.vlines(at[~used], -0.13 * top, -0.04 * top, color=MUTED, linewidth=0.5)
    ax.axvspan(span[0], at[0] - 1, color=GRID, zorder=0)
    ax.axvline(at[-1], color=RED, linewidth=1.0, linestyle=(0, (3, 2)))
    ax.text(at[-1] + 0.15, 0.93 * top, "largest", fontsize=7.5, color=RED, va="top")
    ax.text(span[0] + 0.3, 0.93 * top, "becomes 0", fontsize=7.5, color=MUTED, va="top")
    ax.set_xlim(*span)
    ax.set_ylim(-0.34 * top, 1.1 * top)
    ax.set_yticks([0, top], ["0", f"{top:.0%}"])
    ax.set_title(f"{title}: {one.lost:.1%} become 0, {one.used} magnitude{'s' * (one.used != 1)} left", fontsize=9)


def _power(scale: float) -> str:
    return "2^0" if scale == 1 else f"2^{np.log2(scale):.1f}"


# ---- 2: the plateau


def plateau(
    sweeps: Mapping[str, Sequence[tuple[int, float, float]]], guess: float | None = None, folder: Path | None = None
) -> Picture:
    """`experiments.sweep` by format: dots are measured, lines predicted. guess: a power of two, drawn as a line."""
    with styled() as figure:
        fig = figure(WIDTH, 3.1)
        ax = fig.subplots()
        margins(fig, 0.3, 0.5, left=0.085, right=0.98)
        lines = []
        for (name, points), color, mark in zip(sweeps.items(), (BLUE, ORANGE), "os"):
            ks, measured, predicted = zip(*points)
            ax.plot(ks, predicted, color=color, linewidth=1.3)
            ax.plot(ks, measured, mark, color=color, markersize=4, markerfacecolor="none", markeredgewidth=1.1)
            best = max(measured)
            flat = [k for k, dB, _ in points if dB > best - 1]
            off = max(abs(a - b) for _, a, b in points if a > 3)
            lines.append(
                f"{name}: {best:.1f} dB at best, within 1 dB from 2^{min(flat)} to 2^{max(flat)} times the right one, "
                f"prediction off by at most {off:.1f} dB above 3 dB"
            )
            above = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}  # the line of a guess
            ax.text(
                min(flat) + 1, best + 0.9, f"{name}, {best:.1f} dB", fontsize=8.5, color=color, bbox=above, zorder=5
            )
        ax.axvline(0, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
        ax.annotate(
            "amax on the largest code ",
            (0, 1.0),
            xycoords=("data", "axes fraction"),
            ha="right",
            fontsize=7.5,
            color=MUTED,
        )
        if guess is not None and ks[0] <= guess <= ks[-1]:
            ax.axvline(guess, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
            ax.annotate(
                "your guess ", (guess, 0.06), xycoords=("data", "axes fraction"), ha="right", fontsize=8, color=RED
            )
        ax.set_xlabel("scale, as a power of two of the right one: left values sink, right they saturate")
        ax.set_ylabel("SQNR, dB")
        ax.set_ylim(0, 36)
        alt = f"SQNR against scale, a plateau between two cliffs. {'. '.join(lines)}."
        note = "Dots: through your codes. Lines: your formula, which rounds nothing. 6 dB are a factor of two in error."
        return save(fig, folder_or_temp(folder), "plateau", "SQNR against scale", alt, note)


# ---- 3: poison


def poison(one: Poison, memory: Memory, folder: Path | None = None) -> Picture:
    """Left: which values of a tensor one outlier turns to 0 with a scale for the tensor; middle: with a scale a block;
    right: the share lost and the scale over steps, where the outlier came once."""
    with styled() as figure:
        fig = figure(WIDTH, 3.0)
        left, middle, right = fig.subplots(1, 3, width_ratios=(1, 1, 1.5))
        margins(fig, 0.55, 0.5, left=0.06, right=0.93, wspace=0.42)
        share, in_block = one.shares()
        for ax, lost_RC, words, part in (
            (left, one.one_RC, "one scale", share),
            (middle, one.block_RC, "a scale per 1x128", in_block),
        ):
            window = _around(lost_RC, one.at)
            ax.imshow(window[0], cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            ax.plot(*window[1], "x", color=RED, markersize=8, markeredgewidth=1.8)
            ax.set_title(f"{words}\n{part:.2%} become 0", fontsize=9)
            ax.set_xlabel("columns")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.grid(False)
        left.set_ylabel("rows, around the outlier (x)")
        steps = range(len(memory.scale))
        lost = [100 * share for share in memory.lost]
        right.step(steps, np.log2(memory.scale), where="mid", color=BLUE, linewidth=1.6)
        right.axvline(memory.outlier, color=RED, linewidth=1.0, linestyle=(0, (3, 2)))
        right.annotate(
            " outlier", (memory.outlier, 1), xycoords=("data", "axes fraction"), va="top", fontsize=7.5, color=RED
        )
        right.set_xlabel("step")
        right.set_ylabel("log2 of the scale (line)", fontsize=8, color=BLUE)
        low = [step for step in steps if step > 0 and memory.scale[step] < 0.5 * max(memory.scale)]
        right.set_title(f"a history of {memory.length}: the scale is\nlow in {len(low)} steps", fontsize=9)
        twin = right.twinx()
        twin.bar(steps, lost, color=THIN, width=0.8, zorder=0)
        twin.set_ylabel("% that become 0 (bars)", fontsize=8)
        twin.set_ylim(0, 100)
        twin.grid(False)
        right.set_zorder(twin.get_zorder() + 1)
        right.patch.set_visible(False)
        span = f"steps {low[0]} to {low[-1]}" if low else "no step"
        alt = (
            f"One value {one.factor:g} times the largest. With one scale {share:.2%} of the tensor become 0, with a "
            f"scale for each 128 values {in_block:.2%}. Under delayed scaling with a history of {memory.length} the "
            f"outlier of step {memory.outlier} saturates, and the scale is low in {span}; the first step, scale 1, "
            f"loses {memory.lost[0]:.0%}."
        )
        note = (
            "Dark: a value that becomes 0. Right: the outlier's own step keeps the old scale, and the later ones pay."
        )
        return save(fig, folder_or_temp(folder), "poison", "One outlier", alt, note)


def _around(lost_RC: np.ndarray, at: tuple[int, int], most: int = 160) -> tuple[np.ndarray, tuple[int, int]]:
    """A window of at most `most` rows and columns around a place, and the place in it as (x, y)."""
    first = [max(0, min(at[d] - most // 2, lost_RC.shape[d] - most)) for d in (0, 1)]
    window = lost_RC[first[0] : first[0] + most, first[1] : first[1] + most]
    return window, (at[1] - first[1], at[0] - first[0])


# ---- alarms

BLIND = 2  # first steps, whose scales are still those of an empty history


def watched(runs: Sequence[Watched], folder: Path | None = None) -> Picture:
    """Scales over the steps, each divided by its usual one before the fault, a panel a run; where the fault begins, where
    the loss is gone, and where each rule rings."""
    with styled() as figure:
        fig = figure(WIDTH, 4.4)
        axes = fig.subplots(2, 2)
        margins(fig, 0.35, 0.5, left=0.075, right=0.985, hspace=0.42, wspace=0.16)
        lines = []
        for ax, run in zip(axes.flat, runs):
            known = np.where(np.isfinite(run.scale_ST) & (run.scale_ST > 0), run.scale_ST, np.nan)[BLIND:]
            moved = np.log2(known / np.nanmedian(known[: run.at - BLIND], axis=0))
            most = int(np.nanmax(np.abs(moved[run.at - BLIND :]), axis=0).argmax())
            steps = range(BLIND, BLIND + len(moved))
            for tensor, row in enumerate(moved.T):
                ax.plot(steps, row, color=BLUE if tensor == most else THIN, linewidth=1.6 if tensor == most else 0.8)
            ax.axvline(run.at, color=RED, linewidth=1.0, linestyle=(0, (3, 2)))
            if run.end is not None:
                ax.axvline(run.end, color=RED, linewidth=1.0)
            rings = {name: step for name, step in run.rings.items() if step is not None}
            for name, mark, colour, height in zip(run.rings, "vo", (ORANGE, GREEN), (0.95, 0.85)):
                at = [rings[name]] if name in rings else []
                place = ax.get_xaxis_transform()
                ax.plot(at, [height] * len(at), mark, color=colour, markersize=6, transform=place, label=name)
            ax.margins(y=0.25)
            ax.set_title(f"{run.fault}, from step {run.at}", fontsize=9)
            words = ", ".join(f"{name} rings at {step}" for name, step in rings.items()) or "no rule rings"
            gone = f", the loss is gone at {run.end}" if run.end is not None else ""
            lines.append(f"{run.fault} from step {run.at}{gone}: {words}")
        axes[0, 0].legend(loc="lower left", fontsize=7.5, frameon=False)
        for ax in axes[1]:
            ax.set_xlabel("step")
        for ax in axes[:, 0]:
            ax.set_ylabel("log2(scale / usual)", fontsize=8)
        alt = f"Scales of recorded runs over the steps. {'. '.join(lines)}."
        note = (
            "Blue: the tensor whose scale moves most. Dashed: the fault begins. Red: the loss is gone. Marks: alarms."
        )
        return save(fig, folder_or_temp(folder), "watched", "Runs with a fault, and what rang", alt, note)


# ---- 4: the paired gap


def paired_gap(
    runs: Mapping[str, Sequence[pairs.Run]], found: Mapping[str, Answer], folder: Path | None = None
) -> Picture | None:
    """The picture that `lab compare` draws, of runs and what was found of them; None if nothing can be compared."""
    base = [run.heldout for run in runs["plain"]]
    band = Band(low=-ACCEPTED, high=ACCEPTED, threshold=ACCEPTED, name="what is accepted")
    arms = {}
    for name, some in runs.items():
        label, role = pairs.ARMS[name][:2]
        word = found[name].word if name in found else ""
        for number, run in enumerate(some):
            judged = Judged(gap=gaps_of(run.heldout, base), word=word, runs=len(some))
            of = f"{name}-0" if number else None
            arms[f"{name}-{number}"] = Arm(f"{name}-{number}", label, "repeat" if of else role, judged=judged, of=of)
    return loss_figures.gap(arms, Verdict(band=band, from_step=max(base[0]) // 2 + 1), folder_or_temp(folder))


def runs_of(record: dict[str, Any]) -> dict[str, pairs.Run]:
    """The trainings of a benchmark record."""
    return {
        arm: pairs.Run(arm, heldout={int(step): loss for step, loss in row["heldout"].items()})
        for arm, row in record["train"].items()
        if not row.get("why_not")
    }


# ---- 5: milliseconds


def milliseconds(
    record: dict[str, Any] | None, shape: tuple[int, int, int] | None = None, folder: Path | None = None
) -> Picture | None:
    """One linear in every precision, by the classes of its kernels; None where there is no record of a GPU."""
    if record is None:
        return None
    drawn = [TimedRow.model_validate({**row, "tokens_step": row["shape"][0]}) for row in records.rows(record, shape)]
    return speed_figures.milliseconds(drawn, folder_or_temp(folder))


# ---- losses


def loss_curves(losses: Mapping[str, Sequence[float]], folder: Path | None = None) -> Picture:
    """Losses over steps, a line a run."""
    dashes = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 1.2, 1, 1.2)))
    with styled() as figure:
        fig = figure(WIDTH, 2.8)
        ax = fig.subplots()
        margins(fig, 0.25, 0.45, left=0.08, right=0.98)
        colors, wide = (BLUE, GREEN, RED, ORANGE), (4.5, 1.6, 1.6, 1.6)  # whatever lies on the first leaves it in sight
        for (name, row), color, dash, width in zip(losses.items(), colors, dashes, wide):
            look_of = {"color": color, "linestyle": dash, "linewidth": width, "alpha": 0.45 if width > 2 else 1.0}
            ax.plot(range(1, len(row) + 1), row, label=f"{name}: {row[-1]:.3f} at the end", **look_of)
        ax.set_xlabel("step")
        ax.set_ylabel("loss, nats a byte")
        ax.legend(loc="upper right", handlelength=3.5)
        alt = "Losses: " + "; ".join(f"{name} from {row[0]:.3f} to {row[-1]:.3f}" for name, row in losses.items()) + "."
        return save(fig, folder_or_temp(folder), "losses", "Losses", alt, "")


# ---- 12: fewer bits


def error_by_bits(kinds: Mapping[str, further.Kind], names: Sequence[str], folder: Path | None = None) -> Picture:
    """SQNR against bits a value, a mark for each tensor."""
    places = {"E4M3, one scale": (-8, 4, "right"), "E5M2, one scale": (-8, -3, "right"), "NVFP4": (8, 2, "left")}
    places |= {"E4M3, blocks of 128": (10, 12, "left"), "MXFP8, floor": (10, -14, "left"), "BF16": (-10, -3, "right")}
    places |= {"NVFP4, 16 x 16": (-8, -3, "right"), "NVFP4, stochastic": (8, -6, "left")}
    with styled() as figure:
        fig = figure(WIDTH, 3.8)
        ax = fig.subplots()
        margins(fig, 0.35, 0.5, left=0.09, right=0.98)
        for kind in kinds.values():
            for dB, mark, colour in zip(kind.dB, "os^", (BLUE, RED, GREEN)):
                ax.plot([kind.bits], [dB], mark, color=colour, markersize=6, markerfacecolor="none")
        for name, kind in kinds.items():
            right, up, side = places.get(name, (10, -2, "left"))
            middle = float(np.mean(kind.dB))
            ax.annotate(
                name, (kind.bits, middle), (right, up), textcoords="offset points", ha=side, fontsize=8, color=INK
            )
        for mark, colour, name in zip("os^", (BLUE, RED, GREEN), names):
            ax.plot([], [], mark, color=colour, markerfacecolor="none", label=name)
        ax.legend(loc="lower right", frameon=False)
        ax.set(xlabel="bits a value, scales included", ylabel="SQNR (dB)", xlim=(1, 17))
        ax.grid(color=GRID, linewidth=0.6)
        text = "; ".join(
            f"{name}: {kind.bits:g} bits, {min(kind.dB):.1f} to {max(kind.dB):.1f} dB" for name, kind in kinds.items()
        )
        alt = f"SQNR against bits a value, for {', '.join(names)}. {text}."
        note = (
            "A mark is a tensor. The mantissa decides, and what saturates; scales cost bits, and here they buy no dB."
        )
        return save(fig, folder_or_temp(folder), "error-by-bits", "What a bit buys", alt, note)


def gaps(found: Mapping[str, Answer], folder: Path | None = None) -> Picture:
    """Each arm's gap and interval; beyond twice the largest of the others' the control is an arrow."""
    near = [one for name, one in found.items() if name != tricks.CONTROL]
    reach = 1.15 * max(0.3, *(max(abs(one.low), abs(one.high)) for one in near))
    with styled() as figure:
        fig = figure(WIDTH, 0.9 + 0.28 * len(found))
        ax = fig.subplots()
        margins(fig, 0.2, 0.5, left=0.27, right=0.98)
        ax.axvspan(-ACCEPTED, ACCEPTED, color=BAND, zorder=0)
        ax.axvline(0, color=MUTED, linewidth=0.9)
        for row, one in enumerate(found.values()):
            mark, colour = {"same": ("o", GREEN), "different": ("s", RED)}.get(one.word, ("^", ORANGE))
            if abs(one.gap) < reach:
                ax.plot([max(one.low, -reach), min(one.high, reach)], [row, row], color=colour, linewidth=1.6)
                ax.plot([one.gap], [row], mark, color=colour, markersize=6)
            else:
                ax.text(reach, row, f"{one.gap:+.2f} %  > ", ha="right", va="center", fontsize=8, color=colour)
        for word, mark, colour in (("same", "o", GREEN), ("undecided", "^", ORANGE), ("different", "s", RED)):
            ax.plot([], [], mark, color=colour, label=word)
        ax.legend(loc="lower left", fontsize=8, frameon=False)
        ax.set_yticks(range(len(found)), list(found), fontsize=8)
        ax.set_ylim(len(found) - 0.4, -0.6)
        ax.set_xlim(-reach, reach)
        ax.set_xlabel("gap of the held-out loss to FP32's, per cent")
        text = "; ".join(f"{name} {one.word}, {interval(one.gap, one.low, one.high)}" for name, one in found.items())
        note = f"Bars: the 90 % interval over runs. Shaded: the {ACCEPTED} % that are accepted."
        return save(fig, folder_or_temp(folder), "gaps", "Which trick carries the loss?", f"Gaps by arm. {text}.", note)
