"""The folder that a student's code will run in: the released week, with the student's own modules laid over it.

What a task names (`functions` in tasks.toml) is the student's. Everything else of the week's folder is the course's, in
the course's own text. Further modules of the student's come along where they shadow nothing.

Students hand in all kinds of layouts, so the modules are looked for:

    root        the folder of the submission in which most of the week's modules are: "", "week13_allreduce/", deeper
    a module    counts under its own name only, stretch/tree.py also as a loose tree.py; the copy in the root is used,
                unless it is still the unfinished one that the course handed out and another copy is not. Which copy is
                used is reported wherever there was a choice

A module that is missing, renamed or unreadable is replaced by the course's, with its blanks; `missing` says why what
depends on it earns nothing. What `lab handin` packed counts where its manifest has it. One that cannot be imported is
replaced where it runs, in the tasks that it does not belong to (labkit.checks.remote).
"""

import io
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grading.intake.extras import MAX_MODULE, lay_extras
from grading.intake.names import is_notebook, other_week, shown, some
from grading.intake.notebook import NO_NOTEBOOK, grade_cells
from grading.intake.released import Released, plain, released_week
from grading.intake.submission import DEFINES, Submission
from grading.intake.wrong_week import another_week
from labkit.checks.remote import COURSE, TEXT
from labkit.checks.tasks import Week

MAX_NOTEBOOKS = 5  # looked into, if a submission holds many
RECORD, RECORDS = "predictions.jsonl", "on_record("  # the file, and the call in a notebook that writes it
_ENCODINGS = ("utf-8", "utf-8-sig", "iso-8859-1", "iso-8859-15", "cp1252", "ascii")


@dataclass
class Package:
    """What is to run.

    files      content by path, "week13_allreduce/collectives.py"
    course     the same of the course's text of each module in `used`, for where that cannot be imported
    missing    module -> why it earns nothing, a whole sentence: {"collectives": "There is no collectives.py ..."}
    lookalikes module -> the file of the submission that was probably meant, "" if there is none; of those in `missing`
    used       module -> its path in the submission
    notes      sentences for the student
    notebook   where the student's notebook is in the submission, or None
    """

    files: dict[str, bytes]
    course: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    lookalikes: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    notebook: str | None = None


@dataclass(frozen=True)
class _Copy:
    """One copy of a wanted module: its path is prefix + the module's own path. `fault`: why it cannot be used (then
    `data` may be nothing)."""

    path: str
    prefix: str
    data: bytes
    fault: str
    worked: bool  # differs from what was handed out


def arrange(submission: Submission, week: Week) -> Package:
    """Lay a submission over the released week. LabError only for what is wrong with the course itself."""
    released = released_week(week)
    package = Package({f"{week.package}/{name}": data for name, data in released.files.items()})
    copies = {module: _copies(submission, path, released, week) for module, path in released.modules.items()}
    root = _root(copies, week)
    for module in released.modules:
        _choose(package, submission, module, copies[module], root, released, week)
    if not package.used and any(is_notebook(name) for name in submission.files):
        package.notes.append(
            f"There is a notebook, but none of the modules that are graded: {', '.join(released.modules.values())}."
        )
    if not package.used and (other := another_week(submission, week)[0]):
        package.notes.append(f"The files look like {other}'s: were they meant for {other}?")
    if root is not None:
        files, notes = lay_extras(submission, released, root, set(package.used.values()), week)
        package.files.update(files)
        package.notes += notes
    package.notebook = _notebook(package, submission, root or "", week)
    if package.notebook is not None:
        package.notes += _record(submission, week)
    return package


