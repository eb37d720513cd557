"""The Transformer Engine backend, as far as it can be tested without a GPU: against a stand-in (fake_te.py)."""

import sys

import pytest
import torch
from torch import nn

from labkit.errors import LabError
from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.transforms import checkpoint_blocks
from labkit.precision.recipes import INSTALL_TE
from labkit.precision.registry import availability, get_backend
from labkit.precision.te_backend import te_recipe, tile_scales
from tests.precision import fake_te
from tests.precision.precision_jobs import LINEARS, MODEL, convert, loss_of, tokens

BIG = MODEL.replace(d_model=128, d_ffn=256, n_heads=2, n_kv_heads=2)  # every dim a multiple of 128: block scaling


@pytest.fixture
def te(monkeypatch):
    return fake_te.install(monkeypatch)


def converted(recipe, config=MODEL, dtype=torch.bfloat16, **more):
    """(model, backend, report): built on the meta device for a GPU, then run on the CPU that the stand-in accepts."""
    with torch.device("meta"):
        model = Transformer(config)
    backend = get_backend("te")
    report = convert(backend, model, recipe, ["head"], device="cuda", **more)
    init_weights(model.to_empty(device="cpu"), 0)
    return model.to(dtype), backend, report


def test_weights_are_the_very_same(te):
    model = Transformer(MODEL)
    before = dict(model.named_parameters())
    backend = get_backend("te")
    for name, linear in list(model.named_modules()):
        if type(linear) is nn.Linear:
            new = backend._replace(linear, "current")
            assert new.weight is before[f"{name}.weight"] and new.weight.dtype == torch.float32
            assert (new.in_features, new.out_features) == (linear.in_features, linear.out_features)
    assert backend._replace(nn.Linear(16, 32, bias=False, dtype=torch.bfloat16), "current").bias.dtype == torch.bfloat16
    biased = nn.Linear(16, 32, dtype=torch.bfloat16)
    new = backend._replace(biased, "current")
    assert new.use_bias and new.bias is biased.bias and new.weight.dtype == torch.bfloat16


def test_checkpoints_have_the_plain_models_keys(te):
    """No `_extra_state`: it would be refused on loading, and a BF16 arm could not take over."""
    model, _, _ = converted("delayed")
    plain = Transformer(MODEL).bfloat16()
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    plain.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "recipe, kind",
    [("delayed", "DelayedScaling"), (None, "Float8CurrentScaling"), ("block", "Float8BlockScaling"), ("bf16", "none")],
)
def test_the_recipe_that_runs_in_each_phase(te, recipe, kind):
    model, backend, report = converted(recipe, BIG)
    assert report.recipe == (recipe or "current")
    before = [type(m) for m in model.modules()]
    for phase in ("fp8", "bf16", "fp8"):
        backend.switch(phase)
        te.forwards.clear()
        loss_of(model, backend, tokens()).backward()
        in_fp8 = phase == "fp8" and recipe != "bf16"
        assert te.forwards == [(in_fp8, kind if in_fp8 else "NoneType")] * LINEARS
        assert backend.state.in_fp8() == in_fp8 and [type(m) for m in model.modules()] == before
    # One recipe object: delayed scaling's histories hang on it.
    assert len({id(recipe) for enabled, recipe in te.entered if enabled}) == (recipe != "bf16")


def test_recomputation_uses_transformer_engines_checkpoint(te):
    model, backend, _ = converted("delayed")
    loss_of(model, backend, tokens()).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint_blocks(model, backend)
    loss_of(model, backend, tokens()).backward()
    assert te.checkpoints == MODEL.n_layers
    assert all(map(torch.equal, want, (p.grad for p in model.parameters())))


def test_dims_and_tokens(te):
    with pytest.raises(LabError, match=r"te block needs .* of 128; these are not: layers.0.attn.wq \(32 -> 32\)"):
        converted("block")
    with pytest.raises(LabError, match="multiples of 16"):
        converted("current", MODEL.replace(d_ffn=40))
    converted("bf16", MODEL.replace(d_ffn=40))
    with pytest.raises(LabError, match="multiple of 128 tokens per rank, not 192"):
        converted("block", BIG, tokens=192)
    converted("current", tokens=192)


def test_scales_that_come_from_earlier_steps_can_be_calibrated_and_no_others(te):
    converted("delayed", calibrate=3)
    for recipe in ("current", "bf16"):
        with pytest.raises(LabError, match=f"calibrate is for scales .*; te {recipe} finds its scales anew"):
            converted(recipe, calibrate=3)


