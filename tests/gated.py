"""A program whose training stands still after a step until the test lets it go on.

What is done to a run in the middle of it must find it there, on a machine that takes a millisecond for a step as on one
that looks after a second. So the program's ranks wait where they write a step's line, in whatever process that is.
"""

import os
from pathlib import Path

# Python imports a module of this name at its start; the programs under test and the servers of their ranks are Pythons.
WAITS = """
import os, time
from labkit.record.run import RunRecord

write = RunRecord.step

def step(self, **fields):
    write(self, **fields)
    if fields.get("step") == {step} and self.path.name == {name!r}:
        while os.path.exists({closed!r}):
            time.sleep(0.01)

RunRecord.step = step
"""


class Gate:
    """Closed behind the line of `step` in the run folder called `name`, for processes with `environment`; until `open`.
    folder: for the gate alone."""

    def __init__(self, folder: Path, name: str, step: int) -> None:
        folder.mkdir()
        self.closed = folder / "closed"
        self.closed.touch()
        (folder / "sitecustomize.py").write_text(WAITS.format(name=name, step=step, closed=str(self.closed)))
        self.environment = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def open(self) -> None:
        self.closed.unlink()
