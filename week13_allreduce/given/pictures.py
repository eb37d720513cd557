"""The pictures of what happens: chunks that fill, wires that are busy, ranks that wait. Drawn from data of real runs.

Every function returns a `Picture`: files in `folder` (PNG and SVG), a title, and `alt`, what it shows in words. No
picture says anything by colour alone. Curves and clocks are in clocks.py.
"""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path
from typing import Any

from labkit.record.plotting import BAND, GRID, INK, MUTED, PAPER, WIDTH, Picture, folder_or_temp, save, styled

BLUE, RED, ORANGE = "#005a9c", "#a11212", "#b34700"


# ---- 1: chunks that fill


def chunk_grid(filling: Any, folder: Path | None = None, first_lap: bool = False) -> Picture:
    """`experiments.Filling` as a panel for each step: a column for each rank, so that right is right, a row a chunk.

    The digits in a cell are the ranks whose addends are in it. A complete chunk has a thick frame and a filled ground.
    A wrong one is in a dashed frame with a cross: an addend in it twice, or of another chunk ("2 c1"). An arrow is a
    message: from the rank that sent it, by the ledger, and from the row of the chunk that it held, by the tags in it;
    where it ends is what changed.

    first_lap: after it rank r is to hold chunk r, complete. The last panel marks these places at a corner, and says
    which complete chunk stands elsewhere."""
    states, messages = filling
    N, steps = states.shape[1], states.shape[0] - 1
    # Two laps of a ring stand one below the other: the second begins below step 0 of the first.
    two_laps = steps == 2 * (N - 1) and N > 2
    columns = N if two_laps else max(4, N if steps >= N else steps + 1)
    shift = [t + (two_laps and t >= N) * (columns - N + 1) for t in range(steps + 1)]
    rows = shift[-1] // columns + 1
    height = 0.30 * N + 0.55
    with styled() as figure:
        fig = figure(WIDTH, rows * height)
        for t, place in enumerate(shift):
            row, column = divmod(place, columns)
            ax = fig.add_axes([column / columns, 1 - (row + 1) / rows, 1 / columns, (1 - 0.24 / height) / rows])
            _grid(ax, states[t], states[t - 1] if t else None, messages[t - 1] if t else [None] * N, N)
            if first_lap and t == steps:
                for r in range(N):
                    ax.plot([PITCH * r + CELL - 0.17, PITCH * r + CELL - 0.02], [r + 0.90, r + 0.90], **_GOAL)
                    ax.plot([PITCH * r + CELL - 0.02] * 2, [r + 0.72, r + 0.90], **_GOAL)
            ax.set_xlim(-1.1, PITCH * N + 0.12)
            ax.set_ylim(N + 0.12, -0.75)
            ax.set_title("   at the start" if t == 0 else f"   after step {t - 1}", fontsize=9, pad=3)
        if two_laps:
            fig.text(0.012, 0.5 - 0.2 / (rows * height), _LEGEND, va="top", fontsize=8, color=MUTED, linespacing=1.3)
        complete = [sum(_full(states[t, r, c], c) for r in range(N) for c in range(N)) for t in range(steps + 1)]
        wrong = [sum(_wrong(states[t, r, c], c) for r in range(N) for c in range(N)) for t in range(steps + 1)]
        alt = (
            f"{steps + 1} grids of {N} ranks by {N} chunks. Complete chunks at the start and after each step: "
            f"{', '.join(map(str, complete))} of {N * N}. "
            + (f"Wrong chunks: {', '.join(map(str, wrong))}." if any(wrong) else "No chunk is wrong.")
        )
        goal = ""
        if first_lap:
            astray = [(r, c) for r in range(N) for c in range(N) if r != c and _full(states[-1, r, c], c)]
            text = ", ".join(f"chunk {c} is complete on rank {r}" for r, c in astray)
            alt += f" In the wrong place: {text}." if astray else ""
            goal = " Corner: where a complete chunk is to end." + (f" {text[:1].upper()}{text[1:]}." if astray else "")
        return save(
            fig,
            folder_or_temp(folder),
            "chunk_grid",
            "A ring fills its chunks",
            alt,
            "Follow a row: one chunk on its way around the ring. Digits: whose addends are in it. Arrow: the message "
            "that came in this step, from where it was sent. Dashed, with a cross: an addend is in there twice, or "
            f"belongs to another chunk (2 c1: rank 2's addend to chunk 1).{goal}",
        )


_LEGEND = (
    "c0: chunk 0. Digits: whose\naddends are in it.\nArrow: what came in, and\nfrom where. At the edge:\n"
    "around the ring.\n"
    "Filled, thick frame: all\naddends, once each.\nDashed, ×: wrong."
)


def _full(held: Any, chunk: int) -> bool:
    """Whether a chunk, [N ranks, N chunks] counts, holds every rank's addend once, and nothing else."""
    return not _wrong(held, chunk) and bool((held[:, chunk] == 1).all())


def _wrong(held: Any, chunk: int) -> bool:
    """Whether a chunk holds what it never should: an addend twice, or less than none, or one of another chunk."""
    return bool((held < 0).any() or (held[:, chunk] > 1).any() or held.sum() != held[:, chunk].sum())


