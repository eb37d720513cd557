"""One submission's files, as bytes in memory: never run, no link followed, all sizes capped.

Code comes first: if a cap is reached (somebody's whole home folder), modules and notebooks are in. What is left out is
told. A submission needs at most MAX_TOTAL bytes of memory, and as much again for archives inside archives.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO

from grading.intake.contents import FOLDER, LINK, ODD, BadArchive, Walked, members, open_plain, walk
from grading.intake.find import ARCHIVES, Entry, find_submissions
from grading.intake.names import clean, harmless, is_notebook, noise, shown, some
from grading.intake.renames import apply
from labkit.checks.tasks import Week

MAX_FILE = 16 << 20  # bytes: a notebook full of pictures
MAX_TOTAL = 64 << 20
MAX_FILES = 2000
MAX_LISTED = 20_000  # names looked at
MAX_INNER = 20  # archives inside the submission that are opened
NESTED = 2  # archives around one that is still opened: that of the attempt, and one inside it
NOT_OPENED = "was not opened: hand in the files, or one .zip of them."
EMPTY = "There is no file in this hand-in."
_FULL = f"is too much: a submission may hold {MAX_TOTAL >> 20} MiB and {MAX_FILES} files"


@dataclass
class Submission:
    """One attempt, read.

    files      content by path ("week13_allreduce/ring.py"); a file out of an inner archive is "work.zip/ring.py"
    left_out   path -> why it was not read, as the end of a sentence ("is a link, and links are not followed")
    notes      sentences for the student; `attention`: for the instructor. Those of the entry are not repeated
    digest     sha256 (hex) of paths, contents and what was left out: if equal, everything is
    """

    student: str
    attempt: int
    received: datetime | None
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    digest: str = ""
    manifest: None = None

    @classmethod
    def of(cls, student: str, files: Mapping[str, bytes]) -> Submission:
        """A submission of these files, from memory: the reference solutions, say."""
        made = cls(student, 1, None, dict(files))
        made.digest = _digest(made)
        return made


@dataclass(frozen=True)
class _Listed:
    path: str
    read: Callable[[int], bytes]  # at most so many bytes; raises BadArchive or OSError


def load(entry: Entry, week: Week) -> Submission:
    """Read an entry's files. Whatever they are, this gives a Submission: what cannot be read is in its notes."""
    result = Submission(entry.student, entry.attempt, entry.received, left_out=dict(entry.left_out))
    with contextlib.ExitStack() as opened:
        lister = _Lister(result, opened)
        parts = entry.parts or (("", entry.path),)
        for name, path in parts:
            lister.part(name or clean(path.name), path, alone=len(parts) == 1)
        _read(result, lister.listed)
    result.notes += apply(result.files, dict(entry.renamed))
    _tell(result, lister)
    result.digest = _digest(result)
    return result


def handed_in(folder: Path, week: Week) -> Callable[[str, int], Submission | None]:
    """The function that reads what a student handed in as an attempt; None for one that is not in `folder` (any more).

    LabError if there is no such folder."""
    entries = {(entry.student, entry.attempt): entry for entry in find_submissions(folder, week)}

    def attempt(student: str, number: int) -> Submission | None:
        entry = entries.get((student, number))
        return load(entry, week) if entry else None

    return attempt


