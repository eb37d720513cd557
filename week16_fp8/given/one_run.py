"""The verdict from one run of each arm: is FP8's loss the same as BF16's? A paired comparison with two controls.

Its error rates are unknown: one run cannot show how far runs scatter. `lab compare` judges from repeated runs instead
(labkit.compare.repeats); this is the rule of the paired trainings beside this file, and of comparisons recorded before.

All arms see the same data in the same order and start from the same weights. Their held-out losses, measured at the
same steps on the same batches, are therefore paired, and what is judged is the gap at each step:

    gap_arm[t] = 100 * (loss_arm[t] - loss_bf16[t]) / loss_bf16[t]             per cent
    value_arm  = sqrt(mean over t >= from_step of gap_arm[t]^2)                per cent

The root mean square is two-sided on purpose: training that comes out "better" in FP8 by more than rounding explains is
not the same training either. `from_step` leaves out the first half, where no arm has had time to drift.

How large a gap is nothing? The **negative control** shows: a BF16 twin whose initial weights were moved by a bf16
rounding error. E4M3 keeps 3 mantissa bits where bf16 keeps 7, so its rounding errors are 2^(7-3) = 16 times larger, and
to first order so is what they do to the loss. Beside it stands what has been accepted: 0.25 %, DeepSeek-V3's published
FP8 gap (arXiv:2412.19437, section 3.3).

    explained = 16 * value_twin          band = min(explained, 0.25)                   per cent

    inside      value <= band            the loss is the same
    outside     value > explained        it is not: rounding does not explain this
    undecided   in between               more than is accepted, yet rounding could have done it: in a long or steep
                                         run two BF16 trainings drift apart, until sixteen times their distance excuses
                                         anything

Could this comparison have said no? The **positive control** shows: an arm whose FP8 is deliberately broken must land
outside. If it does not, there is no power, and the verdict says so instead of "pass". (An arm of role "fine" is broken
so little that it may pass unseen; it decides nothing, and shows how small a mistake this comparison can see.) There is
none either if the twin alone is beyond 0.25 %, if fewer than 5 evaluations are judged, or if the baseline hardly
learned: nothing differs between models that stand still. A gross mistake as positive control shows that gross mistakes
are caught; how fine a gap would be called a difference, `explained` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.compare.repeats import weakness

ROUNDING_RATIO = 2 ** (7 - 3)  # mantissa bits: bf16 has 7, E4M3 has 3
PUBLISHED = 0.25  # per cent
NOISE_FLOOR = 1e-4  # per cent: fp32 sums of a loss near 5 cannot be told apart below this
STATISTIC = "root mean square of the per-step held-out loss gap against BF16, second half of the run, per cent"
UNSEEN = ": as small a mistake would not be told apart here"

Series = Sequence[tuple[int, float]]


def gaps(arm: Mapping[int, float], baseline: Mapping[int, float]) -> list[tuple[int, float]]:
    """Relative gap in per cent at each step where both have a held-out loss; inf where the arm's loss is not finite."""
    out = []
    for step in sorted(set(arm) & set(baseline)):
        gap = 100 * (arm[step] - baseline[step]) / baseline[step]
        out.append((step, gap if math.isfinite(gap) else math.inf))
    return out


def rms(series: Series, from_step: int) -> float:
    """Root mean square of the gaps from `from_step` on; NaN if there are none."""
    kept = [gap for step, gap in series if step >= from_step]
    return math.sqrt(math.fsum(gap * gap for gap in kept) / len(kept)) if kept else math.nan


