"""A training that is asked to stop and goes on, and then loses its rank: how C.5's record on a GPU is made.

    python -m studies.interrupted studies/c5.toml --out runs/c5
    setsid nohup python -m studies.interrupted studies/c5.toml --out runs/c5 &      outlives the shell that started it

It runs the capstone under torchrun, as C.5 has it. When `--pause` of the steps are done, torchrun gets a SIGTERM, and
the same command goes on. When `--kill` of them are done, the rank gets a SIGKILL, and torchrun starts another.

OUT.interrupted.json, beside the run's folder, has when each happened (UTC), torchrun's exit statuses, and what
nvidia-smi said every five seconds, where there is one. It is written anew whenever something happens. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.checks.outside import OWN_STORE
from labkit.errors import LabError
from labkit.record.files import replace_file
from labkit.record.read import parse

ASKED = ("power.draw", "clocks.sm", "memory.used", "utilization.gpu")  # W, MHz, MiB, per cent


def done(run: Path) -> int:
    """The newest step in the run's folder."""
    try:
        lines = (run / "steps.jsonl").read_bytes().splitlines()
    except OSError:
        return 0
    return max((line["step"] for line in map(parse, lines[-2:]) if line), default=0)


def rank_of(agent: int) -> int | None:
    """The process of torchrun's only rank; None while there is none."""
    with suppress(OSError):  # a process that ends while it is looked at
        for task in Path(f"/proc/{agent}/task").glob("*/children"):
            for child in task.read_text().split():
                if b"capstone.train" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def readings() -> list[float] | None:
    """The first GPU's, in ASKED's order."""
    words = [f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        said = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=20).stdout
        return [float(word) for word in said.split(",")]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def interrupted(config: Path, out: Path, pause: float, kill: float) -> dict[str, Any]:
    """Train, pause, go on, kill, and wait for the end; what happened. LabError if torchrun gives up, or the run
    ends before both."""
    try:
        steps = int(tomllib.loads(config.read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{config} tells no number of steps ({type(error).__name__}: {error})") from None
    words = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "3"]
    words += ["-m", "capstone.train", str(config), "--out", str(out)]
    has_gpu = shutil.which("nvidia-smi") is not None
    told: dict[str, Any] = {"command": f"torchrun {' '.join(words)}", "readings": list(ASKED), "gpu": []}

    def note(name: str, **more: Any) -> None:
        told[name] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "step": done(out), **more}
        replace_file(out.with_name(f"{out.name}.interrupted.json"), json.dumps(told, indent=1).encode() + b"\n")
        print(f"{name}: {told[name]}", flush=True)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words], env=os.environ | OWN_STORE)

    out.parent.mkdir(parents=True, exist_ok=True)
    agent, read_at = start(), 0.0
    note("began")
    try:
        while agent.poll() is None:
            time.sleep(0.2)
            if "paused" not in told and done(out) >= pause * steps:
                agent.send_signal(signal.SIGTERM)
                note("paused", status=agent.wait())
                agent = start()
                note("again")
            elif (
                "paused" in told and "killed" not in told and done(out) >= kill * steps and (rank := rank_of(agent.pid))
            ):
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
                    note("killed")
            if has_gpu and time.monotonic() > read_at + 5 and (found := readings()):
                told["gpu"].append(found)
                read_at = time.monotonic()
    finally:
        if agent.poll() is None:
            agent.terminate()
            agent.wait()
    note("ended", status=agent.returncode)
    if agent.returncode:
        raise LabError(
            f"torchrun ended with status {agent.returncode} at step {done(out)} of {steps}: see its words above"
        )
    if "killed" not in told:
        raise LabError(f"the run was over at step {done(out)}, before it was paused and killed: take a longer one")
    return told


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
    try:
        sys.exit(main())
    except LabError as error:
        print(f"interrupted: {error}", file=sys.stderr)
        sys.exit(2)