@pytest.mark.parametrize(
    "setup, recipe, reason",
    [
        (dict(compute_capability=(8, 0)), "current", "compute capability 8.0, and FP8 products need"),
        (dict(fp8=(False, "CublasLt version 12.1.3.x or higher required")), "delayed", "CublasLt version 12.1.3.x"),
        (dict(block=(False, "requires CUDA >= 12.9.")), "block", "requires CUDA >= 12.9."),
        *((dict(compute_capability=(8, 0), fp8=(False, "old")), "bf16", ""), (dict(block=(False, "x")), "current", "")),
    ],
)
def test_availability_on_a_gpu(monkeypatch, setup, recipe, reason):
    fake_te.install(monkeypatch, **setup)
    able = availability("te", recipe)
    assert able.ok == (reason == "") and reason in able.reason
    on_cpu = availability("te", recipe, "cpu")
    assert not on_cpu.ok and on_cpu.fix == INSTALL_TE


def test_without_a_gpu_or_with_an_old_version(monkeypatch, te):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert availability("te").fix not in ("", INSTALL_TE), "what is installed needs a GPU"
    monkeypatch.delattr(sys.modules["transformer_engine.pytorch"], "autocast")
    assert availability("te").fix == INSTALL_TE, "it is too old"


def test_probe_reads_the_scale_that_transformer_engine_holds(te):
    model, backend, _ = converted("delayed")
    loss_of(model, backend, tokens()).backward()
    wq = model.layers["0"].attn.wq
    wq.fp8_meta["scaling_fwd"].scale.copy_(torch.tensor([8.0, 16.0, 1.0]))
    wq.fp8_meta["scaling_bwd"].scale.copy_(torch.tensor([32.0, 1.0]))
    with backend.probe():
        loss_of(model, backend, tokens()).backward()
    stats = backend.scales
    assert [stats[f"layers.0.attn.wq.{slot}"].scale for slot in ("input", "weight", "grad")] == [8.0, 16.0, 32.0]
    assert stats["layers.1.attn.wq.weight"].scale == 1.0  # delayed scaling's first scale
    assert stats["layers.1.attn.wq.grad"].underflow > 50  # and what it does to small gradients


@pytest.mark.parametrize("recipe", ["current", "block", "bf16"])
def test_probe_of_the_other_recipes(te, recipe):
    model, backend, _ = converted(recipe, BIG)
    with backend.probe():
        loss_of(model, backend, tokens()).backward()
    stats = backend.scales
    assert len(stats) == LINEARS * (1 if recipe == "bf16" else 4)
    if recipe == "bf16":
        return
    weight = model.layers["0"].ffn.w1.weight
    stat = stats["layers.0.ffn.w1.weight"]
    whole = 448 / weight.abs().max().item()
    assert stat.scale == pytest.approx(whole) if recipe == "current" else whole / 2 < stat.scale <= whole
    assert stats["layers.0.ffn.w1.grad"].sqnr > (24 if recipe == "current" else 30)  # E5M2, or E4M3 in blocks


def test_block_scales_are_read_as_the_library_keeps_them(te):
    """Padded, and transposed where they are per row. (Those of another recipe: test_scaling_choice.py.)"""
    x = torch.ones(130, 200)
    x[0, 5], x[129, 150] = 100.0, 0.0
    rows = tile_scales(x, te_recipe("block"), "input")
    assert rows.shape == x.shape and rows[0, 0] == rows[0, 127] == 4.0  # 448 / 100 = 4.48, down to a power of two
    assert (rows[0, 128:] == 256).all() and (rows[1:] == 256).all()
    squares = tile_scales(x, te_recipe("block"), "weight")
    assert (squares[:128, :128] == 4).all() and (squares[:, 128:] == 256).all() and (squares[128:] == 256).all()


def test_delayed_state_survives_a_restart(te):
    model, backend, _ = converted("delayed")
    assert backend.state.state_dict() == {}  # nothing has run yet
    loss_of(model, backend, tokens()).backward()
    wq = model.layers["0"].attn.wq
    wq.fp8_meta["scaling_fwd"].scale.fill_(3.0)
    wq.fp8_meta["scaling_bwd"].amax_history.fill_(7.0)
    saved = backend.state.state_dict()
    assert len(saved) == LINEARS * 4 and all(isinstance(t, torch.Tensor) for t in saved.values())
    again, restored, _ = converted("delayed")
    restored.state.load_state_dict(saved)
    wq = again.layers["0"].attn.wq
    assert (wq.fp8_meta["scaling_fwd"].scale == 3).all() and (wq.fp8_meta["scaling_bwd"].amax_history == 7).all()
    assert (again.layers["1"].attn.wq.fp8_meta["scaling_fwd"].scale == 1).all()
    restored.switch("bf16")
    assert restored.state.state_dict() == {}
    restored.state.load_state_dict(saved)  # nothing to put it into, and no error
    for recipe in ("current", "bf16"):
        _, stateless, _ = converted(recipe)
        assert stateless.state.state_dict() == {}
        stateless.state.load_state_dict(saved)  # a precision switch: nothing to take over
