"""A schedule on paper: who sends which chunk at which step. It is played as you wrote it, and not compared to anything.

    step 0    3 0 1 2         a line a step, a column a rank: what rank 0, 1, 2, ... sends to its right neighbour
    step 1    . . . .         "." is not decided yet: nothing is sent

In the first lap (`reduce_scatter`) whoever receives a chunk adds it to its own copy of that chunk. In the second
(`all_gather`) rank r begins with chunk r complete, and whoever receives a chunk stores it. Sends of one step happen at
the same time: each is what its rank held before the step.
"""

from __future__ import annotations

import re

import torch

from labkit.errors import LabError
from week13_allreduce.given.experiments import Filling


def reduce_scatter(grid: str) -> tuple[Filling, str]:
    """Play a first lap: `grid` as above, N columns. Returns what happened, for `pictures.chunk_grid`, and a sentence:
    the goal is reached, or what stands in its way first."""
    sends = _read(grid)
    N = len(sends[0])
    start = torch.zeros(N, N, N, N, dtype=torch.long)  # [rank, chunk, addend of rank, to chunk]
    for r in range(N):
        start[r, range(N), r, range(N)] = 1
    played, trouble = _play(sends, start, adds=True)
    return played, trouble or _nothing(sends) or _first_lap(played.states[-1], len(sends), N)


def all_gather(grid: str) -> tuple[Filling, str]:
    """Play a second lap, likewise. Where a rank has nothing yet, its chunk is empty."""
    sends = _read(grid)
    N = len(sends[0])
    start = torch.zeros(N, N, N, N, dtype=torch.long)
    for r in range(N):
        start[r, r, :, r] = 1
    played, trouble = _play(sends, start, adds=False)
    missing = [(r, c) for r in range(N) for c in range(N) if not bool((played.states[-1][r, c, :, c] == 1).all())]
    if not trouble and missing and not _nothing(sends):
        trouble = f"Not there yet: after the last step rank {missing[0][0]} has no chunk {missing[0][1]}."
    return played, trouble or _nothing(sends) or _reached("every rank holds every chunk", len(sends), N)


def _read(grid: str) -> list[list[int | None]]:
    lines = [re.sub(r"^\s*step\s*\d+\s*:?", "", line).split() for line in grid.strip().splitlines()]
    lines = [line for line in lines if line and line[0] != "rank"]
    N = len(lines[0]) if lines else 0
    for s, line in enumerate(lines):
        wrong = [entry for entry in line if entry != "." and not (entry.isdigit() and int(entry) < N)]
        if len(line) != N or wrong:
            reason = f"{wrong[0]!r} is none" if wrong else f"it has {len(line)}, the first has {N}"
            raise LabError(f"line {s} of the grid: {N} chunks, each 0 to {N - 1} or a dot, one for each rank; {reason}")
    if N < 2:
        raise LabError("the grid is empty: a line for each step, a column for each rank")
    return [[None if entry == "." else int(entry) for entry in line] for line in lines]


def _play(sends: list[list[int | None]], start: torch.Tensor, adds: bool) -> tuple[Filling, str]:
    """The steps, one after another, and the first step after which somebody holds an addend twice (or "")."""
    N, states, trouble = len(sends[0]), [start], ""
    messages: list[list[tuple[int, torch.Tensor | None] | None]] = []
    for s, row in enumerate(sends):
        now = states[-1].clone()
        came: list[tuple[int, torch.Tensor | None] | None] = []
        for r in range(N):
            left = (r - 1) % N
            chunk = row[left]
            if chunk is None:
                came.append(None)
                continue
            content = states[-1][left, chunk]
            now[r, chunk] = now[r, chunk] + content if adds else content
            came.append((left, content))
            twice = [p for p in range(N) if now[r, chunk, p, chunk] > 1]
            if twice and not trouble:
                trouble = (
                    f"Step {s}: rank {r} receives chunk {chunk} from rank {left} and adds it to its own, and now "
                    f"rank {twice[0]}'s addend is in it twice."
                )
            if not adds and not bool(content.any()) and not trouble:
                trouble = f"Step {s}: rank {left} sends chunk {chunk}, which it does not have."
        states.append(now)
        messages.append(came)
    return Filling(torch.stack(states), messages), trouble


def _nothing(sends: list[list[int | None]]) -> str:
    return "" if any(c is not None for row in sends for c in row) else "Nothing is sent yet: put chunks for the dots."


def _first_lap(end: torch.Tensor, steps: int, N: int) -> str:
    for r in range(N):
        lacking = [str(p) for p in range(N) if end[r, r, p, r] != 1]
        if lacking:
            whose = "addend of rank " + lacking[0] if len(lacking) == 1 else "addends of ranks " + ", ".join(lacking)
            at = [k for k in range(N) if bool((end[k, r, :, r] == 1).all())]
            where = f" It is complete on rank {at[0]}." if at else ""
            return f"Not there yet: after the last step chunk {r} on rank {r} lacks the {whose}.{where}"
    return _reached("every rank r holds chunk r complete", steps, N)


def _reached(goal: str, steps: int, N: int) -> str:
    spare = f", in {steps} steps: {N - 1} would do." if steps > N - 1 else "."
    return f"It works: {goal}{spare}"
