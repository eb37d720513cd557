"""Loss scaling: the number that an FP16 run multiplies its loss by, before backward (arXiv:1710.03740, section 3.2).

It moves by torch.amp.GradScaler's rule, which sees the loop's verdict over all ranks as the gradient of a CPU
parameter: 0 for a good step, inf for a bad one.
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
        self.value = config.initial if config else 1.0
        self._verdict = torch.zeros((), requires_grad=True)
        self._holder = torch.optim.SGD([self._verdict])
        interval = {"growth_interval": config.growth_interval} if config else {}
        self._scaler = torch.amp.GradScaler("cpu", init_scale=self.value, enabled=self.dynamic, **interval)
        self._scaler.scale(self._verdict.detach())  # it makes its scale when it first sees a loss

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
        was, self._verdict.grad = self.value, torch.tensor(0.0 if finite else torch.inf)
        self._scaler.unscale_(self._holder)
        self._scaler.update()
        self.value = self._scaler.get_scale()
        return f"the loss scale falls from {was:g} to {self.value:g}" if self.value < was else ""

    def state_dict(self) -> dict[str, Any]:
        """Return torch's own state for a checkpoint; {} where nothing moves."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        if self.dynamic:
            self._scaler.load_state_dict(state)
            self.value = self._scaler.get_scale()
