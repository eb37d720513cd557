"""What README.md shows is what happens."""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_experiment_prints_what_it_says(tmp_path):
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
    said = re.search(r"four times (tensor\(.*?\))", code)[1]
    script = tmp_path / "hello.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=100,
                          env={**__import__("os").environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout.count(said) == 4, done.stdout + done.stderr


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_make_targets_and_lab_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"
    from labkit.cli import app
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for command in set(re.findall(r"\blab (\w+)\b", TEXT)) - {"is"}:
        assert command in known, f"lab {command}"
