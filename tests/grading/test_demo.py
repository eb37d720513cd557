"""`grade demo` where `make demo` calls it: in a folder of the course itself."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from grading import demo
from grading import run as running
from grading.cli import main
from grading.sandbox import isolation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def out():
    made = ROOT / "runs" / f"test-{uuid.uuid4().hex}"
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_ctrl_c_is_told_with_what_to_do(monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "demo", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["demo"])
    assert stop.value.code == 130 and capsys.readouterr().err == "grade: interrupted; the same command goes on\n"


def test_it_releases_hands_in_four_and_grades_them_below_the_course(out, monkeypatch, capsys):
    asked = []

    def graded(week, submissions, marks, **how):
        asked.append((submissions, marks, how["isolation"]))
        return running.Report(seed=1)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(running, "run", graded)
    monkeypatch.setattr(isolation, "missing", lambda: None)
    demo.demo(out)
    assert asked == [(out / "submitted", out / "marks", running.SANDBOXED)]
    rings = {path.parts[-3]: path.read_text() for path in out.glob("submitted/*/week13/collectives.py")}
    assert set(rings) == {"reference", "blank", "wrong", "hanging"} and len(set(rings.values())) == 4
    assert "NotImplementedError" in rings["blank"] and "NotImplementedError" not in rings["reference"]


def test_without_isolation_it_says_so_and_runs_its_own_four(out, monkeypatch, capsys):
    asked = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(running, "run", lambda *args, **how: asked.append(how["isolation"]) or running.Report(seed=1))
    monkeypatch.setattr(isolation, "missing", lambda: "no namespaces")
    demo.demo(out)
    assert asked == [running.UNSANDBOXED] and "UNSANDBOXED" in capsys.readouterr().out
