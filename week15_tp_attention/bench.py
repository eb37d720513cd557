"""The benchmark: an attention layer and a whole block on 1, 2, 4 ranks, forward and backward; a pipeline; FP8.

    python -m week15_tp_attention.bench                                       on a laptop: 2 processes, gloo, toy sizes
    torchrun --standalone --nproc_per_node 2 -m week15_tp_attention.bench     on GPUs, at d 4096 and 8192 positions
    sbatch week15_tp_attention/bench.slurm                                    the same by SLURM

Your parts as `given/blocks.py` puts them together, and the same layer by libraries (`given/peers.py`), each on the same
weights, each held against the unsharded layer. What cannot run here, or is not written yet, is listed at the end with
its reason; nothing else is lost by it. One record goes to --out (see given/records.py) and is written after each part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labkit.errors import LabError, run_command
from labkit.record import measure
from labkit.record.files import writable
from week15_tp_attention.given import blocks, clock, fp8, peers, records, stages
from week15_tp_attention.given.blocks import Shape
from week15_tp_attention.given.lanes import Lanes

SHAPES = {
    "full": Shape(B=1, T=8192, D=4096, F=14336, n_heads=32, n_kv_heads=8),
    "toy": Shape(B=1, T=32, D=64, F=160, n_heads=8, n_kv_heads=4),
}
WHAT = ("attention", "block")
PARTS = ("layers", "pipeline", "fp8", "async")


class Bench:
    """One rank's view of the benchmark."""

    def __init__(self, group: Any, size: str, wanted: list[str], budget: float, limit: float, out: str | None) -> None:
        self.group, self.size, self.wanted, self.budget, self.limit, self.out = group, size, wanted, budget, limit, out
        self.device, self.cuda, self.leader = group.device, group.device.type == "cuda", group.rank == 0
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.shape = SHAPES[size]
        self.began = time.perf_counter()
        self.record = records.describe(self.device.type, group.size, self.leader)
        self.record["launch_us"] = measure.launch_us(self.device)
        self.record |= {"dtype": str(self.dtype).removeprefix("torch."), "shape": self.shape._asdict()}
        self.given = blocks.parts(compiled=self.cuda)
        self.degrees = [N for N in (1, 2, 4, 8) if group.size >= N and group.size % N == 0]
        self.groups = {
            N: group.split([list(range(k, k + N)) for k in range(0, group.size, N)], f"tp{N}") for N in self.degrees
        }
        self.lanes: dict[int, Any] = {}
        self.whole = blocks.whole_weights(self.shape, self.device, self.dtype)
        drawn = torch.Generator(self.device).manual_seed(1)
        B, T, D = self.shape.B, self.shape.T, self.shape.D
        self.x, self.dy = (torch.randn(B, T, D, device=self.device, generator=drawn).to(self.dtype) for _ in range(2))
        self.right: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # of the unsharded layer: y, dx

    def say(self, text: str) -> None:
        if self.leader:
            print(f"{time.perf_counter() - self.began:6.1f} s  {text}", flush=True)

    def keep(self) -> None:
        """What was measured is kept, whatever comes next."""
        if self.leader and self.out:
            records.save(self.record, Path(self.out))

    def attempt(self, what: str, contender: str, N: int, job: Callable[[], None]) -> None:
        """Run `job`; a failure becomes a line of the record, and all ranks go on together."""
        why = ""
        if self.any_rank(time.perf_counter() - self.began > self.limit):
            why = f"left out: {self.limit:.0f} s were over"
        else:
            try:
                job()
            except Exception as error:  # one library's fault must not cost the others their numbers
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if self.any_rank(bool(why)):
            why = why or "failed on another rank"
            known = any(failure["why"] == why for failure in self.record["failures"])
            self.record["failures"].append({"what": what, "contender": contender, "N": N, "why": why})
            if not known:  # the table at the end names all that share a reason
                self.say(f"{what}, {contender}, {N} ranks: not measured: {why[:160]}")
        if self.cuda:
            torch.cuda.empty_cache()
        self.keep()

    def any_rank(self, yes: bool) -> bool:
        return bool(self.group.all_reduce(torch.tensor([float(yes)], device=self.device), "max"))

    # ---- layers

    def wire(self, N: int) -> None:
        """One all-reduce, all-gather and reduce-scatter of the layer's message: what the predictions divide by."""
        group, nbytes = self.groups[N], self.x.nbytes
        x, part = self.x.clone().flatten(0, 1), self.x.flatten(0, 1).chunk(N)[0].clone()
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: group.all_reduce(x),
            "all_gather": lambda: group.all_gather(part),
            "reduce_scatter": lambda: group.reduce_scatter(x),
        }
        for name, call in calls.items():
            x.zero_()  # summed again and again, other numbers would overflow; a wire carries zeros no faster
            seconds, _ = clock.seconds_a_step(call, group, self.budget / 2)
            self.record["wire"].setdefault(name, {})[str(N)] = {"bytes": nbytes, "seconds": seconds}
            self.say(f"{name} of {nbytes / 1e6:.1f} MB on {N} ranks: {seconds * 1e3:.3f} ms")

    def layer(self, what: str, contender: str, N: int) -> None:
        group = self.groups[N]
        make = blocks.OWN.get(contender) or peers.PEERS[contender]
        if contender == "collective matmul" and N not in self.lanes:
            self.lanes[N] = Lanes(group, timed=False)
            self.lanes[N].connect()
        group = self.lanes[N] if contender == "collective matmul" else group
        weights = self.whole if issubclass(make, peers.WHOLE) else blocks.own_weights(self.whole, self.shape, group)
        module: Any = make(weights, group, self.shape, self.given)
        forward = module.attention if what == "attention" else module
        cut = module.cut_along_T and N > 1
        x, dy = ((t.chunk(N, 1)[group.rank] if cut else t).clone() for t in (self.x, self.dy))
        x.requires_grad_()

        def run() -> torch.Tensor:
            if hasattr(module, "autocast"):
                with module.autocast():
                    return forward(x)
            return forward(x)

        def step() -> torch.Tensor:
            y = run()
            y.backward(dy)
            return y

        y = step().detach()
        error = self.distance(what, y, x.grad, cut, group)
        kept = clock.kept_bytes(run, [*module.parameters(), *getattr(module, "buffers", list)()])
        peak = 0
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            peak = torch.cuda.max_memory_allocated() - before

        def timed() -> None:
            x.grad = None
            for weight in module.parameters():
                weight.grad = None
            step()

        seconds, spread = clock.seconds_a_step(timed, group, self.budget)
        row = {"what": what, "contender": contender, "N": N, "seconds": seconds, "spread": spread}
        row |= {"kept_bytes": kept, "peak_bytes": peak, "error": error}
        row["parts"] = clock.parts_of_a_step(timed, self.device)
        self.record["rows"].append(row)
        rate = self.shape.flops(what) / N / seconds / 1e12
        self.say(f"{what:9s} {contender:26s} N={N}  {seconds * 1e3:8.3f} ms  {rate:6.1f} TFLOP/s  error {error:.1e}")

    def distance(self, what: str, y: torch.Tensor, dx: Any, cut: bool, group: Any) -> float:
        """How far y and dx are from the unsharded layer's; the first to come, plain on one rank, is that layer."""
        mine = (y.float(), dx.detach().float())
        if what not in self.right:
            self.right[what] = mine
        right = [t.chunk(group.size, 1)[group.rank] if cut else t for t in self.right[what]]
        return max(float((a - b).norm() / b.norm()) for a, b in zip(mine, right))

    def layers(self, contenders: list[str], what: tuple[str, ...] = WHAT) -> None:
        for N in self.degrees:
            for kind in what:
                for contender in contenders:
                    if N > 1 or contender in ("plain", "te.Linear", "te.Linear, FP8 delayed", "te.Linear, FP8 current"):
                        self.attempt(kind, contender, N, partial(self.layer, kind, contender, N))

    # ---- the rest

    def pipeline(self) -> None:
        from labkit.model.config import ModelConfig, sizes

        if self.group.size < 2:
            raise LabError("a pipeline needs two ranks")
        toy: dict[str, Any] = dict(vocab_size=64, d_model=32, n_heads=4, n_kv_heads=2, d_ffn=64, max_seq_len=64)
        config = sizes()["1b"] if self.size == "full" else ModelConfig(n_layers=2 * self.group.size, **toy)
        B, T = (1, 4096) if self.size == "full" else (2, 32)
        core = self.given.core if self.cuda else None
        rows = stages.measure(self.group, config, core, (B, T), (4, 8))
        self.record["pipeline"] = rows
        self.record["pipeline_of"] = {"model": config.model_dump(), "B": B, "T": T}
        for row in rows:
            text = f"bubble {row['measured']:.1%}, derived {row['derived']:.1%}"
            self.say(f"pipeline {row['schedule']:14s} M={row['M']}  {row['seconds'] * 1e3:8.1f} ms  {text}")

    def gap(self) -> None:
        if not self.cuda:
            raise LabError("Transformer Engine's FP8 needs a GPU")
        N = self.degrees[-1]
        self.record["gap"] = {"N": N, **fp8.gap(self.groups[N], blocks.parts(compiled=False))}
        for arm, value in self.record["gap"]["gap"].items():
            self.say(f"loss of {arm} against bf16 at TP {N}: {value:+.3%}")

    def run(self) -> dict[str, Any]:
        self.say(f"{self.group.size} ranks, {self.record['transport']}, {self.record['hardware_name']}")
        if "layers" in self.wanted:
            for N in self.degrees[1:]:
                self.attempt("wire", "", N, partial(self.wire, N))
            self.layers([*blocks.OWN, *(name for name in peers.PEERS if name != "torch async TP")])
        if "pipeline" in self.wanted:
            self.attempt("pipeline", "", self.group.size, self.pipeline)
        if "fp8" in self.wanted:
            self.attempt("gap", "", self.degrees[-1], self.gap)
        if "async" in self.wanted:  # last: it compiles for a minute, and is the likeliest to fail
            self.layers(["torch async TP"], ("block", "attention"))
        self.record["wall"] = time.perf_counter() - self.began
        self.keep()
        if self.leader:
            print("\n" + table(self.record), flush=True)
        return self.record


