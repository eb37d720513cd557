"""The ledger: what one rank asked its group to do, in program order.

Every call on a `Group` leaves an `Event` here: what kind, with whom, how many bytes, from which line, from when to
when. Checks assert on it, timelines draw it, the virtual wire replays it, and the autopsy of a hang is read from it.

What replay needs is exact, clocks aside:

- `index` is the rank's program order. Events that one call posts together (the two halves of a `sendrecv`, all parts
  of a `batch`) share a `batch` id, and no other event has it.
- `blocking=True`: the rank went on only after this event was complete. `blocking=False` (`isend`, `irecv`,
  `async_op`): the rank went on at once; a later event of kind "wait" with `of=<index>` is where it stood still until
  completion.
- `seq` counts messages: the n-th send from a to b meets the n-th recv on b from a, and the n-th collective meets the
  n-th collective of every other rank. Matching needs nothing else.

What `bytes` means. For "send" and "recv" it is what crosses: elements times element size, no header (the tests hold
it against the kernel's own TCP counters). For a library collective it is the payload as nccl-tests counts it
(all_reduce and broadcast: the tensor; all_gather: the gathered result; reduce_scatter: the whole input); how many
bytes really cross is the library's choice of algorithm, and the ledger does not claim to know it. Traffic that does
not pass through `Group` (what FSDP2 does on a `device_mesh()`) is not here at all.

On CUDA the host's `begin` and `end` say when the call was made and when it returned, not when the GPU did it; with
`device_clock` on, `device_begin` and `device_end` are measured by CUDA events on the rank's current stream.

An event costs about 2 microseconds, 6 where a file keeps it too (rank processes). `ledger.off()` records nothing for a
while: a benchmark of 8-byte messages wants that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
KEEP = 100_000  # events kept in memory, some 50 MB; the totals stay exact beyond


@dataclass(slots=True)
class Event:
    """One thing a rank asked for. Times are seconds since the start of the run; sizes are bytes."""

    index: int  # program order on this rank: 0, 1, 2, ...
    kind: str  # "send", "recv", "wait", or one of COLLECTIVES
    peer: int | None = None  # the other rank; the root of a broadcast; None for the other collectives
    bytes: int = 0  # payload (see above); 0 for "wait" and "barrier"
    begin: float = 0.0
    end: float | None = None  # None: not known to be complete
    where: str = ""  # "file:line" of the code that called the group
    dtype: str = ""  # "float32", "bfloat16", ...
    shape: tuple[int, ...] = ()  # of the tensor that was passed (recv: received)
    op: str | None = None  # "sum", "mean", ... of a reduction
    batch: int | None = None  # shared by everything posted by one call; None for "wait"
    blocking: bool = True  # False: posted only; see the "wait" with of == index
    of: int | None = None  # "wait": the index of the event waited for
    seq: int = 0  # number of this message on its channel, or of this collective on this rank
    device_begin: float | None = None  # seconds on the GPU's clock since the ledger began, if device_clock is on
    device_end: float | None = None


class Ledger:
    """The events of one rank. `events` is an ordinary list; reading it while the rank runs is safe.

    rank, size   whose ledger, and of how many ranks
    start        `time.perf_counter()` at the start of the run, the zero of all times (one clock for a whole machine)
    sink         path of an append-only file that gets every begin and end as it happens; it survives SIGKILL
    keep         events kept in memory; older ones are dropped (`dropped` says how many, the totals still count them)
    """

    def __init__(
        self, rank: int = 0, size: int = 1, *, start: float | None = None, sink: str | None = None, keep: int = KEEP
    ) -> None:
        self.rank, self.size = rank, size
        self.start = time.perf_counter() if start is None else start
        self.keep = max(2, keep)
        self.events: list[Event] = []
        self.enabled = True
        self.gaps = False  # True once something went unrecorded: then counts prove nothing
        self.dropped = 0
        self._totals = {"sent_bytes": 0, "received_bytes": 0, "steps": 0}  # of the dropped events
        self._next = 0
        self._seq: dict[tuple[str, int | None], int] = {}
        self._sink = None
        if sink:
            from labkit.comm.sink import Sink

            self._sink = Sink(sink, self)
        self._clock: _DeviceClock | None = None

    # -- totals ---------------------------------------------------------------------------------------------------
    @property
    def sent_bytes(self) -> int:
        """Bytes sent point to point. What library collectives move is not in it (see `collective_bytes`)."""
        return self._totals["sent_bytes"] + sum(e.bytes for e in self.events if e.kind == "send")

    @property
    def received_bytes(self) -> int:
        """Bytes received point to point."""
        return self._totals["received_bytes"] + sum(e.bytes for e in self.events if e.kind == "recv")

    @property
    def steps(self) -> int:
        """How many calls sent something point to point: a `sendrecv` or a `batch` is one step."""
        return self._totals["steps"] + len({e.batch for e in self.events if e.kind == "send"})

    @property
    def collective_bytes(self) -> int:
        """Payload handed to library collectives; not what their algorithm moved."""
        return sum(e.bytes for e in self.events if e.kind in COLLECTIVES)

    def count(self, *kinds: str) -> int:
        """How many events of these kinds there are."""
        return sum(e.kind in kinds for e in self.events)

    def open(self) -> list[Event]:
        """Calls that this rank stands in now: begun, blocking, not ended."""
        return [e for e in self.events if e.end is None and e.blocking]

    # -- recording ------------------------------------------------------------------------------------------------
    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self.start

    def begin(
        self,
        kind: str,
        peer: int | None = None,
        bytes: int = 0,
        *,
        dtype: str = "",
        shape: tuple[int, ...] = (),
        op: str | None = None,
        batch: int | None = None,
        blocking: bool = True,
        of: int | None = None,
        where: str = "",
    ) -> Event | None:
        """Note that a call begins. `batch=None` starts a new batch; pass the first event's `batch` to join it.

        None is returned while the ledger is off; `finish` takes it."""
        if not self.enabled:
            self.gaps = True
            return None
        index = self._next
        self._next = index + 1
        seq = 0
        if kind != "wait":
            channel = (kind, peer) if kind in ("send", "recv") else ("collective", None)
            seq = self._seq.get(channel, 0)
            self._seq[channel] = seq + 1
            if batch is None:
                batch = index
        event = Event(
            index,
            kind,
            peer,
            bytes,
            time.perf_counter() - self.start,
            None,
            where,
            dtype,
            shape,
            op,
            batch,
            blocking,
            of,
            seq,
        )
        self.events.append(event)
        if len(self.events) > self.keep:
            self._drop()
        if self._sink is not None:
            self._sink.begin(event)
        if self._clock is not None:
            self._clock.begin(event)
        return event

    def finish(self, event: Event | None) -> None:
        """Note that it is complete."""
        if event is None:
            return
        event.end = time.perf_counter() - self.start
        if self._sink is not None:
            self._sink.end(event)
        if self._clock is not None:
            self._clock.end(event)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Record nothing inside the `with`. A hang in there is told from tracebacks alone."""
        before, self.enabled = self.enabled, False
        if self._sink is not None:
            self._sink.gap()
        try:
            yield
        finally:
            self.enabled = before

    def device_clock(self) -> None:
        """From now on, time each event on the current CUDA device too (two CUDA events a call)."""
        self._clock = _DeviceClock()

    def settle(self) -> None:
        """Fill `device_begin` and `device_end` of what was timed; waits for the GPU."""
        if self._clock is not None:
            self._clock.settle()

    def close(self) -> None:
        """Close the sink. The events stay."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _drop(self) -> None:
        """Forget the older half, but count it. A batch is not cut in two, or its step would be counted twice."""
        cut = self.keep // 2
        while (
            cut < len(self.events)
            and self.events[cut].batch is not None
            and self.events[cut].batch == self.events[cut - 1].batch
        ):
            cut += 1
        old, waiting = self.events[:cut], []
        kept = Ledger()
        for event in old:
            # A call that is still open is what an autopsy looks for: it stays.
            (waiting if event.end is None and event.blocking else kept.events).append(event)
        for name in self._totals:
            self._totals[name] += getattr(kept, name)
        self.dropped += len(kept.events)
        self.events[:cut] = waiting

    # -- as data --------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """A dict of plain values: {"rank", "size", "events": [{field: value}], "dropped", "gaps", "totals"}."""
        self.settle()
        return {
            "rank": self.rank,
            "size": self.size,
            "events": [asdict(e) for e in self.events],
            "dropped": self.dropped,
            "gaps": self.gaps,
            "totals": dict(self._totals),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> Ledger:
        """The inverse of `to_json`; takes the dict, or its JSON text."""
        data = json.loads(data) if isinstance(data, str) else data
        ledger = cls(data["rank"], data["size"], start=0.0)
        ledger.events = [Event(**{**e, "shape": tuple(e.get("shape", ()))}) for e in data["events"]]
        ledger.dropped, ledger.gaps = data.get("dropped", 0), data.get("gaps", False)
        ledger._totals.update(data.get("totals", {}))
        ledger._next = ledger.events[-1].index + 1 if ledger.events else 0
        return ledger

    def __repr__(self) -> str:
        return (
            f"Ledger(rank {self.rank} of {self.size}: {len(self.events)} events, {self.steps} steps, "
            f"sent {self.sent_bytes} B, received {self.received_bytes} B)"
        )


class _DeviceClock:
    """Pairs of CUDA events around each call, read back once at the end so that no call waits for the GPU."""

    def __init__(self) -> None:
        import torch

        self.new = lambda: torch.cuda.Event(enable_timing=True)
        self.zero = self.new()
        self.zero.record()
        self.begun: dict[int, Any] = {}
        self.pairs: list[tuple[Event, Any, Any]] = []

    def begin(self, event: Event) -> None:
        self.begun[event.index] = self.new()
        self.begun[event.index].record()

    def end(self, event: Event) -> None:
        mark = self.new()
        mark.record()
        begun = self.begun.pop(event.index, None)
        if begun is not None:
            self.pairs.append((event, begun, mark))

    def settle(self) -> None:
        for event, begun, ended in self.pairs:
            ended.synchronize()
            event.device_begin = self.zero.elapsed_time(begun) / 1e3
            event.device_end = self.zero.elapsed_time(ended) / 1e3
        self.pairs.clear()
