"""What the doctor says of torch, GPUs, Transformer Engine and torchao, on machines that are imagined."""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections import namedtuple

import pytest

from labkit.doctor import frameworks
from labkit.doctor.findings import PROBES, Check, exit_code, run_doctor, verdicts
from labkit.record import hardware
from tests.doctor.found import fake, one

# ---- without torch


def test_a_machine_without_torch(tmp_path, monkeypatch):
    fake(tmp_path, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    checks = run_doctor([p for p in PROBES if set(p.names) & {"torch", "gloo"}])
    assert one(checks, "torch") == Check("torch", False, "not installed", "run `make setup`")
    assert one(checks, "GPU").ok is None and one(checks, "NCCL").ok is None and one(checks, "FP8 hardware").ok is None
    assert one(checks, "gloo").ok is False and "comes with torch" in one(checks, "gloo").detail
    assert exit_code(checks) == 1
    assert verdicts(checks)[0].sentence.startswith("no, because of Python (not tried)")


# ---- torch and GPUs, imagined

Device = namedtuple("Device", "name major minor total_memory")
H200 = {
    "index": 0,
    "uuid": "GPU-1",
    "name": "NVIDIA H200",
    "driver": "580.82",
    "capability": "9.0",
    "memory_bytes": 2**37,
}


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
    """A torch of the given version that sees the given devices, and an nvidia-smi that lists GPUs."""

    def make(
        version="2.13.0+cu130", cuda="13.0", devices=(), listed=(), product=64.0**3, warning="", nccl=True, works=True
    ):
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

        torch = types.ModuleType("torch")
        torch.__version__, torch.version, torch.ones = version, types.SimpleNamespace(cuda=cuda), ones
        torch.bfloat16, torch.device = "bfloat16", str
        torch.cuda = types.SimpleNamespace(
            is_available=is_available,
            device_count=lambda: len(devices),
            get_device_properties=lambda k: devices[k],
            nccl=types.SimpleNamespace(version=lambda: (2, 27, 3)),
        )
        torch.distributed = types.ModuleType("torch.distributed")
        vars(torch.distributed).update(
            is_nccl_available=lambda: nccl, HashStore=object, init_process_group=init, all_reduce=lambda x: None
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
        monkeypatch.setattr(hardware, "gpus", lambda timeout=0: list(listed))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return {check.name: check for check in frameworks.torch_and_gpu()}

    return make


def test_two_h200s(imagined):
    found = imagined(devices=[Device("NVIDIA H200", 9, 0, 150 * 2**30)] * 2, listed=[H200, H200])
    assert all(check.ok is True for check in found.values()) and set(found) == {"torch", "GPU", "FP8 hardware", "NCCL"}
    assert found["torch"].detail == "2.13.0+cu130, CUDA 13.0"
    assert found["GPU"].detail == "2 x NVIDIA H200, 150 GiB, compute capability 9.0, driver 580.82"
    assert found["NCCL"].detail == "2.27.3"


@pytest.mark.parametrize("major, minor, ok", [(8, 0, False), (8, 6, False), (8, 9, True), (9, 0, True), (10, 0, True)])
def test_fp8_needs_ada_or_newer(imagined, major, minor, ok):
    found = imagined(devices=[Device("some GPU", major, minor, 2**35)])
    assert found["GPU"].ok is True and found["FP8 hardware"].ok is ok
    assert f"{major}.{minor}" in found["FP8 hardware"].detail


def test_the_oldest_of_several_gpus_counts(imagined):
    assert imagined(devices=[Device("a", 9, 0, 1), Device("b", 8, 0, 1)])["FP8 hardware"].ok is False


def test_no_gpu_is_no_failure(imagined):
    found = imagined(version="2.13.0+cpu", cuda=None)
    assert found["torch"] == Check("torch", True, "2.13.0+cpu, CPU build")
    assert [found[name].ok for name in ("GPU", "FP8 hardware", "NCCL")] == [None, None, None]


def test_a_cpu_build_on_a_gpu_machine(imagined):
    found = imagined(cuda=None, listed=[H200])
    assert found["GPU"].ok is False and "CPU build" in found["GPU"].detail and "TORCH_INDEX_URL" in found["GPU"].fix


def test_an_old_driver(imagined):
    found = imagined(listed=[H200], warning="The NVIDIA driver on your system is too old (found version 12020).")
    assert found["GPU"].ok is False and "too old" in found["GPU"].detail and "CUDA 13.0" in found["GPU"].fix


@pytest.mark.parametrize(
    "product, words", [(RuntimeError("no kernel image is available"), "no kernel image"), (63.0, "came out wrong")]
)
def test_a_gpu_that_does_not_compute(imagined, product, words):
    found = imagined(devices=[Device("NVIDIA H200", 9, 0, 2**37)], listed=[H200], product=product)
    assert found["GPU"].ok is False and words in found["GPU"].detail
    assert found["FP8 hardware"].ok is None and found["NCCL"].ok is None


def test_hidden_gpus_are_told(imagined, monkeypatch):
    imagined()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (gpu,) = [check for check in frameworks.torch_and_gpu() if check.name == "GPU"]
    assert gpu.ok is None and "CUDA_VISIBLE_DEVICES='' hides" in gpu.detail


@pytest.mark.parametrize(
    "arguments, words", [({"nccl": False}, "this torch has none"), ({"works": False}, "RuntimeError: NCCL error")]
)
def test_nccl_that_does_not_run(imagined, arguments, words):
    found = imagined(devices=[Device("NVIDIA H200", 9, 0, 2**37)], **arguments)
    assert found["GPU"].ok is True and found["NCCL"].ok is False and words in found["NCCL"].detail


@pytest.mark.parametrize(
    "version, ok, words",
    [
        ("2.10.1", False, "older than 2.11"),
        ("2.11.0+cu130", True, ""),
        ("2.11.0a0+1a2b3c.nv26.1", True, ""),
        ("2.14.2", True, ""),
        ("2.15.0", True, "newer than the tested"),
        ("unknown", False, "older"),
    ],
)
def test_torch_versions(imagined, version, ok, words):
    check = imagined(version=version)["torch"]
    assert check.ok is ok and words in check.detail and ("newer" in check.detail) == ("newer" in words)


@pytest.mark.parametrize("error", [OSError("libtorch_cpu.so: cannot open"), ImportError("numpy.core"), SystemExit(1)])
def test_torch_that_does_not_import(imagined, monkeypatch, error):
    imagined(listed=[H200])

    def fails(name):
        raise error

    monkeypatch.setattr(frameworks.importlib, "import_module", fails)
    found = {check.name: check for check in frameworks.torch_and_gpu()}
    assert found["torch"].ok is False and type(error).__name__ in found["torch"].detail
    assert found["GPU"].ok is False and "without torch" in found["GPU"].detail


# ---- Transformer Engine


@pytest.fixture
def te(tmp_path, monkeypatch):
    """A transformer_engine package whose `pytorch` part is the given text; with or without a GPU in the machine."""

    def make(text: str, gpu: bool) -> Check:
        fake(tmp_path, "transformer_engine", "__version__ = '2.20.2'\n")
        fake(tmp_path / "transformer_engine", "pytorch", text)
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("transformer_engine", "transformer_engine.pytorch"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(hardware, "gpus", lambda timeout=0: [H200] if gpu else [])
        (check,) = frameworks.transformer_engine()
        for name in ("transformer_engine", "transformer_engine.pytorch"):
            sys.modules.pop(name, None)
        return check

    return make


@pytest.mark.parametrize(
    "error, words",
    [
        ("ImportError('x.so: undefined symbol: _ZN3c10')", "does not fit this torch"),
        ("ModuleNotFoundError(\"No module named 'onnxscript'\")", "a module that it needs is missing"),
        (
            "OSError('libcuda.so.1: cannot open shared object file')",
            "a shared library (CUDA, cuDNN, the driver) does not",
        ),
        ("FileNotFoundError('Could not find shared object file')", "one of its own files is missing"),
        ("RuntimeError('cudart shared object not found.')", "its core or a CUDA library was not found"),
        ("AssertionError('package version mismatch')", "its packages do not fit together"),
        ("AssertionError()", "its packages do not fit together"),
        ("SystemExit(1)", "an error of its own"),
        ("ValueError('what?')", "an error of its own"),
    ],
)
@pytest.mark.parametrize("gpu", [True, False])
def test_te_that_does_not_import(te, error, words, gpu):
    check = te(f"raise {error}", gpu)
    assert check.ok is False and check.detail.startswith("installed, but does not import: ") and words in check.detail
    assert error.split("(")[0] in check.detail  # the exception's own words too
    message = re.search(r"['\"](.+)['\"]\)", error)
    assert message is None or message[1] in check.detail
    assert ("install it anew" in check.fix) is gpu and ("needs one" in check.fix) is not gpu


def test_te_that_kills_the_interpreter(tmp_path, monkeypatch):
    fake(tmp_path, "transformer_engine", "")
    fake(tmp_path / "transformer_engine", "pytorch", "import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (check,) = run_doctor([p for p in PROBES if p.names == ("Transformer Engine",)])
    assert check.ok is False and "SIGABRT" in check.detail and "transformer_engine.pytorch" in check.fix


def test_te_that_works(te):
    assert te("autocast = 1\ndef is_fp8_available(return_reason): return True, ''", True) == Check(
        "Transformer Engine", True, "2.20.2", frameworks.NEED_GPU
    )


def test_te_on_a_gpu_without_fp8(te):
    check = te("autocast = 1\ndef is_fp8_available(return_reason): return False, 'needs 8.9'", True)
    assert check.ok is False and check.detail == "2.20.2: needs 8.9"


def test_te_without_a_gpu(te):
    assert te("autocast = 1", False).ok is None


def test_te_too_old(te):
    check = te("fp8_autocast = 1", True)
    assert check.ok is False and "older than 2.20" in check.detail


def test_te_not_installed(monkeypatch):
    monkeypatch.setattr(frameworks.importlib.util, "find_spec", lambda name: None)
    (check,) = frameworks.transformer_engine()
    assert check.ok is None and "not installed" in check.detail and ".[te]" in check.fix


@pytest.mark.parametrize("asked, word", [("fp32", "through FP32, rounded once"), ("native", "native")])
def test_bf16_products_are_tried_both_ways(monkeypatch, asked, word):
    monkeypatch.setenv("LABKIT_BF16_PRODUCTS", asked)
    (check,) = run_doctor([p for p in PROBES if p.names == ("BF16 products",)])
    assert check.ok is True and check.detail.startswith(f"{word}: LABKIT_BF16_PRODUCTS says so; natively one of 256")
    monkeypatch.setenv("LABKIT_BF16_PRODUCTS", "quick")
    (check,) = run_doctor([p for p in PROBES if p.names == ("BF16 products",)])
    assert check.ok is False and "takes fp32 or native, not 'quick'" in check.detail


def test_torchao_not_installed_or_broken(monkeypatch, tmp_path):
    fake(tmp_path, "torch", "")
    fake(tmp_path, "torchao", "")
    fake(tmp_path / "torchao", "float8", "raise ImportError('needs another torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (check,) = run_doctor([p for p in PROBES if p.names == ("torchao",)])
    assert check.ok is False and "ImportError: needs another torch" in check.detail and "make setup" in check.fix
    monkeypatch.setattr(frameworks.importlib.util, "find_spec", lambda name: None)
    (check,) = frameworks.torchao()
    assert check.ok is False and check.detail == "not installed"


def test_no_loopback(monkeypatch):
    monkeypatch.setattr(frameworks.socket, "if_nameindex", lambda: [(1, "eth0")])
    (check,) = frameworks.gloo()
    assert check.ok is False and "no loopback" in check.detail and "ip link" in check.fix
