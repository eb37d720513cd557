"""Modules and layouts to hang the weeks' parts on: what is neither a decision nor a lesson."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from capstone.given.parts import part


class VocabEmbedding(nn.Module):
    """The embedding of which this rank has some rows (15.4). weight [v, D]; V: rows of the whole table."""

    def __init__(self, weight: Tensor, V: int, group: Any) -> None:
        super().__init__()
        self.weight, self.V, self.group = nn.Parameter(weight), V, group

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return part("week15_tp_attention.vocab").parallel_embedding(tokens_BT, self.weight, self.V, self.group)


class Stage(nn.Module):
    """A pipeline's stage: it takes and gives float32, whatever it computes in."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        return self.model(x.to(self.dtype) if x.is_floating_point() else x, *targets).float()


def linear_of(weight: Tensor) -> nn.Linear:
    """An nn.Linear without bias that has this weight [out, in], in memory of its own."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    return made


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """{parameter: its name in the whole decoder}, as "layers.3.attn.wq.weight"."""
    return {p: name for name, p in model.named_parameters()}


def laid_out(unit: Any, value: Callable[[nn.Parameter], float]) -> Tensor:
    """[S], float32, beside a FlatParameter's shard: for each of its numbers `value` of the parameter that it belongs
    to; 0 for the filling."""
    N, r, S = unit.group.size, unit.group.rank, len(unit.shard)
    whole = torch.cat([torch.full((p.numel(),), float(value(p)), device=unit.shard.device) for p in unit.params])
    return torch.cat([whole, whole.new_zeros(N * S - len(whole))])[r * S : (r + 1) * S].clone()


class AdamW:
    """AdamW on the shards of flat parameters; matrices decay, norms do not, as in labkit.train.optim.

    m and v: [S] for each unit, beside its shard."""

    def __init__(self, units: list[Any], betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self.units, self.betas, self.eps, self.steps = units, betas, eps, 0
        self.decay = [laid_out(unit, lambda p: weight_decay if p.dim() > 1 else 0.0) for unit in units]
        self.m = [torch.zeros_like(unit.shard) for unit in units]
        self.v = [torch.zeros_like(unit.shard) for unit in units]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Step every shard with its gradient."""
        self.steps += 1
        adamw_ = part("week14_fsdp.zero").adamw_
        for unit, decay, m, v in zip(self.units, self.decay, self.m, self.v):
            unit.shard.mul_(1 - lr * decay)
            adamw_(unit.shard, unit.shard.grad, m, v, self.steps, lr, self.betas, self.eps, 0.0)

    def zero_grad(self) -> None:
        for unit in self.units:
            unit.shard.grad = None
