"""Who somebody is. An exact key (an id, an e-mail, Canvas' number, Moodle's number in one assignment) decides; a name
may propose a person, and never decides.

Where a roster has names and nothing else, the whole name is the id. So is a name as a download writes it, once an
instructor has said whose it is (`grade who`).
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from grading.intake.arrival import Key
from grading.intake.names import clean, forms, letters, shown, some
from grading.intake.rosters import read_roster
from grading.register.schema import Class
from labkit.errors import LabError

TYPED = ("id", "email", "canvas", "nbgrader", "name")  # what a person may be called by where people type it
CLOSE = 0.75  # how like a name must be that is proposed


@dataclass(frozen=True)
class Person:
    """One of the class. left_at: since when no roster has them; None while one has. key: where others have the name."""

    id: int
    name: str
    email: str
    left_at: str | None = None
    key: str = ""

    @property
    def called(self) -> str:
        """The name in a sentence; of several with one name, with the key."""
        return f"{self.name} ({self.key})" if self.key else self.name


def everybody(cls: Class, gone: bool = False) -> list[Person]:
    """The class by name; gone: with those who left."""
    where = "" if gone else "WHERE left_at IS NULL"
    found = [Person(*row) for row in cls.db.execute(f"SELECT id, name, email, left_at FROM person {where}")]
    several = {name for name, many in Counter(one.name for one in found).items() if many > 1}
    found = [replace(one, key=key_of(cls, one)) if one.name in several else one for one in found]
    return sorted(found, key=lambda one: (one.name.casefold(), one.id))


def person(cls: Class, id: int) -> Person:
    """The person with this number."""
    return Person(*cls.db.execute("SELECT id, name, email, left_at FROM person WHERE id = ?", (id,)).fetchone())


def key_of(cls: Class, who: Person) -> str:
    """The key by which to call somebody: the e-mail, else an id, else Canvas' number, else the name."""
    rows = cls.db.execute("SELECT platform, value FROM alias WHERE person = ? AND platform != 'moodle'", (who.id,))
    keys = {row["platform"]: row["value"] for row in sorted(map(dict, rows), key=lambda row: row["value"])}
    return who.email or next((keys[platform] for platform in TYPED if platform in keys), who.name)


def resolve(cls: Class, text: str) -> Person:
    """The one person whom somebody who types this means: by an exact key, else by a whole name that one person of the
    roster has. LabError for nobody and for several, with those who may be meant."""
    keyed = {found for platform in TYPED if (found := _owner(cls, Key(platform, text))) is not None}
    if len(keyed) == 1:
        return person(cls, keyed.pop())
    named = [one for one in everybody(cls, gone=True) if Key("name", text).row[2] in _names(one)]
    here = [one for one in named if one.left_at is None]
    meant = [person(cls, id) for id in sorted(keyed)] or here or named
    if len(meant) == 1:
        return meant[0]
    if meant:
        them = some([f"{key_of(cls, one)} ({one.name})" for one in meant])
        raise LabError(f"{len(meant)} of the class are called {shown(text, 60)!r}: name one of {them}")
    close = propose(cls, text)
    raise LabError(
        f"nobody in the class is called {shown(text, 60)!r}"
        + (f": did you mean {key_of(cls, close)!r} ({shown(close.name, 60)})?" if close else "")
    )


