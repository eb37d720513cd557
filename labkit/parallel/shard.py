"""FSDP2: one model, spread over the ranks.

Training keeps four numbers for each parameter: the FP32 weight, its gradient and AdamW's two means, 16 bytes in all. 8
billion parameters are 128 GB, which no GPU holds beside its activations. Fully sharded data parallelism (ZeRO-3,
arXiv:1910.02054; FSDP, arXiv:2304.11277) lets each of N ranks keep 1/N of every one of them, and gathers a weight only
for as long as it is used:

    forward of block i     all-gather block i's weights (BF16)  ->  compute  ->  free them
    backward of block i    all-gather them again  ->  compute the gradients  ->  free the weights
                           ->  reduce-scatter the gradients (FP32): each rank keeps the mean of its 1/N
    update                 every rank updates its 1/N of the FP32 weights; nothing is sent

**Why per block.** `fully_shard` makes one gather of all parameters of the module it is given. One gather for the whole
model would hold the whole model, and nothing would be saved; one per linear would be many small messages, each paying
the start-up time. A block is large enough to use the links fully and small enough that two of them fit (the one
computing, and the next one, already on its way: FSDP2 gathers block i+1 while block i computes). Blocks are wrapped
first, the root last: the root takes what no block has taken, the embedding and the last norm.

**Why the head has messages of its own.** One gather brings all of a module's weights, and one reduce-scatter takes all
of its gradients away, when the last of them is there. In the root the head would be gathered before the first block,
though it is used after the last; and its gradients, the first to be ready, would wait for the embedding's, the last. At
Llama-3-8B's vocabulary the two have half a billion weights each, and nothing is computed while the root's messages
travel. Alone, the head's gather can hide behind the last block, and its reduce-scatter behind that block's backward;
the embedding's stay in the open. (A head tied to the embedding is one weight with it, and stays in the root. So must
one that is called in pieces, or each piece would be a reduce-scatter: head_apart=False.)

**What stays.** The root's weights, and the head's, are gathered in the forward and kept until the backward, which
begins with the head: freeing them in between would be one more gather for nothing. `reshard_after_forward=False` does
the same for the blocks: no second gather, for the memory of a whole model in BF16 (this is ZeRO-2; for models that
fit).

**Several micro-batches.** Each one's gradients are reduced as they come, so that no rank ever holds a whole gradient.
With `reduce_once` (PyTorch's DDP calls it no_sync) they stay where they are, summed in FP32, until the step's last
micro-batch: one reduce-scatter for all, for 4 bytes a parameter of the whole model. With `reshard_after_forward=False`
the weights then stay for the next micro-batch too, since nothing changes them before the update: one gather for all.

**Precision.** The sharded weights are FP32 and stay FP32: they are the master weights. What is gathered is a copy in
`param_dtype`; what is reduced is FP32, since a sum over many ranks in BF16 would lose what the small ones say. Inputs
of the blocks are not cast (FSDP2 would, by default): activations are BF16 already, since the embedding's copy is, and
the rotary tables that every block is handed must stay FP32, or neighbouring positions would turn by the same angle.

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
        raise LabError(
            f"{low} is not float32: the sharded weights are the master weights; give the compute type as "
            "param_dtype instead of converting the model."
        )
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
    """FSDP2's own, but for where its memory comes from.

    FSDP2 allocates the sharded gradients on the stream of its messages, where the activations' freed memory cannot
    serve them (8B on two GPUs: 15 GiB). Here both come from the stream that computes. That is safe: the messages'
    stream waits for it before the message, and it waits for the gradients before it updates. A gradient that is only
    added to an earlier micro-batch's is freed while the messages' stream still works with it: the allocator hears of
    that stream, and waits.
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
    some weights will be replaced by FP8 tensors, which FSDP2 must meet first: once it knows an ordinary shard's memory
    it asks every later one for its own. `to_empty` would show it the ordinary one; setting parameters does not.
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
    """Before every micro-batch: do `more` of the same step follow? Then its gradients wait, unreduced, for the last
    one's, and with keep_weights gathered weights too."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more)
        model.set_reshard_after_backward(not (more and keep_weights))


def release(model: nn.Module) -> None:
    """Free the gathered weights that a forward without a backward (an evaluation) leaves behind: copies in the compute
    type."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
