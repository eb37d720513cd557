"""In a notebook, what is saved in a module of the weeks holds in the next cell.

All modules of the weeks are then imported again, and the notebook's names mean the new ones; objects keep their class.
With %autoreload autopsies name wrong lines, and it does not end on a `torch.autograd.Function`.
"""

import importlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

Stamp = tuple[int, int]  # nanoseconds of the last change, bytes


class Reloader:
    """For the weeks in a course's folder; `names` is the notebook's namespace. `before` is called before each cell."""

    def __init__(self, course: Path, names: dict[str, Any]) -> None:
        self.course, self.names = course.resolve(), names
        # Of every module of the weeks, also one that nobody has imported yet: it may change while a cell imports it.
        self.seen: dict[str, Stamp] = {}

    def before(self, *_: Any) -> None:
        """Import anew if a file of an imported module has changed since the last cell."""
        files = {
            ".".join(file.relative_to(self.course).with_suffix("").parts).removesuffix(".__init__"): file
            for tasks in self.course.glob("*/tasks.toml")
            for file in tasks.parent.rglob("*.py")
            if file.is_file()
        }
        before, self.seen = self.seen, {name: _stamp(file) for name, file in files.items()}
        imported = self._imported(files)
        changed = [name for name in imported if before.get(name, self.seen[name]) != self.seen[name]]
        if changed:
            self._anew(imported, changed, files)

    def _imported(self, files: dict[str, Path]) -> dict[str, ModuleType]:
        """The modules of these names that are imported, in the order of import."""
        return {name: module for name, module in list(sys.modules.items()) if name in files}

    def _anew(self, old: dict[str, ModuleType], changed: list[str], files: dict[str, Path]) -> None:
        for name in old:
            del sys.modules[name]
        for name in changed:  # compiled code counts as right for a file of the same second and size
            with suppress(OSError, NotImplementedError):
                Path(importlib.util.cache_from_source(str(files[name]))).unlink()
        try:
            for name in old:
                importlib.import_module(name)
        except BaseException as error:  # a file that was saved half way: what held goes on to hold
            for name in self._imported(files):
                del sys.modules[name]
            sys.modules.update(old)
            print(
                f"{' and '.join(changed)} could not be imported again: {type(error).__name__}: {error}. Until that is "
                "fixed, cells run what was saved before."
            )
            self.seen |= dict.fromkeys(changed, (0, 0))  # and reported before every cell
            return
        for name, value in list(self.names.items()):
            if isinstance(value, ModuleType) and old.get(value.__name__) is value:
                self.names[name] = sys.modules[value.__name__]
            elif isinstance(value, (type, FunctionType)) and value.__module__ in old:
                new: Any = sys.modules[value.__module__]
                for part in value.__qualname__.split("."):
                    new = getattr(new, part, None)
                if new is not None:
                    self.names[name] = new


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
