"""A week's files in the grading sandbox."""

from collections.abc import Mapping
from pathlib import Path

from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from grading.run import _limits
from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import run_checks
from labkit.checks.outcome import Outcome
from labkit.checks.tasks import Week


def checked(folder: Path, week: Week, files: Mapping[str, bytes], what: str = "", seed: int = 14) -> Outcome:
    """What the sandbox makes of a submission of these files, laid out in `folder`: of the whole week, or of a task."""
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    for path, data in arrange(Submission.of("anna", dict(files)), week).files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    limits = _limits(week)
    # Its seconds are for a machine that may be busy with other things.
    with SandboxRunner(folder, parts=parts_of(week), limits=limits, budget=1e6, deadline=60.0) as runner:
        return run_checks([what or week.name], weeks=[week], runner=runner, seed=seed)
