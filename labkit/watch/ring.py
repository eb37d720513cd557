"""What an alarm is, what a rule is, and how soon the same may ring again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.watch.folder import Record

REARM = 16  # rows without the condition, before it may ring again
WINDOW = 64  # steps that tell what is usual
WARMUP = 48  # of them, at least so many must be known
KNOWN = 8  # probes, or looks at the weights' norm, that must be known at least


@dataclass(frozen=True)
class Alarm:
    """What rang: which rule, at which step (None: now, whatever the step), and why."""

    kind: str
    step: int | None
    reason: str


Rule = Callable[[Record, int], Iterator[Alarm]]
