"""What a run folder says, arm by arm: the one place where tables, page and pictures get their numbers."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.compare.equal_loss import Further, further_steps
from labkit.compare.terminal import parameters
from labkit.errors import LabError
from labkit.model.flops import flops_per_token
from labkit.precision.config import PLAIN
from labkit.record.measure import Efficiency, Throughput, efficiency, throughput_of
from labkit.record.read import RunData, as_dict, as_number, read_run
from labkit.record.schema import ArmRow, Call, Conversion, Item, Judged, PlannedArm, Ratio, Sqnr, TimedRow, Verdict
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

WARMUP = 2  # steps left out of the throughput, as in the training loop
QUANTISED = ("input", "weight", "grad")  # roles of tensors that are cast; "output" is the result
LINEARS = ("torch.nn.modules.linear.Linear", "Linear")  # a "converted" module of this type is what it was before
SHOWN = ("baseline", "reference", "candidate", "fine", "broken")  # roles in the table of answers
ONE_RUN = {"inside": "in the band", "outside": "outside the band", "undecided": "undecided", "no-data": "no data"}
Probes = list[tuple[int, dict[str, dict]]]  # [(step, {tensor: {"scale", "amax", "overflow", "underflow", "sqnr"}})]


@dataclass
class Arm:
    """One arm (variant) of a comparison, or the only one of a single run; None: no record holds it.

    Losses in nats a token, gaps in per cent, memory in bytes (most of any step and rank). of, look: as in its preset.
    times, speedup: its speed in the speed part and in the loss's, over the baseline's. further: what its gap takes.
    """

    name: str
    label: str
    role: str  # of the preset; "single": the only one of a single run
    status: str = "finished"  # or failed, paused, interrupted, running, skipped, pending
    note: str = ""
    of: str | None = None
    look: int = 1
    data: RunData | None = None
    timed: TimedRow | None = None
    times: float | None = None
    ratio: Ratio = field(default_factory=Ratio)
    judged: Judged | None = None
    one_run: bool = False  # the gap is of a single run, without an interval
    gap: float | None = None
    low: float | None = None  # its interval
    high: float | None = None
    word: str = ""
    runs: int = 0  # trained for the loss
    further: Further | None = None
    speed: Throughput = field(default_factory=lambda: throughput_of([]))
    speedup: float | None = None
    steps: int = 0
    planned: int | None = None
    tokens: int | None = None
    loss: float | None = None
    val_loss: float | None = None
    val_step: int | None = None
    peak_bytes: int | None = None
    sqnr: Sqnr | None = None  # the lowest
    conversion: Conversion = field(default_factory=Conversion)
    evidence: dict[str, Any] = field(default_factory=dict)
    converted: int | None = None
    left: int | None = None  # linears that compute as before
    nonfinite: int | None = None  # steps whose loss or gradient norm is NaN or infinite, those after a rollback too
    skipped_steps: int = 0
    fp8_steps: int | None = None  # steps whose linears computed in FP8; None: not counted

    @property
    def at_equal_loss(self) -> tuple[float, float, float] | None:
        """`times` at equal loss, with its interval."""
        return self.further.speed(self.times) if self.further and self.times else None

    @property
    def gaps(self) -> list[tuple[int, float]]:
        """[(step, per cent)] of this run against the baseline."""
        return self.judged.gap if self.judged else []

    @property
    def timed_label(self) -> str:
        """With its sequences, where the arms were timed with different ones."""
        return self.timed.label if self.timed else self.label

    def series(self, name: str) -> list[tuple[int, float]]:
        return self.data.series(name) if self.data else []

    def scales(self) -> Probes:
        """What was recorded of each tensor's cast, at the steps at which it was."""
        lines = self.data.steps if self.data else []
        return [(line["step"], line["scales"]) for line in lines if as_dict(line.get("scales")) and "step" in line]

    def row(self) -> ArmRow:
        """What the comparison's record keeps of it."""
        keys = ["label", "role", "of", "look", "status", "note"]
        if self.status != "finished":
            return ArmRow(**{key: getattr(self, key) for key in keys})
        keys += ["peak_bytes", "val_loss", "converted", "nonfinite", "sqnr"]
        known = {key: getattr(self, key) for key in keys}
        return ArmRow(**known, tokens_per_s=self.speed.tokens_per_s, skipped=self.left)


