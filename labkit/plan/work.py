"""How long one rank computes on one layer and one micro-batch: products, attention, what only moves bytes, casts.

A product [m, k] @ [k, n] is cut into tiles, one a multiprocessor at a time. The last wave of tiles is rarely full, and
each tile pays for its start (loads before the first multiply, the store after the last), which counts as extra depth:

    seconds = waves * tile * (k + start) * 2 / (share * peak / SMs)        and never less than its bytes / HBM

Norms, residual sums, rotary turns, the activation function, FP8's casts and unfused scores are counted in bytes.

Legend: n tokens of a micro-batch on this rank; h hidden, f feed-forward, t = tp. Seconds in, seconds out.
"""

from typing import NamedTuple

import numpy as np

from labkit.plan.cases import FLASH, SDPA, UNFUSED, Array, Cases
from labkit.plan.constants import Constants
from labkit.plan.links import CAPACITY

TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.9), (64, 128, 0.7))  # rows, columns, rate against the largest
REACHED = 0.85  # of HBM's bandwidth, by a kernel that only copies
ALIGNED, UNALIGNED = 8, 0.5  # numbers that a row of 16 bytes holds; the rate left where a side is no multiple of it
EXPONENTIALS = 2 / 7  # a score's 2, 16 a clock on any chip, beside its 7 products of 128 on Hopper (arXiv:2407.08608)
HOPPER = 989e12 / 132  # FLOP/s of a multiprocessor of the chip on which `start` was chosen
FULL_POWER = 700.0  # watts of the boards on which gemm_recent was measured; power goes about as the clock's cube


Both = tuple[Array, Array]  # forward, backward


class Layer(NamedTuple):
    """Seconds of one layer and micro-batch, by kind."""

    gemm: Both
    attention: Both
    moved: Both
    casts: Both
    head: Array  # the output projection with its loss, forward and backward: once a micro-batch, on the last stage


def rate(c: Cases, k: Constants, low: bool) -> Array:
    # Chips since Hopper are held by their power, so that a board of fewer watts clocks lower; earlier ones come near
    # their peak.
    clock = np.where(c.recent > 0, np.cbrt(np.minimum(c.watts, FULL_POWER) / FULL_POWER), 1.0)
    share = np.where(c.recent > 0, k.gemm_recent, k.gemm_older) * clock
    return share * (c.peak_low if low else c.peak)


def product(
    c: Cases, k: Constants, shape: tuple[Array, Array, Array], count: Array | float = 1.0, low: bool = False
) -> Array:
    """Return the seconds of `count` products [m, depth] @ [depth, n] of shape (m, n, depth) that run as one kernel."""
    m, n, depth = shape
    of_one = rate(c, k, low) / c.sms
    # A tile's load and store take time, whatever multiplies: in depth, more where a multiprocessor multiplies faster.
    quick = (c.peak_low if low else c.peak) / c.sms / HOPPER
    start = k.start * np.where(c.recent > 0, quick, 1.0)
    best = np.full(np.broadcast(m, n, depth).shape, np.inf)
    for rows, columns, speed in TILES:
        waves = np.ceil(count * np.ceil(m / rows) * np.ceil(n / columns) / c.sms)
        best = np.minimum(best, waves * rows * columns * 2 * (depth + start) / (of_one * speed))
    odd = (np.floor(m) % ALIGNED != 0) | (np.floor(n) % ALIGNED != 0) | (np.floor(depth) % ALIGNED != 0)
    size = c.size if low else 2.0
    moved = count * ((m + n) * depth * size + 2 * m * n) / (REACHED * c.hbm)
    return np.maximum(best / np.where(odd, UNALIGNED, 1.0), moved)


def linear(c: Cases, k: Constants, rows: Array, inputs: Array, outputs: Array, count: Array) -> Both:
    """(forward, backward) of a linear; backward has two products, for the input's and the weight's gradient."""
    of_input, of_weight = (rows, inputs, outputs), (outputs, inputs, rows)
    forward = product(c, k, (rows, outputs, inputs), count, True)
    return forward, product(c, k, of_input, count, True) + product(c, k, of_weight, count, True)


