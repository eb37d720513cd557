"""The pictures of a map: each arm's speed-up over M, K and N, and where the time goes; a hatch where FP8 loses."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from labkit.crossover.grid import ARMS, BASE, PARTS, REASONS, TIE, WORDS, Cell, Shape, reason, shapes, speedup
from labkit.crossover.record import Cells, cells, label, list_missing, pair
from labkit.record import plotting as plot

LOSES, WINS = "#b34700", "#005a9c"
LOOK = {"product": ("#005a9c", ""), "quantise": ("#b34700", "///"), "launch": ("#b9c0ca", "..")}


def heat_map(record: dict[str, Any], arm: str, folder: Path) -> plot.Picture | None:
    """Draw a panel for each M; rows K, columns N. None if the arm has no cell with a time."""
    have, grid = cells(record), record["grid"]
    if not any(cell.seconds for (_, name), cell in have.items() if name == arm):
        return None
    M, K, N = grid["M"], grid["K"], grid["N"]
    pairs = {shape: pair(have, shape, arm) for shape in shapes(M, K, N)}
    gains = {shape: gain for shape, both in pairs.items() if (gain := speedup(*both))}
    most = max([abs(math.log2(gain)) for gain in gains.values()] + [0.3])
    across = min(3, len(M))
    down, small = -(-len(M) // across), plot.WIDTH / across / len(N) < 0.5
    high = down * (0.62 + 0.42 * len(K)) + 0.7
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, high)
        axes = fig.subplots(down, across, squeeze=False).ravel()
        for ax, m in zip(axes, M):
            _panel(ax, have, arm, m, K, N, most, small)
        for ax in axes[len(M) :]:
            ax.axis("off")
        used = {REASONS[why] for both in pairs.values() if (why := reason(*both))}
        reasons = "; ".join(f"{letter}: {words}" for letter, words in WORDS.items() if letter in used)
        waits = any(cell.parts.get("launch") for (_, name), cell in have.items() if name == arm)
        alone = "; in brackets: the kernels alone, where the CPU sets the pace" if waits and not small else ""
        losses = f"\nHatched: not faster. Why: {reasons}." if reasons else ""
        look = {"fontsize": 8.2, "color": plot.MUTED, "va": "bottom", "linespacing": 1.3}
        fig.text(0.01, 0.015, f"Times as fast as BF16{alone}.{losses}", **look)
        fig.tight_layout(pad=0.5, h_pad=1.0, w_pad=0.8, rect=(0, 0.44 / high, 1, 1))
        best, worst = max(gains, key=lambda s: gains[s]), min(gains, key=lambda s: gains[s])
        losing = sum(gain < 1 - TIE for gain in gains.values())
        alt = (
            f"{ARMS[arm][2]} against BF16 on {record['device_name']}, forward and backward of one linear: "
            f"{len(gains)} shapes, FP8 is slower at {losing}; from {gains[worst]:.2f} times at M x K x N = {worst} "
            f"to {gains[best]:.2f} times at {best}."
        )
        note = "M tokens, K inputs, N outputs; rows K, columns N. One linear alone, forward and backward."
        return plot.save(fig, folder, f"crossover_{arm.replace('-', '_')}", f"Where {ARMS[arm][2]} pays", alt, note)


def _panel(ax: Any, have: Cells, arm: str, m: int, K: list[int], N: list[int], most: float, small: bool) -> None:
    from matplotlib.patches import Rectangle

    ax.set_xlim(0, len(N))
    ax.set_ylim(len(K), 0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    for axis, sizes in ((ax.xaxis, N), (ax.yaxis, K)):
        axis.set_ticks([i + 0.5 for i in range(len(sizes))], [_k(size) for size in sizes], fontsize=7.5)
    ax.set_title(f"M = {_k(m)} tokens", pad=5)
    ax.set_xlabel("N", fontsize=8, labelpad=1)
    ax.set_ylabel("K", fontsize=8, labelpad=1)
    middle = {"ha": "center", "va": "center"}
    under = {"boxstyle": "round,pad=0.12", "facecolor": plot.PAPER, "edgecolor": "none", "alpha": 0.85}
    for (i, k), (j, n) in itertools.product(enumerate(K), enumerate(N)):
        both = pair(have, Shape(m, k, n), arm)
        gain, why = speedup(*both), reason(*both)
        box: Callable[..., Any] = partial(Rectangle, (j + 0.03, i + 0.03), width=0.94, height=0.94)
        if gain is None:
            ax.add_patch(box(facecolor=plot.PAPER, edgecolor=plot.GRID, linewidth=0.8))
            ax.text(j + 0.5, i + 0.5, "-", color=plot.MUTED, fontsize=8, **middle)
            continue
        strength = min(1.0, abs(math.log2(gain)) / most)
        ax.add_patch(box(facecolor=WINS if gain > 1 else LOSES, alpha=0.10 + 0.45 * strength, linewidth=0))
        color, width, hatch = (plot.MUTED, 0.5, "///") if why else (plot.INK, 1.1, "")
        ax.add_patch(box(facecolor="none", edgecolor=color, alpha=0.55, linewidth=width, hatch=hatch))
        words: dict[str, Any] = {"fontsize": 6.6 if small else 7.8, "color": plot.INK, "linespacing": 1.15}
        words |= {"fontweight": "normal" if why else "bold"}
        ax.text(j + 0.5, i + 0.52, label(*both, "" if small else "\n"), bbox=under, **middle, **words)


def split(record: dict[str, Any], folder: Path) -> plot.Picture | None:
    """Draw where one step's time goes, a group of bars for each of three shapes: smallest, middle and largest."""
    have = cells(record)
    left = list_missing(record)
    whole = [shape for shape in shapes(**record["grid"]) if shape not in left and have[shape, BASE].seconds]
    if not whole:
        return None
    at = [whole[i] for i in sorted({0, len(whole) // 2, len(whole) - 1})]
    with plot.styled() as figure:
        rows = [[have[shape, arm] for arm in record["arms"] if have[shape, arm].seconds] for shape in at]
        fig = figure(plot.WIDTH, sum(0.24 * len(row) + 0.62 for row in rows) + 0.35)
        heights = {"height_ratios": [len(row) + 2.2 for row in rows]}
        axes = fig.subplots(len(at), 1, gridspec_kw=heights, squeeze=False)[:, 0]
        words = []
        for ax, shape, row in zip(axes, at, rows):
            _bars(ax, shape, row)
            arms = (f"{ARMS[cell.arm][2]} {_time(cell.took)} ({_shares(cell)})" for cell in row)
            words.append(f"{shape}: {', '.join(arms)}")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8.5)
        plot.margins(fig, 0.32, 0.4, left=0.225, right=0.985, hspace=0.32)
        note = "product: kernels that multiply. quantise: all other kernels. launch: the GPU waits."
        return plot.save(fig, folder, "crossover_split", "Where the time goes", ". ".join(words) + ".", note)


def _bars(ax: Any, shape: Shape, row: list[Cell]) -> None:
    longest = max(cell.took for cell in row)
    for y, cell in enumerate(row):
        left = 0.0
        for part in PARTS:
            width = cell.parts.get(part, 0.0)
            color, hatch = LOOK[part]
            paint = {"color": color, "edgecolor": plot.PAPER, "hatch": hatch, "linewidth": 0.6, "zorder": 3}
            ax.barh(y, width, left=left, height=0.72, label=part if y == 0 else None, **paint)
            if width > 0.09 * longest:
                under = {"boxstyle": "round,pad=0.1", "facecolor": plot.PAPER, "edgecolor": "none", "alpha": 0.9}
                words = {"ha": "center", "va": "center", "fontsize": 7, "color": plot.INK, "zorder": 4}
                ax.text(left + width / 2, y, _time(width), bbox=under, **words)
            left += width
        text = _time(cell.took) + (f"  {row[0].took / cell.took:.2f} x" if y else "")
        ax.text(max(left, cell.took) + 0.012 * longest, y, text, va="center", fontsize=7.8)
    ax.set_yticks(range(len(row)), [ARMS[cell.arm][2] for cell in row], fontsize=8)
    ax.set_ylim(len(row) - 0.4, -0.6)
    ax.set_xlim(0, longest * 1.2)
    ax.set_xticks([])
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title(f"{_k(shape.M)} tokens, {_k(shape.K)} inputs, {_k(shape.N)} outputs", pad=4)


def _shares(cell: Cell) -> str:
    return ", ".join(f"{part} {cell.parts.get(part, 0.0) / cell.took:.0%}" for part in PARTS)


def _k(value: int) -> str:
    return f"{value // 1024}K" if value % 1024 == 0 else str(value)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
