"""A second export tells whose total is another one than in the file that it takes the place of."""

from __future__ import annotations

import pytest

from grading.reports import changed

MOODLE = (
    "Identifier,Full name,Grade,Maximum grade\r\nParticipant 1,Max Meier,{},100\r\nParticipant 2,Max Meier,{},100\r\n"
)
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Week 13
    Points Possible,,,,,100
"M, Max",1,,,,{}
"M, Max",2,,,,{}
"""
OWN = '\ufeff"student","total","state"\r\n"max","{}","complete"\r\n"mia","{}","complete"\r\n'


def tables(tmp_path, form, *pairs):
    made = []
    for number, cells in enumerate(pairs):
        (tmp_path / f"{number}.csv").write_text(form.format(*cells), encoding="utf-8", newline="")
        made.append(changed.read(tmp_path / f"{number}.csv"))
    return made


@pytest.mark.parametrize("form, names", [(MOODLE, ["Max Meier"] * 2), (CANVAS, ["M, Max"] * 2), (OWN, ["max", "mia"])])
def test_whose_total_changed(tmp_path, form, names):
    """Two of one name are two; 70 and 70.00 are the same points."""
    before, same, after, first = tables(tmp_path, form, (70, ""), ("70.00", ""), (70, 96), (80, ""))
    assert changed.told(before, same) == []
    assert changed.told(before, after) == [f"Changed since the file that was there: {names[1]} none -> 96"]
    assert changed.told(before, first) == [f"Changed since the file that was there: {names[0]} 70 -> 80"]
    assert changed.told(after, before) == [f"Changed since the file that was there: {names[1]} 96 -> none"]


def test_who_is_not_in_the_roster_is_told_by_our_id(tmp_path):
    """Of two without a full name and a number one was told, and without a name."""
    form = '"student","Full name","Identifier","total"\r\n"leaver a","","","{}"\r\n"leaver b","","","{}"\r\n'
    before, after = tables(tmp_path, form, (70, 72), (71, ""))
    (told,) = changed.told(before, after)
    assert told.endswith("leaver a 70 -> 71; leaver b 72 -> none")


def test_who_is_new_and_who_is_gone(tmp_path):
    (both,) = tables(tmp_path, OWN, (70, 80))
    one = (both[0], {"max": both[1]["max"]})
    assert changed.told(one, both) == ["Changed since the file that was there: mia not there -> 80"]
    assert changed.told(both, one) == ["Changed since the file that was there: mia 80 -> not there"]


def test_a_table_of_other_columns_is_another_table(tmp_path):
    own, moodle = tables(tmp_path, OWN, (1, 2))[0], tables(tmp_path, MOODLE, (3, 4))[0]
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\0")
    for before in (moodle, changed.read(tmp_path / "none.csv"), changed.read(tmp_path / "binary.csv")):
        assert changed.told(before, own) == []


def test_a_whole_class_is_counted(tmp_path):
    was = (["student", "total"], {f"s{n:02}": (f"s{n:02}", "1") for n in range(30)})
    now = (was[0], {name: (name, "2") for name in was[1]})
    (told,) = changed.told(was, now)
    assert told.count("1 -> 2") == changed.TOLD and told.endswith("; and 10 more")


def test_of_a_worksheet_without_names_the_number_is_told(tmp_path):
    before, after = tables(tmp_path, "Identifier,Grade\r\nParticipant 1,{}\r\nParticipant 2,{}\r\n", (70, 72), (71, 72))
    assert changed.told(before, after) == ["Changed since the file that was there: Participant 1 70 -> 71"]
