"""The numbers that week 16's results pages quote, taken from the records in results/ when `lab results` writes.

A record is named as its folder below results/. An arm is named as in its preset. Rates are tokens/s, gaps per cent,
times milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from labkit.compare import batches
from labkit.compare.memory import parameters
from labkit.compare.pages import Page
from labkit.compare.repeats import interval
from labkit.compare.statistic import Answer
from labkit.compare.terminal import markdown_table
from labkit.model.config import sizes
from labkit.record.read import RunData, read_run
from week16_fp8.given import tricks

RESULTS = Path(__file__).parents[1] / "results"
WHOLE, HOUR, SPEED = "2026-11-22-h200-whole", "2026-11-21-h200-hour", "2026-11-22-h200-speed"
SAFETY, SCHEDULE, STAGES = "2026-11-22-h200-safety", "2026-11-22-h200-schedule", "2026-11-22-h200-two-stage"
BIG4, BIG = "2026-11-22-h200-8b-4-gpus", "2026-11-22-h200-8b-levers"
H100, MOE = "2026-11-23-h100-speed", "2026-11-23-h200-moe"  # of commit f8d9b1b
OWN = "2026-11-24-h200-own"  # of commit 335caa3, which divides scales out in one pass; those of f8d9b1b in two
H100_LOSS, H100_OWN = "2026-11-23-h100-safety", "2026-11-24-h100-own"
H100_WHOLE = "2026-11-28-h100-whole"  # of commit 7e0b7ae
H200_AGAIN = "2026-11-29-h200-whole"  # of commit 3ec5680
PEER = "2026-11-29-h200-peer.json"  # and before the update obeyed the check
LARGEST = "2026-11-24-h100-largest"
FORMATS = "2026-11-28-cpu-formats"
LEVERS, ONCE = "2026-11-22-h200-scaling-levers", "2026-11-22-h200-scaling-once"
FITS, STAGED = "2026-11-26-h200-8b", "2026-11-26-h200-two-stage"  # of commit 0dda8df; FITS but /two of 763a66f
TWO = (f"{FITS}/two-bf16", f"{FITS}/two")  # BF16 ran short of memory in the latter
EIGHT = "2026-11-29-h200-8b"
FOUR_BF16, FOUR = f"{EIGHT}/bf16", f"{EIGHT}/three"
PARAMETERS, TRIP = "2026-11-26-h200-parameters", "2026-11-26-h200-round-trip"  # of commit 0c1933b
CHECK = "../../results/2026-11-22-h200-gpu-check-124m"  # of the GPU path; described in the course's results/
BF16, FP8 = ARMS = ("bf16", "te-delayed")
PRODUCTS = ("GEMM bf16", "GEMM fp8", "attention")
TOKENS = {LEVERS: 20 * 4096, ONCE: 4 * 20 * 4096}  # a GPU's share of a step
BUSY_WATT = 670  # of 700: the GPU computes


@cache
def read(run: str) -> RunData:
    return read_run(RESULTS / run)


# ---- one comparison


def timed(run: str, arm: str) -> dict[str, Any]:
    """An arm's row of the speed part."""
    return read(run).results["speed"]["arms"][arm]


def rate(run: str, arm: str) -> float:
    return timed(run, arm)["tokens_per_s"]


def times(run: str, arm: str) -> float:
    """How many times compiled BF16's rate."""
    return rate(run, arm) / rate(run, BF16)


def each(run: str, arm: str) -> float:
    """Tokens/s of each GPU."""
    return rate(run, arm) / timed(run, arm)["ranks"]


def mean_each(run: str, arm: str) -> float:
    """Tokens/s of each GPU by the mean step, not the median."""
    return timed(run, arm)["mean_tokens_per_s"] / timed(run, arm)["ranks"]


def ms(run: str, arm: str, *classes: str) -> float:
    """Milliseconds of a step in these classes of kernels, on GPU 0, which is the one profiled."""
    return sum(timed(run, arm)["kernels"]["classes_ms"][name] for name in classes)


