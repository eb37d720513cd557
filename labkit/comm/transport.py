"""What stands behind a `Group`: a transport that moves bytes and reduces tensors. There are three: torch's process
groups (here), threads (labkit.comm.rendezvous), and a broker outside a grading sandbox (labkit.comm.link).

Contract of a transport:

- `post(ops)` and `collective(call)` start what they get, and return a function that waits until it is complete.
- Group by group, messages from a to b are received as they were sent, and all ranks issue the same collectives in order.
- Tensors arrive contiguous, on `device`, detached. The transport neither reshapes nor keeps them; until they are complete
they belong to it. Ranks are those of the whole run.
- A wait ends when the run ends: by returning, by raising, or with the process.
"""

import importlib
import os
import re
import socket
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm.ledger import WORLD, GroupId
from labkit.errors import LabError

Wait = Callable[[], object]
NO_LIMIT = timedelta(days=7)  # the caller keeps the time: the library's own limit must never be the first to strike


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

    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "split"
    tensor: torch.Tensor | None = None  # what this rank brings; all_reduce and broadcast work in place
    out: torch.Tensor | None = None  # all_gather: N times as long; reduce_scatter: one N-th
    op: str | None = None  # of a split: its name and parts, for all ranks must mean the same
    src: int | None = None
    where: str = ""
    blocking: bool = True  # as for Op


class Transport:
    """One rank's end of one group."""

    rank: int  # of the whole run
    group: GroupId
    device: torch.device  # where tensors must live

    def post(self, ops: Sequence[Op]) -> Wait:
        raise NotImplementedError

    def collective(self, call: Collective) -> Wait:
        raise NotImplementedError

    def split(self, call: Collective, parts: Sequence[Sequence[int]], group: GroupId) -> "Transport":
        """Called by all ranks of this group: the end of `group`, the part that this rank is in (no ranks: in none)."""
        raise NotImplementedError

    def span(self, label: str, seconds: float | None, where: str) -> None:
        """A span of computing begins. Only a transport whose ledger is kept elsewhere has to pass it on."""

    def over(self) -> None:
        """And ends."""

    def process_group(self) -> dist.ProcessGroup:
        """torch's process group of the same ranks, or a LabError."""
        raise LabError("FSDP2 and device meshes need ranks with process groups: run_ranks(..., backend='processes')")


