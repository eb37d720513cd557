"""What of labkit a task may import: the base, what its week declares, and nothing else, at home as in the sandbox."""

import sys

import pytest

import labkit
from labkit.checks import boundary, remote, run_checks
from labkit.checks.tasks import find_weeks, load_week
from labkit.errors import LabError
from tests.checks.miniweek import OPS, REGISTRY, make_week

BASE = ["checks", "comm", "errors.py", "__init__.py"]


def names(uses=()):
    top = boundary.Path(labkit.__file__).parent
    return sorted(path.relative_to(top).as_posix() for path in boundary.files(uses))


def reaching(tmp_path, line, uses=""):
    """The mini week with this import in its ops.py, checked at home: what came of tasks 91.1 and 91.2."""
    folder = make_week(tmp_path, registry=uses + REGISTRY)
    (folder / "ops.py").write_text(OPS.replace("import torch\n", f"import torch\n{line}\n", 1))
    return run_checks(["91.1"], weeks=[load_week(folder)])


@pytest.mark.thorough
def test_files_are_the_base_and_what_is_declared():
    assert names() == sorted(BASE)
    assert names(["labkit.model"]) == sorted([*BASE, "model"])
    assert names(["labkit.model.decoder"]) == sorted([*BASE, "model/__init__.py", "model/decoder.py"])
    assert names(["labkit.model.decoder", "labkit.model"]) == sorted([*BASE, "model"])
    for name in ("labkit.modell", "labkit", "torch", "grading.sandbox"):
        with pytest.raises(LabError, match="no part of labkit"):
            list(boundary.files([name]))


@pytest.mark.parametrize("name", ["labkit.comm", "labkit.comm.wire", "labkit.model", "labkit.model.decoder"])
def test_what_may_be_imported(name):
    assert boundary.may_use(name, ["labkit.model"])


@pytest.mark.parametrize("name", ["labkit.train", "labkit.models", "labkit.record.measure", "labkit.communication"])
def test_what_may_not(name):
    assert not boundary.may_use(name, ["labkit.model"])


def test_a_module_brings_the_packages_around_it_and_no_sibling():
    assert boundary.may_use("labkit.train", ["labkit.train.data.corpus"])
    assert boundary.may_use("labkit.train.data", ["labkit.train.data.corpus"])
    assert not boundary.may_use("labkit.train.loop", ["labkit.train.data.corpus"])


def test_every_week_uses_what_there_is():
    for week in find_weeks():
        list(boundary.files(week.uses))


@pytest.mark.parametrize(
    "line", ["import labkit.strict", "from labkit import strict", "from labkit.strict import Config"]
)
def test_at_home_reaching_for_more_is_refused_by_its_name(tmp_path, line):
    outcome = reaching(tmp_path, line)
    assert not outcome.earned
    words = "labkit.strict is not part of {}: of labkit it stands on labkit.comm and labkit.checks alone"
    assert all(words.format("task 91.1") in case.text for case in outcome.cases)
    assert all("week91_mini/ops.py:3" in case.text for case in outcome.cases), "and where"


def test_at_home_what_is_declared_is_there(tmp_path):
    assert reaching(tmp_path, "import labkit.strict", 'uses = ["labkit.strict"]\n').full


def test_what_a_task_declares_is_its_own(tmp_path):
    """Declared by 91.1 alone: it is there for 91.1, refused to 91.2, and in the sandbox for both."""
    one, two = '[[task]]\nid = "91.1"\n', "import labkit.strict"
    registry = REGISTRY.replace(one, f'{one}uses = ["labkit.strict"]\n')
    folder = make_week(tmp_path, registry=registry)
    (folder / "ops.py").write_text(OPS.replace("import torch\n", f"import torch\n{two}\n", 1))
    week = load_week(folder)
    assert week.uses == week.task("91.1").uses == ("labkit.strict",) and week.task("91.2").uses == ()
    assert run_checks(["91.1"], weeks=[week]).full
    refused = run_checks(["91.2"], weeks=[week])
    assert not refused.earned and all("not part of task 91.2" in case.text for case in refused.cases)


def test_at_home_without_the_rule_it_would_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "labkit.strict", raising=False)
    folder = make_week(tmp_path)
    remote._forget(folder.name)
    (folder / "reach.py").write_text("def reach():\n    import labkit.strict\n    return labkit.strict.__name__\n")
    reach = remote._find(str(tmp_path), folder.name, "reach.reach")
    boundary.hold("task 91.1", ["labkit.model"])
    with pytest.raises(boundary.Refused, match=r"labkit\.strict is not part of task 91\.1"):
        reach()
    sys.meta_path.remove(boundary._Gate)
    assert reach() == "labkit.strict"
    remote._forget(folder.name)
