"""`lab handin week13`: a student's work of one week in one zip, with a manifest.

week13_allreduce/collectives.py     the week's folder, without the course's tests, given/, data/, results/
hello.py                            modules of one's own in the course's root folder
handin.json                         the manifest: the week, the sha256 of each file, versions, the time
"""

import hashlib
import platform
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ValidationError

from labkit import __version__
from labkit.checks.tasks import REGISTRY, Week
from labkit.errors import LabError

MANIFEST = "handin.json"
MOST_BYTES = 16 << 20  # of one file: grading reads no larger one
MOST_TOTAL, MOST_FILES = 64 << 20, 2000
LEFT_OUT = ("__pycache__", "results", "given", "data", "runs", "checkpoints", "node_modules")


class Manifest(BaseModel):
    """What a zip of `lab handin` says of itself: the week, when it was made, sha256 (hex) by path, versions."""

    format: Literal[1]
    week: str
    made: AwareDatetime
    files: dict[str, str]
    versions: dict[str, str]


def read_manifest(data: bytes) -> Manifest | None:
    """The manifest in these bytes; None if they hold none. A student may have written it."""
    try:
        return Manifest.model_validate_json(data, strict=True)
    except ValidationError:
        return None


def hand_in(week: Week, to: Path, more: Sequence[Path] = ()) -> dict[str, int]:
    """Pack a week's work and `more` into the zip `to`; each file's size, by path. LabError: a link, or too much."""
    root, courses = week.folder.parent, (week.folder / REGISTRY, week.folder / "README.md", *week.tests)
    own = [*_below(week.folder), *(path for path in sorted(root.glob("*.py")) if path.is_file())]
    found = {path.relative_to(root).as_posix(): path for path in own if path not in courses}
    for path in more:
        if not path.exists():
            raise LabError(f"there is no {path} to hand in: check the name")
        for inner in _below(path) if path.is_dir() else [path]:
            found[(path.name / inner.relative_to(path) if path.is_dir() else Path(path.name)).as_posix()] = inner
    sizes = {name: path.stat().st_size for name, path in found.items()}
    for name, path in found.items():
        if path.is_symlink():
            raise LabError(f"{name} is a link, which nobody can read elsewhere: put the file itself in its place")
        if sizes[name] > MOST_BYTES:
            raise LabError(f"{name} has {sizes[name] / 1e6:.0f} MB, of {MOST_BYTES >> 20} at most: move it away")
    if sum(sizes.values()) > MOST_TOTAL or len(sizes) > MOST_FILES:
        raise LabError(f"these are {len(sizes)} files of {sum(sizes.values()) / 1e6:.0f} MB, which is too much")
    contents = {name: path.read_bytes() for name, path in sorted(found.items())}
    manifest = Manifest(
        format=1,
        week=week.name,
        made=datetime.now(UTC).replace(microsecond=0),
        files={name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        versions={"labkit": __version__, "python": platform.python_version(), "torch": version("torch")},
    )
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {MANIFEST: manifest.model_dump_json(indent=1).encode(), **contents}.items():
            archive.writestr(name, data)
    return sizes


def _below(folder: Path) -> Iterator[Path]:
    """The files of a folder, sorted, without hidden ones and LEFT_OUT."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") or part in LEFT_OUT for part in parts) and not path.is_dir():
            yield path
