"""The pictures of how long things take: three clocks side by side, bandwidth against ranks, fits and residuals, sweeps.

A clock is a dict {contender: [(bytes, seconds), ...]}. A contender has the same colour, dash and marker everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.record.plotting import BAND, INK, MUTED, PAPER, WIDTH, Picture, Style, label_ends, look, save
from week13_allreduce.given.pictures import folder_or_temp
from week13_allreduce.given.records import human

STYLES = {
    "library": Style("#005a9c", "-", "o", ""),
    "ring": Style("#b34700", (0, (5, 1.6)), "D", ""),
    "pipelined": Style("#007a63", (0, (3, 1.2, 1, 1.2)), "^", ""),
    "sliced": Style("#9c1f6d", (0, (4, 1.2, 1, 1.2)), "<", ""),
    "two_way": Style("#5d6d00", (0, (2, 1)), ">", ""),
    "naive": Style("#a11212", (0, (1.2, 1.4)), "X", ""),
    "one_shot": Style("#6a3fb5", (0, (8, 2)), "s", ""),
    "nccl-tests": Style("#5d6d00", "-", "P", ""),
    "tree": Style("#8a6100", (0, (6, 1.2, 1, 1.2, 1, 1.2)), "v", ""),
}
NAMES = {"one_shot": "one-shot", "two_way": "two-way"}
POOR = 0.3  # a largest residual from which on the words say that the line does not fit
Clock = Mapping[str, Sequence[tuple[float, float]]]


def clock_of(record: Mapping[str, Any], collective: str = "all_reduce") -> dict[str, list[tuple[float, float]]]:
    """A benchmark record as a clock: those of the notebook's contenders that were measured."""
    return {
        entry["contender"]: [(row["size"], row["seconds"]) for row in entry["rows"]]
        for entry in record["series"]
        if entry["collective"] == collective
        and entry["rows"]
        and entry["contender"] in ("naive", "one_shot", "ring", "library")
    }


def crossing(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float | None:
    """The size in bytes from which on `second` is the faster one, to the last size measured; None if it ends slower.

    0.0 if `second` is faster from the first size on. Between two sizes curves count as straight on logarithmic axes."""
    a, b = dict(first), dict(second)
    sizes = sorted(set(a) & set(b))
    ahead = [math.log(a[size] / b[size]) for size in sizes]  # above 0: second is faster
    if not sizes or ahead[-1] <= 0:
        return None
    last_slow = max((i for i, value in enumerate(ahead) if value <= 0), default=None)
    if last_slow is None:
        return 0.0
    low, high = ahead[last_slow], ahead[last_slow + 1]
    part = -low / (high - low)
    return sizes[last_slow] ** (1 - part) * sizes[last_slow + 1] ** part


# ---- 3: three clocks


def three_clocks(
    clocks: Mapping[str, Clock | None], guesses: Mapping[str, float | None] | None = None, folder: Path | None = None
) -> Picture:
    """Time against size on each clock, one panel each. A clock that is None was not recorded, and its panel says so.

    Marked on every clock: from which size on "ring" is faster than "naive" and than "one_shot". guesses: the reader's
    prediction of the first, in bytes, by clock."""
    points = [p for clock in clocks.values() if clock for line in clock.values() for p in line]
    low, high = min(p[1] for p in points) / 1.8, max(p[1] for p in points) * 2.2
    left, right = min(p[0] for p in points) / 1.6, max(p[0] for p in points) * 1.6
    words = []
    with look() as figure:
        fig = figure(WIDTH, 3.95)
        axes = fig.subplots(1, len(clocks), sharey=True)
        for ax, (name, clock) in zip(axes, clocks.items()):
            ax.set(xscale="log", yscale="log", ylim=(low, high), xlim=(left, right))
            ax.set_title(name, fontsize=9, pad=30)
            _bytes_axis(ax, left, right)
            words.append(f"{name}: {_one_clock(ax, clock, low)}")
            guess = (guesses or {}).get(name)
            if guess and clock:
                at, first = max(guess, left), guess < 4 * left
                ax.axvline(at, color=INK, linewidth=2.4, alpha=0.28, zorder=1)
                ax.annotate(
                    "your guess",
                    (at, 1.0),
                    xycoords=("data", "axes fraction"),
                    textcoords="offset points",
                    xytext=(3 if first else -3, -4),
                    ha="left" if first else "right",
                    va="top",
                    rotation=90,
                    fontsize=7.5,
                    color=INK,
                )
        decades = [10.0**k for k in range(-6, 2) if low <= 10.0**k <= high]
        axes[0].set_yticks(decades, [_seconds(tick) for tick in decades])
        axes[0].set_ylabel("time of one all-reduce")
        handles: dict[str, Any] = {}
        for ax in axes:
            ax.tick_params(axis="y", which="minor", length=0)
            handles |= {label: handle for handle, label in zip(*ax.get_legend_handles_labels())}
        fig.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), handlelength=3.4)
        fig.tight_layout(pad=0.5, w_pad=1.2, rect=(0, 0.085, 1, 1))
        return save(
            fig,
            folder_or_temp(folder),
            "three_clocks",
            "Three clocks",
            f"Time of an all-reduce against the vector's size on {len(clocks)} clocks. {'. '.join(words)}.",
            "The same functions on three clocks. Thin vertical lines with a mark: from there on the ring "
            "is faster than the one with that mark. Broad grey line: your guess for the naive one.",
        )


