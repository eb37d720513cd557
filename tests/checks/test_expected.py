"""Expected values that are found once, and many questions in one process."""

import json

import pytest

from labkit.checks import call_each, expected, load_week, run_checks
from labkit.checks.expected import once
from labkit.checks.runner import Case, LocalRunner, Reply, use
from labkit.checks.verdict import CheckFailed
from tests.checks.miniweek import OPS, TESTS, Answering, make_week

ASKED = []


@once
def costly(what, number):
    ASKED.append((what, number))
    return [what, (number, 0.1, float("inf"))]


@once
def odd(number):
    return {number}


@pytest.fixture(autouse=True)
def nothing_known():
    ASKED.clear()
    expected.remember({})
    yield
    expected.remember({})


def test_a_value_is_found_once_for_each_argument_and_nobody_can_spoil_it():
    first = costly("a", 1)
    assert first == ["a", [1, 0.1, float("inf")]]
    first[1].append("spoilt")
    assert [costly("a", 1), costly("a", 2)[0], costly("b", 1)[0]] == [["a", [1, 0.1, float("inf")]], "a", "b"]
    assert ASKED == [("a", 1), ("a", 2), ("b", 1)]


def test_what_is_known_can_be_carried_elsewhere_and_replaces_what_was_there():
    costly("a", 1)
    found = json.loads(json.dumps(expected.known()))
    expected.remember({})
    costly("b", 2)
    expected.remember(found)
    ASKED.clear()
    costly("a", 1)
    assert ASKED == []
    costly("b", 2)
    assert ASKED == [("b", 2)]


def test_a_value_that_is_no_plain_data_is_refused():
    with pytest.raises(TypeError):
        odd(1)


def test_a_check_at_home_begins_with_nothing_known(tmp_path):
    """A test file that was edited must not be judged by what its old text found."""
    tests = (
        "from labkit.checks import call_each, once, same, task\n\n\n@once\ndef wanted():\n    return {}\n\n\n"
        '@task("91.1", points=10)\ndef test_name():\n    """Name"""\n'
        '    same(call_each("ops.more", [()]), wanted(), what="it")\n'
    )
    for value in ("[1]", "[2]"):
        week = load_week(make_week(tmp_path, OPS, tests.format(value)))
        outcome = run_checks(["91.1"], weeks=[week], deadline=20.0)
        assert outcome.full == (value == "[1]"), outcome.cases


@pytest.mark.parametrize("answer", [[], [1], [1, 2, 3], 7, None, {"a": 1, "b": 2}])
def test_an_answer_of_another_length_is_no_answer(tmp_path, answer):
    """It comes from the student's process: zipped with the questions, an empty list would pass every case."""
    runner = Answering(lambda job: Reply(values=[answer]))
    with use(runner, Case(tmp_path, "week91_mini")), pytest.raises(CheckFailed) as failed:
        call_each("ops.f", [(1,), (2,)])
    assert failed.value.verdict == "no result"


def test_the_order_of_the_questions_is_the_seeds_and_that_of_the_answers_the_askers(tmp_path):
    asked = []
    runner = Answering(lambda job: Reply(values=[[asked.append(k) or k for (k,) in job.inputs[0]]]))
    for seed in (1, 2, 1):
        with use(runner, Case(tmp_path, "week91_mini", seed=seed)):
            assert call_each("ops.f", [(k,) for k in range(40)]) == [*range(40)]
    assert asked[:40] == asked[80:] != asked[40:80]
    assert sorted(asked[40:80]) == [*range(40)] != asked[:40]


def test_one_process_answers_all_questions_in_their_order(tmp_path):
    pid = "def pid(k, of=None):\n    import os\n    return k, of, os.getpid()\n\n\n"
    ops = OPS.replace("def more():", pid + "def more():")
    folder = make_week(tmp_path, ops, TESTS)
    with LocalRunner() as runner, use(runner, Case(folder.parent, folder.name, timeout=20.0)):
        got = call_each("ops.pid", [(3,), (1, "x"), (2,)])
        with pytest.raises(CheckFailed) as failed:
            call_each("ops.pid", [(3,), ()])
        with pytest.raises(CheckFailed) as missing:
            call_each("ops.nowhere", [(3,)])
    assert [entry[:2] for entry in got] == [(3, None), (1, "x"), (2, None)]
    assert len({entry[2] for entry in got}) == 1
    assert (failed.value.verdict, missing.value.verdict) == ("crashed", "no result")
