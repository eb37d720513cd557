"""Writing files that others read meanwhile: they see the old one or the new one; a failure becomes one sentence."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.errors import FULL, LabError


def replace_file(target: Path, content: str | bytes) -> None:
    """Replace `target` whole, through to the disk. OSError: nothing has changed, and nothing is left beside it."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")  # two writers share no unfinished file
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def writable(folder: Path) -> None:
    """Make a folder and try to write into it: to be asked before what is to be kept there is measured. LabError."""
    with explained(folder, stop="; nothing was measured. Name another place with --out."):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def jupyter_may_start() -> None:
    """LabError where Jupyter could not make its own folders: it would end with a traceback."""
    from jupyter_core.paths import jupyter_config_dir, jupyter_runtime_dir

    for folder in map(Path, (jupyter_config_dir(), jupyter_runtime_dir())):
        if not os.access(next(path for path in (folder, *folder.parents) if path.exists()), os.W_OK):
            raise LabError(f"Jupyter could not write into {folder}: set HOME to a folder that you may write to")


@contextmanager
def explained(place: str | Path, *, full: str = "", stop: str = "") -> Iterator[None]:
    """An OSError inside becomes a LabError: "could not write PLACE: why" and `stop`, or `full` where the disk is full."""
    try:
        yield
    except OSError as error:
        if full and error.errno in FULL:
            raise LabError(f"the disk is full: could not write {place}; {full}") from error
        raise LabError(f"could not write {place}: {error.strerror or error}{stop}") from error
