"""The speed part at its end: a row an arm, the tables, and the verdict in words: is FP8 faster here, against what,
where does its time go, and what to try next.

FP8's gain is told against two yardsticks, since one alone misleads: against **compiled BF16**, which is what a user
would otherwise run; and against **the same library's BF16**, which tells FP8's own share from that of the library's
fused kernels.

Is a difference more than noise? Each arm's window has a spread, the 10th to the 90th percentile of its steps. A ratio
counts when it is further from 1 than both half-spreads together. This speaks of one machine in one hour, not of all
H100s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from labkit.compare.batches import told as told_tries
from labkit.compare.preset import Preset
from labkit.compare.results import found_run
from labkit.compare.terminal import markdown_table, rich_table, shown
from labkit.model.flops import flops_per_token
from labkit.precision.config import PLAIN
from labkit.record.kernels import CLASSES
from labkit.record.measure import efficiency
from labkit.record.read import RunData, as_dict, load_run
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

GIB = 2**30
WORTH = 1.1  # a gain below this is told as hardly worth the trouble
# A setting that one can type: wider matrices are another model's. {wider}: twice this one's width.
WIDER = "--model FILE, whose hidden is {wider:,} or more"
HARDLY = (
    "FP8 hardly pays at this size: it gains with the width of the matrices. Train a wider model ({how}), or stay with "
    "BF16."
)
CAST, NORMS = "casting takes {:.0%} of the step: ", "norms and elementwise work take {:.0%} of the step"
ATTENTION = "attention takes {:.0%} of the step and stays in BF16"
SHORTER = ", with cuDNN's kernel: shorter sequences (--set speed.train.seq_len=N) would leave more of the step to FP8"
# Where time goes, from which share of a step on it is worth a word, in which modules, and what to try.
TIPS = (
    ("idle", 0.04, "roomy", "the GPU waits for {:.0%} of the step: a larger batch gives it more to do at a time"),
    ("idle", 0.04, "short", "the GPU waits for {:.0%} of the step, short of memory: fewer sequences may be faster"),
    ("quantize/cast", 0.10, "fused", f"{CAST}less in a wider model ({{how}})"),
    ("quantize/cast", 0.10, "plain", f"{CAST}less with fused = true (te), or in a wider model ({{how}})"),
    ("attention", 0.15, "cudnn", f"{ATTENTION}{SHORTER}"),
    ("attention", 0.15, "torch", f"{ATTENTION}: --set train.attention=cudnn may be faster"),
    ("communication", 0.05, None, "{:.0%} of the step waits for other GPUs: a larger batch per GPU hides more of it"),
    ("norm and elementwise", 0.12, "fused", f"{NORMS}, in fused modules already: less in a wider model ({{how}})"),
    ("norm and elementwise", 0.12, "plain", f"{NORMS}: compile = true, or fused = true"),
    ("GEMM bf16", 0.12, None, "{:.0%} of the step are products left in BF16: a large head, or a long skip list"),
)
LARGEST = "Each arm ran at its largest batch{}: a user takes what fits."
UNLIKE = "The arms ran with different batches, as each label says: tokens/s are compared, not equal batches."
SHORT = "{label}: its allocator ran short {shortages} times in the window; fewer sequences may be faster."
PROFILED = "{label}: its profiled steps took {over:.0%} longer than those of the window; its idle time is of these."
ODD = 0.05  # by so much a profiled step may differ before its gaps tell nothing of the others: kernels keep their times
Row = Mapping[str, Any]
PER_THOUSAND = "ms per 1,000 tokens"  # of a GPU: the one unit of time, whatever an arm's batch
HEADS = (
    "arm",
    "tokens/s",
    "x BF16",
    "x own BF16",
    PER_THOUSAND,
    "spread %",
    "TFLOP/s causal",
    "TFLOP/s full",
    "peak GiB",
)
MEASURED = ("tokens_per_s", "mean_tokens_per_s", "step_p10", "step_p50", "step_p90", "steps", "warmup", "window_s")


def speed_results(preset: Preset, out: Path, missing: Mapping[str, str], left: Mapping[str, str]) -> dict[str, Any]:
    """{"arms": {name: row}, "verdict": {...}} from the folders speed/NAME; missing, left: arm -> why it has no
    result."""
    runs = {name: found_run(out / "speed" / name) for name in preset.timed}
    done = {name: run for name, run in runs.items() if run and run.status == "finished" and run.results.get("speed")}
    rows = {name: row_of(run, preset, name) for name, run in done.items()}
    lost = [name for name in (*missing, *left) if name in preset.timed and name not in rows]
    why = {preset.arms[name].label: {**missing, **left}[name] for name in lost}
    tries = as_dict(load_run(out)["results"].get("tries"))
    told = [f"{preset.arms[name].label}: {told_tries(tries[name])}." for name in rows if tries.get(name)]
    told += [SHORT.format(**row) for row in rows.values() if row["shortages"]]
    basis = name_batches(rows, largest=bool(preset.window().batch))
    verdict = judge_speed(rows, why, preset.format, preset.yardstick)
    verdict |= {"sentence": f"{verdict['sentence']} {basis}".strip(), "reasons": verdict["reasons"] + told}
    return {"arms": rows, "verdict": verdict}


def name_batches(rows: Mapping[str, dict[str, Any]], largest: bool) -> str:
    """Put each arm's sequences into its label, where they are not the same in all; returns what is then compared, ""
    where it needs no word."""
    sizes = {name: row["batch"] // row["ranks"] for name, row in rows.items()}
    told = {name: f"{size} sequence{'s' if size > 1 else ''}" for name, size in sizes.items()}
    if len(set(told.values())) < 2:
        return LARGEST.format(f", {next(iter(told.values()))}") if largest and told else ""
    for name, row in rows.items():
        row["label"] += f" with {told[name]}"
    return LARGEST.format("") if largest else UNLIKE


def efficiency_of(config: TrainConfig, tokens_per_s: float, gpu: str | None, ranks: int) -> Any:
    """What a rate means on this GPU, counting attention's FLOPs for the causal half and in full."""
    model, length = config.resolved_model, config.seq_len
    flops = {kind: flops_per_token(model, length, causal=kind == "causal") for kind in ("causal", "full")}
    return efficiency(tokens_per_s, flops, gpu, ranks)


