"""The week as students got it, in memory: what a submission is laid over.

Solutions are blanks, and what is between instructor markers is gone, as in `grade release`. Notebook, tests and results
stay out: nothing of the student's runs them.
"""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from grading.tree import CACHES, RESULTS, tracked_files, without_instructors
from labkit.checks.markers import strip
from labkit.checks.tasks import Week
from labkit.errors import LabError

_TEXT = (".py", ".md", ".toml", ".txt", ".json", ".sh", ".slurm", ".yml", ".yaml")


@dataclass(frozen=True)
class Released:
    """A week's files by path in its folder.

    files     what a student's code runs beside: modules with blanks, given/, data/, scenarios.py
    names     all files of the week's folder, also tests, notebook and results: these names are the course's
    modules   module -> path, for every module that a task names: these are the student's to write
    """

    files: dict[str, bytes]
    names: frozenset[str]
    modules: dict[str, str]


def released_week(week: Week) -> Released:
    """The released form of a week's folder. It is made once, and again when a file of the folder has changed.

    LabError for a solution that cannot be taken out, or a file that is a link."""
    return _released(week, tuple(_stamps(os.fspath(week.folder), "")))


def _stamps(folder: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    """(path, time of the last change, size) of all files below a week's folder but caches and hidden ones, sorted."""
    with os.scandir(folder) as scan:
        inside = sorted(scan, key=lambda entry: entry.name)
    for entry in inside:
        if entry.name.startswith(".") or entry.name in CACHES:
            continue
        if entry.is_symlink():
            raise LabError(f"{entry.path} is a link: a week holds plain files only")
        if entry.is_dir():
            yield from _stamps(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
            status = entry.stat()
            yield f"{prefix}{entry.name}", status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=8)
def _released(week: Week, stamps: tuple) -> Released:
    tracked = tracked_files(week.folder.parent)
    files: dict[str, bytes] = {}
    tests = {path.relative_to(week.folder).as_posix() for path in week.tests}
    for name, _, _ in stamps:
        if tracked is not None and f"{week.package}/{name}" not in tracked:
            continue  # an instructor's notes, say
        if name in tests or name.endswith(".ipynb") or name.startswith(f"{RESULTS}/"):
            continue
        data = (week.folder / name).read_bytes()
        if name.endswith(_TEXT):
            try:
                text = without_instructors(data.decode(), name)
            except UnicodeDecodeError:
                raise LabError(f"{week.folder / name} is not UTF-8 text: save it as that") from None
            data = (strip(text, name) if name.endswith(".py") else text).encode()
        files[name] = data
    modules = {module: f"{module.replace('.', '/')}.py" for task in week.tasks for module in task.modules}
    for path in modules.values():
        if path not in files:
            raise LabError(
                f"{week.package} has no {path}, which its tasks name"
                + (", or git does not track it" if tracked is not None else "")
            )
    return Released(files, frozenset(name for name, _, _ in stamps), modules)


def plain(data: bytes) -> bytes:
    """Without what editors change by themselves: a byte order mark, line ends, blanks at the end."""
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip()
