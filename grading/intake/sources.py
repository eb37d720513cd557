"""Where submissions are collected from: nbgrader's exchange, a folder, or an LMS's download as one .zip.

A download is unpacked to a folder of its own first, member by member under the checks of contents.py: its outer names
are the LMS's, but the inner ones are the students'.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from grading.here import CONFIG
from grading.intake.contents import BadArchive, Zipped, members
from grading.intake.find import Entry, Found, find_submissions
from grading.intake.names import ambiguous, clean, harmless, is_exchange_name, lms_name, noise, shown, some
from grading.intake.times import TIMESTAMP
from labkit.checks.tasks import Week
from labkit.errors import LabError

MAX_MEMBER = 1 << 30  # bytes of one file of a download
MAX_DIRECTORY = 256 << 20  # bytes of its list of files; 1,000 whole student trees need a tenth
STILL_WRITING = 600  # seconds in which an exchange's folder without a timestamp may still become one


@contextlib.contextmanager
def opened(source: Path, week: Week, scratch: Path) -> Iterator[Found]:
    """The entries of a source; they can be read inside the `with`. `scratch` is a folder to unpack into, made and
    removed here. LabError for what is no source."""
    try:
        if source.is_file():
            _remove(scratch)
            unpacked, notes = _unpack(source, scratch)
            try:
                found = find_submissions(_descended(unpacked), week, kept=False)
            except LabError as error:
                raise LabError(_of_the_download(str(error), source, week)) from None
            found.notes[:0] = notes
        else:
            _refuse_ours(source)
            _refuse_downloads(source, week)
            found = _unfinished(find_submissions(_inbound(source), week))
        yield found
    finally:
        _remove(scratch)


def _refuse_ours(folder: Path) -> None:
    """LabError for the course directory of nbgrader's and the class's folder: their folders would be students."""
    if (folder / CONFIG).is_file():
        raise LabError(
            f"{folder} is nbgrader's course directory, and no folder of students: name the exchange, into which "
            "students submit, or a download"
        )
    if (folder / "course.toml").is_file() or all((folder / name).is_dir() for name in ("marks", "submitted")):
        raise LabError(f"{folder} is a class's folder, and no folder of students: name a download, or the exchange")


def _refuse_downloads(folder: Path, week: Week) -> None:
    """LabError for a folder that holds platforms' downloads of a whole class: each would be taken for one student's
    hand-in, and be called as its file is."""
    for path in sorted(folder.glob("*.zip")):
        try:
            with open(path, "rb") as file:
                tops = {clean(member.name).split("/")[0] for member in members(file, MAX_DIRECTORY)}
        except (OSError, BadArchive):
            continue  # whoever handed it in is told
        people = {named.student for name in tops if not noise(name) and (named := lms_name(name)) is not None}
        if len(people) > 1:
            raise LabError(
                f"{path} is the download of a whole class ({some(sorted(people), 3)}): collect it by itself, "
                f"`grade collect {week.name} --from {shlex.quote(str(path))}`, if it is of {week.name}"
            )


def _inbound(source: Path) -> Path:
    """The folder of the submissions, also if the whole exchange or a course of it was named."""
    if (source / "inbound").is_dir():
        return source / "inbound"
    courses = sorted(source.glob("*/inbound"))
    if len(courses) > 1:
        raise LabError(f"{source} is an exchange of several courses: name one of them, for example {courses[0].parent}")
    return courses[0] if courses else source


def _unfinished(found: Found) -> Found:
    """Without the entries that nbgrader is still copying: it writes the time when it is done with the rest."""
    kept = []
    for entry in found:
        if is_exchange_name(clean(entry.path.name)) and _young(entry):
            found.notes.append(f"{shown(entry.path.name)} is being handed in right now: collect again in a while")
        else:
            kept.append(entry)
    return Found(kept, found.notes, found.without)


def _young(entry: Entry) -> bool:
    return not (entry.path / TIMESTAMP).exists() and time.time() - entry.path.lstat().st_mtime < STILL_WRITING


def _unpack(source: Path, scratch: Path) -> tuple[Path, list[str]]:
    """Unpack a download; its folder, and sentences about what was left out."""
    notes = []
    scratch.mkdir(parents=True)
    with open(source, "rb") as file:
        try:
            for member in members(file, MAX_DIRECTORY):
                name = clean(member.name)
                if noise(name):
                    continue
                fault = harmless(name) or member.fault
                if not fault:
                    fault = _write(member, scratch / name)
                if fault:
                    notes.append(f"{source.name}: {shown(name)} {fault}: it was not collected")
        except BadArchive as error:
            raise LabError(f"{source} {error}: download it again, as a .zip") from None
    return scratch, notes


def _write(member: Zipped, path: Path) -> str:
    """Unpack one file; why not, or ""."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as to:
            if member.copy(to, MAX_MEMBER):
                return ""
        fault = f"has more than {MAX_MEMBER >> 20} MiB"
    except BadArchive as error:
        fault = str(error)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return "is in the download as a file and as a folder"
    path.unlink()
    return fault


def _descended(folder: Path) -> Path:
    """A download may hold one folder that holds the rest ("submissions/")."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir() and not (ambiguous(inside[0].name) or lms_name(inside[0].name)):
        below = [path.name for path in inside[0].iterdir()]
        if below and all(lms_name(name) or name.lower().endswith(".zip") for name in below):
            return inside[0]
    return folder


def _of_the_download(sentence: str, source: Path, week: Week) -> str:
    if "looks like one submission" in sentence:
        return (
            f"{source} is one student's hand-in, and not a download of all: put it into a folder as STUDENT.zip, "
            f"and collect from that folder"
        )
    return f"{source}: {sentence}"


def _remove(scratch: Path) -> None:
    if scratch.exists():
        shutil.rmtree(scratch)
