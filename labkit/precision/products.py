"""Which way a BF16 product goes on a CPU: torch's own kernel, or through FP32, y = round(a.float() @ b.float()).

It takes hold at torch's dispatcher, below autograd, autocast, FSDP2 and torch.compile: the CPU's `mm`, `addmm`, `bmm`
and `baddbmm` depend on their operands' type, for the whole process. FP16 goes the same way where requested
(`use(half=True)`). LABKIT_BF16_PRODUCTS=fp32 or =native, or oneDNN's ONEDNN_MAX_CPU_ISA=AVX2, decides.
"""

import os
import platform
import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.errors import LabError
from labkit.record.hardware import read_system, sysctl

VARIABLE = "LABKIT_BF16_PRODUCTS"
NATIVE, FP32 = "native", "fp32"
INSTRUCTIONS = {"x86": ("avx512_bf16", "amx_bf16"), "ARM": ("bf16",)}  # one of them is enough; Linux's names
LIMIT = "ONEDNN_MAX_CPU_ISA"  # what oneDNN may use
OPERATORS = ("mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Products:
    """Which `path` BF16 products take on the CPU, NATIVE or FP32, and `why`."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{'through FP32, rounded once' if self.path == FP32 else 'native'}: {self.why}"


def this_cpu() -> Products:
    """The path that this machine's products should take. LabError: the variable names one that does not exist."""
    mac = platform.system() == "Darwin"
    return decide(
        platform.machine(),
        "Features: bf16" if mac and sysctl("hw.optional.arm.FEAT_BF16") == "1" else read_system("/proc/cpuinfo"),
        onednn=torch.backends.mkldnn.is_available(),
        environment=os.environ,
    )


def decide(machine: str, cpuinfo: str, *, onednn: bool, environment: Any) -> Products:
    """The path, from platform.machine(), the text of /proc/cpuinfo, and whether this torch has oneDNN; unknown: FP32."""
    if requested := environment.get(VARIABLE):
        if requested not in (NATIVE, FP32):
            raise LabError(f"{VARIABLE} takes {FP32} or {NATIVE}, not '{requested}'")
        return Products(requested, f"{VARIABLE} says so")
    kind = "ARM" if machine.lower() in ("aarch64", "arm64") else "x86"
    cores = [set(line.split()) for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.M)]
    have = set.intersection(*cores) if cores else set()  # a process may run on any core
    found = [name for name in INSTRUCTIONS[kind] if name in have]
    if not found:
        return Products(FP32, f"this CPU has no {' or '.join(INSTRUCTIONS[kind])}")
    if not onednn:
        return Products(FP32, f"this CPU has {found[0]}, but this torch has no oneDNN, which would use it")
    limit = environment.get(LIMIT, "")
    if kind == "x86" and limit and not re.search(r"BF16|FP16|AMX|AVX10|DEFAULT|ALL", limit.upper()):
        return Products(FP32, f"this CPU has {found[0]}, but oneDNN is held to {limit}")
    return Products(NATIVE, f"this CPU has {', '.join(found)}")


class Switch:
    """The process's one switch. `now`: the path in force, None before the first `use`."""

    def __init__(self) -> None:
        self.now: Products | None = None
        self.half = False  # FP16 products too?
        self.library: torch.library.Library | None = None  # its kernels go when it does
        self.lock = threading.Lock()  # ranks may be threads

    def use(self, wanted: Products | None = None, *, half: bool = False) -> Products:
        """BF16 products of this process take this path from now on (default: this machine's); returns it. half: FP16's."""
        with self.lock:
            self.now, self.half = wanted or this_cpu(), self.half or half
            if (self.now.path == FP32 or self.half) and self.library is None:
                self.library = self._install()
            return self.now

    def _install(self) -> torch.library.Library:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says, once, that kernels are replaced; here they are meant to be
            for name in OPERATORS:
                native = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
                into = torch.library.get_kernel(f"aten::{name}.out", "CPU").call_boxed
                library.impl(name, self._returning(native), "CPU", with_keyset=True)
                library.impl(f"{name}.out", self._writing(native, into), "CPU", with_keyset=True)
        return library

    def _returning(self, native: Callable) -> Callable:
        def product(keys: Any, *operands: Any, **factors: Any) -> Tensor:
            if not self._takes(operands):
                return native(keys, *operands, **factors)
            return native(keys, *map(_widened, operands), **factors).to(operands[0].dtype)

        return product

    def _writing(self, native: Callable, into: Callable) -> Callable:
        def product(keys: Any, *operands: Any, out: Tensor, **factors: Any) -> Tensor:
            if not self._takes((*operands, out)):
                return into(keys, *operands, out=out, **factors)
            y = native(keys, *map(_widened, operands), **factors)
            return out.resize_(y.shape).copy_(y)

        return product

    def _takes(self, operands: tuple[Any, ...]) -> bool:
        """Through FP32? Only where all are BF16, or all FP16; mixed types are torch's to refuse."""
        through = {torch.bfloat16: self.now is not None and self.now.path == FP32, torch.float16: self.half}
        types = {x.dtype for x in operands if isinstance(x, Tensor)}
        return len(types) == 1 and through.get(types.pop(), False)


def _widened(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) else x


SWITCH = Switch()
use = SWITCH.use
