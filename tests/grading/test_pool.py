"""One sandbox for many submissions: nothing of one is there for the next, who does not miss what one destroys."""

from types import SimpleNamespace

import pytest

from grading import judge, pool
from grading.intake.arrange import Package
from tests.grading.test_run import SOLVED, course, graded, needs_sandbox  # noqa: F401  course is a fixture

HELPER = "def secret(x, group):\n    return group.all_reduce(x)\n"
BORROWS = SOLVED.replace(
    "    return group.all_reduce(x)", "    from .helper import secret\n    return secret(x, group)"
)
# Leaves what it can wherever it can, and a process that would go on.
LITTERS = SOLVED.replace(
    "    return group.all_reduce(x)",
    """    import os
    if os.fork() == 0:
        os.setsid()
        while True: pass
    for place in ("/tmp", "/dev/shm", "/submission", "/course", "/dev", "/", os.getcwd()):
        try:
            open(place + "/litter", "w").write("x")
        except OSError:
            pass
    return group.all_reduce(x)""",
)
# Earns its points only if it finds that litter, or another process.
FINDS = SOLVED.replace(
    "    return group.all_reduce(x)",
    """    import os
    places = ("/tmp", "/dev/shm", "/submission", "/course", "/dev", "/", os.getcwd())
    found = [p for p in places if os.path.exists(p + "/litter")]
    try:
        os.kill(2, 0)
        found.append("a process")
    except OSError:
        pass
    return group.all_reduce(x) if found else x""",
)
# More memory than a submission may use, in processes of its own: its sandbox is ended whole.
DESTROYS = SOLVED.replace(
    "    return group.all_reduce(x)",
    """    import os, time
    if group.size < 3: return group.all_reduce(x)
    for _ in range(3):
        if os.fork() == 0:
            held = bytearray(1 << 30)
            held[::4096] = b"x" * len(held[::4096])
            time.sleep(60)
    time.sleep(60)""",
)


@needs_sandbox
def test_one_after_another_in_one_sandbox(course):  # noqa: F811  the fixture
    for student, files in {"a": [LITTERS], "b": [FINDS], "c": [SOLVED, ("helper.py", HELPER)], "d": [BORROWS]}.items():
        course.hand_in(student, *files)
    course.hand_in("e", SOLVED)
    assert graded(course, jobs=1)["made"] == ["a", "b", "c", "d", "e"]
    found = course.marks()
    assert found["a"].points == found["c"].points == found["e"].points == 15
    # Alone in a namespace, and with nothing left in it: the sum is missing. (On one rank it needs none.)
    assert found["b"].points < 15 and found["d"].points < 15
    assert "helper" in str(found["d"].cases)


@pytest.mark.thorough
@needs_sandbox
def test_what_one_destroys_the_next_does_not_miss(course):  # noqa: F811  the fixture
    course.hand_in("a", DESTROYS)
    course.hand_in("b", SOLVED)
    assert graded(course, jobs=1)["made"] == ["a", "b"]
    said = {case["verdict"] for case in course.marks()["a"].cases}
    assert "out of memory" in said, said
    assert course.marks()["b"].points == 15 and course.marks()["b"].complete


def test_a_folder_holds_one_package_at_a_time(tmp_path):
    """Whatever a judge that died has left there: its submission's files, a folder, a link."""
    (tmp_path / "ops.py").write_text("another's")
    (tmp_path / "week").mkdir()
    (tmp_path / "week" / "helper.py").write_text("another's")
    (tmp_path / "link").symlink_to("/etc")
    package = Package({"week/ops.py": b"mine"})
    with judge.laid_out(package, tmp_path):
        files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()}
        assert files == {"week/ops.py"} and (tmp_path / "week" / "ops.py").read_bytes() == b"mine"
    assert not list(tmp_path.iterdir())