def _one_clock(ax: Any, clock: Clock | None, low: float) -> str:
    """Draw one panel; returns what it says in words."""
    if not clock:
        missing = "not recorded yet:\nresults/ holds no GPU\nbenchmark record"
        ax.text(0.5, 0.5, missing, transform=ax.transAxes, ha="center", va="center", color=MUTED, fontsize=9)
        return "not recorded"
    for contender, line in clock.items():
        ax.plot(*zip(*line), **STYLES[contender].marks(len(line), most=6), label=NAMES.get(contender, contender))
    if "ring" not in clock:
        found = ["not measured: its task is open"]
    else:
        found = []
        for other in ("naive", "one_shot"):
            at = crossing(clock.get(other, ()), clock["ring"])
            name = NAMES.get(other, other)
            where = f"from {human(at, 3)} on" if at else "at every size"
            found.append(f"never beats {name}" if at is None else f"beats {name} {where}")
            if at:
                style = STYLES[other]
                ax.axvline(at, color=style.color, linestyle=style.dash, linewidth=1.0, zorder=1)
                ax.plot([at], [low * 1.35], linestyle="none", marker=style.mark, color=style.color, markersize=5)
    ax.text(
        0,
        1.02,
        "ring " + ",\n".join(found),
        transform=ax.transAxes,
        va="bottom",
        fontsize=7.8,
        color=MUTED,
        linespacing=1.25,
    )
    return "ring " + ", ".join(found)


def fits(clocks: Mapping[str, tuple[int, Clock | None]]) -> str:
    """The lines that fit each clock's contenders over all its sizes, as text; a line that does not fit says so.

    clocks: {name: (ranks, clock)}. Uses task 13.1: NotImplementedError while it is open."""
    from week13_allreduce import cost_model

    lines = []
    for name, (ranks, clock) in clocks.items():
        for contender in ("naive", "one_shot", "ring"):
            points = (clock or {}).get(contender, ())
            if len({size for size, _ in points}) < 2:
                continue
            sizes, seconds = zip(*points)
            fit = cost_model.fit_alpha_beta(sizes, seconds, getattr(cost_model, f"{contender}_all_reduce_cost")(ranks))
            worst, at = max((abs(value), size) for value, (size, _) in zip(fit.residuals, points))
            fine = (
                f"at most {worst:.0%} off"
                if worst < POOR
                else f"up to {worst:.0%} off (at {human(at, 3)}): a line does not fit"
            )
            lines.append(
                f"{name:26s} {NAMES.get(contender, contender):9s}"
                f"{', '.join(_parameters(fit.alpha, fit.beta)):38s} {fine}"
            )
    return "\n".join(lines)


def _parameters(alpha: float, beta: float) -> tuple[str, str]:
    size = abs(alpha)
    unit, scale = ("s", 1.0) if size >= 1 else ("ms", 1e3) if size >= 1e-3 else ("us", 1e6)
    return (
        f"alpha {alpha * scale:.3g} {unit}",
        f"1/beta {1 / beta / 1e9:.3g} GB/s" if beta > 0 else "beta is not above 0",
    )


# ---- 5: bandwidths against ranks, the fit and what it leaves


