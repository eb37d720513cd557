"""FSDP: no rank holds the model (task 14.4).

ZeRO-1 cut the moments into N parts. The gradients and the weights are left, 8 of the 16 bytes, and they can be cut for
the same reason: at any moment a rank computes with one block. So every rank keeps 1/N of every block, and a block is
made whole just before it computes and forgotten just after (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023,
"PyTorch FSDP", arXiv:2304.11277).

    forward     for each block:  all-gather its weights;  compute;  forget them
    backward    for each block, last first:  all-gather them again;  compute;  forget them;
                reduce-scatter its gradient: sum over the ranks, each keeps its part
    step        every rank steps its own part; nothing is sent

Each block is gathered twice and its gradient scattered once: 3 (N-1)/N n bytes where data parallel sends 2 (N-1)/N n.
That is the price: half as much traffic again, for 1/N of the memory.

**Prefetch.** "Gather, wait, compute" leaves the chip idle while the wire works. So the gather of the next block is
posted before this block computes, and waited for when this block is done: two blocks are whole at a time, no more. In
the backward, block i - 1 comes after block i.

**A flat parameter.** A block has a dozen tensors of odd shapes. Side by side in one vector of N S numbers (S =
ceil(P/N), zeros behind) they are one message, and each rank's part is S numbers. The block still wants its own tensors:
they are *views* of the vector, at the right places, with the right shapes. `p.data = view` makes a parameter look at
other memory; nothing is copied, and a gather that fills the vector fills them all.

**Forgetting.** Python frees memory that nobody refers to, but autograd refers: it saved the weights for the backward.
So the vector object must live on while its memory goes: `vector.untyped_storage().resize_(0)`, and `resize_(n)` gives
memory back, of unknown content, to the same views, autograd's among them. Between the two, nothing may read it: some
operations raise, others end the process. Hence the stand-in: a freed parameter looks at one NaN, expanded to its shape.

**Precisions.** The part that the optimizer steps is FP32: 1e-4 of a weight is below BF16's last digit. What is gathered
may be BF16: half the bytes on the wire, half the memory. The gradient comes in BF16, and is summed over the ranks in
FP32: a sum of N numbers in BF16 would round N-1 times.

**Checkpointing.** A block under activation checkpointing runs its forward twice: once, and again inside the backward,
just before its own backward. The second run calls the same hooks. There it must neither free what the backward is about
to use nor prefetch in the direction of the forward.

Invariants, whatever the order of hooks: a block computes only while it is whole; two blocks are whole at most; each
gather is waited for once; all ranks post the same messages in the same order.

The root is what belongs to no block (embedding, last norm, tied head): whole from the begin of the forward to
`finish()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from week14_fsdp.zero import flatten


class FlatParameter:
    """Task 14.4, first part. Some parameters as one vector, of which each rank keeps a part.

    shard   nn.Parameter [S], this rank's part in the parameters' own dtype; the optimizer steps it
    full    [N S] in `dtype`: the whole vector; without memory while it is free
    whole   whether the parameters may be used

    `params`: of one dtype, equal on all ranks. The vector is `p.reshape(-1)` one after another, zeros behind; rank r's
    part are the numbers r S to (r+1) S - 1. It begins free.
    """

    def __init__(self, params: Sequence[nn.Parameter], group, dtype: torch.dtype | None = None) -> None:
        _refuse(params)
        self.params, self.group, self.whole = list(params), group, False
        self.handle: Any = None  # of a gather under way
        ### BEGIN SOLUTION 14.4 flat parameter: memory
        N, r = group.size, group.rank
        self.numel = sum(p.numel() for p in self.params)
        self.S = -(-self.numel // N)  # ceil(P / N)
        flat = flatten(self.params, N * self.S)
        self.shard = nn.Parameter(flat[r * self.S : (r + 1) * self.S].clone())  # [S]; a view would keep all of it
        self.full = flat.new_empty(N * self.S, dtype=dtype)
        parts = self.full[: self.numel].split([p.numel() for p in self.params])
        self.views = [part.view(p.shape) for part, p in zip(parts, self.params)]
        self.free()
        ### END SOLUTION

    def gather(self) -> None:
        """Begin to make it whole: memory for `full`, and an all-gather in `full`'s dtype that is not waited for.
        Nothing happens if it is whole, or under way."""
        ### BEGIN SOLUTION 14.4 flat parameter: gather
        if self.whole or self.handle is not None:
            return
        self.full.untyped_storage().resize_(self.full.numel() * self.full.element_size())
        part = self.shard.detach().to(self.full.dtype)  # [S], rounded before it is sent: half the bytes
        self.handle = self.group.all_gather(part, out=self.full, async_op=True)
        ### END SOLUTION

    def wait(self) -> None:
        """Finish what `gather` began (begin it, if nobody did). Then the parameters are views of `full`."""
        ### BEGIN SOLUTION 14.4 flat parameter: wait
        if self.whole:
            return
        self.gather()
        self.handle.wait()
        self.handle, self.whole = None, True
        for p, view in zip(self.params, self.views):
            p.data = view
        ### END SOLUTION

    def free(self) -> None:
        """Give the memory of `full` back; the parameters look at the stand-in. A gather under way is waited for."""
        ### BEGIN SOLUTION 14.4 flat parameter: free
        if self.handle is not None:
            self.handle.wait()
            self.handle = None
        for p, view in zip(self.params, self.views):
            p.data = stand_in(view)
        self.full.untyped_storage().resize_(0)  # the views autograd saved live on, without memory
        self.whole = False
        ### END SOLUTION

    def reduce(self):
        """Begin to average the gradients over the ranks, in the shard's dtype; the parameters' own are dropped (one
        that is None counts as zeros). Returns the handle of the reduce-scatter."""
        ### BEGIN SOLUTION 14.4 flat parameter: reduce
        grads = [torch.zeros_like(view) if p.grad is None else p.grad for p, view in zip(self.params, self.views)]
        g_NS = flatten((g.to(self.shard.dtype) for g in grads), self.group.size * self.S)
        for param in self.params:
            param.grad = None  # as large as the block
        return self.group.reduce_scatter(g_NS, op="mean", async_op=True)  # [N S] -> [S], 1/N sum_r g_r
        ### END SOLUTION

    def add(self, handle) -> None:
        """Wait for what `reduce` began, and add it to `shard.grad`, which may be None."""
        ### BEGIN SOLUTION 14.4 flat parameter: add
        g_S = handle.wait()
        self.shard.grad = g_S if self.shard.grad is None else self.shard.grad + g_S
        ### END SOLUTION


def stand_in(view: torch.Tensor) -> torch.Tensor:
    """What a freed parameter looks at (given): one NaN, expanded to the view's shape and dtype."""
    return torch.full((), float("nan"), dtype=view.dtype, device=view.device).expand(view.shape)


