"""A training that is paused and goes on, and then loses its rank: how C.5's record on a GPU is made.

    python -m studies.interrupted studies/c5.toml --out runs/c5

When `--pause` of the steps are done, torchrun gets a SIGTERM, and the same command goes on; at `--kill` the rank gets a
SIGKILL. OUT.interrupted.json has when each happened (UTC), the exit statuses, and the GPU's readings.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pynvml as nvml

from labkit.errors import LabError, run_command
from labkit.record.files import replace_file, writable
from labkit.record.read import parse

READINGS = ("power.draw", "clocks.sm", "memory.used", "utilization.gpu")  # W, MHz, MiB, per cent


def newest_step(run: Path) -> int:
    """Return the newest step in the run's folder."""
    try:
        lines = (run / "steps.jsonl").read_bytes().splitlines()
    except OSError:
        return 0
    return max((line["step"] for line in map(parse, lines[-2:]) if line), default=0)


def ranks(agent: int) -> dict[int, int]:
    """Return {rank: its process} of those that torchrun has started."""
    found = {}
    with suppress(psutil.Error):  # a process that ends meanwhile
        for one in psutil.Process(agent).children():
            if (rank := one.environ().get("RANK")) is not None:
                found[int(rank)] = one.pid
    return found


def read_gpu() -> list[float] | None:
    """Return the first GPU's READINGS; None without one."""
    try:
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        watts, clock = nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3, nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
        used, busy = nvml.nvmlDeviceGetMemoryInfo(gpu).used, nvml.nvmlDeviceGetUtilizationRates(gpu).gpu
        return [watts, float(clock), float(used >> 20), float(busy)]
    except nvml.NVMLError:
        return None


def interrupted(config: Path, out: Path, pause: float, kill: float) -> dict[str, Any]:
    """Train, pause, go on, kill, wait for the end; return what happened. LabError: torchrun gives up, or is early."""
    try:
        steps = int(tomllib.loads(config.read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{config} has no number of steps ({type(error).__name__}: {error})") from None
    words = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "3"]
    words += ["-m", "capstone.train", str(config), "--out", str(out)]
    record: dict[str, Any] = {"command": f"torchrun {' '.join(words)}", "readings": list(READINGS), "gpu": []}

    def note(name: str, **more: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record[name] = {"time": now, "step": newest_step(out), **more}
        replace_file(out.with_name(f"{out.name}.interrupted.json"), json.dumps(record, indent=1).encode() + b"\n")
        print(f"{name}: {record[name]}", flush=True)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words])

    writable(out.parent)
    agent, read_at = start(), 0.0
    note("began")
    try:
        while agent.poll() is None:
            time.sleep(0.2)
            if "paused" not in record:
                if newest_step(out) >= pause * steps:
                    agent.send_signal(signal.SIGTERM)
                    note("paused", status=agent.wait())
                    agent = start()
                    note("again")
            elif "killed" not in record and newest_step(out) >= kill * steps and (rank := ranks(agent.pid).get(0)):
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
                    note("killed")
            if time.monotonic() > read_at + 5:
                read_at = time.monotonic()
                record["gpu"] += [found] if (found := read_gpu()) else []
    finally:
        if agent.poll() is None:
            agent.terminate()
            agent.wait()
    note("ended", status=agent.returncode)
    if agent.returncode:
        raise LabError(
            f"torchrun ended with status {agent.returncode} at step {newest_step(out)} of {steps}: see its words above"
        )
    if "killed" not in record:
        raise LabError(
            f"the run was over at step {newest_step(out)}, before it was paused and killed: take a longer one"
        )
    return record


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.interrupted", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.35, metavar="SHARE", help="of the steps, then a SIGTERM")
    parser.add_argument("--kill", type=float, default=0.66, metavar="SHARE", help="of the steps, then a SIGKILL")
    a = parser.parse_args(argv)
    if (a.out / "run.json").exists():
        raise LabError(f"{a.out} holds a run: choose another folder with --out")
    interrupted(a.config, a.out, a.pause, a.kill)
    return 0


if __name__ == "__main__":
    run_command("interrupted", main)
