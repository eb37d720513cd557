"""A checkpoint that another number of ranks can read (task 14.9, stretch, no points).

Four ranks train, and one GPU is taken away. Each rank holds S = ceil(P / 4) numbers of every flat parameter, and as
many of AdamW's two moments; nobody holds the model. Gathering it on one rank to write it would need the memory that
FSDP was there to save. So every rank writes its own part, at the same time, and whoever reads finds out which parts it
needs:

    the vector      0 ............................... P          padding is in no file's meaning
    of 4 ranks      |---- 0 ----|---- 1 ----|---- 2 ----|-- 3 -- 0|      S  = ceil(P / 4)
    of 3 ranks      |------ 0 ------|------ 1 ------|----- 2 ---- 0|     S' = ceil(P / 3)

Rank 1 of three needs the end of part 1 and the begin of part 2, and reads no other number. Both layouts are the same
vector with other cuts, because 14.4 laid the parameters side by side before it cut. (A checkpoint that stored each
rank's tensors as they came would have to know every cut inside every tensor.)

**Padding is not data.** Four ranks fill up to 4 S, three to 3 S'. Whoever copies the old zeros along shifts nothing
here, but reads past the end of the vector.

**The index is written last.** A job dies while it writes, and a folder with three parts of four looks like a
checkpoint. So the index, a small file that says how the parts were cut, comes when all parts are there: after a
barrier. A folder without it is no checkpoint. A file is written beside its place and moved there, for a file may be
half written, too.

What else belongs to a step? The number of steps: AdamW corrects its moments by 1 - b^t (and data, generators, a
schedule; labkit/train/checkpoint.py has all of it, in torch's distributed format).

Legend: P numbers of a flat parameter, N ranks wrote, M ranks read, S = ceil(P/N), S' = ceil(P/M).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

VECTORS = ("shard", "exp_avg", "exp_avg_sq")  # of each unit: the part of the weights, and AdamW's two moments


class Folder:
    """Vectors in the files of a folder (given). All ranks write into the same one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, vector: torch.Tensor) -> None:
        """Store a vector, whole or not at all."""
        self._put(name, vector.detach().cpu().clone().view(torch.uint8).numpy().tobytes())

    def read(self, name: str, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Its numbers from `start` to `stop`, and no others."""
        with open(self.path / name, "rb") as file:
            file.seek(start * dtype.itemsize)
            data = file.read((stop - start) * dtype.itemsize)
        if len(data) < (stop - start) * dtype.itemsize:
            raise ValueError(f"{name} has no numbers {start} to {stop}: it is shorter")
        return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

    def write_index(self, index: dict[str, Any]) -> None:
        """What makes the folder a checkpoint."""
        self._put("index.json", json.dumps(index).encode())

    def index(self) -> dict[str, Any]:
        """What `write_index` was given. ValueError without one."""
        try:
            return json.loads((self.path / "index.json").read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.path} is no checkpoint: it was never finished") from None

    def _put(self, name: str, data: bytes) -> None:
        beside = self.path / f"{name}.part"
        beside.write_bytes(data)
        os.replace(beside, self.path / name)


def vectors(unit, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What this rank holds of a unit of FSDP, by the names in VECTORS (given). AdamW has made a step."""
    state = optimizer.state[unit.shard]
    return {"shard": unit.shard.detach(), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


def install(unit, optimizer: torch.optim.Optimizer, found: dict[str, torch.Tensor], steps: int) -> None:
    """The inverse, on a rank whose optimizer has made `steps` steps (given)."""
    with torch.no_grad():
        unit.shard.copy_(found["shard"])
    moments = {name: found[name] for name in VECTORS[1:]}
    optimizer.state[unit.shard] = {"step": torch.tensor(float(steps)), **moments}


def pieces(P: int, N: int, r: int, M: int) -> list[tuple[int, int, int]]:
    """Task 14.9. Where the numbers of rank r of M lie in the parts of N ranks, in order: (whose part, start, stop) in
    that part. Padding is in none; a rank that has nothing but padding gets []."""
    ### BEGIN SOLUTION 14.9 where the numbers lie
    S, mine = -(-P // N), -(-P // M)
    found, at, end = [], r * mine, min((r + 1) * mine, P)
    while at < end:
        whose, start = divmod(at, S)
        stop = min(S, start + end - at)
        found.append((whose, start, stop))
        at += stop - start
    return found
    ### END SOLUTION


def save(fsdp, optimizer: torch.optim.Optimizer, steps: int, files, group) -> None:
    """Task 14.9. All ranks together: each writes its part of every unit's vectors, then rank 0 the index.

    files: a `Folder`, or whatever has its four methods. Names are yours, `index` too. When it returns, on any rank, the
    checkpoint is whole."""
    ### BEGIN SOLUTION 14.9 save
    for u, unit in enumerate(fsdp.units):
        for name, vector in vectors(unit, optimizer).items():
            files.write(f"{u}.{name}.{group.rank}", vector)
    group.barrier()  # all parts are there
    if group.rank == 0:
        files.write_index({"ranks": group.size, "numel": [unit.numel for unit in fsdp.units], "steps": steps})
    group.barrier()  # and so is the index: now the last checkpoint may be deleted
    ### END SOLUTION


def load(fsdp, optimizer: torch.optim.Optimizer, files, group) -> int:
    """Task 14.9. Any number of ranks: each reads its own part of every unit's vectors, and no other number. Padding is
    zero. Returns the steps. ValueError for a checkpoint of another model (a unit has another number of numbers)."""
    ### BEGIN SOLUTION 14.9 load
    index = files.index()
    if index["numel"] != [unit.numel for unit in fsdp.units]:
        raise ValueError(f"this checkpoint's units have {index['numel']} numbers: it is another model's")
    for u, unit in enumerate(fsdp.units):
        found = {}
        for name in VECTORS:
            found[name] = torch.zeros_like(unit.shard.detach())  # [S']
            at = 0
            for whose, start, stop in pieces(unit.numel, index["ranks"], group.rank, group.size):
                part = files.read(f"{u}.{name}.{whose}", start, stop, unit.shard.dtype)
                found[name][at : at + len(part)] = part
                at += len(part)
        install(unit, optimizer, found, index["steps"])
    return index["steps"]
    ### END SOLUTION
