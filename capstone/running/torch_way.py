"""parts = "torch": FSDP2, DTensor's tensor parallelism, labkit's precision backends, by the one loop of labkit.train.

The same configuration, the same record, the same checkpoints and recovery; what differs from a plain training is the
mesh. (labkit.train.job builds a model on data-parallel ranks alone.)
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from capstone.running.config import CapstoneConfig
from labkit.comm.group import Group
from labkit.comm.mesh import Mesh
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights
from labkit.parallel.shard import materialize
from labkit.parallel.transforms import prepare
from labkit.precision.registry import get_backend
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import build_corpus
from labkit.train.job import seed_generators
from labkit.train.loop import Hook, Loop, Parts, train


class Pausing(Hook):
    """Pauses the run when one of its ranks has `heard` a SIGTERM. The ranks tell each other in each step, behind the
    backward: there the loop waits for the GPU anyway, and behind the optimizer it would be one wait more."""

    def __init__(self, heard: list[int]) -> None:
        self.heard, self.agreed = heard, False

    def after_backward(self, loop: Loop) -> None:
        said = torch.full((1,), float(bool(self.heard)), device=loop.group.device)
        self.agreed = bool(loop.group.all_reduce(said).item())

    def after_step(self, loop: Loop) -> None:
        if self.agreed:
            loop.pause("SIGTERM: the same command goes on")


def run(group: Group, config: CapstoneConfig, run_dir: Path, opened: Any, *, heard: list[int]) -> dict[str, Any]:
    """Train; a summary of plain values, the same on every rank. `opened(about)` gives rank 0 its record; heard: the
    SIGTERMs that have come."""
    # The head's output is a view under tensor parallelism; what follows it, the loss, works on nothing in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    seed_generators(config.seed, group.rank)
    corpus = build_corpus(config.data)
    mesh = Mesh(group, dp=config.parallel.dp, tp=config.parallel.tp)
    backend = get_backend(config.precision.backend)
    with torch.device("meta"):
        model = Transformer(config.resolved_model)
    rows = config.batch_size // (config.parallel.dp * config.accumulation)
    report = prepare(model, config, group, backend, tokens=rows * config.seq_len, mesh=mesh)
    materialize(model, group.device, lambda made: init_weights(made, config.seed))
    about = {
        "conversion": asdict(report),
        "corpus": corpus.describe(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    record = opened(about)
    plain = TrainConfig(**{key: getattr(config, key) for key in TrainConfig.model_fields})
    parts = Parts(model, backend=backend, hooks=[Pausing(heard)], record=record, data_share=mesh.data_share)
    result = train(group, plain, corpus, parts, run_dir=run_dir)
    return {**asdict(result), **about, "evidence": backend.evidence(model), "unsaved": None}
