"""What stands where on the health page, and what moves: a status line, the alarms, the choices, the pictures.

Each tab or cell has a `Page`; all share one `Source`. A record's text is somebody else's: it is escaped.
"""

import html
from typing import Any

import numpy as np
import panel as pn

from labkit.errors import LabError
from labkit.record.schema import TrainRun
from labkit.watch.drawing import HEAT, SLOTS, Board
from labkit.watch.folder import Record
from labkit.watch.past import Alarm, median
from labkit.watch.source import Source

EVERY = 1000  # ms between two polls
SHOWN = 6  # alarms in sight; the rest is folded away
WHOLE, ZOOMED = "whole run", "zoomed"
STRETCHES = {"last 1,000": 1000, "last 200": 200}
AT_WORK = "whichever is at work"

# Without a viewport a phone shows a page as wide as a desk's, and small. And where the connection is lost (the page was
# stopped, a tunnel broke, a laptop slept) Bokeh offers the old session again, which a new server does not know: so the
# page turns pale, waits until somebody answers at its address, and loads itself anew.
DOCUMENT = """{% extends base %}
{% block postamble %}<meta name="viewport" content="width=device-width, initial-scale=1">{% endblock %}
{% block contents %}{{ embed(roots.page) }}
<script>
const begun = setInterval(() => {
  const page = window.Bokeh && Bokeh.documents[0]
  if (!page) return
  clearInterval(begun)
  page.on_event("connection_lost", () => {
    document.body.style.opacity = 0.4
    setInterval(() => fetch("static/js/bokeh.min.js", {method: "HEAD", cache: "no-store"})
      .then(found => found.ok && location.reload(), () => {}), 2000)
  })
}, 300)
</script>{% endblock %}
"""
STYLE = """
:host, body { font-family: system-ui, sans-serif; color: #20242b; }
.lab-head { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; font-size: 14px; }
.lab-head b { font-size: 17px; overflow-wrap: anywhere; }
.lab-status { border-radius: 4px; padding: 1px 8px; border: 1px solid #5b626e; }
.lab-status.bad { background: #a11212; color: #fff; border-color: #a11212; }
.lab-status.good { background: #007a63; color: #fff; border-color: #007a63; }
.lab-alarms { font-size: 14px; line-height: 1.45; }
.lab-alarms ul { margin: 4px 0; padding: 0; list-style: none; }
.lab-alarms li { border-left: 4px solid #a11212; padding: 2px 10px; margin: 3px 0; background: #fbf1f1;
  overflow-wrap: anywhere; }
.lab-alarms .calm { border-left: 4px solid #007a63; padding: 2px 10px; background: #eef6f3; }
"""


class Page:
    """One page over a source. `view` is the Panel object; `refresh` brings it up to date."""

    def __init__(self, source: Source) -> None:
        self.source, self.board = source, Board()
        self._drawn: Any = None
        self._moving = False
        self.run = pn.widgets.Select(name="Run", options=[AT_WORK], width=240, visible=False)
        style = {"button_type": "primary", "button_style": "outline"}
        self.stretch = pn.widgets.RadioButtonGroup(
            name="Steps", options=[WHOLE, *STRETCHES, ZOOMED], value=WHOLE, **style
        )
        self.quantity = pn.widgets.Select(name="Heat map", options=list(HEAT), width=130)
        self.slot = pn.widgets.Select(name="of each linear's", options=list(SLOTS), value="grad", width=130)
        self.blocks = pn.widgets.Checkbox(name="Gradient norm of each block", value=False)
        self.head = pn.pane.HTML("", stylesheets=[STYLE], sizing_mode="stretch_width")
        self.alarms = pn.pane.HTML("", stylesheets=[STYLE], sizing_mode="stretch_width")
        self.block_map = self._place(self.board.blocks.figure)
        for widget in (self.run, self.stretch, self.quantity, self.slot, self.blocks):
            widget.param.watch(lambda _: self.refresh(), "value")
        for end in ("start", "end"):
            self.board.view.on_change(end, self._zoomed)
        self.view = self._lay_out()
        self.refresh()

    def refresh(self) -> None:
        try:
            names = self.source.names()
            name, record, alarms = self.source.poll("" if self.run.value == AT_WORK else self.run.value)
        except LabError as error:  # the folder went away; it may come back
            self.alarms.object = _list_alarms([Alarm("no record", None, str(error))], 0)
            return
        if self.run.options != [AT_WORK, *names]:
            self.run.param.update(options=[AT_WORK, *names], visible=len(names) > 1)
        self.head.object = _write_head(name, record)
        self.alarms.object = _list_alarms(alarms, len(record))
        self._move(record)
        self.block_map.visible = self.blocks.value
        view = (self.board.view.start, self.board.view.end)
        chosen = (self.quantity.value, self.slot.value, self.blocks.value)
        state = (name, id(record), len(record), len(record.events), len(alarms), record.status, view, chosen)
        if state != self._drawn:
            self._drawn = state
            self.board.update(record, alarms, *chosen)

    def _move(self, record: Record) -> None:
        """Let the stretch in sight follow the run, unless somebody has zoomed."""
        if self.stretch.value == ZOOMED:
            return
        last = float(record["step"][-1]) if len(record) else 1.0
        begin = float(record["step"][0]) if len(record) else 0.0
        begin = max(begin, last - STRETCHES.get(self.stretch.value, np.inf))
        self._moving = True
        room = max(0.5, 0.01 * (last - begin))
        self.board.view.update(start=begin - room, end=last + room)
        self._moving = False

    def _zoomed(self, attr: str, old: float, new: float) -> None:
        if not self._moving:
            self.stretch.value = ZOOMED
            self.refresh()

    def _lay_out(self) -> Any:
        board = self.board
        first = ("Loss", "Gradient norm")
        rest = [title for title in board.charts if title not in first]
        return pn.Column(
            self.head,
            self.alarms,
            pn.FlexBox(self.run, self.stretch, align_items="end"),
            _beside(*[self._place(board.charts[title].figure) for title in first]),
            self._place(board.lanes),
            pn.FlexBox(self.quantity, self.slot, self.blocks, align_items="end"),
            self._place(board.scales.figure),
            self.block_map,
            _beside(*[self._place(board.charts[title].figure) for title in rest], self._place(board.classes)),
            sizing_mode="stretch_width",
            styles={"max-width": "1500px", "margin": "0 auto"},
        )

    @staticmethod
    def _place(figure: Any) -> Any:
        return pn.pane.Bokeh(figure, sizing_mode="stretch_width", margin=(4, 2), styles={"min-width": "0"})


