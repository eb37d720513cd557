"""A download, a folder or nbgrader's exchange -> what arrived in it: one Arrival for each attempt.

Names are read by guesses.py, and the register's people decide among the readings: which platform's download it is, in
which of its folders the students' are, and whose a name is. What is not recognised is reported, and never becomes a
student. What was handed in together, attempts.py makes an archive of.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

from grading.intake import stamps
from grading.intake.archives import FOLDER, BadArchive, Member, members, open_plain, walk
from grading.intake.arrival import Key
from grading.intake.attempts import MAX_ATTEMPT, Download, Item, TooMuch, arrival, batches
from grading.intake.guesses import CODE, PACKED, TITLES, Guess, another_assignments, gradescope, plain, readings
from grading.intake.names import (
    LEFT_ABOUT,
    clean,
    harmless,
    in_moodles_files,
    noise,
    other_week,
    same_letters,
    shown,
    some,
)
from grading.intake.rosters import Line, Roster
from labkit.checks.tasks import REGISTRY, Week
from labkit.errors import LabError

MAX_DIRECTORY = 256 << 20  # bytes of a download's list of files; 1,000 whole student trees need a tenth
STILL_WRITING = 600  # seconds in which an exchange's folder without a timestamp may still become one
DEEPEST = 3  # folders around the students' own
METADATA = "submission_metadata.yml"  # Gradescope's
NO_NAME_LIKE_IT = ("canvas", "ilias")  # what may look so by chance: "hw_13_2_final.zip"


@dataclass(frozen=True)
class Known:
    """What is known when a download is read.

    owner     whose keys these are, as the register answers: (a number, the name); None if nobody's
    proposed  whether a name is somebody's, but for signs and blanks
    zone      the class's
    sheet     Moodle's grading worksheet of this assignment
    """

    week: Week
    owner: Callable[[Sequence[Key]], tuple[int, str] | None]
    proposed: Callable[[str], bool]
    zone: tzinfo | None = None
    sheet: Roster | None = None


def read_download(
    source: Path, known: Known, scratch: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> Download:
    """What arrived in a download: a zip of a platform, or a folder.

    scratch   an empty folder for the attempts' archives

    LabError for what is none: another file, the class's own folder, one student's submission, a folder of strangers."""
    found = Download(source.name)
    if source.is_dir():
        _refuse_ours(source)
        folder = _inbound(source)
    else:
        folder = scratch / "unpacked"
        _unpack(source, folder, found)
    reader = _Reader(known, found)
    items = reader.items(folder)
    if not items:
        reader.refuse(source, folder)
    whole = batches(items)
    for number, batch in enumerate(whole):
        progress(number, len(whole))
        try:
            found.arrivals.append(arrival(batch, scratch / f"{number}.zip", found, known.week, known.zone))
        except (OSError, TooMuch) as error:
            if isinstance(error, OSError) and (error.filename is None or not _below(error.filename, folder)):
                raise  # a full disk here is no fault of the attempt
            why = str(error) if isinstance(error, TooMuch) else f"cannot be read ({error.strerror})"
            found.notes.append(f"{shown(batch[0].path.name)} {why}: it was not collected")
    return found


def _below(path: object, folder: Path) -> bool:
    return isinstance(path, (str, Path)) and Path(path).is_relative_to(folder)


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


class _Reader:
    """Reads one download; what it passes over is in the download's notes."""

    def __init__(self, known: Known, found: Download) -> None:
        self.known, self.found = known, found
        self.week, self.zone, self.sheet = known.week, known.zone, known.sheet
        lines = known.sheet.lines if known.sheet else []
        self.lines = {line.participant: line for line in lines if line.participant}
        self.live = False

    # -- whose is what ------------------------------------------------------------------------------------------------
    def items(self, folder: Path, depth: int = 0) -> list[Item]:
        """What is somebody's in a folder; if nothing is, in the folders in it: a download may be packed in others."""
        try:
            tops = [entry for entry in sorted(os.scandir(folder), key=lambda one: one.name) if self._is_read(entry)]
        except OSError as error:
            self.found.notes.append(f"{shown(folder.name)} cannot be read ({error.strerror}): it was not collected")
            return []
        if any(entry.name == METADATA for entry in tops):
            return self._gradescope(folder, tops)
        read = {entry.name: readings(clean(entry.name), _is_folder(entry), self.week, self.zone) for entry in tops}
        how = self._how(read)
        self.live = stamps.open_to_all(folder)
        items, rest = self._picked(tops, how, read)
        if not items and depth < DEEPEST:
            return [item for entry in rest if _is_folder(entry) for item in self.items(Path(entry.path), depth + 1)]
        self.found.how = how if items else self.found.how
        if self.sheet and how == "moodle" and self.lines and not any(one.members or _exact(one) for one in items):
            raise LabError(
                f"{self.sheet.path} is another assignment's worksheet: nobody of {self.found.source} has the number "
                "in it that the download has. Download it from this assignment"
            )
        if items and rest:
            many = f"{len(rest)} of {len(tops)} names are not" if len(rest) > 1 else "1 name is not"
            whose = f"{TITLES[how]}'s" if how in TITLES else "a person of the class"
            names = some([clean(entry.name) for entry in rest])
            self.found.notes.append(f"{many} {whose}, and nothing of that was collected: {names}")
        return self._of_the_week([item for item in items if not self._is_young(item)])

    def _picked(
        self, tops: list[os.DirEntry], how: str, read: dict[str, list[Guess]]
    ) -> tuple[list[Item], list[os.DirEntry]]:
        """(what is somebody's of a folder in which names are the platform `how`'s, what is nobody's)."""
        items, rest = list[Item](), list[os.DirEntry]()
        own = {entry.name: plain(clean(entry.name), _is_folder(entry)) for entry in tops}
        for entry in tops:
            if guesses := [guess for guess in read[entry.name] if guess.how == how]:
                items.append(self._item(entry, self._chosen(clean(entry.name), guesses)))
            elif self.known.owner(own[entry.name].keys):
                items.append(self._item(entry, own[entry.name]))
            else:
                rest.append(entry)
        named = [entry for entry in rest if how == "folder" and self.known.proposed(own[entry.name].label)]
        if how == "folder" and (items or named):  # so it is the students' folder, and others in it are students, too
            strangers = [entry for entry in rest if entry in named or _is_work(entry)]
            items += [self._item(entry, own[entry.name]) for entry in strangers]
            rest = [entry for entry in rest if entry not in strangers]
        return items, rest

    def _is_read(self, entry: os.DirEntry) -> bool:
        name = clean(entry.name)
        if name.startswith(".") and name not in LEFT_ABOUT and not name.startswith("._"):
            self.found.notes.append(f"{shown(name)} has a hidden name: it was not collected")
        return not (noise(name) or name == "lost+found" or self._is_another_assignments(name))

    def _is_another_assignments(self, name: str) -> bool:
        return another_assignments(name) and not readings(name, True, self.week, self.zone)

    def _how(self, read: dict[str, list[Guess]]) -> str:
        """Whose names these are: the platform's by which most are people of the class, else by which most can be
        read."""
        best, score = "folder", (0, 0)
        for how in TITLES:
            mine = [theirs for guesses in read.values() if (theirs := [one for one in guesses if one.how == how])]
            known = sum(any(self._owner(guess) for guess in theirs) for theirs in mine)
            clear = len(mine) * 2 >= len(read) and (how not in NO_NAME_LIKE_IT or len(mine) > 2)
            if mine and (known or clear) and (known, len(mine)) > score:
                best, score = how, (known, len(mine))
        return best

    def _owner(self, guess: Guess) -> tuple[int, str] | None:
        """Whose a name is. Moodle's number may be a group's as well: it says something together with the name alone."""
        exact = [key for key in guess.keys if key.platform != "name"]
        number = next((key.value for key in exact if key.platform == "moodle"), "")
        if line := self.lines.get(number):
            return (int(number), line.name) if _is_called(guess.name, line) else None
        owner = self.known.owner(exact) if exact else None
        if owner is not None and number and not same_letters(guess.name, owner[1]):
            return None
        return owner

    def _chosen(self, name: str, guesses: list[Guess]) -> Guess:
        """The reading that holds: the one by which it is a person of the class. Where a student may have chosen the
        name to look so, it is nobody's until an instructor says whose."""
        known = {owner[0]: (guess, owner[1]) for guess in reversed(guesses) if (owner := self._owner(guess))}
        only = next(iter(known.values())) if len(known) == 1 else None
        first = guesses[0]
        if only and (len(guesses) == 1 or first.how != "canvas" or same_letters(only[0].name, only[1])):
            return only[0]
        if len(known) > 1 or (len(guesses) > 1 and first.how == "canvas"):
            doubt = "may be read as several people's: a student may have chosen such a name"
            return replace(first, label=name, keys=tuple(k for k in first.keys if k.platform == "name"), doubt=doubt)
        return first

    def _item(self, entry: os.DirEntry, guess: Guess) -> Item:
        path = Path(entry.path)
        if guess.how != "moodle":
            return Item(path, guess, live=self.live)
        number = next((key.value for key in guess.keys if key.platform == "moodle"), "")
        line = self.lines.get(number)
        if line and _is_called(guess.name, line):
            keys = tuple(dict.fromkeys([*line.keys, *guess.keys]))
            return Item(path, replace(guess, keys=keys, received=line.submitted), due=line.due)
        if members := self._members(guess.name):
            received = max((one.submitted for one in members if one.submitted), default=None)
            everyone = tuple(self._keys(one) for one in members)
            return Item(path, replace(guess, keys=(), received=received), everyone, guess.label)
        if self._owner(guess):
            return Item(path, guess)
        doubt = guess.doubt or ("is nobody's, and no group's, in the worksheet" if self.sheet else "")
        keys = tuple(key for key in guess.keys if key.platform == "name")
        return Item(path, replace(guess, keys=keys, doubt=doubt))

    def _keys(self, line: Line) -> tuple[Key, ...]:
        number = [Key("moodle", line.participant, self.week.name)] if line.participant else []
        return (*line.keys, *number, *([Key("name", line.name)] if line.name else []))

    def _members(self, group: str) -> list[Line]:
        """The lines of a group whose folder is called so, which is what a file's name leaves of the group's name."""
        lines = self.sheet.lines if self.sheet else []
        theirs = [
            line
            for line in lines
            if group and group in (in_moodles_files(line.group), in_moodles_files(html.escape(line.group, quote=False)))
        ]
        several = len({line.group for line in theirs}) > 1  # Team 1 and Team_1: nobody can tell
        return [] if several or any(line.name == group for line in lines) else theirs

    def _gradescope(self, folder: Path, tops: list[os.DirEntry]) -> list[Item]:
        self.found.how = "gradescope"
        with open_plain(None, os.fspath(folder / METADATA)) as file:
            told = gradescope(file.read(MAX_DIRECTORY).decode("utf-8", "replace"), self.zone)
        items, rest = [], []
        for entry in tops:
            who, received = told.get(entry.name, ([], None))
            if not who:
                rest += [clean(entry.name)] if entry.name != METADATA else []
                continue
            names = [next((key.value for key in keys if key.platform in ("name", "email")), "") for keys in who]
            guess = Guess("gradescope", ", ".join(names), tuple(who[0]), received=received)
            several: tuple[tuple[Key, ...], ...] = tuple(tuple(keys) for keys in who) if len(who) > 1 else ()
            items.append(Item(Path(entry.path), guess, several, entry.name if several else ""))
        if rest:
            self.found.notes.append(f"{some(rest)}: {METADATA} says nothing of it, and it was not collected")
        return items

    def _of_the_week(self, items: list[Item]) -> list[Item]:
        """Of nbgrader's submitted/, STUDENT/week13 in place of STUDENT; without those who have other weeks only."""
        kept, without = [], []
        for item in items:
            inside = _names_in(item.path) if item.guess.how == "folder" else []
            if not inside:
                kept.append(item)
            elif self.week.name in inside and not _modules(self.week) & set(inside):
                kept.append(replace(item, path=item.path / self.week.name))
            elif all(other_week(name, self.week) for name in inside):
                without.append(item.guess.label)
            else:
                kept.append(item)
        if without:
            self.found.notes.append(f"Other weeks, but nothing of {self.week.name}: {some(without, 20)}")
        return kept

    def _is_young(self, item: Item) -> bool:
        """Whether nbgrader is still copying it: it writes the time when it is done with the rest."""
        if item.guess.how != "nbgrader" or (item.path / stamps.TIMESTAMP).exists():
            return False
        young = time.time() - item.path.lstat().st_mtime < STILL_WRITING
        if young:
            self.found.notes.append(f"{shown(item.path.name)} is being handed in right now: collect again in a while")
        return young

    def refuse(self, source: Path, folder: Path) -> None:
        """LabError on a download in which nobody is."""
        names = {clean(path.name) for path in folder.iterdir() if not noise(path.name)}
        if own := sorted({*_modules(self.week), self.week.package} & names):
            raise LabError(
                f"{source} holds {own[0]} itself and looks like one submission: put it into a folder as ID.zip, where "
                "ID is the student's, and collect that folder"
            )
        if not self.found.notes:
            raise LabError(
                f"nothing in {source} is called as a platform calls submissions, or as somebody of the class is: "
                f"{some(sorted(names)) or 'it is empty'}"
            )


