"""The pictures of how long things take: three clocks side by side, sweeps.

A clock is a dict {contender: [(bytes, seconds), ...]}. A contender has the same colour, dash and marker everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.record.plotting import INK, MUTED, WIDTH, Picture, Style, folder_or_temp, label_ends, save, styled
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
    clocks: Mapping[str, Clock | None], guesses: Sequence[float | None] = (), folder: Path | None = None
) -> Picture:
    """Time against size on each clock, one panel each. A clock that is None was not recorded, and its panel says so.

    Marked on every clock: from which size on "ring" is faster than "naive" and than "one_shot". guesses: the reader's
    prediction of the first, in bytes, for each clock."""
    points = [p for clock in clocks.values() if clock for line in clock.values() for p in line]
    low, high = min(p[1] for p in points) / 1.8, max(p[1] for p in points) * 2.2
    left, right = min(p[0] for p in points) / 1.6, max(p[0] for p in points) * 1.6
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 3.95)
        axes = fig.subplots(1, len(clocks), sharey=True)
        for ax, (name, clock), guess in zip(axes, clocks.items(), [*guesses, *[None] * len(clocks)]):
            ax.set(xscale="log", yscale="log", ylim=(low, high), xlim=(left, right))
            ax.set_title(name, fontsize=9, pad=30)
            _bytes_axis(ax, left, right)
            words.append(f"{name}: {_one_clock(ax, clock, low)}")
            if isinstance(guess, (int, float)) and guess > 0 and clock:  # "never" is an answer, and no place
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
    with styled() as figure:
        fig = figure(WIDTH, 3.9)
        ax = fig.add_axes([0.085, 0.13, 0.70, 0.78])
        ax.set(
            xscale="log",
            xlim=(left, right),
            ylabel="busbw, GB/s",
            ylim=(0, 1.1 * max([y for line in lines.values() for _, y in line] + ([wire] if wire else [])) or 1),
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
        if fitted:
            ax.plot([], [], color=INK, linewidth=0.8, label="thin, no marks: the fitted line, alpha + beta n")
            ax.legend(loc="upper left", fontsize=7.8, bbox_to_anchor=(0, 0.9))
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
