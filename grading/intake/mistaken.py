"""One week's hand-ins, collected as another's: a slip in what is typed, for which a whole class would have zeros."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grading.intake.find import Entry
from grading.intake.load import load
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

LOOKED_AT = 12  # hand-ins of a source: a slip mistakes all of them


def refuse_another_weeks(found: Sequence[Entry], source: Path, week: Week, next: str = "") -> None:
    """LabError if hand-ins of a source are another week's, and none is this week's. next: what to do instead, in place
    of what `grade collect` says."""
    if other := _another(found, week):
        next = next or (
            f"nothing was collected. `grade collect {other} --from {source}`; if somebody handed in another week's "
            "files, collect them with --student ID"
        )
        raise LabError(f"{source} holds hand-ins of {other}, and none of {week.name}; {next}")


def _another(found: Sequence[Entry], week: Week) -> str:
    """The week whose modules hand-ins of a source hold where none holds more of this week's; "" if there is none. Weeks
    have modules of one name, and a whole student tree holds all of every week: the larger share of a week's own tells.
    """
    weeks = {one.name: _modules(one) for one in find_weeks() if one.package != week.package}
    mine, theirs = _modules(week), Counter[str]()
    for entry in found[:LOOKED_AT]:
        read = load(entry, week)
        names = {os.path.basename(path) for path in (*read.files, *read.left_out)}
        own = len(names & mine) / len(mine)
        best = max(weeks, key=lambda name: len(names & weeks[name]) / len(weeks[name]), default="")
        if best and len(names & weeks[best]) / len(weeks[best]) > own:
            theirs[best] += 1
        elif own:
            return ""
    return theirs.most_common(1)[0][0] if theirs else ""


def _modules(week: Week) -> set[str]:
    return {f"{module.split('.')[-1]}.py" for task in week.tasks for module in task.modules if task.kind == "auto"}
