"""What a rank holds at a step's peak, by kind (week 14), and whether it fits.

Bytes a parameter: weights 2, gradients 4 (2 under plain DDP), masters and AdamW's moments 12. ZeRO cuts the last, then
gradients, then weights over the data-parallel ranks; under stage 3 the shard is FP32, the root and two layers are
gathered, and gradients come only as activations go, unless micro-batches sum them. FP8 keeps an uncut copy of the
weights, 1 byte each.

Activations, bytes a token and layer (arXiv:2205.05198): what norms, residual sums and inputs of column-parallel linears
keep is whole on each tensor-parallel rank unless sequence parallelism cuts it; the rest is cut. A pipeline's first
stage keeps P micro-batches under 1F1B, (P-1)/vp of one more if interleaved; its last one a single one, and the logits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.plan.cases import FULL, NONE, OPERATIONS, SDPA, UNFUSED, Array, Cases

GIB = 2.0**30
CONTEXT = 1.5 * GIB  # CUDA, cuBLAS and NCCL, outside of what torch counts: nvidia-smi minus reserved
FRAGMENTS = 0.06  # of torch's peak: what its allocator reserves beyond (results of week 14: 3 to 11 %)
LOGIT_BYTES = 14  # of one logit at the loss; with `saved_bytes` it fits public runs of compiled code (validate.py)


class Memory(NamedTuple):
    """Bytes on the fullest rank, as torch's maximum allocated counts them."""

    weights: Array
    gradients: Array
    optimizer: Array
    gathered: Array
    activations: Array
    logits: Array

    @property
    def total(self) -> Array:
        return sum(self, np.zeros_like(self.weights))

    @property
    def needed(self) -> Array:
        """The bytes that the GPU must have."""
        return self.total * (1 + FRAGMENTS) + CONTEXT


def layer_parameters(c: Cases) -> Array:
    """Return the parameters of a layer, on one rank."""
    experts = np.where(c.moe, np.maximum(1.0, c.experts) / c.ep, 1.0)
    return (c.attention_weights + experts * c.mlp_weights) / c.tp


def root_parameters(c: Cases) -> Array:
    """Return the parameters of the embedding, and of the head where it is on the same rank and not the same table."""
    return c.vocab * c.hidden / c.tp * np.where((c.pp > 1) | (c.tied > 0), 1.0, 2.0)


def held_parameters(c: Cases) -> Array:
    """Return the parameters of the fullest rank, before ZeRO."""
    return c.depth * layer_parameters(c) + root_parameters(c)


def saved_bytes(c: Cases) -> Array:
    """Return the bytes that a token leaves in a layer for its backward."""
    h, kv, f, t = c.hidden, 2 * c.d_kv, c.ffn * c.chosen, c.tp
    rows = np.where(c.sp > 0, t, 1.0)
    gated = c.gated > 0
    # (whole on each rank, in the MLP) by software; q, k, v and the output projection's input are kept by all
    plain = (10 * h, np.where(gated, 8, 4) * f)  # with dropout's masks
    eager = (8 * h, np.where(gated, 8, 4) * f)
    fused = (8 * h, 4 * f)  # the activation function is computed again; Transformer Engine
    compiled = (4 * h, 4 * f)  # ... and norms, too
    kinds = [c.attention == UNFUSED, c.attention == SDPA, c.zero >= 3]
    whole, mlp = (np.select(kinds, list(some), fused[i]) for i, some in enumerate(zip(plain, eager, compiled)))
    core = np.where((c.attention == UNFUSED) & (c.recompute == NONE), 5 * c.heads * c.seq, 0.0)
    saved = whole / rows + (4 * c.d_q + 2 * kv + mlp + core) / t
    half = (7 * h + kv + np.where(gated, 2, 1) * f) / t  # every second product's output, attention's, the layer's input
    return np.select([c.recompute == FULL, c.recompute == OPERATIONS], [2 * h / rows, half], saved)


def memory(c: Cases) -> Memory:
    """Return the bytes by kind."""
    held, N = held_parameters(c), c.dp * c.cp
    share = {stage: np.where(c.zero >= stage, N, 1.0) for stage in (1, 2, 3)}
    third = c.zero >= 3
    weights = np.where(third, 0.0, 2 * held)
    gathered = np.where(third, 2 * (root_parameters(c) + 2 * layer_parameters(c)), 0.0) + c.fp8 * held
    each = np.where((c.attention == SDPA) & (c.zero == 0), 2, 4)
    kept = np.where(third & (c.micro == 1), 0.0, each * held / share[2])
    gradients = kept + np.where(third, 2 * layer_parameters(c), 0.0)
    optimizer = 12 * held / share[1]
    interleaved = np.where(c.vp > 1, 1 + (c.pp - 1) / (c.pp * c.vp), 1.0)
    flying = np.where(c.pp > 1, np.minimum(c.pp * interleaved, c.micro), 1.0)
    of_one = c.tokens * c.depth * saved_bytes(c)
    again = np.where(c.recompute == FULL, c.tokens * (14 * c.hidden + 6 * c.ffn * c.chosen) / c.tp, 0.0)
    logits = LOGIT_BYTES * c.tokens * c.vocab / c.tp
    logits = np.maximum(0.0, logits - of_one * (flying - 1))  # beyond what the first stage has more than the last
    return Memory(weights, gradients, optimizer, gathered, of_one * flying + again, logits)


def fits(c: Cases) -> Array:
    """Return 1 where the plan fits, else 0."""
    # The margin for the model's own errors: a datasheet's GB count 10^9 bytes here, and NVIDIA's boards have nearly as
    # many GiB, 7 % more.
    return (memory(c).needed <= c.memory).astype(float)
