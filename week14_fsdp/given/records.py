"""Records of week 14's benchmark: JSON files, and the table that sums one up. results/ holds those of real machines.

A record is one file:

    kind "fsdp", started, command, hardware, hardware_name, versions, environment (NCCL's variables)
    ranks, nodes, device, transport, size (of the decoder), sequences, seq_len (of a rank's micro-batch)
    parts    by name, see week14_fsdp/bench.py; in each "seconds", and "failed" or "left out" with a sentence where
             there is nothing else. A program's entry: {tokens_per_s (of a rank, in the median window), step_seconds (of
             each window), tokens (of a rank's step)}, and losses of the first steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from labkit.comm.ranks import of_this_machine
from labkit.errors import LabError
from labkit.record import benchmark
from labkit.record.benchmark import save as save

RESULTS = Path(__file__).parents[1] / "results"


def describe(options: Any, plan: Any, leader: bool) -> dict[str, Any]:
    """What a record begins with, its `parts` still empty."""
    return {
        **benchmark.about("fsdp", plan.device, leader),
        "ranks": options.ranks,
        "nodes": options.ranks // of_this_machine(options.ranks),
        "device": plan.device,
        "transport": "nccl" if plan.device == "cuda" else "gloo",
        "size": plan.size,
        "sequences": plan.sequences,
        "seq_len": plan.seq_len,
        "parts": {},
    }


def load(path: str | Path) -> dict[str, Any]:
    """Read a record. LabError if the file is missing or is none."""
    return benchmark.load(path, "fsdp", "record of this benchmark")


def recorded(folder: Path = RESULTS) -> dict[str, Any] | None:
    """The newest record of GPUs in results/, or None where there is none yet."""
    found = [load(path) for path in sorted(folder.glob("*.json"))]
    of_gpus = [record for record in found if record["device"] == "cuda"]
    return max(of_gpus, key=lambda record: record["started"], default=None)


def rate(record: dict[str, Any], part: str, name: str) -> float | None:
    """Tokens a second and rank of a program; None if it was not measured."""
    entry = record["parts"].get(part, {}).get(name)
    return entry["tokens_per_s"] if isinstance(entry, dict) and "tokens_per_s" in entry else None


# ---- what the notebook shows of the record of GPUs


def of(record: dict[str, Any] | None, *keys: str) -> Any:
    """An entry of the record's parts. LabError with a sentence where it was not measured."""
    if record is None:
        raise LabError("there is no record of GPUs in week14_fsdp/results: run the benchmark on GPUs first.")
    found: Any = record["parts"]
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise LabError(f"the record of {record['started'][:10]} has no {' / '.join(keys)}: that was not measured.")
        found = found[key]
    return found


def sizes_of(record: dict[str, Any] | None) -> list[int]:
    """Task 14.1's `Sizes` of the decoder that was measured, in BF16."""
    return of(record, "memory", "fsdp", "sizes")


def tokens_of(record: dict[str, Any] | None) -> int:
    """Tokens of a rank's micro-batch."""
    of(record, "memory")
    assert record is not None
    return record["sequences"] * record["seq_len"]


def peaks(record: dict[str, Any] | None) -> dict[tuple[str, int], float]:
    """{(stage, ranks): bytes} of the peaks that were measured in BF16."""
    found = of(record, "memory")
    assert record is not None
    return {
        (found[name]["stage"], record["ranks"]): found[name]["peak_bytes"]
        for name in ("ddp", "fsdp")
        if "peak_bytes" in found.get(name, {})
    }


def memory_table(record: dict[str, Any] | None, predict: Callable[[Sequence[int], str, int, int, int], Any]) -> str:
    """What task 14.1 predicts beside what was measured. predict(sizes, stage, N, tokens, itemsize) -> its `Memory`."""
    lines = [f"{'measured on GPUs':18s} {'in':>6s} {'predicted':>10s} {'peak':>8s}   off"]
    for name, row in of(record, "memory").items():
        if isinstance(row, dict) and "peak_bytes" in row:
            assert record is not None
            found = predict(row["sizes"], row["stage"], record["ranks"], tokens_of(record), row["itemsize"]).total
            how = "BF16" if row["itemsize"] == 2 else "FP32"
            lines.append(
                f"{name:18s} {how:>6s} {found / 1e9:7.2f} GB {row['peak_bytes'] / 1e9:5.2f} GB  "
                f"{found / row['peak_bytes'] - 1:+.1%}"
            )
    return "\n".join(lines)


