"""A training under torchrun that is paused, and whose ranks are killed: how long until it goes on?

    python -m studies.interrupted studies/c5.toml --out runs/c5                                      C.5's, on one GPU
    python -m studies.interrupted studies/killed.toml --out runs/killed --ranks 2 --pause 0 --kill 0.5:0 --kill 0.85:1

When `--pause` of the steps are done, torchrun gets a SIGTERM, and the same command goes on; at each `--kill` a rank
gets a SIGKILL. OUT.interrupted.json has when each happened (UTC), at which step, and after how many seconds there was
a new one; the GPU's watts; and how the run ended. Status 1 if something is wrong.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml as nvml

from labkit.errors import LabError, run_command
from labkit.record.files import replace_file, writable
from labkit.record.read import parse, read_run
from labkit.record.run import now
from studies.writing import about


def newest_step(run: Path) -> int:
    with suppress(OSError):
        lines = (run / "steps.jsonl").read_bytes().splitlines()
        return max((line["step"] for line in map(parse, lines[-2:]) if line), default=0)
    return 0


def resumes(run: Path) -> list[int]:
    with suppress(OSError):
        lines = map(parse, (run / "events.jsonl").read_bytes().splitlines())
        return [line["step"] for line in lines if line and line["kind"] == "resume"]
    return []


def rank_process(agent: int, rank: int) -> int:
    for one in psutil.Process(agent).children():
        with suppress(psutil.Error):  # a process that ends meanwhile
            if one.environ().get("RANK") == str(rank):
                return one.pid
    raise LabError(f"torchrun has no rank {rank}")


def read_watts() -> list[float]:
    """Return the first GPU's power; nothing without one."""
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        return [nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(0)) / 1e3]
    return []


def end(agent: subprocess.Popen[bytes]) -> None:
    """End torchrun and what it started, whatever they do."""
    with suppress(psutil.Error):
        for one in [*psutil.Process(agent.pid).children(recursive=True), agent]:
            with suppress(psutil.Error):
                one.kill()
    agent.wait()


def interrupted(
    words: list[str], run: Path, steps: int, stops: list[tuple[float, int | None]], limit: float, record: dict[str, Any]
) -> None:
    """Train, with a stop at each (share of the steps, rank to kill; None: a pause); put what happened into `record`.
    LabError: torchrun ends before all stops, or needs more than `limit` seconds."""
    record |= {"began": now(), "pauses": [], "kills": [], "watts": []}
    over, read_at = time.monotonic() + limit, 0.0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words])

    def wait_until(count: Callable[[], int], least: int) -> None:
        nonlocal read_at
        while True:
            ended = agent.poll() is not None  # asked before the count: its last step counts
            if count() >= least:
                return
            if ended or time.monotonic() > over:
                how = f"ended, status {agent.poll()}" if ended else f"needs more than {limit:g} s"
                raise LabError(f"torchrun {how}, at step {newest_step(run)} of {steps}: not every stop has happened")
            if time.monotonic() > read_at + 5:
                read_at = time.monotonic()
                record["watts"] += read_watts()
            time.sleep(0.05)

    agent = start()
    try:
        for share, rank in sorted(stops, key=lambda stop: stop[0]):
            wait_until(lambda: newest_step(run), math.ceil(share * steps))
            before, begin = len(resumes(run)), time.monotonic()
            stop: dict[str, Any] = {"time": now(), "rank": rank, "step": newest_step(run)}
            if rank is None:
                agent.send_signal(signal.SIGTERM)
                stop["status"] = agent.wait()
                agent = start()
            else:
                os.kill(rank_process(agent.pid, rank), signal.SIGKILL)
            wait_until(lambda: len(resumes(run)), before + 1)
            first = resumes(run)[-1]
            wait_until(lambda: newest_step(run), first)
            seconds = round(time.monotonic() - begin, 1)
            record["pauses" if rank is None else "kills"].append({**stop, "from": first, "seconds": seconds})
        wait_until(lambda: agent.poll() is not None, True)
    finally:
        end(agent)
        record |= {"ended": now(), "torchrun": agent.returncode}


def a_kill(words: str) -> tuple[float, int]:
    share, _, rank = words.partition(":")
    return float(share), int(rank)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.interrupted", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.35, help="share of the steps, then a SIGTERM; 0: none")
    parser.add_argument("--kill", type=a_kill, action="append", metavar="SHARE:RANK", help="a SIGKILL; default: 0.66:0")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for everything")
    a = parser.parse_args(argv)
    writable(a.out.parent)
    if (a.out / "run.json").exists():
        raise LabError(f"{a.out} holds a run: choose another folder with --out")
    steps = int(tomllib.loads(a.config.read_text(encoding="utf-8"))["steps"])
    words = ["--standalone", "--nproc-per-node", str(a.ranks), "--max-restarts", "3"]
    words += ["-m", "capstone.train", str(a.config), "--out", str(a.out)]
    pauses = [(a.pause, None)] if a.pause else []
    found: dict[str, Any] = {**about("interrupted", f"torchrun {' '.join(words)}"), "ranks": a.ranks}
    try:
        interrupted(words, a.out, steps, [*pauses, *(a.kill or [(0.66, 0)])], a.limit, found)
        run = read_run(a.out)
        found["status"] = run.run["status"]
        found["each step once"] = [line["step"] for line in run.steps] == list(range(1, steps + 1))
    finally:  # what happened on a rented GPU is kept, however it ended
        replace_file(a.out.with_name(f"{a.out.name}.interrupted.json"), json.dumps(found, indent=1) + "\n")
    shown = ("pauses", "kills", "torchrun", "status", "each step once")
    print(json.dumps({key: found[key] for key in shown}, indent=1))
    return 0 if found["torchrun"] == 0 and found["status"] == "finished" and found["each step once"] else 1


if __name__ == "__main__":
    run_command("interrupted", main)
