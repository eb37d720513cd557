"""The health page's pictures: Bokeh figures over sources that `Board.update` fills from a record.

All curves share one x axis of steps. A y axis cuts off what lies far above the values in sight; the title counts those.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import BasicTicker, ColorBar, ColumnDataSource, FixedTicker, HoverTool, LinearColorMapper, Range1d
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from labkit.record.kernels import CLASSES
from labkit.record.plotting import GRID, INK, MUTED, PAPER
from labkit.record.schema import TrainRun
from labkit.watch.alarms import LOUD
from labkit.watch.folder import Record
from labkit.watch.past import Alarm
from labkit.watch.tables import Sparse, cells, outline

BLUE, ORANGE, RED, GREEN, VIOLET = "#005a9c", "#b34700", "#a11212", "#007a63", "#6a3fb5"
GIB = 1 << 30
COLUMNS = 240  # of a heat map
MARKS = 300  # events and alarms drawn, the newest
TICKS = 14  # names beside a heat map
LANES = ("alarms", "trouble", "other events")
LANE_KEYS = ("x", "lane", "kind", "message", "color")
TOOLS = "xpan,xbox_zoom,xzoom_in,xzoom_out,save"
SLOTS = ("input", "weight", "grad", "output")


class Quantity(NamedTuple):
    """What a heat map shows. how: "max" or "min" of several rows in a cell: the worst must not be averaged away."""

    how: str
    log: bool
    unit: str


HEAT = {
    "scale": Quantity("min", True, "log2 of the scale"),
    "amax": Quantity("max", True, "log2 of amax"),
    "overflow": Quantity("max", False, "% that saturates"),
    "underflow": Quantity("max", False, "% that becomes 0"),
}
NORM = Quantity("max", True, "log2 of the gradient's norm")


@dataclass(frozen=True)
class Line:
    """One curve: the record's column, its name, colour, and whether its points are marked."""

    field: str
    name: str
    color: str = BLUE
    marked: bool = False
    scale: float = 1.0


# title, unit, logarithmic, lines
CHARTS: dict[str, tuple[str, bool, tuple[Line, ...]]] = {
    "Loss": ("nats a token", False, (Line("loss", "training"), Line("heldout", "held-out", ORANGE, marked=True))),
    "Gradient norm": ("L2, before clipping", True, (Line("grad_norm", "whole model"),)),
    "Weight norm": ("L2 of all weights", False, (Line("param_norm", "whole model", GREEN, marked=True),)),
    "Learning rate": ("", False, (Line("lr", "rate", VIOLET),)),
    "Throughput": ("tokens/s, all ranks", False, (Line("tokens_per_s", "rate"),)),
    "Peak memory": ("GiB, of the fullest rank", False, (Line("memory", "peak", GREEN, scale=1 / GIB),)),
}


class Chart:
    def __init__(self, title: str, x_range: Range1d, marks: ColumnDataSource) -> None:
        unit, self.log, self.lines = CHARTS[title]
        self.title = title
        # A range of its own, set here: Bokeh's would follow the marks and every far outlier.
        self.figure = _figure(title, x_range, y_range=Range1d(0, 1), y_axis_type="log" if self.log else "linear")
        self.figure.yaxis.axis_label = unit
        dashed: dict[str, Any] = {"line_width": 1.2, "line_alpha": 0.55, "line_dash": "dashed"}
        self.figure.vspan(x="x", source=marks, line_color="color", level="underlay", **dashed)
        self.sources, drawn = {}, []
        for line in self.lines:
            source = self.sources[line.field] = ColumnDataSource({"x": [], "y": []})
            named = {"legend_label": line.name} if len(self.lines) > 1 else {}
            drawn.append(self.figure.line("x", "y", source=source, color=line.color, line_width=1.5, **named))
            if line.marked:
                look = {"color": line.color, "fill_color": PAPER, "size": 5, "marker": "diamond"}
                self.figure.scatter("x", "y", source=source, **look, **named)
        if named:
            place = {"location": "top_right", "orientation": "horizontal", "padding": 2}
            self.figure.legend[0].update(**place, background_fill_alpha=0.7, border_line_alpha=0)
        tips = [("step", "@x{0,0}"), (title.lower(), "@y{0.[0000]}" if not self.log else "@y{0.000e}")]
        self.figure.add_tools(HoverTool(renderers=drawn, tooltips=tips, mode="vline"))

    def update(self, record: Record, first: float, last: float) -> None:
        """Draw what lies between the steps `first` and `last`."""
        seen, bad = [], 0
        x = record["step"]
        inside = (x >= first) & (x <= last)
        for line in self.lines:
            y = record[line.field] * line.scale
            if line.field in ("loss", "grad_norm"):
                bad = int((~np.isfinite(y[inside])).sum())
            px, py = outline(x, np.where(y > 0, y, np.nan) if self.log else y, first, last)
            self.sources[line.field].data = {"x": px, "y": py}
            seen += list(py[(px >= first) & (px <= last)])
        low, high, above = _bounds(np.array(seen), self.log)
        self.figure.y_range.update(start=low, end=high)
        notes = [] if seen else ["not recorded"] if len(record) else ["no step yet"]
        notes += [f"{bad} steps not finite"] if bad and seen else []
        notes += [f"{above} points above the picture"] if above else []
        self.figure.title.text = self.title + "".join(f"  ({note})" for note in notes)


