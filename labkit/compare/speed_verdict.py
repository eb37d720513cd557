"""The verdict on speed, in words: is FP8 faster here, against what, where does its time go, and what to try next."""

import math
from collections.abc import Mapping
from pathlib import Path

from labkit.compare.arms import find_run, timed_row
from labkit.compare.batches import SCATTERED, describe
from labkit.compare.preset import Preset
from labkit.record.schema import Ratio, SpeedResults, SpeedVerdict, TimedRow, Try

WORTH = 1.1  # a gain below this is called hardly worth the trouble
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
PROFILED = "{label}: its profiled steps took {over:.0%} {word} than those of the window; its milliseconds by class sum to these."
SUMS = 0.03  # by so much profiled steps may differ before it is said
ODD = 0.05  # by so much a profiled step may differ before its gaps tell nothing of the others: kernels keep their times


def speed_results(preset: Preset, out: Path, lost: Mapping[str, str], tries: Mapping[str, list[Try]]) -> SpeedResults:
    """Rows and verdict from the folders speed/NAME; lost: arm -> why it has no result."""
    rows = {}
    for name in preset.timed:
        run, arm = find_run(out / "speed" / name), preset.arms[name]
        if run and run.status == "finished" and run.training.results.speed:
            rows[name] = timed_row(run, arm.label, arm.role)
    why = {preset.arms[name].label: why for name, why in lost.items() if name in preset.timed and name not in rows}
    notes = [f"{preset.arms[name].label}: {describe(tries[name])}." for name in rows if tries.get(name)]
    notes += [SHORT.format(label=row.label, shortages=row.shortages) for row in rows.values() if row.shortages]
    basis = name_batches(rows, largest=bool(preset.window().batch))
    verdict = judge_speed(rows, why, preset.format, preset.baseline_format)
    verdict.sentence, verdict.reasons = f"{verdict.sentence} {basis}".strip(), verdict.reasons + notes
    return SpeedResults(arms=rows, verdict=verdict)


