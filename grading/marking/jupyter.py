"""Jupyter around formgrader: nbgrader's extensions turned on, and a server for as long as somebody marks."""

import subprocess
import sys
from pathlib import Path

from labkit.checks.tasks import Week
from labkit.errors import LabError
from labkit.record.files import jupyter_may_start

EXTENSIONS = tuple(
    f"nbgrader.server_extensions.{name}"
    for name in ("formgrader", "validate_assignment", "assignment_list", "course_list")
)


def extensions() -> list[str]:
    """Turn on those of nbgrader's JupyterLab extensions that are off. Sentences on what was done, and what is left."""
    jupyter_may_start()
    said = []
    if off := _off():
        from jupyter_server.extension.serverextension import toggle_server_extension_python

        for name in off:
            toggle_server_extension_python(name, enabled=True, user=True)
        left = _off()
        said += [f"the Jupyter extension {name} was off and is on" for name in off if name not in left]
        said += [
            f"the Jupyter extension {name} is off: run 'jupyter server extension enable --sys-prefix {name}'"
            for name in left
        ]
    return said


def _off() -> list[str]:
    from jupyter_core.paths import jupyter_config_path
    from jupyter_server.services.config import ConfigManager

    known = ConfigManager(read_config_path=jupyter_config_path()).get("jupyter_server_config")
    on = known.get("ServerApp", {}).get("jpserver_extensions", {})
    return [name for name in EXTENSIONS if on.get(name) is not True]


def open_formgrader(root: Path, week: Week) -> None:
    """Start Jupyter in a course directory, with formgrader's page of the week in a browser, and wait until it ends: Ctrl-C ends it. LabError
    where it does not start."""
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