def table(record: dict[str, Any]) -> str:
    """The short table: a line for each contender and degree, efficiency against plain on one rank."""
    launch = record.get("launch_us")
    lines = [f"this host takes {launch:.1f} us to launch a kernel: what is hidden counts beside that"] if launch else []
    lines += [f"{'':9s} {'':26s}  N        ms  efficiency  kept MB  exposed ms"]
    for row in record["rows"]:
        share = records.efficiency(record, row["what"], row["contender"], row["N"])
        exposed = row["parts"]["classes_ms"]["communication"] if row["parts"] else None
        lines.append(
            f"{row['what']:9s} {row['contender']:26s} {row['N']:2d} {row['seconds'] * 1e3:9.3f}"
            f"  {f'{share:10.1%}' if share else '         -'} {row['kept_bytes'] / 1e6:8.1f}"
            f"  {f'{exposed:10.3f}' if exposed is not None else '         -'}"
        )
    for what in WHAT:
        for N in map(int, record["wire"].get("all_reduce", {})):
            guess, one = records.predicted(record, what, N), records.seconds(record, what, "plain", 1)
            if guess and one:
                text = f"{guess * 1e3:9.3f}  {one / N / guess:10.1%}"
                lines.append(f"{what:9s} {'derived, nothing hidden':26s} {N:2d} {text}")
    for row in record["pipeline"]:
        text = f"bubble {row['measured']:6.1%}, derived {row['derived']:6.1%}"
        lines.append(f"pipeline  {row['schedule']:14s} M={row['M']:<2d} {row['seconds'] * 1e3:9.1f} ms  {text}")
    for arm, value in ((record["gap"] or {}).get("gap") or {}).items():
        lines.append(f"FP8 gap   {arm:26s}  {value:+.3%}")
    reasons: dict[str, list[str]] = {}
    for failure in record["failures"]:
        reasons.setdefault(failure["why"], []).append(failure["contender"] or failure["what"])
    lines += [f"not measured: {'; '.join(dict.fromkeys(names))}: {why[:160]}" for why, names in reasons.items()]
    return "\n".join(lines)


