"""The file of one's own machine: what `lab plan --calibrate` writes and `lab plan --gpu FILE` reads."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from labkit.plan.work import FULL_POWER
from labkit.record.chips import Chip
from labkit.strict import Config, Count, load_toml

G = 1e9
DEFAULT = Path("runs") / "machine.toml"
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


def load(path: Path) -> Machine:
    return load_toml(path, Machine)


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