def bucket_curve(record: dict[str, Any] | None) -> list[tuple[float, float]]:
    """(MiB of a bucket, milliseconds exposed) as measured; [] without a record."""
    rows = record["parts"].get("buckets", {}).get("rows", []) if record else []
    return [(row["mib"], row["exposed"] / 1e3) for row in rows if "exposed" in row]


def trace(record: dict[str, Any] | None, name: str, part: str = "traces") -> dict[str, Any]:
    """A step's trace, of those beside the record."""
    from week14_fsdp.overlap import load as load_trace

    return load_trace(RESULTS / of(record, part, name, "file"))


def prefetched(record: dict[str, Any] | None, part: str, name: str) -> str:
    """What prefetch gave by the traces of one step, and what it took: exposed messages, computing, the step."""
    on, off = (trace(record, which, part) for which in (name, f"{name}-no-prefetch"))
    from week14_fsdp.overlap import exposed

    with_it, without = exposed(on), exposed(off)
    hidden, shorter = without.exposed - with_it.exposed, (off["stepSeconds"] - on["stepSeconds"]) * 1e6
    return (
        f"prefetch hides {hidden / 1e3:.1f} ms of messages, the kernels that compute take "
        f"{(with_it.computing - without.computing) / 1e3:.1f} ms longer, and the step is {shorter / 1e3:.1f} ms shorter, "
        f"{100 * shorter / hidden:.0f} % of what is hidden"
    )


def hidden_cost(record: dict[str, Any] | None) -> str:
    """Data parallel's step with messages, all but hidden, beside the same step without."""
    on, off = of(record, "ddp", "with messages"), of(record, "ddp", "without messages")
    a, b = median(on["step_seconds"]), median(off["step_seconds"])
    said = []
    for name, row in (("with", on), ("without", off)):
        clocks = [c for c in row["clocks"] if c]
        if clocks:
            mhz, watts = median(c["sm_mhz"] for c in clocks), median(c["watts"] for c in clocks)
            said.append(f"{name} {mhz:.0f} MHz at {watts:.0f} W")
    beside = f" ({', '.join(said)})" if said else ""
    return (
        f"data parallelism a step takes {a * 1e3:.1f} ms with messages, {b * 1e3:.1f} without: {a / b - 1:.1%} longer"
        f"{beside}"
    )


def scaling_table(record: dict[str, Any] | None) -> str:
    """Weak and strong scaling as measured. Efficiency: tokens a second and GPU, divided by one GPU's alone."""
    lines = [f"{'':8s}{'':10s} GPUs  tokens a GPU   ms a step   tokens/s a GPU   efficiency"]
    for name, rows in of(record, "scaling").items():
        if isinstance(rows, list):
            for row in rows:
                ms = row["tokens"] / row["tokens_per_s"] * 1e3
                share = row["tokens_per_s"] / rows[0]["tokens_per_s"]
                lines.append(
                    f"{name:8s}{row['kind']:10s} {row['ranks']:4d}  {row['tokens']:12,d}   {ms:9.1f}   "
                    f"{row['tokens_per_s']:14,.0f}   {share:10.1%}"
                )
    return "\n".join(lines)


