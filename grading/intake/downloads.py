"""A download, a folder or nbgrader's exchange -> what arrived in it: one Arrival for each attempt.

Names are read by guesses.py, and the register's people decide among the readings: which platform's download it is, in
which of its folders the students' are, and whose a name is. What is not recognised is reported, and never becomes a
student. What was handed in together, attempts.py makes an archive of.
"""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path

from grading.intake.archives import FOLDER, open_plain, walk
from grading.intake.arrival import Key
from grading.intake.attempts import Download, Item, TooMuch, arrival, batches
from grading.intake.guesses import CODE, TITLES, Guess, another_assignments, gradescope, plain, readings
from grading.intake.names import LEFT_ABOUT, PACKED, clean, noise, same_letters, shown, some
from grading.intake.rosters import Line, Roster
from grading.intake.unpacking import unpacked
from grading.intake.worksheet import Worksheet
from grading.intake.wrong_week import modules
from labkit.checks.tasks import Week
from labkit.errors import LabError

DEEPEST = 3  # folders around the students' own
METADATA, MAX_METADATA = "submission_metadata.yml", 64 << 20  # Gradescope's, and its bytes
TEST_STUDENT = "studenttest"  # how Canvas calls files of its own "Student, Test", whom its Student View makes
BY_CHANCE = ("canvas", "ilias")  # what one name may look like: "hw_13_2_final.zip"