def kernel(run: str, arm: str, part: str) -> float:
    """Milliseconds of the longest kernel whose name holds `part`."""
    return next(one["ms"] for one in timed(run, arm)["kernels"]["top"] if part in one["name"])


def kernels_of(run: str, arm: str, part: str) -> tuple[float, int]:
    """(milliseconds, calls) of a step in the longest kernels whose names hold `part`."""
    found = [one for one in timed(run, arm)["kernels"]["top"] if part in one["name"]]
    return sum(one["ms"] for one in found), round(sum(one["calls"] for one in found))


def step_ms(run: str, arm: str) -> float:
    """The median step."""
    return 1e3 * timed(run, arm)["step_p50"]


def per_thousand(run: str, arm: str, *classes: str) -> float:
    """Milliseconds for each 1,000 tokens in these classes of kernels: of arms with other batches."""
    return 1e3 * ms(run, arm, *classes) / timed(run, arm)["tokens_step"]


def share(run: str, arm: str, *classes: str) -> float:
    """Per cent of the kernels' time, gaps left out."""
    times = timed(run, arm)["kernels"]["classes_ms"]
    return 100 * ms(run, arm, *classes) / sum(ms for name, ms in times.items() if name != "idle")


def products_gain(run: str) -> float:
    """How many times as fast all products are in delayed FP8, the head's in BF16 among them."""
    return per_thousand(run, BF16, "GEMM bf16") / per_thousand(run, FP8, "GEMM bf16", "GEMM fp8")


def batch(run: str, arm: str) -> int:
    """Sequences a step."""
    return timed(run, arm)["batch"]


def looked_for(run: str, arm: str) -> str:
    """How the largest batch was found."""
    return batches.describe(read(run).comparison.results.tries[arm])


def too_many(run: str, arm: str) -> dict[str, Any]:
    """The smallest batch at which the allocator ran short while the largest was looked for."""
    return min((each for each in read(run).results["tries"][arm] if each.get("short")), key=lambda each: each["rows"])


def on_the_meter(run: str, arm: str, what: str) -> float:
    """Median of the GPU's "clock_mhz" or "watts" during the window."""
    return timed(run, arm)["meter"][what]["p50"]


def converted(run: str, arm: str) -> int:
    """Linears that the arm replaced."""
    return timed(run, arm)["converted"]


def gib(run: str, arm: str) -> float:
    return timed(run, arm)["memory"]["peak"] / 2**30


def gap(run: str, arm: str) -> float:
    return read(run).results["verdict"]["arms"][arm]["value"]


def gap_at(run: str, arm: str, step: int) -> float:
    return dict(map(tuple, read(run).results["verdict"]["arms"][arm]["gap"]))[step]


def band(run: str, key: str) -> float:
    """ "threshold": what is accepted. "explained": what rounding explains."""
    return read(run).results["verdict"]["band"][key]


def minutes(run: str) -> float:
    """Of the last call."""
    return read(run).results["calls"][-1]["seconds"] / 60


def predicted_s(run: str) -> float:
    """Seconds predicted for the arms that the first call of a comparison finished."""
    items = read(run).results["calls"][0]["items"]
    return sum(item["predicted_s"] for item in items if item["measured_s"])


def until(run: str, arm: str) -> float:
    """Minutes from the comparison's start to that of an arm of its safety part."""
    began, arms = (
        datetime.datetime.fromisoformat(one.run["started"].replace("Z", "+00:00"))
        for one in (read(run), read(f"{run}/arms/{arm}"))
    )
    return (arms - began).total_seconds() / 60


def spread(values: Sequence[float], form: str) -> str:
    """By how many per cent the largest is above the smallest."""
    return format(100 * max(values) / min(values) - 100, form)


