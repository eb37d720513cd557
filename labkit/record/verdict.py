"""The verdict: is FP8's loss the same as BF16's? A paired comparison with two controls, so that it can fail.

All arms see the same data in the same order and start from the same weights. Their held-out losses, measured at the same
steps on the same batches, are therefore paired, and what is judged is the gap at each step:

    gap_arm[t] = 100 * (loss_arm[t] - loss_bf16[t]) / loss_bf16[t]             per cent
    value_arm  = sqrt(mean over t >= from_step of gap_arm[t]^2)                per cent

The root mean square is two-sided on purpose: training that comes out "better" in FP8 by more than rounding explains is
not the same training either. `from_step` leaves out the first half, where no arm has had time to drift.

How large a gap is nothing? The **negative control** tells: a BF16 twin whose initial weights were moved by a bf16 rounding
error. E4M3 keeps 3 mantissa bits where bf16 keeps 7, so its rounding errors are 2^(7-3) = 16 times larger, and to first
order so is what they do to the loss:

    band = min(16 * value_twin, 0.25)                                          per cent

The 0.25 % is DeepSeek-V3's published FP8 gap (arXiv:2412.19437, section 3.3): in a long run two BF16 trainings drift
apart until sixteen times their distance would excuse anything, so the band never grows beyond what has been accepted.
If the twin alone is beyond 0.25 %, rounding drowns what is asked for: there is no power to pass anything.

Could this comparison have said no? The **positive control** tells: an arm whose FP8 is deliberately broken must land
outside the band. If it does not, there is no power, and the verdict says that instead of a pass. The band itself is the
smallest gap that would have been noticed.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

ROUNDING_RATIO = 2 ** (7 - 3)       # mantissa bits: bf16 has 7, E4M3 has 3
PUBLISHED = 0.25                    # per cent
NOISE_FLOOR = 1e-4                  # per cent: a bf16 loss near 5 printed from fp32 sums cannot be told apart below this

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


def judge(heldout: Mapping[str, Mapping[int, float]], roles: Mapping[str, str], labels: Mapping[str, str],
          missing: Mapping[str, str] | None = None) -> dict:
    """The verdict over finished arms.

    heldout: arm -> {step: mean held-out loss in nats}; roles: arm -> baseline, twin, candidate or broken (every arm that was
    asked for, finished or not); labels: arm -> name for people; missing: arm -> why it can have no result here (it is named
    among the reasons; the verdict is over the others).
    Returns the plain dict that run.json, the table and the report read: word (pass, fail, no-power, incomplete), sentence,
    reasons, statistic, band, from_step, arms {gap, value, word, sentence}.
    """
    missing = dict(missing or {})
    of_role = {role: [a for a in roles if roles[a] == role and a in heldout]
               for role in ("baseline", "twin", "candidate", "broken")}
    out = {"word": "incomplete", "sentence": "", "reasons": [], "band": None, "from_step": None, "arms": {},
           "statistic": "root mean square of the per-step held-out loss gap against BF16, second half of the run, per cent"}
    if not of_role["baseline"]:
        out["sentence"] = "No verdict: the BF16 baseline has no result to hold the others against."
        return out
    baseline = heldout[of_role["baseline"][0]]
    if not baseline or not all(map(math.isfinite, baseline.values())):
        out["sentence"] = "No verdict: the BF16 baseline itself has no finite held-out loss."
        return out
    from_step = max(baseline) // 2 + 1
    out["from_step"] = from_step
    series = {arm: gaps(heldout[arm], baseline) for arm in heldout if roles.get(arm) in ("twin", "candidate", "broken")}
    values = {arm: rms(series[arm], from_step) for arm in series}
    for arm in series:
        out["arms"][arm] = {"gap": [list(point) for point in series[arm]], "value": values[arm],
                            "word": "reference" if roles[arm] == "twin" else "no-data", "sentence": ""}

    twins = [values[a] for a in of_role["twin"] if math.isfinite(values[a])]
    if not twins:
        out["sentence"] = "No verdict: without a BF16 twin there is no band, so no gap can be called large or small."
        return out
    # Several twins are several draws of the same error: their mean square is the better estimate.
    twin = math.sqrt(sum(v * v for v in twins) / len(twins))
    drowned = twin > PUBLISHED
    explained = max(ROUNDING_RATIO * twin, NOISE_FLOOR)
    capped = not drowned and explained > PUBLISHED
    threshold = PUBLISHED if capped else explained
    out["band"] = {
        "low": -threshold, "high": threshold, "threshold": threshold, "from": of_role["twin"][0],
        "name": "the published limit" if capped else f"{ROUNDING_RATIO} x the twin's {_percent(twin)}"}

    for arm in of_role["twin"]:
        out["arms"][arm]["sentence"] = (f"{labels[arm]}: a rounding error in the initial weights moved the held-out loss "
                                        f"by {_percent(values[arm])}.")
    for arm in (*of_role["candidate"], *of_role["broken"]):
        entry, value = out["arms"][arm], values[arm]
        if math.isnan(value):
            entry["sentence"] = f"{labels[arm]}: no held-out loss in the second half of the run."
            continue
        entry["word"] = "inside" if value <= threshold else "outside"
        gap = "became infinite or NaN" if math.isinf(value) else f"is {_percent(value)}"
        entry["sentence"] = f"{labels[arm]}: the gap {gap}, {entry['word']} the band of {_percent(threshold)}."

    out["word"], out["sentence"] = _word(out, of_role, roles, labels, values, threshold, missing)
    if drowned and out["word"] == "pass":
        out["word"] = "no-power"
        out["sentence"] = (f"This comparison has no power: a rounding error in the initial weights alone moves the held-out loss by "
                           f"{_percent(twin)}, more than the {PUBLISHED} % that is asked for: train longer, or at a lower "
                           "learning rate.")
    out["reasons"] = [e["sentence"] for e in out["arms"].values() if e["sentence"]]
    out["reasons"] += [f"{labels.get(arm, arm)}: no result, {why}." for arm, why in missing.items()]
    return out


def _word(out: dict, of_role: dict, roles: Mapping[str, str], labels: Mapping[str, str], values: Mapping[str, float],
          threshold: float, missing: Mapping[str, str]) -> tuple[str, str]:
    """The one word and the one sentence."""
    band = _percent(threshold)
    candidates = [a for a in of_role["candidate"] if out["arms"][a]["word"] != "no-data"]
    broken = [a for a in of_role["broken"] if out["arms"][a]["word"] != "no-data"]
    missed = [a for a in broken if out["arms"][a]["word"] == "inside"]
    lost = [labels[a] for a in roles if roles[a] == "candidate" and a not in (*candidates, *missing)]
    if not candidates:
        return "incomplete", "No verdict: no FP8 arm has a result yet."
    outside = [a for a in candidates if out["arms"][a]["word"] == "outside"]
    if outside:
        told = "; ".join(f"{labels[a]} " + ("diverged" if math.isinf(values[a]) else f"differs by {_percent(values[a])}")
                         for a in outside)
        return "fail", f"The loss is not the same in FP8: {told}, where rounding explains at most {band}."
    if not broken:
        return "no-power", ("This comparison has no power: no deliberately broken FP8 arm ran, so nothing shows that it "
                            "could have said no.")
    if missed:
        told = ", ".join(f"{labels[a]} ({_percent(values[a])})" for a in missed)
        return "no-power", (f"This comparison has no power: the deliberately broken arm, {told}, passed as well, inside the "
                            f"band of {band}.")
    if lost:
        return "incomplete", f"No verdict yet: no result from {', '.join(lost)}."
    told = "; ".join(f"{labels[a]} differs by {_percent(values[a])}" for a in candidates)
    rejected = "; ".join("diverged" if math.isinf(values[a]) else _percent(values[a]) for a in broken)
    return "pass", (f"The loss is the same in FP8: {told}, inside the band of {band} that rounding explains; the "
                    f"deliberately broken FP8 ({rejected}) was rejected.")


def _percent(value: float) -> str:
    return f"{value:.2g} %" if value < 0.1 else f"{value:.3g} %" if value < 100 else f"{value:.0f} %"