def propose(cls: Class, name: str) -> Person | None:
    """Who may be meant by a name, an e-mail or an id as a platform or a person writes it: the one whose name has the
    same letters (else one who has left, of this very name), else the one whose name, account or id is most like it. None
    if nobody is, or several are. A proposal is shown and never taken."""
    # One domain makes all e-mails alike; and a number that a platform put behind a name says nothing here.
    here, written = everybody(cls), letters(re.sub(r"_\d+$", "", name.partition("@")[0]))
    gone = [one for one in everybody(cls, gone=True) if one.left_at and written in forms(one.name)]
    ids: dict[int, list[str]] = {}
    for row in cls.db.execute("SELECT person, value FROM alias WHERE platform = 'id'"):
        ids.setdefault(row["person"], []).append(row["value"].partition("@")[0])
    same = [one for one in here if written in forms(one.name)] or gone
    if same or not written:
        return same[0] if len(same) == 1 else None
    alike: dict[int, float] = {}
    for one in here:
        own = map(letters, (one.email.partition("@")[0], *ids.get(one.id, ())))
        alike[one.id] = _likeness(written, (*forms(one.name), *own))
    best = sorted(here, key=lambda one: -alike[one.id])[:2]
    if not best or alike[best[0].id] < CLOSE or (len(best) > 1 and alike[best[1].id] == alike[best[0].id]):
        return None
    return best[0]


def _likeness(written: str, names: Iterable[str]) -> float:
    return max(difflib.SequenceMatcher(None, written, form).ratio() for form in names)


def _names(one: Person) -> tuple[str, ...]:
    """A whole name as the roster has it, and the other way round: "Anna Müller" of Canvas' "Müller, Anna"."""
    name = Key("name", one.name).row[2]
    last, comma, first = name.partition(",")
    return (name, f"{first.strip()} {last.strip()}") if comma else (name,)


def _owner(cls: Class, key: Key) -> int | None:
    """Whose this key is."""
    row = cls.db.execute("SELECT person FROM alias WHERE (platform, assignment, value) = (?, ?, ?)", key.row).fetchone()
    return row["person"] if row else None


def owner(cls: Class, keys: Sequence[Key]) -> tuple[int | None, str]:
    """(whose these keys are, all of them one person's; None if no person's or several persons'; why, as a sentence's end).

    A login or an id of a folder may be any of the roster's ids or an e-mail. A name counts only where nothing else is
    known, and only if it is an id in this class (see the module's text) and no second person is called so."""
    found = exactly(cls, keys)
    if len(found) > 1:
        said = some([f"{key.platform} {key.value!r} is {person(cls, who).name}'s" for who, key in found.items()])
        return None, f"its keys are of several: {said}"
    for one, key in found.items():
        if key.platform == "canvas" and _is_a_groups(cls, one, keys):
            return None, f"it has the number of {person(cls, one).name}, and another name"
        return one, ""
    for key in keys:
        if key.platform == "name" and (who := _owner(cls, key)) is not None:
            called = [one.id for one in everybody(cls) if letters(key.value) in forms(one.name)]
            if set(called) <= {who}:
                return who, ""
            return None, f"{len(called)} of the class are called so"
    return None, "nobody of the class has this key" if any(key.platform != "name" for key in keys) else (
        "a name alone says nothing for certain"
    )


def same_assignment(cls: Class, who: int, numbers: Sequence[Key], where: str) -> None:
    """LabError where somebody's numbers in a Moodle assignment are known, and these are others: another one's worksheet."""
    query = "SELECT value FROM alias WHERE (person, platform, assignment) = (?, 'moodle', ?)"
    for key in numbers:
        known = {row["value"] for row in cls.db.execute(query, (who, key.assignment))}
        if known and key.value not in known:
            name = person(cls, who).name
            raise LabError(
                f"{where}: {name} has another number in {key.assignment}: is it this assignment's worksheet?"
            )


def exactly(cls: Class, keys: Iterable[Key]) -> dict[int, Key]:
    """Whose these keys are but for names, each with the first that says so."""
    found: dict[int, Key] = {}
    for key in keys:
        if key.platform == "name":
            continue
        others = ("id", "nbgrader", "email") if key.platform in ("id", "nbgrader") else ()
        for platform in dict.fromkeys((key.platform, *others)):
            if (who := _owner(cls, Key(platform, key.value, key.assignment))) is not None:
                found.setdefault(who, key)
    return found


