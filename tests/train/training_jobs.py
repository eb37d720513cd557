"""What the rank processes of the training tests import: a small corpus, a small model, jobs. No test in here."""

import os
import signal
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from labkit.comm.ranks import run_ranks
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.shard import materialize, shard
from labkit.precision.registry import get_backend, spec_of
from labkit.record.run import RunRecord
from labkit.train import manifest
from labkit.train.config import TrainConfig
from labkit.train.job import build_model, seed_generators
from labkit.train.loop import Hook, Parts, train

MODEL = dict(vocab_size=257, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=16)


def small_config(**changes) -> TrainConfig:
    model = ModelConfig(**{**MODEL, **changes.pop("model", {})})
    usual = dict(steps=6, seq_len=16, batch_size=8, lr=1e-2, warmup_steps=2, eval_every=3, eval_batches=2)
    return TrainConfig(**{**usual, "model": model, **changes})


class CountingCorpus:
    """Rows that count upwards by 3 from a start that depends on (seed, step, split, row) alone; soon learned."""

    hash = "counting"

    def batch(self, step, batch_size, seq_len, seed, split="train"):
        generator = torch.Generator().manual_seed(step * 1009 + seed * 7 + (split == "heldout") * 500_009)
        start = torch.randint(0, 97, (batch_size, 1), generator=generator)
        return (start + 3 * torch.arange(seq_len + 1)) % 97


class Noisy(CountingCorpus):
    """Counts on by 3 three times of four, else goes anywhere: a text with an entropy, which no training gets below."""

    def batch(self, step, batch_size, seq_len, seed, split="train"):
        draw = torch.Generator().manual_seed(step * 1009 + seed * 7 + (split == "heldout") * 500_009)
        jump = torch.where(torch.rand(batch_size, seq_len + 1, generator=draw) < 0.75, 3, 0)
        jump = torch.where(jump == 3, jump, torch.randint(0, 97, jump.shape, generator=draw))
        return jump.cumsum(1) % 97


class Average(Hook):
    """Data parallelism in one hook: for ranks whose model is not sharded."""

    def after_backward(self, loop):
        for p in loop.model.parameters():
            loop.group.all_reduce(p.grad, "mean")


class Fused(Hook):
    """AdamW as on a GPU: its kernel obeys the check, and the host reads it afterwards."""

    def on_start(self, loop):
        groups = [group | {"fused": True} for group in loop.optimizer.param_groups]
        loop.optimizer = torch.optim.AdamW(groups, fused=True)


class GradNorms(Hook):
    def __init__(self):
        self.norms = []

    def after_step(self, loop):
        self.norms.append(loop.vitals.grad_norm)


class StopAt(Hook):
    def __init__(self, step):
        self.at = step

    def after_step(self, loop):
        if loop.step == self.at:
            loop.stop("enough")


def spoil(loop, rank, value):
    """Put `value` into one gradient of one rank."""
    if loop.group.rank == rank:
        grad = dict(loop.model.named_parameters())["layers.0.ffn.w1.weight"].grad
        (grad.to_local() if hasattr(grad, "to_local") else grad).view(-1)[0] = value


class Spoil(Hook):
    """Spoils a gradient after the backward of the given steps."""

    def __init__(self, steps, rank, value=float("inf")):
        self.steps, self.rank, self.value = steps, rank, value

    def after_backward(self, loop):
        if loop.step in self.steps:
            spoil(loop, self.rank, self.value)


class Burst(Hook):
    """A fault that passes: NaN, `times` times from step `first` on, whatever the step is called by then."""

    def __init__(self, first, times, rank=0):
        self.first, self.left, self.rank = first, times, rank

    def after_backward(self, loop):
        if loop.step >= self.first and self.left:
            self.left -= 1
            spoil(loop, self.rank, float("nan"))


class Batches(CountingCorpus):
    """Notes what was drawn: (split, step, seed)."""

    def __init__(self):
        self.drawn = []

    def batch(self, step, batch_size, seq_len, seed, split="train"):
        self.drawn.append((split, step, seed))
        return super().batch(step, batch_size, seq_len, seed, split)


class Dice(Hook):
    """Draws from every generator at each step."""

    def __init__(self):
        self.drawn = []

    def after_step(self, loop):
        import random

        import numpy

        self.drawn.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))

    def state_dict(self):
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def plain_model(config):
    return init_weights(Transformer(config.resolved_model), config.seed)


def sharded_model(config, group, param_dtype=torch.float32):
    with torch.device("meta"):
        model = Transformer(config.resolved_model)
    shard(model, group, param_dtype=param_dtype)
    return materialize(model, group.device, lambda m: init_weights(m, config.seed))


def whole(model):
    """{name: full fp32 tensor}. All ranks together."""
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for name, p in model.named_parameters()
    }


