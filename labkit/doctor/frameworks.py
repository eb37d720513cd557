"""torch, and what it can do with the GPU; NCCL, gloo, BF16 products, torchao, Transformer Engine."""

import importlib
import importlib.util
import os
import re
import socket
import sys
import timeit
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from labkit.doctor.findings import SETUP, TORCH, Check, dotted
from labkit.errors import in_words
from labkit.precision.recipes import FP8_UNITS, INSTALL_TE
from labkit.record import hardware, measure

NEED_GPU = (
    f"use a machine with an NVIDIA GPU of compute capability {dotted(FP8_UNITS.least)} or newer (L40S, RTX 4090, H100, "
    "H200, B200)"
)
AS_GPU = "as for the GPU"


def torch_and_gpu() -> Iterator[Check]:
    listed = hardware.gpus()
    try:
        torch = importlib.import_module("torch")
        check = _torch_version(torch)
    except (Exception, SystemExit) as error:
        fix = f"{SETUP}, after `make clean` if it was installed; mend or unset what this names"
        torch, check = None, Check("torch", False, f"does not import: {in_words(error)}", fix)
    yield check
    gpu, fp8 = _gpu(torch, listed)
    yield from (gpu, fp8)
    yield _nccl(torch) if gpu.ok else Check("NCCL", None, "serves GPUs only", AS_GPU)


def _torch_version(torch: Any) -> Check:
    version = str(torch.__version__)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number < TORCH[0]:
        return Check("torch", False, f"{version} is older than {dotted(TORCH[0])}", SETUP)
    newer = "" if number < TORCH[1] else f"; newer than the tested {dotted(TORCH[0])} to below {dotted(TORCH[1])}"
    return Check("torch", True, f"{version}, {build}{newer}")


def _gpu(torch: Any, listed: list[dict]) -> tuple[Check, Check]:
    """The GPU, and whether it multiplies FP8."""
    none = Check("FP8 hardware", None, "no GPU to try; the CPU demo computes with real FP8 numbers, slowly", AS_GPU)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch is not None and torch.cuda.is_available()
    if not usable:
        return _unusable(torch, listed, said), none
    devices = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
    capability = min((device.major, device.minor) for device in devices)
    memory = f"{devices[0].total_memory / 2**30:.0f} GiB"
    detail = f"{len(devices)} x {devices[0].name}, {memory}, compute capability {dotted(capability)}"
    detail += f", driver {listed[0]['driver']}" if listed else ""
    try:
        for k in range(len(devices)):
            a = torch.ones(64, 64, device=f"cuda:{k}", dtype=torch.bfloat16)
            if (a @ a).float().sum().item() != 64**3:
                raise ValueError(f"a product on GPU {k} came out wrong")
        works = Check("GPU", True, f"{detail}, {measure.launch_us('cuda:0'):.1f} us a kernel launch")
    except Exception as error:
        fix = "see whether another program fills the GPU (`nvidia-smi`), and whether this torch knows the chip"
        return Check("GPU", False, f"{detail}; but it does not compute: {in_words(error)}", fix), none
    fp8 = capability >= FP8_UNITS.least
    detail = f"compute capability {dotted(capability)} " + ("multiplies FP8" if fp8 else "has no FP8 units")
    return works, Check("FP8 hardware", fp8, detail, NEED_GPU)


def _unusable(torch: Any, listed: list[dict], said: list[warnings.WarningMessage]) -> Check:
    names = ", ".join(sorted({gpu["name"] for gpu in listed}))
    if not listed:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        but = f" (CUDA_VISIBLE_DEVICES={hidden!r} hides all but those)" if hidden is not None else ""
        return Check("GPU", None, f"no NVIDIA GPU found{but}", NEED_GPU)
    if torch is None:
        return Check("GPU", False, f"{names}, but without torch nothing can use it", SETUP)
    if torch.version.cuda is None:
        fix = "install a CUDA build: `make clean`, then `make setup` without TORCH_INDEX_URL"
        return Check("GPU", False, f"{names}, but this torch is a CPU build", fix)
    because = f": {in_words(said[-1].message)}" if said and isinstance(said[-1].message, Warning) else ""
    why = f"{names}, driver {listed[0]['driver']}, but torch cannot use it{because}"
    fix = f"update the driver to one for CUDA {torch.version.cuda}, or install a torch for its CUDA"
    return Check("GPU", False, why, fix)


