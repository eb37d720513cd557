"""A student's feedback as plain text, for a mail: what the page says, without its pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grading.publish import page
from grading.publish.feedback import attempt_of, what_next
from grading.publish.mistakes import grouped
from grading.publish.overview import mark_of
from grading.register.standing import Standing, possible
from labkit.checks.tasks import Week

WIDE = 72
DIAGNOSIS = "    "  # what begins so keeps its lines: columns stand below one another


def text(week: Week, standing: Standing, comments: Mapping[str, str]) -> str:
    """The mail's text. Its lines are no longer than a mail's should be, but for what a student's code said.

    comments   task -> what a person wrote, as the student reads it"""
    total = standing.total
    lines = [
        f"{week.name}, {week.title}: your feedback",
        "",
        f"{attempt_of(standing).capitalize()}. "
        + (
            f"Total: {page.of(total, possible(standing.tasks))} points."
            if total is not None
            else "Excused."
            if standing.excused
            else "Not final yet."
        ),
    ]
    if standing.rule:
        lines.append(standing.rule)
    lines += ["", *(page.visible(note, 600, 6) for note in mark_of(standing).notes), "", "Points by task", ""]
    for task in standing.tasks:
        if task["kind"] != "stretch":
            said = ": nothing handed in" if standing.unanswered(task) else ""
            points = page.of(standing.points(task), task["possible"])
            lines.append(f"  {task['id']:<6}{points:>14}  {task['title']}{said}")
    if steps := what_next(week, standing):
        lines += ["", "What to do next", "", *(f"  {place}. {said}" for place, said in enumerate(steps, 1))]
    for task in standing.tasks:
        groups = grouped(task["cases"])
        comment = comments.get(task["id"], "")
        if not groups and not comment:
            continue
        lines += ["", f"Task {task['id']}, {task['title']}", ""]
        if comment:
            lines += ["  A person wrote:", *(_filled(f"    {line}") for line in page.visible(comment).split("\n")), ""]
        for group in groups:
            behaviours = "; ".join(page.one_line(case["behaviour"], 120) for case in group[:3])
            more = f" and {len(group) - 3} more" if len(group) > 3 else ""
            lines += [f"  {group[0]['verdict']}: {behaviours}{more}"]
            lines += [f"{DIAGNOSIS}{line}" for line in page.visible(page.here(group[0]["text"])).split("\n")]
            lines.append("")
    lines += ["", f"To ask about a verdict, name {week.name} and submission {mark_of(standing).submission}."]
    whole = "\n".join(lines).rstrip().split("\n")
    text = "\n".join(line if line.startswith(DIAGNOSIS) else _filled(line) for line in whole) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _filled(line: str) -> str:
    """A line as some, each with its indent."""
    import textwrap

    if len(line) <= WIDE:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, WIDE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
