"""Where each millisecond of every arm goes."""

from collections.abc import Iterable
from pathlib import Path

from labkit.record import plotting as plot
from labkit.record.kernels import CLASSES
from labkit.record.schema import TimedRow

# Colour and hatch both tell the class, in the order of kernels.CLASSES.
_COLORS = ["#005a9c", "#b34700", "#9c1f6d", "#007a63", "#8a6100", "#6a3fb5", "#5d6d00", "#a11212", "#b9c0ca"]
PAINT = dict(zip(CLASSES, zip(_COLORS, ("", "", "//", "..", "\\\\", "--", "xx", "++", "")), strict=True))
NARROW = 0.045  # of the widest bar: a narrower piece has no room for its number


def milliseconds(rows: Iterable[TimedRow], folder: Path) -> plot.Picture | None:
    """Milliseconds of each class of kernel per 1,000 tokens of a rank. None if no arm was profiled."""
    drawn = {
        row.label: {kind: row.per_thousand(ms / 1e3) for kind, ms in row.kernels.classes_ms.items()}
        for row in rows
        if row.kernels and row.kernels.span_ms
    }
    if not drawn:
        return None
    widest, clauses = max(sum(part.values()) for part in drawn.values()), []
    shown = [kind for kind in CLASSES if any(part.get(kind, 0) > 0.002 * widest for part in drawn.values())]
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 1.12 + 0.42 * len(drawn))
        ax = fig.subplots()
        plot.margins(fig, 0.62, 0.45, left=0.2, right=0.97)
        for y, (label, part) in enumerate(drawn.items()):
            at = 0.0
            for kind in shown:
                (color, hatch), wide = PAINT[kind], part.get(kind, 0.0)
                paint = {"color": plot.PAPER if hatch else color, "edgecolor": color, "hatch": hatch, "linewidth": 1.0}
                ax.barh(y, wide, left=at, height=0.66, label=kind if y == 0 else None, **paint)
                if wide > NARROW * widest:
                    words = {"fontsize": 7.5, "color": plot.INK if hatch or kind == "idle" else plot.PAPER}
                    if hatch:
                        words["bbox"] = {"facecolor": plot.PAPER, "edgecolor": "none", "pad": 0.8}
                    ax.text(at + wide / 2, y, f"{wide:.2f}", ha="center", va="center", **words)
                at += wide
            ax.text(at + 0.008 * widest, y, f"{at:.2f}", va="center", fontsize=8.5, color=plot.INK)
            largest = [f"{kind} {part[kind]:.2f}" for kind in sorted(part, key=lambda k: -part[k])[:3]]
            clauses.append(f"{label} {sum(part.values()):.2f} ms, most of it {plot.join(largest)}")
        ax.set_yticks(range(len(drawn)), [plot.lines(label, 22) for label in drawn], color=plot.INK)
        ax.invert_yaxis()  # bars from the top down
        ax.set(xlim=(0, widest * 1.09), xlabel="milliseconds of the GPU per 1,000 tokens")
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(plot.ticks(7))
        place = {"loc": "upper left", "bbox_to_anchor": (0.01, 1.0), "ncols": 5}
        fig.legend(*ax.get_legend_handles_labels(), columnspacing=1.0, handlelength=1.3, fontsize=8, **place)
        alt = f"Bars of device time per 1,000 tokens by class of kernel: {'; '.join(clauses)}."
        note = (
            "Kernels on the device only, by class; every moment counts once. Communication: computing waited for it; "
            "what ran beside it counts as computing. Profiled steps are a little slower than those that were timed."
        )
        return plot.save(fig, folder, "milliseconds", "Where each millisecond goes", alt, note)
