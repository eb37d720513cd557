"""What messages cost: alpha and beta of a collective, by level (week 13).

Ranks are laid out tensor, context, data, pipeline, innermost first. Of a group of N ranks, r share a node, on N / r
nodes. An all-gather or reduce-scatter of n bytes runs on both levels at once, chunk by chunk:

    near    (N-1)/N n over NVLink
    far     (nodes-1)/nodes n over the r network cards of a node that are the group's

which is a ring's time where nodes are many, and a tree's where they are two. The slower level takes its time, and the
faster one slows it by `drag`, as all that is hidden does. Of a datasheet's bandwidth `wire` of
NVLink and `network` of the cards arrives; the alpha of each step is what a message of few bytes takes beyond that.
"""

import numpy as np

from labkit.plan.cases import Array, Cases
from labkit.plan.constants import Constants

CAPACITY = 1.25  # rows of an expert over the mean, so that few tokens are dropped: Switch's choice (arXiv:2101.03961)


def inside(c: Cases, size: Array, stride: Array) -> Array:
    """Return the ranks of a group that share a node; a group has `size` ranks, `stride` apart."""
    return np.clip(np.floor(c.per_node / stride), 1.0, size)


def lap(c: Cases, k: Constants, size: Array, stride: Array, nbytes: Array) -> Array:
    """Return the seconds of an all-gather or a reduce-scatter of a vector of `nbytes`."""
    # Alphas count by levels, too: the other ranks in a node, then the other nodes.
    r = inside(c, size, stride)
    nodes = np.ceil(size / r)
    near = (size - 1) / size * nbytes / (k.wire * c.intra)
    far = (nodes - 1) / nodes * nbytes / (k.network * r * c.inter)
    both = np.maximum(near, far) + k.drag * np.minimum(near, far)
    return np.where(size > 1, both + k.alpha * (r + nodes - 2), 0.0)


def context_hop(c: Cases, k: Constants) -> Array:
    """Time one step of the ring of context-parallel ranks: each sends its chunk of keys and values to its neighbour."""
    # Through its own network card where the ring leaves the node. All ranks wait for the slowest hop.
    near, far = k.wire * c.intra, k.network * c.inter
    speed = np.where(inside(c, c.cp, c.tp) >= c.cp, near, np.minimum(near, far))
    return np.where(c.cp > 1, 2 * 2 * c.tokens * c.d_kv / c.tp / speed + k.alpha, 0.0)


def context_added(hop: Array, steps: Array, core: Array, drag: float) -> Array:
    """Seconds that `steps` hops of a ring add to attention, of which each step computes `core`."""
    hidden = np.minimum(hop, core)
    return steps * (hop - hidden + drag * hidden)


def expert_exchange(c: Cases, k: Constants) -> Array:
    """Time the two all-to-alls of a layer's forward: tokens to their experts, and back."""
    # Expert-parallel ranks are data-parallel ranks, so they lie tp apart; of a token's copies (ep-1)/ep leave the rank,
    # through its own network card where the group spans nodes.
    r = inside(c, c.ep, c.tp)
    away = np.where(r >= c.ep, k.wire * c.intra, np.minimum(k.wire * c.intra, k.network * c.inter))
    nbytes = 2 * c.tokens * c.chosen * CAPACITY * c.hidden / np.where(c.sp > 0, c.tp, 1.0)
    seconds = 2 * ((c.ep - 1) / c.ep * nbytes / away + k.alpha)
    return np.where(c.moe & (c.ep > 1), seconds, 0.0)


def stage_message(c: Cases, k: Constants) -> Array:
    """Time one micro-batch's way to the next stage. Each of tp ranks sends its part, and the next stage gathers them."""
    across = np.minimum(k.wire * c.intra, k.network * c.inter)  # in one node only if all stages are
    speed = np.where(c.gpus <= c.per_node, k.wire * c.intra, across)
    seconds = 2 * c.tokens * c.hidden / c.tp / speed + k.alpha
    return np.where(c.pp > 1, seconds, 0.0)
