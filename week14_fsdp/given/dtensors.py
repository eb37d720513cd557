"""The shards of 14.4 as DTensors, for whoever asks a parameter what it is a part of.

A shard is a plain tensor of S numbers, and nothing says that N of them are one vector: a norm taken over it is a part's
norm, a checkpoint would keep one rank's. A DTensor says it: [N S], cut over the ranks. So torch's own optimizer,
`clip_grad_norm_` and distributed checkpoint work on it.

    shards = Shards(fsdp, group)
    optimizer = torch.optim.AdamW(shards.parameters)
    loss.backward(); fsdp.finish(); shards.take_gradients()
    torch.nn.utils.clip_grad_norm_(shards.parameters, 1.0)      # by the norm of the whole gradient: padding is zero
    optimizer.step(); shards.zero_grad()
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor, Shard


class Shards:
    """`parameters`: a DTensor for each of `sharded.shards()`, on the same memory: what steps one steps the other.

    sharded: a `week14_fsdp.fsdp.FSDP` over the ranks of `group`. LabError for ranks on threads: they have no mesh."""

    def __init__(self, sharded: Any, group: Any) -> None:
        self.plain, self.mesh = sharded.shards(), group.device_mesh()
        self.parameters = [nn.Parameter(self._whole(shard.data)) for shard in self.plain]

    def take_gradients(self) -> None:
        """After `finish()`: each parameter's gradient is its shard's."""
        for parameter, shard in zip(self.parameters, self.plain):
            parameter.grad = None if shard.grad is None else self._whole(shard.grad)

    def zero_grad(self) -> None:
        for one in (*self.parameters, *self.plain):
            one.grad = None

    def _whole(self, part: Any) -> DTensor:
        return DTensor.from_local(part, self.mesh, [Shard(0)], run_check=False)
