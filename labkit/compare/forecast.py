"""How long until the end: of the arm at work by its steps so far, of later arms by the rates that the preset expects."""

import time
from collections.abc import Sequence

from labkit.record.schema import Item


class Forecast:
    """Of one call. done: arms with measured seconds; later: arms after the one at work; until: the budget's end, since
    1970."""

    def __init__(self, done: Sequence[Item], now: Item, later: Sequence[Item], until: float | None = None) -> None:
        self.done, self.now, self.later, self.until = done, now, later, until

    def left(self, elapsed: float, here: float) -> float:
        """Seconds until the last arm ends, `elapsed` seconds into this one, when it needs `here` more."""
        known = [(item.measured_s, item.predicted_s) for item in self.done if item.measured_s is not None]
        measured = elapsed + here + sum(seconds for seconds, _ in known)
        predicted = self.now.predicted_s + sum(seconds for _, seconds in known)
        later = sum(item.predicted_s for item in self.later)
        whole = here + (later * measured / predicted if predicted > 0 else (elapsed + here) * len(self.later))
        return whole if self.until is None else min(whole, max(0.0, self.until - time.time()))


class Pace:
    """How fast one training comes forward, evaluations included, on the clock of whoever watches it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.first: tuple[float, int] | None = None  # when the first step was seen, and its number
        self.newest = 0

    def left(self, now: float, step: int) -> float | None:
        """Seconds until the last step, when `step` is done at time `now`; None until two steps after a start or a
        rollback."""
        if self.first is None or step < self.newest:
            self.first = now, step
        self.newest = step
        begun, at = self.first
        return (self.steps - step) * (now - begun) / (step - at) if step > at else None


def in_words(seconds: float) -> str:
    """ "about 4 min left", to the next larger whole one; up to a minute to the next larger 10 seconds."""
    if seconds > 60:
        return f"about {-int(-seconds // 60)} min left"
    return f"about {max(10, -int(-seconds // 10) * 10)} s left"
