"""The doctor on this machine, what it says of the machine and of grading, and what follows: verdicts and a table."""

import io
import os
import re
import subprocess
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit import cli
from labkit.doctor import findings as doctor
from labkit.doctor import grading, system
from labkit.doctor.findings import GROUPS, NOTEBOOK, PACKAGES, PROBES, PYTHON, TORCH, Check, exit_code, render, verdicts
from labkit.errors import in_words
from labkit.record import hardware
from tests.doctor.found import one

ROOT = Path(__file__).parents[2]
NAMES = [name for probe in PROBES for name in probe.names]


# ---- this machine, for real


def test_the_command_on_this_machine(monkeypatch, capsys):
    checks = doctor.run_doctor()
    monkeypatch.setattr(doctor, "run_doctor", lambda: checks)
    monkeypatch.setenv("COLUMNS", "100")
    assert [check.name for check in checks] == NAMES
    assert cli.app(["doctor"], standalone_mode=False) == exit_code(checks)
    assert [group.name for group in GROUPS] == ["weeks 13 to 16", "the CPU demo", "the FP8 comparison on a GPU"]
    assert capsys.readouterr().out == drawn(checks)
    # These tests themselves need a Python, a torch and gloo that work.
    assert all(one(checks, name).ok is True for name in ("Python", "torch", "gloo", "packages")), checks
    for check in checks:
        assert check.detail and len((check.detail + check.fix).splitlines()) == 1
        assert bool(check.fix) == (check.ok is not True), f"{check.name}: a fix for what is not well, and only for that"
        assert str(Path.home()) + os.sep not in check.detail


def test_what_is_asked_for_is_what_pyproject_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {r.name: r for r in map(Requirement, project["dependencies"])}
    assert {*PACKAGES, "torch", "torchao"} == set(wanted)
    assert set(NOTEBOOK) == {Requirement(line).name for line in project["optional-dependencies"]["student"]}
    assert wanted["torch"].specifier == SpecifierSet(">={},<{}".format(*map(doctor.dotted, TORCH)))
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">={doctor.dotted(PYTHON)}")


# ---- the machine


def test_an_old_python_a_foreign_system_a_missing_package(monkeypatch):
    monkeypatch.setattr(system.sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(system.platform, "system", lambda: "Windows")
    monkeypatch.setattr(system, "PACKAGES", ("numpy", "no-such-package-here"))
    monkeypatch.setattr(system, "NOTEBOOK", ("no-such-notebook-here",))
    found = {check.name: check for check in system.basics()}
    assert [check.ok for check in found.values()] == [False, False, False, False]
    assert doctor.dotted(PYTHON) in found["Python"].fix and "WSL" in found["operating system"].fix
    assert found["packages"].detail == "not installed: no-such-package-here"
    assert found["notebook"].detail == "not installed: no-such-notebook-here" and "make setup" in found["notebook"].fix


Usage = namedtuple("Usage", "total used free")
GIB = 2**30


def disk(monkeypatch, free: float) -> None:
    monkeypatch.setattr(system.shutil, "disk_usage", lambda folder: Usage(0, 0, int(free)))


def read_only(*args, **kwargs):
    raise OSError(30, os.strerror(30))


def test_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "not" / "made" / "yet"))
    monkeypatch.chdir(tmp_path)
    disk(monkeypatch, 5 * GIB)
    assert system._disk() == Check("disk", True, "5.0 GiB free in the working directory; 5.0 GiB free in the cache")
    assert not (tmp_path / "not").exists() and not list(tmp_path.iterdir())  # looking leaves nothing behind
    disk(monkeypatch, 0.5 * GIB)
    check = system._disk()
    assert check.ok is False and check.fix == "free 1.0 GiB in the working directory; free 1.0 GiB in the cache"
    monkeypatch.setattr(system.tempfile, "TemporaryFile", read_only)
    check = system._disk()
    assert check.ok is False and check.detail.count(os.strerror(30)) == 2
    assert ["LABKIT_CACHE" in fix for fix in check.fix.split("; ")] == [False, True], "each place has its own"


