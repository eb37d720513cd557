"""BF16 products through FP32: where they go that way, and that it is the same arithmetic."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer, init_weights
from labkit.precision import products
from labkit.precision.config import PrecisionSpec
from labkit.precision.products import FP32, NATIVE, SWITCH, Products, decide, use
from labkit.precision.registry import get_backend

ZEN3 = "flags\t\t: fpu sse sse2 avx f16c avx2 bmi1 bmi2 fma sha_ni vaes vpclmulqdq\n"
ZEN4 = "flags\t\t: fpu avx2 avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_bitalg\n"
SAPPHIRE = "flags\t\t: fpu avx2 avx512f avx512bw amx_bf16 amx_tile amx_int8\n"
GRAVITON2 = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp\n"
GRAVITON3 = "Features\t: fp asimd aes atomics fphp asimdhp sve svei8mm svebf16 i8mm bf16 dgh rng\n"


@pytest.fixture(autouse=True)
def path_as_it_was():
    before = SWITCH.now
    yield
    SWITCH.now = before


@pytest.fixture(params=[NATIVE, FP32])
def path(request, monkeypatch):
    monkeypatch.setenv(products.VARIABLE, request.param)
    return use().path


# ---- which way, on which machine


@pytest.mark.parametrize(
    "machine, cpuinfo, how, path, word",
    [
        ("x86_64", ZEN3, {}, FP32, "no avx512_bf16 or amx_bf16"),
        ("x86_64", ZEN4, {}, NATIVE, "has avx512_bf16"),
        ("x86_64", SAPPHIRE, {}, NATIVE, "has amx_bf16"),
        ("x86_64", ZEN4 + ZEN3, {}, FP32, "no avx512_bf16"),  # a process may run on either core
        ("x86_64", ZEN4, {"onednn": False}, FP32, "no oneDNN"),
        ("x86_64", ZEN4, {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}, FP32, "held to AVX512_CORE"),
        ("x86_64", ZEN4, {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}}, NATIVE, "has avx512_bf16"),
        ("x86_64", ZEN4, {"environment": {products.VARIABLE: FP32}}, FP32, products.VARIABLE),
        ("x86_64", ZEN3, {"environment": {products.VARIABLE: NATIVE}}, NATIVE, products.VARIABLE),
        ("aarch64", GRAVITON2, {}, FP32, "no bf16"),
        ("aarch64", GRAVITON3, {}, NATIVE, "has bf16"),
        ("aarch64", GRAVITON3.replace(" bf16", ""), {}, FP32, "no bf16"),  # "svebf16" is another word
    ],
)
def test_the_path_follows_what_the_cpu_says(machine, cpuinfo, how, path, word):
    found = decide(machine, cpuinfo, **{"onednn": True, "environment": {}, **how})
    assert found.path == path and word in found.why


@pytest.mark.parametrize("answer, path", [("1", NATIVE), ("0", FP32), (None, FP32)])
def test_a_mac_is_asked_by_sysctl(monkeypatch, answer, path):
    names = []
    monkeypatch.delenv(products.VARIABLE, raising=False)
    monkeypatch.setattr(products.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(products.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(products.torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(products, "read_system", lambda file: "")
    monkeypatch.setattr(products, "sysctl", lambda name: names.append(name) or answer)
    assert products.this_cpu().path == path and names == ["hw.optional.arm.FEAT_BF16"]


# ---- the same arithmetic


def furthest_allowed(exact, absolute, terms):
    """How far a product may lie from `exact`, elementwise: |exact| 2^-8 + terms 2^-23 sum |a||b|.

    The products are exact in FP32. Their sum in any order is off by at most (terms - 1) 2^-24 sum |a||b|, to first
    order; twice that leaves room for the higher orders. Rounding to BF16's 8 significant bits is off by at most 2^-8 of
    what is rounded.
    """
    return exact.abs() * 2**-8 + absolute * terms * 2**-23


def assert_rounded_once(y, a, b, added=None):
    """y is a @ b (+ added), summed in FP32 and rounded once."""
    a, b, added = a.double(), b.double(), 0.0 if added is None else added.double()
    exact, absolute = a @ b + added, a.abs() @ b.abs() + abs(added)
    assert y.dtype == torch.bfloat16
    assert ((y.double() - exact).abs() <= furthest_allowed(exact, absolute, a.shape[-1] + 1)).all()


class Watched(TorchDispatchMode):
    """Holds every BF16 product that passes to the bound, and counts them."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default) and y.dtype == torch.bfloat16:
            assert_rounded_once(y, *args)
            self.seen += 1
        elif func == torch.ops.aten.addmm.default and y.dtype == torch.bfloat16:
            assert_rounded_once(y, *args[1:], added=args[0])
            self.seen += 1
        return y


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_the_bound_catches_a_sum_rounded_twice():
    a, b = drawn(64, 256, seed=3), drawn(256, 64, seed=4)
    twice = (a[:, :128].float() @ b[:128].float()).bfloat16() + (a[:, 128:].float() @ b[128:].float()).bfloat16()
    with pytest.raises(AssertionError):
        assert_rounded_once(twice, a, b)


