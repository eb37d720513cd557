"""Where a call came from: file and line, as the author of the code knows them.

A student's function may be called by the course, and call it: a week's scenarios.py drives it, counts its products,
hands it a function. Where one of the student's lines is on the way, that line is told.
"""

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
    """ "file:line" of the innermost frame outside labkit.comm: the line that its author would call theirs. From a file
    of the course's (`courses`) on, the next one outwards that is the author's own, if there is one."""
    return _innermost(own=False) or "?"


def author() -> str:
    """Likewise, past the frames of installed packages too: for what torch calls by itself."""
    return _innermost(own=True) or caller()


def _innermost(own: bool) -> str:
    frame: FrameType | None = sys._getframe(2)
    course = ""
    while frame is not None:
        filename = frame.f_code.co_filename
        name = _names.get(filename, "")
        if name == "":
            name = _names[filename] = None if filename.startswith(_HERE) else shown_path(filename)
        if name is not None and not (own and installed(filename)):
            if students(filename) if course else not courses(filename):
                return f"{name}:{frame.f_lineno}"
            course = course or f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return course


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


_INSIDE = _LABKIT[:-1] + "_inside" + os.sep  # beside labkit in the grader's sandbox: what starts ranks there


def machinery(filename: str) -> bool:
    """Whether a file is labkit's, or the interpreter's own: a line that who reads a traceback cannot mend."""
    return filename.startswith((_LABKIT, _INSIDE, "<frozen"))


def theirs(filename: str) -> bool:
    """Whether a file is the author's own code."""
    return not (machinery(filename) or installed(filename))


COURSES = ("given", "scenarios")  # of a week's folder: a folder and a file that students do not write
_root = ""


def written_in(root: str) -> None:
    """From now on, in this process, a student's files are those in `root`: others may be the reference's, put in their
    place."""
    global _root
    _root = os.path.join(root, "")


def given(filename: str) -> bool:
    """Whether a file, by its name, is one of a week's that students do not write."""
    folder, name = os.path.split(filename)
    return name == f"{COURSES[1]}.py" or os.path.basename(folder) == COURSES[0]


def courses(filename: str) -> bool:
    """Whether a file is `given`, or lies where no student's does."""
    return given(filename) or (not filename.startswith(_root) and theirs(filename))


def students(filename: str) -> bool:
    """Whether a file is the author's own code, and not the course's; a notebook's cell, too, but no `python -c`."""
    named = not filename.startswith("<") or filename.startswith("<ipython-input")
    return named and theirs(filename) and not courses(filename)


def cut(frames: Sequence[Frame], file: Callable[[Frame], str]) -> list[Frame]:
    """`frames`, outermost first, without labkit's, wherever they stand, and without the course's that a student's line
    called; all of them where none is the author's own."""
    own = any(theirs(file(frame)) for frame in frames)
    last = max((number for number, frame in enumerate(frames) if students(file(frame))), default=len(frames))
    return [
        frame
        for number, frame in enumerate(frames)
        if not (own and machinery(file(frame))) and not (number > last and courses(file(frame)))
    ]


def told_place(where: str) -> str:
    """A "file:line" for people: of the course's, that it is none of theirs. No line of theirs has called it."""
    return f"{where}, the course's line and not yours" if given(where.rpartition(":")[0]) else where


def told_of(files: Sequence[str]) -> int | None:
    """Which of a stack's files, innermost first, is the one to name: the innermost that is a student's; else the
    author's; else not installed; else any."""
    for fits in (students, theirs, lambda file: not installed(file), lambda file: True):
        for number, file in enumerate(files):
            if not file.startswith("<frozen") and fits(file):
                return number
    return None
