"""What runs in the rank's process: find the student's function, call it, pack what came of it.

Each call imports the week's package afresh, so that a global of the last case cannot help or hurt the next.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import itertools
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from labkit.checks import boundary, values
from labkit.comm.callsite import frames_of, theirs, written_in
from labkit.comm.ledger import EMPTY

if TYPE_CHECKING:
    from labkit.comm.group import Group

# Below the root: for each module of the students' the course's text with its blanks, which stands in for one that cannot
# be imported where another task is judged. Laid by grading; not there at home.
COURSE, TEXT = ".course", ".text"

# How a call can end, as the first item of what comes back.
OK, MISSING, UNFINISHED, RAISED = "ok", "missing", "unfinished", "raised"


def load(job: dict[str, Any], body: bytes) -> Callable[[Group], bytes]:
    """What a rank at home runs: `answer` for a `describe`d job and its packed (args, kwargs)."""

    def run(group: Group) -> bytes:
        settle()
        args, kwargs = values.unpack(body)
        return values.pack(answer(group, job, args, kwargs, job["reference"]))

    return run


def answer(
    group: Group | None,
    job: dict[str, Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reference: str | None = None,
    loaded: Callable[[], None] = lambda: None,
) -> tuple:
    """Run "module.function" on this rank, in a process that is settled (see `settle`): (OK, value, arguments after) or
    (why not, text). While other ranks may wait for this one, an exception is raised, not returned: the run must end.

    job         see labkit.checks.runner.describe
    reference   a folder from which the functions in `stands_on` are taken, in place of the student's
    loaded      called once these are imported, before any file of the student's is
    """
    root, package, name = job["root"], job["package"], job["function"]
    sys.dont_write_bytecode = True  # files of one second and one length would look unchanged
    named = {**kwargs, "group": group} if job["with_group"] else kwargs
    if root in sys.path_importer_cache or reference in sys.path_importer_cache:
        # This process has run before, and files may be others by now.
        importlib.invalidate_caches()
    boundary.hold(job["task"], job["uses"], job["without"])
    written_in(root)
    _Here.own, _Here.given = frozenset(f"{package}.{module}" for module in job["modules"]), job["given"]
    try:
        _forget(package)
        parts = {}
        if reference is not None:
            parts = {part: _find(reference, package, part) for part in job["stands_on"]}
            _forget(package)
        loaded()
        function = _find(root, package, name, parts)
    except _NoAnswer as error:
        return error.args
    try:
        result = [function(*one, **named) for one in args] if job["each"] else function(*args, **named)
    except NotImplementedError as error:
        # A blank raises before anything was sent, and on every rank: no need to end the processes for it.
        if group is not None and any(event.kind not in (*EMPTY, "compute") for event in group.ledger.events):
            raise
        return UNFINISHED, str(error)
    except Exception as error:
        if job["with_group"] and group is not None and group.size > 1:
            raise
        return RAISED, format_error(error, root)
    return OK, result, args


def settle() -> None:
    """Put random generators and torch's settings into the state in which every call begins."""
    import torch

    random.seed(0)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    # Fresh memory (torch.empty) is filled with NaN: what nobody wrote must not be right because it was so before.
    torch.set_deterministic_debug_mode("warn")


def format_error(error: BaseException, root: str) -> str:
    """An exception as its author wants it: the type, what it says, and the lines of the week's own files on the way."""
    lines = [f"{type(error).__name__}: {error}".rstrip(": ")]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"  {_short(error.filename, root)}:{error.lineno}: {(error.text or '').strip()}")
    for frame in frames_of(error):
        if frame.filename.startswith(root) and theirs(frame.filename):
            lines.append(f"  {_short(frame.filename, root)}:{frame.lineno} in {frame.name}: {frame.line}")
    return "\n".join(lines)


class _NoAnswer(Exception):
    """(why, text): there is no function to call."""


def _find(root: str, package: str, name: str, parts: Mapping[str, Any] = {}) -> Callable:
    """ "module.function" of the package in `root`; `parts` replace functions of other tasks."""
    sys.path[:] = [entry for entry in sys.path if entry != root]
    _Here.package, _Here.root = package, root
    if _Here not in sys.meta_path:
        sys.meta_path.insert(0, _Here)
    _Here.parts = {}
    for part, replacement in parts.items():
        module, _, function = part.rpartition(".")
        _Here.parts.setdefault(f"{package}.{module}", {})[function] = replacement
    for name_of in _Here.own & _Here.parts.keys():  # others run when they are needed, if at all
        _module(root, package, name_of.removeprefix(f"{package}."))
    module, _, function = name.rpartition(".")
    found = getattr(_module(root, package, module), function, None)
    if not callable(found):
        raise _NoAnswer(MISSING, f"{module}.py has no function {function!r}")
    return found


class _Here:
    """The first of Python's finders: the week's package comes from `root`."""

    # Without it, a course installed with pip's -e lends its own files, solutions and all, where one is missing.

    package = root = ""
    own: frozenset[str] = frozenset()
    given = False
    parts: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name != cls.package and not name.startswith(cls.package + "."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [cls.root] if path is None else path)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in cls.own and not cls.given and cls.root not in sys.path:
            # Not before: what lies beside the package is the student's, and a library that asks for a package that is not
            # installed (torch._dynamo for colorama) would run it where only the course's code is to have run.
            sys.path.insert(0, cls.root)
        course = Path(cls.root, COURSE, *name.split(".")).with_suffix(TEXT)
        text = course if (cls.given or name not in cls.own) and course.is_file() else None
        if spec.origin is not None and (text or name in cls.parts):
            spec.loader = _Replaced(name, spec.origin, text, cls.given and text is not None, cls.parts.get(name, {}))
        return spec


class _Replaced(importlib.machinery.SourceFileLoader):
    """Loads a module of another task than the one judged, then puts `parts` in the place of its functions. `text` is the
    course's, for where the student's fails, or is not to run at all (`given`)."""

    def __init__(self, name: str, path: str, text: Path | None, given: bool, parts: Mapping[str, Any]) -> None:
        super().__init__(name, path)
        self.text, self.given, self.parts = text, given, parts

    def exec_module(self, module: ModuleType) -> None:
        begun, failed = dict(vars(module)), False
        try:
            if not self.given:
                super().exec_module(module)
        except (Exception, SystemExit):
            if self.text is None:
                raise
            failed = True
            vars(module).clear()
            vars(module).update(begun)
        if self.text is not None and (failed or self.given):
            exec(compile(self.text.read_bytes(), str(self.text), "exec", dont_inherit=True), vars(module))
        vars(module).update(self.parts)


def _forget(package: str) -> None:
    """Take a package out of sys.modules."""
    # It entered before its parts did, so only newer names are read: to touch all of them would cost a forked rank more
    # than all else (each page touched is copied).
    if package in sys.modules:
        newer = list(itertools.takewhile(lambda name: name != package, reversed(sys.modules)))
        for name in (package, *(name for name in newer if name.startswith(package + "."))):
            del sys.modules[name]


def _module(root: str, package: str, module: str) -> Any:
    try:
        return importlib.import_module(f"{package}.{module}")
    except NotImplementedError as error:
        raise _NoAnswer(UNFINISHED, str(error)) from None
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (package, f"{package}.{module}"):
            raise _NoAnswer(MISSING, f"there is no file {Path(package, *module.split('.'))}.py") from None
        raise _NoAnswer(RAISED, f"{module}.py cannot be imported. {format_error(error, root)}") from None


def _short(filename: str, root: str) -> str:
    return str(Path(filename).relative_to(root)) if filename.startswith(root) else filename
