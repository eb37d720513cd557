"""Jupyter around formgrader, for as long as somebody marks."""

import subprocess
import sys
from pathlib import Path

from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.record.files import jupyter_may_start


def open_formgrader(root: Path, week: Week) -> None:
    """Start Jupyter in a course directory, with formgrader's page of the week in a browser, and wait until Ctrl-C ends it.
    LabError where it does not start."""
    jupyter_may_start()
    page = f"/formgrader/gradebook/{week.name}/{week.notebook.stem}"
    words = ["lab", "-y", f"--LabApp.default_url={page}"]  # -y: one Ctrl-C is enough
    try:
        process = subprocess.Popen([sys.executable, "-m", "jupyter", *words], cwd=root)
    except OSError as error:
        raise LabError(f"Jupyter cannot be started ({error.strerror}): run `jupyter lab` in {root}") from None
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:  # Jupyter got it, too
            continue
    if status not in (0, 1, 130, -2):
        raise LabError(f"Jupyter ended with status {status}: run `jupyter lab` in {root}")
