"""What a person sees of a check: progress while it works, then the table, then why each case failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from labkit.checks.outcome import CaseResult, Outcome, number, points
from labkit.checks.run import run_checks
from labkit.checks.tasks import Task
from labkit.checks.verdict import FAULT, HUNG, NOT_ATTEMPTED, PASSED

COLOURS = {PASSED: "green", NOT_ATTEMPTED: "dim", FAULT: "magenta"}  # the words say it all; colour only helps
SHOWN = 2  # diagnoses shown of one task, unless all are asked for


def check(*names: str, seed: int | None = None, deadline: float | None = None, show_all: bool = False) -> Outcome:
    """For notebooks: check("13.4") checks your files as saved on disk, shows the table, and returns the Outcome."""
    with watch() as (console, hooks):
        outcome = run_checks(names, seed=seed, deadline=deadline, **hooks)
    render(outcome, console, show_all=show_all)
    return outcome


@contextlib.contextmanager
def watch(console: Console | None = None, quiet: bool = False) -> Iterator[tuple[Console, dict[str, Any]]]:
    """A progress line on a terminal or in a notebook. Gives the console and the hooks for `run_checks`."""
    console = console or Console()  # made before pytest redirects stdout
    if console.is_jupyter and not quiet:
        with _notebook_line() as hooks:
            yield console, hooks
        return
    if quiet or not console.is_terminal:
        yield console, {}
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        line = bar.add_task("starting", total=None)
        yield (
            console,
            {
                "expected": lambda count: bar.update(line, total=count),
                "starts": lambda task, behaviour: bar.update(line, description=f"{task} {behaviour}"),
                "ends": lambda case: bar.advance(line),
            },
        )


@contextlib.contextmanager
def _notebook_line() -> Iterator[dict[str, Any]]:
    """One line of text that changes in place: a bar would need ipywidgets."""
    from IPython.display import display

    total, done = 0, 0
    line = display({"text/plain": "checking ..."}, raw=True, display_id=True)

    def expected(count: int) -> None:
        nonlocal total
        total = count

    def starts(task: str, title: str) -> None:
        line.update({"text/plain": f"{done} of {total}: {task} {title}"}, raw=True)

    def ends(case: CaseResult) -> None:
        nonlocal done
        done += 1

    try:
        yield {"expected": expected, "starts": starts, "ends": ends}
    finally:
        line.update({"text/plain": ""}, raw=True)


def render(outcome: Outcome, console: Console, show_all: bool = False) -> None:
    """The table, the diagnoses, the sum."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("behaviour", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for task in outcome.tasks:
        _rows(table, task, outcome.of(task.id))
    console.print(table)
    for task in outcome.tasks:
        _diagnoses(console, task, outcome, show_all)
    written = [task for task in outcome.tasks if task.kind == "written"]
    by_hand = f"; {number(sum(t.points for t in written))} more are given by hand" if written else ""
    console.print()
    console.print(
        f"{number(outcome.earned)} of {number(outcome.possible)} automatic points{by_hand}. "
        f"{outcome.seconds:.1f} s, seed {outcome.seed} (the same data again: --seed {outcome.seed})",
        highlight=False,
        style="bold",
    )
    if outcome.faults:
        console.print(
            "A case marked 'grader fault' failed in the checking machinery, not in your code: run it "
            "again, and tell the course if it stays.",
            highlight=False,
        )


def _rows(table: Table, task: Task, cases: Sequence[CaseResult]) -> None:
    seconds = f"{sum(case.seconds for case in cases):.1f}"
    if task.kind == "written":
        table.add_row(Text(task.id, "bold"), Text(task.title, "bold"), "by hand", f"{number(task.points)}", "")
        return
    earned = f"{number(points(cases))} / {number(task.points)}"
    verdicts = {case.verdict for case in cases}
    word = verdicts.pop() if len(verdicts) == 1 else ""
    table.add_row(
        Text(task.id, "bold"),
        Text(task.title, "bold"),
        Text(word or "partly", COLOURS.get(word, "red")),
        Text(earned, "bold"),
        seconds,
    )
    if (word in (NOT_ATTEMPTED, PASSED) and len(cases) == 1) or word == NOT_ATTEMPTED:
        return
    last = None
    for case in cases:
        if case.case and case.title != last:
            table.add_row("", Text(f"  {case.title}"), "", "", "")
        last = case.title
        table.add_row(
            "",
            Text(f"    {case.case}" if case.case else f"  {case.title}"),
            Text(case.verdict, COLOURS.get(case.verdict, "red")),
            f"{number(case.earned)} / {number(case.possible)}",
            f"{case.seconds:.1f}",
        )


def _diagnoses(console: Console, task: Task, outcome: Outcome, show_all: bool) -> None:
    failed = [case for case in outcome.of(task.id) if case.verdict != PASSED]
    if not failed:
        return
    console.print()
    first = [other for other in task.stands_on if any(c.verdict != PASSED for c in outcome.of(other))]
    if first:
        fail = "fails" if len(first) == 1 else "fail"
        console.print(Text(f"{task.id} stands on {' and '.join(first)}, which {fail} too: begin there.", "italic"))
    elif task.stands_on:
        names = " and ".join(filter(None, (", ".join(task.stands_on[:-1]), task.stands_on[-1])))
        console.print(Text(f"{task.id} stands on {names}: a mistake there fails here too.", "italic"))
    holes = dict.fromkeys(case.text for case in failed if case.verdict == NOT_ATTEMPTED)
    for text in holes:
        console.print(Text.assemble((task.id, "bold"), f"  {text}"))
    # One mistake often breaks several cases: it is told once.
    groups: dict[tuple, list[CaseResult]] = {}
    for case in failed:
        if case.verdict != NOT_ATTEMPTED:
            groups.setdefault(_same_mistake(case, show_all), []).append(case)
    shown = list(groups.items()) if show_all else list(groups.items())[:SHOWN]
    for _, cases in shown:
        names = cases[0].behaviour + (f" (and {len(cases) - 1} more)" if len(cases) > 1 else "")
        console.print(Text.assemble((f"{task.id}  {cases[0].verdict}", "bold red"), f"  {names}"))
        console.print(Padding(Text(cases[0].text), (0, 0, 0, 4)))
        if cases[0].printed:
            console.print(Padding(Text(f"it printed:\n{cases[0].printed.rstrip()}", "dim"), (0, 0, 0, 4)))
    if more := sum(len(cases) for _, cases in list(groups.items())[len(shown) :]):
        fail = "cases fail" if more > 1 else "case fails"
        console.print(Text(f"    {more} more {fail}: lab check {task.id} --all shows every diagnosis.", "dim"))


def _same_mistake(case: CaseResult, exactly: bool) -> tuple:
    """Cases with equal keys are told once: the same words; or the same cause; or a hang, whose words hold times."""
    if exactly:
        return case.verdict, case.text
    return case.verdict, "" if case.verdict == HUNG else case.cause or case.text
