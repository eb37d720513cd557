"""Recorded runs with faults, for C.4: small trainings in FP8 (data/README.md).

What is stored is small: logarithms to 1/256 (curves) or 1/64 (scales, amaxes), shares to 1/65,535.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from capstone.given.records import Run

LAB = Path(__file__).parents[1] / "data" / "lab.npz"
FINE, COARSE, SHARE = 256, 64, 65_535
NONE = -32_768  # no number


class Recorded(NamedTuple):
    """A run; its fault, or None; the row at which that begins, and the row at which the harm is done."""

    fault: str | None
    at: int | None
    harm: int | None
    run: Run


def load(path: Path = LAB) -> list[Recorded]:
    """The runs of one file, without seconds of ranks: [S, 0]."""
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        return [_run(file, number, **facts) for number, facts in enumerate(about)]


def packed(runs: list[Recorded]) -> dict[str, Any]:
    """What `load` reads, for numpy.savez_compressed."""
    about = [{"fault": r.fault, "at": r.at, "harm": r.harm} for r in runs]
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
    for number, (_, _, _, run) in enumerate(runs):
        arrays[f"curves{number}"] = _closed(torch.stack([run.loss_S, run.norm_S]), FINE)
        arrays[f"probe{number}"] = run.probe_P.numpy().astype(np.int16)
        arrays[f"weight{number}"] = run.weight_P.numpy()
        # scale * amax hardly changes where the scale follows its tensor: it costs nothing
        arrays[f"tables{number}"] = _closed(torch.stack([run.scale_PT * run.amax_PT, run.amax_PT]), COARSE)
        shares = torch.stack([run.over_PT, run.under_PT]).numpy()
        arrays[f"shares{number}"] = np.round(shares * SHARE).astype(np.uint16)
    return arrays


def _run(file: Any, number: int, fault: str | None, at: int | None, harm: int | None) -> Recorded:
    loss_S, norm_S = map(torch.from_numpy, _opened(file[f"curves{number}"], FINE))
    product_PT, amax_PT = map(torch.from_numpy, _opened(file[f"tables{number}"], COARSE))
    over_PT, under_PT = torch.from_numpy(file[f"shares{number}"].astype(np.float32) / SHARE)
    probe_P = torch.from_numpy(file[f"probe{number}"].astype(np.int64))
    scale_PT = product_PT / amax_PT
    work_SR = torch.zeros(len(loss_S), 0)
    weight_P = torch.from_numpy(file[f"weight{number}"])
    return Recorded(
        fault, at, harm, Run(loss_S, norm_S, probe_P, weight_P, scale_PT, amax_PT, over_PT, under_PT, work_SR)
    )


def _closed(x: Tensor, steps: int) -> np.ndarray:
    """int16 of log2 x in units of 1 / steps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.round(np.log2(x.double().numpy()) * steps)
    return np.where(np.isfinite(log), np.clip(log, NONE + 1, 32_767), NONE).astype(np.int16)


def _opened(closed: np.ndarray, steps: int) -> np.ndarray:
    return np.where(closed == NONE, np.nan, np.exp2(closed.astype(np.float64) / steps)).astype(np.float32)