def _refuse(params: Sequence[nn.Parameter]) -> None:
    """ValueError for parameters that cannot be one vector (given)."""
    if not params:
        raise ValueError("a flat parameter needs parameters, and this block has none")
    if not all(p.requires_grad for p in params):
        raise ValueError("a frozen parameter cannot share a flat parameter: its gradient would be stepped")
    if len({p.dtype for p in params}) > 1:
        raise ValueError("the parameters of a flat parameter have one dtype")


class FSDP:
    """Task 14.4, second part. Shards `model` over the ranks of `group`, block by block.

        fsdp = FSDP(model, model.blocks, group)
        optimizer = torch.optim.AdamW(fsdp.shards())
        model(tokens, targets).backward()
        fsdp.finish()                           # now shard.grad is the mean over the ranks
        optimizer.step(); optimizer.zero_grad()

    Args:
        model: equal weights on all ranks. Each of `blocks` runs once in a forward, in this order, on all ranks.
        blocks: parts of the model with parameters that no other part uses.
        dtype: of what is gathered; None: the weights' own.
        prefetch: post the gather of the next block before this one computes.

    `units[0]` is the root's FlatParameter, `units[1 + i]` block i's. The hooks below are wired; you write what they do.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module] | nn.ModuleList,
        group,
        dtype: torch.dtype | None = None,
        prefetch=True,
    ) -> None:
        own = [list(block.parameters()) for block in blocks]
        inside = {p for params in own for p in params}
        outside = {p for name, p in model.named_parameters(remove_duplicate=False) if not _within(name, model, blocks)}
        if len(inside) < sum(map(len, own)) or inside & outside:
            raise ValueError("a parameter of a block is used by another part of the model: it must be the root's alone")
        self.root = FlatParameter([p for p in model.parameters() if p not in inside], group, dtype)
        self.blocks = [FlatParameter(params, group, dtype) for params in own]
        self.units, self.prefetch = [self.root, *self.blocks], prefetch
        self.backward = False  # whether the backward has begun
        self.begun: set[int] = set()  # blocks whose backward has begun
        self.reduced: set[int] = set()  # blocks whose gradients are on their way, or there
        self.reducing: tuple[FlatParameter, object] | None = None  # the last one on its way
        model.register_forward_pre_hook(lambda *_: self.begin())
        for i, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, i=i: self.before_forward(i))
            block.register_forward_hook(lambda *_, i=i: self.after_forward(i))
            block.register_full_backward_pre_hook(lambda *_, i=i: self.before_backward(i))
            for inner in list(block.modules())[1:]:
                inner.register_forward_pre_hook(partial(_must_be_whole, self.blocks[i], i))

    def shards(self) -> list[nn.Parameter]:
        """What the optimizer steps (given)."""
        return [unit.shard for unit in self.units]

    def begin(self) -> None:
        """Before the forward of the model. Frees what an earlier forward left (it may have raised, or had no backward),
        and makes the root whole. RuntimeError if a backward ran and no `finish()` came."""
        ### BEGIN SOLUTION 14.4 begin
        if self.backward:
            raise RuntimeError("a forward after a backward without finish() between")
        for unit in self.units:
            unit.free()
        self.root.wait()
        ### END SOLUTION

    def before_forward(self, i: int) -> None:
        """Block i is about to compute: whole, and the next one on its way. Also called when checkpointing computes the
        block again, inside the backward."""
        ### BEGIN SOLUTION 14.4 before forward
        self.blocks[i].wait()
        if self.prefetch and not self.backward and i + 1 < len(self.blocks):
            self.blocks[i + 1].gather()
        ### END SOLUTION

    def after_forward(self, i: int) -> None:
        """Block i has computed. The last block may stay: the backward begins with it."""
        ### BEGIN SOLUTION 14.4 after forward
        if not self.backward and i + 1 < len(self.blocks):
            self.blocks[i].free()
        ### END SOLUTION

    def before_backward(self, i: int) -> None:
        """The backward of block i is about to begin, and that of block i+1 is over: block i whole, the gradient of
        block i+1 on its way, its weights gone, block i-1 on its way. RuntimeError if the backward of block i has begun
        before, and no `finish()` came since: the only block of a model, too."""
        ### BEGIN SOLUTION 14.4 before backward
        if i in self.begun:
            raise RuntimeError("a second backward of one forward: the weights are gone")
        self.backward = True
        self.begun.add(i)
        if i + 1 < len(self.blocks):
            self.blocks[i + 1].free()  # first: then two are whole at most
        self.blocks[i].wait()
        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()  # before the gradient: the next block waits for it
        if i + 1 < len(self.blocks):
            self.send_gradient(i + 1)
        ### END SOLUTION

    def send_gradient(self, i: int) -> None:
        """Begin to average the gradient of block i; one is under way at a time, or gradients of many blocks would pile
        up."""
        ### BEGIN SOLUTION 14.4 one gradient under way
        self.settle()
        self.reducing = self.blocks[i], self.blocks[i].reduce()
        self.reduced.add(i)
        ### END SOLUTION

    def settle(self) -> None:
        """Wait for the gradient that is under way, if any (given)."""
        if self.reducing is not None:
            unit, handle = self.reducing
            self.reducing = None
            unit.add(handle)

    def finish(self) -> None:
        """Call it on all ranks after the backward. Averages what has not been averaged, blocks first, then the root;
        waits; frees everything. Every shard has a gradient then. The next forward may begin."""
        ### BEGIN SOLUTION 14.4 finish
        for i in reversed(range(len(self.blocks))):
            self.blocks[i].free()
            if i not in self.reduced:
                self.send_gradient(i)
        self.settle()
        self.root.free()
        self.root.add(self.root.reduce())
        self.backward = False
        self.begun.clear()
        self.reduced.clear()
        ### END SOLUTION


def _within(name: str, model: nn.Module, blocks: Sequence[nn.Module] | nn.ModuleList) -> bool:
    """Whether the parameter called `name` is reached through one of the blocks (given)."""
    path = name.split(".")[:-1]
    return any(model.get_submodule(".".join(path[:k])) in blocks for k in range(1, len(path) + 1))


def _must_be_whole(unit: FlatParameter, i: int, module: nn.Module, args: object) -> None:
    """A part of a block was called outside its block (given)."""
    if not unit.whole:
        raise RuntimeError(f"{type(module).__name__} of block {i} is used while the block's weights are not here")
