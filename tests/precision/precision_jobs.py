"""A small decoder, and what the rank processes of these tests run. No test in here."""

import torch

from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.transforms import prepare
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.registry import get_backend
from labkit.train.config import TrainConfig

MODEL = ModelConfig(vocab_size=272, d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ffn=64, max_seq_len=32)
LINEARS = 14  # seven in each of two blocks; the head is the fifteenth


def decoder(dtype=torch.float32, config=MODEL):
    return init_weights(Transformer(config), 0).to(dtype)


def tokens(rows=4):
    return torch.randint(0, MODEL.vocab_size, (rows, 33), generator=torch.Generator().manual_seed(0))


def convert(backend, model, recipe=None, skip=(), **more):
    return backend.convert(model, PrecisionSpec(recipe, tuple(skip), **more))


def loss_of(model, backend, batch):
    with backend.autocast():
        return model(batch[:, :-1], batch[:, 1:])


def train_sharded(group, name, recipe, checkpointing, steps=3):
    """Losses of this rank's rows, evidence, how many scales the second step gave, and what a converted weight was."""
    config = TrainConfig(
        model=MODEL,
        steps=steps,
        seq_len=32,
        batch_size=4,
        activation_checkpointing=checkpointing,
        precision=PrecisionConfig(backend=name, recipe=recipe),
    )
    model, backend = decoder(), get_backend(name)
    report = prepare(model, config, group, backend)
    inside = []
    watched = next(iter(backend.modules.values()))
    watched.register_forward_hook(
        lambda module, args, y: inside.append((type(module.weight).__name__, module.weight.dtype))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mine = tokens().chunk(group.size)[group.rank]
    losses = []
    for step in range(steps):
        if step == 1:
            with backend.probe():
                loss = loss_of(model, backend, mine)
                loss.backward()
        else:
            loss = loss_of(model, backend, mine)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {
        "losses": losses,
        "evidence": backend.evidence(model),
        "scales": len(backend.scales),
        "inside": set(map(str, inside)),
        "converted": len(report.converted),
        "keys": sorted(model.state_dict()),
    }
