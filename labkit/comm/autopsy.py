"""How a run of ranks ends: with `Results`, or with `RanksFailed`, which carries an autopsy, the report of a failed run."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from labkit.comm.ledger import EMPTY, WORLD, Ledger
from labkit.errors import LabError


class Results(list):
    """The return values by rank. `ledgers[r]` is what rank r did."""

    def __init__(self, values: Iterable[Any], ledgers: list[Ledger]) -> None:
        super().__init__(values)
        self.ledgers = ledgers


@dataclass
class Evidence:
    """What is known of one rank at the moment a run ended. The autopsy is made from these alone."""

    rank: int
    ledger: Ledger
    state: str = "running"  # "running" (includes waiting), "returned", "raised", "died"
    now: float = 0.0  # seconds since the start of the run when this was taken
    order: float = float("inf")  # when it raised or died, to tell causes from consequences
    error: BaseException | None = None  # what it raised, if it could be brought here
    text: str = ""  # of the error: "ValueError: what it said"
    traceback: str = ""
    status: int | None = None  # it died: its process's exit status, or minus the signal that ended it
    stack: list[tuple[str, int, str]] = field(default_factory=list)  # (file, line, function), innermost first
    output: str = ""  # the last lines it wrote to stderr
    note: str = ""  # what could not be done about it

    @property
    def signal(self) -> int | None:
        return -self.status if self.status is not None and self.status < 0 else None


@dataclass
class Call:
    """A call that a rank stands in. `waits_for`: the ranks that have not made the matching call."""

    kind: str  # "send", "recv", "all_reduce", ...; of a "wait", the call it waits for
    peer: int | None  # send: to; recv and broadcast: from
    bytes: int
    where: str  # "file:line" of the code that called the group
    seconds: float  # how long it has stood there
    number: int  # 1-based: its n-th message with this peer in this direction, or its n-th collective
    waits_for: list[int] = field(default_factory=list)
    handle: bool = False  # it stands in Handle.wait(), not in the call itself
    group: str = WORLD  # the group that was called

    def __str__(self) -> str:
        with_whom = {"send": " to rank", "recv": " from rank", "broadcast": " from rank"}.get(self.kind)
        text = self.kind + (f"{with_whom} {self.peer}" if with_whom else "")
        text += f' in group "{self.group}"' if self.group != WORLD else ""
        return f"wait() for its {text}" if self.handle else text


@dataclass
class RankReport:
    """One rank at the end."""

    rank: int
    state: str  # "waiting", "running", "returned", "raised", "died"
    calls: list[Call] = field(default_factory=list)  # waiting: in what
    where: str = ""  # running: the line of its own code; raised: the line that raised
    seconds: float = 0.0  # running: since it last used the group
    error: str = ""  # raised: "ValueError: ..."; died: "killed by SIGKILL", "exit status 3"
    traceback: str = ""
    events: int = 0  # how many calls it had made
    output: str = ""  # the last lines of its stderr
    note: str = ""
    consequence: bool = False  # it raised or died because another rank had ended, or the library ended it

    def describe(self, alike: "Sequence[RankReport]") -> str:
        """Say what it did, and with it others that did the same (`alike`, this one too)."""
        s = "s" if len(alike) == 1 else ""
        if self.consequence:
            text = "ended because another rank had (a consequence)"
        elif self.state == "waiting" and not self.calls:
            text = f"stand{s} in a call of the group at {self.where} that its ledger, switched off, does not know"
        elif self.state == "waiting":
            first = self.calls[0]
            more = f" (and {len(self.calls) - 1} more of the same call)" if len(self.calls) > 1 else ""
            size = f" ({first.bytes} bytes)" if first.kind not in EMPTY else ""
            stood = _span(report.calls[0].seconds for report in alike)
            text = f"wait{s} in {first}{size} at {first.where}, for {stood} s{more}"
        elif self.state == "running":
            text = f"run{s} {'its' if s else 'their'} own code at {self.where or 'a line that could not be read'}; " + (
                f"last used the group {_span(report.seconds for report in alike)} s ago"
                if self.events
                else "not in the group yet"
            )
        elif self.state == "raised":
            text = f"raised {self.error}" + (f" at {self.where}" if self.where else "")
        elif self.state == "died":
            text = f"died: {self.error}" + (f" at {self.where}" if self.where else "")
        else:
            text = "returned"
        if len({report.error for report in alike}) > 1:
            text += " (the numbers differ from rank to rank)"
        return text + (f". {self.note}" if self.note else "")

    @property
    def gist(self) -> tuple:
        """Equal for ranks of which the same is to be said: times, and numbers in what a library raised, apart."""
        if self.consequence:
            return ("consequence",)
        calls = tuple((str(call), call.bytes, call.where) for call in self.calls)
        return self.state, calls, self.where, bool(self.events), re.sub(r"\d+", "#", self.error), self.note


@dataclass
class Edge:
    """Rank `waiter` cannot go on before rank `on` makes the matching call."""

    waiter: int
    on: int
    kind: str
    where: str


@dataclass
class Autopsy:
    """Why a run failed."""

    reason: str  # "deadline", "raised", "died", "deadlock" (certain before the deadline), "mismatch"
    cause: str  # one sentence
    guilty: int | None  # the rank at fault; None where no single one can be named
    involved: list[int]  # all ranks that the cause speaks of
    call: str  # "file:line" of the call or line at fault
    ranks: list[RankReport]
    edges: list[Edge]
    certain: bool = False  # nothing that is still running could have changed it
    timeout: float | None = None
    backend: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        within = self.timeout if self.reason == "deadline" else None
        head = f"The ranks did not end within {round(within, 2):g} s. " if within is not None else ""
        lines = [head + self.cause, ""]
        same: dict[tuple, list[RankReport]] = {}
        for report in self.ranks:
            same.setdefault(report.gist, []).append(report)
        names = [_ranks([report.rank for report in alike]) for alike in same.values()]
        width = max(map(len, names), default=0)
        lines += [f"  {name:<{width}}  {alike[0].describe(alike)}" for name, alike in zip(names, same.values())]
        if self.edges:
            alike: dict[tuple, list[str]] = {}
            for e in sorted(self.edges, key=lambda e: e.waiter):
                alike.setdefault((e.on, e.kind, e.where), []).append(str(e.waiter))
            arrows = [f"{', '.join(who)} -> {on} ({kind}, {at})" for (on, kind, at), who in alike.items()]
            lines += ["", f"  waits for: {'; '.join(arrows)}"]
        for report in self.ranks:
            if report.rank == self.guilty and report.traceback:
                lines += ["", f"Rank {self.guilty}'s traceback:", report.traceback.rstrip()]
            # Of a rank that the library ended, the cause says it in words.
            if report.state == "died" and report.output and not report.consequence:
                lines += ["", f"Rank {report.rank}'s last words on stderr:", report.output.rstrip()]
        return "\n".join(lines)


class RanksFailed(LabError):
    """A rank raised, died or was too late: `str()` is the autopsy's text; error: the guilty rank's, if it could travel."""

    def __init__(self, autopsy: Autopsy, ledgers: list[Ledger], error: BaseException | None = None) -> None:
        super().__init__(str(autopsy))
        self.autopsy, self.ledgers, self.error = autopsy, ledgers, error

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the autopsy, and not the frames of run_ranks above it."""
        return [f"RanksFailed: {self}"]


def _span(seconds: Iterable[float]) -> str:
    """ "0.4", "0.3 to 0.4"."""
    each = [f"{s:.1f}" for s in sorted(seconds)]
    return each[0] if each[0] == each[-1] else f"{each[0]} to {each[-1]}"


def _ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 5", "ranks 0 to 3 and 5"."""
    runs = [[r for _, r in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    *most, last = parts
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(most)}{' and ' if most else ''}{last}"