def bandwidths(
    by_ranks: Mapping[str, Mapping[int, tuple[float, float]]],
    rows: Sequence[Mapping[str, float]],
    cost: Any,
    fit: Any,
    title: str,
    at: str = "",
    folder: Path | None = None,
) -> Picture:
    """algbw and busbw against the number of ranks, and one alpha-beta fit with its residuals.

    by_ranks: {clock: {N: (algbw, busbw)}}, bytes/s, at the size that `at` names. rows: size, seconds. fit: the
    `cost_model.Fit` of these rows under `cost`. title: what was fitted."""
    sizes, seconds = [row["size"] for row in rows], [row["seconds"] for row in rows]
    left, right = min(sizes) / 1.5, max(sizes) * 1.5
    worst = max(abs(value) for value in fit.residuals)
    with look() as figure:
        fig = figure(WIDTH, 4.3)
        grid = fig.add_gridspec(2, 2, width_ratios=(1, 1.15), height_ratios=(2, 1))
        ax, low = fig.add_subplot(grid[:, 0]), fig.add_subplot(grid[1, 1])
        _against_ranks(ax, by_ranks, at)
        fig.legend(*ax.get_legend_handles_labels(), fontsize=7.8, loc="lower center", ncols=4, handlelength=2.8)

        up = fig.add_subplot(grid[0, 1], sharex=low)
        up.plot(
            sizes,
            seconds,
            "o",
            color="#005a9c",
            markersize=4.5,
            markerfacecolor=PAPER,
            markeredgewidth=1.3,
            label="measured",
        )
        line = [left * (right / left) ** (i / 80) for i in range(81)]
        fitted = [max(cost.time(n, fit.alpha, fit.beta), 1e-12) for n in line]  # a bad fit may go below zero
        up.plot(line, fitted, color=INK, linewidth=1.1, label="fit")
        up.set(xscale="log", yscale="log", title=title, xlim=(left, right), ylim=(min(seconds) / 2, max(seconds) * 2))
        ticks = [10.0**k for k in range(-6, 2) if min(seconds) / 2 <= 10.0**k <= max(seconds) * 2]
        up.set_yticks(ticks, [_seconds(tick) for tick in ticks])
        up.tick_params(axis="x", which="both", labelbottom=False, length=0)
        up.tick_params(axis="y", which="minor", length=0)
        up.legend(loc="upper left", fontsize=7.8)
        told = "\n".join(_parameters(fit.alpha, fit.beta))
        up.text(0.97, 0.06, told, transform=up.transAxes, ha="right", va="bottom", fontsize=8)

        low.axhspan(-0.15, 0.15, color=BAND, zorder=0)
        low.axhline(0, color=INK, linewidth=0.8)
        low.vlines(sizes, 0, fit.residuals, color="#005a9c", linewidth=1.2)
        low.plot(sizes, fit.residuals, "o", color="#005a9c", markersize=4, markerfacecolor=PAPER, markeredgewidth=1.3)
        low.set_ylim(-max(0.2, 1.15 * worst), max(0.2, 1.15 * worst))
        low.yaxis.set_major_formatter(lambda value, _: f"{value:+.0%}" if value else "0")
        low.set_ylabel("residual", fontsize=8.5)
        _bytes_axis(low, left, right)
        fig.tight_layout(pad=0.5, w_pad=1.4, h_pad=0.6, rect=(0, 0.03 + 0.035 * math.ceil(len(by_ranks) / 2), 1, 1))
        shown = "; ".join(
            f"{clock}: "
            + ", ".join(f"{N} ranks {a / 1e9:.3g} and {b / 1e9:.3g}" for N, (a, b) in sorted(points.items()))
            for clock, points in by_ranks.items()
        )
        return save(
            fig,
            folder_or_temp(folder),
            "bandwidths",
            "Bandwidth against ranks, and a fit",
            f"algbw and busbw in GB/s: {shown}. {title}: the largest residual is {worst:.0%}.",
            "Left: open marks algbw, filled marks busbw. Right: the measured times, the fitted line, and what "
            "it leaves; the band is 15 %.",
        )


