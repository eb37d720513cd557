"""Makes the recorded runs of C.4, from runs of the study of the alarms (studies.alarms.study).

    python -m studies.alarms.study runs/alarms-tuning --tuning --seeds 12
    python -m studies.alarms.study runs/alarms --seeds 12
    python -m tests.capstone.record_health runs/alarms-tuning runs/alarms

writes capstone/data/lab.npz and grading/data/health.npz. The lab's runs lack the fault UNSEEN.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capstone.given.recorded import LAB, Recorded, packed
from capstone.given.records import Run
from studies.alarms import study
from tests.judged import ROOT

GRADED = ROOT / "grading" / "data" / "health.npz"
UNSEEN = "epsilon"
LINEARS, SLOTS = ("attn.wq", "ffn.w1", "ffn.w2"), ("input", "weight", "grad")
KEPT = tuple(f"layers.{layer}.{linear}.{slot}" for layer in (0, 1) for linear in LINEARS for slot in SLOTS)


def runs(folder: Path, without: str, most: int) -> list[Recorded]:
    """At most so many healthy runs of a study, and their faults that do harm."""
    found: list[Recorded] = []
    clean = None
    healthy = 0
    for trial in study.trials(tuning=(folder / f"{study.TUNING:04d}-clean.jsonl.gz").exists()):
        kept = study.load(folder, trial)
        if kept is None or trial.fault == without:
            continue
        if trial.fault is None:
            clean, healthy = kept, healthy + 1
            if healthy > most:
                break
            found.append(Recorded(None, None, None, run_of(kept)))
        elif clean is not None and (harm := study.harm_at(kept, clean)) is not None:
            kept = [line for line in kept if line["step"] <= harm + study.AFTER]
            found.append(Recorded(trial.fault, trial.begin - 1, harm - 1, run_of(kept)))
    return found


def run_of(lines: list[dict]) -> Run:
    """Step lines as a Run: row s is step s + 1."""

    def table(key: str) -> Tensor:
        return torch.tensor([[line["scales"][name][key] for name in KEPT] for line in probes])

    probes = [line for line in lines if "scales" in line]
    curves = torch.tensor([[line["loss"], line["grad_norm"]] for line in lines])
    tables = table("scale"), table("amax"), table("overflow") / 100, table("underflow") / 100
    rows = torch.tensor([line["step"] - 1 for line in probes])
    weights = torch.tensor([line["param_norm"] for line in probes])
    return Run(*curves.T.contiguous(), rows, weights, *tables, torch.zeros(len(lines), 0))


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("tuning", type=Path)
    words.add_argument("held_out", type=Path)
    words.add_argument("--most", type=int, default=10, help="healthy runs")
    given = words.parse_args()
    for path, source, without in ((LAB, given.tuning, UNSEEN), (GRADED, given.held_out, "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **packed(runs(source, without, given.most)))


if __name__ == "__main__":
    main()
