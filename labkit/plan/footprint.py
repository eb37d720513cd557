"""What a rank holds at a step's peak, by kind (week 14), and whether it fits.

Bytes a parameter: weights 2, gradients 4 (2 under plain DDP and in FP16), masters and AdamW's moments 12. ZeRO cuts the
last, then gradients, then weights over the data-parallel ranks; under stage 3 the shard is FP32, the root and two layers
are gathered, and gradients come only as activations go, unless micro-batches sum them. Under a pipeline FSDP keeps its
stage gathered for the whole step. FP8 keeps an uncut copy of the weights, 1 byte each (MXFP8, NVFP4: by their bits).

Activations, bytes a token and layer (arXiv:2205.05198): what norms, residual sums and inputs of column-parallel linears
keep is whole on each tensor-parallel rank unless sequence parallelism cuts it; the rest is cut. A pipeline's first
stage keeps P micro-batches under 1F1B, (P-1)/vp of one more if interleaved; its last one a single one, and the logits.

Releases of one software differ in what they keep (`Software`), so memory is a range: a plan fits, may fit, or does not.
"""

from typing import NamedTuple

import numpy as np

from labkit.plan.cases import FULL, OPERATIONS, SDPA, SELECTIVE, UNFUSED, Array, Cases

GIB = 2.0**30
CONTEXT = 0.5 * GIB  # CUDA and cuBLAS, outside of what torch counts: nvidia-smi minus reserved, one GPU
COMMUNICATOR = 0.5 * GIB  # NCCL's buffers for each kind of group: the same on several GPUs
FRAGMENTS = 0.06  # of torch's peak: what its allocator reserves beyond (results of week 14: 3 to 11 %)


class Software(NamedTuple):
    """What a release decides and no plan says, in bytes: of a parameter's gradient (with fused or unfused attention), of a
    logit at the loss, and of an output of the MLP's activation function (0: computed again).
    """

    gradient: float
    unfused: float
    logit: float
    activation: float


# FP32 sums (unfused, older stacks: beside BF16 gradients, as DeepSpeed's BF16 optimizer keeps them); PyTorch's own loss.
PLAIN = Software(gradient=4, unfused=6, logit=14, activation=2)
# NVIDIA's recipes for speed: sums in BF16 (grad_reduce_in_fp32 = false), and the fused loss of Transformer Engine, which
# writes the gradient over the logits; SwiGLU computed again in backward.
LEAN = Software(gradient=2, unfused=2, logit=4, activation=0)


NOT, MAY, FITS = range(3)
WORDS = ("does not fit", "may fit", "fits")


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


def layer_parameters(c: Cases) -> Array:
    experts = np.where(c.moe, np.maximum(1.0, c.experts) / c.ep, 1.0)
    return (c.attention_weights + experts * c.mlp_weights) / c.tp


def root_parameters(c: Cases) -> Array:
    """Return the parameters of the embedding, and of the head where it is on the same rank and not the same table."""
    return c.vocab * c.hidden / c.tp * np.where((c.pp > 1) | (c.tied > 0), 1.0, 2.0)


def held_parameters(c: Cases) -> Array:
    """Return the parameters of the fullest rank, before ZeRO."""
    return c.depth * layer_parameters(c) + root_parameters(c)


def saved_bytes(c: Cases, software: Software = PLAIN) -> tuple[Array, Array]:
    """Return the bytes that a token leaves in a layer for its backward, and those of the layer that is computed again."""
    h, kv, f, t = c.hidden, 2 * c.d_kv, c.ffn * c.chosen, c.tp
    rows = np.where(c.sp > 0, t, 1.0)
    up = np.where(c.gated > 0, 4, 2) * f  # the outputs of the MLP's first product
    once = c.size  # what a product keeps of its input for its weight's gradient
    # (whole on each rank, in the MLP) by software; q, k, v and the output projection's input are kept by all
    plain = (10 * h, np.where(c.gated > 0, 8, 4) * f)  # with dropout's masks
    eager = (8 * h, np.where(c.gated > 0, 8, 4) * f)
    fused = ((4 + 2 * once) * h, up + np.minimum(software.activation, once) * f)  # Transformer Engine
    compiled = (4 * h, 4 * f)  # norms and the activation function are computed again
    kinds = [c.attention == UNFUSED, c.attention == SDPA, c.zero >= 3]
    whole, mlp = (np.select(kinds, list(some), fused[i]) for i, some in enumerate(zip(plain, eager, compiled)))
    core = np.where(c.attention == UNFUSED, 5 * c.heads * c.seq, 0.0) / t
    saved = whole / rows + (4 * c.d_q + 2 * kv + mlp) / t
    half = (7 * h + kv + np.where(c.gated > 0, 2, 1) * f) / t  # every second product's output, attention's, the input
    kinds = [c.recompute == FULL, c.recompute == OPERATIONS, c.recompute == SELECTIVE]
    return np.select(kinds, [2 * h / rows, half, saved], saved + core), np.where(c.recompute == FULL, saved + core, 0.0)


def memory(c: Cases, software: Software = PLAIN) -> Memory:
    held, N = held_parameters(c), c.dp * c.cp
    share = {stage: np.where(c.zero >= stage, N, 1.0) for stage in (1, 2, 3)}
    third = c.zero >= 3
    stays = third & (c.pp > 1)  # gathered, and its gradients whole, until the step's end
    weights = np.where(third, 0.0, 2 * held)
    two_layers = 2 * (root_parameters(c) + 2 * layer_parameters(c))
    gathered = np.select([stays, third], [2 * held, two_layers], 0.0) + c.low * c.size * held
    each = np.where(c.attention == UNFUSED, software.unfused, software.gradient)
    each = np.where((c.half > 0) | ((c.attention == SDPA) & (c.zero == 0)), 2, each)
    kept = np.where(third & (c.micro == 1), 0.0, each * held / share[2])
    gradients = np.where(stays, 4 * held, kept + np.where(third, 2 * layer_parameters(c), 0.0))
    optimizer = 12 * held / share[1]
    interleaved = np.where(c.vp > 1, 1 + (c.pp - 1) / (c.pp * c.vp), 1.0)
    flying = np.where(c.pp > 1, np.minimum(c.pp * interleaved, c.micro), 1.0)
    kept_of_one, again = (c.tokens * each for each in saved_bytes(c, software))
    of_one = c.depth * kept_of_one
    logits = software.logit * c.tokens * c.vocab / c.tp
    logits = np.maximum(0.0, logits - of_one * (flying - 1))  # beyond what the first stage has more than the last
    return Memory(weights, gradients, optimizer, gathered, of_one * flying + again, logits)


class Room(NamedTuple):
    """Bytes that the GPU must have: expected of plain software, the least of lean and the most of plain software."""

    expected: Array
    least: Array
    most: Array

    def fits(self, have: Array) -> Array:
        """Return `FITS`, `MAY` or `NOT` for GPUs with `have` bytes."""
        return np.select([self.most <= have, self.least <= have], [FITS, MAY], NOT)


def room(c: Cases, sigma: float) -> Room:
    """Return what torch reserves, with the driver's and NCCL's; sigma: of log(bytes), what formulas leave out."""
    beside = CONTEXT + COMMUNICATOR * sum((one > 1).astype(float) for one in (c.dp, c.tp, c.pp, c.cp, c.ep))
    plain, lean = ((1 + FRAGMENTS) * memory(c, each).total for each in (PLAIN, LEAN))
    return Room(plain + beside, lean + beside, plain * np.exp(sigma) + beside)
