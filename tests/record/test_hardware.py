"""The description of a machine, with NVML's and the kernel's answers made up."""

import getpass
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from labkit.record import hardware
from labkit.record.chips import find_gpu


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


def card(index, uuid, name, capability, memory, mig=None):
    return SimpleNamespace(index=index, uuid=uuid, name=name, capability=capability, total=memory, mig=mig)


H200 = card(0, "GPU-aaaa1111", "NVIDIA H200", (9, 0), 150754820096, mig=0)
L40S = card(1, "GPU-bbbb2222", "NVIDIA L40S", (8, 9), 48305799168)


@pytest.fixture
def cards(monkeypatch):
    """NVML with these cards. Its functions are put in the place of the real ones, so each must be there."""

    def make(*cards):
        def mig(card):
            if card.mig is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return card.mig, card.mig

        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(cards),
            "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
            "nvmlSystemGetDriverVersion": lambda: "580.82.07",
            "nvmlDeviceGetUUID": lambda card: card.uuid,
            "nvmlDeviceGetName": lambda card: card.name,
            "nvmlDeviceGetCudaComputeCapability": lambda card: card.capability,
            "nvmlDeviceGetMemoryInfo": lambda card: card,
            "nvmlDeviceGetMigMode": mig,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def test_gpus_from_the_driver(cards):
    cards(H200, L40S)
    assert hardware.describe()["gpus"] == [
        {"name": "NVIDIA H200", "driver": "580.82.07", "capability": "9.0", "memory_bytes": 150754820096},
        {"name": "NVIDIA L40S", "driver": "580.82.07", "capability": "8.9", "memory_bytes": 48305799168},
    ]


@pytest.mark.parametrize(
    "visible, names",
    [("1", "L40S"), ("1,0", "L40S H200"), ("", ""), ("-1", ""), ("0,7,1", "H200"), ("GPU-bbbb", "L40S")],
)
def test_cuda_visible_devices_counts(cards, monkeypatch, visible, names):
    cards(H200, L40S)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"].removeprefix("NVIDIA ") for gpu in hardware.gpus()] == names.split()


def test_a_mig_slice_does_not_pass_for_the_whole_chip(cards, monkeypatch):
    cards(card(0, "GPU-aaaa1111", "NVIDIA H100 80GB HBM3", (9, 0), 2**36, mig=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    (gpu,) = hardware.gpus()
    assert find_gpu(gpu["name"]) is None


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_does_not_answer_is_no_gpu(cards, monkeypatch, call):
    cards(H200)

    def fails(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, call, fails)
    assert hardware.gpus() == []


def test_a_containers_limits_count_where_there_are_any(monkeypatch):
    """A machine of 8 threads and 16 GB, 9 of them free."""
    root, texts = "/sys/fs/cgroup", {}
    monkeypatch.setattr(hardware, "read_system", lambda path: texts.get(path, ""))
    memory = SimpleNamespace(total=16 * 10**9, available=9 * 10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for none in ({}, {f"{root}/cpu.max": "max 100000\n", f"{root}/memory.max": "max\n"}):
        texts = none
        assert (hardware.usable_threads(), hardware.memory_bytes()) == (8, (16 * 10**9, 9 * 10**9))
    texts = {f"{root}/cpu.max": "250000 100000\n", f"{root}/memory.max": "4294967296\n"}
    assert hardware.usable_threads() == 3  # 2.5 processors: three threads can be busy
    assert hardware.memory_bytes() == (2**32, 2**32)


def test_a_processors_name_is_on_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    text = "processor\t: 0\nmodel name\t: Example  CPU @ 2.0GHz\nprocessor\t: 1\nmodel name\t: Example  CPU @ 2.0GHz\n"
    monkeypatch.setattr(hardware, "read_system", lambda path: text if path == "/proc/cpuinfo" else "")
    assert hardware.cpu_model() == "Example CPU @ 2.0GHz"


def test_kernel_builds_stay_private(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.release", lambda: "6.8.0-45-ada-laptop")
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"PRETTY_NAME": "Ubuntu 24.04.1 LTS"})
    assert hardware.operating_system() == "Linux 6.8.0 (Ubuntu 24.04.1 LTS)"
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert hardware.operating_system() == "Linux 5.15.167.4 (Ubuntu 24.04.1 LTS), WSL"


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_limit_of_all_groups_above_binds(monkeypatch, version):
    """SLURM's and systemd's limits stand in nested groups, version 1 beside version 2."""
    root = "/sys/fs/cgroup"
    if version == 2:
        texts = {"/proc/self/cgroup": "0::/slurm/job_7/step_0\n", f"{root}/slurm/job_7/memory.max": "1073741824\n"}
        texts |= {f"{root}/slurm/job_7/step_0/memory.max": "max\n", f"{root}/slurm/cpu.max": "100000 100000\n"}
    else:
        texts = {"/proc/self/cgroup": "5:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm/job_7\n0::/\n"}
        texts |= {f"{root}/memory/slurm/memory.limit_in_bytes": "1073741824\n"}
        texts |= {f"{root}/cpu/slurm/cpu.cfs_quota_us": "100000\n", f"{root}/cpu/slurm/cpu.cfs_period_us": "100000\n"}
    monkeypatch.setattr(hardware, "read_system", lambda path: texts.get(path, ""))
    assert hardware.memory_bytes()[0] == 2**30 and hardware.usable_threads() == 1
