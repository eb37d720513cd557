"""FP8 under tensor parallelism: a small decoder on TP ranks, trained in BF16 and in FP8 on the same data.

The gap is paired: same weights at first, same batches, the loss compared step by step. A BF16 twin, whose weights were
perturbed at rounding scale, shows what a gap of nothing looks like. Transformer Engine's linears; amax is agreed over
the tensor-parallel ranks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from labkit.model.decoder import rotary_tables
from week15_tp_attention.given.blocks import Parts, Shape, own_weights, whole_weights
from week15_tp_attention.given.peers import PEERS
from week15_tp_attention.given.training import VOCAB, text

ARMS = {"bf16": "te.Linear", "bf16 twin": "te.Linear", "FP8 delayed": "te.Linear, FP8 delayed"}
ARMS |= {"FP8 current": "te.Linear, FP8 current"}


class Decoder(nn.Module):
    """`layers` blocks of a peer on this rank's slices; embedding and head whole and equal on all ranks."""

    def __init__(self, arm: str, layers: int, shape: Shape, group: Any, given: Parts) -> None:
        super().__init__()
        device, dtype = group.device, torch.bfloat16
        blocks = []
        for layer in range(layers):
            whole = whole_weights(shape, device, torch.float32, seed=layer)
            if arm == "bf16 twin":
                drawn = torch.Generator(device).manual_seed(1000 + layer)
                for name, weight in whole.items():
                    u = torch.rand(weight.shape, device=device, generator=drawn) * 2 - 1
                    whole[name] = weight * (1 + 2**-9 * u)
            for name in ("wo", "w2"):
                whole[name] /= math.sqrt(2 * layers)
            own = own_weights({name: weight.to(dtype) for name, weight in whole.items()}, shape, group)
            blocks.append(PEERS[ARMS[arm]](own, group, shape, given))
        self.blocks = nn.ModuleList(blocks)
        drawn = torch.Generator(device).manual_seed(99)
        table = torch.randn(VOCAB, shape.D, device=device, generator=drawn)
        self.embed = nn.Parameter(table.to(dtype))
        self.head = nn.Parameter((table * shape.D**-0.5).to(dtype))
        self.norm = nn.Parameter(torch.ones(shape.D, device=device, dtype=dtype))
        self.given = given
        self.cos, self.sin = rotary_tables(shape.T, shape.d_head, 10_000.0, device)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = nn.functional.embedding(tokens, self.embed)
        first: Any = self.blocks[0]
        with first.autocast():
            for block in self.blocks:
                x = block(x)
        logits = nn.functional.linear(self.given.norm(x, self.norm), self.head)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gap(group: Any, given: Parts, steps: int = 150, layers: int = 4) -> dict[str, Any]:
    """{"steps", "shape", "losses": {arm: [...]}, "gap": {arm: signed mean of the second half, relative to bf16}}."""
    shape = Shape(8, 256, 1024, 4096, 8, 8)
    losses: dict[str, list[float]] = {}
    for arm in ARMS:
        torch.manual_seed(0)
        model = Decoder(arm, layers, shape, group, given)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0)
        data = torch.Generator("cpu").manual_seed(7)
        mine = []
        for _ in range(steps):
            batch = text(shape.B, shape.T + 1, data).to(group.device)
            loss = model(batch[:, :-1], batch[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mine.append(loss.detach())
        losses[arm] = torch.stack(mine).tolist()
    half = steps // 2
    base = losses["bf16"][half:]
    gaps = {
        arm: sum(a / b - 1 for a, b in zip(values[half:], base)) / len(base)
        for arm, values in losses.items()
        if arm != "bf16"
    }
    return {"steps": steps, "layers": layers, "shape": shape._asdict(), "losses": losses, "gap": gaps}
