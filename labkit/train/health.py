"""Is this step fit to be applied? Every rank must give the same answer.

One element that is inf or NaN is enough to ruin a run: through the gradient norm, clipping spreads it to every
gradient, and the next update writes it into every weight. The loss does not warn: it can be finite while a gradient is
not (the loss was computed before the gradients, and a backward pass can overflow alone). So both are checked, on every
step, before clipping.

Under FSDP2 a bad element lies in the shard of one rank. If that rank alone skipped the update, the weights would no
longer be one model. So the ranks agree, in one all-reduce of a short vector in which each rank writes its own numbers:

    [ sum of squares of my gradients,  my loss,  is my loss bad?,  are my gradients bad?,  0 .. my peak memory .. 0 ]

Two details matter. A rank whose number is not finite sends the flag 1 and the number 0: NaN does not survive every
reduction (gloo's MAX can return a number), a flag does. And the memory has a slot for each rank, zero elsewhere, so
that the sum is a gather: no second message.

Each element counts once, however many ranks hold it: a rank that holds one of c copies adds its square divided by c.
How many there are a DTensor says; a plain tensor is taken to be the same on every rank, its gradient already summed,
and one that is only a part is refused (`refuse_hand_sharded`).

The price: the host must read the answer before it may start the update. So once a step the CPU waits for the GPU, and
the GPU then waits while the CPU launches clipping and AdamW: 3 ms on an H200 for the 124m model's 110 parameters
(torch 2.11, 2026-11-21), whatever the batch: under 1 % of a step of half a second. It can be avoided: compute the
decision on the GPU and let the update kernel obey it (that is what `found_inf` of fused AdamW does for a GradScaler).
We do not: the loss has to be read once a step anyway, and an `if` that can be read is worth the milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.comm.group import Group
from labkit.model.config import ModelConfig
from labkit.model.weights import copies, named_weights, refuse_hand_sharded


@dataclass(frozen=True)
class Vitals:
    """What all ranks know about a step after `check`. The same on every rank."""

    loss: float  # mean over the global batch; NaN if it is not finite on some rank
    grad_norm: float  # L2 norm of the whole gradient; NaN likewise
    bad_loss: int  # number of ranks with a loss that is not finite
    bad_grad: int  # number of ranks that hold a gradient that is not finite
    memory: list[int]  # what each rank passed as `memory_bytes`

    @property
    def finite(self) -> bool:
        return not (self.bad_loss or self.bad_grad)


@torch.no_grad()
def check(loss: Tensor, model: nn.Module, group: Group, memory_bytes: int = 0) -> Vitals:
    """Loss and gradient norm over all ranks, and whether anything is not finite. One all-reduce, one wait; every rank
    calls.

    loss: scalar, this rank's mean loss, on `group.device`. LabError: a parameter that was cut by hand. A gradient
    tensor with a norm above 1.8e19 may count as not finite: FP32 cannot hold its square.
    """
    squares = _sum_of_squares(model, group)
    loss = loss.detach().to(squares)
    bad_loss, bad_grad = ~loss.isfinite(), ~squares.isfinite()

    memory = torch.zeros(group.size, dtype=torch.float64)
    memory[group.rank] = memory_bytes  # exact: FP64 holds integers up to 2**53
    vector = torch.stack(
        [torch.where(bad_grad, 0.0, squares), torch.where(bad_loss, 0.0, loss), bad_loss.double(), bad_grad.double()]
    )
    vector = torch.cat([vector, memory.to(vector.device, non_blocking=True)])
    group.all_reduce(vector)
    square, mean, bad_losses, bad_grads, *peaks = vector.tolist()  # the one wait
    return Vitals(
        loss=float("nan") if bad_losses else mean / group.size,
        grad_norm=float("nan") if bad_grads else square**0.5,
        bad_loss=int(bad_losses),
        bad_grad=int(bad_grads),
        memory=[int(m) for m in peaks],
    )


@torch.no_grad()
def norms(model: nn.Module, group: Group, held: Callable[[Tensor], Tensor] = lambda w: w) -> dict[str, Any]:
    """{"param_norm": L2 norm of all weights, "grad_norms": {block: L2 norm of its gradient}}, over all ranks, before
    clipping. A block is "layers.0", or what stands beside the layers. held: a weight as an ordinary tensor, sharded
    alike."""
    config = getattr(model, "config", None)
    names = config.weight_shapes() if isinstance(config, ModelConfig) else [name for name, _ in named_weights(model)]
    place = {block: at for at, block in enumerate(dict.fromkeys(map(block_of, names)), 1)}  # alike on every rank
    squares = torch.zeros(1 + len(place), dtype=torch.float64, device=group.device)

    def add(at: int, parameter: nn.Parameter, x: Tensor) -> None:
        norm = torch.linalg.vector_norm(x, dtype=torch.float32).double()
        squares[at] += norm.square() / copies(parameter, group.size)

    for name, parameter, grad in local_gradients(model):
        add(place[block_of(name)], parameter, grad)
    for _, parameter in named_weights(model):
        weight = held(parameter)
        add(0, parameter, weight.to_local() if isinstance(weight, DTensor) else weight)
    group.all_reduce(squares)
    whole, *blocks = squares.sqrt().tolist()
    return {"param_norm": whole, "grad_norms": dict(zip(place, blocks))}


def block_of(name: str) -> str:
    """The block that a weight belongs to: "layers.0.attn.wq.weight" to "layers.0", "head.weight" to "head"."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else parts[0]


