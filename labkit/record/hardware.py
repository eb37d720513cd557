"""Hardware facts: what a GPU could do at most (for MFU), and what this machine is (for a run record).

*Peaks.* All figures are **dense**. A datasheet prints "with sparsity" for tensor cores: twice what a dense matrix
product can reach, so half of the printed figure stands here. FP32 accumulation, as training needs it, is assumed:
GeForce chips run half as fast with it as with FP16 accumulation. `None` means that the chip has no such units (A100: no
FP8).

*Links.* A datasheet adds both directions up ("NVLink 900 GB/s"). Here every link speed is **one direction**, because
that is what a ring uses and what busbw is compared with: NVLink 450 GB/s on an H100.

*Names.* A GPU is looked up by its full name, as `torch.cuda.get_device_name()` and `nvidia-smi` print it. A near miss
is a miss: an "H100 NVL", an "RTX 4090 Laptop GPU" or a MIG slice has another peak, and a wrong peak makes a wrong MFU.
Unknown is said in words: "peak unknown, MFU not given".
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

T, G = 1e12, 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU model. Peaks in FLOP/s, dense; `nvlink` in bytes/s, one direction, None without it."""

    pattern: str  # the whole device name must match it
    bf16: float
    fp8: float | None
    nvlink: float | None


GPUS = (
    # NVIDIA A100 Tensor Core GPU datasheet
    Gpu(r"A100-SXM4-[48]0GB", 312 * T, None, 300 * G),
    Gpu(r"A100-PCIE-40GB|A100[ -]80GB[ -]PCIe", 312 * T, None, 300 * G),
    # NVIDIA H100 and H200 Tensor Core GPU datasheets. NVLink on PCIe cards is a bridge between two of them.
    Gpu(r"H100 80GB HBM3|H200", 989 * T, 1979 * T, 450 * G),
    Gpu(r"H100 PCIe", 756 * T, 1513 * T, 300 * G),
    # NVIDIA Blackwell datasheet, HGX B200 per GPU
    Gpu(r"B200", 2250 * T, 4500 * T, 900 * G),
    # NVIDIA L40S datasheet
    Gpu(r"L40S", 362 * T, 733 * T, None),
    # NVIDIA Ada GPU architecture whitepaper, appendix A (FP32 accumulate)
    Gpu(r"GeForce RTX 4090", 165.2 * T, 330.3 * T, None),
)


def find_gpu(name: str) -> Gpu | None:
    """The table's row for a device name such as "NVIDIA H100 80GB HBM3", or None if the model is not in the table."""
    bare = re.sub(r"^NVIDIA\s+", "", name.strip())
    return next((gpu for gpu in GPUS if re.fullmatch(gpu.pattern, bare, re.I)), None)