def gaps_table() -> str:
    """Every recipe's gap in every comparison that has it."""
    runs = {WHOLE: "whole", SAFETY: "safety", HOUR: "hour", SCHEDULE: "schedule", STAGES: "two-stage"}
    labels: dict[str, str] = {}
    for run in runs:
        rows = read(run).results["arms"]
        labels |= {arm: rows[arm]["label"] for arm in read(run).results["verdict"]["arms"] if arm not in labels}
    words = {"inside": "in", "outside": "OUT", "undecided": "?", "reference": "twin"}

    def cell(run: str, arm: str) -> str:
        found = read(run).results["verdict"]["arms"].get(arm)
        return f"{found['value']:.3f} {words[found['word']]}" if found else ""

    steps = [f"{name}, {read(run).config['train']['steps']} steps" for run, name in runs.items()]
    rows_of = [[label, *(cell(run, arm) for run in runs)] for arm, label in labels.items()]
    explained = ["rounding explains up to", *(f"{band(run, 'explained'):.2f}" for run in runs)]
    return markdown_table(["gap, %", *steps], [*rows_of, explained])


# ---- windows of several runs on the same chips


def step_seconds(run: str, arm: str) -> list[float]:
    """What the steps of an arm took, from the window's first on; those of the profile come last."""
    return [step["seconds"] for step in read(f"{run}/speed/{arm}").steps][read(run).config["speed"]["warmup"] :]


def window(run: str, arm: str) -> int:
    """Steps that were timed; of an arm whose comparison was cut off, those that are there."""
    rows = (read(run).results.get("speed") or {}).get("arms") or {}
    if arm in rows:
        return rows[arm]["steps"]
    profiled = read(run).config["speed"]["profile"] if read(f"{run}/speed/{arm}").status == "finished" else 0
    return len(step_seconds(run, arm)) - profiled


def warmed(run: str, arm: str) -> float:
    """By how many per cent the last quarter of a window is slower than its first."""
    steps = step_seconds(run, arm)[: window(run, arm)]
    quarter = len(steps) // 4
    return 100 * median(steps[3 * quarter : 4 * quarter]) / median(steps[:quarter]) - 100


def first(host: str, arm: str) -> int:
    """Steps that all runs of four GPUs of this host have in their window: what they are compared over."""
    together = ("as-it-is", "ctas8", "kept") if host == LEVERS else ("four",)
    return min(window(f"{host}/{run}", arm) for run in together)


def lone(host: str, arm: str, gpu: int) -> float:
    """Tokens/s of one GPU alone, over the same first steps."""
    return TOKENS[host] / median(step_seconds(f"{host}/lone{gpu}", arm)[: first(host, arm)])


def lones(host: str, arm: str) -> list[float]:
    return [lone(host, arm, gpu) for gpu in range(4)]


def shares(
    run: str, arm: str, of: Callable[[Sequence[float]], float] = mean, middle: Callable[..., float] = median
) -> float:
    """Per cent that each of four GPUs together trains of the four alone on that host: of their mean, or (of=min) of the
    slowest; over the same first steps."""
    host = run.partition("/")[0]
    steps = first(host, arm)
    alone = [1 / middle(step_seconds(f"{host}/lone{gpu}", arm)[:steps]) for gpu in range(4)]
    return 100 / middle(step_seconds(run, arm)[:steps]) / of(alone)


def against(one: str, many: str, arm: str) -> float:
    """Per cent of the tokens/s of `one` that each GPU of `many` trains, over the same first steps."""
    steps = window(many, arm)
    return 100 * median(step_seconds(one, arm)[:steps]) / median(step_seconds(many, arm)[:steps])


def clocks(run: str, arm: str) -> list[float]:
    """Mean MHz of each GPU while this arm kept all four busy."""
    began, ended = (read(f"{run}/speed/{arm}").run[key][11:19] for key in ("started", "finished"))
    every = csv.DictReader((RESULTS / "2026-11-22-h200-scaling-clocks.csv").read_text().splitlines())
    rows = [row for row in every if row["host"] == run.partition("/")[0]]
    busy = [
        row
        for row in rows
        if began <= row["utc"] <= ended and min(int(row[f"watt{gpu}"]) for gpu in range(4)) > BUSY_WATT
    ]
    return [mean(int(row[f"mhz{gpu}"]) for row in busy) for gpu in range(4)]


