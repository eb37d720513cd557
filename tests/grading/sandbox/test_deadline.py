"""The deadline of a call whose submission takes more and more memory: later for the word, never for the answer."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from grading.sandbox import site, watch
from grading.sandbox.call import STRETCH, Call, End
from grading.sandbox.runner import SandboxRunner
from labkit.checks.runner import Reply
from labkit.checks.verdict import HUNG, PASSED

NOW = 1000.0  # seconds, on a clock that stands still


@pytest.fixture
def call(monkeypatch):
    made = object.__new__(Call)
    made.seconds, made.box, made.overdue = 5.0, SimpleNamespace(off=()), False
    made.most = STRETCH * 5.0
    monkeypatch.setattr("grading.sandbox.call.time", SimpleNamespace(monotonic=lambda: NOW))
    monkeypatch.setattr(Call, "_able", lambda self, spent: spent)
    monkeypatch.setattr(Call, "_crowded", lambda self: False)
    return made


@pytest.mark.parametrize(
    ("spent", "growing", "late"),
    [(0.9, True, False), (1.1, False, True), (1.1, True, False), (STRETCH + 0.1, True, True)],
)
def test_it_strikes_unless_memory_grows_and_then_at_the_stretched_one(call, spent, growing, late):
    call.begin, call.growing = NOW - spent * call.seconds, growing
    assert call.late() is late
    assert call.overdue is (1 < spent < STRETCH and growing)


def test_an_answer_after_it_is_none(call):
    call.begin, call.growing = NOW - 1.1 * call.seconds, True
    assert not call.late()
    end = call._answered()
    assert end.verdict == HUNG and "after its deadline of 5 s" in end.text and not end.answers


def able(monkeypatch, waited, room, off=()):
    """Seconds of 10 for which four ranks could run, of which each waited so long, and the judge for one; each computed
    for a quarter of a second."""
    made = object.__new__(Call)
    made.box, made.mains, made.own = SimpleNamespace(off=off), [1, 2, 3, 4], (0.0, 0.0)
    made.room = SimpleNamespace(each=lambda ranks: room)
    monkeypatch.setattr("grading.sandbox.call.times", lambda pid: (0.25, waited if pid in made.mains else 1.0))
    return made._able(10.0)


def test_in_a_chain_of_messages_the_waits_of_all_are_lost(monkeypatch):
    assert able(monkeypatch, 1.5, 0.0) == pytest.approx(3.0), "four times 1.5, and what the judge waited"
    assert able(monkeypatch, 1.5, 5.0) == pytest.approx(5.0), "but they had half of the machine"
    assert able(monkeypatch, 1.5, 5.0, off={"excuse"}) == pytest.approx(3.0)


def room(monkeypatch, idle, wanting, others, *used):
    """Seconds of two processors that a tree had or could have had in 10 s, of which so many were idle; of its processes
    each used so much."""
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(watch, "_idle", lambda processors: 0.0)
    monkeypatch.setattr(watch.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(watch, "_quota", lambda: float("inf"))
    monkeypatch.setattr(watch, "_wanting", lambda: 1 + wanting + others)
    monkeypatch.setattr(watch, "used", lambda pid: used[pid])
    made = watch.Room()
    made.look(wanting, list(range(len(used))))
    monkeypatch.setattr(watch, "_idle", lambda processors: idle)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: 10.0))
    return made.seconds()


def test_a_tree_had_what_was_idle_and_no_more_than_it_used_or_than_its_share(monkeypatch):
    assert room(monkeypatch, 20.0, 0, 0) == pytest.approx(20.0), "all was idle"
    assert room(monkeypatch, 0.0, 2, 6, 4.0, 1.0) == pytest.approx(5.0), "a quarter of the threads, of 20 s"
    assert room(monkeypatch, 0.0, 2, 6, 0.5, 0.4) == pytest.approx(0.9), "six sessions elsewhere had the rest"
    assert room(monkeypatch, 12.0, 1, 0, 8.0) == pytest.approx(20.0), "in nobody's way but its own"
    assert room(monkeypatch, 25.0, 1, 0, 8.0) == pytest.approx(20.0), "ticks are coarse: no more than there is"


def test_what_a_call_lost_is_the_most_that_any_look_has_seen(monkeypatch):
    made = object.__new__(Call)
    made.box = SimpleNamespace(off={"watch"}, zygote=5, pid=1)
    made.begin, made.looks, made.helpers, made.lost = NOW - 10.0, 0, 0, 0.0
    seen = []
    made.room = SimpleNamespace(look=lambda *figures: seen.append(figures))
    monkeypatch.setattr(watch, "tree", lambda pid: [1, 4, 5, 10, 11, 12])
    monkeypatch.setattr(watch, "children", lambda pid: [10, 11])
    monkeypatch.setattr(watch, "running", lambda pids, mains: (0, 3))
    for able in (4.0, 9.0, 12.0):
        monkeypatch.setattr(Call, "_able", lambda self, spent, able=able: able)
        made._look(NOW)
        assert made.lost == pytest.approx(6.0), "of 10 s, four or more"
    assert seen == [(3, [10, 11, 12])] * 3, "all that want a processor, and all processes but the sandbox's own"
    monkeypatch.setattr(watch, "running", lambda pids, mains: (1000, 1003))
    made._look(NOW)
    assert made.lost == 0.0, "to wait for one's own helpers is no loss: a judgement of 180 s took 233"


def test_a_process_that_ended_used_what_it_had_used_when_it_was_seen(monkeypatch):
    monkeypatch.setattr(watch, "used", {1: 2.0, 2: 3.0}.get)
    made = watch.Room()
    made.look(1, [1, 2])
    monkeypatch.setattr(watch, "used", lambda pid: 2.5 if pid == 1 else 0.0)
    made.look(1, [1, 2])
    assert made.used == {1: 2.5, 2: 3.0}


def test_what_a_process_used_is_its_own_threads():
    before = watch.used(os.getpid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert before + 0.05 < watch.used(os.getpid()) < before + 1.0, "ticks of a hundredth of a second"
    burn = "import time\nwhile time.process_time() < 1.0: pass"
    before = watch.used(os.getpid())
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert watch.used(os.getpid()) < before + 0.9, "a child's is the child's"
    assert watch.used(2**22 + 1) == 0.0


@pytest.mark.parametrize(
    "processors, quota, ranks, each", [(2, 9, 4, 5.0), (8, 9, 4, 2.5), (8, 2, 4, 5.0), (1, 9, 4, 10.0)]
)
def test_ranks_that_share_a_whole_machine_had_all_of_it(processors, quota, ranks, each, monkeypatch):
    made = object.__new__(watch.Room)
    made.processors = set(range(processors))
    monkeypatch.setattr(watch, "_quota", lambda: float(quota))
    monkeypatch.setattr(watch.Room, "seconds", lambda self: 10.0)
    assert made.each(ranks) == pytest.approx(each)


def test_to_start_the_sandbox_again_is_the_submissions_time(monkeypatch, tmp_path):
    made = SandboxRunner(tmp_path)
    monkeypatch.setattr(SandboxRunner, "_started", lambda self: time.sleep(0.3))
    monkeypatch.setattr(SandboxRunner, "_run", lambda self, job, box: End(PASSED))
    monkeypatch.setattr(SandboxRunner, "_reply", lambda self, end, job: Reply(PASSED))
    made.run(SimpleNamespace(function="f", task="t"))
    assert made.used >= 0.3 and made.seconds["f"] < made.used, "of the submission, not of the function"


def test_torchruns_ranks_that_wait_for_their_own_helpers_could_run(monkeypatch):
    monkeypatch.setattr(site.Able, "look", lambda self, pids: 1.0)
    made = site._Able(SimpleNamespace(process=None))
    made.begin, made.room = time.monotonic() - 10.0, SimpleNamespace(look=lambda *figures: None, each=lambda ranks: 7.0)
    assert made.look([1, 2]) == 7.0
    made.room.each = lambda ranks: 70.0
    assert 10.0 <= made.look([1, 2]) < 60.0, "no longer than it is"
