"""What of labkit a task may stand on: `labkit.comm`, `labkit.checks`, and `uses` of it and its week in tasks.toml."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import LabError

BASE = ("labkit.checks", "labkit.comm", "labkit.errors")


class Refused(ImportError):
    """A part of labkit that the task may not use. `name` is that part's."""


def hold(task: str, uses: Sequence[str], without: Sequence[str] = ()) -> None:
    """From here on this process imports of labkit what `task` ("13.4") may use, and none of the packages `without`."""
    _Gate.task, _Gate.uses, _Gate.without = task, uses, without
    if _Gate not in sys.meta_path:
        sys.meta_path.insert(0, _Gate)


def may_use(name: str, uses: Iterable[str]) -> bool:
    """Whether the module `name` is in what every task has or in `uses`, or is a package on the way to it."""
    return any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in (*BASE, *uses))


def files(uses: Sequence[str]) -> Iterator[Path]:
    """The files and folders of labkit for a task: packages whole, modules with the `__init__.py` around them."""
    top = Path(__file__).resolve().parents[2]
    found: dict[Path, None] = {}
    for name in (*BASE, *uses):
        parts = name.split(".")
        path = top.joinpath(*parts)
        path = path if path.is_dir() else path.with_suffix(".py")
        if parts[0] != "labkit" or len(parts) < 2 or not path.exists():
            raise LabError(f"a week uses {name}, which is no part of labkit")
        found.update(dict.fromkeys(top.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts))))
        found[path] = None
    return (path for path in found if not any(other in path.parents for other in found))


class _Gate:
    """The first of Python's finders: it refuses, or says nothing and lets the others find."""

    task = ""
    uses: Sequence[str] = ()
    without: Sequence[str] = ()

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name.partition(".")[0] in cls.without:
            why = f"{cls.task} is judged without {name}: it is to be written from the bits, in NumPy"
            raise Refused(why, name=name)
        if not name.startswith("labkit.") or may_use(name, cls.uses):
            return
        *most, last = "labkit.comm", "labkit.checks", *cls.uses
        its = f"of labkit it stands on {', '.join(most)} and {last} alone, and what it asks for is yours to write"
        raise Refused(f"{name} is not part of {cls.task}: {its}", name=name)
