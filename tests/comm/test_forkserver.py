"""The fork server itself: what it forks, what it tells, and that it leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.comm.forkserver import ForkLine
from labkit.errors import LabError
from tests.waiting import until

ROOT = str(Path(__file__).resolve().parents[2])
HERE = "tests.comm.test_forkserver"


# -- what children do -------------------------------------------------------------------------------------------------
def tell(setup, number, descriptors):
    """Say on the own descriptor who one is, and which others one holds."""
    held = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1]  # without the list's own
    said = [setup["word"], str(number), str(os.getsid(0) == os.getpid()), str(len(held))]
    os.write(descriptors[0], " ".join(said).encode())
    return 7 + number


def sleep(setup, number, descriptors):
    child = subprocess.Popen(["sleep", "600"])
    os.write(descriptors[0], b"%d " % child.pid)
    time.sleep(600)


def signalled(setup, number, descriptors):
    """Say what Python writes at a signal, under whatever number it knows."""
    read, write = os.pipe()
    for fd in range(3, 40):
        if fd not in (read, write, *descriptors):
            os.dup2(write, fd)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.set_blocking(read, False)
    try:
        os.write(descriptors[0], b"wrote %r" % os.read(read, 100))
    except BlockingIOError:
        os.write(descriptors[0], b"nothing")


def fail(setup, number, descriptors):
    os.dup2(descriptors[0], 2)
    raise ValueError("no child of mine")


# -- the server: it has no torch, so it starts at once ----------------------------------------------------------------
@pytest.fixture
def server():
    """A server of its own: (its first line, its process)."""
    ours, theirs = socket.socketpair()
    code = (
        f"import sys, socket; sys.path[:] = {sys.path!r}; from labkit.comm.forkserver import serve; "
        f"serve(socket.socket(fileno={theirs.fileno()}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], cwd=ROOT)
    theirs.close()
    line = ForkLine(ours)
    line.ready(60)
    yield line, process
    line.close()
    assert process.wait(20) == 0


def forked(line, function, count=1, setup=None, **more):
    """(pids, a reading end for each)."""
    pipes = [os.pipe() for _ in range(count)]
    pids = line.fork(f"{HERE}:{function}", count, setup or {}, [write for _, write in pipes], **more)
    for _, write in pipes:
        os.close(write)
    return pids, [read for read, _ in pipes]


def ended(line, count):
    found, deadline = {}, time.monotonic() + 20
    while len(found) < count:
        got = line.ended(20)
        assert got or time.monotonic() < deadline  # nothing at once, if what came was another answer
        found.update(got)
    return found


def test_a_child_is_what_the_order_says(server):
    line, _ = server
    pids, reads = forked(line, "tell", 3, {"word": "hello"})
    said = [os.read(read, 100).decode().split() for read in reads]
    assert [words[:3] for words in said] == [["hello", str(number), "True"] for number in range(3)]
    assert {words[3] for words in said} == {"4"}, "standard streams and its own: not its siblings', not the server's"
    assert ended(line, 3) == {pid: 7 + number for number, pid in enumerate(pids)}
    assert [os.read(read, 100) for read in reads] == [b""] * 3, "nobody else holds the other end"


def test_signals_and_statuses(server, gone):
    line, _ = server
    pids, reads = forked(line, "sleep", 2)
    grandchildren = [int(os.read(read, 100)) for read in reads]
    line.signal([pids[0], os.getpid()], signal.SIGTERM)  # what is no child of its own it does not touch
    assert ended(line, 1) == {pids[0]: -signal.SIGTERM}
    assert gone(grandchildren[0]), "the whole session ends"
    line.signal(pids, signal.SIGKILL)
    assert ended(line, 1) == {pids[1]: -signal.SIGKILL} and gone(grandchildren[1])
    assert line.ended() == []


def test_a_child_that_raises_and_a_function_that_is_none(server):
    line, _ = server
    pids, (read,) = forked(line, "fail")
    assert ended(line, 1) == {pids[0]: 70} and b"ValueError: no child of mine" in os.read(read, 10_000)
    with pytest.raises(LabError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        line.fork("no_such_module:f", 1, {}, [])
    with pytest.raises(LabError, match="no_such_module"):
        line.fork(f"{HERE}:tell", 1, {}, [], modules=["no_such_module"])
    assert forked(line, "tell", 1, {"word": "still"})[0]


def test_a_line_takes_its_children_and_its_directory_along(server, gone, tmp_path):
    line, process = server
    other = line.further()
    other.ready(20)
    (tmp_path / "own" / "file").parent.mkdir()
    (tmp_path / "own" / "file").touch()
    (mine,), _ = forked(line, "sleep")
    (theirs,), _ = forked(other, "sleep", directory=str(tmp_path / "own"))
    line.signal([theirs], signal.SIGKILL)  # another line's: not touched
    assert other.ended(0.3) == []
    other.close()
    assert gone(theirs)
    until(lambda: not (tmp_path / "own").exists(), 20)
    assert os.path.exists(f"/proc/{mine}") and line.ended() == []
    further = line.further()
    further.ready(20)
    (last,), _ = forked(further, "sleep")
    line.close()
    assert gone(mine) and gone(last), "with the first line all others close"
    assert process.wait(20) == 0


def test_a_server_that_is_killed_takes_its_children_along(server, gone):
    line, process = server
    (pid,), (read,) = forked(line, "sleep")
    os.read(read, 100)  # it has begun
    process.kill()
    assert gone(pid)
    with pytest.raises((EOFError, OSError)):
        line.fork(f"{HERE}:tell", 1, {}, [])
    process.wait()
    process.wait = lambda timeout: 0


def test_many_orders_at_once_and_large_ones(server):
    line, _ = server
    word = "x" * 300_000  # more than a socket holds
    for _ in range(3):
        pipes = [os.pipe() for _ in range(2)]
        order = {"fork": f"{HERE}:tell", "count": 1, "setup": {"word": "word", "more": word}}
        for _, write in pipes:
            line.send({**order, "descriptors": 1, "import": [], "directory": ""}, [write])
            os.close(write)
        assert [os.read(read, 100).decode().split()[0] for read, _ in pipes] == ["word", "word"]
    ended(line, 6)


def test_a_child_forgets_the_servers_wakeup_descriptor(server):
    """Python writes a byte to it at every signal; in a child that number is another file's."""
    line, _ = server
    pids, (read,) = forked(line, "signalled")
    assert os.read(read, 100) == b"nothing" and ended(line, 1) == {pids[0]: 0}


def test_a_late_answer_is_not_taken_for_the_next_orders(server):
    line, process = server
    other = line.further()
    other.ready(20)
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            forked(other, "tell", 1, {"word": "first"}, limit=0.05)
    finally:
        process.send_signal(signal.SIGCONT)
    with pytest.raises(OSError, match="descriptor"):  # the line is closed: the first order's pids would come
        forked(other, "tell", 1, {"word": "second"})
    assert forked(line, "tell", 1, {"word": "third"})[0]
