"""Written tasks to which nothing was handed in: nobody has to read them, and they earn nothing until a person says so.

Careful on one side only: whatever might be an answer is left to a person. There is none if every cell of the task is
absent or stands as it was handed out, the notebook can be read and has no text cell besides the course's own, no
prediction is on record, and no other document lies beside it, nor an archive that nobody opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from grading.gradebook import inert
from grading.gradebook.cells import read_notebook, task_of
from grading.gradebook.view import handed_in, notebook_of, places
from labkit.checks.tasks import Week

# What an answer may be written in, beside the notebook.
DOCUMENTS = (".md", ".txt", ".pdf", ".doc", ".docx", ".odt", ".html", ".tex", ".rtf", ".png", ".jpg", ".jpeg")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
RECORD = "predictions.jsonl"


def unanswered(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Ids of the written tasks to which these files (path -> bytes) hold nothing."""
    written = [task for task in week.tasks if task.kind == "written"]
    if not written or not week.notebook.exists() or any(_may_answer(path, data, week) for path, data in files.items()):
        return []
    course = read_notebook(week.notebook)
    ours = {cell["id"]: cell for cell in course["cells"] if cell.get("id")}
    theirs, trouble = handed_in(week, files)
    if trouble and (theirs or _unreadable(files, notebook_of(week, files))):
        return []  # what is behind was not looked at, or nothing was
    known = {_words(cell.get("source")) for cell in course["cells"]} | {""}
    answered: set[str] = set()
    for cell, id in zip(theirs, places(week, course, theirs)):
        words = _words(cell.get("source"))
        task = task_of(ours[id], week) if id else None
        if task is not None and task.kind == "written":
            if words not in (_words(ours[id]["source"]), ""):
                answered.add(task.id)
        elif words not in known and cell.get("cell_type") != "code":
            return []
    return [task.id for task in written if task.id not in answered]


def _unreadable(files: Mapping[str, bytes], path: str | None) -> bool:
    """Whether a notebook was handed in whose cells cannot be read: cut off, or with git's marks of a conflict."""
    if path is None or not files[path].strip():
        return False
    try:
        return not isinstance(json.loads(files[path])["cells"], list)
    except (ValueError, TypeError, KeyError, RecursionError):
        return True


def documents(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Files beside the notebook that might hold an answer, and that no page shows; none in a week without written
    tasks."""
    if not any(task.kind == "written" for task in week.tasks):
        return []
    shown = notebook_of(week, files)
    others = {p: data for p, data in files.items() if p != shown and not p.lower().endswith(RECORD)}
    return sorted(p for p, data in others.items() if _may_answer(p, data, week))


def runs(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Folders that hold the record of a run, which a written task may ask for; none in a week without written tasks."""
    if not any(task.kind == "written" for task in week.tasks):
        return []
    folders = (path.rpartition("/") for path in files)
    return sorted(folder or "the folder itself" for folder, _, name in folders if name == "run.json")


def _may_answer(path: str, data: bytes, week: Week) -> bool:
    """Whether a file might hold an answer: a document that is not called as one of the course's, an archive, a record
    of predictions, or another notebook."""
    *folders, name = path.lower().split("/")
    if name == RECORD:
        return bool(data.strip())
    if name.endswith(".ipynb"):
        return name != week.notebook.name.lower()
    if name.endswith(ARCHIVES):
        return bool(data)
    return name.endswith(DOCUMENTS) and "labkit" not in folders and name not in _own(week.folder.parent)


@cache
def _own(course: Path) -> frozenset[str]:
    """Names of the course's own documents, which students may hand in along with their work."""
    places = (course, *course.glob("week*"), *course.glob("capstone*"), course / "docs", course / "results")
    found = (path for place in places for path in (place.rglob("*") if place != course else place.iterdir()))
    return frozenset({"agents.md", *(path.name.lower() for path in found if path.suffix.lower() in DOCUMENTS)})


def _words(source: object) -> str:
    return " ".join(inert.plain(source).split())
