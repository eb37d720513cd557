"""Many trainings of one small decoder, so that gaps can be known instead of assumed.

    python -m studies.verdict.pool FILE

BF16 is trained 48 times, correct FP8 24 times, and FP8 8 times with each fault at each dose (studies.verdict.faults),
each from initial weights perturbed at random by one BF16 rounding step. The file is JSON lines: a first one with
hardware, versions and settings, then a run each. Ctrl-C stops it, and the same command goes on.
"""

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.errors import LabError, run_command
from labkit.record.files import writable
from studies.verdict.faults import Fault
from studies.writing import about

TOGETHER = 8  # runs trained as one: studies.verdict.together
BASELINES = 6  # times TOGETHER
AT_ONCE = 2  # jobs, a thread each
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
CORRECT = 3  # times TOGETHER: records know the standard deviation of correct FP8
Job = tuple[Fault | None, int]  # the fault, None for BF16; the first of TOGETHER seeds


def jobs() -> list[Job]:
    """List the jobs in an order in which a pool that was stopped early serves best: BF16 between the faults."""
    bf16: list[Job] = [(None, TOGETHER * i) for i in range(BASELINES)]
    faults: list[Job] = [(fault, 1000) for fault in FAULTS]
    correct: list[Job] = [(FAULTS[0], 1000 + TOGETHER * i) for i in range(1, CORRECT)]
    return [*bf16[:3], *faults[:6], *bf16[3:], *correct, *faults[6:]]


def describe(fault: Fault | None) -> dict[str, Any]:
    return asdict(fault) if fault else {"kind": "bf16", "dose": 0.0, "blocks": 0}


def train_job(job: Job) -> list[dict[str, Any]]:
    """Train the runs of one job, in this process, on one thread; return their lines of the file."""
    import torch

    from labkit.strict import strict_validate
    from labkit.train.config import TrainConfig
    from labkit.train.data.corpus import build_corpus
    from studies.verdict.together import train_together

    torch.set_num_threads(1)
    begin, (fault, first) = time.process_time(), job
    config = strict_validate(TrainConfig, TRAIN, "the pool's training")
    seeds = list(range(first, first + TOGETHER))
    heldout = train_together(config, build_corpus(config.data), fault, seeds)
    seconds = round((time.process_time() - begin) / TOGETHER, 2)
    what = {**describe(fault), "core_seconds": seconds}
    rounded = [{step: round(loss, 6) for step, loss in losses.items()} for losses in heldout]
    return [{**what, "seed": seed, "heldout": losses} for seed, losses in zip(seeds, rounded)]


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
    """The jobs of which a run is not there."""
    have = [({key: run[key] for key in describe(None)}, run["seed"]) for run in runs]
    return [job for job in jobs() if any((describe(job[0]), job[1] + i) not in have for i in range(TOGETHER))]


def train_all(file: Path) -> None:
    writable(file.parent)
    if not file.exists():
        head = {**about("pool", "python -m studies.verdict.pool"), "train": TRAIN}
        file.write_text(json.dumps(head) + "\n", encoding="utf-8")
    todo = lacking(read_pool(file)[1])
    with (
        ProcessPoolExecutor(AT_ONCE, mp_context=multiprocessing.get_context("spawn")) as pool,
        file.open("a", encoding="utf-8") as out,
    ):
        waiting = {pool.submit(train_job, job): job for job in todo}
        for number, done in enumerate(as_completed(waiting), 1):
            out.writelines(json.dumps(line) + "\n" for line in done.result())
            out.flush()
            fault, first = waiting[done]
            print(f"{number} of {len(todo)}: {describe(fault)}, seeds from {first}", flush=True)


def main() -> None:
    train_all(Path(sys.argv[1]))


if __name__ == "__main__":
    run_command("pool", main)
