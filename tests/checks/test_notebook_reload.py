"""Loading labkit.notebook: a saved module holds in the next cell, and modules beside the notebook come first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("IPython")
ROOT = Path(__file__).resolve().parents[2]
RING = """
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 1 * x

    @staticmethod
    def backward(ctx, dy):
        return 1 * dy


def untouched():
    return 3
"""
SESSION = """
from pathlib import Path
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "labkit.notebook")
shell.run_cell("import theweek.ring as ring; from theweek import user; from theweek.ring import Double, untouched")
shell.run_cell("import torch; one = torch.ones(1)")
file = Path("ring.py")
text = file.read_text()
file.write_text("# one\\n" + text.replace("1 *", "2 *"))
SAY = '''print("answer", ring.Double.apply(one).item(), user.Double is ring.Double is Double, "line",
untouched.__code__.co_firstlineno, "of", ring.__file__)'''
shell.run_cell(SAY)
shell.run_cell(SAY)
file.write_text("def broken(:\\n")
shell.run_cell(SAY)
file.write_text(text.replace("1 *", "5 *"))
shell.run_cell(SAY)
"""


def test_a_saved_module_holds_in_the_next_cell(tmp_path):
    """Two copies of the course: the notebook's own is used, though the other is on the path. After an edit the module,
    who imported from it and the notebook's own names are new, with the line numbers that an autopsy will name; an
    autograd function is no obstacle. A file saved half way changes nothing, and is reported."""
    for copy in ("mine", "other"):
        week = tmp_path / copy / "theweek"
        week.mkdir(parents=True)
        (tmp_path / copy / "labkit").symlink_to(ROOT / "labkit")
        for name, text in (
            ("__init__.py", ""),
            ("tasks.toml", ""),
            ("ring.py", RING),
            ("user.py", "from .ring import Double\n"),
        ):
            (week / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        cwd=tmp_path / "mine" / "theweek",
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'other'}{os.pathsep}{ROOT}", "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    everything = done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("answer", "theweek"))]
    own = tmp_path / "mine" / "theweek" / "ring.py"
    second = f"answer 2.0 True line 16 of {own}"
    assert said[:2] == [second, second], everything
    assert said[2].startswith("theweek.ring could not be imported again: SyntaxError"), everything
    assert said[3:] == [second, f"answer 5.0 True line 15 of {own}"], everything
    assert "Traceback" not in everything and len(everything.splitlines()) < 20, everything
