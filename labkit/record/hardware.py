"""What this machine is, for a run record. psutil and NVML are imported late: the doctor answers without them."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any


def describe() -> dict:
    """This machine: processor, cores, memory, GPUs, operating system, Python; JSON-ready; None: unknown. Never raises."""
    # Records are shared, so there is no host name, user name, serial number or path in it. GPUs are read through NVML,
    # not CUDA: a process that has opened CUDA could no longer fork.
    import psutil

    return {
        "cpu": {
            "model": cpu_model(),
            "architecture": platform.machine(),
            "cores": psutil.cpu_count(logical=False),
            "usable_threads": usable_threads(),
        },
        "memory_bytes": memory_bytes()[0],
        "gpus": [{key: gpu[key] for key in ("name", "driver", "capability", "memory_bytes")} for gpu in gpus()],
        "os": operating_system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def cpu_model() -> str | None:
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string")
    found = re.search(r"^model name\s*:\s*(.+)$", read_system("/proc/cpuinfo"), re.M)
    if not found:  # Arm kernels give no name there; lscpu knows the part numbers
        found = re.search(r"^Model name:\s*(.+)$", _output("lscpu") or "", re.M)
    return re.sub(r"\s+", " ", found.group(1)).strip() if found else None


def usable_threads() -> int:
    """Hardware threads this process may use: affinity and the container's CPU quota counted in."""
    with suppress(AttributeError, OSError):  # not on macOS
        usable = len(os.sched_getaffinity(0))
        older = zip(_cgroups("cpu", v1="cpu.cfs_quota_us"), _cgroups("cpu", v1="cpu.cfs_period_us"))
        for said in (*_cgroups("cpu", v2="cpu.max"), *map(" ".join, older)):
            if quota := re.fullmatch(r"(\d+) (\d+)", said):
                usable = min(usable, -(-int(quota[1]) // int(quota[2])))
        return max(1, usable)
    return os.cpu_count() or 1


def memory_bytes() -> tuple[int, int]:
    """(memory that this process may use at most, how much of it is free): the machine's, or its container's limit."""
    import psutil

    machine, limits = psutil.virtual_memory(), _cgroups("memory", v2="memory.max", v1="memory.limit_in_bytes")
    total = min([machine.total, *(int(limit) for limit in limits if limit.isdigit())])
    return total, min(total, machine.available)


def _cgroups(controller: str, v2: str = "", v1: str = "") -> Iterator[str]:
    """What a file of this process's control group says, and of all groups above it: the least limit binds."""
    for line in read_system("/proc/self/cgroup").splitlines() or ["0::/", f"1:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        file, root = (v1, f"/sys/fs/cgroup/{controller}") if controllers else (v2, "/sys/fs/cgroup")
        if file and (not controllers or controller in controllers.split(",")):
            group = PurePosixPath(path)
            for place in (group, *group.parents):
                yield read_system(f"{root}{str(place).rstrip('/')}/{file}").strip()


def gpus() -> list[dict[str, Any]]:
    """The visible NVIDIA GPUs in the driver's order: index, uuid, name, driver, capability ("9.0"), memory_bytes."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or a container without it
        return []
    try:
        found = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:  # a card that has fallen off the bus
        return []
    finally:
        nvml.nvmlShutdown()
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


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    card, sliced = nvml.nvmlDeviceGetHandleByIndex(index), False
    with suppress(nvml.NVMLError):  # not supported: a card that cannot be sliced
        sliced = nvml.nvmlDeviceGetMigMode(card)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return {
        "index": index,
        "uuid": nvml.nvmlDeviceGetUUID(card),
        # A slice of the chip has another peak than the chip: let it have another name.
        "name": nvml.nvmlDeviceGetName(card) + (" MIG" if sliced else ""),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "capability": "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(card)),
        "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(card).total,
    }


def operating_system() -> str:
    """System and distribution, for example "Linux 6.8 (Ubuntu 24.04.1 LTS)"."""
    # Of the kernel only the number is kept: the rest of a release string can name a cloud or a person's build.
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


def _output(*command: str) -> str | None:
    """The command's standard output, or None if it is not there, fails or does not end in time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=20.0
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
