"""What a preset with `check = true` answers: does every arm run here, convert what it should, and learn?"""

import math
from collections.abc import Collection, Mapping

from labkit.compare.arms import Arm
from labkit.compare.preset import Preset
from labkit.compare.repeats import LEARNED
from labkit.precision.config import PLAIN
from labkit.record.schema import Verdict

STATISTIC = f"an arm learns if its last held-out loss is at least {LEARNED:.0%} below its first training loss"


def judge_check(
    arms: Mapping[str, Arm], preset: Preset, missing: Mapping[str, str], waiting: Collection[str]
) -> Verdict:
    """The verdict over trained arms: pass, fail, incomplete. missing: arm -> why not here; waiting: for another call."""
    out, wrong, label = Verdict(statistic=STATISTIC), [], {name: arm.label for name, arm in preset.arms.items()}
    for name, arm in arms.items():
        if arm.role in ("broken", "fine"):
            continue  # it need not learn
        if arm.status == "finished" and arm.data:
            # The first training loss is that of the first weights, and there is one whenever the first evaluation is.
            began, ended = next((loss for _, loss in arm.data.series("loss")), math.nan), arm.val_loss
            if preset.config(name).precision.backend not in PLAIN and not arm.converted:
                wrong.append(f"{arm.label} converted nothing")
            if ended is None or not math.isfinite(ended):
                wrong.append(f"{arm.label} has no finite held-out loss")
            elif ended > began * (1 - LEARNED):
                wrong.append(f"{arm.label} did not learn, its loss went from {began:.3f} to {ended:.3f}")
            loss = "not measured" if ended is None else f"from {began:.4f} to {ended:.4f}"
            out.reasons.append(f"{arm.label}: {arm.converted or 0} linears converted, loss {loss}.")
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
