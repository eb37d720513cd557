"""The two pictures that a verdict is read from: the losses, and the paired gap with its band."""

import math
import statistics
from pathlib import Path
from typing import Any

from labkit.compare.arms import Arm
from labkit.record import plotting as plot
from labkit.record.schema import Band, Judged, Verdict

Points = list[tuple[int, float]]
# Drawn in this order: the arms nearly coincide, so the baseline lies broad at the bottom, dashes on top of solid lines.
LAYERS = {"baseline": 0, "single": 1, "twin": 3, "broken": 4}  # all others: 2
SAME = (
    " The arms see the same data from the same weights, so their wiggles are the same; what differs is in the next "
    "picture."
)
BESIDE = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}


def losses(arms: dict[str, Arm], folder: Path) -> plot.Picture | None:
    """Training loss (thin: every step; thick: running median) and held-out loss of every arm."""
    drawn = {name: arm for name, arm in arms.items() if arm.series("loss") or arm.series("heldout")}
    if not drawn:
        return None
    look_of = plot.styles({name: arm.role for name, arm in arms.items()})
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 3.3)
        left, right = fig.subplots(1, 2, sharey=True)
        fig.subplots_adjust(left=0.075, right=0.755, top=0.89, bottom=0.15, wspace=0.07)
        low, high = _loss_limits(drawn)
        last_step = max([1, *(s for arm in drawn.values() for key in ("loss", "heldout") for s, _ in arm.series(key))])
        for ax, title in ((left, "training"), (right, "held-out")):
            ax.set(title=title, xlabel="step", xlim=(0, last_step * 1.02))
        ends = []
        for shift, name in enumerate(sorted(drawn, key=lambda n: LAYERS.get(drawn[n].role, 2))):
            arm, style = drawn[name], look_of[name]
            broad = {"linewidth": 3.6, "alpha": 0.55} if arm.role == "baseline" and len(drawn) > 1 else {}
            train, held = plot.thin(arm.series("loss")), plot.thin(arm.series("heldout"))
            steps, values = plot.xy(train)
            left.plot(steps, values, color=style.color, linewidth=0.5, alpha=0.35)
            left.plot(steps, plot.running_median(values, 9), **style.line(**broad))
            _mark_lost(left, train, high, style, "" if held else arm.label)
            if held:  # markers of lines that coincide are set apart
                right.plot(*plot.xy(held), **style.marks(len(held), 2 * shift, 5, **broad))
                _mark_lost(right, held, high, style, arm.label)
            shown = held or train
            if not _lost(shown, high):
                step, value = shown[-1]
                early = f" (step {step})" if step < last_step else ""
                ends.append((step, value, f"{plot.lines(arm.label)}  {value:.4f}{early}", style.color))
        left.set(ylim=(low, high), ylabel="loss (nats per token)")
        plot.label_ends(right, ends)
        note = "Thin: every step. Thick: running median of 9 steps."
        return plot.save(fig, folder, "loss", "Loss", _losses_alt(drawn), note + (SAME if len(drawn) > 1 else ""))


