"""The notebook that formgrader shows of one submission: what was handed in, with every verdict where its check stood.

Formgrader reads autograded/NUMBER/week13/lab.ipynb and puts a score box around each cell with nbgrader's metadata.
This one is put together from

  - the student's notebook, parsed as data and made harmless (inert.py): cells in their order, forged metadata dropped;
  - a grade cell for each automatic task, in the place of its `check(...)` cell: the student's functions, and under them
    the verdicts (verdicts.py);
  - a grade cell for each written task, behind its answers: the course's rubric, and which answers are there.

Cells that were deleted or renamed lose nothing: grade cells without a place come at the end.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from grading.intake.arrange import notebook_path, of_another_week
from grading.intake.notebook import grade_id
from grading.mark import UNSANDBOXED, Mark
from grading.marking import inert, verdicts
from grading.marking.cells import FORMAT, code_cell, graded_tasks, markdown_cell, rubric, tag, task_of
from labkit.checks.tasks import Task, Week

MOST_CELLS = 400
LARGEST = 20_000_000  # bytes of a notebook that is still parsed
_NEXT = re.compile(r"(async|def|class|import|from|if|for|while|with|try)\b|[@#]|[A-Za-z_][\w.]*\s*[=(\[:]")


def build(
    week: Week, course: dict[str, Any], submission: int, mark: Mark, files: Mapping[str, bytes], remark: str = ""
) -> dict[str, Any]:
    """The notebook, as JSON data in the notebook format 4.5.

    course      the course's own notebook (cells.read_notebook), which knows ids and rubric
    submission  its number
    files       what was handed in, by path; {} if it is not here
    remark      a sentence for the instructor, shown first"""
    theirs, trouble = handed_in(week, files)
    by_place = places(week, course, theirs)
    last = {}
    for index, id in enumerate(by_place):
        if id and (task := _task(week, course, id)) and task.kind == "written":
            last[task.id] = index
    cells = [_head(submission, mark, [one for one in (remark, trouble) if one])]
    placed: set[str] = set()
    for index, (cell, id) in enumerate(zip(theirs, by_place)):
        task = _task(week, course, id) if id else None
        if task and task.kind == "auto" and id == task.cell:
            cells.append(_verdict_cell(week, task, mark, files))
            placed.add(task.id)
        else:
            cells.append(_cell(cell, f"s{index}"))
        for task in graded_tasks(week):
            if last.get(task.id) == index:
                cells += _written(week, task, course, theirs, by_place, files)
                placed.add(task.id)
    missing = [task for task in graded_tasks(week) if task.id not in placed]
    if missing and theirs:
        names = ", ".join(task.id for task in missing)
        said = f"**Not found in the student's notebook, and no worse for it: the cells of {names}.**"
        cells.append(markdown_cell("not-found", said))
    for task in missing:
        if task.kind == "written":
            cells += _written(week, task, course, theirs, by_place, files)
        else:
            cells.append(_verdict_cell(week, task, mark, files))
    return {**FORMAT, "cells": cells}


def handed_in(week: Week, files: Mapping[str, bytes]) -> tuple[list[dict[str, Any]], str]:
    """The cells of the student's notebook and, if there are none to show, a sentence on why."""
    path = notebook_of(week, files)
    if not files:
        return [], "What was handed in is not here: only the verdicts are shown."
    if path is None:
        return [], f"No {week.notebook.name} was handed in."
    if len(files[path]) > LARGEST:
        return [], f"{week.notebook.name} is too large to be shown."
    try:
        found = json.loads(files[path])["cells"]
        cells = [cell for cell in found if isinstance(cell, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [], f"{week.notebook.name} is not a notebook, and cannot be shown."
    if len(cells) > MOST_CELLS:
        return cells[:MOST_CELLS], f"{week.notebook.name} has {len(cells)} cells: the first {MOST_CELLS} are shown."
    return cells, "" if cells else f"{week.notebook.name} is empty."


def notebook_of(week: Week, files: Mapping[str, bytes]) -> str | None:
    """The path of the student's notebook: of the week's name, else the one under another name that grading takes."""
    return _find(files, week.notebook.name, week) or notebook_path(files, week)


def places(week: Week, course: dict[str, Any], theirs: list[dict[str, Any]]) -> list[str]:
    """For each of the student's cells the id of the course's cell that it is, or "". Each id once.

    By the cell's id, else by the name that the course put into its metadata, else by `check("13.4")` itself."""
    known = {cell["id"]: cell for cell in course["cells"] if cell.get("id") and task_of(cell, week) is not None}
    checks = {f'check("{task.id}")': task.cell for task in week.tasks}
    result, taken = [""] * len(theirs), set()
    for names in (
        lambda cell: cell.get("id"),
        grade_id,
        lambda cell: checks.get(inert.plain(cell.get("source"), 200).strip().replace("'", '"')),
    ):
        for index, cell in enumerate(theirs):
            id = names(cell)
            if not result[index] and isinstance(id, str) and id in known and id not in taken:
                result[index] = id
                taken.add(id)
    return result


def _task(week: Week, course: dict[str, Any], id: str) -> Task | None:
    cell = next(cell for cell in course["cells"] if cell.get("id") == id)
    return task_of(cell, week)


def _head(submission: int, mark: Mark, remarks: list[str]) -> dict[str, Any]:
    """What concerns the submission as a whole."""
    lines = [f"Submission {submission}", *remarks]
    if mark.isolation == UNSANDBOXED:
        lines.append("UNSANDBOXED: this code ran without isolation and could have written its own mark.")
    lines += [*mark.attention, *mark.notes]
    return _shown("\n".join(lines), "head", "# About this submission")


def _verdict_cell(week: Week, task: Task, mark: Mark, files: Mapping[str, bytes]) -> dict[str, Any]:
    entry = next((entry for entry in mark.tasks if entry["id"] == task.id), None)
    failed = mark.automatic(task.id) is None
    remark = "Not graded automatically: the grader itself failed here. Give the points by hand." if failed else ""
    source, outputs = inert.plain(code_of(week, task, files)), [verdicts.output(entry, remark)]
    return code_cell(task.cell, source, outputs, nbgrader=tag(task))


def code_of(week: Week, task: Task, files: Mapping[str, bytes]) -> str:
    """The student's functions for a task, as they wrote them."""
    parts = [f"# {task.id} {task.title}"]
    for module in task.modules:
        names = {name.rpartition(".")[2] for name in task.functions if name.rpartition(".")[0] == module}
        path = _find(files, module.replace(".", "/") + ".py", week)
        if path is None:
            parts.append(f"# {module}.py is not there" if files else "")
            continue
        text = files[path][:500_000].decode("utf-8", errors="replace")
        found = [
            function
            for name in sorted(names, key=lambda name: text.find(f" {name}"))
            if (function := _definition(text, name))
        ]
        parts.append(f"# {module}.py" + ("" if found else f" has no {' or '.join(sorted(names))}"))
        parts += found
    return "\n\n".join(part for part in parts if part)


def _definition(text: str, name: str) -> str:
    """A top-level function or class as it is written; "" if there is none. By its lines: the module may be no valid
    Python, and a parser can be made to exhaust the stack."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if re.match(rf"(async +def|def|class) +{name}\b", line)), None)
    if begin is None:
        return ""
    end = next((i for i in range(begin + 1, len(lines)) if _NEXT.match(lines[i])), len(lines))
    while begin and lines[begin - 1].startswith("@"):
        begin -= 1
    return "\n".join(lines[begin:end]).rstrip()


def _written(
    week: Week, task: Task, course: dict[str, Any], theirs: list[dict[str, Any]], by_place: list[str],
    files: Mapping[str, bytes],
) -> list[dict[str, Any]]:  # fmt: skip
    """What is there of a written task, and its grade cell with the rubric."""
    lines = []
    for cell in course["cells"]:
        if cell.get("id") and (belongs := task_of(cell, week)) is not None and belongs.id == task.id:
            if cell["id"] not in by_place:
                lines.append(f"{cell['id']}: not in the notebook")
                continue
            source = inert.plain(theirs[by_place.index(cell["id"])].get("source"))
            same = source.strip() == cell["source"].strip()
            words = "as it was handed out" if same else f"{len(source.split())} words"
            lines.append(f"{cell['id']}: " + (source.strip() if cell["cell_type"] == "code" else words))
    path = _find(files, "predictions.jsonl", week)
    if path is not None:
        record = inert.plain(files[path][:20_000].decode("utf-8", errors="replace")).rstrip()
        lines += ["", "predictions.jsonl, with the time of each:", record]
    return [
        _shown("\n".join(lines), f"{task.cell}-there", f"# Task {task.id}: what was handed in"),
        markdown_cell(task.cell, rubric(course, task), nbgrader=tag(task)),
    ]


def _cell(cell: dict[str, Any], id: str) -> dict[str, Any]:
    """A student's cell as text and bitmaps; anything else about it is dropped."""
    if cell.get("cell_type") == "code":
        return code_cell(id, inert.plain(cell.get("source")), inert.outputs(cell.get("outputs")))
    return markdown_cell(id, inert.markdown(cell.get("source")))


def _shown(text: str, id: str, source: str) -> dict[str, Any]:
    """A cell of ours that shows text as it is."""
    return code_cell(id, source, [inert.stream(inert.plain(text))] if text else [])


def _find(files: Iterable[str], name: str, week: Week) -> str | None:
    """The handed-in file with this name: the one nearest to the top, whatever folder it was packed in, but for another
    week's. Students hand in whole trees."""
    named = (path for path in files if path == name or path.endswith(f"/{name}"))
    fits = [path for path in named if not of_another_week(path, week)]
    return min(fits, key=lambda path: (path.count("/"), path), default=None)
