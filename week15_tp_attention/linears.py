"""A layer too wide for one GPU: linears cut over ranks (task 15.1).

A linear computes y = x W^T + b, with W [O, I]. W can be cut in two ways over N ranks:

    by rows        W_r [O/N, I]      rank r can compute O/N of the features of y, if it has all of x
    by columns     W_r [O, I/N]      rank r can compute an addend of all of y, if it has I/N of the features of x

(Row and column are named after x W with W [I, O] in the literature: what cuts the *outputs* is called
column-parallel, what cuts the *inputs* row-parallel. Megatron-LM, arXiv:1909.08053, section 3.)

A tensor is thus in one of three states:

    whole      every rank has the same numbers
    cut        rank r has slice r of it along one dimension
    addends    every rank has a tensor of the full shape, and the tensor that is meant is their sum

Four steps lead from state to state, and autograd knows none of them: it sees one rank. So each is written as a pair,
forward and backward. The backward is not a matter of choice. It follows from what a gradient is:

    **The transposed map.** Write what all ranks hold as one long vector X = (x_0, ..., x_{N-1}), and the step as a
    linear map Y = A X. Then dL = <dL/dY, A dX> = <A^T dL/dY, dX>, so dL/dX = A^T dL/dY. Whatever A sends from rank a
    to rank b, its transpose sends from b to a; what A copies, its transpose adds.

`shift` below is the worked example: A moves every rank's x one rank to the right, so its transpose moves gradients
one rank to the left.

    **A whole tensor counts once.** In X and in Y a whole tensor is *one* entry, not N, although every rank has a copy
    of it. The loss is one number, although every rank computes it. Where a whole tensor y is used by all ranks to
    compute the *same* loss, the gradient that a rank holds of it is dL/dy, whole as well. Where a whole x is used by
    each rank for something of its own, each rank holds only what its own use brings to dL/dx: addends.

With these two, decide for each of the four steps below: in which state does its input come, in which does its output
leave; what is the transposed map; in which state is the gradient that comes, in which must the one that leaves be?
Write the proof as a comment beside your line. Two of the four are each other's transpose. So are the other two.

Then the two linears. x is whole in front of a column-parallel one and y whole behind a row-parallel one; between a
column-parallel linear and a row-parallel one that follows it, nothing needs to be sent at all. A feed-forward network
of two such linears costs two messages: one forward, one backward. Find out where.

The bias. A row-parallel linear's addends are summed, and a bias that every rank adds comes N times.

The dtype of the sum. Each rank's addend was rounded when it left its product. In bfloat16 the sum over N ranks rounds
N-1 times more, to 8 bits each time; in float32 once, at the end, for twice the bytes. `sum_dtype` chooses.

Legend: N ranks, r this rank; B batch, T positions, I inputs, O outputs. The last dimension of x is the features'.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.errors import LabError

# ---- given: what the steps are made of. None of these knows autograd.


def summed(x: Tensor, group, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of all ranks' x, in new memory, of x's dtype; added up, and sent, in `dtype` (default: x's)."""
    if group.size == 1:
        return x.clone()
    return group.all_reduce(x.to(dtype or x.dtype, copy=True).contiguous()).to(x.dtype)


def joined(x: Tensor, group, dim: int) -> Tensor:
    """All ranks' x side by side along `dim`, in rank order."""
    return group.all_gather(x.movedim(dim, 0).contiguous()).movedim(0, dim)


def own_slice(x: Tensor, group, dim: int) -> Tensor:
    """Slice r of x along `dim`, in memory of its own. LabError if x cannot be cut into N equal slices."""
    if x.shape[dim] % group.size:
        raise LabError(f"{x.shape[dim]} numbers along dimension {dim} cannot be cut into {group.size} equal slices")
    return x.chunk(group.size, dim)[group.rank].clone(memory_format=torch.contiguous_format)


# ---- the worked example


class Shift(torch.autograd.Function):
    """y on rank r is x of rank r-1 (modulo N)."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        N, r = group.size, group.rank
        return group.sendrecv(x, dst=(r + 1) % N, src=(r - 1) % N)  # y_r = x_{r-1}: A[r, r-1] = 1, all else 0

    @staticmethod
    def backward(ctx, dy):
        N, r = ctx.group.size, ctx.group.rank
        # A^T[r-1, r] = 1, so dx_{r-1} = dy_r: gradients go the other way. `group` has no gradient.
        return ctx.group.sendrecv(dy.contiguous(), dst=(r - 1) % N, src=(r + 1) % N), None


def shift(x: Tensor, group) -> Tensor:
    """Every rank's x, one rank to the right."""
    return Shift.apply(x, group)


# ---- the four steps


