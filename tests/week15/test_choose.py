"""Section 9: the naive plan, a student's, the planner's; and the numbers in the model answer."""

import pytest

import week15_tp_attention
from labkit.errors import LabError
from tests.notebooks import Notebook
from week15_tp_attention.given import choose

NAIVE, MINE, BEST = choose.priced(**choose.NAIVE), choose.priced(tp=8, pp=4), choose.best()


def test_the_naive_plan_fits_and_is_beaten_by_what_the_lab_teaches():
    """TP inside the machine and a pipeline over machines: less than half of the naive plan's step, and nobody needs the
    planner's own to see it."""
    assert NAIVE.gib <= NAIVE.room and MINE.gib <= MINE.room
    assert MINE.seconds < NAIVE.seconds / 2 and BEST.seconds <= MINE.seconds
    assert max(NAIVE.parts, key=lambda part: NAIVE.parts[part]) == "data-parallel messages"
    for one in (NAIVE, MINE, BEST):
        assert sum(one.parts.values()) == pytest.approx(one.seconds)


def answers():
    messages = NAIVE.parts["data-parallel messages"]
    yield f"{NAIVE.seconds:.2f} s for the naive plan, {messages:.2f} of them gradients and weights"
    yield f"{MINE.seconds:.2f} s for TP 8 x PP 4"
    yield f"{MINE.parts['bubble']:.2f} s of bubble, {MINE.parts['between stages']:.2f} s between stages"
    yield f"{MINE.parts['tensor-parallel messages']:.2f} s of tensor messages, {MINE.gib:.0f} GiB"
    yield f"TP 2 x PP 4 x CP 4 at {BEST.seconds:.2f} s"
    tensor, context = (BEST.parts[f"{kind}-parallel messages"] for kind in ("tensor", "context"))
    yield f"pays {tensor:.2f} + {context:.2f} s where mine pays {MINE.parts['tensor-parallel messages']:.2f}"


@pytest.mark.parametrize("words", list(answers()))
def test_every_number_of_the_planner_in_the_model_answer(words):
    assert Notebook(week15_tp_attention).says("task-15-7", words)
    assert "dp1.tp2.pp4.vp4.cp4" in BEST.name


def test_the_table_holds_whatever_plan_is_asked_for():
    shown = choose.table(tp=4, pp=4, cp=1)
    assert shown.splitlines()[0].split()[-3:] == ["naive", "yours", "planner"]
    assert f"{choose.priced(tp=4, pp=4, cp=1).seconds:.2f}" in shown
    assert "(no)" in choose.table(tp=1, pp=4, cp=1, zero=0, recompute=0)  # it does not fit, and is shown
    refused = choose.table(tp=16, pp=1, cp=1)
    assert "yours: no plan has tp 16" in refused and refused.splitlines()[0].split()[-2:] == ["naive", "planner"]
    assert choose.table(tp=None, pp=4, cp=1).splitlines()[0].split()[-2:] == ["naive", "planner"]
    with pytest.raises(LabError, match="tpp is no degree"):
        choose.priced(tpp=4)
