"""The setup that task 16.6 converts: the course's decoder under FSDP2, on any ranks that labkit can start.

    from labkit.comm import run_ranks
    from week16_fp8.given import fsdp
    losses = run_ranks(fsdp.train, 20, size=2, backend="processes", timeout=300.0)      # in FP8, by your parts
    plain = run_ranks(fsdp.train, 20, False, size=2, backend="processes", timeout=300.0)

On a GPU the linears are te.Linear and the context is te.autocast, if Transformer Engine is there; on a CPU they are
your FP8Linear, and the context is none. The order is the one that matters: build, give weights, convert, shard,
optimizer.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights
from week16_fp8 import convert
from week16_fp8.linear import FP8Linear

CONFIG = ModelConfig(vocab_size=256, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=160, max_seq_len=64)


def parts(device: torch.device) -> tuple[Any, Any]:
    """(make, autocast) for this device."""
    if device.type == "cuda":
        try:
            import transformer_engine.pytorch as te
            from transformer_engine.common.recipe import DelayedScaling
        except (ImportError, OSError, RuntimeError, AssertionError):
            pass
        else:
            recipe = DelayedScaling()
            return te.Linear, lambda: te.autocast(enabled=True, recipe=recipe)
    return FP8Linear, nullcontext


def batches(step: int, rank: int, device: torch.device, micro: int = 2) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of one rank and step: a sequence to be learnt by heart, begun anywhere."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    tune = (torch.arange(4096) * 37 % 251) // 3
    found = []
    for _ in range(micro):
        starts = torch.randint(0, 4000, (4,), generator=draw)
        window = torch.stack([tune[s : s + 65] for s in starts.tolist()]).to(device)
        found.append((window[:, :-1], window[:, 1:]))
    return found


def cross_entropy(logits_BTV: Tensor, y_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), y_BT.flatten())


def train(group: Any, steps: int, fp8: bool = True) -> list[float]:
    """Train the decoder for so many steps on the ranks of `group`; the loss of every step, on this rank's data."""
    device = group.device if hasattr(group, "device") else torch.device("cpu")
    model: Any = init_weights(Transformer(CONFIG), seed=0).to(device)
    make, autocast = parts(device) if fp8 else (nn.Linear, nullcontext)
    if fp8:
        report = convert.convert(model, make, skip=("head",))
        assert len(report.converted) == 7 * CONFIG.n_layers, report
    mesh, policy = group.device_mesh(), MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(convert.gradients_of(model, batches(step, group.rank, device), cross_entropy, autocast))
        optimizer.step()
    return losses
