"""Transformer Engine's FP8 parameters, as far as they can be tested without a GPU: against the stand-in fake_te.py."""

import sys
import weakref

import pytest
import torch

from labkit.comm.ranks import RankPool
from labkit.errors import LabError
from labkit.precision.recipes import INSTALL_TE
from labkit.precision.registry import availability, get_backend
from labkit.precision.te_backend import no_flat_copy
from labkit.train.optim import MasterAdamW
from tests.precision import fake_te, te_jobs
from tests.precision.precision_jobs import convert
from week16_fp8.blockwise import on_grid


@pytest.fixture
def te(monkeypatch):
    return fake_te.install(monkeypatch)


def quantised():
    model, backend = te_jobs.build()
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    return model, backend, first, backend.parameters.quantise()


def test_the_weights_become_fp8_and_the_masters_are_what_they_were(te):
    model, backend, first, masters = quantised()
    names = {p: name for name, p in model.named_parameters()}
    assert {names[p] for p in masters} == {f"{name}.weight" for name in backend.modules}
    assert len(masters) == te_jobs.LINEARS
    for parameter, master in masters.items():
        assert isinstance(parameter, fake_te.QuantizedTensor) and parameter.requires_grad
        assert parameter.view(-1).numel() == parameter.numel(), "not sharded: as it was"
        assert torch.equal(master, first[names[parameter]]) and master.dtype == torch.float32
        assert torch.equal(backend.parameters.values(parameter), on_grid(master, True))
        assert parameter.get_high_precision_init_val() is None  # its CPU copy was given back
    assert torch.equal(model.head.weight, first["head.weight"]) and backend.evidence(model)["fp8_parameters"] == 7


def test_an_update_goes_to_the_master_and_its_rounding_to_the_parameter(te):
    model, backend, _, masters = quantised()
    optimizer = MasterAdamW([{"params": list(model.parameters())}], masters, backend.parameters, lr=1e-2)
    parameter = next(iter(masters))
    before = masters[parameter].clone()
    parameter.grad = torch.ones_like(before)
    optimizer.step()
    after = optimizer.masters()[parameter]
    assert (after < before).all() and torch.equal(backend.parameters.values(parameter), on_grid(after, True))


def test_flags_are_read_from_the_recipe_itself(te, monkeypatch):
    _, backend = te_jobs.build()
    want = {"scaling": "block", "block": 128, "power_of_two": True, "forward": "e4m3", "backward": "e4m3"}
    assert want.items() <= backend.state.flags().items()
    monkeypatch.setattr(fake_te.Float8BlockScaling, "fp8_quant_fwd_weight", fake_te.QParams(False))
    assert backend.state.flags()["power_of_two"] == {"input": True, "weight": False, "gradient": True}
    with pytest.raises(LabError, match="te block uses others here: unset NVTE_FP8_BLOCK_SCALING_FP32_SCALES"):
        te_jobs.build()
    monkeypatch.undo()
    fake_te.install(monkeypatch)
    with pytest.raises(LabError, match="multiples of 256, or a block of 128 rows .* layers.0.attn.wq .128."):
        te_jobs.build(ranks=2)


@pytest.mark.parametrize("name, recipe", [("te", "current"), ("bf16", None), ("emulated", "tensorwise")])
def test_other_recipes_refuse(te, name, recipe):
    model, device = torch.nn.Sequential(torch.nn.Linear(128, 128)).to("meta"), "cuda" if name == "te" else "cpu"
    with pytest.raises(LabError, match="FP8 params do not go together: FP8 parameters need power-of-two scales"):
        convert(get_backend(name), model, recipe, device=device, fp8_parameters=True)


def test_a_transformer_engine_without_it_is_explained(te, monkeypatch):
    monkeypatch.delattr(sys.modules["transformer_engine.pytorch"], "quantized_model_init")
    assert availability("te", "block").ok
    assert availability("te", "block", fp8_parameters=True).fix == INSTALL_TE


def test_only_the_flat_view_is_refused(te):
    weight = fake_te.quantize(torch.randn(128, 256))
    no_flat_copy(weight)
    assert weight.view(-1).numel() == weight.view(-1).untyped_storage().nbytes() == 0
    assert weight.view(torch.Size([128, 256])).shape == (128, 256)
    assert torch.equal(weight.view(256, 128), weight.dequantize().view(256, 128))
    assert weight.view(-1, 256).shape == (128, 256) and weight.view(size=(256, 128)).shape == (256, 128)
    codes, scale = torch.zeros(128, 256, dtype=torch.uint8, device="meta"), torch.ones(1, 2, device="meta")
    far = fake_te.QuantizedTensor(codes, scale, torch.float32)
    no_flat_copy(far)
    assert far.view(-1).device == far.device
    alive = weakref.ref(far)
    del far
    assert alive() is None, "freed at once, without the garbage collector"


@pytest.mark.thorough
def test_two_ranks_gather_fp8_and_resume(tmp_path):
    """torch's own FSDP2, with a tensor type that gathers codes and scales, as Transformer Engine's does."""
    with RankPool(1) as one, RankPool(2) as two:
        # FSDP2 takes a shortcut on one rank, which brings the first of a weight's tensors alone: a GPU showed it.
        (alone,) = one.run(te_jobs.train_sharded, None, None, timeout=120.0)
        straight = two.run(te_jobs.train_sharded, None, None, timeout=120.0)
        two.run(te_jobs.train_sharded, tmp_path, 2, timeout=120.0)
        resumed = two.run(te_jobs.train_sharded, tmp_path, None, timeout=120.0)
    assert straight[0]["losses"] == straight[1]["losses"] and straight[0]["losses"][4] < straight[0]["losses"][1]
    # A gather of a 256 x 256 weight: 128 rows of codes a rank, and 1 x 2 scales.
    assert {bytes_ for rank in straight for bytes_ in rank["gathered"]} == {128 * 256 + 2 * 4}
    assert set(alone["gathered"]) == {256 * 256 + 4 * 4}
    assert alone["losses"] == pytest.approx(straight[0]["losses"], rel=1e-3)
    assert straight[0]["flat"] == alone["flat"] == [0] * 7, "an FP32 copy of each shard that nobody reads"
    assert straight[0]["evidence"]["fp8_parameters"] == 7 and straight[0]["dtypes"] == {"torch.bfloat16"}
    for rank in (0, 1):
        assert resumed[rank]["resumed_from"] == 2 and resumed[rank]["losses"] == straight[rank]["losses"]
        for name, master in straight[rank]["masters"].items():
            assert torch.equal(resumed[rank]["masters"][name], master), name
            assert torch.equal(straight[rank]["values"][name], on_grid(master, True)), name
