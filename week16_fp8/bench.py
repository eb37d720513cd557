"""Week 16's benchmark: your FP8 linear beside the libraries', alone and in training.

    python -m week16_fp8.bench                                        on a CPU: what emulating costs, and a paired gap
    torchrun --nproc_per_node 2 -m week16_fp8.bench --out FP8.json    on GPUs (NCCL), or on a CPU (gloo)
    sbatch week16_fp8/bench.slurm                                     on several machines

Two parts, of which --parts takes one or both:

    linear   one linear, forward and backward, at each of --shapes: time, TFLOP/s, and on a GPU every millisecond by the
             class of its kernel. Rank 0 alone, before the ranks join: Transformer Engine's delayed scaling reduces its
             amaxes over the default process group, and a rank that measured alone in one would wait for ever
    train    a small decoder under FSDP2 on all ranks, once in each precision, on the same data from the same weights:
             held-out loss, the paired gap and its verdict, the SQNR of each tensor, tokens/s, kernels

A line reports what is being done; on a GPU, after a minute of silence, where every thread stands. A table comes last, and
one JSON record goes to --out: date, command, hardware, versions, and all numbers. A part or an arm that fails is noted
in the record, and costs nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import LabError, run_command

PARTS = ("linear", "train")
SHAPES = {"cpu": "1024x1024x1024", "cuda": "4096x4096x4096,16384x4096x16384"}
KIND = "fp8"
SILENCE = 60  # seconds


def run_bench(
    device: str = "auto",
    parts: str = ",".join(PARTS),
    shapes: str | None = None,
    arms: str | None = None,
    size: str | None = None,
    steps: int | None = None,
    budget: float = 0.2,
    out: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the benchmark; returns the record, and writes it to `out` if given.

    Args:
        device: "auto", "cpu" or "cuda".
        parts: of linear and train, by comma.
        shapes: tokens x inputs x outputs, by comma.
        arms: of those in given/pairs.py and given/linears.py, by comma; the baseline is always there.
        size: "tiny" or "small" (given/pairs.py); by default tiny on a CPU.
        steps: of each training; by default the size's own.
        budget: seconds of timed calls for one arm at one shape, about.
        out: the record's file.
        quiet: print nothing.
    """
    import torch

    from labkit.comm.ranks import is_first, run_ranks, under_torchrun
    from week16_fp8.given import linears, pairs

    torchrun = under_torchrun()
    leader = is_first()
    device = _device(device)
    wanted = _choose(parts, PARTS, "part")
    grid = _shapes(shapes or SHAPES[device])
    known = tuple(dict.fromkeys((*linears.ARMS, *pairs.ARMS)))
    chosen = _choose(arms, known, "arm") if arms else list(known)
    sizes = {"tiny": pairs.TINY, "small": pairs.SMALL}
    size = size or ("small" if device == "cuda" else "tiny")
    if size not in sizes:
        raise LabError(f"--size is tiny or small, not {size!r}.")
    if steps is not None and steps < 1:
        raise LabError(f"--steps is at least 1, not {steps}.")
    if out and leader:
        from labkit.record.files import writable

        writable(Path(out).parent)
    record = _describe(device, size, steps or sizes[size].steps)
    run: Callable[..., Any] = _here

    def say(line: str) -> None:
        if leader and not quiet:
            print(line, flush=True)
        if device == "cuda":  # anew: a hang is to say where
            faulthandler.dump_traceback_later(SILENCE, repeat=True)

    say(f"# {record['ranks']} ranks, {record['transport']}, {record['hardware_name']}")
    if torchrun:
        run = partial(run_ranks, backend="torchrun", device=device, timeout=None)
    elif device == "cuda":
        run = partial(run_ranks, size=1, device="cuda", timeout=None)
    if device == "cuda":
        transformer_engine_first()
    if "linear" in wanted and leader:
        names = [arm for arm in linears.ARMS if arm == "plain" or arm in chosen]
        names = [arm for arm in names if device == "cuda" or arm in linears.ON_CPU]
        for shape in grid:
            begin = time.perf_counter()
            try:
                rows = linears.measure(
                    shape, names, torch.device(device), budget, say if device == "cuda" else _quietly
                )
            except Exception as failed:
                _failed(record, f"linear {shape}", failed)
                continue
            record["linear"] += rows
            say(f"# linear {shape}: {time.perf_counter() - begin:.0f} s")
            _save(record, out, leader)
    if "train" in wanted:
        for arm in [arm for arm in pairs.ARMS if arm in chosen or pairs.ARMS[arm].role != "candidate"]:
            begin = time.perf_counter()
            try:
                record["train"][arm] = run(_train, arm, sizes[size], steps)[0]
            except Exception as failed:
                _failed(record, f"train {arm}", failed)
                continue
            record["verdict"] = verdict(record)
            say(f"# train {arm}: {time.perf_counter() - begin:.0f} s")
            _save(record, out, leader)
    faulthandler.cancel_dump_traceback_later()
    from labkit.record.run import now

    record["finished"] = now()
    _save(record, out, leader)
    say(table(record))
    return record


