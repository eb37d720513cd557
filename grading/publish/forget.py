"""`grade forget`: what is stored of one student, and removing it, and nothing of anyone else.

First the files that are theirs alone: archives, what formgrader shows of them, feedback pages. Then nbgrader's rows of
their submissions, then the rows of class.db in one transaction, overwritten and not only unlinked. Killed in between,
the same command removes the rest. What a group submitted stays the others'. Tables, rosters and downloads hold others
as well: they are named, and a person makes them again or deletes them.
"""

import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grading.intake.names import count, letters
from grading.marking.course import FOLDER
from grading.marking.typed import opened
from grading.publish.page import FEEDBACK, PUBLISHED, folder_name
from grading.register.people import Person, key_of
from grading.register.rules import FILE
from grading.register.schema import Class
from labkit.errors import LabError


@dataclass
class Stored:
    """What there is of a person.

    paths        (what, a file or folder that is wholly theirs)
    submissions  numbers of those that are theirs alone; shared: a group's, of which they leave
    others       files that name them beside others: a person makes these again, or deletes them"""

    person: Person
    paths: list[tuple[str, Path]] = field(default_factory=list)
    submissions: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def find(cls: Class, who: Person) -> Stored:
    """Everything of a person. Nothing is changed."""
    stored = Stored(who)
    own = cls.db.execute(
        "SELECT id, assignment, (SELECT count(*) FROM member m WHERE m.submission = id) AS members FROM submission "
        "WHERE id IN (SELECT submission FROM member WHERE person = ?) ORDER BY id",
        (who.id,),
    ).fetchall()
    for row in own:
        if row["members"] > 1:
            stored.shared.append(row["id"])
            continue
        stored.submissions.append(row["id"])
        for what, path in (
            ("what was submitted", cls.archive(cls.week(row["assignment"]), row["id"])),
            ("the marking screen's notebook", cls.folder / FOLDER / "autograded" / str(row["id"])),
            ("the marking screen's folder", cls.folder / FOLDER / "submitted" / str(row["id"])),
        ):
            stored.paths += [(what, path)] if path.exists() else []
    pages = (cls.folder / PUBLISHED).glob(f"*/{FEEDBACK}/{folder_name(key_of(cls, who))}")
    stored.paths += [("feedback", path) for path in sorted(pages)]
    stored.others = list(_others(cls, who))
    return stored


def forget(cls: Class, stored: Stored) -> Iterator[str]:
    """Remove it, one thing after the other; says what is gone. LabError if something cannot be removed."""
    for what, path in stored.paths:
        _remove(path)
        yield f"{what}, {path}"
    if _leave_screen(cls, stored.submissions):
        yield f"rows in {cls.folder / FOLDER / 'gradebook.db'}"
    cls.db.execute("PRAGMA secure_delete = ON")  # overwritten, and not only unlinked
    with cls.writing():
        cls.db.execute("DELETE FROM member WHERE person = ?", (stored.person.id,))
        for number in stored.submissions:
            cls.db.execute("DELETE FROM submission WHERE id = ?", (number,))
        cls.db.execute("DELETE FROM person WHERE id = ?", (stored.person.id,))
    cls.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log holds pages of before
    yield f"rows in {cls.folder / 'class.db'}"


def sentences(cls: Class, stored: Stored) -> Iterator[str]:
    """What there is, for the instructor or for the student who asks."""
    who = stored.person
    yield f"Of {who.name} ({key_of(cls, who)}) there is:"
    for what, path in stored.paths:
        yield f"  {what}: {path}"
    own = count(len(stored.submissions), "submission")
    yield f"  class.db: name, e-mail, ids, extensions, published totals; {own} with marks and points by hand,"
    yield "  which the marking screen holds as well"
    if stored.shared:
        numbers = ", ".join(map(str, stored.shared))
        yield f"  a part in what their group handed in, submission {numbers}: the files stay the others'"


def _leave_screen(cls: Class, numbers: Iterable[int]) -> int:
    """Remove the rows of these submissions from nbgrader's gradebook; how many there were."""
    path, found = cls.folder / FOLDER / "gradebook.db", 0
    if not path.is_file():
        return 0
    with opened(path) as book:
        book.execute("PRAGMA secure_delete = ON")
        for number in numbers:
            for table, where in _SCREEN:  # what hangs on others first
                found += book.execute(f"DELETE FROM {table} WHERE {where}", (str(number),)).rowcount
    return found


_ASSIGNMENTS = "SELECT id FROM submitted_assignment WHERE student_id = ?"
_NOTEBOOKS = f"SELECT id FROM submitted_notebook WHERE assignment_id IN ({_ASSIGNMENTS})"
_SCREEN = (
    *((table, f"notebook_id IN ({_NOTEBOOKS})") for table in ("grade", "comment")),
    ("submitted_notebook", f"assignment_id IN ({_ASSIGNMENTS})"),
    ("submitted_assignment", "student_id = ?"),
    ("student", "id = ?"),
)


def _others(cls: Class, who: Person) -> Iterator[str]:
    """Sentences on files of the class's folder that name them beside others."""
    values = [row["value"] for row in cls.db.execute("SELECT value FROM alias WHERE person = ?", (who.id,))]
    names = {text.casefold() for text in (who.name, who.email, *(one for one in values if not one.isdigit())) if text}
    numbers = {one for one in values if one.isdigit()}
    rules = cls.folder / FILE
    if any(name in _text(rules) for name in names):
        yield f"{rules} names them: take the lines out"
    for path in sorted(path for path in cls.folder.rglob("*") if path.is_file()):
        place = path.relative_to(cls.folder).parts
        if place[0] in ("submitted", FOLDER) or (place[0] == PUBLISHED and FEEDBACK in place):
            continue
        if path.suffix == ".zip":
            members = _members(path)
            if any(letters(who.name) in letters(name) or numbers & set(name.split("_")) for name in members):
                yield f"{path} holds files of them: make it again, or delete it"
        elif path.suffix in (".csv", ".html") and any(name in _text(path) for name in names):
            yield f"{path} names them: {'make it again' if place[0] == PUBLISHED else 'take them out'}, or delete it"


def _text(path: Path) -> str:
    """A file's text in small letters; "" if it cannot be read, or is larger than any page or table of ours."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace") if path.stat().st_size < 50_000_000 else ""
    except OSError:
        return ""
    return text.casefold()


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return []


def _remove(path: Path) -> None:
    """A file, a link (not what it points to), or a folder with what is in it; links inside are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LabError(
            f"{error.filename or path} cannot be removed ({error.strerror}): get the right to, and run the "
            "same command again; it removes the rest"
        ) from None
