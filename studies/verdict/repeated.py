"""The verdict repeated on GPUs: comparisons of one training, judged each by itself, and drawn again from all runs.

    python -m studies.verdict.repeated OUT FOLDER[,FOLDER...] ...      writes the record OUT
    python -m studies.verdict.repeated OUT RECORD FOLDER ...           goes on from an earlier record

Each FOLDER is what `lab compare --part safety` left; those with commas between them count as one call. RECORD, a name
that ends in .json, stands for the calls that it was made from. Repetitions are what somebody who rents that GPU for
that hour would read; rates come from comparisons drawn from all runs, as in studies.verdict.operating.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.compare.arms import find_run, heldout_of
from labkit.compare.preset import load_preset
from labkit.compare.repeats import spread_of
from labkit.compare.statistic import Answer, Spread, answers, tail
from labkit.errors import LabError, run_command
from labkit.record.clean import jsonable, restore
from labkit.record.read import RunData, read_run, runs_below
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from studies.verdict.operating import CHOSEN, DESIGNS, Scene, simulate_ranges, standard_error, std
from studies.writing import as_lines

KIND, BF16 = "verdict repeats", "bf16"
CANDIDATES = ("te-current", "fine")  # of every repetition: correct FP8, and FP8 that is a little wrong
PRESET = "h100"  # whose standard deviation is used
FEW = 5  # runs; from fewer no rate is computed
FREE = {
    "perturb": 0.0,
    "perturb_seed": 0,
    "precision": None,
    "probe_every": 0,
    "checkpoint_every": 0,
    "checkpoint_at_end": True,
}


@dataclass(frozen=True)
class Run:
    call: int  # number of its folder
    kind: str  # its arm without "-2"
    seed: int
    held: dict[int, float]  # {step: held-out loss}

    @property
    def y(self) -> float:
        """100 x the mean logarithm over the second half."""
        return tail(self.held, max(self.held) // 2 + 1)


def runs_of(folders: Sequence[Path], call: int) -> tuple[list[Run], dict[str, Any]]:
    """The runs of one call that trained to the end, and their training. LabError: no comparison or run, two trainings."""
    found: list[tuple[str, Run]] = []
    shared = None
    for folder in folders:
        about, before = read_run(folder).config.get("arms", {}), len(found)
        for name in sorted(runs_below(folder / "arms")):
            run = find_run(folder / "arms" / name)
            if run is None or run.status != "finished":
                continue
            config, held = strict_validate(TrainConfig, run.config, str(run.path)), heldout_of(run)
            if max(held, default=0) < config.steps:
                continue  # a control that was rejected
            # The same settings cut another text into other tokens: losses of two texts are not compared.
            training = training_of(config) | {"corpus": (run.run.get("corpus") or {}).get("hash")}
            if shared not in (None, training):
                raise LabError(f"{run.path}: another training, or another text, than that of the runs beside it")
            shared, arm = training, about.get(name, {})
            kind = BF16 if arm.get("role") == "twin" else arm.get("of") or name
            found.append((str(run.run.get("started")), Run(call, kind, config.perturb_seed, held)))
        if len(found) == before:
            raise LabError(f"no arm of {folder} was trained to its end: give it with its arms/")
    assert shared is not None
    return [run for _, run in sorted(found, key=lambda each: each[0])], shared


def training_of(config: TrainConfig) -> dict[str, Any]:
    return jsonable({**config.model_dump(), **FREE})


def calls_of(record: Path, first: int) -> tuple[list[Run], dict[str, Any], list[Any]]:
    """The runs of an earlier record, calls numbered from `first` on, their training, what is known."""
    found = restore(json.loads(record.read_text(encoding="utf-8")))
    if found.get("kind") != KIND:
        raise LabError(f"{record}: no record that `python -m studies.verdict.repeated` wrote")
    steps = found["steps"]
    runs = [Run(first + call, kind, seed, dict(zip(steps, y))) for call, kind, seed, *y in found["heldout"]]
    settings = {key: value for key, value in found["train"].items() if key not in FREE}
    text = {"corpus": settings.pop("corpus", None)}
    return runs, training_of(strict_validate(TrainConfig, settings, str(record))) | text, found["calls"]


def repetitions(runs: Sequence[Run], prior: Spread | None) -> list[dict[str, Any]]:
    """Judge every comparison that the calls allow without using a candidate's run twice, in the order of the runs.

    Each one's kind, the `call` of its own runs and that of its BF16 runs, `base`; and the answer.
    """
    out = []
    for call, base in (quads := quads_of(runs)).items():
        of = {kind: [run for run in runs if run.call == call and run.kind == kind] for kind in CANDIDATES}
        while any(len(own) >= 2 for own in of.values()):
            first = _judge(base, {kind: own[:2] for kind, own in of.items()}, prior)
            for kind, own in of.items():
                if len(own) < 2:
                    continue
                answer, taken = first[kind], 2
                if answer.word == "undecided" and len(own) >= 4:
                    others = {other: kept[:2] for other, kept in of.items() if other != kind}
                    answer, taken = _judge(base, {**others, kind: own[:4]}, prior)[kind], 4
                out.append(_row(kind, call, call, answer))
                of[kind] = own[taken:]
    # BF16 as a candidate: each call's first two runs, all four if undecided, against the next four.
    calls = list(quads) if len(quads) > 1 else []
    for call, next_call in zip(calls, [*calls[1:], *calls[:1]]):
        for own in (quads[call][:2], quads[call]):
            answer = _judge(quads[next_call], {BF16: own, CANDIDATES[0]: []}, prior)[BF16]
            if answer.word != "undecided":
                break
        out.append(_row(BF16, next_call, call, answer))
    return out


def quads_of(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return {call: its first four BF16 runs}, of the calls that have four."""
    out: dict[int, list[Run]] = {}
    for run in runs:
        if run.kind == BF16:
            out.setdefault(run.call, []).append(run)
    return {call: own[:4] for call, own in out.items() if len(own) >= 4}


