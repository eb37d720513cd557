"""`grade race`: who takes part, under which name, and in a sandbox."""

from __future__ import annotations

import pytest

from grading import race as racing
from grading.intake.arrange import Package
from labkit.checks.race import Lap, Result
from labkit.checks.tasks import find_week
from tests.grading.minicourse import ROOT

FILE = "week13_allreduce/stretch/fastest.py"


@pytest.fixture(scope="module")
def week():
    from labkit.checks.tasks import find_weeks

    return find_week("week13", find_weeks(ROOT))


def entry(text):
    return Package({FILE: text.encode()})


def test_pseudonyms_are_read_and_never_run(week, tmp_path):
    trap = tmp_path / "ran"
    packages = {
        "ann": entry('PSEUDONYM = "zephyr"\n'),
        "bob": entry(f"open({str(trap)!r}, 'w')\nPSEUDONYM = 'a' + 'b'\n"),
        "cat": entry('PSEUDONYM = "ann"\n'),  # somebody's id
        "dan": entry('PSEUDONYM = "same"\n'),
        "eve": entry('PSEUDONYM = "Same"\n'),
        "fay": entry("PSEUDONYM = ("),
        "gus": entry('PSEUDONYM = "\\x1b[31m' + "x" * 50 + '"\n'),
        "hal": "could not be read",
    }
    found = racing.pseudonyms(week, packages, seed=7)
    assert found["ann"] == "zephyr" and len(set(found.values())) == len(packages)
    assert not trap.exists() and not {"ann", "same", "Same", ""} & {found[s] for s in packages if s != "ann"}
    assert "\x1b" not in found["gus"] and len(found["gus"]) <= racing.LONGEST
    assert racing.pseudonyms(week, packages, seed=7) == found
    assert racing.pseudonyms(week, packages, seed=8)["bob"] != found["bob"]


def test_the_best_comes_first_and_the_table_names_nobody(week, monkeypatch, tmp_path):
    times = {"ann": 2.0, "bob": 4.0, "cat": None, "dan": "13.13", "eve": "13.9"}
    for student in times:
        folder = tmp_path / student / "week13_allreduce" / "stretch"
        folder.mkdir(parents=True)
        (folder / "fastest.py").write_text(f"PSEUDONYM = ''  # {student}\n")

    def run(week, package, seed):
        student = package.files[FILE].decode().split("#")[1].strip()
        faster = times[student]
        if isinstance(faster, str):  # a hole: the entry's own, or one that it stands on
            return Result((Lap("mesh 64K", None, None, "not attempted", f"Task {faster}: not written"),))
        if faster is None:
            return Result((Lap("mesh 64K", None, None, "wrong", "numbers differ"),))
        return Result((Lap("mesh 64K", 1e-3 / faster, 1e-3),))

    monkeypatch.setattr(racing, "_run", run)
    ranked, out = racing.race(week, tmp_path, seed=7)
    assert [placed.student for placed in ranked] == ["bob", "ann"]
    assert [(placed.student, placed.why) for placed in out] == [
        ("cat", "mesh 64K: wrong: numbers differ"),
        ("eve", "mesh 64K: not attempted: Task 13.9: not written"),
    ]
    table = racing.class_table(week, ranked)
    names = list(table.columns[0].cells)
    assert [str(name).strip() for name in names] == [*(placed.pseudonym for placed in ranked), "par"]
    assert not {"ann", "bob"} & {str(name).strip() for name in names}
