"""The class on one page, for the people who teach: what it has not understood, how it did, whom to look at.

overview(week, standings) -> Overview      numbers and lists; the page and the terminal's table read it
"""

from __future__ import annotations

import base64
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grading.reports import page
from grading.reports.mistakes import Behaviour, behaviours
from grading.reports.standing import Standing, possible
from labkit.checks.tasks import Week
from labkit.checks.verdict import CRASHED, FAULT, FORBIDDEN, HUNG, OUT_OF_MEMORY

SLOWEST, OPENED, LISTED = 10, 8, 200  # rows; behaviours told in full; names in one list


@dataclass(frozen=True)
class Incident:
    """One student, one task, one verdict: how many cases, where first, and the diagnosis' first line."""

    student: str
    task: str
    verdict: str
    cases: int
    behaviour: str
    words: str


@dataclass
class Overview:
    """What the class's page says, as data."""

    week: Week
    standings: list[Standing]
    behaviours: list[Behaviour]
    incidents: list[Incident]

    @property
    def not_understood(self) -> list[Behaviour]:
        return [entry for entry in self.behaviours if entry.failed]

    def incidents_of(self, *verdicts: str) -> list[Incident]:
        return [incident for incident in self.incidents if incident.verdict in verdicts]

    @property
    def doubtful(self) -> list[Standing]:
        """Those whom a person must look at: the grader failed somewhere."""
        return [s for s in self.standings if not s.settled or s.mark.attention]

    @property
    def slowest(self) -> list[Standing]:
        return sorted(self.standings, key=lambda s: -s.mark.seconds)[:SLOWEST]

    @property
    def automatic(self) -> list[float]:
        """Automatic points of those whose points are sure."""
        return [float(s.automatic) for s in self.standings if s.settled]

    @property
    def possible(self) -> float:
        return max((possible(s.mark.tasks, "auto") for s in self.standings), default=0)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile of the sure automatic points."""
        values = self.automatic
        if len(values) < 2:
            return (values[0],) * 3 if values else (0.0,) * 3
        return tuple(statistics.quantiles(values, n=4, method="inclusive"))

    def by_task(self) -> list[dict[str, Any]]:
        """Of each task that gives points: mean share of the points, how many have all, none, a hole, no decision."""
        rows: dict[str, dict[str, Any]] = {}
        for standing in self.standings:
            for task in standing.mark.tasks:
                if task["kind"] == "stretch":
                    continue
                row = rows.setdefault(
                    task["id"],
                    {
                        "id": task["id"],
                        "title": task["title"],
                        "kind": task["kind"],
                        "possible": task["possible"],
                        "shares": [],
                        "full": 0,
                        "none": 0,
                        "open": 0,
                    },
                )
                points = standing.points(task)
                row["open"] += points is None
                if points is not None:
                    row["shares"].append(points / task["possible"])
                    row["full"] += points >= task["possible"]
                    row["none"] += points == 0
        for row in rows.values():
            row["mean"] = statistics.fmean(row["shares"]) if row["shares"] else None
        return list(rows.values())


def overview(week: Week, standings: list[Standing]) -> Overview:
    """Count the class."""
    found = behaviours(standing.mark.tasks for standing in standings)
    return Overview(week, standings, found, [incident for s in standings for incident in _incidents(s)])


def _incidents(standing: Standing):
    for task in standing.mark.tasks:
        groups: dict[str, list[dict[str, Any]]] = {}
        for case in task["cases"]:
            if case["verdict"] in (HUNG, CRASHED, OUT_OF_MEMORY, FORBIDDEN, FAULT):
                groups.setdefault(case["verdict"], []).append(case)
        for verdict, cases in groups.items():
            yield Incident(
                standing.student,
                task["id"],
                verdict,
                len(cases),
                cases[0]["behaviour"],
                page.one_line(page.here(cases[0]["text"]), 160),
            )


def write_page(overview: Overview, to: Path) -> Path:
    """One self-contained HTML file with figures."""
    from grading.reports.figures import draw_all  # matplotlib: only when a page is drawn

    with tempfile.TemporaryDirectory() as folder:
        pictures = [
            {
                "title": p.title,
                "alt": p.alt,
                "note": p.note,
                "source": "data:image/svg+xml;base64," + base64.b64encode(p.svg.read_bytes()).decode(),
            }
            for p in draw_all(overview, Path(folder))
        ]
    return page.write(to, html(overview, pictures))


def html(overview: Overview, pictures: list[dict[str, str]] = ()) -> str:
    """The page as text."""
    standings = overview.standings
    return page.render(
        "overview.html.j2",
        it=overview,
        week=overview.week,
        pictures=pictures,
        now=datetime.now().astimezone(),
        attempts=sum(len(s.attempts) for s in standings),
        late=[s for s in standings if s.factor < 1],
        ungraded=[s for s in standings if s.ungraded],
        unsandboxed=[s for s in standings if s.unsandboxed],
        states=Counter(s.state for s in standings),
        opened=OPENED,
        listed=LISTED,
        here=page.here,
        lists=[
            (
                "Hung",
                "No answer by the deadline. Who waits for whom stands in the student's feedback.",
                overview.incidents_of(HUNG),
            ),
            ("Crashed", "It raised an exception, or its process died.", overview.incidents_of(CRASHED)),
            ("Out of memory", "It asked for more memory than a submission gets.", overview.incidents_of(OUT_OF_MEMORY)),
            (
                "Forbidden calls",
                "It used what the task asks to build, or went around its group. That is what the "
                "machinery saw, and no judgement of a person: read the code first.",
                overview.incidents_of(FORBIDDEN),
            ),
        ],
    )
