"""The verdict can say each of its words, and says the right one."""

import math

import pytest

from week16_fp8.given.one_run import PUBLISHED, ROUNDING_RATIO, gaps, judge, rms

STEPS = range(10, 101, 10)
ROLES = {"bf16": "baseline", "twin": "twin", "fp8": "candidate", "broken": "broken"}
LABELS = {"bf16": "BF16", "twin": "BF16 twin", "fp8": "FP8", "broken": "broken FP8"}
BASE = {step: 6.0 - 0.01 * step for step in STEPS}


def shifted(percent: float, first_half: float | None = None) -> dict[int, float]:
    """A held-out series that lies `percent` above the baseline (in the first half: `first_half`)."""

    def gap(step):
        return percent if first_half is None or step > 50 else first_half

    return {step: loss * (1 + gap(step) / 100) for step, loss in BASE.items()}


def verdict(**arms):
    return judge({"bf16": BASE, **arms}, ROLES, LABELS)


def test_gap_is_relative_signed_and_in_per_cent():
    found = [(10, pytest.approx(2.0)), (20, pytest.approx(-2.0))]
    assert gaps({10: 5.1, 20: 4.9}, {10: 5.0, 20: 5.0, 30: 5.0}) == found


def test_value_is_the_root_mean_square_of_the_second_half():
    assert rms([(10, 100.0), (60, 3.0), (70, -4.0)], from_step=51) == pytest.approx(math.sqrt(12.5))
    out = verdict(twin=shifted(0.002, first_half=7.0), fp8=shifted(0.01), broken=shifted(3))
    assert out["from_step"] == 51
    assert out["arms"]["twin"]["value"] == pytest.approx(0.002), "the first half does not count"


ZIGZAG = {step: loss * (1 + (0.2 if step % 20 else -0.2) / 100) for step, loss in BASE.items()}
SAID = [  # perturbed baseline, FP8 and the negative control; the word, and what the sentence names
    ((shifted(0.004), shifted(0.03), shifted(0.5)), "pass", ""),
    ((shifted(0.004), shifted(0.1), shifted(5)), "fail", "FP8 differs by 0.1 %"),
    ((shifted(0.004), ZIGZAG, shifted(5)), "fail", "FP8"),  # gaps of both signs do not cancel
    ((shifted(0.004), shifted(0.03), shifted(0.05)), "no-power", "broken FP8 (0.05 %)"),
    ((shifted(0.3), shifted(0.2), shifted(50)), "no-power", "rounding error"),
    ((shifted(0.3), shifted(20), shifted(50)), "fail", "FP8"),  # far beyond even that noise
    ((None, shifted(0.01), shifted(5)), "incomplete", "without a BF16 twin"),
    ((shifted(0.01), None, shifted(5)), "incomplete", "no FP8 arm"),
]


@pytest.mark.parametrize("arms, word, said", SAID)
def test_the_verdict_is_one_of_its_words(arms, word, said):
    out = verdict(**{name: arm for name, arm in zip(("twin", "fp8", "broken"), arms) if arm})
    assert out["word"] == word and said in out["sentence"]
    if word == "pass":
        assert out["band"]["threshold"] == pytest.approx(ROUNDING_RATIO * 0.004)
        assert (out["arms"]["fp8"]["word"], out["arms"]["broken"]["word"]) == ("inside", "outside")


def test_beyond_what_is_accepted_and_within_what_rounding_explains_is_undecided():
    out = verdict(twin=shifted(0.1), fp8=shifted(0.3), broken=shifted(5))
    assert out["band"]["threshold"] == PUBLISHED and out["arms"]["fp8"]["word"] == "undecided"
    assert out["word"] == "no-power" and "1.6 %" in out["sentence"]
    assert verdict(twin=shifted(0.1), fp8=shifted(0.2), broken=shifted(5))["word"] == "pass"
    assert verdict(twin=shifted(0.1), fp8=shifted(1.7), broken=shifted(5))["word"] == "fail"
    unrejected = verdict(twin=shifted(0.1), fp8=shifted(0.2), broken=shifted(0.5))
    assert unrejected["word"] == "no-power", "nor was broken rejected"


@pytest.mark.parametrize(
    "base, why",
    [
        ({step: loss for step, loss in BASE.items() if step > 60}, "only 4 evaluations"),
        ({step: 7.0 - 0.0001 * step for step in STEPS}, "hardly learn"),
    ],
)
def test_too_few_evaluations_or_models_that_hardly_learn_have_no_power(base, why):
    gaps = {"bf16": 0, "twin": 0.004, "fp8": 0.01, "broken": 5}
    arms = {name: {step: loss * (1 + gap / 100) for step, loss in base.items()} for name, gap in gaps.items()}
    out = judge(arms, ROLES, LABELS)
    assert out["word"] == "no-power" and why in out["sentence"]


def test_another_bf16_is_shown_and_not_judged():
    roles, labels = {**ROLES, "te": "reference"}, {**LABELS, "te": "TE BF16"}
    heldout = {"bf16": BASE, "twin": shifted(0.004), "te": shifted(0.9), "fp8": shifted(0.01), "broken": shifted(5)}
    out = judge(heldout, roles, labels)
    assert out["word"] == "pass" and labels["te"] not in out["sentence"] and out["arms"]["te"]["word"] == "outside"
    del heldout["fp8"], roles["fp8"]
    without = judge(heldout, roles, labels)
    assert without["word"] == "incomplete", "a BF16 arm is no FP8 result"


def test_two_twins_are_pooled():
    heldout = {"bf16": BASE, "twin": shifted(0.003), "twin2": shifted(0.004)}
    heldout |= {"fp8": shifted(0.01), "broken": shifted(5)}
    out = judge(heldout, {**ROLES, "twin2": "twin"}, {**LABELS, "twin2": "another"})
    assert out["band"]["threshold"] == pytest.approx(ROUNDING_RATIO * math.sqrt((0.003**2 + 0.004**2) / 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_arm_is_outside(bad):
    out = verdict(twin=shifted(0.004), fp8={**shifted(0.01), 100: bad}, broken=shifted(5))
    assert out["word"] == "fail" and out["arms"]["fp8"]["value"] == math.inf and "diverged" in out["sentence"]
    assert verdict(twin=shifted(0.004), fp8=shifted(0.01), broken={**BASE, 100: bad})["word"] == "pass"


def test_an_identical_twin_does_not_make_a_band_of_zero():
    """Bitwise equal twins happen (perturbation below bf16's step): then what can be measured is the floor."""
    out = verdict(twin=dict(BASE), fp8=dict(BASE), broken=shifted(5))
    assert out["word"] == "pass" and 0 < out["band"]["threshold"] < 1e-3


def test_an_unfinished_candidate_keeps_the_verdict_open_and_an_impossible_one_does_not():
    roles, labels = {**ROLES, "te": "candidate"}, {**LABELS, "te": "TE"}
    heldout = {"bf16": BASE, "twin": shifted(0.004), "fp8": shifted(0.01), "broken": shifted(5)}
    unfinished = judge(heldout, roles, labels)
    assert unfinished["word"] == "incomplete" and labels["te"] in unfinished["sentence"]
    missing = {"te": "Transformer Engine is not installed"}
    impossible = judge(heldout, roles, labels, missing=missing)
    assert impossible["word"] == "pass" and labels["te"] not in impossible["sentence"]
    assert any(missing["te"] in reason for reason in impossible["reasons"])
