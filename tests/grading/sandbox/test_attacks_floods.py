"""Attacks on what a submission may use, and on its end. No case costs more than it may, none leaves a process, none
takes the next case with it; and each attack works once its defence is off."""

import os
import signal
import time

import pytest

from grading.sandbox import broker, call, watch
from grading.sandbox.box import Box, Limits
from grading.sandbox.call import End
from grading.sandbox.command import scratch
from labkit.checks.runner import read_answers
from tests.grading.sandbox.attacking import DEADLINE, processes

pytestmark = pytest.mark.thorough

MIB = 1 << 20
# Seconds that a flood stays where somebody looks for it, who may be kept from looking on a busy machine. Seen, it ends.
STAYS = 18.0
SMALL = Limits(tree=96 * MIB, memory=256 * MIB, disk=4 * MIB, processes=24, files=128)


def small(field, *off, **options):
    """A sandbox in which floods are small."""
    return field.runner(off, limits=SMALL, **options)


@pytest.fixture(autouse=True)
def _the_next_case_is_unharmed(field):
    yield
    assert field.ask("floods.honest", ranks=2, runner=small(field)).values == [2, 2]


@pytest.mark.parametrize(
    "attack, most, arguments",
    [
        ("forks", 23, {"count": 60}),
        ("address_space", 0, {"size": 512 * MIB}),
        ("disk", 4 * MIB, {"size": 8 * MIB, "path": f"{scratch()}/flood"}),
        ("disk", 4 * MIB, {"size": 8 * MIB, "path": "/dev/shm/flood"}),
    ],
)
def test_limits(field, attack, most, arguments):
    assert field.ask(f"floods.{attack}", runner=small(field), **arguments).values[0] <= most
    (taken,) = field.ask(f"floods.{attack}", runner=small(field, "limits", "tmp"), **arguments).values
    assert taken == (True if attack == "address_space" else next(iter(arguments.values())))


def test_processes_of_all_ranks_together(field, monkeypatch):
    monkeypatch.setattr(call, "MAX_PROCESSES", 30)
    reply = field.ask("floods.forks", ranks=3, count=15, stay=STAYS, runner=small(field))
    assert reply.verdict == "crashed" and "processes; 30 is the limit" in reply.text
    assert field.ask("floods.forks", ranks=3, count=15, runner=small(field, "watch")).values == [15] * 3


@pytest.mark.parametrize("headless", [False, True])
def test_memory_of_many_processes(headless, field):
    attack = {"name": "floods.memory", "children": 4, "size": 48 * MIB, "headless": headless}
    reply = field.ask(**attack, stay=STAYS, runner=small(field))
    assert reply.verdict == "out of memory" and "a submission may use 0.1" in reply.text
    assert field.ask(**attack, stay=0.0, runner=small(field, "watch")).values == ["there was room"]


def test_the_kernels_memory(field, monkeypatch):
    monkeypatch.setattr(call, "MAX_FILES", 60)
    reply = field.ask("floods.sockets", count=80, stay=STAYS, runner=small(field))
    assert reply.verdict == "out of memory" and "files open; 60 is the limit" in reply.text
    assert field.ask("floods.sockets", count=80, stay=0.0, runner=small(field, "watch")).values == [80]


@pytest.mark.parametrize("off, path", [("syscalls", ""), ("devices", "/dev/zero")])
def test_the_kernels_memory_that_no_open_file_shows(field, off, path):
    """As much as the limit and more, and nobody sees it: neither a size nor a count of files."""
    for defence, least, most in ((), 0, MIB), ((off,), SMALL.tree, 121 * MIB):
        reply = field.ask("floods.let_go", size=120 * MIB, path=path, runner=small(field, *defence))
        assert reply.verdict == "passed" and least <= reply.values[0] < most, reply.text


def test_output(field, monkeypatch):
    monkeypatch.setattr(call, "MAX_OUTPUT", MIB)
    reply = field.ask("floods.output", size=4 * MIB, runner=small(field))
    assert reply.verdict == "forbidden call" and "printed more than" in reply.text and len(reply.printed) < 5000
    reply = field.ask("floods.output", size=4 * MIB, runner=small(field, "output"))
    assert reply.values == ["printed"] and len(reply.printed) < 5000


def test_daemon(field):
    runner = small(field)
    assert field.ask("floods.daemon", runner=runner).values == ["returned"]
    assert processes(runner) == []
    open_one = small(field, "namespaces")
    assert field.ask("floods.daemon", runner=open_one).values == ["returned"]
    assert processes(open_one), "without process namespaces it lives on"


