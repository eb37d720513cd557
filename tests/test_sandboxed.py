"""The later weeks in the grading sandbox: the reference, handed in, has all points there, and a released week none."""

import pytest

from grading.run import reference_submission
from labkit.checks import load_week
from labkit.checks.markers import strip
from labkit.checks.verdict import NOT_ATTEMPTED
from tests.judged import ROOT
from tests.sandboxed import checked

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("folder", "points"), [("week14_fsdp", 85), ("week15_tp_attention", 90), ("capstone", 80)])
def test_the_reference_has_all_points(folder, points, tmp_path):
    week = load_week(ROOT / folder)
    outcome = checked(tmp_path, week, reference_submission(week).files)
    lost = [(case.test, case.verdict, case.text) for case in outcome.cases if case.earned < case.possible]
    assert outcome.full and outcome.earned == week.points("auto") == points, lost


def test_a_released_week_is_not_attempted(tmp_path):
    week = load_week(ROOT / "week15_tp_attention")
    files = reference_submission(week).files
    stripped = {path: strip(d.decode(), path).encode() if path.endswith(".py") else d for path, d in files.items()}
    outcome = checked(tmp_path, week, stripped)
    assert outcome.earned == 0 and {case.verdict for case in outcome.cases} == {NOT_ATTEMPTED}