def scaling_table() -> str:
    """Four GPUs alone and together: rates a GPU, their share of the lone ones, their clock."""
    rows = []
    for host, name, words in (
        (LEVERS, "", "host A, each alone, at once"),
        (LEVERS, "as-it-is", "host A, the preset as it is"),
        (LEVERS, "ctas8", "host A, `NCCL_MAX_CTAS=8`"),
        (LEVERS, "kept", "host A, `train.reshard_after_forward=false`"),
        (ONCE, "", "host B, each alone, at once"),
        (ONCE, "four", "host B, four micro-batches, reduced once"),
    ):
        cells = [words]
        for arm in ARMS:
            run = f"{host}/{name or 'lone0'}"
            ended = read(f"{run}/speed/{arm}").run.get("finished")
            mhz = f"{mean(clocks(run, arm)):,.0f}" if ended else "cut off"
            alone = lones(host, arm)
            if name:
                per_gpu = TOKENS[host] / median(step_seconds(run, arm)[: first(host, arm)])
                cells += [f"{per_gpu:,.0f}", f"{shares(run, arm):.1f}", f"{shares(run, arm, min):.1f}", mhz]
            else:
                cells += [f"{mean(alone):,.0f}", f"slowest {min(alone):,.0f}", "", mhz]
        rows.append(cells)
    columns = ("tokens/s a GPU", "% of mean", "% of slowest", "MHz")
    heads = [f"{arm}: {what}" for arm in ("BF16", "FP8 delayed") for what in columns]
    return markdown_table(["four GPUs, 1.14 B", *heads], rows)


def slower(runs: Sequence[str] = ("ctas8", "kept")) -> list[float]:
    """By how many per cent products and attention on GPU 0 take longer among four than alone."""
    return [
        100 * ms(f"{LEVERS}/{run}", arm, *PRODUCTS) / ms(f"{LEVERS}/lone0", arm, *PRODUCTS) - 100
        for run in runs
        for arm in ARMS
    ]


def clock_lost() -> list[float]:
    """By how many per cent the four clocks' mean is lower together than alone."""
    together = [("ctas8", arm) for arm in ARMS] + [("kept", arm) for arm in ARMS] + [("as-it-is", BF16)]
    return [
        100 - 100 * mean(clocks(f"{LEVERS}/{run}", arm)) / mean(clocks(f"{LEVERS}/lone0", arm)) for run, arm in together
    ]


def saved(host: str, runs: Sequence[str]) -> list[float]:
    """Milliseconds of a step that updating a quarter of the weights saves GPU 0."""
    rest = ("optimizer", "norm and elementwise")
    return [ms(f"{host}/lone0", arm, *rest) - ms(f"{host}/{run}", arm, *rest) for run in runs for arm in ARMS]


def gained(run: str, arm: str) -> float:
    """Points of the share that a lever gave."""
    return shares(f"{LEVERS}/{run}", arm) - shares(f"{LEVERS}/as-it-is", arm)


def bytes_saved() -> float:
    """Per cent of all bytes that kept weights save: one of two gathers of the 16 blocks (BF16, 2 bytes), beside one
    reduction (FP32, 4 bytes); what is outside the blocks is gathered once anyway."""
    block, outside = parameters(sizes()["1b"])
    return 100 * 2 * 16 * block / (8 * 16 * block + 6 * outside)


# ---- 8B, and the levers of the first day


