"""What every picture shares: one style, lines that do not rely on colour, labels that do not overlap, light and dark.

A picture is a PNG for slides and an SVG for the report, whose named colours are CSS variables with dark values.
"""

import atexit
import functools
import io
import itertools
import math
import numbers
import os
import shutil
import statistics
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 7.4  # inches; the report's text column
GAP, REACH = 1.32, 0.035  # of labels at the ends of lines: a line's height in letters; how far right of the axes

# light -> dark. The light values double as the names by which the SVG finds them, so each must be unique.
INK, MUTED, GRID, PAPER, BAND, THIN = "#20242b", "#5b626e", "#dfe3e8", "#fefefe", "#e4ebe3", "#b9c0ca"
DARK = {
    INK: "#e8eaee",
    MUTED: "#a7afbb",
    GRID: "#363c46",
    PAPER: "#16191e",
    BAND: "#26362b",
    THIN: "#59616e",
    "#005a9c": "#6db7f2",
    "#5d6d00": "#c0cf52",
    "#b34700": "#ff9a57",
    "#9c1f6d": "#f28cc6",
    "#007a63": "#4fd0b3",
    "#6a3fb5": "#bca0f7",
    "#a11212": "#ff7f7f",
    "#8a6100": "#e6bd55",
    "#4d5766": "#b6c1d2",
    "#5c4033": "#cfa58f",
}
CANDIDATES = ("#b34700", "#007a63", "#6a3fb5", "#8a6100", "#9c1f6d")
DASHES = ("-", (0, (5, 1.6)), (0, (3, 1.2, 1, 1.2)), (0, (8, 2)), (0, (6, 1.2, 1, 1.2, 1, 1.2)))
# With more candidates than colours the colours come again, with other marks and hatches.
MARKS = ("D", "^", "v", "P", "h", "<", ">", "p", "d", "8")
HATCHES = ("..", "\\\\", "--", "++", "oo", "////", "|", "OO", "\\\\\\\\", "+")


