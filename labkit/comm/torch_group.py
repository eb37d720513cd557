"""A torch process group that keeps the ledger: what FSDP2, DTensor and others send by themselves is seen.

`LedgerGroup` stands around the real group of a DeviceMesh: it notes a call as `Group` would, and passes it on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm.arguments import size_dtype_shape
from labkit.comm.callsite import author
from labkit.comm.ledger import Event, GroupId, Ledger
from labkit.comm.transport import Transport

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_keeps = False  # whether the mesh made last keeps a ledger
_made: dict[dist.ProcessGroup, LedgerGroup] = {}  # once a process: each job brings its own ledger


def device_mesh(
    ends: Sequence[Transport], ranks: torch.Tensor, names: tuple[str, ...] | None, ledger: Ledger | None
) -> DeviceMesh:
    """torch's DeviceMesh with one group a dimension; ranks: of the whole run, by coordinate."""
    global _keeps
    groups = [end.process_group() for end in ends]
    from torch.distributed.device_mesh import DeviceMesh

    # DTensor remembers meshes by ranks and names alone, and would go on with one that is equal and has the other process
    # groups: a program that changes over makes it forget.
    if (ledger is not None) != _keeps:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()
        _keeps = ledger is not None
    if ledger is not None:
        for end, real in zip(ends, groups):
            if real not in _made:
                _made[real] = LedgerGroup(real, end.group)
                _register(_made[real], real)
            _made[real].ledger = ledger
        groups = [_made[real] for real in groups]
    if ranks.dim() == 1 and names is None:
        return DeviceMesh.from_group(groups[0], ends[0].device.type)
    return DeviceMesh.from_group(groups, ends[0].device.type, ranks.int(), mesh_dim_names=names)


def _register(made: LedgerGroup, real: dist.ProcessGroup) -> None:
    """Tell torch of a process group that it has not made: by name (functional collectives) and by rank (DTensor)."""
    world: Any = c10d._world
    name: Any = made.getGroupName()
    world.pg_map[made], world.pg_names[made] = world.pg_map[real], name
    world.pg_group_ranks[made] = dict(world.pg_group_ranks[real])
    world.pg_backend_config[made] = world.pg_backend_config[real]
    world.pg_to_tag[made] = tag = f"ptd:{name}"
    world.tags_to_pg.setdefault(tag, []).append(made)
    c10d._register_process_group(name, made)
    for device in real._device_types:  # for what asks the backend itself
        made._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, real._get_backend(device))


class _Work(dist.Work):
    """What a posted call returns: the real one, and a note of who waits for it."""

    def __init__(self, real: dist.Work, ledger: Ledger, events: list[Event | None]) -> None:
        super().__init__()
        self.real, self.ledger, self.events = real, ledger, events

    def wait(self, *timeout: Any) -> bool:
        posted = next((event for event in self.events if event is not None and event.end is None), None)
        waiting = self.ledger.begin_wait(posted, author())
        done = self.real.wait(*timeout)
        for event in self.events if posted is not None else ():
            self.ledger.finish_wait(waiting, event)
        return done

    def get_future(self) -> Any:
        return self.real.get_future()

    def is_completed(self) -> bool:
        return self.real.is_completed()

    def block_current_stream(self) -> None:
        self.real.block_current_stream()


def _noted(kind: str, *names: str, shown: int = 0, counted: int | None = None) -> Callable[..., Any]:
    """A method that notes `kind`, one event a tensor, and calls the first of `names` that this torch's group has; shown,
    counted: which arguments hold the tensors whose shape, and whose bytes, are noted."""

    def method(self: LedgerGroup, *args: Any, **options: Any) -> Any:
        call = next(found for name in names if (found := getattr(self.real, name, None)) is not None)
        tensors = _each(args[shown]) if args else [None]
        sizes = _each(args[shown if counted is None else counted]) if args else [None]
        where, op, peer = author(), None, None
        for value in (*args, *options.values()):
            op = getattr(value, "reduceOp", op)
            peer = getattr(value, "rootRank", peer)
        if kind in ("send", "recv") and len(args) > 2:
            peer = args[1]
        if peer is not None:
            peer = self.group.ranks[peer]
        calls = [
            (kind, peer, sum(part.nbytes for part in _each(size)), *_dtype_and_shape(tensor))
            for tensor, size in zip(tensors, sizes)
        ]
        events = self.ledger.begin_together(calls, op=_op(op), blocking=False, where=where, group=self.group.name)
        work = call(*args, **options)
        if work is not None:
            return _Work(work, self.ledger, events)
        for event in events:  # the library has waited itself
            self.ledger.finish(event)
        return None

    return method


class LedgerGroup(dist.ProcessGroup):
    """`real`, and each call noted in `ledger`, which may change from job to job."""

    def __init__(self, real: dist.ProcessGroup, group: GroupId) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # torch has this form, its stub not
        self.real, self.group, self.ledger = real, group, Ledger()

    def getGroupName(self) -> str:  # torch looks for this name
        return f"{self.real.group_name} with ledger"

    # Two names: torch 2.13's, and that of 2.11 and 2.12, which C++ still looks for.
    allreduce = _noted("all_reduce", "allreduce")
    allreduce_coalesced = _noted("all_reduce", "allreduce_coalesced")
    broadcast = _noted("broadcast", "broadcast")
    barrier = _noted("barrier", "barrier")
    allgather = _noted("all_gather", "allgather", shown=1, counted=0)
    all_gather_single = _noted("all_gather", "all_gather_single", "_allgather_base", shown=1, counted=0)
    _allgather_base = all_gather_single
    all_gather_single_coalesced = _noted(
        "all_gather", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", shown=1, counted=0
    )
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter = _noted("reduce_scatter", "reduce_scatter", shown=1)
    reduce_scatter_single = _noted("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", shown=1)
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_single_coalesced = _noted(
        "reduce_scatter", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", shown=1
    )
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    send = _noted("send", "send")
    recv = _noted("recv", "recv")
    # Ranks may bring different sizes to these: they are noted, and not matched.
    all_to_all_single = _noted("all_to_all", "all_to_all_single", "alltoall_base", shown=1)
    alltoall_base = all_to_all_single
    alltoall = _noted("all_to_all", "alltoall", shown=1)
    reduce = _noted("reduce", "reduce")
    gather = _noted("gather", "gather", shown=1)
    scatter = _noted("scatter", "scatter")


def _each(argument: Any) -> list[Any]:
    """A tensor, several (which may be lists of tensors themselves), or none."""
    return [] if argument is None else [argument] if isinstance(argument, torch.Tensor) else list(argument)


def _dtype_and_shape(argument: Any) -> tuple:
    return size_dtype_shape(_each(argument)[0])[1:] if _each(argument) else ()


def _op(op: Any) -> str | None:
    """ "sum", "mean", ... as Group calls them. (A ReduceOp has no name of its own.)"""
    if op is None:
        return None
    name = next((name for name in dist.ReduceOp.RedOpType.__members__ if op == getattr(dist.ReduceOp, name, None)), "?")
    return {"AVG": "mean", "PRODUCT": "prod"}.get(name, name.lower())
