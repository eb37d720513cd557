"""How many floating-point operations a token costs: the numerator of every MFU.

A matrix product [M, K] @ [K, N] is M * N sums of K products: 2 M N K FLOPs. Counted are the matrix products and nothing
else: the block linears, the head, and the two products of attention (q k^T, and its softmax times v). Norms, rotary
turns, softmax, SwiGLU's product and the embedding look-up are left out, as in every published MFU; so is what
activation checkpointing computes twice (these are model FLOPs, not hardware FLOPs).

Backward costs two products for each one forward, one for the input's gradient and one for the weight's (for attention:
one for each of its two inputs). So forward + backward = 3 * forward, and a linear with P weights costs 6 P a token.

**Two conventions for attention**, and a speed means nothing until it says which:

  causal=True   a position looks at itself and earlier ones: (T + 1) / 2 on average. What the mathematics needs, and
                about what a causal flash kernel computes. This course reports this one.
  causal=False  every position against all T: twice as much. The convention of PaLM (arXiv:2204.02311, appendix B:
                6 P + 12 L H Q T a token) and of most training frameworks; it makes the same run look faster.
"""

from __future__ import annotations

import math

from labkit.model.config import ModelConfig


def linear_params(config: ModelConfig) -> int:
    """Weights that take part in a matrix product for each token: block linears and head; no embedding, no norms. Of
    experts the `topk` that a token goes through, and the router."""
    shapes = config.weight_shapes()
    dense = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name != "tok_embed.weight")
    return dense + sum(config.topk * math.prod(shape[1:]) for shape in shapes.values() if len(shape) == 3)


def n_params(config: ModelConfig) -> int:
    """All parameters. A tied head shares the embedding's table and is counted once."""
    shapes = config.weight_shapes()
    return sum(math.prod(shape) for name, shape in shapes.items() if not (config.tie_embeddings and "head" in name))


def attention_flops_per_token(config: ModelConfig, seq_len: int, causal: bool) -> float:
    """Forward FLOPs of q k^T and of the weighted sum of v, over all layers: 2 products * 2 FLOPs * D * keys looked at.

    Grouping changes nothing here: key/value heads are shared, but every query head still makes its own products.
    """
    keys = (seq_len + 1) / 2 if causal else seq_len
    return config.n_layers * 2 * 2 * config.d_model * keys


def flops_per_token(config: ModelConfig, seq_len: int, causal: bool, backward: bool = True) -> float:
    """FLOPs per token, averaged over a sequence of seq_len tokens.

    causal: the attention convention, see above. backward: forward + backward (a training step); False: forward only.
    """
    forward = 2 * linear_params(config) + attention_flops_per_token(config, seq_len, causal)
    return 3 * forward if backward else forward
