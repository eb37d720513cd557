"""Minutes and money: predicted before a comparison starts, measured after, and never more than was allowed. An
arm starts if it fits, by its prediction and how far off those so far were, and pauses at the end of the time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from labkit.compare.batches import LOOK, OTHERS
from labkit.compare.preset import Preset
from labkit.errors import LabError
from labkit.record.schema import Call, Item

Ranks = Literal["fresh", "started", "kept"]
REPORT_SECONDS = 10.0  # kept back for the verdict and the page; 3 to 7 were recorded on an H100's host


@dataclass
class Budget:
    """The time and money of one call. minutes None: no limit; price: of an hour; stop: a file that asks to pause."""

    minutes: float | None = None
    price: float | None = None
    stop: Path | None = None
    clock: Callable[[], float] = time.time
    began: float = field(init=False)
    done: list[Item] = field(default_factory=list)
    left: list[Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, value in (("--budget-minutes", self.minutes), ("--price-per-hour", self.price)):
            if value is not None and not value > 0:
                raise LabError(f"{name} takes a number above 0, not {value:g}")
        self.began = self.clock()

    @property
    def deadline(self) -> float | None:
        """Seconds since 1970 at which a running arm must pause; None without a limit."""
        return None if self.minutes is None else self.began + 60 * self.minutes - REPORT_SECONDS

    def factor(self, part: str) -> float:
        """How much longer arms took than predicted, so far: of this part, if any did."""
        known = [item for item in self.done if item.part == part] or self.done
        predicted = sum(item.predicted_s for item in known)
        return sum(item.measured_s or 0.0 for item in known) / predicted if predicted else 1.0

    def stop_requested(self) -> bool:
        """Has somebody asked for a pause?"""
        return self.stop is not None and self.stop.exists()

    def fits(self, item: Item) -> bool:
        """May this arm be started? If not, it is noted as left for another call."""
        late = self.late(item) or self.stop_requested()
        self.left += [item] if late else []
        return not late

    def late(self, item: Item, after: float = 0.0) -> bool:
        """Would this arm, started in `after` seconds as predicted, end after the deadline?"""
        seconds = (after + item.predicted_s) * self.factor(item.part)
        return self.deadline is not None and self.clock() + seconds > self.deadline

    def took(self, item: Item, seconds: float) -> None:
        item.measured_s = seconds
        self.done.append(item)

    def seconds(self) -> float:
        return self.clock() - self.began

    def cost(self, seconds: float) -> float | None:
        return None if self.price is None else seconds / 3600 * self.price

    def describe(self, seconds: float) -> str:
        """ "12.3 minutes", and what they cost if the price is known."""
        cost = self.cost(seconds)
        return f"{seconds / 60:.1f} minutes" + ("" if cost is None else f", {cost:.2f} at {self.price:.2f} an hour")

    def call(self, *, ended: bool = False) -> Call:
        """Up to now, for the record."""
        left, seconds = [item for item in self.left if item not in self.done], self.seconds()
        items = [item.model_copy(update={"left": item in self.left}) for item in (*self.done, *left)]
        call = Call(began=self.began, minutes=self.minutes, price_per_hour=self.price, ended=ended, items=items)
        return call.model_copy(update={"seconds": seconds, "cost": self.cost(seconds)})


def price_of(calls: Sequence[Call]) -> float | None:
    """Of an hour of the whole machine, as the last call that named one has it."""
    return next((call.price_per_hour for call in reversed(calls) if call.price_per_hour), None)


def spent(calls: Sequence[Call]) -> str:
    """ "22.4 minutes, 1.12 at 3.00 an hour": of all calls; "" if none is recorded."""
    seconds = sum(call.seconds for call in calls)
    least = "" if all(call.ended for call in calls if call.seconds) else "at least "
    return least + Budget(price=price_of(calls)).describe(seconds) if seconds else ""


def predict(
    preset: Preset,
    part: str,
    arm: str,
    memory_gib: float | None = None,
    world: int = 1,
    tried: int = 0,
    ranks: Ranks = "fresh",
) -> Item:
    """What an arm is expected to take; without a rate one start-up alone. tried: batches that need no further try;
    ranks: "started" ahead, or "kept" from its last run."""
    about = preset.arms[arm]
    rate = (getattr(about.expect, part) or getattr(preset.arms[preset.baseline()].expect, part) or 0) * world
    config = preset.config_of(part, arm, memory_gib, world)
    batch, seconds, others = config.batch_size * config.seq_len, 0.0, 0
    if part == "speed":
        most = preset.window().seconds
        seconds = (min(most, preset.window().least or most) + most) / 2  # it ends in between, as steady as the GPU is
        others = max(0, OTHERS - tried) if preset.window().batch else 0
        tokens = float((preset.window().warmup + preset.window().profile + others * LOOK) * batch)
    else:
        steps = min(config.steps, about.expect.steps or config.steps)
        tokens = float(steps * batch)
        if config.eval_every:  # a forward alone is a third of a step
            tokens += -(-steps // config.eval_every) * config.eval_batches * batch / 3
        seconds += about.expect.probes if config.probe_every else 0.0
    seconds += tokens / rate if rate else 0.0
    startup = preset.startup_seconds if about.expect.startup is None else about.expect.startup
    if ranks == "kept" and preset.again_seconds is not None:
        startup = preset.again_seconds
    elif ranks == "started":
        startup = max(0.0, startup - preset.ahead_seconds)
    return Item(part=part, arm=arm, label=about.label, predicted_s=(1 + others) * startup + seconds)


# ---- how long until the end: of the arm at work by its steps so far, of later arms by their predictions


@dataclass
class Forecast:
    """Of one call. done: arms with measured seconds; later: arms after the one at work; until: since 1970."""

    done: Sequence[Item]
    now: Item
    later: Sequence[Item]
    until: float | None = None

    def left(self, elapsed: float, here: float) -> float:
        """Seconds until the last arm ends, `elapsed` seconds into this one, when it needs `here` more."""
        measured = elapsed + here + sum(item.measured_s or 0.0 for item in self.done)
        predicted = self.now.predicted_s + sum(item.predicted_s for item in self.done)
        later = sum(item.predicted_s for item in self.later)
        whole = here + (later * measured / predicted if predicted > 0 else (elapsed + here) * len(self.later))
        return whole if self.until is None else min(whole, max(0.0, self.until - time.time()))


@dataclass
class Pace:
    """How fast one training comes forward, evaluations included, on the clock of whoever watches it."""

    steps: int
    first: tuple[float, int] | None = None  # when the first step was seen, and its number

    def left(self, now: float, step: int) -> float | None:
        """Seconds until the last step, when `step` is done at time `now`; None until two steps in a row were seen."""
        if self.first is None or step < self.first[1]:
            self.first = now, step
        begun, at = self.first
        return (self.steps - step) * (now - begun) / (step - at) if step > at else None


def in_words(seconds: float) -> str:
    """ "about 4 min left", to the next larger whole one; up to a minute to the next larger 10 seconds."""
    if seconds > 60:
        return f"about {-int(-seconds // 60)} min left"
    return f"about {max(10, -int(-seconds // 10) * 10)} s left"
