"""A pipeline: the layers split by depth (task 15.6).

P stages, each with a part of the layers. A batch is cut into M micro-batches; stage p computes forward of micro-batch
m (F m) when stage p-1 has sent its output, and backward (B m) when stage p+1 has sent the gradient. While the first
micro-batch travels down, and while the last gradient travels up, stages stand idle: the bubble.

A schedule is data: for each stage the list of its steps, ("F", m) or ("B", m), in order. Three of them for P = 4, M =
4, time to the right, a backward as long as a forward:

    one at a time     F0            B0 F1            B1 ...     no overlap at all: a pipeline in name
    GPipe             F0 F1 F2 F3 ... B0 B1 B2 B3               all forwards, then all backwards (arXiv:1811.06965)
    1F1B              some Fs, then F and B in turns, then Bs   (arXiv:1806.03377; with a flush: arXiv:2104.04473, 2.2)

What a stage keeps for backward it keeps from F m to B m: its activations *in flight*. GPipe keeps all M. 1F1B asks of
each stage: start backward as soon as a gradient can be here, and from then on take no new micro-batch before one has
been finished. How many forwards does stage p run before its first gradient can come? Draw it: the last stage has its
own gradient at once.

Derive from the drawing, with t_F and t_B the times of one step, equal on all stages: how long does the whole batch
take under GPipe, and what fraction of it does a stage stand idle? Then the same of 1F1B.

Running it. Messages between neighbours go in the order of the steps. `group.send` returns when the receiver has come,
and stages that all wait in a send wait for ever. A send that is posted (`isend`) and waited for later cannot block.
Your drawing shows which must be posted. Receive with `recv`: the step needs it now. Keep a handle until
the message has surely arrived (a gradient that came back proves it).

Gradients. The batch's loss is the mean over micro-batches, each of which is a mean over its tokens. So every loss is
divided by M, once, and .grad adds up.

Legend: P stages (one rank each), p this one, M micro-batches, m one of them; B batch, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Step = tuple[str, int]  # ("F", m) or ("B", m)


def one_at_a_time(P: int, M: int, p: int) -> list[Step]:
    """Each micro-batch goes through all stages and back before the next one starts: the worked example. Whoever is in
    which stage, P-1 of P stages stand idle."""
    return [(kind, m) for m in range(M) for kind in "FB"]


def gpipe(P: int, M: int, p: int) -> list[Step]:
    """Task 15.6. Stage p's steps: all forwards, then all backwards, both in the order of the micro-batches."""
    ### BEGIN SOLUTION 15.6 GPipe
    return [("F", m) for m in range(M)] + [("B", m) for m in range(M)]
    ### END SOLUTION


def one_f_one_b(P: int, M: int, p: int) -> list[Step]:
    """Task 15.6. Stage p's steps under 1F1B, for any P and M, also M < P."""
    ### BEGIN SOLUTION 15.6 1F1B
    warmup = min(P - p - 1, M)  # forwards before the first one that is followed by a backward at once
    steps: list[Step] = [("F", m) for m in range(warmup)]
    for m in range(warmup, M):
        steps += [("F", m), ("B", m - warmup)]  # one forward, one backward: in flight stays warmup + 1
    return steps + [("B", m) for m in range(M - warmup, M)]
    ### END SOLUTION


def bubble(P: int, M: int) -> float:
    """Task 15.6. The fraction of the batch's time in which a stage stands idle under GPipe."""
    ### BEGIN SOLUTION 15.6 bubble
    # A stage works M (t_F + t_B). Stage p starts p t_F late, and ends p t_B before the end; the last one waits
    # (P-1) t_F before and (P-1) t_B behind. So the batch takes (M + P-1) (t_F + t_B).
    return (P - 1) / (M + P - 1)
    ### END SOLUTION


def in_flight(steps: Sequence[Step]) -> int:
    """Task 15.6. Of how many micro-batches a stage with these steps keeps activations at one time, at most."""
    ### BEGIN SOLUTION 15.6 activations in flight
    now = most = 0
    for kind, _ in steps:
        now += 1 if kind == "F" else -1
        most = max(most, now)
    return most
    ### END SOLUTION


def run_schedule(
    stage, steps: Sequence[Step], inputs: Sequence[Tensor] | None, targets: Sequence[Tensor] | None, shape, group
) -> Tensor | None:
    """Task 15.6. Run a stage's steps over send and recv. Rank p of the group is stage p of group.size.

    Args:
        stage: this stage's layers. The first takes an input, others the [B, T, D] of the stage before; the last takes
            the targets as second argument and gives the mean loss, others [B, T, D]. (labkit.model's Transformer with
            `layers=` does so.)
        inputs: on the first stage, one for each micro-batch; else None.
        targets: on the last stage, likewise.
        shape: (B, T, D) of what travels, float32.

    Each step's computing, of forward or backward, stands in a span named "F3" or "B3", with no message in it.

    Returns:
        On the last stage the mean of the micro-batches' losses, a number without gradient; else None. Every parameter
        of the stage then holds in .grad the gradient of that mean.
    """
    ### BEGIN SOLUTION 15.6 run a schedule
    p, P = group.rank, group.size
    first, last = p == 0, p == P - 1
    M = sum(kind == "F" for kind, _ in steps)
    like = torch.empty(shape, device=group.device)
    kept, losses, on_their_way = {}, [], []
    for kind, m in steps:
        if kind == "F":
            x = inputs[m] if first and inputs is not None else group.recv(p - 1, like=like).requires_grad_()
            with group.compute(f"F{m}"):
                y = stage(x, targets[m]) if last and targets is not None else stage(x)
            kept[m] = x, y, None if last else group.isend(y.detach(), p + 1)  # posted: a wait here can be for ever
            losses += [y.detach()] if last else []
            continue
        x, y, sent = kept.pop(m)  # from here on its activations can go
        dy = torch.tensor(1.0 / M, device=y.device) if last else group.recv(p + 1, like=like)  # the mean over M
        if sent is not None:
            sent.wait()  # its gradient is here: it has arrived long ago
        with group.compute(f"B{m}"):
            y.backward(dy)
        if not first:
            on_their_way.append(group.isend(x.grad, p - 1))
    for sent in on_their_way:
        sent.wait()
    return torch.stack(losses).mean() if last else None
    ### END SOLUTION