# torch 2.13 renamed these two and deprecated the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8, flat: gloo refuses float8 and int16, and moving needs no arithmetic."""
    return tensor.reshape(-1).view(torch.uint8)


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class TorchTransport(Transport):
    """A torch process group: gloo on CPU, NCCL on CUDA. By default the one of all ranks of this program."""

    def __init__(
        self, device: torch.device, group: GroupId | None = None, process_group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.device = dist.get_rank(), device
        self.group = group or GroupId(WORLD, tuple(range(dist.get_world_size())))
        self._process_group = process_group
        # Made once a process: connecting takes time, and jobs of one RankPool ask for the same groups again. One table
        # for a group, its parts, and theirs: "replicas" [0] of a "tp" [0, 1] are those of a later "tp" [0, 1, 2, 3].
        self._parts: dict[GroupId, TorchTransport] = {}
        # Gloo forgets a message whose work object is gone before the receiver came; whoever drops a handle would hang.
        self._posted: dict[int, list[Any]] = {}

    def post(self, ops: Sequence[Op]) -> Wait:
        start = {"send": dist.isend, "recv": dist.irecv}
        group = self._process_group
        works: list[Any]
        if self.device.type == "cuda":
            # One NCCL group call: posted one by one, a send and a recv between the same two ranks could wait in turn.
            parts = [dist.P2POp(start[op.kind], as_bytes(op.tensor), op.peer, group) for op in ops]
            works = dist.batch_isend_irecv(parts)
        else:
            # Receives first: a message that finds its buffer posted is not stored in between.
            in_order = sorted(ops, key=lambda op: op.kind)
            works = [start[op.kind](as_bytes(op.tensor), op.peer, group) for op in in_order]
            self._posted[id(works)] = works

        def wait() -> None:
            for work in works:
                work.wait()
            self._posted.pop(id(works), None)

        return wait

    def collective(self, call: Collective) -> Wait:
        group: Any = {"group": self._process_group, "async_op": True}
        tensor: Any = call.tensor
        out: Any = call.out
        op: Any = _OPS.get(call.op or "")
        if call.kind == "barrier":
            if self.device.index is not None:
                group["device_ids"] = [self.device.index]
            work = dist.barrier(**group)
        elif call.kind == "all_reduce":
            work = dist.all_reduce(tensor, op, **group)
        elif call.kind == "broadcast":
            work = dist.broadcast(as_bytes(tensor), call.src, **group)
        elif call.kind == "all_gather":
            work = _all_gather(as_bytes(out), as_bytes(tensor), **group)
        else:
            work = _reduce_scatter(out, tensor, op, **group)
        return work.wait

    def split(self, call: Collective, parts: Sequence[Sequence[int]], group: GroupId) -> Transport:
        if group not in self._parts:
            made = _connect(group, self.rank) if group.ranks else None
            if made and self.device.type == "cuda" and len(group.ranks) > 1:
                # NCCL connects at a group's first call, to which all its ranks must come (torch, batch_isend_irecv). If
                # that call were a message between two of four, it would wait for ever.
                dist.all_reduce(torch.zeros(1, device=self.device), group=made)
            self._parts[group] = TorchTransport(self.device, group, made)
            self._parts[group]._parts = self._parts
        return self._parts[group]

    def process_group(self) -> dist.ProcessGroup:
        return self._process_group or c10d._get_default_group()


def join(device: str, local: int, **how: Any) -> TorchTransport:
    """Join the process group of all ranks, once; how: init_process_group's. On "cuda" the rank takes GPU `local`."""
    where, more = torch.device(device), dict[str, Any]()
    if device == "cuda":
        if local >= (have := torch.cuda.device_count()):
            raise LabError(f"local rank {local} has no GPU, there are {have}: start fewer, or use device='cpu'")
        # Transformer Engine, where it is installed, before anything computes: after cuDNN's attention its import fails
        # ("libcudnn_cnn.so.9: undefined symbol"). What else may be wrong with it, its backend says.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("transformer_engine.pytorch")
        where = torch.device("cuda", local)
        torch.cuda.set_device(where)
        more = {"device_id": where}
    if not dist.is_initialized():
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if more else "gloo", timeout=NO_LIMIT, **how, **more)
        except RuntimeError as error:
            first = re.sub(r"\[enforce fail at \S+\] .*?\. ", "", str(error).strip().splitlines()[0])
            raise LabError(f"this rank could not join the others: {first}{strange_interface()}") from None
    return TorchTransport(where)


def strange_interface() -> str:
    """The end of a sentence where GLOO_SOCKET_IFNAME names what this machine has not, else ""."""
    chosen, here = os.environ.get("GLOO_SOCKET_IFNAME", ""), [name for _, name in socket.if_nameindex()]
    if set(filter(None, chosen.split(","))) <= {*here}:
        return ""
    return f"; GLOO_SOCKET_IFNAME={chosen} is set, and the interfaces of this machine are {', '.join(here)}"


def stay_inside() -> None:
    """One machine: nothing listens outside of it."""
    for loopback in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):
        # Also where a site's profile names the network between its machines.
        os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "TP_SOCKET_IFNAME": loopback}


def _connect(group: GroupId, rank: int) -> dist.ProcessGroup:
    """A process group of some ranks, made by these ranks alone."""
    # torch's public `new_group` wants every rank of the run to come, or takes a name from a counter that differs from
    # rank to rank; the function behind it takes a name.
    world: Any = c10d._get_default_group()
    backend, store = c10d._world.pg_map[world]
    name: Any = f"{group.name} {group.ranks}"
    bound, world.bound_device_id = world.bound_device_id, None  # or NCCL splits the whole run's communicator: all come
    try:
        ranks, at = list(group.ranks), group.ranks.index(rank)
        more: dict[str, Any] = {"timeout": NO_LIMIT, "group_desc": group.name}
        made, _ = c10d._new_process_group_helper(len(ranks), at, ranks, backend, store, name, **more)
    finally:
        world.bound_device_id = bound
    c10d._world.pg_group_ranks[made] = {r: i for i, r in enumerate(group.ranks)}
    return made
