"""How often do the alarms ring rightly, falsely, and how early? Small trainings with faults put in, and clean ones.

    python -m labkit.watch.study runs/alarms                     go on with what is missing, then tell what came of it
    python -m labkit.watch.study runs/alarms --trials 6          only the first six faults and their clean runs
    python -m labkit.watch.study runs/alarms --judge             only tell, from the runs that are there

Stop it whenever you like: a run that is done is a file, and the same command does the rest. Several at a time share
the work (`--share 0/2` and `--share 1/2`). A run takes some 20 seconds of a core.

Each seed is trained once clean, and twice with a fault that begins at a step drawn from the seed, on the same data from
the same weights. So the clean run says what the fault did: harm begins at the first evaluation whose held-out loss is
2 % above the clean run's, or no number. A fault that does no harm counts as a clean run. All train in FP8 (per-tensor
scales, E4M3 and E5M2, rounded by torch's casts), so that a fault in the scales is one.

    rate      the learning rate is 10 times as large from that step on
    batch     some steps read random tokens, and train towards them
    growth    the weights of one layer grow by a few per cent at each step
    epsilon   the norms' epsilon is 0 and the embedding fades, so that the gradients through the norms grow
    stale     the scales stay what they were at that step, and the rate is three times as large, so that amax moves

What is kept of a run is what the alarms read. Rules about the machine (throughput, slow rank, silence) are not asked:
they would judge the machine that this runs on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from labkit.comm.group import Group
from labkit.record.clean import jsonable, restore
from labkit.record.files import replace_file
from labkit.watch.alarms import OVER_SCALES, gradient_spike, plateau
from labkit.watch.folder import QUANTITIES, Record

FAULTS = ("rate", "batch", "growth", "epsilon", "stale")
CLEAN, FAULTY, STEPS = 100, 200, 300
HARM = 0.02  # of the clean run's held-out loss
KEPT = ("step", "loss", "lr", "grad_norm", "heldout", "skipped", "param_norm")
MODEL: dict[str, Any] = dict(vocab_size=512, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=176, max_seq_len=64)
DROP, SOON = 4.0, 50  # the folklore: a scale falls to a quarter in one probe, and a NaN follows within so many steps


@dataclass(frozen=True)
class Trial:
    """One run. fault: None for a clean one; begin: its first step; strength: between 0 and 1, weak to strong."""

    seed: int
    fault: str | None = None
    begin: int = 0
    strength: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.seed:03d}-{self.fault or 'clean'}"


def trials() -> Iterator[Trial]:
    """All of them, each fault after the clean run that it is compared with."""
    for at in range(FAULTY):
        seed, draw = at // (FAULTY // CLEAN), np.random.default_rng([at, 22])
        if at % (FAULTY // CLEAN) == 0:
            yield Trial(seed)
        yield Trial(seed, FAULTS[at % len(FAULTS)], int(draw.integers(100, 200)), float(draw.random()))


# ---- running


def run(group: Group, trial: Trial) -> dict[str, Any]:
    """Train, and return what is kept: {"trial", "lines", "events"}."""
    from labkit.model.config import ModelConfig
    from labkit.model.decoder import Transformer, init_weights
    from labkit.precision.config import PrecisionConfig, PrecisionSpec
    from labkit.precision.registry import get_backend
    from labkit.train.config import TrainConfig
    from labkit.train.data.config import DataConfig
    from labkit.train.data.corpus import build_corpus
    from labkit.train.loop import train
    from labkit.watch.faults import Fault, Kept, RandomTokens

    config = TrainConfig(
        model=ModelConfig(**MODEL),
        steps=STEPS,
        seq_len=64,
        batch_size=8,
        lr=2e-3,
        warmup_steps=20,
        seed=trial.seed,
        eval_every=5,
        eval_batches=4,
        probe_every=2,
        norms_every=2,
        data=DataConfig(max_bytes=4_000_000),
        precision=PrecisionConfig(backend="broken-stale"),
    )
    corpus: Any = build_corpus(config.data)
    if trial.fault == "batch":
        corpus = RandomTokens(corpus, trial.begin, 4 + int(36 * trial.strength), MODEL["vocab_size"])
    model, backend = init_weights(Transformer(config.resolved_model), config.seed), get_backend("broken-stale")
    backend.convert(model, PrecisionSpec(skip=("head",)))
    kept: Any = Kept()
    train(group, config, corpus, model=model, backend=backend, hooks=[Fault(trial, backend)], record=kept)
    return {"trial": asdict(trial), "lines": [thinned(line) for line in kept.lines], "events": kept.events}


def thinned(line: dict[str, Any]) -> dict[str, Any]:
    """What the alarms read of a step line, to five digits."""
    out = {key: line[key] for key in KEPT if key in line}
    if "scales" in line:
        out["scales"] = {
            name: {key: float(f"{stat[key]:.5g}") for key in QUANTITIES}
            for name, stat in line["scales"].items()
            if not name.endswith(".output")
        }
    return out


def save(out: Path, found: dict[str, Any], name: str) -> None:
    replace_file(out / f"{name}.json.gz", gzip.compress(json.dumps(jsonable(found)).encode(), mtime=0))


def load(out: Path, trial: Trial) -> dict[str, Any] | None:
    """A run that is done; None if it is not."""
    file = out / f"{trial.name}.json.gz"
    return restore(json.loads(gzip.decompress(file.read_bytes()))) if file.exists() else None


# ---- judging


def rung(found: dict[str, Any]) -> list[tuple[int, str]]:
    """[(step, kind)] of the alarms of a run, in order. A step that is not finite is not one: then it is too late."""
    record = Record(run={"status": "finished"})
    record.add(found["lines"])
    rules = (gradient_spike, plateau, *OVER_SCALES)
    return sorted((alarm.step or 0, alarm.kind) for rule in rules for alarm in rule(record, 0))


def harm_at(found: dict[str, Any], clean: dict[str, Any]) -> int | None:
    """The step at which the held-out loss is HARM above the clean run's, or something is no number; None: never."""
    usual = {line["step"]: line["heldout"] for line in clean["lines"] if "heldout" in line}
    for line in found["lines"]:
        own = line.get("heldout")
        if line.get("skipped") or (own is not None and not own <= usual[line["step"]] * (1 + HARM)):
            return line["step"]
    return None


