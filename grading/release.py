"""Releasing: the student tree of chosen weeks put into a folder, which may be new or a student's own of last month.

`.labs/release.json` in that folder remembers the hashes of all texts that were ever released for each path. A file
whose hash is among them is the course's and is upgraded; any other is the student's and is never touched:

    what is there                      what happens
    nothing                            the file is put there (reported as "back" if it had been deleted)
    the course's text, old or new      it becomes the new text
    something else                     it stays; if the course's text is new, that goes beside it: NAME.new
    a link, a folder, a pipe           the same; nothing is ever read or written through a link
    a text the course has given up     removed if unchanged, else it stays and that is reported
    any other file                     not looked at

The record is written before the first file (as not complete) and after the last, so a release that was killed can be
repeated. It is the student's to edit: weeks and solutions are released because the instructor names them.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from grading.here import COURSE
from grading.intake.names import count, some
from grading.target import LABS, OTHER, Blocked, Target
from grading.tree import SOLUTIONS, File, Tree, solutions_tree, student_tree
from labkit.checks.tasks import FOLDERS as WEEK_FOLDERS
from labkit.checks.tasks import Week, find_week, find_weeks
from labkit.errors import LabError

MANIFEST = f"{LABS}/release.json"
FORMAT = 1


@dataclass
class Report:
    """What a release did, by path."""

    target: Path
    created: list[str] = field(default_factory=list)
    upgraded: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # the student's, and the course has nothing new
    beside: dict[str, str] = field(default_factory=dict)  # the student's -> where the new text lies
    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # given up by the course, changed by the student
    blocked: list[str] = field(default_factory=list)  # links and other things in a folder's place
    others: list[str] = field(default_factory=list)  # weeks that are here and were not asked for
    untracked: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """What a person should know, one sentence each, and a count at the end."""
        yours = [*self.kept, *self.beside]
        return [
            *(
                f"{path} was changed here and is new in the course: the new text is in {new}; take from it what you "
                f"need, then delete it"
                for path, new in self.beside.items()
            ),
            *(f"{path} had been deleted and is back" for path in self.restored),
            *([f"no part of the course any more, and removed: {some(self.removed)}"] if self.removed else []),
            *(f"{path} is no part of the course any more; it was changed here, so it stays" for path in self.left),
            *(
                f"{path} is a link or no folder: nothing was put into it; replace it by a folder, and release again"
                for path in self.blocked
            ),
            *(f"{path} is not in git and was not released" for path in self.untracked),
            *(f"{name} is here from before and stays as it was: name it as well to upgrade it" for name in self.others),
            f"{self.target}: {count(len(self.created), 'file')} new, {len(self.upgraded)} upgraded, {len(self.same)} "
            f"as they should be, {len(yours)} changed here and left alone" + (f": {some(yours)}" if yours else ""),
        ]


def release(
    target: str | Path, names: Sequence[str] = (), *, solutions: Sequence[str] = (), source: str | Path | None = None
) -> Report:
    """Put the student tree with the weeks `names` into `target`, and the solutions of the weeks `solutions`.

    source   the course; default: the one that this package lies in

    The whole tree is made before the target is touched. Raises LabError if it cannot be made (see `student_tree`), for
    an unknown week, and for a target that is damaged, busy, full or not writable."""
    source, target = Path(source or COURSE).resolve(), Path(target).absolute()
    weeks = find_weeks(source)
    refuse_inside(target, source)
    if target.is_dir() and not (target / LABS).exists() and (there := _others(target)):
        raise LabError(
            f"{target} holds other things ({there[0]!r}, say) and no release: name a new folder, or the one "
            f"that students have"
        )
    chosen = named(names, weeks)
    here = [week for week in weeks if week not in chosen and _has(target, week)]
    tree = whole_tree(source, chosen, named(solutions, weeks), here)
    try:
        with Target(target) as opened:
            return _apply(opened, tree)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise LabError(
            f"{target} cannot be written ({why}): fix that and release again, which goes on from here and loses nothing"
        ) from None


def refuse_inside(target: Path, source: Path) -> None:
    """LabError if the target is no folder, or lies in the course, or the course in it."""
    real = Path(os.path.realpath(target))
    if real.is_relative_to(source) or source.is_relative_to(real):
        raise LabError(f"{target} and the course itself lie in one another: choose a folder outside {source}")
    if target.exists() and not target.is_dir():
        raise LabError(f"{target} is no folder: name another")


def whole_tree(source: Path, weeks: Sequence[Week], solutions: Sequence[Week], here: Sequence[Week] = ()) -> Tree:
    """The student tree with these weeks, and the solutions of those. LabError if nothing is named."""
    if not weeks and not solutions:
        raise LabError("name the weeks to release, for example 'grade release week13 --to DIR', or all")
    trees = [student_tree(source, weeks, here)] if weeks else []
    trees += [solutions_tree(source, solutions)] if solutions else []
    return Tree(
        {path: file for part in trees for path, file in part.files.items()},
        tuple(name for part in trees for name in part.covers),
        [n for part in trees for n in part.untracked],
    )


def named(names: Sequence[str], weeks: Sequence[Week]) -> list[Week]:
    """These weeks, each once."""
    return list({(week := find_week(name, weeks)).name: week for name in names}.values())


def _has(target: Path, week: Week) -> bool:
    """Whether this week was released there: a file of it has the course's own text. The record, which is the student's
    to edit, would not show that, and with the week comes what belongs to it outside of its folder."""
    for test in week.tests:
        with suppress(OSError):  # no such file, or none that may be read
            if (text := test.read_bytes()) and (target / week.package / test.name).read_bytes() == text:
                return True
    return False


def _others(target: Path) -> list[str]:
    """What is in a folder that is no tree of ours: hidden things (.git) and a README may wait for one. A tree whose
    hidden record was lost, in somebody's zip say, is one."""
    if (target / "labkit").is_dir():
        return []
    return sorted(
        path.name
        for path in target.iterdir()
        if not path.name.startswith(".") and not path.name.upper().startswith(("README", "LICENSE"))
    )