def _nccl(torch: Any) -> Check:
    try:
        dist = importlib.import_module("torch.distributed")
        version = ".".join(map(str, torch.cuda.nccl.version()))
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))
        one = torch.ones(1, device="cuda:0")
        dist.all_reduce(one)
        if one.item() != 1:
            raise ValueError(f"with {version}, an all-reduce on one rank gave a wrong result")
    except Exception as error:
        fix = "set NCCL_DEBUG=INFO and try again to see why; a torch with NCCL is a Linux CUDA build"
        return Check("NCCL", False, f"does not run: {in_words(error)}", fix)
    return Check("NCCL", True, version)


def gloo() -> Iterator[Check]:
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is None:
        yield Check("gloo", False, "this machine has no loopback device (lo)", "bring it up: `sudo ip link set lo up`")
        return
    ones = importlib.import_module("torch").ones(4)
    sums = importlib.import_module("labkit.comm.ranks").run_ranks(_sum, ones, size=2, timeout=30.0)
    if [x.tolist() for x in sums] != [[2.0] * 4] * 2:
        raise ValueError(f"two ranks came to a wrong sum over {loopback}")
    strange = importlib.import_module("labkit.comm.transport").strange_interface()
    yield Check("gloo", True, f"two ranks talk over {loopback}{strange}")


def _sum(group: Any, x: Any) -> Any:
    return group.all_reduce(x)


def torchao() -> Iterator[Check]:
    """One FP8 linear, forward and backward, on the CPU."""
    torch, float8 = importlib.import_module("torch"), importlib.import_module("torchao.float8")
    model = float8.convert_to_float8_training(
        torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False)),
        config=float8.Float8LinearConfig.from_recipe_name("tensorwise"),
    )
    model(torch.ones(16, 16, requires_grad=True)).sum().backward()
    yield Check("torchao", True, f"{metadata.version('torchao')}: an FP8 linear trains on the CPU")


def bf16_products() -> Iterator[Check]:
    """Which path BF16 products take on this CPU, and whether both give the same: sums of whole numbers are exact."""
    torch, products = importlib.import_module("torch"), importlib.import_module("labkit.precision.products")
    found, seconds, results = products.this_cpu(), [], []
    x = torch.arange(256 * 256).remainder(7).reshape(256, 256).bfloat16()
    for path in (products.NATIVE, products.FP32):
        products.use(products.Products(path, "the doctor tries both"))
        results.append(x @ x)
        seconds.append(min(timeit.repeat(lambda: x @ x, number=1, repeat=3)))
    if not torch.equal(*results):
        raise ValueError(f"{found}, and the results of both paths differ")
    times = f"natively one of 256 x 256 x 256 takes {seconds[0] / seconds[1]:.1f} times as long as through FP32"
    yield Check("BF16 products", True, f"{found}; {times}")


def transformer_engine() -> Iterator[Check]:
    """Whether it imports, is new enough, and takes this GPU for FP8: by the backend's own rules."""
    name = "Transformer Engine"
    if importlib.util.find_spec("transformer_engine") is None:
        yield Check(name, None, "not installed; only GPU machines need it", f"on a GPU machine: {INSTALL_TE}")
        return
    able = importlib.import_module("labkit.precision.registry").availability("te")
    version = str(getattr(sys.modules.get("transformer_engine"), "__version__", "of unknown version"))
    if able.ok:
        yield Check(name, True, version)
    elif hardware.gpus():
        yield Check(name, False, f"{version}: {able.reason}", able.fix)
    else:
        yield Check(name, None, f"{version}, and no GPU for it: {able.reason}", NEED_GPU)