def test_temporary_files(monkeypatch):
    assert system._temporary().ok is True
    disk(monkeypatch, 0.1 * GIB)
    assert system._temporary().ok is False and "TMPDIR" in system._temporary().fix
    monkeypatch.setattr(system.tempfile, "gettempdir", read_only)
    assert system._temporary().ok is False and os.strerror(30) in system._temporary().detail


def test_shared_memory(monkeypatch, tmp_path):
    assert system._shared_memory(str(tmp_path / "shm")).ok is None
    disk(monkeypatch, 8 * GIB)
    assert system._shared_memory(str(tmp_path)).ok is True
    disk(monkeypatch, docker := 64 * 2**20)
    check = system._shared_memory(str(tmp_path))
    assert check.ok is False and system.gib(docker) in check.detail and "--shm-size" in check.fix
    monkeypatch.setattr(system.tempfile, "TemporaryFile", read_only)
    assert system._shared_memory(str(tmp_path)).ok is False


@pytest.mark.parametrize(
    "total, free, ok, words",
    [
        (16, 12, True, "16 GiB, 12 GiB of it free"),
        (8, 2, True, "close other programs"),
        (3.75, 3, True, "close other programs"),
        (3.5, 3, False, "3.5 GiB"),
    ],
)
def test_memory(monkeypatch, total, free, ok, words):
    monkeypatch.setattr(hardware, "memory_bytes", lambda: (int(total * GIB), int(free * GIB)))
    check = system._memory()
    assert check.ok is ok and words in check.detail


