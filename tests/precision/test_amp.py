"""Automatic mixed precision: which products autocast takes, in which type, from which weights; and where it can run."""

import pytest
import torch

from labkit.comm.ranks import RankPool
from labkit.model.decoder import RMSNorm
from labkit.precision.products import SWITCH
from labkit.precision.registry import get_backend
from tests.precision import precision_jobs as jobs
from tests.precision.precision_jobs import LINEARS, convert, decoder, loss_of, tokens

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def products_as_they_were():
    before = SWITCH.now, SWITCH.half
    yield
    SWITCH.now, SWITCH.half = before


@pytest.mark.parametrize("recipe", DTYPES)
def test_every_product_is_cast_and_nothing_else(recipe):
    model, backend = decoder(), get_backend("amp")
    report = convert(backend, model, recipe, ["head"])
    assert len(report.converted) == LINEARS + 1 and report.converted[-1] == "head" and report.skipped == {}
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | RMSNorm):
            module.register_forward_hook(lambda m, args, y, name=name: seen.update({name: y.dtype}))
    loss = loss_of(model, backend, tokens())
    loss.backward()
    assert {seen[name] for name in report.converted} == {DTYPES[recipe]}
    assert {dtype for name, dtype in seen.items() if name not in report.converted} == {torch.float32}
    assert loss.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    assert {p.dtype for p in model.parameters()} | {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_a_probe_tells_which_format_ran():
    """51 and 69 dB measured: x, w and y lose a rounding each, and FP16's are 2^3 times finer, 18 dB. FP32 rounds
    nothing that the reference does not."""
    worst = {}
    for name, recipe in (("fp32", None), ("amp", "bf16"), ("amp", "fp16")):
        model, backend = decoder(), get_backend(name)
        convert(backend, model, recipe)
        with backend.probe():
            loss_of(model, backend, tokens()).backward()
        worst[recipe] = [stat.sqnr for key, stat in backend.scales.items() if key.startswith("layers.")]
        assert len(worst[recipe]) == LINEARS
    assert 46 < min(worst["bf16"]) <= max(worst["bf16"]) < 60 and min(worst[None]) > 100
    assert 64 < min(worst["fp16"]) <= max(worst["fp16"]) < 78


def test_fp16_products_go_through_fp32_and_are_rounded_once():
    """[64, 96] @ [96, 32]: products of FP16 numbers are exact in FP32, so the sum's order and one rounding stay."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=draw).half() for shape in ((64, 96), (96, 32)))
    convert(get_backend("amp"), decoder(), "fp16")
    assert SWITCH.half
    exact = a.double() @ b.double()
    # One rounding: half of FP16's 2^-10, of the result; FP32's 96 sums are 2^-24 each, of what is summed.
    allowed = exact.abs() * 2**-11 + (a.double().abs() @ b.double().abs()) * 96 * 2**-24
    assert ((a @ b).double() - exact).abs().le(allowed).all()
    assert torch.equal(a @ b, (a.float() @ b.float()).half())
    with pytest.raises(RuntimeError):
        a @ b.bfloat16()


@pytest.mark.thorough
def test_on_two_ranks_and_with_checkpoints_it_is_the_same_training():
    """Sharded by FSDP2 over two processes, blocks recomputed: the mean of the ranks' losses is one rank's. At first to
    FP32's rounding: a row's products are its own. After updates to 1e-3: each rank rounds its weight gradients to 16
    bits before they are averaged, 2^-9 off at most, and Adam's first updates make as much of small gradients as of
    large ones (2e-4 measured)."""
    with RankPool(2) as two, RankPool(1) as one:
        for recipe in DTYPES:
            both = two.run(jobs.train_sharded, "amp", recipe, "block", timeout=180.0)
            (alone,) = one.run(jobs.train_sharded, "amp", recipe, "none", timeout=180.0)
            mean = [(a + b) / 2 for a, b in zip(*(result["losses"] for result in both))]
            assert mean[0] == pytest.approx(alone["losses"][0], rel=1e-6)
            assert mean == pytest.approx(alone["losses"], rel=1e-3) and mean[2] < mean[0] - 0.2
            assert both[0]["inside"] == {"('Parameter', torch.float32)"}  # gathered in FP32; the cast is autocast's
            assert both[0]["scales"] == LINEARS + 1
