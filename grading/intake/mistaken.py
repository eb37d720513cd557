"""One week's hand-ins, collected as another's: a slip in what is typed, for which a whole class would have zeros."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grading.intake.find import Entry
from grading.intake.load import Submission, load
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

LOOKED_AT = 12  # hand-ins of a source: a slip mistakes all of them


def refuse_another_weeks(found: Sequence[Entry], source: Path, week: Week, next: str = "") -> None:
    """LabError if most hand-ins of a source are another week's, or it holds pages of feedback. next: what to do
    instead, in place of what `grade collect` says."""
    if found and all(_is_feedback(load(entry, week)) for entry in found[:LOOKED_AT]):
        raise LabError(f"{source} holds feedback pages, as `grade pack feedback` makes them, and no hand-in")
    other, few = _another(found, week)
    if other:
        next = next or (
            f"nothing was collected. `grade collect {other} --from {shlex.quote(str(source))}`; if somebody handed in "
            "another week's files, collect them with --student ID"
        )
        mine = f"and {few} of {week.name}" if few else f"and none of {week.name}"
        raise LabError(f"{source} holds hand-ins of {other}, {mine}; {next}")


def _another(found: Sequence[Entry], week: Week) -> tuple[str, int]:
    """(the week whose modules more hand-ins of a source hold than this week's, "" if there is none; how many hold this
    week's). Weeks have modules of one name, and a whole student tree holds all of every week: the larger share of a
    week's own tells."""
    theirs, ours = Counter[str](), 0
    for entry in found[:LOOKED_AT]:
        read = load(entry, week)
        other, own = another_week(read, week)
        if other:
            theirs[other] += 1
        elif own:
            ours += 1
    other, many = theirs.most_common(1)[0] if theirs else ("", 0)
    return (other, ours) if many > ours else ("", ours)


def another_week(read: Submission, week: Week) -> tuple[str, bool]:
    """(the week of whose modules this hand-in holds a larger share than of this week's, "" if there is none; whether it
    holds any of this week's)."""
    names = {os.path.basename(path) for path in (*read.files, *read.left_out)}

    def share(one: Week) -> float:
        return len(names & _modules(one)) / len(_modules(one))

    own = share(week)
    best = max((one for one in find_weeks() if one.package != week.package), key=share, default=None)
    return (best.name if best and share(best) > own else ""), own > 0


def _is_feedback(read: Submission) -> bool:
    """Whether nothing is in it but what `grade feedback` calls a page."""
    names = [os.path.basename(path) for path in (*read.files, *read.left_out)]
    return bool(names) and all(re.fullmatch(r"(.*_)?(week\d+|capstone)\.html", name) for name in names)


def _modules(week: Week) -> set[str]:
    return {f"{module.split('.')[-1]}.py" for task in week.tasks for module in task.modules if task.kind == "auto"}