def row_of(data: RunData, preset: Preset, name: str) -> dict[str, Any]:
    """One arm's numbers, plain values. tokens_step: one rank's; flops_per_s and mfu name convention and peak."""
    speed, world = data.results["speed"], as_dict(data.run.get("world"))
    config = strict_validate(TrainConfig, data.config, f"the record of {name}")
    ranks = world.get("size") or 1
    gpus = as_dict(data.run.get("hardware")).get("gpus") or []
    gpu = gpus[0].get("name") if gpus and str(world.get("device", "")).startswith("cuda") else None
    told = efficiency_of(config, speed["tokens_per_s"], gpu, ranks).to_json()
    evidence = data.results.get("evidence") or {}
    plain = config.precision.backend in PLAIN
    return {
        "label": preset.arms[name].label,
        "role": preset.arms[name].role,
        "library": "plain" if plain else config.precision.backend,
        "attention": config.attention,
        "batch": config.batch_size,
        "seq_len": config.seq_len,
        "ranks": ranks,
        "tokens_step": config.batch_size * config.seq_len // ranks,
        **{key: speed[key] for key in (*MEASURED, "memory", "kernels")},
        "taken_bytes": speed.get("taken_bytes"),
        "meter": speed.get("meter"),
        "shortages": speed.get("shortages"),
        "skipped": len(data.results.get("skipped") or []),
        "fused": config.precision.fused,
        "converted": 0 if plain else evidence.get("converted"),
        "width": config.resolved_model.d_model,
        "module_types": evidence.get("module_types"),
        "flops_per_s": told["flops_per_s"],
        "mfu": told["mfu"],
        "mfu_note": told["note"],
    }


# ---- the tables


def cells(name: str, row: Row, verdict: Row) -> list[str]:
    """One arm's line under HEADS."""
    ratio, rates = verdict["ratios"].get(name, {}), row["flops_per_s"]
    return [
        row["label"],
        f"{row['tokens_per_s']:,.0f}",
        shown(ratio.get("baseline"), "{:.2f}"),
        shown(ratio.get("library"), "{:.2f}"),
        f"{per_thousand(row, row['step_p50']):,.2f}",
        f"{100 * half_spread(row):.1f}",
        f"{rates['causal'] / 1e12:,.1f}",
        f"{rates['full'] / 1e12:,.1f}",
        f"{row['memory']['peak'] / GIB:.1f}" + (f" ({taken / GIB:.1f})" if (taken := row.get("taken_bytes")) else ""),
    ]


