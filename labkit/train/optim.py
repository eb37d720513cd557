"""The optimizer and its learning-rate schedule: AdamW, warm-up, cosine; FP8 parameters and their master weights.

AdamW (arXiv:1711.05101) keeps, beside each weight w, a running mean m of its gradient g and a running mean v of g * g:

    m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g g
    w <- w - lr * ( m^ / (sqrt(v^) + eps) + weight_decay * w )          (m^, v^: m, v corrected for starting at zero)

Weights, m and v are FP32, sharded; matrices decay, norm weights do not. With FP8 parameters AdamW updates an FP32
master weight (arXiv:1710.03740), "master" beside "exp_avg" and "exp_avg_sq", and the parameter becomes its rounding.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from labkit.precision.base import FP8Parameters, local_part
from labkit.train.config import TrainConfig

MASTER = "master"


def adamw(model: nn.Module, config: TrainConfig, backend: Any = None) -> torch.optim.AdamW:
    """AdamW over the model's parameters, with weight decay for matrices alone. Call it after sharding, which replaces
    them; those that the backend wants in FP8 become so now, and get master weights."""
    masters = backend.parameters.quantise() if backend is not None and backend.parameters else {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = any(p.device.type == "cuda" for p in parameters)  # one kernel for each group
    groups = [g for g in groups if g["params"]]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.adam_eps, "fused": fused}
    if masters:
        return MasterAdamW(groups, masters, backend.parameters, **options)
    return torch.optim.AdamW(groups, **options)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of step 1, ..., config.steps: linear warm-up, then half a cosine (arXiv:1608.03983, equation 5)."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)  # (0, 1]
    lowest = config.lr * config.min_lr_ratio
    return lowest + (config.lr - lowest) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class MasterAdamW(torch.optim.AdamW):
    """AdamW in which the parameters that `masters` names are FP8: {parameter: FP32 master weight, sharded alike}."""

    def __init__(
        self, groups: list[dict[str, Any]], masters: dict[nn.Parameter, Tensor], fp8: FP8Parameters, **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self.fp8 = fp8
        # AdamW would make its state at the first update, in the parameter's own type: FP8. And a load wants to find the
        # state of every parameter, or of none.
        for group in self.param_groups:
            for parameter in group["params"]:
                master = masters.get(parameter)
                shape = parameter.detach() if master is None else master
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu"),
                    "exp_avg": torch.zeros_like(shape),
                    "exp_avg_sq": torch.zeros_like(shape),
                    **({} if master is None else {MASTER: master}),
                }

    def masters(self) -> dict[Tensor, Tensor]:
        """Return {FP8 parameter: its master weight}, the live ones."""
        return {p: state[MASTER] for p, state in self.state.items() if MASTER in state}

    def _init_group(self, group: dict, parameters: list[Tensor], *lists: Any) -> bool:
        """Collect what is to be updated as torch does, with masters in their parameters' places."""
        found = super()._init_group(group, parameters, *lists)
        parameters[:] = [self.state[p].get(MASTER, p) for p in parameters]
        return found

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.restore()
        return result

    @torch.no_grad()
    def restore(self) -> None:
        """Round every master into its FP8 parameter: after an update, and after a load."""
        for parameter, master in self.masters().items():
            self.fp8.store(parameter, master)

    def held(self, parameter: Tensor) -> Tensor:
        """Return what a parameter holds as an ordinary tensor, sharded as the parameter is."""
        return self.fp8.values(parameter) if MASTER in self.state.get(parameter, {}) else parameter

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """Return {name: what the FP8 parameter holds, as an FP32 tensor of its own}."""
        masters = self.masters()
        return {name: self.fp8.values(p) for name, p in model.named_parameters() if p in masters}

    def differing(self, model: nn.Module, saved: dict[str, Tensor]) -> str | None:
        """Name the first FP8 parameter that is not what `saved` says, on this rank; None if all are."""
        values = self.values(model).items()
        return next((n for n, now in values if not torch.equal(local_part(now), local_part(saved[n]))), None)
