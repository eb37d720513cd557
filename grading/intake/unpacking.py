"""Where a download lies to be read: a folder as it is, a zip unpacked into a scratch folder."""

import hashlib
from pathlib import Path

from grading.intake.archives import BadArchive, Member, members
from grading.intake.attempts import MAX_ATTEMPT, Download
from grading.intake.names import LEFT_ABOUT, clean, harmless, shown
from labkit.checks.tasks import REGISTRY
from labkit.errors import LabError

MAX_DIRECTORY = 256 << 20  # bytes of a download's list of files; 1,000 whole student trees need a tenth


def unpacked(source: Path, scratch: Path, found: Download) -> Path:
    """The folder with what was handed in. LabError for what is no zip and no folder of submissions."""
    if source.is_dir():
        _refuse_ours(source)
        return _inbound(source)
    _unpack(source, scratch / "unpacked", found)
    return scratch / "unpacked"


def _refuse_ours(folder: Path) -> None:
    """LabError for a class's folder and nbgrader's course directory: what is in them would be students."""
    ours = next(
        (name for name in ("class.db", "nbgrader_config.py", REGISTRY, "grading") if (folder / name).exists()), ""
    )
    if ours:
        raise LabError(
            f"{folder} holds {ours}, so it is no folder of students: name a download, or nbgrader's exchange"
        )


def _inbound(source: Path) -> Path:
    """The folder of the submissions, also if the whole exchange or a course of it was named."""
    courses = [source / "inbound"] if (source / "inbound").is_dir() else sorted(source.glob("*/inbound"))
    if len(courses) > 1:
        raise LabError(f"{source} is an exchange of several courses: name one of them, for example {courses[0].parent}")
    return courses[0] if courses else source


def _unpack(source: Path, folder: Path, found: Download) -> None:
    """Unpack a download, member by member under the checks of archives.py; what is left out is reported."""
    folder.mkdir(parents=True)
    try:
        with open(source, "rb") as file:
            found.digest = hashlib.file_digest(file, "sha256").hexdigest()
            for member in members(file, MAX_DIRECTORY):
                name = clean(member.name)
                if LEFT_ABOUT & set(name.split("/")):
                    continue
                if fault := harmless(name) or member.fault or _write(member, folder / name):
                    found.notes.append(f"{shown(name)} {fault}: it was not collected")
    except FileNotFoundError:
        raise LabError(f"there is no {source}: check the name") from None
    except BadArchive as error:
        raise LabError(f"{source} {error}: download it again, as a .zip") from None


def _write(member: Member, path: Path) -> str:
    """Unpack one file; why not, as the end of a sentence, or ""."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as to:
            if member.copy(to, MAX_ATTEMPT) <= MAX_ATTEMPT:
                return ""
        fault = f"has more than {MAX_ATTEMPT >> 20} MiB"
    except BadArchive as error:
        fault = str(error)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return "is in the download as a file and as a folder"
    path.unlink()
    return fault
