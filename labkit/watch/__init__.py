"""The health page: one run's curves, scales, events and alarms, live, from the run folder alone; and its exports.

Nothing is requested of the ranks and nothing is written into the folder, so the page may start late, stop, come back,
and stand on another machine. `watch("runs/demo")` in a notebook's cell shows the same page.

    tables.py, folder.py        the step lines as arrays; a folder read on at each poll
    past.py, alarms.py, learning.py, mine.py    the rules, and the student's own
    source.py, drawing.py, page.py, serve.py    the page (Bokeh, Panel), and `lab watch RUN`
    export.py                   `lab export RUN`: TensorBoard, Weights & Biases
"""

import os
from pathlib import Path
from typing import Any


def watch(run: str | os.PathLike, mine: bool = False) -> Any:
    """The health page of the run or comparison in this folder, a Panel object; mine: your own rules. LabError: no run."""
    from labkit.watch.serve import import_panel
    from labkit.watch.source import Source

    source = Source(Path(run), mine)
    import_panel().extension()
    from labkit.watch.page import live

    return live(source)