# ---- what grading needs


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Stand-ins for commands on PATH, run as an ordinary user; and the kernel's settings."""

    def make(settings=None, **scripts):
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(grading.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(grading.platform, "system", lambda: "Linux")
        monkeypatch.setattr(grading, "CONTAINER_MARKS", (str(tmp_path / "dockerenv"),))
        if "dockerenv" in (settings or {}):
            (tmp_path / "dockerenv").touch()
        monkeypatch.setattr(hardware, "read_system", lambda path: (settings or {}).get(path, ""))
        return {check.name: check for check in grading.sandbox()}

    return make


APPARMOR, CLONE = (
    f"/proc/sys/kernel/{name}" for name in ("apparmor_restrict_unprivileged_userns", "unprivileged_userns_clone")
)


@pytest.mark.parametrize(
    "settings, words, fix",
    [
        ({APPARMOR: "1\n"}, "AppArmor forbids", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ({CLONE: "0\n"}, "the kernel forbids", "kernel.unprivileged_userns_clone=1"),
        ({"/proc/sys/user/max_user_namespaces": "0\n"}, "the kernel allows none", "user.max_user_namespaces=15000"),
        ({"dockerenv": ""}, "this container forbids", "seccomp=unconfined"),
        ({APPARMOR: "0\n"}, "does not say why", "dmesg"),
    ],
)
def test_who_forbids_user_namespaces(commands, settings, words, fix):
    said = "write failed /proc/self/uid_map: Operation not permitted"
    refuse = f"echo '{said}' >&2; exit 1"
    for check in commands(settings, unshare=refuse, bwrap=refuse).values():
        assert check.ok is False and words in check.detail and fix in check.fix and said in check.detail


def test_a_setting_alone_is_no_verdict(commands):
    # A profile may allow this program what the setting forbids to others: what counts is the try.
    found = commands({APPARMOR: "1\n"}, unshare="exit 0")
    assert found["user namespaces"].ok is True
    assert found["bubblewrap"].ok is None and found["bubblewrap"].fix == "sudo apt install bubblewrap"


def test_a_sandbox_that_hangs(commands, monkeypatch):
    monkeypatch.setattr(grading._try, "__kwdefaults__", {"seconds": 0.3})
    found = commands(unshare="exec /bin/sleep 60")
    assert found["user namespaces"].ok is False and "0.3 s" in found["user namespaces"].detail


def test_other_systems_do_not_grade(monkeypatch):
    monkeypatch.setattr(grading.platform, "system", lambda: "Darwin")
    assert [check.ok for check in grading.sandbox()] == [None, None]


def test_root_tries_as_an_ordinary_user(monkeypatch):
    seen = []

    def run(command, **how):
        seen.append(how)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(grading.subprocess, "run", run)
    monkeypatch.setattr(grading.os, "geteuid", lambda: 0)
    assert grading._try("true")[0] and seen[0]["user"] == 65534 and seen[0]["group"] == 65534
    monkeypatch.setattr(grading.os, "geteuid", lambda: 1000)
    assert grading._try("true")[0] and {"user", "group"}.isdisjoint(seen[1])


# ---- verdicts


def well(**but) -> list[Check]:
    """All checks True, except those given (underscores for spaces)."""
    but = {name.replace("_", " "): ok for name, ok in but.items()}
    return [
        Check(name, but.get(name, True), f"{name} [detail]", "" if but.get(name, True) else f"fix [pytorch] {name}")
        for name in NAMES
    ]


def yes(checks) -> list[bool]:
    return [verdict.ok for verdict in verdicts(checks)]


def test_every_check_serves_a_purpose_and_every_need_is_checked():
    used = {name for group in GROUPS for name in (*group.needs, *group.one_of, *group.wants)}
    assert used == set(NAMES) and len(set(NAMES)) == len(NAMES)


def test_all_is_well():
    assert yes(well()) == [True, True, True] and exit_code(well()) == 0
    assert [verdict.sentence for verdict in verdicts(well())[:2]] == ["yes: `lab open week13`", "yes: `make demo`"]


NEEDED = {  # by a week's student, the demo, a GPU renter
    "wdr": ("Python", "torch", "disk"),
    "wd ": ("gloo", "memory"),
    "w  ": ("notebook",),
    " d ": ("torchao",),
    "  r": ("GPU", "FP8_hardware", "NCCL"),
    "   ": ("/dev/shm", "Transformer_Engine", "BF16_products"),
}


@pytest.mark.parametrize("by, name", [(by, name) for by, names in NEEDED.items() for name in names])
@pytest.mark.parametrize("ok", [False, None])
def test_what_each_purpose_needs(by, name, ok):
    checks, expected = well(**{name: ok}), [who == " " for who in by]
    assert yes(checks) == expected and exit_code(checks) == (0 if expected[1] else 1)
    for verdict in verdicts(checks):
        assert verdict.ok or verdict.missing == (name.replace("_", " "),)
        assert verdict.ok or verdict.sentence == f"NO, because of {name.replace('_', ' ')}"


def test_one_fp8_library_is_enough_and_none_is_not():
    found, lacking = verdicts(well(Transformer_Engine=False))[2], "Transformer Engine"
    assert found.ok and lacking in found.sentence
    assert verdicts(well(Transformer_Engine=False, torchao=False))[2].missing == (lacking, "torchao")


def drawn(checks, width: int = 100) -> str:
    from rich.console import Console

    out = io.StringIO()
    render(checks, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_the_table():
    text = drawn(checks := well(GPU=None, torchao=False))
    lines = text.splitlines()
    for name in NAMES:  # each check once, in words that need no colour
        assert sum(bool(re.match(rf"(ok|NO|- ) +{re.escape(name)} ", line)) for line in lines) == 1, name
    assert any(re.match(r"NO +torchao ", line) for line in lines) and any(re.match(r"- +GPU ", line) for line in lines)
    assert text.startswith("This machine is good for: weeks 13 to 16. Not for: the CPU demo"), "students first"
    assert text.index("Weeks 13 to 16: yes") < text.index("The CPU demo: NO, because of torchao")
    assert all(check.detail in text and check.fix in text for check in checks), "brackets are text, not style"
    assert text.count("->") == 2, "what is well has no fix"


def test_words_are_one_line_and_private(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    words = in_words(OSError("/home/ada/lib/x.so: cannot open\n  more"))
    assert words == "OSError: ~/lib/x.so: cannot open"
    assert in_words(AssertionError()) == "AssertionError"
    assert len(in_words(ValueError("x" * 5000))) == 300


@pytest.mark.parametrize("container, fix", [("26.03", "pip install -r requirements-container.txt"), ("", "make setup")])
def test_inside_nvidias_container_the_fix_is_its_list_and_not_another_torch(container, fix):
    code = "from labkit.doctor import findings as doctor; print(doctor.SETUP, doctor.PROBES[0].fix)"
    env = {**os.environ, "NVIDIA_PYTORCH_VERSION": container}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.stdout.count(fix) == 2, done.stderr
