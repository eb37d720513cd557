"""Minutes and money over several calls of `lab compare`, of which some came to no end."""

import pytest

from labkit.compare.budget import Budget
from labkit.compare.summary import note_call, together
from labkit.record.read import read_run
from labkit.record.run import RunRecord
from labkit.record.schema import Call, Item


def call(seconds, cost=None, **more):
    return Call(began=0.0, seconds=seconds, cost=cost, **more)


@pytest.mark.parametrize(
    "earlier, last, shown",
    [
        ([], call(600), ""),
        ([call(3)], call(600), ""),  # a look that ran nothing
        ([call(600)], call(300), " With the calls before it 15.0 minutes."),
        ([call(600, 0.5)], call(300, 0.25, ended=True), " With the calls before it 15.0 minutes, 0.75 in all."),
        ([call(600, 0.5)], call(300), " With the calls before it 15.0 minutes."),  # one without a price: no sum
        ([call(600, ended=False), call(60)], call(300), " With the calls before it at least 16.0 minutes."),
    ],
)
def test_all_calls_are_summed(earlier, last, shown):
    assert together(earlier, last) == shown


@pytest.fixture
def folder(tmp_path):
    """Two calls by a clock of our own: one killed while its second arm ran, one that finished."""
    record = RunRecord.create(tmp_path / "run", kind="compare", command="lab compare", hardware={})
    clock = iter([1000.0, 1000.0 + 5, 1000.0 + 605]).__next__
    killed = Budget(10, 3.0, clock=clock)
    note_call(record, killed)
    killed.took(Item(part="speed", arm="bf16", predicted_s=500.0), 600.0)
    note_call(record, killed)
    again = Budget(10, 3.0, clock=iter([9000.0, *[9000.0 + 120] * 2]).__next__)
    note_call(record, again)
    again.took(Item(part="speed", arm="fp8", predicted_s=90.0), 100.0)
    note_call(record, again, ended=True)
    record.results(arms={}, verdict={"word": "incomplete", "sentence": "No verdict."})
    record.finish("finished")
    return tmp_path / "run"


def test_a_call_replaces_what_it_wrote_and_nothing_else(folder):
    killed, again = read_run(folder).comparison.results.calls
    assert (killed.ended, killed.seconds, [item.arm for item in killed.items]) == (False, 605.0, ["bf16"])
    assert (again.ended, again.seconds, [item.arm for item in again.items]) == (True, 120.0, ["fp8"])