class Copy(torch.autograd.Function):
    """See `copy_to_ranks`."""

    ### BEGIN SOLUTION 15.1 copy to ranks
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)  # y_r = x on every rank: A = (1, ..., 1)^T, whole -> one copy for each rank's own use

    @staticmethod
    def backward(ctx, dy):
        return summed(dy, ctx.group), None  # A^T = (1, ..., 1): dL/dx = sum_r dL/dy_r, addends -> whole

    ### END SOLUTION


class Reduce(torch.autograd.Function):
    """See `reduce_over_ranks`."""

    ### BEGIN SOLUTION 15.1 reduce over ranks
    @staticmethod
    def forward(ctx, x, group, dtype):
        return summed(x, group, dtype)  # y = sum_r x_r: A = (1, ..., 1), addends -> whole

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None  # A^T = (1, ..., 1)^T: dL/dx_r = dL/dy, and dL/dy is whole: every rank has it already

    ### END SOLUTION


class Gather(torch.autograd.Function):
    """See `gather_from_ranks`."""

    ### BEGIN SOLUTION 15.1 gather from ranks
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return joined(x, group, dim)  # y = (x_0 | ... | x_{N-1}): A is the identity, cut -> whole

    @staticmethod
    def backward(ctx, dy):
        # A^T is the identity, too: dL/dx_r is slice r of dL/dy, which is whole. A sum would count it N times.
        return own_slice(dy, ctx.group, ctx.dim), None, None

    ### END SOLUTION


class Scatter(torch.autograd.Function):
    """See `scatter_to_ranks`."""

    ### BEGIN SOLUTION 15.1 scatter to ranks
    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return own_slice(x, group, dim)  # y_r = slice r of x: the identity, whole -> cut

    @staticmethod
    def backward(ctx, dy):
        return joined(dy, ctx.group, ctx.dim), None, None  # dL/dx = (dL/dy_0 | ... | dL/dy_{N-1}), cut -> whole

    ### END SOLUTION


def copy_to_ranks(x: Tensor, group) -> Tensor:
    """Task 15.1. A whole x, which each rank is about to use for something of its own. x itself is not changed."""
    return Copy.apply(x, group)


def reduce_over_ranks(x: Tensor, group, dtype: torch.dtype | None = None) -> Tensor:
    """Task 15.1. From addends to the whole tensor: the sum of all ranks' x, in x's dtype; x itself is not changed.

    dtype: in which the addends are sent and summed, default x's."""
    return Reduce.apply(x, group, dtype)


def gather_from_ranks(x: Tensor, group, dim: int = -1) -> Tensor:
    """Task 15.1. From cut to whole: all ranks' slices side by side along `dim`. What follows is the same on all
    ranks."""
    return Gather.apply(x, group, dim)


def scatter_to_ranks(x: Tensor, group, dim: int = -1) -> Tensor:
    """Task 15.1. From whole to cut: slice r along `dim`."""
    return Scatter.apply(x, group, dim)


# ---- the two linears


class ColumnParallelLinear(nn.Module):
    """Task 15.1. A linear of which rank r has O/N of the outputs.

    weight   [O/N, I], this rank's rows of the whole weight
    bias     [O/N], this rank's part, or None
    gather   whether y is wanted whole; else it stays cut
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group, gather: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self.group, self.gather = group, gather

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I], whole and equal on every rank -> y [..., O/N], or [..., O] with `gather`."""
        ### BEGIN SOLUTION 15.1 column-parallel linear
        x = copy_to_ranks(x, self.group)  # each rank uses x for outputs of its own: dL/dx comes as addends
        y = nn.functional.linear(x, self.weight, self.bias)  # [...,I] @ [I,O/N] -> [...,O/N]
        return gather_from_ranks(y, self.group) if self.gather else y
        ### END SOLUTION


class RowParallelLinear(nn.Module):
    """Task 15.1. A linear of which rank r has I/N of the inputs.

    weight      [O, I/N], this rank's columns of the whole weight
    bias        [O], whole on every rank, or None
    scatter     whether x comes whole; else it comes cut
    sum_dtype   in which the ranks' addends are sent and summed, default x's dtype
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, group, scatter: bool = False, sum_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self.group, self.scatter, self.sum_dtype = group, scatter, sum_dtype

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I/N], cut, or [..., I] with `scatter` -> y [..., O], whole and equal on every rank."""
        ### BEGIN SOLUTION 15.1 row-parallel linear
        x = scatter_to_ranks(x, self.group) if self.scatter else x
        addend = nn.functional.linear(x, self.weight)  # [...,I/N] @ [I/N,O] -> [...,O], one of N addends
        y = reduce_over_ranks(addend, self.group, self.sum_dtype)
        return y + self.bias if self.bias is not None else y  # behind the sum: once
        ### END SOLUTION
