"""What a run does about a step that is not finite: skip it, lower the learning rate, go back to a checkpoint.

    [recovery]
    lower_after = 2        # the 2nd bad step in a row lowers the rate, and so does every further one; 0: never
    rollback_after = 4     # the 4th goes back to the newest checkpoint from before them; 0: never
    factor = 0.5           # what the rate is multiplied by, each time, and when the run goes back
    skip_data = true       # after going back, read other batches than those that it broke on
    max_rollbacks = 3      # then it gives up
    give_up_after = 20     # bad steps in a row; then it gives up

A rollback restores all but the lowered rate, the count of rollbacks and the skipped batches: from step b to the
checkpoint of step c, b - c more batches are skipped (as PaLM did by hand: arXiv:2204.02311, section 5.1).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, model_validator

from labkit.strict import Config, Count, CountOrOff, require

SKIP, LOWER, ROLL_BACK = "skip", "lower", "roll back"


class RecoveryConfig(Config):
    """The table [recovery] of a training's configuration; see the module's text."""

    lower_after: CountOrOff = 0
    rollback_after: CountOrOff = 0
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    skip_data: bool = True
    max_rollbacks: Count = 3
    give_up_after: Count = 20

    @model_validator(mode="after")
    def _in_order(self) -> "RecoveryConfig":
        lower, back, end = self.lower_after, self.rollback_after, self.give_up_after
        require(
            not lower or not back or lower < back,
            f"lower_after ({lower}) must be less than rollback_after ({back}), or the rate is never lowered first",
        )
        require(
            max(lower, back) < end,
            f"give_up_after ({end}) must be more than lower_after ({lower}) and rollback_after ({back})",
        )
        return self


@dataclass
class Recovery:
    """What a run has done about bad steps so far, the same on every rank. It survives a resume and a rollback."""

    config: RecoveryConfig = field(default_factory=RecoveryConfig)
    rate: float = 1.0  # multiplies the schedule's learning rate
    shift: int = 0  # step k reads batch k + shift
    rollbacks: list[list[int]] = field(default_factory=list)  # [[from step, to step], ...]

    def answer(self, row: int) -> str:
        """Decide what the `row`-th bad step in a row leads to: SKIP; or LOWER or ROLL_BACK, and lower the rate."""
        reached = {ROLL_BACK: self.config.rollback_after, LOWER: self.config.lower_after}
        found = next((what for what, after in reached.items() if 0 < after <= row), SKIP)
        if found != SKIP:
            self.rate *= self.config.factor
        return found

    def over(self, row: int, action: str) -> str | None:
        """Say why the run must end now; None: it goes on."""
        often = action == ROLL_BACK and len(self.rollbacks) >= self.config.max_rollbacks
        if not often and row < self.config.give_up_after:
            return None
        after = f", after going back to a checkpoint {len(self.rollbacks)} times" if often else ""
        return f"{row} steps in a row were not finite{after}: lower the learning rate or use another recipe"

    def went_back(self, step: int, to: int) -> None:
        """Note a rollback from `step` to the checkpoint of step `to`."""
        self.rollbacks.append([step, to])
        self.shift += step - to if self.config.skip_data else 0

    def describe(self) -> str:
        """Say what is different from now on."""
        batches = f", and step k reads batch k + {self.shift}" if self.shift else ""
        return f"the learning rate is {self.rate:g} of its schedule{batches}"

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint and a result hold: rate, shift, rollbacks."""
        return {key: value for key, value in asdict(self).items() if key != "config"}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave; {} of a checkpoint that is older than this."""
        for key, value in state.items():
            setattr(self, key, value)


def row_of(skipped: Sequence[int], step: int) -> int:
    """Count the steps in a row, `step` the last of them, that were skipped."""
    row = 0
    while row < len(skipped) and skipped[-1 - row] == step - row:
        row += 1
    return row
