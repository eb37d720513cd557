"""Which trick carries the loss? Section 7's decoder, trained in every format of this week, judged as `lab compare` judges.

    python -m week16_fp8.given.tricks OUT.json        all trainings, one a core; OUT.json is the record

All arms have the same data. Each run perturbs the initial weights by one rounding step (`seed`), and draws its own noise. The baseline is FP32; everything but a format's three products is FP32 in the others, too.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.compare.statistic import Answer
from labkit.errors import run_command
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights, perturb
from labkit.precision.config import PrecisionSpec
from labkit.precision.registry import get_backend
from labkit.record import hardware
from labkit.record.files import replace_file, writable
from labkit.record.run import now, versions
from week16_fp8.emulated import NUMERICS, EmulatedLinear
from week16_fp8.given import pairs
from week16_fp8.given.further import SIGNS
from week16_fp8.stretch import mxfp8, nvfp4

COMMAND = "python -m week16_fp8.given.tricks OUT.json"
RECORD = Path(__file__).parents[1] / "results" / "2026-11-28-cpu-tricks.json"
SIZE = pairs.TINY._replace(batch=8, lr=7e-4)
BASELINE, CONTROL = "FP32", "FP8, scale 1"
ALL = nvfp4.Tricks(square=True, noise=torch.rand_like, signs=SIGNS)
NO_TRICK = nvfp4.Tricks(square=False, noise=None, signs=None)
Held = dict[int, float]  # step: held-out loss


class Product(NamedTuple):
    """What an EmulatedLinear multiplies by."""

    product: Callable[[Tensor, Tensor], Tensor]


def nv(tricks: nvfp4.Tricks) -> Product:
    return Product(lambda x, w: nvfp4.NVFP4Product.apply(x, w, tricks))


# name -> what its linears multiply by
ARMS: dict[str, Any] = {
    BASELINE: None,
    "FP8, one scale": NUMERICS["tensorwise"],
    "FP8, blocks of 128": NUMERICS["block"],
    "MXFP8": Product(lambda x, w: mxfp8.MXProduct.apply(x, w, "rceil")),
    "NVFP4": nv(ALL),
    "NVFP4, to nearest": nv(replace(ALL, noise=None)),
    "NVFP4, no transform": nv(replace(ALL, signs=None)),
    "NVFP4, no squares": nv(replace(ALL, square=False)),
    "NVFP4, no trick": nv(NO_TRICK),
    "NVFP4, last block in FP32": nv(ALL),
    CONTROL: None,
}
RUNS = {BASELINE: 4, CONTROL: 1}  # of every other arm 2
COST = {BASELINE: 1.0, CONTROL: 2.0, "FP8, one scale": 2.0, "FP8, blocks of 128": 2.0, "MXFP8": 3.0}  # others 7


def converted(model: Any, arm: str) -> Any:
    """The model with all linears but the head in this arm's format."""
    if arm == CONTROL:
        get_backend("broken-unscaled").convert(
            model, PrecisionSpec(skip=("head",), device=torch.device("cpu"), ranks=1)
        )
    elif (way := ARMS[arm]) is not None:
        last = f"layers.{SIZE.model.n_layers - 1}." if "last block" in arm else "head"
        for name, linear in list(model.named_modules()):
            if isinstance(linear, nn.Linear) and name != "head" and not name.startswith(last):
                around, _, own = name.rpartition(".")
                setattr(model.get_submodule(around), own, EmulatedLinear.like(linear, way))
    return model


def train(arm: str, seed: int, size: pairs.Size = SIZE, each: Callable[[int], object] = lambda step: None) -> Held:
    """The held-out losses of one run. each: hears of every step."""
    model = converted(perturb(init_weights(Transformer(size.model), seed=0), pairs.ROUNDING, seed=seed), arm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.lr, betas=(0.9, 0.95), weight_decay=0.0)
    here, held = torch.device("cpu"), Held()
    torch.manual_seed(seed)
    for step in range(1, size.steps + 1):
        for part in optimizer.param_groups:
            part["lr"] = size.lr * min(1.0, step / (0.1 * size.steps))
        x, y = pairs.rows(size, 10_000 * step, False, here)
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % size.every == 0:
            with torch.no_grad():
                looks = [model(*pairs.rows(size, 900_000 + look, True, here)).item() for look in range(size.looks)]
            held[step] = sum(looks) / len(looks)
        each(step)
    return held


def train_all(arms: Sequence[str], size: pairs.Size = SIZE) -> dict[str, list[Held]]:
    """All runs of these arms and of the baseline, one after another, with a line that says how long it takes."""
    todo = [(arm, seed) for arm in dict.fromkeys((BASELINE, *arms)) for seed in range(1, RUNS.get(arm, 2) + 1)]
    costs = [COST.get(arm, 7.0) for arm, _ in todo]
    found, begin = dict[str, list[Held]](), time.monotonic()
    for number, (arm, seed) in enumerate(todo):

        def each(step: int, number: int = number) -> None:
            share = (sum(costs[:number]) + costs[number] * step / size.steps) / sum(costs)
            left = (time.monotonic() - begin) * (1 / share - 1)
            line = f"run {number + 1} of {len(todo)}, {todo[number][0]}, step {step}: about {left:.0f} s left"
            print(f"{line:80s}", end="\r", flush=True)

        found.setdefault(arm, []).append(train(arm, seed, size, each))
    print(f"{len(todo)} runs in {time.monotonic() - begin:.0f} s{'':60s}")
    return found


def verdicts(runs: Mapping[str, Sequence[Held]]) -> dict[str, Answer]:
    """See pairs.verdicts."""
    return pairs.verdicts(runs, BASELINE, CONTROL)


def recorded(path: Path = RECORD) -> dict[str, list[Held]]:
    """The runs of a record."""
    held = json.loads(path.read_text(encoding="utf-8"))["heldout"]
    return {arm: [{int(step): loss for step, loss in run.items()} for run in some] for arm, some in held.items()}


def _timed(arm: str, seed: int) -> tuple[Held, float]:
    torch.set_num_threads(1)
    begin = time.process_time()
    return train(arm, seed), time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m week16_fp8.given.tricks", description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    writable(out.parent)
    todo = [(arm, seed) for arm in ARMS for seed in range(1, RUNS.get(arm, 2) + 1)]
    found: dict[tuple[str, int], tuple[Held, float]] = {}
    about: dict[str, Any] = {"kind": "tricks", "started": now(), "command": COMMAND}
    about |= {"hardware": hardware.describe(), "versions": versions()}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = {pool.submit(_timed, *one): one for one in todo}
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            print(f"{len(found)} of {len(todo)}: {waiting[future][0]}, {future.result()[1]:.0f} s", flush=True)
    about["size"] = {**SIZE._asdict(), "model": SIZE.model.model_dump()}
    about |= {"cpu_seconds": {arm: [round(found[a, s][1], 1) for a, s in todo if a == arm] for arm in ARMS}}
    about |= {"heldout": {arm: [found[a, s][0] for a, s in todo if a == arm] for arm in ARMS}}
    replace_file(out, json.dumps(about, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    run_command("tricks", main)
