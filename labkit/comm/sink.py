"""The ledger on disk: a file that outlives its rank.

A rank that hangs in C code or dies by a signal cannot tell what it was doing; the file can. The parent reads it for the
autopsy.
"""

from __future__ import annotations

import marshal
import os

from labkit.comm.ledger import Event, Ledger

LIMIT = 8 << 20  # bytes; a longer file is started anew with the last events, so that no run fills a disk


class Sink:
    """The append-only file. One `os.write` a record: what was written before a SIGKILL is in the kernel, not lost.

    Records are marshalled tuples (a third of JSON's time). Thirteen entries: an event begins. Two: (index, end).
    None: a gap. Nothing here may fail the run: on a full disk the sink falls silent and the autopsy knows less."""

    def __init__(self, path: str, ledger: Ledger) -> None:
        self.ledger, self.written, self.quiet = ledger, 0, False
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def begin(self, e: Event) -> None:
        self._write(
            (
                e.index,
                e.kind,
                e.peer,
                e.bytes,
                e.begin,
                e.where,
                e.dtype,
                e.shape,
                e.op,
                e.batch,
                e.blocking,
                e.of,
                e.seq,
            )
        )

    def end(self, e: Event) -> None:
        self._write((e.index, e.end))

    def gap(self) -> None:
        self._write(None)

    def _write(self, record: tuple | None) -> None:
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
        recent = self.ledger.events[-200:]
        for event in [*(e for e in self.ledger.open() if e not in recent), *recent]:
            self.begin(event)
            if event.end is not None:
                self.end(event)
        if self.ledger.gaps:
            self.gap()

    def close(self) -> None:
        self.quiet = True
        os.close(self.fd)


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
                else:
                    index, kind, peer, length, begin, *rest = record
                    by_index[index] = Event(index, kind, peer, length, begin, None, *rest)
    except (OSError, EOFError, ValueError, TypeError):
        pass  # the end of the file, torn or not
    ledger.events = [by_index[i] for i in sorted(by_index)]
    if ledger.events:
        ledger._next = ledger.events[-1].index + 1
        ledger.dropped = ledger._next - len(ledger.events)
    return ledger
