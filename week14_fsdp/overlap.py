"""How much of the communication does a step wait for? Read from a profiler's trace (task 14.5).

A step that computes for 100 ms and communicates for 60 may take 100 ms, or 160, or anything between: messages run
beside the products. What costs time is *exposed* communication: time in which a message is under way and nothing
computes.

    exposed = | union of the communication kernels  minus  union of the computing kernels |

Unions, because kernels overlap: two streams compute at once, two messages fly at once, and a moment counts once. Sums
of lengths answer another question ("how much work"), and their difference answers none.

A trace of torch.profiler is JSON: {"traceEvents": [...]}. The events of interest have "ph": "X" (a span), "ts" and
"dur" in microseconds, "name", and "cat":

    "kernel"                            ran on the GPU. Communication if it is NCCL's: `is_communication`
    "gpu_memcpy", "gpu_memset"          copies: neither computing nor communication, and they hide no message
    "cpu_op", "cuda_runtime", ...       the host's. "nccl:all_reduce" among them is when it was *asked for*
    "gpu_user_annotation"               a label over other events; it may be called nccl:..., and is no kernel

**What it includes.** An NCCL kernel runs from when *this* rank was ready to when the message was done; it spins while a
slow peer is still computing. So waiting for the slowest rank counts as communication here, and only a comparison
between ranks can tell the two apart: the last rank to come has the shortest kernel.

(HolisticTraceAnalysis computes the same from sorted begins and ends: its overlap is 1 - exposed / communication.)
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

Span = tuple[float, float]  # begin, end


class Exposed(NamedTuple):
    """Microseconds. `overlap` is the share of the communication that was hidden; 1 without any."""

    computing: float  # length of the union of computing kernels
    communication: float  # length of the union of communication kernels
    exposed: float  # of it, without computing beside it
    overlap: float


def load(path: str | Path) -> dict[str, Any]:
    """A trace from a file, .json or .json.gz (given)."""
    data = Path(path).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def is_communication(name: str) -> bool:
    """Whether a kernel of this name is NCCL's (given): "ncclDevKernel_AllGather_RING_LL(...)". Older versions call them
    "ncclKernel_...", and those on symmetric memory "ncclSymkDevKernel_..."."""
    return re.match(r"nccl\w*Kernel", name) is not None


def copying(trace: dict[str, Any]) -> list[Span]:
    """When something was copied: the worked example. Spans may overlap, touch, and come in any order."""
    events = (e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in ("gpu_memcpy", "gpu_memset"))
    return [(e["ts"], e["ts"] + e["dur"]) for e in events]


def exposed(trace: dict[str, Any]) -> Exposed:
    """Task 14.5. The lengths of the unions, and of the communication's minus the computing's.

    `trace`: one GPU's. An event may lack any key but "ph"; a kernel has all that are named above. Kernels of no length
    count nothing."""
    ### BEGIN SOLUTION 14.5 exposed communication
    kernels = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "kernel"]
    # Sweep: +1 where a kernel begins, -1 where it ends. Between two neighbours nothing changes.
    changes = []
    for e in kernels:
        kind = is_communication(e["name"])
        changes += [(e["ts"], kind, 1), (e["ts"] + e["dur"], kind, -1)]
    running = {True: 0, False: 0}
    communication = computing = alone = before = 0
    for at, kind, sign in sorted(changes):
        piece, before = at - before, at
        communication += piece if running[True] else 0
        computing += piece if running[False] else 0
        alone += piece if running[True] and not running[False] else 0
        running[kind] += sign
    return Exposed(computing, communication, alone, 1 - alone / communication if communication else 1.0)
    ### END SOLUTION
