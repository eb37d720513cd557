"""What the tests of Transformer Engine's FP8 parameters run, also in rank processes. No test in here."""

import gc
from dataclasses import asdict

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.shard import materialize, shard
from labkit.precision.registry import get_backend
from labkit.train.loop import Parts, train
from labkit.train.optim import adamw
from tests.precision import fake_te
from tests.precision.precision_jobs import convert
from tests.train.training_jobs import CountingCorpus, StopAt, small_config

LINEARS = 7


def build(width=128, ranks=1):
    """(model on the CPU with its first values, converted backend), in FP32; the stand-in must be installed."""
    model, backend = converted(width, ranks)
    return init_weights(model.to_empty(device="cpu"), 0), backend


def converted(width, ranks):
    sizes = dict(d_model=width, d_ffn=width, n_layers=1, n_heads=2, n_kv_heads=2)
    with torch.device("meta"):
        model = Transformer(small_config(model=sizes).resolved_model)
    backend = get_backend("te")
    convert(backend, model, "block", ["head"], device="cuda", fp8_parameters=True, ranks=ranks)
    return model, backend


def flat_of(parameter):
    """Bytes of what FSDP2 keeps as the flat view of this rank's shard."""
    (known,) = (each for each in gc.get_objects() if isinstance(each, FSDPParam) and each.sharded_param is parameter)
    return known._sharded_param_data.untyped_storage().nbytes()


def train_sharded(group, run_dir, stop):
    """Four steps under FSDP2 as the trainer does them; what was gathered, and this rank's part of what was learned."""
    seen = torch.cuda.is_available
    patch = pytest.MonkeyPatch()
    fake_te.install(patch)
    try:
        model, backend = converted(256, group.size)
        torch.cuda.is_available = seen  # training is on the CPU all the same
        shard(model, group, torch.bfloat16)
        materialize(model, group.device, lambda m: init_weights(m, 0), quantised=True)
        fake_te.QuantizedTensor.gathered.clear()
        inside = set()
        backend.modules["layers.0.attn.wq"].register_forward_hook(
            lambda module, args, y: inside.add((type(module.weight).__name__, str(module.weight.dtype)))
        )
        config = small_config(
            steps=4,
            batch_size=16,
            eval_every=4,
            lr=1e-3,
            checkpoint_every=2,
            precision=dict(backend="te", recipe="block", fp8_parameters=True),
        )
        optimizer = adamw(model, config, backend)  # makes the parameters FP8
        parts = Parts(model, optimizer, backend, [StopAt(stop)] if stop else [])
        result = train(group, config, CountingCorpus(), parts, run_dir=run_dir)
        names = {p: name for name, p in model.named_parameters()}
        assert {kind for kind, _ in inside} == {"QuantizedTensor"}
        return {
            **asdict(result),
            "evidence": backend.evidence(model),
            "flat": [flat_of(p) for p in optimizer.masters()],
            "dtypes": {dtype for _, dtype in inside},
            "gathered": list(fake_te.QuantizedTensor.gathered),
            "masters": {names[p]: m.to_local() for p, m in optimizer.masters().items()},
            "values": {names[p]: backend.parameters.values(p).to_local() for p in optimizer.masters()},
        }
    finally:
        patch.undo()
