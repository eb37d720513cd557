"""The pool that error rates are measured on: its trainings are real ones, its comparisons are drawn fairly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from labkit.comm.ranks import run_ranks
from labkit.precision.broken import eagerly
from labkit.precision.torchao_backend import float8_utils
from studies.verdict import operating
from studies.verdict.faults import Fault, Rounding
from studies.verdict.pool import describe, train_run
from tests.compare.comparing import ROOT

SHAPE = dict(vocab_size=300, d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ffn=64, max_seq_len=16)


@pytest.mark.thorough
def test_a_run_of_the_pool_has_its_fault_and_its_seed():
    data = {"source": [str(ROOT / "labkit" / "train")], "vocab_size": 300, "heldout_fraction": 0.2}
    train = dict(model=SHAPE, seq_len=16, batch_size=2, steps=3, eval_every=1, eval_batches=1, perturb=2.0**-5, lr=1e-2)
    runs = [(None, 3), (None, 5), (Fault("none"), 3), (Fault("mantissa", 0), 3), (Fault("mantissa", 0, blocks=1), 3)]
    found = [run_ranks(train_run, {**train, "data": data}, runs[at:], size=2, timeout=None) for at in (0, 2, 4)]
    lines = [line for each in found for line in each if line]
    assert [(line["kind"], line["seed"]) for line in lines] == [(describe(fault)["kind"], seed) for fault, seed in runs]
    assert all(list(line["heldout"]) == [1, 2, 3] for line in lines)
    bf16, other, right, wrong, half = (line["heldout"][3] for line in lines)
    assert abs(wrong - bf16) > abs(half - bf16) > 0 and len({bf16, other, right, wrong, half}) == 5


def rounding(fault: Fault) -> Rounding:
    return Rounding(fault, nn.Linear(1, 1))


def test_correct_fp8_rounds_as_torchao_scales():
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    want = eagerly(x, torch.float8_e4m3fn, float8_utils().tensor_to_scale(x, torch.float8_e4m3fn))
    torch.testing.assert_close(rounding(Fault("none")).rounded("input", x), want, rtol=0, atol=0)


def test_each_fault_is_what_it_says():
    x = torch.linspace(-3, 3, 96).reshape(8, 12)
    right = {slot: rounding(Fault("none")).rounded(slot, x) for slot in ("input", "grad")}

    def error(fault: Fault, slot: str) -> float:
        return float((rounding(fault).rounded(slot, x) - x).norm() / (right[slot] - x).norm())

    assert error(Fault("e5m2"), "input") > 1.7 and error(Fault("e5m2"), "grad") == 1
    assert [error(Fault("mantissa", bits), "grad") for bits in (0, 2)] == [1, 1]
    none, one, two = (error(Fault("mantissa", bits), "input") for bits in range(3))
    assert none > one > two
    flushed = rounding(Fault("flush", 0.5)).rounded("grad", x)
    assert ((flushed == 0) == (x.abs() < 1.5)).all() and error(Fault("flush", 0.5), "input") == 1
    assert rounding(Fault("unscaled")).rounded("input", x * 1e-4).count_nonzero() == 0, "below E4M3's smallest"
    assert rounding(Fault("unscaled")).rounded("grad", x * 1e-4).count_nonzero() > 0


def test_simulated_rates_know_the_true_gap():
    rng = np.random.default_rng(0)
    bf16, fault = (rng.normal(mean, 0.05, 40) for mean in (0.0, 0.6))
    design, scene = operating.DESIGNS[operating.CHOSEN], operating.Scene(bf16, bf16, bf16, (0.05, 0.05))
    scenes = scene, replace(scene, gap=0.5), replace(scene, candidate=fault), replace(scene, candidate=fault, gap=0.0)
    none, half, real, moved = (operating.simulate(rng, design, one, 200) for one in scenes)
    assert none["same"] > 0.95 and half["different"] > 0.95 and real["different"] > 0.95 and moved["same"] > 0.95
    assert min(rates["covered"] for rates in (none, half, real)) > 0.85
    assert 2 <= none["runs"] < 2.5, "a second look is taken by the undecided alone"
    assert sum(none[word] for word in operating.WORDS) == pytest.approx(1)
