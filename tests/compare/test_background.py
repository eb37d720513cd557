"""`lab compare --detach`: it outlives its terminal, is found again, pauses when asked, and its death is reported."""

import fcntl
import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from labkit.compare import background, follow
from labkit.compare.compare import Request, compare
from labkit.errors import LabError
from labkit.record.read import is_alive, read_run
from labkit.record.run import RunRecord
from tests.compare.comparing import MICRO, environment, preset
from tests.waiting import until

# One arm that would take hours, and can be paused.
LONG = MICRO.replace("world_size = 2", "world_size = 1").replace("eval_every = 2", "eval_every = 1000000")
LONG = LONG.replace("steps = 8", "steps = 900000\ncheckpoint_every = 1000000")

MINUTES = 4.0  # even where this process is killed, and its clean-up with it, no run outlives this for long


def call(console, **words):
    return compare(Request(**words), console)


def press_ctrl_c(when) -> None:
    """In this process, once it is time; also if the time does not come, so that nothing hangs."""
    try:
        until(when, 60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def steps(out: Path) -> int:
    file = out / "arms" / "bf16" / "steps.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.fixture
def given(tmp_path, monkeypatch):
    """What the tests in this process call `compare` with; whatever they leave running is ended."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    try:
        yield (
            {
                "preset": str(preset(tmp_path, LONG)),
                "arms": ["bf16"],
                "out": tmp_path / "out",
                "budget_minutes": MINUTES,
                "console": Console(file=said, width=200),
            },
            said,
        )
    finally:
        process = background.process_of(tmp_path / "out")
        if process and process.alive:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.thorough
def test_it_outlives_its_terminal_is_shown_again_its_death_is_shown_and_it_pauses_when_asked(tmp_path, given):
    words, said = given
    out, command = (
        words["out"],
        ("compare", "--preset", words["preset"], "--arms", "bf16", "--out", "out", "--budget-minutes", str(MINUTES)),
    )
    line = shlex.join([sys.executable, "-m", "labkit", *command, "--detach"])
    terminal, inside = os.openpty()
    shell = subprocess.Popen(
        ["sh", "-c", f"{line}; sleep 900"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    process = until(lambda: background.process_of(out))
    os.set_blocking(terminal, False)
    until(lambda: b"goes on when this terminal closes" in b" ".join(_read(terminal).split()))
    os.close(terminal)  # the connection breaks
    assert shell.wait(30) == -signal.SIGHUP
    until(lambda: steps(out))
    assert background.going(out) and background.process_of(out).alive

    leaves = threading.Thread(target=press_ctrl_c, args=(lambda: "Ctrl-C leaves it running" in said.getvalue(),))
    leaves.start()
    try:
        status = call(**words)
    except KeyboardInterrupt:
        status = "interrupted"
    leaves.join()
    assert status == 130
    far = steps(out)
    until(lambda: steps(out) > far)
    assert background.process_of(out) == process, "no second run was started"

    with pytest.raises(LabError, match=r"other settings \(train.lr\) is running"):
        call(**words, settings=["train.lr=2e-3"])
    with pytest.raises(LabError, match="pause it with --stop before --fresh"):
        call(**words, fresh=True)

    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not background.going(out))
    assert follow.overview(out, words["console"]) == 1
    assert "was killed, or the machine went down" in said.getvalue()
    said.truncate(0)

    assert call(**words, detach=True) == 0
    again = background.process_of(out)
    assert again.pid != process.pid and "was killed" in said.getvalue(), "the next call tells it too, and goes on"
    until(lambda: is_alive(out / "arms" / "bf16") and steps(out))
    assert call(**words, stop=True) == 0
    ended = background.process_of(out)
    assert (ended.pid, ended.exit) == (again.pid, 0) and not background.going(out)
    killed, paused = read_run(out).run["results"]["calls"]
    assert not killed["ended"] and paused["ended"] and killed["began"] < paused["began"]
    assert killed["seconds"] > 0, "what the killed call had taken is not lost"
    arm = read_run(out).arms["bf16"]
    assert arm.status == "paused"
    assert [e["message"][:13] for e in arm.events if e["kind"] == "paused"] == ["asked to stop"]
    assert list((out / "arms" / "bf16" / "checkpoints").iterdir()) and not (out / background.STOP).exists()
    assert follow.overview(out, words["console"]) == 3
    assert follow.follow(out, words["console"]) == 0, "who comes late gets the exit status too"
    with pytest.raises(LabError, match="nothing is running"):
        call(**words, stop=True)


def test_an_error_in_the_detached_process_stands_in_its_log(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text(json.dumps({"kind": "compare", "config": {}, "status": "running"}))
    process = background.detach(out, ["report", "nowhere"])
    until(lambda: not background.going(out))
    assert background.process_of(out).exit == 2 and "there is no run in nowhere" in background.last_words(out)
    assert process.pid == background.process_of(out).pid and background.died(out) is None


def test_a_process_is_known_by_id_and_start():
    child = subprocess.Popen(["sleep", "900"])
    there = background.Process(child.pid, background.start_of(child.pid), time.time())
    assert abs(there.start - time.time()) < 60 and there.alive
    assert not replace(there, start=there.start - 60).alive, "the same id, given out again"
    assert not replace(there, exit=0).alive
    child.kill()
    until(lambda: not there.alive)  # dead, though its status has not been read
    child.wait()
    assert background.start_of(child.pid) == math.inf and not there.alive


def test_what_earlier_runs_left_does_not_touch_the_next(tmp_path):
    (tmp_path / background.PROCESS).write_text(json.dumps({"pid": 1, "start": 0.0, "began": 0.0}))
    (tmp_path / background.STOP).touch()
    assert background.died(tmp_path) and not background.going(tmp_path)
    background.begin(tmp_path)
    assert not list(tmp_path.iterdir())
    own = background.Process(os.getpid(), background.start_of(os.getpid()), 0.0)
    background._write(tmp_path, own)
    (tmp_path / background.STOP).touch()
    assert not background.going(tmp_path), "a detached run does not take itself for another"
    background.begin(tmp_path)
    assert (tmp_path / background.STOP).exists(), "asked while it was starting: still to be heard"


def test_a_gpu_is_for_one_run_at_a_time(tmp_path, monkeypatch):
    """Told before anything is asked of the GPU; what lies beside and does not run is no matter."""
    for name in ("h100", "old"):
        RunRecord.create(tmp_path / name, kind="compare", hardware={}).close()
    background.refuse_company(tmp_path / "crossover")
    with RunRecord.open(tmp_path / "h100"):
        with pytest.raises(LabError, match=r"GPU is taken: a run goes on in .*/h100 "):
            compare(Request("gpu-check", out=tmp_path / "check"))
        background.refuse_company(tmp_path / "h100")  # its own folder: that one is followed
        monkeypatch.chdir(tmp_path)
        with pytest.raises(LabError, match="a run goes on in h100 "):
            background.refuse_company(Path("crossover"))


def _read(terminal: int) -> bytes:
    """What the terminal has shown, all of it."""
    _read.seen = getattr(_read, "seen", b"")
    with suppress(BlockingIOError):
        _read.seen += os.read(terminal, 1 << 16)
    return _read.seen
