"""A preset that only checks: which arms run, convert and learn, and what it says of one that does not."""

import math

import pytest

from labkit.compare.arms import arm_rows
from labkit.compare.repeats import judge_check
from labkit.record.read import read_run
from labkit.record.run import RunRecord
from tests.compare.comparing import BASELINE, BROKEN, TINY, loaded, training

TEXT = f"""
title = "checked"
check = true
{TINY}
steps = 4
{BASELINE}
[arms.fp8]
label = "FP8"
role = "candidate"
train.precision = {{ backend = "emulated" }}
{BROKEN}"""


def judged(tmp_path, last=4.0, converted=("layers.0.ffn.w1",), status="finished", missing=None, waiting=()):
    """The verdict where BF16 is sound, the broken arm learns nothing, and FP8 is as given."""
    RunRecord.create(tmp_path / "run", kind="compare", command="c", hardware={}, config={}).close()
    for name, end, modules in (("bf16", 4.0, ()), ("fp8", last, converted), ("broken", 6.0, ())):
        about = {"label": name, "conversion": {"converted": list(modules)}}
        training(tmp_path / "run" / "arms" / name, {2: 6.0, 4: end}, status if name == "fp8" else "finished", **about)
    arms = arm_rows(read_run(tmp_path / "run"))
    arms["broken"].role = "broken"
    return judge_check(arms, loaded(tmp_path, TEXT), missing or {}, waiting)


@pytest.mark.parametrize(
    "given, word, why",
    [
        ({"last": 5.9}, "fail", "fp8 did not learn"),
        ({"last": math.nan}, "fail", "fp8 has no finite held-out loss"),
        ({"converted": ()}, "fail", "fp8 converted nothing"),
        ({"status": "failed"}, "fail", "fp8 failed"),
        ({"status": "interrupted"}, "incomplete", "no result yet from FP8"),
        ({"waiting": ("fp8",)}, "incomplete", "no result yet from FP8"),
    ],
)
def test_what_does_not_work_is_named(tmp_path, given, word, why):
    out = judged(tmp_path, **given)
    assert out.word == word and why in out.sentence


def test_an_arm_that_cannot_run_here_is_named_and_fails_nothing_nor_does_a_broken_one_that_learns_nothing(tmp_path):
    out = judged(tmp_path, missing={"fp8": "no GPU"})
    assert out.word == "pass" and "FP8: no result, no GPU." in out.reasons
    assert out.band is None and out.arms == {}, "nothing is said of whether losses are the same"