def per_thousand(row: Row, seconds: float) -> float:
    """Milliseconds that a GPU needs for 1,000 tokens, from its seconds for a step of the arm in this row."""
    return 1e3 * seconds * 1000 / row["tokens_step"]


def _profiled(rows: Mapping[str, Row]) -> list[list[str]]:
    """Milliseconds per 1,000 tokens by class of kernel, a line for each arm that was profiled."""
    return [
        [
            row["label"],
            *(f"{per_thousand(row, row['kernels']['classes_ms'].get(kind, 0) / 1e3):,.2f}" for kind in CLASSES),
        ]
        for row in rows.values()
        if row["kernels"]
    ]


def tables(results: Row, yardstick: str = "BF16") -> list[Table]:
    """For the terminal, in 80 columns: the rates, and the milliseconds if any arm was profiled."""
    rows = results["arms"]
    lines = [cells(name, row, results["verdict"]) for name, row in rows.items()]
    told = ("arm", "tokens/s", "x\nBF16", "x own\nBF16", "ms/1k\ntokens", "+-\n%", "TFLOP/s\ncausal", "GiB")
    heads = [head.replace("BF16", yardstick) for head in told]
    out = [rich_table(heads, [[*line[:7], line[8]] for line in lines])]
    if lines := _profiled(rows):
        kinds = ("GEMM\nbf16", "GEMM\nfp8", "cast", "atten-\ntion", "norm,\nelem.", "opti-\nmizer", "comm.")
        out.append(rich_table(("ms per 1,000\ntokens", *kinds, "other", "idle"), lines))
    return out


def markdown(results: Row, yardstick: str = "BF16") -> str:
    """The same two tables as Markdown."""
    rows = results["arms"]
    heads = [head.replace("BF16", yardstick) for head in HEADS]
    parts = [markdown_table(heads, [cells(name, row, results["verdict"]) for name, row in rows.items()])]
    if lines := _profiled(rows):
        parts.append(markdown_table([PER_THOUSAND, *CLASSES], lines))
    return "\n\n".join(parts)


def cost_sentence(rows: Mapping[str, Row], price: float | None) -> str:
    """What a billion tokens cost with each arm, the cheapest first; "" if nobody told the machine's price per hour."""
    if not price or not rows:
        return ""
    costs = sorted((price / 3600 * 1e9 / row["tokens_per_s"], row["label"]) for row in rows.values())
    told = ", ".join(f"{cost:,.2f} with {label}" for cost, label in costs)
    return f"At {price:,.2f} an hour, a billion tokens cost {told}."


# ---- the verdict


def half_spread(row: Row) -> float:
    """Half of the distance from the 10th to the 90th percentile of the step times, as a fraction of the median."""
    return (row["step_p90"] - row["step_p10"]) / row["step_p50"] / 2


def profiled_over(row: Row) -> float:
    """By which share the profiled steps took longer than the window's median step; 0 where none was profiled."""
    span = (row.get("kernels") or {}).get("span_ms")
    return span / 1000 / row["step_p50"] - 1 if span else 0.0


def compare_rates(row: Row, yardstick: Row) -> tuple[float, str]:
    """(ratio of tokens/s, "faster" / "slower" / "same")."""
    ratio = row["tokens_per_s"] / yardstick["tokens_per_s"]
    noise = half_spread(row) + half_spread(yardstick)
    return ratio, "same" if abs(ratio - 1) <= noise else "faster" if ratio > 1 else "slower"


