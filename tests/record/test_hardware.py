"""Peaks, MFU and the description of a machine."""

from __future__ import annotations

import getpass
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.record import hardware

# name as the driver prints it: dense bf16 and fp8 TFLOP/s, GB/s of NVLink one way. From the datasheets by hand:
# H100 SXM prints 1,979 and 3,958 "with sparsity", and NVLink 900 GB/s both ways.
FACTS = {
    "NVIDIA A100-SXM4-80GB": (312, None, 300),
    "NVIDIA A100-SXM4-40GB": (312, None, 300),
    "NVIDIA A100 80GB PCIe": (312, None, 300),
    "NVIDIA A100-PCIE-40GB": (312, None, 300),
    "NVIDIA H100 80GB HBM3": (989, 1979, 450),
    "NVIDIA H100 PCIe": (756, 1513, 300),
    "NVIDIA H200": (989, 1979, 450),
    "NVIDIA B200": (2250, 4500, 900),
    "NVIDIA L40S": (362, 733, None),
    "NVIDIA GeForce RTX 4090": (165.2, 330.3, None),
}


@pytest.mark.parametrize("name", FACTS)
def test_table_against_the_datasheets(name):
    gpu = hardware.find_gpu(name)
    scaled = gpu.bf16 / 1e12, gpu.fp8 and gpu.fp8 / 1e12, gpu.nvlink and gpu.nvlink / 1e9
    assert tuple(x and round(x, 6) for x in scaled) == FACTS[name]  # the same decimal numbers, up to binary rounding


def test_every_row_is_in_this_test():
    assert {hardware.find_gpu(name) for name in FACTS} == set(hardware.GPUS)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 80GB HBM3 MIG",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA L40",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H800",
        "Tesla T4",
        "AMD Instinct MI300X",
        "cpu",
        "",
    ],
)
def test_a_near_miss_is_unknown_not_a_guess(name):
    assert hardware.find_gpu(name) is None


# ---- this machine


def test_describe_is_json_and_private(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = hardware.describe()
    text = json.dumps(found)
    assert set(found) == {"cpu", "memory_bytes", "gpus", "os", "python"}
    assert found["cpu"]["usable_threads"] >= 1 and found["memory_bytes"] > 2**20
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))
    assert str(Path.cwd()) not in text and str(tmp_path) not in text
    words = set(text.replace('"', " ").replace(",", " ").split())
    assert not words & {socket.gethostname(), getpass.getuser()}
    assert "uuid" not in text and "index" not in text


def test_importing_it_leaves_torch_alone():
    code = (
        "import sys; from labkit.record import hardware; hardware.describe(); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """A stand-in `nvidia-smi` on PATH that prints the given text and ends with the given status."""

    def make(text: str, status: int = 0):
        program = tmp_path / "nvidia-smi"
        (tmp_path / "rows").write_text(text)
        program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path / 'rows'}\nexit {status}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


TWO = (
    "0, GPU-aaaa1111, NVIDIA H200, 580.82.07, 9.0, 143771, Disabled\n"
    "1, GPU-bbbb2222, NVIDIA L40S, 580.82.07, 8.9, 46068, [N/A]\n"
)


def test_gpus_from_nvidia_smi(nvidia_smi):
    nvidia_smi(TWO)
    assert hardware.describe()["gpus"] == [
        {"name": "NVIDIA H200", "driver": "580.82.07", "capability": "9.0", "memory_bytes": 143771 * 2**20},
        {"name": "NVIDIA L40S", "driver": "580.82.07", "capability": "8.9", "memory_bytes": 46068 * 2**20},
    ]


@pytest.mark.parametrize(
    "visible, names",
    [
        ("1", ["NVIDIA L40S"]),
        ("1,0", ["NVIDIA L40S", "NVIDIA H200"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["NVIDIA H200"]),
        ("GPU-bbbb", ["NVIDIA L40S"]),
    ],
)
def test_cuda_visible_devices_counts(nvidia_smi, monkeypatch, visible, names):
    nvidia_smi(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"] for gpu in hardware.gpus()] == names


def test_a_mig_slice_does_not_pass_for_the_whole_chip(nvidia_smi, monkeypatch):
    nvidia_smi("0, GPU-aaaa1111, NVIDIA H100 80GB HBM3, 550.54, 9.0, 81559, Enabled\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    (gpu,) = hardware.gpus()
    assert hardware.find_gpu(gpu["name"]) is None


@pytest.mark.parametrize(
    "text, status",
    [
        ("NVIDIA-SMI has failed because it could not reach the driver", 9),
        ("", 0),
        ("No devices were found\n", 0),
        ('Field "compute_cap" is not valid\n', 2),
    ],
)
def test_no_gpu_is_an_empty_list(nvidia_smi, text, status):
    nvidia_smi(text, status)
    assert hardware.gpus() == []


def test_a_hanging_nvidia_smi_is_given_up(nvidia_smi, tmp_path):
    nvidia_smi("")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    assert hardware.gpus(timeout=0.3) == []


FILES = {
    "/proc/cpuinfo": "".join(
        f"processor\t: {i}\nmodel name\t: Example  CPU @ 2.0GHz\nphysical id\t: {i // 4}\ncore id\t\t: {i % 2}\n\n"
        for i in range(8)
    ),
    "/proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\n",
    "/sys/fs/cgroup/memory.max": "max\n",
    "/sys/fs/cgroup/cpu.max": "max 100000\n",
}


@pytest.fixture
def linux(monkeypatch):
    """A Linux machine made of the texts in FILES, changed as given."""

    def make(**changes):
        files = {**FILES, **{"/sys/fs/cgroup/" + key.replace("_", "."): text for key, text in changes.items()}}
        monkeypatch.setattr(hardware, "read_system", lambda path: files.get(path, ""))
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    return make


def test_cores_are_not_hyperthreads(linux):
    linux()
    # 8 threads on 2 sockets; core ids 0 and 1 on each: 4 cores.
    assert (hardware.physical_cores(), hardware.usable_threads()) == (4, 8)
    assert hardware.cpu_model() == "Example CPU @ 2.0GHz"


def test_a_containers_limits_count(linux):
    linux(cpu_max="250000 100000\n", memory_max="4294967296\n")
    assert hardware.usable_threads() == 3  # 2.5 processors: three threads can be busy
    assert hardware.memory_bytes() == 4 * 2**30


def test_without_a_container_the_machine_counts(linux):
    linux()
    assert hardware.memory_bytes() == 16_000_000 * 1024


def test_kernel_builds_stay_private(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.release", lambda: "6.8.0-45-ada-laptop")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"PRETTY_NAME": "Ubuntu 24.04.1 LTS"})
    assert hardware.operating_system() == "Linux 6.8.0 (Ubuntu 24.04.1 LTS)"
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert hardware.operating_system() == "Linux 5.15.167.4 (Ubuntu 24.04.1 LTS), WSL"
