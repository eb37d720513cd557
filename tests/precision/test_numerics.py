"""How far each recipe is from FP32: the output and both gradients of one linear, and what a probe says about it."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import nn

from labkit.precision.broken import casts_in_triton, eagerly, one_kernel
from labkit.precision.probe import SQNR_EXACT, decibel
from labkit.precision.registry import get_backend
from tests.fp8_values import DTYPES, quantise, scale_for, sqnr
from tests.precision.precision_jobs import LINEARS, convert, decoder, loss_of, tokens

M, K, N = 256, 128, 96


def operands(scale_x=1.0, scale_g=1e-4, scale_w=0.02):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(M, K, generator=draw) * scale_x
    w = torch.randn(N, K, generator=draw) * scale_w  # 0.02: the size of initial weights
    g = torch.randn(M, N, generator=draw) * scale_g
    return (t.bfloat16() for t in (x, w, g))


def linear(name, recipe=None):
    """(backend, converted linear) with the weight of `operands`."""
    holder = nn.ModuleDict({"only": nn.Linear(K, N, bias=False, dtype=torch.bfloat16)})
    _, w, _ = operands()
    holder["only"].weight = nn.Parameter(w.clone())
    backend = get_backend(name)
    convert(backend, holder, recipe)
    return backend, holder["only"]


def products(module, x, g):
    """y, dx, dw in fp32."""
    x = x.clone().requires_grad_()
    module.weight.grad = None
    y = module(x)
    y.backward(g)
    return y.detach().float(), x.grad.float(), module.weight.grad.float()


def decibels(module, **how):
    x, w, g = operands(**how)
    module.weight = nn.Parameter(w)
    x32, w32, g32 = x.float(), w.float(), g.float()
    return [sqnr(r, p) for r, p in zip((x32 @ w32.t(), g32 @ w32, g32.t() @ x32), products(module, x, g))]


# One E4M3 rounding costs 31.5 dB, one E5M2 rounding 25.5 (test_formats). Two independent ones add their noise:
# E4M3 x E4M3 = 28.5, E5M2 x E4M3 = 24.5, E5M2 x E5M2 = 22.5; BF16's rounding of the result is 56. 1 dB to either side.
TWO_E4M3, MIXED, TWO_E5M2, BF16 = (27.5, 29.5), (23.5, 25.5), (21.5, 23.5), (50, 60)


@pytest.mark.parametrize(
    "name, recipe, y, dx, dw",
    [
        ("bf16", None, BF16, BF16, BF16),
        ("emulated", None, TWO_E4M3, MIXED, MIXED),
        ("torchao", "tensorwise", TWO_E4M3, MIXED, MIXED),
        ("torchao", "rowwise", TWO_E4M3, TWO_E4M3, TWO_E4M3),
        ("torchao", "rowwise_with_gw_hp", TWO_E4M3, TWO_E4M3, BF16),
        ("broken-e5m2", None, TWO_E5M2, TWO_E5M2, TWO_E5M2),
        ("broken-stale", None, TWO_E4M3, MIXED, MIXED),  # right at the first step
    ],
)
def test_output_and_gradients_against_fp32(name, recipe, y, dx, dw):
    got = decibels(linear(name, recipe)[1])
    for what, value, (low, high) in zip(("y", "dx", "dw"), got, (y, dx, dw)):
        assert low < value < high, f"{what}: {value:.1f} dB, expected {low} to {high}; all: {got}"


def test_the_emulation_is_torchao_to_bf16s_rounding():
    """Same scales, same FP8 values, same products: what differs is one more rounding to BF16 (2^-9, 56 dB, and the two
    add up). So a broken arm differs from a good one by its mistake alone."""
    x, _, g = operands()
    ours, theirs = (products(linear(name)[1], x, g) for name in ("emulated", "torchao"))
    for a, b in zip(ours, theirs):
        assert sqnr(b, a) > 48


def test_inverse_leaves_nothing_and_unscaled_loses_what_is_small():
    """Weights of 0.005 lie in E4M3's subnormals, 2^-9 apart: noise 2^-9 / sqrt(12), 19 dB. Those of 0.02 just above.
    Gradients of 1e-6 lie below half of E5M2's smallest value, 2^-17 = 7.6e-6."""
    assert max(decibels(linear("broken-inverse")[1])) < 1
    for mistake in ("unscaled", "unscaled-forward"):
        _, module = linear(f"broken-{mistake}")
        y, dx, _ = decibels(module, scale_w=0.005)
        assert 18 < y < 20 and 17 < dx < 20 and decibels(module)[0] > 26
        _, dx, dw = decibels(module, scale_g=1e-6)
        assert (dx < 1 and dw < 1) if mistake == "unscaled" else dw > 23
    assert min(decibels(linear("emulated")[1], scale_g=1e-6)) > 23


