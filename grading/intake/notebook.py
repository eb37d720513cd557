"""A notebook as data: its cells are read, never run, and nothing in it is trusted to have its type."""

import json
from typing import Any

_FAULTS = (ValueError, RecursionError, TypeError, KeyError, AttributeError)  # UnicodeDecodeError is a ValueError
MANY = 300_000  # tables in one notebook: to read more takes seconds
NO_NOTEBOOK = "is no notebook that can be read (it is not JSON with cells)"


def grade_cells(data: bytes) -> set[str] | None:
    """The names of a notebook's grade cells ("task-13-7-clocks"); None if these bytes are no notebook.

    A cell is named in the course's metadata, in nbgrader's, or by its own id, since some editors drop metadata."""
    try:
        if data.count(b"{") > MANY or not isinstance(cells := json.loads(data.decode("utf-8-sig"))["cells"], list):
            return None
    except _FAULTS:
        return None
    named = (grade_id(cell) or cell.get("id") for cell in cells if isinstance(cell, dict))
    return {name for name in named if isinstance(name, str) and name.startswith("task-")}


def grade_id(cell: dict[str, Any]) -> str | None:
    """What the course's metadata, or nbgrader's, says that a cell is; None if they say nothing."""
    for key in ("labkit", "nbgrader"):
        metadata = cell.get("metadata")
        table = metadata.get(key) if isinstance(metadata, dict) else None
        name = table.get("grade_id") if isinstance(table, dict) else None
        if isinstance(name, str) and name.startswith("task-"):
            return name
    return None