def test_whole_numbers_come_out_the_same_bit_for_bit():
    """Sums of small whole numbers are exact in FP32 in any order, so both paths round the same number."""
    pick = torch.Generator().manual_seed(5)
    a, b, c = (torch.randint(-8, 9, shape, generator=pick).bfloat16() for shape in ((33, 70), (70, 21), (21,)))
    a3, b3, c3 = a.expand(2, 33, 70), b.expand(2, 70, 21), c.expand(2, 33, 21)
    found = {}
    for path in (NATIVE, FP32):
        use(Products(path, "the test"))
        out = [torch.empty(33, 21).bfloat16(), torch.empty(0).bfloat16(), torch.empty(2, 33, 21).bfloat16()]
        torch.mm(a, b, out=out[0])
        torch.addmm(c, a, b, out=out[1])
        torch.bmm(a3, b3, out=out[2])
        found[path] = [
            *(a @ b, torch.addmm(c, a, b), torch.addmm(c, a, b, beta=2, alpha=3), a3 @ b3),
            *(torch.baddbmm(c3, a3, b3), torch.baddbmm(c3, a3, b3, beta=0.5), torch.einsum("tk,kn->nt", a, b), *out),
        ]
    assert all(torch.equal(n, t) and n.dtype == t.dtype for n, t in zip(found[NATIVE], found[FP32], strict=True))


SIZES = dict(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, d_ffn=48, vocab_size=64, max_seq_len=16)


def tiny():
    return init_weights(Transformer(ModelConfig(**SIZES)), 0).bfloat16()


LINEARS = 2 * 7 + 1  # of `tiny`, the head included


def test_every_product_of_the_model_forward_and_backward(path):
    model = tiny()
    get_backend("bf16").convert(model, PrecisionSpec("bf16"))
    tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(6))
    with Watched() as watched:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    assert watched.seen == 3 * LINEARS


def test_other_types_keep_their_kernel(monkeypatch):
    use(Products(FP32, "the test"))
    monkeypatch.setattr(products, "_widened", None)  # calling it would fail
    for dtype in (torch.float32, torch.float64, torch.int64):
        a = torch.arange(12).reshape(3, 4).to(dtype)
        assert torch.equal(a @ a.t(), (a.double() @ a.double().t()).to(dtype))
    with pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2).bfloat16())


# ---- who is warned


def test_a_conversion_on_a_cpu_takes_the_path_and_tells_it(path):
    report = get_backend("bf16").convert(tiny(), PrecisionSpec("bf16"))
    assert report.bf16_products == {"path": path, "why": f"{products.VARIABLE} says so"}
    assert SWITCH.now is not None and SWITCH.now.path == path


def test_a_conversion_for_no_device_leaves_it_alone():
    SWITCH.now = None
    with torch.device("meta"):
        model = Transformer(ModelConfig(**SIZES))
    assert get_backend("bf16").convert(model, PrecisionSpec("bf16")).bf16_products is None and SWITCH.now is None


def test_replacing_kernels_says_nothing():
    code = "from labkit.precision.products import use; import torch; print(use().path, torch.ones(1, 1).bfloat16().mm"
    code += "(torch.ones(1, 1).bfloat16()).item())"
    words, env = [sys.executable, "-W", "error", "-c", code], {**os.environ, products.VARIABLE: FP32}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("fp32 1.0\n", "")
