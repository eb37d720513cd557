"""A zero-bubble schedule: backward in two halves (task 15.10, stretch).

Backward of a linear y = x W^T makes two products, and only one of them is waited for:

    dx = dy W        [B,T,O] @ [O,I]        the layer below needs it, and so does the stage before
    dW = dy^T x      [O,BT] @ [BT,I]        nobody needs it before the optimizer's step

1F1B computes both before it sends a gradient up, so each stage waits (t_B + t_W) for its neighbour where t_B would
do; and at the end, while the last gradients travel up, it has nothing left to do. Take them apart. A stage then has
three steps of a micro-batch: F m, B m (all dx) and W m (all dW). W m needs B m of the same stage, and nothing of any
other: it can fill what would be idle (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2).

What W costs: from B m to W m a stage keeps x and dy of each linear. (All else that forward kept, of norms, attention
and SwiGLU, can go at B m.) A stage that puts every W at the end keeps M micro-batches. The schedule ZB-H1 (their
section 2.2) keeps no more than 1F1B's first stage: count a micro-batch as in flight from F m to W m, and let no stage
have more than P. The last stage has one in flight under 1F1B, and so it has room for P-1 whose W waits; the
first has P already, and none. How many may stage p hold back? With steps of one length the bubble of 1F1B is then cut
to a third. Draw it for P = 4, M = 6, and count the idle time of stage 0.

Splitting autograd. A Function's backward may return dx and *put aside* what dW needs. The decoder takes its
linears from outside (`linear=`), so nothing else of it changes.

Legend: P stages (one rank each), p this one, M micro-batches, m one of them; B batch, T positions, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from week15_tp_attention.pipeline import one_f_one_b

Step = tuple[str, int]  # ("F", m), ("B", m) or ("W", m)
Piece = tuple[nn.Parameter, Tensor, Tensor]  # (weight [O, I], x [..., I], dy [..., O])


class Left:
    """What backward left undone (given): `put` it aside, and `take` all that was put aside since the last time."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def put(self, weight: nn.Parameter, x: Tensor, dy: Tensor) -> None:
        self._pieces.append((weight, x, dy))

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class Together(torch.autograd.Function):
    """A linear whose backward makes both products at once, as torch's does: the worked example."""

    @staticmethod
    def forward(ctx, x, w_OI):
        ctx.save_for_backward(x, w_OI)
        return nn.functional.linear(x, w_OI)  # [...,I] @ [I,O] -> [...,O]

    @staticmethod
    def backward(ctx, dy):
        x, w_OI = ctx.saved_tensors
        return dy @ w_OI, dy.flatten(0, -2).T @ x.flatten(0, -2)  # [...,O] @ [O,I]; [O,BT] @ [BT,I]


class Apart(torch.autograd.Function):
    """Task 15.10. The same linear, `apply(x, weight, left)`: backward makes dx, and puts into `left` what dW needs."""

    ### BEGIN SOLUTION 15.10 a backward in two halves
    @staticmethod
    def forward(ctx, x, weight_OI, left):
        ctx.left, ctx.weight = left, weight_OI
        ctx.save_for_backward(x, weight_OI)
        return nn.functional.linear(x, weight_OI)  # [...,I] @ [I,O] -> [...,O]

    @staticmethod
    def backward(ctx, dy):
        x, weight_OI = ctx.saved_tensors
        ctx.left.put(ctx.weight, x, dy)
        return dy @ weight_OI, None, None  # [...,O] @ [O,I] -> [...,I]; dW comes later

    ### END SOLUTION


class Linear(nn.Module):
    """`Apart` as a module (given): Transformer(config, linear=lambda name, i, o: Linear(i, o, left))."""

    def __init__(self, inputs: int, outputs: int, left: Left) -> None:
        super().__init__()
        self.weight, self.left = nn.Parameter(torch.zeros(outputs, inputs)), left

    def forward(self, x: Tensor) -> Tensor:
        return Apart.apply(x, self.weight, self.left)