@torch.no_grad()
def clip(model: nn.Module, grad_norm: float, clip_norm: float) -> None:
    """Scale all gradients, in place, so that their common norm is at most `clip_norm` (arXiv:1211.5063). 0: off.

    `grad_norm` is `check`'s. It must be finite: clip_norm / inf would turn the one infinite element into NaN, the
    others into 0.
    """
    if clip_norm and grad_norm > clip_norm and (gradients := local_gradients(model)):
        torch._foreach_mul_([grad for _, _, grad in gradients], clip_norm / grad_norm)


def local_gradients(model: nn.Module) -> list[tuple[str, nn.Parameter, Tensor]]:
    """(name, parameter, the part of its gradient that this rank holds, a plain tensor). A gradient that tensor
    parallelism placed otherwise is brought to its weight's placement first, so all ranks call this. LabError: one cut
    by hand."""
    refuse_hand_sharded(model)
    found = []
    for name, parameter in named_weights(model):
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
            if grad.placements != parameter.placements:
                parameter.grad = grad = grad.redistribute(parameter.device_mesh, parameter.placements)
            grad = grad.to_local()
        if grad is not None:
            found.append((name, parameter, grad))
    return found


def _sum_of_squares(model: nn.Module, group: Group) -> Tensor:
    """This rank's part of |g|^2, such that the parts of all ranks add up to the whole. FP64 scalar on the device."""
    gradients = local_gradients(model)
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=group.device)
    norms = torch.stack(torch._foreach_norm([grad for _, _, grad in gradients])).double()  # few launches for all
    weights = torch.tensor([1 / copies(p, group.size) for _, p, _ in gradients], dtype=torch.float64)
    return (norms.square() * weights.to(norms.device, non_blocking=True)).sum()


def culprits(model: nn.Module, most: int = 3) -> str:
    """The parameters whose gradient is not finite on this rank, as text. Waits for the device. All ranks together."""
    names = [name for name, _, grad in local_gradients(model) if not bool(grad.isfinite().all())]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def gather_text(group: Group, text: str) -> list[str]:
    """Every rank's `text`, in rank order, on every rank. Two all-gathers of bytes; it works on every backend."""
    mine = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length = torch.tensor([len(mine)], dtype=torch.int64).to(group.device)
    sizes = group.all_gather(length).tolist()
    room = max(1, *sizes)
    padded = torch.zeros(room, dtype=torch.uint8)
    padded[: len(mine)] = mine
    every = group.all_gather(padded.to(group.device)).cpu().view(group.size, room)
    return [bytes(row[:size].tolist()).decode() for row, size in zip(every, sizes)]


def agree(group: Group, complaint: str | None) -> str | None:
    """The first rank's complaint, on every rank; None if no rank has one. So that all ranks stop together, or none."""
    return next((text for text in gather_text(group, complaint or "") if text), None)
