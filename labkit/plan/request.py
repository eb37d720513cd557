"""A request to `lab plan`: its options, and the cluster, the batch and the precisions that they mean."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.model.shape_file import Model
from labkit.plan.cases import FORMATS
from labkit.plan.machine import CHIPS, G, Machine, described, find_chip
from labkit.plan.search import Cluster, refusal
from labkit.record.chips import Chip
from labkit.strict import load_toml

UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
LARGEST = 131_072  # GPUs
PER_NODE, IB = 8, 50.0  # where nobody says otherwise: an HGX board, and 400 Gbit/s a GPU


@dataclass(frozen=True)
class Request:
    """The command's options, as they were typed."""

    model: str = "8b"
    seq: int | None = None
    gpus: int = 64
    gpu: str = "h100"
    per_node: int | None = None
    nvlink: float | None = None
    ib: float | None = None
    batch_tokens: str = "4M"
    precision: str | None = None
    goal: str = "time"
    measured: float | None = None  # seconds of a step of the plan `of`
    of: str | None = None
    peak: float | None = None
    fp8_peak: float | None = None
    fp4_peak: float | None = None
    memory: float | None = None
    hbm: float | None = None
    explain: tuple[str, str] | None = None
    as_json: bool = False
    figure: Path | None = None
    write: Path | None = None


def find_cluster(request: Request) -> Cluster:
    """Return the cluster. LabError: one that makes no sense, or a GPU that is neither known nor described."""
    chip, per_node, ib = find_chip(request.gpu), PER_NODE, IB
    if request.gpu.endswith(".toml"):
        mine = load_toml(Path(request.gpu), Machine)
        chip, per_node, ib = mine.chip(), mine.per_node, mine.network_gbs or IB
    per_node = per_node if request.per_node is None else request.per_node
    ib = ib if request.ib is None else request.ib
    if chip is None:
        peak, fp8_peak, memory, hbm = request.peak, request.fp8_peak, request.memory, request.hbm
        if peak is None or fp8_peak is None or memory is None or hbm is None:
            raise LabError(
                f"--gpu '{request.gpu}' is not known (known: {', '.join(CHIPS)}): describe it by four numbers, --peak "
                "and --fp8-peak (dense TFLOP/s; 0 without FP8), --memory (GB) and --hbm (GB/s), or measure it: "
                "`lab plan --calibrate` writes a file for --gpu"
            )
        chip = described(peak, fp8_peak, memory, hbm * G)
    own: dict[str, Any] = {"tflops": request.peak, "fp8_tflops": request.fp8_peak, "fp4_tflops": request.fp4_peak}
    own |= {"memory_gb": request.memory, "hbm": request.hbm * G if request.hbm else None}
    chip = chip._replace(**{name: value for name, value in own.items() if value is not None})
    nvlink = chip.nvlink if request.nvlink is None else request.nvlink
    for name, value in (("--nvlink", nvlink), ("--ib", ib), ("--memory", chip.memory_gb), ("--peak", chip.tflops)):
        if not 0 < value < 1e6:
            units = "in GB/s (--memory: GB, --peak: TFLOP/s)"
            raise LabError(f"{name} {value:g} makes no sense: it is a number above 0, {units}")
    if not 1 <= request.gpus <= LARGEST or per_node < 1:
        raise LabError(f"--gpus lies between 1 and {LARGEST}, and --per-node is at least 1")
    per_node = min(per_node, request.gpus)
    if request.gpus % per_node:
        remedy = "give --gpus as a multiple of --per-node"
        raise LabError(f"{request.gpus} GPUs are not whole nodes of {per_node}: {remedy}")
    return Cluster(chip, request.gpus, per_node, nvlink * G, ib * G)


def count_sequences(text: str, model: Model) -> int:
    """Return the sequences of a step of so many tokens ("4M"). K is 1024, M 1024 squared. LabError: not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)", text.strip().lower())
    tokens = float(match[1]) * UNITS[match[2]] if match else 0
    gbs = int(tokens // model.seq)
    if gbs < 1:
        remedy = "give a number such as 4M or 512K"
        raise LabError(f"--batch-tokens '{text}' holds no sequence of {model.seq} tokens: {remedy}")
    return gbs


def choose_precisions(request: Request, model: Model, chip: Chip) -> tuple[str, ...]:
    """Return the requested precision, or BF16 and, where it can run, FP8. LabError: one that cannot."""
    chosen = request.precision
    if chosen is None:
        return ("bf16",) if refusal("fp8", model, chip) else ("bf16", "fp8")
    if chosen not in FORMATS:
        raise LabError(f"--precision is {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not '{chosen}'")
    if why := refusal(chosen, model, chip):
        raise LabError(f"--precision {chosen} cannot run on this GPU or model: {why}")
    return (chosen,)
