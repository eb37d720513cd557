"""Speed, memory and time: of every arm, where each millisecond goes, and over the steps of a single run."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.compare.arms import Arm
from labkit.record import plotting as plot
from labkit.record.kernels import CLASSES
from labkit.record.schema import TimedRow

GIB = 2**30
# Colour and hatch both tell the class, in the order of kernels.CLASSES.
_COLORS = ["#005a9c", "#b34700", "#9c1f6d", "#007a63", "#8a6100", "#6a3fb5", "#5d6d00", "#a11212", "#b9c0ca"]
PAINT = dict(zip(CLASSES, zip(_COLORS, ("", "", "//", "..", "\\\\", "--", "xx", "++", "")), strict=True))
NARROW = 0.045  # of the widest bar: a narrower piece has no room for its number


def cost(arms: dict[str, Arm], folder: Path, where: str = "") -> plot.Picture | None:
    """Tokens/s (median step, 10th to 90th percentile) and peak memory of every arm, as bars. where: of which part."""
    drawn = {name: arm for name, arm in arms.items() if arm.speed.tokens_per_s}
    if not drawn:
        return None
    look_of = plot.styles({name: arm.role for name, arm in arms.items()})
    reserved = any(arm.reserved_bytes for arm in drawn.values())
    fastest = most = 0.0
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 1.05 + 0.36 * len(drawn))
        left, right = fig.subplots(1, 2, sharey=True)
        plot.margins(fig, 0.32, 0.5, left=0.2, right=0.97, wspace=0.13)
        clauses = []
        for row, (name, arm) in enumerate(drawn.items()):
            rate, slow, fast = _rates(arm)
            peak, kept = (arm.peak_bytes or 0) / GIB, (arm.reserved_bytes or 0) / GIB
            paint = {"color": plot.PAPER, "edgecolor": look_of[name].color, "hatch": look_of[name].hatch}
            bar = {"height": 0.62, "linewidth": 1.3, **paint}
            left.barh(row, rate, **bar)
            left.plot([slow, fast], [row, row], color=plot.INK, linewidth=1.1, marker="|", markersize=5)
            _value(left, max(fast, rate), row, plot.number(rate))
            if peak:
                right.barh(row, peak, **bar)
                text = f"{peak:.1f} of {kept:.1f} reserved" if kept else f"{peak:.2f}"
                _value(right, max(peak, kept), row, text)
            if kept:
                right.plot([kept], [row], marker="|", color=plot.INK, markersize=11, linewidth=0)
            fastest, most = max(fastest, fast), max(most, peak, kept)
            clauses.append(f"{arm.label} {plot.number(rate)} tokens/s" + (f" and {peak:.2f} GiB" if peak else ""))
        _name_rows(left, [arm.label for arm in drawn.values()])
        left.set_title("tokens/s")
        right.set_title("peak memory of a rank (GiB)")
        left.set_xlim(0, fastest * 1.24)
        right.set_xlim(0, (most or 1) * (2.1 if reserved else 1.24))
        for ax in (left, right):
            _no_row_grid(ax)
            plot.grouped(ax.xaxis, 4)
        warmup = max(arm.speed.warmup for arm in drawn.values())
        note = f"Median step; the line spans the 10th to the 90th percentile; the first {warmup} steps are left out."
        if reserved:
            note += " The tick on the memory bar: what torch's allocator reserved for tensors; the driver counts more."
        alt = f"Bars of throughput and peak memory: {plot.join(clauses)}."
        return plot.save(fig, folder, "speed-memory", f"Speed and memory{where}", alt, note)


def milliseconds(rows: Iterable[TimedRow], folder: Path) -> plot.Picture | None:
    """Milliseconds of each class of kernel per 1,000 tokens of a rank. None if no arm was profiled."""
    drawn = {
        row.label: {kind: row.per_thousand(ms / 1e3) for kind, ms in row.kernels.classes_ms.items()}
        for row in rows
        if row.kernels and row.kernels.span_ms
    }
    if not drawn:
        return None
    widest = max(sum(part.values()) for part in drawn.values())
    shown = [kind for kind in CLASSES if any(part.get(kind, 0) > 0.002 * widest for part in drawn.values())]
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 1.12 + 0.42 * len(drawn))
        ax = fig.subplots()
        plot.margins(fig, 0.62, 0.45, left=0.2, right=0.97)
        for y, part in enumerate(drawn.values()):
            at = 0.0
            for kind in shown:
                color, hatch = PAINT[kind]
                wide = part.get(kind, 0.0)
                paint = {"color": plot.PAPER if hatch else color, "edgecolor": color, "hatch": hatch, "linewidth": 1.0}
                ax.barh(y, wide, left=at, height=0.66, label=kind if y == 0 else None, **paint)
                if wide > NARROW * widest:
                    words = {"fontsize": 7.5, "color": plot.INK if hatch or kind == "idle" else plot.PAPER}
                    if hatch:
                        words["bbox"] = {"facecolor": plot.PAPER, "edgecolor": "none", "pad": 0.8}
                    ax.text(at + wide / 2, y, f"{wide:.2f}", ha="center", va="center", **words)
                at += wide
            ax.text(at + 0.008 * widest, y, f"{at:.2f}", va="center", fontsize=8.5, color=plot.INK)
        _name_rows(ax, list(drawn))
        ax.set_xlim(0, widest * 1.09)
        ax.set_xlabel("milliseconds of the GPU per 1,000 tokens")
        _no_row_grid(ax)
        ax.xaxis.set_major_locator(plot.ticks(7))
        place = {"loc": "upper left", "bbox_to_anchor": (0.01, 1.0), "ncols": 5}
        fig.legend(*ax.get_legend_handles_labels(), columnspacing=1.0, handlelength=1.3, fontsize=8, **place)
        clauses = [
            f"{label} {sum(part.values()):.2f} ms, most of it {plot.join(_largest(part))}"
            for label, part in drawn.items()
        ]
        alt = f"Bars of device time per 1,000 tokens by class of kernel: {'; '.join(clauses)}."
        note = (
            "Kernels on the device only, by class; every moment counts once. Communication: computing waited for it; "
            "what ran beside it counts as computing. Profiled steps are a little slower than those that were timed."
        )
        return plot.save(fig, folder, "milliseconds", "Where each millisecond goes", alt, note)


def course(arm: Arm, folder: Path) -> plot.Picture | None:
    """A single run's gradient norm, learning rate, throughput and memory over the steps; skipped steps are marked."""
    lines = arm.data.lines if arm.data else []
    memory = [(line.step, line.memory.peak_bytes / GIB) for line in lines if line.step and line.memory.peak_bytes]
    every: dict[str, list[tuple[int, float]]] = {
        "gradient norm": arm.series("grad_norm"),
        "learning rate": arm.series("lr"),
        "tokens/s": arm.series("tokens_per_s"),
        "peak memory of a rank (GiB)": memory,
    }
    panels = {title: points for title, points in every.items() if points}
    if not panels:
        return None
    style = plot.styles({"run": "single"})["run"]
    skipped = [line.step for line in lines if line.step and line.skipped]
    with plot.look() as figure:
        rows = math.ceil(len(panels) / 2)
        fig = figure(plot.WIDTH, 0.5 + 1.7 * rows)
        axes = fig.subplots(rows, 2, squeeze=False, sharex=True).ravel()
        plot.margins(fig, 0.3, 0.45, left=0.1, right=0.98, wspace=0.24, hspace=0.42)
        for ax, (title, points) in zip(axes, panels.items()):
            points = plot.thin(points)
            ax.plot(*plot.xy(points), **style.line(linewidth=1.3))
            ax.set_title(title)
            values = plot.finite([v for _, v in points]) or [0.0]
            usual = sorted(values)[int(0.98 * (len(values) - 1))]
            ax.set_ylim(0, max(usual * 1.2, 1e-12))
            if max(values) > usual * 1.2:
                corner = {"xycoords": "axes fraction", "ha": "right", "va": "top", "fontsize": 8, "color": plot.MUTED}
                ax.annotate(f"up to {plot.number(max(values))}", (0.99, 0.97), **corner)
            plot.grouped(ax.yaxis, 4)
            for step in skipped:
                ax.axvline(step, ymax=0.06, color=plot.INK, linewidth=1)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[max(0, len(panels) - 2) : len(panels)]:
            ax.set_xlabel("step")
            ax.tick_params(labelbottom=True)
        last = plot.join([f"{title} {plot.number(points[-1][1])}" for title, points in panels.items()])
        alt = f"Over {arm.steps} steps: {last} at the end; {len(skipped)} steps were skipped."
        note = "Short strokes at the bottom mark skipped steps." if skipped else ""
        return plot.save(fig, folder, "course", "Course of the run", alt, note)


# ---- parts


def _rates(arm: Arm) -> tuple[float, float, float]:
    """Tokens/s of the median step, of the 90th percentile and of the 10th."""
    speed = arm.speed
    rate = speed.tokens_per_s or 0.0
    if not (speed.step_p10 and speed.step_p50 and speed.step_p90):
        return rate, rate, rate
    return rate, rate * speed.step_p50 / speed.step_p90, rate * speed.step_p50 / speed.step_p10


def _name_rows(ax: Any, labels: list[str]) -> None:
    """Bars from the top down, each named at its left."""
    ax.set_yticks(range(len(labels)), [plot.lines(label, 22) for label in labels], color=plot.INK)
    ax.invert_yaxis()


def _no_row_grid(ax: Any) -> None:
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _value(ax: Any, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5, color=plot.INK)


def _largest(part: dict[str, float]) -> list[str]:
    return [f"{kind} {part[kind]:.2f}" for kind in sorted(part, key=lambda k: -part[k])[:3]]
