"""One week's submissions, collected as another's: a slip in what is typed, for which a whole class would have zeros."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grading.intake.submission import Submission, read_submission
from labkit.checks.tasks import Week, find_weeks
from labkit.errors import LabError

LOOKED_AT = 12  # submissions of a download: a slip mistakes all of them


def refuse_another_weeks(archives: Sequence[Path], source: Path, week: Week) -> None:
    """LabError if most of a download's submissions are another week's, or it holds pages of feedback."""
    read = [read_submission(path) for path in archives[:LOOKED_AT]]
    if read and all(_is_feedback(one) for one in read):
        raise LabError(f"{source} holds feedback pages, as `grade publish` makes them, and no submission")
    found = [another_week(one, week) for one in read]
    theirs = Counter(other for other, _ in found if other)
    ours = sum(own for other, own in found if not other)
    other, many = theirs.most_common(1)[0] if theirs else ("", 0)
    if many > ours:
        mine = f"and {ours} of {week.name}" if ours else f"and none of {week.name}"
        raise LabError(
            f"{source} holds submissions of {other}, {mine}; nothing was collected. "
            f"`grade collect {other} {shlex.quote(str(source))}`"
        )


def another_week(read: Submission, week: Week) -> tuple[str, bool]:
    """(the week whose these files are, "" if they are not another's; whether any of this week's is among them). `lab
    handin` says it; else weeks have modules of one name, and a whole student tree holds all of every week: the larger
    share of a week's own tells."""
    if read.manifest is not None:
        return ("", True) if read.manifest.week == week.name else (read.manifest.week, False)
    names = {os.path.basename(path) for path in (*read.files, *read.left_out)}

    def share(one: Week) -> float:
        return len(names & modules(one)) / len(modules(one))

    own = share(week)
    best = max((one for one in find_weeks() if one.package != week.package), key=share, default=None)
    return (best.name if best and share(best) > own else ""), own > 0


def _is_feedback(read: Submission) -> bool:
    """Whether nothing is in it but what `grade publish` calls a page."""
    names = [os.path.basename(path) for path in (*read.files, *read.left_out)]
    return bool(names) and all(re.fullmatch(r"(.*_)?(week\d+|capstone)\.html", name) for name in names)


def modules(week: Week) -> set[str]:
    """The files that its automatic tasks are in, without their folders."""
    return {f"{module.split('.')[-1]}.py" for task in week.tasks for module in task.modules if task.kind == "auto"}