def _apply(target: Target, tree: Tree) -> Report:
    report = Report(target.root, untracked=list(tree.untracked))
    known, complete = _read_manifest(target)
    new = {path: _hash(file.data) for path, file in tree.files.items()}
    # Announced first: whatever this run writes before it is killed, the next one knows as the course's.
    announced = {path: list(hashes) for path, hashes in known.items()}
    for path, hash in new.items():
        announced[path] = [*(h for h in announced.get(path, ()) if h != hash), hash]
    _write_manifest(target, announced, complete=False)

    # What was given up goes first: a folder may now stand in a file's place.
    for path in sorted(known.keys() - new.keys()):
        if not any(Path(path).is_relative_to(name) for name in tree.covers):
            continue
        _give_up(target, path, known[path], report)
        del announced[path]  # removed, or reported once: from now on it is the student's
    for path, file in tree.files.items():
        reported = complete and path in known and known[path][-1] == new[path]
        try:
            _put(target, path, file, announced[path], report, was_here=complete and path in known, reported=reported)
        except Blocked as link:
            if str(link) not in report.blocked:
                report.blocked.append(str(link))
    if not all(name.startswith(f"{SOLUTIONS}/") for name in tree.covers):  # handing out solutions says nothing of weeks
        folders = {path.partition("/")[0] for path in known if "/" in path} - set(tree.covers)
        report.others = sorted(one for one in folders if any(Path(one).match(name) for name in WEEK_FOLDERS))
    _write_manifest(target, announced, complete=not report.blocked)
    return report


def _put(
    target: Target, path: str, file: File, known: list[str], report: Report, *, was_here: bool, reported: bool
) -> None:
    there = target.read(path)
    if there is None:
        target.write(path, file.data, file.executable)
        (report.restored if was_here else report.created).append(path)
    elif there == file.data:
        report.same.append(path)
    elif isinstance(there, bytes) and _hash(there) in known:
        target.write(path, file.data, file.executable)
        report.upgraded.append(path)
    elif reported:
        report.kept.append(path)
    else:
        report.beside[path] = _beside(target, path, file, known)


def _beside(target: Target, path: str, file: File, known: list[str]) -> str:
    """Put the new text beside the student's file, under the first name that is free or holds a released text."""
    number = 1
    while True:
        new = f"{path}.new{number if number > 1 else ''}"
        there = target.read(new)
        if there is None or (isinstance(there, bytes) and _hash(there) in known):
            if there != file.data:
                target.write(new, file.data, file.executable)
            return new
        number += 1


def _give_up(target: Target, path: str, known: list[str], report: Report) -> None:
    """Remove a file that the course has given up, unless it was changed."""
    try:
        there = target.read(path)
    except Blocked:
        return
    if there is OTHER or (isinstance(there, bytes) and _hash(there) not in known):
        report.left.append(path)
    elif there is not None:
        target.remove(path)
        report.removed.append(path)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_manifest(target: Target) -> tuple[dict[str, list[str]], bool]:
    """(hashes by path, oldest first; whether the release that wrote them came to its end)."""
    data = target.read(MANIFEST)
    if data is None:
        return {}, False
    try:
        if not isinstance(data, bytes):
            raise ValueError("a link or a folder")
        content = json.loads(data)
        files, complete = content["files"], content["complete"]
        if content["format"] != FORMAT or not all(
            hashes and all(isinstance(hash, str) for hash in hashes) for hashes in files.values()
        ):
            raise ValueError
        return {path: list(hashes) for path, hashes in files.items()}, complete is True
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LabError(
            f"{target.root / MANIFEST} is damaged: delete it and release again; then every file that "
            f"differs from the course's counts as the student's"
        ) from None


def _write_manifest(target: Target, known: dict[str, list[str]], complete: bool) -> None:
    content = {"format": FORMAT, "complete": complete, "files": dict(sorted(known.items()))}
    target.write(MANIFEST, (json.dumps(content, indent=0) + "\n").encode())
