"""Paired training: one small decoder, several precisions, the same data from the same weights.

    pairs.train("week16", pairs.TINY)                   this process, on a CPU: what the notebook runs
    pairs.train("week16", pairs.SMALL, group=group)     all ranks, under FSDP2: what the benchmark runs on GPUs

`compare` holds the held-out losses against the baseline's and judges them by the rule for one run of each arm: a twin
gives the band, a broken arm must be rejected (one_run.py). On a CPU everything but the FP8 operands is
FP32; on a GPU the weights are gathered and multiplied in BF16, and the masters stay FP32.

The text is Python's own standard library, as bytes: real, and there without a download. A token is a byte.
"""

from __future__ import annotations

import functools
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.compare.statistic import Answer, answers, tail
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights, perturb
from labkit.parallel.shard import shard
from labkit.precision.config import PrecisionSpec
from labkit.precision.registry import availability, get_backend
from labkit.record.measure import Stopwatch
from week16_fp8.given.one_run import judge

Held = Mapping[int, float]  # step: held-out loss
RUNS = {"plain": 4, "week16": 3, "broken": 1}  # of the notebook's verdict
ROUNDING = 2.0**-9  # half a unit in BF16's last place: what rounding a weight once may do


class Arm(NamedTuple):
    """role: baseline, twin, candidate or broken. backend "plain" is FP32 on a CPU, BF16 on a GPU."""

    label: str
    role: str
    backend: str = "plain"
    recipe: str | None = None
    perturbed: float = 0.0


ARMS = {
    "plain": Arm("the baseline, no FP8", "baseline"),
    "twin": Arm("twin, its weights a rounding off", "twin", perturbed=ROUNDING),
    "broken": Arm("broken FP8 (scale 1)", "broken", "broken-unscaled"),
    "week16": Arm("your FP8 linear", "candidate", "week16"),
    "week16-block": Arm("your FP8 in blocks", "candidate", "emulated", "block"),
    "te-delayed": Arm("TE FP8 delayed", "candidate", "te", "delayed"),
    "te-current": Arm("TE FP8 current", "candidate", "te", "current"),
    "te-block": Arm("TE FP8 block", "candidate", "te", "block"),
    "torchao": Arm("torchao FP8 tensorwise", "candidate", "torchao", "tensorwise"),
}
OWN = ("week16", "week16-block")


class Size(NamedTuple):
    """batch: sequences of a rank and step. A held-out loss is the mean of `looks` batches, every `every` steps."""

    model: ModelConfig
    batch: int
    steps: int
    lr: float
    every: int
    looks: int = 4


def _decoder(d: int, layers: int, heads: int, ffn: int, seq: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=256, d_model=d, n_layers=layers, n_heads=heads, n_kv_heads=heads, d_ffn=ffn, max_seq_len=seq
    )


TINY = Size(_decoder(64, 2, 4, 128, 64), batch=16, steps=120, lr=5e-4, every=8)  # a laptop: a few seconds an arm
SHORT = TINY._replace(steps=64, every=6)  # of which several runs are trained
SMALL = Size(_decoder(1024, 12, 16, 2816, 1024), batch=16, steps=160, lr=3e-4, every=5)  # 154 M parameters: a GPU


