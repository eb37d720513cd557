"""The numbers that results/README.md quotes, taken from the record there when `lab results` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.record.plotting import Picture
from week14_fsdp.given import pictures, records
from week14_fsdp.overlap import exposed

H200 = records.recorded()


def against_torch() -> str:
    """The reference's trainers beside torch's."""
    rows = []
    for part, own, other in (("fsdp", "fsdp", "fsdp2"), ("ddp", "ddp", "torch-ddp")):
        mine, theirs = (records.of(H200, part, name)["tokens_per_s"] for name in (own, other))
        last = [records.of(H200, part, name)["losses"][-1] for name in (own, other)]
        rows.append(
            [own, f"{mine:,.0f}", other, f"{theirs:,.0f}", f"{mine / theirs:.1%}", f"{last[0]:.4f} / {last[1]:.4f}"]
        )
    return markdown_table(["ours", "tokens/s a GPU", "torch's", "tokens/s a GPU", "share", "loss of step 6"], rows)


def peaks() -> str:
    rows = [
        [name, f"{row['predicted_bytes'] / 1e9:.2f}", f"{row['peak_bytes'] / 1e9:.2f}", f"{row['off']:+.1%}"]
        for name, row in records.of(H200, "memory").items()
        if isinstance(row, dict)
    ]
    return markdown_table(["", "predicted by 14.1, GB", "peak, GB", "off"], rows)


def exposures() -> str:
    """What 14.5 reads in the traces beside this page."""
    rows = []
    for part, size in (("traces", "1.14 B"), ("large", "8 B")):
        for name, entry in records.of(H200, part).items():
            if isinstance(entry, dict):
                trace = records.trace(H200, name, part)
                found = exposed(trace)
                numbers = (trace["stepSeconds"] * 1e6, *found[:3])
                rows.append([f"{size} {name}", *(f"{value / 1e3:.1f}" for value in numbers)])
    return markdown_table(["", "step, ms", "computing", "communication", "exposed"], rows)


def scaling(file: str = "h200-2.json") -> str:
    rows = []
    for name, runs in records.of(records.load(records.RESULTS / file), "scaling").items():
        for row in runs if isinstance(runs, list) else ():
            share = row["tokens_per_s"] / runs[0]["tokens_per_s"]
            rows.append([name, row["kind"], f"{row['tokens']:,}", f"{row['tokens_per_s']:,.0f}", f"{share:.1%}"])
    return markdown_table(["", "run", "tokens a GPU", "tokens/s a GPU", "efficiency"], rows)


def prefetch(name: str = "fsdp2", part: str = "traces") -> str:
    return records.prefetched(H200, part, name)


def gains(part: str = "traces") -> list[float]:
    """What the step gained of what prefetch hid, by rank, in the traces that the benchmark itself took."""
    found = []
    for name, entry in records.of(H200, part).items():
        off = records.of(H200, part).get(f"{name}-no-prefetch")
        for on, without in zip(entry["by_rank"], off["by_rank"]) if off else ():
            found.append((without["step"] - on["step"]) / (without["exposed"] - on["exposed"]))
    return found


def hidden() -> str:
    return records.hidden_cost(H200)


def drawn(folder: Path) -> Picture:
    return pictures.efficiency(records.efficiency(H200), folder)


def third_logits() -> float:
    """GB of one more tensor of the logits' size in FP32."""
    vocab = records.sizes_of(H200)[-1]
    return records.tokens_of(H200) * vocab * 4 / 1e9


def sizes() -> dict[str, Any]:
    assert H200 is not None
    return {key: H200[key] for key in ("ranks", "sequences", "seq_len")}
