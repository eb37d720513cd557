"""A small course of one week, and submissions of it in odd forms."""

import io
import json
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from labkit.checks.tasks import Week, load_week

REGISTRY = """
title = "Rings"
notebook = "lab.ipynb"
tests = ["test_week91.py"]
task = [
    {id = "91.1", title = "a ring", kind = "auto", points = 10, functions = ["ring.turn", "ring.back"]},
    {id = "91.2", title = "its cost", kind = "auto", points = 5, functions = ["cost.price"]},
    {id = "91.3", title = "an essay", kind = "written", points = 5},
    {id = "91.4", title = "a tree", kind = "stretch", points = 0, functions = ["stretch.tree.grow"]},
]
"""
HOLE = """def {name}(x):
    ### BEGIN SOLUTION {task} it
    secret = x
    return secret
    ### END SOLUTION
"""
RING = "def turn(x): return 1\ndef back(x): return 2\n"
COST, TREE = "def price(x): return 3\n", "def grow(x): return 4\n"
MINE = {"ring.py": RING, "cost.py": COST, "stretch/tree.py": TREE}
PACKAGE = "week91_rings"


def notebook(*answers: tuple[str, str]) -> str:
    """A notebook's text with these (grade id, source) cells after a plain one."""
    code = {"cell_type": "code", "outputs": [], "execution_count": None}
    cells = [{**code, "id": "plain", "metadata": {}, "source": ["1 + 1"]}]
    cells += [
        {"cell_type": "markdown", "id": f"x{n}", "metadata": {"labkit": {"grade_id": id}}, "source": text}
        for n, (id, text) in enumerate(answers)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def make_week(root: Path) -> Week:
    """The course's week: two modules and a stretch one with blanks, given files, scenario, tests, notebook, results."""
    folder = root / PACKAGE
    for name, text in {
        "tasks.toml": REGISTRY,
        "__init__.py": "",
        "README.md": "# Rings\n",
        "ring.py": HOLE.format(name="turn", task="91.1") + HOLE.format(name="back", task="91.1"),
        "cost.py": HOLE.format(name="price", task="91.2"),
        "bench.py": "# BEGIN INSTRUCTOR\nsecret = 1\n# END INSTRUCTOR\n",
        "stretch/__init__.py": "",
        "stretch/tree.py": HOLE.format(name="grow", task="91.4"),
        "given/__init__.py": "",
        "given/clock.py": "ticks = 1\n",
        "given/cost.py": "given = 1\n",
        "data/wires.txt": "1 2\n",
        "scenarios.py": "def drive(): return 1\n",
        "test_week91.py": "assert 'expected'\n",
        "lab.ipynb": notebook(("task-91-3", "secret answer")),
        "results/record.json": "{}\n",
        "__pycache__/ring.pyc": "x",
        ".notes.md": "secret\n",
    }.items():
        put(folder / name, text)
    return load_week(folder)


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_all(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        put(folder / name, content)
    return folder


def zipped(
    files: dict[str, str | bytes] | list[tuple[str, str | bytes]],
    *,
    links: Mapping[str, str] = MappingProxyType({}),
    method: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """A zip's bytes. `files` may be a list, to have a name twice; `links` are name -> where to."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            archive.writestr(member(name), content, compress_type=method)
        for name, to in links.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, to)
    return whole.getvalue()


def member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.filename = name  # ZipInfo itself would change it
    return info
