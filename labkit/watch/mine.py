"""The student's own rules beside the page's, once they are written; where one fails, the page says so.

A part of `PARTS` ("module:name") is a class: a new object for each record is called with it, and gives what is new.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from labkit.errors import in_words
from labkit.watch.folder import Record
from labkit.watch.past import Alarm

PARTS = {
    "your scale tracker (16.8)": "capstone.running.watching:Tracker",
    "your alarms (C.4)": "capstone.running.watching:Alarms",
}


class Mine:
    """One part at work on one record. What it raises ends it, and is reported in place of its alarms."""

    def __init__(self, name: str, part: str) -> None:
        self.name, self.part = name, part
        self.rule: Callable[[Record], Iterable[tuple[int, str]]] | None = None

    def __call__(self, record: Record) -> list[Alarm]:
        try:
            if self.rule is None:
                module, _, attribute = self.part.partition(":")
                self.rule = getattr(importlib.import_module(module), attribute)()
            return [Alarm(self.name, int(step), str(reason)) for step, reason in self.rule(record)]
        except (Exception, SystemExit) as error:
            self.rule = lambda record: ()
            return [Alarm(self.name, None, _explain(error))]


def make_rules() -> list[Any]:
    return [Mine(name, part) for name, part in PARTS.items()]


def _explain(error: BaseException) -> str:
    if isinstance(error, NotImplementedError):
        return "not written yet"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("capstone", "week16_fp8"):
        return f"there is no {error.name} here: start from the course's folder"
    return f"fails, and is not called again: {in_words(error)}"
