"""The page of the pairs: a table, then each pair's functions side by side, the shared lines marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grading.publish import page
from grading.similar.compare import ONE, SHARE, Pair, Work
from labkit.checks.tasks import Week

SHOWN = 40  # pairs side by side; the rest are in the table
LINES = 120  # of one function


def write(week: Week, pairs: Sequence[Pair], compared: int, unread: Sequence[str], to: Path) -> Path:
    """One self-contained HTML file."""
    shown = [{**vars(pair), "sides": _sides(pair) if n < SHOWN else []} for n, pair in enumerate(pairs)]
    text = page.render(
        "similar.html.j2", week=week, pairs=shown, compared=compared, unread=unread, share=SHARE, one=ONE
    )
    return page.write(to, text)


def _sides(pair: Pair) -> list[dict[str, Any]]:
    return [
        {"name": name, "share": share, "sides": [_side(pair.first, name, first), _side(pair.second, name, second)]}
        for name, share, first, second in pair.functions
        if first or second
    ]


def _side(work: Work, name: str, shared: set[int]) -> dict[str, Any]:
    """A function's lines; where a signature and docstring stand before the first node, they are left out."""
    lines, numbers = work.texts[name].splitlines(), work.lines[name]
    begin, end = min(numbers), max(numbers)
    shown = [
        {"text": page.visible(lines[at - 1], 200, 1) or " ", "shared": at in shared}
        for at in range(begin, min(end, begin + LINES - 1) + 1)
        if at <= len(lines)
    ]
    return {"name": work.name, "lines": shown}
