"""A notebook as data: its cells are read, never run, and nothing in it is trusted to have its type."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_FAULTS = (ValueError, RecursionError, TypeError, KeyError, AttributeError)  # UnicodeDecodeError is a ValueError


@dataclass(frozen=True)
class Cell:
    """One cell. `grade_id` is the grade cell's name ("task-13-7-clocks"), "" for others; outputs are JSON objects as
    they stand: whoever shows them must expect anything in them."""

    kind: str
    source: str
    id: str = ""
    grade_id: str = ""
    outputs: tuple[dict[str, Any], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Notebook:
    """The student's notebook: where it was in the submission, and its cells in order."""

    path: str
    cells: tuple[Cell, ...]

    def answers(self) -> dict[str, str]:
        """Source by grade_id; of two cells with one grade_id (copied), both texts, in order."""
        found: dict[str, str] = {}
        for cell in self.cells:
            if cell.grade_id:
                found[cell.grade_id] = (
                    f"{found[cell.grade_id]}\n\n{cell.source}" if cell.grade_id in found else cell.source
                )
        return found


def read_notebook(data: bytes, path: str) -> Notebook | str:
    """The notebook in these bytes, or why there is none, as the end of a sentence."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
        cells = content["cells"]
        if not isinstance(cells, list):
            raise TypeError
    except _FAULTS:
        return "is no notebook that can be read (it is not JSON with cells)"
    return Notebook(path, tuple(cell for cell in map(_cell, cells) if cell is not None))


def _cell(cell: Any) -> Cell | None:
    """One cell; None for something that is none."""
    if not isinstance(cell, dict):
        return None
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if not isinstance(source, str) or not isinstance(cell.get("cell_type"), str):
        return None
    metadata = cell.get("metadata")
    named = cell.get("id")
    id = named if isinstance(named, str) else ""
    outputs = cell.get("outputs")
    return Cell(
        cell["cell_type"],
        source,
        id,
        _grade_id(metadata, id),
        tuple(one for one in outputs if isinstance(one, dict)) if isinstance(outputs, list) else (),
    )


def _grade_id(metadata: Any, id: str) -> str:
    """Named in the course's metadata, in nbgrader's, or by the cell's own id (some editors drop metadata)."""
    for key in ("labkit", "nbgrader"):
        table = metadata.get(key) if isinstance(metadata, dict) else None
        name = table.get("grade_id") if isinstance(table, dict) else None
        if isinstance(name, str) and name.startswith("task-"):
            return name
    return id if id.startswith("task-") else ""
