"""Checks of what a Group is called with: each mistake is one clear sentence, raised before anything is posted."""

import itertools
import re
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from labkit.comm.ledger import WORLD
from labkit.comm.transport import Op, Transport, dtype_name
from labkit.errors import LabError

OPS = ("sum", "mean", "max", "min", "prod")
REDUCIBLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
REDUCIBLE |= {torch.int8, torch.uint8, torch.int32, torch.int64}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}")  # of a part


class Group(Protocol):
    """The part of a group that the checks need (labkit.comm.group imports this file)."""

    rank: int
    size: int
    name: str
    ranks: tuple[int, ...]
    device: torch.device
    transport: Transport


def check_member(group: Group) -> None:
    if group.rank < 0:
        raise LabError(f'rank {group.transport.rank} is outside of group "{group.name}", and must not call it')


def world_rank(group: Group, rank: int, name: str) -> int:
    """The rank of the whole run that `group` calls `rank`."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < group.size:
        last = f"{group.size - 1} (wrap around with % group.size)"
        raise LabError(f'{name}={rank!r} is no rank of this group "{group.name}": its ranks are the ints 0 to {last}')
    return group.ranks[rank]


def check_peer(group: Group, rank: int, name: str) -> int:
    """Likewise, and it is another rank."""
    check_member(group)
    peer = world_rank(group, rank, name)
    if rank == group.rank:
        raise LabError(f"{name}={rank} is rank {rank} itself: a rank cannot message itself, keep the tensor instead")
    return peer


def check_parts(group: Group, parts: Sequence[Sequence[int]], name: str) -> list[tuple[int, ...]]:
    """The parts of a split, in ranks of the whole run."""
    check_member(group)
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == WORLD:
        raise LabError(f"name={name!r}: a part is named by 1 to 32 letters, digits, _ + or -, and not {WORLD!r}")
    cut = [tuple(world_rank(group, rank, "a rank of parts") for rank in part) for part in parts]
    every = [rank for part in cut for rank in part]
    if not all(cut) or any(list(part) != sorted(part) for part in cut) or len(set(every)) < len(every):
        shown = [list(part) for part in parts]
        raise LabError(f"parts={shown}: each lists at least one rank, in ascending order, and no rank is in two")
    return cut


def check_tensor(group: Group, tensor: Any, name: str = "tensor") -> torch.Tensor:
    """The tensor without its gradient."""
    check_member(group)
    if not isinstance(tensor, torch.Tensor):
        raise LabError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
    if tensor.device != group.device:
        raise LabError(f"{name} is on {tensor.device}, but this group's tensors on {group.device}: .to(group.device)")
    return tensor.detach() if tensor.requires_grad else tensor


def check_reduction(group: Group, tensor: Any, op: str) -> torch.Tensor:
    """Likewise, and it can be reduced by `op`."""
    checked = check_tensor(group, tensor)
    if op not in OPS:
        raise LabError(f"op={op!r} is unknown: choose one of {', '.join(OPS)}")
    if tensor.dtype not in REDUCIBLE:
        raise LabError(f"{dtype_name(tensor)} cannot be reduced: convert it first, to float32, say, or to int32")
    if op == "mean" and not tensor.dtype.is_floating_point:
        raise LabError(f"the mean of {dtype_name(tensor)} is no integer: use op='sum', or convert to a float dtype")
    return checked


def target(group: Group, like: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
    if out is not None:
        return check_tensor(group, out, "out")
    if like is None:
        raise LabError("recv needs like= (a tensor of the shape and dtype to expect) or out= (a tensor to fill)")
    if not isinstance(like, torch.Tensor):
        raise LabError(f"like must be a torch.Tensor; got {type(like).__name__}")
    return torch.empty(like.shape, dtype=like.dtype, device=group.device)


def result(group: Group, work: torch.Tensor, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
    """Where a collective's result goes: `out`, or new memory."""
    if out is None:
        return work.new_empty(shape)
    checked = check_tensor(group, out, "out")
    if (tuple(out.shape), out.dtype) != (shape, work.dtype):
        wanted = f"{list(shape)} of {dtype_name(work)}"
        raise LabError(f"out is {list(out.shape)} of {dtype_name(out)}, and the result is {wanted}")
    check_overlap([Op("recv", -1, checked), Op("send", -1, work)])
    return checked


def check_overlap(ops: Sequence[Op]) -> None:
    """Refuse buffers that share memory, unless both are only read."""
    # One that is filled while it is read, or filled twice, gives a different answer on every run.
    spans = [(*_span(op.tensor), op.kind) for op in ops]
    for (begin, end, kind), (its_begin, its_end, its_kind) in itertools.combinations(spans, 2):
        if "recv" in (kind, its_kind) and begin < its_end and its_begin < end:
            raise LabError("out= shares memory with another tensor of the same call: give it memory of its own")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to behind its last."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def size_dtype_shape(tensor: torch.Tensor) -> tuple[int, str, tuple[int, ...]]:
    return tensor.nbytes, dtype_name(tensor), tuple(tensor.shape)
