"""The autopsy: why a run of ranks did not end as it should, as data and as text.

`diagnose` (labkit.comm.diagnose) makes it from evidence; this file only says what it holds and how it reads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.comm.ledger import EMPTY, WORLD


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

    def __str__(self) -> str:
        if self.state == "waiting" and not self.calls:
            text = f"stands in a call of the group at {self.where} that its ledger, switched off, does not know"
        elif self.state == "waiting":
            first = self.calls[0]
            more = f" (and {len(self.calls) - 1} more of the same call)" if len(self.calls) > 1 else ""
            size = f" ({first.bytes} bytes)" if first.kind not in EMPTY else ""
            text = f"waits in {first}{size} at {first.where}, for {first.seconds:.1f} s{more}"
        elif self.state == "running":
            text = f"runs its own code at {self.where or 'a line that could not be read'}; " + (
                f"it last used the group {self.seconds:.1f} s ago" if self.events else "it has not used the group yet"
            )
        elif self.state == "raised":
            text = f"raised {self.error}" + (f" at {self.where}" if self.where else "")
        elif self.state == "died":
            text = f"died: {self.error}" + (f" at {self.where}" if self.where else "")
        else:
            text = "returned"
        return text + (f". {self.note}" if self.note else "")


@dataclass
class Edge:
    """Rank `waiter` cannot go on before rank `on` makes the matching call."""

    waiter: int
    on: int
    kind: str
    where: str


@dataclass
class Autopsy:
    """reason    what ended the run: "deadline", "raised", "died", "deadlock" (certain before the deadline), "mismatch"
    guilty       the rank at fault, or None where no single one can be named
    involved     all ranks that the cause speaks of
    call         "file:line" of the call or line at fault
    cause        one sentence
    certain      True: nothing that is still running could have changed it
    """

    reason: str
    cause: str
    guilty: int | None
    involved: list[int]
    call: str
    ranks: list[RankReport]
    edges: list[Edge]
    certain: bool = False
    timeout: float | None = None
    backend: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; nodes are `ranks`, arrows are `edges` (waiter -> on)."""
        return asdict(self)

    def __str__(self) -> str:
        late = self.reason == "deadline" and self.timeout is not None
        head = f"The ranks did not end within {self.timeout:g} s. " if late else ""
        width = len(str(len(self.ranks)))
        lines = [head + self.cause, ""]
        lines += [f"  rank {report.rank:>{width}}  {report}" for report in self.ranks]
        if self.edges:
            arrows = ", ".join(f"{e.waiter} -> {e.on} ({e.kind}, {e.where})" for e in self.edges[:16])
            more = f" and {len(self.edges) - 16} more" if len(self.edges) > 16 else ""
            lines += ["", f"  waits for: {arrows}{more}"]
        guilty = next((r for r in self.ranks if r.rank == self.guilty), None)
        if guilty is not None and guilty.traceback:
            lines += ["", f"Rank {self.guilty}'s traceback:", guilty.traceback.rstrip()]
        for report in self.ranks:
            if report.state == "died" and report.output:
                said = report.output.rstrip()
                if self.reason == "mismatch":  # the cause says it in words: one line of the library's is enough
                    said = said.splitlines()[-1][:120]
                lines += ["", f"Rank {report.rank}'s last words on stderr:", said]
        return "\n".join(lines)
