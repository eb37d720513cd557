"""Where a call came from: file and line, as the author of the code knows them."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

Frame = TypeVar("Frame")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_names: dict[str, str | None] = {}  # co_filename -> the name to show; None: our own code, look further out


def caller() -> str:
    """ "file:line" of the innermost frame outside labkit.comm: the line that its author would call theirs."""
    return _innermost(own=False) or "?"


def author() -> str:
    """Likewise, past the frames of installed packages too: for what torch calls by itself."""
    return _innermost(own=True) or caller()


def _innermost(own: bool) -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        filename = frame.f_code.co_filename
        name = _names.get(filename, "")
        if name == "":
            name = _names[filename] = None if filename.startswith(_HERE) else shown_path(filename)
        if name is not None and not (own and installed(filename)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def shown_path(filename: str) -> str:
    """A file's name as a reader knows it: a notebook cell's number, else relative to the working directory if in it."""
    if "ipykernel" in filename or filename.startswith("<ipython-input"):
        try:
            label, name = sys.modules["IPython"].get_ipython().compile.format_code_name(filename)
            return f"{label} {name}"
        except Exception:  # another front end: the raw name is still true
            return filename
    try:
        relative = os.path.relpath(filename)
    except (OSError, ValueError):
        return filename
    return filename if relative.startswith("..") else relative


_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARY = (_HERE, *(os.path.join(form(path), "") for path in _PATHS for form in (os.path.abspath, os.path.realpath)))


def installed(filename: str) -> bool:
    """Whether a file is the standard library's, an installed package's or labkit.comm's: not the author's own code."""
    return filename.startswith(_LIBRARY)


_LABKIT = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "")


def machinery(filename: str) -> bool:
    """Whether a file is labkit's, or the interpreter's own: a line that who reads a traceback cannot mend."""
    return filename.startswith((_LABKIT, "<frozen"))


def theirs(filename: str) -> bool:
    """Whether a file is the author's own code."""
    return not (machinery(filename) or installed(filename))


def cut(frames: Sequence[Frame], file: Callable[[Frame], str]) -> list[Frame]:
    """`frames` without labkit's, wherever they stand; all of them where none is the author's own."""
    own = any(theirs(file(frame)) for frame in frames)
    return [frame for frame in frames if not (own and machinery(file(frame)))]