def _copies(submission: Submission, path: str, released: Released, week: Week) -> list[_Copy]:
    """All files of the submission that could be this module. One of a folder of the week's, stretch/tree.py, may lie
    without it where nothing else of the week is called so: platforms take loose files, and no folders."""
    bare = path.rpartition("/")[2]
    if _packed(submission, week):  # by `lab handin`: nobody has to guess
        name, data = f"{week.package}/{path}", submission.files.get(f"{week.package}/{path}")
        if data is None:
            return []
        return [_Copy(name, f"{week.package}/", data, _unreadable(data), plain(data) != plain(released.files[path]))]
    others = {name.rpartition("/")[2] for name in released.names if name != path}
    for wanted in (path,) if bare == path or bare in others else (path, bare):
        found = []
        for name in (*submission.files, *submission.left_out):
            prefix = name[: -len(wanted)] if name == wanted or name.endswith(f"/{wanted}") else None
            if prefix is None or _elsewhere(prefix, wanted, released.names, week):
                continue
            data = submission.files.get(name, b"")
            fault = submission.left_out.get(name, "") or _unreadable(data)
            worked = name in submission.files and plain(data) != plain(released.files[path])
            found.append(_Copy(name, prefix, data, fault, worked))
        if found:
            return found
    return []


def _packed(submission: Submission, week: Week) -> bool:
    """Whether `lab handin` packed it, for this week."""
    return submission.manifest is not None and submission.manifest.week == week.name


def _elsewhere(prefix: str, path: str, names: Iterable[str], week: Week) -> bool:
    """Whether a file below this prefix is another thing of the same name: another week's, the library's, a solution
    that was handed out, or another file of the week itself (given/topology.py where topology.py is wanted)."""
    folders = prefix.split("/")[:-1]
    if prefix.endswith(f"solutions/{week.package}/"):
        return True
    if any(folder in ("labkit", "grading", "tests") or other_week(folder, week) for folder in folders):
        return True
    return any("/".join([*folders[depth:], path]) in names for depth in range(len(folders)))


def _unreadable(data: bytes) -> str:
    """Why these bytes can be no module, as the end of a sentence; "" if they can. Syntax is not looked at."""
    if len(data) > MAX_MODULE:
        return f"has {len(data) / 1e6:.1f} MB, and a module may have {MAX_MODULE / 1e6:.1f}"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16 text: save it as UTF-8"
    if b"\0" in data:
        return "holds zero bytes: it is no text"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if encoding not in _ENCODINGS:
            return f"is text in the encoding {shown(encoding, 30)}: save it as UTF-8"
        data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return "is not UTF-8 text: save it as UTF-8"
    return ""


def _root(copies: dict[str, list[_Copy]], week: Week) -> str | None:
    """The folder of the submission (with its "/") in which most modules were worked on; None if there is no module."""
    prefixes = {copy.prefix for theirs in copies.values() for copy in theirs}

    def rank(prefix: str) -> tuple:
        here = [copy for theirs in copies.values() for copy in theirs if copy.prefix == prefix]
        return (
            -sum(copy.worked and not copy.fault for copy in here),
            -len(here),
            not prefix.endswith(f"{week.package}/"),
            prefix.count("/"),
            prefix,
        )

    return min(prefixes, key=rank, default=None)


def _choose(
    package: Package,
    submission: Submission,
    module: str,
    copies: list[_Copy],
    root: str | None,
    released: Released,
    week: Week,
) -> None:
    path = released.modules[module]
    usable = [copy for copy in copies if not copy.fault]
    if not usable:
        like = "" if copies else _lookalike(path, submission, released)
        package.missing[module], package.lookalikes[module] = _why_missing(path, copies, like), like
        return
    best = min(
        usable,
        key=lambda c: (
            not c.worked,
            c.prefix != root,
            not c.prefix.endswith(f"{week.package}/"),
            c.prefix.count("/"),
            c.path,
        ),
    )
    package.files[f"{week.package}/{path}"] = best.data
    package.course[f"{COURSE}/{week.package}/{path.removesuffix('.py')}{TEXT}"] = released.files[path]
    package.used[module] = best.path
    if like := "" if best.worked else _lookalike(path, submission, released):
        package.notes.append(f"{shown(best.path)} stands as it was handed out. {_looks_like_it(like)}")
    others = [c.path for c in copies if c is not best and (c.fault or plain(c.data) != plain(best.data))]
    if others:
        package.notes.append(f"There is more than one {path}: {shown(best.path)} is used, and not {some(others)}.")


HALF = 0.5  # of what a module defines: a file that does more is meant for it
NOWHERE = "in this submission."  # the end of the sentence, if nothing looks like the file


