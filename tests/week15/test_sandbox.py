"""A rank's memory in the grading sandbox is what it holds, whatever its tensors say."""

import pytest

from grading.run import reference_submission
from labkit.checks import load_week
from tests.sandboxed import checked
from tests.test_mutants15 import WEEK

SAVE = "        ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)\n"
AGAIN = "x_BTD = x if ctx.keep else all_positions(x, ctx.group)\n"


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
