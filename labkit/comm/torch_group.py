"""A torch process group that keeps the ledger: what FSDP2, DTensor and others send by themselves is seen."""

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


class LedgerGroup(dist.ProcessGroup):
    """Stands around a DeviceMesh's `real` group: notes a call as `Group` would, in the job's `ledger`, and passes it on."""

    def __init__(self, real: dist.ProcessGroup, group: GroupId) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # torch has this form, its stub not
        self.real, self.group, self.ledger = real, group, Ledger()

    def getGroupName(self) -> str:  # torch looks for this name
        return f"{self.real.group_name} with ledger"


# What is noted; which arguments hold the tensors whose shape is, and whose bytes are; the methods. Of two names of one
# the first is torch 2.13's, the other that of 2.11 and 2.12, which C++ still looks for. Ranks may bring different sizes
# to an all_to_all and what follows it: these are noted, and not matched.
_CALLS = (
    ("all_reduce", 0, 0, "allreduce"),
    ("all_reduce", 0, 0, "allreduce_coalesced"),
    ("broadcast", 0, 0, "broadcast"),
    ("barrier", 0, 0, "barrier"),
    ("all_gather", 1, 0, "allgather"),
    ("all_gather", 1, 0, "all_gather_single", "_allgather_base"),
    ("all_gather", 1, 0, "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    ("reduce_scatter", 1, 1, "reduce_scatter"),
    ("reduce_scatter", 1, 1, "reduce_scatter_single", "_reduce_scatter_base"),
    ("reduce_scatter", 1, 1, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ("send", 0, 0, "send"),
    ("recv", 0, 0, "recv"),
    ("all_to_all", 1, 1, "all_to_all_single", "alltoall_base"),
    ("all_to_all", 1, 1, "alltoall"),
    ("reduce", 0, 0, "reduce"),
    ("gather", 1, 1, "gather"),
    ("scatter", 0, 0, "scatter"),
)


def _noted(kind: str, shown: int, counted: int, names: Sequence[str]) -> Callable[..., Any]:
    """A method that notes a call, one event a tensor, and makes it of the real group, by the name that this one has."""

    def method(self: LedgerGroup, *args: Any, **options: Any) -> Any:
        call = next(found for name in names if (found := getattr(self.real, name, None)) is not None)
        tensors, sizes = (_each(args[shown]), _each(args[counted])) if args else ([None], [None])
        op = peer = None
        for value in (*args, *options.values()):
            op = getattr(value, "reduceOp", op)
            peer = getattr(value, "rootRank", peer)
        if kind in ("send", "recv"):
            peer = args[1]
        if peer is not None:
            peer = self.group.ranks[peer]
        calls = []
        for tensor, size in zip(map(_each, tensors), map(_each, sizes)):
            what = size_dtype_shape(tensor[0])[1:] if tensor else ()
            calls.append((kind, peer, sum(part.nbytes for part in size), *what))
        events = self.ledger.begin_together(calls, op=_op(op), blocking=False, where=author(), group=self.group.name)
        work = call(*args, **options)
        if work is not None:
            return _Work(work, self.ledger, events)
        for event in events:  # the library has waited itself
            self.ledger.finish(event)
        return None

    return method


for _kind, _shown, _counted, *_names in _CALLS:
    for _name in _names:
        setattr(LedgerGroup, _name, _noted(_kind, _shown, _counted, _names))


def _each(argument: Any) -> list[Any]:
    """A tensor, several (which may be lists of tensors themselves), or none."""
    return [] if argument is None else [argument] if isinstance(argument, torch.Tensor) else list(argument)


def _op(op: Any) -> str | None:
    """ "sum", "mean", ... as Group calls them. (A ReduceOp has no name of its own.)"""
    if op is None:
        return None
    name = next((name for name in dist.ReduceOp.RedOpType.__members__ if op == getattr(dist.ReduceOp, name, None)), "?")
    return {"AVG": "mean", "PRODUCT": "prod"}.get(name, name.lower())