def open_record(group, run_dir):
    if run_dir is None or group.rank:
        return None
    if (Path(run_dir) / "run.json").exists():
        return RunRecord.open(run_dir)
    return RunRecord.create(run_dir, kind="train", command="test", hardware={})


def run(group, config, run_dir=None, hooks=(), sharded=False, corpus=None, before=None, resume=True, **parts):
    """Train; return the result as a dict, with the weights. `before()` is called first, in the rank."""
    if before:
        before(group)
    seed_generators(config.seed, group.rank)
    model = sharded_model(config, group) if sharded else plain_model(config)
    seen = GradNorms()
    parts = Parts(model, hooks=(*hooks, seen), record=open_record(group, run_dir), **parts)
    result = train(group, config, corpus or CountingCorpus(), parts, run_dir=run_dir, resume=resume)
    return {**asdict(result), "weights": whole(model), "hooks": hooks, "grad_norms": seen.norms}


def run_converted(group, config, run_dir=None, hooks=()):
    """Whole on this rank, in FP32, its linears converted as the configuration says."""
    seed_generators(config.seed, group.rank)
    model, backend = plain_model(config), get_backend(config.precision.backend)
    # Calibrating a backend that remembers nothing would be refused; here it shows that nothing else is changed.
    backend.convert(model, spec_of(config.precision.replace(calibrate=0)))
    return trained(group, config, model, backend, run_dir, hooks)


def run_prepared(group, config, run_dir=None, hooks=()):
    """As train_job does it: converted, sharded, initialised, FP8 parameters if asked for."""
    seed_generators(config.seed, group.rank)
    backend = get_backend(config.precision.backend)
    model, _ = build_model(config, group, backend)
    return trained(group, config, model, backend, run_dir, hooks)


def trained(group, config, model, backend, run_dir, hooks):
    parts = Parts(model, backend=backend, hooks=hooks, record=open_record(group, run_dir))
    result = train(group, config, CountingCorpus(), parts, run_dir=run_dir)
    return {**asdict(result), "weights": whole(model), "evidence": backend.evidence(model)}


def run_sharded(group, config, run_dir=None, hooks=(), before=None, **how):
    return run(group, config, run_dir, hooks, True, None, before, **how)


def sharded(pools, size, config, *args, **how):
    """What each rank of a pool returns, sharded by FSDP2."""
    return pools[size].run(partial(run_sharded, **how), config, *args, timeout=120.0)


def here(config, *args, job=run, size=1, **how):
    """What each rank returns, on threads of this process."""
    return run_ranks(partial(job, **how), config, *args, size=size, backend="threads", timeout=120.0)


def same_weights(a, b, **tolerance):
    """Equal to the last bit, or within a tolerance."""
    assert a.keys() == b.keys() and a
    for name in a:
        close = {"rtol": 0, "atol": 0, **tolerance}
        torch.testing.assert_close(a[name], b[name], **close, msg=lambda m, name=name: f"{name}: {m}")


def identical(a, b):
    """The same training to the last bit."""
    assert a["losses"] == b["losses"] and a["heldout"] == b["heldout"] and a["tokens"] == b["tokens"]
    same_weights(a["weights"], b["weights"])


# ---- accidents, to be called in a rank


class Accident:
    """Picklable `before`: replaces a function so that something bad happens in the save of `step`, on one or all."""

    def __init__(self, what, step, rank=None):
        self.what, self.step, self.rank = what, step, rank

    def __call__(self, group):
        if self.rank is None or group.rank == self.rank:
            getattr(self, self.what)()

    def killed_before_publishing(self):
        original = manifest.publish

        def publish(partial, final):
            if final.name == manifest.folder_name(self.step):
                os.kill(os.getpid(), signal.SIGKILL)
            original(partial, final)

        manifest.publish = publish

    def killed_while_deleting_old_ones(self):
        import shutil

        original = shutil.rmtree

        def rmtree(path, *args, **kwargs):
            if str(path).endswith(".old.partial") and Path(path).exists():
                next(Path(path).iterdir()).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return original(path, *args, **kwargs)

        manifest.shutil.rmtree = rmtree

    def full_while_dcp_writes(self):
        """The tensors go to /dev/full: the system itself says "no space left on device"."""
        from torch.distributed.checkpoint import filesystem

        original = filesystem.FileSystem.create_stream

        def create_stream(fs, path, mode):
            into = "/dev/full" if "w" in mode and manifest.folder_name(self.step) in str(path) else path
            return original(fs, into, mode)

        filesystem.FileSystem.create_stream = create_stream

    def full_while_rank_writes(self):
        import errno

        original = manifest.write_durably

        def write_durably(file, content):
            if file.parent.name.startswith(manifest.folder_name(self.step)):
                raise OSError(errno.ENOSPC, "No space left on device")
            original(file, content)

        manifest.write_durably = write_durably

    def little_space(self):
        import shutil

        usage = shutil.disk_usage("/")
        manifest.shutil.disk_usage = lambda path: usage._replace(free=1000)
