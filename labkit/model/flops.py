"""How many floating-point operations a token costs: the numerator of every MFU.

A matrix product [M, K] @ [K, N] is 2 M N K FLOPs. Counted are the block linears, the head, and attention's two
products; norms, rotary turns, softmax, the embedding and recomputation are not, as in every published MFU. Backward
costs two products for each one forward, so a linear with P weights costs 6 P a token.

Two conventions for attention, and a speed means nothing until it says which:

causal=True   a position looks at itself and earlier ones: (T + 1) / 2 on average. What the mathematics needs, and
                about what a causal flash kernel computes. This course reports this one.
causal=False  every position against all T: twice as much. The convention of PaLM (arXiv:2204.02311, appendix B:
                6 P + 12 L H Q T a token) and of most training frameworks; it makes the same run look faster.
"""

import math

from labkit.model.config import ModelConfig


def linear_params(config: ModelConfig) -> int:
    """Weights in a matrix product for each token: block linears and head; of experts `topk`, and the router."""
    shapes = config.weight_shapes()
    dense = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name != "tok_embed.weight")
    return dense + sum(config.topk * math.prod(shape[1:]) for shape in shapes.values() if len(shape) == 3)


def n_params(config: ModelConfig) -> int:
    """All parameters. A tied head shares the embedding's table and is counted once."""
    shapes = config.weight_shapes()
    return sum(math.prod(shape) for name, shape in shapes.items() if not (config.tie_embeddings and "head" in name))


def flops_per_token(config: ModelConfig, seq_len: int, causal: bool, backward: bool = True) -> float:
    """FLOPs per token, averaged over a sequence of seq_len tokens; backward: of a whole training step."""
    keys = (seq_len + 1) / 2 if causal else seq_len
    # q k^T and the weighted sum of v: 2 products of 2 FLOPs each
    forward = 2 * linear_params(config) + config.n_layers * 2 * 2 * config.d_model * keys
    return 3 * forward if backward else forward