def name_batches(rows: Mapping[str, TimedRow], largest: bool) -> str:
    """Put each arm's sequences into its label where they differ; returns what is then compared, or ""."""
    sizes = [row.batch // row.ranks for row in rows.values()]
    words = [f"{size} sequence{'s' if size > 1 else ''}" for size in sizes]
    if len(set(sizes)) < 2:
        return LARGEST.format(f", {words[0]}") if largest and words else ""
    for row, said in zip(rows.values(), words):
        row.label += f" with {said}"
    return LARGEST.format("") if largest else UNLIKE


def cost_sentence(rows: Mapping[str, TimedRow], price: float | None) -> str:
    """What a billion tokens cost with each arm, the cheapest first; "" if nobody named the machine's price per hour."""
    if not price or not rows:
        return ""
    costs = sorted((price / 3600 * 1e9 / row.tokens_per_s, row.label) for row in rows.values())
    each = ", ".join(f"{cost:,.2f} with {label}" for cost, label in costs)
    return f"At {price:,.2f} an hour, a billion tokens cost {each}."


def profiled_over(row: TimedRow) -> float:
    """By which share the profiled steps took longer than the window's median step; 0 where none was profiled."""
    span = row.kernels.span_ms if row.kernels else 0.0
    return span / 1000 / row.step_p50 - 1 if span else 0.0


def unlike_window(rows: Mapping[str, TimedRow]) -> list[str]:
    """Of each arm whose milliseconds by class do not sum to its step: why."""
    return [
        PROFILED.format(label=row.label, over=abs(over), word="longer" if over > 0 else "shorter")
        for row in rows.values()
        if abs(over := profiled_over(row)) > SUMS
    ]


def compare_rates(row: TimedRow, baseline: TimedRow) -> tuple[float, str]:
    """(ratio of tokens/s, "faster" / "slower" / "same", which is within both half-spreads together)."""
    ratio = row.tokens_per_s / baseline.tokens_per_s
    noise = row.half_spread + baseline.half_spread
    return ratio, "same" if abs(ratio - 1) <= noise else "faster" if ratio > 1 else "slower"


def judge_speed(
    rows: Mapping[str, TimedRow], missing: Mapping[str, str] | None = None, form: str = "FP8", baseline: str = "BF16"
) -> SpeedVerdict:
    """The verdict over timed arms. missing: label -> why it has no result; form, baseline: the two sides' names."""
    out, words, against = SpeedVerdict(), {}, {}
    base = next((row for row in rows.values() if row.role == "baseline"), None)
    candidates = {arm: row for arm, row in rows.items() if row.role == "candidate"}
    unsteady = [row for row in rows.values() if row.half_spread > SCATTERED]
    out.reasons += [f"{label}: no result, {why}." for label, why in (missing or {}).items()]
    out.reasons += unlike_window(rows)
    out.reasons += [
        f"{row.label}: the steps of its {'second ' if row.windows > 1 else ''}window scattered by {row.half_spread:.0%} "
        "either way, and its tokens/s are no surer than that."
        for row in unsteady
    ]
    if base is None:
        name = "compiled BF16" if baseline == "BF16" else baseline
        out.sentence = f"No verdict on speed: {name} was not timed, and nothing is fast or slow without it."
        return out
    of_library = {row.library: row for row in rows.values() if row.role == "reference"}
    for arm, row in rows.items():
        if row is base:
            continue
        ratio, words[arm] = compare_rates(row, base)
        own = of_library.get(row.library) if arm in candidates else None
        by_library = row.tokens_per_s / own.tokens_per_s if own else None
        error = None if row.error is None or base.error is None else ratio * math.hypot(row.error, base.error)
        out.ratios[arm] = Ratio(baseline=ratio, error=error, library=by_library)
        times = (
            f"{ratio:.2f}{'' if error is None else f' [{ratio - error:.2f}, {ratio + error:.2f}]'} times {base.label}"
        )
        of_own = f" and {by_library:.2f} times {own.label}" if own else ""
        against[arm] = f"{times} ({base.of_one:,.0f}){of_own}" + (f" ({own.of_one:,.0f})" if own else "")
        end = {"same": ", no more than the noise of the steps", "slower": ": slower", "faster": ""}[words[arm]]
        seen = _kernel_words(row) if form == "FP8" else ""
        out.reasons.append(f"{row.label}: {row.of_one:,.0f} {row.unit}, {times}{of_own}{end}.{seen}")
    if not candidates:
        trains = f"{base.label} trains {base.of_one:,.0f} {base.unit}"
        out.sentence = f"No verdict on speed: no {form} arm was timed; {trains}."
        return out
    out.best = best = max(candidates, key=lambda arm: candidates[arm].tokens_per_s)
    row, out.word = candidates[best], words[best]
    trains = f"trains {row.of_one:,.0f} {row.unit}, {against[best]}"
    here = f"{row.label}, the best of its arms, {trains}"
    out.sentence = {
        "faster": f"{form} is faster here: {row.label} {trains}.",
        "same": f"{form} is not faster here: {here}; the steps scatter as much.",
        "slower": f"{form} is slower here: {here}.",
    }[out.word]
    if shaky := [one.label for one in (base, row) if one in unsteady]:
        out.sentence += f" The window of {' and that of '.join(shaky)} scattered by more than {SCATTERED:.0%}."
    out.next = advice(row, out.ratios[best].baseline or 0.0, out.word) if form == "FP8" else []
    return out


def _kernel_words(row: TimedRow) -> str:
    """Does what ran on the device fit the arm's name? Only where it was profiled."""
    seen, candidate = row.kernels.evidence if row.kernels else {}, row.role == "candidate"
    if not seen or bool(seen.get("fp8_gemm")) == candidate:
        return ""
    missing = " NO FP8 product was seen on the device: this arm did not compute in FP8."
    return missing if candidate else " FP8 products were seen on the device in an arm that should have none."


def advice(row: TimedRow, ratio: float, word: str) -> list[str]:
    """What to try next, from where the best FP8 arm's time went; the largest share first."""
    how = WIDER.format(wider=2 * row.width) if row.width else "--model FILE"
    out = [HARDLY.format(how=how)] if word != "faster" or ratio < WORTH else []
    if not row.kernels or not row.kernels.span_ms:
        return out
    share = {kind: ms / row.kernels.span_ms for kind, ms in row.kernels.classes_ms.items()}
    if profiled_over(row) > ODD:
        share.pop("idle", None)
    has = {"fused" if row.fused else "plain", "short" if row.shortages else "roomy", None}
    has.add("cudnn" if row.attention == "cudnn" else "torch")
    found = [(share[kind], text) for kind, least, where, text in TIPS if share.get(kind, 0.0) >= least and where in has]
    tips = [text.format(part, how=how) for part, text in sorted(found, reverse=True)]
    return out + [f"{text[0].upper()}{text[1:]}." for text in tips]
