"""The values of the weights: first values, and the small perturbation that makes a twin.

A comparison of number formats is void unless both arms start from the same weights. So a weight's first value depends
on its name, its shape and the seed, and on nothing else: not on the linear type (te.Linear draws its own), not on the
order in which modules were built, not on how the weight is sharded, not on compile or checkpoint wrappers.

Each tensor is cut into runs of rows, and each run has its own generator, seeded by (seed, name, run). A rank that holds
rows 4096..8191 of an FSDP2-sharded weight draws the runs that touch them: no communication, no full copy, and the same
values as on one rank.

The scheme is GPT-2's: weights ~ normal(0, 0.02); the two projections of a block that write into the residual stream
(attn.wo, ffn.w2) are smaller by 1 / sqrt(2 * n_layers), so that the sum over 2 * n_layers additions keeps its size;
norm weights are 1; biases, where a linear type insists on one, are 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from labkit.errors import LabError

STD = 0.02
RESIDUAL = ("attn.wo.weight", "ffn.w2.weight")
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")  # torch.compile, checkpoint, FSDP1
RUN = 1 << 20  # elements drawn by one generator

Draw = Callable[[Tensor, torch.Generator], Tensor]  # fills a tensor in place


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> nn.Module:
    """Give every parameter its first value, in place; returns the model.

    Works on plain and on DTensor parameters, of any floating dtype, on any device. After meta-device construction call
    `to_empty` first (LabError otherwise).
    """
    for name, weight in _named(model):
        local, std = _local(weight), _std(name, model.config.n_layers)
        if std is None:
            local.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            local.copy_(_rows_drawn(weight, f"init/{seed}/{name}", lambda x, g: x.normal_(0.0, std, generator=g)))
    return model


def _std(name: str, n_layers: int) -> float | None:
    """The standard deviation a weight is drawn with; None for norms and biases, which are not drawn."""
    if name.endswith(("norm.weight", "bias")):
        return None
    return STD / (2 * n_layers) ** 0.5 if name.endswith(RESIDUAL) else STD


@torch.no_grad()
def perturb(model: nn.Module, relative: float, seed: int) -> nn.Module:
    """w <- w * (1 + relative * u), u ~ uniform(-1, 1), for every weight, in place; returns the model.

    With relative = 2**-9 (half a unit in bf16's last place) this moves the weights by what rounding them could have
    done: the twin that gives a comparison of formats its band. Call it on the fp32 master weights.
    """
    if relative == 0:
        return model
    for name, weight in _named(model):
        u = _rows_drawn(weight, f"perturb/{seed}/{name}", lambda x, g: x.uniform_(-1.0, 1.0, generator=g))
        local = _local(weight)
        local.mul_(1 + relative * u.to(local.device))
    return model


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name without wrappers, parameter), each parameter once: a tied head appears as tok_embed.weight."""
    if model.config.tie_embeddings and model.head.weight is not model.tok_embed.weight:
        raise LabError(
            "tie_embeddings is true, but the head's weight is no longer the embedding's: "
            "set model.head.weight = model.tok_embed.weight before giving values"
        )
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise LabError(f"{name} is on the meta device and has no memory: call model.to_empty(device=...) first")
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        yield name, weight


def _local(weight: Tensor) -> Tensor:
    """The part of a weight that this rank holds; writing to it writes to the weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _rows_drawn(weight: Tensor, key: str, draw: Draw) -> Tensor:
    """This rank's part of the full tensor of random values that `key` stands for. fp32, on the CPU.

    The CPU, because a CUDA generator's values depend on the GPU; fp32, because a bf16 normal_ draws other numbers.
    """
    if not isinstance(weight, DTensor):
        return _draw_rows(weight.shape, 0, _rows(weight.shape), key, draw).view(weight.shape)
    mesh, placements, rows = weight.device_mesh, weight.placements, weight.shape[0]
    if mesh.ndim == 1 and placements[0].is_shard(0):
        # Shard(0) is torch.chunk over rows: every rank ceil(rows / size), the last ones fewer or none.
        each = -(-rows // mesh.size())
        begin, end = (min(rows, (mesh.get_local_rank() + i) * each) for i in (0, 1))
        return _draw_rows(weight.shape, begin, end, key, draw).view(end - begin, *weight.shape[1:])
    # Any other layout (tensor parallel, two-dimensional meshes): draw everything, keep our part. src_data_rank=None
    # says that every rank already holds the same values, so nothing is sent.
    full = _draw_rows(weight.shape, 0, rows, key, draw).view(weight.shape).to(weight.device)
    return distribute_tensor(full, mesh, placements, src_data_rank=None).to_local()


def _rows(shape: torch.Size) -> int:
    return shape[0] if len(shape) else 1


def _draw_rows(shape: torch.Size, begin: int, end: int, key: str, draw: Draw) -> Tensor:
    """Rows begin..end of the full [rows, row] tensor. Runs are drawn side by side, on this process's torch threads."""
    rows, row = _rows(shape), shape[1:].numel()
    run = max(1, RUN // max(1, row))  # rows drawn by one generator
    out = torch.empty(end - begin, row, dtype=torch.float32, device="cpu")

    def draw_run(first: int) -> None:
        last = min(first + run, rows)
        drawn = draw(out.new_empty(last - first, row), _generator(f"{key}/{first}"))
        low, high = max(first, begin), min(last, end)
        out[low - begin : high - begin] = drawn[low - first : high - first]

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(draw_run, range(begin // run * run, end, run)))  # list: raises what a run raised
    return out


def _generator(key: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    return torch.Generator("cpu").manual_seed(seed)
