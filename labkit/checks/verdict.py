"""The words for how a case can end, and the exception that carries one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.comm.ledger import Ledger

PASSED = "passed"
WRONG = "wrong"  # it answered, and the answer (or its traffic) is not what the task asks for
NO_RESULT = "no result"  # None, something that is no tensor or number, or no such function
HUNG = "hung"  # no answer by the deadline, or a deadlock that is certain before it
CRASHED = "crashed"  # it raised, or its process died
FORBIDDEN = "forbidden call"  # it used what the task asks to build, or talked outside the group
OUT_OF_MEMORY = "out of memory"  # it wanted more memory than a submission may use
NOT_ATTEMPTED = "not attempted"  # the blank is not filled in
FAULT = "grader fault"  # the checking machinery failed: nobody's zero; report it
VERDICTS = (PASSED, WRONG, NO_RESULT, HUNG, CRASHED, OUT_OF_MEMORY, FORBIDDEN, NOT_ATTEMPTED, FAULT)

UNKNOWN = "cause unknown"
TRUE_ALWAYS = ("nothing but zeros", "every number is ")  # descriptions, not causes: true wherever they are given


class CheckFailed(AssertionError):
    """A case is not passed: `verdict`, a text, and the cause if it was recognised; ledgers: of an unanswered call."""

    def __init__(self, verdict: str, text: str, *, cause: tuple[str, ...] = (), ledgers: Sequence[Ledger] = ()) -> None:
        super().__init__(text)
        self.verdict, self.text, self.cause, self.ledgers = verdict, text, cause, ledgers


def wrong(what: str, expected: str, got: str, cause: tuple[str, ...] = (), *, known: bool = False) -> CheckFailed:
    """The standard text of a wrong answer: both sides, and the cause or that it is unknown, unless `known`."""
    line = "" if known and not cause else f"\n  {cause_line(cause)}"
    return CheckFailed(WRONG, f"{what}\n  expected  {expected}\n  got       {got}{line}", cause=cause)


def cause_line(cause: tuple[str, ...]) -> str:
    """One line on the cause. Several sentences: this case cannot tell the mistakes apart, and says so."""
    if not cause:
        return UNKNOWN
    if len(cause) == 1:
        return f"cause: {cause[0]}"
    return "cause, one of (this case cannot tell them apart): " + "; or ".join(cause)
