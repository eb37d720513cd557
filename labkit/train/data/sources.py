"""Which files make a corpus, and on which side of the train / held-out line each one falls.

Real text with no download: every machine that runs this course has Python's standard library on it.

Two hashes of a file's path relative to its root decide everything: one its place in the order, one its side. So the
same file lands in the same place on every machine and in every folder, adding a file moves no other, and a cap in
bytes takes a fair sample of all folders instead of the first ones of the alphabet.
"""

from __future__ import annotations

import hashlib
import os
import site
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.train.data.config import DataConfig

PACKAGE_FOLDERS = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class SourceFile:
    path: str
    relative: str  # to its root, with forward slashes: the name that both hashes read
    size: int
    modified: int  # nanoseconds

    def read(self) -> str | None:
        """The text; None if the file is not UTF-8, cannot be read, or is empty."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read() or None
        except (OSError, UnicodeDecodeError):
            return None


def find_files(config: DataConfig) -> list[SourceFile]:
    """The files of a source in corpus order, within max_bytes. LabError if there are fewer than two.

    With a cap, a file too large for what is left of it is passed over, and smaller ones after it still get their turn.
    """
    found: dict[str, SourceFile] = {}
    for root in _roots(config.source):
        for file in _walk(root, tuple(config.suffixes)):
            found.setdefault(file.path, file)
    ordered = sorted(found.values(), key=lambda f: (_hash("order", f.relative), f.path))
    chosen, left = [], config.max_bytes
    for file in ordered:
        if left is None or file.size <= left:
            chosen.append(file)
            left = left if left is None else left - file.size
    if len(chosen) < 2:
        raise LabError(_too_few(config, len(found)))
    return chosen


def is_heldout(relative: str, fraction: float) -> bool:
    """Whether the file of this relative path belongs to the held-out side: a hash in [0, 1) against the fraction."""
    return _hash("split", relative) / 2**64 < fraction


def split(files: list[SourceFile], fraction: float) -> tuple[list[SourceFile], list[SourceFile]]:
    """(train, held-out), each in corpus order. Neither is empty: of a handful of files that all fell on one side, the
    one whose hash is nearest to the line crosses it."""
    by_hash = sorted(files, key=lambda f: _hash("split", f.relative))
    heldout = {f.path for f in files if is_heldout(f.relative, fraction)} or {by_hash[0].path}
    if len(heldout) == len(files):
        heldout.remove(by_hash[-1].path)
    return [f for f in files if f.path not in heldout], [f for f in files if f.path in heldout]


def _hash(purpose: str, relative: str) -> int:
    """64 bits of the path's hash; `purpose` makes the two uses independent."""
    digest = hashlib.blake2b(relative.encode("utf-8", "surrogateescape"), digest_size=8, person=purpose.encode())
    return int.from_bytes(digest.digest(), "big")


def _roots(source: str | list[str]) -> list[Path]:
    if isinstance(source, list):
        roots = [Path(name).expanduser() for name in source]
        for root in roots:
            if not root.exists():
                raise LabError(f"the corpus source {root} does not exist: correct [data] source")
    else:
        roots = [Path(sysconfig.get_path("stdlib"))]
        if source == "python+packages":
            paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages())
            roots += [Path(path) for path in paths]
    return list(dict.fromkeys(root.resolve() for root in roots if root.exists()))


def _walk(root: Path, suffixes: tuple[str, ...]) -> Iterator[SourceFile]:
    """Files under a folder, links to folders not followed. A file named directly is taken whatever its suffix.

    A folder of installed packages is a source of its own: met inside another folder (the standard library's, a
    project's virtual environment) it is passed by."""
    if root.is_file():
        yield from _source_file(str(root), root.name)
        return
    inside_packages = root.name in PACKAGE_FOLDERS
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if inside_packages or f not in PACKAGE_FOLDERS]
        below = os.path.relpath(folder, root).replace(os.sep, "/")
        for name in names:
            if name.endswith(suffixes):
                yield from _source_file(os.path.join(folder, name), name if below == "." else f"{below}/{name}")


def _source_file(path: str, relative: str) -> Iterator[SourceFile]:
    """The file, if it is a regular file that is still there."""
    try:
        status = os.stat(path)
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        yield SourceFile(path, relative, status.st_size, status.st_mtime_ns)


def _too_few(config: DataConfig, found: int) -> str:
    where = config.source if isinstance(config.source, str) else ", ".join(config.source)
    if found >= 2:
        return (
            f"[data] max_bytes = {config.max_bytes} leaves fewer than two files of {where}, "
            "and a corpus needs one to train on and one to hold out: raise it"
        )
    return (
        f"found {found} usable file(s) ({', '.join(config.suffixes)}) in {where}; a corpus needs at least two, "
        "one to train on and one to hold out: name another folder in [data] source"
    )
