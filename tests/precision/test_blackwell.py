"""Blackwell's formats as variants: emulated on a CPU, by Transformer Engine on a Blackwell and nowhere else."""

import pytest
import torch
from torch import nn

from labkit.compare.preset import load_preset
from labkit.errors import LabError
from labkit.precision.config import PrecisionSpec
from labkit.precision.matrix import cell, generation, refuse
from labkit.precision.registry import availability, get_backend
from tests.fp8_values import sqnr
from tests.precision import fake_te

FORMATS = {"mxfp8": ("e4m3", 32, True, 27), "nvfp4": ("e2m1", 16, False, 15)}  # name, block, powers of two, dB


def trained(recipe):
    """y, dx, dw of a converted linear and of the plain one, and the backend."""
    torch.manual_seed(0)
    x, dy = torch.randn(64, 96, dtype=torch.bfloat16), torch.randn(64, 32, dtype=torch.bfloat16)
    x[3], out = x[3] * 1000, []
    plain = nn.Sequential(nn.Linear(96, 32, bias=False, dtype=torch.bfloat16))
    for name, chosen in (("bf16", None), ("emulated", recipe)):
        model, backend = nn.Sequential(nn.Linear(96, 32, bias=False, dtype=torch.bfloat16)), get_backend(name)
        model.load_state_dict(plain.state_dict())
        backend.convert(model, PrecisionSpec(chosen, device="cpu"))
        own = x.clone().requires_grad_()
        with backend.probe():
            y = model(own)
            y.backward(dy)
        out.append((y.detach(), own.grad, model[0].weight.grad, backend))
    return out


@pytest.mark.parametrize("recipe", FORMATS)
def test_all_three_products_are_rounded_as_their_format_rounds(recipe):
    (*want, _), (*got, backend) = trained(recipe)
    number, block, powers, least = FORMATS[recipe]
    for right, rounded in zip(want, got, strict=True):
        assert least - 3 < sqnr(right, rounded) < least + 8
    flags = backend.state.flags()
    assert (flags["forward"], flags["backward"], flags["block"]) == (number, number, block)
    assert flags["power_of_two"] is powers and flags["scaling"] == "block"
    assert ("0.input" in backend.scales) == (recipe == "mxfp8") and least - 3 < backend.scales["0.output"].sqnr


def test_a_probe_sees_the_scales_that_the_product_uses():
    from week16_fp8.stretch.mxfp8 import rounded

    backend = get_backend("emulated")
    model = nn.Sequential(nn.Linear(96, 32, bias=False))
    backend.convert(model, PrecisionSpec("mxfp8", device="cpu"))
    x = torch.randn(16, 96) * torch.logspace(-6, 6, 16)[:, None]
    dtype, scale = backend._rounding(model[0], "input", x)
    assert torch.equal((x * scale).clamp(-448, 448).to(dtype).float() / scale, rounded(x, "rceil"))


@pytest.mark.parametrize("recipe", FORMATS)
def test_transformer_engine_has_them_on_a_blackwell_alone(recipe, monkeypatch):
    arm = load_preset("b200").config(f"te-{recipe}")
    refuse(arm, (10, 0))
    for capability in ((9, 0), (12, 0)):  # its own answer: no MXFP8 from 12.0 on
        fake_te.install(monkeypatch, compute_capability=capability)
        able = capability == (12, 0) and recipe == "nvfp4"
        assert availability("te", recipe, "cuda").ok == able
        assert (cell(f"te {recipe}", generation(capability)).state == "untried") == able
    with pytest.raises(LabError, match="MXFP8 and NVFP4 need units"):
        refuse(arm, (9, 0))
    fake_te.install(monkeypatch, compute_capability=(10, 0))
    assert availability("te", recipe, "cuda").ok
    backend = get_backend("te")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(96, 32, bias=False))
    backend.convert(model, PrecisionSpec(recipe, device="cuda"))
    number, block, powers, _ = FORMATS[recipe]
    flags = backend.state.flags()
    assert (flags["forward"], flags["backward"], flags["block"]) == (number, number, block)
    assert flags["power_of_two"] is powers and backend._rounding(None, "input", torch.ones(1, 1)) is None


def test_the_emulated_nvfp4_is_for_a_cpu_alone():
    for arm in ("mx", "nvfp4"):
        refuse(load_preset("cpu-formats").config(arm), None, 2)
    with pytest.raises(LabError, match="keeps its table of values on the CPU"):
        refuse(load_preset("cpu-formats").config("nvfp4"), (9, 0))
