"""How a task is judged: what a week's test file imports, and `check("13.4")` for a notebook."""

import importlib
from typing import Any

# Lazy, so that `lab --help` does not pay for torch, and a test file has one place to import from.
_MODULES = {
    "drawn": ("tensors",),
    "expected": ("once",),
    "judge": ("same", "field", "expect"),
    "pytest_run": ("run_checks",),
    "results": ("check",),
    "runner": ("call", "call_alone", "call_each"),
    "tasks": ("task", "load_week", "find_weeks"),
    "traffic": ("sent", "sends"),
    "verdict": ("CheckFailed",),
}
_PUBLIC = {name: f"labkit.checks.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