def test_stale_is_right_until_the_tensors_change():
    backend, module = linear("broken-stale")
    assert decibels(module)[0] > 27
    assert decibels(module, scale_x=10.0)[0] < 10  # ten times the first amax: most of it saturates
    saved = backend.state.state_dict()
    assert set(saved) == {"only.input", "only.weight", "only.grad"}
    other, fresh = linear("broken-stale")
    other.state.load_state_dict(saved)
    assert decibels(fresh, scale_x=10.0)[0] < 10  # a resumed run is as stale as the first
    assert other.state.state_dict() == saved


@pytest.mark.parametrize(
    "name, recipe",
    [("bf16", None), ("emulated", None), ("torchao", "tensorwise"), ("torchao", "rowwise"), ("broken-e5m2", None)],
)
def test_probe(name, recipe):
    model, backend = decoder(torch.bfloat16), get_backend(name)
    convert(backend, model, recipe, ["head"])
    loss_of(model, backend, tokens()).backward()
    assert backend.scales == {}
    model.zero_grad()
    with backend.probe():
        probed = loss_of(model, backend, tokens())
        probed.backward()
    stats = backend.scales
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    slots = ("output",) if name == "bf16" else ("input", "weight", "output", "grad")
    assert set(stats) == {f"{n}.{slot}" for n in backend.modules for slot in slots}
    assert len(stats) == LINEARS * len(slots)
    for stat in stats.values():
        assert all(abs(v) < 1e30 for v in asdict(stat).values()) and 0 <= stat.underflow <= 100 and stat.overflow == 0
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss = loss_of(model, backend, tokens())
    loss.backward()
    assert loss.item() == probed.item()  # it only looks
    assert all(map(torch.equal, grads, (p.grad for p in model.parameters())))


def test_probe_numbers_by_hand():
    backend, module = linear("emulated")
    x, w, g = operands()
    x[0, 0] = 1000.0  # most of the rest falls among E4M3's subnormals
    x[1] = 0.0  # what was zero before is not flushed
    with backend.probe():
        products(module, x, g)
    stat = backend.scales["only.input"]
    s = 448 / 1000
    assert stat.amax == 1000 and stat.scale == pytest.approx(s) and stat.overflow == 0
    flushed = ((x.float() * s).abs() <= 2.0**-10) & (x != 0)  # half of E4M3's smallest value; a tie goes to 0
    assert stat.underflow == pytest.approx(100 * flushed.float().mean().item()) and stat.underflow > 0.1
    assert stat.sqnr == pytest.approx(sqnr(x, quantise(x.float() * s, "e4m3") / s), abs=1e-3)
    assert backend.scales["only.grad"].scale == pytest.approx(57344 / g.abs().max().item())
    reference = x.float() @ w.float().t()
    y = module(x)
    assert backend.scales["only.output"].sqnr == pytest.approx(sqnr(reference, y), abs=1e-3)


def test_probe_of_rows():
    """torchao's rowwise scales, by hand: a power of two for each token of x and dy, and each output feature of w."""
    backend, module = linear("torchao", "rowwise")
    x, w, g = operands()
    x *= torch.logspace(-3, 3, M).bfloat16()[:, None]
    g *= torch.logspace(-3, 3, N).bfloat16()
    with backend.probe():
        products(module, x, g)
    for slot, t in (("input", x), ("weight", w), ("grad", g)):
        s = scale_for(t.float().abs().amax(1, keepdim=True), "e4m3", power_of_two=True)
        stat = backend.scales[f"only.{slot}"]
        assert stat.scale == s.min() and stat.amax == t.abs().max()
        back = quantise(t.float() * s, "e4m3") / s
        assert stat.sqnr == pytest.approx(sqnr(t, back), abs=1e-3)
        # Large rows hide small ones in the SQNR, not in what is flushed: scales by columns would flush rows of x.
        assert stat.underflow == pytest.approx(100 * ((t != 0) & (back == 0)).float().mean().item())


