"""How much memory a rank of a training will need, told before the meter runs. A prediction, from shapes alone.

    weights, gradients, AdamW      16 bytes a parameter, over the N ranks (FP32, FSDP2: labkit.parallel.shard)
                                   and 4 bytes a parameter of the whole model for `reduce_once`
    gathered                       the embedding, the head and two blocks in BF16 (all blocks, if they stay gathered)
    activations                    what the backward needs of each block: two residual inputs, q, attention's output,
                                   k, v, gate and up, in BF16; the compiler recomputes the rest (norms, SwiGLU)
    logits                         14 bytes each, of all tokens of a micro-batch: BF16, FP32 and their gradients

The last two were found on two recorded trainings in compiled BF16 (week16_fp8/results, one H200) and come within 5 % of
their peaks: 1.14 B parameters with 20 x 4096 tokens, and 124 M with 64 x 1024. Other arms differ: there, Transformer
Engine in BF16 took 7 % more, in FP8 1 % less to 8 % more; torchao's took 25 % less at the larger size.

The sum counts the gradients beside the activations. They come only as activations go, so where a rank holds many
weights it is too large: 8 B parameters on two GPUs took 85.4 GiB of the 99.3 predicted.
"""

from __future__ import annotations

import math

from labkit.model.config import ModelConfig
from labkit.model.flops import n_params
from labkit.train.config import TrainConfig

GIB = 2**30
LOGIT_BYTES = 14


def parameters(model: ModelConfig) -> tuple[int, int]:
    """(of one block, of everything outside the blocks)."""
    block = sum(math.prod(shape) for shape in model.block_shapes().values())
    return block, n_params(model) - model.n_layers * block


def predict(config: TrainConfig, world: int) -> dict[str, int]:
    """Bytes of one of `world` ranks in compiled BF16, by category, and their sum as "peak"."""
    model = config.resolved_model
    block, outside = parameters(model)
    held = -(-(model.n_layers * block + outside) // world)
    tokens = config.batch_size // world // config.accumulation * config.seq_len
    layer = 2 * (4 * model.d_model + 2 * model.n_kv_heads * model.d_head + 2 * model.d_ffn * max(1, model.topk))
    if config.activation_checkpointing == "block":  # each block's input, and one block at a time
        activations = tokens * (2 * model.d_model * model.n_layers + layer)
    else:
        activations = tokens * layer * model.n_layers
    at_once = min(tokens, config.loss_chunk or tokens)
    whole = config.reduce_once and config.accumulation > 1  # a sum of whole gradients waits for the last micro-batch
    found = {
        "weights": 4 * held,
        "gradients": 4 * held + 4 * (model.n_layers * block + outside) * whole,
        "optimizer": 8 * held,
        "gathered": 2 * (outside + (2 if config.reshard_after_forward else model.n_layers) * block),
        "activations": activations,
        "logits": LOGIT_BYTES * model.vocab_size * at_once,
    }
    return {**found, "peak": sum(found.values())}


def held(config: TrainConfig, world: int) -> int:
    """Bytes that one of `world` ranks holds at the end of every backward, whatever the batch: FP32 weights, their
    gradients, AdamW's two states."""
    found = predict(config, world)
    return sum(found[kind] for kind in ("weights", "gradients", "optimizer"))