@dataclass(frozen=True)
class Style:
    """How an arm (one variant of a comparison) is drawn in every picture."""

    color: str
    dash: Any
    mark: str
    hatch: str

    def line(self, **more: Any) -> dict:
        return {"color": self.color, "linestyle": self.dash, "linewidth": 1.7, **more}

    def marks(self, points: int, shift: int = 0, most: int = 14, **more: Any) -> dict:
        """A line with a marker at some of its `points`; `shift` sets the markers of lines that coincide apart."""
        stride = max(1, -(-points // most))
        every = {"marker": self.mark, "markevery": (shift % stride, stride)}
        return self.line(**{**every, "markersize": 4.5, "markerfacecolor": PAPER, "markeredgewidth": 1.2, **more})


# Arms that several presets have look the same in every picture, whichever others stand beside them.
KNOWN = ("te-delayed", "te-current", "te-block", "torchao-tensorwise", "torchao-rowwise", "te-bf16", "week16")
_COLOURS = (*CANDIDATES, "#4d5766", "#5c4033")
_BASELINE = Style("#005a9c", "-", "o", "")
OF_ROLE = {
    "baseline": _BASELINE,
    "single": _BASELINE,
    "twin": Style("#5d6d00", (0, (4, 1.6)), "s", "//"),
    "broken": Style("#a11212", (0, (1.2, 1.4)), "X", "xx"),
    "fine": Style("#a11212", (0, (3, 1.4, 1, 1.4)), "*", "x"),  # broken too, but only a little
}


@dataclass(frozen=True)
class Picture:
    """`png` and `svg` in the run's figures/; `alt`: what it shows, in one sentence; `note`: how to read it."""

    name: str
    title: str
    png: Path
    svg: Path
    alt: str
    note: str = ""


def styles(roles: dict[str, str]) -> dict[str, Style]:
    """A style for each arm by its role: OF_ROLE's, KNOWN arms' own, and for others the first that nobody here has."""
    unset = [name for name, role in roles.items() if role not in OF_ROLE]
    known = {name: KNOWN.index(name) for name in unset if name in KNOWN}
    free = (place for place in itertools.count() if place not in known.values())
    several: tuple[Sequence[Any], ...] = (_COLOURS, DASHES, MARKS, HATCHES)
    places = {name: known[name] if name in known else next(free) for name in unset}
    return {
        name: OF_ROLE[role] if role in OF_ROLE else Style(*[each[places[name] % len(each)] for each in several])
        for name, role in roles.items()
    }


_SETTINGS: dict[str, dict[str, Any]] = {
    "font.": {"family": "DejaVu Sans", "size": 9},
    "text.": {"color": INK, "parse_math": False},
    "axes.": {"edgecolor": MUTED, "facecolor": PAPER, "linewidth": 0.8, "unicode_minus": True},
    "axes.title": {"size": 9.5, "weight": "bold", "location": "left", "pad": 7, "color": INK},
    "axes.label": {"size": 9, "color": INK},
    "axes.spines.": {"top": False, "right": False},
    "axes.grid": {"": True},
    "axes.axisbelow": {"": True},
    "xtick.": {"color": MUTED, "labelsize": 8.5},
    "ytick.": {"color": MUTED, "labelsize": 8.5},
    "grid.": {"color": GRID, "linewidth": 0.7},
    "figure.": {"facecolor": PAPER},
    "savefig.": {"facecolor": PAPER},
    "legend.": {"frameon": False, "fontsize": 8.5},
    "svg.": {"hashsalt": "labkit", "fonttype": "path"},
    "hatch.": {"linewidth": 0.6},
    "lines.": {"solid_capstyle": "round"},
    "path.": {"simplify": True},
}


@contextmanager
def styled() -> Iterator[Any]:
    """matplotlib with our settings, inside the block only. Yields a function (width, height) -> Figure."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def figure(width: float, height: float) -> Any:
        fig = Figure(figsize=(width, height))
        FigureCanvasAgg(fig)
        return fig

    settings: dict[Any, Any] = {area + key: value for area, some in _SETTINGS.items() for key, value in some.items()}
    with matplotlib.rc_context(settings):
        yield figure


def save(fig: Any, folder: Path, name: str, title: str, alt: str, note: str = "") -> Picture:
    """Write figures/NAME.png (180 dots per inch) and figures/NAME.svg (light and dark)."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    fig.savefig(png, dpi=180, metadata={"Software": None, "Description": alt})
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": alt})
    svg.write_text(two_themes(buffer.getvalue()), encoding="utf-8")
    return Picture(name, title, png, svg, alt, note)


def folder_or_temp(folder: Path | None) -> Path:
    """Where a picture goes: `folder`; if nobody says, a folder of its own that is gone when this process ends."""
    if folder is None:
        return Path(tempfile.mkdtemp(dir=_scratch(os.getpid())))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def _scratch(pid: int) -> str:
    """One temporary folder for each process, removed when that process ends, and not when one forked from it does."""
    folder = tempfile.mkdtemp(prefix="labkit-")

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def two_themes(svg: str) -> str:
    """The SVG with each named colour as a CSS variable that has a light and a dark value."""
    used = [color for color in DARK if color in svg]
    for color in used:
        svg = svg.replace(color, f"var(--c{color[1:]})")
    light = "".join(f"--c{c[1:]}:{c};" for c in used)
    dark = "".join(f"--c{c[1:]}:{DARK[c]};" for c in used)
    rule = f"<style>:root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    head, defs, rest = svg.partition("<defs>")
    return head + rule + defs + rest if defs else svg


def label_ends(ax: Any, ends: Sequence[tuple[float, float, str, str]], size: float = 8.5) -> None:
    """Name each line (x, y, text, color) at its right end, without overlaps, when limits and margins are final."""
    if not ends:
        return
    import numpy as np
    from scipy.optimize import isotonic_regression  # here: it takes half a second to import

    height = size / 72 * ax.figure.dpi * GAP
    low, high = ax.transAxes.transform([(0, 0), (1, 1)])[:, 1]
    wanted = [ax.transData.transform((x, y))[1] if math.isfinite(y) else high for x, y, _, _ in ends]
    order = sorted(range(len(ends)), key=lambda i: wanted[i])
    tall = np.array([height * (ends[i][2].count("\n") + 1) for i in order])
    # As near to the lines as half of each label's and its neighbour's height allow, and inside the axes.
    apart = np.concatenate([[0.0], np.cumsum((tall[1:] + tall[:-1]) / 2)])
    free = isotonic_regression(np.clip(wanted, low, high)[order] - apart).x
    bottom, top = low + (tall[0] - height) / 2, high - (tall[-1] - height) / 2 - apart[-1]
    to_axes = ax.transAxes.inverted()
    for i, at in zip(order, apart + np.clip(free, bottom, top)):
        x, y, text, color = ends[i]
        frac = to_axes.transform((0, at))[1]
        y = min(max(y, ax.get_ylim()[0]), ax.get_ylim()[1]) if math.isfinite(y) else ax.get_ylim()[1]
        leader = dict(arrowstyle="-", color=color, linewidth=0.6, shrinkA=1, shrinkB=2, relpos=(0, 0.5))
        place = dict(xy=(x, y), xycoords="data", xytext=(1 + REACH, frac), textcoords="axes fraction")
        font = dict(va="center", ha="left", fontsize=size, color=color, linespacing=1.1)
        ax.annotate(text, **place, **font, arrowprops=leader, annotation_clip=False)


def margins(fig: Any, top: float, bottom: float, **sides: float) -> None:
    """`subplots_adjust` with top and bottom in inches, so that they stay what they are in a taller picture."""
    tall = fig.get_figheight()
    fig.subplots_adjust(top=1 - top / tall, bottom=bottom / tall, **sides)


def xy(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """[(x, y), ...] as matplotlib wants it: all x, all y."""
    return [x for x, _ in points], [y for _, y in points]


def thin(points: list, most: int = 240) -> list:
    """At most about `most` points, the last kept: a picture has no more pixels than that."""
    if len(points) <= most:
        return points
    stride = math.ceil(len(points) / most)
    return [*points[::stride], *([points[-1]] if (len(points) - 1) % stride else [])]


def running_median(values: Sequence[float], window: int) -> list[float]:
    """Centred median of `window` values, non-finite ones left out; NaN where the value itself is not finite."""
    out, half = [], window // 2  # centred: a trailing window would lag behind a falling loss
    for i, value in enumerate(values):
        reach = min(half, i, len(values) - 1 - i)  # symmetric at the ends too
        part = finite(values[i - reach : i + reach + 1])
        out.append(statistics.median(part) if part and math.isfinite(value) else math.nan)
    return out


def finite(values: Sequence[Any]) -> list[Any]:
    """Those that are numbers (numpy's too) and neither NaN nor infinite."""
    return [v for v in values if isinstance(v, numbers.Real) and math.isfinite(v)]


def number(value: float | None, digits: int = 3) -> str:
    """For people: 3 significant digits, thousands separated, words for what is no number."""
    if value is None:
        return "not recorded"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def join(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def lines(text: str, width: int = 18) -> str:
    """A label in up to three lines of about `width` characters."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False)[:3])


def ticks(most: int, whole: bool = False) -> Any:
    """A matplotlib locator for at most `most` round ticks, whole numbers if requested."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, integer=whole, min_n_ticks=1 if whole else 2)
