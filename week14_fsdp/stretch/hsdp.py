"""FSDP on two levels: sharded inside a node, replicated across nodes (task 14.7, stretch, no points).

FSDP over N ranks sends 3 (N-1)/N n bytes a step, and all N wait for the slowest wire among them. On M nodes with P GPUs
each that wire is the network. But a model that fits into one node need not be cut any finer than P: let each node hold
all of it, cut over its own P ranks, and let the nodes be replicas of each other, as in data parallel. This is hybrid
sharding (Zhao et al. 2023, "PyTorch FSDP", arXiv:2304.11277, section 3.2.2), two dimensions of a mesh:

    mesh = Mesh(group, replicate=M, shard=P)            rank r is place r mod P in node r // P

    inside, "shard"         gather, gather again, reduce-scatter: as in 14.4     3 (P-1)/P n bytes, over fast wires
    across, "replicate"     all-reduce of the shard's gradient, [S]              2 (M-1)/M n/P bytes, over the network

The mean over all ranks is the mean over the nodes of each node's mean, for all nodes have P ranks:

    1/(M P) sum_m sum_p g_mp = 1/M sum_m (1/P sum_p g_mp)

So what a rank holds after its node's reduce-scatter needs one more message, an all-reduce over the M ranks in the same
place of their nodes. They hold the same part of the model, and step it alike: no weight crosses the network. The price
is memory: 1/P of everything, where 14.4 had 1/(M P).

**When?** A block's shard has its node's mean long before the backward ends. Its all-reduce can leave then, and be
waited for in `finish()`. `FSDP.settle` is the moment: it adds what came to `shard.grad`.

**How often?** Gradients of micro-batches add up, and a sum commutes with a mean. So only the last micro-batch's
backward lets the *sum* cross; the others end inside the node. That is `inside_only`, as `no_sync` in 14.2 is. (The
reduce-scatter inside is needed each time: no rank has room for a whole gradient.)

Invariant: between steps the M ranks in one place have equal shards, and every shard crosses once a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from week14_fsdp.fsdp import FSDP, FlatParameter


class HSDP(FSDP):
    """Task 14.7. `FSDP` over mesh["shard"], whose shards' gradients are means over mesh["replicate"], too.

        hsdp = HSDP(model, model.blocks, Mesh(group, replicate=2, shard=4))
        with hsdp.inside_only():                # micro-batches before the last
            model(*first).backward(); hsdp.finish()
        model(*second).backward(); hsdp.finish()    # now shard.grad is the mean over all ranks of the sum of both

    Args:
        model, blocks, dtype, prefetch: as FSDP.
        mesh: its dimensions "replicate" and "shard" are all there are. Weights are equal on all its ranks.

    `settle` and `finish` are FSDP's, with more to do. FSDP calls `settle` whenever the gradient under way is waited
    for, and at the end adds the root's to `root.shard.grad` without it.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module] | nn.ModuleList,
        mesh,
        dtype: torch.dtype | None = None,
        prefetch=True,
    ) -> None:
        ### BEGIN SOLUTION 14.7 two dimensions: FSDP's group, and `across`
        super().__init__(model, blocks, mesh["shard"], dtype, prefetch)
        self.across = mesh["replicate"]
        ### END SOLUTION
        self.crossing = True  # whether this backward's gradients leave the node
        self.crossed: list[Any] = []  # handles of the all-reduces under way

    @contextmanager
    def inside_only(self) -> Iterator[None]:
        """Inside, gradients add up in the node and do not cross (given)."""
        before, self.crossing = self.crossing, False
        try:
            yield
        finally:
            self.crossing = before

    def cross(self, unit: FlatParameter) -> None:
        """Begin to average `unit.shard.grad` over the nodes, in place, unless this backward stays inside."""
        ### BEGIN SOLUTION 14.7 one shard crosses
        if self.crossing:
            self.crossed.append(self.across.all_reduce(unit.shard.grad, op="mean", async_op=True))  # [S], 1/M sum_m
        ### END SOLUTION

    def settle(self) -> None:
        """Wait for the gradient that is under way inside, if any; then it may cross."""
        ### BEGIN SOLUTION 14.7 a block's gradient is there
        unit = self.reducing[0] if self.reducing is not None else None
        super().settle()
        if unit is not None:
            self.cross(unit)
        ### END SOLUTION

    def finish(self) -> None:
        """Call it on all ranks after each backward. All that crosses has arrived."""
        ### BEGIN SOLUTION 14.7 finish
        super().finish()
        self.cross(self.root)
        for handle in self.crossed:
            handle.wait()
        self.crossed.clear()
        ### END SOLUTION
