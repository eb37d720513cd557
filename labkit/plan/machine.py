"""What a GPU can do, as far as a plan asks: four numbers that a user can give, and three that follow where they are
known.

    tflops       dense BF16 peak                  fp8_tflops   dense FP8 peak, 0 without
    memory_gb    as the datasheet prints it       hbm          bytes/s of its memory

    sms          multiprocessors: a product runs in waves of so many tiles
    watts        board power: what a chip clocks at under load follows from it
    recent       whether a kernel has Hopper's asynchronous tensor cores (compute capability 9 and later)

Names are matched loosely here, unlike in labkit.record.hardware: a plan is made for a machine that is not at hand, and
"h100", "H100-80GB" and "NVIDIA H100 SXM" mean the same. A variant with its own power or memory says so in its name:
"H100-96HBM2e-500W". Datasheets: A100, H100, H200, B200 (HGX), GB200, L40S; SMs: NVIDIA's whitepapers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from labkit.plan.cases import COLUMNS, Cases, cases

T, G = 1e12, 1e9
PCIE5 = 64.0  # GB/s, 16 lanes, one direction
HBM2E_H100 = 2.4 * T  # bytes/s of an H100 with HBM2e in place of HBM3


class Chip(NamedTuple):
    """One GPU model. `known` False: the last three are guesses from the first four."""

    tflops: float
    fp8_tflops: float
    memory_gb: float
    hbm: float
    sms: int
    watts: float
    recent: bool
    nvlink: float  # GB/s, one direction
    known: bool = True
    name: str = ""  # of one's own machine
    rates: tuple[tuple[str, float], ...] = ()  # measured, in place of the constants of these names


CHIPS = {
    "v100": Chip(125, 0, 32, 0.9 * T, 80, 300, False, 150),
    "a100-40": Chip(312, 0, 40, 1.555 * T, 108, 400, False, 300),
    "a100": Chip(312, 0, 80, 2.039 * T, 108, 400, False, 300),
    "h100": Chip(989, 1979, 80, 3.35 * T, 132, 700, True, 450),
    "h800": Chip(989, 1979, 80, 3.35 * T, 132, 700, True, 200),
    "h200": Chip(989, 1979, 141, 4.8 * T, 132, 700, True, 450),
    "h20": Chip(148, 296, 96, 4.0 * T, 78, 400, True, 450),
    "gb200": Chip(2450, 4900, 186, 8.0 * T, 148, 1200, True, 900),
    "b200": Chip(2250, 4500, 180, 8.0 * T, 148, 1000, True, 900),
    "b300": Chip(2250, 4500, 270, 8.0 * T, 148, 1400, True, 900),
    "gh200": Chip(989, 1979, 96, 4.0 * T, 132, 700, True, 450),
    "h100-pcie": Chip(756, 1513, 80, 2.0 * T, 114, 350, True, PCIE5),
    "a100-pcie": Chip(312, 0, 80, 1.935 * T, 108, 300, False, PCIE5 / 2),
    "l40s": Chip(362, 733, 48, 0.864 * T, 142, 350, False, 32),
}


def find_chip(name: str) -> Chip | None:
    """The table's row for a name, with what the name itself says of power and memory; None if it is not in the
    table."""
    bare = re.sub(r"[^a-z0-9]+", "-", re.sub(r"nvidia|sxm\d?", "", name.lower())).strip("-")
    if "pcie" in bare:  # cards have other clocks, memory and links than boards: only those of the table
        bare = re.sub(r"^(\w+).*?pcie", r"\1-pcie", bare)
    found = max((key for key in CHIPS if re.match(rf"{key}(?![0-9])", bare)), key=len, default=None)
    if found is None or ("pcie" in bare) != ("pcie" in found):
        return None
    chip = CHIPS[found]
    if watts := re.search(r"(\d{3,4})w\b", bare):
        chip = chip._replace(watts=float(watts[1]))
    if "hbm2e" in bare and found == "h100":
        chip = chip._replace(hbm=HBM2E_H100)
    if memory := re.match(rf"{found}-(\d+)g?b?(?:-|$|hbm)", bare):
        chip = chip._replace(memory_gb=float(memory[1]))
    return chip


def described(tflops: float, fp8_tflops: float, memory_gb: float, hbm: float | None) -> Chip:
    """A GPU by its numbers. Multiprocessors, power and kind are taken from the known chip with the nearest peak;
    without `hbm` its memory bandwidth too, in proportion to the peak. Its link is PCIe's until somebody says more."""
    near = min(CHIPS.values(), key=lambda chip: (abs(chip.tflops - tflops), abs(chip.memory_gb - memory_gb)))
    hbm = hbm or near.hbm * tflops / near.tflops
    return near._replace(tflops=tflops, fp8_tflops=fp8_tflops, memory_gb=memory_gb, hbm=hbm, nvlink=PCIE5, known=False)


def alone(chip: Chip, rows: int) -> Cases:
    """Cases of which only the machine matters, as `work.product` asks for them."""
    machine = {
        "peak": chip.tflops * T, "peak_fp8": chip.fp8_tflops * T, "hbm": chip.hbm, "sms": chip.sms, "watts": chip.watts,
        "recent": float(chip.recent), "memory": chip.memory_gb * G,
    }  # fmt: skip
    return cases({**dict.fromkeys(COLUMNS, np.ones(rows)), **machine})