def study(calls: Sequence[Sequence[Path]], seed: int = 0) -> dict[str, Any]:
    """All that is reported of these calls, as plain values. LabError: as `runs_of`, or trainings that differ."""
    runs: list[Run] = []
    known: list[Any] = []
    shared = None
    for folders in calls:
        if [folder.suffix for folder in folders] == [".json"]:
            own, training, new = calls_of(folders[0], len(known))
        else:
            own, training = runs_of(folders, len(known))
            new = [[_describe(read_run(folder)) for folder in folders]]
        if shared not in (None, training):
            raise LabError(f"{folders[0]}: another training, or another text, than that of {calls[0][0]}")
        shared = training
        seen = {(part["started"], part["command"]) for parts in known for part in parts}
        if any((part["started"], part["command"]) in seen for parts in new for part in parts):
            raise LabError(f"{folders[0]} is there already: the same runs would count twice")
        runs += own
        known += new
    repeat = load_preset(PRESET).repeat
    assert repeat
    prior = spread_of(repeat)
    assert prior
    steps = sorted(runs[0].held)
    ys = {kind: np.array([run.y for run in runs if run.kind == kind]) for kind in dict.fromkeys(r.kind for r in runs)}
    rng, base = np.random.default_rng(seed), ys[BF16]
    kinds = []
    for kind, values in ys.items():
        row: dict[str, Any] = {"kind": kind, "runs": len(values), "gap": float(values.mean() - base.mean())}
        if len(values) >= FEW:
            row["spread"] = std(values)
            row["error"] = 0.0 if kind == BF16 else standard_error(values, base)
            companion = base if kind == BF16 else ys.get(CANDIDATES[0], base)
            scene = Scene(base, values, companion, (prior.baseline, prior.candidate))
            row["rates"] = simulate_ranges(rng, DESIGNS[CHOSEN], scene)
        kinds.append(row)
    return {
        "kind": KIND,
        "command": "python -m studies.verdict.repeated OUT "
        + " ".join(",".join(folder.name for folder in folders) for folders in calls),
        "calls": known,
        "train": shared,
        "records": [prior.baseline, prior.candidate],
        "repetitions": repetitions(runs, prior),
        "kinds": kinds,
        "steps": steps,
        "heldout": [[one.call, one.kind, one.seed, *(round(one.held[s], 6) for s in steps)] for one in runs],
    }


def main() -> None:
    out, *calls = sys.argv[1:]
    found = study([list(map(Path, call.split(","))) for call in calls])
    Path(out).write_text(as_lines(found), encoding="utf-8")


# ---- parts


def _judge(base: Sequence[Run], candidates: dict[str, list[Run]], prior: Spread | None) -> dict[str, Answer]:
    given = {kind: [run.y for run in own] for kind, own in candidates.items()}
    return answers([run.y for run in base], given, prior, looks=2)


def _row(kind: str, base: int, call: int, answer: Answer) -> dict[str, Any]:
    said = {"runs": answer.runs, "word": answer.word, "value": answer.gap, "low": answer.low, "high": answer.high}
    return {"kind": kind, "base": base, "call": call, **said}


def _describe(whole: RunData) -> dict[str, Any]:
    """Return what a page says of a call: when, on what, with which versions, by which command, and its answer."""
    about = {key: whole.run[key] for key in ("started", "command", "versions")}
    gpu = whole.run["hardware"]["gpus"][0]["name"]
    return {**about, "gpu": gpu, "said": whole.results["verdict"]["sentence"]}


if __name__ == "__main__":
    run_command("repeated", main)
