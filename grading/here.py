"""Where nothing is to be written: a tree that students get."""

from __future__ import annotations

from pathlib import Path

from labkit.errors import LabError

CONFIG = "nbgrader_config.py"


def not_the_students(path: Path) -> None:
    """LabError for a place in a tree that `grade release` made for students, and for a folder in a file's place."""
    if path.is_dir():
        raise LabError(f"{path} is a folder, and a file is to be written: choose another place")
    for folder in path.absolute().parents:
        if (folder / ".labs" / "release.json").is_file():
            raise LabError(f"{path} lies in the tree that students get, {folder}: they would read it there")
