"""The verdict from repeated runs: is a candidate's loss the same as the baseline's, and how sure is that?

first look     all first runs of BF16 and of a candidate are there: same, different or undecided
second look    an undecided candidate gets `more` runs and is judged once more, when all of them are there
control        FP8 that is broken on purpose must differ from BF16, or the comparison has no power
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from labkit.compare.arms import Arm
from labkit.compare.preset import ArmConfig, Preset, Repeat
from labkit.compare.statistic import ACCEPTED, Answer, Spread, answers, tail
from labkit.precision.config import PLAIN
from labkit.record.schema import Band, Judged, Verdict

GROSS = 10 * ACCEPTED  # per cent; a control stops after two evaluations in a row further than this from every BF16 run
FEWEST = 5  # judged evaluations
LEARNED = 0.05  # the baseline's held-out loss must fall by this share, first to last evaluation
STATISTIC = (
    "gap of the mean logarithm of the held-out loss over the second half of the run, mean over runs, in per cent; its "
    "error from repeated runs; same: its interval lies within 0.25 %; different: zero is excluded at 1 %"
)
CHECK = f"an arm learns if its last held-out loss is at least {LEARNED:.0%} below its first training loss"


@dataclass
class Family:
    """The runs of one arm, by name: those of the first look and those of the second."""

    label: str
    role: str
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[str]:
        return [*self.first, *self.second]


Families = Mapping[str, Family]
Means = Mapping[str, float]  # of each run: the mean logarithm of its judged losses


def families(arms: Mapping[str, ArmConfig]) -> dict[str, Family]:
    """The arms with their runs."""
    out = {name: Family(arm.label, arm.role) for name, arm in arms.items() if not arm.of}
    for name, arm in arms.items():
        (out[arm.of or name].second if arm.look > 1 else out[arm.of or name].first).append(name)
    return out


def spread_of(repeat: Repeat) -> Spread | None:
    known = repeat.spread
    return Spread(known.baseline, known.candidate, known.weight) if known else None


def rejected_at(control: Mapping[int, float], baseline: Sequence[Mapping[int, float]]) -> tuple[int, float] | None:
    """(step, its gap in per cent) where a control was rejected as grossly wrong; None: it was not."""
    before = False
    for step, own in sorted(control.items()):
        there = [run[step] for run in baseline if step in run]
        gaps = [100 * (own / loss - 1) if math.isfinite(own) else math.inf for loss in there]
        if gaps:
            nearest = min(gaps, key=abs)
            if before and abs(nearest) > GROSS:
                return step, nearest
            before = abs(nearest) > GROSS
    return None


def judge(
    heldout: Mapping[str, Mapping[int, float]],
    preset: Preset,
    requested: Sequence[str],
    missing: Mapping[str, str] = {},
) -> Verdict:
    """The verdict over finished runs, with each one's gap by step against the mean of BF16's.

    heldout: run -> {step: val_loss in nats}; requested: candidates to be judged, finished or not; missing: arm -> why
    it can have no result here.
    """
    assert preset.repeat
    all_of = families(preset.arms)
    known = [name for name, family in all_of.items() if family.role != "candidate" or name in requested]
    missing = {name: why for name, why in missing.items() if name in known}
    requested = [name for name in requested if name not in missing]
    base = next(family for family in all_of.values() if family.role == "baseline")
    band = Band(low=-ACCEPTED, high=ACCEPTED, threshold=ACCEPTED, name="what is accepted")
    out = Verdict(statistic=STATISTIC, asked=len(requested), candidates=requested, band=band)
    have = [heldout[run] for run in base.first if run in heldout]
    if not have or not all(run and all(map(_finite, run.values())) for run in have):
        why = "has no finite held-out loss in one of its runs" if have else "has no result to hold the others against"
        out.sentence = f"No verdict: the {preset.baseline_format} baseline {why}."
        return out
    half = out.from_step = max(max(run) for run in have) // 2 + 1
    ys = {run: tail(losses, half) for run, losses in heldout.items()}
    out.arms = {run: Judged(gap=gaps_of(losses, have)) for run, losses in heldout.items()}
    ours = [ys[run] for run in base.first if run in ys]
    if base.first[0] in ys:
        _put(out, base.first[0], Judged(word="baseline", runs=len(ours), value=0.0))
    if len(have) < len(base.first):
        out.sentence = f"No verdict: {len(have)} of {len(base.first)} {preset.baseline_format} runs are finished."
        return out

    found = _looks(ours, requested, all_of, ys, preset.repeat)
    candidates = {name: [ys[run] for run in all_of[name].first] for name in found}
    control = ""
    for name, family in all_of.items():
        there = [run for run in family.runs if run in ys]  # the first of them may have failed
        if family.role in ("broken", "fine", "reference") and there:
            prior, own = spread_of(preset.repeat), [ys[run] for run in there]
            answer = answers(ours, {**candidates, name: own}, prior, plan=False)[name]
            judged = _judged(family, answer, 1)
            if family.role == "broken":
                at = rejected_at(heldout[there[0]], have)
                judged.word = "rejected" if at or answer.word == "different" else "not rejected"
                how = f"was {judged.word}: {interval(judged.value, judged.low, judged.high)}"
                if at:
                    judged.step, judged.value, judged.low, judged.high = *at, None, None
                    how = f"was rejected at step {at[0]}: {'diverged' if math.isinf(at[1]) else f'{at[1]:+.0f} % off'}"
                judged.sentence = control = f"{family.label}, the control, {how}."
            _put(out, there[0], judged)
    for name, (answer, look) in found.items():
        _put(out, name, _judged(all_of[name], answer, look))
    out.judged = len(found)
    lost = [all_of[name].label for name in requested if name not in found]
    out.word, out.sentence = _word(out, requested, list(found), all_of, lost, preset.format)
    weak = weakness(have[0], half)
    if out.word in ("pass", "undecided") and weak:
        out.word, out.sentence = "no-power", f"This comparison has no power: {weak}."
    elif control:
        out.sentence += f" {control}"
    out.reasons = [judged.sentence for judged in out.arms.values() if judged.sentence]
    out.reasons += [f"{preset.arms[arm].label}: no result, {why}." for arm, why in missing.items()]
    return out


def judge_check(
    arms: Mapping[str, Arm], preset: Preset, missing: Mapping[str, str], waiting: Collection[str]
) -> Verdict:
    """The verdict over trained arms: pass, fail, incomplete. missing: arm -> why; waiting: for another call."""
    out, wrong, label = Verdict(statistic=CHECK), [], {name: arm.label for name, arm in preset.arms.items()}
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


def second_look(heldout: Mapping[str, Mapping[int, float]], preset: Preset, arm: str, requested: Sequence[str]) -> str:
    """What becomes of a run of the second look: "due" (its arm is undecided), "decided", or "waits"."""
    all_of, of = families(preset.arms), preset.arms[arm].of or arm
    base = next(family for family in all_of.values() if family.role == "baseline")
    if not all(run in heldout for run in (*base.first, *all_of[of].first)):
        return "waits"
    first = {run: losses for run, losses in heldout.items() if preset.arms[run].look == 1}
    judged = judge(first, preset, list(dict.fromkeys((*requested, of)))).arms.get(of)
    return "due" if judged and judged.word == "undecided" else "decided"


def gaps_of(losses: Mapping[int, float], baseline: Sequence[Mapping[int, float]]) -> list[tuple[int, float]]:
    """[(step, gap in per cent)] against the mean logarithm of the baseline's runs; inf where a loss is not finite."""
    out = []
    for step, own in sorted(losses.items()):
        if there := [math.log(run[step]) for run in baseline if step in run]:
            gap = 100 * math.expm1(math.log(own) - math.fsum(there) / len(there)) if _finite(own) else math.inf
            out.append((step, gap))
    return out


