"""Who trains in the benchmark: your data parallel, ZeRO-1 and FSDP, and beside them torch's.

All of them train the course's decoder, from the same weights, on the same random tokens, with torch's AdamW. What they
compute in, so that the memory of each is what task 14.1 counts:

    ddp, torch-ddp     weights and gradients in BF16; FP32 masters and moments            itemsize 2, "ddp"
    zero1              weights, gradients and moments in FP32, products in TF32           itemsize 4, "zero1"
    fsdp, fsdp2        FP32 shards and moments; gathered and computed in BF16             itemsize 2, "zero3"

Flash attention has no FP32: zero1 turns q, k and v to BF16 for it, and its result back.

A contender whose task is not written yet raises NotImplementedError when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from labkit.errors import LabError
from labkit.model.config import ModelConfig, sizes
from labkit.model.decoder import RotaryAttention, Transformer

Batch = tuple[torch.Tensor, torch.Tensor]  # tokens [B, T], targets [B, T]
TOY = ModelConfig(
    vocab_size=512, d_model=64, n_layers=4, n_heads=4, n_kv_heads=2, d_ffn=128, max_seq_len=64, tie_embeddings=False
)
LR = 1e-4


def shape(name: str) -> ModelConfig:
    """ "toy", or a name that `labkit.model.config.sizes` knows."""
    known = {"toy": TOY, **sizes()}
    if name not in known:
        raise LabError(f"there is no decoder called {name!r}: choose of {', '.join(known)}.")
    return known[name]


class HalfAttention(RotaryAttention):
    """Attention in BF16 inside a network in FP32."""

    def forward(self, q_BTNH, k_BTKH, v_BTKH, cos_TR, sin_TR):
        return super().forward(q_BTNH.bfloat16(), k_BTKH.bfloat16(), v_BTKH.bfloat16(), cos_TR, sin_TR).to(q_BTNH.dtype)


def fresh_model(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Transformer:
    """The decoder with its first values, drawn on the device: equal on all ranks of one kind of GPU, and quickly."""
    with torch.device(device):
        model = Transformer(config)
    generator = torch.Generator(device).manual_seed(14)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.fill_(1.0)
            else:
                small = name.endswith(("attn.wo.weight", "ffn.w2.weight"))
                p.normal_(0, 0.02 / (2 * config.n_layers) ** 0.5 if small else 0.02, generator=generator)
    if dtype == torch.float32:
        for block in model.blocks():
            block.attn.core = HalfAttention()
    return model.to(dtype)


def batches(config: ModelConfig, group, count: int, sequences: int, seq_len: int) -> list[Batch]:
    """`count` batches of this rank; no two ranks have the same."""
    generator = torch.Generator().manual_seed(1000 + group.ranks[group.rank])
    drawn = torch.randint(config.vocab_size, (count, sequences, seq_len + 1), generator=generator).to(group.device)
    return [(rows[:, :-1], rows[:, 1:]) for rows in drawn]


def adamw(params: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    params = list(params)
    return torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=params[0].is_cuda or None)


class Masters:
    """AdamW in FP32 for weights in BF16: a copy of each weight that the optimizer steps, and rounds back."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        self.masters = [nn.Parameter(p.detach().float()) for p in self.params]
        self.inner = adamw(self.masters)

    @torch.no_grad()
    def step(self) -> None:
        for p, master in zip(self.params, self.masters):
            master.grad = None if p.grad is None else p.grad.float()
        self.inner.step()
        torch._foreach_copy_([p.data for p in self.params], [master.data for master in self.masters])
        for p, master in zip(self.params, self.masters):
            p.grad = master.grad = None


class Ddp:
    """Task 14.2 under the decoder."""

    def __init__(self, config: ModelConfig, group, bucket_bytes: int = 25 << 20) -> None:
        from week14_fsdp.ddp import DataParallel

        self.model = fresh_model(config, group.device, torch.bfloat16)
        self.parallel = DataParallel(self.model, group, bucket_bytes)
        self.optimizer = Masters(list(self.model.parameters()))

    def step(self, micro_batches: Sequence[Batch], send: bool = True) -> torch.Tensor:
        """One step; the loss of the last micro-batch. send=False: no message, so ranks drift apart (a measurement)."""
        loss = torch.zeros(())
        for m, (tokens, targets) in enumerate(micro_batches):
            with nullcontext() if send and m + 1 == len(micro_batches) else self.parallel.no_sync():
                loss = self.model(tokens, targets)
                loss.backward()
        if send:
            self.parallel.finish()
        self.optimizer.step()
        return loss.detach()


