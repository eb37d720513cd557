"""How many floating-point operations a token costs: the numerator of every MFU.

A matrix product [M, K] @ [K, N] is 2 M N K FLOPs. Counted are the block linears, the head, and attention's two
products, as in every published MFU. Backward costs two products for each one forward.

Two conventions for attention, and a speed means nothing until it says which:

causal=True   a position looks at (T + 1) / 2 on average: what the mathematics needs. This course reports this one.
causal=False  at all T: of PaLM (arXiv:2204.02311, appendix B: 6 P + 12 L H Q T a token) and most training frameworks.
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