def arm_rows(data: RunData, verdict: Verdict | None = None) -> dict[str, Arm]:
    """The arms in the order in which they ran; of a single run one, "run". verdict: in place of the record's."""
    if not data.is_comparison:
        of = data.training
        precision = of.precision if of.precision.backend else of.config.precision
        label = of.label or " ".join(filter(None, (precision.backend, precision.recipe))) or "run"
        return {"run": _arm("run", ArmRow(label=label, role="single", status=data.status), data)}
    record = data.comparison
    results, planned, timed = record.results, record.config.arms, record.results.timed
    one_run = verdict is None and not record.config.repeat
    verdict = verdict or results.verdict or Verdict()
    base = next((row.tokens_per_s for row in timed.values() if row.role == "baseline"), None)
    arms: dict[str, Arm] = {}
    for name in dict.fromkeys([*results.arms, *planned, *data.arms, *timed]):
        # What the comparison says of it; where its results are silent, its preset and its timing.
        row, plan, timing = results.arms.get(name, ArmRow()), planned.get(name, PlannedArm()), timed.get(name)
        about = row.model_copy(update={"of": row.of or plan.of, "look": max(row.look, plan.look)})
        about.label = row.label or plan.label or (timing.label if timing else None)
        about.role = row.role or plan.role or (timing.role if timing else None)
        arm = arms[name] = _arm(name, about, data.arms.get(name))
        arm.timed, arm.judged, arm.one_run = timing, verdict.arms.get(name), one_run
        arm.times = timing.tokens_per_s / base if timing and base else None
        arm.ratio = results.speed.verdict.ratios.get(name, arm.ratio) if results.speed else arm.ratio
        _judge(arm, verdict)
    unit = next((arm.speed.tokens_per_s for arm in arms.values() if arm.role == "baseline"), None)
    for arm in arms.values():
        if unit and arm.speed.tokens_per_s and arm.role != "baseline":
            arm.speedup = arm.speed.tokens_per_s / unit
    base_runs = [arm.data for arm in arms.values() if "baseline" in (arm.role, arm.of and arms[arm.of].role)]
    curves = [heldout_of(run) for run in base_runs if run and run.status == "finished"]
    for arm in arms.values():
        if arm.gap is not None and arm.low is not None and arm.high is not None and verdict.from_step is not None:
            arm.further = further_steps(curves, verdict.from_step, arm.gap, arm.low, arm.high)
    return arms


def answers(arms: Mapping[str, Arm]) -> list[Arm]:
    """The arms that were timed or judged, the baseline first, then by speed."""
    shown = [arm for arm in arms.values() if arm.role in SHOWN and (arm.times is not None or arm.judged)]
    return sorted(shown, key=lambda arm: (arm.role != "baseline", arm.times is None, -(arm.times or 0)))


def is_spared(arm: Arm, arms: Mapping[str, Arm]) -> bool:
    """Whether this is a further run of an arm that its first runs decided, or that is not judged yet."""
    of = arms.get(arm.of or "")
    return arm.look > 1 and of is not None and not (of.judged and of.judged.word == "undecided")


def still_needed(call: Call, arms: Mapping[str, Arm]) -> list[Item]:
    """What a call left for another and is not spared."""
    spared = [name for name, arm in arms.items() if is_spared(arm, arms)]
    return [item for item in call.left if item.part == "speed" or item.arm not in spared]


def _arm(name: str, about: ArmRow, data: RunData | None) -> Arm:
    of = data.training if data else None
    label, role = about.label or (of and of.label) or name, about.role or (of and of.role) or "candidate"
    known = {key: getattr(about, key) for key in ("val_loss", "peak_bytes", "sqnr", "converted", "nonfinite")}
    arm = Arm(name, label, role, about.status, about.note, about.of, about.look, data, **known, left=about.skipped)
    arm.speed = replace(arm.speed, tokens_per_s=about.tokens_per_s)
    if data is None or of is None:
        return arm
    if arm.status not in ("failed", "skipped") or data.status == "finished":
        arm.status = data.status  # what the arm's own folder says is nearer to what happened
    results, lines = of.results, data.lines
    speed = throughput_of(data.steps, WARMUP)
    rate = results.tokens_per_s or about.tokens_per_s or speed.tokens_per_s
    arm.speed = replace(speed, tokens_per_s=rate)
    train = of.config.train.get("steps")
    arm.steps, arm.planned = len(lines), of.config.steps or (train if isinstance(train, int) else None)
    arm.tokens = next((line.tokens for line in reversed(lines) if line.tokens is not None), None)
    arm.loss = next((line.loss for line in reversed(lines) if line.loss is not None), None)
    if held := heldout_of(data):
        arm.val_step = max(held)
        arm.val_loss = held[arm.val_step]
    peaks = [*(line.memory.peak_bytes for line in lines), *results.peak_bytes, about.peak_bytes]
    arm.peak_bytes = max((peak for peak in peaks if peak), default=None)
    arm.sqnr = worst_sqnr(arm.scales()) or arm.sqnr
    arm.conversion, arm.evidence, arm.fp8_steps = of.conversion, of.evidence or results.evidence, results.fp8_steps
    if (modules := of.conversion.converted) is not None:
        plain = of.conversion.backend in PLAIN or of.conversion.module_type in LINEARS
        arm.converted = 0 if plain else len(modules)
        arm.left = len(of.conversion.skipped) + (len(modules) if plain else 0)
    # A rollback drops the lines of the steps that are done again, and keeps the events; a record may lack either.
    lost = {line.step for line in lines if line.lost}
    arm.nonfinite = len(lost | {event.step for event in data.happened if event.kind == "nonfinite"})
    arm.skipped_steps = sum(line.skipped for line in lines)
    return arm


