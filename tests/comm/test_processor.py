"""What counts as time in which ranks could run, on a machine that others keep busy."""

import pytest

from labkit.comm import processor
from labkit.comm.processor import Able, lost, since


@pytest.mark.parametrize(
    "each, seconds",
    [
        ([(2.0, 8.0)] * 4, 8.0),  # side by side with a fifth of a processor each: the waits are one
        ([(0.4, 2.0)] * 4, 8.0),  # in turn, one at a time: nothing went on while one waited
        ([*[(0.4, 1.0)] * 4, (0.4, 4.0)], 8.0),  # who carries the messages waits as well
        ([(10.0, 0.0)] * 2, 0.0),  # an idle machine
        ([(0.0, 0.0)] * 2, 0.0),
        ([], 0.0),
        ([(1.0, 9.0), *[(10.0, 0.0)] * 3], 9.0),  # the call is as late as the one for whom all others wait
    ],
)
def test_what_ten_seconds_lost(each, seconds):
    assert lost(10.0, each) == pytest.approx(seconds)


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