def on_a_rank(group: Any, size: str, wanted: list[str], budget: float, limit: float, out: str | None) -> dict | None:
    record = Bench(group, size, wanted, budget, limit, out).run()
    return record if group.rank == 0 and out is None else None


def run_bench(
    size: str | None = None,
    ranks: int | None = None,
    parts: str = ",".join(PARTS),
    budget: float = 0.3,
    limit: float = 900.0,
    device: str = "auto",
    out: str | None = None,
) -> dict[str, Any] | None:
    """Run the benchmark. Returns the record where no `out` takes it.

    size: "full" or "toy"; by default full on GPUs. ranks: without torchrun; by default all GPUs, or 2 processes.
    parts: of layers, pipeline, fp8, async, by comma. budget: seconds of timed steps for each row, about. limit: what
    would begin after so many seconds is left out. LabError for a size or part that there is not."""
    from labkit.comm.ranks import is_first, launched, run_ranks

    wanted = [name.strip() for name in parts.split(",") if name.strip()]
    if strange := [name for name in wanted if name not in PARTS]:
        raise LabError(f"there is no part {strange[0]!r}: choose of {', '.join(PARTS)}.")
    if size not in (None, *SHAPES):
        raise LabError(f"--size is one of {', '.join(SHAPES)}, not {size!r}.")
    if device not in ("auto", "cpu", "cuda"):
        raise LabError(f"--device is auto, cpu or cuda, not {device!r}.")
    if device == "auto":
        device = "cuda" if torch.cuda.device_count() > 0 else "cpu"
    size = size or ("full" if device == "cuda" else "toy")
    if out and is_first():
        writable(Path(out).parent)
    values = (size, wanted, budget, limit, out)
    if launched(ranks):
        return run_ranks(on_a_rank, *values, backend="torchrun", device=device, timeout=None)[0]
    ranks = ranks or (torch.cuda.device_count() if device == "cuda" else 2)
    return run_ranks(on_a_rank, *values, size=ranks, backend="processes", device=device, timeout=None)[0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m week15_tp_attention.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", default=None, help="full or toy; default full on GPUs")
    add("--ranks", type=int, default=None, help="how many (without torchrun); default: all GPUs, or 2")
    add("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, by comma")
    add("--budget", type=float, default=0.3, help="seconds of timed steps for each row, about")
    add("--limit", type=float, default=900.0, help="what would begin after so many seconds is left out")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--out", default="runs/bench15.json", help="the record")
    a = parser.parse_args(argv)
    run_bench(a.size, a.ranks, a.parts, a.budget, a.limit, a.device, a.out)
    return 0


if __name__ == "__main__":
    run_command("bench", main)
