"""What the speed part says at its end: a row an arm from the folders speed/NAME, the verdict, the tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from labkit.compare.arms import Preset
from labkit.compare.speed_verdict import judge_speed
from labkit.errors import LabError
from labkit.model.flops import flops_per_token
from labkit.record.kernels import CLASSES
from labkit.record.measure import efficiency
from labkit.record.read import RunData, read_run
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

GIB = 2**30


def speed_results(preset: Preset, out: Path, missing: Mapping[str, str], left: Mapping[str, str]) -> dict[str, Any]:
    """{"arms": {name: row}, "verdict": {...}} from the record; missing, left: arm -> why it has no result."""
    rows = {}
    for name in preset.speed.arms:
        try:
            data = read_run(out / "speed" / name)
        except LabError:
            continue
        if data.status == "finished" and (data.run.get("results") or {}).get("speed"):
            rows[name] = row_of(data, preset, name)

    def by_label(why: Mapping[str, str]) -> dict[str, str]:
        return {
            preset.arms[name].label: text
            for name, text in why.items()
            if name in preset.speed.arms and name not in rows
        }

    return {"arms": rows, "verdict": judge_speed(rows, by_label(missing), by_label(left))}


def row_of(data: RunData, preset: Preset, name: str) -> dict[str, Any]:
    """One arm's numbers, plain values. tokens_step: one rank's; flops_per_s and mfu name convention and peak."""
    speed, run = data.run["results"]["speed"], data.run
    config = strict_validate(TrainConfig, run["config"], f"the record of {name}")
    world = (run.get("world") or {}).get("size") or 1
    gpus = (run.get("hardware") or {}).get("gpus") or []
    on_gpu = str((run.get("world") or {}).get("device", "")).startswith("cuda")
    flops = {
        kind: flops_per_token(config.resolved_model, config.seq_len, causal=kind == "causal")
        for kind in ("causal", "full")
    }
    told = efficiency(speed["tokens_per_s"], flops, gpus[0].get("name") if on_gpu and gpus else None, world).to_json()
    evidence = run["results"].get("evidence") or {}
    return {
        "label": preset.arms[name].label,
        "role": preset.arms[name].role,
        "library": "plain" if config.precision.backend in ("bf16", "fp32") else config.precision.backend,
        "attention": config.attention,
        "batch": config.batch_size,
        "seq_len": config.seq_len,
        "ranks": world,
        "tokens_step": config.batch_size * config.seq_len // world,
        **{
            key: speed[key]
            for key in (
                "tokens_per_s",
                "mean_tokens_per_s",
                "step_p10",
                "step_p50",
                "step_p90",
                "steps",
                "warmup",
                "window_s",
                "memory",
                "kernels",
            )
        },
        "skipped": len(run["results"].get("skipped") or []),
        "fused": config.precision.fused,
        "converted": 0 if config.precision.backend in ("bf16", "fp32") else evidence.get("converted"),
        "module_types": evidence.get("module_types"),
        "flops_per_s": told["flops_per_s"],
        "mfu": told["mfu"],
        "mfu_note": told["note"],
    }


HEADS = ("arm", "tokens/s", "x BF16", "x own BF16", "step ms", "spread %", "TFLOP/s causal", "TFLOP/s full", "peak GiB")


def cells(name: str, row: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[str]:
    """One arm's line under HEADS."""
    ratio = verdict["ratios"].get(name, {})
    spread = 100 * (row["step_p90"] - row["step_p10"]) / row["step_p50"] / 2
    rates = row["flops_per_s"]
    return [
        row["label"],
        f"{row['tokens_per_s']:,.0f}",
        _times(ratio.get("baseline")),
        _times(ratio.get("library")),
        f"{1e3 * row['step_p50']:,.1f}",
        f"{spread:.1f}",
        f"{rates['causal'] / 1e12:,.1f}",
        f"{rates['full'] / 1e12:,.1f}",
        f"{row['memory']['peak'] / GIB:.1f}",
    ]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """For the terminal: the rates, and the milliseconds if any arm was profiled."""
    rows, verdict = results["arms"], results["verdict"]
    rates = _table(("arm", "tokens/s", "x\nBF16", "x own\nBF16", "ms a\nstep", "+-\n%", "TFLOP/s\ncausal", "GiB"))
    for name, row in rows.items():
        label, rate, base, own, step, spread, causal, _, peak = cells(name, row, verdict)
        rates.add_row(label, rate, base, own, step, spread, causal, peak)
    out = [rates]
    if any(row["kernels"] for row in rows.values()):
        time = _table(
            [
                "ms a step",
                "GEMM\nbf16",
                "GEMM\nfp8",
                "cast",
                "atten-\ntion",
                "norm,\nelem.",
                "opti-\nmizer",
                "comm.",
                "other",
                "idle",
            ]
        )
        for row in rows.values():
            if row["kernels"]:
                time.add_row(row["label"], *(f"{row['kernels']['classes_ms'].get(kind, 0):,.1f}" for kind in CLASSES))
        out.append(time)
    return out


def markdown(results: Mapping[str, Any]) -> str:
    """The same two tables as Markdown."""
    rows, verdict = results["arms"], results["verdict"]
    parts = [_markdown(HEADS, [cells(name, row, verdict) for name, row in rows.items()])]
    profiled = [row for row in rows.values() if row["kernels"]]
    if profiled:
        parts.append(
            _markdown(
                ["ms a step", *CLASSES],
                [
                    [row["label"], *(f"{row['kernels']['classes_ms'].get(kind, 0):,.1f}" for kind in CLASSES)]
                    for row in profiled
                ],
            )
        )
    return "\n\n".join(parts)


def _markdown(heads: Any, rows: list[list[str]]) -> str:
    lines = [list(heads), ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _table(heads: Any) -> Table:
    out = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, head in enumerate(heads):
        out.add_column(head, justify="right" if i else "left", no_wrap=bool(i))  # names fold, numbers are not cut
    return out


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
