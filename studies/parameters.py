"""What FP8 parameters save: bytes that a rank holds and sends in a step, by what they are, and its tokens/s.

    python -m studies.parameters OUT.json                                      two GPUs, 1.14 B parameters
    python -m studies.parameters OUT.json --round-trip te-block-parameters     of a checkpoint, and nothing else
    python -m studies.parameters OUT.json --device cpu --arms emulated,emulated-parameters --set 'model="tiny"' ...

"rest" is what the device has allocated beyond weights, gradients and AdamW's state; "peak" its most in that step.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from labkit.comm.group import Group
from labkit.comm.mesh import Mesh
from labkit.comm.ranks import run_ranks
from labkit.compare.preset import load_preset
from labkit.errors import LabError, run_command
from labkit.precision.base import pieces
from labkit.precision.registry import get_backend
from labkit.record import measure
from labkit.record.clean import jsonable
from labkit.record.files import replace_file, writable
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import build_corpus
from labkit.train.job import build_model, seed_generators, train_job
from labkit.train.loop import Hook, Loop, Parts, train
from labkit.train.reformat import reformat
from studies.writing import about

BLOCK = {"recipe": "block"}
ARMS: dict[str, dict[str, Any]] = {
    "bf16": {"backend": "bf16"},
    "te-block": {"backend": "te", **BLOCK},
    "te-block-parameters": {"backend": "te", **BLOCK, "fp8_parameters": True},
    "emulated": {"backend": "emulated", **BLOCK},
    "emulated-parameters": {"backend": "emulated", **BLOCK, "fp8_parameters": True},
}
WARMUP, COUNTED = 4, 8  # steps
SEQUENCES = 8  # of a GPU: they fit into 80 GiB
TRIP, AFTER = 4, 2  # steps before a checkpoint is converted, and after it


class Holds(Hook):
    """Counts what this rank holds and sends in step WARMUP + 1."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.begin = 0

    def before_step(self, loop: Loop) -> None:
        if loop.step == WARMUP + 1:
            measure.reset_peak(loop.group.device)
            self.begin = len(loop.group.ledger.events)

    def after_backward(self, loop: Loop) -> None:
        if loop.step == WARMUP + 1:
            self.found["held"] = held(loop.model, loop.optimizer)
            if loop.group.device.type == "cuda":
                total = torch.cuda.memory_allocated(loop.group.device)
                self.found["rest"] = total - sum(self.found["held"].values())

    def after_step(self, loop: Loop) -> None:
        if loop.step == WARMUP + 1:
            self.found["peak"] = int(loop._peak())
            sent: Counter[str] = Counter()
            for event in loop.group.ledger.events[self.begin :]:
                sent[event.kind] += event.bytes
            self.found["sent"] = {kind: much for kind, much in sent.items() if kind not in ("wait", "split")}

    def on_end(self, loop: Loop) -> None:
        step = median(loop.seconds[WARMUP + 1 :])
        self.found["tokens_per_s"] = loop.config.batch_size * loop.config.seq_len / step