def interval(gap: float | None, low: float | None = None, high: float | None = None) -> str:
    """ "+0.03 % [-0.05, +0.11]"; "diverged"; "" without a gap."""
    if gap is None or not math.isfinite(gap):
        return "" if gap is None or math.isnan(gap) else "diverged"
    if low is None or high is None or math.isinf(low):
        return _signed(gap) + " %"
    return f"{_signed(gap)} % [{_end(low)}, {_end(high)}]"


def weakness(baseline: Mapping[int, float], from_step: int) -> str:
    """Why nothing may be passed, whatever the gaps are; "" if nothing speaks against it."""
    judged, first, last = sum(step >= from_step for step in baseline), baseline[min(baseline)], baseline[max(baseline)]
    if judged < FEWEST:
        return f"only {judged} evaluations are judged, and it takes {FEWEST}: train longer, or evaluate more often"
    fell = f"the baseline's held-out loss only went from {first:.3f} to {last:.3f}"
    return f"{fell}, and models that hardly learn hardly differ: train longer" if last > first * (1 - LEARNED) else ""


# ---- parts


def _finite(loss: float) -> bool:
    return math.isfinite(loss) and loss > 0


def _end(value: float) -> str:
    """An interval's end: one beyond what is accepted is not rounded onto it, as if it were within."""
    beyond = abs(value) > ACCEPTED >= round(abs(value), 2)
    return _signed(math.copysign(ACCEPTED + 0.01, value) if beyond else value)


