"""Data parallel, by hand: whole models, shared gradients (task 14.2).

N ranks hold the same weights and see different parts of the batch. The loss of the whole batch is the mean of the
ranks' losses, so its gradient is the mean of theirs:

    L = 1/N sum_r L_r        dL/dw = 1/N sum_r dL_r/dw

Average the gradients, step everywhere alike, and the replicas stay equal: no weight ever travels. What travels is one
number for each parameter and step, and the only question is **when**. After the backward, the wire idles while the
chip computes and the chip idles while the wire carries. But the gradients of the last layers are complete early, while
most of the backward is still to come, and their journey can be hidden under it (Li et al. 2020, "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", arXiv:2006.15704).

**When is a gradient complete?** Autograd adds up all contributions to a parameter (a tied weight has several) and then
calls its hook *after accumulation*, once in each backward. A parameter that the graph does not reach gets no call at
all. That is why whoever waits for "all hooks fired" waits for ever, and why `finish()` exists: the backward is over,
and what p.grad holds now is what travels, zeros where it is None. (A silent hook does not mean zero: an earlier
micro-batch may have left a gradient.)

**Buckets.** A message costs alpha + n beta (13.1), and a model has hundreds of parameters, many tiny. So gradients are
laid side by side in buckets of some MiB, and a bucket leaves when its last gradient is there. Too small and you pay
alpha each time; too large and the first bucket fills when the backward is nearly over.

**Order.** Collectives have no names: the n-th call of one rank meets the n-th call of the others. Two ranks whose
graphs differ (a mixture of experts, a skipped layer) complete their gradients in different orders, and if each sends
what is ready, their n-th messages carry different layers (prediction 3 asks what comes of it). What must the ranks
have agreed on before the backward begins? Then what does a bucket do that is full too early, and what becomes of one
that never fills?

Which order hides the most? The graph is walked from the loss back. Modules are mostly registered as the forward meets
them. The best bucket to send first is the one that is full first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

MIB = 1 << 20


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that want a gradient, each once, in the order of registration (given). ValueError if none does."""
    params = [p for p in module.parameters() if p.requires_grad]
    if not params:
        raise ValueError("this module has no parameter that wants a gradient: there is nothing to train")
    return params


class OneByOne:
    """Data parallel with a message for each parameter, after the backward: the worked example.

    The mechanics are all here: the hook after accumulation, `finish()`, gradients of parameters that no hook came for.
    It is right for ranks with equal graphs, hides nothing, and pays alpha for every parameter.
    """

    def __init__(self, module: nn.Module, group) -> None:
        self.params, self.group = trainable(module), group
        self.ready: list[nn.Parameter] = []
        for p in self.params:
            # Autograd calls it with the parameter when p.grad holds the sum of all contributions of this backward.
            p.register_post_accumulate_grad_hook(self.ready.append)

    def finish(self) -> None:
        """Call it after each backward: then every p.grad is the mean over the ranks."""
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)  # no hook came: this rank's graph does not reach p
            self.group.all_reduce(p.grad, op="mean")
        self.ready.clear()


class Bucket:
    """Parameters whose gradients travel together (given): all of one dtype. `ready` are those whose hook has fired."""

    def __init__(self) -> None:
        self.params: list[nn.Parameter] = []
        self.ready: set[nn.Parameter] = set()
        self.flat: torch.Tensor | None = None  # the message, while it is under way
        self.handle: Any = None  # what async_op=True gave

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.params)


class DataParallel:
    """Task 14.2. Averages the gradients of `module` over the ranks of `group`, while the backward still runs.

        parallel = DataParallel(model, group)
        with parallel.no_sync():                # micro-batches whose gradients only add up, here
            loss(model, first).backward()
        loss(model, second).backward()          # buckets leave while this runs
        parallel.finish()                       # every p.grad is the mean over the ranks now
        optimizer.step(); optimizer.zero_grad()

    Args:
        module: any. Its weights are equal on all ranks. ValueError if no parameter wants a gradient.
        group: the ranks. `all_reduce(..., async_op=True)` gives a handle; until its `wait()` the tensor is the group's.
        bucket_bytes: of a bucket, at most, unless one parameter alone is larger.

    Buckets: go through the parameters in the order in which you expect their gradients; one joins the last bucket if
    the bucket has its dtype and does not exceed `bucket_bytes` with it, else it opens a new one. Each bucket travels
    once for each `finish()`, flat, in one all-reduce, as early as it can.
    """

    def __init__(self, module: nn.Module, group, bucket_bytes: int = 25 * MIB) -> None:
        self.group, self.params, self.sync = group, trainable(module), True
        self.buckets = self.fill(self.params, bucket_bytes)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}
        self.left = 0  # how many buckets have left
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.on_ready)

    def fill(self, params: Sequence[nn.Parameter], bucket_bytes: int) -> list[Bucket]:
        """The buckets, in the order in which they leave."""
        ### BEGIN SOLUTION 14.2 the buckets
        buckets: list[Bucket] = []
        for p in reversed(params):
            last = buckets[-1] if buckets else None
            if last is None or last.params[0].dtype != p.dtype or last.nbytes + p.nbytes > bucket_bytes:
                last = Bucket()
                buckets.append(last)
            last.params.append(p)
        return buckets
        ### END SOLUTION

    def on_ready(self, p: nn.Parameter) -> None:
        """Autograd calls this when p.grad is complete on this rank. RuntimeError if p was ready already: a second
        backward that is to send needs a `finish()` between."""
        ### BEGIN SOLUTION 14.2 a gradient is ready
        if not self.sync:
            return
        bucket = self.bucket_of[p]
        if p in bucket.ready:
            raise RuntimeError("a second backward before finish(): wrap all but the last in no_sync()")
        bucket.ready.add(p)
        # Invariant: buckets 0 .. left-1 have left. A full one waits for those before it.
        while self.left < len(self.buckets) and len(self.buckets[self.left].ready) == len(
            self.buckets[self.left].params
        ):
            self.leave()
        ### END SOLUTION

    def leave(self) -> None:
        """Post the all-reduce of the next bucket, and do not wait for it."""
        ### BEGIN SOLUTION 14.2 a bucket leaves
        bucket = self.buckets[self.left]
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket.params]
        bucket.flat = torch.cat(parts)  # [sum of numel]: a copy, which the group may keep until wait()
        bucket.handle = self.group.all_reduce(bucket.flat, op="mean", async_op=True)  # 1/N sum_r g_r
        self.left += 1
        ### END SOLUTION

    def finish(self) -> None:
        """Call it on all ranks after the backward: sends what has not left, waits, and writes the means to p.grad.
        Every parameter has a gradient then: zeros where no rank used it."""
        ### BEGIN SOLUTION 14.2 finish
        while self.left < len(self.buckets):
            self.leave()  # something in it never became ready: what p.grad holds travels
        for bucket in self.buckets:
            flat = bucket.handle.wait()
            for p, mean in zip(bucket.params, flat.split([p.numel() for p in bucket.params])):
                p.grad = mean.view_as(p).clone()  # not a view: it would keep the whole bucket alive
            bucket.ready.clear()
            bucket.flat = bucket.handle = None
        self.left = 0
        ### END SOLUTION

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, a backward adds to p.grad and sends nothing. Whatever happens inside, it ends with the `with`."""
        ### BEGIN SOLUTION 14.2 no_sync
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before
        ### END SOLUTION
