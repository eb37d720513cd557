"""Loss scaling: the number that an FP16 run multiplies its loss by, before backward (arXiv:1710.03740, section 3.2).

It moves as torch.amp.GradScaler's does, by the loop's verdict over all ranks: half of it after a bad step, twice as
much after `growth_interval` good ones in a row.
"""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.precision.config import LossScaling
from labkit.train.health import local_gradients


class LossScale:
    """The scale of a run's loss, the same on every rank. config None: the loss is not scaled, and nothing is done."""

    def __init__(self, config: LossScaling | None) -> None:
        self.active, self.dynamic = config is not None, config is not None and config.dynamic
        self.value, self.interval = (config.initial, config.growth_interval) if config else (1.0, 0)
        self.good = 0  # good steps since the scale moved

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss that backward is called on."""
        return loss * self.value if self.active else loss

    @torch.no_grad()
    def unscale(self, model: nn.Module) -> None:
        """Divide the gradients by the scale, in place. All ranks together (labkit.train.health.local_gradients)."""
        if self.active and (gradients := local_gradients(model)):
            torch._foreach_mul_([grad for _, _, grad in gradients], 1 / self.value)

    def follow(self, finite: bool) -> str:
        """Move the scale as a step with this verdict moves it; return a half-sentence if it fell, else ""."""
        if not self.dynamic:
            return ""
        was, self.good = self.value, self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good == self.interval:
            self.value, self.good = 2 * self.value, 0
        return "" if finite else f"the loss scale falls from {was:g} to {self.value:g}"

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds; {} where nothing moves."""
        return {"value": self.value, "good": self.good} if self.dynamic else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        if self.dynamic:
            self.value, self.good = state["value"], state["good"]