def _said(held: Any, chunk: int) -> str:
    """A chunk's addends: "013"; "0 0 2" where one came twice; "03\n2 c1" where rank 2's addend to chunk 1 is in it."""
    N = held.shape[0]
    own = [str(p) * max(0, int(held[p, chunk])) for p in range(N)]
    lines = [(" " if max(map(len, own)) > 1 else "").join(d for digits in own for d in digits)]
    for k in (k for k in range(N) if k != chunk and bool(held[:, k].any())):
        lines.append("".join(str(p) * max(0, int(held[p, k])) for p in range(N)) + f" c{k}")
    found = [line for line in lines if line]
    return "\n".join(found if len(found) < 3 else [*found[:1], "..."]) or "-"


_GOAL = {"color": BLUE, "linewidth": 2.6, "solid_capstyle": "butt", "zorder": 5}
PITCH, CELL = 1.22, 0.94  # of a column, of which a cell takes so much: arrows have the rest


def _grid(ax: Any, now: Any, before: Any, messages: list, N: int) -> None:
    from matplotlib.patches import Rectangle

    ax.axis("off")
    small = {"fontsize": 7, "color": MUTED, "va": "center"}
    ax.text(-0.40, -0.40, "rank", ha="right", **small)
    for k in range(N):
        ax.text(PITCH * k + CELL / 2, -0.40, str(k), ha="center", **small)
        ax.text(-0.40, k + 0.53, f"c{k}", ha="right", **small)
    for r in range(N):
        fresh = [c for c in range(N) if before is not None and bool((before[r, c] != now[r, c]).any())]
        for c in range(N):
            done, wrong, digits = _full(now[r, c], c), _wrong(now[r, c], c), _said(now[r, c], c)
            ax.add_patch(
                Rectangle(
                    (PITCH * r, c + 0.07),
                    CELL,
                    0.86,
                    facecolor=BAND if done else PAPER,
                    edgecolor=RED if wrong else INK if done else MUTED,
                    linewidth=1.7 if done or wrong else 0.6,
                    linestyle=(0, (2, 1)) if wrong else "-",
                    zorder=2,
                )
            )
            ax.text(
                PITCH * r + CELL / 2,
                c + 0.53,
                digits,
                ha="center",
                va="center",
                fontsize=5.6 if "\n" in digits else min(7.2, 34 / max(len(digits), 4)),
                fontweight="bold" if c in fresh or done else "normal",
                color=RED if wrong else INK,
                linespacing=0.95,
                zorder=4,
            )
            if wrong:
                ax.text(
                    PITCH * r + CELL,
                    c + 0.07,
                    "×",
                    color=PAPER,
                    fontsize=6.5,
                    fontweight="bold",
                    ha="center",
                    va="center",
                    zorder=6,
                    bbox={"boxstyle": "circle,pad=0.05", "facecolor": RED, "edgecolor": "none"},
                )
        if messages[r] is not None and fresh:
            _arrow(ax, messages[r], before, r, fresh, N)


def _arrow(ax: Any, message: tuple[int, Any], before: Any, r: int, fresh: list[int], N: int) -> None:
    """From the sender's chunk that the message held, to the cell of rank r that changed."""
    from matplotlib.patches import FancyArrowPatch

    src, content = message
    held = [] if content is None else [k for k in range(N) if bool((before[src, k] == content).all())]
    into = held[0] if held and held[0] in fresh else fresh[0]
    row = (held[0] if held else into) + 0.5
    left, right = PITCH * r - 0.02, PITCH * r + CELL + 0.02
    if (src + 1) % N == r and src > r:  # around the ring: in from the edge
        begin, end = (left - 0.24, row), (left, into + 0.5)
    elif (r + 1) % N == src and src < r:
        begin, end = (right + 0.24, row), (right, into + 0.5)
    elif src < r:
        begin, end = (PITCH * src + CELL, row), (left, into + 0.5)
    else:
        begin, end = (PITCH * src, row), (right, into + 0.5)
    far = abs(src - r) > 1 and abs(begin[0] - end[0]) > 1
    ax.add_patch(
        FancyArrowPatch(
            begin,
            end,
            connectionstyle="arc3,rad=0.3" if far else "arc3,rad=0",
            arrowstyle="-|>",
            shrinkA=0,
            shrinkB=0,
            mutation_scale=6.5,
            linewidth=1.3,
            color=ORANGE,
            zorder=5,
            clip_on=False,
        )
    )


# ---- 2: wires that are busy


def timelines(replays: dict[str, Any], folder: Path | None = None) -> Picture:
    """Replays of the virtual wire by name, a panel each, on one time axis: which rank's wire was busy when, in and out.

    For topologies whose links are named "RANK.up" and "RANK.down" (`Topology.switch`)."""
    heights = [2 * replay.topology.size for replay in replays.values()]
    last = max(replay.time for replay in replays.values())
    unit, scale = ("us", 1e6) if last < 1e-3 else ("ms", 1e3)
    with styled() as figure:
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
    with styled() as figure:
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
