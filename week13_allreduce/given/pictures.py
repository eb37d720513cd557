"""The pictures of what happens: chunks that fill, wires that are busy, ranks that wait. Drawn from data of real runs.

Every function returns a `Picture`: files in `folder` (PNG and SVG), a title, and `alt`, what it shows in words. No
picture says anything by colour alone. Curves and clocks are in clocks.py.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import re
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from labkit.record.plotting import BAND, GRID, INK, MUTED, PAPER, WIDTH, Picture, look, save

BLUE, RED, ORANGE = "#005a9c", "#a11212", "#b34700"


@functools.cache
def _scratch(pid: int) -> str:
    """One temporary folder for each process, removed when that process ends, and not when one forked from it does."""
    folder = tempfile.mkdtemp(prefix="week13-")

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def folder_or_temp(folder: Path | None) -> Path:
    """Where a picture goes: `folder`; if nobody says, a folder of its own that is gone when this process ends."""
    if folder is None:
        return Path(tempfile.mkdtemp(dir=_scratch(os.getpid())))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- 1: chunks that fill


def chunk_grid(states: Any, folder: Path | None = None) -> Picture:
    """`states` of `experiments.filling`, [steps + 1, N, N]: a panel a step, a row for each rank, a column a chunk.

    The digits in a cell are the ranks whose addends are in it. A cell that changed in this step has an arrow from the
    rank it came from; a complete chunk has a thick frame and a filled ground."""
    N, steps = states.shape[1], states.shape[0] - 1
    laps = [("reduce-scatter", range(min(N, steps + 1)))]
    if steps >= N:
        laps.append(("all-gather", range(N, steps + 1)))
    panel = WIDTH / N
    with look() as figure:
        fig = figure(WIDTH, len(laps) * (panel + 0.22) + 0.1)
        for row, (lap, moments) in enumerate(laps):
            first = N - len(moments)  # the second lap stands below the steps of the first
            for column, t in enumerate(moments, first):
                ax = fig.add_subplot(len(laps), N, row * N + column + 1)
                _grid(ax, states[t], states[t - 1] if t else None, N)
                step = f"step {t - moments[0] - (row == 0)}"
                ax.set_title("at the start" if t == 0 else f"{lap} {step}" if column == 1 else step, fontsize=9, pad=4)
        if len(laps) == 2:
            fig.text(
                0.012,
                0.40,
                "Digits in a cell:\nwhose addends are in it.\n\nArrow: it just came in\n"
                "from the left neighbour.\n\nFilled, thick frame:\nall addends are in.",
                va="top",
                fontsize=8.5,
                color=MUTED,
                linespacing=1.35,
            )
        fig.tight_layout(pad=0.5, h_pad=1.0, w_pad=0.5)
        full = 2**N - 1
        complete = [int((states[t] == full).sum()) for t in range(steps + 1)]
        alt = (
            f"{steps + 1} grids of {N} ranks by {N} chunks, one for each step of a ring. Complete chunks at the "
            f"start and after each step: {', '.join(map(str, complete))} of {N * N}."
        )
        return save(
            fig,
            folder_or_temp(folder),
            "chunk_grid",
            "A ring fills its chunks",
            alt,
            "A panel shows the chunks after its step. Look down a column: one chunk on its way around the "
            "ring, each step one rank further and one addend richer.",
        )


def _grid(ax: Any, now: Any, before: Any, N: int) -> None:
    from matplotlib.patches import FancyArrowPatch, Rectangle

    full = 2**N - 1
    ax.set_xlim(-0.62, N + 0.05)
    ax.set_ylim(N + 0.05, -0.72)
    ax.set_aspect("equal")
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    small = {"fontsize": 7, "color": MUTED, "va": "center"}
    ax.text(-0.02, -0.5, "chunk", ha="right", **small)
    for k in range(N):
        ax.text(k + 0.5, -0.5, str(k), ha="center", **small)
        ax.text(-0.12, k + 0.5, f"rank {k}" if k == 0 else str(k), ha="right", **small)
    for r in range(N):
        for c in range(N):
            value, done = int(now[r][c]), int(now[r][c]) == full
            fresh = before is not None and int(before[r][c]) != value
            ax.add_patch(
                Rectangle(
                    (c + 0.05, r + 0.05),
                    0.9,
                    0.9,
                    facecolor=BAND if done else PAPER,
                    edgecolor=INK if done else MUTED,
                    linewidth=1.8 if done else 0.6,
                    zorder=2,
                )
            )
            digits = "".join(str(k) for k in range(N) if value >> k & 1) if 0 <= value <= full else "?"
            ax.text(
                c + 0.5,
                r + 0.54,
                digits,
                ha="center",
                va="center",
                fontsize=min(8.5, 29 / max(len(digits), 3)),
                fontweight="bold" if fresh or done else "normal",
                color=INK,
                zorder=4,
            )
            if fresh:
                ax.add_patch(
                    FancyArrowPatch(
                        (c + 0.5, r - 0.30),
                        (c + 0.5, r + 0.26),
                        arrowstyle="-|>",
                        mutation_scale=8,
                        linewidth=1.5,
                        color=ORANGE,
                        zorder=5,
                    )
                )


# ---- 2: wires that are busy


def timelines(replays: dict[str, Any], folder: Path | None = None) -> Picture:
    """Replays of the virtual wire by name, a panel each, on one time axis: which rank's wire was busy when, in and out.

    For topologies whose links are named "RANK.up" and "RANK.down" (`Topology.switch`)."""
    heights = [2 * replay.topology.size for replay in replays.values()]
    last = max(replay.time for replay in replays.values())
    unit, scale = ("us", 1e6) if last < 1e-3 else ("ms", 1e3)
    with look() as figure:
        fig = figure(WIDTH, 0.2 * sum(heights) + 0.75 * len(replays) + 0.2)
        axes = fig.subplots(len(replays), 1, sharex=True, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
        words = []
        for ax, (name, replay) in zip(axes, replays.items()):
            _timeline(ax, replay, scale, last)
            busiest = replay.busiest()
            ax.set_title(f"{name}: {replay.time * scale:.3g} {unit}")
            words.append(
                f"{name} takes {replay.time * scale:.3g} {unit}; its busiest wire is {busiest} with "
                f"{replay.links[busiest].utilisation:.0%}"
            )
        axes[-1].set_xlabel(f"time on the virtual wire, {unit}")
        axes[-1].set_xlim(0, last * scale * 1.005)
        fig.tight_layout(pad=0.5, h_pad=1.0)
        return save(
            fig,
            folder_or_temp(folder),
            "timelines",
            "Who is working?",
            ". ".join(words) + ".",
            "One bar is one message on one wire, with the rank it goes to or comes from; hatched: coming in. "
            "On the right: how much of the time the wire was busy.",
        )


def _timeline(ax: Any, replay: Any, scale: float, last: float) -> None:
    N = replay.topology.size
    rows = [(r, way) for r in range(N) for way in ("up", "down")]
    use = {row: replay.links["{}.{}".format(*row)] for row in rows}
    busiest = max(link.utilisation for link in use.values())
    uneven = min(link.utilisation for link in use.values()) < 0.8 * busiest
    box = {"boxstyle": "round,pad=0.12", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.92}
    for y, (r, way) in enumerate(rows):
        saturated = use[r, way].utilisation > 0.999 * busiest
        ax.text(
            1.005,
            y,
            f"{use[r, way].utilisation:4.0%}",
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=INK if saturated else MUTED,
            fontweight="bold" if saturated else "normal",
        )
        for transfer in (t for t in replay.transfers if f"{r}.{way}" in t.links):
            begin, width = transfer.begin * scale, (transfer.end - transfer.begin) * scale
            ax.barh(
                y,
                width,
                left=begin,
                height=0.74,
                color=RED if saturated and uneven else BLUE,
                edgecolor=PAPER,
                linewidth=0.9,
                hatch="///" if way == "down" else "",
                zorder=3,
            )
            peer = f"→{transfer.dst}" if way == "up" else f"←{transfer.src}"
            peer += "" if transfer.group == "world" else f" {transfer.group}"
            if width > last * scale / 40:
                ax.text(
                    begin + width / 2, y, peer, ha="center", va="center", fontsize=6.6, color=INK, zorder=5, bbox=box
                )
    for r in range(1, N):
        ax.axhline(2 * r - 0.5, color=GRID, linewidth=0.8, zorder=1)
    ax.set_yticks(range(len(rows)), [f"rank {r} out" if way == "up" else "in" for r, way in rows])
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.tick_params(length=0)
    ax.grid(axis="y", visible=False)
    ax.axvline(replay.time * scale, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4)
    ax.text(1.005, 1.02, "busy", transform=ax.transAxes, va="bottom", fontsize=7.5, color=MUTED)
    # Say in the picture what it shows, where it shows it.
    remark = {"fontsize": 8.5, "color": INK, "fontstyle": "italic", "va": "center", "zorder": 6}
    both = [use[r, "up"].utilisation + use[r, "down"].utilisation for r in range(N)]
    root = max(range(N), key=both.__getitem__)
    if both[root] > 0.95 and uneven:
        late = use[root, "up"].busy[0][0] > 0.3 * replay.time
        ax.text(replay.time * scale * (0.02 if late else 0.5), 2 * root, f"rank {root}'s wire never rests", **remark)
    elif min(both) > 1.9 and replay.time < 0.6 * last:
        ax.text(replay.time * scale * 1.03, N - 0.5, "every wire, both ways, all the time", **remark)


# ---- 4: ranks that wait


def wait_for(autopsy: Any, folder: Path | None = None) -> Picture:
    """The wait-for graph of an autopsy: an arrow from each rank that waits to the rank it waits for."""
    from matplotlib.patches import Circle, FancyArrowPatch

    data = autopsy.to_json()
    ranks, pairs = data["ranks"], {(edge["waiter"], edge["on"]) for edge in data["edges"]}
    N = len(ranks)
    angle = {rank["rank"]: 2 * math.pi * i / N for i, rank in enumerate(ranks)}
    place = {r: (math.sin(a), math.cos(a)) for r, a in angle.items()}
    with look() as figure:
        fig = figure(WIDTH, 3.7)
        ax = fig.add_axes([0.02, 0.01, 0.96, 0.80])
        ax.set_aspect("equal")
        ax.set_xlim(-3.0, 3.0)
        ax.set_ylim(-1.25, 1.25)
        ax.axis("off")
        for a, b in sorted(pairs):
            bend = 0.22 if (b, a) in pairs else 0.12
            ax.add_patch(
                FancyArrowPatch(
                    place[a],
                    place[b],
                    connectionstyle=f"arc3,rad={bend}",
                    arrowstyle="-|>",
                    shrinkA=19,
                    shrinkB=20,
                    mutation_scale=15,
                    linewidth=1.8,
                    color=RED if a in data["involved"] else MUTED,
                    zorder=2,
                )
            )
        for rank in ranks:
            x, y = place[rank["rank"]]
            waits = rank["state"] == "waiting"
            ax.add_patch(
                Circle(
                    (x, y),
                    0.2,
                    facecolor=PAPER,
                    edgecolor=INK,
                    linewidth=2.2 if waits else 1.0,
                    linestyle="-" if waits else (0, (3, 2)),
                    zorder=3,
                )
            )
            ax.text(x, y - 0.01, str(rank["rank"]), ha="center", va="center", fontsize=13, fontweight="bold", zorder=4)
            side = -1 if x < -0.3 else 1
            ax.text(
                x + side * 0.3,
                y,
                _stands_in(rank),
                fontsize=8.5,
                linespacing=1.25,
                va="center",
                ha="left" if side > 0 else "right",
                zorder=4,
            )
        # The picture shows who stands where: the headline need not repeat it.
        headline = re.sub(r"(Deadlock of ranks [^:]*): rank .*?\. (?=[A-Z])", r"\1. ", data["cause"])
        fig.text(0.02, 0.965, textwrap.fill(headline, 92), va="top", fontsize=9.5, fontweight="bold", linespacing=1.3)
        arrows = ", ".join(f"{a} waits for {b}" for a, b in sorted(pairs))
        return save(
            fig,
            folder_or_temp(folder),
            "wait_for",
            "Who waits for whom",
            f"{N} ranks; {arrows}. {data['cause']}",
            "An arrow means: cannot go on before the other makes the matching call. A circle of arrows never "
            "ends by itself.",
        )


def _stands_in(rank: dict[str, Any]) -> str:
    """What a rank of an autopsy is doing, in two short lines."""
    if not rank["calls"]:
        return rank["state"]
    call = rank["calls"][0]
    way = {"send": f" to {call['peer']}", "recv": f" from {call['peer']}"}.get(call["kind"], "")
    way += "" if call["group"] == "world" else f" of {call['group']}"
    return f"waits in {call['kind']}{way}\n{call['where'].split('/')[-1]}"
