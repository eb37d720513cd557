"""What the model does not derive: named numbers, each with its unit, meaning and origin (values: data/fitted.toml).

Read off a record on H200 (2026-11-22), fitted by `python -m labkit.plan.fit` where unseen stacks gain, or set by hand
where fitting gained nothing on unseen stacks. LEVERS: week16_fp8/results/2026-11-22-h200-8b-levers/as-it-is.
"""

import functools
import tomllib
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_name("data")


class Constants(NamedTuple):
    """The values. A default is where a fit begins, or the value where nothing is fitted."""

    gemm_older: float = 0.80  # of peak: a large BF16 product, chips before Hopper; by hand
    gemm_recent: float = 0.74  # of peak: a large BF16 product at 700 W, Hopper and later; fitted
    start: float = 160  # numbers: depth whose multiplying takes as long as a tile's load and store; by hand
    flash_older: float = 0.50  # of peak: fused attention before Hopper; arXiv:2307.08691, figures 5 and 6
    flash_recent: float = 0.43  # of peak: fused attention, Hopper and later, the chip's own kernels; LEVERS: attention
    sdpa: float = 0.68  # of that: FlashAttention 2 on Hopper, torch's; week15_tp_attention/results: attention, plain
    elementwise: float = 1.06  # times the model's count of bytes that fused kernels move; LEVERS: norm and elementwise
    elementwise_torch: float = 1.7  # times: the same by plain torch under FSDP; fitted
    scores: float = 33  # bytes: traffic of one unfused attention score, forward and backward; fitted
    cast: float = 5.3  # bytes: traffic of casting one number to FP8, less what norms save by it; LEVERS: quantize
    optimizer: float = 70  # bytes: traffic of one parameter's clipping and AdamW; LEVERS: optimizer
    host: float = 1.7e-3  # seconds: CPU's time to queue a layer's pass, unfused; by hand, three rows of shown.csv
    wire: float = 0.78  # of datasheet: NVLink's bandwidth in a ring; week13_allreduce/results/h200-4.json, 256 MiB
    network: float = 0.80  # of datasheet: a network card's bandwidth in a ring; fitted
    alpha: float = 7e-6  # seconds: a ring's step; week13_allreduce/results/h200-2.json, 4 KiB
    tp_left: float = 0.35  # of them: tensor-parallel messages that overlap leaves exposed; by hand
    drag: float = 0.4  # of it: what a hidden message costs the kernels beside it, or the slower level; fitted
    drag_near: float = 0.3  # of it: the same for data parallelism that never leaves its node; fitted


# What is fitted, with the width of the prior's logarithm.
WIDTHS = {"gemm_recent": 0.08, "elementwise_torch": 0.4, "scores": 0.3, "network": 0.25, "drag": 0.4, "drag_near": 0.4}


@functools.cache
def _fitted() -> dict[str, dict[str, float]]:
    return tomllib.loads((DATA / "fitted.toml").read_text())


def constants() -> Constants:
    return Constants(**_fitted()["constants"])


def share_of_stack(off: float, interval: float) -> float:
    """Return how much of one run's log(measured / predicted) its software's other runs are likely to share."""
    return off**3 / (off**2 + interval**2)


def accuracy() -> dict[str, float]:
    """The errors that the constants leave: interval, of log(seconds), kept by four of five unseen stacks; tie, between
    plans of one sweep; memory, of log(bytes), what four of five stacks need beyond plain software; means and quantiles.
    """
    return _fitted()["accuracy"]