@dataclass(frozen=True)
class Known:
    """What is known when a download is read.

    owner     whose keys these are, as the register answers: (a number, the name); None if they are of none
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
    folder = unpacked(source, scratch, found)
    reader, notes = _Reader(known, found), list(found.notes)
    items = reader.items(folder)
    if not items:
        reader.lenient, found.notes = True, notes
        items = reader.items(folder)
    if not items:
        reader.refuse(source, folder)
    whole = batches(items)
    for number, batch in enumerate(whole):
        progress(number, len(whole))
        try:
            found.arrivals.append(arrival(batch, scratch / f"{number}.zip", found, known.week))
        except (OSError, TooMuch) as error:
            if isinstance(error, OSError) and not Path(str(error.filename)).is_relative_to(folder):
                raise  # a full disk here is no fault of the attempt
            why = str(error) if isinstance(error, TooMuch) else f"cannot be read ({error.strerror})"
            found.notes.append(f"{shown(batch[0].path.name)} {why}: it was not collected")
    return found


class _Reader:
    """Reads one download; what it passes over is in the download's notes."""

    def __init__(self, known: Known, found: Download) -> None:
        self.known, self.found = known, found
        self.week, self.zone, self.sheet = known.week, known.zone, Worksheet(known.sheet, known.week.name)
        self.live = self.lenient = False  # lenient: nobody of the class is in it, and a few names are enough

    # -- whose is what ------------------------------------------------------------------------------------------------
    def items(self, folder: Path, depth: int = 0) -> list[Item]:
        """What is somebody's in a folder; if nothing is, in the folders in it: a download may be packed in others."""
        try:
            tops = [entry for entry in sorted(os.scandir(folder), key=lambda one: one.name) if self._is_read(entry)]
        except OSError as error:
            self.found.notes.append(f"{shown(folder.name)} cannot be read ({error.strerror}): it was not collected")
            return []
        exchange = any(another_assignments(entry.name) for entry in tops)  # there a student could lay any file
        if any(entry.name == METADATA and entry.is_file(follow_symlinks=False) for entry in tops) and not exchange:
            return self._gradescope(folder, tops)
        read = {entry.name: readings(clean(entry.name), _is_folder(entry), self.week, self.zone) for entry in tops}
        how = self._how(read)
        self.live = bool(os.stat(folder).st_mode & stat.S_IWOTH)  # every account may write, as into an exchange
        items, rest = self._picked(tops, how, read)
        if not items and depth < DEEPEST:
            return [item for entry in rest if _is_folder(entry) for item in self.items(Path(entry.path), depth + 1)]
        self.found.how = how if items else self.found.how
        if how == "moodle" and items and self.known.sheet and not any(one.members or _exact(one) for one in items):
            raise LabError(
                f"{self.known.sheet.path} is another assignment's worksheet: nobody of {self.found.source} has the "
                "number in it that the download has. Download it from this assignment"
            )
        if items and rest:
            many = f"{len(rest)} of {len(tops)} names are not" if len(rest) > 1 else "1 name is not"
            whose = f"{TITLES[how]}'s" if how in TITLES else "a person of the class"
            names = some([clean(entry.name) for entry in rest])
            self.found.notes.append(f"{many} {whose}, and nothing of that was collected: {names}")
        return items

    def _picked(
        self, tops: list[os.DirEntry], how: str, read: dict[str, list[Guess]]
    ) -> tuple[list[Item], list[os.DirEntry]]:
        """(what is somebody's of a folder in which names are the platform `how`'s, what is left)."""
        items, rest, tests = list[Item](), list[os.DirEntry](), list[str]()
        own = {entry.name: plain(clean(entry.name), _is_folder(entry)) for entry in tops}
        for entry in tops:
            guesses = [guess for guess in read[entry.name] if guess.how == how]
            if guesses and guesses[0].name == TEST_STUDENT and not any(map(self._owner, guesses)):
                tests.append(clean(entry.name))
            elif guesses:
                items.append(self._item(entry, self._chosen(clean(entry.name), guesses)))
            elif how != "nbgrader" and self.known.owner(own[entry.name].keys):
                items.append(self._item(entry, own[entry.name]))
            else:
                rest.append(entry)
        named = [entry for entry in rest if how == "folder" and self.known.proposed(own[entry.name].label)]
        if how == "folder" and (items or named):  # so it is the students' folder, and others in it are students, too
            strangers = [entry for entry in rest if entry in named or _is_work(entry)]
            items += [self._item(entry, own[entry.name]) for entry in strangers]
            rest = [entry for entry in rest if entry not in strangers]
        if tests:
            self.found.notes.append(f"Canvas' own Test Student, who is nobody, and was not collected: {some(tests)}")
        return items, rest

    def _is_read(self, entry: os.DirEntry) -> bool:
        name = clean(entry.name)
        if name.startswith(".") and name not in LEFT_ABOUT and not name.startswith("._"):
            self.found.notes.append(f"{shown(name)} has a hidden name: it was not collected")
        another = another_assignments(name) and not readings(name, True, self.week, self.zone)
        return not (noise(name) or name == "lost+found" or another)

    def _how(self, read: dict[str, list[Guess]]) -> str:
        """Whose names these are: the platform's by which most are people of the class, else by which most can be
        read."""
        best, score = "folder", (0, 0)
        for how in TITLES:
            mine = [theirs for guesses in read.values() if (theirs := [one for one in guesses if one.how == how])]
            known = sum(any(self._owner(guess) for guess in theirs) for theirs in mine)
            clear = len(mine) * 2 >= len(read) and (how not in BY_CHANCE or len(mine) > 2)
            clear = clear or (self.lenient and len(mine) == len(read))
            if mine and (known or clear) and (known, len(mine)) > score:
                best, score = how, (known, len(mine))
        return best

    def _owner(self, guess: Guess) -> tuple[int, str] | None:
        """Whose a name is. Moodle's number may be a group's as well: it says something together with the name alone."""
        if line := self._line(guess):
            return int(guess.number), line.name
        exact = [key for key in guess.keys if key.platform != "name"]
        owner = self.known.owner(exact) if exact and guess.number not in self.sheet.numbers else None
        if owner is not None and guess.number and not same_letters(guess.name, owner[1]):
            return None
        return owner

    def _line(self, guess: Guess) -> Line | None:
        """The worksheet's line of a name: by number and name, else by the number and what an instructor said."""
        line, near = self.sheet.line(guess), self.sheet.numbers.get(guess.number)
        if line is None and near is not None:
            said = self.known.owner([key for key in guess.keys if key.platform == "name"])
            return near if said is not None and said == self.known.owner(near.keys) else None
        return line

    def _chosen(self, name: str, guesses: list[Guess]) -> Guess:
        """The reading that holds: the one by which it is a person of the class. Where a student may have chosen the
        name to look so, it has no owner until an instructor says whose."""
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
        if line := self._line(guess):
            keys = tuple(dict.fromkeys([*line.keys, *guess.keys]))
            return Item(path, replace(guess, keys=keys, received=line.submitted))
        group, members = self.sheet.members(guess)
        if members:
            received = max((one.submitted for one in members if one.submitted), default=None)
            everyone = tuple(self.sheet.keys(one) for one in members)
            return Item(path, replace(guess, keys=(), received=received), everyone, group)
        if self._owner(guess):
            return Item(path, guess)
        doubt = guess.doubt or ("is no person and no group of the worksheet" if self.sheet.numbers else "")
        keys = tuple(key for key in guess.keys if key.platform == "name")
        return Item(path, replace(guess, keys=keys, doubt=doubt))

    def _gradescope(self, folder: Path, tops: list[os.DirEntry]) -> list[Item]:
        self.found.how = "gradescope"
        with open_plain(None, os.fspath(folder / METADATA)) as file:
            metadata = gradescope(file.read(MAX_METADATA).decode("utf-8", "replace"), self.zone)
        items, rest = [], []
        for entry in tops:
            who, received = metadata.get(entry.name, ([], None))
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

    def refuse(self, source: Path, folder: Path) -> None:
        """LabError on a download in which nobody is."""
        names = {clean(path.name) for path in folder.iterdir() if not noise(path.name)}
        if own := sorted({*modules(self.week), self.week.package} & names):
            raise LabError(
                f"{source} holds {own[0]} itself and looks like one submission: put it into a folder as ID.zip, where "
                "ID is the student's, and collect that folder"
            )
        if not self.found.notes:
            raise LabError(
                f"nothing in {source} is called as a platform calls submissions, or as somebody of the class is: "
                f"{some(sorted(names)) or 'it is empty'}. Call each by the student's e-mail or id"
            )


def _exact(item: Item) -> bool:
    """Whether a key of it decides whose it is."""
    return any(key.platform != "name" for key in item.guess.keys)


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
