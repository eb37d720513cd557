"""Where a student's function is looked for: in the course at hand and nowhere else."""

import contextlib
import os
import re
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from labkit.checks import remote, tensors, values
from labkit.checks.runner import Job, describe, own_lines
from labkit.comm.ranks import RanksFailed, run_ranks

PACKAGE = "week92_remote"


class Lends:
    """As pip's finder for a package installed with -e: parts of the package are looked for in its place as well."""

    def __init__(self, place):
        self.place = str(place / PACKAGE)

    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, [self.place]) if name.startswith(PACKAGE + ".") else None


@pytest.fixture
def call(tmp_path, monkeypatch):
    """`call(root, name)`: (how, value or text). One course is whole and installed; the other lacks a module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Lends(tmp_path / "whole")])
    for name in ("whole", "lacking"):
        (tmp_path / name / PACKAGE).mkdir(parents=True)
        (tmp_path / name / PACKAGE / "__init__.py").touch()
    (tmp_path / "whole" / PACKAGE / "ops.py").write_text("def seven():\n    return 7\n")

    def ask(root, name, own=(), given=False, parts=()):
        job = Job(tmp_path / root, PACKAGE, name, ((),), with_group=False, modules=own, given=given, stands_on=parts)
        reference = str(tmp_path / "whole") if parts else None

        def one(group):
            return values.pack(remote.answer(group, describe(job, str(tmp_path / root)), (), {}, reference))

        try:
            return values.unpack(run_ranks(one, size=1, backend="threads")[0])[:2]
        finally:
            remote._forget(PACKAGE)

    return ask


def test_a_missing_file_is_missing_though_an_installed_course_has_it(call):
    assert call("whole", "ops.seven") == ("ok", 7)
    how, text = call("lacking", "ops.seven")
    assert (how, text) == ("missing", f"there is no file {PACKAGE}/ops.py")


def test_nor_does_a_module_of_the_course_find_it_there(call, tmp_path):
    (tmp_path / "lacking" / PACKAGE / "scenes.py").write_text(f"from {PACKAGE} import ops\n")
    how, text = call("lacking", "scenes.seven")
    assert how == "raised" and text.startswith("scenes.py cannot be imported. ImportError: cannot import name 'ops'")
    (tmp_path / "lacking" / PACKAGE / "scenes.py").write_text("from .ops import seven\n")
    assert f"No module named '{PACKAGE}.ops'" in call("lacking", "scenes.seven")[1]


BROKEN = {
    "a merge that was left": "<<<<<<< HEAD\nCONSTANT = 5\n",
    "a name that is not there": "CONSTANT = 5\nleft = nobody\n",
    "an exit": "CONSTANT = 5\nraise SystemExit(3)\n",
    "a blank in the module's own lines": "CONSTANT = 5\nraise NotImplementedError('Task 92.1')\n",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_module_that_cannot_be_imported_costs_its_own_task_alone(how, call, tmp_path):
    """Another task imports it for what the course gives there: the course's text stands in, and nothing of its own."""
    place = tmp_path / "lacking"
    (place / PACKAGE / "ops.py").write_text(BROKEN[how])
    (place / PACKAGE / "next.py").write_text(
        f"from {PACKAGE} import ops\nfrom .ops import seven\n"
        "def read():\n    return seven(), vars(ops).get('CONSTANT')\n"
    )
    (place / remote.COURSE / PACKAGE).mkdir(parents=True)
    (place / remote.COURSE / PACKAGE / f"ops{remote.TEXT}").write_text("def seven():\n    return 7\n")
    assert call("lacking", "next.read", own=("next",)) == ("ok", (7, None))
    whole = "def seven():\n    return 77\n"
    for name, own in (("next.read", ("next", "ops")), ("ops.seven", ("ops",))):
        with pytest.raises(RanksFailed) if "SystemExit" in BROKEN[how] else contextlib.nullcontext():
            assert call("lacking", name, own=own)[0] in ("raised", "unfinished"), "its own task"
    (place / PACKAGE / "ops.py").write_text(whole)
    assert call("lacking", "next.read", own=("next",)) == ("ok", (77, None)), "the student's, where it can be imported"


def test_a_module_of_another_task_runs_when_it_is_needed_and_in_a_given_run_never(call, tmp_path):
    """Its lines could hold memory before the first reading, or change what the answers are compared with."""
    place = tmp_path / "lacking"
    (place / PACKAGE / "ops.py").write_text("import sys\nsys.ran91 = 1\ndef seven():\n    return 77\nOWN = 5\n")
    (place / PACKAGE / "next.py").write_text("import sys\ndef ran():\n    return hasattr(sys, 'ran91')\n")
    reads = "def read():\n    from . import ops\n    return ops.seven(), vars(ops).get('OWN')\n"
    (place / PACKAGE / "scenes.py").write_text(reads)
    (place / remote.COURSE / PACKAGE).mkdir(parents=True)
    (place / remote.COURSE / PACKAGE / f"ops{remote.TEXT}").write_text("def seven():\n    raise NotImplementedError\n")
    asked = {"own": ("next",), "parts": ("ops.seven",)}
    try:
        assert call("lacking", "next.ran", **asked) == ("ok", False)
        assert call("lacking", "scenes.read", given=True, **asked) == ("ok", (7, None))
        assert not hasattr(sys, "ran91")
        assert call("lacking", "scenes.read", **asked) == ("ok", (7, 5)), "what they may lean on of another task"
    finally:
        vars(sys).pop("ran91", None)


def test_what_lies_beside_the_package_runs_with_it_and_not_before(call, tmp_path):
    """torch asks for colorama, which is not installed: a student's ran before memory was first read."""
    place = tmp_path / "lacking"
    (place / "beside91.py").write_text("SEVEN = 7\n")
    (place / PACKAGE / "ops.py").write_text("from beside91 import SEVEN\ndef seven():\n    return SEVEN\n")
    (place / PACKAGE / "scenes.py").write_text(
        "import importlib.util\ndef found():\n    return importlib.util.find_spec('beside91') is not None\n"
        "def read():\n    before = found()\n    from . import ops\n    return before, ops.seven(), found()\n"
    )
    assert call("lacking", "scenes.found", own=("ops",), given=True) == ("ok", False)
    assert call("lacking", "scenes.read", own=("ops",)) == ("ok", (False, 7, True))


def test_of_a_course_that_holds_labkit_too_only_their_own_lines_are_reported():
    """At home the folder that holds the week holds labkit and .venv as well."""
    root = str(Path(__file__).resolve().parents[2])
    error = None
    try:
        tensors(1, 2, "three")
    except TypeError as raised:
        error = raised
    first, second = remote.format_error(error, root).splitlines()
    assert str(error) in first and os.path.relpath(__file__, root) in second, (first, second)
    text = "".join(traceback.format_exception(error))
    mine, *drawn = re.findall('File "(.*)"', text)
    assert drawn and re.findall('File "(.*)"', own_lines(text, root)) == [mine] == [__file__]


def test_what_one_course_has_loaded_is_forgotten_for_the_next(call, tmp_path):
    (tmp_path / "lacking" / PACKAGE / "ops.py").write_text("def seven():\n    return 8\n")
    assert [call(root, "ops.seven")[1] for root in ("whole", "lacking", "whole")] == [7, 8, 7]