def big_table() -> str:
    rows = []
    for runs, text in (
        (TWO, "two GPUs, two sequences each"),
        (("", f"{FITS}/two-kept"), "that with `train.reshard_after_forward=false`"),
        ((BIG4, BIG4), "four GPUs, two sequences each, the head in the root"),
        ((f"{BIG}/as-it-is",) * 2, "the head apart, as it is now (another host)"),
        ((f"{BIG}/kept",) * 2, "that with `train.reshard_after_forward=false`"),
        ((FOUR_BF16, ""), "the same, of 2026-11-29"),
        (("", FOUR), "four GPUs, three sequences each, `train.loss_chunk=4096`"),
    ):
        rates = [each(run, arm) if run else 0.0 for run, arm in zip(runs, ARMS)]
        cells = [f"{rate:,.0f}" if rate else "" for rate in rates] + [
            f"{rates[1] / rates[0]:.2f}" if all(rates) else ""
        ]
        cells += [f"{ms(run, arm, 'communication'):.1f}" if run else "" for run, arm in zip(runs, ARMS)]
        rows.append([text, *cells, *(f"{gib(run, arm):.1f}" if run else "" for run, arm in zip(runs, ARMS))])
    heads = ["BF16, tokens/s a GPU", "FP8 delayed", "x BF16", "only messages, ms: BF16", "FP8", "peak GiB: BF16", "FP8"]
    return markdown_table(["8B", *heads], rows)


@cache
def peers(host: str) -> dict[str, Any]:
    """What torchtitan did on the host of `FITS` or `EIGHT`."""
    return json.loads((RESULTS / host / "peer.json").read_text(encoding="utf-8"))


def peer(gpus: int, sequences: int, kept: bool, precision: str = "FP8 tensorwise", size: str = "8B") -> float:
    """Tokens/s of each GPU in torchtitan."""
    host = FITS if (gpus, size) == (2, "8B") else EIGHT
    query = {"gpus": gpus, "sequences": sequences, "weights_kept": kept, "precision": precision}
    fitting = (run for run in peers(host)["runs"] if run.get("size", "8B") == size and query.items() <= run.items())
    return next(run["tokens_per_s_a_gpu"] for run in fitting)


def ahead(gpus: int) -> float:
    """By how many per cent the best FP8 setting here is ahead of torchtitan's best."""
    ours = mean_each(f"{FITS}/two-kept" if gpus == 2 else FOUR, FP8)
    best = peer(2, 2, True) if gpus == 2 else peer(4, 3, False)
    return 100 * ours / best - 100


def peer_table() -> str:
    """8B and 3B here and in torchtitan, each with what fits, by the mean step."""
    three = {arm: found["mean_tokens_per_s"] / 2 for arm, found in peers(EIGHT)["3B here"]["arms"].items()}
    kept, small = ", weights kept", "3B, two GPUs, four sequences each"
    rows = []
    for words, ours, theirs in (
        ("8B, two GPUs, two sequences each: TE delayed", mean_each(f"{FITS}/two", FP8), peer(2, 2, False)),
        ("that with weights kept", mean_each(f"{FITS}/two-kept", FP8), peer(2, 2, True)),
        (f"8B, four GPUs, two sequences each: BF16{kept} here", mean_each(FOUR_BF16, BF16), peer(4, 2, False, "BF16")),
        ("8B, four GPUs, three each: torchao tensorwise", mean_each(FOUR, "torchao-tensorwise"), peer(4, 3, False)),
        ("the same: TE current", mean_each(FOUR, "te-current"), peer(4, 3, False)),
        ("the same: TE delayed", mean_each(FOUR, FP8), peer(4, 3, False)),
        (f"{small}: BF16", three[BF16], peer(2, 4, False, "BF16", "3B")),
        ("the same: TE current", three["te-current"], peer(2, 4, False, size="3B")),
        ("the same: TE delayed", three[FP8], peer(2, 4, False, size="3B")),
    ):
        rows.append([words, f"{ours:,.0f}", f"{theirs:,.0f}", f"{100 * ours / theirs - 100:.1f}"])
    return markdown_table(["tokens/s a GPU", "here", "torchtitan", "ahead, %"], rows)


