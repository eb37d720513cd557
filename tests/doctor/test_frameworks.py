"""What the doctor says of torch, GPUs, Transformer Engine and torchao, on machines that are imagined."""

import sys
import warnings
from collections import namedtuple

import pytest

from labkit.doctor import frameworks
from labkit.doctor.findings import PROBES, SETUP, Check, exit_code, run_doctor, verdicts
from labkit.record import hardware, measure
from tests.doctor.found import fake, one

# ---- without torch


def test_a_machine_without_torch(tmp_path, monkeypatch):
    missing = "No module named 'torch'"
    fake(tmp_path, "torch", f"raise ModuleNotFoundError({missing!r}, name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    checks = run_doctor([p for p in PROBES if set(p.names) & {"torch", "gloo"}])
    assert missing in one(checks, "torch").detail and SETUP in one(checks, "torch").fix
    assert one(checks, "GPU").ok is None and one(checks, "NCCL").ok is None and one(checks, "FP8 hardware").ok is None
    assert one(checks, "gloo").ok is False and missing in one(checks, "gloo").detail
    assert exit_code(checks) == 1 and verdicts(checks)[0].missing[0] == "Python"  # not tried


# ---- torch and GPUs, imagined

Device = namedtuple("Device", "name major minor total_memory")
H200 = {"name": "NVIDIA H200", "driver": "580.82"}


class Number:
    """A stand-in for the tensors of the GPU probe."""

    def __init__(self, value):
        self.value = value

    def __matmul__(self, other):
        return self

    float = sum = lambda self: self

    def item(self):
        return self.value


@pytest.fixture
def imagined(monkeypatch):
    """The installed torch with answers of another machine; it must have all that is answered for."""

    def make(version="2.13.0+cu130", cuda="13.0", devices=(), listed=(), product=64.0**3, warning="", works=True):
        def is_available():
            if warning:
                warnings.warn(warning, stacklevel=1)
            return bool(devices)

        def ones(*shape, device, dtype=None):
            if isinstance(product, Exception):
                raise product
            return Number(product if len(shape) == 2 else 1.0)

        def init(*args, **kwargs):
            if not works:
                raise RuntimeError("NCCL error: unhandled system error")

        for name, answer in {
            "__version__": version,
            "ones": ones,
            "version.cuda": cuda,
            "cuda.is_available": is_available,
            "cuda.device_count": lambda: len(devices),
            "cuda.get_device_properties": lambda k: devices[k],
            "cuda.nccl.version": lambda: (2, 27, 3),
            "distributed.init_process_group": init,
            "distributed.all_reduce": lambda x: None,
        }.items():
            monkeypatch.setattr(f"torch.{name}", answer)
        monkeypatch.setattr(measure, "launch_us", lambda device: 4.25)
        monkeypatch.setattr(hardware, "gpus", lambda: list(listed))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return {check.name: check for check in frameworks.torch_and_gpu()}

    return make


def test_two_h200s(imagined):
    found = imagined(devices=[Device("NVIDIA H200", 9, 0, 150 * 2**30)] * 2, listed=[H200, H200])
    assert all(check.ok is True for check in found.values()) and set(found) == {"torch", "GPU", "FP8 hardware", "NCCL"}
    assert found["torch"].detail == "2.13.0+cu130, CUDA 13.0"
    said = "2 x NVIDIA H200, 150 GiB, compute capability 9.0, driver 580.82, 4.2 us a kernel launch"
    assert found["GPU"].detail == said
    assert found["NCCL"].detail == "2.27.3"


def gpu(major: int, minor: int) -> dict:
    return {"devices": [Device("some GPU", major, minor, 2**37)], "listed": [H200]}


MACHINES = [  # what is answered; whether the GPU, FP8 and NCCL are well; words of some finding or fix
    ({"version": "2.13.0+cpu", "cuda": None}, (None, None, None), "2.13.0+cpu, CPU build"),
    ({"cuda": None, "listed": [H200]}, (False, None, None), "TORCH_INDEX_URL"),
    ({"listed": [H200], "warning": "The NVIDIA driver on your system is too old"}, (False, None, None), "too old"),
    ({**gpu(9, 0), "product": RuntimeError("no kernel image")}, (False, None, None), "no kernel image"),
    ({**gpu(9, 0), "product": 63.0}, (False, None, None), "came out wrong"),
    ({**gpu(9, 0), "works": False}, (True, True, False), "RuntimeError: NCCL error"),
    *((gpu(*seen), (True, fp8, True), "{}.{}".format(*seen)) for seen, fp8 in (((8, 6), False), ((8, 9), True))),
]


@pytest.mark.parametrize("answers, well, words", MACHINES)
def test_what_a_gpu_can_do(imagined, answers, well, words):
    found = imagined(**answers)
    assert tuple(found[name].ok for name in ("GPU", "FP8 hardware", "NCCL")) == well
    assert any(words in check.detail + check.fix for check in found.values())


def test_hidden_gpus_are_shown(imagined, monkeypatch):
    imagined()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (gpu,) = [check for check in frameworks.torch_and_gpu() if check.name == "GPU"]
    assert gpu.ok is None and "CUDA_VISIBLE_DEVICES='' hides" in gpu.detail


@pytest.mark.parametrize(
    "version, ok, end",
    [
        *((version, True, ", CUDA 13.0") for version in ("2.11.0+cu130", "2.11.0a0+1a2b3c.nv26.1", "2.14.2")),
        *((version, False, "older than 2.11") for version in ("2.10.1", "unknown")),
        ("2.15.0", True, "newer than the tested 2.11 to below 2.15"),
    ],
)
def test_torch_versions(imagined, version, ok, end):
    check = imagined(version=version)["torch"]
    assert check.ok is ok and check.detail.startswith(version) and check.detail.endswith(end)


@pytest.mark.parametrize("error", [OSError("libtorch_cpu.so: cannot open"), SystemExit(1)])
def test_torch_that_does_not_import(imagined, monkeypatch, error):
    imagined(listed=[H200])

    def fails(name):
        raise error

    monkeypatch.setattr(frameworks.importlib, "import_module", fails)
    found = {check.name: check for check in frameworks.torch_and_gpu()}
    assert found["torch"].ok is False and type(error).__name__ in found["torch"].detail
    assert (found["GPU"].ok, found["GPU"].fix) == (False, SETUP)


# ---- Transformer Engine: why it does not import is the backend's (tests/precision/test_backends.py)


@pytest.fixture
def te(tmp_path, monkeypatch):
    """A transformer_engine package whose `pytorch` part is the given text; with or without a GPU in the machine."""

    def make(text: str, gpu: bool) -> Check:
        fake(tmp_path, "transformer_engine", "__version__ = '2.20.2'\n")
        fake(tmp_path / "transformer_engine", "pytorch", text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(hardware, "gpus", lambda: [H200] if gpu else [])
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
        try:
            (check,) = frameworks.transformer_engine()
        finally:
            for name in ("transformer_engine", "transformer_engine.pytorch"):
                sys.modules.pop(name, None)
        return check

    return make


WORKS = "autocast = Linear = checkpoint = 1\ndef is_fp8_available(return_reason): return {}"


@pytest.mark.parametrize(
    "text, gpu, ok, words",
    [
        (WORKS.format("True, ''"), True, True, "2.20.2"),
        (WORKS.format("False, 'needs cuBLAS 12.1.3'"), True, False, "2.20.2: Transformer Engine: needs cuBLAS 12.1.3"),
        (WORKS.format("True, ''"), False, None, "2.20.2, and no GPU for it"),
        ("raise OSError('libcuda.so.1: cannot open')", False, None, "no GPU for it: Transformer Engine does not impo"),
    ],
)
def test_te_is_what_the_backend_finds(te, text, gpu, ok, words):
    check = te(text, gpu)
    assert check.ok is ok and words in check.detail
    assert ok or (check.fix == frameworks.NEED_GPU) is not gpu


@pytest.mark.parametrize("path, word", [("fp32", "through FP32, rounded once"), ("native", "native")])
def test_bf16_products_are_tried_both_ways(monkeypatch, path, word):
    monkeypatch.setenv("LABKIT_BF16_PRODUCTS", path)
    (check,) = run_doctor([p for p in PROBES if p.names == ("BF16 products",)])
    assert check.ok is True and check.detail.startswith(f"{word}: LABKIT_BF16_PRODUCTS says so; natively one of 256")
    monkeypatch.setenv("LABKIT_BF16_PRODUCTS", "quick")
    (check,) = run_doctor([p for p in PROBES if p.names == ("BF16 products",)])
    assert check.ok is False and "'quick'" in check.detail
