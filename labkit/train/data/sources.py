"""Which text a run reads, the [data] table; which files make it up, and on which side of the split each one falls."""

import hashlib
import os
import site
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from labkit.errors import LabError
from labkit.strict import Config, Count, require

SOURCES = ("python", "python+packages")
PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class DataConfig(Config):
    """Where the tokens come from; see `labkit.train.data.corpus`."""

    source: Annotated[  # "python", "python+packages", or a list of paths
        Annotated[str, Tag("<name>")] | Annotated[list[str], Tag("<list>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<name>"),
    ] = "python"
    vocab_size: Annotated[int, Field(ge=257)] = 4096  # in a TrainConfig, unless given: the model's
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    max_bytes: Count | None = None  # None: all of the source
    suffixes: list[str] = Field(default=[".py"], min_length=1)

    @model_validator(mode="after")
    def _known_source(self) -> "DataConfig":
        require(
            isinstance(self.source, list) or self.source in SOURCES,
            f'source = {self.source!r} is not a source: write "python", "python+packages", '
            'or a list of folders and files, as in ["~/my_texts"]',
        )
        require(self.source != [], "source is an empty list: name a folder or a file")
        return self


@dataclass(frozen=True)
class SourceFile:
    path: str
    relative: str  # to its root, with forward slashes: the name that both hashes read
    size: int
    modified: int  # nanoseconds

    def read(self) -> str | None:
        """Return the text; None if the file is not UTF-8, cannot be read, or is empty."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read() or None
        except (OSError, UnicodeDecodeError):
            return None


def find_files(config: DataConfig) -> list[SourceFile]:
    """The files of a source in corpus order, within max_bytes. LabError if there are fewer than two."""
    found: dict[str, SourceFile] = {}
    for root in _find_roots(config.source):
        for file in _walk(root, tuple(config.suffixes)):
            found.setdefault(file.path, file)
    ordered = sorted(found.values(), key=lambda f: (_hash("order", f.relative), f.path))
    chosen, left = [], config.max_bytes
    for file in ordered:
        if left is None or file.size <= left:
            chosen.append(file)
            left = left if left is None else left - file.size
    if len(chosen) >= 2:
        return chosen
    within = f" within max_bytes = {config.max_bytes}" if config.max_bytes else ""
    said = f"found {len(chosen)} usable file(s) ({', '.join(config.suffixes)}) in {config.source}{within}"
    raise LabError(f"{said}; a corpus needs at least two, one to train on and one to hold out: change [data]")


def split(files: list[SourceFile], fraction: float) -> tuple[list[SourceFile], list[SourceFile]]:
    """(train, held-out), each in corpus order, neither empty."""
    by_hash = sorted(files, key=lambda f: _hash("split", f.relative))
    heldout = {f.path for f in files if _hash("split", f.relative) / 2**64 < fraction} or {by_hash[0].path}
    if len(heldout) == len(files):
        heldout.remove(by_hash[-1].path)
    return [f for f in files if f.path not in heldout], [f for f in files if f.path in heldout]


def _hash(purpose: str, relative: str) -> int:
    """Hash a path to 64 bits; `purpose` makes the two uses independent."""
    digest = hashlib.blake2b(relative.encode("utf-8", "surrogateescape"), digest_size=8, person=purpose.encode())
    return int.from_bytes(digest.digest(), "big")


def _find_roots(source: str | list[str]) -> list[Path]:
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
    """Yield the regular files under a folder. A file named directly is taken whatever its suffix."""
    if root.is_file():
        paths = [(str(root), root.name)]
    else:
        paths = []
        # Installed packages are a source of their own: met inside another folder (the standard library's, a project's
        # virtual environment), their folder is passed by. Links to folders are not followed.
        inside_packages = root.name in PACKAGE_FOLDERS
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if inside_packages or f not in PACKAGE_FOLDERS]
            wanted = (os.path.join(folder, name) for name in names if name.endswith(suffixes))
            paths += [(path, os.path.relpath(path, root).replace(os.sep, "/")) for path in wanted]
    for path, relative in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue  # gone meanwhile, or a link to nothing
        if stat.S_ISREG(status.st_mode):
            yield SourceFile(path, relative, status.st_size, status.st_mtime_ns)