def describe() -> dict:
    """This machine, for a run record: processor, cores, memory, GPUs, operating system, Python. JSON-ready.

    Records are shared, so there is no host name, user name, serial number or path in it. Package versions and the
    commit are the record's own (`labkit.record.run.versions`). Never raises; what cannot be found out is None. It asks
    `nvidia-smi`, not CUDA: a process that has opened CUDA could no longer fork."""
    return {
        "cpu": {
            "model": cpu_model(),
            "architecture": platform.machine(),
            "cores": physical_cores(),
            "usable_threads": usable_threads(),
        },
        "memory_bytes": memory_bytes(),
        "gpus": [{key: gpu[key] for key in ("name", "driver", "capability", "memory_bytes")} for gpu in gpus()],
        "os": operating_system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def cpu_model() -> str | None:
    """The processor's marketing name, or None."""
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string")
    found = re.search(r"^model name\s*:\s*(.+)$", read_system("/proc/cpuinfo"), re.M)
    if not found:  # Arm kernels give no name there; lscpu knows the part numbers
        found = re.search(r"^Model name:\s*(.+)$", _output("lscpu") or "", re.M)
    return re.sub(r"\s+", " ", found.group(1)).strip() if found else None


def physical_cores() -> int | None:
    """Processor cores, hyper-threads not counted; None if the system does not say."""
    if sys.platform == "darwin":
        return _int(sysctl("hw.physicalcpu"))
    cores, socket = set(), "0"
    for key, value in re.findall(r"^(physical id|core id)\s*:\s*(\d+)$", read_system("/proc/cpuinfo"), re.M):
        if key == "physical id":
            socket = value
        else:
            cores.add((socket, value))
    return len(cores) or None


def usable_threads() -> int:
    """Hardware threads this process may use: affinity and the container's CPU quota counted in."""
    with suppress(AttributeError, OSError):  # not on macOS
        usable = len(os.sched_getaffinity(0))
        quota = re.fullmatch(r"(\d+) (\d+)", read_system("/sys/fs/cgroup/cpu.max").strip())
        return max(1, min(usable, -(-int(quota[1]) // int(quota[2])))) if quota else usable
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Main memory that this process may use at most: the machine's, or the container's limit if that is less."""
    if sys.platform == "darwin":
        return _int(sysctl("hw.memsize"))
    total = re.search(r"^MemTotal:\s*(\d+) kB", read_system("/proc/meminfo"), re.M)
    limits = [int(total[1]) * 1024] if total else []
    limits += [int(text) for text in [read_system("/sys/fs/cgroup/memory.max").strip()] if text.isdigit()]
    return min(limits, default=None)


def gpus(timeout: float = 20.0) -> list[dict]:
    """The NVIDIA GPUs that this process may use (CUDA_VISIBLE_DEVICES counted in), in nvidia-smi's order: index, name,
    driver, capability ("9.0"), memory_bytes. Empty if there is none or nvidia-smi does not answer within
    `timeout` seconds."""
    asked = "index,uuid,name,driver_version,compute_cap,memory.total,mig.mode.current"
    text = _output("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits", timeout=timeout)
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    found: list[dict[str, Any]] = [
        {
            "index": int(row[0]),
            "uuid": row[1],
            "driver": row[3],
            # A slice of the chip has another peak than the chip: let it have another name.
            "name": row[2] + (" MIG" if row[6] == "Enabled" else ""),
            "capability": row[4] if re.fullmatch(r"\d+\.\d+", row[4]) else None,
            "memory_bytes": int(row[5]) * 2**20 if row[5].isdigit() else None,
        }
        for row in rows
        if len(row) == 7 and row[0].isdigit()
    ]
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return found
    chosen = []
    for token in map(str.strip, visible.split(",")):
        named = (
            gpu
            for gpu in found
            if token == str(gpu["index"])
            or (len(token) > 4 and gpu["uuid"].startswith(token))
            or (token.startswith("MIG-") and gpu["name"].endswith(" MIG"))
        )
        if (gpu := next(named, None)) is None:
            break  # CUDA stops at the first name that it does not know
        chosen.append(gpu)
    return chosen


def operating_system() -> str:
    """System and distribution, for example "Linux 6.8 (Ubuntu 24.04.1 LTS)". Of the kernel only the number is kept: the
    rest of a release string can name a cloud or a person's build."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    release = platform.release()
    number = re.match(r"\d+(\.\d+)*", release)
    text = f"{platform.system()} {number.group() if number else ''}".strip()
    with suppress(OSError, AttributeError):
        text += f" ({platform.freedesktop_os_release()['PRETTY_NAME']})"
    return text + (", WSL" if "microsoft" in release.lower() else "")


def read_system(path: str) -> str:
    """The text of a file of the kernel's (/proc, /sys), or "" if it is not there."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str | None:
    """What macOS says of itself under this name, or None."""
    return _output("sysctl", "-n", name)


def _output(*command: str, timeout: float = 20.0) -> str | None:
    """The command's standard output, or None if it is not there, fails or does not end in time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _int(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None
