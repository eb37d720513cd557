"""Many trainings of one small decoder, so that gaps can be known instead of assumed.

    python -m studies.verdict.pool FILE

BF16 is trained 48 times, correct FP8 24 times, and FP8 8 times with each fault at each dose (studies.verdict.faults),
each from initial weights perturbed at random by one BF16 rounding step. The file is JSON lines: a first one with
hardware, versions and settings, then a run each. Ctrl-C stops it, and the same command goes on.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from labkit.comm.group import Group
from labkit.comm.processes import RankPool
from labkit.errors import LabError, run_command
from labkit.record.files import writable
from labkit.train.job import train_job
from studies.verdict.faults import Fault, Spoilt
from studies.writing import about

EACH = 8  # runs of one kind are trained one after another
BASELINES = 6  # times EACH
AT_ONCE = 2  # runs, a rank each, with groups of their own
STEPS, EVERY = 160, 10
TRAIN: dict[str, Any] = {
    "model": dict(vocab_size=512, d_model=64, n_layers=2, n_heads=2, n_kv_heads=1, d_ffn=192, max_seq_len=64),
    "data": {"max_bytes": 12_000_000},
    "steps": STEPS,
    "seq_len": 64,
    "batch_size": 4,
    "lr": 2.3e-3,
    "warmup_steps": 20,
    "eval_every": EVERY,
    "eval_batches": 4,
    "perturb": 2.0**-9,
}
FAULTS = (
    Fault("none"),
    Fault("e5m2"),
    Fault("stale", STEPS),
    Fault("mantissa", 1),
    Fault("flush", 2.0**-3),
    Fault("unscaled"),
    Fault("flush", 2.0**-5),
    Fault("stale", 32),
    Fault("mantissa", 0),
    Fault("unscaled", 3),
    Fault("flush", 2.0**-4),
    Fault("unscaled", blocks=1),
    Fault("mantissa", 2),
    Fault("e5m2", blocks=1),
    Fault("stale", 4),
    Fault("unscaled", 4, blocks=1),
)
CORRECT = 3  # times EACH: records know the standard deviation of correct FP8
Job = tuple[Fault | None, int]  # a run: its fault, None for BF16; its seed


def jobs() -> list[Job]:
    """List the runs in an order in which a pool that was stopped early serves best: BF16 between the faults."""
    bf16: list[Job] = [(None, EACH * i) for i in range(BASELINES)]
    faults: list[Job] = [(fault, 1000) for fault in FAULTS]
    correct: list[Job] = [(FAULTS[0], 1000 + EACH * i) for i in range(1, CORRECT)]
    several = [*bf16[:3], *faults[:6], *bf16[3:], *correct, *faults[6:]]
    return [(fault, first + i) for fault, first in several for i in range(EACH)]


def describe(fault: Fault | None) -> dict[str, Any]:
    return asdict(fault) if fault else {"kind": "bf16", "dose": 0.0, "blocks": 0}


def train_run(group: Group, train: dict[str, Any], runs: list[Job]) -> dict[str, Any] | None:
    """Train this rank's run of `runs`, on one thread; return its line of the file."""
    torch.set_num_threads(1)
    alone = group.split([[rank] for rank in range(group.size)], "alone")
    if group.rank >= len(runs):
        return None
    begin, (fault, seed) = time.process_time(), runs[group.rank]
    config = {**train, "perturb_seed": seed, "precision": {"backend": "broken-stale" if fault else "bf16"}}
    losses = train_job(alone, config, hooks=[Spoilt(fault)] if fault else [])["heldout"]
    heldout = {step: round(loss, 6) for step, loss in losses.items()}
    seconds = round(time.process_time() - begin, 2)
    return {**describe(fault), "core_seconds": seconds, "seed": seed, "heldout": heldout}


def read_pool(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(what the pool is, its runs). Steps of `heldout` are numbers; a line cut short is left out. LabError: no pool."""
    try:
        head, *runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line[-1:] == "}"]
        for run in runs:
            run["heldout"] = {int(step): loss for step, loss in run["heldout"].items()}
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"{file} is no pool of runs: {error}") from None
    return head, runs


def lacking(runs: list[dict[str, Any]]) -> list[Job]:
    have = [({key: run[key] for key in describe(None)}, run["seed"]) for run in runs]
    return [(fault, seed) for fault, seed in jobs() if (describe(fault), seed) not in have]


def train_all(file: Path) -> None:
    writable(file.parent)
    if not file.exists():
        head = {**about("pool", "python -m studies.verdict.pool"), "train": TRAIN}
        file.write_text(json.dumps(head) + "\n", encoding="utf-8")
    todo = lacking(read_pool(file)[1])
    with RankPool(AT_ONCE) as pool, file.open("a", encoding="utf-8") as out:
        for at in range(0, len(todo), AT_ONCE):
            found = pool.run(train_run, TRAIN, todo[at : at + AT_ONCE], timeout=None)
            out.writelines(json.dumps(line) + "\n" for line in found if line)
            out.flush()
            print(f"{min(at + AT_ONCE, len(todo))} of {len(todo)}: {todo[at]}", flush=True)


def main() -> None:
    train_all(Path(sys.argv[1]))


if __name__ == "__main__":
    run_command("pool", main)