def _is_a_groups(cls: Class, who: int, keys: Sequence[Key]) -> bool:
    """Whether Canvas' download may mean a group: its files have the group's name, and the number of one member
    (Assignment#representatives of instructure/canvas-lms). The own name in another order, or nearly so, is none."""
    names = [key for key in keys if key.platform == "name"]
    if len(names) != 1 or any(key.platform not in ("name", "canvas") for key in keys) or _owner(cls, names[0]) == who:
        return False
    name, written = person(cls, who).name, letters(names[0].value)
    turned = len(written) == len(letters(name)) and written in letters(name) * 2
    return not turned and _likeness(written, forms(name)) < CLOSE


def numbered(cls: Class, label: str) -> Person | None:
    """Whose number a submission of nobody has, which is called otherwise: a group's, or a person's of a new name."""
    row = cls.db.execute("SELECT keys FROM member WHERE label = ? AND person IS NULL", (label,)).fetchone()
    found = exactly(cls, keys_of(row["keys"])) if row else {}
    return person(cls, next(iter(found))) if len(found) == 1 else None


def learn(cls: Class, who: int, keys: Iterable[Key], origin: str = "learned") -> None:
    """Keep keys as a person's: of the roster, as an instructor said ("who"), or beside a key that is known ("learned":
    then no names). A key that is somebody else's stays theirs."""
    with cls.writing():
        for key in keys:
            if key.row[2] and (key.platform != "name" or origin != "learned"):
                cls.db.execute(
                    "INSERT INTO alias (platform, assignment, value, person, origin) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET origin = excluded.origin "
                    "WHERE person = excluded.person AND excluded.origin = 'roster'",
                    (*key.row, who, origin),
                )


def who(cls: Class, label: str, whose: Sequence[str], week: str = "") -> list[Person]:
    """An instructor says whose the submissions of this label are: one person's, or the members' of a group. From now on
    the keys that came with it, and the name in it, are that person's; what was said of it before holds no more.

    LabError where there is no such label, and where a key of the roster says that it is somebody else's."""
    them, label = [resolve(cls, text) for text in whose], clean(label).strip()
    rows = cls.db.execute(
        "SELECT submission, seat, member.keys, person FROM member JOIN submission ON submission.id = submission "
        "WHERE member.label = ? AND assignment LIKE ? ORDER BY submission, seat",
        (label, week or "%"),
    ).fetchall()
    if not rows:
        open_ = [one["label"] for one in cls.db.execute("SELECT DISTINCT label FROM member WHERE person IS NULL")]
        close = difflib.get_close_matches(label, open_, 1)
        more = f"; without an owner are: {some(open_)}" if open_ else ""
        more = f"; did you mean {close[0]!r}?" if close else more
        raise LabError(f"no submission is called {shown(label)!r}{more}")
    rows = [row for row in rows if row["person"] is None] or rows
    with cls.writing():
        for row in rows:
            keys = keys_of(row["keys"])
            for key in keys:
                cls.db.execute(
                    "DELETE FROM alias WHERE (platform, assignment, value) = (?, ?, ?) AND origin != 'roster'", key.row
                )
            exact = [*exactly(cls, keys)] or [id for id in owner(cls, keys)[:1] if id is not None]
            if len(exact) == 1 and exact[0] not in {one.id for one in them}:
                theirs = shown(person(cls, exact[0]).name)
                raise LabError(f"{shown(label)!r} is {theirs}'s, by a key that the roster has")
            cls.db.execute("DELETE FROM member WHERE submission = ? AND label = ?", (row["submission"], label))
            query = "SELECT coalesce(max(seat) + 1, 0) FROM member WHERE submission = ?"
            for seat, one in enumerate(them, cls.db.execute(query, (row["submission"],)).fetchone()[0]):
                cls.db.execute(
                    "INSERT INTO member (submission, seat, label, keys, person) VALUES (?, ?, ?, ?, ?)",
                    (row["submission"], seat, label, row["keys"] if len(them) == 1 else "[]", one.id),
                )
            if len(them) == 1:
                learn(cls, them[0].id, keys, "who")
            elif len(exact) == 1:  # by the number of a group's file Canvas takes its pages back
                learn(cls, exact[0], keys)
        settle(cls)
    return them