def lost(record: dict[str, Any] | None, name: str, kind: str) -> list[tuple[str, float]]:
    """Where the per cents of a scaling run went: what is left, and each loss, in % of the rate of one GPU alone.

    weak: exposed messages, as task 14.5 reads them in this program's trace, and the rest: kernels that take longer
    beside messages, and copies that only sharding needs. strong: what weak scaling loses, and what does not shrink with
    the tokens: a step of half the tokens takes longer than half a step."""
    rows = {row["kind"]: row for row in of(record, "scaling", name)}
    left = {k: 100 * row["tokens_per_s"] / rows["one rank"]["tokens_per_s"] for k, row in rows.items()}
    if kind == "strong":
        return [
            ("left", left["strong"]),
            ("as in weak scaling", 100 - left["weak"]),
            ("what half the tokens do not halve", left["weak"] - left["strong"]),
        ]
    own = of(record, "traces", name)["by_rank"][0]
    exposed = 100 * own["exposed"] / own["step"]
    return [("left", left["weak"]), ("exposed messages", exposed), ("the rest", 100 - left["weak"] - exposed)]


def efficiency(record: dict[str, Any] | None) -> dict[str, list[tuple[str, float]]]:
    """`lost` of each run on several GPUs."""
    names = {"fsdp2": "fully_shard", "fsdp": "14.4"}
    return {f"{text}, {kind}": lost(record, name, kind) for name, text in names.items() for kind in ("weak", "strong")}


def table(record: dict[str, Any]) -> str:
    """The short table."""
    of = f"{record['ranks']} ranks, {record['transport']}, {record['hardware_name']}"
    lines = [f"\n{record['size']}, {record['sequences']} x {record['seq_len']} tokens a rank, {of}"]
    for part, own, other in (("fsdp", "fsdp", "fsdp2"), ("ddp", "ddp", "torch-ddp")):
        mine, theirs = rate(record, part, own), rate(record, part, other)
        if mine and theirs:
            lines.append(f"{own:22s} {mine:10,.0f} tokens/s a rank   {mine / theirs:6.1%} of {other}'s {theirs:,.0f}")
    for name in ("fsdp, no prefetch", "fsdp2, no prefetch"):
        if off := rate(record, "fsdp", name):
            lines.append(f"{name:22s} {off:10,.0f} tokens/s a rank")
    for name, row in record["parts"].get("memory", {}).items():
        if isinstance(row, dict):
            measured = f"{row['peak_bytes'] / 1e9:7.3f} GB, off by {row['off']:+.1%}" if "off" in row else "none here"
            lines.append(f"memory of {name:12s} predicted {row['predicted_bytes'] / 1e9:7.3f} GB, measured {measured}")
    for name, row in record["parts"].get("traces", {}).items():
        if isinstance(row, dict):
            first = row["by_rank"][0]
            lines.append(
                f"trace of {name:16s} step {first['step'] / 1e3:7.1f} ms, computing {first['computing'] / 1e3:7.1f}, "
                f"communication {first['communication'] / 1e3:6.1f}, exposed {first['exposed'] / 1e3:6.1f}"
            )
    for name, rows in record["parts"].get("scaling", {}).items():
        for row in rows if isinstance(rows, list) else ():
            lines.append(
                f"{name:6s} {row['kind']:9s} {row['ranks']} rank(s) {row['tokens_per_s']:10,.0f} tokens/s a rank"
            )
    for row in record["parts"].get("buckets", {}).get("rows", ()):
        hidden = f", exposed {row['exposed'] / 1e3:.1f} ms" if "exposed" in row else ""
        step = min(row["step_seconds"]) * 1e3
        lines.append(f"buckets of {row['mib']:>6} MiB: {row['buckets']:4d}, step {step:7.1f} ms{hidden}")
    for name in ("with messages", "without messages"):
        row = record["parts"].get("ddp", {}).get(name)
        if row:
            clock = next((c for c in row["clocks"] if c), None)
            said = f", {clock['sm_mhz']:.0f} MHz, {clock['watts']:.0f} W" if clock else ""
            lines.append(f"ddp {name:17s} {min(row['step_seconds']) * 1e3:8.1f} ms a step{said}")
    for name, part in record["parts"].items():
        if problem := part.get("failed") or part.get("left out"):
            lines.append(f"{name}: {'failed' if 'failed' in part else 'left out'}: {problem}")
    return "\n".join(lines)