def gap(arms: dict[str, Arm], verdict: Verdict, folder: Path) -> plot.Picture | None:
    """Gap of val_loss to the baseline in per cent, by step, with the band: linear inside it, logarithmic outside."""
    drawn = {name: arm for name, arm in arms.items() if arm.gaps}
    if not drawn:
        return None
    look_of = plot.styles({name: arm.role for name, arm in arms.items() if not arm.of})
    several = any(arm.of for arm in arms.values())
    band = verdict.band or Band()
    every = plot.finite([g for arm in drawn.values() for _, g in arm.gaps])
    edges = plot.finite([band.low, band.high])
    threshold = max([abs(e) for e in edges] or [statistics.median([abs(g) for g in every] or [0.01])]) or 1e-3
    top = max([threshold * 2, *(abs(g) for g in every)])
    below = min([-threshold * 1.6, *every])
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 3.5)
        ax = fig.subplots()
        fig.subplots_adjust(left=0.105, right=0.755, top=0.87, bottom=0.13)
        steps = [s for arm in drawn.values() for s, _ in arm.gaps]
        first, last = min(steps), max(steps)
        logarithmic = top > 4 * threshold
        if logarithmic:
            ax.set_yscale("symlog", linthresh=threshold, linscale=1.1)
            ax.set_ylim(below * (1.5 if below < -threshold * 1.7 else 1), top * 1.9)
            lowest, highest = math.ceil(math.log10(threshold) + 0.4), math.floor(math.log10(top * 1.9))
            decades = [10.0**power for power in range(lowest, highest + 1)]
            ticks = [0.0, *edges, *decades, *(-tick for tick in decades if -tick > below * 1.5)]
            ax.set_yticks(ticks, [_percent(v) for v in ticks])
            ax.set_yticks([], minor=True)
        else:
            ax.set_ylim(below * 1.12, top * 1.12)
            ax.yaxis.set_major_formatter(lambda v, _: _percent(v))
        ax.set_xlim(first - 0.03 * max(1, last - first), last + 0.02 * max(1, last - first))
        if len(edges) == 2:
            ax.axhspan(*sorted(edges), color=plot.BAND, zorder=0.5)
            for edge in edges:
                ax.axhline(edge, color=plot.MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        ax.axhline(0, color=plot.INK, linewidth=0.9, zorder=1.1)
        small = {"fontsize": 8, "color": plot.MUTED}
        start = verdict.from_step
        if start is not None and first < start < last:
            ax.axvline(start, color=plot.MUTED, linewidth=0.9, zorder=1)
            ax.annotate(" counted from here", (start, 1), xytext=(0, 2), va="bottom", ha="left", **BESIDE, **small)
        ends = []
        for name, arm in drawn.items():
            points = plot.thin(arm.gaps)
            style = look_of[arm.of or name]
            if arm.of or (several and arm.role == "baseline"):  # a further run: thin, in its arm's colour
                ax.plot(*plot.xy(points), **style.line(linewidth=0.7, alpha=0.6))
                continue
            ax.plot(*plot.xy(points), **style.marks(len(points)))
            _mark_lost(ax, arm.gaps, math.inf, style, arm.label)
            if not _lost(arm.gaps, math.inf):
                ends.append((*arm.gaps[-1], plot.lines(arm.label), style.color))
        if len(edges) == 2:
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "xytext": (5, 4)}
            above = {"zorder": 5, "bbox": {"facecolor": plot.BAND, "edgecolor": "none", "pad": 1.5}}  # the lines
            ax.annotate("band" + (f": {band.name}" if band.name else ""), (0, edges[0]), **place, **above, **small)
        base = f"the mean of {_baseline(arms)}'s runs" if several else _baseline(arms)
        ax.set_title(f"held-out loss relative to {base} (same data)", pad=16)
        ax.set_xlabel("step")
        plot.label_ends(ax, ends)
        note = "Above zero is worse than the baseline. "
        if several:
            note += "The runs start from weights that differ by a rounding error. "
            note += "Marked: each arm's first run; thin: its further ones, and the baseline's. "
        else:
            note += "All arms start from the same weights, a twin's moved by rounding. "
        if len(edges) == 2:
            note += f"Shaded: the band, {band.name or 'given with the verdict'}. "
        if logarithmic:
            note += "The scale is linear inside the band and logarithmic outside it. "
        return plot.save(fig, folder, "gap", "Paired gap", _gap_alt(arms, drawn, edges, start), note.strip())


# ---- limits, marks and words


