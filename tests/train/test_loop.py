"""The loop: what is computed, what is refused, what is recorded.

Most tests run it in this process (ranks on threads, no sharding); those that need FSDP2 use rank processes.
"""

import itertools
import json
import time
from contextlib import contextmanager
from dataclasses import asdict

import pytest
import torch

from labkit.errors import LabError
from labkit.precision.base import Backend
from labkit.precision.probe import ScaleStat
from labkit.record.run import read_run
from labkit.train import optim
from labkit.train.loop import Hook
from tests.train import training_jobs as jobs
from tests.train.training_jobs import here, same_weights, sharded, small_config

# Two runs that add the same fp32 numbers in another order. One addition errs by 6e-8 of the result; AdamW divides
# each gradient by its own size, so a gradient near zero can turn such an error into a visible part of a step.
SUMMATION = dict(rtol=0, atol=2e-5)  # lr 1e-2, 6 steps: largest seen 1.5e-7; without averaging: 6e-2
LOSSES = dict(rel=1e-5)  # losses are means over 64 and more tokens


def same_run(a, b):
    """Equal but for the order of additions. Gradient norms too: clipping and AdamW would hide a constant factor."""
    assert a["losses"] == pytest.approx(b["losses"], **LOSSES)
    assert a["heldout"] == pytest.approx(b["heldout"], **LOSSES)
    assert a["grad_norms"] == pytest.approx(b["grad_norms"], rel=1e-5)
    same_weights(a["weights"], b["weights"], **SUMMATION)


# ---- the same numbers, however the work is shared


@pytest.fixture(scope="module")
def reference():
    return here(small_config())[0]


def test_it_learns(reference):
    assert list(reference["losses"]) == [1, 2, 3, 4, 5, 6] and list(reference["heldout"]) == [3, 6]
    assert reference["losses"][1] == pytest.approx(5.55, abs=0.1)  # log 257: knows nothing
    assert reference["heldout"][6] < reference["heldout"][3] < 5.3
    assert reference["tokens"] == 6 * 8 * 16 and reference["skipped"] == []


@pytest.mark.parametrize("size", [1, 2])
def test_fsdp_on_any_number_of_ranks_is_the_plain_run(pools, reference, size):
    results = sharded(pools, size, small_config())
    for result in results:
        same_run(result, reference)
    assert results[0]["losses"] == results[-1]["losses"]  # every rank gets the same


@pytest.mark.parametrize("accumulation", [2, 8])
def test_accumulation_changes_nothing(reference, accumulation):
    same_run(here(small_config(accumulation=accumulation))[0], reference)


def test_a_hook_can_do_the_data_parallelism(reference):
    for result in here(small_config(), size=2, hooks=(jobs.Average(),)):
        same_run(result, reference)


def test_ranks_that_share_a_part_of_the_batch(reference):
    # As in tensor parallelism: both ranks compute the whole batch.
    for result in here(small_config(), size=2, data_share=(0, 1)):
        same_run(result, reference)


@pytest.mark.parametrize("batch, size, accumulation, says", [(8, 3, 1, "6 or 9"), (2, 3, 1, "batch_size 3")])
def test_a_batch_that_does_not_divide(batch, size, accumulation, says):
    message = f"batch_size {batch} does not divide by {size} ranks x {accumulation} micro.*{says}"
    with pytest.raises(LabError, match=message):
        here(small_config(batch_size=batch, accumulation=accumulation), size=size)


# ---- the optimizer


def test_learning_rate():
    config = small_config(steps=10, warmup_steps=4, lr=1.0, min_lr_ratio=0.1)
    lrs = [optim.learning_rate(config, step) for step in range(1, 11)]
    assert lrs[:4] == [0.25, 0.5, 0.75, 1.0]
    assert lrs[6] == pytest.approx(0.55)  # half way down: the mean of 1 and 0.1
    assert lrs[9] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(lrs[3:]))
    flat = small_config(steps=3, warmup_steps=3, lr=1.0)
    assert optim.learning_rate(flat, 3) == 1.0


