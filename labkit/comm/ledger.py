"""The ledger, a communication log: what one rank asked its group to do, in program order.

Every call on a `Group` leaves an `Event`: checks assert on it, timelines draw it, the virtual wire replays it, and the
autopsy of a hang is read from it. Ranks are those of the whole run. Matching needs `seq` alone: in each group the n-th
send from a to b meets the n-th recv on b from a, and the n-th collective the n-th of every other rank.

`bytes` of a "send" and a "recv" are what crosses, without a header (the tests hold it against the kernel's counters).
For a library collective they are the payload as nccl-tests counts it (all_reduce and broadcast: the tensor; all_gather:
the gathered result; reduce_scatter: the whole input). What FSDP2, DTensor and others send by themselves is here only if
their mesh was made with `ledger=True`. On CUDA `begin` and `end` are the host's: of the call, and of its return.

An event costs about 2 microseconds, 6 where a file (`sink`) keeps it too: in it the parent reads what a rank was doing
that was killed or hangs in C code.
"""

import json
import marshal
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "split")
EMPTY = ("barrier", "split")  # collectives that bring the ranks together and carry nothing
CALLS = ("send", "recv", "wait", *COLLECTIVES)  # what a rank can stand in; "compute" and what may come later is not
KEEP = 100_000  # events kept in memory, some 50 MB; the totals stay exact beyond
LIMIT = 8 << 20  # bytes of a sink; a longer file is started anew with the last events, so that no run fills a disk
WORLD = "world"  # the name of the group of all ranks


class GroupId(NamedTuple):
    """What tells a group from all others: its name, and its ranks of the whole run."""

    name: str
    ranks: tuple[int, ...]

    @property
    def described(self) -> str:
        """'group "tp" (ranks 0 and 1)', for sentences."""
        return f'group "{self.name}" ({say_ranks(self.ranks)})'

    @property
    def of(self) -> str:
        """' of group ...', or nothing for the group of all ranks, which needs no name."""
        return "" if self.name == WORLD else f" of {self.described}"

    @property
    def inside(self) -> str:
        """' in group ...', likewise."""
        return "" if self.name == WORLD else f" in {self.described}"


def say_ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 2"."""
    *most, last = map(str, ranks or ("?",))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


@dataclass(slots=True)
class Event:
    """One thing a rank asked for. Times are seconds since the start of the run; sizes are bytes."""

    index: int  # program order on this rank: 0, 1, 2, ...
    kind: str  # "send", "recv", "wait", one of COLLECTIVES, or "compute"
    peer: int | None = None  # the other rank, as the whole run counts; the source of a broadcast; else None
    bytes: int = 0  # payload (see above); 0 for "wait" and "barrier"
    begin: float = 0.0
    end: float | None = None  # None: not known to be complete
    where: str = ""  # "file:line" of the code that called the group
    dtype: str = ""  # "float32", "bfloat16", ...
    shape: tuple[int, ...] = ()  # of the tensor that was passed (recv: received)
    op: str | None = None  # "sum", "mean", ... of a reduction; the name and parts of a split
    batch: int | None = None  # shared by what one call posts, as both halves of a sendrecv; None for "wait"
    blocking: bool = True  # False: posted only, and the rank went on; it stood still in the "wait" with of == index
    of: int | None = None  # "wait": the index of the event waited for
    seq: int = 0  # number of this message on its channel, or of this collective, within the group
    group: str = WORLD
    label: str = ""  # "compute": what was computed
    seconds: float | None = None  # "compute": how long it takes on the virtual wire; None: as long as it took here


_KEPT = [f.name for f in fields(Event) if f.name != "end"]
_row = attrgetter(*_KEPT)


