"""Synthetic run folders, realistic in shape and size, written through RunRecord: what tests of figures and reports read."""

import math
import random
from pathlib import Path
from statistics import median

from labkit.record.run import RunRecord, read_run

LINEARS = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn.w1", "ffn.w3", "ffn.w2")
CPU = {
    "cpu": {"model": "Example CPU 8-Core", "architecture": "x86_64", "cores": 2, "usable_threads": 2},
    "memory_bytes": 8 * 2**30,
    "gpus": [],
    "os": "Linux 6.8 (Ubuntu 24.04.1 LTS)",
    "python": "CPython 3.11.7",
}
GPU = {**CPU, "gpus": [{"name": "NVIDIA H200", "driver": "580.1", "capability": "9.0", "memory_bytes": 150 * 10**9}]}
LABELS = {"bf16": "BF16", "twin": "BF16 twin", "fp8": "FP8 tensorwise", "broken": "FP8 broken (E5M2, unscaled)"}
ROLES = {"bf16": "baseline", "twin": "twin", "broken": "broken"}


def loss_at(step: int, steps: int) -> float:
    return 2.9 + 5.5 * math.exp(-step / (0.14 * steps)) + 0.9 * math.exp(-step / (0.6 * steps))


def scales_at(step: int, layers: int, draw: random.Random, broken: bool) -> dict:
    def stat(scale: float, amax: float, underflow: float, sqnr: float) -> dict:
        return {"scale": scale, "amax": amax, "overflow": 0.0, "underflow": underflow, "sqnr": sqnr - draw.random()}

    out = {}
    for layer in range(layers):
        for i, linear in enumerate(LINEARS):
            for kind, base in (("input", 6.0), ("weight", 0.35), ("grad", 2e-3)):
                amax = base * (1 + 0.25 * layer + 0.1 * i) * math.exp(0.003 * step if kind == "input" else 0.001 * step)
                amax *= math.exp(draw.gauss(0, 0.08))
                under = (18 + 3 * layer if kind == "grad" else 2.0) if broken else 0.4 * draw.random()
                db = 25.2 - (14 if kind == "grad" else 1) if broken else 31.4
                name = f"layers.{layer}.{linear}.{kind}"
                out[name] = stat(1.0 if broken else 448.0 / amax, amax, under, db - 0.25 * layer)
            out[f"layers.{layer}.{linear}.output"] = stat(
                1.0, 9.0 + layer, 0.0, (21.0 if broken else 27.5) - 0.25 * layer
            )
    return out