def test_only_matrices_decay():
    config = small_config(weight_decay=0.3)
    groups = optim.adamw(jobs.plain_model(config), config).param_groups
    assert {(p.ndim, g["weight_decay"]) for g in groups for p in g["params"]} == {(2, 0.3), (1, 0.0)}
    assert groups[0]["betas"] == config.betas and groups[0]["eps"] == config.adam_eps


class Norms(Hook):
    """The norm of the gradients as the optimizer gets them."""

    def __init__(self):
        self.norms, self.lrs = [], []

    def on_start(self, loop):
        step = loop.optimizer.step

        def seen():
            grads = [p.grad.flatten() for p in loop.model.parameters()]
            self.norms.append(torch.cat(grads).norm().item())
            self.lrs.append(loop.optimizer.param_groups[0]["lr"])
            return step()

        loop.optimizer.step = seen


def test_the_optimizer_gets_clipped_gradients_and_the_step_s_rate():
    hook = Norms()
    config = small_config(clip_norm=0.5)
    here(config, hooks=(hook,))
    assert hook.norms == pytest.approx([0.5] * 6, rel=1e-4)  # all above 1 before; fp32 sums of 18,000
    assert hook.lrs == [optim.learning_rate(config, step) for step in range(1, 7)]


# ---- steps that must not be applied


class Watch(Hook):
    def __init__(self):
        self.weights, self.counts = {}, {}

    def before_step(self, loop):
        self.weights[loop.step] = jobs.whole(loop.model)

    def after_step(self, loop):
        self.counts[loop.step] = [int(s["step"]) for s in loop.optimizer.state.values()][:1]
        assert all(p.grad is None for p in loop.model.parameters())


@pytest.mark.parametrize("clip_norm", [0.0, 0.3, 100.0])  # below and above every step's norm
def test_a_kernel_that_obeys_the_check_updates_as_the_host_does(pools, clip_norm):
    config = small_config(clip_norm=clip_norm)
    fused = sharded(pools, 2, config, hooks=(jobs.Fused(),))[0]
    assert min(fused["grad_norms"]) > 0.3 and max(fused["grad_norms"]) < 100
    same_run(fused, here(config)[0])


@pytest.mark.parametrize(("value", "kind"), [(float("inf"), Hook), (float("nan"), Hook), (float("inf"), jobs.Fused)])
def test_one_bad_gradient_on_one_rank_skips_the_step_on_all(pools, tmp_path, value, kind):
    hooks = (jobs.Spoil({2}, rank=1, value=value), Watch(), kind())
    results = sharded(pools, 2, small_config(), tmp_path / "run", hooks=hooks)
    for result in results:
        assert result["skipped"] == [2] and list(result["losses"]) == [1, 2, 3, 4, 5, 6]
        watch = result["hooks"][1]
        same_weights(watch.weights[2], watch.weights[3])  # step 2 left no trace
        assert not torch.equal(watch.weights[3]["norm.weight"], watch.weights[4]["norm.weight"])
        assert [watch.counts[k] for k in (1, 2, 3)] == [[1], [1], [2]]
        assert all(w.isfinite().all() for w in result["weights"].values())
    same_weights(results[0]["weights"], results[1]["weights"])
    record = read_run(tmp_path / "run")
    assert [line["skipped"] for line in record.steps] == [False, True, False, False, False, False]
    (event,) = [e for e in record.events if e["kind"] == "nonfinite"]
    assert event["step"] == 2 and event["bad_gradient_ranks"] == 1 and event["bad_loss_ranks"] == 0


class SpoilLoss(Hook):
    """The loss of one rank becomes NaN and its gradients stay what they were."""

    def on_start(self, loop):
        original = loop._gradients
        loop._gradients = lambda: original() * (float("nan") if loop.step == 3 and loop.group.rank == 1 else 1.0)


def test_one_bad_loss_on_one_rank_skips_the_step_on_all():
    results = here(small_config(), size=2, hooks=(jobs.Average(), SpoilLoss()))
    assert [r["skipped"] for r in results] == [[3], [3]]
    same_weights(results[0]["weights"], results[1]["weights"])


