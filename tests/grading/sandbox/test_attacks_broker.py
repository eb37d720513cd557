"""Junk on a rank's only connection ends that rank's case, with a verdict that is neither points nor the grader's fault,
and nothing else."""

import pytest

from labkit.checks import values
from tests.grading.sandbox.attacks import junk

pytestmark = pytest.mark.thorough

EARNED = ("passed", "grader fault")


@pytest.fixture(autouse=True)
def _the_next_case_is_unharmed(field):
    yield
    assert field.ask("floods.honest", ranks=2).values == [2, 2]


@pytest.mark.parametrize("which", junk.FRAMES)
def test_frame(field, which):
    reply = field.ask("junk.frame", ranks=2, which=which)
    assert reply.verdict not in EARNED, reply.text
    assert reply.verdict == "forbidden call" or which == "a stack of junk"


# How bytes can be no values is tests/checks/test_values.py's matter, how values can be no answer test_answers.py's.
@pytest.mark.parametrize("which", junk.ANSWERS)
def test_forged_answer(field, which):
    reply = field.ask("junk.answer", ranks=2, which=which)
    assert reply.verdict not in EARNED, reply.text
    assert len(reply.text) < 10_000 and "\x1b" not in reply.text and "\u202e" not in reply.text


def test_an_error_text_reaches_a_terminal_if_it_is_not_cleaned(field):
    reply = field.ask("junk.answer", ranks=2, which="an error that commands a terminal", off={"text"})
    assert "\x1b" in reply.text and len(reply.text) > 10_000


@pytest.mark.parametrize("half", [False, True])
def test_hanging_up(field, half):
    runner = field.runner(deadline=1.0)
    assert field.ask("junk.hang_up", ranks=2, half=half, runner=runner).verdict not in EARNED


def test_the_first_answer_counts(field):
    assert field.ask("junk.speak_twice", ranks=2, value=42).values == [0, 0]


def test_messages_that_nobody_receives(field):
    reply = field.ask("junk.flood", ranks=2, count=6000)
    assert reply.verdict == "forbidden call" and "none of them complete" in reply.text
    assert field.ask("junk.flood", ranks=2, count=6000, off={"broker"}).verdict != "forbidden call"


def test_a_message_without_end(field):
    assert field.ask("junk.slowly", ranks=2, runner=field.runner(deadline=1.0)).verdict == "hung"


def test_much_text_is_not_even_read():
    """Lists take twenty times their JSON: four ranks' 16 MiB would be a gigabyte of the grader's memory."""
    with pytest.raises(ValueError, match="too much text"):
        values.unpack(junk.ANSWERS["lists by the million"])


def test_keys_that_collide_would_be_a_table_in_which_all_share_one_place(monkeypatch):
    with pytest.raises(ValueError, match="collide"):
        values.unpack(junk.ANSWERS["keys that collide"])
    monkeypatch.setattr(values, "SAME_HASH", len(junk.COLLIDING))
    _, table, _ = values.unpack(junk.ANSWERS["keys that collide"])
    assert len(table) == len(junk.COLLIDING) and len(set(map(hash, table))) == 1
