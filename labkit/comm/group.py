"""`Group`: the only way a lab communicates.

N ranks run the same function; each holds a Group that knows its own `rank` and the `size`. A message goes from one
rank's tensor to another's (`send`, `recv`, `sendrecv`, `isend`, `irecv`, `batch`), or all ranks take part in a
collective (`all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `barrier`). The group is passed as an argument,
never global.

Rules that hold on every backend:

- `send` may wait until its receiver has come: never rely on a buffer in between. Two ranks that both send first wait
  for each other for ever; `sendrecv` posts both directions together.
- A message has no header: the receiver says what it expects, by `like=` (a tensor of that shape and dtype) or `out=`.
- Every rank calls the same collectives in the same order, with equal shapes and dtypes, from one thread.
- Any dtype can be sent, gathered and broadcast, float8 too. Reductions need arithmetic: float16, bfloat16, float32,
  float64, int8, uint8, int32 and int64; "mean" is the sum divided by N in the tensor's own dtype, so integers have
  none.
- On gloo, a max or min that meets a NaN may return a number: reduce a flag "is not finite" instead.
- Tensors may be non-contiguous or empty. They carry no gradient through the group.

Each call is noted in `group.ledger` (see labkit.comm.ledger).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.comm.callsite import caller
from labkit.comm.ledger import Event, Ledger
from labkit.comm.transport import Collective, Op, Transport
from labkit.errors import LabError

OPS = ("sum", "mean", "max", "min", "prod")
REDUCIBLE = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
}
_DTYPES: dict[torch.dtype, str] = {}


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
    """What `isend`, `irecv` and `async_op=True` return. `wait()` returns the tensor (None for a send).

    Until then the tensor must not be touched: it may still be read, or written."""

    __slots__ = ("_done", "_event", "_group", "_result")

    def __init__(self, group: Group, event: Event | None, done: Callable[[], Any]) -> None:
        self._group, self._event, self._done, self._result = group, event, done, None

    def wait(self) -> torch.Tensor | None:
        if self._done is not None:
            ledger, posted = self._group.ledger, self._event
            event = ledger.begin("wait", posted.peer, of=posted.index, where=caller()) if posted is not None else None
            self._result = self._done()
            self._done = None
            ledger.finish(event)
            if posted is not None:
                posted.end = event.end if event is not None else ledger.now()
        return self._result


class Group:
    """`size` ranks, seen from one of them.

    rank     0 .. size-1
    size     how many ranks
    device   torch.device on which tensors handed to this group must live ("cpu" or "cuda:k")
    ledger   what this rank has asked for so far
    """

    def __init__(self, transport: Transport, ledger: Ledger | None = None) -> None:
        self.rank, self.size, self.device = transport.rank, transport.size, transport.device
        self.transport = transport
        self.ledger = ledger if ledger is not None else Ledger(self.rank, self.size)

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, {self.device})"

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
        if like is None and out is None:
            like = tensor
        return self._together([Send(tensor, dst), Recv(src, like, out)])[1]

    def batch(self, parts: Sequence[Send | Recv]) -> list[torch.Tensor | None]:
        """Post all `parts` together, wait for all. Returns one entry a part: the received tensor; None for a Send."""
        parts = list(parts)
        for part in parts:
            if not isinstance(part, (Send, Recv)):
                raise LabError(f"batch takes Send(tensor, dst) and Recv(src, like=...), not {type(part).__name__}")
        return self._together(parts) if parts else []

    def isend(self, tensor: torch.Tensor, dst: int) -> Handle:
        """Start sending and go on. `wait()` on the handle before changing the tensor."""
        events, done = self._post([Send(tensor, dst)], blocking=False)
        return Handle(self, events[0], lambda: done()[0])

    def irecv(self, src: int, like: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Handle:
        """Start receiving and go on. `wait()` on the handle returns the tensor."""
        events, done = self._post([Recv(src, like, out)], blocking=False)
        return Handle(self, events[0], lambda: done()[0])

    def _together(self, parts: Sequence[Send | Recv]) -> list[torch.Tensor | None]:
        events, done = self._post(parts, blocking=True)
        results = done()
        for event in events:
            self.ledger.finish(event)
        return results

    def _post(self, parts: Sequence[Send | Recv], blocking: bool) -> tuple[list[Event | None], Callable[[], list]]:
        """Check, note and start `parts`; returns their events and the function that waits and gives the results."""
        where = caller()
        ops: list[Op] = []
        targets: list[torch.Tensor | None] = []
        for part in parts:
            if isinstance(part, Send):
                self._check_peer(part.dst, "dst")
                self._check_tensor(part.tensor)
                ops.append(Op("send", part.dst, part.tensor.detach().contiguous(), where, blocking))
                targets.append(None)
            else:
                self._check_peer(part.src, "src")
                target = self._target(part)
                ops.append(
                    Op(
                        "recv",
                        part.src,
                        target
                        if target.is_contiguous()
                        else torch.empty_like(target, memory_format=torch.contiguous_format),
                        where,
                        blocking,
                    )
                )
                targets.append(target)
        if len(ops) > 1:
            _check_overlap(ops)
        events, batch = [], None
        for op in ops:
            t = op.tensor
            event = self.ledger.begin(
                op.kind,
                op.peer,
                _bytes(t),
                dtype=_dtype(t),
                shape=tuple(t.shape),
                batch=batch,
                blocking=blocking,
                where=where,
            )
            batch = event.batch if event is not None else None
            events.append(event)
        wait = self.transport.post(ops)

        def done() -> list[torch.Tensor | None]:
            wait()
            for op, target in zip(ops, targets):
                if target is not None and target is not op.tensor:
                    target.copy_(op.tensor)
            return targets

        return events, done

    # -- collectives ----------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", async_op: bool = False) -> torch.Tensor | Handle:
        """Reduce `tensor` over all ranks, in place; every rank ends with the same. Returns it (or a Handle)."""
        self._check_reduction(tensor, op)
        work = tensor.detach().contiguous()

        def finish() -> torch.Tensor:
            if op == "mean":
                work.div_(self.size)
            if work.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
                tensor.detach().copy_(work)
            return tensor

        return self._collective(
            Collective("all_reduce", work, op=_wire_op(op)), tensor, _bytes(work), finish, async_op, op
        )

    def all_gather(self, tensor: torch.Tensor, async_op: bool = False) -> torch.Tensor | Handle:
        """[L, ...] on each rank -> [N*L, ...] on all, in rank order. A scalar counts as [1]."""
        self._check_tensor(tensor)
        work = tensor.detach().contiguous()
        work = work.reshape(1) if work.dim() == 0 else work
        out = work.new_empty((self.size * work.shape[0], *work.shape[1:]))
        return self._collective(Collective("all_gather", work, out), tensor, _bytes(out), lambda: out, async_op)

    def reduce_scatter(self, tensor: torch.Tensor, op: str = "sum", async_op: bool = False) -> torch.Tensor | Handle:
        """[N*L, ...] on each rank -> the rank's own [L, ...] of the reduction. The first dim must divide by N."""
        self._check_reduction(tensor, op)
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise LabError(
                f"reduce_scatter cuts the first dimension into {self.size} equal parts; shape "
                f"{list(tensor.shape)} cannot be cut so: pad it, or choose another size"
            )
        work = tensor.detach().contiguous()
        out = work.new_empty((work.shape[0] // self.size, *work.shape[1:]))
        finish = (lambda: out.div_(self.size)) if op == "mean" else (lambda: out)
        return self._collective(
            Collective("reduce_scatter", work, out, _wire_op(op)), tensor, _bytes(work), finish, async_op, op
        )

    def broadcast(self, tensor: torch.Tensor, root: int = 0, async_op: bool = False) -> torch.Tensor | Handle:
        """Overwrite `tensor` on every rank with rank `root`'s, in place. Returns it (or a Handle)."""
        self._check_tensor(tensor)
        self._check_rank(root, "root")
        work = tensor.detach().contiguous()

        def finish() -> torch.Tensor:
            if work.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
                tensor.detach().copy_(work)
            return tensor

        return self._collective(Collective("broadcast", work, root=root), tensor, _bytes(work), finish, async_op)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._collective(Collective("barrier", None), None, 0, lambda: None, False)

    def _collective(
        self,
        call: Collective,
        shown: torch.Tensor | None,
        size: int,
        finish: Callable[[], Any],
        async_op: bool,
        op: str | None = None,
    ) -> Any:
        call.where, call.blocking = caller(), not async_op
        event = self.ledger.begin(
            call.kind,
            call.root,
            size,
            dtype=_dtype(shown) if shown is not None else "",
            shape=tuple(shown.shape) if shown is not None else (),
            op=op,
            blocking=not async_op,
            where=call.where,
        )
        wait = self.transport.collective(call)

        def done() -> Any:
            wait()
            return finish()

        if async_op:
            return Handle(self, event, done)
        result = done()
        self.ledger.finish(event)
        return result

    def device_mesh(self):
        """A DeviceMesh over these ranks, for FSDP2's `fully_shard` and DTensor. Its traffic is not in the ledger.

        Raises LabError for ranks on threads, which have no torch process group."""
        return self.transport.mesh()

    # -- checks: each one clear sentence, before anything is posted -------------------------------------------------
    def _check_rank(self, rank: int, name: str) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise LabError(f"{name}= must be a rank, an int from 0 to {self.size - 1}; got {rank!r}")
        if not 0 <= rank < self.size:
            raise LabError(
                f"{name}={rank} is no rank of this group: its {self.size} ranks are 0 to {self.size - 1} "
                f"(wrap around with % group.size)"
            )

    def _check_peer(self, rank: int, name: str) -> None:
        self._check_rank(rank, name)
        if rank == self.rank:
            raise LabError(
                f"{name}={rank} is rank {self.rank} itself: a rank cannot message itself, keep the tensor instead"
            )

    def _check_tensor(self, tensor: Any, name: str = "tensor") -> None:
        if not isinstance(tensor, torch.Tensor):
            raise LabError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
        if tensor.device != self.device:
            raise LabError(
                f"{name} is on {tensor.device}, but this group moves tensors on {self.device}: use .to(group.device)"
            )

    def _check_reduction(self, tensor: torch.Tensor, op: str) -> None:
        self._check_tensor(tensor)
        if op not in OPS:
            raise LabError(f"op={op!r} is unknown: choose one of {', '.join(OPS)}")
        if tensor.dtype not in REDUCIBLE:
            raise LabError(f"{_dtype(tensor)} cannot be reduced: convert it first, to float32, say, or to int32")
        if op == "mean" and not tensor.dtype.is_floating_point:
            raise LabError(f"the mean of {_dtype(tensor)} is no integer: use op='sum', or convert to a float dtype")

    def _target(self, part: Recv) -> torch.Tensor:
        if part.out is not None:
            self._check_tensor(part.out, "out")
            return part.out.detach() if part.out.requires_grad else part.out
        if part.like is None:
            raise LabError(
                "recv needs like= (a tensor of the shape and dtype to expect) or out= (a tensor to fill): "
                "a message carries no header"
            )
        if not isinstance(part.like, torch.Tensor):
            raise LabError(f"like must be a torch.Tensor; got {type(part.like).__name__}")
        return torch.empty(part.like.shape, dtype=part.like.dtype, device=self.device)


def _wire_op(op: str) -> str:
    return "sum" if op == "mean" else op


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _dtype(tensor: torch.Tensor) -> str:
    name = _DTYPES.get(tensor.dtype)
    if name is None:
        name = _DTYPES[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
    return name


def _check_overlap(ops: Sequence[Op]) -> None:
    """A buffer that is filled while it is read, or filled twice, gives a different answer on every run: refuse it."""
    spans = [(op.tensor.data_ptr(), op.tensor.data_ptr() + _bytes(op.tensor), op.kind) for op in ops]
    for i, (a, b, kind) in enumerate(spans):
        for c, d, other in spans[i + 1 :]:
            if a < d and c < b and "recv" in (kind, other):
                raise LabError(
                    "out= shares memory with another tensor of the same call: it would be overwritten while "
                    "it is read; receive into a tensor of its own"
                )
