"""How a run of ranks ends: with `Results`, or with `RanksFailed`."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.comm.callsite import cut, students
from labkit.comm.ledger import Ledger
from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.comm.autopsy import Autopsy


class Results(list):
    """The return values by rank. `ledgers[r]` is what rank r did."""

    def __init__(self, values: Iterable[Any], ledgers: list[Ledger]) -> None:
        super().__init__(values)
        self.ledgers = ledgers


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
    text: str = ""  # of the error: "ValueError: what it said"
    traceback: str = ""
    status: int | None = None  # it died: its process's exit status, or minus the signal that ended it
    stack: list[tuple[str, int, str]] = field(default_factory=list)  # (file, line, function), innermost first
    output: str = ""  # the last lines it wrote to stderr
    note: str = ""  # what could not be done about it

    @property
    def signal(self) -> int | None:
        return -self.status if self.status is not None and self.status < 0 else None


def tell(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: {"text", "traceback", "stack"}, without labkit's frames, wherever they stand: above
    the author's code, between two functions of it, or below. Whose a file is, is known here, where its path is."""
    told = traceback.TracebackException.from_exception(error)
    told.stack += _backward(str(error))
    _cut(told)
    stack = [(f.filename, f.lineno or 0, f.name) for f in reversed(told.stack)]
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return {"text": text, "traceback": "".join(told.format()), "stack": stack}


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """An exception's frames, outermost first, as `tell` has them."""
    return cut([*traceback.extract_tb(error.__traceback__), *_backward(str(error))], lambda frame: frame.filename)


def _backward(text: str) -> list[traceback.FrameSummary]:
    """The `backward` of which torch says that it gave too few gradients, or one of another shape; [] of other errors.
    torch finds out when it has returned: no frame shows where."""
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


def _cut(told: traceback.TracebackException | None) -> None:
    """Take labkit's frames out of it and of what it came from. One without a line of the author's stays whole."""
    if told is None:
        return
    kept: list[traceback.FrameSummary] = cut(told.stack, lambda frame: frame.filename)
    told.stack = traceback.StackSummary.from_list(kept)
    for cause in (told.__cause__, told.__context__, *(told.exceptions or ())):
        _cut(cause)


def stack_of(thread: int | None) -> list[tuple[str, int, str]]:
    """Where a thread of this process is: (file, line, function), innermost first."""
    frame, stack = sys._current_frames().get(thread or 0), []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack
