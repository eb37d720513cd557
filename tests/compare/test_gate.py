"""A gate between two arms: open after a pass, closed with its reason after anything else, and asked in time."""

import json
import re
import shutil

import pytest

from labkit.compare.plan import Plan, check_arm, check_part, prepare_folder
from labkit.compare.preset import load_preset
from labkit.errors import LabError
from tests.compare.comparing import BASELINE, BROKEN, TINY, loaded, training

TEXT = f"""
title = "two stages"
{TINY}
steps = 12
eval_every = 1
[repeat]
baseline = 2
candidate = 2
more = 0
spread = {{ baseline = 0.064, candidate = 0.10, weight = 8 }}
{BASELINE}{BROKEN}
[arms.block]
label = "FP8 block"
role = "candidate"
train.precision = {{ backend = "emulated", recipe = "block" }}
[arms.params]
label = "FP8 parameters"
role = "candidate"
gate = "block"
train.precision = {{ backend = "emulated", recipe = "block", fp8_parameters = true }}
"""


HEAD = TEXT[: TEXT.index("[arms.bf16]")]
SCHEDULED = ', schedule = { bf16_first = 2 } }\n[speed]\narms = ["bf16", "block"]\n[arms.params]'


def preset(folder, text=TEXT, *settings):
    return loaded(folder, text, *settings)


def run(out, arm, gap=0.0, status="finished", steps=12):
    """An arm's record whose held-out loss lies `gap` per cent above 6 - step / 4."""
    losses = {step: (6 - step / 4) * (1 + gap / 100) for step in range(1, steps + 1)}
    training(out / "arms" / arm, losses, status, config={"steps": steps})


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "run"
    for arm, gap in (("bf16", 0.0), ("bf16-2", 0.02), ("broken", 5.0)):
        run(folder, arm, gap)
    return folder


def block(out, *gaps):
    for arm, gap in zip(("block", "block-2"), gaps):
        run(out, arm, gap)


def closed(tmp_path, arm="params", part="safety"):
    return Plan(preset(tmp_path), tmp_path / "run", 1).gate_closed(part, arm)


def test_a_pass_opens_it_when_both_runs_are_there(tmp_path, out):
    block(out, 0.0)
    assert "no result yet from FP8 block" in closed(tmp_path)
    run(out, "block-2", 0.05)
    assert closed(tmp_path, "params") == closed(tmp_path, "params-2") == ""
    assert closed(tmp_path, "block") == "", "it has no gate"


@pytest.mark.parametrize("gaps, why", [((0.9, 0.9), "It is not with FP8 block"), ((0.1, 0.3), "Undecided: FP8 block")])
def test_any_other_word_closes_it(tmp_path, out, gaps, why):
    block(out, *gaps)
    assert closed(tmp_path).startswith(f"its gate, FP8 block, is closed. 1 of 1 FP8 recipes judged. {why}")


def test_the_same_in_a_comparison_without_power_is_not_passed(tmp_path, out):
    block(out, 0.0, 0.05)
    shutil.rmtree(out / "arms" / "broken")
    run(out, "broken", gap=0.03)  # as near as the others: nothing could have failed
    assert "is closed. This comparison has no power: FP8 that is broken" in closed(tmp_path)


@pytest.mark.parametrize("status", [None, "interrupted", "failed"])
def test_a_gate_that_is_not_finished_is_shown(tmp_path, out, status):
    if status:
        run(out, "block", status=status)
    assert closed(tmp_path) == (
        "its gate, FP8 block, has no finished result yet: train that arm first (`--arms bf16,broken,block`)"
    )
    assert closed(tmp_path, part="speed") == "", "it is about the loss"


# ---- presets with gates, schedules and parts


