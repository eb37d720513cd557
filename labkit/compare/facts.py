"""What a run folder says, arm by arm: the numbers that the report and the pictures share.

Everything is taken from the record and nothing is guessed: what the record does not hold is None.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from labkit.record.measure import Throughput, throughput_of
from labkit.record.read import RunData

WARMUP = 2  # steps left out of the throughput, as in the training loop
QUANTISED = ("input", "weight", "grad")  # roles of tensors that are cast; "output" is the result

PLAIN = ("torch.nn.modules.linear.Linear", "Linear")


@dataclass
class Arm:
    """One arm of a comparison, or the only one of a single run. Losses in nats a token, gaps in percent, SQNR in dB,
    memory in bytes (the most of any step and rank that the record names). `gap` is [(step, percent)]."""

    name: str
    label: str
    role: str  # baseline, twin, candidate, broken; single
    status: str  # finished, failed, interrupted, running, skipped, pending
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
    word: str = ""  # reference, inside, outside, no-data
    sentence: str = ""
    worst: tuple[str, float, int] | None = None  # (tensor, dB, step)
    conversion: dict = field(default_factory=dict)
    evidence: dict = field(default_factory=dict)
    converted: list[str] | None = None
    plain: int = 0  # linears that a backend took as they are (BF16)
    skipped: dict[str, str] = field(default_factory=dict)
    nonfinite: int = 0  # steps whose loss or gradient norm is NaN or infinite
    skipped_steps: int = 0
    fp8_steps: int | None = None  # steps whose linears computed in FP8; None: not counted

    def series(self, name: str) -> list[tuple[int, float]]:
        return self.data.series(name) if self.data else []

    def scales(self) -> list[tuple[int, dict[str, dict]]]:
        """[(step, {tensor: {"scale", "amax", "overflow", "underflow", "sqnr"}})]"""
        return [
            (s["step"], s["scales"])
            for s in (self.data.steps if self.data else [])
            if isinstance(s.get("scales"), dict) and s["scales"] and "step" in s
        ]


def arms_of(data: RunData) -> dict[str, Arm]:
    """The arms in the order in which they were run; for a single run, one arm named "run"."""
    if data.run.get("kind") != "compare":
        label = data.run.get("label") or precision_of(data.run)
        return {"run": _arm("run", data, {"label": label, "role": "single"}, {})}
    results, planned = _dict(data.run.get("results")), _dict(_dict(data.run.get("config")).get("arms"))
    about, verdict = _dict(results.get("arms")), verdict_of(data)
    names = [*about, *planned, *data.arms]
    return {
        name: _arm(name, data.arms.get(name), {**_dict(planned.get(name)), **_dict(about.get(name))}, verdict)
        for name in dict.fromkeys(names)
    }


def verdict_of(data: RunData) -> dict:
    """run.json["results"]["verdict"]; empty if the comparison did not come that far."""
    return _dict(_dict(data.run.get("results")).get("verdict"))


def precision_of(run: dict) -> str:
    """ "torchao tensorwise", from the configuration."""
    precision = _dict(run.get("precision")) or _dict(_dict(run.get("config")).get("precision"))
    return " ".join(str(precision[k]) for k in ("backend", "recipe") if precision.get(k)) or "run"


@lru_cache(maxsize=8192)  # asked for every tensor of every probe
def split_tensor(tensor: str) -> tuple[int | None, str, str]:
    """(layer, linear, role): "layers.2.ffn.w1.grad" -> (2, "ffn.w1", "grad"); layer None outside the layers."""
    module, _, role = tensor.rpartition(".")
    found = re.search(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$", module)
    return (int(found[1]), found[2], role) if found else (None, module, role)


def short(tensor: str) -> str:
    """The linear's own name: "layers.2.ffn.w1.grad" -> "w1"."""
    return split_tensor(tensor)[1].rpartition(".")[2]


def worst_sqnr(scales: list[tuple[int, dict]]) -> tuple[str, float, int] | None:
    """(tensor, dB, step) of the lowest SQNR of any linear's output over all probes; of the quantised tensors where no
    outputs were recorded. NaN counts as lowest."""
    for roles in (("output",), QUANTISED):
        found = [
            (db, name, step)
            for step, tensors in scales
            for name, stat in tensors.items()
            if split_tensor(name)[2] in roles and (db := _number(_dict(stat).get("sqnr"))) is not None
        ]
        if found:
            db, name, step = min(found, key=lambda f: -math.inf if math.isnan(f[0]) else f[0])
            return name, db, step
    return None


def _arm(name: str, data: RunData | None, about: dict, verdict: dict) -> Arm:
    judged, run = _dict(_dict(verdict.get("arms")).get(name)), data.run if data else {}
    status = about.get("status") or "pending"
    if data is not None and status in ("pending", "running"):
        status = data.status  # what the arm's own folder says is nearer to what happened
    arm = Arm(
        name,
        str(about.get("label") or run.get("label") or name),
        str(about.get("role") or run.get("role") or "candidate"),
        status,
        str(about.get("note") or ""),
        data,
        word=str(judged.get("word") or ""),
        value=_number(judged.get("value")),
        sentence=str(judged.get("sentence") or ""),
    )
    arm.gap = [
        (step, gap) for step, gap in judged.get("gap") or [] if _number(step) is not None and _number(gap) is not None
    ]
    if data is None:
        return arm
    steps = data.steps
    arm.speed = throughput_of(steps, WARMUP)
    if _number(about.get("tokens_per_s")):  # what the terminal said; the same unless the run was resumed
        arm.speed = dataclasses.replace(arm.speed, tokens_per_s=about["tokens_per_s"])
    arm.steps, arm.planned = len(steps), _planned(run)
    arm.tokens = next((s["tokens"] for s in reversed(steps) if _number(s.get("tokens")) is not None), None)
    arm.loss = next((s["loss"] for s in reversed(steps) if _number(s.get("loss")) is not None), None)
    held = data.series("heldout")
    if held:
        arm.heldout_step, arm.heldout = held[-1]
    memory = [_dict(s.get("memory")) for s in steps] + [about]
    arm.peak_bytes = max((m["peak_bytes"] for m in memory if _number(m.get("peak_bytes"))), default=None)
    arm.reserved_bytes = max((m["reserved_bytes"] for m in memory if _number(m.get("reserved_bytes"))), default=None)
    arm.worst = worst_sqnr(arm.scales())
    arm.conversion = _dict(run.get("conversion"))
    arm.evidence = _dict(run.get("evidence")) or _dict(_dict(run.get("results")).get("evidence"))
    if isinstance(arm.conversion.get("converted"), list):
        arm.converted = [str(module) for module in arm.conversion["converted"]]
        if arm.conversion.get("module_type") in PLAIN:  # taken, but into what it was before: nothing was converted
            arm.plain, arm.converted = len(arm.converted), []
    arm.fp8_steps = _number(_dict(run.get("results")).get("fp8_steps"))
    arm.skipped = {str(k): str(v) for k, v in _dict(arm.conversion.get("skipped")).items()}
    arm.nonfinite = sum(
        any(isinstance(s.get(k), float) and not math.isfinite(s[k]) for k in ("loss", "grad_norm")) for s in steps
    )
    arm.skipped_steps = sum(bool(s.get("skipped")) for s in steps)
    return arm


def _planned(run: dict) -> int | None:
    config = _dict(run.get("config"))
    steps = config.get("steps", _dict(config.get("train")).get("steps"))
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}