class Heat:
    """A heat map over layers (or blocks) and steps."""

    def __init__(self, x_range: Range1d) -> None:
        self.figure = _figure("", x_range, y_range=Range1d(0, 1), height=300)
        self.figure.xaxis.axis_label = "step"
        self.mapper = LinearColorMapper(palette=Cividis256, low=0, high=1, nan_color="rgba(0,0,0,0)")
        self.source = ColumnDataSource({key: [] for key in ("image", "x", "y", "dw", "dh", "name")})
        # One image a row, so that a name can stand beside each value.
        drawn = self.figure.image("image", x="x", y="y", dw="dw", dh="dh", source=self.source, color_mapper=self.mapper)
        bar = ColorBar(color_mapper=self.mapper, width=10, ticker=BasicTicker(desired_num_ticks=5))
        self.figure.add_layout(bar, "right")
        tips = [("tensor", "@name"), ("step", "$x{0,0}"), ("value", "@image{0.000}")]
        self.figure.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
        self.figure.grid.visible = False

    def update(self, title: str, sparse: Sparse, wanted: list[str], quantity: Quantity, view: Range1d) -> None:
        """Draw the columns `wanted` of `sparse` between the ends of `view`."""
        steps = sparse.steps
        inside = slice(int(np.searchsorted(steps, view.start)), int(np.searchsorted(steps, view.end, "right")))
        steps, at = steps[inside], [sparse.columns[name] for name in wanted]
        if not len(steps) or not wanted:
            self.source.data = {key: [] for key in self.source.data}
            self.figure.title.text = f"{title}  (not recorded)"
            self.figure.yaxis.ticker = FixedTicker(ticks=[])
            return
        edges, image = cells(steps, sparse.values[inside][:, at], COLUMNS, quantity.how)
        if quantity.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                image = np.log2(image)
        image[~np.isfinite(image)] = np.nan
        count = len(wanted)
        rows = [float(row) for row in reversed(range(count))]  # the first on top
        fine = image[np.isfinite(image)]
        low, high = (float(fine.min()), float(fine.max())) if len(fine) else (0.0, 1.0)
        self.mapper.update(low=low, high=high if high > low else low + 1)
        self.source.data = {
            "image": [row[None, :] for row in image],
            "x": [edges[0]] * count,
            "y": rows,
            "dw": [edges[-1] - edges[0]] * count,
            "dh": [1.0] * count,
            "name": wanted,
        }
        every = -(-count // TICKS)
        shown = {row + 0.5: _short(name) for row, name in list(zip(rows, wanted))[::every]}
        self.figure.yaxis.ticker = FixedTicker(ticks=list(shown))
        self.figure.yaxis.major_label_overrides = shown
        self.figure.y_range.update(start=0, end=count)
        self.figure.title.text = title


class Board:
    """All figures of one page. `view`: the steps in sight."""

    def __init__(self) -> None:
        self.view = Range1d(0, 10)
        self.marks = ColumnDataSource({"x": [], "color": []})
        self.charts = {title: Chart(title, self.view, self.marks) for title in CHARTS}
        self.lane_source = ColumnDataSource({key: [] for key in LANE_KEYS})
        self.lanes = _lanes(self.view, self.lane_source)
        self.scales, self.blocks = Heat(self.view), Heat(self.view)
        self.class_source = ColumnDataSource({"name": [], "value": [], "words": []})
        self.classes = _bars(self.class_source)

    def update(self, record: Record, alarms: list[Alarm], quantity: str, slot: str, blocks: bool) -> None:
        """Draw this record, between the ends of `view`."""
        for chart in self.charts.values():
            chart.update(record, self.view.start, self.view.end)
        self._draw_marks(record, alarms)
        sparse, shown = record.scales[quantity], HEAT[quantity]
        wanted = sorted((name for name in sparse.names if name.endswith(f".{slot}")), key=_natural)
        self.scales.update(f"{shown.unit}, {slot} of each linear", sparse, wanted, shown, self.view)
        if blocks:
            norms = record.grad_norms
            self.blocks.update(f"{NORM.unit}, each block", norms, norms.names, NORM, self.view)
        self._draw_time(record)

    def _draw_marks(self, record: Record, alarms: list[Alarm]) -> None:
        rows: list[tuple[float, str, str, str, str]] = [
            (alarm.step, LANES[0], alarm.kind, alarm.reason, RED) for alarm in alarms if alarm.step is not None
        ]
        for event in record.events:
            step, kind = event.get("step"), str(event.get("kind", ""))
            if isinstance(step, (int, float)) and step == step:
                loud = kind in LOUD or kind in ("resume", "paused")
                lane, color = (LANES[1], ORANGE) if loud else (LANES[2], MUTED)
                rows.append((step, lane, kind, str(event.get("message", ""))[:300], color))
        routine = [row for row in rows if row[1] == LANES[2]][-MARKS:]
        loud_rows = [row for row in rows if row[1] != LANES[2]][-MARKS:]
        self.lane_source.data = {key: [row[i] for row in routine + loud_rows] for i, key in enumerate(LANE_KEYS)}
        self.marks.data = {"x": [row[0] for row in loud_rows], "color": [row[4] for row in loud_rows]}

    def _draw_time(self, record: Record) -> None:
        """Draw the time of a step, by class of kernel, where it was profiled; else of the run: training and the rest."""
        speed = TrainRun.model_validate(record.run).results.speed
        if speed and speed.kernels and (profile := speed.kernels.classes_ms):
            named = {name: profile[name] for name in CLASSES if profile.get(name)}
            title, unit = "Time of a step, by class of kernel", "ms"
        else:
            training = float(np.nansum(record["seconds"]))
            named = {"training": training, **record.aside} if training else {}
            title, unit = "Time of the run", "s"
        total = sum(named.values()) or 1.0
        self.classes.title.text = f"{title}, {unit}" + ("" if named else "  (not recorded)")
        self.classes.y_range.factors = list(named)[::-1]
        words = [f"{value:,.1f} {unit}, {value / total:.0%}" for value in named.values()]
        self.class_source.data = {"name": list(named), "value": list(named.values()), "words": words}
        self.classes.x_range.end = 1.45 * max(named.values(), default=1.0)


def _figure(title: str, x_range: Any, height: int = 230, **more: Any) -> Any:
    """Make a figure in the project's style, as wide as its place."""
    tools = {} if "tools" in more else {"tools": TOOLS, "active_drag": None, "active_scroll": None}
    made = figure(title=title, x_range=x_range, height=height, sizing_mode="stretch_width", **tools, **more)
    made.background_fill_color = made.border_fill_color = PAPER
    made.title.update(text_color=INK, text_font_size="13px")
    for axis in made.axis:
        axis.update(axis_line_color=MUTED, major_tick_line_color=MUTED, minor_tick_line_color=None)
        axis.update(major_label_text_color=MUTED, axis_label_text_color=MUTED, axis_label_text_font_style="normal")
    made.grid.grid_line_color, made.outline_line_color = GRID, None
    made.toolbar.update(logo=None, autohide=True)
    made.min_border_left, made.min_border_right = 76, 14  # so that the steps of two pictures stand above one another
    return made


def _lanes(x_range: Range1d, source: ColumnDataSource) -> Any:
    made = _figure("Alarms and events", x_range, y_range=list(LANES[::-1]), height=150)
    drawn = made.scatter("x", "lane", source=source, color="color", marker="triangle", size=10, alpha=0.8)
    tips = [("step", "@x{0,0}"), ("what", "@kind"), ("why", "@message")]
    made.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    return made


def _bars(source: ColumnDataSource) -> Any:
    made = _figure("", Range1d(0, 1), y_range=["training"], tools="save")
    made.hbar(y="name", right="value", height=0.7, source=source, color=BLUE)
    look: dict[str, Any] = {"x_offset": 6, "anchor": "center_left", "text_color": INK, "text_font_size": "12px"}
    made.text(x="value", y="name", text="words", source=source, **look)
    made.xgrid.visible = False
    return made


def _bounds(y: np.ndarray, log: bool) -> tuple[float, float, int]:
    """Return (low end, high end, points above it) of a y axis for these finite values."""
    if not len(y):
        return (0.1, 1.0, 0) if log else (0.0, 1.0, 0)
    low, high = float(y.min()), float(y.max())
    usual = float(np.quantile(y, 0.95))
    cut = usual + 3 * (usual - low)
    if not log and low < usual and high > cut:
        high = cut
    above = int((y > high).sum())
    if log:
        return low / 1.3, max(high, low * 1.01) * 1.3, above
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room, above


def _natural(name: str) -> list[str]:
    """Return a key that sorts layers.2 before layers.10."""
    return [part.zfill(6) if part.isdecimal() else part for part in name.split(".")]


def _short(name: str) -> str:
    """Shorten layers.0.attn.wq.input to 0.attn.wq: the slot is in the title, and every name begins with layers."""
    return re.sub(rf"^layers\.|\.({'|'.join(SLOTS)})$", "", name)
