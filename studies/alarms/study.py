"""How often do the alarms ring rightly, falsely, and how early? Small trainings with faults put in, and clean ones.

    python -m studies.alarms.study runs/alarms                     go on with what is missing, then report
    python -m studies.alarms.study runs/alarms --seeds 3           only the first three seeds, of three runs each
    python -m studies.alarms.study runs/alarms --seeds 0           only report, from the runs that are there
    python -m studies.alarms.study runs/tuning --tuning            runs of other seeds, to find thresholds on
    ... --record results/DATE-alarms.json                          what is committed

Each seed is trained once clean, and twice with a fault that begins at a step drawn from the seed. Harm begins at the
first evaluation whose held-out loss is 2 % above the clean run's, or no number; a fault without harm counts as clean.

    rate      the learning rate is 10 times as large from that step on
    batch     some steps read random tokens, and train towards them
    growth    the weights of one layer grow by 4 to 10 per cent at each step
    epsilon   the norms' epsilon is 0 and the embedding fades, so that the gradients through the norms grow
    stale     all scales are those of an early step again, and one to three octaves too large
"""

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from labkit.comm.group import Group
from labkit.errors import run_command
from labkit.record.files import writable
from labkit.record.packed import pack
from labkit.record.read import PACKED, read_run
from labkit.record.run import RunRecord
from labkit.strict import strict_validate
from labkit.watch.alarms import OVER_SCALES
from labkit.watch.folder import Record
from labkit.watch.learning import OF_TRAINING
from studies.writing import about, as_lines

FAULTS = ("rate", "batch", "growth", "epsilon", "stale")
CLEAN, FAULTY, STEPS = 100, 200, 260
TUNING = 1000  # the first seed of runs to find thresholds on; those that are reported have seeds from 0
SEEN = 35  # seeds below were inspected before the rules were settled: they are reported apart
FIRST = {"caught": 62, "harmful": 70, "false": 1, "clean": 35}  # what the rules before made of them, 2026-11-23
AFTER = 50  # steps after the harm that are looked at
HARM = 0.02  # of the clean run's held-out loss
MODEL: dict[str, Any] = dict(vocab_size=512, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=176, max_seq_len=64)
TRAIN: dict[str, Any] = {
    "model": MODEL,
    "data": {"max_bytes": 4_000_000},
    "precision": {"backend": "broken-stale"},
    **dict(seq_len=64, batch_size=8, lr=2e-3, warmup_steps=20),
    **dict(eval_every=5, eval_batches=2, probe_every=2, norms_every=2),
}
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
        return f"{self.seed:04d}-{self.fault or 'clean'}"


def trials(tuning: bool = False) -> Iterator[Trial]:
    """Yield all of them, each fault after the clean run that it is compared with. tuning: others, of other seeds."""
    first, each = (TUNING if tuning else 0), FAULTY // CLEAN
    for at in range(FAULTY):
        seed, draw = first + at // each, np.random.default_rng([at, first + 22])
        if at % each == 0:
            yield Trial(seed)
        yield Trial(seed, FAULTS[at % len(FAULTS)], int(draw.integers(100, 180)), float(draw.random()))


# ---- running


def run(group: Group, trial: Trial, out: Path) -> None:
    """Train one run, and keep it packed: OUT/NAME.jsonl.gz. What an earlier call left unfinished goes."""
    from labkit.model.decoder import Transformer, init_weights
    from labkit.precision.config import PrecisionSpec
    from labkit.precision.registry import get_backend
    from labkit.train.config import TrainConfig
    from labkit.train.data.corpus import build_corpus
    from labkit.train.loop import Parts, train
    from studies.alarms.faults import Fault

    config = strict_validate(TrainConfig, {**TRAIN, "steps": STEPS, "seed": trial.seed}, "the study's training")
    model, backend = init_weights(Transformer(config.resolved_model), config.seed), get_backend("broken-stale")
    backend.convert(model, PrecisionSpec(skip=("head",)))
    folder = out / trial.name
    shutil.rmtree(folder, ignore_errors=True)
    with RunRecord.create(folder, kind="train", config=config) as record:
        parts = Parts(model, backend=backend, hooks=[Fault(trial)], record=record)
        train(group, config, build_corpus(config.data), parts)
    pack(folder)


def load(out: Path, trial: Trial) -> list[dict[str, Any]] | None:
    """Return a run's step lines, without the layers' outputs, which have no scale; None if it is not done."""
    if not (out / f"{trial.name}{PACKED}").exists():
        return None
    lines = read_run(out / trial.name).steps
    for line in lines:
        if "scales" in line:
            line["scales"] = {name: stat for name, stat in line["scales"].items() if not name.endswith(".output")}
    return lines


# ---- judging


