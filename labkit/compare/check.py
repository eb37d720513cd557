"""What a preset with `check = true` answers: does every arm run here, convert what it should, and learn?

Nothing is said of whether losses are the same: that takes repeated runs (labkit.compare.repeats).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from labkit.compare.arms import Arm, heldout_of
from labkit.compare.preset import Preset
from labkit.compare.repeats import LEARNED
from labkit.precision.config import PLAIN
from labkit.record.schema import Verdict

STATISTIC = f"an arm learns if its held-out loss falls by at least {LEARNED:.0%}, first to last evaluation"


def judge_check(
    arms: Mapping[str, Arm], preset: Preset, missing: Mapping[str, str], waiting: Collection[str]
) -> Verdict:
    """The verdict over the arms that were trained. missing: arm -> why this machine cannot run it; waiting: arms that
    are left for another call. word: pass (all run, convert and learn), fail, incomplete (one has no result yet)."""
    out, wrong, label = Verdict(statistic=STATISTIC), [], {name: arm.label for name, arm in preset.arms.items()}
    for name, arm in arms.items():
        if arm.role in ("broken", "fine"):
            continue  # it need not learn
        if arm.status == "finished" and arm.data:
            found = _what_is_wrong(arm, preset.config(name).precision.backend not in PLAIN)
            wrong += [f"{arm.label} {found}"] if found else []
            held = heldout_of(arm.data)
            fell = f"{held[min(held)]:.4f} to {held[max(held)]:.4f}" if held else "not measured"
            out.reasons.append(f"{arm.label}: {arm.converted or 0} linears converted, held-out loss {fell}.")
        elif arm.status == "failed":
            wrong.append(f"{arm.label} failed")
    done = sum(arm.status == "finished" for arm in arms.values())
    open_ = [name for name, arm in arms.items() if name in waiting or arm.status in ("paused", "interrupted")]
    out.word = "fail" if wrong else "incomplete" if open_ or not done else "pass"
    out.sentence = f"{done} of {len(arms)} arms run, convert and learn."
    if wrong:
        out.sentence = f"Not all arms work here: {'; '.join(wrong)}."
    elif out.word == "incomplete":
        names = ", ".join(label[name] for name in open_) or "any arm"
        out.sentence = f"No verdict: no result yet from {names}."
    out.reasons += [f"{label[name]}: no result, {why}." for name, why in missing.items()]
    return out


def _what_is_wrong(arm: Arm, converts: bool) -> str:
    held = heldout_of(arm.data) if arm.data else {}
    if converts and not arm.converted:
        return "converted nothing"
    if not held or not all(map(math.isfinite, held.values())):
        return "has no finite held-out loss"
    if held[max(held)] > held[min(held)] * (1 - LEARNED):
        return f"did not learn, its held-out loss went from {held[min(held)]:.3f} to {held[max(held)]:.3f}"
    return ""