def judge(
    heldout: Mapping[str, Mapping[int, float]],
    roles: Mapping[str, str],
    labels: Mapping[str, str],
    missing: Mapping[str, str] | None = None,
) -> dict:
    """The verdict over finished arms.

    heldout: arm -> {step: mean held-out loss in nats}; roles: arm -> baseline, twin, reference (shown, never judged:
    another BF16), candidate, broken or fine (every arm that was requested, finished or not); labels: arm -> name for
    people; missing: arm -> why it can have no result here (named among the reasons; the verdict is over the others).
    Returns the plain dict that run.json, the table and the report read: word (pass, fail, no-power, incomplete),
    sentence, reasons, statistic, band, from_step, arms {gap, value, word, sentence}.
    """
    missing = missing or {}
    kinds = ("baseline", "twin", "reference", "candidate", "broken", "fine")
    of_role = {role: [a for a in roles if roles[a] == role and a in heldout] for role in kinds}
    out: dict[str, Any] = {"word": "incomplete", "sentence": "", "reasons": [], "band": None, "from_step": None}
    out |= {"arms": {}, "statistic": STATISTIC}
    if not of_role["baseline"]:
        out["sentence"] = "No verdict: the BF16 baseline has no result to hold the others against."
        return out
    baseline = heldout[of_role["baseline"][0]]
    if not baseline or not all(map(math.isfinite, baseline.values())):
        out["sentence"] = "No verdict: the BF16 baseline itself has no finite held-out loss."
        return out
    from_step = out["from_step"] = max(baseline) // 2 + 1
    series = {arm: gaps(heldout[arm], baseline) for arm in heldout if roles.get(arm, "baseline") != "baseline"}
    values = {arm: rms(series[arm], from_step) for arm in series}
    for arm, points in series.items():
        word = "reference" if roles[arm] == "twin" else "no-data"
        out["arms"][arm] = {"gap": list(map(list, points)), "value": values[arm], "word": word, "sentence": ""}

    twins = [values[a] for a in of_role["twin"] if math.isfinite(values[a])]
    if not twins:
        out["sentence"] = "No verdict: without a BF16 twin there is no band, so no gap can be called large or small."
        return out
    twin = math.sqrt(math.fsum(v * v for v in twins) / len(twins))
    explained = max(ROUNDING_RATIO * twin, NOISE_FLOOR)
    threshold = min(explained, PUBLISHED)
    out["band"] = {
        "low": -threshold,
        "high": threshold,
        "threshold": threshold,
        "explained": explained,
        "from": of_role["twin"][0],
        "name": "the published limit" if explained > PUBLISHED else f"{ROUNDING_RATIO} x the twin's {_percent(twin)}",
    }

    for arm in of_role["twin"]:
        moved = f"a rounding error in the initial weights moved the held-out loss by {_percent(values[arm])}"
        out["arms"][arm]["sentence"] = f"{labels[arm]}: {moved}."
    for arm in (*of_role["reference"], *of_role["candidate"], *of_role["broken"], *of_role["fine"]):
        entry, value = out["arms"][arm], values[arm]
        if math.isnan(value):
            entry["sentence"] = f"{labels[arm]}: no held-out loss in the second half of the run."
            continue
        entry["word"] = "inside" if value <= threshold else "outside" if value > explained else "undecided"
        text = "became infinite or NaN" if math.isinf(value) else f"is {_percent(value)}"
        where = f"{entry['word']} the band of {_percent(threshold)}"
        if entry["word"] == "undecided":
            where = f"more than the {_percent(threshold)} that is accepted, and less than the {_percent(explained)} "
            where += "that rounding explains here: undecided"
        entry["sentence"] = f"{labels[arm]}: the gap {text}, {where}."
        if roles[arm] == "fine":
            seen = ", and it was seen" if entry["word"] == "outside" else UNSEEN
            entry["sentence"] += f" This mistake on purpose is a fine one{seen}."

    out["word"], out["sentence"] = _word(out, of_role, roles, labels, values, missing)
    if out["word"] == "pass" and (weak := _drift(twin) or weakness(baseline, from_step)):
        out["word"], out["sentence"] = "no-power", f"This comparison has no power: {weak}."
    out["reasons"] = [e["sentence"] for e in out["arms"].values() if e["sentence"]]
    out["reasons"] += [f"{labels.get(arm, arm)}: no result, {why}." for arm, why in missing.items()]
    return out


def _drift(twin: float) -> str:
    """Why two BF16 runs are too far apart to judge anything by; "" if they are not."""
    if twin <= PUBLISHED:
        return ""
    return (
        f"a rounding error in the initial weights alone moves the held-out loss by {_percent(twin)}, more than "
        f"the {PUBLISHED} % that is accepted: train longer, or at a lower learning rate"
    )


def _word(
    out: dict, of_role: dict, roles: Mapping[str, str], labels: Mapping[str, str], values: dict, missing: Mapping
) -> tuple[str, str]:
    """The one word and the one sentence."""
    words = {arm: entry["word"] for arm, entry in out["arms"].items()}
    threshold, explained = _percent(out["band"]["threshold"]), _percent(out["band"]["explained"])

    def named(arms: list[str]) -> str:
        gap = {a: "diverged" if math.isinf(values[a]) else f"differs by {_percent(values[a])}" for a in arms}
        return "; ".join(f"{labels[a]} {gap[a]}" for a in arms)

    candidates = [a for a in of_role["candidate"] if words[a] != "no-data"]
    inside, outside, between = ([a for a in candidates if words[a] == w] for w in ("inside", "outside", "undecided"))
    broken = [a for a in of_role["broken"] if words[a] != "no-data"]
    missed = [a for a in broken if words[a] != "outside"]
    lost = [labels[a] for a in roles if roles[a] == "candidate" and a not in (*candidates, *missing)]
    within = f" Inside the band of {threshold}: {', '.join(labels[a] for a in inside)}." if inside else ""
    if not candidates:
        return "incomplete", "No verdict: no FP8 arm has a result yet."
    if outside:
        said = f"The loss is not the same in FP8: {named(outside)}, where rounding explains {explained}.{within}"
        return "fail", said
    if lost:
        return "incomplete", f"No verdict: no result from {', '.join(lost)}."
    if not broken:
        why = "no deliberately broken FP8 arm ran, so nothing shows that it could have said no"
        return "no-power", f"This comparison has no power: {why}."
    if missed:
        text = ", ".join(f"{labels[a]} ({_percent(values[a])})" for a in missed)
        why = f"was not rejected, since rounding explains up to {explained} here"
        return "no-power", f"This comparison has no power: the deliberately broken arm, {text}, {why}."
    if between:
        why = f"more than the {threshold} that is accepted, but rounding could have done up to {explained} here"
        return "no-power", f"Undecided: {named(between)}, {why}: train longer, or at a lower learning rate.{within}"
    rejected = "; ".join("diverged" if math.isinf(values[a]) else _percent(values[a]) for a in broken)
    same = f"The loss is the same in FP8: {named(inside)}, inside the band of {threshold}"
    return "pass", f"{same}; the deliberately broken FP8 ({rejected}) was rejected."


def _percent(value: float) -> str:
    return f"{value:.2g} %" if value < 0.1 else f"{value:.3g} %" if value < 100 else f"{value:.0f} %"