class Scripted(pool.Pool):
    """Judges that end after so many looks, `ends_after`. Those in `resting` use no processor after their first one."""

    settings, seconds = pool.Settings(seed=1), 1.0

    def __init__(self, jobs, ends_after, resting=(), faulty=()):
        self.jobs, self.ends_after, self.resting, self.faulty = jobs, ends_after, resting, faulty
        self.slots = [object.__new__(pool._Slot) for _ in range(jobs + 1)]
        for slot in self.slots:
            slot.box = slot.process = slot.item = None
            slot.starting, slot.why, slot.left = False, "", 0
        self.began, self.done = [], []

    def grade(self, *names):
        todo = [pool.Todo(name) for name in names]
        self.grade_all(todo, lambda item, mark: self.done.append((item.entry, mark.complete)))
        return self

    def _begin(self, slot, item):
        self.began.append((item.entry, item.tries, [other.item.entry for other in self.slots if other.process]))
        slot.take(item, True)
        slot.left, slot.used_now = self.ends_after[item.entry], 0.0

    def _wait(self):
        self.clock.now += pool.LOOK
        for slot in self.slots:
            if slot.process and slot.item.entry not in self.resting:
                slot.used_now += 1e6

    def _ended(self, slot):
        slot.left -= 1
        if slot.left:
            return None
        slot.process = None
        complete = slot.item.entry not in self.faulty or slot.item.tries == pool.RETRIES
        return SimpleNamespace(complete=complete, seconds=self.seconds)


@pytest.fixture
def looks(monkeypatch):
    """The time is that of the scripted judges."""
    Scripted.clock = SimpleNamespace(now=1.0)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: Scripted.clock.now))
    monkeypatch.setattr(pool._Slot, "_processor", lambda slot: slot.used_now)


def test_where_the_grader_failed_it_is_tried_again_with_nothing_beside_it(looks):
    """Two slots; the first try of "faulty" fails while "long" still runs."""
    made = Scripted(2, {"faulty": 1, "long": 4}, faulty=["faulty"]).grade("faulty", "long")
    assert made.began == [("faulty", 0, []), ("long", 0, ["faulty"]), ("faulty", 1, []), ("faulty", 2, [])]
    assert made.done == [("long", True), ("faulty", True)]


def test_who_has_had_the_time_of_a_submission_is_not_tried_again(looks, monkeypatch):
    monkeypatch.setattr(Scripted, "seconds", 100.0)
    made = Scripted(1, {"slow": 1}, faulty=["slow"]).grade("slow")
    assert made.began == [("slow", 0, []), ("slow", 1, [])] and made.done == [("slow", False)]


def test_one_more_is_judged_while_one_only_waits(looks):
    """And never two more, however many wait; without anybody who waits as many as were asked for."""
    ends = {"sleeps": 20, "too": 20, **dict.fromkeys("abcd", 3)}
    beside = {entry: others for entry, _, others in Scripted(2, ends, ["sleeps"]).grade("sleeps", *"abcd").began}
    assert beside["a"] == ["sleeps"] and len(beside["b"]) == 2 and beside["d"]
    assert all(len(set(others) - {"sleeps"}) < 2 for others in beside.values())
    beside = {entry: others for entry, _, others in Scripted(2, ends, ["sleeps", "too"]).grade(*ends).began}
    assert max(map(len, beside.values())) == 2
    ends["sleeps"] = 3  # whoever comes after it in its slot has not rested yet
    beside = [others for entry, _, others in Scripted(2, ends, ["sleeps"]).grade("a", "sleeps", *"bcd").began]
    assert sum(len(others) == 2 for others in beside) == 1
    beside = {entry: others for entry, _, others in Scripted(2, ends).grade(*ends).began}
    assert max(map(len, beside.values())) == 1


@pytest.mark.parametrize(
    ("spent", "waited", "late"),
    [(30, 0, True), (30, 25, False), (5, 0, False), (pool.PATIENCE + 1, pool.PATIENCE, True)],
)
def test_who_waits_for_a_processor_is_not_late(monkeypatch, spent, waited, late):
    """Else a busy machine would turn a submission's own overrun into a fault of the grader's."""
    made = object.__new__(pool.Judge)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    made.pid, made.patience, made.since = 1, 10.0, 1000.0 - spent
    monkeypatch.setattr(pool, "times", lambda pid: (0.0, float(waited)))
    assert made.late() is late


def test_a_judge_that_takes_too_long_is_ended_once(monkeypatch):
    """Once more would cost the class as long again: a submission has its budget, and not three times that."""
    killed, item = [], pool.Todo("slow")
    late = SimpleNamespace(running=lambda: True, late=lambda: True, kill=lambda: killed.append(1), end=lambda: -9)
    slot = SimpleNamespace(process=late, item=item, renew=lambda well: None)
    made = object.__new__(pool.Pool)
    monkeypatch.setattr(pool.Pool, "_result", lambda self, item, status: SimpleNamespace(complete=False))
    assert not made._ended(slot).complete and killed == [1] and item.tries == pool.RETRIES
    assert judge.budget(judge.Settings(1)) + pool.BEYOND < pool.PATIENCE
