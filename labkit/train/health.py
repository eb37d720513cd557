"""Is this step fit to be applied? Every rank must give the same answer.

One element that is inf or NaN is enough to ruin a run: through the gradient norm, clipping spreads it to every
gradient, and the next update writes it into every weight. The loss does not warn: it can be finite while a gradient is
not (the loss was computed before the gradients, and a backward pass can overflow alone). So both are checked, on every
step, before clipping.

Under FSDP2 a bad element lies in the shard of one rank. If that rank alone skipped the update, the weights would no
longer be one model. So the ranks agree, in one all-reduce of a short vector in which each rank writes its own numbers:

    [ sum of squares of my gradients,  my loss,  is my loss bad?,  are my gradients bad?,  0 .. my peak memory .. 0 ]

A rank whose number is not finite sends the flag 1 and the number 0: NaN does not survive every reduction (gloo's MAX
can return a number), a flag does. The memory has a slot for each rank, so that the sum is a gather.

Each element counts once: a rank that holds one of c copies adds its square divided by c. How many there are a DTensor
says; a plain tensor is taken to be the same on every rank, and one that is only a part is refused.

The host must read the answer once a step, since the loss is recorded. If the update waited for that, the GPU would wait
while the CPU launches clipping, AdamW and the next forward: a step took 4 ms of 348 longer at 1.14B in FP8, 3 of 440 in
BF16 (H200, week16_fp8/results/2026-11-29-h200-peer.json). So the GPU decides: a fused optimizer divides by `grad_scale`
and does nothing where `found_inf` is 1, as torch.amp.GradScaler uses it, and the host reads while the update runs. Other
optimizers, as on a CPU, wait.
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
    """What all ranks know about a step after its check. The same on every rank."""

    loss: float  # mean over the global batch; NaN if it is not finite on some rank
    grad_norm: float  # L2 norm of the whole gradient; NaN likewise
    bad_loss: int  # number of ranks with a loss that is not finite
    bad_grad: int  # number of ranks that hold a gradient that is not finite
    memory: list[int]  # what each rank passed as `memory_bytes`

    @property
    def finite(self) -> bool:
        return not (self.bad_loss or self.bad_grad)


class Check:
    """A step's vitals, agreed among all ranks on the device and on their way to the host."""

    def __init__(self, vector: Tensor, size: int) -> None:
        self._vector, self._size = vector, size
        self._host = vector.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.Event() if vector.is_cuda else None
        if self._arrived:
            self._arrived.record()

    def read(self) -> Vitals:
        """Wait for the vitals, and not for what was launched after the check."""
        if self._arrived:
            self._arrived.synchronize()
        square, mean, bad_losses, bad_grads, *peaks = self._host.tolist()
        return Vitals(
            loss=float("nan") if bad_losses else mean / self._size,
            grad_norm=float("nan") if bad_grads else square**0.5,
            bad_loss=int(bad_losses),
            bad_grad=int(bad_grads),
            memory=[int(m) for m in peaks],
        )

    @torch.no_grad()
    def update(self, model: nn.Module, optimizer: Any, clip_norm: float) -> Vitals:
        """Clip, update and read; neither clip nor update if something is not finite on some rank."""
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            square, _, *bad = self._vector[:4].unbind()
            optimizer.found_inf = (bad[0] + bad[1] > 0).float()
            optimizer.grad_scale = (square.sqrt() / clip_norm).clamp(min=1).float() if clip_norm else None
            optimizer.step()
            return self.read()
        vitals = self.read()
        if vitals.finite:
            clip(model, vitals.grad_norm, clip_norm)
            optimizer.step()
        return vitals


@torch.no_grad()
def check(loss: Tensor, model: nn.Module, group: Group, memory_bytes: int = 0) -> Check:
    """Compute loss and gradient norm over all ranks, and whether anything is not finite. One all-reduce, of all ranks.

    loss: scalar, this rank's mean, on `group.device`. A gradient with a norm above 1.8e19 may count as not finite: FP32
    cannot hold its square. LabError: a parameter that was cut by hand.
    """
    squares = _sum_of_squares(model, group)
    loss = loss.detach().to(squares)
    bad_loss, bad_grad = ~loss.isfinite(), ~squares.isfinite()

    # Pinned: the host must not wait here. FP64 holds integers up to 2**53.
    memory = torch.zeros(group.size, dtype=torch.float64, pin_memory=squares.is_cuda)
    memory[group.rank] = memory_bytes
    vector = torch.stack(
        [torch.where(bad_grad, 0.0, squares), torch.where(bad_loss, 0.0, loss), bad_loss.double(), bad_grad.double()]
    )
    vector = torch.cat([vector, memory.to(vector.device, non_blocking=True)])
    group.all_reduce(vector)
    return Check(vector, group.size)


@torch.no_grad()
def norms(model: nn.Module, group: Group, held: Callable[[Tensor], Tensor] = lambda w: w) -> dict[str, Any]:
    """{"param_norm": L2 norm of all weights, "grad_norms": {block: L2 norm of its gradient}}, over all ranks, before
    clipping. held: a weight as an ordinary tensor, sharded alike."""
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
    """Scale all gradients, in place, so that their norm becomes at most `clip_norm` (arXiv:1211.5063). 0: off."""
    # `grad_norm` must be finite: clip_norm / inf would turn the one infinite element into NaN, the others into 0.
    if clip_norm and grad_norm > clip_norm and (gradients := local_gradients(model)):
        torch._foreach_mul_([grad for _, _, grad in gradients], clip_norm / grad_norm)


def local_gradients(model: nn.Module) -> list[tuple[str, nn.Parameter, Tensor]]:
    """(name, parameter, the part of its gradient that this rank holds, a plain tensor). All ranks call this: a gradient
    that tensor parallelism placed otherwise is brought to its weight's placement first. LabError: one cut by hand."""
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
    shares = [1 / copies(p, group.size) for _, p, _ in gradients]
    weights = torch.tensor(shares, dtype=torch.float64, pin_memory=norms.is_cuda)
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
