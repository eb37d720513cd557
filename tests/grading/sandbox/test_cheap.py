"""What keeps a rank cheap, each shown by what it does: 186 ranks of a good submission would feel it, no test would."""

import ast
import ctypes
from pathlib import Path

import pytest

from labkit.checks.boundary import BASE
from labkit.checks.tasks import find_weeks


@pytest.mark.thorough
def test_what_a_weeks_scenarios_import_of_labkit_is_there_before_a_rank_is(field):
    """A sandbox has no .pyc of labkit: each rank would compile it."""
    wanted = set()
    for week in find_weeks(Path(__file__)):
        if (path := week.folder / "scenarios.py").is_file():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(BASE):
                    wanted.add(node.module)
    assert "labkit.checks.elsewhere" in wanted  # else this looks at nothing
    assert wanted <= set(field.got("reach.held"))


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's malloc, from 2.33 on")
def test_what_malloc_gives_a_rank_lies_side_by_side(field):
    """Given holes between what it shares with the zygote, a rank copies a page for each few of them."""
    count = 2000
    assert field.got("reach.pages", count=count) <= count * 80 // 4096 + 40  # 80: a block with its head
