"""Loss scaling: the number that an FP16 run multiplies its loss by, before backward.

FP16's least number is 6e-8, and gradients lie below it. Backward is linear: a loss times S gives gradients times S,
which FP16 can hold, and the FP32 sums are divided by S afterwards (arXiv:1710.03740, section 3.2). How S moves is
torch's rule (torch.amp.GradScaler): half after a step that overflowed, twice as much after `growth_interval` good ones.

**One verdict.** A GradScaler looks for infinities itself, in the gradients of its own rank. The loop looks too, with
all ranks, and at the loss (labkit.train.health). Two judges that disagree leave the ranks with different weights. So
the scaler is not shown the gradients but the loop's verdict, as the gradient of a parameter of its own: 0 for a good
step, inf for a bad one. It lives on the CPU, and so costs no wait for the device.

Hooks, the check, clipping and the record see gradients that are divided by S already. Where S is a power of two, as by
default, dividing by it is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labkit.precision.config import LossScaling
from labkit.train.health import local_gradients


class LossScale:
    """The scale of a run's loss; the same on every rank. asked None: the loss is not scaled, and nothing is done."""

    def __init__(self, asked: LossScaling | None) -> None:
        self.asked, self.value = asked, asked.initial if asked else 1.0
        self._verdict = torch.zeros((), requires_grad=True)
        self._holder = torch.optim.SGD([self._verdict])
        interval = {"growth_interval": asked.growth_interval} if asked else {}
        self._scaler = torch.amp.GradScaler("cpu", init_scale=self.value, enabled=self.dynamic, **interval)
        self._scaler.scale(self._verdict.detach())  # it makes its scale when it first sees a loss

    @property
    def dynamic(self) -> bool:
        """Does the scale move?"""
        return self.asked is not None and self.asked.dynamic

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward is called on."""
        return loss if self.asked is None else loss * self.value

    @torch.no_grad()
    def unscale(self, model: nn.Module) -> None:
        """Divide the gradients by the scale, in place. All ranks together (labkit.train.health.local_gradients)."""
        if self.asked is not None and (gradients := local_gradients(model)):
            torch._foreach_mul_([grad for _, _, grad in gradients], 1 / self.value)

    def follow(self, finite: bool) -> str:
        """Move the scale as a step with this verdict moves it. A half-sentence if it fell, else ""."""
        if not self.dynamic:
            return ""
        was, self._verdict.grad = self.value, torch.tensor(0.0 if finite else torch.inf)
        self._scaler.unscale_(self._holder)
        self._scaler.update()
        self.value = self._scaler.get_scale()
        return f"the loss scale falls from {was:g} to {self.value:g}" if self.value < was else ""

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: torch's own; {} where nothing moves."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        if self.dynamic:
            self._scaler.load_state_dict(state)
            self.value = self._scaler.get_scale()