class TorchDdp:
    """torch's own data parallel."""

    def __init__(self, config: ModelConfig, group) -> None:
        from torch.nn.parallel import DistributedDataParallel

        model = fresh_model(config, group.device, torch.bfloat16)
        options: dict[str, Any] = {"process_group": group.transport.process_group(), "gradient_as_bucket_view": True}
        self.model = DistributedDataParallel(model, bucket_cap_mb=25, **options)
        self.optimizer = Masters(list(model.parameters()))

    def step(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        loss = torch.zeros(())
        for m, (tokens, targets) in enumerate(micro_batches):
            with nullcontext() if m + 1 == len(micro_batches) else self.model.no_sync():
                loss = self.model(tokens, targets)
                loss.backward()
        self.optimizer.step()
        return loss.detach()


class Zero1:
    """Task 14.3 under the decoder."""

    def __init__(self, config: ModelConfig, group) -> None:
        from week14_fsdp.ddp import trainable
        from week14_fsdp.zero import ShardedAdamW

        self.model = fresh_model(config, group.device)
        self.optimizer = ShardedAdamW(trainable(self.model), group, lr=LR)

    def step(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        loss = torch.zeros(())
        for tokens, targets in micro_batches:
            loss = self.model(tokens, targets)
            loss.backward()
        self.optimizer.step()
        self.model.zero_grad()
        return loss.detach()


class Fsdp:
    """Task 14.4 under the decoder."""

    def __init__(self, config: ModelConfig, group, prefetch: bool = True) -> None:
        from week14_fsdp.fsdp import FSDP

        self.model = fresh_model(config, group.device)
        for block in self.model.blocks():
            block.attn.core = RotaryAttention()  # what is gathered is BF16: no cast
        self.sharded = FSDP(self.model, self.model.blocks(), group, torch.bfloat16, prefetch)
        self.optimizer = adamw(self.sharded.shards())

    def step(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        loss = torch.zeros(())
        for tokens, targets in micro_batches:
            loss = self.model(tokens, targets)
            loss.backward()
            self.sharded.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Fsdp2:
    """torch's `fully_shard`, as the course's trainer uses it (labkit/parallel/shard.py): block by block, head apart.

    prefetch=False takes its prefetch away. Forward: the host waits for the block before, so that the next gather is
    requested when nothing computes any more. Backward: a block is set to prefetch itself, which is here already."""

    def __init__(self, config: ModelConfig, group, prefetch: bool = True, large: bool = False) -> None:
        from labkit.parallel.shard import materialize, shard

        # large: never whole on one rank; its first values are drawn part by part, and differ from the others'.
        if large:
            with torch.device("meta"):
                self.model = Transformer(config)
        else:
            self.model = fresh_model(config, group.device)
        for block in self.model.blocks():
            block.attn.core = RotaryAttention()
        shard(self.model, group)
        if large:
            materialize(self.model, group.device, _drawn_by_part)
        if not prefetch:
            for block in self.model.blocks():
                block.register_forward_pre_hook(_stand_still, prepend=True)  # before FSDP2's own, which gathers
                block.register_full_backward_pre_hook(_stand_still)
                block.set_modules_to_backward_prefetch([block])  # type: ignore[operator]  # fully_shard gave it
        self.optimizer = adamw(list(self.model.parameters()))

    def step(self, micro_batches: Sequence[Batch]) -> torch.Tensor:
        loss = torch.zeros(())
        for tokens, targets in micro_batches:
            loss = self.model(tokens, targets)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@torch.no_grad()
def _drawn_by_part(model: nn.Module) -> None:
    for p in model.parameters():
        local = p.to_local() if isinstance(p, DTensor) else p
        if local.dim() == 1:
            local.fill_(1.0)
        else:
            local.normal_(0, 0.02)


def _stand_still(*_: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