def judge(out: Path) -> dict[str, Any]:
    """What came of the runs that are there."""
    per: dict[str, dict[str, Any]] = {
        name: dict(runs=0, harmful=0, caught=0, early=0, late=0, leads=[]) for name in FAULTS
    }
    quiet, false, drops, nans = 0, [], dict(runs=0, then_nan=0), dict(runs=0, after_a_drop=0)
    clean: dict[str, Any] = {}
    for trial in trials():
        if (found := load(out, trial)) is None:
            continue
        rang = rung(found)
        _folklore(found, drops, nans)
        harm = None
        if trial.fault is None:
            clean = found
        else:
            harm = harm_at(found, clean)
            per[trial.fault]["runs"] += 1
        if harm is None:
            quiet += 1
            false += [{"run": trial.name, "at": rang[0][0], "kind": rang[0][1]}] if rang else []
            continue
        row = per[str(trial.fault)]
        row["harmful"] += 1
        in_time = [step for step, _ in rang if trial.begin <= step <= harm]
        row["early"] += any(step < trial.begin for step, _ in rang)
        row["caught"] += bool(in_time)
        row["late"] += not in_time
        row["leads"] += [harm - in_time[0]] if in_time else []
    for row in per.values():
        leads = row.pop("leads")
        row["median_lead"] = median(leads) if leads else None
    return {
        "faults": per,
        "harmful": sum(row["harmful"] for row in per.values()),
        "caught": sum(row["caught"] for row in per.values()),
        "clean": quiet,
        "false": false,
        "folklore": {"sudden_drops": drops, "not_finite": nans},
    }


def _folklore(found: dict[str, Any], drops: dict[str, int], nans: dict[str, int]) -> None:
    """Count: does a NaN follow a sudden drop of a scale, and does a drop precede a NaN?"""
    lines = found["lines"]
    bad = next((line["step"] for line in lines if line.get("skipped") or not math.isfinite(line["loss"])), None)
    probes = [(line["step"], line["scales"]) for line in lines if "scales" in line][10:]  # at first all scales move
    fell = [
        step
        for (_, before), (step, now) in pairwise(probes)
        if any(stat["scale"] < before[name]["scale"] / DROP for name, stat in now.items() if name in before)
    ]
    if fell:
        drops["runs"] += 1
        drops["then_nan"] += bad is not None and any(step < bad <= step + SOON for step in fell)
    if bad is not None:
        nans["runs"] += 1
        nans["after_a_drop"] += any(step < bad <= step + SOON for step in fell)


def main() -> None:
    from labkit.comm.ranks import run_ranks

    words = argparse.ArgumentParser(description="Measure the alarms on small trainings with faults put in.")
    words.add_argument("out", type=Path)
    words.add_argument("--trials", type=int, default=FAULTY, help="only so many faults, and their clean runs")
    words.add_argument("--share", default="0/1", help="of several at a time: which one, of how many")
    words.add_argument("--judge", action="store_true", help="run nothing")
    given = words.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    mine, of = map(int, given.share.split("/"))
    wanted = list(trials())[: given.trials + -(-given.trials // (FAULTY // CLEAN))]
    for at, trial in enumerate(wanted):
        if not given.judge and at % of == mine and not (given.out / f"{trial.name}.json.gz").exists():
            found = run_ranks(run, trial, size=1, backend="threads", timeout=None)[0]
            save(given.out, found, trial.name)
            print(f"{at + 1} of {len(wanted)}: {trial.name}", flush=True)
    print(json.dumps(judge(given.out), indent=1))


if __name__ == "__main__":
    main()
