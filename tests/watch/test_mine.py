"""The student's own rules beside the page's: what they give is shown, and whatever they do the page stays."""

from __future__ import annotations

import pytest

from labkit.watch import mine
from labkit.watch.alarms import Judge
from labkit.watch.source import Source
from tests.watch.lines import lines, record, write


class Rings:
    """Rings at every tenth step, once."""

    def __init__(self):
        self.seen = 0

    def __call__(self, record):
        steps, self.seen = record["step"][self.seen :], len(record)
        return [(step, "the tenth") for step in steps if step % 10 == 0]


class Open:
    def __init__(self):
        raise NotImplementedError("Task C.4: the alarms")


class Fails(Rings):
    def __call__(self, record):
        if len(record) > 20:
            raise ZeroDivisionError("by what?")
        return super().__call__(record)


def told(monkeypatch, part, *looks):
    """What rang of a part, after each look at so many steps."""
    monkeypatch.setattr(mine, "PARTS", {"yours": part})
    judge, steps, found = Judge(mine.rules()), lines(max(looks)), []
    growing = record([])
    for before, now in zip((0, *looks), looks):
        growing.add(steps[before:now])
        found.append([(alarm.step, alarm.reason) for alarm in judge.judge(growing) if alarm.kind == "yours"])
    return found


def test_what_is_new_is_told_once_however_often_one_looks(monkeypatch):
    found = told(monkeypatch, f"{__name__}:Rings", 15, 15, 30)
    assert [[step for step, _ in rang] for rang in found] == [[10], [10], [10, 20, 30]]


def test_one_that_fails_is_told_and_not_asked_again(monkeypatch):
    found = told(monkeypatch, f"{__name__}:Fails", 15, 25, 35)
    assert found[0] == [(10, "the tenth")]
    assert found[1] == found[2] == [(10, "the tenth"), (None, found[1][1][1])]
    assert "ZeroDivisionError: by what?" in found[1][1][1]


@pytest.mark.parametrize(
    "part, words",
    [
        (f"{__name__}:Open", "not written yet"),
        ("capstone.nowhere:Alarms", "there is no capstone.nowhere here"),
        (f"{__name__}:Nothing", "AttributeError"),
    ],
)
def test_one_that_is_not_there_says_so(monkeypatch, part, words):
    ((rang,),) = told(monkeypatch, part, 5)
    assert rang[0] is None and words in rang[1]


def test_a_page_asks_them_only_if_told_to(monkeypatch, tmp_path):
    monkeypatch.setattr(mine, "PARTS", {"yours": f"{__name__}:Rings"})
    run = write(tmp_path / "run", lines(12))
    for wanted in (False, True):
        _, _, alarms = Source(run, mine=wanted).look("")
        assert [alarm.step for alarm in alarms if alarm.kind == "yours"] == [10] * wanted
