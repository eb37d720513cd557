"""What comes back is a student's, of whatever form: it costs points and is never the grader's fault."""

import pytest
import torch

from labkit.checks import load_week, remote, run_checks, values
from labkit.checks.runner import Reply, read_answers
from labkit.checks.verdict import CRASHED, FAULT, NO_RESULT, NOT_ATTEMPTED, PASSED
from tests.checks.miniweek import Answering, make_week

TEST = """
import math, struct, torch
from labkit.checks import call_alone, task

@task("91.1", points=10)
def test_takes_it_apart():
    came = call_alone("ops.name")
    {line}
"""


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (("ok", 1, ()), PASSED),
        (("raised", "no"), CRASHED),
        (("unfinished", "Task 91.1"), NOT_ATTEMPTED),
        (("else", 1), NO_RESULT),
        (("ok", 1), NO_RESULT),
        (("ok", 1, 2), NO_RESULT),
        (("raised", 1), NO_RESULT),
        (("raised", torch.ones(3)), NO_RESULT),
        ((torch.ones(3), "x"), NO_RESULT),
        ((["ok"], 1, ()), NO_RESULT),
        ((), NO_RESULT),
        ({}, NO_RESULT),
        (7, NO_RESULT),
    ],
)
def test_an_answer_of_another_form(answer, verdict):
    good = values.pack((remote.OK, 1, ()))
    for packed in ([values.pack(answer)], [good, values.pack(answer)], [values.pack(answer), good]):
        assert read_answers(packed, [], True).verdict == verdict


@pytest.mark.parametrize(
    ("line", "came", "verdict"),
    [
        ("float(came)", "allocate memory", NO_RESULT),
        ("float(came)", "[enforce fail at alloc_cpu.cpp:1] can't allocate memory: allocate 8 bytes", NO_RESULT),
        ("float(came)", torch.ones(2), NO_RESULT),
        ("torch.zeros(came)", 1 << 50, NO_RESULT),
        ("struct.pack('B', came)", 256, NO_RESULT),
        ("open(came)", "x" * 5000, NO_RESULT),
        ("assert came == 1", 2, NO_RESULT),
        ("call_alone('ops.name', [came] * 200)", list(range(1000)), NO_RESULT),
        ("raise RuntimeError('[enforce fail at alloc_cpu.cpp:1] . : you tried to allocate 8192 bytes.')", 1, FAULT),
        ("raise MemoryError", 1, FAULT),
        ("raise OSError(28, 'the disk is full')", 1, FAULT),
    ],
)
def test_a_check_that_breaks_off_over_an_answer(tmp_path, line, came, verdict):
    def answering(job):
        for args in job.inputs:
            values.pack(args)
        return Reply(values=[came])

    week = load_week(make_week(tmp_path, tests=TEST.format(line=line)))
    (case,) = run_checks(["91.1"], weeks=[week], runner=Answering(answering)).cases
    assert case.verdict == verdict, case.text
