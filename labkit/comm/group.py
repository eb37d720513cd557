"""`Group`: the only way a lab communicates.

N ranks run the same function; each gets a Group as an argument, which knows its own `rank` and the `size`. A message
goes from one rank's tensor to another's (`send`, `recv`, `sendrecv`, `isend`, `irecv`, `batch`), or all ranks take part
in a collective (`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `barrier`). On every backend:

- `send` may wait until its receiver has come: never rely on a buffer in between. Two ranks that both send first wait
  for each other for ever; `sendrecv` posts both directions together.
- A message has no header: the receiver says what it expects, by `like=` (a tensor of that shape and dtype) or `out=`.
- Every rank calls the same collectives in the same order, with equal shapes and dtypes, from one thread.
- Any dtype can be sent, gathered and broadcast, float8 too. Reductions need arithmetic: float16, bfloat16, float32,
  float64, int8, uint8, int32 and int64; "mean" is the sum divided by N in the tensor's own dtype, so integers have
  none. On gloo, a max or min that meets a NaN may return a number: reduce a flag "is not finite" instead.
- Tensors may be non-contiguous or empty. They carry no gradient through the group.

`split` cuts a group into named parts, `Mesh` (labkit.comm.mesh) along dimensions. Ranks that share two groups must call
them in the same order.

**One numbering.** What you pass to a group, and its `rank`, count within that group: 0 to size-1. What is reported (in
the ledger, an autopsy, the virtual wire) counts within the whole run: this group's rank i is the run's `group.ranks[i]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from labkit.comm import arguments
from labkit.comm.arguments import check_member, check_peer, check_reduction, check_tensor, size_dtype_shape
from labkit.comm.callsite import caller
from labkit.comm.ledger import WORLD, Event, GroupId, Ledger, say_ranks
from labkit.comm.transport import Collective, Op, Transport
from labkit.errors import LabError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(slots=True)
class Send:
    """For `batch`: send `tensor` to rank `dst`."""

    tensor: torch.Tensor
    dst: int


@dataclass(slots=True)
class Recv:
    """For `batch`: receive from rank `src` into `out`, or into a new tensor shaped like `like`."""

    src: int
    like: torch.Tensor | None = None
    out: torch.Tensor | None = None


class Handle:
    """Of `isend`, `irecv`, `async_op=True`. `wait()` returns the tensor, not to be touched until then; of a send None."""

    __slots__ = ("_done", "_event", "_ledger", "_result")

    def __init__(self, ledger: Ledger, event: Event | None, done: Callable[[], Any]) -> None:
        self._ledger, self._event, self._result = ledger, event, None
        self._done: Callable[[], Any] | None = done

    def wait(self) -> torch.Tensor | None:
        if self._done is not None:
            event = self._ledger.begin_wait(self._event, caller())
            self._result = self._done()
            self._done = None
            self._ledger.finish_wait(event, self._event)
        return self._result


class Group:
    """`size` ranks, seen from one of them.

    rank     0 .. size-1; -1 in a group that `split` made without this rank
    size     how many ranks
    name     "world", or the name given to `split`
    ranks    its ranks, as the whole run counts them
    device   torch.device on which tensors handed to this group must live ("cpu" or "cuda:k")
    ledger   the calls of this rank so far, in all its groups
    """

    def __init__(self, transport: Transport, ledger: Ledger | None = None) -> None:
        self.name, self.ranks = transport.group
        self.rank = self.ranks.index(transport.rank) if transport.rank in self.ranks else -1
        self.size, self.device, self.transport = len(self.ranks), transport.device, transport
        self.ledger = ledger if ledger is not None else Ledger(self.rank, self.size)
        self._names: list[str] = []  # of its parts so far
        self._meshes: dict[bool, DeviceMesh] = {}

    def __repr__(self) -> str:
        if self.name == WORLD:
            return f"Group(rank {self.rank} of {self.size}, {self.device})"
        return f"Group({self.name!r}: rank {self.rank} of {self.size}, {say_ranks(self.ranks)}, {self.device})"

    # -- parts ----------------------------------------------------------------------------------------------------
    def split(self, parts: Sequence[Sequence[int]], name: str = "part") -> Group:
        """Cut this group into `parts`, lists of its ranks, each ascending. All its ranks call this with the same
        arguments; each gets its part, or, if it is in none, a Group (rank -1, size 0) of which any call is a LabError.

        The part is called "name" in the whole run, "parent/name" in a part of it, and "name#2" the second time."""
        cut = arguments.check_parts(self, parts, name)
        self._names.append(name)
        full = name if self.name == WORLD else f"{self.name}/{name}"
        full += f"#{times}" if (times := self._names.count(name)) > 1 else ""
        mine = GroupId(full, next((part for part in cut if self.transport.rank in part), ()))
        call = Collective("split", op=format_split(full, cut), where=caller())
        event = self.ledger.begin("split", op=call.op, where=call.where, group=self.name)
        transport = self.transport.split(call, cut, mine)
        self.ledger.finish(event)
        if mine.ranks:
            self.ledger.join(mine)
        return Group(transport, self.ledger)

    def device_mesh(self, ledger: bool = False) -> DeviceMesh:
        """torch's DeviceMesh over these ranks, for FSDP2 and DTensor; ledger: `group.ledger` also notes what these send.

        Raises LabError for ranks on threads, which have no torch process group."""
        from labkit.comm.torch_group import device_mesh

        check_member(self)
        if ledger not in self._meshes:
            names = None if self.name == WORLD else (self.name.replace("/", "_"),)
            kept = self.ledger if ledger else None
            self._meshes[ledger] = device_mesh([self.transport], torch.tensor(self.ranks), names, kept)
        return self._meshes[ledger]

    # -- point to point -------------------------------------------------------------------------------------------
    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Send `tensor` to rank `dst`. Returns when the tensor may be overwritten; that can need the receiver."""
        self._together([Send(tensor, dst)])

    def recv(self, src: int, like: torch.Tensor | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """Receive from rank `src`: into `out` (returned), or into a new tensor with the shape and dtype of `like`."""
        return self._together([Recv(src, like, out)])[0]

    def sendrecv(
        self,
        tensor: torch.Tensor,
        dst: int,
        src: int,
        like: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Send `tensor` to `dst` and receive from `src`, both posted together, so that a ring of them cannot deadlock.

        `like` defaults to `tensor`. Returns the received tensor."""
        return self._together([Send(tensor, dst), Recv(src, tensor if like is None else like, out)])[1]

    def batch(self, parts: Sequence[Send | Recv]) -> list[torch.Tensor | None]:
        """Post all `parts` together, wait for all. Returns one entry a part: the received tensor; None for a Send."""
        parts = list(parts)
        for part in parts:
            if not isinstance(part, (Send, Recv)):
                raise LabError(f"batch takes Send(tensor, dst) and Recv(src, like=...), not {type(part).__name__}")
        return self._together(parts) if parts else []

    def isend(self, tensor: torch.Tensor, dst: int) -> Handle:
        """Start sending and go on. `wait()` on the handle before changing the tensor."""
        return self._later(Send(tensor, dst))

    def irecv(self, src: int, like: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Handle:
        """Start receiving and go on. `wait()` on the handle returns the tensor."""
        return self._later(Recv(src, like, out))

    def _later(self, part: Send | Recv) -> Handle:
        (event,), done = self._post([part], blocking=False)
        return Handle(self.ledger, event, lambda: done()[0])

    def _together(self, parts: Sequence[Send | Recv]) -> list[Any]:
        events, done = self._post(parts, blocking=True)
        results = done()
        for event in events:
            self.ledger.finish(event)
        return results

    def _post(
        self, parts: Sequence[Send | Recv], blocking: bool
    ) -> tuple[list[Event | None], Callable[[], list[torch.Tensor | None]]]:
        """Check, note and start `parts`; returns their events and the function that waits and gives the results."""
        where = caller()
        ops: list[Op] = []
        targets: list[torch.Tensor | None] = []
        for part in parts:
            if isinstance(part, Send):
                peer, tensor = check_peer(self, part.dst, "dst"), check_tensor(self, part.tensor).contiguous()
                targets.append(None)
            else:
                peer, target = check_peer(self, part.src, "src"), arguments.target(self, part.like, part.out)
                tensor = _own(target)
                targets.append(target)
            ops.append(Op("send" if isinstance(part, Send) else "recv", peer, tensor, where, blocking))
        arguments.check_overlap(ops)
        calls = ((op.kind, op.peer, *size_dtype_shape(op.tensor)) for op in ops)
        events = self.ledger.begin_together(calls, blocking=blocking, where=where, group=self.name)
        wait = self.transport.post(ops)

        def done() -> list[torch.Tensor | None]:
            wait()
            for op, target in zip(ops, targets):
                if target is not None and target is not op.tensor:
                    target.copy_(op.tensor)
            return targets

        return events, done

    # -- collectives ----------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", async_op: bool = False) -> Any:
        """Reduce `tensor` over all ranks, in place; every rank ends with the same. Returns it (or a Handle)."""
        work = check_reduction(self, tensor, op).contiguous()

        def finish() -> torch.Tensor:
            return _into(tensor, work.div_(self.size) if op == "mean" else work)

        call = Collective("all_reduce", work, op="sum" if op == "mean" else op)
        return self._collective(call, tensor, work.nbytes, finish, async_op, op)

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """[L, ...] on each rank -> [N*L, ...] on all, in rank order: `out`, or new. A scalar counts as [1]."""
        work = check_tensor(self, tensor).contiguous()
        work = work.reshape(1) if work.dim() == 0 else work
        result = arguments.result(self, work, (self.size * work.shape[0], *work.shape[1:]), out)
        into = _own(result)
        call = Collective("all_gather", work, into)
        return self._collective(call, tensor, into.nbytes, lambda: _into(result, into), async_op)

    def reduce_scatter(
        self, tensor: torch.Tensor, op: str = "sum", out: torch.Tensor | None = None, async_op: bool = False
    ) -> Any:
        """[N*L, ...] on each rank -> the rank's own [L, ...] of the reduction: `out`, or new."""
        work = check_reduction(self, tensor, op).contiguous()
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise LabError(
                f"reduce_scatter cuts the first dimension into {self.size} equal parts, which shape "
                f"{list(tensor.shape)} does not allow: pad it"
            )
        result = arguments.result(self, work, (work.shape[0] // self.size, *work.shape[1:]), out)
        into = _own(result)

        def finish() -> torch.Tensor:
            return _into(result, into.div_(self.size) if op == "mean" else into)

        call = Collective("reduce_scatter", work, into, "sum" if op == "mean" else op)
        return self._collective(call, tensor, work.nbytes, finish, async_op, op)

    def broadcast(self, tensor: torch.Tensor, src: int = 0, async_op: bool = False) -> Any:
        """Overwrite `tensor` on every rank with rank `src`'s, in place. Returns it (or a Handle)."""
        work = check_tensor(self, tensor).contiguous()
        call = Collective("broadcast", work, src=arguments.world_rank(self, src, "src"))
        return self._collective(call, tensor, work.nbytes, lambda: _into(tensor, work), async_op)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        check_member(self)
        self._collective(Collective("barrier"), None, 0, lambda: None)

    def _collective(
        self,
        call: Collective,
        shown: torch.Tensor | None,
        size: int,
        finish: Callable[[], Any],
        async_op: bool = False,
        op: str | None = None,
    ) -> Any:
        call.where, call.blocking = caller(), not async_op
        what = (size, *size_dtype_shape(shown)[1:]) if shown is not None else (0, "", ())
        event = self.ledger.begin(
            call.kind, call.src, *what, op=op, blocking=call.blocking, where=call.where, group=self.name
        )
        wait = self.transport.collective(call)

        def done() -> Any:
            wait()
            return finish()

        if async_op:
            return Handle(self.ledger, event, done)
        result = done()
        self.ledger.finish(event)
        return result

    # -- computing ------------------------------------------------------------------------------------------------
    def compute(self, label: str, seconds: float | None = None) -> Span:
        """Note a span of computing: what the `with` takes, in which no group is called, or `seconds` on the virtual wire.

        with group.compute("layer 3, backward"): ...        group.compute("layer 3, backward", seconds=2e-3)"""
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise LabError(f"seconds={seconds!r} of a span must be a number, at least 0")
        where = caller()
        event = self.ledger.begin("compute", blocking=False, where=where, label=label, seconds=seconds)
        self.transport.span(label, seconds, where)
        span = Span(self, event)
        if seconds is not None:
            span.end()
        return span


class Span:
    def __init__(self, group: Group, event: Event | None) -> None:
        self._group, self._event, self._open = group, event, True

    def end(self) -> None:
        if self._open:
            self._open = False
            self._group.ledger.finish(self._event)
            self._group.transport.over()

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for what `tensor` is to hold."""
    return tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _into(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """`tensor`, which holds `result` now: it may be the same memory already."""
    if result.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
        tensor.detach().copy_(result.reshape(tensor.shape))
    return tensor


def format_split(name: str, parts: Sequence[Sequence[int]]) -> str:
    """ "tp: 0 1 | 2 3": what all ranks that split a group must mean alike."""
    return f"{name}: {' | '.join(' '.join(map(str, part)) for part in parts)}"
