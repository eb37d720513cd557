"""`lab plan --calibrate`: what this machine does, in the planner's own units, kept in a small file for `--gpu FILE`.

products     a decoder's shapes, forward and backward: the share of peak and the `start` with which `work.product`
             is least wrong, and the error that is left
attention    torch's fused kernel, causal, forward and backward
memory       a copy that no cache holds
link         all-gathers among this machine's GPUs (two processes on a CPU): a large one for the rate, a small for alpha
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.plan.constants import Constants, constants
from labkit.plan.machine import BOARD, DEFAULT, GIB, G, Machine, Rates, T, alone, find_chip, write_text
from labkit.plan.work import REACHED, product
from labkit.precision.recipes import FP8_UNITS
from labkit.record.chips import PCIE5, Chip

NOISY = 0.35  # mean |log| of products beyond which something else ran beside them
STARTS = (0, 20, 40, 80, 120, 160, 240, 320, 480, 640)  # of `start`, tried in turn


class Scale(NamedTuple):
    """How much is measured on a kind of device. Shapes are (rows, outputs, inputs); attention is (heads, positions)."""

    shapes: tuple[tuple[int, int, int], ...]
    attention: tuple[int, int]
    copied: int  # bytes
    message: int  # bytes of the large all-gather
    each: float  # seconds for each thing timed
    heat: float  # seconds


GPU = Scale(
    shapes=tuple(
        (n, *io) for n in (2048, 8192, 16384) for io in ((4096, 4096), (14336, 4096), (4096, 14336), (1792, 8192))
    ),
    attention=(32, 8192), copied=2**30, message=2**28, each=0.6, heat=5.0,
)  # fmt: skip
CPU = Scale(
    shapes=tuple((n, *io) for n in (128, 512) for io in ((256, 256), (688, 256), (256, 688), (512, 512))),
    attention=(4, 512), copied=2**26, message=2**23, each=0.08, heat=0.2,
)  # fmt: skip


def time_call(call: Callable[[], Any], device: str, budget: float) -> float:
    """Return the seconds of a call, timed for `budget` seconds: the median on a GPU, the least on a CPU."""
    # A GPU's power slows it now and then; on a CPU others run, too, and only ever add.
    import torch
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    laps = timer.blocked_autorange(min_run_time=budget).times
    return statistics.median(laps) if device == "cuda" else min(laps)


def fit_products(
    chip: Chip, shapes: list[tuple[int, int, int]], seconds: list[float], k: Constants
) -> tuple[Constants, float]:
    """Fit the two constants of a product to these seconds; return them and the mean |log error| left."""
    # For each `start` the best share of peak is the median of what the rows need; the start with the least error wins.
    kind = "gemm_recent" if chip.recent else "gemm_older"
    m, n, depth = np.array(shapes, dtype=np.float64).T
    c, measured = alone(chip, len(shapes)), np.array(seconds)
    best, least = k, np.inf
    for start in STARTS:
        tried = k._replace(**{kind: 1.0, "start": float(start)})
        for _ in range(3):  # a product held by memory does not follow the share: once more with the share found
            off = np.log(measured / product(c, tried, (m, n, depth)))
            tried = tried._replace(**{kind: float(getattr(tried, kind) * np.exp(-np.median(off)))})
        error = float(np.mean(np.abs(np.log(product(c, tried, (m, n, depth)) / measured))))
        if error < least:
            best, least = tried, error
    return best, least


def time_products(
    shapes: tuple[tuple[int, int, int], ...], device: str, scale: Scale
) -> dict[tuple[int, int, int], float]:
    """Return {(m, n, depth): seconds} of the three products of each linear: output, input's gradient, weight's."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    out = {}
    for rows, outputs, inputs in shapes:
        x, w, dy = (
            torch.randn(s, device=device).to(dtype) for s in ((rows, inputs), (outputs, inputs), (rows, outputs))
        )
        out[rows, outputs, inputs] = time_call(partial(torch.matmul, x, w.T), device, scale.each / 3)
        out[rows, inputs, outputs] = time_call(partial(torch.matmul, dy, w), device, scale.each / 3)
        out[outputs, inputs, rows] = time_call(partial(torch.matmul, dy.T, x), device, scale.each / 3)
    return out


