"""The optimizer and its learning-rate schedule: AdamW, warm-up, cosine.

AdamW (arXiv:1711.05101) keeps, beside each weight w, a running mean m of its gradient g and a running mean v of g * g:

    m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g g
    w <- w - lr * ( m^ / (sqrt(v^) + eps) + weight_decay * w )          (m^, v^: m, v corrected for starting at zero)

Weights, m and v are FP32 whatever precision the forward computes in: 4 + 4 + 4 bytes a parameter. An update is often a
thousandth of a weight or less, and BF16 with its 8 significant bits would round it away. Under FSDP2 all three are
sharded; each rank updates its own part, and nothing is sent.

Matrices decay, norm weights (one-dimensional) do not: a norm's scale has no reason to be pulled towards zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from labkit.train.config import TrainConfig
from labkit.train.master import MasterAdamW


def adamw(model: nn.Module, config: TrainConfig, backend: Any = None) -> torch.optim.AdamW:
    """AdamW over the model's parameters, in two groups: with weight decay (matrices) and without (vectors).

    Call it after sharding: fully_shard replaces the parameters. On CUDA the update is one fused kernel per group.
    backend: the model's precision backend; if it has FP8 parameters, they become FP8 now, after their first values, and
    get master weights (labkit.train.master).
    """
    masters = backend.parameters.quantise() if backend is not None and backend.parameters else {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = any(p.device.type == "cuda" for p in parameters)
    groups = [g for g in groups if g["params"]]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.adam_eps, "fused": fused}
    if masters:
        return MasterAdamW(groups, masters, backend.parameters, **options)
    return torch.optim.AdamW(groups, **options)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of step 1, 2, ..., config.steps.

    Linear from lr / warmup_steps up to lr at step warmup_steps, then half a cosine down to lr * min_lr_ratio at the
    last step (arXiv:1608.03983, equation 5, without restarts).
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)  # (0, 1]
    lowest = config.lr * config.min_lr_ratio
    return lowest + (config.lr - lowest) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr
