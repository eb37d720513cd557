"""A group for GPUs on which posted messages pass each other, and whose spans are timed by the GPU.

NCCL carries the point-to-point messages of one communicator on one CUDA stream, in the order in which they were posted.
A rank that posts a receive and then a send has its send wait behind the receive; if both neighbours do so, neither
message ever leaves. (gloo keeps a queue for each pair and direction, so the same program runs on a CPU.) `Lanes` gives
every direction a communicator of its own: messages from even and from odd ranks, upwards and downwards.

The spans of `group.compute` are noted by CUDA events; `spans()` reads them when the work is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Lanes:
    """A face like `group`'s for programs that post messages. All ranks make it together.

    timed: whether spans are noted, for `spans`."""

    def __init__(self, group: Any, timed: bool = True) -> None:
        self.noting = timed
        self.group, self.rank, self.size, self.device = group, group.rank, group.size, group.device
        self.cuda = group.device.type == "cuda"
        everybody = [list(range(group.size))]
        lanes = [(odd, upwards) for odd in (0, 1) for upwards in (False, True)]
        self.lanes = {
            lane: group.split(everybody, f"lane{2 * lane[0] + lane[1]}") if self.cuda else group for lane in lanes
        }
        self.timed: list[tuple[str, Any, Any]] = []

    def lane(self, src: int, dst: int) -> Any:
        return self.lanes[src % 2, dst > src]

    def isend(self, tensor: torch.Tensor, dst: int) -> Any:
        return self.lane(self.rank, dst).isend(tensor, dst)

    def irecv(self, src: int, like: Any = None, out: Any = None) -> Any:
        return self.lane(src, self.rank).irecv(src, like=like, out=out)

    def recv(self, src: int, like: Any = None, out: Any = None) -> torch.Tensor:
        return self.lane(src, self.rank).recv(src, like=like, out=out)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.lane(self.rank, dst).send(tensor, dst)

    @contextmanager
    def compute(self, label: str) -> Iterator[None]:
        begin = self.mark() if self.noting else None
        yield
        if self.noting:
            self.timed.append((label, begin, self.mark()))

    def mark(self) -> Any:
        """Now, on this device."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def connect(self) -> None:
        """One small message on every lane between neighbours: the first one connects, which takes a second."""
        N, r = self.size, self.rank
        x = torch.zeros(8, device=self.device)
        for src in range(N):
            for dst in {(src + 1) % N, (src - 1) % N} - {src}:
                if r == src:
                    self.send(x, dst)
                elif r == dst:
                    self.recv(src, like=x)

    def spans(self, start: Any) -> list[tuple[str, float, float]]:
        """(label, begin, end) in seconds since `start` (a mark) of what was computed since the last call."""
        if self.cuda:
            torch.cuda.synchronize()
            seconds = [(label, start.elapsed_time(a) / 1e3, start.elapsed_time(b) / 1e3) for label, a, b in self.timed]
        else:
            seconds = [(label, a - start, b - start) for label, a, b in self.timed]
        self.timed = []
        return seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)
