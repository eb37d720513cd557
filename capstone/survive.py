"""Faults: a run that survives what clusters do (task C.3).

On a thousand GPUs something breaks every few hours, and a run that ends with it never ends well. What can be done is
always one of four things: go on without (a step, a checkpoint), go back (to a checkpoint), leave in order (and come
again), or have it ended, fast, with a word on who it was. What makes it hard: **all ranks must do the same, at the same
step**. A rank that skips, stops or goes back alone leaves the others in a collective that nobody else will ever call.

**A rank dies.** Nothing in this file can help: its process is gone, and the others' next collective fails. torchrun
ends them and starts all anew, up to `--max-restarts` times. So every start looks for a checkpoint, and what was done
since is done again: `restore`. The same batches, the same rate, the same moments: the loss curve is that of an
undisturbed run, or something was left out of the checkpoint.

**A NaN on one rank.** Gradients are summed, so all have it, and `Trainer.vitals` reports it to all (C.1). 16.7's Recovery
says what to do: skip the step, lower the rate, go back. Going back restores what a checkpoint holds, but for three
things. The lowered rate stays lowered, or the run meets the same cliff with the same speed. The count of ways back
goes on, or it goes back for ever. And step k reads batch k + shift from now on, so that the batches it broke on are
not read again.

**A full disk.** A save that fails is no reason to end: the older checkpoint is there. But it must be reported.

**A SIGTERM.** Clusters take machines back, and give notice: 30 seconds, say. The signal comes at any time, to each rank
in another place; one may be a step ahead. So a handler only remembers it, and behind each step all ranks tell each
other whether they are to stop (`tell`): if one is, all save and leave. The message is there anyway, so it carries
something else, too:

**A slow rank.** One GPU that is too warm, one disk that is too slow, and a thousand wait. What shows who it is are each
rank's own seconds, and the ledger knows them: those of the step without those in which the rank stood in calls
(`own_seconds`). Why not the seconds of the step? The notebook asks.

**A rank that hangs**: stopped, stuck in a driver, waiting for a file. It does not die, so torchrun sees nothing, and
the others wait in a collective, for gloo 30 minutes. So each rank has a thread that watches (`Watchdog`). It posts
twice a second where its rank stands, in a file beside the checkpoints, and reads the others' files: not over the
network, since a hung rank may hold exactly that. When a rank has stood in one call for `limit` seconds, they know
enough to say for whom it waits: `hung`. One rank writes the autopsy, kills the hung process (a stopped one does not
hear SIGTERM, and torchrun would give it 30 s), and leaves; torchrun starts all anew.

Both are read from the ledger, and so are true on CPU ranks. On a GPU a call returns to the host before its message has
gone: ranks wait where no ledger sees it. There NCCL has a watchdog of its own, and a slow rank is found by a profiler.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from capstone import checkpoint
from capstone.given.saying import gather_json
from labkit.comm.ledger import CALLS, COLLECTIVES
from labkit.errors import LabError

WINDOW, FACTOR, LEAST = 4, 2.0, 0.05  # of `slow_rank`: steps in a row; times the others' median; seconds above it
TICK = 0.5  # seconds between two looks of a watchdog


# ---- what all ranks know behind a step


class Heard(NamedTuple):
    """stop: some rank is to stop. seconds: each rank's own seconds of the step, by rank."""

    stop: bool
    seconds: list[float]


def own_seconds(ledger: Any, begin: float, end: float) -> float:
    """Seconds between two times (of `ledger.now()`) in which this rank stood in no call: the worked example of reading
    a ledger (given)."""
    stood = 0.0
    for event in reversed(ledger.events):
        if event.begin < begin:
            break
        if event.kind in CALLS and event.blocking and event.end is not None:  # an async call: its "wait" is blocking
            stood += event.end - event.begin
    return end - begin - stood


def tell(stop: bool, own: float, group: Any) -> Heard:
    """Task C.3. What all ranks know behind a step, the same on every rank, by one collective: whether any rank is
    to `stop`, and every rank's `own` seconds."""
    ### BEGIN SOLUTION C.3 one message behind each step
    mine = torch.tensor([[float(stop), own]], dtype=torch.float64, device=group.device)
    rows = group.all_gather(mine).view(group.size, 2)
    return Heard(bool(rows[:, 0].max() > 0), rows[:, 1].tolist())
    ### END SOLUTION


