"""A step's time, part by part.

A rank computes M micro-batches, each through its stage's layers: forward, backward, and what it computes again. Then,
one after another: what of the messages is not hidden, the bubble, the optimizer.

    tensor      two all-reduces a layer in forward and two in backward (as reduce-scatter and all-gather under sequence
                parallelism), forward's again where all is recomputed. With overlap the share `tp_left` stays exposed
    data        gradients down and weights up, once a step; under ZeRO-3 weights twice and gradients once a micro-batch.
                With overlap they hide behind the backward that is there, and hidden messages slow it by `drag`
    context     keys and values around a ring, a hop behind each chunk's attention, and the chunks' results merged;
                causal work is balanced
    pipeline    a micro-batch's rows to the next stage and its gradient back, `vp` times
    bubble      (P-1) / vp micro-batches that the last stage waits for (week 15)
    host        where a layer is done before the CPU has queued the next one
"""

from typing import NamedTuple

import numpy as np

from labkit.plan import links
from labkit.plan.cases import FULL, NONE, OPERATIONS, SELECTIVE, UNFUSED, Array, Cases
from labkit.plan.constants import Constants
from labkit.plan.footprint import held_parameters
from labkit.plan.work import REACHED, SUMMED, Layer, layer, sums_apart

MERGED = 10  # bytes of one number: a chunk's result read (BF16), the sum so far read and written (FP32)


class Step(NamedTuple):
    """Seconds of a step on the slowest rank, by where they go. Their sum is the step."""

    gemm: Array
    attention: Array
    elementwise: Array
    casts: Array
    tensor: Array
    context: Array
    experts: Array
    data: Array
    pipeline: Array
    bubble: Array
    optimizer: Array
    host: Array

    @property
    def total(self) -> Array:
        return sum(self, np.zeros_like(self.gemm))


def repeated(c: Cases, one: Layer) -> tuple[Array, ...]:
    """Return the seconds of what a layer's backward computes again: (products, attention, moved, casts)."""
    # `OPERATIONS` keeps every second product's output and attention's, and computes the rest again; `SELECTIVE`
    # computes attention's core alone.
    all_of = (c.recompute == FULL).astype(float)
    half = (c.recompute == OPERATIONS).astype(float)
    core = all_of + (c.recompute == SELECTIVE)
    again = all_of + half / 2, core, all_of + half, all_of
    return tuple(times * kind[0] for times, kind in zip(again, one[:4]))


def step(c: Cases, k: Constants) -> Step:
    one = layer(c, k)
    again = repeated(c, one)
    M, depth = c.micro, c.depth
    many = M * depth
    head = M * one.head
    gemm = many * (sum(one.gemm) + again[0]) + head
    attention = many * (sum(one.attention) + again[1])
    summed = np.where(sums_apart(c), SUMMED, 0.0) * held_parameters(c) / (REACHED * c.hbm)
    elementwise = many * (sum(one.moved) + again[2]) + M * summed
    casts = many * (sum(one.casts) + again[3])

    full = (c.recompute == FULL).astype(float)
    left = np.where(c.tp_overlap > 0, k.tp_left, 1.0)
    rows = links.lap(c, k, c.tp, np.ones_like(c.tp), 2 * c.tokens * c.hidden)  # an all-reduce is two of these
    tensor_of_one = left * rows * 2 * (4 + 2 * full)
    context_of_one = around_the_ring(c, k, one, full)
    experts_of_one = links.expert_exchange(c, k) * (2 + full)
    tensor, context, experts = many * tensor_of_one, many * context_of_one, many * experts_of_one

    per_layer = (gemm + attention + elementwise + casts - head) / many
    slowest = np.where(c.attention == UNFUSED, k.host, 0.0) * (3 + (c.recompute != NONE))
    host_of_one = np.maximum(0.0, slowest - per_layer - tensor_of_one)
    host = many * host_of_one

    of_one = per_layer + tensor_of_one + context_of_one + experts_of_one + host_of_one
    hop = links.stage_message(c, k)
    bubble = (c.pp - 1) / c.vp * (depth * of_one + 2 * hop)
    # Interleaved, a chunk's message travels while the next chunk is computed; else the next one waits for it.
    chunk = depth / c.vp * of_one
    exposed = sum(
        (np.maximum(0, hop - part) + k.drag * np.minimum(hop, part) for part in (chunk / 3, 2 * chunk / 3)), 0 * hop
    )
    pipeline = M * c.vp * np.where(c.vp > 1, exposed, 2 * hop)

    # Interleaved, a chunk is done for this step when its last P micro-batches have gone back, before the next chunk's.
    backward = depth * of_one * 2 / 3 * (1 + (np.minimum(c.pp, M) - 1) * (1 - 1 / c.vp))
    data = data_exposed(c, k, np.where(c.zero >= 3, M * depth * of_one, backward))
    optimizer = k.optimizer * held_parameters(c) / np.where(c.zero > 0, c.dp * c.cp, 1.0) / c.hbm
    parts = (gemm, attention, elementwise, casts, tensor, context, experts, data, pipeline, bubble, optimizer, host)
    return Step(*parts)


def around_the_ring(c: Cases, k: Constants, one: Layer, full: Array) -> Array:
    """Return the seconds that context parallelism adds to a layer and micro-batch."""
    # Forward, cp - 1 hops of keys and values, each behind the attention of the chunk that is there; then what each
    # further chunk found is merged into what was there. Backward, two messages a hop: the gradients of keys and values
    # travel along, and one hop further, home.
    hop, core = links.context_hop(c, k), one.attention[0] / c.cp
    merged = (c.cp - 1) * MERGED * c.tokens * c.d_q / c.tp / (REACHED * c.hbm)
    forward = links.context_added(hop, c.cp - 1, core, k.drag) + merged
    back = links.context_added(2 * hop, c.cp - 1, one.attention[1] / c.cp, k.drag) + hop + merged
    return forward * (1 + full) + back


def data_exposed(c: Cases, k: Constants, window: Array) -> Array:
    """Return the seconds that messages of data parallelism add to a step with `window` seconds to hide them behind."""
    held = held_parameters(c)
    alike = c.dp * c.cp  # ranks that hold the same part of the model
    down = links.lap(c, k, alike, c.tp, np.where(sums_apart(c) | (c.zero >= 3), 4.0, 2.0) * held)
    # DeepSpeed under ZeRO 1 sums all gradients on all ranks, twice as much.
    down = down * np.where((c.attention == UNFUSED) & (c.zero > 0), 2.0, 1.0)
    up = links.lap(c, k, alike, c.tp, 2 * held)
    # Under a pipeline FSDP gathers once a step and sums gradients whole until its end (torchtitan's default).
    each = np.where((c.zero >= 3) & (c.pp == 1), c.micro * (down + 2 * up), down + up)
    hidden = np.where(c.dp_overlap > 0, np.minimum(each, window), 0.0)
    near = links.inside(c, alike, c.tp) >= alike
    return each - hidden + np.where(near, k.drag_near, k.drag) * hidden