def weak_scaling() -> tuple[float, float]:
    """Per cent that each of four GPUs together trains in BF16 of the four alone on that host: of their mean, of the
    slowest."""
    found = peers(EIGHT)["weak scaling, 1.14B"]
    alone, together = found["alone, all at once"][BF16], found["together"][BF16]["tokens_per_s_a_gpu"]
    return 100 * together / mean(alone), 100 * together / min(alone)


@cache
def beside() -> dict[str, Any]:
    """Three calls at 1.14B on one H200, here and in torchtitan."""
    return json.loads((RESULTS / PEER).read_text(encoding="utf-8"))


NEAREST = {"bf16": "bf16", "torchao-tensorwise": "tensorwise", "te-current": "tensorwise", "te-delayed": "tensorwise"}


def over_peer(call: dict[str, Any], arm: str) -> float:
    """How many times torchtitan's tokens/s an arm trains, in one call."""
    return call["ours"][arm]["tokens_per_s"] / median(call["theirs"][NEAREST[arm]]["tokens_per_s"])


def beside_table() -> str:
    """Each recipe beside the nearest one of torchtitan, the call with the median ratio; then each one's best batch."""
    rows = []
    for arm, words in zip(NEAREST, ("BF16", "torchao tensorwise", "TE current, beside tensorwise", "TE delayed, same")):
        calls = sorted(beside()["calls"], key=lambda call: over_peer(call, arm))
        ours, theirs = calls[1]["ours"][arm], calls[1]["theirs"][NEAREST[arm]]
        gib = f"{ours['peak_bytes'] / 2**30:.1f}", f"{theirs['reserved_gib']:.1f}"
        ratios = f"{over_peer(calls[1], arm):.3f} ({over_peer(calls[0], arm):.3f} to {over_peer(calls[2], arm):.3f})"
        rows.append([words, f"{ours['tokens_per_s']:,.0f}", f"{median(theirs['tokens_per_s']):,.0f}", ratios, *gib])
    best = beside()["calls"][2]["largest"]
    ours, theirs = best["ours"]["te-delayed"], best["theirs"]["tensorwise 20"]
    rate, other = ours["tokens_per_s"], median(theirs["tokens_per_s"])
    gib = f"{ours['peak_bytes'] / 2**30:.1f}", f"{theirs['reserved_gib']:.1f}"
    rows.append(["the same, 20 sequences, one call", f"{rate:,.0f}", f"{other:,.0f}", f"{rate / other:.3f}", *gib])
    heads = ["1.14B, tokens/s", "here", "torchtitan", "times", "GiB allocated here", "GiB reserved there"]
    return markdown_table(heads, rows)


def rest_ms(side: str) -> float:
    """Milliseconds of a BF16 step, 8 sequences, beside its products and attention: "ours", "theirs" if these take the
    same there, or "target", for 1.08 times."""
    call = beside()["calls"][2]
    ours = call["ours"]["bf16"]
    same = ours["classes_ms"]["GEMM bf16"] + ours["classes_ms"]["attention"]
    theirs = 8 * 4096 * 1e3 / median(call["theirs"]["bf16"]["tokens_per_s"])
    return {"ours": ours["step_ms"], "theirs": theirs, "target": theirs / 1.08}[side] - same


# ---- FP8 parameters


@cache
def parameters_of(arm: str) -> dict[str, Any]:
    """What an arm of `studies.parameters` held and sent, bytes of a rank: {"held", "rest", "peak", "sent"}."""
    return json.loads((RESULTS / f"{PARAMETERS}.json").read_text(encoding="utf-8"))["arms"][arm]


@cache
def trip() -> dict[str, list[float]]:
    """The losses after a checkpoint with FP8 parameters: of the run itself, and converted."""
    return json.loads((RESULTS / f"{TRIP}.json").read_text(encoding="utf-8"))["round trip"]


