"""The one exception type that a user is meant to read."""

from __future__ import annotations


class LabError(Exception):
    """A mistake that the reader can fix.

    The message is one clear sentence that says what is wrong and what to do next. `lab` prints it without a traceback
    and exits with status 2, so raise it only where the sentence is enough.
    """
