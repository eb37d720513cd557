"""Week 16's benchmark: wishes that cannot be, open tasks, records, and two real ranks under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.crossover.grid import Shape
from week16_fp8 import bench
from week16_fp8.given import linears, records

ROOT = Path(bench.__file__).parents[1]


def test_one_linear_in_each_precision():
    arms = ["plain", "te-current", "week16", "week16-block"]
    rows = linears.measure(Shape(64, 32, 48), arms, torch.device("cpu"), 0.01)
    found = {row["arm"]: row for row in rows}
    assert found["plain"]["error"] == 0 and {"why_not", "seconds"} & found["te-current"].keys() == {"why_not"}
    for arm in ("week16", "week16-block"):
        assert 0.005 < found[arm]["error"] < 0.1  # E4M3's relative steps are 1/16 at most
        assert linears.ratio(rows, arm) == pytest.approx(found[arm]["seconds"] / found["plain"]["seconds"])
    assert linears.ratio(rows, "te-current") is None


def test_a_fault_costs_its_own_part_alone(monkeypatch, tmp_path):
    def breaks(*args):
        raise RuntimeError("no luck")

    monkeypatch.setattr(linears, "measure", breaks)
    record = bench.run_bench("cpu", shapes="32x32x32", arms="week16", steps=2, out=str(tmp_path / "r.json"), quiet=True)
    assert record["failed"] == [{"what": "linear 32x32x32", "error": "RuntimeError: no luck"}]
    assert record["train"]["week16"]["heldout"] and json.loads((tmp_path / "r.json").read_text())["failed"]
    assert "failed: linear 32x32x32" in bench.table(record)


@pytest.mark.thorough
def test_two_ranks_under_torchrun(tmp_path):
    out = tmp_path / "record.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [
        "--device",
        "cpu",
        "--shapes",
        "64x64x64",
        "--arms",
        "week16,te-current",
        "--steps",
        "12",
        "--out",
        str(out),
    ]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [*launch, "-m", "week16_fp8.bench", *words]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    record = records.read_record(out)
    assert record["ranks"] == 2 and record["transport"] == "gloo" and not record["failed"]
    assert set(record["train"]) == {"plain", "twin", "broken", "week16", "te-current"}
    assert record["train"]["te-current"]["why_not"] and record["train"]["week16"]["heldout"]["12"] > 0
    assert record["verdict"]["arms"]["broken"]["value"] > record["verdict"]["arms"]["week16"]["value"]
    assert "tokens/s" in done.stdout and str(tmp_path) not in out.read_text()