def settle(cls: Class) -> int:
    """Give every submission that has no owner yet to the one whom its keys tell by now; how many were given."""
    given = 0
    with cls.writing():
        rows = cls.db.execute("SELECT submission, seat, keys FROM member WHERE person IS NULL").fetchall()
        for row in rows:
            found, _ = owner(cls, keys_of(row["keys"]))
            if found is not None:
                cls.db.execute(
                    "UPDATE member SET person = ? WHERE submission = ? AND seat = ?",
                    (found, row["submission"], row["seat"]),
                )
                learn(cls, found, keys_of(row["keys"]))
                given += 1
    return given


def keys_of(text: str) -> list[Key]:
    """A member's keys out of the store."""
    return [Key(*row) for row in json.loads(text)]


# -- the roster -------------------------------------------------------------------------------------------------------
@dataclass
class Imported:
    """What a roster changed: people who are new, who are back, who left, and how many stay; `given`: submissions that have
    an owner since; staff: names that are no students, since they teach, or have no id where the others have one."""

    new: list[Person] = field(default_factory=list)
    back: list[Person] = field(default_factory=list)
    left: list[Person] = field(default_factory=list)
    stay: int = 0
    given: int = 0
    staff: list[str] = field(default_factory=list)


def import_roster(cls: Class, path: Path) -> Imported:
    """Take the class from a file: whoever is in it is in the class, and whoever is in it no more has left.

    LabError for what is no roster, and where a key of it is two people's."""
    roster = read_roster(path)
    made, lines = Imported(staff=roster.staff), [line for line in roster.lines if line.name or line.keys]
    if not lines:
        raise LabError(f"{path} hides who its people are: take the class from a file that is not of blind marking")
    if not any(line.keys for line in lines):  # names and nothing else: a name is the id
        for line in lines:
            line.keys = [Key("name", line.name)]
    made.staff += [line.name for line in lines if not line.keys and not line.participant]
    lines = [line for line in lines if line.keys or line.participant]
    taken: dict[tuple[str, str, str], str] = {}
    for line in lines:
        for key in line.keys:
            if taken.setdefault(key.row, line.name) != line.name or (
                key.platform == "name" and sum(one.name == line.name for one in lines) > 1
            ):
                both = f"{shown(taken[key.row])} and {shown(line.name)}"
                raise LabError(f"{path}: {key.value!r} is {both}: give each an id or an e-mail of their own")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with cls.writing():
        before, here = everybody(cls), set[int]()
        for line in lines:
            known = {found for key in line.keys if (found := _owner(cls, key)) is not None}
            if len(known) > 1:
                them = some([person(cls, id).name for id in sorted(known)])
                raise LabError(f"{path}: the keys of {shown(line.name)} are those of {them} in the class: a slip?")
            if known:
                id = known.pop()
                made.stay += 1
                made.back += [one for one in [person(cls, id)] if one.left_at]
                cls.db.execute(
                    "UPDATE person SET name = ?, email = iif(? = '', email, ?), left_at = NULL WHERE id = ?",
                    (line.name, line.email, line.email, id),
                )
            else:
                added = cls.db.execute("INSERT INTO person (name, email) VALUES (?, ?)", (line.name, line.email))
                id = int(added.lastrowid or 0)
                made.new.append(person(cls, id))
            if id in here:
                raise LabError(f"{path}: {shown(line.name)} stands in it twice, under several keys of one person")
            here.add(id)
            learn(cls, id, line.keys, "roster")
        made.left = [one for one in before if one.id not in here]
        for one in made.left:
            cls.db.execute("UPDATE person SET left_at = ? WHERE id = ?", (now, one.id))
        made.given = settle(cls)
    return made
