"""What a rank holds on to: the tensors that its objects reach (`reached`), and its memory from outside (`grown`)."""

import ast
import contextlib
import functools
import gc
import importlib
import threading
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import torch

from labkit.checks.verdict import FORBIDDEN, CheckFailed
from labkit.comm.callsite import COURSES
from labkit.comm.group import Group
from labkit.comm.ledger import EMPTY, Event, Ledger

_PLAIN = (str, bytes, int, float, complex, bool, type(None), CodeType, TracebackType)


def reached(*roots: Any, package: str) -> Iterator[torch.Tensor]:
    """All tensors that the roots refer to, each once; of a group those that others hung on it. It stops at what is not
    of `package` or the course."""
    seen: dict[int, Any] = {}  # they live on: no other takes their id
    left = list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or type(one) in _PLAIN:
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            yield one
        left += _refers_to(one, package)


def _refers_to(one: Any, package: str) -> list[Any]:
    if isinstance(one, Group):
        parts = [vars(one).get(name) for name in ("ledger", "transport")]
        own = [value for value in vars(one).values() if not any(value is part for part in parts)]
        each = [(type(part), *item) for part in parts for item in getattr(part, "__dict__", {}).items()]
        return own + [value for kind, name, value in each if name not in _sets(kind)]
    if isinstance(one, FunctionType):
        inner = [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        return [*inner, one.__globals__] if _students(one.__globals__.get("__name__"), package) else inner
    if isinstance(one, BuiltinFunctionType):  # a method of a list, say
        return [] if isinstance(one.__self__, ModuleType) else [one.__self__]
    if isinstance(one, ModuleType):
        return [vars(one)] if _students(one.__name__, package) else []
    if isinstance(one, type):
        return [dict(vars(one)), *one.__bases__] if _students(one.__module__, package) else []
    if isinstance(one, FrameType):
        return [dict(one.f_locals)] if _students(one.f_globals.get("__name__"), package) else []
    return gc.get_referents(one)


@functools.cache
def _sets(kind: type) -> set[str]:
    """The names of attributes that a class's own methods use."""
    functions = [f for each in kind.__mro__ for f in vars(each).values() if isinstance(f, FunctionType)]
    return {name for f in functions for name in f.__code__.co_names}


@functools.cache
def _students(module: Any, package: str) -> bool:
    first, _, rest = str(module).partition(".")
    return first == package and rest.partition(".")[0] not in COURSES


_parsing = threading.Lock()  # two threads that make syntax trees at a time disturb each other (Python 3.11)


def bring_libraries(folder: Path, *modules: str) -> None:
    """Import what these modules of a student's import of libraries, before memory is first read; they do not run."""
    for module in modules:
        try:
            with _parsing:
                tree = ast.parse((folder / f"{module}.py").read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # an import of it says so
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                first = name.partition(".")[0]
                # What lies beside the package is the student's: it would run, and hold memory, before the first reading.
                if first != "labkit" and PathFinder.find_spec(first, [str(folder.parent)]) is None:
                    with contextlib.suppress(Exception):
                        importlib.import_module(name)


def grown(ledger: Ledger, base: str, mark: str, *after: int) -> int | None:
    """The most bytes that the rank holds more at a span `mark` than at `base`; None: not read.

    base     the first thing in the ledger: noted before any code of the student's has run
    after    how many messages have arrived at the first `mark`, the second, ...: there is no other, and each stands before
             the next message is on its way, as nothing can be taken back there
    """
    if not ledger.weighed:
        return None
    spans = [event for event in ledger.events if event.kind == "compute"]
    marks = [event for event in spans if event.label == mark]
    at = len(marks) == len(after) and all(_between(ledger, event, count) for event, count in zip(marks, after))
    if not spans or spans[0].label != base or ledger.events[0] is not spans[0] or not at:
        raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} does not note when it computes: its memory cannot be judged")
    return max(ledger.weighed.get(event.index, 0) for event in marks) - ledger.weighed[spans[0].index]


def _between(ledger: Ledger, mark: Event, after: int) -> bool:
    """Whether so many messages were there, and no other was on its way, at this span."""
    sent = [e for e in ledger.events if e.kind not in ("compute", "wait", *EMPTY)]
    waits = {e.of: e for e in ledger.events if e.kind == "wait"}
    stood = [e if e.blocking else waits.get(e.index, mark) for e in sent if e.index < mark.index]
    return len(stood) == after and all(e.end is not None and e.end <= mark.begin for e in stood)
