"""What of labkit a task may import: the base, what its week declares, and nothing else, at home as in the sandbox."""

import pytest

import labkit
from labkit.checks import boundary, run_checks
from labkit.checks.tasks import find_weeks, load_week
from labkit.errors import LabError
from tests.checks.miniweek import OPS, REGISTRY, make_week

BASE = ["checks", "comm", "errors.py", "__init__.py"]


def names(uses=()):
    top = boundary.Path(labkit.__file__).parent
    return sorted(path.relative_to(top).as_posix() for path in boundary.files(uses))


def reaching(tmp_path, line, registry=REGISTRY):
    """The mini week with this import in its ops.py."""
    return load_week(
        make_week(tmp_path, OPS.replace("import torch\n", f"import torch\n{line}\n", 1), registry=registry)
    )


@pytest.mark.thorough
def test_files_are_the_base_and_what_is_declared():
    assert names() == sorted(BASE)
    assert names(["labkit.model"]) == sorted([*BASE, "model"])
    assert names(["labkit.model.decoder"]) == sorted([*BASE, "model/__init__.py", "model/decoder.py"])
    assert names(["labkit.model.decoder", "labkit.model"]) == sorted([*BASE, "model"])
    for name in ("labkit.modell", "labkit", "torch", "grading.sandbox"):
        with pytest.raises(LabError, match="no part of labkit"):
            list(boundary.files([name]))


@pytest.mark.parametrize(
    "uses, there, refused",
    [
        (
            "labkit.model",
            ["labkit.comm", "labkit.comm.wire", "labkit.model", "labkit.model.decoder"],
            ["labkit.train", "labkit.models", "labkit.record.measure", "labkit.communication"],
        ),
        ("labkit.train.data.corpus", ["labkit.train", "labkit.train.data"], ["labkit.train.loop"]),  # no sibling
    ],
)
def test_what_may_be_imported(uses, there, refused):
    assert [name for name in (*there, *refused) if boundary.may_use(name, [uses])] == there


def test_every_week_uses_what_there_is():
    for week in find_weeks():
        list(boundary.files(week.uses))


@pytest.mark.parametrize(
    "line", ["import labkit.strict", "from labkit import strict", "from labkit.strict import Config"]
)
def test_at_home_reaching_for_more_is_refused_by_its_name(tmp_path, line):
    outcome = run_checks(["91.1"], weeks=[reaching(tmp_path, line)])
    assert not outcome.earned
    words = "labkit.strict is not part of {}: of labkit it stands on labkit.comm and labkit.checks alone"
    assert all(words.format("task 91.1") in case.text for case in outcome.cases)
    assert all("week91_mini/ops.py:3" in case.text for case in outcome.cases), "and where"


def test_what_a_task_declares_is_its_own(tmp_path):
    """Declared by 91.1 alone: it is there for 91.1, refused to 91.2, and in the sandbox for both."""
    first = 'id = "91.1"\n'
    week = reaching(tmp_path, "import labkit.strict", REGISTRY.replace(first, f'{first}uses = ["labkit.strict"]\n'))
    assert week.uses == week.task("91.1").uses == ("labkit.strict",) and week.task("91.2").uses == ()
    assert run_checks(["91.1"], weeks=[week]).full
    refused = run_checks(["91.2"], weeks=[week])
    assert not refused.earned and all("not part of task 91.2" in case.text for case in refused.cases)
