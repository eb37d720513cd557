"""What counts as time in which ranks could run, on a machine that others keep busy."""

import pytest

from labkit.comm.processor import lost, since


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
