"""[precision] amax_epsilon and scales: chosen by operand, carried to the arithmetic, into flags and records; refused
where a backend has no such choice."""

import json
import re

import pytest
import torch

from labkit.errors import LabError
from labkit.precision import flags, student
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.registry import get_backend, spec_of
from labkit.precision.te_backend import te_recipe, tile_scales
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from tests.precision import fake_te
from tests.precision.precision_jobs import MODEL, decoder, loss_of, tokens

BIG = MODEL.replace(d_model=128, d_ffn=256, n_heads=2, n_kv_heads=2)
EPSILON = {"input": 0.5, "weight": 0.25, "gradient": 1e-3}
MIXED = {"input": "fp32", "weight": "e8m0", "gradient": "fp32"}
ASKED = {"amax_epsilon": EPSILON, "scales": MIXED}


def converted(name, recipe=None, config=BIG, device=None, **options):
    model = decoder(config=config)
    backend = get_backend(name)
    backend.convert(model, PrecisionSpec(recipe, ("head",), device=device, **options))
    return model, backend


# ---- what a configuration may say


def test_one_for_all_and_one_each():
    said = PrecisionConfig(amax_epsilon=1e-12, scales="e8m0")
    assert said.amax_epsilon.model_dump() == dict.fromkeys(flags.OPERANDS, 1e-12)
    assert said.scales.model_dump() == dict.fromkeys(flags.OPERANDS, "e8m0")
    part = PrecisionConfig(amax_epsilon={"gradient": 1e-12}, scales={"weight": "e8m0"})
    spec = spec_of(part.replace(backend="week16"))
    assert spec.amax_epsilon == {"gradient": 1e-12} and spec.scales == {"weight": "e8m0"}
    assert spec_of(PrecisionConfig()).amax_epsilon == spec_of(PrecisionConfig()).scales == {}
    again = strict_validate(PrecisionConfig, json.loads(part.model_dump_json()))
    assert again == part


@pytest.mark.parametrize(
    "wrong, shown",
    [
        ({"amax_epsilon": 1e12}, "in [precision.amax_epsilon], input must be less than 1"),
        ({"amax_epsilon": {"inputs": 0.1}}, "in [precision.amax_epsilon], 'inputs' is not a known key"),
        ({"amax_epsilon": {"weight": -1.0}}, "in [precision.amax_epsilon], weight must be at least 0"),
        ({"amax_epsilon": True}, "amax_epsilon must be a table"),
        ({"scales": {"weight": "fp16"}}, "in [precision.scales], weight must be one of 'fp32' or 'e8m0', not 'fp16'"),
    ],
)
def test_a_mistake_is_shown_with_its_place(wrong, shown):
    with pytest.raises(LabError, match=re.escape(shown)):
        strict_validate(TrainConfig, {"precision": wrong}, "run.toml")


@pytest.mark.parametrize("options", [{"amax_epsilon": {"weight": 1e-9}}, {"scales": {"input": "fp32"}}])
def test_a_recipe_without_the_choice_refuses_it(options):
    with pytest.raises(LabError, match=f"so there is no {next(iter(options))} to choose"):
        converted("torchao", "tensorwise", **options)


def test_what_transformer_engine_cannot_do_on_blackwell_is_refused(monkeypatch):
    fake_te.install(monkeypatch, compute_capability=(10, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(LabError, match='powers of two on Blackwell, and nothing else: take scales = "e8m0"'):
        converted("te", "block", device="cuda", scales={"gradient": "fp32"})
    converted("te", "block", device="cuda", scales=dict.fromkeys(flags.OPERANDS, "e8m0"), amax_epsilon=EPSILON)


def test_fp8_parameters_keep_their_powers_of_two():
    with pytest.raises(LabError, match='emulated block uses others here: take scales.weight = "e8m0"'):
        converted("emulated", "block", fp8_parameters=True, scales={"weight": "fp32"})
    converted("emulated", "block", fp8_parameters=True, scales={"input": "fp32"})


# ---- where it arrives


def expected(x, largest, epsilon, powers):
    """The scale of a whole tensor, by the definition."""
    scale = largest / max(x.abs().max().item(), epsilon)
    return 2.0 ** torch.tensor(scale).log2().floor().item() if powers else scale


def test_the_own_linear_computes_with_it():
    model, backend = converted("week16", **ASKED)
    with backend.probe():
        loss_of(model, backend, tokens()).backward()
    stats, wq = backend.scales, model.layers["0"].attn.wq
    weight = stats["layers.0.attn.wq.weight"].scale
    # 448 / 0.25 = 1792; its amax is smaller.
    assert weight == expected(wq.weight, 448, EPSILON["weight"], True) == 1024.0
    assert stats["layers.0.attn.wq.grad"].scale == pytest.approx(57344 / EPSILON["gradient"], rel=1e-6)
    big, small = torch.full((1, 128), 3.0), torch.full((1, 128), 0.01)
    for x in (big, small):
        want = expected(x, 448, EPSILON["input"], False)
        assert float(wq.scaling("input", x)[1]) == pytest.approx(want, rel=1e-6)
    plain, _ = converted("week16")
    assert not torch.equal(model.layers["0"].attn.wq(small), plain.layers["0"].attn.wq(small))


def test_transformer_engines_recipe_carries_it(monkeypatch):
    fake_te.install(monkeypatch)
    _, backend = converted("te", "block", device="cuda", **ASKED)
    recipe = backend._te_recipe()
    for operand, field in (("input", "fwd_inp"), ("weight", "fwd_weight"), ("gradient", "bwd_grad")):
        how = getattr(recipe, f"fp8_quant_{field}")
        assert (how.amax_epsilon, how.power_2_scale) == (EPSILON[operand], MIXED[operand] == "e8m0")
    assert te_recipe("block").fp8_quant_fwd_inp.amax_epsilon == 0.0, "the library's own recipe is as it was"
    x = torch.full((2, 128), 1e-3)
    assert float(tile_scales(x, recipe, "input")[0, 0]) == pytest.approx(448 / 0.5)
    assert float(tile_scales(x, recipe, "weight")[0, 0]) == 1024.0
    only = te_recipe("block", {"input": 0.1}, {})
    assert only.fp8_quant_fwd_inp.power_2_scale and only.fp8_quant_fwd_weight.amax_epsilon == 0.0


# ---- flags, records, checkpoints


@pytest.mark.parametrize("name, recipe", [("week16", None), ("emulated", "tensorwise"), ("emulated", "block")])
def test_flags_and_evidence_say_it(name, recipe):
    model, backend = converted(name, recipe, **ASKED)
    said, seen = backend.state.flags(), backend.evidence(model)
    assert said["amax_epsilon"] == seen["amax_epsilon"] == EPSILON
    assert said["power_of_two"] == seen["power_of_two"] == {"input": False, "weight": True, "gradient": False}
    _, plain = converted(name, recipe)
    assert plain.state.flags()["amax_epsilon"] == 0.0, "one word where all are alike, as older checkpoints have it"
    assert plain.state.flags()["power_of_two"] is (recipe == "block")


def test_a_student_without_the_choice_is_shown(monkeypatch):
    class Bare(torch.nn.Linear):
        pass

    monkeypatch.setattr(student, "load", lambda part: Bare)
    with pytest.raises(LabError, match="Bare has no `scaled`, so amax_epsilon and scales cannot reach it"):
        converted("week16", scales={"input": "fp32"})
    assert converted("week16")[1].state.flags()["forward"] is None
