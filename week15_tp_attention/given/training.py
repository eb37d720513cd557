"""A small decoder trained on tensor-parallel ranks by your layers, and the same with a step left out.

`train` runs ranks on threads; every rank computes the same loss, since embedding, norms and head are whole on each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.comm.ranks import run_ranks
from week15_tp_attention.given.blocks import Plain, Shape, own_weights, parts, whole_weights

VOCAB = 512
SMALL = Shape(B=4, T=32, D=64, F=128, n_heads=4, n_kv_heads=2)


class Training(NamedTuple):
    """losses: by step. wrong: how far the first step's gradient of W_k and W_v is from one rank's, relative; apart: how
    far the copies of W_k on two replicas are from each other at the end, relative (0: none has a copy, or equal)."""

    losses: list[float]
    wrong: float
    apart: float


class Decoder(nn.Module):
    """Blocks of 15.2 between an embedding and a head that every rank has whole."""

    def __init__(self, group: Any, shape: Shape, layers: int) -> None:
        super().__init__()
        whole = [whole_weights(shape, group.device, torch.float32, seed=layer) for layer in range(layers)]
        blocks = [Plain(own_weights(weights, shape, group), group, shape, parts(compiled=False)) for weights in whole]
        self.blocks = nn.ModuleList(blocks)
        table = torch.randn(VOCAB, shape.D, generator=torch.Generator().manual_seed(99))
        self.embed, self.head = nn.Parameter(table), nn.Parameter(table * shape.D**-0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = nn.functional.embedding(tokens, self.embed)
        for block in self.blocks:
            x = block(x)
        logits = nn.functional.linear(nn.functional.rms_norm(x, x.shape[-1:]), self.head)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(N: int, *, replicas_summed: bool = True, steps: int = 60, layers: int = 2) -> Training:
    """`steps` of AdamW on N ranks. replicas_summed=False: your layer is set up as if nobody else has its key/value heads,
    so that the sum of the copies' gradients falls away."""
    results = run_ranks(_train, N, replicas_summed, steps, layers, size=N, backend="threads", timeout=120.0)
    first = results[0]
    one = first if N == 1 else run_ranks(_train, 1, True, 1, layers, size=1, backend="threads", timeout=60.0)[0]
    return Training(first["losses"], _wrong(results, one), _apart(results))


def _train(group: Any, N: int, replicas_summed: bool, steps: int, layers: int) -> dict[str, Any]:
    model = Decoder(group, SMALL, layers)
    if not replicas_summed:
        alone = group.split([[rank] for rank in range(N)], "alone")
        for block in model.blocks:
            block.layer.replicas = alone  # type: ignore[union-attr]  # every block has one here
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    data = torch.Generator().manual_seed(7)
    losses, gradients = [], {}
    for step in range(steps):
        batch = text(SMALL.B, SMALL.T + 1, data)
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        layer: Any = model.blocks[0].layer
        if step == 0:
            gradients = {name: getattr(layer, name).grad.clone() for name in ("wk", "wv")}
        optimizer.step()
        losses.append(float(loss.detach()))
    kv = max(1, N // SMALL.n_kv_heads)
    return {"losses": losses, "gradients": gradients, "wk": layer.wk.detach(), "head": group.rank // kv}


def _wrong(results: Any, one: dict[str, Any]) -> float:
    worst = 0.0
    for own in results:
        for name, gradient in own["gradients"].items():
            rows = len(gradient)
            right = one["gradients"][name][own["head"] * rows : (own["head"] + 1) * rows]
            worst = max(worst, float((gradient - right).norm() / right.norm()))
    return worst


def _apart(results: Any) -> float:
    pairs = [
        (a["wk"], b["wk"])
        for i, a in enumerate(results)
        for b in results[i + 1 :]
        if a["head"] == b["head"] and a["wk"].shape == b["wk"].shape
    ]
    return max((float((a - b).norm() / b.norm()) for a, b in pairs), default=0.0)


def text(B: int, T: int, drawn: torch.Generator) -> Tensor:
    """[B, T] tokens of a language that can be learnt: 64 words of four tokens, each followed by one of four words."""
    fixed = torch.Generator("cpu").manual_seed(3)
    words = torch.randint(VOCAB, (64, 4), generator=fixed)
    after = torch.randint(64, (64, 4), generator=fixed)
    at = torch.randint(64, (B,), generator=drawn)
    said = []
    for _ in range(-(-T // 4)):
        said.append(words[at])
        at = after[at, torch.randint(4, (B,), generator=drawn)]
    return torch.cat(said, dim=1)[:, :T]
