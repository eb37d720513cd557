"""A GPU that is made up: how much each arm takes of it, and what happens to an arm that asks for more.

`Gpu.train` stands in for `run_ranks`: it lets the real window look at a loop without a model, and leaves the record
that a training leaves. `on_rank` stands in for what each rank does: a real training, on real processes, of which one
with too many sequences raises what torch raises.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from labkit.comm.autopsy import RanksFailed
from labkit.compare import session, speed
from labkit.record import measure
from labkit.record.run import RunRecord
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

GIB = 2**30
HAVE = 10.0  # GiB
REST = 2.0  # GiB that stay between two steps
TOLD = "CUDA out of memory. Tried to allocate 512.00 MiB."
real_arm = session.arm_on_rank


def line(each: float, more: float = 0.5) -> Callable[[int], float]:
    """GiB needed by so many sequences: `each` for one, and `more` that neither stays nor grows."""
    return lambda rows: REST + more + each * rows


@dataclass
class Gpu:
    """needs: GiB by arm and sequences. ran: (arm, sequences, was it timed?) of each try so far; None: out of memory."""

    needs: dict[str, Callable[[int], float]]
    error: str = f"rank 0 raised OutOfMemoryError: {TOLD}"
    room: float = HAVE  # GiB at which it is full
    calm: float = math.inf  # GiB beyond which its allocator runs short twice a step
    started: int = 3  # times that it ran short before the first step
    worse: float = 0.0  # GiB that another rank needs beyond what this one does
    ran: list[tuple[str, int, bool | None]] = field(default_factory=list)
    after: Callable[[], None] = lambda: None

    def train(self, fn: Any, task: session.Task, *, size: int, **_: Any) -> Any:
        config, arm = strict_validate(TrainConfig, task.config, "the config"), task.about["arm"]
        rows = config.batch_size // size // config.accumulation
        need = self.needs[arm](rows)
        about = {**task.about, "hardware": {}, "config": config, "world": {"size": size, "device": "cpu"}}
        record = RunRecord.create(task.folder, kind="train", **about)
        if need > self.room:
            self.ran.append((arm, rows, None))
            record.finish("failed")
            self.after()
            raise RanksFailed(SimpleNamespace(cause=self.error), [])
        self.found = {"need": int(need * GIB), "rest": int(REST * GIB)}
        self.asked_anew = self.started
        tried, timed = self._window(task.window, config, size, record, 2 if need > self.calm else 0)
        self.ran.append((arm, rows, timed))
        self.after()
        return [tried] * size

    def _window(
        self, given: tuple, config: TrainConfig, size: int, record: RunRecord, short: int
    ) -> tuple[dict | None, bool]:
        """The real window on steps of a tenth of a second each."""
        group = SimpleNamespace(rank=0, size=size, device=torch.device("cpu"), all_reduce=self._with_another)
        linear = torch.nn.Linear(2, 2)
        rest = {
            "model": linear,
            "optimizer": torch.optim.SGD(linear.parameters()),
            "_peak": lambda: GIB,
            "record": record,
        }
        loop = SimpleNamespace(group=group, config=config, seconds=[], step=0, stopped=None, **rest)
        window = speed.Window(*given)
        while not loop.stopped:
            loop.step += 1
            loop.seconds.append(0.1)
            self.asked_anew += short
            window.after_step(loop)
        window.on_end(loop)
        record.results(stopped=loop.stopped)
        record.finish("finished")
        return window.tried, bool(window.found)

    def _with_another(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """What this rank and one that needs `worse` more agree on; of a window's mean, what both measured."""
        other = x + torch.tensor([self.worse * GIB, 0, 0]) if x.numel() == 3 else x
        return {"max": torch.maximum, "min": torch.minimum, "sum": lambda a, b: a}[op](x, other)

    def seen(self, monkeypatch: Any) -> "Gpu":
        """Put it in the place of this machine's."""
        monkeypatch.setattr(session, "run_ranks", self.train)
        monkeypatch.setattr(session, "prepare_corpus", lambda *_: None)
        monkeypatch.setattr("labkit.compare.plan.gpu_memory_gib", lambda preset: HAVE)
        monkeypatch.setattr(measure, "needed", lambda device: self.found)
        monkeypatch.setattr(measure, "shortages", lambda device: self.asked_anew)
        monkeypatch.setattr("labkit.compare.figures.draw_all", lambda data, folder=None, trouble=None: [])
        return self


def on_rank(group: Any, task: session.Task) -> Any:
    """`arm_on_rank` where each sequence takes a GiB and the GPU has SMALL_GPU. Notes its process in `pids`."""
    rows = task.config["batch_size"] // group.size // task.config["accumulation"]
    have = float(os.environ["SMALL_GPU"])
    with (Path(task.folder).parents[1] / "pids").open("a") as file:
        file.write(json.dumps([task.about["arm"], rows, os.getpid()]) + "\n")
    measure.needed = lambda device: {"need": int((REST + rows) * GIB), "rest": int(REST * GIB)}
    forward = torch.nn.Module.__call__

    def limited(module: Any, *inputs: Any, **named: Any) -> Any:
        if rows + REST > have:
            raise torch.OutOfMemoryError(TOLD)
        return forward(module, *inputs, **named)

    torch.nn.Module.__call__ = limited
    return real_arm(group, task)
