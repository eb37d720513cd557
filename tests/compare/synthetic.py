"""Synthetic run folders, realistic in shape and size, written through RunRecord: what the tests of figures and reports
read.

    python tests/compare/synthetic.py FOLDER        writes one of each kind there
"""

import math
import random
import sys
from pathlib import Path

from labkit.record.run import RunRecord

LINEARS = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn.w1", "ffn.w3", "ffn.w2")
CPU = {
    "cpu": {"model": "Example CPU 8-Core", "architecture": "x86_64", "cores": 2, "usable_threads": 2},
    "memory_bytes": 8 * 2**30,
    "gpus": [],
    "os": "Linux 6.8 (Ubuntu 24.04.1 LTS)",
    "python": "CPython 3.11.7",
}
GPU = {**CPU, "gpus": [{"name": "NVIDIA H200", "driver": "580.1", "capability": "9.0", "memory_bytes": 150 * 10**9}]}
LABELS = {
    "bf16": "BF16",
    "twin": "BF16 twin",
    "fp8": "FP8 tensorwise",
    "broken": "FP8 broken (E5M2, unscaled)",
    "rowwise": "FP8 rowwise",
    "te-delayed": "TE FP8 delayed",
    "te-block": "TE FP8 block",
}
ROLES = {"bf16": "baseline", "twin": "twin", "broken": "broken"}


def loss_at(step: int, steps: int) -> float:
    return 2.9 + 5.5 * math.exp(-step / (0.14 * steps)) + 0.9 * math.exp(-step / (0.6 * steps))


def scales_at(step: int, layers: int, draw: random.Random, broken: bool) -> dict:
    out = {}
    for layer in range(layers):
        for i, linear in enumerate(LINEARS):
            for kind, base in (("input", 6.0), ("weight", 0.35), ("grad", 2e-3)):
                amax = base * (1 + 0.25 * layer + 0.1 * i) * math.exp(0.003 * step if kind == "input" else 0.001 * step)
                amax *= math.exp(draw.gauss(0, 0.08))
                fine = 57344.0 if broken else 448.0
                scale = 1.0 if broken else fine / amax
                under = (18 + 3 * layer if kind == "grad" else 2.0) if broken else 0.4 * draw.random()
                out[f"layers.{layer}.{linear}.{kind}"] = {
                    "scale": scale,
                    "amax": amax,
                    "overflow": 0.0,
                    "underflow": under,
                    "sqnr": (25.2 - (14 if kind == "grad" else 1) if broken else 31.4) - 0.25 * layer - draw.random(),
                }
            out[f"layers.{layer}.{linear}.output"] = {
                "scale": 1.0,
                "amax": 9.0 + layer,
                "overflow": 0.0,
                "underflow": 0.0,
                "sqnr": (21.0 if broken else 27.5) - 0.25 * layer - draw.random(),
            }
    return out


