"""The verdict on speed, in words; minutes and money; the picture: all from plain rows."""

import re

import pytest

from labkit.compare.budget import REPORT_SECONDS, Budget, predict
from labkit.compare.figures.rates import milliseconds
from labkit.compare.preset import load_preset
from labkit.compare.speed_verdict import advice, judge_speed, unlike_window
from labkit.errors import LabError
from labkit.record.kernels import CLASSES, Breakdown
from labkit.record.schema import Item, TimedRow
from labkit.train.data.corpus import rows_per_micro_batch

# ---- the verdict


def arm(label, rate, role="candidate", library="te", spread=0.0, **more):
    step = 1000 / rate
    times = {"step_p10": step * (1 - spread), "step_p50": step, "step_p90": step * (1 + spread)}
    return TimedRow(label=label, role=role, library=library, tokens_per_s=rate, attention="auto", **times, **more)


def kernels(fp8=True, span_ms=100.0, **classes):
    return Breakdown(span_ms=span_ms, classes_ms=classes, evidence={"fp8_gemm": fp8})


BASE = {"bf16": arm("BF16", 100, "baseline", "plain"), "te-bf16": arm("TE BF16", 110, "reference")}


def test_the_gain_is_shown_against_both_baselines():
    base = BASE["bf16"].model_copy(update={"error": 0.003})
    rows = {**BASE, "bf16": base, "te": arm("TE FP8", 150, error=0.004), "ao": arm("AO FP8", 120, library="torchao")}
    found = judge_speed(rows)
    assert (found.word, found.best) == ("faster", "te")
    te = found.ratios["te"]
    assert (te.baseline, te.error, te.library) == (1.5, pytest.approx(1.5 * 0.005), 150 / 110)
    assert found.ratios["ao"].library is None, "torchao's BF16 was not timed: there is no such baseline"


@pytest.mark.parametrize(
    "rate, spread, word", [(104, 0.03, "same"), (107, 0.03, "faster"), (93, 0.03, "slower"), (97, 0.03, "same")]
)
def test_a_difference_within_the_spread_of_the_steps_is_none(rate, spread, word):
    rows = {"bf16": arm("BF16", 100, "baseline", "plain", spread), "te": arm("TE FP8", rate, spread=spread)}
    assert judge_speed(rows).word == word  # both half-spreads together: 6 %


def test_without_the_baseline_or_fp8_there_is_no_verdict():
    assert judge_speed({"te": arm("TE FP8", 150)}).word == "incomplete"
    found = judge_speed(BASE, {"TE FP8": "it failed", "AO": "left for another call"})
    assert found.word == "incomplete"
    assert {"TE FP8: no result, it failed.", "AO: no result, left for another call."} <= set(found.reasons)


def test_an_fp8_arm_without_fp8_kernels_is_shown():
    for role, belongs in (("candidate", True), ("reference", False)):
        rows = [arm("TE", 150, role, kernels=found) for found in (None, kernels(belongs), kernels(not belongs))]
        plain, right, wrong = (judge_speed({**BASE, "te": row}).reasons[-1] for row in rows)
        assert right == plain != wrong and ("NO FP8 product" in wrong) == belongs


def test_advice_follows_where_the_time_went():
    row = arm("TE FP8", 150, kernels=kernels(**{"idle": 20.0, "quantize/cast": 30.0, "attention": 1.0}))
    tips = advice(row, 1.5, "faster")
    assert [t.split(":")[0] for t in tips] == ["Casting takes 30% of the step", "The GPU waits for 20% of the step"]
    short = advice(row.model_copy(update={"shortages": 36}), 1.5, "faster")[1]
    assert ["fewer sequences" in tip for tip in (tips[1], short)] == [False, True]
    fused = advice(row.model_copy(update={"fused": True}), 1.5, "faster")
    assert ["fused = true" in tip for tip in (tips[0], fused[0])] == [True, False]
    assert [len(advice(arm("x", 1), ratio, "faster")) for ratio in (1.05, 1.5)] == [1, 0], "hardly worth it: one tip"


def test_a_profiled_step_that_is_no_other_is_shown_and_its_gaps_advise_nothing():
    """An H100 near its last GiB: one of BF16's two profiled steps took 0.71 s, those before it 0.57."""

    def profiled(span_ms):
        return kernels(span_ms=span_ms, **{"idle": 90.0, "quantize/cast": 100.0})

    usual, odd = (arm("TE FP8", 1000 / 0.565, kernels=profiled(span)) for span in (580.0, 636.0))
    shown = [judge_speed({**BASE, "te": row}).reasons for row in (usual, odd)]
    (more,) = unlike_window({"te": odd})
    assert shown[1] == [more, *shown[0]] and more.startswith("TE FP8: ") and "13% longer" in more
    tips = [[tip.split()[0] for tip in advice(row, 1.5, "faster")] for row in (usual, odd)]
    assert tips == [["Casting", "The"], ["Casting"]], "the GPU's waiting is no advice"
    base = arm("BF16", 1000 / 0.565, "baseline", "plain", kernels=profiled(636.0))
    assert judge_speed({"bf16": base}).reasons == unlike_window({"bf16": base}) != []


