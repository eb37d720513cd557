"""`lab plan --calibrate`: what is measured is what the planner then plans with."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from labkit.errors import LabError
from labkit.plan import calibrate
from labkit.plan.calibrate import Scale, fit_products
from labkit.plan.constants import constants
from labkit.plan.machine import CHIPS, Machine, Rates, alone, write_text
from labkit.plan.model import find_model
from labkit.plan.planner import plan
from labkit.plan.request import Request, find_cluster
from labkit.plan.search import search
from labkit.plan.work import FULL_POWER, product
from labkit.strict import load_toml

TINY = Scale(
    shapes=((128, 256, 256), (256, 128, 512)), attention=(2, 128), copied=2**20, message=2**16, each=0.01, heat=0
)
MINE = Machine(
    name="mine", tflops=989.0, fp8_tflops=1979.0, memory_gb=80.0, hbm_gbs=3350.0, sms=132, recent=True, per_node=4,
    link_gbs=450.0, network_gbs=20.0, rates=Rates(gemm_recent=0.5, wire=0.6, network=1.0),
)  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(write_text(MINE))
    return str(path)


def test_a_file_is_planned_with(mine):
    cluster = find_cluster(Request(gpu=mine, gpus=8))
    assert (cluster.per_node, cluster.intra, cluster.inter) == (4, 450e9, 20e9)
    planned = find_cluster(Request(gpu=mine, gpus=8, per_node=8, ib=50.0))
    assert (planned.per_node, planned.inter) == (8, 50e9)
    alike = planned._replace(chip=CHIPS["h100"])
    slow, known = (search(find_model("8b"), one, 64, ("bf16",)) for one in (planned, alike))
    # large products take as much longer as the share of peak is less; a ring as much as the wire is slower
    assert np.allclose(slow.step.gemm / known.step.gemm, constants().gemm_recent / 0.5, rtol=0.03)
    wide = (known.cases.tp == 8) & (known.cases.mbs == 8)
    assert np.allclose(slow.step.tensor[wide] / known.step.tensor[wide], constants().wire / 0.6, rtol=0.03)
    out = StringIO()
    assert plan(Request(gpu=mine, gpus=8, batch_tokens="512K"), Console(file=out, width=200)) == 0
    assert "on 8 mine (4 a node, 450 and 20 GB/s a GPU" in out.getvalue()


def test_the_fit_finds_the_share_and_the_start_that_made_the_times():
    chip = CHIPS["h100"]._replace(watts=FULL_POWER)
    shapes = [(m, n, d) for m in (2048, 8192) for n, d in ((4096, 4096), (14336, 4096), (4096, 14336), (1792, 8192))]
    truth = constants()._replace(gemm_recent=0.61, start=80.0)
    m, n, d = np.array(shapes, dtype=float).T
    seconds = product(alone(chip, len(shapes)), truth, (m, n, d)).tolist()
    k, error = fit_products(chip, shapes, seconds, constants())
    assert k.gemm_recent == pytest.approx(0.61, rel=1e-3) and k.start == 80 and error < 1e-3
    # one that a busy machine spoiled moves nothing: the share is a median
    k, _ = fit_products(chip, shapes, [seconds[0] * 5, *seconds[1:]], constants())
    assert k.gemm_recent == pytest.approx(0.61, rel=0.05)


def test_this_cpu_is_measured_and_planned_with(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "CPU", TINY)
    lines: list[str] = []
    path = tmp_path / "runs" / "cpu.toml"
    assert calibrate.calibrate(path, "cpu", lines.append) == 0
    found = load_toml(path, Machine)
    assert found.per_node == 2 and found.fp8_tflops == 0 and not found.recent and found.network_gbs is None
    rates = found.rates
    assert rates.gemm_older and 1e-4 < rates.flash_older < 10 and rates.wire == pytest.approx(1) and rates.alpha
    assert "float32" in found.measured and {*calibrate.describe(found)} <= {*lines}
    model = tmp_path / "tiny.toml"
    model.write_text("layers = 2\nhidden = 256\nheads = 4\nkv_heads = 4\nffn = 688\nvocab = 512\nseq = 128\n")
    out = StringIO()
    question = Request(model=str(model), gpus=2, gpu=str(path), batch_tokens="8K")
    assert plan(question, Console(file=out, width=200)) == 0 and "bf16" in out.getvalue()


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--calibrate", "--device", "tpu"], "--device is cuda or cpu"),
        (["--calibrate", "--device", "cuda"], "sees no GPU"),
        (["--out", "x.toml"], "--out and --device belong to --calibrate"),
        (["--gpu", "none.toml"], "there is no config file none.toml"),
    ],
)
def test_bad_input(words, shown, monkeypatch):
    import torch

    from labkit.cli import app

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(app, ["plan", *words])
    assert isinstance(done.exception, LabError) and shown in str(done.exception)


def test_a_file_that_says_something_else(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text(write_text(MINE).replace("sms = 132", "sms = 132\nspeed = 3"))
    with pytest.raises(LabError, match="'speed' is not a known key"):
        find_cluster(Request(gpu=str(path)))
