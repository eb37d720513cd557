import glob
import inspect
import json
import os
import tempfile
import threading
import time

import pytest

from labkit.comm import helper as helpers
from tests import waiting


@pytest.fixture(scope="session")
def helper():
    """The helper that forks ranks, up and warm, so that its start counts for no test."""
    helpers.WORTH_SHARING.append("pytest")  # test files import it, in every rank again
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONUNBUFFERED", raising=False)  # it would hide output that is lost in a buffer
        helpers.server().line().close()


@pytest.fixture(autouse=True)
def own_temp(tmp_path, monkeypatch):
    """A temp directory of the test's own, so that what a run leaves in it can be seen."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def nothing_left(own_temp, helper):
    """After the test: no rank process, no rank thread, no file, and nobody burns CPU."""
    others = set(rank_processes())  # pools that other tests share
    yield
    assert set(rank_processes()) - others == set()
    assert [t.name for t in threading.enumerate() if t.name.startswith("rank ")] == []
    assert glob.glob(f"{own_temp}/*labkit*") == []
    before, wall = time.process_time(), time.perf_counter()
    time.sleep(0.1)
    # A spinning thread would use all of it; a busy machine can only make the share smaller.
    assert time.process_time() - before < 0.7 * (time.perf_counter() - wall)


def rank_processes() -> list[int]:
    """Children of this program's helper, as the kernel lists them."""
    helper = helpers._own
    if helper is None or not helper.alive():
        return []
    path = f"/proc/{helper.process.pid}/task/{helper.process.pid}/children"
    if not os.path.exists(path):
        pytest.skip("this kernel does not list children")
    with open(path) as file:
        return [int(pid) for pid in file.read().split()]


@pytest.fixture(scope="session")
def pools(helper):
    """Rank processes kept between tests: run(fn, *args, size=...)."""
    from labkit.comm.ranks import RankPool

    kept: dict[int, RankPool] = {}

    def run(fn, *args, size=2, timeout=60.0):
        if size not in kept:
            kept[size] = RankPool(size)
        return kept[size].run(fn, *args, timeout=timeout)

    yield run
    for pool in kept.values():
        pool.close()


@pytest.fixture(params=["threads", "processes"])
def run(request):
    """The same test on both: run(fn, *args, size=...) -> Results."""
    if request.param == "processes":
        return request.getfixturevalue("pools")
    from labkit.comm.ranks import run_ranks

    return lambda fn, *args, size=2, timeout=60.0: run_ranks(fn, *args, size=size, backend="threads", timeout=timeout)


DEADLINE = 1.5  # seconds; no test passes or fails by it, only ranks that would never end meet it


@pytest.fixture
def fails(monkeypatch):
    """fails(fn, *args, backend=...) -> Autopsy of a run that must fail, and soon.

    On a busy machine a rank may need longer than half a second to come to the call in which it waits for one that
    failed. So that what the autopsy tells of it depends on no machine, all that go on are awaited there; `grace`:
    seconds for those that never come."""
    from labkit.comm import supervisor
    from labkit.comm.processes import RankPool
    from labkit.comm.ranks import RanksFailed, run_ranks

    believed = RankPool.blocked

    def seen(pool):
        if not {"raised", "died"} & set(pool.states()):
            return believed(pool)
        return all(any(e.end is None for e in x.ledger.events) for x in pool.evidence() if x.state == "running")

    def run(fn, *args, backend, size=3, timeout=DEADLINE, grace=15.0):
        monkeypatch.setattr(supervisor, "GRACE", grace)
        monkeypatch.setattr(RankPool, "blocked", seen)
        start = time.perf_counter()
        with pytest.raises(RanksFailed) as caught:
            run_ranks(fn, *args, size=size, backend=backend, timeout=timeout)
        assert time.perf_counter() - start < 20  # generous for a busy machine, far below "for ever"
        json.dumps(caught.value.autopsy.to_json())  # plain data
        return caught.value.autopsy

    return run


@pytest.fixture
def at():
    """at(fn, text) -> "file:line" of the first line of fn that contains text."""

    def find(fn, text):
        lines, start = inspect.getsourcelines(fn)
        line = next(start + i for i, line in enumerate(lines) if text in line)
        return f"{os.path.basename(inspect.getsourcefile(fn))}:{line}"

    return find


@pytest.fixture
def gone():
    """gone(pid): that process ends soon."""
    return lambda pid: waiting.until(lambda: waiting.gone(pid), 20)
