"""The class for the people who teach: one page with figures."""

import base64
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from grading.publish import page
from grading.publish.figures import draw_all
from grading.publish.overview import Overview
from labkit.checks.verdict import CRASHED, FORBIDDEN, HUNG, OUT_OF_MEMORY

OPENED, LISTED = 8, 200  # on the page: behaviours shown in full; names in one list
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
        lists=[
            (heading, text, [one for one in overview.incidents if one.verdict == verdict])
            for heading, text, verdict in LISTS
        ],
    )