def transformer_engine_first() -> None:
    """Import Transformer Engine, if it is there, before anything opens CUDA: once torch has loaded its own cuDNN, the
    import of Transformer Engine 2.20 fails with an undefined symbol."""
    with contextlib.suppress(Exception):
        importlib.import_module("transformer_engine.pytorch")


def _train(group: Any, arm: str, size: Any, steps: int | None) -> dict[str, Any]:
    """One arm on all ranks; on GPUs its kernels too. What a rank raises is raised by all of them."""
    from labkit.errors import in_words
    from week16_fp8.given import linears, pairs

    if _of(group).type == "cuda":
        transformer_engine_first()
    found: dict[str, Any] = {}

    def look(step: Any) -> None:
        if _of(group).type == "cuda":
            step()
            found["kernels"] = linears.kernels(step, _of(group))

    try:
        run = pairs.train(arm, size, group=group, steps=steps, after=look)
    except NotImplementedError as blank:
        return {"arm": arm, "why_not": str(blank)}
    except Exception as failed:
        if group is not None and group.size > 1:
            raise  # the others stand in a collective: the supervisor ends them with an autopsy
        return {"arm": arm, "why_not": in_words(failed)}
    return kept({**vars(run), "rate": run.rate, **found})


def kept(row: dict[str, Any]) -> dict[str, Any]:
    """What a record keeps of a training: not every step, of the tensors the lowest SQNR of each kind, and the longest
    kernels. A record is read by people, too."""
    small = {key: value for key, value in row.items() if key not in ("seconds", "losses", "stats")}
    lowest: dict[str, list[Any]] = {}
    for tensor, stat in row.get("stats", {}).items():
        kind = tensor.rpartition(".")[2]
        if kind not in lowest or stat["sqnr"] < lowest[kind][1]:
            lowest[kind] = [tensor, stat["sqnr"]]
    if "kernels" in small:
        small["kernels"] = {**small["kernels"], "top": small["kernels"]["top"][:6]}
    return {**small, "lowest": lowest}


def _of(group: Any) -> Any:
    import torch

    return torch.device("cpu") if group is None else group.device


def _quietly(line: str) -> None:
    """A CPU needs no watching."""


def _here(fn: Any, *args: Any) -> list[Any]:
    """Without ranks: this process, no group."""
    return [fn(None, *args)]


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """labkit.compare's verdict over the record's trainings."""
    from week16_fp8.given import pairs

    runs = {
        arm: pairs.Run(arm, heldout={int(step): loss for step, loss in row.get("heldout", {}).items()})
        for arm, row in record["train"].items()
        if not row.get("why_not")
    }
    return pairs.compare(runs)


