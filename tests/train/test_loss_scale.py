"""Loss scaling: torch's rule, moved by the verdict that the loop gives for all ranks; a skipped step is an event."""

import copy

import pytest
import torch

from labkit.errors import LabError
from labkit.precision.config import LossScaling, PrecisionConfig
from labkit.precision.products import SWITCH
from labkit.record.run import read_run
from labkit.train.loss_scale import LossScale
from tests.train import training_jobs as jobs
from tests.train.training_jobs import Burst, Hook, small_config
from week16_fp8.loss_scaling import LossScaler as Taught


@pytest.fixture(autouse=True)
def products_as_they_were():
    before = SWITCH.now, SWITCH.half
    yield
    SWITCH.now, SWITCH.half = before


def job(group, config, run_dir, hooks):
    own = copy.deepcopy(hooks)  # ranks may be threads
    return {**jobs.run_converted(group, config, run_dir, own), "hooks": own}


def here(config, run_dir=None, hooks=(), size=1):
    return jobs.here(config, run_dir, hooks, job=job, size=size)


def fp16(steps=6, recovery=None, checkpoint_every=0, **scaling):
    precision = PrecisionConfig(backend="amp", recipe="fp16", loss_scaling=LossScaling(**scaling))
    run = dict(steps=steps, eval_every=steps, eval_batches=1, checkpoint_every=checkpoint_every)
    return small_config(**run, recovery=recovery or {}, precision=precision)


class Watch(Hook):
    """The scale and the largest gradient that hooks see, by step."""

    def __init__(self):
        self.scale, self.amax = [], []

    def after_backward(self, loop):
        self.scale.append(loop.loss_scale.value)
        self.amax.append(max(float(p.grad.abs().max()) for p in loop.model.parameters()))


def test_the_scale_moves_as_torchs_scaler_and_as_the_taught_one():
    """Any row of verdicts: the scale after each is what torch.amp.GradScaler gives that sees such gradients."""
    draw = torch.Generator().manual_seed(0)
    for interval in (1, 3, 5):
        ours = LossScale(LossScaling(initial=1024.0, growth_interval=interval))
        taught = Taught(init_scale=1024.0, growth_interval=interval)
        theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
        weight = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        theirs.scale(torch.ones(()))
        seen = set()
        for finite in (torch.rand(40, generator=draw) < 0.8).tolist():
            weight.grad = torch.tensor([1.0, 2.0 if finite else float("inf"), 3.0])
            theirs.step(optimizer)
            theirs.update()
            fell = ours.follow(finite)
            taught.update(finite)
            assert ours.value == theirs.get_scale() == taught.scale and bool(fell) == (not finite)
            seen.add(ours.value)
        assert len(seen) >= 4, "it has moved"


def test_hooks_and_updates_see_gradients_without_the_scale():
    """Powers of two change no bit of a gradient that FP16 holds either way: the two runs' gradients are alike to FP16's
    rounding, and their losses to the last step."""
    watched = {}
    for initial in (2.0**8, 2.0**14):
        result = here(fp16(initial=initial, dynamic=False), hooks=(Watch(),))[0]
        watched[initial] = result["hooks"][0], result["losses"]
    (low, losses), (high, same) = watched.values()
    assert low.amax == pytest.approx(high.amax, rel=2e-3) and losses == pytest.approx(same, rel=1e-4)
    assert low.scale == [2.0**8] * 6 and high.scale == [2.0**14] * 6
    plain = here(small_config(precision={"backend": "fp32"}), hooks=(Watch(),))[0]["hooks"][0]
    assert low.amax[0] == pytest.approx(plain.amax[0], rel=1e-2), "the scale is divided out, not only alike"


def test_an_overflow_is_skipped_reported_and_halves_the_scale(tmp_path):
    """2^40 overflows FP16 in every product until 2^40 times a gradient is below 65504."""
    config = fp16(steps=3, initial=2.0**40, recovery={"lower_after": 1, "give_up_after": 20})
    result = here(config, tmp_path)[0]
    record = read_run(tmp_path)
    assert result["skipped"] == [1, 2, 3] and result["recovery"]["rate"] == 1.0, "no fault of the learning rate"
    assert [line["loss_scale"] for line in record.steps] == [2.0**40, 2.0**39, 2.0**38]
    events = [event for event in record.events if event["kind"] == "nonfinite"]
    assert [(event["step"], event["action"]) for event in events] == [(k, "skip") for k in (1, 2, 3)]
    clean = jobs.plain_model(config)
    assert all(torch.equal(result["weights"][name], p) for name, p in clean.named_parameters())


def test_at_a_scale_that_helps_no_more_recovery_takes_over(tmp_path):
    config = fp16(steps=4, initial=2.0, recovery={"lower_after": 1})
    result = here(config, tmp_path, hooks=(Burst(1, 3),))[0]
    assert result["skipped"] == [1, 2, 3] and result["recovery"]["rate"] == 0.25  # 2 -> 1 is routine, then twice not


def test_one_ranks_overflow_is_every_ranks():
    """The gradient of rank 1 alone is spoilt: both skip, both halve, and their weights stay alike."""
    both = here(fp16(steps=4, initial=1024.0), size=2, hooks=(Burst(2, 1, rank=1), jobs.Average(), Watch()))
    for result in both:
        assert result["skipped"] == [2] and result["hooks"][2].scale == [1024.0, 1024.0, 512.0, 512.0]
    jobs.same_weights(both[0]["weights"], both[1]["weights"])


def test_a_resumed_run_goes_on_with_its_scale_and_its_count(tmp_path):
    """Growth after 3 good steps; the checkpoint is of step 4, one good step after the first growth."""
    config = fp16(steps=7, initial=256.0, growth_interval=3, checkpoint_every=4)
    whole = here(config, hooks=(Watch(),), run_dir=tmp_path / "whole")[0]
    assert whole["hooks"][0].scale == [256.0] * 3 + [512.0] * 3 + [1024.0]
    here(config, tmp_path / "cut", hooks=(jobs.StopAt(4),))
    rest = here(config, tmp_path / "cut", hooks=(Watch(),))[0]
    assert rest["resumed_from"] == 4 and rest["hooks"][0].scale == [512.0, 512.0, 1024.0]
    jobs.same_weights(rest["weights"], whole["weights"])


def test_only_fp16_scales_its_loss():
    assert PrecisionConfig(backend="amp", recipe="fp16").scaled_loss == LossScaling()
    assert PrecisionConfig(backend="amp").scaled_loss is None and PrecisionConfig().scaled_loss is None
    with pytest.raises(LabError, match="loss_scaling is for backend amp with recipe fp16"):
        PrecisionConfig(backend="amp", recipe="bf16", loss_scaling=LossScaling())
    with pytest.raises(LabError, match="initial must be"):
        PrecisionConfig(backend="amp", recipe="fp16", loss_scaling={"initial": 0.0})
