"""The GPU that a plan is made for: by four numbers, by its name, matched loosely ("h100", "H100-96HBM2e-500W"), or by
the file of one's own machine, which `lab plan --calibrate` writes and `lab plan --gpu FILE` reads.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from labkit.plan.cases import COLUMNS, Cases, cases
from labkit.plan.work import FULL_POWER
from labkit.record import chips
from labkit.record.chips import PCIE5, Chip
from labkit.strict import Config, Count

T, G, GIB = 1e12, 1e9, 2.0**30
DEFAULT = Path("runs") / "machine.toml"
BOARD = 0.995  # GiB that the driver reports of a datasheet's GB: 81,559 MiB of 80, 143,771 of 141, 183,359 of 180
HBM2E_H100 = 2.4 * T  # bytes/s of an H100 with HBM2e in place of HBM3
# GPUs of a node as a plan finds them: cards without bridges. No cluster that is planned for has GeForce cards.
CHIPS = {
    name: chip._replace(nvlink=chip.pcie or chip.nvlink) for name, chip in chips.CHIPS.items() if name != "rtx-4090"
}


def find_chip(name: str) -> Chip | None:
    """The table's row for a name, with the power and memory that the name says; None if it is not in the table."""
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
    """A GPU by its numbers. The rest is taken from the known chip with the nearest peak; its link is PCIe's."""
    near = min(CHIPS.values(), key=lambda chip: (abs(chip.tflops - tflops), abs(chip.memory_gb - memory_gb)))
    hbm = hbm or near.hbm * tflops / near.tflops
    return near._replace(
        tflops=tflops, fp8_tflops=fp8_tflops, fp4_tflops=0.0, memory_gb=memory_gb, hbm=hbm, nvlink=PCIE5, known=False
    )


def columns_of(chip: Chip) -> dict[str, float]:
    return {
        "peak": chip.tflops * T,
        "peak_fp8": (chip.fp8_tflops or chip.tflops) * T,
        "peak_fp4": (chip.fp4_tflops or chip.tflops) * T,
        "hbm": chip.hbm,
        "sms": chip.sms,
        "watts": chip.watts,
        "recent": float(chip.recent),
        "memory": BOARD * chip.memory_gb * GIB,
    }


def alone(chip: Chip, rows: int) -> Cases:
    """Return cases of which only the machine matters, for `work.product`."""
    return cases({**dict.fromkeys(COLUMNS, np.ones(rows)), **columns_of(chip)})


Above = Annotated[float, Field(gt=0)]


class Rates(Config):
    """Constants of labkit/plan/constants.py that this machine has its own values for."""

    gemm_older: Above | None = None
    gemm_recent: Above | None = None
    start: Annotated[float, Field(ge=0)] | None = None
    flash_older: Above | None = None
    flash_recent: Above | None = None
    wire: Above | None = None
    network: Above | None = None
    alpha: Above | None = None


class Machine(Config):
    """The file. Rates are in TFLOP/s and GB/s, one direction a GPU; memory is in GB."""

    name: str
    measured: str = ""  # when, and with what
    tflops: Above
    fp8_tflops: Annotated[float, Field(ge=0)] = 0.0
    memory_gb: Above
    hbm_gbs: Above
    sms: Count
    recent: bool
    per_node: Count = 1
    link_gbs: Above
    network_gbs: Above | None = None
    product_error: float = 0.0  # mean |log| that the two constants leave over the products timed
    rates: Rates = Rates()

    def chip(self) -> Chip:
        rates = tuple(self.rates.model_dump(exclude_none=True).items())
        # Power is in the rates already, so the chip runs at full power.
        numbers = (self.tflops, self.fp8_tflops, self.memory_gb, self.hbm_gbs * G, self.sms, FULL_POWER, self.recent)
        return Chip(*numbers, self.link_gbs, name=self.name, rates=rates)


def write_text(machine: Machine) -> str:
    values = machine.model_dump(exclude_none=True)
    rates = values.pop("rates")
    lines = [f"# This machine, measured by `lab plan --calibrate`; `lab plan --gpu {DEFAULT}` plans with it."]
    lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    lines += ["", "# In place of the constants of these names in labkit/plan/constants.py", "[rates]"]
    return "\n".join(lines + [f"{key} = {_value(value)}" for key, value in rates.items()]) + "\n"


def _value(value: Any) -> str:
    # What JSON writes for strings, booleans and whole numbers is TOML, too.
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