def test_no_signal_and_no_exception_keeps_a_rank(field):
    runner = small(field, deadline=1.0)
    reply = field.ask("floods.stubborn", seconds=60.0, runner=runner)
    assert reply.verdict == "hung" and processes(runner) == []
    without = small(field, "deadline", deadline=1.0)
    assert field.ask("floods.stubborn", seconds=1.5, runner=without).values == ["still here"]


def test_hanging_is_no_fault_of_the_machines(field, monkeypatch):
    """Its own helpers kept it waiting: that is no overload."""
    monkeypatch.setattr(call, "STRETCH", 2.0)
    monkeypatch.setattr(call, "ENOUGH", 0.9)
    processors, attack = os.sched_getaffinity(0), {"name": "floods.crowd", "helpers": 8}
    os.sched_setaffinity(0, sorted(processors)[:1])  # and with this process its sandboxes
    try:
        assert field.ask(**attack, runner=small(field, deadline=1.6)).verdict == "hung"
        assert field.ask(**attack, runner=small(field, "excuse", deadline=1.6)).verdict == "grader fault"
    finally:
        os.sched_setaffinity(0, processors)


def test_standing_in_its_own_way_is_no_overload(field, monkeypatch):
    """A rank that waits for a processor while another is idle had its chance."""
    monkeypatch.setattr(call, "STRETCH", 2.0)
    # Of 12 s the rank has one or two, with what a slow machine needs until its helper runs. And one processor has
    # nothing to do, whatever other tests do meanwhile.
    monkeypatch.setattr(call, "ENOUGH", 0.5)
    monkeypatch.setattr(watch, "_idle", lambda processors: time.monotonic())
    reply = field.ask("floods.pinned", runner=small(field, "syscalls", deadline=6.0))
    assert reply.verdict == "hung", reply.text
    reply = field.ask("floods.pinned", runner=small(field, "syscalls", "excuse", deadline=6.0))
    assert reply.verdict == "grader fault" and "overloaded" in reply.text, reply.text


def test_reading_what_it_sends_is_its_own_time(field, monkeypatch):
    def slowly(*answers):
        time.sleep(0.6)
        return read_answers(*answers)

    monkeypatch.setattr("grading.sandbox.runner.read_answers", slowly)
    runner = small(field)
    before = runner.used
    field.ask("floods.honest", ranks=2, runner=runner)
    assert runner.used - before >= 0.6


def test_no_call_lasts_beyond_its_budget(field):
    """Neither its deadline nor what is added to that for one whose memory grows."""
    runner = small(field, budget=100.0, deadline=50.0)
    before, runner.used = runner.used, 97.0
    job = type("Job", (), {"function": "f", "task": "task 99.1"})
    assert runner._deadline(job) == 3.0
    runner.used = 99.9
    assert runner._deadline(job) == 1.0
    runner.used = before
    one = call.Call(field.lent(frozenset(), SMALL), [({}, b"")], 3.0, 0, 5.0)
    one._finish(End("hung"))
    assert (one.seconds, one.most) == (3.0, 5.0)


def test_a_death_of_its_own_is_no_fault_of_the_machines(field):
    for status in (0, 1, 120, 121):
        assert field.ask("floods.leave", status=status).verdict == "crashed"
    assert field.ask("floods.limit_itself").verdict == "crashed"
    reply = field.ask("floods.limit_itself", off={"syscalls"})
    assert reply.verdict == "grader fault", "a killed rank looks like a machine without memory"


def test_the_zygotes_own_waiting_is_no_excuse(field, monkeypatch):
    """It waited for a processor while it started on a busy machine: that says nothing about a later call."""
    runner = small(field, deadline=1.0)
    field.ask("floods.honest", runner=runner)
    real = call.times
    monkeypatch.setattr(call, "times", lambda pid: (0.0, 100.0) if pid == runner._box.zygote else real(pid))
    assert field.ask("floods.stubborn", seconds=60.0, runner=runner).verdict == "hung"


def test_slow_drip_ends_at_the_budget(field, monkeypatch):
    runner = small(field)
    before, runner.budget, runner.used = runner.budget, 20.0, 0.0
    with monkeypatch.context() as idle:
        idle.setattr(call, "times", lambda pid: (0.0, 0.0))  # what others take of the machine is not counted
        assert field.ask("floods.drip", seconds=0.4, runner=runner).verdict == "passed"
    assert runner.used >= 0.4
    runner.used = 19.999  # after many more of these
    field.ask("floods.drip", seconds=0.4, runner=runner)
    reply = field.ask("floods.drip", seconds=0.4, runner=runner)
    runner.budget = before
    assert reply.verdict == "hung" and "used up its 20 s" in reply.text
    assert [field.ask("floods.drip", seconds=0.4, runner=runner).verdict for _ in range(5)] == ["passed"] * 5


