"""Where nothing is to be written: a tree that students get, and no class in the course's own repository."""

from pathlib import Path

from labkit.errors import LabError

COURSE = Path(__file__).resolve().parents[1]


def not_the_course(folder: Path) -> None:
    """LabError for a class inside of the course's repository."""
    if folder.resolve().is_relative_to(COURSE):
        raise LabError(f"{folder} lies in the course's repository: keep a class in a folder of its own, outside of it")


def not_the_students(path: Path) -> None:
    """LabError for a place in a tree that `grade release` made for students, and for a folder in a file's place."""
    if path.is_dir():
        raise LabError(f"{path} is a folder, and a file is to be written: choose another place")
    for folder in path.absolute().parents:
        if (folder / ".labs" / "release.json").is_file():
            raise LabError(f"{path} lies in the tree that students get, {folder}: they would read it there")
