"""C.3's sandbox: what is struck is a rank of torchrun's with all that is behind it, and nothing stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from signal import SIGSTOP

import pytest

from grading.sandbox import site, watch
from grading.sandbox.box import Limits
from labkit.checks import load_week, outside, runner
from labkit.checks.runner import Case
from tests.checks.miniweek import make_week

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

PROGRAM = """
import ctypes, os, platform, subprocess, sys, time
from pathlib import Path

given, left = map(Path, sys.argv[1:3])
rank, how = os.environ["RANK"], (given / "how").read_text()
sleeps = [sys.executable, "-c", "import time; time.sleep(200)"]
if how == "deep" and rank == "0":
    os.chdir(left)
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
pid = os.getpid() if how != "sleeper" else subprocess.Popen(sleeps).pid
if how == "sibling":
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    pid = ctypes.CDLL(None).syscall(clone, 0x8000 | 17, 0, 0, 0, 0)  # CLONE_PARENT: of torchrun, not of this rank
    if pid == 0:
        os.execv(sleeps[0], sleeps)
if os.fork() == 0:
    os.setsid()
    os.execv(sleeps[0], sleeps)  # its parent leaves it
if how == "stray":
    if (between := os.fork()) == 0:
        if os.fork() == 0:
            os.execv(sleeps[0], sleeps)
        os._exit(0)
    os.waitpid(between, 0)
(left / "pids").mkdir(exist_ok=True)
(left / "pids" / f"new-{rank}").write_text(str(pid))
(left / "pids" / f"new-{rank}").replace(left / "pids" / f"rank-{rank}")
time.sleep(200)
"""


@pytest.fixture
def started(tmp_path):
    """Starts the program in a sandbox, and waits until it has written its numbers or has ended."""
    places = []

    def start(how):
        folder = tmp_path / how
        package = folder / "course" / "program"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "run.py").write_text(PROGRAM)
        for parent in (folder, *folder.parents):
            if os.geteuid() == 0 and os.stat(parent).st_uid == 0:
                parent.chmod(os.stat(parent).st_mode | 0o055)
        place = site.BoxedSite(folder / "course", folder, Limits())
        places.append(place)
        (place.given / "how").write_text(how)
        place.start("program.run", ranks=2, restarts=0)
        end = time.monotonic() + 120
        while place.running and place.names("pids") != ["rank-0", "rank-1"] and time.monotonic() < end:
            time.sleep(0.1)
        return place

    yield start
    for place in places:
        place.close()


def test_a_number_that_is_no_ranks_is_none(started, monkeypatch):
    place = started("sleeper")
    assert place.running and place.names("pids") == ["rank-0", "rank-1"], place.said()
    assert place.pids(2) is None and place.signal(0, SIGSTOP) is None

    def any_of_them(self, pid):
        return next((one for one in watch.tree(self.process.pid) if watch.inside(one)[1:2] == [pid]), None)

    monkeypatch.setattr(site.BoxedSite, "_real", any_of_them)
    assert len(place.pids(2)) == 2


def test_a_child_that_a_rank_made_for_torchrun_is_no_rank(started, monkeypatch):
    place = started("sibling")
    assert place.running and place.names("pids") == ["rank-0", "rank-1"], place.said()
    assert place.pids(2) is None and place.signal(0, SIGSTOP) is None
    monkeypatch.setattr(site.BoxedSite, "pids", outside.Site.pids)
    assert len(place.pids(2)) == 2


def test_a_signal_reaches_what_is_behind_a_rank(started, monkeypatch):
    place = started("stray")
    agent = place._agent()
    every = [one for one in watch.tree(place.process.pid)[2:] if one not in (agent, *watch.children(agent))]
    assert len(every) == 4 and len(place.pids(2)) == 2, place.said()
    mine = place.pids(2)[0]
    must = {mine, *watch.children(mine), *(one for one in every if watch.children(place.process.pid)[0] == parent(one))}

    def stopped():
        end = time.monotonic() + 5
        while (found := {one for one in [*every, mine] if watch.standing(one)[0]}) < must and time.monotonic() < end:
            time.sleep(0.05)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(site.BoxedSite, "_behind", outside.Site._behind)
        place.signal(0, SIGSTOP)
        assert stopped() == {mine}
    place.signal(0, SIGSTOP)
    assert stopped() == must and len(must) >= 4


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_folders_in_folders_end_it_and_do_not_stay(started):
    place = started("deep")
    place.process.wait(60)
    assert "more than a submission may leave" in place.why
    runner._remove(place.folder)
    assert not place.folder.exists()


def test_what_the_task_does_not_stand_on_has_its_blanks(tmp_path):
    week = load_week(make_week(tmp_path))
    (week.folder / "other.py").write_text((week.folder / "ops.py").read_text())
    (week.folder / "third.py").write_text((week.folder / "ops.py").read_text())
    case = Case(tmp_path, week.package, stands_on=("third.total",), modules=("ops",))
    made = outside.composed(tmp_path / "course", week.folder.parent, week.folder.parent, case) / week.package
    solved = {path.stem for path in made.glob("*.py") if "all_reduce" in path.read_text()}
    assert solved == {"ops", "third"}