def test_a_hang_is_paid_in_full_once_a_task(field, monkeypatch):
    """By whatever function of the task it is met; another task's calls have the full deadline. Where four hung and none
    has ended, the others of the task get half a second; one that has ended gives hope back."""
    runner = small(field, deadline=3.0)
    monkeypatch.setattr(runner, "ended", set())
    job, same, other = (
        type("Job", (), {"function": name, "task": task})
        for name, task in (("f", "brief"), ("scenarios.f", "brief"), ("g", "99.2"))
    )
    for hangs, limit in ((0, 3.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5)):
        runner.hangs["brief"] = hangs
        assert [runner._deadline(one) for one in (job, same, other)] == [limit, limit, 3.0]
    with monkeypatch.context() as patch:
        patch.setattr(runner, "reference", {"f": 0.3})
        assert runner._deadline(job) == 1.5
    runner.ended.add("brief")
    assert runner._deadline(job) == 1.0
    assert field.ask("floods.honest", runner=runner).verdict == "passed" and len(runner.ended) == 2


def test_who_destroys_sandboxes_pays_alone(field, monkeypatch):
    """Its own function is not run any more; that is a verdict, no fault of the grader's; others go on."""
    monkeypatch.setattr("grading.sandbox.runner.RESTARTS", 2)
    monkeypatch.setattr(call, "MAX_FILES", 60)
    runner = small(field, budget=999.0)
    verdicts = [field.ask("floods.sockets", count=80, stay=STAYS, runner=runner).verdict for _ in range(4)]
    assert verdicts == ["out of memory", "out of memory", "crashed", "crashed"]
    assert field.ask("floods.honest", runner=runner).verdict == "passed"


def test_the_brokers_memory(field, monkeypatch):
    """Results that a rank never fetches lie in the grader's memory."""
    monkeypatch.setattr(broker, "MAX_HELD", 8 * MIB)
    assert "nobody has received" in field.ask("junk.never_fetch", ranks=2, count=24).text
    assert field.ask("junk.never_fetch", ranks=2, count=24, off={"broker"}).verdict == "passed"


def test_nothing_is_left_when_a_judge_is_killed(field):
    """Judge and sandbox die together, at any moment."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            box = Box(field.folder)
            box.start()
            ranks = box.fork(2)  # kept: a rank whose connection is closed ends by itself
            os.write(writer, " ".join(map(str, watch.tree(box.pid))).encode())
            assert len(ranks) == 2
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(writer)
    pids = [int(pid) for pid in os.read(reader, 1000).split()]
    assert len(pids) == 5
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    _all_gone(pids)


def test_nothing_is_left_when_a_sandbox_is_closed(field):
    box = Box(field.folder)
    box.start()
    ranks = box.fork(2)
    pids = watch.tree(box.pid)
    assert len(pids) == 3 + len(ranks)
    box.close()
    _all_gone(pids)


def _all_gone(pids):
    give_up = time.monotonic() + DEADLINE
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _zombie(pid)]:
        assert time.monotonic() < give_up, left
        time.sleep(0.02)


def _zombie(pid):
    return watch._read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


def test_what_others_took_of_the_machine_is_not_its_time(field, monkeypatch):
    """As if they had taken all: the call still ends well, since its ranks answer, and tells it; and then, all and more."""
    found, run = [], call.Call.run

    def held_up(self):
        end = run(self)
        found.append(end.lost)
        end.lost = 1000.0
        return end

    monkeypatch.setattr(call, "LOOK", 0.0)
    monkeypatch.setattr(call.Call, "_able", lambda self, spent: 0.0)
    monkeypatch.setattr(call.Call, "run", held_up)
    runner = small(field)
    before = runner.used
    assert field.ask("floods.honest", ranks=2, runner=runner).verdict == "passed"
    assert found[0] > 0 and runner.used - before < -900.0


def test_what_waits_as_a_signal_is_little(field):
    assert field.got("floods.queue") <= 64
    assert field.got("floods.queue", off={"limits"}) > 500


def test_barriers_are_counted(field):
    reply = field.ask("floods.meetings", ranks=2, count=1000)
    assert reply.verdict == "forbidden call" and "barriers" in reply.text, reply.text
    assert field.got("floods.meetings", ranks=2, count=50) == 50
    assert field.got("floods.meetings", ranks=2, off={"broker"}, count=1000) == 1000
