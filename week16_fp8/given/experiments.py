"""What the notebook runs: real tensors, and what your functions do to them.

    tensors         the operands of one linear of a small decoder, from a real training step
    codes           which of the 256 codes a tensor uses, by your `encode`
    sweep           SQNR against scale: measured by your `encode` and `decode`, predicted by your `predicted_sqnr`
    poisoned        one outlier in a tensor: how many of the others become 0 with one scale, and with a scale a block
    remembered      one outlier in a run under your `DelayedScaling`: the scale, step by step
    flushed         the share of a tensor that FP16 turns to 0, by the scale of the loss
    converted       a decoder trained after a conversion that copied the weights, and after one that did not
    alarms          how often a rule rings rightly and falsely, on the recorded runs of 16.8
    watched         one recorded run of each fault, and where rules ring in it

Everything runs in this process on a CPU, in seconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights
from week16_fp8 import blockwise, casts, formats, scaling
from week16_fp8 import convert as conversion
from week16_fp8.delayed import DelayedScaling
from week16_fp8.given import pairs
from week16_fp8.linear import FP8Linear

DATA = Path(__file__).parents[1] / "data"
LAYER = "layers.1.ffn.w1"
FIELDS = ("scale", "amax", "overflow", "underflow")
WINDOW = 20  # steps from a fault in which an alarm counts, where the loss survives it; as in the checks


@functools.cache
def tensors(steps: int = 20) -> dict[str, np.ndarray]:
    """{"input", "weight", "gradient"} of LAYER at the last of so many steps, float32 [rows, columns]."""
    found: dict[str, np.ndarray] = {}

    def note(name: str, x: Tensor) -> None:
        found[name] = x.detach().flatten(0, -2).float().numpy().copy()

    def keep(step: int, model: Any) -> None:
        if step == steps - 1:  # the hooks see the step after this one
            linear = model.get_submodule(LAYER)

            def seen(_: Any, args: tuple[Tensor], y: Tensor) -> None:
                if y.requires_grad:
                    note("input", args[0])
                    note("weight", linear.weight)
                    y.register_hook(lambda dy: note("gradient", dy))

            linear.register_forward_hook(seen)

    pairs.train("plain", pairs.TINY, steps=steps, probe=False, watch=keep)
    return found


class Codes(NamedTuple):
    """counts [256]: values on each code. lost, saturated: shares of the values that are not 0."""

    counts: np.ndarray
    lost: float
    saturated: float

    @property
    def used(self) -> int:
        """How many different values the tensor has left; -0 is 0."""
        return int((self.counts[:128] + self.counts[128:] > 0).sum()) if self.counts.any() else 0


def codes(x: np.ndarray, scale: float, fmt: str) -> Codes:
    """x * scale by your `encode`."""
    y = (x * np.float32(scale)).astype(np.float32)
    code = formats.encode(y, fmt)
    some = max(1, int((x != 0).sum()))
    lost = float(((code & 0x7F) == 0)[x != 0].sum() / some)
    saturated = float((np.abs(y) > formats.FORMATS[fmt].largest).sum() / some)
    return Codes(np.bincount(code.ravel(), minlength=256), lost, saturated)


def own_scale(x: np.ndarray, fmt: str) -> float:
    """What your `scale_from_amax` gives for the whole tensor."""
    return float(scaling.scale_from_amax(np.abs(x).max(), fmt))


def sqnr(x: np.ndarray, scale: float, fmt: str) -> float:
    """dB, measured: through your `encode` and `decode`."""
    y = x.astype(np.float64) * scale
    back = formats.decode(formats.encode(y.astype(np.float32), fmt), fmt).astype(np.float64)
    noise = float(((y - back) ** 2).sum())
    return 10 * float(np.log10((y**2).sum() / noise)) if noise else np.inf


def sweep(x: np.ndarray, fmt: str, powers: range = range(-38, 7)) -> list[tuple[int, float, float]]:
    """[(k, measured dB, predicted dB)] for scales of 2^k times the right one."""
    right = own_scale(x, fmt)
    return [
        (k, sqnr(x, right * 2.0**k, fmt), scaling.predicted_sqnr(x, right * 2.0**k, fmt))
        for k in powers
        if right * 2.0**k < 2.0**120
    ]


class Poison(NamedTuple):
    """flat_RC: which values became 0 (bool) with one scale, and with a scale a block; at: where the outlier is."""

    one_RC: np.ndarray
    block_RC: np.ndarray
    at: tuple[int, int]
    factor: float

    def shares(self) -> tuple[float, float]:
        return float(self.one_RC.mean()), float(self.block_RC.mean())


def poisoned(x: np.ndarray, factor: float, fmt: str = "e4m3") -> Poison:
    """x with one entry that is `factor` times its amax: what becomes 0 in `fmt` with 16.5's one scale, and in E4M3
    with 16.4's scales by block."""
    x_RC = torch.from_numpy(x).clone()
    at = (x_RC.shape[0] // 3, x_RC.shape[1] // 2)
    x_RC[at] = factor * x_RC.abs().max()
    s = casts.scale_of(casts.amax(x_RC), fmt)
    one_RC = casts.rounded(x_RC, s, fmt)
    block_RC = blockwise.on_grid(x_RC, square=False)
    some = x_RC != 0
    return Poison(((one_RC == 0) & some).numpy(), ((block_RC == 0) & some).numpy(), at, factor)


class Memory(NamedTuple):
    """By step: amax, the scale in force, the share of the values that saturate, and that become 0."""

    amax: list[float]
    scale: list[float]
    saturated: list[float]
    lost: list[float]
    outlier: int
    length: int


def remembered(x: np.ndarray, factor: float = 1000.0, outlier: int = 8, length: int = 16, steps: int = 36) -> Memory:
    """Steps of one tensor (x with fresh signs) under your `DelayedScaling`, E4M3; in one step a value is factor times
    amax."""
    scaler, found = DelayedScaling(1, "e4m3", length=length), Memory([], [], [], [], outlier, length)
    draw = np.random.default_rng(16)
    for step in range(steps):
        now = x * draw.choice([-1, 1], x.shape).astype(np.float32)
        if step == outlier:
            now.flat[0] = factor * np.abs(x).max()
        scale = float(scaler.scale_T[0])
        y = torch.from_numpy(now * np.float32(scale))
        code = y.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        found.amax.append(float(np.abs(now).max()))
        found.scale.append(scale)
        found.saturated.append(float((y.abs() > 448).float().mean()))
        found.lost.append(float(((code == 0) & (y != 0)).float().sum() / max(1, int((y != 0).sum()))))
        scaler.update(torch.tensor([found.amax[-1]]))
    return found


def flushed(x: np.ndarray, powers: range = range(0, 33, 4)) -> list[tuple[int, float, bool]]:
    """[(k, share of x's values that become 0 in FP16, whether one overflows)] with the loss scaled by 2^k."""
    found = []
    for k in powers:
        y = torch.from_numpy(x).double() * 2.0**k
        half = y.half()
        lost = float(((half == 0) & (y != 0)).sum() / max(1, int((y != 0).sum())))
        found.append((k, lost, bool(half.isinf().any())))
    return found


def converted(steps: int = 60) -> dict[str, list[float]]:
    """Losses, step by step, of the same decoder: as it was, converted by your `convert`, and converted without the
    weights."""
    found: dict[str, list[float]] = {}
    for name in ("FP32", "FP8, weights copied", "FP8, weights forgotten"):
        model: Any = init_weights(Transformer(pairs.TINY.model), seed=0)
        if name != "FP32":
            kept = {n: p.detach().clone() for n, p in model.named_parameters()}
            torch.manual_seed(1)
            report = conversion.convert(model, FP8Linear, skip=("head",))
            if name.endswith("forgotten"):
                _fresh(model, report.converted)
            else:
                assert all(torch.equal(p, kept[n]) for n, p in model.named_parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=pairs.TINY.lr, betas=(0.9, 0.95), weight_decay=0.0)
        losses = []
        for step in range(1, steps + 1):
            for part in optimizer.param_groups:
                part["lr"] = pairs.TINY.lr * min(1.0, step / (0.1 * steps))
            x, y = pairs.rows(pairs.TINY, 10_000 * step, False, torch.device("cpu"))
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found[name] = losses
    return found


def _fresh(model: nn.Module, names: list[str]) -> None:
    """What a constructor draws, in place of what was copied."""
    with torch.no_grad():
        for name in names:
            linear: Any = model.get_submodule(name)
            linear.weight.copy_(FP8Linear(linear.in_features, linear.out_features, bias=False).weight)


def first_ring(rule: Any, rows: list[Tensor]) -> int | None:
    """The first step at which a rule rings, of a run's [S, T] numbers."""
    return next((step for step, now in enumerate(zip(*rows)) if rule.see(*now)), None)


class Watched(NamedTuple):
    """A recorded run: its scales [S, T], the steps of its fault and of its loss's end, and where each rule rings."""

    fault: str
    at: int
    end: int | None
    scale_ST: np.ndarray
    rings: dict[str, int | None]


def watched(rules: Mapping[str, Callable[[], Any]], file: str = "tuning.npz") -> list[Watched]:
    """The first run of each fault, seen by a fresh instance of each rule."""
    found: dict[str, Watched] = {}
    with np.load(DATA / file) as data:
        for number, run in enumerate(json.loads(str(data["runs"]))):
            if run["at"] is not None and run["fault"] not in found:
                rows = [torch.from_numpy(data[f"{name}{number}"]) for name in FIELDS]
                rings = {name: first_ring(rule(), rows) for name, rule in rules.items()}
                found[run["fault"]] = Watched(run["fault"], run["at"], run["end"], rows[0].numpy(), rings)
    return list(found.values())


class Score(NamedTuple):
    """Of one rule over recorded runs. lead: the median of its lead times, by fault."""

    precision: float
    recall: float
    lead: dict[str, float]
    missed: dict[str, int]


def alarms(rule: Callable[[], Any], file: str = "tuning.npz") -> Score:
    """Let a fresh `rule()` see every run of the file; precision, recall and lead as the head of scale_tracker.py has
    them."""
    hits, false, faults = 0, 0, 0
    lead: dict[str, list[int]] = {}
    missed: dict[str, int] = {}
    with np.load(DATA / file) as data:
        facts = json.loads(str(data["runs"]))
        for number, run in enumerate(facts):
            rows = [torch.from_numpy(data[f"{name}{number}"]) for name in FIELDS]
            rang = first_ring(rule(), rows)
            at = run["at"]
            last = None if at is None else (at + WINDOW if run["end"] is None else run["end"])
            faults += at is not None
            if at is not None and rang is not None and last is not None and at <= rang <= last:
                hits += 1
                lead.setdefault(run["fault"], []).append(last - rang)
                continue
            false += rang is not None
            if at is not None:
                missed[run["fault"]] = missed.get(run["fault"], 0) + 1
    middle = {fault: median(steps) for fault, steps in lead.items()}
    return Score(hits / max(1, hits + false), hits / max(1, faults), middle, missed)
