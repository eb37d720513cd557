"""The health page: one run's curves, scales, events and alarms, live, from the run folder alone. And its exports.

Here belongs what watches one training from outside, in a browser or a notebook. Nothing is requested of the ranks and
nothing is written into the folder, so the page may start late, stop, come back, and stand on another machine that sees
the folder. What a comparison concludes is labkit.compare's; whether one step may be applied, labkit.train.health's.

tables.py    numbers of the step lines as arrays, and their minimum and maximum in 2,000 bins
folder.py    one run folder, read on at each poll; the runs of a comparison
past.py      what an alarm is, and what was usual before each row
alarms.py    the rules: pure functions of the record        learning.py  those that judge the training itself
source.py    what a page shows: records with their alarms
mine.py      the student's own rules beside the page's
drawing.py   the pictures (Bokeh)        page.py   what stands where, and what moves (Panel)
serve.py     `lab watch RUN`             export.py   `lab export RUN`: TensorBoard, Weights & Biases

In a notebook `watch("runs/demo")` in a cell of its own shows the same page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def watch(run: str | os.PathLike, mine: bool = False) -> Any:
    """Return the health page of the run (or comparison) in this folder, as a Panel object that a notebook shows and
    keeps up to date. mine: your own rules ring, too: week 16's and the capstone's. LabError: no run there, or no
    Panel."""
    from labkit.watch.serve import import_panel
    from labkit.watch.source import Source

    source = Source(Path(run), mine)
    import_panel().extension()
    from labkit.watch.page import live

    return live(source)
