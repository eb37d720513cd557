"""The one exception type that a user is meant to read, and any other as one line."""

import os


class LabError(Exception):
    """A mistake that the reader can fix, in one clear sentence that says what to do next: `lab` prints it, with status
    2."""


def in_words(error: BaseException) -> str:
    """ "OSError: libcuda.so.1: cannot open shared object file", on one line, the home directory as ~."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    home = os.path.expanduser("~")
    text = text.replace(home, "~") if len(home) > 1 else text
    return text if len(text) <= 300 else text[:297] + "..."
