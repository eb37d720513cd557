"""A course of two small weeks, with this repository's own top-level files: what tests release and change."""

import json
import shutil
from pathlib import Path

from grading.release import release
from grading.tree import FILES

ROOT = Path(__file__).resolve().parents[2]
PARTS_PY, HELPER = "week91_demo/parts.py", "week91_demo/helper.py"
MINE = "def double(x):\n    return 2 * x\n"
HOLE = 'def double(x):\n    raise NotImplementedError("Task 91.1: twice")\n'
PARTS = '''"""Parts."""


def given(x):
    return x + 1


def double(x):
    ### BEGIN SOLUTION 91.1 twice
    secret_sum = x + x
    return secret_sum
    ### END SOLUTION
'''
ANSWER = "<!-- BEGIN SOLUTION 91.2 why -->\nBecause of the secret answer.\n<!-- END SOLUTION -->"
TASKS = """title = "{title}"
notebook = "lab.ipynb"
tests = ["test_week.py"]
records = ["*.json"]

[[task]]
id = "{number}.1"
title = "twice"
kind = "auto"
points = 1
functions = ["parts.double"]
"""


def notebook() -> dict:
    output = {"output_type": "stream", "name": "stdout", "text": ["secret output"]}
    code = {"cell_type": "code", "id": "b", "metadata": {}, "source": ["1 + 1"], "execution_count": 3}
    cells = [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": ANSWER}, {**code, "outputs": [output]}]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def make(root: Path) -> Path:
    """The course's folder: week91_demo with one blank in a module and one in a notebook, and week92_next."""
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for name, text in {
        "labkit/__init__.py": '"""labkit"""\n',
        "labkit/old.py": "old = 1\n",
        "results/README.md": "# Results\n",
        "grading/secret.py": "",
        "tests/test_secret.py": "",
        "gradebook.csv": "secret",
    }.items():
        put(root / name, text)
    for number, package in ((91, "week91_demo"), (92, "week92_next")):
        week = root / package
        put(week / "tasks.toml", TASKS.format(title=package, number=number))
        put(week / "parts.py", PARTS.replace("91.", f"{number}."))
        put(week / "helper.py", "helped = 1\n")
        put(week / "test_week.py", "")
        put(week / "lab.ipynb", json.dumps(notebook()))
        put(week / "results" / "record.json", "{}\n")
        put(week / "results" / "raw" / "record.json", "secret")
        put(week / "results" / "raw" / "steps.jsonl", "secret")
        put(week / "results" / "README.md", "# Measured\n\n![a picture](figures/shown.png)\n")
        put(week / "results" / "figures" / "shown.png", "shown")
        put(week / "results" / "figures" / "other.png", "secret")
        put(week / "bench.sh", "echo\n")
        (week / "bench.sh").chmod(0o755)
        put(week / "__pycache__" / "parts.pyc", "secret")
        put(week / ".notes", "secret")
    return root


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def snapshot(root: Path) -> dict[str, bytes]:
    """All files of a tree but the release record."""
    return {
        p.relative_to(root).as_posix(): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.is_symlink() and ".labs" not in p.parts
    }


def again(tree, course, names=("week91",), **more):
    return release(tree, names, source=course, **more)


def change(course, path, old, new):
    text = (course / path).read_text()
    assert old in text
    (course / path).write_text(text.replace(old, new))