def test_probe_sees_the_scale_in_force_and_not_the_right_one():
    backend, module = linear("broken-stale")
    x, _, g = operands()
    products(module, x, g)
    with backend.probe():
        products(module, x * 4, g / 64)
    stats = backend.scales
    amax = x.float().abs().max().item()
    assert stats["only.input"].scale == pytest.approx(448 / amax)
    assert stats["only.input"].amax == pytest.approx(4 * amax)
    beyond = (4 * x.float().abs() * 448 / amax > 464).float().mean().item()
    assert stats["only.input"].overflow == pytest.approx(100 * beyond) and beyond > 0.1
    assert stats["only.input"].sqnr < 20


def test_probe_in_chunks_and_after_a_failure(monkeypatch):
    import labkit.precision.probe as probe

    whole = _probed("torchao", "rowwise")
    monkeypatch.setattr(probe, "CHUNK", 1000)
    parts = _probed("torchao", "rowwise")
    for name in whole:
        assert asdict(parts[name]) == pytest.approx(asdict(whole[name]))
    backend, module = linear("emulated")
    with pytest.raises(TypeError), backend.probe():
        module(next(operands()), "one argument too many")
    assert backend.scales == {} and not module._forward_hooks


def _probed(name, recipe):
    backend, module = linear(name, recipe)
    x, _, g = operands()
    with backend.probe():
        products(module, x, g)
    return backend.scales


def test_infinite_and_nan_tensors_still_give_finite_numbers():
    backend, module = linear("emulated")
    for bad in (float("inf"), float("nan")):
        x, _, g = operands()
        x[0, 0] = bad
        with backend.probe():
            products(module, x, g)
        for stat in backend.scales.values():
            assert all(abs(v) <= 3.5e38 for v in asdict(stat).values())


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_a_gpus_ways_to_round_give_the_values_of_the_arithmetic(fmt):
    """Eager cast and its compiled form; also of a transposed tensor, as gradients come. Without a GPU the compiled form
    is captured only, since code for it is generated on a GPU alone."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 48, generator=draw) * torch.exp2(torch.randint(-30, 20, (64, 48), generator=draw).float())
    x = torch.cat([x, torch.tensor([[float("inf"), float("-inf"), 0.0, -0.0] * 12])]).bfloat16().to(device)
    s = torch.tensor(3.7).to(device)
    want = (quantise(x.float() * s, fmt) / s).to(x.dtype)
    compiled = one_kernel("inductor" if device == "cuda" else "aot_eager")
    with torch.compiler.config.patch(force_disable_caches=True):  # a training would get tiles for a small tensor
        for to_grid in (eagerly, compiled):
            assert torch.equal(to_grid(x, DTYPES[fmt], s), want)
            assert torch.equal(to_grid(x.t(), DTYPES[fmt], s), want.t())
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "triton, capability, compiled", [(True, (8, 9), True), (True, (8, 0), False), (False, (9, 0), False)]
)
def test_older_gpus_and_those_without_triton_cast_eagerly(monkeypatch, triton, capability, compiled):
    monkeypatch.setattr("labkit.precision.broken.has_triton", lambda: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    casts_in_triton.cache_clear()
    assert casts_in_triton(torch.device("cuda")) == compiled
    casts_in_triton.cache_clear()


# ---- what the probe computes with


def test_sqnr():
    x = torch.tensor([3.0, 4.0])
    assert sqnr(x, x + torch.tensor([0.0, 0.5])) == pytest.approx(20.0)  # 25 / 0.25 is 20 dB
    assert sqnr(x, x) == SQNR_EXACT and sqnr(torch.zeros(2), x) == -SQNR_EXACT
    odd = (0.0, 1.0, math.inf, math.nan)
    assert all(math.isfinite(decibel(a, b)) for a in odd for b in odd)
    assert decibel(math.inf, 1.0) == SQNR_EXACT and decibel(1.0, math.nan) == -SQNR_EXACT