def _exact(item: Item) -> bool:
    """Whether a key of it decides whose it is."""
    return any(key.platform != "name" for key in item.guess.keys)


def _names_in(folder: Path) -> list[str]:
    """What lies in a folder, without what tools leave; nothing in what is none, or cannot be read."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            return [name for name in os.listdir(folder) if not noise(clean(name))]
    return []


def _is_folder(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_work(entry: os.DirEntry) -> bool:
    """Whether something with a name that nobody has may be a submission: an archive, code, or a folder with such in it,
    however deep. A stray table or a page is none."""
    if not _is_folder(entry):
        return entry.is_file(follow_symlinks=False) and entry.name.lower().endswith((*CODE, *PACKED))
    try:
        top = os.open(entry.path, FOLDER)
    except OSError:
        return True
    try:
        return any(member.name.lower().endswith((*CODE, *PACKED)) for member in walk(top))
    finally:
        os.close(top)


def _is_called(name: str, line: Line) -> bool:
    """Whether Moodle's files call the one of this line so; before Moodle 4.1 with the group in front. Under blind
    marking the worksheet has no names."""
    own, group = in_moodles_files(line.name), in_moodles_files(line.group)
    return name in (own, f"{group}-{own}") if line.name else name.startswith("Participant")


def _modules(week: Week) -> set[str]:
    return {f"{module.split('.')[0]}.py" for task in week.tasks for module in task.modules}
