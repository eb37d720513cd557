"""The `lab` command itself: help that answers, commands that are there, errors that are one sentence."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli
from labkit.compare.preset import available, load_preset

ROOT = Path(__file__).parents[1]


def lab(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "labkit", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [("--help",), ()])
def test_help_names_every_command(words):
    out = lab(*words).stdout
    commands = {"doctor", "compare", "status", "scaling", "report", "bench", "bundle", "plan", "check", "open"}
    assert commands <= {*re.findall(r"^\S (\w+) ", out, re.MULTILINE)}


def test_presets_are_listed_with_their_arms():
    out = lab("compare", "--list").stdout
    assert re.findall(r"^(\S+): ", out, re.MULTILINE) == available()
    arms = [(key, arm.role) for name in available() for key, arm in load_preset(name).arms.items() if not arm.of]
    assert re.findall(r"^ {4}(\S+) .*\((\w+)", out, re.MULTILINE) == arms


@pytest.mark.parametrize("words", [("compar",), ("compare", "--presset", "x"), ("report",)])
def test_a_wrong_word_is_a_usage_error(words):
    done = lab(*words)
    assert done.returncode == 2 and "Usage" in done.stderr


def test_ctrl_c_is_shown_and_ends_with_130(monkeypatch, capsys):
    """In a command: typer turns it into a silent status there."""

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.compare.follow.overview", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main(["status", "runs/none"])
    assert stop.value.code == 130 and capsys.readouterr().err == "lab: interrupted\n"
