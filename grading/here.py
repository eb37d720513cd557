"""In which folder a command was typed: a class's, nbgrader's course directory in it, or the course's repository."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.errors import LabError

CONFIG = "nbgrader_config.py"


def course_root(folder: Path) -> Path | None:
    """The course directory that `folder` is or lies in."""
    start = folder.resolve()
    return next((path for path in (start, *start.parents) if (path / CONFIG).is_file()), None)


def not_the_class(*folders: Path) -> None:
    """LabError where a class's folders are meant by their own names ("submitted") and this is not the class's folder:
    nbgrader's course directory in it, in which one started Jupyter, or this repository. Elsewhere nothing is told: a
    course directory may be a class's folder as well."""
    if any(folder.parent != Path(".") for folder in folders):
        return
    here = Path.cwd()
    root = course_root(here)
    if root is not None:
        beside = [name for name in ("course.toml", "marks", "submitted") if (root.parent / name).exists()]
        if beside and not any((root / name).exists() for name in ("course.toml", "marks")):
            raise LabError(
                f"{here} is nbgrader's course directory, and the class's folder, which has {beside[0]}, is "
                f"{root.parent}: type it there (cd {os.path.relpath(root.parent)})"
            )
    if (here / "grading" / "cli.py").is_file() and (here / "labkit").is_dir():
        raise LabError(f"{here} is the course's repository: keep a class in a folder of its own, and type it there")


def not_the_students(path: Path) -> None:
    """LabError for a place in a tree that `grade release` made for students, and for a folder in a file's place."""
    if path.is_dir():
        raise LabError(f"{path} is a folder, and a file is to be written: choose another place")
    for folder in path.absolute().parents:
        if (folder / ".labs" / "release.json").is_file():
            raise LabError(f"{path} lies in the tree that students get, {folder}: they would read it there")
