"""The guide's pictures: a map of best degrees, and how far predictions were off."""

from pathlib import Path
from typing import Any

import numpy as np

from labkit.plan.cases import FULL
from labkit.record import plotting as plot

# What cuts the model: (label, fill). The words in each cell say it too.
CUTS = (
    ("not cut", "#fefefe"),
    ("tensor", "#f8ddb0"),
    ("pipeline", "#cfe0f7"),
    ("tensor and pipeline", "#cfe9c8"),
    ("context or experts, no more", "#ead7f2"),
)
NO_FIT = "#dfe3e8"


def kind_of_cut(plan: dict[str, int]) -> int:
    if plan["tp"] > 1 or plan["pp"] > 1:
        return (plan["tp"] > 1) + 2 * (plan["pp"] > 1)
    return 4 if plan["cp"] > 1 or plan["ep"] > 1 else 0


def degrees_map(cells: list[dict[str, Any]], folder: Path, name: str) -> plot.Picture:
    """A field for each (model, GPUs): its best degrees above 1 (data parallelism fills the rest) and its MFU."""
    models, gpus = list(dict.fromkeys(c["model"] for c in cells)), sorted({c["gpus"] for c in cells})
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, 0.95 + 0.66 * len(models))
        ax = fig.subplots()
        for one in cells:
            x, y, plan = gpus.index(one["gpus"]), models.index(one["model"]), one["plan"]
            fill = CUTS[kind_of_cut(plan)][1] if plan else NO_FIT
            ax.fill_between(
                [x - 0.48, x + 0.48], y - 0.47, y + 0.47, facecolor=fill, edgecolor=plot.MUTED, linewidth=0.5
            )
            if not plan:
                ax.text(x, y, "does\nnot fit", ha="center", va="center", fontsize=6.8, color=plot.MUTED)
                continue
            words = [f"{key} {plan[key]}" for key in ("tp", "pp", "cp", "ep") if plan[key] > 1]
            words += ["ZeRO 3"] * (plan["zero"] >= 3) + ["recompute"] * (plan["recompute"] == FULL)
            label = "\n".join([*words, f"{100 * one['mfu']:.0f} %"])
            ax.text(x, y, label, ha="center", va="center", fontsize=6.8, color=plot.INK, linespacing=1.05)
        ax.set_xticks(range(len(gpus)), [f"{n:,}" for n in gpus])
        ax.set_yticks(range(len(models)), [one.replace("b", "B") for one in models])
        ax.set_xlim(-0.55, len(gpus) - 0.45)
        ax.set_ylim(len(models) - 0.45, -0.55)
        ax.set_xlabel("GPUs")
        ax.grid(False)
        ax.tick_params(length=0)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        from matplotlib.patches import Patch

        there = {kind_of_cut(one["plan"]) for one in cells if one["plan"]}
        shown = [CUTS[i] for i in sorted(there)]
        keys = [Patch(facecolor=fill, edgecolor=plot.MUTED, linewidth=0.5, label=label) for label, fill in shown]
        fig.tight_layout(pad=0.6, rect=(0, 0, 1, 1 - 0.32 / fig.get_figheight()))
        fig.legend(
            handles=keys, loc="upper left", ncols=5, fontsize=7.6, bbox_to_anchor=(0.01, 0.995), columnspacing=1.2
        )
        fits = [one for one in cells if one["plan"]]
        uncut = sum(kind_of_cut(one["plan"]) == 0 for one in fits)
        both = sum(kind_of_cut(one["plan"]) == 3 for one in fits)
        alt = (
            f"The best degrees for {len(models)} models on {gpus[0]} to {gpus[-1]:,} GPUs: {len(cells) - len(fits)} of "
            f"{len(cells)} fields do not fit, in {uncut} the model is not cut, in {both} tensor and pipeline both cut."
        )
        return plot.save(fig, folder, name, "The best degrees", alt)


def off_by_stack(errors: list[dict[str, Any]], interval: float, folder: Path, name: str) -> plot.Picture:
    """Left, predicted against measured; right, how far off, a line for each software stack that was left out."""
    stacks = sorted({one["stack"] for one in errors})
    looks = {
        stack: (plot.CANDIDATES[i % len(plot.CANDIDATES)], plot.MARKS[i % len(plot.MARKS)])
        for i, stack in enumerate(stacks)
    }
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, 3.3)
        left, right = fig.subplots(1, 2, width_ratios=(1, 1.35))
        seconds = np.array([one["measured"] for one in errors])
        ends = np.array([seconds.min() / 1.6, seconds.max() * 1.6])
        left.fill_between(ends, ends * np.exp(-interval), ends * np.exp(interval), color=plot.BAND, linewidth=0)
        left.plot(ends, ends, color=plot.MUTED, linewidth=0.9)
        right.axvspan(100 * np.expm1(-interval), 100 * np.expm1(interval), color=plot.BAND, linewidth=0)
        right.axvline(0, color=plot.MUTED, linewidth=0.9)
        for y, stack in enumerate(stacks):
            color, mark = looks[stack]
            mine = [one for one in errors if one["stack"] == stack]
            look = {"color": color, "marker": mark, "linestyle": "", "markersize": 4.6, "markerfacecolor": "none"}
            times = np.array([one["measured"] for one in mine])
            off = np.array([one["off"] for one in mine])
            left.plot(times, times * np.exp(off), **look)
            right.plot(100 * np.expm1(off), np.full(len(mine), y), **look)
        left.set_xscale("log")
        left.set_yscale("log")
        left.set_xlim(*ends)
        left.set_ylim(*ends)
        left.set_xlabel("measured, seconds a step")
        left.set_ylabel("predicted, stack not seen")
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        right.set_yticks(
            range(len(stacks)), [f"{one} ({sum(e['stack'] == one for e in errors)})" for one in stacks], fontsize=7.6
        )
        right.invert_yaxis()
        right.set_xlabel("predicted over measured, % off")
        right.grid(False, axis="y")
        fig.tight_layout(pad=0.6)
        size = 100 * np.abs(np.expm1([one["off"] for one in errors]))
        worst = max(errors, key=lambda one: abs(one["off"]))
        alt = (
            f"{len(errors)} measured runs of {len(stacks)} software stacks, each predicted by constants that had not "
            f"seen its stack: {size.mean():.1f} % off on average, {np.median(size):.1f} % at the median; the worst, of "
            f"{worst['stack']}, {100 * np.expm1(worst['off']):+.0f} %."
        )
        return plot.save(fig, folder, name, "How wrong", alt)
