"""The numbers that results/README.md quotes, taken from the record there when `lab results` writes it.

what: "attention" or "block"; who: a contender of the bench; N: ranks. Milliseconds, unless a name says otherwise.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from labkit.compare.terminal import markdown_table
from labkit.errors import LabError
from labkit.record.plotting import Picture
from week15_tp_attention.given import pictures as drawing
from week15_tp_attention.given import records
from week15_tp_attention.given.blocks import Shape


@cache
def record() -> dict[str, Any]:
    found = records.recorded()
    if found is None:
        raise LabError("there is no record of GPUs in week15_tp_attention/results")
    return found


def row(what: str, who: str, N: int) -> dict[str, Any]:
    return next(r for r in record()["rows"] if (r["what"], r["contender"], r["N"]) == (what, who, N))


def ms(what: str, who: str, N: int = 2) -> float:
    return 1e3 * row(what, who, N)["seconds"]


def rate(what: str) -> float:
    """TFLOP/s of one rank: all of the layer's flops over all of its time."""
    return Shape(**record()["shape"]).flops(what) / ms(what, "plain", 1) / 1e9


def percent(what: str, who: str, N: int = 2) -> float:
    """Efficiency, t(1) / (N t(N)), with t(1) the plain layer's."""
    return 100 * ms(what, "plain", 1) / (N * ms(what, who, N))


def derived(what: str, N: int = 2) -> float:
    """The same as derived with nothing hidden, from one rank's time and one measured all-reduce."""
    seconds = records.predicted(record(), what, N)
    assert seconds is not None
    return 100 * records.seconds(record(), what, "plain", 1) / (N * seconds)  # type: ignore[operator]  # it is there


def wire(N: int = 2) -> float:
    """GB/s of one all-reduce of the layer's message, in ring bytes."""
    return records.wire(record(), N) / 1e9


def again() -> dict[str, Any]:
    """The record of another host, whose processor launches kernels slowly."""
    return records.load(records.RESULTS / "four" / "h200-4.json")


def more_ranks() -> str:
    """What that host measured on two and four GPUs, beside the first record's two."""
    found, rows = again(), []
    for what in ("attention", "block"):
        for who in ("plain", "overlapped, backward", "overlapped", "collective matmul", "te.Linear"):
            shares = [
                records.efficiency(record(), what, who, 2),
                *(records.efficiency(found, what, who, n) for n in (2, 4)),
            ]
            rows.append([f"{what}, {who}", *("" if share is None else f"{share:.1%}" for share in shares)])
    return markdown_table(["efficiency", "above, two", "another host, two", "four"], rows)


def percent_again(who: str, N: int = 2) -> float:
    """Efficiency of that host's attention layer."""
    share = records.efficiency(again(), "attention", who, N)
    assert share is not None
    return 100 * share


def row_again(who: str, N: int = 2) -> dict[str, Any]:
    """That host's row of the attention layer."""
    return next(r for r in again()["rows"] if (r["what"], r["contender"], r["N"]) == ("attention", who, N))


def idle_again(who: str) -> float:
    """Milliseconds of a step of that host's attention layer on two GPUs in which the GPU is idle."""
    return row_again(who)["parts"]["classes_ms"]["idle"]


def spent(what: str, who: str, kind: str, N: int = 2) -> float:
    return row(what, who, N)["parts"]["classes_ms"][kind]


def hidden(what: str, who: str, N: int = 2) -> float:
    return row(what, who, N)["parts"]["hidden_communication_ms"]


def on_the_wire(what: str, who: str, N: int = 2) -> float:
    """All of the time in which NCCL's kernels run, hidden or not."""
    return spent(what, who, "communication", N) + hidden(what, who, N)


