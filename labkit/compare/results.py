"""What a run folder says, arm by arm: the numbers that tables, page and pictures share.

Everything is taken from the record and nothing is guessed: what the record does not hold is None.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.compare.repeats import interval
from labkit.errors import LabError
from labkit.record.measure import Throughput, throughput_of
from labkit.record.read import RunData, as_dict, as_number, read_run

WARMUP = 2  # steps left out of the throughput, as in the training loop
QUANTISED = ("input", "weight", "grad")  # roles of tensors that are cast; "output" is the result
PLAIN = ("torch.nn.modules.linear.Linear", "Linear")
Probes = list[tuple[int, dict[str, dict]]]  # [(step, {tensor: {"scale", "amax", "overflow", "underflow", "sqnr"}})]

Worst = tuple[str, float, int]  # (tensor, dB, step)


@dataclass
class ArmResult:
    """One arm of a comparison, or the only one of a single run. Losses in nats a token, gaps in percent, SQNR in dB,
    memory in bytes (the most of any step and rank that the record names). `gap` is [(step, percent)]."""

    name: str
    label: str
    role: str  # of the preset; "single": the only one of a single run
    status: str  # finished, failed, paused, interrupted, running, skipped, pending
    note: str = ""
    data: RunData | None = None
    speed: Throughput = field(default_factory=lambda: throughput_of([]))
    steps: int = 0
    planned: int | None = None
    tokens: int | None = None
    loss: float | None = None
    heldout: float | None = None
    heldout_step: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    gap: list[tuple[int, float]] = field(default_factory=list)
    value: float | None = None
    word: str = ""  # one run: reference, inside, outside, undecided, no-data; several: same, different, rejected, ...
    of: str | None = None  # the arm of which this is a further run
    runs: float | None = None  # trained of it, where it was judged from several
    interval: str = ""  # of the gap, in words
    worst: Worst | None = None
    conversion: dict = field(default_factory=dict)
    evidence: dict = field(default_factory=dict)
    converted: list[str] | None = None
    plain: int = 0  # linears that a backend took as they are (BF16)
    skipped: dict[str, str] = field(default_factory=dict)
    nonfinite: int = 0  # steps whose loss or gradient norm is NaN or infinite
    skipped_steps: int = 0
    fp8_steps: float | None = None  # steps whose linears computed in FP8; None: not counted

    def series(self, name: str) -> list[tuple[int, float]]:
        return self.data.series(name) if self.data else []

    def scales(self) -> Probes:
        return probes_of(self.data) if self.data else []


def arms_of(data: RunData) -> dict[str, ArmResult]:
    """The arms in the order in which they were run; for a single run, one arm named "run"."""
    if not data.is_comparison:
        label = data.run.get("label") or _precision_of(data)
        return {"run": _arm("run", data, {"label": label, "role": "single"}, {})}
    about, planned = as_dict(data.results.get("arms")), as_dict(data.config.get("arms"))
    verdict = verdict_of(data)
    return {
        name: _arm(name, data.arms.get(name), {**as_dict(planned.get(name)), **as_dict(about.get(name))}, verdict)
        for name in dict.fromkeys([*about, *planned, *data.arms])
    }


def found_run(folder: Path) -> RunData | None:
    """The record in this folder; None if there is none that can be read."""
    try:
        return read_run(folder)
    except LabError:
        return None


def verdict_of(data: RunData) -> dict:
    """run.json["results"]["verdict"]; empty if the comparison did not come that far."""
    return as_dict(data.results.get("verdict"))


def timed_of(data: RunData) -> dict[str, dict]:
    """The timed arms of the speed part, run.json["results"]["speed"]["arms"]; empty if nothing was timed."""
    return as_dict(as_dict(data.results.get("speed")).get("arms"))


def formats_of(data: RunData) -> tuple[str, str]:
    """What a comparison calls its candidates and its baseline: ("FP8", "BF16") unless its preset says otherwise."""
    return str(data.config.get("format", "FP8")), str(data.config.get("yardstick", "BF16"))


def price_of(data: RunData) -> float | None:
    """Of an hour of the whole machine, as the last call that told one has it."""
    calls = data.results.get("calls") or []
    return next((call["price_per_hour"] for call in reversed(calls) if call.get("price_per_hour")), None)


def heldout_of(data: RunData) -> dict[int, float]:
    """{step: held-out loss}; a run that gave up because its steps were not finite counts as infinite at its planned
    end."""
    series, steps = dict(data.series("heldout")), data.config.get("steps", 0)
    if data.results.get("stopped") and steps and data.results.get("steps") in (data.results.get("skipped") or []):
        series[steps] = math.inf
    return series


def probes_of(data: RunData) -> Probes:
    """What was recorded of each tensor's cast, at the steps at which it was."""
    return [
        (line["step"], line["scales"])
        for line in data.steps
        if isinstance(line.get("scales"), dict) and line["scales"] and "step" in line
    ]


