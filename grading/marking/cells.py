"""Which cells of a week's notebook nbgrader grades: one for each task that gives points, named as the task is.

    an automatic task   a locked code cell with points ("autograder tests" in nbgrader's words): its score comes from
                        `grade mark`, its output is the diagnosis
    a written task      a Markdown cell with points and a comment ("manually graded task"), which holds the rubric

The course's notebook says where: `check("13.4")` stands in the cell with the id task-13-4. A written task's rubric is the
part of the notebook under the heading that names the task; without one, the title and the points.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.checks.markers import strip_notebook
from labkit.checks.outcome import number
from labkit.checks.tasks import Task, Week
from labkit.errors import LabError

FORMAT: dict[str, Any] = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    },
}
_TABLE = re.compile(r"^\|.*\|\s*$", re.MULTILINE)
SCHEMA = 3  # of nbgrader's cell metadata


def graded_tasks(week: Week) -> list[Task]:
    """The tasks that have a cell: all but those that give no points."""
    return [task for task in week.tasks if task.kind != "stretch"]


def tag(task: Task) -> dict[str, Any]:
    """nbgrader's metadata of a task's cell."""
    written = task.kind == "written"
    kind = {"grade": not written, "locked": True, "solution": False, "task": written}
    return {"schema_version": SCHEMA, "grade_id": task.cell, "points": task.points, **kind}


def read_notebook(path: Path) -> dict[str, Any]:
    """The course's notebook as it is handed out, without solutions and outputs, each cell's source in one string. LabError
    if it is none."""
    try:
        notebook = json.loads(strip_notebook(path.read_text(encoding="utf-8"), path.name))
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell.setdefault("metadata", {})
        return notebook
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{path} is not a notebook ({type(error).__name__}): it must be there to register its grade cells"
        ) from None


def task_of(cell: dict[str, Any], week: Week) -> Task | None:
    """The task that a cell of the course's notebook belongs to, by its metadata or its id."""
    id = cell["metadata"].get("labkit", {}).get("task")
    return next((task for task in week.tasks if task.id == id or task.cell == cell.get("id")), None)


def rubric(notebook: dict[str, Any], task: Task) -> str:
    """The Markdown that says what counts for a written task."""
    for place, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "markdown":
            continue
        heading = re.search(
            rf"^(#+)[^\n]*\bTask {re.escape(task.id)}\b(?!\.\d)[^\n]*$", cell["source"], re.MULTILINE | re.IGNORECASE
        )
        if heading:
            part = cell["source"][heading.start() :]
            next_heading = rf"^#{{1,{len(heading[1])}}} "
            end = re.search(rf"\n#{{1,{len(heading[1])}}} ", part)
            if end:
                return part[: end.start()]
            behind = []  # a prediction's cell may stand between the heading and the table
            for other in notebook["cells"][place + 1 :]:
                if other["cell_type"] == "markdown" and re.search(next_heading, other["source"], re.MULTILINE):
                    break
                if other["cell_type"] == "markdown" and not other["metadata"].get("labkit"):
                    behind.append(other["source"])
            return part if _TABLE.search(part) else "\n\n".join([part, *behind])
    return f"## Task {task.id}: {task.title}\n\n{number(task.points)} points, graded by hand."


def markdown_cell(id: str, source: str, **metadata: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": id, "metadata": metadata, "source": source}


def code_cell(id: str, source: str, outputs: Sequence[dict[str, Any]] = (), **metadata: Any) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": id, "metadata": metadata, "source": source}
    return {**cell, "outputs": list(outputs), "execution_count": None}
