"""A rank's memory in the grading sandbox is what it holds, whatever its tensors say."""

import pytest

from grading.run import reference_submission
from labkit.checks import Draw, load_week
from tests.sandboxed import checked
from tests.test_mutants15 import WEEK
from week15_tp_attention import test_attention

SAVE = "        ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)\n"
AGAIN = "x_BTD = x if ctx.keep else all_positions(x, ctx.group)\n"


def test_no_rank_has_the_outputs_gradients_before_memory_was_read(monkeypatch):
    """In the forward a submission took them from the caller's frames, computed dW and kept no x."""

    class Asked(Exception):
        pass

    def asked(name, inputs, **more):
        *ranks, (x, dys, weights) = inputs
        assert name == "scenarios.weighed" and not any(dys for _, dys, _ in ranks)
        assert x is None and not weights and len(dys) == 1, "the last one, which runs nothing of theirs, sends them"
        raise Asked

    monkeypatch.setattr(test_attention, "call", asked)
    with pytest.raises(Asked):
        test_attention.judge_memory(Draw(1))


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_gathered_x_is_kept_in_numpy_and_gathered_again_for_show(tmp_path):
    week = load_week(WEEK)
    files = reference_submission(week).files
    path = next(path for path in files if path.endswith("/sequence.py"))
    text = files[path].decode()
    assert text.count(SAVE) == text.count(AGAIN) == 1
    text = text.replace(SAVE, SAVE + "        ctx.whole = None if keep else x_BTD.numpy().copy()\n")
    text = text.replace(AGAIN, AGAIN + "        x_BTD = x_BTD if ctx.keep else torch.from_numpy(ctx.whole)\n")
    outcome = checked(tmp_path, week, {**files, path: text.encode()}, "15.3", seed=15)
    (failed,) = [case for case in outcome.cases if case.verdict != "passed"]
    assert failed.case == "gathered again" and "its processes hold" in failed.text
    assert failed.cause == ("the gathered x is kept, though keep=False",)
