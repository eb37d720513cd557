"""A small decoder whose weights come from outside, and which notes in the ledger when it computes.

    x = embed[tokens]
    for each block in `use`:  x = x + relu(x up^T + bias) down^T
    loss = cross entropy of (x * scale) embed^T         the head is tied to the embedding

Every block notes a span of computing when its forward begins, "forward k", and one when its backward begins,
"backward k". So the ledger shows what was posted before a product, and what was waited for after it: posting order
alone does not, for a version that waits at once posts in the same order.

`use` says which blocks run, in order: [0, 2] leaves block 1 out, [0, 1, 1] runs it twice.

Shape suffixes: B batch, T positions, D width, F hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SECONDS = 1e-3  # of a forward on the virtual wire; a backward takes twice as long


class Identity(torch.autograd.Function):
    """x as it came. Its backward is the first of the block's, and calls `note`."""

    @staticmethod
    def forward(ctx, x_BTD: Tensor, note) -> Tensor:
        ctx.note = note
        return x_BTD.view_as(x_BTD)

    @staticmethod
    def backward(ctx, grad_BTD: Tensor):
        ctx.note()
        return grad_BTD, None


class Block(nn.Module):
    def __init__(self, k: int, weights: Mapping[str, Tensor], group) -> None:
        super().__init__()
        self.k, self.group = k, group
        self.up, self.bias, self.down = (
            nn.Parameter(weights[f"blocks.{k}.{name}"].clone()) for name in ("up", "bias", "down")
        )
        # By columns, as a weight that was read from a transposed file: a parameter need not be contiguous.
        self.down.data = self.down.T.clone(memory_format=torch.contiguous_format).T.detach()

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.group.compute(f"forward {self.k}", seconds=SECONDS)
        x_BTD = x_BTD + F.linear(F.relu(F.linear(x_BTD, self.up, self.bias)), self.down)
        return Identity.apply(x_BTD, lambda: self.group.compute(f"backward {self.k}", seconds=2 * SECONDS))


class Tiny(nn.Module):
    """The decoder. `weights` by name: "embed" [V, D]; "blocks.k.up" [F, D], ".bias" [F], ".down" [D, F]; "scale" [D];
    and perhaps "idle", of any shape, which nothing uses.

    group           whose ledger gets the spans
    checkpointed    keep each block's input only, and compute the block again in the backward
    """

    def __init__(self, weights: Mapping[str, Tensor], group, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        if "idle" in weights:
            self.idle = nn.Parameter(weights["idle"].clone())
        self.embed = nn.Parameter(weights["embed"].clone())
        self.blocks = nn.ModuleList(Block(k, weights, group) for k in range(sum("up" in name for name in weights)))
        self.scale = nn.Parameter(weights["scale"].clone())
        self.head = self.embed  # tied: one parameter under two names

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor, use: Sequence[int] | None = None) -> Tensor:
        """The mean loss."""
        x_BTD = F.embedding(tokens_BT, self.embed)
        for k in range(len(self.blocks)) if use is None else use:
            block = self.blocks[k]
            if self.checkpointed:
                # Torch stops a recomputation once it has what the backward needs, before the block's last hooks. Not
                # here: a block of another shape would run them. (Said to this call alone: torch's context manager for
                # it sets a global, and ranks that are threads would leave it as one of them found it.)
                x_BTD = checkpoint(block, x_BTD, use_reentrant=False, early_stop=False)
            else:
                x_BTD = block(x_BTD)
        logits_BTV = F.linear(x_BTD * self.scale, self.head)
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