def at_once(P: int, M: int, p: int) -> list[Step]:
    """1F1B (15.6) in these steps, each W right behind its B: the worked example. A gradient leaves in front of its W,
    and that alone takes (P-1) t_W from 1F1B's (P-1) (t_F + t_B + t_W) of idle time."""
    steps: list[Step] = []
    for kind, m in one_f_one_b(P, M, p):
        steps += [("B", m), ("W", m)] if kind == "B" else [("F", m)]
    return steps


def zero_bubble(P: int, M: int, p: int) -> list[Step]:
    """Task 15.10. Stage p's steps under ZB-H1, for any P and M, also M < P. From F m to W m at most P micro-batches are
    in flight, on every stage."""
    ### BEGIN SOLUTION 15.10 ZB-H1
    steps: list[Step] = []
    for kind, m in one_f_one_b(P, M, p):
        steps.append((kind, m))
        # 1F1B has P-p in flight here, so p more find room: a W waits for as many Bs of later micro-batches.
        steps += [("W", m - p)] if kind == "B" and m >= p else []
    return steps + [("W", m) for m in range(max(0, M - p), M)]  # beside the last gradients' way up
    ### END SOLUTION


def bubble(P: int, M: int) -> float:
    """Task 15.10. The fraction of the batch's time in which a stage stands idle under ZB-H1, for M >= P, if F, B and W
    take one time each."""
    ### BEGIN SOLUTION 15.10 bubble
    # The first F comes to stage p after p t_F, and the last B leaves it p t_B before stage 0's. Stage p has p Ws left
    # by then, of t_W: (P-1) (t_F + t_B - t_W) of idle time on every stage, where 1F1B has (P-1) (t_F + t_B + t_W).
    return (P - 1) / (3 * M + P - 1)
    ### END SOLUTION


def run_schedule(
    stage,
    left: Left,
    steps: Sequence[Step],
    inputs: Sequence[Tensor] | None,
    targets: Sequence[Tensor] | None,
    shape,
    group,
) -> Tensor | None:
    """Task 15.10. Run a stage's steps over send and recv: 15.6's `run_schedule` with a third kind of step.

    Args:
        stage: this stage's layers, as in 15.6; its linears are `Linear`s on `left`.
        inputs, targets, shape, group: as in 15.6. What travels is float32, [B, T, D].

    Each step's computing stands in a span named "F3", "B3" or "W3", with no message in it. No product for a weight's
    gradient is in an F or a B.

    Returns:
        On the last stage the mean of the micro-batches' losses, a number without gradient; else None. Every parameter
        then holds in .grad the gradient of that mean.
    """
    ### BEGIN SOLUTION 15.10 run three kinds of steps
    p, P = group.rank, group.size
    first, last = p == 0, p == P - 1
    M = sum(kind == "F" for kind, _ in steps)
    like = torch.empty(shape, device=group.device)
    kept, undone, losses, on_their_way = {}, dict[int, list[Piece]](), [], []
    for kind, m in steps:
        if kind == "F":
            x = inputs[m] if first and inputs is not None else group.recv(p - 1, like=like).requires_grad_()
            with group.compute(f"F{m}"):
                y = stage(x, targets[m]) if last and targets is not None else stage(x)
            kept[m] = x, y
            on_their_way += [] if last else [group.isend(y.detach(), p + 1)]
            losses += [y.detach()] if last else []
        elif kind == "B":
            x, y = kept.pop(m)
            dy = torch.tensor(1.0 / M, device=y.device) if last else group.recv(p + 1, like=like)  # the mean over M
            with group.compute(f"B{m}"):
                y.backward(dy)
            undone[m] = left.take()
            on_their_way += [] if first else [group.isend(x.grad, p - 1)]  # before any W: somebody waits for it
        else:
            with group.compute(f"W{m}"), torch.no_grad():
                for weight, x, dy in undone.pop(m):
                    dW = dy.flatten(0, -2).T @ x.flatten(0, -2)  # [O,BT] @ [BT,I] -> [O,I]
                    weight.grad = dW if weight.grad is None else weight.grad.add_(dW)
    for sent in on_their_way:
        sent.wait()
    return torch.stack(losses).mean() if last else None
    ### END SOLUTION
