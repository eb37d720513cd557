"""The rendezvous: where ranks that live on threads of one process meet.

A send and its recv find each other here, whoever comes second copies the bytes, both go on. There is no buffer in
between, so two ranks that both send first deadlock at any size, as they may on a GPU. A collective is a slot that
collects one contribution per rank; the last to come computes for all, reducing in rank order, so results are the same
on every run.

Nothing here outlives the run: `end()` wakes every waiting rank with `RankEnded`. Ranks that disagree (another
collective, another size, another dtype) are told in words at the moment they meet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from labkit.comm.transport import Collective, Op, Wait, as_bytes
from labkit.errors import LabError


class RankEnded(BaseException):
    """Raised inside a rank when its run is over. Not an Exception: `except Exception` must not keep the rank alive."""


class _Pending:
    """An op or a contribution waiting for its counterpart."""

    __slots__ = ("done", "rank", "what")

    def __init__(self, what: Op | Collective, rank: int) -> None:
        self.what, self.rank, self.done = what, rank, False


class Rendezvous:
    """The meeting point of `size` ranks. `transport(rank)` gives each its end of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.wake = [threading.Condition(self.lock) for _ in range(size)]
        self.messages: dict[tuple[int, int], tuple[deque[_Pending], deque[_Pending]]] = {}  # (src, dst): sends, recvs
        self.slots: dict[int, list[_Pending]] = {}  # collective number: contributions so far
        self.counts = [0] * size  # collectives begun by each rank
        self.waiting = [0] * size  # how many threads of each rank stand in a wait
        self.version = 0  # grows whenever anything is posted or completed
        self.ended = False
        self.fault: str | None = None  # the ranks disagreed: in words

    def transport(self, rank: int) -> ThreadTransport:
        return ThreadTransport(self, rank)

    def end(self, fault: str | None = None) -> None:
        """Wake everyone with RankEnded; nothing can be posted any more."""
        with self.lock:
            self._end(fault)

    def _end(self, fault: str | None = None) -> None:
        self.ended = True
        self.fault = self.fault or fault
        for condition in self.wake:
            condition.notify_all()

    # -- messages -------------------------------------------------------------------------------------------------
    def post(self, rank: int, ops: Sequence[Op]) -> list[_Pending]:
        mine, met = [], []
        with self.lock:
            self._check_alive()
            self.version += 1
            for op in ops:
                item = _Pending(op, rank)
                mine.append(item)
                sending = op.kind == "send"
                channel = (rank, op.peer) if sending else (op.peer, rank)
                sends, recvs = self.messages.setdefault(channel, (deque(), deque()))
                other = recvs if sending else sends
                if other:
                    pair = (item, other.popleft()) if sending else (other.popleft(), item)
                    self._check_pair(*pair)
                    met.append(pair)
                else:
                    (sends if sending else recvs).append(item)
        for send, recv in met:  # outside the lock: a large copy holds nobody else up
            as_bytes(recv.what.tensor).copy_(as_bytes(send.what.tensor))
            self._complete(send, recv)
        return mine

    def _check_pair(self, send: _Pending, recv: _Pending) -> None:
        a, b = send.what, recv.what
        if a.tensor.numel() != b.tensor.numel() or a.tensor.dtype != b.tensor.dtype:
            self._end(
                f"rank {send.rank} sends {_what(a.tensor)} to rank {recv.rank} ({a.where}), which expects "
                f"{_what(b.tensor)} ({b.where})"
            )
            raise RankEnded

    # -- collectives ----------------------------------------------------------------------------------------------
    def contribute(self, rank: int, call: Collective) -> _Pending:
        item = _Pending(call, rank)
        with self.lock:
            self._check_alive()
            self.version += 1
            number = self.counts[rank]
            self.counts[rank] = number + 1
            slot = self.slots.setdefault(number, [])
            if slot and _signature(slot[0].what) != _signature(call):
                self._end(
                    f"rank {slot[0].rank} called {_told(slot[0].what)} and rank {rank} called {_told(call)} as "
                    f"collective number {number + 1}"
                )
                raise RankEnded
            slot.append(item)
            if len(slot) < self.size:
                return item
            del self.slots[number]
        slot.sort(key=lambda part: part.rank)
        _compute([part.what for part in slot])
        self._complete(*slot)
        return item

    def wait(self, rank: int, items: Sequence[_Pending]) -> None:
        with self.lock:
            self.waiting[rank] += 1
            try:
                while not all(item.done for item in items):
                    self._check_alive()
                    self.wake[rank].wait()
            finally:
                self.waiting[rank] -= 1

    def _complete(self, *items: _Pending) -> None:
        with self.lock:
            self.version += 1
            for item in items:
                item.done = True
                self.wake[item.rank].notify_all()

    def _check_alive(self) -> None:
        if self.ended:
            raise RankEnded


class ThreadTransport:
    """One rank's end of it."""

    def __init__(self, rendezvous: Rendezvous, rank: int) -> None:
        self.rendezvous, self.rank, self.size = rendezvous, rank, rendezvous.size
        self.device = torch.device("cpu")

    def post(self, ops: Sequence[Op]) -> Wait:
        items = self.rendezvous.post(self.rank, ops)
        return lambda: self.rendezvous.wait(self.rank, items)

    def collective(self, call: Collective) -> Wait:
        item = self.rendezvous.contribute(self.rank, call)
        return lambda: self.rendezvous.wait(self.rank, [item])

    def mesh(self):
        raise LabError(
            "ranks on threads have no device mesh (FSDP2 needs torch process groups): "
            "use run_ranks(..., backend='processes') or torchrun"
        )


_REDUCE = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


def _compute(calls: list[Collective]) -> None:
    """All contributions, in rank order, have come: fill every rank's result."""
    kind = calls[0].kind
    if kind in ("all_reduce", "reduce_scatter"):
        total = calls[0].tensor.clone()
        for call in calls[1:]:
            _REDUCE[call.op](total, call.tensor, out=total)  # rounds to the tensor's dtype after each rank
        parts = [total] * len(calls) if kind == "all_reduce" else total.chunk(len(calls)) if total.numel() else []
        for call, part in zip(calls, parts):
            (call.tensor if kind == "all_reduce" else call.out).copy_(part)
    elif kind == "all_gather":
        gathered = torch.cat([as_bytes(call.tensor) for call in calls])
        for call in calls:
            as_bytes(call.out).copy_(gathered)
    elif kind == "broadcast":
        for rank, call in enumerate(calls):
            if rank != call.root:
                as_bytes(call.tensor).copy_(as_bytes(calls[call.root].tensor))


def _signature(call: Collective) -> tuple:
    tensor = call.tensor
    return (call.kind, call.op, call.root, tensor is not None and (tensor.dtype, tensor.numel()))


def _what(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _told(call: Collective) -> str:
    details = [
        call.op,
        f"root {call.root}" if call.root is not None else None,
        _what(call.tensor) if call.tensor is not None else None,
        call.where,
    ]
    return f"{call.kind} ({', '.join(d for d in details if d)})"