class Ledger:
    """The events of one rank. `events` is an ordinary list; reading it while the rank runs is safe."""

    def __init__(
        self, rank: int = 0, size: int = 1, *, start: float | None = None, sink: str | None = None, keep: int = KEEP
    ) -> None:
        self.rank, self.size = rank, size
        self.groups: dict[str, tuple[int, ...]] = {WORLD: tuple(range(size))}  # those that this rank is in
        self.start = time.perf_counter() if start is None else start  # the zero of all times, one for a whole machine
        self.keep = max(2, keep)  # events in memory
        self.events: list[Event] = []
        self.weighed: dict[int, int] = {}  # bytes held when a span began, by its index, where a broker reads them
        self.enabled = True
        self.gaps = False  # True once something went unrecorded: then counts prove nothing
        self.dropped = 0  # older events; the totals still count them
        self._totals: Counter[str] = Counter()  # of the dropped events
        self._next = 0
        self._seq: dict[tuple[str, str, int | None], int] = {}
        self._sink = _Sink(sink, self) if sink else None

    # -- totals ---------------------------------------------------------------------------------------------------
    @property
    def sent_bytes(self) -> int:
        """Bytes sent point to point. What library collectives move is not in it."""
        return self._totals["sent_bytes"] + sum(e.bytes for e in self.events if e.kind == "send")

    @property
    def received_bytes(self) -> int:
        return self._totals["received_bytes"] + sum(e.bytes for e in self.events if e.kind == "recv")

    @property
    def steps(self) -> int:
        """How many calls sent something point to point: a `sendrecv` or a `batch` is one step."""
        return self._totals["steps"] + len({e.batch for e in self.events if e.kind == "send"})

    def count(self, *kinds: str) -> int:
        return sum(e.kind in kinds for e in self.events)

    def open(self) -> list[Event]:
        """Calls that this rank stands in now: begun, blocking, not ended."""
        return [e for e in self.events if e.end is None and e.blocking and e.kind in CALLS]

    def group_of(self, event: Event) -> GroupId:
        return GroupId(event.group, self.groups.get(event.group, ()))

    # -- recording ------------------------------------------------------------------------------------------------
    def now(self) -> float:
        return time.perf_counter() - self.start

    def join(self, group: GroupId) -> None:
        self.groups[group.name] = group.ranks
        self._record((None, *group))

    def begin(
        self,
        kind: str,
        peer: int | None = None,
        bytes: int = 0,
        dtype: str = "",
        shape: tuple[int, ...] = (),
        *,
        batch: int | None = None,
        **more: Any,
    ) -> Event | None:
        """Note that a call begins; None while the ledger is off. `batch=None` starts a new batch; more: fields."""
        if not self.enabled:
            self.gaps = True
            return None
        index, seq = self._next, 0
        self._next = index + 1
        if kind not in ("wait", "compute"):
            group = more.get("group", WORLD)
            channel = (group, kind, peer) if kind in ("send", "recv") else (group, "collective", None)
            seq = self._seq.get(channel, 0)
            self._seq[channel] = seq + 1
            if batch is None:
                batch = index
        begin = time.perf_counter() - self.start
        event = Event(index, kind, peer, bytes, begin, dtype=dtype, shape=shape, batch=batch, seq=seq, **more)
        self.events.append(event)
        if len(self.events) > self.keep:
            self._drop()
        self._record(_row(event))
        return event

    def begin_together(self, calls: Iterable[tuple], **common: Any) -> list[Event | None]:
        """Note what one call posts: (kind, peer, bytes, dtype, shape) each, and what they share. One batch."""
        events: list[Event | None] = []
        for call in calls:
            batch = events[0].batch if events and events[0] is not None else None
            events.append(self.begin(*call, batch=batch, **common))
        return events

    def finish(self, event: Event | None) -> None:
        if event is not None:
            event.end = time.perf_counter() - self.start
            self._record((event.index, event.end))

    def begin_wait(self, posted: Event | None, where: str) -> Event | None:
        """Note that the rank now stands still until `posted` is complete; `finish_wait` that it is."""
        if posted is None:
            return None
        return self.begin("wait", posted.peer, of=posted.index, where=where, group=posted.group)

    def finish_wait(self, wait: Event | None, posted: Event | None) -> None:
        self.finish(wait)
        if posted is not None:
            posted.end = wait.end if wait is not None else self.now()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Record nothing inside the `with`. Of a hang in there, tracebacks alone tell."""
        before, self.enabled = self.enabled, False
        self._record(None)
        try:
            yield
        finally:
            self.enabled = before

    def close(self) -> None:
        if self._sink is not None:
            os.close(self._sink.fd)
            self._sink = None

    def _record(self, record: tuple | None) -> None:
        """For the file: (index, end); (None, name, ranks) of a group; None, a gap; else an event that begins."""
        if self._sink is not None:
            self._sink.write(record)

    def _drop(self) -> None:
        """Forget the older half, but count it. A batch is not cut in two, or its step would be counted twice."""
        cut = self.keep // 2
        before = self.events[cut - 1].batch
        while before is not None and cut < len(self.events) and self.events[cut].batch == before:
            cut += 1
        waiting = [e for e in self.events[:cut] if e.end is None and e.blocking]  # what an autopsy looks for stays
        old = Ledger()
        old.events = [e for e in self.events[:cut] if e.end is not None or not e.blocking]
        self._totals.update({name: getattr(old, name) for name in ("sent_bytes", "received_bytes", "steps")})
        self.dropped += len(old.events)
        self.events[:cut] = waiting

    # -- as data --------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "size": self.size,
            "groups": {name: list(ranks) for name, ranks in self.groups.items()},
            "events": [asdict(e) for e in self.events],
            "dropped": self.dropped,
            "gaps": self.gaps,
            "totals": dict(self._totals),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> "Ledger":
        """The inverse of `to_json`; takes the dict, or its JSON text."""
        data = json.loads(data) if isinstance(data, str) else data
        ledger = cls(data["rank"], data["size"], start=0.0)
        ledger.groups.update({name: tuple(ranks) for name, ranks in data.get("groups", {}).items()})
        ledger.events = [Event(**{**e, "shape": tuple(e.get("shape", ()))}) for e in data["events"]]
        ledger.dropped, ledger.gaps = data.get("dropped", 0), data.get("gaps", False)
        ledger._totals.update(data.get("totals", {}))
        return ledger

    def __repr__(self) -> str:
        return (
            f"Ledger(rank {self.rank} of {self.size}: {len(self.events)} events, {self.steps} steps, "
            f"sent {self.sent_bytes} B, received {self.received_bytes} B)"
        )


class _Sink:
    """The append-only file. One `os.write` a record: what was written before a SIGKILL is in the kernel, not lost.

    Records are marshalled (a third of JSON's time). On a full disk the sink falls silent: nothing here fails the run."""

    def __init__(self, path: str, ledger: Ledger) -> None:
        self.ledger, self.written, self.quiet = ledger, 0, False
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write(self, record: tuple | None) -> None:
        if self.quiet:
            return
        try:
            self.written += os.write(self.fd, marshal.dumps(record))
            if self.written > LIMIT:
                self._restart()
        except OSError:
            self.quiet = True

    def _restart(self) -> None:
        """Start the file anew from the last events: matching goes by `seq`, so the old ones are not needed."""
        os.ftruncate(self.fd, 0)
        self.written = 0
        for group in self.ledger.groups.items():
            self.write((None, *group))
        recent = self.ledger.events[-200:]
        for event in [*(e for e in self.ledger.open() if e not in recent), *recent]:
            self.write(_row(event))
            if event.end is not None:
                self.write((event.index, event.end))
        if self.ledger.gaps:
            self.write(None)


def read_sink(path: str, rank: int, size: int) -> Ledger:
    """What a rank had recorded when it ended, however it ended. A torn last record is ignored; no file: no events."""
    ledger = Ledger(rank, size, start=0.0)
    by_index: dict[int, Event] = {}
    try:
        with open(path, "rb") as file:
            while True:
                record = marshal.load(file)
                if record is None:
                    ledger.gaps = True
                elif len(record) == 2:
                    if record[0] in by_index:
                        by_index[record[0]].end = record[1]
                elif record[0] is None:
                    ledger.groups[record[1]] = record[2]
                else:
                    by_index[record[0]] = Event(**dict(zip(_KEPT, record)))
    except (OSError, EOFError, ValueError, TypeError):
        pass  # the end of the file, torn or not
    ledger.events = [by_index[i] for i in sorted(by_index)]
    if ledger.events:
        ledger.dropped = ledger.events[-1].index + 1 - len(ledger.events)
    return ledger
