"""From a plain decoder to one that trains: the order of transforms, written once.

    model --convert--> other linears --checkpoint--> recomputed blocks --compile--> fused kernels --shard--> 1/N each

1. Convert replaces modules by name, so it must see the model as it was written; on a mesh with tp the linears are then
cut (labkit.parallel.tensor). 2. Activation checkpointing lies inside what is compiled: the compiler plans for the
recomputation. Which checkpoint is the backend's. 3. Compile one block, so that all share one compilation; whole where
its linears allow it (nn.Linear, torchao), else what lies between the linears. 4. Shard last: FSDP2 gathers and scatters
around the call of a block, so the compiler never sees a collective.

Checkpointing and compiling replace a module's `forward`: parameter names, and so checkpoints, stay the plain model's.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend
from torch.utils.checkpoint import checkpoint

from labkit.comm.group import Group
from labkit.comm.mesh import Mesh
from labkit.errors import LabError, in_words
from labkit.model.decoder import Transformer
from labkit.parallel.options import TransformConfig
from labkit.parallel.shard import shard
from labkit.parallel.tensor import tensor_parallel
from labkit.precision.base import Backend, ConversionReport
from labkit.precision.matrix import refuse, this_gpu
from labkit.precision.registry import spec_of

BETWEEN_LINEARS = ("attn_norm", "attn.core", "ffn_norm", "ffn.act")  # a block's modules that have no linear inside


def prepare(
    model: Transformer,
    config: TransformConfig,
    group: Group,
    backend: Backend,
    tokens: int | None = None,
    mesh: Mesh | None = None,
) -> ConversionReport:
    """Convert, checkpoint, compile and shard `model` as `config` says; in place, in this order.

    tokens: of a micro-batch on one rank, for the backend to check. mesh: `group` as dp and tp; None: all ranks are dp.
    LabError: what the matrix or `backend.convert` refuses; compile = true without a compiler.
    """
    spec = spec_of(config.precision, device=group.device, ranks=group.size, tokens=tokens)
    refuse(config, this_gpu(group.device.type), group.size)
    if config.compile:
        check_compiler(group.device)
    choose_attention(model, config.attention)
    report = backend.convert(model, spec)
    if mesh is not None and mesh.sizes["tp"] > 1:
        tensor_parallel(model, mesh.device_mesh["tp"])
    if config.loss_chunk:
        now = config.precision.scaled_loss is None and "head" not in report.converted
        chunked = functools.partial(chunked_loss, model, config.loss_chunk, now=now)
        model.loss = chunked  # type: ignore[method-assign]  # on this model alone, as checkpoints replace a forward
    if config.activation_checkpointing == "block":
        checkpoint_blocks(model, backend)
    if config.compile:
        compile_model(model, backend)
    apart = not config.loss_chunk  # a head that is called in pieces stays in the root
    over = None if mesh is None else mesh.device_mesh["dp"]
    how: dict[str, Any] = dict(reshard_after_forward=config.reshard_after_forward, head_apart=apart, mesh=over)
    shard(model, group, backend.param_dtype, **how)
    return report


def choose_attention(model: Transformer, kernel: str) -> None:
    """Which kernel computes attention: "auto" (torch's choice), "flash" or "cudnn"."""
    kinds = {"auto": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for block in model.blocks():
        block.attn.core.kernel = kinds[kernel]


def chunked_loss(
    model: Transformer, chunk: int, x_BTD: torch.Tensor, targets_BT: torch.Tensor, *, now: bool = True
) -> torch.Tensor:
    """The mean loss, from the logits of `chunk` tokens at a time: the pieces' means, weighted by their lengths.

    now: each piece's gradient is taken while its logits are there; else they are computed again in the backward, for
    FP16, whose loss must be scaled first, and an FP8 head.
    """
    head, criterion = model.head, model.criterion
    assert head is not None, "only the last stage has a loss"

    def piece(x_MD: torch.Tensor, targets_M: torch.Tensor) -> torch.Tensor:
        return criterion(head(x_MD)[None], targets_M[None]) * (len(targets_M) / targets_BT.numel())

    pieces = list(zip(x_BTD.flatten(0, 1).split(chunk), targets_BT.flatten().split(chunk)))
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    if not (torch.is_grad_enabled() and x_BTD.requires_grad and now):
        return torch.stack([checkpoint(piece, *pair, use_reentrant=False) for pair in pieces]).sum()
    return _GradientNow.apply(piece, pieces, x_BTD, *weights)


class _GradientNow(torch.autograd.Function):
    """Sum of piece(x, targets) over `pieces` of x_BTD; its gradient by x_BTD and `weights` is taken in the forward."""

    @staticmethod
    def forward(ctx: Any, piece: Callable, pieces: list, x_BTD: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        each, by_x = [], []
        by_weights = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        for x_MD, targets_M in pieces:
            with torch.enable_grad():
                x_MD = x_MD.detach().requires_grad_()
                loss = piece(x_MD, targets_M)
                found = torch.autograd.grad(loss, (x_MD, *weights))
            each.append(loss.detach())
            by_x.append(found[0])
            for total, more in zip(by_weights, found[1:]):
                total += more
        ctx.types = [tensor.dtype for tensor in (x_BTD, *weights)]
        ctx.save_for_backward(torch.cat(by_x).view_as(x_BTD), *by_weights)
        return torch.stack(each).sum()

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple:
        # In FP32: 1/3, the share of one of three micro-batches, rounded to BF16 is 0.2 % too large.
        outs = [torch.empty_like(gradient, dtype=kind) for gradient, kind in zip(ctx.saved_tensors, ctx.types)]
        by = [torch.mul(g.float(), outer.float(), out=out) for g, out in zip(ctx.saved_tensors, outs)]
        return None, None, *by


def checkpoint_blocks(model: Transformer, backend: Backend) -> None:
    """Each block keeps its input only and runs its forward again in backward."""
    for block in model.blocks():
        again = functools.partial(backend.checkpoint, block.forward)
        block.forward = again  # type: ignore[method-assign]  # in place of a wrapper: parameters keep their names


def compile_model(model: Transformer, backend: Backend, compiler: str = "inductor") -> None:
    """torch.compile, lazily: the compiler runs at the first call."""
    parts: list[nn.Module] = [part for part in (model.norm, model.criterion) if part is not None]
    if backend.compiles == "block":
        parts += model.blocks()
    else:
        between = [n for n in BETWEEN_LINEARS if not (model.config.experts and n == "ffn.act")]
        between += ["ffn"] if model.config.experts else []  # a mixture of experts has no linear that is converted
        parts += [block.get_submodule(name) for block in model.blocks() for name in between]
    for part in parts:
        part.forward = torch.compile(part.forward, backend=compiler)


def check_compiler(device: torch.device) -> None:
    """LabError if torch.compile has no compiler for this device."""
    try:
        if device.type == "cuda":
            import triton  # noqa: F401  whether it can be imported is the question
        else:
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
    except Exception as error:
        on_cpu = "a C++ compiler on a CPU, and none was found", "install g++"
        lacks, fix = ("Triton, which does not import", "pip install triton") if device.type == "cuda" else on_cpu
        raise LabError(f"compile = true needs {lacks} ({in_words(error)}): {fix}, or set compile = false") from None
