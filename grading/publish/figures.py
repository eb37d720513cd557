"""The class's pictures, in the look of the run reports: behaviours, distribution. Hatching and words tell apart what
colours do."""

import textwrap
from pathlib import Path
from typing import Any

from grading.publish import page
from grading.publish.mistakes import Behaviour
from grading.publish.overview import Overview
from labkit.checks.outcome import number
from labkit.record.plotting import INK, PAPER, WIDTH, Picture, save, styled, ticks

FAILED, UNTRIED, EARNED = "#a11212", "#8a6100", "#005a9c"  # names of the palette: they change in the dark
MOST = 12


def draw_all(overview: Overview, folder: Path) -> list[Picture]:
    """Pictures as SVG and PNG in `folder`; none for an empty class."""
    drawn = [behaviours(overview, folder), distribution(overview, folder)]
    return [picture for picture in drawn if picture is not None]


def behaviours(overview: Overview, folder: Path) -> Picture | None:
    """Bars of how many failed and how many left it blank, most failed first; what fails together is one."""
    rows = [entry for entry in overview.grouped if entry.failed or entry.untried][:MOST]
    if not rows:
        return None
    with styled() as figure:
        height, places = 0.62 + 0.4 * len(rows), range(len(rows))  # inches
        fig = figure(WIDTH, height)
        ax = fig.subplots()
        fig.subplots_adjust(left=0.43, right=0.97, top=1 - 0.34 / height, bottom=0.44 / height)
        ax.set_yticks(places, [_label(f"{e.task}  {_named(e)}") for e in rows], fontsize=8, color=INK)
        ax.invert_yaxis()
        ax.barh(places, [100 * e.share(e.failed) for e in rows], color=FAILED, height=0.62, label="tried and failed")
        ax.barh(
            places,
            [100 * e.share(e.untried) for e in rows],
            left=[100 * e.share(e.failed) for e in rows],
            height=0.62,
            color=PAPER,
            edgecolor=UNTRIED,
            hatch="////",
            linewidth=0.8,
            label="left blank",
        )
        for place, entry in enumerate(rows):
            end = 100 * (entry.share(entry.failed) + entry.share(entry.untried))
            untried = f" + {len(entry.untried)}" if entry.untried else ""
            _beside(ax, f"{len(entry.failed)}{untried}", (end, place), (4, 0))
        ax.set_xlim(0, 112)  # the whole class, and room for a number beside it: a short bar is few of them
        ax.set_xticks(range(0, 101, 20))
        ax.set_xlabel("percent of the students who were judged")
        ax.grid(False, axis="y")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1, handlelength=1.6)
        alt = (
            f"Bars of {page.count(len(rows), 'behaviour')}, most failed first. "
            + "; ".join(
                f"{e.task} {_named(e)}: {len(e.failed)} of {len(e.judged)} failed, {len(e.untried)} left it blank"
                for e in rows[:5]
            )
            + "."
        )
        note = "Numbers at the bars count students: tried and failed + left blank."
        return save(fig, folder, "behaviours", "Behaviours", alt, note)


def distribution(overview: Overview, folder: Path) -> Picture | None:
    """Histogram of the automatic points that are sure, with the quartiles."""
    values, top = overview.automatic, overview.possible
    if not values or not top:
        return None
    bins = 10
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, int(bins * value / top)))] += 1
    low, median, high = overview.quartiles
    with styled() as figure:
        fig = figure(WIDTH, 2.6)
        ax = fig.subplots()
        fig.subplots_adjust(left=0.075, right=0.985, top=0.86, bottom=0.19)
        width = top / bins
        ax.bar([width * (i + 0.5) for i in range(bins)], counts, width=0.9 * width, color=EARNED)
        for i, many in enumerate(counts):
            if many:
                _beside(ax, str(many), (width * (i + 0.5), many), (0, 2), ha="center", va="baseline")
        ax.set_ylim(0, 1.18 * max(counts))
        ax.axvspan(low, high, ymin=0, ymax=0.025, color=INK, linewidth=0)
        ax.axvline(median, color=INK, linestyle=(0, (4, 2)), linewidth=1.1)
        side = "right" if median > 0.85 * top else "center"
        top_of_axes = {"xycoords": ("data", "axes fraction"), "va": "baseline"}
        _beside(ax, f"median {number(median)}", (median, 1), (0, 3), ha=side, **top_of_axes)
        ax.set_xlim(0, top)
        ax.set_xticks([number(width * i) for i in range(bins + 1)])
        ax.yaxis.set_major_locator(ticks(5, whole=True))
        ax.set_xlabel(f"automatic points, of {number(top)}")
        ax.set_ylabel("students")
        ax.grid(False, axis="x")
        parts = "; ".join(
            f"{number(width * i)} to {number(width * (i + 1))}: {many}" for i, many in enumerate(counts) if many
        )
        return save(
            fig,
            folder,
            "distribution",
            "Distribution",
            f"Histogram of the automatic points of {page.count(len(values), 'student')}. {parts}. "
            f"Median {number(median)}, middle half {number(low)} to {number(high)}.",
            "Each bar reaches up to the next number, the last one includes full marks. The thick line on the "
            "axis is the middle half of the class.",
        )


def _named(entry: Behaviour) -> str:
    return entry.title + (f", and {len(entry.also)} more" if entry.also else "")


def _beside(ax: Any, text: str, place: tuple[float, float], offset: tuple[int, int], **how: Any) -> None:
    """A number beside a bar, so many points away."""
    how = {"va": "center", "textcoords": "offset points", "fontsize": 8.5, "color": INK, **how}
    ax.annotate(text, place, xytext=offset, **how)


def _label(text: str, width: int = 46) -> str:
    """An axis label in at most two lines."""
    rows = textwrap.wrap(text, width)
    return "\n".join([rows[0], rows[1] + (" ..." if len(rows) > 2 else "")] if len(rows) > 1 else rows)
