"""The demo, where `make demo` calls it: in a folder of the course."""

import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from grading import demo
from grading import run as running
from grading.intake.submission import read_submission
from grading.mark import SANDBOXED, UNSANDBOXED
from grading.publish import publishing
from grading.register.submissions import attempts
from grading.sandbox import isolation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def out():
    made = ROOT / "runs" / f"test-{uuid.uuid4().hex}"
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(("why", "how"), [("", SANDBOXED), ("no namespaces", UNSANDBOXED)])
def test_it_releases_hands_in_four_and_grades_them_below_the_course(out, monkeypatch, capsys, why, how):
    """Without isolation it says so, and runs its own four."""
    rings = {}

    def graded(cls, week, wishes, tell):
        assert cls.folder == out and wishes.isolation == how
        for one in attempts(cls, week.name):
            rings[one.label] = (
                read_submission(cls.archive(week, one.id)).files["week13_allreduce/collectives.py"].decode()
            )
        return running.Report()

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(running, "run", graded)
    monkeypatch.setattr(isolation, "missing", lambda: why)
    published = SimpleNamespace(folder=out / "published" / "week13")
    monkeypatch.setattr(publishing, "publish", lambda cls, week, wishes: published)
    assert demo.demo(out) == published.folder / "class.html"
    assert set(rings) == {"reference", "blank", "wrong", "hanging"} and len(set(rings.values())) == 4
    assert "NotImplementedError" in rings["blank"] and "NotImplementedError" not in rings["reference"]
    assert ("UNSANDBOXED" in capsys.readouterr().out) == bool(why)