def slow_rank(rows: list[list[float]]) -> int | None:
    """Task C.3. The slow rank, or None. rows: each rank's own seconds, a list for each step, the newest last.

    Slow is who takes much longer than the others usually do, in step after step up to the newest: one late step is no
    news. WINDOW, FACTOR and LEAST say in how many steps, how many times as long, and how many seconds longer; all three
    must be met. With fewer steps, or one rank, nobody is.
    """
    ### BEGIN SOLUTION C.3 name the slow rank
    last = rows[-WINDOW:]
    if len(last) < WINDOW or len(last[0]) < 2:
        return None
    for rank in range(len(last[0])):
        pairs = [(row[rank], statistics.median(row[:rank] + row[rank + 1 :])) for row in last]
        if all(mine >= FACTOR * others and mine >= others + LEAST for mine, others in pairs):
            return rank
    return None
    ### END SOLUTION


# ---- going on, going back


def keep(run: Any) -> bool:
    """Task C.3. Save a checkpoint of `run.step`, if the disk lets it; all ranks call it together, and agree.

    `checkpoint.save(run.trainer, run.step, run.store, run.own())`; once it is there `run.recovery.saved(run.step)`, and
    `run.say("checkpoint", text)`. If it cannot be written the run goes on, and says so: `run.say("not saved", why)`.
    True: it is there.
    """
    ### BEGIN SOLUTION C.3 a disk that is full
    try:
        checkpoint.save(run.trainer, run.step, run.store, run.own())
    except LabError as full:  # on every rank: `save` raises on all
        run.say("not saved", f"{full}; the run goes on, and an older checkpoint stays the newest")
        return False
    run.recovery.saved(run.step)
    run.say("checkpoint", f"saved step {run.step}")
    return True
    ### END SOLUTION


def restore(run: Any) -> list[str]:
    """Task C.3. Put the run where its newest whole checkpoint was, or leave it if there is none.

    What `run.own()` gave at the save is in the checkpoint's `own`: history, rate (of `run.recovery`), shift, rollbacks.
    `run.step` is the last step that is done. Returns what `load` has passed over, in words.
    """
    ### BEGIN SOLUTION C.3 where it was
    found = checkpoint.load(run.trainer, run.store)
    if found is None:
        return []
    run.step, run.history = found.step, found.own["history"]
    run.recovery.rate, run.shift, run.rollbacks = (found.own[key] for key in ("rate", "shift", "rollbacks"))
    return found.passed_over
    ### END SOLUTION


def go_back(run: Any) -> bool:
    """Task C.3. From a step that broke to the newest checkpoint; False, and `run.say("not rolled back", why)`, if there
    is none: all ranks must agree on that.

    Afterwards the run is as the checkpoint has it, but: the rate is today's; there is one way back more; and if
    `run.config.recovery.skip_data`, the next step reads the first batch that was never read. Say it:
    `run.say("rolled back", text, to=..., shift=...)`. `run.recut()` takes the lines of undone steps out of the record.
    """
    ### BEGIN SOLUTION C.3 back to a checkpoint
    if not gather_json(run.group, run.store.steps())[0]:
        run.say("not rolled back", "there is no checkpoint to go back to")
        return False
    at, rate, shift, rollbacks = run.step, run.recovery.rate, run.shift, run.rollbacks
    restore(run)
    run.recovery.rate, run.rollbacks = rate, rollbacks + 1
    run.shift = shift + (at - run.step if run.config.recovery.skip_data else 0)
    run.say("rolled back", f"from step {at} to the checkpoint of step {run.step}", to=run.step, shift=run.shift)
    run.recut()
    return True
    ### END SOLUTION


# ---- a rank that hangs


class Standing(NamedTuple):
    """Where a rank stands, as its watchdog posts it.

    pid, host  of its process
    beat       one more with each post
    begun      {group: how many collectives of it the rank has begun}
    call       the call that it stands in, "all_gather" say ("wait" is reported as what it waits for); "" in its own code
    group      the group that was called, and `ranks` of it, as the whole run counts; number: this is its n-th
               collective, counted from 0; peer: with whom a send or recv is, else None
    stood      seconds in this call
    where      "file:line" of the call
    silent     seconds since its `beat` last changed, as the reader saw it
    """

    pid: int
    host: str
    beat: int
    begun: dict[str, int]
    call: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    number: int = 0
    peer: int | None = None
    stood: float = 0.0
    where: str = ""
    silent: float = 0.0


class Hung(NamedTuple):
    """rank: who hangs. call, group: in what the others wait for it. by: the lowest of the ranks that wait so. why: a
    few words: "its process is stopped" or "it is in its own code"."""

    rank: int
    call: str
    group: str
    by: int
    why: str


