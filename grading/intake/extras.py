"""Further files of a student's: those that come along into the folder where their code runs.

    below the root of their modules              -> the week's folder
    .py files beside their week's folder         -> beside the week's folder

None may take the name of anything of the course, of Python or of an installed package: a file that is imported in
another's place would change more than its owner's work.
"""

import importlib.util
import re

from grading.intake.names import other_week, some
from grading.intake.released import Released, plain
from grading.intake.submission import Submission
from grading.tree import RESULTS
from labkit.checks.tasks import Week

MAX_MODULE = 1 << 20  # bytes of one module; a long one has 30,000
MAX_EXTRA, MAX_EXTRA_BYTES = 200, 4 << 20
_COURSE = re.compile(r"labkit|grading|tests|results|solutions|(week\d|capstone)\w*")
_KINDS = (".py", ".json", ".toml", ".csv", ".txt")
_NEVER = ("sitecustomize", "usercustomize", "conftest")  # Python and pytest run these unasked


def lay_extras(
    submission: Submission, released: Released, root: str, used: set[str], week: Week
) -> tuple[dict[str, bytes], list[str]]:
    """({path where it will run: content}, sentences for the student).

    root    the folder of the submission that holds the student's modules, with its "/" ("" for the top)
    used    paths in the submission that are taken already"""
    files: dict[str, bytes] = {}
    ours: list[str] = []
    left: list[str] = []
    above = root[: -len(week.package) - 1] if root.endswith(f"{week.package}/") else None
    course_names = {name.rsplit("/", 1)[-1] for name in released.names} - {"__init__.py"}
    size = 0
    for name, data in sorted(submission.files.items()):
        if name in used or not name.endswith(_KINDS):
            continue
        where = name[len(root) :] if name.startswith(root) else None
        if where in released.files and where not in released.modules.values():
            if where.endswith(".py") and plain(data) != plain(released.files[where]):
                ours.append(where)
            continue
        target = _target(name, where, above, released, week)
        fits = len(data) <= MAX_MODULE and len(files) < MAX_EXTRA and size + len(data) <= MAX_EXTRA_BYTES
        if target is not None and fits:
            files[target] = data
            size += len(data)
        elif name.endswith(".py") and name.rsplit("/", 1)[-1] not in course_names and not _of_course(name, week):
            left.append(name)
    notes = []
    if ours:
        notes.append(f"The course's own text is used of {some(ours)}; what was handed in differs from it.")
    if left:
        notes.append(
            f"Not used: {some(left)}. A module of your own belongs beside those of the week, under a name "
            f"that neither the course nor Python has, and may have {MAX_MODULE / 1e6:.1f} MB."
        )
    return files, notes


def _target(name: str, where: str | None, above: str | None, released: Released, week: Week) -> str | None:
    """Where a further file will run; None if nowhere."""
    if where is not None:
        first = where.split("/")[0]
        if where in released.names or where.startswith(f"{RESULTS}/") or _shadows(where, released.names):
            return None
        return None if "/" in where and _COURSE.fullmatch(first) else f"{week.package}/{where}"
    if above is None or not name.startswith(above) or not name.endswith(".py"):
        return None
    target = name[len(above) :]
    return target if _free(target.split("/")[0].removesuffix(".py")) else None


def _shadows(where: str, names: frozenset[str]) -> bool:
    """Whether Python would import this file in place of one of the course: a folder ring/ goes before ring.py."""
    parts = where.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    as_module = any(folder in names or f"{folder}.py" in names for folder in above)
    as_folder = where.endswith(".py") and any(name.startswith(f"{where[:-3]}/") for name in names)
    return as_module or as_folder or parts[-1].removesuffix(".py") in _NEVER


def _free(module: str) -> bool:
    """Whether no other module has this name at the top: of the course, of Python, of an installed package."""
    if not module.isidentifier() or module in _NEVER or _COURSE.fullmatch(module):
        return False
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return False


def _of_course(name: str, week: Week) -> bool:
    """Whether it lies in a folder of the course that is not this week's: the student handed in the whole tree."""
    return any(
        folder in ("labkit", "tests", "results", "solutions") or other_week(folder, week)
        for folder in name.split("/")[:-1]
    )
