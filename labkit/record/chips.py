"""GPU models by their datasheets: peaks dense and with FP32 accumulation, links in one direction."""

import re
from typing import NamedTuple

T = 1e12
PCIE4, PCIE5 = 32.0, 64.0  # GB/s, 16 lanes


class Chip(NamedTuple):
    """One GPU model. `known` False: sms, watts and recent are guesses."""

    tflops: float  # BF16
    fp8_tflops: float  # 0: no such units
    memory_gb: float  # as the datasheet prints it
    hbm: float  # bytes/s of its memory
    sms: int  # multiprocessors: a product runs in waves of so many tiles
    watts: float  # of the board: what a chip clocks at under load follows from it
    recent: bool  # has it Hopper's asynchronous tensor cores (compute capability 9 and later)?
    nvlink: float  # GB/s; 0: none; of a PCIe card a bridge to one other
    pcie: float = 0.0  # GB/s, of a card
    known: bool = True
    name: str = ""  # of one's own machine
    rates: tuple[tuple[str, float], ...] = ()  # measured, in place of the planner's constants of these names
    fp4_tflops: float = 0.0  # 0: no units for MXFP8 and NVFP4; MXFP8's peak is FP8's


# Datasheets: A100, H100, H200, B200 (HGX), GB200, L40S; Ada architecture whitepaper, appendix A, for the RTX 4090.
# Multiprocessors: NVIDIA's whitepapers. FP4: datasheets of the HGX boards, dense, an eighth of 72 PFLOP/s (B200) and of 105
# (B300); of the GB200 by the same ratio, twice its FP8. Nobody has measured them here.
CHIPS = {
    "v100": Chip(125, 0, 32, 0.9 * T, 80, 300, False, 150),
    "a100-40": Chip(312, 0, 40, 1.555 * T, 108, 400, False, 300),
    "a100": Chip(312, 0, 80, 2.039 * T, 108, 400, False, 300),
    "h100": Chip(989, 1979, 80, 3.35 * T, 132, 700, True, 450),
    "h800": Chip(989, 1979, 80, 3.35 * T, 132, 700, True, 200),
    "h200": Chip(989, 1979, 141, 4.8 * T, 132, 700, True, 450),
    "h20": Chip(148, 296, 96, 4.0 * T, 78, 400, True, 450),
    "gb200": Chip(2450, 4900, 186, 8.0 * T, 148, 1200, True, 900, fp4_tflops=9800),
    "b200": Chip(2250, 4500, 180, 8.0 * T, 148, 1000, True, 900, fp4_tflops=9000),
    "b300": Chip(2250, 4500, 270, 8.0 * T, 148, 1400, True, 900, fp4_tflops=13125),
    "gh200": Chip(989, 1979, 96, 4.0 * T, 132, 700, True, 450),
    "h100-pcie": Chip(756, 1513, 80, 2.0 * T, 114, 350, True, 300, PCIE5),
    "a100-pcie": Chip(312, 0, 80, 1.935 * T, 108, 300, False, 300, PCIE4),
    "l40s": Chip(362, 733, 48, 0.864 * T, 142, 350, False, 0, PCIE4),
    "rtx-4090": Chip(165.2, 330.3, 24, 1.008 * T, 128, 450, False, 0, PCIE4),
}

# The whole name of a device, as torch and the driver give it. A near miss is a miss: an "H100 NVL", an "RTX 4090 Laptop
# GPU" or a MIG slice has another peak, and a wrong peak makes a wrong MFU.
DEVICES = {
    r"A100-SXM4-40GB": "a100-40",
    r"A100-SXM4-80GB": "a100",
    r"A100-PCIE-40GB|A100[ -]80GB[ -]PCIe": "a100-pcie",
    r"H100 80GB HBM3": "h100",
    r"H200": "h200",
    r"H100 PCIe": "h100-pcie",
    r"B200": "b200",
    r"L40S": "l40s",
    r"GeForce RTX 4090": "rtx-4090",
}


def find_gpu(name: str) -> Chip | None:
    """The chip behind a device name such as "NVIDIA H100 80GB HBM3"; None if it is not in the table."""
    bare = re.sub(r"^NVIDIA\s+", "", name.strip())
    return next((CHIPS[chip] for pattern, chip in DEVICES.items() if re.fullmatch(pattern, bare, re.I)), None)