def _beside(*some: Any) -> Any:
    """Place as many beside one another as there is room for: two on a wide page, one on a phone."""
    columns = "repeat(auto-fit, minmax(min(100%, 520px), 1fr))"
    return pn.Column(*some, sizing_mode="stretch_width", styles={"display": "grid", "grid-template-columns": columns})


def live(source: Source) -> Any:
    """Make a page that keeps itself up to date for as long as it is shown, as a Panel object."""
    page = Page(source)
    pn.state.add_periodic_callback(page.refresh, period=EVERY)  # a poll that takes longer is not started twice
    return page.view


def document(source: Source) -> Any:
    template = pn.Template(DOCUMENT)
    template.add_panel("page", live(source))
    return template


def _write_head(name: str, record: Record) -> str:
    status = record.status
    grade = {"finished": "good", "running": "good", "failed": "bad", "interrupted": "bad"}.get(status, "")
    words = [f"<b>{html.escape(name)}</b>", f'<span class="lab-status {grade}">{html.escape(status)}</span>']
    steps = TrainRun.model_validate(record.run).config.steps
    if len(record):
        last = float(record["step"][-1])
        words.append(f"step {last:,.0f}" + (f" of {steps:,}" if steps else ""))
        usual = median(record["seconds"][-64:])
        if status == "running" and steps and usual > 0:
            words.append(f"{_span((steps - last) * usual)} left at {usual:.2g} s a step")
    else:
        words.append("no step yet")
    if record.silence is not None and status == "running":
        words.append(f"last written {_span(record.silence)} ago")
    if record.behind:
        words.append(f"still reading: {record.behind / 1e6:,.0f} MB to go")
    if record.torn:
        words.append(f"{record.torn} lines could not be read")
    return '<div class="lab-head">' + "".join(f"<span>{word}</span>" for word in words) + "</div>"


def _list_alarms(alarms: list[Alarm], steps: int) -> str:
    """Write the alarms as HTML, the newest on top; those of the clock above all."""
    if not alarms:
        said = f"No alarm in {steps:,} steps." if steps else "No alarm; nothing to judge yet."
        return f'<div class="lab-alarms"><div class="calm">{said}</div></div>'
    items = []
    for alarm in reversed(alarms):
        where = f" at step {alarm.step:,}" if alarm.step is not None else ""
        items.append(f"<li>&#9888; <b>{html.escape(alarm.kind)}</b>{where}: {html.escape(alarm.reason)}</li>")
    more = "".join(items[SHOWN:])
    folded = f"<details><summary>{len(items) - SHOWN} earlier alarms</summary><ul>{more}</ul></details>" if more else ""
    return f'<div class="lab-alarms"><ul>{"".join(items[:SHOWN])}</ul>{folded}</div>'


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
