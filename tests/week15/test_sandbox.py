"""Week 15 in the grading sandbox: the reference has all points there, and a released file none."""

from __future__ import annotations

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from grading.run import reference_submission
from grading.sandbox.box import Limits
from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import load_week, run_checks
from labkit.checks.markers import strip
from labkit.checks.verdict import NOT_ATTEMPTED
from tests.test_mutants15 import WEEK

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def checked(folder, week, files, what="week15"):
    """What the sandbox makes of these files."""
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    for path, data in arrange(Submission.of("anna", files), week).files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    limits = Limits(uses=week.uses)
    with SandboxRunner(folder, parts=parts_of(week), limits=limits, budget=1e6, deadline=30.0) as runner:
        return run_checks([what], weeks=[week], runner=runner, seed=15)


@pytest.fixture(scope="module")
def week():
    return load_week(WEEK)


def test_the_reference_has_all_points(tmp_path, week):
    outcome = checked(tmp_path, week, reference_submission(week).files)
    assert outcome.earned == 90, [(case.test, case.text) for case in outcome.cases if case.earned < case.possible]


def test_a_released_week_is_not_attempted(tmp_path, week):
    files = reference_submission(week).files
    stripped = {path: strip(d.decode(), path).encode() if path.endswith(".py") else d for path, d in files.items()}
    outcome = checked(tmp_path, week, stripped)
    assert outcome.earned == 0 and {case.verdict for case in outcome.cases} == {NOT_ATTEMPTED}


SAVE = "        ctx.save_for_backward(x_BTD if keep else x_BtD, *weights)\n"
AGAIN = "x_BTD = x if ctx.keep else all_positions(x, ctx.group)\n"


def test_the_gathered_x_is_kept_in_numpy_and_gathered_again_for_show(tmp_path, week):
    """No tensor tells of it; the rank's memory does."""
    files = reference_submission(week).files
    path = next(path for path in files if path.endswith("/sequence.py"))
    text = files[path].decode()
    assert text.count(SAVE) == text.count(AGAIN) == 1
    text = text.replace(SAVE, SAVE + "        ctx.whole = None if keep else x_BTD.numpy().copy()\n")
    text = text.replace(AGAIN, AGAIN + "        x_BTD = x_BTD if ctx.keep else torch.from_numpy(ctx.whole)\n")
    outcome = checked(tmp_path, week, {**files, path: text.encode()}, "15.3")
    (failed,) = [case for case in outcome.cases if case.verdict != "passed"]
    assert failed.case == "gathered again" and "its processes hold" in failed.text
    assert failed.cause == ("the gathered x is kept, though keep=False",)
