"""The capstone's trainer under plain torchrun, whose first and then last rank is killed: how long until it goes on?

    python -m studies.killed --out killed.json                       two GPUs, or two CPU ranks where there are none
    python -m studies.killed --ranks 4 --tp 2 --out killed.json      dp 2 x tp 2

Each rank gets one SIGKILL between two checkpoints. Status 1 if something is wrong.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import run_command
from labkit.record.files import writable
from labkit.record.hardware import describe
from labkit.record.read import parse, read_run
from labkit.record.run import versions
from studies.interrupted import newest_step, ranks

CONFIG = """
model = "{model}"
steps = {steps}
seq_len = {seq}
batch_size = {batch}
eval_every = 0
checkpoint_every = {every}
mixed_precision = "{precision}"
parts = "torch"
[data]
source = ["{source}"]
[parallel]
tp = {tp}
"""
ON_GPUS = dict(model="124m", seq=1024, batch=32, precision="bf16")
ON_CPUS = dict(model="tiny", seq=32, batch=8, precision="fp32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument(
        "--every", type=int, default=20, help="steps between two checkpoints; it trains 3 times as many"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tp", type=int, default=1, help="dp takes the ranks that are left")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for everything")
    a = parser.parse_args()
    writable(a.out.parent)
    import torch

    device, every = "cuda" if torch.cuda.device_count() >= a.ranks else "cpu", a.every
    with tempfile.TemporaryDirectory() as folder:
        run, config = Path(folder) / "run", Path(folder) / "config.toml"
        shape = ON_GPUS if device == "cuda" else ON_CPUS
        source = Path(__file__).parents[1] / "labkit"
        config.write_text(CONFIG.format(**shape, steps=3 * every, every=every, source=source, tp=a.tp))
        words = ["--standalone", "--nproc-per-node", str(a.ranks), "--max-restarts", "3", "-m", "capstone.train"]
        command = [sys.executable, "-m", "torch.distributed.run", *words, str(config), "--out", str(run)]
        own = {key: value for key, value in os.environ.items() if key != "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
        begin = time.monotonic()
        over = begin + a.limit
        agent = subprocess.Popen([*command, "--device", device], env={"OMP_NUM_THREADS": "1", **own})
        try:
            victims = (0, a.ranks - 1)
            kills = [kill(agent, run, rank, k * every + every // 2, over) for k, rank in enumerate(victims, 1)]
            status: int | None = agent.wait(max(1.0, over - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            kills, status = [], None
        finally:
            end(agent.pid)
        steps, record = [line["step"] for line in read_run(run).steps], read_run(run).run
    found: dict[str, Any] = {
        "kills": kills,
        "torchrun": status,
        "status": record["status"],
        "each step once": steps == list(range(1, 3 * every + 1)),
        "seconds": round(time.monotonic() - begin, 1),
        "ranks": a.ranks,
        "tp": a.tp,
        "device": device,
        "hardware": describe(),
        "versions": versions(),
    }
    a.out.write_text(json.dumps(found, indent=1) + "\n")
    print("rank  killed at step  goes on with  seconds until its first new step")
    for one in kills:
        print(f"{one['rank']:4}  {one['step']:14}  {one['from']:12}  {one['seconds']:10.1f}")
    print(*(f"{key}: {found[key]}" for key in ("torchrun", "status", "each step once", "seconds")), sep="\n")
    good = len(kills) == 2 and status == 0 and found["status"] == "finished" and found["each step once"]
    return 0 if good else 1


def kill(agent: subprocess.Popen, run: Path, rank: int, step: int, over: float) -> dict[str, Any]:
    """Kill a rank when a step's line is there; return what became of it. TimeoutError: nothing, or too late."""
    before = len(resumes(run))
    wait_until(agent, lambda: newest_step(run) >= step, over)
    killed, at = time.monotonic(), newest_step(run)
    os.kill(ranks(agent.pid)[rank], signal.SIGKILL)
    wait_until(agent, lambda: len(resumes(run)) > before, over)
    first = resumes(run)[-1]
    wait_until(agent, lambda: newest_step(run) >= first, over)
    return {"rank": rank, "step": at, "from": first, "seconds": round(time.monotonic() - killed, 1)}


def wait_until(agent: subprocess.Popen, true: Any, over: float) -> None:
    while not true():
        if agent.poll() is not None or time.monotonic() > over:
            raise TimeoutError
        time.sleep(0.01)


def resumes(run: Path) -> list[int]:
    """The step before which each start went on."""
    with suppress(OSError):
        lines = map(parse, (run / "events.jsonl").read_bytes().splitlines())
        return [line["step"] for line in lines if line and line["kind"] == "resume"]
    return []


def end(agent: int) -> None:
    """End torchrun and what it started, whatever they do."""
    with suppress(psutil.Error):
        everybody = psutil.Process(agent)
        for one in [*everybody.children(recursive=True), everybody]:
            with suppress(psutil.Error):
                one.kill()


if __name__ == "__main__":
    run_command("killed", main)
