"""A comparison without FP8: which preset an older GPU gets, which arms, and that verdict and page speak of AMP."""

import json
import re

import pytest

from labkit.compare import repeats
from labkit.compare.plan import fitting
from labkit.compare.preset import Repeat, available, load_preset
from labkit.errors import LabError
from labkit.precision import matrix
from labkit.precision.matrix import conflicts
from labkit.record.read import read_run
from tests.compare.comparing import MICRO, ROOT, lab, lab_here, preset

AMP = (
    MICRO[: MICRO.index("[arms.bf16]")].replace(
        "[train]",
        'format = "AMP"\nyardstick = "FP32"\n[repeat]\nbaseline = 2\ncandidate = 2\nmore = 0\n'
        '[speed]\narms = ["fp32", "fp16"]\nseconds = 0.5\nwarmup = 3\n[train]',
    )
    + """
[arms.fp32]
label = "FP32"
role = "baseline"
train.precision = { backend = "fp32" }
[arms.fp16]
label = "FP16 autocast"
role = "candidate"
train.precision = { backend = "amp", recipe = "fp16", loss_scaling = { initial = 16777216.0 } }
[arms.broken]
label = "broken FP16"
role = "broken"
train.precision = { backend = "amp", recipe = "fp16", loss_scaling = { initial = 0.000244140625, dynamic = false } }
"""
)


def on(monkeypatch, gpu):
    monkeypatch.setattr(matrix, "this_gpu", lambda device="cuda": gpu)


def test_a_gpu_without_fp8_gets_the_comparison_that_it_can_answer(monkeypatch):
    whole = load_preset("h100", ["train.seq_len=256"])
    older = dict.fromkeys(((7, 0), (7, 5), (8, 0), (8, 6)), "amp")
    for gpu, name in {**older, (8, 9): "h100", None: "h100"}.items():
        on(monkeypatch, gpu)
        found = fitting(whole, ["train.seq_len=256"])
        assert found.name == name and found.train["seq_len"] == 256
    on(monkeypatch, (7, 5))
    for name in available():
        other = fitting(load_preset(name), [])
        assert other.name == ("amp" if other.device == "cuda" else name)
    assert (other.format, other.baseline_format) in (("FP8", "BF16"), ("AMP", "FP32"))


@pytest.mark.parametrize("gpu, refused", [((7, 0), {"amp-bf16"}), ((7, 5), {"amp-bf16"}), ((8, 0), set())])
def test_the_arms_are_those_that_the_gpu_can_run(gpu, refused):
    """BF16 from Ampere on; FP16, the baseline and both controls everywhere. What cannot run is skipped with a reason:
    labkit.compare.plan, for any arm but the baseline."""
    arms = load_preset("amp")
    cannot = {name: found for name in arms.arms if (found := conflicts(arms.config(name), gpu))}
    assert {arms.arms[name].of or name for name in cannot} == refused
    assert all([conflict.who[1] for conflict in found] == ["older"] for found in cannot.values())


def losses(gap=0.0):
    return {step: (8.0 - step / 30) * (1 + gap / 100) for step in range(6, 61, 6)}


def test_the_verdict_speaks_of_what_is_compared():
    arms = load_preset("amp-rehearsal")
    base = {name: losses(0.001 * k) for k, name in enumerate(("fp32", "fp32-2", "fp32-3"))}
    fp16 = {"amp-fp16": losses(0.002), "amp-fp16-2": losses(0.003)}
    away = {"amp-bf16": losses(1.0), "amp-bf16-2": losses(1.001)}
    requested = ("amp-bf16", "amp-fp16")
    for runs, asked, word in (
        ({**base, **fp16, **away, "broken": losses(9.0)}, requested, "fail"),
        ({**base, **fp16, "broken": losses(9.0)}, requested[1:], "pass"),
        ({**base, **fp16, "broken": losses(0.0)}, requested[1:], "no-power"),
        ({"fp32": losses()}, requested, "incomplete"),
        (base, (), "incomplete"),
    ):
        found = repeats.judge(runs, arms, asked)
        assert found.word == word and "FP8" not in found.sentence


