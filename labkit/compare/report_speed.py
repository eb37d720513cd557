"""What the page says about speed, time and money: plain rows for the template, from run.json's results alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.record.kernels import CLASSES
from labkit.record.read import RunData

TONES = {"faster": "pass", "slower": "fail", "same": "no-power", "incomplete": "incomplete"}
WORDS = {"faster": "Faster", "slower": "Slower", "same": "No difference", "incomplete": "Incomplete"}
CATEGORIES = ("weights", "gradients", "optimizer", "activations and the rest", "peak")
LONGEST = 10  # kernels shown for each arm


def speed_of(data: RunData) -> dict[str, Any]:
    """{} if the comparison timed nothing, else what the template's speed section shows."""
    speed = _dict(_dict(data.run.get("results")).get("speed"))
    rows, verdict = _dict(speed.get("arms")), _dict(speed.get("verdict"))
    if not verdict:
        return {}
    word = verdict.get("word") if verdict.get("word") in WORDS else "incomplete"
    profiled = {name: row for name, row in rows.items() if _dict(row.get("kernels")).get("span_ms")}
    shares = next((list(row["mfu"]) for row in rows.values() if row.get("mfu")), [])
    return {
        "word": WORDS[word],
        "tone": TONES[word],
        "sentence": verdict.get("sentence", ""),
        "reasons": verdict.get("reasons") or [],
        "next": verdict.get("next") or [],
        "rows": [_row(name, row, verdict) for name, row in rows.items()],
        "categories": CATEGORIES,
        "shares": shares,
        "note": next((row.get("mfu_note") for row in rows.values()), ""),
        "classes": CLASSES,
        "profiled": [_profile(row) for row in profiled.values()],
    }


def _row(name: str, row: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    ratio, memory = _dict(_dict(verdict.get("ratios")).get(name)), _dict(row.get("memory"))
    rates = _dict(row.get("flops_per_s"))
    return {
        "label": row["label"],
        "role": row["role"],
        "rate": f"{row['tokens_per_s']:,.0f}",
        "baseline": _times(ratio.get("baseline")),
        "library": _times(ratio.get("library")),
        "step": f"{1e3 * row['step_p50']:,.1f}",
        "low": f"{1e3 * row['step_p10']:,.1f}",
        "high": f"{1e3 * row['step_p90']:,.1f}",
        "steps": row["steps"],
        "batch": f"{row['batch']} x {row['seq_len']:,}",
        "causal": _number(rates.get("causal", 0) / 1e12),
        "full": _number(rates.get("full", 0) / 1e12),
        "mfu": {what: f"{100 * share:.1f}" for what, share in _dict(row.get("mfu")).items()},
        "skipped": row.get("skipped", 0),
        "converted": row.get("converted"),
        "memory": {kind: _number(memory[kind] / 2**30) for kind in CATEGORIES if kind in memory},
    }


def _profile(row: Mapping[str, Any]) -> dict[str, Any]:
    kernels = row["kernels"]
    span, classes, seen = kernels["span_ms"], kernels["classes_ms"], _dict(kernels.get("evidence"))
    told = [
        what
        for what, there in (
            ("FP8 products", seen.get("fp8_gemm")),
            ("BF16 products", seen.get("bf16_gemm")),
            ("casts", seen.get("quantize")),
        )
        if there
    ]
    return {
        "label": row["label"],
        "span": f"{span:,.1f}",
        "hidden": kernels.get("hidden_communication_ms") or 0.0,
        "cells": [f"{classes.get(kind, 0):,.1f}" for kind in CLASSES],
        "percent": [f"{100 * classes.get(kind, 0) / span:.0f} %" for kind in CLASSES],
        "evidence": ", ".join(told) or "no kernel of a known class",
        "top": [
            {"name": k["name"], "class": k["class"], "ms": f"{k['ms']:,.2f}", "calls": f"{k['calls']:,.0f}"}
            for k in kernels.get("top", [])[:LONGEST]
        ],
    }


def calls_of(data: RunData) -> list[dict[str, Any]]:
    """One entry a call of `lab compare`: minutes and money, predicted and measured, arm by arm. Calls that ran nothing
    are left out."""
    out = []
    for call in _dict(data.run.get("results")).get("calls") or []:
        items = [item for item in call.get("items") or [] if isinstance(item, dict)]
        done = [item for item in items if item.get("measured_s") is not None]
        ended = call.get("ended", True)
        if not items and ended:
            continue
        price = call.get("price_per_hour")
        out.append(
            {
                "limit": call.get("minutes"),
                "price": price,
                "ended": ended,
                "predicted": sum(i["predicted_s"] for i in done) / 60,
                "measured": call.get("seconds", 0.0) / 60,
                "cost": call.get("cost"),
                "predicted_cost": sum(i["predicted_s"] for i in done) / 3600 * price if price else None,
                "left": [f"{i['label']} ({i['part']})" for i in items if i.get("left", i.get("measured_s") is None)],
                "items": [
                    {
                        "label": i["label"],
                        "part": i["part"],
                        "predicted": f"{i['predicted_s'] / 60:.1f}",
                        "measured": f"{i['measured_s'] / 60:.1f}",
                    }
                    for i in done
                ],
            }
        )
    return out


def _number(value: float) -> str:
    """With one decimal; two digits where that would be nothing, as on a CPU."""
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}