def _against_ranks(ax: Any, by_ranks: Mapping[str, Mapping[int, tuple[float, float]]], at: str) -> None:
    looks = [("o", "-", "#005a9c"), ("D", (0, (5, 1.6)), "#b34700"), ("^", (0, (3, 1.2, 1, 1.2)), "#007a63")]
    for (clock, points), (mark, dash, color) in zip(by_ranks.items(), looks):
        ranks = sorted(points)
        for k, (what, face) in enumerate((("algbw", PAPER), ("busbw", color))):
            ax.plot(
                ranks,
                [points[N][k] / 1e9 for N in ranks],
                marker=mark,
                color=color,
                linewidth=1.6,
                markersize=5.5,
                linestyle=dash if k else (0, (1, 1.2)),
                markerfacecolor=face,
                label=f"{what}, {clock}",
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    every = sorted({N for points in by_ranks.values() for N in points})
    ax.set_xticks(every, [str(N) for N in every])
    ax.minorticks_off()
    values = [value / 1e9 for points in by_ranks.values() for pair in points.values() for value in pair]
    top, bottom = max(values) * 1.5, min(values) / 1.5
    steps = (1, 2, 5) if top > 15 * bottom else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [m * 10.0**k for k in range(-3, 4) for m in steps if bottom <= m * 10.0**k <= top]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set(xlabel="ranks", ylabel="GB/s", title=f"algbw and busbw {at}".strip(), ylim=(bottom, top))


# ---- the benchmark's picture


def busbw_sweep(record: Mapping[str, Any], folder: Path, only: Sequence[str] = tuple(STYLES)) -> list[Picture]:
    """busbw against size for every collective of a record: marks measured, thin lines fitted, the wire's limit dashed.

    only: the contenders to draw. Where they are many, the fits of the library and the ring alone."""
    made = []
    for collective in dict.fromkeys(entry["collective"] for entry in record["series"]):
        entries = [
            e
            for e in record["series"]
            if e["collective"] == collective and len(e["rows"]) > 1 and e["contender"] in only
        ]
        if entries:
            made.append(_busbw(record, collective, entries, folder))
    return made


def _busbw(record: Mapping[str, Any], collective: str, entries: list[Mapping[str, Any]], folder: Path) -> Picture:
    wire = record["wire"] / 1e9 if record["wire"] else None
    lines = {e["contender"]: [(row["size"], row["busbw"] / 1e9) for row in e["rows"]] for e in entries}
    fitted = [
        e
        for e in entries
        if e["fit"] and e["fit"]["beta"] > 0 and (len(entries) <= 3 or e["contender"] in ("library", "ring"))
    ]
    if collective == "all_reduce" and record.get("nccl_tests"):
        lines["nccl-tests"] = [(row["size"], row["busbw"] / 1e9) for row in record["nccl_tests"]["rows"]]
    left = min(x for line in lines.values() for x, _ in line) / 1.3
    right = max(x for line in lines.values() for x, _ in line) * 1.3
    what = collective.replace("_", "-")
    with look() as figure:
        fig = figure(WIDTH, 3.9)
        ax = fig.add_axes([0.085, 0.13, 0.70, 0.78])
        ax.set(
            xscale="log",
            xlim=(left, right),
            ylabel="busbw, GB/s",
            ylim=(0, 1.1 * max([y for line in lines.values() for _, y in line] + ([wire] if wire else []))),
        )
        _bytes_axis(ax, left, right)
        for name, line in lines.items():
            ax.plot(*zip(*line), **STYLES[name].marks(len(line), most=30))
        for entry in fitted:
            ax.plot(*zip(*_fitted(entry["rows"], entry["fit"])), color=STYLES[entry["contender"]].color, linewidth=0.8)
        ends = [
            (*line[-1], f"{NAMES.get(name, name)} {line[-1][1]:.3g}", STYLES[name].color)
            for name, line in lines.items()
        ]
        if wire:
            ax.axhline(wire, color=INK, linewidth=1.1, linestyle=(0, (6, 2)))
            ends.append((right, wire, f"wire {wire:.0f}", INK))
        label_ends(ax, ends)
        ax.set_title(
            f"{what}, {record['ranks']} ranks, {record['hardware_name']}, {record['transport']}, {record['dtype']}"
        )
        fits = [
            f"{e['contender']} {1 / e['fit']['beta'] / 1e9:.3g} GB/s, {e['fit']['worst']:.0%} off at most"
            for e in fitted
        ]
        alt = (
            f"busbw of {what} against vector size on {record['ranks']} ranks. At the largest size: "
            + ", ".join(f"{name} {line[-1][1]:.3g} GB/s" for name, line in lines.items())
            + (f"; wire limit {wire:.0f} GB/s" if wire else "")
            + (f". Fits: {'; '.join(fits)}." if fits else ".")
        )
        return save(
            fig,
            folder_or_temp(folder),
            f"busbw_{collective}",
            f"busbw of {what}",
            alt,
            "Marks: measured. Thin lines: the alpha-beta fit, drawn from the size on where it was fitted.",
        )


def _fitted(rows: Sequence[Mapping[str, Any]], fit: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(bytes, busbw in GB/s) that the fit predicts, from where it was fitted to the last size."""
    factor = rows[-1]["busbw"] / rows[-1]["algbw"]
    begin, end = fit["from_bytes"], rows[-1]["size"]
    sizes = [begin * (end / begin) ** (i / 60) for i in range(61)]
    times = [fit["messages"] * fit["alpha"] + fit["share"] * n * fit["beta"] for n in sizes]
    return [(n, factor * n / time / 1e9) for n, time in zip(sizes, times) if time > 0]


def _bytes_axis(ax: Any, left: float, right: float) -> None:
    ticks = [1024.0**k * m for k in range(4) for m in (1, 32) if left <= 1024.0**k * m <= right]
    ax.set_xticks(ticks, [human(tick, 3).replace("iB", "") for tick in ticks])
    ax.tick_params(axis="x", which="minor", length=0)
    ax.set_xlabel("vector size, bytes")


def _seconds(value: float) -> str:
    if value >= 0.999:
        return f"{value:.0f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.999e-3 else f"{value * 1e6:.0f} us"
