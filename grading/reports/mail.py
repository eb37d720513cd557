"""A student's feedback as plain text, for a mail: what the page says, without its pictures."""

from __future__ import annotations

import re

from grading.reports import page
from grading.reports.feedback import what_next
from grading.reports.mistakes import told_once
from grading.reports.standing import Standing, possible
from labkit.checks.tasks import Week

WIDE = 72
DIAGNOSIS = "    "  # what begins so keeps its lines: columns stand below one another


def text(week: Week, standing: Standing) -> str:
    """The mail's text. Its lines are no longer than a mail's should be, but for what a student's code said."""
    total = standing.total
    lines = [
        f"{week.name}, {week.title}: your feedback",
        "",
        f"Attempt {standing.mark.attempt}. "
        + (
            f"Total: {page.of(total, possible(standing.mark.tasks))} points." if total is not None else "Not final yet."
        ),
    ]
    if standing.rule:
        lines.append(standing.rule)
    lines += ["", *(page.visible(note, 600, 6) for note in standing.mark.notes), "", "Points by task", ""]
    for task in standing.mark.tasks:
        if task["kind"] != "stretch":
            said = ": nothing handed in" if standing.unanswered(task) else ""
            points = page.of(standing.points(task), task["possible"])
            lines.append(f"  {task['id']:<6}{points:>14}  {task['title']}{said}")
    lines += ["", "What to do next", ""]
    lines += [f"  {place}. {sentence}" for place, sentence in enumerate(what_next(week, standing), 1)]
    for task in standing.mark.tasks:
        given = standing.by_hand.get(task["id"])
        groups = told_once(task["cases"])
        if not groups and not (given and given.comments):
            continue
        lines += ["", f"Task {task['id']}, {task['title']}", ""]
        for comment in given.comments if given else ():
            lines += ["  A person wrote:", *(_filled(f"    {line}") for line in page.visible(comment).split("\n")), ""]
        for group in groups:
            behaviours = "; ".join(page.one_line(case["behaviour"], 120) for case in group[:3])
            more = f" and {len(group) - 3} more" if len(group) > 3 else ""
            lines += [f"  {group[0]['verdict']}: {behaviours}{more}"]
            lines += [f"{DIAGNOSIS}{line}" for line in page.visible(page.here(group[0]["text"])).split("\n")]
            lines.append("")
    lines += [
        "",
        f"To ask about a verdict, name {week.name}, attempt {standing.mark.attempt} and submission "
        f"{standing.mark.submission[:12]}.",
    ]
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
