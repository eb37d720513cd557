"""What stands behind a `Group`: a transport that moves bytes and reduces tensors.

`Group` checks arguments, keeps the ledger and hides shapes; a transport does the rest, with two verbs: `post` (carry
these bytes) and `collective`. There are three: torch's process groups (here), threads of one process
(labkit.comm.rendezvous), and a broker outside a grading sandbox, which sees every message (labkit.comm.link).

Contract of a transport:

- `post(ops)` starts all of them together and returns a function that waits until all are complete. Messages from a to
  b are received in the order in which they were sent. A buffer belongs to the transport until the wait has returned.
- `collective(call)` starts one and returns a function that waits. Every rank issues the same ones in the same order.
- Tensors arrive contiguous, on `device`, detached. The transport neither reshapes nor keeps them.
- A wait ends when the run ends: by returning, by raising, or with the process.

Sub-groups, when a week needs them: `Group.split(ranks)` asks the transport for `split(ranks) -> Transport` (torch:
`new_group`; threads: a rendezvous of its own), the new Group keeps the rank's one ledger, and `Event` gains the name
of the group, by which `seq` then counts. Nothing else here would change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from labkit.errors import LabError

Wait = Callable[[], None]


@dataclass(slots=True)
class Op:
    """Half of a point-to-point message: `tensor` goes to `peer`, or is filled by what comes from it."""

    kind: str  # "send" or "recv"
    peer: int
    tensor: torch.Tensor  # contiguous, any dtype; only its bytes cross
    where: str = ""  # the caller's "file:line", for messages
    blocking: bool = True  # the rank goes on only when it is complete; False: it may wait later


@dataclass(slots=True)
class Collective:
    """One rank's part in a collective. `op` is "sum", "max", "min" or "prod": a mean is the group's sum, divided."""

    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"
    tensor: torch.Tensor | None  # what this rank brings; all_reduce and broadcast work in place. None for a barrier
    out: torch.Tensor | None = None  # all_gather: N times as long; reduce_scatter: one N-th
    op: str | None = None
    root: int | None = None
    where: str = ""
    blocking: bool = True  # as for Op


class Transport(Protocol):
    rank: int
    size: int
    device: torch.device  # where tensors must live

    def post(self, ops: Sequence[Op]) -> Wait: ...

    def collective(self, call: Collective) -> Wait: ...

    def mesh(self) -> torch.distributed.device_mesh.DeviceMesh:
        """A mesh over the same ranks for FSDP2 and DTensor, or a LabError that says where there is one."""
        ...


# torch 2.13 renamed these two and deprecated the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8, flat: gloo refuses float8 and int16, and moving needs no arithmetic."""
    return tensor.reshape(-1).view(torch.uint8)


class TorchTransport:
    """The default torch process group of this process: gloo on CPU, NCCL on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self._mesh = None

    def post(self, ops: Sequence[Op]) -> Wait:
        start = {"send": dist.isend, "recv": dist.irecv}
        if self.device.type == "cuda":
            # One NCCL group call: posted one by one, a send and a recv between the same two ranks could wait in turn.
            works = dist.batch_isend_irecv([dist.P2POp(start[op.kind], as_bytes(op.tensor), op.peer) for op in ops])
        else:
            # Receives first: a message that finds its buffer posted is not stored in between.
            works = [None] * len(ops)
            for wanted in ("recv", "send"):
                for i, op in enumerate(ops):
                    if op.kind == wanted:
                        works[i] = start[wanted](as_bytes(op.tensor), op.peer)
        return lambda: _wait_all(works)

    def collective(self, call: Collective) -> Wait:
        if call.kind == "all_reduce":
            work = dist.all_reduce(call.tensor, _OPS[call.op], async_op=True)
        elif call.kind == "broadcast":
            work = dist.broadcast(as_bytes(call.tensor), call.root, async_op=True)
        elif call.kind == "all_gather":
            work = _all_gather(as_bytes(call.out), as_bytes(call.tensor), async_op=True)
        elif call.kind == "reduce_scatter":
            work = _reduce_scatter(call.out, call.tensor, _OPS[call.op], async_op=True)
        elif call.kind == "barrier":
            work = dist.barrier(
                async_op=True, **({"device_ids": [self.device.index]} if self.device.index is not None else {})
            )
        else:
            raise LabError(f"this transport has no collective named {call.kind!r}")
        return lambda: _wait_all([work])

    def mesh(self):
        if self._mesh is None:
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh(self.device.type, (self.size,))
        return self._mesh


def _wait_all(works) -> None:
    for work in works:
        work.wait()
