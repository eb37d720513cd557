"""A rank that works longer than the others is seen in the record, although all steps take the same time."""

import time

from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks
from labkit.record.run import read_run
from labkit.train.loop import Hook
from labkit.train.pace import OwnSeconds, sum_waits
from tests.train import training_jobs as jobs
from tests.watch.lines import alarms, record

PAUSE = 0.03


class Lag(Hook):
    """Rank 1 sleeps while rank 0 stands in a call and waits for it: however busy the machine is, the two meet so."""

    def __init__(self, ledgers):
        self.ledgers = ledgers

    def before_step(self, loop):
        self.ledgers[loop.group.rank] = loop.group.ledger
        if loop.group.rank == 1:
            while 0 not in self.ledgers or not self.ledgers[0].open():
                time.sleep(0.001)
            time.sleep(PAUSE)


def test_a_slow_rank_is_named(tmp_path):
    config = jobs.small_config(steps=24, eval_every=0)
    hooks = (jobs.Average(), OwnSeconds(), Lag({}))  # the gradients' all-reduce, where rank 0 waits, is before its look
    run_ranks(jobs.run, config, tmp_path, hooks, size=2, backend="threads", timeout=120)
    steps = read_run(tmp_path).steps
    assert all(len(line["rank_seconds"]) == 2 for line in steps)
    # The other rank's steps are as long, and it waited in them: what it slept not is not its own.
    # (In most steps: a call that rank 0 stands in may be the one before, which it has not yet left.)
    waits = sorted(line["seconds"] - line["rank_seconds"][0] for line in steps)[12]
    assert waits >= PAUSE and min(line["rank_seconds"][1] for line in steps) >= PAUSE
    for line in steps:  # as on a machine of their own, whatever this one does meanwhile
        line["rank_seconds"] = [0.01, 0.01 + PAUSE]
    assert [alarm.kind for alarm in alarms(record(steps))] == ["slow rank"]


def test_calls_posted_together_count_once_and_what_is_posted_only_counts_where_it_is_waited_for():
    ledger = Ledger(start=0.0)
    for kind, begin, end, blocking in (
        ("all_reduce", 1.0, 2.0, True),
        ("send", 4.0, 6.0, True),
        ("recv", 4.0, 5.0, True),
        ("recv", 5.5, 6.0, True),
        ("compute", 7.0, 9.0, True),
        ("all_reduce", 9.0, 9.5, False),
        ("wait", 9.25, 9.5, True),
    ):
        event = ledger.begin(kind, blocking=blocking)
        event.begin, event.end = begin, end
    assert sum_waits(ledger, 3.0) == 2.25 and sum_waits(ledger, 0.0) == 3.25