def held(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return {"weights, float32": bytes of this rank}, ... A memory that two of them share is counted once."""
    tensors: list[tuple[str, Tensor]] = [("weights", parameter) for parameter in model.parameters()]
    tensors += [("gradients", parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    for state in optimizer.state.values():
        kept = [(key, value) for key, value in state.items() if isinstance(value, Tensor) and value.numel() > 1]
        tensors += [({"exp_avg": "m", "exp_avg_sq": "v"}.get(key, key), value) for key, value in kept]
    seen: set[int] = set()
    total: Counter[str] = Counter()
    for what, tensor in tensors:
        for name, piece in pieces(tensor).items():
            memory = piece.untyped_storage()
            if memory.data_ptr() and memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                kind = str(piece.dtype).removeprefix("torch.")
                total[f"{what}, {kind}{f' ({name})' if name else ''}"] += memory.nbytes()
    return dict(total)


def train_arm(group: Group, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one arm on this rank: what it holds and sends, how fast it trains, its losses."""
    config = strict_validate(TrainConfig, settings, "the study's training")
    seed_generators(config.seed, group.rank)
    corpus, backend, hook = build_corpus(config.data), get_backend(config.precision.backend), Holds()
    mesh = Mesh(group, ledger=True, dp=group.size, tp=1)
    model, report = build_model(config, group, backend, mesh)
    result = train(group, config, corpus, Parts(model, hooks=[hook], backend=backend))
    return {
        **hook.found,
        "losses": list(result.losses.values()),
        "peak_of_all": result.peak_bytes,
        "converted": len(report.converted),
        "evidence": backend.evidence(model),
    }


def losses(group: Group, settings: dict[str, Any], folder: str) -> list[float]:
    """Return the losses of the steps that this call trained, and of those before it."""
    return list(train_job(group, settings, folder)["losses"].values())


def round_trip(settings: dict[str, Any], size: int, device: str) -> dict[str, Any]:
    """The losses of AFTER steps after a checkpoint: as it is, with ordinary weights, and with those made FP8 again."""
    more = {**settings, "checkpoint_every": TRIP, "keep_checkpoints": 9, "steps": TRIP + AFTER}
    plain = {**more, "precision": {**settings["precision"], "fp8_parameters": False}}

    def trained(config: dict[str, Any], folder: Path) -> list[float]:
        return run_ranks(losses, config, str(folder), size=size, device=device, timeout=None)[0][TRIP:]

    with tempfile.TemporaryDirectory() as place:
        one, two, three = (Path(place) / name for name in ("fp8", "bf16", "again"))
        found = {"as it is": trained(more, one)}
        first = one / "checkpoints" / f"step-{TRIP:08d}"
        back = reformat(first, two, "bf16", masters=True)
        reformat(back, three, "fp8")
        found["converted to bf16, masters"] = trained(plain, two)
        found["and to fp8 again"] = trained(more, three)
        values = reformat(first, Path(place) / "values", "bf16")
        found["converted to bf16, values"] = trained(plain, values.parent.parent)
    return found


def study(
    names: list[str],
    settings: list[str],
    size: int,
    device: str,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
    trip: str | None = None,
) -> dict[str, Any]:
    """The record of each arm, or of the round trip of one, `trip`; `keep` gets it after each arm. LabError: no arm."""
    if unknown := [name for name in names if name not in ARMS]:
        raise LabError(f"there is no arm {unknown[0]!r}; there are: {', '.join(ARMS)}")
    batch = [] if any(setting.startswith("batch_size") for setting in settings) else [f"batch_size={SEQUENCES * size}"]
    preset = load_preset("h100", [f"speed.train.{setting}" for setting in (*settings, *batch)])
    whole = preset.speed_config(preset.baseline(), world=size).model_dump()
    whole |= {"steps": WARMUP + COUNTED, "warmup_steps": 2}
    what = ["--round-trip", trip] if trip is not None else ["--arms", ",".join(names)]
    command = " ".join(["python -m studies.parameters OUT", *what, *(f"--set {s}" for s in settings)])
    out = {**about("fp8 parameters", command), "ranks": size, "train": whole, "arms": {}}
    if trip is not None:
        out["round trip"] = round_trip({**whole, "precision": ARMS[trip]}, size, device)
        print(json.dumps(out["round trip"]), flush=True)
        return out
    for name in names:
        own = {**whole, "precision": ARMS[name]}
        out["arms"][name] = run_ranks(train_arm, own, size=size, device=device, timeout=None)[0]
        print(f"{name}: {json.dumps(jsonable(out['arms'][name]))[:600]}", flush=True)
        keep(out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.parameters", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--arms", default="bf16,te-block,te-block-parameters")
    stored = [name for name, precision in ARMS.items() if "fp8_parameters" in precision]
    which.add_argument("--round-trip", choices=stored, help="of a checkpoint of this arm, and no arm's training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the training")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    a = parser.parse_args()

    writable(a.out.parent)

    def keep(found: dict[str, Any]) -> None:
        replace_file(a.out, json.dumps(jsonable(found), indent=1) + "\n")

    keep(study(a.arms.split(","), a.set, a.ranks, a.device, keep, a.round_trip))


if __name__ == "__main__":
    run_command("parameters", main)
