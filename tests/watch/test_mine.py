"""The student's own rules beside the page's: what they give is shown, and whatever they do the page stays."""

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


def rang(monkeypatch, part, *polls):
    """What rang of a part, after each poll at so many steps."""
    monkeypatch.setattr(mine, "PARTS", {"yours": part})
    judge, steps, found = Judge(mine.make_rules()), lines(max(polls)), []
    growing = record([])
    for before, now in zip((0, *polls), polls):
        growing.add(steps[before:now])
        found.append([(alarm.step, alarm.reason) for alarm in judge.judge(growing) if alarm.kind == "yours"])
    return found


def test_one_that_fails_is_reported_and_not_called_again(monkeypatch):
    found = rang(monkeypatch, f"{__name__}:Fails", 15, 25, 35)
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
    (((step, reason),),) = rang(monkeypatch, part, 5)
    assert step is None and words in reason


def test_a_page_calls_them_only_on_request(monkeypatch, tmp_path):
    monkeypatch.setattr(mine, "PARTS", {"yours": f"{__name__}:Rings"})
    run = write(tmp_path / "run", lines(12))
    for wanted in (False, True):
        _, _, alarms = Source(run, mine=wanted).poll("")
        assert [alarm.step for alarm in alarms if alarm.kind == "yours"] == [10] * wanted
