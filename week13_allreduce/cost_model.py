"""What a collective costs on paper: the alpha-beta model (task 13.1).

One message of n bytes over a free wire takes

    T = alpha + beta n          alpha [s]: the price of speaking at all; beta [s/byte]: 1 / bandwidth

(Hockney 1994; for collectives: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
operations in MPICH", section 3.) A wire is full duplex: a rank can send one message and receive one at the same time.
Two messages over the same wire in the same direction go one after the other. Adding is free.

A collective is many messages. Only those that must wait for one another count, so its time is again a line in n:

    T(n) = messages * alpha  +  share * n * beta

`messages` counts the alphas that follow one another, `share` the bytes that follow one another, in units of n.
Everything else about an algorithm is detail. The two numbers are a `Cost`.

How to count, with `naive_broadcast_cost` as the pattern:
  1. begin at the rank that finishes last and walk back in time: which message was it waiting for, and what did that
     one wait for, its data or the wire? This chain of messages is the critical path;
  2. count the messages on it: `messages`;
  3. add up their sizes in units of n: `share`.

N ranks; n is the size in bytes of the whole vector x on one rank: for reduce-scatter the input, for all-gather the
output. Chunks are n/N here; the one extra number of a ragged chunk is beneath this model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Cost(NamedTuple):
    """What one collective costs, apart from the wire it runs on."""

    messages: float  # how many messages follow one another
    share: float  # how many bytes follow one another, in units of n

    def time(self, nbytes: float, alpha: float, beta: float) -> float:
        """Seconds for a vector of `nbytes` bytes on wires of `alpha` seconds a message and `beta` seconds a byte."""
        return self.messages * alpha + self.share * nbytes * beta


class Fit(NamedTuple):
    """Result of `fit_alpha_beta`."""

    alpha: float  # seconds a message
    beta: float  # seconds a byte
    residuals: tuple[float, ...]  # (measured - fitted) / measured, one for each measurement, in their order


def naive_broadcast_cost(N: int) -> Cost:
    """Rank 0 sends x to every other rank: the worked example.

    The last rank waits for its message; that waited for rank 0's wire, which carried the message to the rank before;
    and so on: N-1 messages, each of them the whole vector.
    """
    return Cost(messages=N - 1, share=N - 1)


def naive_all_reduce_cost(N: int) -> Cost:
    """`collectives.naive_all_reduce`: everything to rank 0, then everything back. N = 1 costs nothing."""
    ### BEGIN SOLUTION 13.1 naive all-reduce cost
    # N-1 vectors one after another over the wire into rank 0, then N-1 over the wire out of it
    return Cost(messages=2 * (N - 1), share=2 * (N - 1))
    ### END SOLUTION


def one_shot_all_reduce_cost(N: int) -> Cost:
    """`collectives.one_shot_all_reduce`: N-1 steps, in each of which every rank sends all of x to one other rank."""
    ### BEGIN SOLUTION 13.1 one-shot all-reduce cost
    # N-1 steps, a whole vector each; in and out are different wires, so a step is one message long
    return Cost(messages=N - 1, share=N - 1)
    ### END SOLUTION


def ring_reduce_scatter_cost(N: int) -> Cost:
    """`collectives.ring_reduce_scatter`: N-1 steps of one chunk, n/N bytes. N = 1 costs nothing."""
    ### BEGIN SOLUTION 13.1 ring reduce-scatter cost
    # N-1 steps of n/N bytes; all wires at the same time
    return Cost(messages=N - 1, share=(N - 1) / N)
    ### END SOLUTION


def ring_all_gather_cost(N: int) -> Cost:
    """`collectives.ring_all_gather`; n is the size of the joined vector."""
    ### BEGIN SOLUTION 13.1 ring all-gather cost
    # the same walk
    return Cost(messages=N - 1, share=(N - 1) / N)
    ### END SOLUTION


def ring_all_reduce_cost(N: int) -> Cost:
    """`collectives.ring_all_reduce`: both laps."""
    ### BEGIN SOLUTION 13.1 ring all-reduce cost
    # two laps, the second begins when the first has ended: costs add up
    return Cost(messages=2 * (N - 1), share=2 * (N - 1) / N)
    ### END SOLUTION


def crossover_bytes(small: Cost, large: Cost, alpha: float, beta: float) -> float:
    """The vector size in bytes from which on `large` stays faster than `small`.

    Two lines in n. The names say what is meant: `large` pays more messages for a smaller share, so the lines cross
    once. But whoever asks may have them the other way round, or two that never cross:

    Returns:
        Where both take the same time, if `large` has more messages and a smaller share;
        0.0 if `large` is never slower: no more messages and no larger share (so two equal costs give 0.0);
        `math.inf` if `large` does not stay faster: a larger share, or an equal one and more messages.
    """
    ### BEGIN SOLUTION 13.1 crossover
    # m_small alpha + s_small n beta = m_large alpha + s_large n beta
    #     =>  n = (m_large - m_small) alpha / ((s_small - s_large) beta)
    extra_messages, saved_share = large.messages - small.messages, small.share - large.share
    if extra_messages <= 0 and saved_share >= 0:
        return 0.0
    if saved_share <= 0:
        return math.inf
    return extra_messages * alpha / (saved_share * beta)
    ### END SOLUTION


def fit_alpha_beta(nbytes: Sequence[float], seconds: Sequence[float], cost: Cost) -> Fit:
    """The alpha and beta under which `cost` explains the measured times best.

    "Best" is least squares in the *relative* error, (measured - fitted) / measured: sizes span six decades, and in
    plain seconds the largest message alone would decide alpha too. Dividing each equation

        messages * alpha + share * n * beta = T     by its T, the right-hand side becomes 1:

        [messages/T, share n/T] @ [alpha, beta] = 1          [M,2] @ [2] = [M]

    and `numpy.linalg.lstsq` solves it. Nothing forbids a negative alpha: it says that the times are no line in n.

    Args:
        nbytes: M vector sizes in bytes, at least two different ones.
        seconds: M times, positive.
        cost: what was measured, for example `ring_all_reduce_cost(8)`; messages and share above zero.
    """
    ### BEGIN SOLUTION 13.1 fit alpha and beta
    n, T = np.asarray(nbytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    rows = np.stack([cost.messages / T, cost.share * n / T], axis=1)  # [M,2]
    scale = rows.max(axis=0)  # [2]; the columns differ by many decades, and beta would drown in rounding
    # min over (alpha, beta) of || rows @ [alpha, beta] - 1 ||^2       [M,2] @ [2] - [M]
    alpha, beta = np.linalg.lstsq(rows / scale, np.ones_like(T), rcond=None)[0] / scale
    fitted = cost.messages * alpha + cost.share * n * beta  # [M] seconds
    return Fit(float(alpha), float(beta), tuple(((T - fitted) / T).tolist()))
    ### END SOLUTION