def _loss_limits(arms: dict[str, Arm]) -> tuple[float, float]:
    """Limits that show the arms that behave; a broken arm may leave the picture at the top, and its label says so."""
    sane = [a for a in arms.values() if a.role != "broken"] or list(arms.values())
    values = plot.finite([v for a in sane for key in ("loss", "heldout") for _, v in a.series(key)]) or [0.0, 1.0]
    # A blow-up in a candidate must not squeeze the rest either: what the first steps of all had, plus a little, is
    # enough.
    start = max(plot.finite([v for a in sane for _, v in a.series("loss")[:3]]) or [max(values)])
    high, low = min(max(values), start * 1.15), min(values)
    pad = 0.06 * (high - low) or 0.5
    return low - pad, high + pad


def _lost(points: Points, top: float) -> tuple[float, str] | None:
    """(where, how) the values stop being numbers, or leave the picture at the top for good."""
    for step, value in points:
        if not math.isfinite(value):
            return step, f"not finite from step {step}"
        if value > top and points[-1][1] > top and step > points[0][0]:
            return step, f"up to {plot.number(max(plot.finite([v for _, v in points])))}"
    return None


def _mark_lost(ax: Any, points: Points, top: float, style: plot.Style, label: str) -> None:
    """A cross at the upper edge where the arm is lost, and beside it its name and how."""
    lost = _lost(points, top)
    if lost is None:
        return
    cross = {"marker": "X", "markersize": 8, "markeredgecolor": plot.PAPER, "markeredgewidth": 0.8, "linewidth": 0}
    at_edge = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 6}
    ax.plot([lost[0]], [1.0], color=style.color, **cross, **at_edge)
    if label:
        left = lost[0] > sum(ax.get_xlim()) / 2
        place = {"xytext": (-8 if left else 8, 2), "ha": "right" if left else "left", "va": "top", **BESIDE}
        words = {"fontsize": 8.5, "color": style.color, "linespacing": 1.1, "zorder": 7}
        ax.annotate(f"{plot.lines(label, 30)}\n{lost[1]}", (lost[0], 1), **place, **words)


def _percent(value: float) -> str:
    """+0.0095 %, +1,000 %, 0: two significant digits and a real minus sign."""
    if not value:
        return "0"
    text = plot.number(abs(value), 2)
    text = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return ("+" if value > 0 else "\N{MINUS SIGN}") + text + " %"


def _baseline(arms: dict[str, Arm]) -> str:
    return next((arm.label for arm in arms.values() if arm.role == "baseline"), "the baseline")


def _losses_alt(arms: dict[str, Arm]) -> str:
    clauses = []
    for arm in arms.values():
        kind, points = ("held-out", held) if (held := arm.series("heldout")) else ("training", arm.series("loss"))
        lost = next((s for s, v in points if not math.isfinite(v)), None)
        last, value = points[-1]
        end = f"{plot.number(value, 4)} at step {last}" if lost is None else f"not finite at step {lost}"
        clauses.append(f"{arm.label} ({kind}) goes from {plot.number(points[0][1])} to {end}")
    return f"Curves of the loss over the steps: {plot.join(clauses)}."


def _gap_alt(arms: dict[str, Arm], drawn: dict[str, Arm], edges: list[float], start: float | None = None) -> str:
    clauses = []
    for arm in drawn.values():
        if arm.of or arm.role == "baseline":
            continue
        values, judged = [g for _, g in arm.gaps], arm.judged or Judged()
        if len(plot.finite(values)) < len(values):
            clauses.append(f"{arm.label} becomes not finite")
            continue
        where = f", judged {judged.word} the band" if judged.word in ("inside", "outside") else ""
        where = f", {judged.word}" if judged.runs else where
        clauses.append(f"{arm.label} lies between {min(values):+.2g} and {max(values):+.2g} percent{where}")
    band = f" The band is {edges[0]:+.2g} to {edges[1]:+.2g} percent." if len(edges) == 2 else ""
    band += f" Gaps are judged from step {start:g} on." if band and start is not None else ""
    return f"Gap of the held-out loss against {_baseline(arms)} over the steps: {plot.join(clauses)}.{band}"
