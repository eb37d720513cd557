"""The archive for Gradescope, run as its documentation says, in a copy of its folders."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grading.benchmarks.classroom import CLASS, write
from grading.gradescope.pack import pack
from grading.gradescope.run import results
from labkit.checks.tasks import find_week, find_weeks
from tests.grading.publish.aclass import mark

ROOT = Path(__file__).resolve().parents[2]
WEEKS = find_weeks(ROOT)
BY_NAME = {made.name: made for made in CLASS}


def unpacked(folder, week, **more):
    """/autograder after the image is built, but for the virtual environment, which is this one."""
    pack(week, WEEKS, folder / "a.zip", 5, **more)
    root = folder / "autograder"
    with zipfile.ZipFile(folder / "a.zip") as archive:
        archive.extractall(root / "source")
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    for name in ("setup.sh", "run_autograder"):
        assert modes[name] & 0o100, f"{name} must be at the top, and executable"
    shutil.copyfile(root / "source" / "run_autograder", root / "run_autograder")
    (root / "run_autograder").chmod(0o755)
    (root / "venv" / "bin").mkdir(parents=True)
    (root / "venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (root / "venv" / "bin" / "python").chmod(0o755)
    (root / "submission").mkdir()
    (root / "results").mkdir()
    (root / "submission_metadata.json").write_text('{"created_at": "2026-11-20T10:00:00.000000-08:00"}')
    return root


def autograde(root, **environment):
    """What Gradescope's harness does; its results, or None."""
    environment = {**os.environ, "PYTHONPATH": "", **environment}
    done = subprocess.run([root / "run_autograder"], cwd=root, capture_output=True, text=True, env=environment)
    made = root / "results" / "results.json"
    return done, json.loads(made.read_text()) if made.exists() else None


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_the_archive_holds_what_judging_needs_and_no_later_week(week, tmp_path):
    many = pack(week, WEEKS, tmp_path / "a.zip", 5)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
        assert len(names) == many == len(set(names))
        for name in ("setup.sh", "run_autograder"):
            text = archive.read(name).decode()
            assert text.startswith("#!/usr/bin/env bash\n")
            assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        assert "torch==" in archive.read("requirements.txt").decode()
    packages = [one.package for one in WEEKS]
    tops = {name.split("/")[1] for name in names if name.startswith("course/")}
    assert tops & set(packages) == set(packages[: packages.index(week.package) + 1])
    assert not [name for name in names if "/results/" in name or name.startswith("course/tests/")]
    assert (tmp_path / "a.zip").stat().st_mode & 0o077 == 0, "it holds the solutions and the seed"
    pack(week, WEEKS, tmp_path / "b.zip", 5)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_results_add_up_and_diagnoses_wait_for_publication():
    week = find_week("week13", WEEKS)
    wrong = mark("13.2 off-by-one chunk", "13.5 GB/s", notes=["There is more than one timing.py."])
    said = results(week, wrong)
    assert said["score"] == wrong.points < 80
    assert sum(test["score"] for test in said["tests"]) == pytest.approx(wrong.points, abs=0.2)
    assert sum(test["max_score"] for test in said["tests"]) == pytest.approx(80, abs=0.05)
    for test in said["tests"]:
        assert set(test) == {"name", "number", "score", "max_score", "status", "output", "visibility"}
        assert (test["visibility"] == "visible") == (test["status"] == "passed")
        assert test["output"] or test["status"] == "passed"
    assert said["stdout_visibility"] == "hidden" and "13.7" in said["output"] and "timing.py" in said["output"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("sandbox")
def test_run_as_the_documentation_says(tmp_path):
    week = find_week("week13", WEEKS)
    tmp_path.chmod(0o755)
    root = unpacked(tmp_path, week)
    write(week, root / "submission", BY_NAME["wrong-mean"])  # right for sums: a part of 13.4's points
    done, said = autograde(root)
    assert done.returncode == 0, done.stderr
    earned = {test["number"]: test["score"] for test in said["tests"]}
    assert said["score"] == pytest.approx(sum(earned.values()), abs=0.05)
    assert said["extra_data"]["isolation"] == "bubblewrap"
    of_the_task, points = sum(score for n, score in earned.items() if n.startswith("13.4.")), week.task("13.4").points
    assert 0 < of_the_task < points and said["score"] == pytest.approx(80 - points + of_the_task, abs=0.05)
    failed = {test["number"].rsplit(".", 1)[0] for test in said["tests"] if test["status"] == "failed"}
    assert failed == {"13.4"}


@pytest.mark.thorough
def test_where_nothing_can_be_shut_in_there_is_no_result_unless_that_was_asked_for(tmp_path):
    week = find_week("week13", WEEKS)
    root = unpacked(tmp_path, week)
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("bash", "dirname"):
        (empty / name).symlink_to(shutil.which(name))
    done, said = autograde(root, PATH=str(empty))
    assert done.returncode == 1 and "cannot shut a submission in" in done.stderr and said is None
