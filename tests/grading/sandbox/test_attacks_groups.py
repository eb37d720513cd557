"""A rank's session is its own: nothing that is done to a process group reaches a sibling, the zygote, or whoever is
judged in this sandbox next."""

import os
import signal

import pytest

from grading.sandbox import watch

pytestmark = pytest.mark.thorough

TOLD = [5, 0xA7, 255, 0, 19]
SESSION = {"users", "syscalls"}  # other defences against the same attacks: here the session has to hold alone
OPEN = {"session", *SESSION}


def test_numbers_by_signals(field):
    """A sum of numbers that no message carried."""
    for off in ((), SESSION):
        assert field.got("groups.signals", ranks=2, off=off, numbers=TOLD) == []
    # A signal may find the one before it still waiting to be handled: once in five is an attack as well.
    assert any(field.got("groups.signals", ranks=2, off=OPEN, numbers=TOLD) == TOLD for _ in range(5))


def test_priorities_end_with_their_rank(field):
    for off in ((), SESSION):
        assert field.got("groups.slow_down", off=off) == "slow"
        box = field.runner(off)._box
        assert box.idle and watch.standing(box.zygote) == watch.standing(os.getpid())
    assert field.got("groups.slow_down", off=OPEN) == "slow"
    box = field.runner(OPEN)._box
    assert watch.standing(box.zygote)[2] == "19", "the next submission would run at this priority"
    assert not box.idle, "a sandbox whose zygote was changed must not be lent again"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_nobody_ends_or_stops_the_zygote(field, number):
    for off in ((), SESSION):
        runner = field.runner(off)
        reply = field.ask("groups.signal_all", number=int(number), runner=runner)
        assert reply.verdict in ("passed", "crashed"), reply.text  # its own end is its own matter
        assert runner._box is not None and runner._box.idle
        assert field.ask("floods.honest", ranks=2, runner=runner).values == [2, 2]
    runner = field.runner(OPEN)
    reply = field.ask("groups.signal_all", number=int(number), runner=runner)
    assert reply.verdict == "grader fault" or runner._box is None, reply.text
