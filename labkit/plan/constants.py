"""What the model does not derive: named numbers, each with its meaning, unit and origin (values: data/fitted.toml).

Read off a record on H200 (2026-11-22), fitted by `python -m labkit.plan.fit` where unseen stacks gain, or set by hand.
"""

import functools
import tomllib
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_name("data")
H200 = "week16_fp8/results/2026-11-22-h200-8b-levers/as-it-is: "
CHOICE = "by hand; fitting it gained nothing on unseen stacks"


class About(NamedTuple):
    """What a constant means. start: where a fit begins, or the value; width: of the prior's logarithm (0: not fitted)."""

    start: float
    width: float
    unit: str
    meaning: str
    origin: str


class Constants(NamedTuple):
    """The values. `ABOUT` says what each means."""

    gemm_older: float
    gemm_recent: float
    start: float
    flash_older: float
    flash_recent: float
    sdpa: float
    elementwise: float
    elementwise_torch: float
    scores: float
    cast: float
    optimizer: float
    host: float
    wire: float
    network: float
    alpha: float
    tp_left: float
    drag: float
    drag_near: float


ABOUT = {
    "gemm_older": About(0.80, 0, "of peak", "a large BF16 product, chips before Hopper", CHOICE),
    "gemm_recent": About(0.74, 0.08, "of peak", "a large BF16 product at 700 W, Hopper and later", "fitted"),
    "start": About(160, 0, "numbers", "depth whose multiplying takes as long as a tile's load and store", CHOICE),
    "flash_older": About(0.50, 0, "of peak", "fused attention before Hopper", "arXiv:2307.08691, figures 5 and 6"),
    "flash_recent": About(
        0.43, 0, "of peak", "fused attention, Hopper and later, the chip's own kernels", H200 + "attention"
    ),
    "sdpa": About(
        0.68, 0, "of that", "FlashAttention 2 on Hopper, torch's", "week15_tp_attention/results: attention, plain"
    ),
    "elementwise": About(
        1.06, 0, "times", "bytes moved by fused kernels, over the model's count", H200 + "norm and elementwise"
    ),
    "elementwise_torch": About(1.7, 0.4, "times", "the same by plain torch under FSDP", "fitted"),
    "scores": About(33, 0.3, "bytes", "traffic of one unfused attention score, forward and backward", "fitted"),
    "cast": About(
        5.3, 0, "bytes", "traffic of casting one number to FP8, less what norms save by it", H200 + "quantize"
    ),
    "optimizer": About(70, 0, "bytes", "traffic of one parameter's clipping and AdamW", H200 + "optimizer"),
    "host": About(
        1.7e-3, 0, "seconds", "CPU's time to queue a layer's pass, unfused kernels", "by hand, three rows of shown.csv"
    ),
    "wire": About(
        0.78, 0, "of datasheet", "NVLink's bandwidth in a ring", "week13_allreduce/results/h200-4.json, 256 MiB"
    ),
    "network": About(0.80, 0.25, "of datasheet", "a network card's bandwidth in a ring", "fitted"),
    "alpha": About(7e-6, 0, "seconds", "a ring's step", "week13_allreduce/results/h200-2.json, 4 KiB"),
    "tp_left": About(0.35, 0, "of it", "tensor-parallel messages that overlap leaves exposed", CHOICE),
    "drag": About(
        0.4, 0.4, "of it", "what a hidden message costs the kernels beside it, or the slower level", "fitted"
    ),
    "drag_near": About(0.3, 0.4, "of it", "the same for data parallelism that never leaves its node", "fitted"),
}


def start() -> Constants:
    """Return the constants with which a fit begins."""
    return Constants(**{name: about.start for name, about in ABOUT.items()})


@functools.cache
def _fitted() -> dict[str, dict[str, float]]:
    return tomllib.loads((DATA / "fitted.toml").read_text())


def constants() -> Constants:
    """Return the fitted values."""
    return Constants(**_fitted()["constants"])


def share_of_stack(off: float, interval: float) -> float:
    """Return how much of one run's log(measured / predicted) its software's other runs are likely to share."""
    return off**3 / (off**2 + interval**2)


def accuracy() -> dict[str, float]:
    """The errors that the constants leave.

    interval: of log(seconds), kept by four of five unseen stacks; tie: between plans of one sweep; memory: of log(bytes),
    what four of five stacks need beyond plain software; scaled_mean: after one step of a stack was shown.
    """
    return _fitted()["accuracy"]
