"""A small training as a program of its own, to be watched, killed, resumed and blown up. No test in here.

python -m tests.watch.training RUN"""

import argparse
import time
from pathlib import Path

from labkit.comm.ranks import run_ranks
from labkit.record.run import RunRecord
from labkit.train.loop import Hook
from tests.train.training_jobs import Spoil, run_converted, small_config


class Slow(Hook):
    """Leaves time to look."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_step(self, loop) -> None:
        time.sleep(self.seconds)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("run")
    words.add_argument("--steps", type=int, default=100_000)  # nobody waits for the last one
    words.add_argument("--pause", type=float, default=0.02)
    words.add_argument("--spoil", type=int, default=0, help="from this step on an infinite gradient")
    given = words.parse_args()
    often = {"eval_every": 10, "probe_every": 2, "norms_every": 2, "checkpoint_every": 20}
    recovery = {"rollback_after": 3, "max_rollbacks": 1}
    config = small_config(steps=given.steps, mixed_precision="fp8", lr=3e-3, recovery=recovery, **often)
    hooks = [Slow(given.pause)] + ([Spoil(range(given.spoil, 10**9), 0)] if given.spoil else [])
    if not (Path(given.run) / "run.json").exists():
        RunRecord.create(given.run, kind="train", config=config, hardware={}).close()
    with RunRecord.open(given.run) as record:
        record.update(status="running", finished=None)
        run_ranks(run_converted, config, given.run, hooks, size=1, timeout=None, backend="threads")


if __name__ == "__main__":
    main()
