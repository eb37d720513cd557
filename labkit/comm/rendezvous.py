"""The rendezvous: where ranks that live on threads of one process meet, without a buffer."""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from labkit.comm.ledger import WORLD, GroupId
from labkit.comm.transport import Collective, Op, Transport, Wait, as_bytes


class RankEnded(BaseException):
    """Raised inside a rank when its run is over. Not an Exception: `except Exception` must not keep the rank alive."""


@dataclass(slots=True, eq=False)
class Pending:
    """An op or a contribution waiting for its counterpart."""

    what: Any  # an Op or a Collective
    rank: int
    done: bool = False


class Rendezvous:
    """The meeting point of `size` ranks."""

    def __init__(self, size: int) -> None:
        self.world = GroupId(WORLD, tuple(range(size)))
        self.lock = threading.RLock()
        self.wake = [threading.Condition(self.lock) for _ in range(size)]
        # Halves of messages that wait for the other half, by (group, src, dst).
        self.messages: dict[tuple[GroupId, int, int], deque[Pending]] = defaultdict(deque)
        self.slots: dict[tuple[GroupId, int], list[Pending]] = defaultdict(list)  # (group, number)
        self.counts: Counter[tuple[GroupId, int]] = Counter()  # (group, rank): collectives begun
        self.waiting = [0] * size  # how many threads of each rank stand in a wait
        self.version = 0  # grows whenever anything is posted or completed
        self.ended = False
        self.fault: str | None = None  # the ranks disagreed: in words

    def end(self, fault: str | None = None) -> None:
        """Wake everyone with RankEnded; nothing can be posted any more."""
        with self.lock:
            self.fault = self.fault or fault
            self.ended = True
            for condition in self.wake:
                condition.notify_all()

    def _disagree(self, group: GroupId, *two: Pending) -> NoReturn:
        # Who meant what is in the ledgers (labkit.comm.match): this is said where they were off.
        met = " and ".join(f"rank {item.rank} ({item.what.kind} at {item.what.where})" for item in two)
        self.end(f"{met} met{group.inside} and did not mean the same")
        raise RankEnded

    # -- messages -------------------------------------------------------------------------------------------------
    def post(self, group: GroupId, rank: int, ops: Sequence[Op]) -> list[Pending]:
        mine: list[Pending] = []
        met: list[tuple[Pending, Pending]] = []
        with self.lock:
            self._check_alive()
            self.version += 1
            for op in ops:
                mine.append(item := Pending(op, rank))
                sending = op.kind == "send"
                channel = (group, rank, op.peer) if sending else (group, op.peer, rank)
                waiting = self.messages[channel]  # halves of one kind: another one meets the first of them
                if waiting and waiting[0].what.kind != op.kind:
                    pair = (item, waiting.popleft()) if sending else (waiting.popleft(), item)
                    sent, received = pair[0].what.tensor, pair[1].what.tensor
                    if (sent.numel(), sent.dtype) != (received.numel(), received.dtype):
                        self._disagree(group, *pair)
                    met.append(pair)
                else:
                    waiting.append(item)
        for send, recv in met:  # outside the lock: a large copy holds nobody else up
            as_bytes(recv.what.tensor).copy_(as_bytes(send.what.tensor))
            self._complete(send, recv)
        return mine

    # -- collectives ----------------------------------------------------------------------------------------------
    def contribute(self, group: GroupId, rank: int, call: Collective) -> Pending:
        item = Pending(call, rank)
        with self.lock:
            self._check_alive()
            self.version += 1
            number = self.counts[group, rank]
            self.counts[group, rank] += 1
            slot = self.slots[group, number]
            if slot and _signature(slot[0].what) != _signature(call):
                self._disagree(group, slot[0], item)
            slot.append(item)
            if len(slot) < len(group.ranks):
                return item
            del self.slots[group, number]
        # By the last rank to come, for all: what watches that rank alone (a meter of memory) is not to see the others'.
        with _disable_current_modes():
            _compute({part.rank: part.what for part in sorted(slot, key=lambda part: part.rank)})
        self._complete(*slot)
        return item

    def wait(self, rank: int, items: Sequence[Pending]) -> None:
        with self.lock:
            self.waiting[rank] += 1
            try:
                while not all(item.done for item in items):
                    self._check_alive()
                    self.wake[rank].wait()
            finally:
                self.waiting[rank] -= 1

    def _complete(self, *items: Pending) -> None:
        with self.lock:
            self.version += 1
            for item in items:
                item.done = True
                self.wake[item.rank].notify_all()

    def _check_alive(self) -> None:
        if self.ended:
            raise RankEnded


class ThreadTransport(Transport):
    def __init__(self, rendezvous: Rendezvous, rank: int, group: GroupId) -> None:
        self.rendezvous, self.rank, self.group = rendezvous, rank, group
        self.device = torch.device("cpu")

    def post(self, ops: Sequence[Op]) -> Wait:
        items = self.rendezvous.post(self.group, self.rank, ops)
        return lambda: self.rendezvous.wait(self.rank, items)

    def collective(self, call: Collective) -> Wait:
        item = self.rendezvous.contribute(self.group, self.rank, call)
        return lambda: self.rendezvous.wait(self.rank, [item])

    def split(self, call: Collective, parts: Sequence[Sequence[int]], group: GroupId) -> Transport:
        self.collective(call)()
        return ThreadTransport(self.rendezvous, self.rank, group)


_REDUCE: dict[str | None, Callable] = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


def _compute(by_rank: dict[int, Collective]) -> None:
    """All contributions, in rank order, have come: fill every rank's result."""
    calls = list(by_rank.values())
    kind = calls[0].kind
    tensors = [call.tensor for call in calls if call.tensor is not None]
    if kind in ("all_reduce", "reduce_scatter"):
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            _REDUCE[calls[0].op](total, tensor, out=total)  # rounds to the tensor's dtype after each rank
        parts = [total] * len(calls) if kind == "all_reduce" else total.chunk(len(calls)) if total.numel() else []
        for call, tensor, part in zip(calls, tensors, parts):
            (tensor if call.out is None else call.out).copy_(part)
    elif kind == "all_gather":
        gathered = torch.cat([as_bytes(tensor) for tensor in tensors])
        for call in calls:
            if call.out is not None:
                as_bytes(call.out).copy_(gathered)
    elif kind == "broadcast":
        source: Any = by_rank[calls[0].src or 0].tensor
        for tensor in tensors:
            if tensor is not source:
                as_bytes(tensor).copy_(as_bytes(source))


def _signature(call: Collective) -> tuple:
    tensor = call.tensor
    return (call.kind, call.op, call.src, tensor is not None and (tensor.dtype, tensor.numel()))