def arm(
    path: Path,
    name: str,
    *,
    steps: int,
    layers: int = 4,
    explode: str = "gap",
    until: int | None = None,
    gpu: bool = False,
) -> RunRecord:
    """One arm's record. `explode` says what the broken arm does: "gap" (2 % worse), "blowup", "nan". With `until` the
    writer stops before that step, as if killed."""
    draw, noise = random.Random(f"0{name}"), random.Random(0)
    fp8 = name not in ("bf16", "twin")
    backend, kind = ("torchao", "Float8Linear") if fp8 else ("bf16", "torch.nn.modules.linear.Linear")
    precision = {"backend": backend, "recipe": "tensorwise" if fp8 else None}
    converted = [f"layers.{i}.{linear}" for i in range(layers) for linear in LINEARS]
    record = RunRecord.create(
        path,
        kind="train",
        command="lab compare --preset cpu-tiny",
        hardware=GPU if gpu else CPU,
        seeds={"data": 1, "weights": 1},
        config={"model": "tiny", "steps": steps, "lr": 1e-3, "precision": {**precision, "skip": ["head"]}},
        precision=precision,
        world={"size": 1 if gpu else 2, "device": "cuda" if gpu else "cpu"},
        conversion={"converted": converted, "skipped": {"head": "named"}, "module_type": kind, "backend": backend},
        evidence={"converted": len(converted), "module_types": {kind: len(converted), "Embedding": 1}},
        corpus={"source": "python", "tokens": 7_400_000, "files": 1210, "hash": "9f2c51d0aa77"},
        model={"n_params": 5_508_608, "flops_per_token": {"causal": 3.41e7, "full": 3.6e7}},
    )
    per_step = 16384 if gpu else 2048
    offset, factor = {"bf16": 0.0, "twin": 6e-5, "fp8": 1.1e-4, "broken": 0.012}.get(name, 9e-5), 1.0
    for step in range(1, (until or steps + 1)):
        base = loss_at(step, steps) + noise.gauss(0, 0.05)
        loss = base * (1 + draw.gauss(offset, 5e-5) * min(1, step / 30))
        if name == "broken" and step > steps * 0.4:
            if explode == "blowup":
                factor *= 1.16
                loss *= min(factor, 40)
            elif explode == "nan":
                loss = math.nan
        seconds = (0.22 if gpu else {"fp8": 1.05, "broken": 0.7}.get(name, 0.42)) * (1 + abs(draw.gauss(0, 0.05)))
        seconds *= 0.76 if gpu and name == "fp8" else 1
        seconds *= 6 if step == 1 else 1
        norm = 0.6 + 2 * math.exp(-step / 20) + 0.1 * draw.random()
        memory = {"peak_bytes": int((61e9 if gpu else 1.15e9) * (1.08 if fp8 else 1))}
        memory |= {"reserved_bytes": int(70e9)} if gpu else {}
        line = {
            "step": step,
            "loss": loss,
            "lr": 1e-3 * min(1, step / 10),
            "grad_norm": norm,
            "tokens": step * per_step,
        }
        line |= {"seconds": seconds, "tokens_per_s": per_step / seconds, "memory": memory, "skipped": False}
        if math.isnan(loss):
            line.update(skipped=True, grad_norm=math.nan)
            record.event("skipped_step", step=step, message="the loss is not finite")
        if step % 10 == 0 or step == steps:
            line["heldout"] = loss if math.isnan(loss) else (loss_at(step, steps) + 0.08) * loss / base
            scales = scales_at(step, layers, draw, name == "broken")
            if not fp8:  # a backend that casts nothing probes outputs alone
                outputs = {tensor: stat for tensor, stat in scales.items() if tensor.endswith(".output")}
                scales = {tensor: {**stat, "sqnr": stat["sqnr"] + 28} for tensor, stat in outputs.items()}
            line["scales"] = scales
        record.step(**line)
    record.event("checkpoint", step=(until or steps) - 1, message="saved")
    if until is None:
        record.finish(results={"final_loss": loss})
    record.close()
    return record


def compare(
    path: Path,
    names=("bf16", "twin", "fp8", "broken"),
    *,
    steps: int,
    layers: int,
    explode: str = "gap",
    gpu: bool = False,
    killed: str | None = None,
) -> Path:
    """A comparison. With `killed` that arm stops half-way, the later ones never start, and there is no verdict."""
    config = {"title": "The tiny decoder", "device": "cuda" if gpu else "cpu", "world_size": 1 if gpu else 2}
    about = {n: {"label": LABELS[n], "role": ROLES.get(n, "candidate"), "status": "pending"} for n in names}
    record = RunRecord.create(
        path,
        kind="compare",
        command="lab compare --preset " + ("h100" if gpu else "cpu-tiny"),
        seeds={"data": 1, "weights": 1},
        config={**config, "train": {"steps": steps, "lr": 1e-3, "batch_size": 8}},
        hardware=GPU if gpu else CPU,
    )
    held = {}
    for name in names:
        record.results(arms=about)
        until = steps // 2 if name == killed else None
        arm(path / "arms" / name, name, steps=steps, layers=layers, explode=explode, gpu=gpu, until=until)
        about[name]["status"] = "running" if name == killed else "finished"
        if name == killed:
            record.results(arms=about)
            record.close()
            return path
        held[name] = dict(read_run(path / "arms" / name).series("heldout"))
    base, judged = held.pop("bf16"), {}
    gaps = {name: [(step, 100 * (loss / base[step] - 1)) for step, loss in own.items()] for name, own in held.items()}
    value = {
        name: median(math.inf if math.isnan(g) else abs(g) for step, g in gap if step > 30 or steps <= 30)
        for name, gap in gaps.items()
    }
    edge = 3 * value.get("twin", 0.01)
    for name, gap in gaps.items():
        word = "reference" if name == "twin" else "inside" if value[name] <= edge else "outside"
        judged[name] = {"gap": gap, "value": value[name], "word": word}
    band = {"low": -edge, "high": edge, "threshold": edge, "name": "3 times what the BF16 twin gives", "from": "twin"}
    verdict = {"word": "pass", "sentence": "It is safe here.", "from_step": 30, "band": band, "arms": judged}
    record.finish(results={"arms": about, "verdict": verdict})
    return path
