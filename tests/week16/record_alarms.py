"""Makes the recorded runs of task 16.8: a small network trained in FP8 with delayed scaling, healthy or with one fault.

    python -m tests.week16.record_alarms          writes week16_fp8/data/tuning.npz and held-out.npz, and what decides
                                                  in grading: grading/data/alarms.npz
    python -m tests.week16.record_alarms 5000     writes the last alone, from seeds that nobody has seen: 5000 and on

Two hidden layers, GELU, a regression to a random teacher, SGD with momentum, on a CPU; three tensors a layer (input,
weight, gradient), rounded with the scales of `DelayedScaling`. The held-out runs differ in seed, width,
depth of history, rate, step and strength of the fault. A run ends where its loss, twice in a row, is no number or 10
times what it was before the fault.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import week16_fp8
from week16_fp8 import casts
from week16_fp8.delayed import DelayedScaling
from week16_fp8.scale_tracker import measure

FOLDER = Path(week16_fp8.__file__).parent / "data"
GRADED = FOLDER.parents[1] / "grading" / "data" / "alarms.npz"
FAULTS = ("none", "rate", "outlier", "growth", "epsilon")
STEPS = 160
FIELDS = ("scale", "amax", "overflow", "underflow")


def run(fault: str, seed: int, *, width: int, history: int, rate: float, at: int, strength: float) -> dict:
    """One run: {field: [S, 6] float32}, its "fault", "at", and "end": the step at which the loss has gone, or None."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.randn(32, 8, generator=draw) / 32**0.5
    shapes = (32, width), (width, width), (width, 8)
    weights = [(torch.randn(b, a, generator=draw) / a**0.5).requires_grad_() for a, b in shapes]
    forward, backward = (DelayedScaling(T, fmt, length=history) for T, fmt in ((4, "e4m3"), (2, "e5m2")))
    momentum = [torch.zeros_like(w) for w in weights]
    rows: dict[str, list[list[float]]] = {field: [] for field in FIELDS}
    losses: list[float] = []
    end = None
    for step in range(STEPS):
        on = fault != "none" and step >= at
        x = torch.randn(128, 32, generator=draw)
        if fault == "outlier" and step == at:
            x = x * strength
        y = torch.tanh(x.clamp(-4, 4) @ teacher)
        seen: list[tuple[Tensor, float, str]] = []
        h = x
        for layer, w in enumerate(weights):
            if layer < 2:  # the head stays
                s_h, s_w = (forward.scale_T[2 * layer + k] for k in (0, 1))
                seen += [(h.detach(), s_h.item(), "e4m3"), (w.detach(), s_w.item(), "e4m3")]
                h = Product.apply(h, w, s_h, s_w, backward, layer, seen, on and fault == "epsilon")
            else:
                h = h @ w.t()
            h = torch.nn.functional.gelu(h) if layer < 2 else h
        fade = strength ** (step - at + 1) if on and fault == "epsilon" else 1.0
        loss = (h - y).square().mean()
        (loss * fade).backward()
        losses.append(loss.item())
        order = [*range(4), *sorted(range(4, len(seen)), key=lambda i: -i)]  # gradients come last layer first
        stats = [measure(*seen[i]) for i in order]
        for field in FIELDS:
            rows[field].append([getattr(stat, field) for stat in stats])
        amaxes = torch.tensor([stat.amax for stat in stats])
        forward.update(amaxes[:4])
        backward.update(amaxes[4:])
        usual = np.mean(losses[max(0, at - 10) : at]) if step >= at else np.inf
        gone = [not np.isfinite(one) or one > 10 * max(usual, 0.05) for one in losses[-2:]]
        if step > at and all(gone):
            end = step
            break
        with torch.no_grad():
            lr = rate * (strength if on and fault == "rate" else 1.0)
            for w, m in zip(weights, momentum):
                assert w.grad is not None
                m.mul_(0.9).add_(w.grad)
                w.sub_(lr * m)
                w.grad = None
            if on and fault == "growth":
                weights[1].mul_(strength)
    found = {field: np.array(values, dtype=np.float32) for field, values in rows.items()}
    return {**found, "fault": fault, "at": at if fault != "none" else None, "end": end, "losses": losses}


class Product(torch.autograd.Function):
    """A linear with scales from outside; with `naive` the gradient's scale is largest / amax of its own, unguarded."""

    @staticmethod
    def forward(ctx, h, w, s_h, s_w, backward, layer, seen, naive):
        h8, w8 = (casts.rounded(t, s, "e4m3") / s for t, s in ((h, s_h), (w, s_w)))
        ctx.save_for_backward(h8, w8)
        ctx.rest = backward, layer, seen, naive
        return h8 @ w8.t()

    @staticmethod
    def backward(ctx, dy):
        (h8, w8), (backward, layer, seen, naive) = ctx.saved_tensors, ctx.rest
        s = 57344 / casts.amax(dy) if naive else backward.scale_T[layer]
        seen.append((dy, s.item(), "e5m2"))
        dy8 = casts.rounded(dy, s, "e5m2") / s
        return dy8 @ w8, dy8.t() @ h8, None, None, None, None, None, None


STRENGTHS = {"none": (1.0, 1.0), "rate": (10.0, 10.0), "outlier": (300.0, 3000.0), "growth": (1.04, 1.09)}


def runs(first: int, each: int, widths: tuple[int, ...]) -> list[dict]:
    """`each` runs of every kind, and twice as many healthy ones."""
    found = []
    for number, fault in enumerate(f for f in FAULTS for _ in range(2 * each if f == "none" else each)):
        pick = np.random.default_rng(first + number)
        low, high = STRENGTHS.get(fault, (0.05, 0.3))
        width, history = int(pick.choice(widths)), int(pick.choice([4, 16]))
        rate, at, strength = float(pick.uniform(0.5, 0.8)), int(pick.integers(30, 90)), float(pick.uniform(low, high))
        found.append(run(fault, first + number, width=width, history=history, rate=rate, at=at, strength=strength))
    return found


def write(path: Path, found: list[dict]) -> None:
    arrays = {f"{field}{number}": run[field] for number, run in enumerate(found) for field in FIELDS}
    faults = [{key: run[key] for key in ("fault", "at", "end")} for run in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, runs=np.array(json.dumps(faults)), **arrays)


if __name__ == "__main__":
    if not sys.argv[1:]:
        write(FOLDER / "tuning.npz", runs(0, 5, (48, 64)))
        write(FOLDER / "held-out.npz", runs(2000, 4, (40, 112)))
    write(GRADED, runs(int((sys.argv[1:] or ["4000"])[0]), 4, (40, 112)))