def _judge(arm: Arm, verdict: Verdict) -> None:
    """Put what the verdict says of an arm into it."""
    arm.runs = int(arm.status == "finished" and (arm.one_run or arm.judged is not None))
    if not (judged := arm.judged):
        return
    if arm.one_run:
        kept = [gap for step, gap in judged.gap if verdict.from_step is not None and step >= verdict.from_step]
        arm.gap, arm.word = math.fsum(kept) / len(kept) if kept else None, ONE_RUN.get(judged.word, "")
    else:
        arm.gap, arm.low, arm.high, arm.runs = judged.value, judged.low, judged.high, judged.runs or 0
        arm.word = judged.word if arm.role != "baseline" else ""


# ---- parts of a record


def find_run(folder: Path) -> RunData | None:
    """The record in this folder; None if there is none that can be read."""
    with suppress(LabError):
        return read_run(folder)
    return None


def heldout_of(data: RunData) -> dict[int, float]:
    """{step: val_loss}; a run that gave up because its steps were not finite counts as infinite at its planned end."""
    series, of = dict(data.series("heldout")), data.training
    if of.results.stopped and of.config.steps and of.results.steps in of.results.skipped:
        series[of.config.steps] = math.inf
    return series


def efficiency_of(config: TrainConfig, tokens_per_s: float, gpu: str | None, ranks: int) -> Efficiency:
    """What a rate means on this GPU, counting attention's FLOPs for the causal half and in full."""
    model, length = config.resolved_model, config.seq_len
    flops = {kind: flops_per_token(model, length, causal=kind == "causal") for kind in ("causal", "full")}
    return efficiency(tokens_per_s, flops, gpu, ranks)


def timed_row(data: RunData, label: str, role: str) -> TimedRow:
    """A timed arm's numbers, from the folder of a finished run of the speed part."""
    of, config = data.training, strict_validate(TrainConfig, data.config, f"the record in {data.path}")
    assert of.results.speed is not None
    ranks = of.world.size if of.world and of.world.size else 1
    on_gpu = of.world is not None and str(of.world.device).startswith("cuda")
    gpu = of.hardware.gpus[0].name if on_gpu and of.hardware and of.hardware.gpus else None
    found, evidence = efficiency_of(config, of.results.speed.tokens_per_s, gpu, ranks), of.results.evidence
    plain, batch, length = config.precision.backend in PLAIN, config.batch_size, config.seq_len
    known: dict[str, Any] = {"label": label, "role": role, "ranks": ranks, "skipped": len(of.results.skipped)}
    known |= {"batch": batch, "seq_len": length, "tokens_step": batch * length // ranks, "attention": config.attention}
    known |= {"library": "plain" if plain else config.precision.backend, "fused": config.precision.fused}
    known |= {"converted": 0 if plain else evidence.get("converted"), "module_types": evidence.get("module_types")}
    known |= {"width": config.resolved_model.d_model}
    known |= {"flops_per_s": found.flops_per_s, "mfu": found.mfu, "mfu_note": found.note}
    return TimedRow(**of.results.speed.model_dump(), **known)


# ---- probes of what is cast


@lru_cache(maxsize=8192)  # called for every tensor of every probe
def split_tensor(tensor: str) -> tuple[int | None, str, str]:
    """(layer, linear, role): "layers.2.ffn.w1.grad" -> (2, "ffn.w1", "grad"); layer None outside the layers."""
    module, _, role = tensor.rpartition(".")
    found = re.search(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$", module)
    return (int(found[1]), found[2], role) if found else (None, module, role)


def worst_sqnr(probes: Probes) -> Sqnr | None:
    """The lowest SQNR over all probes, of the linears' outputs, else of the tensors cast; None without. NaN is lowest."""
    for wanted in (("output",), QUANTISED):
        found = [
            (db, name, step)
            for step, tensors in probes
            for name, stat in tensors.items()
            if split_tensor(name)[2] in wanted and (db := as_number(as_dict(stat).get("sqnr"))) is not None
        ]
        if found:
            db, name, step = min(found, key=lambda f: -math.inf if math.isnan(f[0]) else f[0])
            return Sqnr(tensor=name, db=db, step=step)
    return None


def measured_on(data: RunData, arms: Mapping[str, Arm]) -> tuple[int | None, dict[str, str]]:
    """(ranks, {"speed", "losses": parameters of the model that is timed, trained}), as far as the runs record them."""
    folders = [data.path / "speed" / name for name in data.comparison.results.timed]
    timed = [run.training for folder in folders if (run := find_run(folder))]
    trained = [arm.data.training for arm in arms.values() if arm.data]
    parts = {"speed": timed, "losses": trained}
    known = {part: next((run.parameters for run in runs if run.parameters), 0.0) for part, runs in parts.items()}
    ranks = next((run.world.size for run in (*trained, *timed) if run.world), None)
    return ranks, {part: parameters(count) for part, count in known.items() if count}
