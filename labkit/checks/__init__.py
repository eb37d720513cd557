"""How a task is judged: tasks and points, `call`, diagnosis, and the one check behind `lab check` and notebooks.

from labkit.checks import call, same, sent, task, tensors       # in a week's test file
from labkit.checks import check; check("13.4")                  # in a notebook
"""

import importlib
from typing import Any

# Lazy, so that `lab --help` does not pay for torch, and a test file has one place to import from.
_PUBLIC = {
    "task": "labkit.checks.tasks",
    "load_week": "labkit.checks.tasks",
    "find_weeks": "labkit.checks.tasks",
    "call": "labkit.checks.runner",
    "call_alone": "labkit.checks.runner",
    "call_each": "labkit.checks.runner",
    "once": "labkit.checks.expected",
    "same": "labkit.checks.judge",
    "tensors": "labkit.checks.drawn",
    "field": "labkit.checks.judge",
    "expect": "labkit.checks.judge",
    "sent": "labkit.checks.traffic",
    "sends": "labkit.checks.traffic",
    "CheckFailed": "labkit.checks.verdict",
    "check": "labkit.checks.results",
    "run_checks": "labkit.checks.pytest_run",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
