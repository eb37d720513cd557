"""The doctor, on this machine and on many imagined ones. Whatever happens to a probe: a list of Checks."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
import types
import warnings
from collections import namedtuple
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from labkit.doctor import findings as doctor
from labkit.doctor import frameworks, grading, machine
from labkit.doctor.findings import GROUPS, PROBES, Check, Probe, exit_code, render, run_doctor, to_json, verdicts
from labkit.doctor.requirements import NOTEBOOK, PACKAGES, PYTHON, TE, TORCH
from labkit.record import hardware

ROOT = Path(__file__).parents[2]
NAMES = [name for probe in PROBES for name in probe.names]


def one(checks, name: str) -> Check:
    (found,) = [check for check in checks if check.name == name]
    return found


# ---- this machine, for real


def test_the_command_on_this_machine():
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "doctor", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    checks = [Check(**row) for row in found["checks"]]
    assert [check.name for check in checks] == NAMES
    assert done.returncode == found["exit_code"] == exit_code(checks)
    assert [v["group"] for v in found["verdicts"]] == [
        "weeks 13 to 16",
        "the CPU demo",
        "the FP8 comparison on a GPU",
        "grading, for instructors",
    ]
    # These tests themselves need a Python, a torch and gloo that work.
    assert all(one(checks, name).ok is True for name in ("Python", "torch", "gloo", "packages")), checks
    for check in checks:
        assert check.detail and "\n" not in check.detail + check.fix and "Traceback" not in check.detail
        assert bool(check.fix) == (check.ok is not True), f"{check.name}: a fix for what is not well, and only for that"
        assert str(Path.home()) + os.sep not in check.detail


def test_the_doctor_itself_imports_nothing_heavy():
    code = (
        "import sys, labkit.doctor.findings, labkit.doctor.machine, labkit.doctor.frameworks, labkit.doctor.grading; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'rich', 'matplotlib', 'torchao')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_is_asked_for_is_what_pyproject_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {r.name: r for r in map(Requirement, project["dependencies"])}
    assert {*PACKAGES, "torch", "torchao"} == set(wanted)
    assert set(NOTEBOOK) == {Requirement(line).name for line in project["optional-dependencies"]["student"]}
    low, high = ("{}.{}".format(*v) for v in TORCH)
    assert low in wanted["torch"].specifier and f"{high}.0" not in wanted["torch"].specifier
    assert f"{TORCH[1][0]}.{TORCH[1][1] - 1}.9" in wanted["torch"].specifier
    assert f"{TORCH[0][0]}.{TORCH[0][1] - 1}.9" not in wanted["torch"].specifier
    python = Requirement("python" + project["requires-python"]).specifier
    assert "{}.{}".format(*PYTHON) in python and f"{PYTHON[0]}.{PYTHON[1] - 1}" not in python
    extra = {r.name: r for r in map(Requirement, project["optional-dependencies"]["te"])}
    te = extra["transformer-engine"]
    assert "{}.{}".format(*TE) in te.specifier and f"{TE[0]}.{TE[1] - 1}" not in te.specifier


# ---- probes that misbehave


@pytest.fixture
def misbehaving(tmp_path, monkeypatch):
    """A module of probes, importable in the probe's process."""
    (tmp_path / "naughty.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "from labkit.doctor.findings import Check\n"
        "def fine():\n    yield Check('a', True, 'well', 'no fix needed')\n"
        "    yield Check('b', None, 'not here', 'get one')\n"
        "def raises():\n    yield Check('a', True, 'well')\n    raise RuntimeError('first line\\nsecond line')\n"
        "def leaves():\n    sys.exit(3)\n    yield\n"
        "def dies():\n    yield Check('a', False, 'bad', 'mend a')\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def quits():\n    os._exit(7)\n    yield\n"
        "def hangs():\n"
        "    yield Check('a', True, 'well')\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"    open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "    time.sleep(300)\n"
        "def chatters():\n"
        '    print(\'{"name": "b", "ok": true, "detail": "rubbish", "fix": ""}\', flush=True)\n'
        "    os.write(1, b'from C\\n')\n    os.system('echo from a child')\n"
        "    sys.stderr.write('x' * 1_000_000)\n    yield Check('a', True, 'well')\n"
        "def strays():\n    yield Check('other', True, 'not asked for')\n"
        "def forgets():\n    return iter(())\n"
        "broken = 3\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def probe(function: str, seconds: float = 60.0, module: str = "naughty") -> list[Check]:
        return run_doctor([Probe(f"{module}:{function}", ("a", "b"), "see a doctor", seconds)])

    return probe


def test_a_probe_that_is_well(misbehaving):
    assert misbehaving("fine") == [Check("a", True, "well", ""), Check("b", None, "not here", "get one")]


@pytest.mark.parametrize(
    "function, first, reason",
    [
        ("raises", Check("a", True, "well"), "RuntimeError: first line"),
        ("leaves", None, "SystemExit: 3"),
        ("dies", Check("a", False, "bad", "mend a"), "the probe was ended by SIGSEGV"),
        ("quits", None, "the probe ended with status 7"),
        ("strays", None, "it did not answer"),
        ("forgets", None, "it did not answer"),
        ("broken", None, "TypeError: 'int' object is not callable"),
        ("absent", None, "AttributeError: module 'naughty' has no attribute 'absent'"),
    ],
)
def test_what_a_probe_does_to_itself_becomes_its_reason(misbehaving, function, first, reason):
    a, b = misbehaving(function)
    failed = Check("b", False, f"could not be found out: {reason}", "see a doctor")
    assert b == failed and a == (first or Check("a", False, failed.detail, failed.fix))


def test_a_module_that_does_not_exist(misbehaving):
    a, _ = misbehaving("x", module="nowhere_at_all")
    assert a.ok is False and "ModuleNotFoundError" in a.detail


def test_what_a_probe_prints_is_not_an_answer(misbehaving):
    a, b = misbehaving("chatters")
    assert a == Check("a", True, "well") and b.ok is False and "did not answer" in b.detail


def gone(pid: int) -> bool:
    """No such process any more (a zombie that waits for its parent counts as gone)."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_a_hanging_probe_is_ended_with_its_children(misbehaving, tmp_path):
    begin = time.monotonic()
    a, b = misbehaving("hangs", seconds=6.0)
    assert time.monotonic() - begin < 60  # it would hang for 300 s
    assert a == Check("a", True, "well")  # what it had said counts
    assert b == Check("b", False, "could not be found out: no answer in 6 s", "see a doctor")
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_ctrl_c_leaves_no_probe_behind(misbehaving, tmp_path):
    def interrupt():
        for _ in range(600):  # let the hanging one get going first
            if (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        run_doctor([Probe("naughty:hangs", ("a",), "", 300.0), Probe("naughty:fine", ("b",), "", 60.0)])
    waiting.join()
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_no_process_can_be_started(misbehaving, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    a, _ = misbehaving("fine")
    assert a.ok is False and "could not be probed: FileNotFoundError" in a.detail


def test_a_file_called_torch_in_the_working_directory_is_not_torch(misbehaving, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (work / "naughty.py").write_text("def fine():\n    raise SystemError('the wrong file')\n")
    monkeypatch.chdir(work)
    assert misbehaving("fine")[0].ok is True


# ---- without torch


def fake(folder: Path, name: str, text: str) -> None:
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)


def test_a_machine_without_torch(tmp_path, monkeypatch):
    fake(tmp_path, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    checks = run_doctor([p for p in PROBES if set(p.names) & {"torch", "gloo"}])
    assert one(checks, "torch") == Check("torch", False, "not installed", "run `make setup`")
    assert one(checks, "GPU").ok is None and one(checks, "NCCL").ok is None and one(checks, "FP8 hardware").ok is None
    assert one(checks, "gloo").ok is False and "comes with torch" in one(checks, "gloo").detail
    assert exit_code(checks) == 1
    assert verdicts(checks)[0].sentence.startswith("no, because of Python (not looked at)")


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


# ---- the machine


def test_an_old_python_a_foreign_system_a_missing_package(monkeypatch):
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(machine.platform, "system", lambda: "Windows")
    monkeypatch.setattr(machine, "PACKAGES", ("numpy", "no-such-package-here"))
    monkeypatch.setattr(machine, "NOTEBOOK", ("no-such-notebook-here",))
    found = {check.name: check for check in machine.basics()}
    assert [check.ok for check in found.values()] == [False, False, False, False]
    assert "3.11" in found["Python"].fix and "WSL" in found["operating system"].fix
    assert found["packages"].detail == "not installed: no-such-package-here"
    assert found["notebook"].detail == "not installed: no-such-notebook-here" and "make setup" in found["notebook"].fix


Usage = namedtuple("Usage", "total used free")
GIB = 2**30


def disk(monkeypatch, free: float) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: Usage(0, 0, int(free)))


def read_only(*args, **kwargs):
    raise OSError(30, "Read-only file system")


def test_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "not" / "made" / "yet"))
    monkeypatch.chdir(tmp_path)
    disk(monkeypatch, 5 * GIB)
    assert machine._disk() == Check("disk", True, "5.0 GiB free in the working directory; 5.0 GiB free in the cache")
    assert not (tmp_path / "not").exists() and not list(tmp_path.iterdir())  # looking leaves nothing behind
    disk(monkeypatch, 0.5 * GIB)
    check = machine._disk()
    assert check.ok is False and check.fix == "free 1.0 GiB in the working directory; free 1.0 GiB in the cache"
    monkeypatch.setattr(machine.tempfile, "TemporaryFile", read_only)
    check = machine._disk()
    assert check.ok is False and "Read-only" in check.detail and "LABKIT_CACHE" in check.fix and "cd to" in check.fix


def test_a_working_directory_that_was_deleted(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(machine.os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError(2, "No such file")))
    check = machine._disk()
    assert check.ok is False and "the working directory cannot be written" in check.detail and "cd to" in check.fix


def test_temporary_files(monkeypatch):
    assert machine._temporary().ok is True
    disk(monkeypatch, 0.1 * GIB)
    assert machine._temporary().ok is False and "TMPDIR" in machine._temporary().fix
    monkeypatch.setattr(
        machine.tempfile,
        "gettempdir",
        lambda: (_ for _ in ()).throw(FileNotFoundError(2, "No usable temporary directory found")),
    )
    assert machine._temporary().ok is False and "No usable temporary directory" in machine._temporary().detail


def test_shared_memory(monkeypatch, tmp_path):
    assert machine._shared_memory(str(tmp_path / "shm")).ok is None
    disk(monkeypatch, 8 * GIB)
    assert machine._shared_memory(str(tmp_path)).ok is True
    disk(monkeypatch, 64 * 2**20)  # Docker's default
    check = machine._shared_memory(str(tmp_path))
    assert check.ok is False and "0.1 GiB free" in check.detail and "--shm-size" in check.fix
    monkeypatch.setattr(machine.tempfile, "TemporaryFile", read_only)
    assert machine._shared_memory(str(tmp_path)).ok is False


@pytest.mark.parametrize(
    "total, free, ok, words",
    [
        (16, 12, True, "16 GiB, 12 GiB of it free"),
        (8, 2, True, "close other programs"),
        (3.75, 3, True, "close other programs"),
        (3.5, 3, False, "3.5 GiB"),
    ],
)
def test_memory(monkeypatch, total, free, ok, words):
    monkeypatch.setattr(hardware, "memory_bytes", lambda: int(total * GIB))
    monkeypatch.setattr(hardware, "read_system", lambda path: f"MemAvailable:   {int(free * GIB / 1024)} kB\n")
    check = machine._memory()
    assert check.ok is ok and words in check.detail
    monkeypatch.setattr(hardware, "memory_bytes", lambda: None)
    assert machine._memory().ok is None


# ---- what grading needs


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Stand-ins for commands on PATH, run as an ordinary user; and the kernel's settings."""

    def make(settings=None, **scripts):
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(grading.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(grading.platform, "system", lambda: "Linux")
        monkeypatch.setattr(grading, "CONTAINER_MARKS", (str(tmp_path / "dockerenv"),))
        if "dockerenv" in (settings or {}):
            (tmp_path / "dockerenv").touch()
        monkeypatch.setattr(hardware, "read_system", lambda path: (settings or {}).get(path, ""))
        return {check.name: check for check in grading.sandbox()}

    return make


def test_a_machine_that_sandboxes(commands):
    found = commands(unshare="exit 0", bwrap="exit 0")
    assert found["user namespaces"].ok is True and found["bubblewrap"].ok is True


@pytest.mark.parametrize(
    "settings, words, fix",
    [
        (
            {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
            "AppArmor forbids",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            {"/proc/sys/kernel/unprivileged_userns_clone": "0\n"},
            "the kernel forbids",
            "kernel.unprivileged_userns_clone=1",
        ),
        ({"/proc/sys/user/max_user_namespaces": "0\n"}, "the kernel allows none", "user.max_user_namespaces=15000"),
        ({"dockerenv": ""}, "this container forbids", "seccomp=unconfined"),
        ({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0\n"}, "does not say why", "dmesg"),
    ],
)
def test_who_forbids_user_namespaces(commands, settings, words, fix):
    refuse = "echo 'write failed /proc/self/uid_map: Operation not permitted' >&2; exit 1"
    found = commands(settings, unshare=refuse, bwrap=refuse)
    for check in found.values():
        assert check.ok is False and words in check.detail and fix in check.fix
        assert "Operation not permitted" in check.detail


def test_a_setting_alone_is_no_verdict(commands):
    # A profile may allow this program what the setting forbids to others: what counts is the try.
    found = commands({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, unshare="exit 0")
    assert found["user namespaces"].ok is True
    assert found["bubblewrap"].ok is None and found["bubblewrap"].fix == "sudo apt install bubblewrap"


def test_a_sandbox_that_hangs(commands, monkeypatch):
    monkeypatch.setattr(grading._try, "__kwdefaults__", {"seconds": 0.3})
    found = commands(unshare="exec /bin/sleep 60")
    assert found["user namespaces"].ok is False and "no answer in 0.3 s" in found["user namespaces"].detail


def test_no_unshare(commands):
    assert "util-linux" in commands()["user namespaces"].fix


def test_other_systems_do_not_grade(monkeypatch):
    monkeypatch.setattr(grading.platform, "system", lambda: "Darwin")
    assert [check.ok for check in grading.sandbox()] == [None, None]


def test_root_tries_as_an_ordinary_user(monkeypatch):
    seen = []

    def run(command, **how):
        seen.append(how)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(grading.subprocess, "run", run)
    monkeypatch.setattr(grading.os, "geteuid", lambda: 0)
    assert grading._try("true")[0] and seen[0]["user"] == 65534 and seen[0]["group"] == 65534
    monkeypatch.setattr(grading.os, "geteuid", lambda: 1000)
    assert grading._try("true")[0] and "user" not in seen[1]


def test_nbgrader(tmp_path, monkeypatch):
    fake(tmp_path, "nbgrader", "raise ImportError('needs notebook 6')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nbgrader", raising=False)
    (check,) = grading.nbgrader()
    assert check.ok is False and "needs notebook 6" in check.detail
    monkeypatch.setattr(grading.importlib.util, "find_spec", lambda name: None)
    (check,) = grading.nbgrader()
    assert check.ok is None and check.fix == "pip install nbgrader"


# ---- verdicts


def well(**but) -> list[Check]:
    """All checks True, except those given (underscores for spaces)."""
    but = {name.replace("_", " "): ok for name, ok in but.items()}
    return [
        Check(name, but.get(name, True), f"{name} [detail]", "" if but.get(name, True) else f"fix [pytorch] {name}")
        for name in NAMES
    ]


def yes(checks) -> list[bool]:
    return [verdict.ok for verdict in verdicts(checks)]


def test_every_check_serves_a_purpose_and_every_need_is_checked():
    used = {name for group in GROUPS for name in (*group.needs, *group.one_of, *group.wants)}
    assert used == set(NAMES) and len(set(NAMES)) == len(NAMES)


def test_all_is_well():
    assert yes(well()) == [True, True, True, True] and exit_code(well()) == 0
    assert [verdict.sentence for verdict in verdicts(well())[:2]] == ["yes: `lab open week13`", "yes: `make demo`"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("Python", [False, False, False, False]),
        ("torch", [False, False, False, False]),
        ("disk", [False, False, False, False]),
        ("gloo", [False, False, True, False]),
        ("memory", [False, False, True, True]),
        ("GPU", [True, True, False, True]),
        ("FP8_hardware", [True, True, False, True]),
        ("NCCL", [True, True, False, True]),
        ("user_namespaces", [True, True, True, False]),
        ("bubblewrap", [True, True, True, False]),
        ("nbgrader", [True, True, True, False]),
        ("/dev/shm", [True, True, True, True]),
        ("Transformer_Engine", [True, True, True, True]),
        ("notebook", [False, True, True, True]),
        ("torchao", [True, False, True, True]),
        ("BF16_products", [True, True, True, True]),
    ],
)
@pytest.mark.parametrize("ok", [False, None])
def test_what_each_purpose_needs(name, expected, ok):
    checks = well(**{name: ok})
    assert yes(checks) == expected and exit_code(checks) == (0 if expected[1] else 1)
    for verdict in verdicts(checks):
        assert verdict.ok or verdict.missing == (name.replace("_", " "),)
        assert verdict.ok or verdict.sentence == "no, because of {0} ({0} [detail])".format(name.replace("_", " "))


def test_one_fp8_library_is_enough_and_none_is_not():
    found = verdicts(well(Transformer_Engine=False))[2]
    assert found.ok and "but without Transformer Engine" in found.sentence
    assert verdicts(well(Transformer_Engine=False, torchao=False))[2].missing == ("Transformer Engine", "torchao")


def test_json():
    checks = well(GPU=None)
    found = json.loads(to_json(checks))
    assert [Check(**row) for row in found["checks"]] == checks
    assert found["exit_code"] == 0 and found["labkit"]
    assert found["verdicts"][2] == {
        "group": "the FP8 comparison on a GPU",
        "ok": False,
        "missing": ["GPU"],
        "sentence": "no, because of GPU (GPU [detail])",
    }


def drawn(checks, width: int = 100) -> str:
    from rich.console import Console

    out = io.StringIO()
    render(checks, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_the_table():
    text = drawn(well(GPU=None, torchao=False))
    lines = text.splitlines()
    for name in NAMES:  # each check once, in words that need no colour
        assert sum(bool(re.match(rf"(ok|NO|- ) +{re.escape(name)} ", line)) for line in lines) == 1, name
    assert any(re.match(r"NO +torchao ", line) for line in lines) and any(re.match(r"- +GPU ", line) for line in lines)
    assert "The CPU demo: NO, because of torchao" in text and "Grading, for instructors: yes" in text
    assert text.startswith("Weeks 13 to 16: yes"), "students first"
    assert "-> fix [pytorch] torchao" in text and "torchao [detail]" in text  # brackets are text, not style
    assert "fix" not in drawn(well())


def test_students_are_not_told_what_grading_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "labkit" / "doctor" / "findings.py"))
    text = drawn(well(bubblewrap=False))
    assert "Grading" not in text and "bubblewrap" not in text and "The CPU demo: yes" in text


def test_the_table_on_a_narrow_terminal():
    text = drawn(well(GPU=None), width=60)
    assert max(map(len, text.splitlines())) <= 60 and "-> fix [pytorch] GPU" in text


def test_render_needs_no_console(capsys):
    render(well())
    assert "The CPU demo: yes" in capsys.readouterr().out


def test_words_are_one_line_and_private(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    words = doctor.in_words(OSError("/home/ada/lib/x.so: cannot open\n  more"))
    assert words == "OSError: ~/lib/x.so: cannot open"
    assert doctor.in_words(AssertionError()) == "AssertionError"
    assert len(doctor.in_words(ValueError("x" * 5000))) == 300


@pytest.mark.parametrize("container, fix", [("26.03", "pip install -r requirements-container.txt"), ("", "make setup")])
def test_inside_nvidias_container_the_fix_is_its_list_and_not_another_torch(container, fix):
    code = "from labkit.doctor import findings as doctor; print(doctor.SETUP, doctor.PROBES[0].fix)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NVIDIA_PYTORCH_VERSION": container},
    )
    assert done.stdout.count(fix) == 2, done.stderr
