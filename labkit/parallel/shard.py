"""FSDP2: one model, spread over the ranks.

Training keeps 16 bytes for each parameter: the FP32 weight, its gradient and AdamW's two means. Fully sharded data
parallelism (ZeRO-3, arXiv:1910.02054; FSDP, arXiv:2304.11277) lets each of N ranks keep 1/N of them, and gathers a
weight only for as long as it is used:

    forward of block i     all-gather block i's weights (BF16)  ->  compute  ->  free them
    backward of block i    all-gather them again  ->  compute the gradients  ->  free the weights
                           ->  reduce-scatter the gradients (FP32): each rank keeps the mean of its 1/N
    update                 every rank updates its 1/N of the FP32 weights; nothing is sent

**Blocks.** `fully_shard` makes one gather of all that a module holds. A block is large enough to use the links fully,
and small enough that two fit: one that computes, and the next, already on its way. The root, wrapped last, takes the
rest: the embedding and the last norm.

**The head** has messages of its own, which hide behind the last block; in the root its weights would be gathered before
the first block, and its gradients would wait for the embedding's. A head that is tied to the embedding stays in the
root, and so must one that is called in pieces, or each piece would be a reduce-scatter: head_apart=False.

**What stays.** The root's and the head's weights, until the backward, which begins with them; with
`reshard_after_forward=False` the blocks' as well (ZeRO-2): no second gather, for a whole model in BF16.

**Several micro-batches.** Each one's gradients are reduced as they come, so no rank ever holds a whole gradient; with
`reduce_once` (DDP's no_sync) only after the step's last one, for 4 bytes a parameter of the whole model.

**Precision.** The sharded weights are the FP32 master weights; a copy in `param_dtype` is gathered, and gradients are
reduced in FP32. Inputs of blocks are not cast, as FSDP2 would do: the rotary tables must stay FP32.

A world of one rank runs the same code, so that one GPU and eight differ in nothing but the messages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from labkit.comm.group import Group
from labkit.errors import LabError
from labkit.model.decoder import Transformer


def shard(
    model: Transformer,
    group: Group,
    param_dtype: torch.dtype | None = torch.bfloat16,
    *,
    reshard_after_forward: bool = True,
    head_apart: bool = True,
    mesh: DeviceMesh | None = None,
) -> None:
    """Shard the blocks one by one, the head, then `model`, over all ranks of `group`; in place.

    param_dtype: what the forward computes in (None: the weights' own); gradients are summed in FP32.
    reshard_after_forward: free a block's weights after its forward, or keep them. head_apart: False leaves the head to
    the root. mesh: the group's ranks as a dimension of a larger mesh; None: the group's own. The model may be on the
    meta device: see `materialize`. LabError: ranks on threads, weights that are not FP32.
    """
    low = next((name for name, p in model.named_parameters() if p.dtype != torch.float32), None)
    if low is not None:
        raise LabError(f"{low} is not float32, as master weights are: give the compute type as param_dtype instead")
    mesh = group.device_mesh() if mesh is None else mesh
    reduce = ReduceScatter()
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    if head_apart and model.head is not None and not model.config.tie_embeddings:
        fully_shard(model.head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(reduce)  # type: ignore[arg-type]  # its base class is private


class ReduceScatter:
    """FSDP2's own, but its memory comes from the stream that computes, whose freed activations can serve it.

    That is safe: the messages' stream waits for that stream before the message, and it for the gradients before it
    updates. The allocator hears of the messages' stream, and waits before it gives a freed gradient's memory away.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cuda":
            return torch.empty(*size, dtype=dtype, device=device)
        asks, computes = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
        with torch.cuda.stream(computes):
            memory = torch.empty(*size, dtype=dtype, device=device)
        if asks != computes:
            memory.record_stream(asks)
        return memory

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # its name since torch 2.13
        return call(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def materialize(
    model: Transformer, device: torch.device, init: Callable[[Transformer], object], *, quantised: bool = False
) -> Transformer:
    """Give a model built on the meta device its memory on `device`, then its values: `init(model)`. Returns the model.

    It is sharded first, so that it is whole nowhere; a model that has memory is only moved and initialised. quantised:
    some weights will be FP8 tensors, which FSDP2 must meet before ordinary shards: `to_empty` would show it those.
    """
    if quantised:
        _allocate(model, device)
    elif any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        model.to_empty(device=device)
    else:
        model.to(device)
    init(model)
    return model


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Replace each parameter on the meta device by one with memory, module by module. Ties stay tied."""
    new: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old.is_meta and old not in new:
                new[old] = nn.Parameter(torch.empty_like(old, device=device), old.requires_grad)
            if old.is_meta:
                setattr(module, name, new[old])


def expect_more(model: nn.Module, more: bool, *, keep_weights: bool) -> None:
    """Before a micro-batch: if `more` of its step follow, gradients (keep_weights: and weights) stay until the last."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more)
        model.set_reshard_after_backward(not (more and keep_weights))


def release(model: nn.Module) -> None:
    """Free the gathered weights that a forward without a backward, an evaluation, leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
