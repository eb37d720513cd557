"""The capstone in the grading sandbox: the reference has all points there, on the earlier weeks' reference."""

from __future__ import annotations

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from grading.run import _limits, reference_submission
from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import load_week, run_checks
from tests.judged import ROOT

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def test_the_reference_has_all_points(tmp_path):
    week = load_week(ROOT / "capstone")
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    for path, data in arrange(Submission.of("anna", reference_submission(week).files), week).files.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    limits = _limits(week, None)
    with SandboxRunner(tmp_path, parts=parts_of(week), limits=limits, budget=1e6, deadline=60.0) as runner:
        outcome = run_checks(["capstone"], weeks=[week], runner=runner, seed=22)
    assert outcome.full, [(case.test, case.verdict, case.text) for case in outcome.cases if case.earned < case.possible]
    assert outcome.earned == week.points("auto")
