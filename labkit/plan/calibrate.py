"""`lab plan --calibrate`: what this machine does, in the planner's own units, kept in a small file for `--gpu FILE`.

products     a decoder's shapes, forward and backward: the share of peak and the `start` with which `work.product`
             is least wrong, and the error that is left
attention    torch's fused kernel, causal, forward and backward
memory       a copy that no cache holds
link         all-gathers among this machine's ranks: one large, for the rate, and one small, for alpha
network      the same between machines, every rank with its like at once; under torchrun alone
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
from labkit.plan.machine import BOARD, GIB, alone, find_chip
from labkit.plan.machine_file import DEFAULT, Machine, Rates, write_text
from labkit.plan.wires import measure_links
from labkit.plan.work import FULL_POWER, REACHED, product
from labkit.precision.recipes import FP8_UNITS
from labkit.record.chips import PCIE5, Chip

T, G = 1e12, 1e9
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
    # A GPU's power slows it now and then; on a CPU others run, too, and only ever add. Calls are timed in bundles of at
    # least 2 ms, so that the clock's own cost is small.
    from labkit.record.measure import Stopwatch

    watch = Stopwatch(device)

    def bundle(n: int) -> float:
        watch.start()
        for _ in range(n):
            call()
        return watch.lap() / n

    bundle(1)
    n = max(1, int(0.002 / max(bundle(1), 1e-7)))
    laps: list[float] = []
    end = time.perf_counter() + budget
    while len(laps) < 3 or time.perf_counter() < end:
        laps.append(bundle(n))
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


def measure(device: str, say: Callable[[str], None] = print, scale: Scale | None = None) -> Machine | None:
    """Measure this machine; None on every rank of torchrun but the first. LabError: a device that is not there."""
    import torch

    from labkit.comm.ranks import is_first
    from labkit.record.hardware import cpu_model, memory_bytes

    cuda = device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise LabError("--calibrate cuda: torch sees no GPU here")
    scale = scale or (GPU if cuda else CPU)
    name = torch.cuda.get_device_name() if cuda else cpu_model() or "CPU"
    known = find_chip(name) if cuda else None
    if is_first():
        say(f"{name}: {'about a minute' if cuda else 'some seconds'}.")
    here, within, between = measure_links(device, scale.message)
    if not is_first():
        return None
    torch.manual_seed(1)

    rate = copy_rate(device, scale)
    side, dtype = (8192, torch.bfloat16) if cuda else (256, torch.float32)
    heat = torch.randn(side, side, device=device).to(dtype)
    end = time.perf_counter() + scale.heat
    while time.perf_counter() < end:
        time_call(lambda: heat @ heat, device, 0.1)
    seconds = time_products(scale.shapes, device, scale)
    shapes, times = list(seconds), list(seconds.values())
    best = max(2 * m * n * d / s for (m, n, d), s in seconds.items()) / T
    recent, sms, memory = False, torch.get_num_threads(), memory_bytes()[0]
    if cuda:
        about = torch.cuda.get_device_properties(0)
        recent, sms, memory = about.major >= 9, about.multi_processor_count, about.total_memory
    chip = known or Chip(best, 0, memory / (BOARD * GIB), 0, sms, 0, recent, within.gbs if within else PCIE5)
    chip = chip._replace(fp8_tflops=0.0, hbm=rate / REACHED, sms=sms, watts=FULL_POWER)
    recent, link_gbs = chip.recent, chip.nvlink
    k, error = fit_products(chip, shapes, times, constants())
    share = k.gemm_recent if recent else k.gemm_older
    heads, positions = scale.attention
    flops = 7 * positions * positions * heads * 128  # as work.attention counts them: 2 forward, 5 backward, causal
    flash = flops / time_attention(device, scale) / (chip.tflops * T)
    fp8 = fp8_rate(scale) / T / share if cuda else 0.0
    generation = "recent" if recent else "older"
    rates: dict[str, Any] = {f"gemm_{generation}": share, "start": k.start, f"flash_{generation}": flash}
    if within:
        rates |= {"wire": within.gbs / link_gbs, "alpha": within.alpha}
    if between:
        rates["network"] = 1.0  # what was measured is what arrives
    return Machine(
        name=name,
        measured=f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}, {'bfloat16' if cuda else 'float32'}",
        tflops=float(chip.tflops),
        fp8_tflops=float(fp8),
        memory_gb=float(chip.memory_gb),
        hbm_gbs=chip.hbm / G,
        sms=sms,
        recent=recent,
        per_node=here,
        link_gbs=float(link_gbs),
        network_gbs=between.gbs if between else None,
        product_error=error,
        rates=Rates(**rates),
    )


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
    if machine.network_gbs is None:
        lines += ["one machine: the network is --ib"]
    return lines


def calibrate(out: Path | None = None, device: str | None = None, say: Callable[[str], None] = print) -> int:
    """Measure this machine, print what was found, write it into `out`; return 0."""
    import torch

    from labkit.record.files import explained, replace_file, writable

    if device not in (None, "cuda", "cpu"):
        raise LabError(f"--device is cuda or cpu, not '{device}'")
    out = out or DEFAULT
    writable(out.parent)
    machine = measure(device or ("cuda" if torch.cuda.is_available() else "cpu"), say)
    if machine is not None:
        for line in describe(machine):
            say(line)
        with explained(out):
            replace_file(out, write_text(machine))
        say(f"written: {out}; plan with it: lab plan --gpu {out}")
    return 0
