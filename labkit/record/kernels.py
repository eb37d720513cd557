"""Where each millisecond of a step goes on the device: torch.profiler's kernels and copies, by class.

Every moment from the first begin to the last end belongs to exactly one class, so the classes add up to that span:

    no kernel runs                              idle
    only communication runs                     communication (exposed: it costs time)
    communication and computing run together    the computing's class; beside it the communication as "hidden"
    several computing kernels run               shared equally among them
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

COMPUTING = ("GEMM bf16", "GEMM fp8", "quantize/cast", "attention", "norm and elementwise", "optimizer")
CLASSES = (*COMPUTING, "communication", "other", "idle")

# First match wins. Communication comes before everything, attention before GEMM ("flash" kernels are called gemm
# inside), FP8 before bf16. Not "mm" alone: it is in "record_param_comms" too.
PATTERNS = {
    "communication": r"nccl|all_?gather|reduce_?scatter|all_?reduce|chunk_cat|split_with_sizes_copy|nvshmem|symm_mem",
    "attention": r"flash|fmha|sdpa|attention|attn_|dot_do_o|convert_dq",  # the last two: around cuDNN's backward
    "optimizer": r"adam|multi_tensor|lpnorm|foreach|sgd",
    # cuBLAS writes the operands' types behind "nvjet_": q is E4M3, r is E5M2, t is BF16, h is FP16.
    "GEMM fp8": r"nvjet_(?:sm\d+_)?[qr][qr]|(?:gemm|device_kernel|cutlass).*(?:e4m3|e5m2|float8|fp8)"
    r"|(?:e4m3|e5m2|float8|fp8|qgmma).*gemm",
    # torch's compiler names a kernel by what it fused: a cast to FP8 clamps, the search for a scale takes abs and max.
    # CUTLASS spells its templates out, swizzled layouts and all: that is no reason to call a product a cast.
    "quantize/cast": r"^(?!triton)(?!.*GemmUniversal).*(?:quantize|cast_|_cast|transpose|amax|compute_scale|update_fp8"
    r"|fp8|float8|e4m3|e5m2|swizzle)|triton.*(?:clamp|abs_|amax|scaled_mm)",
    "GEMM bf16": r"nvjet|gemm|cublas|wgmma|xmma|triton_tem_\w*mm|cutlass",
    "norm and elementwise": r"elementwise|triton|norm|softmax|swiglu|silu|reduce|copy|memcpy|memset|fill|cat|embedding"
    r"|index|scatter|gather|sort|radix|compute_grad_weight|nll|loss|arange|gated|act|rope|cub::|scan|unique|compare",
}

# What users and libraries write on the device's time line beside the kernels.
_MARKS = re.compile(
    r"ProfilerStep|nccl:|FSDP::|Optimizer\.|## |autograd::|c10d::|record_param_comms|transformer_engine\."
    r"|Activity Buffer|(?:Context|Stream|Event) Sync|Stream Wait|Torch-Compiled Region"
)


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy on the device; microseconds from any common zero."""

    name: str
    begin: float
    end: float


@dataclass
class Breakdown:
    """Of one step. `classes_ms` add up to `span_ms`; `top` are the longest kernels: {"name", "class", "ms", "calls"};
    `evidence`: what ran on the device for certain."""

    span_ms: float = 0.0
    classes_ms: dict[str, float] = field(default_factory=dict)
    hidden_communication_ms: float = 0.0
    steps: int = 0
    top: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, bool] = field(default_factory=dict)


def classify(name: str) -> str:
    """The class of a kernel by its name; "other" if no pattern fits."""
    return next((kind for kind, pattern in PATTERNS.items() if re.search(pattern, name, re.I)), "other")


def breakdown(kernels: Iterable[Kernel], steps: int = 1, top: int = 24) -> Breakdown:
    """Split the time of `steps` steps among the classes. ValueError: no step."""
    if steps < 1:
        raise ValueError(f"a breakdown needs at least one step, not {steps}")
    kernels = [k for k in kernels if k.end > k.begin]
    per_ms = 1e-3 / steps  # microseconds of all steps -> milliseconds of one
    kinds = {name: classify(name) for name in {k.name for k in kernels}}
    changes = [(k.begin, 1, kinds[k.name]) for k in kernels] + [(k.end, -1, kinds[k.name]) for k in kernels]
    changes.sort(key=lambda change: change[:2])
    times, running, hidden = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0), 0.0
    at = first = changes[0][0] if changes else 0.0
    for time, change, kind in changes:
        piece = time - at
        if piece > 0:
            computing = {k: n for k, n in running.items() if n and k != "communication"}
            if computing:
                for k, n in computing.items():
                    times[k] += piece * n / sum(computing.values())
                hidden += piece if running["communication"] else 0.0
            else:
                times["communication" if running["communication"] else "idle"] += piece
            at = time
        running[kind] += change
    names: dict[str, list[float]] = {}
    for kernel in kernels:
        names.setdefault(kernel.name, []).append(kernel.end - kernel.begin)
    longest = [
        {"name": name[:160], "class": kinds[name], "ms": sum(spent) * per_ms, "calls": len(spent) / steps}
        for name, spent in sorted(names.items(), key=lambda item: -sum(item[1]))[:top]
    ]
    classes = {kind: time * per_ms for kind, time in times.items()}
    proofs = {"fp8_gemm": "GEMM fp8", "bf16_gemm": "GEMM bf16", "quantize": "quantize/cast"}
    evidence = {name: classes[kind] > 0 for name, kind in proofs.items()}
    return Breakdown((at - first) * per_ms, classes, hidden * per_ms, steps, longest, evidence)


def device_kernels(profiler) -> list[Kernel]:
    """The kernels and copies that a finished torch.profiler.profile saw on CUDA devices; empty on a CPU."""
    from torch.autograd import DeviceType

    out = []  # of the raw trace: the profiler's tables count a kernel under each host operation above it
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() != DeviceType.CUDA:
            continue
        name, begin, length = event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3
        if length > 0 and not _MARKS.match(name):
            out.append(Kernel(name, begin, begin + length))
    return out
