"""Written tasks to which nothing was handed in: nobody has to read them, and they earn nothing until a person says so.

Careful on one side only: whatever might be an answer is left to a person. There is none if every cell of the task is
absent or stands as it was handed out, the notebook can be read and has no text cell and no comment besides the course's
own, no prediction and no run is on record, and nothing lies beside it but code, what tools leave, and the course's own.
"""

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grading.intake.arrange import of_another_week
from grading.intake.names import is_notebook
from grading.marking import inert
from grading.marking.cells import read_notebook, task_of
from grading.marking.view import handed_in, notebook_of, places
from labkit.checks.tasks import Week

# In a run's folder, which is reported as such, these may be answers.
DOCUMENTS = (".md", ".txt", ".pdf", ".doc", ".docx", ".odt", ".html", ".tex", ".rtf", ".png", ".jpg", ".jpeg")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
# Elsewhere everything may be, a photograph of any kind too, but for code, its settings, and what is made of it.
CODE = (".py", ".pyi", ".pyc", ".pyo", ".so", ".c", ".h", ".cpp", ".cu", ".sh")
SETTINGS = (".toml", ".cfg", ".ini", ".lock", ".yml")
ABOUT = (".egg-info", ".dist-info")  # how a folder is called that describes a package
OF_RUN = ("run.json", "steps.jsonl", "events.jsonl")
RECORD = "predictions.jsonl"
MAX_CODE = 500_000  # characters of a notebook's cells that are looked at: to parse them takes seconds


def unanswered(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Ids of the written tasks to which these files (path -> bytes) hold nothing."""
    written = [task for task in week.tasks if task.kind == "written"]
    if not written or not week.notebook.exists() or _possible(week, files) or runs(week, files):
        return []
    course = read_notebook(week.notebook)
    ours = {cell["id"]: cell for cell in course["cells"] if cell.get("id")}
    theirs, trouble = handed_in(week, files)
    if trouble and (theirs or _unreadable(files, notebook_of(week, files))):
        return []  # what is behind was not looked at, or nothing was
    known = {_words(cell.get("source")) for cell in course["cells"]} | {""}
    if sum(len(inert.plain(cell.get("source"))) for cell in theirs) > MAX_CODE:
        return []
    remarks = {remark for cell in course["cells"] for remark in _remarks(cell)}
    answered: set[str] = set()
    for cell, id in zip(theirs, places(week, course, theirs)):
        words = _words(cell.get("source"))
        task = task_of(ours[id], week) if id else None
        if task is not None and task.kind == "written":
            if words not in (_words(ours[id]["source"]), ""):
                answered.add(task.id)
        elif not _remarks(cell) <= remarks if cell.get("cell_type") == "code" else words not in known:
            return []
    return [task.id for task in written if task.id not in answered]


def _unreadable(files: Mapping[str, bytes], path: str | None) -> bool:
    """Whether a notebook was handed in whose cells cannot be read: cut off, empty, or with git's marks of a
    conflict."""
    if path is None:
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
    return sorted(p for p in _possible(week, files) if p != shown and not p.lower().endswith(RECORD))


def runs(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Folders that hold the record of a run, which a written task may ask for, but for the course's own; none in a week
    without written tasks."""
    if not any(task.kind == "written" for task in week.tasks):
        return []
    own = (path.rpartition("/") for path in files if not of_another_week(path, week))
    found = (folder for folder, _, name in own if name == "run.json")
    ours = tuple(f"/{folder}" for folder in _own_runs(week.folder.parent))
    return sorted(folder or "the folder itself" for folder in found if not f"/{folder}".endswith(ours))


def is_theirs(path: str, week: Week) -> bool:
    """Whether a file is a notebook of this week's, or is called as none of the course's: a whole tree has more."""
    *folders, name = path.lower().split("/")
    if of_another_week(path, week):
        return False
    return is_notebook(name) or ("labkit" not in folders and name not in _own(week.folder.parent))


def _possible(week: Week, files: Mapping[str, bytes]) -> list[str]:
    """Paths of files that might hold an answer: whatever is not known to hold none. The notebook that is shown is
    none of them, another is."""
    made = tuple(path[: path.rfind("/") + 1] for path in files if path.endswith(("/run.json", "/pyvenv.cfg")))
    shown = notebook_of(week, files)
    found = []
    for path, data in files.items():
        kinds = (*DOCUMENTS, *ARCHIVES, RECORD, ".ipynb") if path.startswith(made) else ("",)
        if _name(path) == week.notebook.name.lower():  # its cells are looked at; another one may have others
            other = path != shown and data != files.get(shown or "") and not of_another_week(path, week)
        else:
            other = path.lower().endswith(kinds) and _may_answer(path, week)
        found += [path] if other and data.strip() else []
    return found


def _may_answer(path: str, week: Week) -> bool:
    """By its name: of this week, not called as one of the course's files, and no code."""
    name, folders = _name(path), path.lower().split("/")[:-1]
    if name == RECORD and not of_another_week(path, week):
        return True
    made = name.endswith((*CODE, *SETTINGS, *OF_RUN)) or any(folder.endswith(ABOUT) for folder in folders)
    return is_theirs(path, week) and not made


def _name(path: str) -> str:
    return path.rpartition("/")[2].lower()


@cache
def _own(course: Path) -> frozenset[str]:
    """Names of the course's own files, which students may hand in along with their work."""
    places = (course, *course.glob("week*"), *course.glob("capstone*"), course / "docs", course / "results")
    found = (path for place in places for path in (place.rglob("*") if place != course else place.iterdir()))
    return frozenset({"agents.md", *(path.name.lower() for path in found if path.is_file())})


@cache
def _own_runs(course: Path) -> frozenset[str]:
    """The folders of the course's own records, from its root."""
    found = (path.parent for folder in (course, *course.glob("week*")) for path in folder.glob("results/**/run.json"))
    return frozenset(folder.relative_to(course).as_posix() for folder in found)


def _remarks(cell: Mapping[str, Any]) -> set[str]:
    """What a code cell holds in words, since somebody may have written the answer there: its comments, its strings of
    several words, and all of what is no code."""
    if cell.get("cell_type") != "code":
        return set()
    source = inert.plain(cell.get("source"))
    code = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!", "?")))
    try:
        parsed = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {_words(source)}
    strings = (
        node.value for node in ast.walk(parsed) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    # By lines, each looked at once: a pattern that begins anew at each "#" takes minutes for a cell of 20,000 of them.
    comments = (re.search(r"\w.*", line.partition("#")[2]) for line in code.split("\n"))
    said = [found.group() for found in comments if found] + [text for text in strings if re.search(r"\w\W+\w", text)]
    return {_words(text) for text in said}


def _words(source: object) -> str:
    return " ".join(inert.plain(source).split())