def test_without_repeats_losses_are_not_judged_and_the_refusal_names_the_remedies(tmp_path):
    text = AMP.replace("check = true\n", "")
    text = text[: text.index("[repeat]")] + text[text.index("[speed]") :]
    with pytest.raises(LabError, match=r"has no \[repeat\].*Add \[repeat\], empty .* or check = true.* or parts"):
        load_preset(str(preset(tmp_path, text)))
    for more in ("[repeat]\n", "check = true\n", 'parts = ["speed"]\n'):
        assert load_preset(str(preset(tmp_path, text.replace("[speed]", f"{more}[speed]", 1)))).format == "AMP"


def test_the_recorded_rehearsal_says_what_the_code_says_today():
    """results/: the losses of every run, and the words that they were given."""
    kept = json.loads((ROOT / "results/2026-11-23-cpu-amp.json").read_text(encoding="utf-8"))
    arms = load_preset("amp-rehearsal")
    assert kept["train"] == arms.train and Repeat(**kept["repeat"]) == arms.repeat
    runs = {name: dict(arm["heldout"]) for name, arm in kept["arms"].items()}
    shown = repeats.judge(runs, arms, kept["verdict"]["candidates"])
    assert (shown.word, shown.sentence) == (kept["verdict"]["word"], kept["verdict"]["sentence"])
    for name, arm in kept["arms"].items():
        if arm["role"] != "repeat":
            assert shown.arms[name].word == arm["word"]
            assert shown.arms[name].value == pytest.approx(arm["value"], abs=2e-4)  # four decimals were kept


@pytest.mark.thorough
def test_an_arm_that_gives_up_in_its_window_has_failed_and_says_why(tmp_path):
    """2^40 overflows for more than 20 steps, and no machine ends a window of ten minutes before. Such an arm was called
    paused, and the next call would have tried it again."""
    text = AMP.replace("16777216.0", "1099511627776.0").replace("seconds = 0.5", "seconds = 600")
    words = ("compare", "--preset", preset(tmp_path, text), "--out", "out", "--part", "speed", "--arms", "fp16")
    done = lab_here(tmp_path, *words)
    run = read_run(tmp_path / "out")
    why = "it ended before its window did: 20 steps in a row were not finite"
    assert done.returncode == 1 and run.status == "failed" and why in done.stdout
    assert why in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.thorough
def test_a_whole_comparison_on_a_cpu(tmp_path):
    """Two ranks, eight steps: too few for any verdict, enough for every word and event. 2^24 overflows at once, since
    the logits' gradients reach 2^-7 and float16 ends at 2^16, and not for the 20 steps that end a run."""
    done = lab(tmp_path, "compare", "--preset", preset(tmp_path, AMP), "--out", "out")
    assert done.returncode in (0, 1), done.stderr
    run = read_run(tmp_path / "out")
    assert run.status == "finished" and set(run.arms) == {"fp32", "fp32-2", "fp16", "fp16-2", "broken"}
    first = run.arms["fp16"]
    assert first.run["conversion"]["backend"] == "amp" and first.run["conversion"]["recipe"] == "fp16"
    skipped = [event for event in first.events if event["kind"] == "nonfinite"]
    assert skipped and "the loss scale falls from 1.67772e+07 to 8.38861e+06" in skipped[0]["message"]
    assert first.steps[1]["loss_scale"] == 2.0**23 and first.steps[0]["skipped"]
    page = re.sub(r"data:image/svg\\+xml;base64,[A-Za-z0-9+/=]+", "", (tmp_path / "out" / "report.html").read_text())
    shown = re.sub(r"<[^>]+>", " ", page[page.index("<main>") :])
    assert "times FP32" in shown and "FP8" not in shown
    assert run.comparison.results.verdict.sentence in " ".join(done.stdout.split())