def linears(c: Cases, k: Constants) -> Both:
    """Return (forward, backward) of all linears of a layer. tp cuts columns in the first of a pair, rows in the second."""
    n, h, one = c.tokens, c.hidden, np.ones_like(c.tokens)
    groups = np.where(c.moe, c.experts / c.ep, 1.0)  # experts that live here
    routed = np.where(c.moe, np.ceil(CAPACITY * n * c.chosen / groups / ALIGNED) * ALIGNED, n)  # tokens of each, padded
    pairs = (
        linear(c, k, n, h, (c.d_q + 2 * c.d_kv) / c.tp, one),
        linear(c, k, n, c.d_q / c.tp, h, one),
        linear(c, k, routed, h, c.ffn * (1 + c.gated) / c.tp, groups),
        linear(c, k, routed, c.ffn / c.tp, h, groups),
    )
    return sum((f for f, _ in pairs), np.zeros_like(n)), sum((b for _, b in pairs), np.zeros_like(n))


def attention(c: Cases, k: Constants) -> Both:
    """Return (forward, backward) of softmax(q k^T) v."""
    # Fused: only the causal half is computed, and backward costs 2.5 times the forward (five products for two). Unfused:
    # all of it, in small products, with the scores in memory several times.
    n, s, heads = c.tokens, c.seq, c.heads / c.tp
    padded = np.ceil(c.d_head / 32) * 32  # a head's width in a kernel's tiles
    share = np.where(c.recent > 0, k.flash_recent, k.flash_older)
    share = share * np.where((c.attention == SDPA) & (c.recent > 0), k.sdpa, 1.0)
    beside = EXPONENTIALS * c.peak / c.sms / HOPPER
    share = share * np.where(c.recent > 0, (1 + EXPONENTIALS) / (1 + beside), 1.0)
    fused = 2 * n * s * heads * padded / (share * c.peak)
    many = c.mbs * heads
    products = product(c, k, (s / c.cp, s, c.d_head), many) + product(c, k, (s / c.cp, c.d_head, s), many)
    scores = k.scores * n * s * heads / (REACHED * c.hbm) / 3
    plain = c.attention == UNFUSED
    return np.where(plain, products + scores, fused), np.where(plain, 2 * products + 2 * scores, 2.5 * fused)


def moved(c: Cases, k: Constants) -> Array:
    """Return forward's seconds of all that only moves bytes; backward's are twice as many."""
    # Norms, residual sums and dropout see whole rows of h on every rank, unless sequence parallelism cuts them, too.
    rows = 10 * c.hidden / np.where(c.sp > 0, c.tp, 1.0)
    inside = (4 * c.d_q + (2 + c.gated) * c.ffn * c.chosen) / c.tp
    inside = inside + np.where(c.moe, 4 * c.hidden * c.chosen, 0.0)  # rows sorted by expert, and back: read and written
    times = np.where(c.attention == SDPA, k.elementwise_torch, k.elementwise)
    return times * 2 * c.tokens * (rows + inside) / c.hbm


def casts(c: Cases, k: Constants) -> Both:
    """Return (forward, backward) of making FP8 of what the products read: activations and weights, then gradients."""
    n, h, t = c.tokens, c.hidden, c.tp
    weights = (c.attention_weights + c.mlp_weights * np.where(c.moe, c.experts / c.ep, 1.0)) / t
    inputs = n * (h + c.d_q / t + (h + c.ffn / t) * c.chosen)
    grads = n * ((c.d_q + 2 * c.d_kv) / t + h + (c.ffn * (1 + c.gated) / t + h) * c.chosen)
    each = c.low * k.cast / c.hbm
    return each * (inputs + weights), each * grads


# Traffic of one logit, BF16 written, FP32 for the loss, and their gradients: fused, or by plain torch, in 4 passes more.
LOGIT, LOGIT_PLAIN = 16, 30
SUMMED = 14  # traffic of one parameter's gradient a micro-batch: written in BF16, read, added to FP32 sums, set to zero


def head(c: Cases, k: Constants) -> Array:
    """Return the output projection, always BF16, and the loss: forward and backward."""
    n, h, v = c.tokens, c.hidden, c.vocab / c.tp
    products = product(c, k, (n, v, h)) + product(c, k, (n, h, v)) + product(c, k, (v, h, n))
    return products + np.where(c.attention == FLASH, LOGIT, LOGIT_PLAIN) * n * v / (REACHED * c.hbm)


def sums_apart(c: Cases) -> Array:
    """Is a gradient summed in FP32 by a kernel of its own (DeepSpeed, plain torch), and not within the product (NVIDIA's)?"""
    return (c.zero > 0) & (c.attention != FLASH)


def layer(c: Cases, k: Constants) -> Layer:
    once = moved(c, k)
    return Layer(linears(c, k), attention(c, k), (once, 2 * once), casts(c, k), head(c, k))
