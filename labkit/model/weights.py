"""The values of the weights: first values (GPT-2's scheme), and the small perturbation that makes a perturbed baseline.

A weight's first value depends on its name, its shape and the seed alone. Each run of rows has its own generator, seeded
by (seed, name, run): a rank draws the runs that its part touches, without communication.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.errors import LabError
from labkit.model.config import ModelConfig, Shape

STD = 0.02
# What writes into the residual stream is smaller, by 1 / sqrt(2 * n_layers); norm weights are 1, biases 0.
RESIDUAL = ("attn.wo.weight", "ffn.w2.weight", "ffn.experts.w2")
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # torch.compile's and checkpoint's
RUN = 1 << 20  # elements drawn by one generator

Draw = Callable[..., Tensor]  # draw(x, generator=...) fills x in place


def named_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name without wrappers, parameter), each parameter once: a tied head appears as tok_embed.weight."""
    for name, weight in model.named_parameters():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        yield name, weight


def refuse_hand_sharded(model: nn.Module) -> None:
    """LabError names the first parameter that, over all ranks, has not the shape that `model.config` gives it."""
    config = getattr(model, "config", None)
    shapes = _whole_shapes(config) if isinstance(config, ModelConfig) else {}
    for name, weight in named_weights(model):
        if tuple(weight.shape) != (whole := shapes.get(name, weight.shape)):
            parts = f"{name} is {list(weight.shape)}, and the model's is {list(whole)}"
            raise LabError(f"{parts}: a part that was cut by hand. Shard it as a DTensor, which knows its whole")


def copies(tensor: Tensor, ranks: int) -> float:
    """How many of `ranks` ranks, over which a model is spread, hold the same element of this tensor of it."""
    parts = 1
    if isinstance(tensor, DTensor):
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
            # "Not replicated", since FSDP2 over tensor parallelism has shards (_StridedShard) that deny being shards.
            parts *= 1 if placement.is_replicate() else size
    return ranks / parts


@functools.lru_cache(maxsize=8)
def _whole_shapes(config: ModelConfig) -> dict[str, Shape]:
    shapes = config.weight_shapes()
    biases = {name.removesuffix("weight") + "bias": s[:1] for name, s in shapes.items() if len(s) == 2}
    return {**shapes, **biases}


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> nn.Module:
    """Give every parameter, plain or DTensor, its first value, in place; returns the model, which has a ModelConfig.

    LabError: a parameter without memory (`to_empty` gives it), one that was cut by hand, a broken tie.
    """
    config = _ready(model)
    for name, weight in named_weights(model):
        local = _local(weight)
        if name.endswith(("norm.weight", "bias")):
            local.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            std = STD / (2 * config.n_layers) ** 0.5 if name.endswith(RESIDUAL) else STD
            draw = functools.partial(Tensor.normal_, mean=0.0, std=std)
            local.copy_(_part_drawn(weight, f"init/{seed}/{name}", draw))
    return model


@torch.no_grad()
def perturb(model: nn.Module, relative: float, seed: int) -> nn.Module:
    """w <- w * (1 + relative * u), u ~ uniform(-1, 1), for every fp32 master weight, in place; returns the model."""
    if relative == 0:
        return model
    _ready(model)
    for name, weight in named_weights(model):
        u = _part_drawn(weight, f"perturb/{seed}/{name}", lambda x, **how: x.uniform_(-1.0, 1.0, **how))
        local = _local(weight)
        local.mul_(1 + relative * u.to(local.device))
    return model


def _ready(model: nn.Module) -> ModelConfig:
    """The model's config; LabError if the model cannot be given values."""
    refuse_hand_sharded(model)
    config = model.config
    assert isinstance(config, ModelConfig)
    ends = {name: weight for name, weight in model.named_parameters(remove_duplicate=False) if "layers." not in name}
    if config.tie_embeddings and ends["head.weight"] is not ends["tok_embed.weight"]:
        tie = "set model.head.weight = model.tok_embed.weight before giving values"
        raise LabError(f"tie_embeddings is true, but the head's weight is no longer the embedding's: {tie}")
    for name, weight in named_weights(model):
        if weight.is_meta:
            raise LabError(f"{name} is on the meta device and has no memory: call model.to_empty(device=...) first")
    return config


def _local(weight: Tensor) -> Tensor:
    """The part of a weight that this rank holds; writing to it writes to the weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _part_drawn(weight: Tensor, key: str, draw: Draw) -> Tensor:
    """This rank's part of the full tensor of random values that `key` stands for; fp32, drawn on the CPU."""
    begin, size = [0] * weight.ndim, list(weight.shape)
    if isinstance(weight, DTensor):  # where checkpoints (DCP) say that it lies: right for every mesh and placement
        (part,) = weight.__create_chunk_list__()
        begin, size = list(part.offsets), list(part.sizes)
    if not size:
        return _draw_rows(weight.shape, 0, 1, key, draw).view(())
    if 0 in size:
        return torch.empty(size)
    rows = _draw_rows(weight.shape, begin[0], begin[0] + size[0], key, draw).view(size[0], *weight.shape[1:])
    return rows[(slice(None), *(slice(b, b + n) for b, n in zip(begin[1:], size[1:])))]


def _draw_rows(shape: torch.Size, begin: int, end: int, key: str, draw: Draw) -> Tensor:
    """Rows begin..end of the full [rows, row] tensor. Runs are drawn side by side, on this process's torch threads."""
    rows, row = shape[0] if shape else 1, shape[1:].numel()
    run = max(1, RUN // max(1, row))  # rows drawn by one generator
    out = torch.empty(end - begin, row, dtype=torch.float32, device="cpu")

    def draw_run(first: int) -> None:
        last = min(first + run, rows)
        own = int.from_bytes(hashlib.blake2b(f"{key}/{first}".encode(), digest_size=8).digest(), "little")
        drawn = draw(out.new_empty(last - first, row), generator=torch.Generator("cpu").manual_seed(own))
        low, high = max(first, begin), min(last, end)
        out[low - begin : high - begin] = drawn[low - first : high - first]

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(draw_run, range(begin // run * run, end, run)))  # list: raises what a run raised
    return out
