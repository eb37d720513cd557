"""Step lines of made-up runs for the tests of the health page. No test in here."""

import json
from pathlib import Path

import numpy as np

from labkit.watch.alarms import Judge
from labkit.watch.folder import Record
from labkit.watch.past import Alarm

TENSORS = [
    f"layers.{i}.{linear}.{slot}" for i in range(3) for linear in ("attn.wq", "ffn.w1") for slot in ("input", "grad")
]


def lines(n: int, seed: int = 0, *, eval_every: int = 10, probe_every: int = 5, ranks: int = 0) -> list[dict]:
    """A healthy run: a falling loss, noisy norms that first fall fast, scales that follow their amax."""
    draw = np.random.default_rng(seed)
    out: list[dict] = []
    for step in range(1, n + 1):
        level = 2 + 4 / (1 + step / 30)
        line = {
            "step": step,
            "loss": level * (1 + 0.03 * draw.standard_normal()),
            "lr": 1e-3 * min(1, step / 20) * (0.55 + 0.45 * np.cos(np.pi * step / max(n, 1))),
            "grad_norm": (0.5 + 5 / (1 + step / 15)) * np.exp(0.2 * draw.standard_normal()),
            "tokens": 1024 * step,
            "seconds": 0.1 * np.exp(0.1 * draw.standard_normal()),
            "memory": {"peak_bytes": 5 << 30},
            "skipped": False,
        }
        line["tokens_per_s"] = 1024 / line["seconds"]
        if step % eval_every == 0:
            line["heldout"] = level * (1 + 0.0005 * draw.standard_normal())
        if step % probe_every == 0:
            line["scales"] = {}
            for at, name in enumerate(TENSORS):
                amax = (0.1 + 1 / (1 + step / 50)) * (at + 1) * np.exp(0.2 * draw.standard_normal())
                under = 3 + 0.5 * draw.standard_normal()
                line["scales"][name] = {
                    "scale": 448 / amax,
                    "amax": amax,
                    "overflow": 0.0,
                    "underflow": under,
                    "sqnr": 31.0,
                }
            line["param_norm"] = 20 + step / 100
            line["grad_norms"] = {"tok_embed": 0.3, "layers.0": 0.5, "layers.1": 0.4, "layers.2": 0.4, "head": 0.6}
        if ranks:
            line["rank_seconds"] = list(0.09 * np.exp(0.05 * draw.standard_normal(ranks)))
        out.append({key: float(v) if isinstance(v, np.floating) else v for key, v in line.items()})
    return out


def record(steps: list[dict], events: list[dict] | None = None, **about) -> Record:
    made = Record(run={"status": "finished"}, **about)
    made.add(steps)
    made.events += events or []
    return made


def alarms(record: Record) -> list[Alarm]:
    """All that rings, judged from the record's beginning."""
    return Judge().judge(record)


def write(folder: Path, steps: list[dict], events: list[dict] | None = None, **run) -> Path:
    """A run folder with these lines."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"kind": "train", "status": "finished", "config": {"steps": len(steps)}, "results": {}, **run}
    (folder / "run.json").write_text(json.dumps(about))
    for name, some in (("steps", steps), ("events", events or [])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    return folder