def test_it_gives_up_after_many_bad_steps_in_a_row(tmp_path):
    config = small_config(steps=60, eval_every=0)
    hooks = (jobs.Spoil({2, *range(5, 60)}, rank=0),)
    result = here(config, tmp_path, hooks=hooks)[0]
    assert result["steps"] == 24 and result["skipped"] == [2, *range(5, 25)]  # 20 from step 5 on
    assert read_run(tmp_path).events[-1]["kind"] == "stopped"


# ---- hooks, precision, evaluation


class Diary(Hook):
    def __init__(self):
        self.lines = []

    def on_start(self, loop):
        self.lines.append("start")

    def before_step(self, loop):
        self.lines.append(f"step {loop.step}")

    @contextmanager
    def around_micro(self, loop):
        self.lines.append(f"micro {loop.micro}")
        yield
        self.lines.append(f"grad {any(p.grad is not None for p in loop.model.parameters())}")

    def after_backward(self, loop):
        self.lines.append("backward")

    def after_step(self, loop):
        self.lines.append(f"stepped {loop.vitals.finite}")
        loop.fields["extra"] = loop.step * 10

    def after_eval(self, loop):
        self.lines.append(f"eval {loop.step in loop.history.heldout}")

    def on_end(self, loop):
        self.lines.append("end")


def test_hooks_are_called_in_order_and_can_add_to_the_line(tmp_path):
    diary = Diary()
    here(small_config(steps=2, eval_every=2, accumulation=2), tmp_path, hooks=(diary,))
    step = ["micro 0", "grad True", "micro 1", "grad True", "backward", "stepped True"]
    assert diary.lines == ["start", "step 1", *step, "step 2", *step, "eval True", "end"]
    assert [line["extra"] for line in read_run(tmp_path).steps] == [10, 20]


class FakeBackend(Backend):
    """Notes where forward and backward happen."""

    def __init__(self):
        super().__init__()
        self.inside, self.probing, self.seen = False, False, []

    @contextmanager
    def autocast(self):
        self.inside = True
        yield
        self.inside = False

    @contextmanager
    def probe(self):
        self.probing = True
        yield
        self.probing = False
        self.scales = {"w": ScaleStat(2.0, 1.0, 0.0, 0.0, 30.0)}


class Places(Hook):
    def __init__(self, backend):
        self.backend = backend

    def on_start(self, loop):
        def note(what):
            self.backend.seen.append((what, loop.model.training, self.backend.inside, self.backend.probing))

        layer = loop.model.layers["0"].ffn.w1
        layer.register_forward_hook(lambda *_: note("forward"))
        layer.weight.register_hook(lambda g: note("backward"))


def test_autocast_is_around_the_forward_alone_and_the_probe_around_both(tmp_path):
    backend = FakeBackend()
    config = small_config(steps=2, accumulation=2, eval_every=2, eval_batches=1, probe_every=2)
    here(config, tmp_path, hooks=(Places(backend),), backend=backend)
    forward, backward, evaluation = ("forward", True, True), ("backward", True, False), ("forward", False, True)
    probed = [False, False, True, False]  # of the two micro-batches of two steps
    trained = [(*what, probing) for probing in probed for what in (forward, backward)]
    assert backend.seen == [*trained, (*evaluation, False), (*evaluation, False)]
    assert [line.get("scales") for line in read_run(tmp_path).steps] == [None, {"w": asdict(backend.scales["w"])}]


def test_evaluation_leaves_no_trace(reference):
    often = here(small_config(eval_every=1))[0]
    assert often["losses"] == reference["losses"]
    same_weights(often["weights"], reference["weights"])
    assert {k: often["heldout"][k] for k in (3, 6)} == reference["heldout"]
    assert here(small_config(eval_every=0))[0]["heldout"] == {}
    assert list(here(small_config(eval_every=4))[0]["heldout"]) == [4, 6], "the last step is always evaluated"


