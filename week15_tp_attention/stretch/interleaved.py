"""Interleaved 1F1B: a smaller bubble for more messages (task 15.8, stretch).

Each rank takes v chunks of the layers in place of one stage: chunk c of rank p is part c P + p of v P, so a
micro-batch passes every rank v times (Narayanan et al., arXiv:2104.04473, section 2.3). A chunk's step takes 1/v of a
stage's, so the pipeline fills and drains in 1/v of the time, and the bubble shrinks by v. What does it cost? Count
the messages of a micro-batch, and the activations in flight on rank 0.

The order. Forwards go in groups of P micro-batches: P of them through chunk 0, the same P through chunk 1, and so on
to chunk v-1; then the next P. Backwards go in the same groups, chunks from the last to the first. As in 1F1B a rank
first runs some forwards ahead, then one forward and one backward in turns, then the backwards that are left. How many
ahead? Until the first gradient can be here: draw it for P = 2, v = 2, M = 4. (The paper's own schedule runs further
ahead, so that its messages have time to travel, and keeps more activations. Here as few as leave no gap are asked for.)
Groups of P leave no gap only if P divides M.

Legend: P ranks, p this one; M micro-batches, m one of them; v chunks of each rank, c one of them. A chunk of a
micro-batch is in flight from its F to its B.
"""

from __future__ import annotations

from labkit.errors import LabError

Step = tuple[str, int, int]  # ("F" or "B", micro-batch, chunk)


def looping(P: int, M: int, v: int, p: int) -> list[Step]:
    """All forwards, chunk by chunk, then all backwards: the worked example, GPipe with v chunks."""
    forward = [("F", m, c) for c in range(v) for m in range(M)]
    return forward + [("B", m, c) for c in reversed(range(v)) for m in range(M)]


def interleaved(P: int, M: int, v: int, p: int) -> list[Step]:
    """Task 15.8. Rank p's steps, each of the M v forwards and backwards once: in the shortest time, if a backward takes
    two forwards, and with as few in flight as leave no gap. LabError, with P and M in the sentence, if P does not
    divide M."""
    ### BEGIN SOLUTION 15.8 interleaved 1F1B
    if M % P:
        raise LabError(f"{M} micro-batches do not divide by {P} ranks, and interleaving runs them in groups of {P}")
    order = [(start + m, c) for start in range(0, M, P) for c in range(v) for m in range(P)]
    forward: list[Step] = [("F", m, c) for m, c in order]
    backward: list[Step] = [("B", m, v - 1 - c) for m, c in order]
    # The first gradient is of the last chunk. In front of that forward stand (v-1) P others on every rank, and while
    # it travels on to the last rank and back, P-p-1 more fit in. With v = 1 this is 1F1B. (Megatron-LM runs twice as
    # many of these ahead, so that its messages have time, and keeps more activations.)
    ahead = min((v - 1) * P + (P - p - 1), len(order))
    steps = forward[:ahead]
    for one, other in zip(forward[ahead:], backward):
        steps += [one, other]
    return steps + backward[len(order) - ahead :]
    ### END SOLUTION
