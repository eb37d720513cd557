"""The deadline of a call whose submission takes more and more memory: later for the word, never for the answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grading.sandbox.call import STRETCH, Call
from labkit.checks.verdict import HUNG

NOW = 1000.0  # seconds, on a clock that stands still


@pytest.fixture
def call(monkeypatch):
    made = object.__new__(Call)
    made.seconds, made.box, made.overdue = 5.0, SimpleNamespace(off=()), False
    made.most = STRETCH * 5.0
    monkeypatch.setattr("grading.sandbox.call.time", SimpleNamespace(monotonic=lambda: NOW))
    monkeypatch.setattr(Call, "_able", lambda self, spent: spent)
    monkeypatch.setattr(Call, "_crowded", lambda self: False)
    return made


@pytest.mark.parametrize(
    ("spent", "growing", "late"),
    [(0.9, True, False), (1.1, False, True), (1.1, True, False), (STRETCH + 0.1, True, True)],
)
def test_it_strikes_unless_memory_grows_and_then_at_the_stretched_one(call, spent, growing, late):
    call.begin, call.growing = NOW - spent * call.seconds, growing
    assert call.late() is late
    assert call.overdue is (1 < spent < STRETCH and growing)


def test_an_answer_after_it_is_none(call):
    call.begin, call.growing = NOW - 1.1 * call.seconds, True
    assert not call.late()
    end = call._answered()
    assert end.verdict == HUNG and "after its deadline of 5 s" in end.text and not end.answers