class Kinds(Hook):
    def after_eval(self, loop):
        self.kinds = {(type(p.data).__name__, str(p.dtype)) for p in loop.model.parameters()}


def test_evaluation_leaves_no_gathered_weights(pools):
    for result in sharded(pools, 2, small_config(eval_every=6), hooks=(Kinds(),)):
        assert result["hooks"][0].kinds == {("DTensor", "torch.float32")}


def test_data_depend_on_seed_and_step_and_heldout_on_neither():
    corpus = jobs.Batches()
    here(small_config(steps=2, eval_every=1, seed=5), corpus=corpus)
    train = [drawn for drawn in corpus.drawn if drawn[0] == "train"]
    heldout = [drawn for drawn in corpus.drawn if drawn[0] == "heldout"]
    assert train == [("train", 1, 5), ("train", 2, 5)]
    assert heldout == [("heldout", 0, 0), ("heldout", 1, 0)] * 2


# ---- the record


def test_the_line_of_a_step(tmp_path):
    here(small_config(), tmp_path)
    record = read_run(tmp_path)
    assert [line["step"] for line in record.steps] == [1, 2, 3, 4, 5, 6]
    first, third = record.steps[0], record.steps[2]
    assert set(first) == {"step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_s", "memory", "skipped"}
    assert set(third) == {*first, "heldout", "aside"} and third["aside"]["evaluation"] > 0
    assert first["lr"] == 0.005 and first["tokens"] == 128 and third["tokens"] == 384
    assert first["tokens_per_s"] * first["seconds"] == pytest.approx(128)
    assert first["memory"]["peak_bytes"] > 1e7 and first["grad_norm"] > 0
    assert record.events == []


def test_norms_are_the_whole_models_however_it_is_sharded(pools, tmp_path):
    config, watch = small_config(norms_every=2), Watch()
    here(config, tmp_path / "one", hooks=(watch,))
    sharded(pools, 2, config, tmp_path / "two")
    one, two = (read_run(tmp_path / name).steps for name in ("one", "two"))
    assert [len({"param_norm", "grad_norms"} & line.keys()) for line in one] == [0, 2] * 3
    for a, b in zip(one[1::2], two[1::2]):
        assert list(a["grad_norms"]) == ["tok_embed", "layers.0", "layers.1", "norm", "head"]
        assert sum(norm**2 for norm in a["grad_norms"].values()) == pytest.approx(a["grad_norm"] ** 2, rel=1e-5)
        assert b["grad_norms"] == pytest.approx(a["grad_norms"], rel=1e-5)
        assert b["param_norm"] == pytest.approx(a["param_norm"], rel=1e-6)
    whole = torch.cat([weight.flatten() for weight in watch.weights[4].values()]).norm().item()
    assert one[3]["param_norm"] == pytest.approx(whole, rel=1e-6) and one[1]["param_norm"] != one[3]["param_norm"]


class SlowHeldout(jobs.CountingCorpus):
    PAUSE = 0.4

    def batch(self, step, batch_size, seq_len, seed, split="train"):
        if split == "heldout":
            time.sleep(self.PAUSE)
        return super().batch(step, batch_size, seq_len, seed, split)


class Wall(Hook):
    def on_start(self, loop):
        self.begin = time.perf_counter()

    def on_end(self, loop):
        self.elapsed = time.perf_counter() - self.begin


def test_evaluation_is_not_in_the_time_of_a_step(tmp_path):
    wall = Wall()
    result = here(small_config(steps=3, eval_every=1, eval_batches=1), tmp_path, corpus=SlowHeldout(), hooks=(wall,))[0]
    # Holds on any machine: what was slept is in the whole and must not be in the parts.
    assert result["seconds"] <= wall.elapsed - 3 * SlowHeldout.PAUSE
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert sum(line["seconds"] for line in lines) == pytest.approx(result["seconds"])
    assert all(line["seconds"] > 0 for line in lines)
    assert all(line["aside"]["evaluation"] >= SlowHeldout.PAUSE for line in lines)
