"""The runner at home: pools of rank processes on this machine, kept for as long as one check lasts.

It protects from accidents (an endless loop, a crash, a deadlock: each ends its own case), not from intent: the ranks
run with the reader's own rights. Grading puts a sandbox in its place.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from labkit.checks import remote, values
from labkit.checks.runner import Job, Reply
from labkit.checks.verdict import CRASHED, HUNG, NO_RESULT, NOT_ATTEMPTED
from labkit.comm.autopsy import Autopsy
from labkit.comm.ledger import Ledger
from labkit.comm.outcome import RanksFailed
from labkit.comm.ranks import RankPool

HANGS = ("deadline", "deadlock")  # the autopsy's reasons that are a hang; the others are crashes
_VERDICTS = {remote.UNFINISHED: NOT_ATTEMPTED, remote.MISSING: NO_RESULT, remote.RAISED: CRASHED}
# What the C++ runtime prints when the library aborts a rank: the autopsy tells it in words.
_ABORT = re.compile(r"^(?:\[rank \d+\] )?(?:terminate called .*|\s*what\(\):.*)\n?", re.M)
MAX_PRINTED = 4000  # characters of what a case printed


class LocalRunner:
    """Runs jobs on this machine's processes. Use it in a `with`, or `close()` it: no process stays.

    root        take the students' package from this folder instead of the job's (the folder that holds
                `week13_allreduce`)
    reference   a folder with the solutions; a job's `stands_on` functions are taken from there
    """

    def __init__(self, root: str | Path | None = None, reference: str | Path | None = None) -> None:
        self.root = Path(root).resolve() if root is not None else None
        self.reference = Path(reference).resolve() if reference is not None else None
        self._pools: dict[int, RankPool] = {}

    def run(self, job: Job) -> Reply:
        size, root = len(job.inputs), str(self.root or job.root)
        if size not in self._pools:
            self._pools[size] = RankPool(size)
        inputs, kwargs = [values.pack(args) for args in job.inputs], values.pack(dict(job.kwargs))
        printed = io.StringIO()
        try:
            # What the ranks print comes out of this process's streams.
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                results = self._pools[size].run(
                    remote.perform,
                    root,
                    job.package,
                    job.function,
                    inputs,
                    kwargs,
                    job.with_group,
                    str(self.reference) if self.reference else None,
                    tuple(job.stands_on),
                    job.each,
                    timeout=job.timeout,
                )
        except RanksFailed as error:
            reply = _failed(error, root)
        else:
            reply = read_answers(results, results.ledgers, job.with_group)
        reply.printed = capped(_ABORT.sub("", printed.getvalue()))
        return reply

    def close(self) -> None:
        """End all rank processes."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def read_answers(packed: Sequence[bytes], ledgers: Sequence[Ledger], with_group: bool) -> Reply:
    """The Reply for what `remote.perform` gave on each rank. Every process answered; did every function?"""
    answers = []
    for rank, data in enumerate(packed):
        try:
            kind, *rest = values.unpack(data)
            if len(rest) != (2 if kind == remote.OK else 1):
                raise ValueError(f"{len(rest)} parts")
        except (ValueError, TypeError) as error:
            return Reply(NO_RESULT, text=f"rank {rank}'s answer cannot be read: {error}")
        answers.append((kind, *rest))
    for kind, verdict in _VERDICTS.items():
        ranks = [r for r, answer in enumerate(answers) if answer[0] == kind]
        if ranks:
            text = str(answers[ranks[0]][1])
            if verdict == NOT_ATTEMPTED:
                return Reply(verdict, text=not_attempted(text))
            who = "" if kind == remote.MISSING or not with_group else f"rank {ranks[0]}: "
            return Reply(verdict, text=who + text)
    return Reply(values=[a[1] for a in answers], inputs=[a[2] for a in answers], ledgers=list(ledgers))


def _failed(error: RanksFailed, root: str) -> Reply:
    if isinstance(error.__cause__, NotImplementedError):
        return Reply(NOT_ATTEMPTED, text=not_attempted(str(error.__cause__)))
    return told(error.autopsy, root)


def told(autopsy: Autopsy, root: str) -> Reply:
    """The Reply for a run that did not end well. `root` is cut off in front of file names."""
    # The cause and where each rank stood say it all; the traceback comes without the machinery's frames.
    text = str(autopsy).partition("\n\n  waits for: ")[0].partition("\n\nRank ")[0]
    guilty = next((report for report in autopsy.ranks if report.rank == autopsy.guilty), None)
    if autopsy.reason == "raised" and guilty is not None and guilty.traceback:
        text += "\n\n" + own_lines(guilty.traceback, root)
    return Reply(
        HUNG if autopsy.reason in HANGS else CRASHED,
        text=text.replace(root + "/", ""),
        cause=(autopsy.cause.replace(root + "/", ""),) if autopsy.certain else (),
    )


def own_lines(traceback: str, root: str) -> str:
    """The frames of a formatted traceback that lie in `root`, and its last line."""
    lines = traceback.rstrip().splitlines()
    kept = []
    for here, after in zip(lines, lines[1:]):
        if here.lstrip().startswith(f'File "{root}'):
            kept += [here, after]
    return "\n".join([*kept, lines[-1]]) if lines else ""


def not_attempted(text: str) -> str:
    """One line, whatever the hole says: it names its own task."""
    return f"not attempted yet: {text or 'NotImplementedError'}"


def capped(text: str) -> str:
    more = len(text) - MAX_PRINTED
    return f"{text[:MAX_PRINTED]}\n... and {more} characters more" if more > 0 else text