def list_alarms(lines: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """List (step, kind) of the alarms of a run, in order. A step that is not finite is not one: then it is too late."""
    record = Record(run={"status": "finished"})
    record.add(lines)
    return sorted((alarm.step or 0, alarm.kind) for rule in (*OF_TRAINING, *OVER_SCALES) for alarm in rule(record, 0))


def harm_at(found: list[dict[str, Any]], clean: list[dict[str, Any]]) -> int | None:
    """Return the step at which the held-out loss is HARM above the clean run's, or something is no number; or None."""
    usual = {line["step"]: line["heldout"] for line in clean if "heldout" in line}
    for line in found:
        own = line.get("heldout")
        if line.get("skipped") or (own is not None and not own <= usual[line["step"]] * (1 + HARM)):
            return line["step"]
    return None


def rows(out: Path, tuning: bool = False) -> list[dict[str, Any]]:
    """A row for each run: what it is, the "harm"'s step, each alarm's first step, the folklore's."""
    found: list[dict[str, Any]] = []
    clean: list[dict[str, Any]] = []
    for trial in trials(tuning):
        if (lines := load(out, trial)) is None:
            continue
        if trial.fault is None:
            clean = lines
        harm = None if trial.fault is None else harm_at(lines, clean)
        lines = [line for line in lines if harm is None or line["step"] <= harm + AFTER]
        rang: dict[str, int] = {}
        for step, kind in list_alarms(lines):
            rang.setdefault(kind if step >= trial.begin else f"{kind}, before the fault", step)
        row = {"run": trial.name, "fault": trial.fault, "begin": trial.begin, "strength": round(trial.strength, 3)}
        bad = next((line["step"] for line in lines if line.get("skipped")), None)
        found.append({**row, "harm": harm, "rang": rang, "drops": drops(lines), "bad": bad})
    return found


def drops(lines: list[dict[str, Any]]) -> list[int]:
    """List the steps at which a scale fell to 1 / DROP of what it was a probe before; not in the first ten probes."""
    probes = [(line["step"], line["scales"]) for line in lines if "scales" in line][10:]
    return [
        step
        for (_, before), (step, now) in pairwise(probes)
        if any(stat["scale"] < before[name]["scale"] / DROP for name, stat in now.items() if name in before)
    ]


def judge(found: list[dict[str, Any]]) -> dict[str, Any]:
    quiet = [row for row in found if row["harm"] is None]
    harmful = [row for row in found if row["harm"] is not None]
    per = {}
    for fault in FAULTS:
        its = [row for row in harmful if row["fault"] == fault]
        leads = [row["harm"] - min(times) for row in its if (times := in_time(row))]
        per[fault] = {
            "runs": sum(row["fault"] == fault for row in found),
            "harmful": len(its),
            "caught": len(leads),
            "early": sum(any(step < row["begin"] for step in row["rang"].values()) for row in its),
            "late": len(its) - len(leads),
            "median_lead": median(leads) if leads else None,
            "kinds": dict(Counter(kind for row in its for kind, step in row["rang"].items() if step in in_time(row))),
        }
    bad = [row for row in found if row["bad"] is not None]
    # The folklore: a drop between the fault and the harm; a drop within SOON steps before the first NaN.
    dropped = [row for row in harmful if any(row["begin"] <= step <= row["harm"] for step in row["drops"])]
    announced = [row for row in bad if any(row["bad"] - SOON <= step < row["bad"] for step in row["drops"])]
    return {
        "runs": len(found),
        "clean_runs": sum(row["fault"] is None for row in found),
        "faults": per,
        "harmful": len(harmful),
        "caught": sum(bool(in_time(row)) for row in harmful),
        "caught_before_the_evaluation": sum(min(in_time(row), default=row["harm"]) < row["harm"] for row in harmful),
        "harm_in_the_fault's_step": sum(row["harm"] == row["begin"] for row in harmful),
        "caught_without_the_learning_rate": sum(bool(in_time(row, "learning rate")) for row in harmful),
        "clean": len(quiet),
        "false": [{"run": row["run"], "rang": row["rang"]} for row in quiet if row["rang"]],
        "folklore": {
            "clean_with_a_drop": sum(bool(row["drops"]) for row in quiet),
            "harmful_with_a_drop_in_time": len(dropped),
            "not_finite": len(bad),
            "not_finite_after_a_drop": len(announced),
        },
    }


def in_time(row: dict[str, Any], without: str = "") -> list[int]:
    """The steps at which it rang from the fault's begin on, up to the evaluation that shows the harm. without: a kind."""
    return [step for kind, step in row["rang"].items() if kind != without and row["begin"] <= step <= row["harm"]]


def record(found: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Return what is committed: what came of it, under which conditions, and each run in a line."""
    plan = dict(clean=CLEAN, faulty=FAULTY, steps=STEPS, harm=HARM, after=AFTER, model=MODEL)
    seen, new = ([row for row in found if (int(row["run"][:4]) < SEEN) == early] for early in (True, False))
    done = {"planned": plan, "done": len(found), **judge(new), "looked_at_before": judge(seen)}
    return {**about("alarm study", command), **done, "first_rules": FIRST, "rows": found}


def main() -> None:
    from labkit.comm.ranks import run_ranks

    words = argparse.ArgumentParser(description="Measure the alarms on small trainings with faults put in.")
    words.add_argument("out", type=Path)
    words.add_argument("--tuning", action="store_true", help="other runs, to find thresholds on")
    words.add_argument("--seeds", type=int, default=CLEAN, help="only so many clean runs, and their faults")
    words.add_argument("--record", type=Path, help="write what came of it into this file")
    given = words.parse_args()
    writable(given.out)
    if given.record:
        writable(given.record.parent)
    for trial in islice(trials(given.tuning), given.seeds * (1 + FAULTY // CLEAN)):
        if load(given.out, trial) is None:
            run_ranks(run, trial, given.out, size=1, backend="threads", timeout=None)
            print(f"{trial.name} is done", flush=True)
    found = rows(given.out, given.tuning)
    print(json.dumps(judge(found), indent=1))
    if given.record:
        kept = as_lines(record(found, "python -m studies.alarms.study runs/alarms"))
        given.record.write_text(kept, encoding="utf-8")


if __name__ == "__main__":
    run_command("study", main)