class _Lister:
    """What a submission holds, before anything is read."""

    def __init__(self, result: Submission, opened: contextlib.ExitStack) -> None:
        self.result, self.opened = result, opened
        self.listed: dict[str, _Listed] = {}
        self.twice: list[str] = []
        self.looked_at = self.inner = 0

    def part(self, name: str, path: Path, alone: bool) -> None:
        """One folder, archive or file of the entry. The content of the only one lies at the top."""
        prefix = "" if alone else f"{name}/"
        try:
            kind = os.lstat(path).st_mode
            if stat.S_ISDIR(kind):
                self._folder(path, prefix)
            elif not stat.S_ISREG(kind):
                self._leave(name, LINK if stat.S_ISLNK(kind) else ODD)
            else:
                file = self.opened.enter_context(open_plain(None, os.fspath(path)))
                if path.suffix.lower() == ".zip":
                    self._zip(file, prefix, name)
                else:
                    self._add(name, file.read)
        except OSError as error:
            self._leave(name, f"cannot be read ({error.strerror})")

    def _folder(self, path: Path, prefix: str) -> None:
        top = os.open(path, FOLDER)
        self.opened.callback(os.close, top)
        for walked in walk(top):
            name = prefix + walked.name
            if not self._may_look():
                return
            if walked.fault:
                self._leave(name, walked.fault)
            elif name.lower().endswith(".zip") and self._may_open():
                try:
                    self._zip(self.opened.enter_context(walked.open(top)), f"{name}/", name, depth=1)
                except OSError as error:
                    self._leave(name, f"cannot be read ({error.strerror})")
            else:
                self._add(name, _later(walked, top))

    def _zip(self, file: IO[bytes], prefix: str, called: str, depth: int = 0) -> None:
        try:
            for member in members(file):
                name = prefix + clean(member.name)
                if noise(name[len(prefix) :]) or not self._may_look():
                    continue
                if why := harmless(name) or member.fault:
                    self._leave(name, why)
                elif name.lower().endswith(".zip") and depth < NESTED and self._may_open():
                    data = member.read(MAX_TOTAL + 1)
                    if len(data) > MAX_TOTAL:
                        self._leave(name, _FULL)
                    else:
                        self._zip(io.BytesIO(data), f"{name}/", name, depth + 1)
                else:
                    self._add(name, member.read)
        except BadArchive as error:
            self._leave(called, str(error))

    def _add(self, name: str, read: Callable[[int], bytes]) -> None:
        if name in self.listed:
            self.twice.append(name)
        self.listed[name] = _Listed(name, read)

    def _leave(self, name: str, why: str) -> None:
        self.result.left_out[name] = why

    def _may_look(self) -> bool:
        self.looked_at += 1
        return self.looked_at <= MAX_LISTED

    def _may_open(self) -> bool:
        self.inner += 1
        return self.inner <= MAX_INNER


def _later(walked: Walked, top: int) -> Callable[[int], bytes]:
    def read(limit: int) -> bytes:
        with walked.open(top) as file:
            return file.read(limit)

    return read


def _worth(listed: _Listed) -> tuple:
    """Code first, then notebooks, then the rest; what lies higher before what lies deep."""
    name = listed.path.lower()
    return (0 if name.endswith(".py") else 1 if is_notebook(name) else 2, listed.path.count("/"), listed.path)


def _read(result: Submission, listed: dict[str, _Listed]) -> None:
    total = 0
    for one in sorted(listed.values(), key=_worth):
        room = min(MAX_FILE, MAX_TOTAL - total)
        if any(one.path[:at] in listed for at, letter in enumerate(one.path) if letter == "/"):
            result.left_out[one.path] = "lies in something that is a file as well"
            continue
        try:
            if len(result.files) >= MAX_FILES or not room:
                result.left_out[one.path] = _FULL
                continue
            data = one.read(room + 1)
        except (BadArchive, OSError) as error:
            result.left_out[one.path] = (
                str(error) if isinstance(error, BadArchive) else f"cannot be read ({error.strerror})"
            )
            continue
        if len(data) > room:
            result.left_out[one.path] = f"is larger than {MAX_FILE >> 20} MiB" if room == MAX_FILE else _FULL
        else:
            result.files[one.path] = data
            total += len(data)


def _tell(result: Submission, lister: _Lister) -> None:
    notes = result.notes
    if lister.looked_at > MAX_LISTED:
        notes.append(f"There are more than {MAX_LISTED} files in this hand-in; those after them were not looked at.")
    if lister.looked_at > MAX_LISTED or _FULL in result.left_out.values():
        result.attention.append("This hand-in is larger than what is read of one: not all of it was looked at.")
    reasons: dict[str, list[str]] = {}
    for path, why in result.left_out.items():
        reasons.setdefault(why, []).append(path)
    for why, paths in reasons.items():
        notes.append(f"Not used: {some(paths)} {why}." if len(paths) == 1 else f"Not used: {some(paths)}; each {why}.")
    if lister.twice:
        notes.append(f"In the archive more than once, and the last holds: {some(lister.twice)}.")
    for path in result.files:
        if path.lower().endswith(ARCHIVES):
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
