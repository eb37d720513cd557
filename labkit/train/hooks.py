"""How something takes part in training without editing the loop.

A hook is a subclass of `Hook`; the loop calls each of its methods at its place and hands over itself, a `Loop`.
Sharding by hand, a precision switch, a recovery rule, a progress line: each is a hook of twenty lines.

    on_start
    every step:   before_step
                  (around_micro: forward, backward) x accumulation
                  after_backward            -> the loop checks, clips and updates
                  after_step                -> the loop evaluates, if it is time
                  after_eval, if it did     -> the loop writes the step's line, and a checkpoint, if it is time
    on_end

Two rules. Every rank calls the same hooks in the same places, so a hook may communicate, and then must do so on every
rank. And what steers the run (`loop.stop`, a changed learning rate) must be decided alike on every rank: decide on
numbers that are the same everywhere, such as `loop.vitals`, or agree first (`labkit.train.health.agree`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.train.loop import Loop


class Hook:
    """Does nothing. Override what you need. What `state_dict` returns goes into every checkpoint, rank by rank."""

    def on_start(self, loop: Loop) -> None:
        """Once, after a resume if there was one, before the first step."""

    def before_step(self, loop: Loop) -> None:
        """`loop.step` and `loop.lr` are the coming step's; a changed `loop.lr` is used."""

    def around_micro(self, loop: Loop) -> AbstractContextManager:
        """Entered before each forward and left after its backward. `loop.micro` counts from 0."""
        return nullcontext()

    def after_backward(self, loop: Loop) -> None:
        """The gradients of the whole step are there, summed over micro-batches, not yet checked or clipped."""

    def after_step(self, loop: Loop) -> None:
        """The update was made, or refused (`loop.skipped`). `loop.vitals` holds loss and norm; numbers put into
        `loop.fields` go into the step's line."""

    def after_eval(self, loop: Loop) -> None:
        """`loop.history.heldout[loop.step]` is new."""

    def on_end(self, loop: Loop) -> None:
        """Once, after the last step, also when stopped early. Not after an exception."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ProbeScales(Hook):
    """Every `every` steps: the scales of the precision backend during this rank's first micro-batch, into the line."""

    def __init__(self, backend: Any, every: int) -> None:
        self.backend, self.every = backend, every

    @contextmanager
    def around_micro(self, loop: Loop) -> Iterator[None]:
        if loop.micro or loop.step % self.every:
            yield
            return
        with self.backend.probe():
            yield
        loop.fields["scales"] = {name: stat.to_dict() for name, stat in self.backend.scales.items()}
