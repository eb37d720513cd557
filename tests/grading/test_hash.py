"""What a mark's key depends on: all that decides a verdict, and nothing else, or a class is judged again in vain."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import grimp

from grading import judge
from labkit.checks.tasks import load_week
from tests.checks.miniweek import make_week

ROOT = Path(judge.__file__).parents[1]
# What a judge imports and what decides no verdict, with the reason.
DECIDES_NOTHING = {
    "grading.files": "puts files in place", "grading.marking.verdicts": "shows verdicts to markers",
    "grading.here": "where a command was typed", "grading.mark": "what a mark is made of",
    "grading.intake.wrong_week": "a sentence on another week's files", "labkit": "its docstring and version",
    "grading.publish.page": "shortens paths in a verdict's text", "labkit.compare": "its docstring",
    "labkit.errors": "one exception",
}  # fmt: skip


def test_every_module_that_a_judge_imports_is_in_the_hash_or_decides_nothing():
    graph = grimp.build_graph("grading", "labkit", cache_dir=None)
    imported = {"grading.judge", *graph.find_upstream_modules("grading.judge")}
    paths = {module: Path(module.replace(".", "/")) for module in imported}
    deciding = {Path(name.removesuffix(".py")) for name in judge.DECIDING}
    outside = {module for module, path in paths.items() if not deciding & {path, *path.parents}}
    assert outside - {"grading.sandbox"} == set(DECIDES_NOTHING)
    unused = [one for one in deciding if not any(one in (path, *path.parents) for path in paths.values())]
    assert not unused, "it is in the hash, and no judge imports it"


def test_the_code_hash_changes_with_what_decides_and_with_nothing_else(tmp_path):
    for name in ("grading", "labkit"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = judge.code_hash(tmp_path)
    assert before == judge.code_hash(ROOT)
    nothing = ("grading/intake/rosters.py", "grading/cli.py", "grading/mark.py", "labkit/doctor/grading.py")
    decide = ("grading/marking/view.py", "grading/tree.py", "grading/answers.py", "grading/intake/submission.py")
    for name in (*nothing, *decide, "grading/sandbox/inside/rank.py", "labkit/checks/judge.py"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + "# a remark\n")
        assert (judge.code_hash(tmp_path) == before) == (name in nothing), name
        (tmp_path / name).write_text(text)


def test_a_mark_depends_on_the_notebooks_cells_as_handed_out_and_on_what_the_week_uses(monkeypatch, tmp_path):
    week = load_week(make_week(tmp_path))
    other = tmp_path / "strict.py"
    other.write_text("changed = 1\n")
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["1 + 1"], "outputs": []}

    def hash_with(cell, uses=()):
        week.notebook.write_text(json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}))
        judge.tests_hash.cache_clear()
        return judge.tests_hash(replace(week, uses=uses))

    before, using = hash_with(cell), hash_with(cell, ("labkit.strict",))
    assert hash_with({**cell, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["2"]}]}) == before
    assert hash_with({**cell, "source": ["1 + 2"]}) != before != using
    monkeypatch.setattr(judge.boundary, "files", lambda uses: iter([other]))
    assert hash_with(cell, ("labkit.strict",)) != using
    judge.tests_hash.cache_clear()