def test_several_gpus_are_shown_by_the_one_and_a_window_that_scatters_is_named():
    rows = {"bf16": arm("BF16", 100, "baseline", "plain", ranks=2, mfu={"x": 0.4})}
    found = judge_speed({**rows, "te": arm("TE FP8", 150, ranks=2, mfu={"x": 0.4}, spread=0.09, windows=2)})
    calm = judge_speed({**rows, "te": arm("TE FP8", 150, ranks=2, spread=0.01)})
    assert [len(one.reasons) for one in (found, calm)] == [2, 1]
    assert "75 tokens/s a rank" in calm.sentence


# ---- minutes and money


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_an_arm_starts_only_if_it_fits_and_the_rest_is_scaled_by_what_was_seen():
    clock = Clock()
    budget = Budget(minutes=10, price=3.0, clock=clock)
    assert budget.deadline == 1000 + 600 - REPORT_SECONDS
    first, second, third = (Item(part="safety", arm=name, predicted_s=200.0) for name in "abc")
    assert budget.fits(first)
    clock.now += 300  # it took half as long again
    budget.took(first, 300.0)
    assert budget.factor("safety") == budget.factor("speed") == 1.5
    assert not budget.fits(second), "200 s predicted are 300 here, and 290 are left"
    small = Item(part="safety", arm="d", predicted_s=180.0)
    assert budget.fits(small) and budget.left == [second]
    assert Budget().deadline is None and Budget().fits(Item(part="speed", arm="a", predicted_s=1e9))
    assert budget.describe(1200) == "20.0 minutes, 1.00 at 3.00 an hour"
    assert [item.measured_s for item in budget.call().items] == [300.0, None] and third.measured_s is None


def test_a_prediction_by_hand():
    preset = load_preset("h100")
    batch = 20 * 4096  # by the memory of an H200
    item = predict(preset, "speed", "te-delayed", memory_gib=139.8)
    assert item.predicted_s == pytest.approx(24 + (10 + 20) / 2 + 10 * batch / 94000)
    tokens = 64 * 1024 * (400 + 16 * 4 / 3)  # 16 evaluations of 4 batches, a third of the work each
    assert predict(preset, "safety", "bf16").predicted_s == pytest.approx(24 + tokens / 465000)
    assert predict(preset, "safety", "bf16-2").predicted_s == pytest.approx(24 + tokens / 465000), "its second run"
    stopped = 64 * 1024 * (50 + 2 * 4 / 3)
    rejected = predict(preset, "safety", "broken").predicted_s
    assert rejected == pytest.approx(24 + stopped / 290000), "when it is rejected"
    assert predict(preset, "safety", "bf16", world=2).predicted_s == pytest.approx(24 + tokens / 930000)
    slow = predict(preset, "safety", "torchao-rowwise").predicted_s
    assert slow == pytest.approx(43 + tokens / 354000), "an arm that compiles longer has a start-up time of its own"


# ---- the preset


def test_the_batch_follows_the_memory_and_an_explicit_one_wins():
    preset = load_preset("h100")
    assert [preset.speed_config("bf16", gib).batch_size for gib in (139.8, 79.1, 40.0, None)] == [20, 8, 64, 64]
    assert preset.speed_config("bf16", 139.8, world=4).batch_size == 80
    # What a GPU holds at a time stays the same. The safety batch of 64 has no thirds, and nobody times it.
    for more, batch in (("train.accumulation=4", 160), ("speed.train.accumulation=3", 120)):
        config = load_preset("h100", [more]).speed_config("te-delayed", 139.8, world=2)
        assert rows_per_micro_batch(config.batch_size, config.accumulation, 2) == 20 and config.batch_size == batch
    assert load_preset("h100", ["speed.train.batch_size=4"]).speed_config("bf16", 139.8).batch_size == 4


def test_a_timed_training_does_nothing_else():
    config = load_preset("h100").speed_config("te-delayed", 139.8)
    assert (config.eval_every, config.probe_every, config.checkpoint_every, config.perturb) == (0, 0, 0, 0.0)
    assert config.model == "1b" and config.precision.fused and config.compile


@pytest.mark.parametrize(
    "setting, shown",
    [
        ('speed.arms=["bf16", "nope"]', "names 'nope', which is no arm"),
        ('speed.arms=["te-delayed"]', "must name the baseline, bf16"),
        ("speed.batch_by_memory={ big = 4 }", "big is wrong .String should match pattern"),
        ("speed.train.seq_len=100_000", "must not exceed the model's max_seq_len"),
        ("speed.second=3", "second"),
    ],
)
def test_a_wrong_speed_section_is_one_sentence(setting, shown):
    with pytest.raises(LabError, match=shown):
        load_preset("h100", [setting])


# ---- the picture


def test_milliseconds_per_thousand_tokens(tmp_path):
    classes = {**dict.fromkeys(CLASSES, 0.0), "GEMM fp8": 6.0, "idle": 4.0}
    profiled = TimedRow(label="TE FP8", tokens_step=2000, kernels=Breakdown(span_ms=10.0, classes_ms=classes))
    other = TimedRow(label="no profile", tokens_step=1)
    picture = milliseconds([profiled, other], tmp_path)
    assert picture.png.stat().st_size > 5000 and re.findall(r"\d\.\d\d", picture.alt)[:3] == ["5.00", "3.00", "2.00"]
    assert milliseconds([other], tmp_path) is None
