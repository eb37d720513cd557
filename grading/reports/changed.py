"""Whose total differs between a table that is there and the one that takes its place.

A table is what `grade export` writes: the course's own, of a week or of the term; Canvas'; Moodle's.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from grading.intake.policy import EXCUSED
from labkit.checks.outcome import number

WHO = ("Identifier", "ID", "student")  # of these columns the first that a table has tells one line from another
NAMES = ("Full name", "Student", "Name", "student")  # and of these how people are called
TOLD = 20  # names in the sentence


def read(path: Path) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """(the columns, line -> (name, total)) of a table; ([], {}) if none is there, or none that can be read."""
    try:
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))
    except (OSError, ValueError, csv.Error):
        return [], {}
    columns = rows[0] if rows else []
    who = next((columns.index(name) for name in WHO if name in columns), None)
    if who is None:
        return [], {}
    called = [columns.index(name) for name in NAMES if name in columns]
    total = next((columns.index(name) for name in ("total", "Grade") if name in columns), len(columns) - 1)
    lines = [row for row in rows[1:] if len(row) == len(columns)]
    named = [(next((row[at] for at in called if row[at]), row[who]), row) for row in lines]
    return columns, {row[who] or name: (name, row[total]) for name, row in named}


def told(
    before: tuple[list[str], dict[str, tuple[str, str]]], after: tuple[list[str], dict[str, tuple[str, str]]]
) -> list[str]:
    """A sentence on whose total changed, "ben 70 -> 80", who is new and who is gone; none for tables of other
    columns."""
    if not before[0] or _columns(before[0]) != _columns(after[0]):
        return []
    was, now = before[1], after[1]
    moved = [
        f"{(now.get(line) or was[line])[0]} {_points(was, line)} -> {_points(now, line)}"
        for line in {**was, **now}
        if _points(was, line) != _points(now, line)
    ]
    more = f"; and {len(moved) - TOLD} more" if len(moved) > TOLD else ""
    return [f"Changed since the file that was there: {'; '.join(moved[:TOLD])}{more}"] if moved else []


def _columns(columns: list[str]) -> list[str]:
    """Those that a table always has: the term's has one more if somebody is excused."""
    return [name for name in columns if name != EXCUSED]


def _points(lines: dict[str, tuple[str, str]], line: str) -> str:
    if line not in lines:
        return "not there"
    text = lines[line][1]
    try:
        return f"{number(float(text))}"
    except ValueError:
        return text or "none"
