"""The one exception type that a user is meant to read, any other as one line, and how every program ends."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130  # the shell's convention for a program ended by Ctrl-C (128 + SIGINT)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
WRITING = {*FULL, errno.EROFS}  # only a write meets these
REFUSED = {*WRITING, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EIO}
REFUSED |= {errno.ESTALE, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ENOTEMPTY, errno.EBUSY}


class LabError(Exception):
    """A mistake that the reader can fix, in one clear sentence that says what to do next: `lab` prints it, status 2."""


def in_words(error: BaseException) -> str:
    """ "OSError: libcuda.so.1: cannot open shared object file", on one line, the home directory as ~."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    home = os.path.expanduser("~")
    text = text.replace(home, "~") if len(home) > 1 else text
    return text if len(text) <= 300 else text[:297] + "..."


def explain(error: BaseException | None) -> str | None:
    """What the reader can mend, as a sentence: a LabError, a file or a folder that the machine refuses, a user without
    a home, a torch that does not import. None: another error. Of ranks that failed the guilty one's error is asked."""
    error = getattr(error, "error", error)
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, Exception) and _imports(error, "torch"):
        return f"torch does not import ({in_words(error)}): `lab doctor` says what to do"
    if isinstance(error, OSError) and error.errno in REFUSED:
        does = "write" if error.errno in WRITING else "use"
        what = f"could not {does} {os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        return f"{what}{error.strerror}"
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "this user has no home folder: set HOME to a folder that you may write to"
    return None


def _imports(error: Exception, package: str) -> bool:
    """Whether it was raised while a module of this package was imported, or since there is none."""
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return True
    bodies = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>")
    return any(f"{frame.f_globals.get('__name__')}.".startswith(f"{package}.") for frame in bodies)


def run_command(
    name: str, body: Callable[[], int | None], shown: Callable[[str], str] = str, stopped: str = "interrupted"
) -> NoReturn:
    """Run a program's `body` and leave with the status that it returns. What `explain` has words for is one line on
    stderr and status 2, ranks that failed otherwise an autopsy and status 1, Ctrl-C one line and status 130."""
    for size in ("COLUMNS", "LINES"):  # 0 of a terminal without a size, as in Emacs: rich would print nothing
        if os.environ.get(size) == "0":
            del os.environ[size]
    try:
        status = body()
    except (KeyboardInterrupt, SystemExit) as end:
        # Ctrl-C in a command: typer makes a status of it, and says nothing. (A command that has reported it ends with a
        # status of its own making.)
        causes = (end, getattr(end.__context__, "__cause__", None))
        if not any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            raise
        print(f"{name}: {stopped}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        said = explain(error)
        if said is None and not isinstance(error, LabError):
            raise
        with suppress(OSError):
            sys.stdout.flush()
        print(f"{name}: {shown(said or str(error))}", file=sys.stderr)
        sys.exit(2 if said else 1)
    sys.exit(status)