def _signed(value: float) -> str:
    """Two decimals, none from 10 on; never a minus before zeros."""
    digits = 0 if abs(value) >= 10 else 2
    return f"{0.0 if abs(value) < 0.5 * 10**-digits else value:+.{digits}f}"


def _looks(
    ours: Sequence[float], requested: Sequence[str], all_of: Families, ys: Means, repeat: Repeat
) -> dict[str, tuple[Answer, int]]:
    """(answer, at which look) for each candidate whose first look is complete; the others count all the same."""
    names = {name: all_of[name].first if ys.keys() >= {*all_of[name].first} else [] for name in requested}

    def judged(looks: int) -> dict[str, Answer]:
        runs = {name: [ys[run] for run in of] for name, of in names.items()}
        return answers(ours, runs, spread_of(repeat), looks)

    found = {name: (answer, 1) for name, answer in judged(2 if repeat.more else 1).items() if names[name]}
    undecided = [name for name, (answer, _) in found.items() if answer.word == "undecided"]
    again = [name for name in undecided if all_of[name].second and ys.keys() >= {*all_of[name].second}]
    names |= {name: all_of[name].runs for name in again}
    second = judged(2) if again else {}
    return found | {name: (second[name], 2) for name in again}


def _judged(family: Family, answer: Answer, look: int) -> Judged:
    open_ = answer.word == "undecided" and look == 1 and family.second
    after = f" after {answer.runs} runs: {len(family.second)} more will be judged with them" if open_ else ""
    known = {key: getattr(answer, key) for key in ("word", "low", "high", "error", "runs", "needed")}
    sentence = f"{family.label}: {answer.word}{after}, {interval(answer.gap, answer.low, answer.high)}."
    return Judged(**known, value=answer.gap, look=look, sentence=sentence)


def _put(out: Verdict, run: str, judged: Judged) -> None:
    """Put what was found over all runs of an arm to the gaps of its first one."""
    out.arms[run] = judged.model_copy(update={"gap": out.arms[run].gap})


def _word(
    out: Verdict, requested: Sequence[str], found: list[str], all_of: Families, lost: list[str], form: str
) -> tuple[str, str]:
    """The one word and the one sentence."""
    if not requested:
        return "incomplete", f"No verdict: no {form} arm was to be judged."
    if not found:
        return "incomplete", f"No verdict: no result yet from {', '.join(lost)}."
    said = f"{len(found)} of {len(requested)} {form} recipes judged."
    words = {name: out.arms[name].word for name in found}
    begins = {"same": "The loss is the same with ", "different": "It is not with ", "undecided": "Undecided: "}
    for word, begin in begins.items():
        each = [(all_of[name].label, out.arms[name]) for name in found if words[name] == word]
        named = "; ".join(f"{label} {interval(one.value, one.low, one.high)}" for label, one in each)
        said += f" {begin}{named}." if each else ""
    if lost:
        said += f" No result yet from {', '.join(lost)}."
    if "different" in words.values():
        return "fail", said
    firsts = [family.first[0] for family in all_of.values() if family.role == "broken"]
    controls = [out.arms[run].word for run in firsts if run in out.arms]
    why = f"no deliberately broken {form} arm ran, so nothing shows that it could have said no"
    if "not rejected" in controls:
        why = f"{form} that is broken on purpose was not rejected"
    elif lost or "rejected" in controls:
        return "incomplete" if lost else "undecided" if "undecided" in words.values() else "pass", said
    return "no-power", f"This comparison has no power: {why}. {said}"