def judge_speed(
    rows: Mapping[str, Row], missing: Mapping[str, str] | None = None, form: str = "FP8", yardstick: str = "BF16"
) -> dict[str, Any]:
    """The verdict over timed arms.

    rows: arm -> {label, role, library, tokens_per_s, step_p10, step_p50, step_p90, kernels, attention}; library:
    "plain" for nn.Linear, else the backend's name; kernels: a Breakdown as a dict, or None. missing: label -> why it
    has no result. form, yardstick: what candidates and baseline are called. Returns {word, sentence, reasons, next,
    ratios: {arm: {"baseline": r, "library": r}}}; word: faster, same, slower, incomplete.
    """
    out: dict[str, Any] = {"word": "incomplete", "sentence": "", "reasons": [], "next": [], "ratios": {}}
    base = next((r for r in rows.values() if r["role"] == "baseline"), None)
    fp8 = {arm: r for arm, r in rows.items() if r["role"] == "candidate"}
    out["reasons"] += [f"{label}: no result, {why}." for label, why in (missing or {}).items()]
    out["reasons"] += [PROFILED.format(**row, over=over) for row in rows.values() if (over := profiled_over(row)) > ODD]
    if base is None:
        base_told = "compiled BF16" if yardstick == "BF16" else yardstick
        out["sentence"] = f"No verdict on speed: {base_told} was not timed, and nothing is fast or slow without it."
        return out
    library_bf16 = {r["library"]: r for r in rows.values() if r["role"] == "reference"}
    words, against = {}, {}
    for arm, row in rows.items():
        if row is base:
            continue
        ratio, words[arm] = compare_rates(row, base)
        own = library_bf16.get(row["library"]) if arm in fp8 else None
        by_library = compare_rates(row, own)[0] if own else None
        out["ratios"][arm] = {"baseline": ratio, "library": by_library}
        told = f"{row['label']}: {row['tokens_per_s']:,.0f} tokens/s, {ratio:.2f} times {base['label']}"
        against[arm] = f"{ratio:.2f} times {base['label']} ({base['tokens_per_s']:,.0f})"
        if own:
            told += f" and {by_library:.2f} times {own['label']}"
            against[arm] += f" and {by_library:.2f} times {own['label']} ({own['tokens_per_s']:,.0f})"
        told += {"same": ", no more than the noise of the steps", "slower": ": slower", "faster": ""}[words[arm]]
        out["reasons"].append(told + "." + (_kernel_words(row) if form == "FP8" else ""))
    if not fp8:
        trains = f"{base['label']} trains {base['tokens_per_s']:,.0f} tokens/s"
        out["sentence"] = f"No verdict on speed: no {form} arm was timed; {trains}."
        return out
    best = max(fp8, key=lambda arm: fp8[arm]["tokens_per_s"])
    row, ratio = fp8[best], out["ratios"][best]["baseline"]
    out["word"], out["best"] = words[best], best
    trains = f"trains {row['tokens_per_s']:,.0f} tokens/s, {against[best]}"
    here = f"{row['label']}, the best of its arms, {trains}"
    out["sentence"] = {
        "faster": f"{form} is faster here: {row['label']} {trains}.",
        "same": f"{form} is not faster here: {here}; the steps scatter as much.",
        "slower": f"{form} is slower here: {here}.",
    }[words[best]]
    out["next"] = advice(row, ratio, words[best]) if form == "FP8" else []
    return out


def _kernel_words(row: Row) -> str:
    """Does what ran on the device fit the arm's name? Only where it was looked at."""
    seen = (row.get("kernels") or {}).get("evidence")
    if not seen or bool(seen.get("fp8_gemm")) == (row["role"] == "candidate"):
        return ""
    if row["role"] == "candidate":
        return " NO FP8 product was seen on the device: this arm did not compute in FP8."
    return " FP8 products were seen on the device in an arm that should have none."


def advice(row: Row, ratio: float, word: str) -> list[str]:
    """What to try next, from where the best FP8 arm's time went; the largest share first."""
    how = WIDER.format(wider=2 * row["width"]) if row.get("width") else "--model FILE"
    out = [HARDLY.format(how=how)] if word != "faster" or ratio < WORTH else []
    kernels = row.get("kernels")
    if not kernels or not kernels.get("span_ms"):
        return out
    share = {kind: ms / kernels["span_ms"] for kind, ms in kernels["classes_ms"].items()}
    if profiled_over(row) > ODD:
        share.pop("idle", None)
    where_it_is = (
        "fused" if row.get("fused") else "plain",
        "cudnn" if row.get("attention") == "cudnn" else "torch",
        "short" if row.get("shortages") else "roomy",
    )
    found = [
        (share[kind], text)
        for kind, least, where, text in TIPS
        if share.get(kind, 0.0) >= least and (where is None or where in where_it_is)
    ]
    told = [text.format(part, how=how) for part, text in sorted(found, reverse=True)]
    return out + [f"{text[0].upper()}{text[1:]}." for text in told]
