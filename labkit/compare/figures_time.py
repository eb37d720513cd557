"""The picture "where each millisecond goes": one bar an arm, one piece a class of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.record.kernels import CLASSES
from labkit.record.plotting import INK, PAPER, WIDTH, Picture, join, lines, look, save, ticks

# Colour and hatch both tell the class, in the order of kernels.CLASSES.
PAINT = dict(
    zip(
        CLASSES,
        (
            ("#005a9c", ""),
            ("#b34700", ""),
            ("#9c1f6d", "//"),
            ("#007a63", ".."),
            ("#8a6100", "\\\\"),
            ("#6a3fb5", "--"),
            ("#5d6d00", "xx"),
            ("#a11212", "++"),
            ("#b9c0ca", ""),
        ),
        strict=True,
    )
)
NARROW = 0.045  # of the widest bar: a narrower piece has no room for its number


def milliseconds(rows: dict[str, dict], folder: Path) -> Picture | None:
    """rows: arm -> {"label", "tokens_step", "kernels": Breakdown as a dict or None}. Milliseconds per 1,000 tokens, so
    that arms
    with other batches can be held against one another. None if no arm was profiled."""
    drawn = {arm: row for arm, row in rows.items() if row.get("kernels") and row["kernels"].get("span_ms")}
    if not drawn:
        return None
    parts = {arm: per_thousand(row) for arm, row in drawn.items()}
    widest = max(sum(p.values()) for p in parts.values())
    shown = [kind for kind in CLASSES if any(p.get(kind, 0) > 0.002 * widest for p in parts.values())]
    with look() as figure:
        fig = figure(WIDTH, 1.12 + 0.42 * len(drawn))
        ax = fig.subplots()
        fig.subplots_adjust(left=0.2, right=0.97, top=1 - 0.62 / fig.get_figheight(), bottom=0.45 / fig.get_figheight())
        for y, (arm, part) in enumerate(parts.items()):
            at = 0.0
            for kind in shown:
                color, hatch = PAINT[kind]
                wide = part.get(kind, 0.0)
                ax.barh(
                    y,
                    wide,
                    left=at,
                    height=0.66,
                    color=PAPER if hatch else color,
                    edgecolor=color,
                    hatch=hatch,
                    linewidth=1.0,
                    label=kind if y == 0 else None,
                )
                if wide > NARROW * widest:
                    ax.text(
                        at + wide / 2,
                        y,
                        f"{wide:.2f}",
                        ha="center",
                        va="center",
                        fontsize=7.5,
                        color=INK if hatch or kind == "idle" else PAPER,
                        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8} if hatch else None,
                    )
                at += wide
            ax.text(at + 0.008 * widest, y, f"{at:.2f}", va="center", fontsize=8.5, color=INK)
        ax.set_yticks(range(len(drawn)), [lines(row["label"], 22) for row in drawn.values()], color=INK)
        ax.invert_yaxis()
        ax.set_xlim(0, widest * 1.09)
        ax.set_xlabel("milliseconds of the GPU per 1,000 tokens")
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(ticks(7))
        fig.legend(
            *ax.get_legend_handles_labels(),
            loc="upper left",
            ncols=5,
            bbox_to_anchor=(0.01, 1.0),
            columnspacing=1.0,
            handlelength=1.3,
            fontsize=8,
        )
        told = [
            f"{row['label']} {sum(parts[arm].values()):.2f} ms, most of it {join(_largest(parts[arm]))}"
            for arm, row in drawn.items()
        ]
        return save(
            fig,
            folder,
            "milliseconds",
            "Where each millisecond goes",
            f"Bars of device time per 1,000 tokens by class of kernel: {'; '.join(told)}.",
            "Kernels on the device only, by class; every moment counts once. Communication is what stood in "
            "the way; what ran beside computing is hidden in it. Profiled steps are a little slower.",
        )


def per_thousand(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of each class per 1,000 tokens of one rank."""
    return {kind: ms * 1000 / row["tokens_step"] for kind, ms in row["kernels"]["classes_ms"].items()}


def _largest(part: dict[str, float]) -> list[str]:
    return [f"{kind} {part[kind]:.2f}" for kind in sorted(part, key=lambda k: -part[k])[:3]]
