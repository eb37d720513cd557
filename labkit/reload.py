"""In a notebook, what is saved in a module of the weeks holds in the next cell.

All modules of the weeks are then imported again, and the notebook's names for them, their functions and classes mean
the new ones; objects keep their class. %autoreload changes old objects in place: autopsies then name wrong lines, it
does not end on a `torch.autograd.Function`, and `from .blockwise import BlockProduct` keeps the old class.
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
    """For the weeks in a course's folder. Its `before` is called before each cell."""

    def __init__(self, course: Path, names: dict[str, Any]) -> None:
        """`names` is the notebook's namespace."""
        self.course, self.names = course.resolve(), names
        self.seen: dict[str, Stamp] = {}  # of every module that is imported, as its file was then

    def before(self, *_: Any) -> None:
        """Import anew if a file of an imported module is another than when that was imported."""
        now = {name: stamp for name, file in self._modules().items() if (stamp := _stamp(file)) is not None}
        changed = [name for name, stamp in now.items() if self.seen.get(name, stamp) != stamp]
        # A file that nobody has imported yet counts as it is now: it may change while the cell runs that imports it.
        self.seen = {**self._files(), **now}
        if changed:
            self._anew(changed)

    def _anew(self, changed: list[str]) -> None:
        files = self._modules()
        old = {name: sys.modules.pop(name) for name in files}
        for name in changed:  # compiled code counts as right for a file of the same second and size
            with suppress(OSError, NotImplementedError):
                Path(importlib.util.cache_from_source(str(files[name]))).unlink()
        try:
            for name in old:
                importlib.import_module(name)
        except BaseException as error:  # a file that was saved half way: what held goes on to hold
            for name in self._modules():
                del sys.modules[name]
            sys.modules.update(old)
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            print(
                f"{' and '.join(changed)} could not be imported again: {type(error).__name__}: {error}{where}. Until "
                "that is fixed, cells run what was saved before."
            )
            for name in changed:
                self.seen[name] = (0, 0)  # and reported before every cell
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

    def _modules(self) -> dict[str, Path]:
        """The imported modules of the weeks, {name: file}, in the order of import."""
        found = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and (folder := self._week(Path(file))) and folder == name.partition(".")[0]:
                found[name] = Path(file)
        return found

    def _week(self, file: Path) -> str:
        """The week's folder that a file lies in; "" for others."""
        try:
            first = file.resolve().relative_to(self.course).parts[0]
        except ValueError:
            return ""
        return first if (self.course / first / "tasks.toml").is_file() else ""

    def _files(self) -> dict[str, Stamp]:
        """Every module that could be imported from the weeks."""
        found = {}
        for tasks in self.course.glob("*/tasks.toml"):
            for file in tasks.parent.rglob("*.py"):
                if (stamp := _stamp(file)) is not None:
                    name = ".".join(file.relative_to(self.course).with_suffix("").parts).removesuffix(".__init__")
                    found[name] = stamp
        return found


def _stamp(file: Path) -> Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
