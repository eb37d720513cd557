"""How a run of ranks ends: with `Results`, or with `RanksFailed`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.comm.ledger import Ledger
from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.comm.autopsy import Autopsy


class Results(list):
    """The return values by rank. `ledgers[r]` is what rank r did; `seconds` how long the run took (wall clock)."""

    def __init__(self, values: Iterable[Any], ledgers: list[Ledger], seconds: float = 0.0) -> None:
        super().__init__(values)
        self.ledgers, self.seconds = ledgers, seconds


class RanksFailed(LabError):
    """Some rank raised, died, or did not end in time. `str()` is the autopsy's text.

    autopsy    what each rank was doing, who waits for whom, and whose fault it was
    ledgers    what each rank had done by then
    error      the guilty rank's own exception, where there is one and it could be brought here; else None
    """

    def __init__(self, autopsy: Autopsy, ledgers: list[Ledger], error: BaseException | None = None) -> None:
        super().__init__(str(autopsy))
        self.autopsy, self.ledgers, self.error = autopsy, ledgers, error

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the autopsy, and not the frames of run_ranks above it."""
        return [f"RanksFailed: {self}"]


@dataclass
class Evidence:
    """What is known of one rank at the moment a run ended. The autopsy is made from these alone."""

    rank: int
    ledger: Ledger
    state: str = "running"  # "running" (includes waiting), "returned", "raised", "died"
    now: float = 0.0  # seconds since the start of the run when this was taken
    order: float = float("inf")  # when it raised or died, to tell causes from consequences
    error: BaseException | None = None  # what it raised, if it could be brought here
    error_text: str = ""  # "ValueError: what it said"
    traceback: str = ""
    signal: int | None = None  # it died by this signal
    exitcode: int | None = None  # it ended its process with this status
    stack: list[tuple[str, int, str]] = field(default_factory=list)  # (file, line, function), innermost first
    output: str = ""  # the last lines it wrote to stderr
    note: str = ""  # what could not be done about it


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def tell(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: {"text", "traceback", "stack"}, without the frames that only called the function."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(_HERE):
        tb = tb.tb_next
    lines = traceback.format_exception(type(error), error, tb)
    stack = [(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_tb(tb))]
    return {"text": f"{type(error).__name__}: {error}".rstrip(": "), "traceback": "".join(lines), "stack": stack}


def stack_of(thread: int | None) -> list[tuple[str, int, str]]:
    """Where a thread of this process is: (file, line, function), innermost first."""
    frame, stack = sys._current_frames().get(thread or 0), []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack
