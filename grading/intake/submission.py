"""One submission's files, as bytes in memory: never run, no link followed, all sizes capped.

Code comes first: if a cap is reached (somebody's whole home folder), modules and notebooks are in. What is left out is
reported. A submission needs at most MAX_TOTAL bytes of memory, and as much again for archives inside archives.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO

from grading.intake.archives import MAX_DIRECTORY, BadArchive, Member, members, open_plain
from grading.intake.names import PACKED, clean, harmless, is_notebook, noise, shown, some
from labkit.checks.handin import MANIFEST, Manifest, read_manifest

MAX_FILE = 16 << 20  # bytes: a notebook full of pictures
MAX_TOTAL = 64 << 20
MAX_FILES = 2000
MAX_LISTED = 20_000  # names looked at
MAX_INNER = 20  # archives inside the submission that are opened
NESTED = 2  # archives around one that is still opened: that of the attempt, and one inside it
DEFINES = re.compile(rb"^(?:async )?(?:def|class) (\w+)", re.M)
NOT_OPENED = "was not opened: hand in the files, or one .zip of them."
EMPTY = "There is no file in this submission."
BESIDE = "beside/the zip/"  # where the files lie that came beside what `lab handin` packed
RENAMED = "your instructor renamed it."  # how the sentence for the student ends
_FULL = f"is too much: a submission may hold {MAX_TOTAL >> 20} MiB and {MAX_FILES} files"


@dataclass
class Submission:
    """One attempt, read.

    name       what to call it, for people
    files      content by path ("week13_allreduce/ring.py"); a file out of an inner archive is "work.zip/ring.py"
    left_out   path -> why it was not read, as the end of a sentence ("is a link, and links are not followed")
    notes      sentences for the student; attention: for the instructor
    digest     sha256 (hex) of paths, contents and what was left out: if equal, everything is
    manifest   what `lab handin` says of the files, each of which is there as it says, under the path that it says
    """

    name: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    digest: str = ""
    manifest: Manifest | None = None

    @cached_property
    def defines(self) -> dict[str, set[bytes]]:
        """By file the functions and classes in its first MiB. Looked for once: of 64 MiB that takes seconds."""
        return {name: set(DEFINES.findall(data[: 1 << 20])) for name, data in self.files.items()}

    @classmethod
    def of(cls, name: str, files: Mapping[str, bytes]) -> "Submission":
        """A submission of these files, from memory: the reference solutions, say."""
        made = cls(name, dict(files))
        made.digest = _digest(made)
        return made


def read_submission(path: Path, renamed: Iterable[tuple[str, str]] = (), name: str = "") -> Submission:
    """Read an archive that is kept. Whatever it is, this gives a Submission: what cannot be read is in its notes.

    renamed   (path in it, path under which it counts), as an instructor has decided"""
    result = Submission(name or path.name)
    try:
        with open_plain(None, str(path)) as file:
            lister = _Lister(result)
            lister.zip(file, "", path.name)
            _read(result, lister.listed)
    except OSError as error:
        result.left_out[path.name] = f"cannot be read ({error.strerror})"
        lister = _Lister(result)
    _take_manifest(result)
    for old, new in renamed:
        if old in result.files:
            result.files[new] = result.files.pop(old)
            result.notes.append(f"{shown(old)} counts as {shown(new)}: {RENAMED}")
    _report(result, lister)
    result.digest = _digest(result)
    return result


class _Lister:
    """What a submission holds, before anything is read."""

    def __init__(self, result: Submission) -> None:
        self.result = result
        self.listed: dict[str, Member] = {}
        self.twice: list[str] = []
        self.looked_at = self.inner = 0

    def zip(self, file: IO[bytes], prefix: str, called: str, depth: int = 0) -> None:
        try:
            for member in members(file, MAX_DIRECTORY >> 3 * depth):  # of folders alone, too
                name = prefix + clean(member.name)
                if noise(name[len(prefix) :]):
                    continue
                self.looked_at += 1
                if self.looked_at > MAX_LISTED:
                    return
                if why := harmless(name) or member.fault:
                    self.result.left_out[name] = why
                elif name.lower().endswith(".zip") and depth < NESTED and self.inner < MAX_INNER:
                    self.inner += 1
                    self._inner(replace(member, name=name), depth + 1)
                else:
                    self.twice += [name] if name in self.listed else []
                    self.listed[name] = replace(member, name=name)
        except BadArchive as error:
            self.result.left_out[called] = str(error)

    def _inner(self, member: Member, depth: int) -> None:
        try:
            data = member.read(MAX_TOTAL + 1)
        except BadArchive as error:  # the archive around it goes on
            self.result.left_out[member.name] = str(error)
            return
        if len(data) > MAX_TOTAL:
            self.result.left_out[member.name] = _FULL
        else:
            self.zip(io.BytesIO(data), f"{member.name}/", member.name, depth)


def _worth(name: str) -> tuple:
    """Code first, then notebooks, then the rest; what lies higher before what lies deep."""
    low = name.lower()
    return (0 if low.endswith(".py") else 1 if is_notebook(low) else 2, name.count("/"), name)


def _read(result: Submission, listed: dict[str, Member]) -> None:
    total = 0
    for name in sorted(listed, key=_worth):
        room = min(MAX_FILE, MAX_TOTAL - total)
        if any(name[:at] in listed for at, letter in enumerate(name) if letter == "/"):
            result.left_out[name] = "lies in something that is a file as well"
        elif len(result.files) >= MAX_FILES or not room:
            result.left_out[name] = _FULL
        else:
            try:
                data = listed[name].read(room + 1)
            except BadArchive as error:
                result.left_out[name] = str(error)
                continue
            if len(data) > room:
                result.left_out[name] = f"is larger than {MAX_FILE >> 20} MiB" if room == MAX_FILE else _FULL
            else:
                result.files[name] = data
                total += len(data)


def _take_manifest(result: Submission) -> None:
    """Put each file of a manifest under the path that it has there; of several manifests those of the newest. One that
    does not fit its files says nothing."""
    found, paths = [], [path for path in result.files if path.rpartition("/")[2] == MANIFEST]
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in result.files.items()} if paths else {}
    for path in paths:
        manifest, prefix = read_manifest(result.files[path]), path.removesuffix(MANIFEST)
        if manifest is None:
            continue
        del result.files[path]
        named = manifest.files.items()
        wrong = [name for name, digest in named if harmless(name) or digests.get(prefix + name) != digest]
        if wrong:
            result.notes.append(
                f"{shown(path)} does not fit what was handed in ({some(wrong)} changed since, or not there): the files "
                "are read as if it was not there."
            )
        else:
            found.append((manifest.made, prefix, manifest))
    if not found:
        return
    _, prefix, result.manifest = max(found, key=lambda one: one[:2])
    listed = {prefix + name: name for name in result.manifest.files}
    # What is beside it lies deeper, so that nothing of it stands where a file of the manifest does.
    result.files = {listed.get(path, f"{BESIDE}{path}"): data for path, data in result.files.items()}


def _report(result: Submission, lister: _Lister) -> None:
    notes = result.notes
    if lister.looked_at > MAX_LISTED:
        notes.append(f"There are more than {MAX_LISTED} files in this submission; those after them were not looked at.")
    if lister.looked_at > MAX_LISTED or _FULL in result.left_out.values():
        result.attention.append("This submission is larger than what is read of one: not all of it was looked at.")
    reasons: dict[str, list[str]] = {}
    for path, why in result.left_out.items():
        reasons.setdefault(why, []).append(path)
    for why, paths in reasons.items():
        notes.append(f"Not used: {some(paths)} {why}." if len(paths) == 1 else f"Not used: {some(paths)}; each {why}.")
    if lister.twice:
        notes.append(f"In the archive more than once, and the last holds: {some(lister.twice)}.")
    for path in result.files:
        if path.lower().endswith(PACKED):
            notes.append(f"{shown(path)} {NOT_OPENED}")
    if not result.files and not result.left_out:
        notes.append(EMPTY)


def _digest(result: Submission) -> str:
    whole = hashlib.sha256()
    for path, data in sorted(result.files.items()):
        whole.update(f"file {path}\0{hashlib.sha256(data).hexdigest()}\n".encode("utf-8", "surrogatepass"))
    for path, why in sorted(result.left_out.items()):
        whole.update(f"left out {path}\0{why}\n".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
