"""Week 13's registry, holes and checks agree, and the checks keep to the seam."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from labkit.checks import load_week
from labkit.checks.markers import holes
from tests.stripped import strip_folder

FOLDER = Path(__file__).resolve().parents[2] / "week13_allreduce"


@pytest.fixture(scope="module")
def week():
    return load_week(FOLDER)


def test_points(week):
    assert week.points() == 100
    assert [t.id for t in week.tasks if t.kind == "auto"] == [f"13.{i}" for i in range(1, 7)]
    assert all(t.kind == "stretch" for t in week.tasks[7:])


def test_every_hole_has_a_task_and_a_title_and_every_task_its_holes(week):
    found: dict[str, set[str]] = {}
    for path in FOLDER.rglob("*.py"):
        for hole in holes(path.read_text(), path.name):
            assert hole.title, f"{path.name}:{hole.begin} has no title"
            found.setdefault(hole.task, set()).add(str(path.relative_to(FOLDER).with_suffix("")).replace("/", "."))
    for task in week.tasks:
        if task.functions:
            assert found[task.id] == set(task.modules), task.id
    assert set(found) <= {t.id for t in week.tasks}


def test_every_function_of_a_task_is_a_hole(week):
    for task in week.tasks:
        for name in task.functions:
            module, _, function = name.rpartition(".")
            text = (FOLDER / Path(*module.split("."))).with_suffix(".py").read_text()
            node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function)
            assert any(node.lineno < hole.begin <= node.end_lineno for hole in holes(text)), name


def test_the_students_copy_holds_no_solution_and_compiles(tmp_path):
    strip_folder(FOLDER, tmp_path / FOLDER.name)
    for path in (tmp_path / FOLDER.name).rglob("*.py"):
        assert "END SOLUTION" not in path.read_text(), path.name
        compile(path.read_text(), path.name, "exec")
    for path in (tmp_path / FOLDER.name).rglob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert not any("END SOLUTION" in "".join(cell["source"]) for cell in cells)


ALLOWED = ("__future__", "collections", "itertools", "math", "pathlib", "pytest", "random", "torch", "typing", "labkit")


def test_the_checks_import_nothing_of_the_week(week):
    """Expected values and the student's functions never meet in one process."""
    for path in week.tests:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or "."]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                assert name.partition(".")[0] in ALLOWED, name