@dataclass
class Run:
    """What one training left. Losses in nats a byte; seconds a step, without the evaluations."""

    arm: str
    losses: list[float] = field(default_factory=list)
    heldout: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    stats: dict[str, dict[str, float]] = field(default_factory=dict)  # of the last step: labkit.precision's ScaleStat
    tokens: int = 0  # of all ranks, a step
    evidence: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""

    @property
    def rate(self) -> float:
        """Tokens/s of the median step; the first tenth is left out."""
        kept = self.seconds[len(self.seconds) // 10 :]
        return self.tokens / median(kept) if kept else 0.0


@functools.cache
def text(heldout: bool) -> Tensor:
    """uint8: the modules of the standard library's top folder, one after another; every eighth file is held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    chosen = [file for number, file in enumerate(files) if (number % 8 == 7) == heldout]
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in chosen)), dtype=torch.uint8)


def rows(size: Size, key: int, heldout: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """(tokens, targets), [batch, seq] int64, drawn by `key`."""
    source, seq = text(heldout), size.model.max_seq_len
    draw = torch.Generator().manual_seed(key)
    starts = torch.randint(0, len(source) - seq - 1, (size.batch,), generator=draw)
    window = torch.stack([source[s : s + seq + 1] for s in starts.tolist()]).long().to(device)
    return window[:, :-1], window[:, 1:]


def train(
    name: str,
    size: Size = TINY,
    *,
    group: Any = None,
    steps: int | None = None,
    probe: bool = True,
    watch: Callable[[int, Any], None] | None = None,
    after: Callable[[Callable[[], None]], None] | None = None,
    seed: int | None = None,
) -> Run:
    """Train one arm. group: FSDP2 over its ranks, each on rows of its own; None: this process alone, on a CPU.

    probe: look into the last step (Run.stats). watch: called with (step, model) before every optimizer step. after:
    called at the end with one more step to run as often as it likes (a profiler's). seed: of a rounding error that
    moves the weights, whatever the arm says.
    An arm that cannot run here, for instance because its task is still open, gives a Run whose `why_not` says why.
    """
    arm, run = ARMS[name], Run(name)
    device = group.device if group is not None else torch.device("cpu")
    rank, ranks = (group.rank, group.size) if group is not None else (0, 1)
    plain = "bf16" if device.type == "cuda" else "fp32"
    backend_name = plain if arm.backend == "plain" else arm.backend
    able = availability(backend_name, arm.recipe, device)
    if not able.ok:
        run.why_not = str(able)
        return run
    model: Any = init_weights(Transformer(size.model), seed=0)
    model = (perturb(model, arm.perturbed, seed=1) if seed is None else perturb(model, ROUNDING, seed=seed)).to(device)
    backend = get_backend(backend_name)
    backend.convert(model, PrecisionSpec(arm.recipe, skip=("head",), device=device, ranks=ranks))
    if group is not None:
        shard(model, group, torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.lr, betas=(0.9, 0.95), weight_decay=0.0)
    steps = steps or size.steps
    run.tokens = ranks * size.batch * size.model.max_seq_len
    clock = Stopwatch(device)

    def gradients(step: int) -> Tensor:
        x, y = rows(size, 10_000 * step + rank, False, device)
        with backend.autocast():
            loss = model(x, y)
        loss.backward()
        return loss.detach()

    for step in range(1, steps + 1):
        for part in optimizer.param_groups:
            part["lr"] = size.lr * min(1.0, step / (0.1 * steps))
        clock.start()
        with backend.probe() if probe and step == steps else nullcontext():
            loss = gradients(step)
        if watch is not None:
            watch(step, model)
        optimizer.step()
        optimizer.zero_grad()
        run.seconds.append(clock.lap())
        run.losses.append(loss.item())
        if step % size.every == 0 or step == steps:
            run.heldout[step] = _held_out(model, backend, size, device, group)
    run.stats = {tensor: vars(stat) for tensor, stat in backend.scales.items()}
    run.evidence = backend.evidence(model)
    if after is not None:
        after(lambda: (gradients(0), optimizer.step(), optimizer.zero_grad())[1])
    return run


def train_several(runs: Mapping[str, int] = RUNS, size: Size = SHORT, seconds: float = 240.0) -> dict[str, list[Run]]:
    """So many runs of each arm, each from weights of its own, with a line that says how long it still takes.

    No run after an arm's second is begun if it would end later than `seconds` from now.
    """
    todo = [(name, number) for number in range(1, max(runs.values()) + 1) for name in runs if number <= runs[name]]
    found: dict[str, list[Run]] = {name: [] for name in runs}
    begin, took = time.monotonic(), dict[str, float]()
    for place, (name, number) in enumerate(todo):
        left = sum(took.get(arm, max(took.values(), default=0.0)) for arm, _ in todo[place:])
        if number > 2 and time.monotonic() - begin + took[name] > seconds:
            print(f"{ARMS[name].label}: run {number} is left out, {seconds:.0f} s are over")
            continue
        print(f"run {place + 1} of {len(todo)}, {ARMS[name].label}" + (f": about {left:.0f} s left" if left else ""))
        start = time.monotonic()
        found[name].append(train(name, size, seed=number))
        took[name] = time.monotonic() - start
    return found


def verdicts(runs: Mapping[str, Sequence[Held]], baseline: str, control: str) -> dict[str, Answer]:
    """The verdict's answer for each arm but the baseline: its gap, interval and word (labkit.compare.statistic). The
    control has no share in the others' standard deviation."""
    half = max(runs[baseline][0]) // 2 + 1
    ys = {arm: [tail(held, half) for held in some] for arm, some in runs.items()}
    base, broken = ys.pop(baseline), ys.pop(control, None)
    found = answers(base, ys, plan=False)
    return found | ({control: answers(base, {**ys, control: broken}, plan=False)[control]} if broken else {})


@torch.no_grad()
def _held_out(model: Any, backend: Any, size: Size, device: torch.device, group: Any) -> float:
    """The mean held-out loss; every rank looks at the same rows, and under FSDP2 gets the same number."""
    total = 0.0
    for look in range(size.looks):
        x, y = rows(size, 900_000 + look, True, device)
        with backend.autocast():
            total += model(x, y).item()
    return total / size.looks


def compare(runs: Mapping[str, Run]) -> dict[str, Any]:
    """The verdict over these runs: see one_run.judge."""
    # Not `lab compare`'s rule for repeated runs (labkit.compare.repeats): it needs four BF16 runs and two of each
    # recipe, where a student waits for every arm, and the benchmark's records, of one run each, would have no verdict.
    done = {name: run.heldout for name, run in runs.items() if not run.why_not}
    missing = {name: run.why_not for name, run in runs.items() if run.why_not}
    roles, labels = ({name: getattr(ARMS[name], what) for name in runs} for what in ("role", "label"))
    return judge(done, roles, labels, missing)


def worst(run: Run, kind: str = "") -> tuple[str, float]:
    """(tensor, dB) of the lowest SQNR among the rounded tensors; kind: "input", "weight" or "grad" alone."""
    kinds = (kind,) if kind else ("input", "weight", "grad")
    found = {tensor: stat["sqnr"] for tensor, stat in run.stats.items() if tensor.endswith(kinds)}
    return min(found.items(), key=lambda item: item[1])
