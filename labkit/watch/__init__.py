"""The health page: one run's curves, scales, events and alarms, live, from the run folder alone. And its exports.

Here belongs what looks at one training from outside, in a browser or a notebook. Nothing is asked of the ranks and
nothing is written into the folder, so the page may start late, stop, come back, and stand on another machine that sees
the folder. What a comparison concludes is labkit.compare's; whether one step may be applied, labkit.train.health's.

tail.py      new lines of a file that is being written, cut back on resume, or moved away
tables.py    numbers of the step lines as arrays, and their minimum and maximum in 2,000 bins
folder.py    one run folder, read on at each look; the runs of a comparison
alarms.py    the rules: pure functions of the record        past.py    what was usual before each row
learning.py  those that judge the training itself           ring.py    what an alarm is, and a rule
source.py    what a page looks at: records with their alarms
mine.py      the student's own rules beside the page's
drawing.py   the pictures (Bokeh)        page.py   what stands where, and what moves (Panel)
serve.py     `lab watch RUN`             export.py   `lab export RUN`: TensorBoard, Weights & Biases

In a notebook `watch("runs/demo")` in a cell of its own shows the same page.
"""

from __future__ import annotations

import os
from typing import Any


def watch(run: str | os.PathLike, mine: bool = False) -> Any:
    """The health page of the run (or comparison) in this folder, as a Panel object that a notebook shows and keeps up
    to date. mine: your own rules ring, too: week 16's and the capstone's. LabError: no run there, or no Panel."""
    from labkit.watch.serve import in_notebook

    return in_notebook(run, mine)
