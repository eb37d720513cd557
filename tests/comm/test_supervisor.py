"""When a run of ranks ends, and why: by a medium whose every look is scripted, with a clock of its own."""

import pytest

from labkit.comm import supervisor
from labkit.comm.autopsy import Evidence
from labkit.comm.ledger import Ledger
from labkit.comm.supervisor import DEADLINE, DEADLOCK, FAILED, GRACE, SETTLED, STILL, supervise

STEP = 0.02  # seconds that one wait takes here


NAMES = {"r": "running", "d": "returned", "x": "raised", "X": "died"}


class Scripted:
    """`script(seconds)` -> what is so then: {"states": "rrr", "moves", "blocked", "fault"}; r, d, x and X for running,
    done, raised and died."""

    def __init__(self, script, stuck=False, deadline=float("inf")):
        self.script, self.stuck, self.deadline = script, stuck, deadline
        self.now, self.reads, self.waits = 0.0, [], []

    def so(self, name, default=None):
        return self.script(self.now).get(name, default)

    @property
    def fault(self):
        return self.so("fault")

    def wait(self, seconds):
        assert seconds > 0
        self.waits.append(seconds)
        self.now += min(seconds, STEP)

    def states(self):
        return [NAMES[letter] for letter in self.so("states", "rr")]

    def moves(self):
        return self.so("moves", 0)

    def blocked(self):
        return self.so("blocked", False)

    def late(self):
        return self.now >= self.deadline

    def evidence(self):
        """Two ranks, each of which receives from the other, if `stuck`."""
        self.reads.append(self.now)
        ledgers = [Ledger(rank, 2) for rank in range(2)]
        if self.stuck:
            for ledger in ledgers:
                ledger.begin("recv", 1 - ledger.rank, 4, dtype="float32", shape=(1,), where="x.py:1")
        return [Evidence(rank, ledger) for rank, ledger in enumerate(ledgers)]


@pytest.fixture
def ends(monkeypatch):
    """ends(script, ...) -> (why, after how many seconds, the medium)."""

    def run(script, stuck=False, deadline=float("inf"), **options):
        medium = Scripted(script, stuck, deadline)
        monkeypatch.setattr(supervisor.time, "perf_counter", lambda: 100.0 + medium.now)
        return supervise(medium, **options), medium.now, medium

    return run


def after(seconds, before, then):
    return lambda now: then if now >= seconds else before


def test_all_returned(ends):
    why, when, medium = ends(after(0.5, {"states": "rd"}, {"states": "dd"}))
    assert why is None and 0.5 <= when <= 0.5 + 2 * STEP and not medium.reads
    assert ends(lambda now: {"states": "dd"}, deadline=0.0)[0] is None, "who has returned is not late"
    said = after(1.005, {"states": "dr"}, {"states": "dd"})
    assert ends(said, deadline=0.99)[0] is None, "who had returned before the supervisor looked is not late"


@pytest.mark.parametrize(
    "failed", [{"states": "xr"}, {"states": "Xr"}, {"states": "rx"}, {"fault": "they disagree"}], ids=str
)
def test_one_has_failed_and_the_others_get_a_grace(ends, failed):
    why, when, medium = ends(after(0.2, {}, failed), deadline=0.4)  # no deadline strikes meanwhile
    assert why == FAILED and 0.2 + GRACE <= when <= 0.2 + GRACE + 3 * STEP
    assert max(medium.waits[12:]) <= GRACE, "it wakes when the grace is over"


def test_a_grace_ends_early_when_there_is_nobody_to_wait_for(ends):
    assert ends(after(0.2, {}, {"states": "xx"}))[1] <= 0.2 + 2 * STEP
    assert ends(after(0.2, {}, {"states": "xd"}))[1] <= 0.2 + 2 * STEP
    settled = ends(after(0.2, {}, {"states": "xr", "blocked": True}))[1]
    assert 0.2 + SETTLED < settled <= 0.2 + SETTLED + 3 * STEP
    assert ends(after(0.2, {}, {"states": "xr", "blocked": True}), settled=GRACE)[1] >= 0.2 + GRACE
    moving = ends(lambda now: {"states": "xr", "blocked": True, "moves": now})
    assert moving[1] > GRACE - STEP, "those that still go on have something to tell"


def test_a_deadlock_that_is_certain(ends):
    why, when, medium = ends(lambda now: {"blocked": True}, stuck=True)
    assert why == DEADLOCK and STILL < when <= STILL + 2 * STEP and len(medium.reads) == 1
    assert ends(lambda now: {"blocked": True}, stuck=True, still=1.0)[1] > 1.0


def test_none_is_believed_while_something_moves_or_somebody_computes(ends):
    assert ends(lambda now: {"blocked": True, "moves": now}, stuck=True, deadline=2.0)[0] == DEADLINE
    assert ends(lambda now: {"blocked": now < 0.2}, stuck=True, deadline=2.0)[0] == DEADLINE
    why, when, _ = ends(after(1.0, {}, {"states": "rd", "blocked": True}), stuck=True, deadline=2.0)
    assert why == DEADLOCK and when > 1.0 + STILL, "a rank that returns is a move"


def test_the_evidence_is_asked_once_until_something_moves(ends):
    why, _, medium = ends(lambda now: {"blocked": True, "moves": int(now)}, deadline=3.0)
    assert why == DEADLINE and len(medium.reads) == 3


def test_the_deadline(ends):
    why, when, medium = ends(lambda now: {}, deadline=1.0)
    assert why == DEADLINE and 1.0 <= when <= 1.0 + 2 * STEP and not medium.reads
