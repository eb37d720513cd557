"""The class for the people who teach: one page with figures, and its short form for a terminal."""

import base64
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grading.publish import page
from grading.publish.difficulty import questions
from grading.publish.figures import draw_all
from grading.publish.overview import Overview
from labkit.checks.outcome import number
from labkit.checks.verdict import CRASHED, FORBIDDEN, HUNG, OUT_OF_MEMORY

OPENED, LISTED = 8, 200  # on the page: behaviours shown in full; names in one list
ROWS = 8  # behaviours in the terminal
LISTS = (  # heading, what it means, verdict
    ("Hung", "No answer by the deadline. Who waits for whom stands in the student's feedback.", HUNG),
    ("Crashed", "It raised an exception, or its process died.", CRASHED),
    ("Out of memory", "It asked for more memory than a submission gets.", OUT_OF_MEMORY),
    (
        "Forbidden calls",
        "It used what the task asks to build, or went around its group. That is what the machinery saw, and no "
        "judgement of a person: read the code first.",
        FORBIDDEN,
    ),
)


def write_page(overview: Overview, to: Path) -> Path:
    """One self-contained HTML file with figures."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = []
        for p in draw_all(overview, Path(folder)):
            source = "data:image/svg+xml;base64," + base64.b64encode(p.svg.read_bytes()).decode()
            pictures.append({"title": p.title, "alt": p.alt, "note": p.note, "source": source})
    return page.write(to, html(overview, pictures))


def html(overview: Overview, pictures: Sequence[dict[str, str]] = ()) -> str:
    """The page as text."""
    standings = overview.standings
    return page.render(
        "overview.html.j2",
        it=overview,
        asked=questions(overview),
        week=overview.week,
        pictures=pictures,
        now=datetime.now().astimezone(),
        attempts=sum(len(s.counted.attempts) for s in standings if s.counted),
        late=[s for s in standings if s.late],
        ungraded=[s for s in standings if s.ungraded],
        unsandboxed=[s for s in standings if s.unsandboxed],
        states=Counter(s.state for s in standings),
        opened=OPENED,
        listed=LISTED,
        here=page.here,
        lists=[(heading, text, overview.incidents_of(verdict)) for heading, text, verdict in LISTS],
    )


def render(overview: Overview, console: Console) -> None:
    """A table of the behaviours that most students failed, then a few lines."""
    if overview.not_understood:
        console.print("What the class has not understood", style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("task", no_wrap=True)
        table.add_column("behaviour", overflow="fold", ratio=2)
        table.add_column("failed", justify="right", no_wrap=True)
        table.add_column("not tried", justify="right", no_wrap=True)
        table.add_column("most common mistake", overflow="fold", ratio=3)
        for entry in overview.not_understood[:ROWS]:
            table.add_row(
                Text(entry.task, "bold"),
                Text(entry.title + (f", and {len(entry.also)} more" if entry.also else "")),
                f"{entry.failed} of {entry.judged}",
                str(entry.untried),
                Text(page.one_line(page.here(entry.typical[0]) if entry.typical else "", 300)),
            )
        console.print(table)
        if more := len(overview.not_understood) - ROWS:
            console.print(f"and {page.count(more, 'behaviour')} more" if more > 0 else "", highlight=False, style="dim")
    low, median, high = map(number, overview.quartiles)
    console.print(
        f"{page.count(len(overview.standings), 'student')}. Automatic points: median {median} of "
        f"{number(overview.possible)}, the middle half from {low} to {high}.",
        highlight=False,
        soft_wrap=True,
    )
    for heading, _, verdict in LISTS:
        words = "used a forbidden call" if verdict == FORBIDDEN else heading.lower()
        _names(console, words, [incident.student for incident in overview.incidents_of(verdict)])
    _names(console, "need a human, the grader failed", [s.person.name for s in overview.doubtful], "bold magenta")
    _names(console, "have a note on their submission (see the page)", [s.person.name for s in overview.noted])
    _names(console, "UNSANDBOXED", [s.person.name for s in overview.standings if s.unsandboxed], "bold red")


def _names(console: Console, what: str, students: list[str], style: str = "") -> None:
    names = list(dict.fromkeys(students))
    if names:
        shown = ", ".join(page.one_line(name, 30) for name in names[:8]) + (" ..." if len(names) > 8 else "")
        console.print(Text(f"{len(names)} {what}: {shown}", style), soft_wrap=True)