def _why_missing(path: str, copies: list[_Copy], like: str) -> str:
    if copies:
        return f"{shown(copies[0].path)} {copies[0].fault}."
    sentence = f"There is no {path} {NOWHERE}"
    return f"{sentence} {_looks_like_it(like)}" if like else sentence


def _looks_like_it(like: str) -> str:
    return f"{shown(like)} looks like it: a file counts under its own name only."


def _lookalike(path: str, submission: Submission, released: Released) -> str:
    """The file that was probably meant, "collectives (1).py" or "topologie final.py": the one that defines most of what the
    module does; "" if none does. What is called as a file of the course, or stands as it was handed out, is not meant."""
    wanted = set(DEFINES.findall(released.files[path]))
    best, most = "", HALF * len(wanted)
    for name, defined in submission.defines.items():
        share = len(wanted & defined)
        known = any(f"/{name}".endswith(f"/{own}") for own in released.names)
        if share > most and not known and plain(submission.files[name]) != plain(released.files[path]):
            best, most = name, share
    return best


def _record(submission: Submission, week: Week) -> list[str]:
    """What is to be said of the predictions: the written task gives points for them, and a person looks for them."""
    if not week.notebook.exists() or RECORDS not in week.notebook.read_text(encoding="utf-8"):
        return []
    own = (name for name in submission.files if not of_another_week(name, week))
    there = {name: name.rsplit("/", 1)[-1] for name in own}
    if any(last == RECORD and submission.files[name].strip() for name, last in there.items()):
        return []
    like = next((name for name, last in there.items() if last != RECORD and "predictions" in last.lower()), None)
    hint = f" {_looks_like_it(like)}" if like else ""
    what = "is empty" if RECORD in there.values() else "is not in this submission"
    return [f"{RECORD} {what}: without it no prediction is on record.{hint}"]


def _notebook(package: Package, submission: Submission, root: str, week: Week) -> str | None:
    """The week's notebook, or the file that has most of its grade cells. No automatic point depends on it."""
    read = _notebooks(submission.files, root, week)
    wanted = week.notebook.name
    if _packed(submission, week):
        read = {name: cells for name, cells in read.items() if name == f"{week.package}/{wanted}"}
    good = {name: cells for name, cells in read.items() if cells is not None}
    if not good:
        why = (
            f"{shown(next(iter(read)))} {NO_NOTEBOOK}" if read else f"There is no notebook {wanted} in this submission"
        )
        package.notes.append(f"{why}. The written tasks are in it; no other point depends on it.")
        return None
    best = max(good, key=lambda name: _answered(good[name], week))
    if best.rsplit("/", 1)[-1] != wanted or len(good) > 1:
        package.notes.append(f"{shown(best)} is taken as the notebook.")
    return best


def notebook_path(files: Mapping[str, bytes], week: Week) -> str | None:
    """Where the notebook is that `arrange` takes for a submission; None if there is none with a cell of the week's."""
    read = _notebooks(files, "", week)
    best = max(read, key=lambda name: _answered(read[name], week), default=None)
    return best if best is not None and _answered(read[best], week) else None


def _notebooks(files: Mapping[str, bytes], root: str, week: Week) -> dict[str, set[str] | None]:
    """path -> the notebook's grade cells, None of what cannot be read; those called as the week's first."""
    wanted = week.notebook.name
    names = [name for name in files if is_notebook(name) and not of_another_week(name, week)]
    names.sort(key=lambda name: (name.rsplit("/", 1)[-1] != wanted, not name.startswith(root), name.count("/"), name))
    return {name: grade_cells(files[name]) for name in names[:MAX_NOTEBOOKS]}


def of_another_week(path: str, week: Week) -> bool:
    """Whether a file lies in another week's folder, or in one of the library's: of a whole tree that was handed in."""
    return _elsewhere(path.rpartition("/")[0] + "/", path.rpartition("/")[2], (), week)


def _answered(cells: set[str] | None, week: Week) -> int:
    """How many of these cells are the week's grade cells."""
    return sum(name.startswith(tuple(task.cell for task in week.tasks)) for name in cells or ())
