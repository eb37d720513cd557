"""`check`, and what a person sees of it: progress while it works, then the table, then why each case failed."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence, Set

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit.checks.outcome import CaseResult, Outcome, gist, number, points
from labkit.checks.pytest_run import run_checks
from labkit.checks.tasks import Task
from labkit.checks.verdict import FAULT, HUNG, NOT_ATTEMPTED, PASSED, TRUE_ALWAYS, UNKNOWN

COLOURS = {PASSED: "green", NOT_ATTEMPTED: "dim", FAULT: "magenta"}  # the words say it all; colour only helps
SHOWN = 2  # diagnoses shown of one task, unless all are requested


def check(
    *names: str, seed: int | None = None, deadline: float | None = None, show_all: bool = False, quiet: bool = False
) -> Outcome:
    """Check your files as saved on disk, show the table unless `quiet`, and return the Outcome: check("13.4")."""
    console = Console(file=sys.stdout, quiet=quiet)  # this one, whatever pytest makes of it meanwhile
    with watched(console) as progress:
        outcome = run_checks(names, seed=seed, deadline=deadline, progress=progress)
    render(outcome, console, show_all=show_all)
    return outcome


@contextlib.contextmanager
def watched(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """A progress line on a terminal or in a notebook; gives what moves it."""
    if console.is_jupyter:  # one line of text that changes in place: a bar would need ipywidgets
        from IPython.display import display

        place = display({"text/plain": "checking ..."}, raw=True, display_id=True)
        try:
            yield lambda done, total, what: place.update({"text/plain": f"{done} of {total}: {what}"}, raw=True)
        finally:
            place.update({"text/plain": ""}, raw=True)
        return
    with console.status("checking ...") as status:
        yield lambda done, total, what: status.update(Text(f"{done} of {total}: {what}"))


def render(outcome: Outcome, console: Console, show_all: bool = False) -> None:
    """The table, the diagnoses, the sum."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("behaviour", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("points", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in outcome.tasks:
        _rows(table, task, outcome.of(task.id))
    console.print(table)
    for task in outcome.tasks:
        _diagnoses(console, task, outcome, show_all)
    written = [task for task in outcome.tasks if task.kind == "written"]
    by_hand = f"; {number(sum(t.points for t in written))} more are given by hand" if written else ""
    again = f"seed {outcome.seed} (the same data again: --seed {outcome.seed})"
    console.print()
    console.print(Text(f"{outcome!r}{by_hand}. {outcome.seconds:.1f} s, {again}", "bold"))
    if any(case.verdict == HUNG and " within " in case.text for case in outcome.cases):
        longer = "lab check --deadline 60, or check(..., deadline=60)"
        console.print(Text(f"What did not end in time on a slow or busy machine may need longer: {longer}."))
    if outcome.faults:
        what = "A case marked 'grader fault' failed in the checking machinery, not in your code"
        console.print(Text(f"{what}: run it again, and tell the course if it stays."))


def _rows(table: Table, task: Task, cases: Sequence[CaseResult]) -> None:
    # Of several cases no sum: some wait side by side, and together they take less.
    seconds = f"{cases[0].seconds:.1f}" if len(cases) == 1 else ""
    if task.kind == "written":
        table.add_row(Text(task.id, "bold"), Text(task.title, "bold"), "by hand", f"{number(task.points)}", "")
        return
    earned = f"{number(points(cases))} / {number(task.points)}" if task.points else ""
    verdicts = {case.verdict for case in cases}
    word = verdicts.pop() if len(verdicts) == 1 else ""
    verdict = Text(word or "partly", COLOURS.get(word, "red"))
    table.add_row(Text(task.id, "bold"), Text(task.title, "bold"), verdict, Text(earned, "bold"), seconds)
    if word == NOT_ATTEMPTED or (word == PASSED and len(cases) == 1):
        return
    last = None
    for case in cases:
        if case.case and case.title != last:
            table.add_row("", Text(f"  {case.title}"), "", "", "")
        last = case.title
        what = Text(f"    {case.case}" if case.case else f"  {case.title}")
        earned = f"{number(case.earned)} / {number(case.possible)}" if case.possible else ""
        table.add_row("", what, Text(case.verdict, COLOURS.get(case.verdict, "red")), earned, f"{case.seconds:.1f}")
        if case.verdict == PASSED and case.text:
            table.add_row("", Text(f"      {case.text}", "dim"), "", "", "")


def _diagnoses(console: Console, task: Task, outcome: Outcome, show_all: bool) -> None:
    failed = [case for case in outcome.of(task.id) if case.verdict != PASSED]
    if not failed:
        return
    console.print()
    if first := [other for other in task.stands_on if any(c.verdict != PASSED for c in outcome.of(other))]:
        which = f"{' and '.join(first)}, which {'fails' if len(first) == 1 else 'fail'} too"
        console.print(Text(f"{task.id} stands on {which}: it may be the cause.", "italic"))
    elif unseen := [other for other in task.stands_on if not outcome.of(other)]:
        names = " and ".join(filter(None, (", ".join(unseen[:-1]), unseen[-1])))
        console.print(Text(f"{task.id} stands on {names}: at home a mistake there fails here too.", "italic"))
    for text in dict.fromkeys(case.text for case in failed if case.verdict == NOT_ATTEMPTED):
        console.print(Text.assemble((task.id, "bold"), f"  {text}"))
    # One mistake often breaks several cases: it is described once.
    groups: dict[tuple, list[CaseResult]] = {}
    certain = {gist(case.cause[0]) for case in failed if len(case.cause) == 1}
    # The surest first: one cause, several that the case could not tell apart, a description of the numbers, none.
    described = {id(case) for case in failed if any(cause.startswith(TRUE_ALWAYS) for cause in case.cause)}
    for case in sorted(failed, key=lambda case: 98 if id(case) in described else len(case.cause) or 99):
        if case.verdict != NOT_ATTEMPTED:
            groups.setdefault(_same_mistake(case, show_all, certain), []).append(case)
    above = f"{UNKNOWN} here: perhaps as above" if any(case.cause for case in failed) else UNKNOWN
    mistakes = list(groups.values())
    shown = mistakes if show_all else mistakes[:SHOWN]
    for cases in shown:
        names = cases[0].behaviour + (f" (and {len(cases) - 1} more)" if len(cases) > 1 else "")
        console.print(Text.assemble((f"{task.id}  {cases[0].verdict}", "bold red"), f"  {names}"))
        console.print(Padding(Text(cases[0].text.replace(UNKNOWN, above)), (0, 0, 0, 4)))
        if cases[0].printed:
            console.print(Padding(Text(f"it printed:\n{cases[0].printed.rstrip()}", "dim"), (0, 0, 0, 4)))
    if more := sum(map(len, mistakes[len(shown) :])):
        fail = "cases fail" if more > 1 else "case fails"
        console.print(Text(f"    {more} more {fail}: lab check {task.id} --all shows every diagnosis.", "dim"))


def _same_mistake(case: CaseResult, exactly: bool, certain: Set[str]) -> tuple:
    """A key: cases with equal ones share a diagnosis: the same words, or the same cause of whichever rank and length."""
    if exactly:
        return case.verdict, case.text
    if explained := [cause for cause in map(gist, case.cause) if cause in certain]:
        return (explained[0],)
    if case.verdict == HUNG:
        return (HUNG,)
    return case.verdict, *map(gist, case.cause or (case.text,))