@pytest.mark.parametrize(
    "change, said",
    [
        *((('gate = "block"', f'gate = "{arm}"'), f"has the gate '{arm}', which must be") for arm in ("blok", "bf16")),
        ((HEAD, "check = true" + HEAD[: HEAD.index("[repeat]")]), "without [repeat] nothing is judged"),
        (('role = "broken"', 'role = "fine"'), 'no arm of role "broken" shows that it could have stayed closed'),
        (('label = "FP8 block"', 'label = "x"\ngate = "params"'), "has the gate 'params' and stands before params"),
        (("[arms.params]", '[speed]\narms = ["bf16", "params"]\n[arms.params]'), "names 'params', which has a gate"),
        (("}\n[arms.params]", SCHEDULED), "[speed] of preset micro names 'block', which has a precision schedule"),
    ],
)
def test_a_preset_that_cannot_work_is_refused(tmp_path, change, said):
    assert change[0] in TEXT
    text = TEXT.replace(*change)
    with pytest.raises(LabError) as error:
        preset(tmp_path, text)
    assert said in str(error.value) and str(error.value).isprintable()


def test_the_parts_of_a_preset(tmp_path):
    speed = '[speed]\narms = ["bf16"]\n'
    both, one = preset(tmp_path, TEXT + speed), preset(tmp_path, 'parts = ["speed"]\n' + TEXT + speed)
    assert check_part(both, None) == ("speed", "safety") and check_part(one, None) == ("speed",)
    assert check_part(preset(tmp_path), None) == ("safety",)
    with pytest.raises(LabError, match="preset micro is about speed alone: leave out --part safety"):
        check_part(one, "safety")
    with pytest.raises(LabError, match="has no .speed. section, so there is nothing to time"):
        check_part(preset(tmp_path, 'parts = ["speed"]\n' + TEXT), None)
    assert check_part(both, "speed", ["bf16", "bf16-2"]) == ("speed",)
    with pytest.raises(LabError, match='does not time block: --set \'speed.arms=."bf16", "block".\' does'):
        check_part(both, "speed", ["bf16", "block"])


def test_a_record_from_before_a_setting_existed_is_taken_up(tmp_path):
    given, out = preset(tmp_path), tmp_path / "run"
    prepare_folder(given, out, False)
    path = out / "run.json"
    there = json.loads(path.read_text())
    del there["config"]["parts"], there["config"]["arms"]["bf16"]["gate"]
    path.write_text(json.dumps(there))
    prepare_folder(given, out, False)
    with pytest.raises(LabError, match="other settings .train.probe_every."):
        prepare_folder(preset(tmp_path, TEXT, "train.probe_every=3"), out, False)


def test_a_record_goes_on_when_its_preset_has_gained_an_arm_and_not_when_it_lost_one(tmp_path):
    out, less = tmp_path / "run", TEXT[: TEXT.index("[arms.params]")]
    prepare_folder(preset(tmp_path, less), out, False)
    prepare_folder(preset(tmp_path), out, False)
    there = json.loads((out / "run.json").read_text())
    assert there["status"] == "running" and list(there["config"]["arms"])[-1] == "params-2"
    with pytest.raises(LabError, match="other settings .arms.params."):
        prepare_folder(preset(tmp_path, less), out, False)


@pytest.mark.parametrize(
    "change, world, said",
    [
        ("arms.params.train.precision.recipe='tensorwise'", 1, "FP8 parameters need power-of-two scales"),
        ("arms.params.label='x'", 2, r"on 2 ranks need out features that are multiples of 256.*wq \(32\)"),
        ("arms.bf16.train.precision={ backend = 'bf16', schedule = { bf16_last = 2 } }", 1, "no FP8 phase to switch"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(tmp_path, change, world, said):
    given = preset(tmp_path, TEXT, change)
    refused = []
    for arm in given.arms:
        try:
            check_arm(given.config(arm), "cpu", world)
        except LabError as error:
            refused.append(str(error))
    assert refused and re.search(said, refused[0])


def test_the_presets_that_come_along():
    for name in ("two-stage", "cpu-stages"):
        given = load_preset(name)
        gated, *more = [arm for arm in given.arms if given.arms[arm].gate]
        assert all(given.arms[arm].of == gated for arm in more)
        names = list(given.arms)
        assert names.index(gated) > max(names.index(n) for n in names if given.arms[n].of == given.arms[gated].gate)
        gate = given.arms[gated].gate
        one, two = given.config(gate), given.config(gated)
        assert two.precision.fp8_parameters and not one.precision.fp8_parameters
        assert two.replace(precision=one.precision) == one  # nothing else differs
