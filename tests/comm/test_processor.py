"""What counts as time in which ranks could run, on a machine that others keep busy."""

import pytest

from labkit.comm import processor
from labkit.comm.processor import Able, lost, since


def test_side_by_side_the_waits_are_one():
    """Four ranks compute for 10 s, with a fifth of a processor each: they lost 8 s, and not 32."""
    assert lost(10.0, [(2.0, 8.0)] * 4) == pytest.approx(8.0)


def test_in_a_chain_the_waits_add_up():
    """Four ranks in turn, one at a time: each waited for 2 s of the 10, and nothing went on meanwhile."""
    assert lost(10.0, [(0.4, 2.0)] * 4) == pytest.approx(8.0)


def test_who_carries_the_messages_waits_as_well():
    assert lost(10.0, [*[(0.4, 1.0)] * 4, (0.4, 4.0)]) == pytest.approx(8.0)


def test_nobody_waits_on_an_idle_machine():
    assert lost(10.0, [(10.0, 0.0)] * 2) == lost(10.0, [(0.0, 0.0)] * 2) == lost(10.0, []) == 0.0


def test_a_rank_that_all_others_wait_for_is_not_averaged_away():
    """One had to wait for 9 s, three computed without a wait: the call is as late as the one."""
    assert lost(10.0, [(1.0, 9.0), *[(10.0, 0.0)] * 3]) == pytest.approx(9.0)


def test_a_process_that_is_gone_lost_nothing():
    assert since((3.0, 2.0), (4.0, 7.0)) == (1.0, 5.0) and since((3.0, 2.0), (0.0, 0.0)) == (0.0, 0.0)


def test_seconds_in_which_nobody_could_run_do_not_count(monkeypatch):
    had = {1: (0.0, 0.0), 2: (50.0, 50.0)}
    monkeypatch.setattr(processor, "times", had.get)
    monkeypatch.setattr(processor.time, "monotonic", lambda: clock)
    clock = 0.0
    able = Able()
    able.look([1])
    clock, had[1] = 10.0, (4.0, 6.0)
    assert able.look([1, 2]) == pytest.approx(4.0), "what the other had waited before it was seen is no matter"
    clock, had[1] = 18.0, (4.0, 14.0)
    assert able.look([1, 2]) == pytest.approx(5.0), "an eighth of the clock's at least"
