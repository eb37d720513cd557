"""Where a student's function is looked for: in the course at hand and nowhere else."""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from labkit.checks import remote, tensors, values
from labkit.checks.runner import Job, describe, own_lines
from labkit.comm.ranks import run_ranks

PACKAGE = "week92_remote"


class Lends:
    """As pip's finder for a package installed with -e: parts of the package are looked for in its place as well."""

    def __init__(self, place):
        self.place = str(place / PACKAGE)

    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, [self.place]) if name.startswith(PACKAGE + ".") else None


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """`asked(root, name)`: (how, value or text). One course is whole and installed; the other lacks a module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Lends(tmp_path / "whole")])
    for name in ("whole", "lacking"):
        (tmp_path / name / PACKAGE).mkdir(parents=True)
        (tmp_path / name / PACKAGE / "__init__.py").touch()
    (tmp_path / "whole" / PACKAGE / "ops.py").write_text("def seven():\n    return 7\n")

    def ask(root, name):
        job = Job(tmp_path / root, PACKAGE, name, ((),), with_group=False)

        def one(group):
            return remote.answer(group, describe(job, str(tmp_path / root)), (), {})

        try:
            return values.unpack(run_ranks(one, size=1, backend="threads")[0])[:2]
        finally:
            remote._forget(PACKAGE)

    return ask


def test_a_missing_file_is_missing_though_an_installed_course_has_it(asked):
    assert asked("whole", "ops.seven") == ("ok", 7)
    how, text = asked("lacking", "ops.seven")
    assert (how, text) == ("missing", f"there is no file {PACKAGE}/ops.py")


def test_nor_does_a_module_of_the_course_find_it_there(asked, tmp_path):
    (tmp_path / "lacking" / PACKAGE / "scenes.py").write_text(f"from {PACKAGE} import ops\n")
    how, text = asked("lacking", "scenes.seven")
    assert how == "raised" and text.startswith("scenes.py cannot be imported. ImportError: cannot import name 'ops'")
    (tmp_path / "lacking" / PACKAGE / "scenes.py").write_text("from .ops import seven\n")
    assert f"No module named '{PACKAGE}.ops'" in asked("lacking", "scenes.seven")[1]


def test_of_a_course_that_holds_labkit_too_only_their_own_lines_are_told():
    """At home the folder that holds the week holds labkit and .venv as well."""
    root = str(Path(__file__).resolve().parents[2])
    error = None
    try:
        tensors(1, 2, "three")
    except TypeError as raised:
        error = raised
    lines = remote.told(error, root).splitlines()
    assert len(lines) == 2 and "TypeError" in lines[0] and "tests/checks/test_remote.py" in lines[1], lines
    text = "".join(traceback.format_exception(error))
    assert "judge.py" in text and "judge.py" not in own_lines(text, root) and "test_remote.py" in own_lines(text, root)


def test_what_one_course_has_loaded_is_forgotten_for_the_next(asked, tmp_path):
    (tmp_path / "lacking" / PACKAGE / "ops.py").write_text("def seven():\n    return 8\n")
    assert [asked(root, "ops.seven")[1] for root in ("whole", "lacking", "whole")] == [7, 8, 7]
