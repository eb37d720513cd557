"""The picture that a comparison is read from: by arm its speed, and the gap of its loss, against the baseline."""

import math
from collections.abc import Sequence
from pathlib import Path

from labkit.compare.arms import Arm
from labkit.compare.statistic import ACCEPTED
from labkit.compare.table import assumed, at_equal_loss, gap_interval
from labkit.record import plotting as plot

FARTHEST = 1.0  # per cent, either side: what lies beyond stands at the edge, with its number


def answer(
    rows: list[Arm], folder: Path, name: str = "answer", baseline: str = "BF16", sizes: Sequence[str] = ("", "")
) -> plot.Picture | None:
    """Draw a row for each arm. sizes: of the timed and the trained model, "1.14B". None for a baseline alone."""
    timed_at, trained_at = (f" at {size}" if size else "" for size in sizes)
    drawn = [row for row in rows if row.times or row.gap is not None]
    speeds, judged = (
        [row for row in drawn if row.times],
        [r for r in drawn if r.gap is not None and r.role != "baseline"],
    )
    if not judged and not [row for row in speeds if row.role != "baseline"]:
        return None
    look_of = plot.styles({row.name: row.role for row in drawn})
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 1.0 + 0.36 * len(drawn))
        shares = [share for share, there in ((1, speeds), (1.6, judged)) if there]
        axes = list(fig.subplots(1, len(shares), sharey=True, squeeze=False, width_ratios=shares)[0])
        plot.margins(fig, 0.34, 0.3, left=0.205, right=0.985, wspace=0.06)
        if speeds:
            ax, further = axes[0], any(row.at_equal_loss for row in drawn)
            for y, row in enumerate(drawn):
                said = f"{row.times:.2f}" if row.times else "not timed"
                if row.times:
                    paint = {"edgecolor": look_of[row.name].color, "hatch": look_of[row.name].hatch}
                    ax.barh(y, row.times, height=0.6, linewidth=1.3, color=plot.PAPER, **paint)
                if row.at_equal_loss and row.role != "baseline":
                    value, *ends = row.at_equal_loss
                    ax.plot(ends, [y, y], color=plot.INK, linewidth=1.6, solid_capstyle="butt")
                    ax.plot([value], [y], color=plot.INK, marker="|", markersize=8)
                    said += f"\n{at_equal_loss(row.at_equal_loss)}"
                end = max(row.times or 0, *(row.at_equal_loss or (0,)))
                beside = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
                ax.annotate(said, (end, y), xytext=(4, 0), color=plot.INK, **beside)
            ax.axvline(1, color=plot.MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
            ax.set_xlim(0, max(row.times or 0 for row in speeds) * (1.8 if further else 1.25))
            ax.xaxis.set_major_locator(plot.ticks(4))
            ax.set_title(f"speed{timed_at}, times {baseline}")
        if judged:
            ax = axes[-1]
            ends = [abs(x) for row in judged for x in plot.finite([row.low, row.high, row.gap])]
            reach = 1.08 * max([2 * ACCEPTED, *(end for end in ends if end <= FARTHEST)])
            ax.axvspan(-ACCEPTED, ACCEPTED, color=plot.BAND, zorder=0.5)
            ax.axvline(0, color=plot.INK, linewidth=0.9, zorder=1)
            ax.set_xlim(-reach, 3.4 * reach)
            ax.spines["bottom"].set_bounds(-reach, reach)
            for y, row in enumerate(drawn):
                _gap(ax, y, row, look_of[row.name], reach)
            ax.set_title(f"gap of the held-out loss{trained_at} (%)")
            ticks = [tick for tick in (-1, -0.5, -ACCEPTED, 0, ACCEPTED, 0.5, 1) if abs(tick) <= reach]
            crowd = reach > 0.6
            ax.set_xticks(ticks, ["" if crowd and abs(t) == ACCEPTED else f"{t:+g}" if t else "0" for t in ticks])
            ax.tick_params(axis="x", labelsize=7.5)
        axes[0].set_yticks(range(len(drawn)), [plot.lines(row.timed_label, 24) for row in drawn], color=plot.INK)
        axes[0].set_ylim(len(drawn) - 0.5, -0.5)
        for ax in axes:
            ax.grid(axis="y", visible=False)
            ax.tick_params(axis="y", length=0)
        below = f"Shaded: the {ACCEPTED} % that is accepted. Above zero the loss is worse than {baseline}'s."
        if any(row.low is not None and math.isfinite(row.low) for row in judged):
            below += " Bars: the interval of the gap."
        if any(row.at_equal_loss for row in drawn):
            below += f" Below a speed, and as a line on its bar: the speed at equal loss. {assumed(drawn, baseline)}"
        title = "speed and loss" if speeds and judged else "speed" if speeds else "loss"
        return plot.save(fig, folder, name, f"The answer: {title} by arm", _alt(drawn, baseline), below)


def _gap(ax, y: int, row: Arm, look: plot.Style, reach: float) -> None:
    """One arm's gap, its interval, and its words at the right."""
    if row.role == "baseline":
        words = f"baseline, {row.runs} runs" if row.runs > 1 else "baseline"
    elif row.gap is None:
        words = "not judged"
    else:
        words = f"{row.word}\n{gap_interval(row)}" if row.word else gap_interval(row)
        face = {"marker": look.mark, "markersize": 6, "markerfacecolor": plot.PAPER, "linewidth": 0}
        if abs(row.gap) > reach:
            face |= {"marker": ">" if row.gap > 0 else "<", "markerfacecolor": look.color}
        elif row.low is not None and row.high is not None and math.isfinite(row.low):
            ends = [max(-reach, row.low), min(reach, row.high)]
            ax.plot(ends, [y, y], color=look.color, linewidth=1.6, solid_capstyle="butt")
        at = max(-reach, min(reach, row.gap))
        ax.plot([at], [y], color=look.color, clip_on=False, zorder=4, **face)
    place = {"xytext": (10, 0), "textcoords": "offset points", "va": "center", "linespacing": 1.05}
    ax.annotate(words, (reach, y), fontsize=8, color=plot.INK, **place)


def _alt(rows: list[Arm], baseline: str) -> str:
    clauses = []
    for row in rows:
        speed = f"{row.times:.2f} times {baseline}'s speed" if row.times and row.role != "baseline" else ""
        speed += f", {at_equal_loss(row.at_equal_loss)} at equal loss" if row.at_equal_loss else ""
        loss = ", ".join(filter(None, (row.word, gap_interval(row)))) if row.gap is not None else ""
        if row.role != "baseline" and (words := "; ".join(filter(None, (speed, loss and f"loss {loss}")))):
            clauses.append(f"{row.timed_label}: {words}")
    return f"Speed and loss against {baseline}, by arm. {'. '.join(clauses)}."