def arm(
    path: Path,
    name: str,
    *,
    steps: int = 140,
    layers: int = 4,
    explode: str = "gap",
    until: int | None = None,
    gpu: bool = False,
) -> RunRecord:
    """One arm's record. `explode` says what the broken arm does: "gap" (2 % worse), "blowup", "nan". With `until` the
    writer stops before that step, as if killed."""
    draw, noise = random.Random(f"0{name}"), random.Random(0)
    fp8 = name not in ("bf16", "twin")
    precision = {"backend": "torchao" if fp8 else "bf16", "recipe": "tensorwise" if fp8 else None}
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
        conversion={
            "converted": converted,
            "skipped": {"head": "named in precision.skip"},
            "recipe": "tensorwise",
            "module_type": "Float8Linear" if fp8 else "torch.nn.modules.linear.Linear",
            "backend": "torchao" if fp8 else "bf16",
        },
        evidence={
            "converted": len(converted),
            "module_types": {"Float8Linear" if fp8 else "Linear": layers * 7, "Embedding": 1},
        },
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
        seconds *= {"fp8": 0.76, "rowwise": 0.83, "te-delayed": 0.74, "te-block": 0.9}.get(name, 1) if gpu else 1
        seconds *= 6 if step == 1 else 1
        line = {
            "step": step,
            "loss": loss,
            "lr": 1e-3 * min(1, step / 10),
            "grad_norm": 0.6 + 2 * math.exp(-step / 20) + 0.1 * draw.random(),
            "tokens": step * per_step,
            "seconds": seconds,
            "tokens_per_s": per_step / seconds,
            "memory": {
                "peak_bytes": int((61e9 if gpu else 1.15e9) * (1.08 if fp8 else 1)),
                **({"reserved_bytes": int(70e9)} if gpu else {}),
            },
            "skipped": False,
        }
        if math.isnan(loss):
            line.update(skipped=True, grad_norm=math.nan)
            record.event(
                "skipped_step", step=step, message="the loss is not finite: the step was skipped on every rank"
            )
        if step % 10 == 0 or step == steps:
            line["heldout"] = loss if math.isnan(loss) else (loss_at(step, steps) + 0.08) * loss / base
            scales = scales_at(step, layers, draw, name == "broken")
            # A backend that casts nothing probes outputs alone.
            line["scales"] = (
                scales
                if fp8
                else {t: {**stat, "sqnr": stat["sqnr"] + 28} for t, stat in scales.items() if t.endswith(".output")}
            )
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
    explode: str = "gap",
    word: str = "pass",
    gpu: bool = False,
    steps: int = 140,
    layers: int = 4,
    killed: str | None = None,
) -> Path:
    """A comparison. With `killed` that arm stops half-way, the later ones never start, and there is no verdict."""
    record = RunRecord.create(
        path,
        kind="compare",
        command="lab compare --preset " + ("h100" if gpu else "cpu-tiny"),
        seeds={"data": 1, "weights": 1},
        config={
            "name": "cpu-tiny",
            "title": "The tiny decoder: FP8's numerics",
            "device": "cuda" if gpu else "cpu",
            "world_size": 1 if gpu else 2,
            "train": {"steps": steps, "lr": 1e-3, "batch_size": 8},
        },
        hardware=GPU if gpu else CPU,
    )
    about = {
        name: {"label": LABELS.get(name, name), "role": ROLES.get(name, "candidate"), "status": "pending"}
        for name in names
    }
    held = {}
    for name in names:
        record.results(arms=about)
        until = steps // 2 if name == killed else None
        arm(path / "arms" / name, name, steps=steps, layers=layers, explode=explode, gpu=gpu, until=until)
        about[name]["status"] = "finished"
        if name == killed:
            about[name]["status"] = "running"
            record.results(arms=about)
            record.close()
            return path
        from labkit.record.run import read_run

        held[name] = dict(read_run(path / "arms" / name).series("heldout"))
    gaps = {
        name: [(s, 100 * (v / held["bf16"][s] - 1)) for s, v in held[name].items()] for name in names if name != "bf16"
    }
    value = {name: _median([abs(g) for _, g in gap if _ > 30]) for name, gap in gaps.items()}
    band = 3 * value.get("twin", 0.01)
    words = {name: "reference" if name == "twin" else "inside" if v <= band else "outside" for name, v in value.items()}
    sentence = {
        "pass": "FP8 tensorwise is safe here: its held-out loss stays inside the band that two BF16 runs "
        "differ by, and the "
        "deliberately broken FP8 was caught.",
        "fail": "FP8 tensorwise is not safe here: its held-out loss leaves the band that two BF16 runs differ by.",
        "no-power": "This comparison has no power: the deliberately broken FP8 was not caught, so that a pass "
        "would mean "
        "nothing.",
    }[word]
    record.finish(
        results={
            "arms": about,
            "verdict": {
                "word": word,
                "sentence": sentence,
                "reasons": ["All four arms saw the same 286,720 tokens in the same order."],
                "statistic": "median over the evaluations of the absolute relative gap of the held-out loss",
                "from_step": 30,
                "band": {
                    "low": -band,
                    "high": band,
                    "threshold": band,
                    "name": "3 times what the BF16 twin gives",
                    "from": "twin",
                },
                "arms": {name: {"gap": gaps[name], "value": value[name], "word": words[name]} for name in gaps},
            },
        }
    )
    return path


def _median(values: list[float]) -> float:
    values = sorted(values, key=lambda v: math.inf if math.isnan(v) else v)
    return values[len(values) // 2] if values else math.nan


if __name__ == "__main__":
    where = Path(sys.argv[1])
    compare(where / "pass")
    compare(where / "nan", explode="nan")
    compare(where / "blowup", explode="blowup", word="fail")
    compare(where / "killed", killed="fp8")
    compare(
        where / "gpu",
        ("bf16", "twin", "fp8", "rowwise", "te-delayed", "te-block", "broken"),
        gpu=True,
        steps=400,
        layers=16,
    )
    arm(where / "train", "fp8")
    arm(where / "train-killed", "bf16", until=25)
