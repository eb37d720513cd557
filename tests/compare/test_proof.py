"""The pool that error rates are measured on: its trainings are real ones, its comparisons are drawn fairly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.precision.broken import eagerly
from labkit.precision.torchao_backend import float8_utils
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from studies.verdict import operating
from studies.verdict.faults import Fault, Rounding
from studies.verdict.together import train_together
from tests.compare.comparing import ROOT

SHAPE = dict(vocab_size=300, d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ffn=64, max_seq_len=16)


def config(**more) -> TrainConfig:
    data = {"source": [str(ROOT / "labkit" / "train")], "vocab_size": 300, "heldout_fraction": 0.2}
    settings = dict(model=SHAPE, seq_len=16, batch_size=2, steps=3, eval_every=1, eval_batches=1, perturb=2.0**-5)
    return strict_validate(TrainConfig, {**settings, "data": data, "lr": 1e-2, **more}, "the test")


class Text:
    """A corpus of random tokens."""

    def batch(self, step, rows, seq_len, seed, split="train"):
        generator = torch.Generator().manual_seed(step + 1000 * (split == "heldout"))
        return torch.randint(0, 300, (rows, seq_len + 1), generator=generator)


def test_runs_that_train_together_are_those_that_train_alone():
    """Their products lie in one batch; a matrix product of another shape may add up in another order: a rounding of
    BF16, 2^-9, in some activations, and less in a mean over 32 losses."""
    both = train_together(config(), Text(), Fault("none"), [3, 5])
    assert both[0] != both[1]
    for run, seed in enumerate((3, 5)):
        alone = train_together(config(), Text(), Fault("none"), [seed])[0]
        assert both[run] == pytest.approx(alone, rel=2**-11)


def test_correct_fp8_rounds_as_torchao_scales():
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-3]).view(2, 1, 1)
    got = Rounding(Fault("none")).rounded("input", x, training=True)
    for run in range(2):
        want = eagerly(x[run], torch.float8_e4m3fn, float8_utils().tensor_to_scale(x[run], torch.float8_e4m3fn))
        torch.testing.assert_close(got[run], want, rtol=1e-6, atol=0)  # the scale's own rounding, in FP32


def test_each_fault_is_what_it_says():
    x = torch.linspace(-3, 3, 96).reshape(1, 8, 12)
    right = {slot: Rounding(Fault("none")).rounded(slot, x, True) for slot in ("input", "grad")}

    def error(fault: Fault, slot: str) -> float:
        return float((Rounding(fault).rounded(slot, x, True) - x).norm() / (right[slot] - x).norm())

    assert error(Fault("e5m2"), "input") > 1.7 and error(Fault("e5m2"), "grad") == 1
    assert [error(Fault("mantissa", bits), "grad") for bits in (0, 2)] == [1, 1]
    none, one, two = (error(Fault("mantissa", bits), "input") for bits in range(3))
    assert none > one > two
    flushed = Rounding(Fault("flush", 0.5)).rounded("grad", x, True)
    assert ((flushed == 0) == (x.abs() < 1.5)).all() and error(Fault("flush", 0.5), "input") == 1
    assert Rounding(Fault("unscaled")).rounded("input", x * 1e-4, True).count_nonzero() == 0, "below E4M3's smallest"
    assert Rounding(Fault("unscaled")).rounded("grad", x * 1e-4, True).count_nonzero() > 0


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