def copy_rate(device: str, scale: Scale) -> float:
    """Return the bytes/s, read and written, of a copy."""
    import torch

    source = torch.randn(scale.copied // 4, device=device)
    target = torch.empty_like(source)
    return 2 * scale.copied / time_call(lambda: target.copy_(source), device, scale.each)


def time_attention(device: str, scale: Scale) -> float:
    """Time forward and backward of causal attention, heads of 128 numbers, by the fastest of torch's fused kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attend

    heads, positions = scale.attention
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v, dy = (torch.randn(1, heads, positions, 128, device=device).to(dtype) for _ in range(4))
    q, k, v = (one.requires_grad_() for one in (q, k, v))

    def both() -> None:
        torch.autograd.grad(attend(q, k, v, is_causal=True), (q, k, v), dy)

    found = []
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)[: 2 if device == "cuda" else 1]:
        try:
            with sdpa_kernel(kernel):
                found.append(time_call(both, device, scale.each))
        except RuntimeError:  # not on this GPU or in this torch
            continue
    if not found:
        raise LabError("torch has no fused attention on this device: rates of attention cannot be measured")
    return min(found)


def fp8_rate(scale: Scale) -> float:
    """Return the FLOP/s of one large FP8 product, or 0 where the GPU has none."""
    import torch

    if torch.cuda.get_device_capability() < FP8_UNITS.least:
        return 0.0
    side, one = 8192, torch.ones((), device="cuda")
    a, b = (torch.randn(side, side, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))

    def call() -> Any:
        return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    try:
        return 2 * side**3 / time_call(call, "cuda", scale.each)
    except RuntimeError:
        return 0.0


def time_gather(group: Any, nbytes: int, rounds: int) -> float:
    """Return the median seconds of an all-gather whose result has about `nbytes`, the slowest rank's in each round."""
    import torch

    part = torch.randn(max(1, nbytes // 4 // group.size), device=group.device)
    out = torch.empty(part.numel() * group.size, device=group.device)
    wait = torch.cuda.synchronize if group.device.type == "cuda" else lambda: None
    laps = []
    for _ in range(3 + rounds):
        group.barrier()
        wait()
        begin = time.perf_counter()
        group.all_gather(part, out=out)
        wait()
        laps.append(time.perf_counter() - begin)
    slowest = group.all_reduce(torch.tensor(laps[3:], dtype=torch.float64, device=group.device), op="max")
    return float(slowest.median())


def measure_link(group: Any, message: int) -> tuple[float, float]:
    """Return GB/s of one direction a rank, and seconds of a ring's step: links.py's formulas turned round."""
    N = group.size
    small, large = time_gather(group, 4096, 20), time_gather(group, message, 8)
    return (N - 1) / N * message / max(large - small, 1e-9) / G, small / (N - 1)


def measure(device: str, say: Callable[[str], None] = print, scale: Scale | None = None) -> Machine:
    """Measure this machine. LabError: a device that is not there."""
    import torch

    from labkit.comm.ranks import run_ranks
    from labkit.record.hardware import cpu_model, memory_bytes

    cuda = device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise LabError("--calibrate cuda: torch sees no GPU here")
    scale = scale or (GPU if cuda else CPU)
    name = torch.cuda.get_device_name() if cuda else cpu_model() or "CPU"
    known = find_chip(name) if cuda else None
    say(f"{name}: {'about a minute' if cuda else 'some seconds'}.")
    ranks, link = torch.cuda.device_count() if cuda else 2, None
    if ranks > 1:
        link = run_ranks(measure_link, scale.message, size=ranks, backend="processes", timeout=120, device=device)[0]
    torch.manual_seed(1)

    rate = copy_rate(device, scale)
    side, dtype = (8192, torch.bfloat16) if cuda else (256, torch.float32)
    heat = torch.randn(side, side, device=device).to(dtype)
    time_call(lambda: heat @ heat, device, scale.heat)
    seconds = time_products(scale.shapes, device, scale)
    recent, sms, memory = False, torch.get_num_threads(), memory_bytes()[0]
    if cuda:
        about = torch.cuda.get_device_properties(0)
        recent, sms, memory = about.major >= 9, about.multi_processor_count, about.total_memory
    machine = Machine(
        name=name,
        measured=f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}, {'bfloat16' if cuda else 'float32'}",
        tflops=known.tflops if known else max(2 * m * n * d / s for (m, n, d), s in seconds.items()) / T,
        memory_gb=known.memory_gb if known else memory / (BOARD * GIB),
        hbm_gbs=rate / REACHED / G,
        sms=sms,
        recent=known.recent if known else recent,
        per_node=ranks,
        link_gbs=known.nvlink if known else link[0] if link else PCIE5,
    )
    chip = machine.chip()
    k, error = fit_products(chip, list(seconds), list(seconds.values()), constants())
    share = k.gemm_recent if chip.recent else k.gemm_older
    heads, positions = scale.attention
    flops = 7 * positions * positions * heads * 128  # as work.attention counts them: 2 forward, 5 backward, causal
    flash = flops / time_attention(device, scale) / (chip.tflops * T)
    generation = "recent" if chip.recent else "older"
    rates: dict[str, Any] = {f"gemm_{generation}": share, "start": k.start, f"flash_{generation}": flash}
    if link:
        rates |= {"wire": link[0] / machine.link_gbs, "alpha": link[1]}
    fp8 = fp8_rate(scale) / T / share if cuda else 0.0
    return machine.replace(fp8_tflops=fp8, product_error=error, rates=Rates(**rates))


def describe(machine: Machine) -> list[str]:
    """Describe in lines what was found, and what the planner takes without it."""
    known, k = machine.rates.model_dump(exclude_none=True), constants()
    lines = [
        f"peak {machine.tflops:.4g} TFLOP/s, FP8 {machine.fp8_tflops:.4g}; {machine.memory_gb:.4g} GB, copied at "
        f"{machine.hbm_gbs * REACHED:.4g} GB/s"
    ]
    lines += [f"{name:12s} {value:10.4g}   (without: {getattr(k, name):.4g})" for name, value in known.items()]
    lines += [f"products are {100 * machine.product_error:.0f} % off the formula on average"]
    if machine.product_error > NOISY:
        lines += ["that is more than a quiet machine leaves: end what else runs here, and measure again"]
    if "wire" not in known:
        lines += ["one GPU: the link is the datasheet's"]
    return [*lines, "the network between machines is --ib, or network_gbs in the file"]


def calibrate(out: Path | None = None, device: str | None = None, say: Callable[[str], None] = print) -> int:
    """Measure this machine, print what was found, write it into `out`; return 0."""
    import torch

    from labkit.record.files import explained, replace_file, writable

    if device not in (None, "cuda", "cpu"):
        raise LabError(f"--device is cuda or cpu, not '{device}'")
    out = out or DEFAULT
    writable(out.parent)
    machine = measure(device or ("cuda" if torch.cuda.is_available() else "cpu"), say)
    for line in describe(machine):
        say(line)
    with explained(out):
        replace_file(out, write_text(machine))
    say(f"written: {out}; plan with it: lab plan --gpu {out}")
    return 0
