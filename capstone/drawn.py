"""A training on drawn data, under torchrun: the real `train.job`, on batches and weights that somebody else wrote.

    torchrun ... -m capstone.drawn GIVEN LEFT

    GIVEN/config.json     the configuration        LEFT/run/      the run's folder
    GIVEN/weights.pt      {name: whole weight}     LEFT/pids/     rank-0 and so on: the process of each rank
    GIVEN/batches.pt      int64 [n, B, T+1]        LEFT/said      what torchrun and its ranks printed
    GIVEN/until-0         the last batch that rank 0 may read by now; it waits for more. Without the file: all

Reading is how it is slowed and halted: like a file server that one rank waits for. The checks of C.3 write GIVEN, also
while it runs, and read LEFT.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capstone import train
from labkit.comm.ranks import run_ranks


class Drawn:
    """In place of labkit's corpus: batch k is the k-th that was drawn; the held-out ones are the last."""

    def __init__(self, given: Path, rank: int) -> None:
        self.batches = torch.load(given / "batches.pt", weights_only=True)
        self.gate = given / f"until-{rank}"

    def batch(self, number: int, rows: int, length: int, seed: int, part: str = "train") -> Tensor:
        """Tokens [B, T+1]; number: from 1."""
        if part != "train":
            return self.batches[-1 - number]
        while number > self.until():
            time.sleep(0.01)
        return self.batches[number - 1]

    def until(self) -> int:
        try:
            return int(self.gate.read_text())
        except FileNotFoundError:
            return len(self.batches)

    def describe(self) -> dict[str, Any]:
        """For the record."""
        return {"drawn": list(self.batches.shape)}


def rank(group: Any, given: Path, left: Path) -> dict[str, Any]:
    """One rank."""
    pids = left / "pids"
    pids.mkdir(exist_ok=True)
    (pids / f"new-{group.rank}").write_text(str(os.getpid()))
    (pids / f"new-{group.rank}").replace(pids / f"rank-{group.rank}")
    config = json.loads((given / "config.json").read_text())
    weights = torch.load(given / "weights.pt", weights_only=True)
    return train.job(group, config, str(left / "run"), corpus=Drawn(given, group.rank), weights=weights)


if __name__ == "__main__":
    torch.set_num_threads(1)
    summary = run_ranks(rank, *map(Path, sys.argv[1:3]), backend="torchrun", timeout=None, device="cpu")[0]
    sys.exit(train.PAUSED if summary["paused"] else 0)