@lru_cache(maxsize=8192)  # asked for every tensor of every probe
def split_tensor(tensor: str) -> tuple[int | None, str, str]:
    """(layer, linear, role): "layers.2.ffn.w1.grad" -> (2, "ffn.w1", "grad"); layer None outside the layers."""
    module, _, role = tensor.rpartition(".")
    found = re.search(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$", module)
    return (int(found[1]), found[2], role) if found else (None, module, role)


def short(tensor: str) -> str:
    """The linear's own name: "layers.2.ffn.w1.grad" -> "w1"."""
    return split_tensor(tensor)[1].rpartition(".")[2]


def worst_sqnr(probes: Probes, roles: tuple[tuple[str, ...], ...] = (("output",), QUANTISED)) -> Worst | None:
    """(tensor, dB, step) of the lowest SQNR over all probes, of the tensors in the first of `roles` that was recorded
    at all; None if none was. NaN counts as lowest."""
    for wanted in roles:
        found = [
            (db, name, step)
            for step, tensors in probes
            for name, stat in tensors.items()
            if split_tensor(name)[2] in wanted and (db := as_number(as_dict(stat).get("sqnr"))) is not None
        ]
        if found:
            db, name, step = min(found, key=lambda f: -math.inf if math.isnan(f[0]) else f[0])
            return name, db, step
    return None


def _arm(name: str, data: RunData | None, about: dict, verdict: dict) -> ArmResult:
    judged, run = as_dict(as_dict(verdict.get("arms")).get(name)), data.run if data else {}
    status = about.get("status") or "pending"
    if data is not None and status in ("pending", "running"):
        status = data.status  # what the arm's own folder says is nearer to what happened
    default = {"label": name, "role": "candidate"}
    label, role = (str(about.get(key) or run.get(key) or default[key]) for key in default)
    arm = ArmResult(name, label, role, status, str(about.get("note") or ""), data)
    arm.word, arm.value = str(judged.get("word") or ""), as_number(judged.get("value"))
    arm.of, arm.runs = about.get("of"), as_number(judged.get("runs"))
    arm.interval = interval(judged) if arm.runs else ""
    arm.gap = [(step, gap) for step, gap in judged.get("gap") or [] if None not in (as_number(step), as_number(gap))]
    if data is None:
        return arm
    steps = data.steps
    arm.speed = throughput_of(steps, WARMUP)
    if as_number(about.get("tokens_per_s")):  # what the terminal said; the same unless the run was resumed
        arm.speed = dataclasses.replace(arm.speed, tokens_per_s=about["tokens_per_s"])
    arm.steps, arm.planned = len(steps), _planned(data)
    arm.tokens, arm.loss = _last(steps, "tokens"), _last(steps, "loss")
    if held := data.series("heldout"):
        arm.heldout_step, arm.heldout = held[-1]
    memory = [as_dict(s.get("memory")) for s in steps] + [about]
    arm.peak_bytes, arm.reserved_bytes = _most(memory, "peak_bytes"), _most(memory, "reserved_bytes")
    arm.worst = worst_sqnr(arm.scales())
    arm.conversion = as_dict(run.get("conversion"))
    arm.evidence = as_dict(run.get("evidence")) or as_dict(data.results.get("evidence"))
    if isinstance(arm.conversion.get("converted"), list):
        arm.converted = [str(module) for module in arm.conversion["converted"]]
        if arm.conversion.get("module_type") in PLAIN:  # taken, but into what it was before: nothing was converted
            arm.plain, arm.converted = len(arm.converted), []
    arm.fp8_steps = as_number(data.results.get("fp8_steps"))
    arm.skipped = {str(k): str(v) for k, v in as_dict(arm.conversion.get("skipped")).items()}
    arm.nonfinite = sum(
        any(isinstance(s.get(k), float) and not math.isfinite(s[k]) for k in ("loss", "grad_norm")) for s in steps
    )
    arm.skipped_steps = sum(bool(s.get("skipped")) for s in steps)
    return arm


def _precision_of(data: RunData) -> str:
    """ "torchao tensorwise", from the configuration."""
    precision = as_dict(data.run.get("precision")) or as_dict(data.config.get("precision"))
    return " ".join(str(precision[k]) for k in ("backend", "recipe") if precision.get(k)) or "run"


def _planned(data: RunData) -> int | None:
    steps = data.config.get("steps", as_dict(data.config.get("train")).get("steps"))
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def _last(steps: list[dict], key: str) -> Any:
    return next((line[key] for line in reversed(steps) if as_number(line.get(key)) is not None), None)


def _most(rows: list[dict], key: str) -> int | None:
    return max((row[key] for row in rows if as_number(row.get(key))), default=None)
