"""Each week's registry, blanks and checks agree, and the checks import nothing of the week."""

import ast
from pathlib import Path

import pytest

from labkit.checks.markers import blanks
from labkit.checks.tasks import find_weeks

WEEKS = find_weeks(Path(__file__).parent)
every_week = pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)


@every_week
def test_every_hole_has_a_task_and_a_title_and_every_task_its_holes(week):
    found: dict[str, set[str]] = {}
    for path in week.folder.rglob("*.py"):
        for blank in blanks(path.read_text(), path.name):
            assert blank.title, f"{path.name}:{blank.begin} has no title"
            found.setdefault(blank.task, set()).add(
                str(path.relative_to(week.folder).with_suffix("")).replace("/", ".")
            )
    for task in week.tasks:
        if task.functions:
            assert found[task.id] == set(task.modules), task.id
    assert set(found) <= {t.id for t in week.tasks}


@every_week
def test_the_checks_import_nothing_of_the_week(week):
    """Expected values and the student's functions never meet in one process."""
    for path in week.tests:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            theirs = [name for name in names if name.partition(".")[0] in ("", week.package)]
            assert all(name.split(".")[1].startswith(("given", "test_")) for name in theirs), theirs
