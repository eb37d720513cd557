"""Where a call or an error came from, file and line, as its author knows them."""

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

Frame = TypeVar("Frame")
COURSES = ("given", "scenarios")  # of a week's folder: a folder and a file that students do not write
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
# labkit, and what stands beside it in the grader's sandbox and starts ranks there.
_MACHINERY = (os.path.join(_ROOT, "labkit", ""), os.path.join(_ROOT, "labkit_inside", ""), "<frozen")
_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARY = (_HERE, *(os.path.join(form(path), "") for path in _PATHS for form in (os.path.abspath, os.path.realpath)))
_names: dict[str, str | None] = {}  # co_filename -> the name to show; None: our own code, search further out
_root = ""


# -- whose a file is --------------------------------------------------------------------------------------------------
def written_in(root: str) -> None:
    """Set the folder that holds the student's files in this process: others may be the reference's, in their place."""
    global _root
    _root = os.path.join(root, "")


def installed(filename: str) -> bool:
    """Whether a file is the standard library's, an installed package's or labkit.comm's: not the author's own code."""
    return filename.startswith(_LIBRARY)


def machinery(filename: str) -> bool:
    """Whether a file is labkit's or the interpreter's own: whoever reads a traceback cannot fix a line there."""
    return filename.startswith(_MACHINERY)


def theirs(filename: str) -> bool:
    """Whether a file is the author's own code."""
    return not (machinery(filename) or installed(filename))


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


# -- the line of a call -----------------------------------------------------------------------------------------------
def caller() -> str:
    """ "file:line" of the innermost frame outside labkit.comm, or from the course's files (`courses`) on the author's."""
    return _innermost(own=False) or "?"


def author() -> str:
    """Likewise, past the frames of installed packages too: for what torch calls by itself."""
    return _innermost(own=True) or caller()


def _innermost(own: bool) -> str:
    frame: FrameType | None = sys._getframe(2)
    course = ""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename not in _names:
            _names[filename] = None if filename.startswith(_HERE) else shown_path(filename)
        name = _names[filename]
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


def with_owner(where: str) -> str:
    """A "file:line" for people: of the course's, with the remark that it is none of theirs."""
    return f"{where}, the course's line and not yours" if given(where.rpartition(":")[0]) else where


# -- errors and stacks ------------------------------------------------------------------------------------------------
def pick_frame(files: Sequence[str]) -> int | None:
    """The file to name of a stack's, innermost first: a student's; else the author's; else not installed; else any."""
    for fits in (students, theirs, lambda file: not installed(file), lambda file: True):
        for number, file in enumerate(files):
            if not file.startswith("<frozen") and fits(file):
                return number
    return None


def cut(frames: Sequence[Frame], file: Callable[[Frame], str]) -> list[Frame]:
    """`frames`, outermost first, without labkit's and the course's; all of them where none is the author's own."""
    own = any(theirs(file(frame)) for frame in frames)
    last = max((number for number, frame in enumerate(frames) if students(file(frame))), default=len(frames))
    return [
        frame
        for number, frame in enumerate(frames)
        if not (own and machinery(file(frame))) and not (number > last and courses(file(frame)))
    ]


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: {"text", "traceback", "stack"}, without labkit's frames (`cut`)."""
    # Made where the error was raised: whose a file is, is known where its path is.
    described = traceback.TracebackException.from_exception(error)
    described.stack += _backward(str(error))
    left: list[traceback.TracebackException | None] = [described]
    while left:
        if (one := left.pop()) is not None:
            kept: list[traceback.FrameSummary] = cut(one.stack, lambda frame: frame.filename)
            one.stack = traceback.StackSummary.from_list(kept)
            left += [one.__cause__, one.__context__, *(one.exceptions or ())]
    stack = [(f.filename, f.lineno or 0, f.name) for f in reversed(described.stack)]
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return {"text": text, "traceback": "".join(described.format()), "stack": stack}


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """An exception's frames, outermost first, as in `describe_error`."""
    return cut([*traceback.extract_tb(error.__traceback__), *_backward(str(error))], lambda frame: frame.filename)


def _backward(text: str) -> list[traceback.FrameSummary]:
    """The `backward` of which torch says that it gave too few gradients, or one of another shape; [] of other errors."""
    # torch finds out when it has returned: no frame shows where.
    said = re.search(r"[Ff]unction (\w+)Backward returned an", text)
    name = said[1] if said is not None else ""
    for module in list(sys.modules.values()) if name else ():
        function = getattr(getattr(module, "__dict__", {}).get(name), "backward", None)
        code = getattr(function, "__code__", None)
        if code is not None and students(code.co_filename):
            line = code.co_firstlineno
            while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
                line += 1
            return [traceback.FrameSummary(code.co_filename, line, "backward")]
    return []


def stack_of(thread: int | None) -> list[tuple[str, int, str]]:
    """Where a thread of this process is: (file, line, function), innermost first."""
    frame = sys._current_frames().get(thread or 0)
    return [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)] if frame else []
