"""A whole training run as one function of a rank, from a config to a result:

run_ranks(train_job, config.model_dump(), "runs/first", size=2, timeout=None)[0]["heldout"]        # {step: loss}
"""

import gc
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labkit.comm.group import Group
from labkit.comm.mesh import Mesh
from labkit.errors import LabError
from labkit.model.decoder import Transformer, init_weights, perturb
from labkit.parallel.shard import materialize
from labkit.parallel.transforms import prepare
from labkit.precision.base import Backend, ConversionReport
from labkit.precision.registry import get_backend
from labkit.record.clean import jsonable
from labkit.record.run import RunRecord, read_run, sole_trainer
from labkit.strict import strict_validate
from labkit.train import state
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import build_corpus
from labkit.train.loop import Hook, Parts, train

LEFT = 2**28  # bytes of a GPU that may stay after a training: the libraries' workspaces, and no model's weights


def train_job(
    group: Group,
    config: TrainConfig | dict[str, Any],
    run_dir: str | Path | None = None,
    *,
    resume: bool = True,
    hooks: Sequence[Hook] = (),
    record_fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build corpus, backend and model, train, and return the fields of `TrainResult` with conversion, evidence, scales
    (rank 0's last probe), parameters and corpus, plain values, the same on every rank.

    run_dir: of the record, which rank 0 writes; an existing run there is resumed. record_fields: more of its run.json.
    """
    config = config if isinstance(config, TrainConfig) else strict_validate(TrainConfig, config, "the training config")
    seed_generators(config.seed, group.rank)
    corpus = build_corpus(config.data)
    backend = get_backend(config.precision.backend)
    model, report = build_model(config, group, backend)
    about = {
        "conversion": asdict(report),
        "corpus": corpus.describe(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }

    record = None
    with ExitStack() as around:
        if run_dir is not None and group.rank == 0:
            around.enter_context(sole_trainer(Path(run_dir)))
            # Whatever ends the training, the record says so: "failed" or "interrupted", and why.
            record = around.enter_context(open_record(Path(run_dir), config, {**about, **(record_fields or {})}))
        parts = Parts(model, backend=backend, hooks=hooks, record=record)
        result = train(group, config, corpus, parts, run_dir=run_dir, resume=resume)
        summary = {
            **asdict(result),
            **about,
            "evidence": backend.evidence(model),
            "scales": {name: asdict(stat) for name, stat in backend.scales.items()},
        }
        if record:
            record.results(**{key: value for key, value in summary.items() if key not in ("losses", *about)})
            record.finish("paused" if result.paused else "finished")
    return summary


def open_record(run_dir: Path, config: TrainConfig, about: dict[str, Any]) -> RunRecord:
    """The record of this run: a new one, or an interrupted run's of the same configuration. LabError: steps of another."""
    if not (run_dir / "run.json").exists():
        return RunRecord.create(run_dir, kind="train", config=config, seeds={"run": config.seed}, **about)
    old = read_run(run_dir)
    if old.steps:
        was = strict_validate(TrainConfig, old.run["config"], f"the config in {run_dir / 'run.json'}")
        now = strict_validate(TrainConfig, jsonable(config), "the training config")  # paths as a record shows them
        if other := state.difference_in_settings(state.settings(was), state.settings(now)):
            raise LabError(f"{run_dir} holds another run: {other}; set it back, or choose another run folder.")
    record = RunRecord.open(run_dir)
    record.update(status="running", finished=None, config=config, **about)
    return record


def build_model(
    config: TrainConfig, group: Group, backend: Backend, mesh: Mesh | None = None
) -> tuple[Transformer, ConversionReport]:
    """The model of a config, converted, sharded and initialised, and what was converted. mesh: as in `prepare`."""
    with torch.device("meta"):
        model = Transformer(config.resolved_model)
    size, uneven = divmod(config.batch_size, group.size * config.accumulation)  # uneven: the loop says it
    report = prepare(model, config, group, backend, tokens=None if uneven else size * config.seq_len, mesh=mesh)

    def first_values(model: Transformer) -> None:
        init_weights(model, config.seed)
        perturb(model, config.perturb, config.perturb_seed)

    materialize(model, group.device, first_values, quantised=config.precision.fp8_parameters)
    return model, report


def forget(device: torch.device, before: int) -> tuple[bool, int]:
    """Bring this process back to where its first training began, but for what is imported and compiled. Returns (may it
    train again?, graphs compiled up to now). before: graphs compiled up to the training before, 0 if there was none."""
    graphs = 0
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.utils import counters

        graphs = counters["stats"]["unique_graphs"]
    if te := sys.modules.get("transformer_engine.pytorch.quantization"):
        te.FP8GlobalStateManager.reset()  # the amax histories of delayed scaling
    gc.collect()
    fits = graphs == before or not before
    if device.type == "cuda":
        torch.cuda.empty_cache()
        fits = fits and torch.cuda.memory_allocated(device) <= LEFT
    return fits, graphs


def seed_generators(seed: int, rank: int) -> None:
    """Seed every generator of this rank. Nothing in the course's training draws from them; a lab's dropout would."""
    own = seed * 1_000_003 + rank
    torch.manual_seed(own)  # the GPU's generators too
    np.random.seed(own % 2**32)
    random.seed(own)