def layers(what: str, N: int = 2) -> str:
    """A line for each contender, the fastest first; FP8 apart.
    Spread: the longest loop less the shortest, of the median.
    What is kept is reported of the block alone: in this record
    an attention layer's own x, where it is a slice, was counted with the whole memory that it is a slice of."""
    rows = [r for r in record()["rows"] if r["what"] == what and r["N"] == N and "FP8" not in r["contender"]]
    head = ["", "ms", "spread", "efficiency", "kept for backward, MB", "messages: exposed, ms", "hidden, ms", "error"]
    lines = [
        [
            r["contender"],
            f"{1e3 * r['seconds']:.2f}",
            f"{100 * r['spread']:.1f} %",
            f"{percent(what, r['contender'], N):.1f} %",
            f"{r['kept_bytes'] / 1e6:.0f}",
            f"{r['parts']['classes_ms']['communication']:.2f}",
            f"{r['parts']['hidden_communication_ms']:.2f}",
            f"{r['error']:.4f}",
        ]
        for r in sorted(rows, key=lambda r: r["seconds"])
    ]
    if what == "attention":
        head, lines = head[:4] + head[5:], [line[:4] + line[5:] for line in lines]
    return markdown_table(head, lines)


def classes(what: str = "block", N: int = 2) -> str:
    """Where a step's time goes, by kernels: one rank's divided by N beside some contenders."""
    kinds = ("GEMM bf16", "attention", "norm and elementwise", "communication", "idle")
    whose = ("plain", "overlapped", "te.Linear", "torch async TP", "DTensor, sequence")
    lines = []
    for kind in kinds:
        one = f"{spent(what, 'plain', kind, 1) / N:.2f}"
        lines.append([kind, one, *(f"{spent(what, who, kind, N):.2f}" for who in whose)])
    lines.append(["hidden communication", "0.00", *(f"{hidden(what, who, N):.2f}" for who in whose)])
    return markdown_table(["ms a step", f"one rank's / {N}", *whose], lines)


def fp8(N: int = 2) -> str:
    """Transformer Engine's linears in BF16 and FP8, on one rank and on N."""
    whose = ("te.Linear", "te.Linear, FP8 delayed", "te.Linear, FP8 current")
    head = ["", "attention, 1 rank", f"{N} ranks", "block, 1 rank", f"{N} ranks", "loss against bf16"]
    gaps = record()["gap"]["gap"]
    lines = []
    for who in whose:
        times = [f"{ms(what, who, n):.2f}" for what in ("attention", "block") for n in (1, N)]
        arm = who.removeprefix("te.Linear, ")
        lines.append([who, *times, f"{100 * gaps[arm]:+.3f} %" if arm in gaps else ""])
    lines.append(["bf16 twin", "", "", "", "", f"{100 * gaps['bf16 twin']:+.3f} %"])
    return markdown_table(head, lines)


def pipeline() -> str:
    head = [
        "schedule",
        "micro-batches",
        "ms",
        "bubble",
        "derived",
        "peak memory beside weights, GB, stage 0",
        "stage 1",
    ]
    lines = [
        [
            r["schedule"],
            str(r["M"]),
            f"{1e3 * r['seconds']:.0f}",
            f"{100 * r['measured']:.1f} %",
            f"{100 * r['derived']:.1f} %",
            *(f"{peak / 1e9:.1f}" for peak in r["peak_bytes"][:2]),
        ]
        for r in record()["pipeline"]
    ]
    return markdown_table(head, lines)


def gpipe_slower(M: int) -> float:
    """By how many per cent GPipe is slower than 1F1B with so many micro-batches."""
    gpipe, other = (
        next(r["seconds"] for r in record()["pipeline"] if r["M"] == M and r["schedule"] == schedule)
        for schedule in ("gpipe", "one_f_one_b")
    )
    return 100 * (gpipe / other - 1)


def pictures(folder: Path) -> dict[str, Picture]:
    """By name."""
    both = (drawing.efficiency(record(), what, folder=folder) for what in ("block", "attention"))
    found = [*both, drawing.measured_pipeline(record(), folder=folder)]
    return {picture.name: picture for picture in found if picture is not None}