def trip_table() -> str:
    titles = {
        "as it is": "none: FP8 parameters, with their masters",
        "converted to bf16, values": "to ordinary weights, the FP8 values",
        "converted to bf16, masters": "to ordinary weights, the masters",
        "and to fp8 again": "that of the masters, back to FP8 parameters",
    }
    rows = [[titles[kind], *(f"{loss:.6f}" for loss in trip()[kind])] for kind in titles]
    return markdown_table(["conversion", "first loss", "second"], rows)


def parameters_table() -> str:
    def gb(arm: str, *kinds: str) -> str:
        held = parameters_of(arm)["held"]
        return f"{sum(held.get(kind, 0) for kind in kinds) / 1e9:.2f}"

    codes = [
        f"weights, {kind}"
        for kind in (
            "uint8 (rowwise_data)",
            "uint8 (columnwise_data)",
            "float32 (rowwise_scale_inv)",
            "float32 (columnwise_scale_inv)",
        )
    ]
    rows = []
    for arm, text in (
        ("bf16", "BF16"),
        ("te-block", "TE FP8 block"),
        ("te-block-parameters", "that with FP8 parameters"),
    ):
        found = parameters_of(arm)
        rows.append(
            [
                text,
                gb(arm, "weights, float32"),
                gb(arm, *codes),
                gb(arm, "master, float32"),
                gb(arm, "gradients, float32", "m, float32", "v, float32"),
                f"{found['rest'] / 1e9:.2f}",
                f"{found['peak'] / 1e9:.1f}",
                f"{found['sent']['all_gather'] / 1e9:.2f}",
                f"{found['sent']['reduce_scatter'] / 1e9:.2f}",
                f"{found['tokens_per_s']:,.0f}",
            ]
        )
    heads = [
        "FP32 weights",
        "codes, scales",
        "masters",
        "gradients, AdamW",
        "rest",
        "peak",
        "gathered",
        "reduced",
        "tokens/s",
    ]
    return markdown_table(["1B on two GPUs, GB a rank", *heads], rows)


def joined_gib() -> float:
    """GiB in BF16 of the weights that the fused blocks of the 8B join: q, k, v; gate, up. Computed."""
    size = sizes()["8b"]
    rows = (size.n_heads + 2 * size.n_kv_heads) * size.d_head + 2 * size.d_ffn
    return 2 * size.n_layers * size.d_model * rows / 2**30


def levers_table(record: dict[str, Any]) -> str:
    """The first day's short runs: what was changed, and what BF16 and FP8 delayed trained with it."""
    rate_of: dict[Any, int] = {row["name"]: row["tokens_per_s"] for row in record["probe"]}
    for row in record["compare"]:
        rate_of[row["run"], row["lean_swiglu_backward"], row["arm"]] = row["tokens_per_s"]

    def arms(run: str, lean: bool = False) -> list[Any]:
        return [(run, lean, name) for name in ("BF16 compiled", "TE FP8 delayed")]

    rows: list[list[Any]] = [
        ["flash attention, 12 sequences", "bf16 flash bs12", "te delayed te.Linear flash bs12", ""],
        ["cuDNN's attention", "bf16 cudnn bs12", "te delayed te.Linear bs12", "the largest, for both"],
        [
            "q, k, v joined; gate, up joined",
            "bf16 cudnn grouped bs12",
            "te delayed grouped bs12",
            "no gain, BF16 loses",
        ],
        ["TE's fused modules", None, "te delayed qkv+mlp bs12", "SwiGLU writes FP8"],
        ["16 sequences", "bf16 cudnn bs16", "te delayed qkv+mlp bs16", "BF16 gains nothing"],
        ["20 sequences, weights kept gathered", None, "te delayed qkv+mlp bs20 no-reshard", ""],
        ["attention in the linears' memory order, 20 sequences", *arms("bs20"), "no copies around attention"],
        ["that, and SwiGLU's backward writes FP8", *arms("bs20", True), "a slower machine: read the ratio"],
        ["the row before that, logits in pieces of 8192", *arms("loss_chunk = 8192"), "less memory, slower"],
        ["TE's BF16 with fused modules, 16 sequences", "te bf16 qkv+mlp bs16", None, "no gain over compiled BF16"],
        ["torchao tensorwise, 16 sequences", None, "torchao tensorwise bs16", "not TE"],
        ["torchao tensorwise, joined", None, "torchao tensorwise grouped bs16", "not TE; the compiler gives up"],
    ]
    cells = []
    for name, *keys, text in rows:
        both = [rate_of[key] if key else 0 for key in keys]
        ratio = f"{both[1] / both[0]:.2f}" if all(both) else ""
        cells.append([name, *(f"{value:,}" if value else "" for value in both), ratio, text])
    return markdown_table(["lever", "BF16", "TE FP8 delayed", "x BF16", "what it is"], cells)


