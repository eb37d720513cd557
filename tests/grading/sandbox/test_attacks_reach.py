"""Attacks on what is not in the sandbox. Each fails, and succeeds once its defence is switched off."""

import contextlib
import os
import socket
import threading
import uuid

import pytest

from grading.sandbox import command
from grading.sandbox.box import Limits
from tests.grading.sandbox.attacking import PACKAGE, ROOT, needs

pytestmark = pytest.mark.thorough

SECRETS = {
    "the tests": ROOT / "week13_allreduce" / "test_week13.py",
    "the solutions": ROOT / "week13_allreduce" / "collectives.py",
    "this machine's accounts": "/etc/passwd",
    "the grader": ROOT / "grading" / "judge.py",
    # The kernel counts all huge pages that processes were given: what one rank takes another could read there.
    "what other processes do": "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/anon_fault_alloc",
}
# As root, the sandbox's user is one that may read nothing of root's: for the proof it stays root.
OPEN = {"files", "user"}


@pytest.mark.parametrize("what", SECRETS)
def test_files_of_the_machine(field, what):
    path = str(SECRETS[what])
    needs(os.path.exists(path), f"this machine has no {path}")
    assert field.got("reach.read", path=path) is None
    assert field.got("reach.read", path=path, off=OPEN)


def test_another_submission_and_a_mark(field, tmp_path):
    other, mark = tmp_path / "bob" / "collectives.py", tmp_path / "marks" / "eve.json"
    for path in (other, mark):
        path.parent.mkdir()
        path.write_text("as it was")
    assert field.got("reach.read", path=str(other)) is None
    assert field.got("reach.read", path=str(other), off=OPEN) == "as it was"
    for off in ((), OPEN):  # seen or not, nothing of the machine can be written
        assert field.got("reach.write", path=str(mark), text="full marks", off=off) is False
        assert mark.read_text() == "as it was"
    assert field.got("reach.write", path=str(mark), text="full marks", off={*OPEN, "readonly"})
    assert mark.read_text() == "full marks"


ELSEWHERE = ("labkit.strict", "labkit.precision", "labkit.train", "labkit.record", "labkit.cli", "labkit.model")


def test_a_part_of_labkit_that_the_week_has_not_declared(field):
    """Later weeks' answers may lie there. Its import is refused by name; and past the rule there is no such file."""
    for name in ELSEWHERE:
        reply = field.ask("reach.asked_for", module=name)
        assert reply.verdict == "crashed" and f"{name} is not part of" in reply.text, reply.text
        assert field.got("reach.library", module=name) is None
        assert field.got("reach.library", module=name, off={"labkit"})
    assert field.got("reach.library", module="labkit.comm.wire"), "what every task has is there"


def test_a_part_of_labkit_that_the_week_has_declared(field):
    with contextlib.closing(field.runner(limits=Limits(uses=("labkit.strict", "labkit.model.flops")))) as runner:
        for name, there in {"labkit.strict": True, "labkit.model": True, "labkit.train": False}.items():
            reply = field.ask("reach.library", runner=runner, module=name)
            assert reply.verdict == "passed" and bool(reply.values[0]) is there, name


def test_an_installed_labkit_is_not_in_there(field, monkeypatch, tmp_path):
    """Installed without -e it lies among the packages that are shown, with all of its rooms."""
    (tmp_path / "labkit" / "train").mkdir(parents=True)
    monkeypatch.setattr(command.site, "getsitepackages", lambda: [str(tmp_path)])
    assert str(tmp_path / "labkit") in command.masked([str(tmp_path)])


def test_its_own_files_do_not_change_between_cases(field):
    path = field.folder / PACKAGE / "left.py"
    field.folder.joinpath(PACKAGE).chmod(0o777)
    assert not field.got("reach.write", path=f"/submission/{PACKAGE}/left.py", text="")
    assert not path.exists()
    assert field.got("reach.write", path=f"/submission/{PACKAGE}/left.py", text="", off={"readonly"})
    assert path.exists()


def test_environment(field, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    assert "secret" not in field.got("reach.environment").values()
    with contextlib.closing(field.runner({"environment"})):
        assert field.got("reach.environment", off={"environment"})["GRADER_TOKEN"] == "secret"


@pytest.fixture
def listeners():
    """A port on this machine and an abstract socket; both greet whoever comes."""
    name = f"grader-{uuid.uuid4()}"
    port, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    unix.bind("\0" + name)
    unix.listen()

    def greet(server):
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as link:
                    link.sendall(b"welcome")

    for server in (port, unix):
        threading.Thread(target=greet, args=(server,), daemon=True).start()
    yield {"port": port.getsockname()[1], "abstract": name}
    for server in (port, unix):
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_network(field, listeners):
    for off in ((), {"network"}, {"namespaces"}):  # the sandbox has none, and a rank once more has none
        assert field.got("reach.knock", off=off, **listeners) == []
    assert field.got("reach.knock", off={"network", "namespaces"}, **listeners) == ["welcome", "welcome"]


@pytest.mark.parametrize(
    "attack, off",
    [
        ("others", {"proc"}),
        ("uncover", {"capabilities", "syscalls"}),
        ("orders", {"descriptors"}),
        ("solutions", None),  # in none of the sandboxes
    ],
)
def test_nothing_is_found(field, attack, off):
    assert not field.got(f"reach.{attack}")
    assert off is None or field.got(f"reach.{attack}", off=off)


def test_what_lies_in_a_virtual_environments_folder_is_not_in_there(monkeypatch, tmp_path):
    """`python -m venv .` in the course's folder, and /usr/local with nbgrader's exchange: only packages are shown."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("")
    monkeypatch.setattr(command.sys, "prefix", str(tmp_path))
    seen = command.system_paths.__wrapped__()
    assert str(tmp_path / "lib") in seen and str(tmp_path) not in seen
    assert not any(path in ("/", "/usr", "/usr/local", "/home", "/root", "/etc") for path in seen)
    assert not any(os.path.commonpath([path, str(ROOT / "grading")]) == path for path in seen)
