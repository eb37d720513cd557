"""What keeps a rank cheap, each shown by what it does: 186 ranks of a good submission would feel it, no test would."""

from __future__ import annotations

import ast
import ctypes
from pathlib import Path

import pytest

from labkit.checks.boundary import BASE
from labkit.checks.tasks import find_weeks
from tests.grading.sandbox.attacking import PACKAGE, Field
from tests.grading.test_run import needs_sandbox

MODULES = """
import sys

HELD = sorted(name for name in sys.modules if name.startswith("labkit."))

def held(group):
    return HELD
"""
# Blocks of 64 bytes as malloc gives them to a rank: in how many pages do they lie?
PAGES = """
import ctypes

def pages(group, count):
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return len({malloc(64) >> 12 for _ in range(count)})
"""


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("cheap"))
    for name, text in (("modules", MODULES), ("heap", PAGES)):
        (made.folder / PACKAGE / f"{name}.py").write_text(text)
    yield made
    made.close()


@pytest.mark.thorough
@needs_sandbox
def test_what_a_weeks_scenarios_import_of_labkit_is_there_before_a_rank_is(field):
    """A sandbox has no .pyc of labkit: each rank would compile it."""
    wanted = set()
    for week in find_weeks(Path(__file__)):
        if (path := week.folder / "scenarios.py").is_file():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(BASE):
                    wanted.add(node.module)
    assert "labkit.checks.elsewhere" in wanted  # else this looks at nothing
    assert wanted <= set(field.got("modules.held"))


@pytest.mark.thorough
@needs_sandbox
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's malloc, from 2.33 on")
def test_what_malloc_gives_a_rank_lies_side_by_side(field):
    """Given holes between what it shares with the zygote, a rank copies a page for each few of them."""
    count = 2000
    assert field.got("heap.pages", count=count) <= count * 80 // 4096 + 40  # 80: a block with its head
