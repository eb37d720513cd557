"""One sandbox for many submissions: nothing of one is there for the next, who does not miss what one destroys."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from grading import judge, marks, pool
from tests.grading.test_run import SOLVED, course, graded, mark, needs_sandbox  # noqa: F401  course is a fixture

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
    _, _, _, hand_in = course
    hand_in("a", LITTERS)
    hand_in("b", FINDS)
    hand_in("c", SOLVED)
    hand_in("c", HELPER, "helper.py")
    hand_in("d", BORROWS)
    hand_in("e", SOLVED)
    assert graded(course, jobs=1)["made"] == ["a", "b", "c", "d", "e"]
    assert mark(course, "a").points == mark(course, "c").points == mark(course, "e").points == 15
    # Alone in a namespace, and with nothing left in it: the sum is missing. (On one rank it needs none.)
    assert mark(course, "b").points < 15 and mark(course, "d").points < 15
    assert "helper" in str(mark(course, "d").cases)


@needs_sandbox
def test_what_one_destroys_the_next_does_not_miss(course):  # noqa: F811  the fixture
    _, _, _, hand_in = course
    hand_in("a", DESTROYS)
    hand_in("b", SOLVED)
    assert graded(course, jobs=1)["made"] == ["a", "b"]
    told = {case["verdict"] for case in mark(course, "a").cases}
    assert "out of memory" in told, told
    assert mark(course, "b").points == 15 and mark(course, "b").complete


class FakeBox:
    """A sandbox as seen from the pool."""

    def __init__(self, folder, limits, number):
        self.folder, self.alive, self.idle, self.launched = folder, False, True, 0

    def launch(self):
        self.alive = True
        self.launched += 1

    def close(self):
        self.alive = False


@pytest.fixture
def slot(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "Box", FakeBox)
    slot = pool._Slot(1, tmp_path / "slot1", pool.Settings(seed=1, work=tmp_path))
    slot.start()
    return slot


def test_a_slot_starts_its_sandbox_once(slot, tmp_path):
    slot.start()
    assert slot.box.launched == 1 and slot.box.folder == tmp_path / "slot1"
    slot.box.alive = False
    slot.start()
    assert slot.box.launched == 2
    assert pool._Slot(2, tmp_path / "slot2", pool.Settings(seed=1, isolation=marks.UNSANDBOXED)).box is None


@pytest.mark.parametrize(
    "well, alive, idle, launched",
    [(True, True, True, 1), (False, True, True, 2), (True, False, True, 2), (True, True, False, 2)],
)
def test_a_sandbox_is_lent_again_only_as_it_was(slot, well, alive, idle, launched):
    """Else it is made anew: the judge failed, it died, or something is left in it."""
    slot.box.alive, slot.box.idle = alive, idle
    slot.renew(well)
    assert slot.box.launched == launched and slot.box.alive


def test_a_folder_holds_one_package_at_a_time(tmp_path):
    """Whatever a judge that died has left there: its submission's files, a folder, a link."""
    (tmp_path / "ops.py").write_text("another's")
    (tmp_path / "week").mkdir()
    (tmp_path / "week" / "helper.py").write_text("another's")
    (tmp_path / "link").symlink_to("/etc")
    package = SimpleNamespace(files={"week/ops.py": b"mine"})
    with judge.laid_out(package, tmp_path):
        files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()}
        assert files == {"week/ops.py"} and (tmp_path / "week" / "ops.py").read_bytes() == b"mine"
    assert not list(tmp_path.iterdir())


def test_where_the_grader_failed_it_is_tried_again_with_nothing_beside_it():
    """Two slots; the first try of "faulty" fails while "long" still runs."""
    ends_after, began, done = {"faulty": 1, "long": 4}, [], []

    class Scripted(pool.Pool):
        def __init__(self):
            self.slots = [SimpleNamespace(process=None, starting=False, item=None) for _ in range(2)]

        def _begin(self, slot, item, begins):
            beside = [other.item.entry for other in self.slots if other.process]
            slot.process, slot.item, slot.left = True, item, ends_after[item.entry]
            began.append((item.entry, item.tries, beside))

        def _wait(self):
            pass

        def _ended(self, slot):
            slot.left -= 1
            if slot.left:
                return None
            slot.process = None
            return SimpleNamespace(complete=slot.item.entry != "faulty" or slot.item.tries == pool.RETRIES)

    Scripted().grade_all(
        [pool.Todo("faulty", ""), pool.Todo("long", "")],
        None,
        lambda item, mark: done.append((item.entry, mark.complete)),
    )
    assert began == [("faulty", 0, []), ("long", 0, ["faulty"]), ("faulty", 1, []), ("faulty", 2, [])]
    assert done == [("long", True), ("faulty", True)]


@pytest.mark.parametrize(
    ("spent", "waited", "late"),
    [(30, 0, True), (30, 25, False), (5, 0, False), (pool.PATIENCE + 1, pool.PATIENCE, True)],
)
def test_who_waits_for_a_processor_is_not_late(monkeypatch, spent, waited, late):
    """Else a busy machine would turn a submission's own overrun into a fault of the grader's."""
    made = object.__new__(pool.Judge)
    made.pid, made.patience, made.since = 1, 10.0, time.monotonic() - spent
    monkeypatch.setattr(pool, "times", lambda pid: (0.0, float(waited)))
    assert made.late() is late


def test_a_judge_that_takes_too_long_is_ended_once(monkeypatch):
    """Once more would cost the class as long again: a submission has its budget, and not three times that."""
    killed, item = [], pool.Todo("slow", "")
    late = SimpleNamespace(running=lambda: True, late=lambda: True, kill=lambda: killed.append(1), end=lambda: -9)
    slot = SimpleNamespace(process=late, item=item, renew=lambda well: None)
    made = object.__new__(pool.Pool)
    monkeypatch.setattr(pool.Pool, "_result", lambda self, item, status: SimpleNamespace(complete=False))
    assert not made._ended(slot).complete and killed == [1] and item.tries == pool.RETRIES
    assert judge.budget(judge.Settings(1)) + pool.BEYOND < pool.PATIENCE
