"""What a number format costs: signal to quantisation noise."""

import math
import statistics
from pathlib import Path
from typing import Any

from labkit.compare.arms import QUANTISED, Arm, split_tensor
from labkit.record import plotting as plot

SHOWN = (*QUANTISED, "output")  # in the SQNR picture
EXACT = 100.0  # dB: what is cast without any error (all zero, say) stands far above, and flattens the rest
KIND_MARKS = {"input": "o", "weight": "s", "grad": "^", "output": "d"}
OFFSETS = {kind: (place - (len(SHOWN) - 1) / 2) * 0.17 for place, kind in enumerate(SHOWN)}  # side by side in a layer
HOLLOW: dict[str, Any] = {"linewidth": 0, "markerfacecolor": "none"}
NAMED: dict[str, Any] = {
    "bbox": {"facecolor": plot.PAPER, "edgecolor": "none", "pad": 0.8},
    "arrowprops": {"arrowstyle": "-", "color": plot.INK, "linewidth": 0.6, "shrinkB": 3},
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 8,
    "color": plot.INK,
    "linespacing": 1.1,
}
# What rounding alone gives. A mantissa of m bits rounds x = f 2^e (1 <= f < 2) with variance (2^(e-m))^2 / 12. That
# is x^2 4^-u / (12 * 4^m) with u = log2 f. A tensor's values span many octaves and its scale may be any number, so u is
# spread evenly over [0, 1], where 4^-u has the mean 3 / (8 ln 2): SQNR = 12 * 4^m * 8 ln 2 / 3.
ROUNDING_DB = {name: 10 * math.log10(12 * 4**bits * 8 * math.log(2) / 3) for name, bits in (("E4M3", 3), ("E5M2", 2))}


def sqnr(arms: dict[str, Arm], look_of: dict[str, plot.Style], folder: Path) -> plot.Picture | None:
    """SQNR of every quantised tensor, and of every linear's output against FP32, at the last probe, by layer."""
    every = {name: dots for name, arm in arms.items() if (dots := _sqnr_dots(arm))}
    # An arm that casts nothing has outputs alone, far above the rest: one number in the note, no panel.
    shown = {name: dots for name, dots in every.items() if any(kind != "output" for _, _, kind, _ in dots)} or every
    if not shown:
        return None
    others = [f"{arms[n].label} {min(db for *_, db in dots):.0f} dB" for n, dots in every.items() if n not in shown]
    inexact = [(kind, db) for dots in shown.values() for _, _, kind, db in dots if db < EXACT]
    columns, rows = min(3, len(shown)), math.ceil(len(shown) / 3)
    with plot.look() as figure:
        from matplotlib.lines import Line2D

        fig = figure(plot.WIDTH, 0.75 + 2.35 * rows)
        axes = fig.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        plot.margins(fig, 0.62, 0.45, left=0.075, right=0.885, wspace=0.08, hspace=0.45)
        values, clauses = [db for _, db in inexact], []
        low, high = max(min([*values, ROUNDING_DB["E5M2"]]), -5.0), max([*values, ROUNDING_DB["E4M3"]])
        for ax, (name, dots) in zip(axes, shown.items()):
            last, marks = max(x for x, *_ in dots), {"markersize": 4.2, "markeredgewidth": 0.9, **HOLLOW}
            for kind in SHOWN:
                points = [(x + OFFSETS[kind], max(db, low)) for x, _, k, db in dots if k == kind and db < EXACT]
                ax.plot(*plot.xy(points), marker=KIND_MARKS[kind], markeredgecolor=look_of[name].color, **marks)
            for db in ROUNDING_DB.values():
                ax.axhline(db, color=plot.MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            x, tensor, kind, db = min(dots, key=lambda dot: dot[3])
            text = f"{split_tensor(tensor)[1].rpartition('.')[2]}.{kind}\n{db:.1f} dB"
            side = {"xytext": (-14, -19), "ha": "right"} if x > last / 2 else {"xytext": (14, -19), "ha": "left"}
            ax.annotate(text, (x + OFFSETS[kind], max(db, low)), **side, **NAMED)
            ax.set_title(arms[name].label, fontsize=9)
            ax.set(xlim=(-0.6, last + 0.6), xlabel="layer")
            ax.xaxis.set_major_locator(plot.ticks(8, whole=True))
            middle = statistics.median([dot[3] for dot in dots])
            clauses.append(f"{arms[name].label}: median {middle:.1f} dB, worst {tensor} with {db:.1f} dB")
        for ax in axes[len(shown) :]:
            ax.set_visible(False)
        span = high - low
        axes[0].set_ylim(low - max(0.25 * span, 7), high + 0.08 * span)
        for ax in axes[0 : len(shown) : columns]:
            ax.set_ylabel("SQNR (dB)")
        edge = axes[min(columns, len(shown)) - 1]
        reach = edge.get_xlim()[1]
        ends = [(reach, db, f"{name}\nrounding", plot.MUTED) for name, db in ROUNDING_DB.items()]
        plot.label_ends(edge, ends, size=8)
        kinds = [kind for kind in SHOWN if kind in {kind for kind, _ in inexact}]
        marks = {"markersize": 4.5, "markeredgecolor": plot.INK, **HOLLOW}
        place = {"loc": "upper left", "bbox_to_anchor": (0.065, 1.0), "ncols": 4}
        space = {"handletextpad": 0.2, "columnspacing": 1.4, "borderaxespad": 0.2}
        fig.legend([Line2D([], [], marker=KIND_MARKS[kind], **marks) for kind in kinds], kinds, **place, **space)
        note = (
            "Higher is better; 6 dB is one bit. Output: the linear's result against FP32; the rest: the tensor that "
            "was cast, against itself. Dashed: what rounding alone gives, nothing over- or underflowing, "
            f"{ROUNDING_DB['E4M3']:.1f} dB with E4M3's 3 mantissa bits and {ROUNDING_DB['E5M2']:.1f} dB with E5M2's 2. "
            "Named: the worst tensor."
        )
        if others:
            note += f" Not drawn, the worst output of arms that cast nothing: {plot.join(others)}."
        if exact := sum(map(len, shown.values())) - len(inexact):
            note += f" Not drawn either: {exact} tensors that lost nothing (all zero, say)."
        alt = f"SQNR at the last probe. {'. '.join(clauses)}."
        return plot.save(fig, folder, "sqnr", "Signal to quantisation noise", alt, note)


# ---- parts


def _sqnr_dots(arm: Arm) -> list[tuple[int, str, str, float]]:
    """(layer, tensor, role, dB) at the last probe."""
    out = []
    for tensor, stat in arm.scales()[-1][1].items():
        layer, _, kind = split_tensor(tensor)
        if kind in SHOWN and plot.finite([stat.get("sqnr")]):
            out.append((-1 if layer is None else layer, tensor, kind, stat["sqnr"]))
    return out