def standing(ledger: Any, beat: int) -> Standing:
    """Where this rank stands now, from its ledger (given)."""
    begun: dict[str, int] = {}
    recent = ledger.events[-2000:]
    for event in recent:
        if event.kind in COLLECTIVES:
            begun[event.group] = event.seq + 1
    me = Standing(os.getpid(), socket.gethostname(), beat, begun)
    waits = [e for e in recent[-50:] if e.end is None and e.blocking and e.kind in CALLS]
    if not waits:
        return me
    event = waits[0]
    of = next((e for e in reversed(recent) if e.index == event.of), event) if event.kind == "wait" else event
    ranks = tuple(ledger.groups.get(of.group, ()))
    peer = None if of.kind in COLLECTIVES else of.peer  # a broadcast's is its source, for which nobody else waits
    fields = dict(call=of.kind, group=of.group, ranks=ranks, number=of.seq, peer=peer)
    return me._replace(**fields, stood=ledger.now() - event.begin, where=event.where)


def hung(standings: list[Standing], limit: float) -> Hung | None:
    """Task C.3. Who hangs, from all ranks' standings, by rank; None as long as nobody has waited for `limit` seconds.

    Only ranks that still beat (silent for less than limit / 2) are believed to wait. A rank waits for its peer, or for
    those of the group that have not begun this collective. Of these, the one at fault is: one that is silent, first;
    else one that stands in no call. One that itself waits is not: somebody holds it up, too.
    """
    ### BEGIN SOLUTION C.3 name the rank that hangs
    for by, one in enumerate(standings):
        if not one.call or one.stood < limit or one.silent >= limit / 2:
            continue
        if one.peer is not None:
            awaited = [one.peer]
        else:
            awaited = [r for r in one.ranks if r != by and standings[r].begun.get(one.group, 0) <= one.number]
        for rank in awaited:
            if standings[rank].silent >= limit / 2:
                return Hung(rank, one.call, one.group, by, "its process is stopped")
        for rank in awaited:
            if not standings[rank].call:
                return Hung(rank, one.call, one.group, by, "it is in its own code")
    return None
    ### END SOLUTION


class Watchdog(threading.Thread):
    """The thread beside a rank's training: see the module's text.

    folder   where standings are posted; all ranks see it
    limit    seconds that a rank may stand in one call
    autopsy  autopsy(text, rank=..., call=..., group=...) writes the event, from any rank
    """

    def __init__(self, group: Any, folder: Path, limit: float, autopsy: Callable[..., None]) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.rank, self.size, self.ledger = group.rank, group.size, group.ledger
        self.folder, self.limit, self.autopsy = folder, limit, autopsy
        self.over = threading.Event()
        self.seen: dict[int, tuple[tuple[int, int], float]] = {}  # rank: its pid and beat, and since when they are so

    def run(self) -> None:
        """Look every TICK seconds (given)."""
        beat = 0
        while not self.over.wait(TICK):
            beat += 1
            try:
                self.post(standing(self.ledger, beat))
                standings = self.read()
            except (OSError, ValueError, TypeError, KeyError):
                continue  # a disk that is full, a file half written: the next look may see more
            if standings is not None and (found := hung(standings, self.limit)) is not None:
                self.act(found, standings)

    def post(self, mine: Standing) -> None:
        """Write this rank's standing: beside, then over the old one (given)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f"rank-{self.rank:05d}.{mine.pid}"
        new.write_text(json.dumps(mine._asdict()))
        new.replace(self.folder / f"rank-{self.rank:05d}")

    def read(self) -> list[Standing] | None:
        """Every rank's standing, by rank; None until all of this start have posted (given)."""
        found, now = [], time.monotonic()
        for rank in range(self.size):
            path = self.folder / f"rank-{rank:05d}"
            if not path.exists():
                return None
            one = Standing(**json.loads(path.read_text()))
            before, since = self.seen.get(rank, ((one.pid, one.beat), now))
            if before != (one.pid, one.beat):
                since = now
            self.seen[rank] = (one.pid, one.beat), since
            found.append(one._replace(silent=now - since, ranks=tuple(one.ranks)))
        return found

    def act(self, found: Hung, standings: list[Standing]) -> None:
        """Task C.3. Somebody hangs. The rank `found.by` writes the autopsy, one sentence that names rank, call and
        group, and these as fields; then it ends the hung process, if that is of this host, and its own
        (`os._exit(1)`: the main thread will not come back from its call). The other ranks do nothing: torchrun ends
        them."""
        ### BEGIN SOLUTION C.3 say it, end it, leave
        if found.by != self.rank:
            return
        me, other = standings[self.rank], standings[found.rank]
        text = (
            f"rank {found.rank} hangs: {found.why}, and rank {self.rank} has waited for it for {me.stood:.1f} s in "
            f'{found.call} of group "{found.group}" at {me.where}'
        )
        self.autopsy(text, rank=found.rank, call=found.call, group=found.group)
        if other.host == me.host:
            with suppress(ProcessLookupError):  # it has died meanwhile
                os.kill(other.pid, signal.SIGKILL)
        os._exit(1)
        ### END SOLUTION
