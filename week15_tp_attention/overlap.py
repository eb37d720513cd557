"""Messages behind products (task 15.5).

Two messages a block are left, and the product that waits for one stands still. What can run meanwhile?

**Backward.** Behind a column-parallel linear, y = x W_r^T with x whole, two products and one message wait:

    dx = sum over ranks of  dy W_r      [.., O/N] @ [O/N, I]      and its all-reduce
    dW = dy^T x                         [O/N, ..] @ [.., I]

Which product does the message need? Which does nobody need before the step ends? (Megatron-LM settles it with one line
of CUDA stream order.)

Why not compose it from `copy_to_ranks` and `linear`? Autograd runs backward node by node. The linear's node computes
*both* products before the copy's node may start its message. No order of nodes is right: one function must span both.

**Forward.** Under sequence parallelism x arrives by an all-gather. Its first 1/N is here already, and a product of
some rows needs no other rows. So gather by hand, around a ring, and multiply what is here while the next part is on
its way. Whose positions does rank r multiply in step s? N-1 messages stand beside the first N-1 of N products: where a
product takes as long as a message, all are hidden (Wang et al. 2023, "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models"; torch calls it asynchronous tensor parallelism).

A message is on its way only once it is posted. Post it before the product, wait behind it; `isend`, `irecv` and
`async_op=True` give handles, and a tensor may not be touched before its handle was waited for.

How it is judged. Put each product that is to hide a message into a span, `with group.compute("dW"):`, with the
product and nothing else in it. The ledger has posts, spans and waits in their order; a replay on the virtual wire
gives each span the time of its product, and reports what is hidden. No clock of this laptop is read, on which a
message costs a product's cores.

When it pays: where the product takes at least as long. Write both times, with the wire's bytes a second and the
product's FLOP a second, and divide. Which of N, B, T, I and O are left?

Legend: N ranks, r this rank; B batch, T positions, t = T/N of them, I inputs, O outputs; all of one rank.
"""

from __future__ import annotations

import torch
from torch import Tensor


def summed_beside(a: Tensor, x: Tensor, weight: Tensor, group) -> tuple[Tensor, Tensor]:
    """The worked example, without autograd: the sum of all ranks' a, and beside it x W^T, which does not need it."""
    on_its_way = group.all_reduce(a.clone(), async_op=True)  # posted; from here on the copy may not be touched
    with group.compute("product"):
        y = x @ weight.T  # [B,T,I] @ [I,O] -> [B,T,O]
    return on_its_way.wait(), y


class OverlappedColumn(torch.autograd.Function):
    """See `overlapped_column_linear`."""

    ### BEGIN SOLUTION 15.5 a column-parallel linear that hides its message
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.group = group
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)  # [B,T,I] @ [I,O] -> [B,T,O]

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        group = ctx.group
        dx = dy @ weight  # [B,T,O] @ [O,I] -> [B,T,I]: what the message needs comes first
        on_its_way = group.all_reduce(dx, async_op=True)
        with group.compute("dW"):
            dW = dy.flatten(0, -2).T @ x.flatten(0, -2)  # [O,BT] @ [BT,I] -> [O,I]: nobody waits for it
        return on_its_way.wait(), dW, None

    ### END SOLUTION


def overlapped_column_linear(x: Tensor, weight: Tensor, group) -> Tensor:
    """Task 15.5. x, whole, times this rank's rows [O, I] of a weight; in backward the all-reduce of dx runs beside the
    product for dW, which stands in a span "dW"."""
    return OverlappedColumn.apply(x, weight, group)


def gather_linear_in_chunks(x_BtI: Tensor, weight_OI: Tensor, group) -> Tensor:
    """Task 15.5. All ranks' positions of x times this rank's rows of a weight: [B, T, O], positions in rank order.

    Forward only. N products, each of one rank's positions and in a span "product"; N-1 messages to the right neighbour,
    each posted before the product that hides it. Point-to-point calls only."""
    ### BEGIN SOLUTION 15.5 collective matmul
    N, r = group.size, group.rank
    right, left = (r + 1) % N, (r - 1) % N
    here, parts = x_BtI.contiguous(), [x_BtI] * N
    for s in range(N):
        last = s == N - 1
        coming = None if last else group.irecv(left, like=here)
        going = None if last else group.isend(here, right)  # what this step multiplies is what the neighbour needs next
        with group.compute("product"):
            parts[(r - s) % N] = here @ weight_OI.T  # [B,t,I] @ [I,O] -> [B,t,O]: the positions of rank r-s
        if coming is not None and going is not None:
            here = coming.wait()
            going.wait()
    return torch.cat(parts, dim=1)  # [B,T,O]
    ### END SOLUTION
