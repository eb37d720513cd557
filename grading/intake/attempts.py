"""What of a download was handed in together -> an Arrival with one archive.

An attempt becomes one zip: the student's own as it came, if that is all there is.
"""

import contextlib
import itertools
import os
import pwd
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from grading.intake import stamps
from grading.intake.archives import FOLDER, BadArchive, Member, file_at, members, walk
from grading.intake.arrival import Arrival, Key
from grading.intake.guesses import ILIAS_LATE, Guess
from grading.intake.names import clean, shown
from labkit.checks.handin import MANIFEST, read_manifest
from labkit.checks.tasks import Week

MAX_ATTEMPT, MAX_FILES = 1 << 30, 20_000  # bytes and files of one attempt
EXCHANGE_FILES = ("timestamp.txt", "submission_secret.txt")  # nbgrader's own, beside the student's files


@dataclass
class Download:
    """What arrived. how: whose download it is; digest: sha256 of its file, "" of a folder; notes: what was passed
    over."""

    source: str
    how: str = "folder"
    digest: str = ""
    arrivals: list[Arrival] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """One thing in a download that is somebody's. `live`: it lies where students themselves write."""

    path: Path
    guess: Guess
    members: tuple[tuple[Key, ...], ...] = ()
    group: str = ""
    live: bool = False


class TooMuch(Exception):
    """An attempt that is not collected. `str()` says why, as the end of a sentence."""


def batches(items: list[Item]) -> list[list[Item]]:
    """What was handed in together: all of one participant of Moodle; of Blackboard's at one time; of Canvas' until a
    name or the late mark says that another attempt begins; everything else by itself. Two of one label are told apart
    by what is theirs alone."""
    units: dict[str, set[str]] = {}
    for item in items:
        units.setdefault(item.guess.label, set()).add(item.guess.unit)
    found: list[list[Item]] = []
    for item in sorted(items, key=lambda one: (one.guess.label, one.guess.unit, one.guess.order, one.path.name)):
        guess = item.guess
        if len(units[guess.label]) > 1:
            item = replace(item, guess=replace(guess, label=guess.unit or guess.label))
        if found and _together(found[-1], guess):
            found[-1].append(item)
        else:
            found.append([item])
    return found


def _together(batch: list[Item], own: Guess) -> bool:
    last = batch[-1].guess
    if (last.how, last.keys, last.unit) != (own.how, own.keys, own.unit):
        return False
    if own.how == "canvas":
        return own.late == last.late and own.file not in {item.guess.file for item in batch}
    return own.how == "moodle" or (own.how == "blackboard" and own.received == last.received)


def arrival(batch: list[Item], to: Path, found: Download, week: Week) -> Arrival:
    """The arrival of what was handed in together, packed into `to`. OSError, TooMuch."""
    first, guess = batch[0], batch[0].guess
    attention = [f"{shown(one.path.name)} {one.guess.doubt}." for one in batch if one.guess.doubt]
    left_out, late = _pack(batch, to)
    made = Arrival(
        guess.label, list(guess.keys), to, _time(first, attention), guess.how, found.source,
        True if late else guess.late, first.group, [list(keys) for keys in first.members],
        attention=attention, download=found.digest,
    )  # fmt: skip
    if guess.how == "canvas" and not guess.doubt:  # by a file's number Canvas takes a page back (grading/publish)
        made.keys += [Key("canvas", str(one.guess.order), week.name) for one in batch if one.guess.order]
    made.notes += [f"Not collected: {shown(name)} {why}." for name, why in left_out.items()]
    with open(to, "rb") as file, contextlib.suppress(BadArchive):
        own = next((one for one in members(file) if one.name == MANIFEST and not one.fault), None)
        manifest = read_manifest(own.read(1 << 20)) if own else None
        if manifest and manifest.week != week.name:
            made.attention.append(f"`lab handin` packed this as {shown(manifest.week, 40)}, not {week.name}.")
    return made


def _time(item: Item, attention: list[str]) -> datetime | None:
    """When it was handed in. In nbgrader's exchange a student names the folder and writes the stamp: where others write
    too, the files' own time and owner are compared."""
    name, received = shown(item.path.name), item.guess.received
    if item.guess.how == "nbgrader":
        with contextlib.suppress(KeyError, OSError, ValueError):  # no such account on this machine
            owner, claimed = os.lstat(item.path).st_uid, pwd.getpwnam(item.guess.label).pw_uid
            if owner not in (claimed, os.getuid()):
                attention.append(f"{name} belongs to another account of this machine (number {owner}): ask both.")
    written = stamps.changed(item.path) if item.live else None
    if written is None or (received is not None and received + stamps.SLACK >= written):
        return received
    if received is not None:
        attention.append(
            f"{name} says {received.isoformat(' ', 'minutes')}, but it was last written "
            f"{written.isoformat(' ', 'minutes')}, which counts: a student writes the one and not the other."
        )
    return written


def _pack(batch: list[Item], to: Path) -> tuple[dict[str, str], bool]:
    """Write an attempt as one zip: (what is left out of it and why, whether a file carries ILIAS' late mark). A
    student's own zip that is alone stays as it is, byte for byte, unopened. OSError, TooMuch."""
    left_out, late, room = dict[str, str](), False, MAX_ATTEMPT
    with contextlib.ExitStack() as stack:
        contents = list(itertools.islice(_contents(batch, stack), MAX_FILES + 1))
        if len(contents) > MAX_FILES:
            raise TooMuch(f"has more than {MAX_FILES} files")
        if len(contents) == 1 and contents[0].name.lower().endswith(".zip") and not contents[0].fault:
            with open(to, "wb") as file:
                _within(contents[0].copy(file, room), room)
            return {}, False
        archive = stack.enter_context(zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED))
        for member in contents:
            name = member.name
            if batch[0].guess.how == "ilias" and (mark := ILIAS_LATE.match(name)):
                name, late = name[mark.end() :], True
            if member.fault:
                left_out[name] = member.fault
                continue
            info = zipfile.ZipInfo(name)  # with one date for all: the same files make the same archive
            info.compress_type = zipfile.ZIP_DEFLATED
            try:
                with archive.open(info, "w", force_zip64=True) as into:
                    room -= _within(member.copy(into, room), room)
            except BadArchive as error:
                left_out[name] = str(error)
    return left_out, late


def _contents(batch: list[Item], stack: contextlib.ExitStack) -> Iterator[Member]:
    """All files of an attempt, under the names that they have in it; they can be read while `stack` is open."""
    for item in batch:
        name = item.guess.file or clean(item.path.name)
        if not stat.S_ISDIR(os.lstat(item.path).st_mode):
            yield replace(file_at(item.path), name=name)
            continue
        top = os.open(item.path, FOLDER)
        stack.callback(os.close, top)
        for member in walk(top):
            if member.name not in EXCHANGE_FILES:
                yield replace(member, name=member.name if len(batch) == 1 else f"{name}/{member.name}")


def _within(size: int, room: int) -> int:
    if size > room:
        raise TooMuch(f"has more than {MAX_ATTEMPT >> 20} MiB")
    return size
