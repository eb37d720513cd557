"""How much memory a rank of a training will need, predicted from shapes alone: within 1 % of recorded trainings in
compiled BF16 (124 M, 1.14 B and 8 B parameters, one to four GPUs)."""

import math

from labkit.model.config import ModelConfig
from labkit.model.flops import n_params
from labkit.train.config import TrainConfig

GIB = 2**30
LOGIT_BYTES = 4  # BF16, and their gradient
PROBED_BYTES = 9  # more a logit in a step that probes


def parameters(model: ModelConfig) -> tuple[int, int]:
    """(of one block, of everything outside the blocks)."""
    block = sum(math.prod(shape) for shape in model.block_shapes().values())
    return block, n_params(model) - model.n_layers * block


def predict(config: TrainConfig, world: int) -> dict[str, int]:
    """Bytes of one of `world` ranks in compiled BF16, by category, and their sum as "peak"."""
    model, several = config.resolved_model, config.accumulation > 1
    block, outside = parameters(model)
    every = model.n_layers * block + outside
    held = -(-every // world)  # parameters of a rank, FP32 under FSDP2
    tokens = config.batch_size // world // config.accumulation * config.seq_len
    # What the backward of a block needs, in BF16: two residual inputs, two norms' outputs, q and attention's output; k,
    # v; gate, up and their product.
    layer = 2 * (6 * model.d_model + 2 * model.n_kv_heads * model.d_head + 3 * model.d_ffn * max(1, model.topk))
    activations = tokens * layer * model.n_layers
    if config.activation_checkpointing == "block":  # each block's input, and one block at a time
        activations = tokens * (2 * model.d_model * model.n_layers + layer)
    at_once = min(tokens, config.loss_chunk or tokens)
    found = {
        "weights": 4 * held,
        # A sum of whole gradients waits for the last micro-batch.
        "gradients": 4 * (every if config.reduce_once and several else held),
        "optimizer": 8 * held,
        "gathered": 2 * (outside + (2 if config.reshard_after_forward else model.n_layers) * block),
        "activations": activations,
        # In pieces (`loss_chunk`) also the head's gradient, in FP32 and once more in BF16.
        "logits": (LOGIT_BYTES + PROBED_BYTES * bool(config.probe_every)) * model.vocab_size * at_once
        + bool(config.loss_chunk) * (6 * model.vocab_size + 2 * tokens) * model.d_model,
    }
    coming, going = found["gradients"], activations + found["logits"]
    return {**found, "peak": sum(found.values()) - (0 if several else min(coming, going))}


def held(config: TrainConfig, world: int) -> int:
    """Bytes that a rank holds at the end of every backward, whatever the batch: weights, gradients, AdamW's two states."""
    return 16 * -(-n_params(config.resolved_model) // world)