def table(record: dict[str, Any]) -> str:
    """The record in a few lines."""
    lines = []
    for row in record["linear"]:
        shape = "x".join(map(str, row["shape"]))
        if "why_not" in row:
            lines.append(f"{shape:18s} {row['label']:30s} not measured: {row['why_not']}")
            continue
        base = next((r for r in record["linear"] if r["shape"] == row["shape"] and r["arm"] == "plain"), row)
        parts = (row.get("kernels") or {}).get("classes_ms", {})
        text = ", ".join(f"{kind} {ms:.2f}" for kind, ms in parts.items() if ms > 0.01 * row["seconds"] * 1e3)
        lines.append(
            f"{shape:18s} {row['label']:30s} {row['seconds'] * 1e3:9.3f} ms {row['tflops']:7.2f} TFLOP/s "
            f"{row['seconds'] / base.get('seconds', row['seconds']):6.2f} times the plain one's time"
            + (f"   ms by kernels: {text}" if text else "")
        )
    judged = (record.get("verdict") or {}).get("arms", {})
    for arm, row in record["train"].items():
        if row.get("why_not"):
            lines.append(f"{arm:18s} not trained: {row['why_not']}")
            continue
        gap = judged.get(arm)
        words = f"gap {gap['value']:8.4f} %, {gap['word']}" if gap else "the baseline"
        last = list(row["heldout"].values())[-1]
        lines.append(f"{arm:18s} {row['rate']:12,.0f} tokens/s   held-out loss {last:.4f}   {words}")
    if record.get("verdict"):
        lines.append(f"# {record['verdict']['word']}: {record['verdict']['sentence']}")
    lines += [f"# failed: {entry['what']}: {entry['error']}" for entry in record["failed"]]
    return "\n".join(lines)


def _describe(device: str, size: str, steps: int) -> dict[str, Any]:
    """What a record begins with."""
    import torch

    from labkit.comm.ranks import of_this_machine, under_torchrun
    from labkit.record.benchmark import about

    ranks = int(os.environ["WORLD_SIZE"]) if under_torchrun() else 1
    return {
        **about(KIND, device),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "nodes": ranks // of_this_machine(ranks),
        "device": device,
        "transport": "nccl" if device == "cuda" else "gloo" if ranks > 1 else "none",
        "size": size,
        "steps": steps,
        "linear": [],
        "train": {},
        "verdict": None,
        "failed": [],
    }


def _device(requested: str) -> str:
    import torch

    if requested not in ("auto", "cpu", "cuda"):
        raise LabError(f"--device is auto, cpu or cuda, not {requested!r}.")
    if requested == "cuda" and not torch.cuda.is_available():
        raise LabError("--device cuda, and torch sees no GPU here.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if requested == "auto" else requested


def _choose(words: str, of: tuple[str, ...], what: str) -> list[str]:
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names:
        if name not in of:
            raise LabError(f"there is no {what} {name!r}: choose of {', '.join(of)}.")
    return names


def _shapes(words: str) -> list[Any]:
    from labkit.crossover.grid import Shape

    found = []
    for word in words.split(","):
        numbers = word.strip().split("x")
        if len(numbers) != 3 or not all(number.isdigit() and int(number) > 0 for number in numbers):
            raise LabError(f"{word!r} is no shape: write tokens x inputs x outputs, 4096x4096x4096 for instance.")
        found.append(Shape(*map(int, numbers)))
    return found


def _failed(record: dict[str, Any], what: str, error: BaseException) -> None:
    from labkit.record.clean import scrub

    record["failed"].append({"what": what, "error": scrub(f"{type(error).__name__}: {error}")[:2000]})


def _save(record: dict[str, Any], out: str | None, leader: bool) -> None:
    """What was measured is kept, whatever comes next."""
    if out and leader:
        from labkit.record.benchmark import save

        save(record, Path(out), indent=None)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status: 0, or 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="week16_fp8.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, by comma")
    add("--shapes", default=None, help="tokens x inputs x outputs, by comma")
    add("--arms", default=None, help="FP8 arms by comma; default all that run here")
    add("--size", default=None, help="of the trained decoder: tiny or small")
    add("--steps", type=int, default=None, help="of each training")
    add("--budget", type=float, default=0.2, help="seconds of timed calls for one arm at one shape, about")
    add("--out", default=None, help="file for the record")
    a = parser.parse_args(argv)
    record = run_bench(a.device, a.parts, a.shapes, a.arms, a.size, a.steps, a.budget, a.out)
    return int(bool(record["failed"]))


if __name__ == "__main__":
    run_command("bench", main)
