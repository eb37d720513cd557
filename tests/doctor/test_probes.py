"""Probes that misbehave: whatever one does to itself, its process or its output, a list of Checks comes of it."""

import os
import signal
import threading
import time

import pytest

from labkit.doctor.findings import Check, Probe, run_doctor
from tests.waiting import gone, until


@pytest.fixture
def misbehaving(tmp_path, monkeypatch):
    """A module of probes, importable in the probe's process."""
    (tmp_path / "naughty.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "from labkit.doctor.findings import Check\n"
        "def fine():\n    yield Check('a', True, 'well', 'no fix needed')\n"
        "    yield Check('b', None, 'not here', 'get one')\n"
        "def raises():\n    yield Check('a', True, 'well')\n    raise RuntimeError('first line\\nsecond line')\n"
        "def leaves():\n    sys.exit(3)\n    yield\n"
        "def dies():\n    yield Check('a', False, 'bad', 'mend a')\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def quits():\n    os._exit(7)\n    yield\n"
        "def hangs():\n"
        "    yield Check('a', True, 'well')\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"    open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "    time.sleep(300)\n"
        "def chatters():\n"
        '    print(\'{"name": "b", "ok": true, "detail": "rubbish", "fix": ""}\', flush=True)\n'
        "    os.write(1, b'from C\\n')\n    os.system('echo from a child')\n"
        "    sys.stderr.write('x' * 1_000_000)\n    yield Check('a', True, 'well')\n"
        "def strays():\n    yield Check('other', True, 'not asked for')\n"
        "def forgets():\n    return iter(())\n"
        "broken = 3\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def probe(function: str, seconds: float = 60.0) -> list[Check]:
        return run_doctor([Probe(f"naughty:{function}", ("a", "b"), "see a doctor", seconds)])

    return probe


def test_a_probe_that_is_well(misbehaving):
    assert misbehaving("fine") == [Check("a", True, "well", ""), Check("b", None, "not here", "get one")]


SAID = {"raises": Check("a", True, "well"), "dies": Check("a", False, "bad", "mend a")}  # before it ended
ENDS = {"raises": "RuntimeError: first line", "leaves": "SystemExit: 3", "dies": "the probe was ended by SIGSEGV"}
ENDS |= {"quits": "the probe ended with status 7", "strays": "it did not answer", "forgets": "it did not answer"}
ENDS |= {
    "broken": "TypeError: 'int' object is not callable",
    "absent": "AttributeError: module 'naughty' has no attribute 'absent'",
}


@pytest.mark.parametrize("function", ENDS)
def test_what_a_probe_does_to_itself_becomes_its_reason(misbehaving, function):
    a, b = misbehaving(function)
    failed = Check("b", False, f"could not be found out: {ENDS[function]}", "see a doctor")
    assert b == failed and a == SAID.get(function, Check("a", False, failed.detail, failed.fix))


def test_what_a_probe_prints_is_not_an_answer(misbehaving):
    a, b = misbehaving("chatters")
    assert a == Check("a", True, "well") and b.ok is False and b.detail.endswith(ENDS["strays"])


def test_a_hanging_probe_is_ended_with_its_children(misbehaving, tmp_path):
    begin = time.monotonic()
    a, b = misbehaving("hangs", seconds=15.0)  # a busy machine needs some of them for what it says first
    assert time.monotonic() - begin < 120  # it would hang for 300 s
    assert a == Check("a", True, "well")  # what it had said counts
    assert b == Check("b", False, "could not be found out: no answer in 15 s", "see a doctor")
    until(lambda: all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


def test_ctrl_c_leaves_no_probe_behind(misbehaving, tmp_path):
    pids = tmp_path / "pids"

    def interrupt():
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)  # let the hanging one get going first
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        run_doctor([Probe("naughty:hangs", ("a",), "", 300.0), Probe("naughty:fine", ("b",), "", 60.0)])
    waiting.join()
    until(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


def test_a_file_called_torch_in_the_working_directory_is_not_torch(misbehaving, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (work / "naughty.py").write_text("def fine():\n    raise SystemError('the wrong file')\n")
    monkeypatch.chdir(work)
    assert misbehaving("fine")[0].ok is True
