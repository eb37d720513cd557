"""A week in one sandbox, for tests that judge many submissions of it: mutants, cheats, the released week."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from grading.judge import laid_out
from grading.run import reference_submission
from grading.sandbox.box import Limits
from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import load_week, run_checks
from labkit.checks.markers import strip
from labkit.checks.outcome import Outcome
from tests.grading.sandbox.attacking import ROOT, readable
from tests.mutant import Mutant


class Boxed:
    """A week in one sandbox for all of them: only the files in its folder are exchanged."""

    def __init__(self, folder: Path, week: str, deadline: float) -> None:
        self.week, self.folder = load_week(ROOT / week), readable(folder)
        self.files = reference_submission(self.week).files
        limits = Limits(uses=self.week.uses, weeks=tuple(map(str, self.week.below)))
        parts = parts_of(self.week)
        self.runner = SandboxRunner(folder, parts=parts, limits=limits, budget=1e6, deadline=deadline)
        self.close = self.runner.close

    def laid_out(self, files: dict[str, bytes]):
        """A submission of these files in the folder, for as long as the `with` lasts."""
        self.runner.hangs.clear()
        self.runner.fatal.clear()
        return laid_out(arrange(Submission.of("anna", files), self.week), self.folder)

    def check(self, tasks, files: dict[str, bytes]) -> Outcome:
        """These tasks, all with points where there are none, of a submission of these files."""
        with self.laid_out(files):
            return run_checks(tasks or [self.week.name], weeks=[self.week], runner=self.runner, seed=13)

    def path(self, module: str) -> str:
        return f"{self.week.package}/{module.replace('.', '/')}.py"

    def source(self, module: str) -> str:
        return self.files[self.path(module)].decode()

    def edited(self, module: str, text: str) -> dict[str, bytes]:
        """The reference's files with another text for this module."""
        return {**self.files, self.path(module): text.encode()}

    def mutant(self, mutant: Mutant) -> Outcome:
        tasks = [mutant.task, *(t.id for t in self.week.tasks if mutant.cascade and mutant.task in t.stands_on)]
        return self.check(tasks, self.edited(mutant.module, mutant.apply(self.source(mutant.module))))

    def reference(self, *tasks: str) -> Outcome:
        return self.check(tasks, self.files)

    def released(self, *tasks: str, filled: str = r"\g<0>") -> Outcome:
        """The week as students get it; `filled`: a statement that stands in every blank."""
        texts = {path: strip(data.decode(), path) for path, data in self.files.items() if path.endswith(".py")}
        blank = r"raise NotImplementedError\(.*\)"
        return self.check(
            tasks, {**self.files, **{path: re.sub(blank, filled, text).encode() for path, text in texts.items()}}
        )

    def cheat(self, module: str, text: str, task: str) -> Outcome:
        """What a cheat in one of its modules earns; the grader must not fail of it."""
        found = self.check([task], self.edited(module, text))
        assert not found.faults, found.faults
        return found


def boxed(week: str, deadline: float):
    """A fixture: this week in a sandbox, for a module of tests."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory):
        with closing(Boxed(tmp_path_factory.mktemp(week), week, deadline)) as one:
            yield one

    return made