# ---- the matrices


def matrices() -> str:
    """How many combinations each record tried, and how many ran."""
    rows = []
    for name, text in (
        ("h200-matrix.json", "recipes, compile, checkpointing, fused blocks"),
        ("h200-matrix-2.json", "with schedules; cut off; FP8 parameters failed, and were mended"),
        ("h200-matrix-3.json", "FP8 parameters, the emulated block recipe; one failed, and is refused since"),
    ):
        tried = json.loads((RESULTS / name).read_text())["tried"]
        rows.append([name, str(len(tried)), str(sum(one["ok"] for one in tried)), text])
    return markdown_table(["record", "combinations", "ran", "what"], rows)


def repeats_of(run: str, arm: str) -> list[str]:
    """The runs of an arm that a comparison repeats, the first one's name first."""
    rows = read(run).results["arms"]
    return [name for name in rows if name == arm or (name.startswith(f"{arm}-") and name[len(arm) + 1 :].isdigit())]


def tails(run: str, arm: str) -> list[float]:
    """Each run's gap to the mean BF16 run, per cent: the mean over the second half."""
    verdict = read(run).results["verdict"]
    kept = (
        [gap for step, gap in verdict["arms"][one]["gap"] if step >= verdict["from_step"]]
        for one in repeats_of(run, arm)
    )
    return [mean(gaps) for gaps in kept]


def carried() -> dict[str, Answer]:
    """Of each arm of the notebook's section 13 (given/tricks.py) what its record says."""
    return tricks.verdicts(tricks.recorded())


def judged(run: str, arm: str) -> str:
    """What repeated runs say of an arm's loss: "same, +0.03 % [-0.05, +0.11] in 2 runs"."""
    found = read(run).results["verdict"]["arms"][arm]
    return f"{found['word']}, {interval(found['value'], found['low'], found['high'])} in {found['runs']} runs"


def trains(run: str, arm: str) -> float:
    """How many times BF16's rate an arm trains in the safety part, by the means of all runs."""
    rows = read(run).results["arms"]
    rates = [mean(rows[one]["tokens_per_s"] for one in repeats_of(run, each)) for each in (arm, BF16)]
    return rates[0] / rates[1]


def small(run: str, arm: str = FP8) -> float:
    """How many times BF16's rate an arm trains in the safety part."""
    rows = read(run).results["arms"]
    return rows[arm]["tokens_per_s"] / rows[BF16]["tokens_per_s"]


def small_ones(arm: str) -> str:
    """That rate in the records of the preset h100, on H200s and an H100."""
    return Page.span([small(run, arm) for run in (WHOLE, SAFETY, HOUR, H100_LOSS)], ".2f")


def judged_after(run: str, calls: int) -> float:
    """Minutes of a comparison's first calls."""
    return sum(call["seconds"] for call in read(run).results["calls"][:calls]) / 60


def timed_again(arm: str) -> str:
    """How many times BF16's rate four calls on H200s timed an arm, all with 20 sequences."""
    return Page.span([times(run, arm) for run in (HOUR, SPEED, WHOLE, H200_AGAIN)], ".3f")
