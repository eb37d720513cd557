"""The collective matmul, both ways (task 15.9, stretch).

`gather_linear_in_chunks` of 15.5 has no backward. Write it, and its mirror image. Under sequence parallelism two
products stand beside a message:

    gather_linear      y = gather(x) W^T            x [B,t,I] -> y [B,T,O]      the all-gather of x, before
    linear_scatter     y = scatter(sum(x W^T))      x [B,T,I] -> y [B,t,O]      the reduce-scatter of y, behind

The transposed map of a gather is a sum that is scattered, and the other way round. So backward of the first needs,
for dx, the very loop that is forward of the second, and backward of the second the loop of the first: two loops,
four uses.

    the gather's loop     step s multiplies the positions of rank r-s, while they travel on to the right
    the sum's loop        the addend of *whose* positions does rank r compute first? It travels to its owner and each
                          rank on the way adds its own. Start with the rank that is furthest; end with your own, which
                          nobody needs to send. While one addend is multiplied, the sum of the one before it travels.

And under plain tensor parallelism, where y is wanted whole on every rank: `linear_reduce`, a row-parallel product whose
rows are computed in chunks, each chunk's all-reduce under way while the next is multiplied.

dW needs the gathered tensor of both: dW = dy^T gather(x), and dW = gather(dy)^T x. The gather's loop passes by all
parts of it anyway. In backward of `gather_linear` keep what forward gathered.

Legend: N ranks, r this rank; B batch, T positions, t = T/N of them, I inputs, O outputs; all of one rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class GatherLinear(torch.autograd.Function):
    """See `gather_linear`."""

    ### BEGIN SOLUTION 15.9 gather, then product
    @staticmethod
    def forward(ctx, x_BtI, weight_OI, group):
        ctx.group = group
        y_BTO, x_BTI = gathering(x_BtI, lambda x: x @ weight_OI.T, group)  # [B,t,I] @ [I,O] -> [B,t,O]
        ctx.save_for_backward(x_BTI, weight_OI)
        return y_BTO

    @staticmethod
    def backward(ctx, dy_BTO):
        x_BTI, weight_OI = ctx.saved_tensors
        dx_BtI = summing(dy_BTO, lambda dy: dy @ weight_OI, ctx.group)  # [B,t,O] @ [O,I] -> [B,t,I]
        return dx_BtI, dy_BTO.flatten(0, 1).T @ x_BTI.flatten(0, 1), None  # [O,BT] @ [BT,I] -> [O,I]

    ### END SOLUTION


class LinearScatter(torch.autograd.Function):
    """See `linear_scatter`."""

    ### BEGIN SOLUTION 15.9 product, then sum
    @staticmethod
    def forward(ctx, x_BTI, weight_OI, group):
        ctx.group = group
        ctx.save_for_backward(x_BTI, weight_OI)
        return summing(x_BTI, lambda x: x @ weight_OI.T, group)  # [B,t,I] @ [I,O] -> [B,t,O], N addends

    @staticmethod
    def backward(ctx, dy_BtO):
        x_BTI, weight_OI = ctx.saved_tensors
        dx_BTI, dy_BTO = gathering(dy_BtO, lambda dy: dy @ weight_OI, ctx.group)  # [B,t,O] @ [O,I] -> [B,t,I]
        return dx_BTI, dy_BTO.flatten(0, 1).T @ x_BTI.flatten(0, 1), None  # [O,BT] @ [BT,I] -> [O,I]

    ### END SOLUTION


### BEGIN SOLUTION 15.9 the two loops
def gathering(x_Bt: Tensor, product: Callable[[Tensor], Tensor], group) -> tuple[Tensor, Tensor]:
    """(product of all ranks' x, all ranks' x), both along the positions in rank order."""
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    xs, ys = [x_Bt.contiguous()] * N, [x_Bt] * N
    for s in range(N):
        owner = (r - s) % N
        coming = going = None
        if s < N - 1:
            coming, going = group.irecv(left, like=xs[owner]), group.isend(xs[owner], right)
        with group.compute("product"):
            ys[owner] = product(xs[owner])
        if coming is not None and going is not None:
            xs[(owner - 1) % N] = coming.wait()
            going.wait()
    return torch.cat(ys, dim=1), torch.cat(xs, dim=1)


def summing(x_BT: Tensor, product: Callable[[Tensor], Tensor], group) -> Tensor:
    """The sum over the ranks of their products, of which this rank gets its own positions."""
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    xs = x_BT.chunk(N, dim=1)
    coming = going = None
    for s in range(N):
        with group.compute("product"):  # positions of rank r-s-1: first those with the longest way, my own at the end
            mine = product(xs[(r - s - 1) % N]).contiguous()
        if coming is not None and going is not None:
            mine += coming.wait()  # what the ranks to the left have of the same positions
            going.wait()
        if s < N - 1:
            coming, going = group.irecv(left, like=mine), group.isend(mine, right)
    return mine


### END SOLUTION


class LinearReduce(torch.autograd.Function):
    """See `linear_reduce`."""

    ### BEGIN SOLUTION 15.9 a row-parallel product in chunks
    @staticmethod
    def forward(ctx, x, weight_OI, group, chunks):
        ctx.save_for_backward(x, weight_OI)
        rows = x.flatten(0, -2)
        y = rows.new_empty(len(rows), len(weight_OI))
        on_their_way = []
        for part, into in zip(rows.chunk(chunks), y.chunk(chunks)):
            with group.compute("product"):
                torch.mm(part, weight_OI.T, out=into)  # [rows,I] @ [I,O] -> [rows,O], one of N addends
            on_their_way.append(group.all_reduce(into, async_op=True))  # its sum travels beside the next product
        for sum_of_part in on_their_way:
            sum_of_part.wait()
        return y.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, dy):
        x, weight_OI = ctx.saved_tensors  # dy is whole: nothing to send
        return dy @ weight_OI, dy.flatten(0, -2).T @ x.flatten(0, -2), None, None

    ### END SOLUTION


def gather_linear(x_BtI: Tensor, weight_OI: Tensor, group) -> Tensor:
    """Task 15.9. All ranks' positions of x times this rank's rows of a weight: [B, T, O].

    Point-to-point calls only: N-1 messages to the right neighbour forward, as many backward, each beside a product. y
    comes of N products, and so does dx, each of one rank's positions and in a span "product". dW's product has no
    span."""
    return GatherLinear.apply(x_BtI, weight_OI, group)


def linear_scatter(x_BTI: Tensor, weight_OI: Tensor, group) -> Tensor:
    """Task 15.9. The sum over ranks of x times this rank's columns of a weight, this rank's positions of it:
    [B, t, O]. N divides T. Messages and spans as in `gather_linear`."""
    return LinearScatter.apply(x_BTI, weight_OI, group)


def linear_reduce(x_BTI: Tensor, weight_OI: Tensor, group, chunks: int = 4) -> Tensor:
    """Task 15.9. The sum over ranks of x times this rank's columns of a weight, whole on every rank: [B, T, O]. The B T
    rows in `chunks` parts, as `torch.chunk` cuts: a product in a span "product", then its all-reduce, for each. All
    sums but the last travel beside the next product. dy is whole on every rank; backward sends nothing."""
    return LinearReduce.apply(x_BTI, weight_OI, group, chunks)
