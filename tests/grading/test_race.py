"""The race: who takes part, under which name, and in a sandbox."""

import pytest

from grading import race as racing
from grading.intake.arrange import Package
from grading.intake.arrival import Arrival, Key
from grading.register.classes import init_class, open_class
from grading.register.submissions import add_submission
from labkit.checks.race import Lap, Result
from labkit.checks.tasks import find_week
from tests.grading.minicourse import ROOT
from tests.grading.publish.aclass import zipped

FILE = "week13_allreduce/stretch/fastest.py"


@pytest.fixture(scope="module")
def week():
    from labkit.checks.tasks import find_weeks

    return find_week("week13", find_weeks(ROOT))


def entry(text):
    return Package({FILE: text.encode()})


def test_pseudonyms_are_read_and_never_run(week, tmp_path):
    trap = tmp_path / "ran"
    named = ('"zephyr"', f"open({str(trap)!r}, 'w')", '"ann"', '"same"', '"Same"', "(", '"\\x1b[31m' + "x" * 50 + '"')
    packages = {number: entry(f"PSEUDONYM = {text}\n") for number, text in enumerate(named, 1)}  # 3: somebody's name
    found = racing.pseudonyms(week, packages, 7, ["Ann", "a@x"])
    assert found[1] == "zephyr" and len(set(found.values())) == len(packages)
    assert not trap.exists() and not {"ann", "same", "Same", ""} & {found[number] for number in packages if number != 1}
    assert "\x1b" not in found[7] and len(found[7]) <= racing.LONGEST
    assert racing.pseudonyms(week, packages, 7, ["Ann"]) == found
    assert racing.pseudonyms(week, packages, 9, ["Ann"])[2] != found[2]


def test_the_best_comes_first_and_the_table_names_nobody(week, monkeypatch, tmp_path):
    times = {"ann": 2.0, "bob": 4.0, "cat": None, "dan": "13.13", "eve": "13.9"}

    def run(week, package, seed):
        student = package.files[FILE].decode().split("#")[1].strip()
        faster = times[student]
        if isinstance(faster, str):  # a blank: the entry's own, or one that it stands on
            return Result((Lap("mesh 64K", None, None, "not attempted", f"Task {faster}: not written"),))
        if faster is None:
            return Result((Lap("mesh 64K", None, None, "wrong", "numbers differ"),))
        return Result((Lap("mesh 64K", 1e-3 / faster, 1e-3),))

    monkeypatch.setattr(racing, "_run", run)
    roster = tmp_path / "roster.csv"
    roster.write_text("\n".join(["student", *times]))
    init_class(tmp_path / "class", roster, "UTC", [week])
    with open_class(tmp_path / "class", [week]) as cls:
        for student in times:
            whole, keys = zipped({FILE: f"PSEUDONYM = ''  # {student}\n".encode()}), [Key("id", student)]
            add_submission(cls, week, Arrival(student, keys, whole, None, "folder", "by hand"))
        ranked, out = racing.race(cls, week)
    assert [placed.name for placed in ranked] == ["bob", "ann"]
    assert [(placed.name, placed.why) for placed in out] == [
        ("cat", "mesh 64K: wrong: numbers differ"),
        ("eve", "mesh 64K: not attempted: Task 13.9: not written"),
    ]
    table = racing.class_table(week, ranked)
    names = list(table.columns[0].cells)
    assert [str(name).strip() for name in names] == [*(placed.pseudonym for placed in ranked), "par"]
    assert not {"ann", "bob"} & {str(name).strip() for name in names}
