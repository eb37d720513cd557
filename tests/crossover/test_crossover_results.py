"""The committed map is whole, and its tables are the record's."""

from pathlib import Path

import pytest

from labkit.crossover import record as records
from labkit.crossover.grid import BASE, FP8

RESULTS = Path(records.__file__).parents[2] / "week16_fp8" / "results"
if not (RESULTS / "crossover").exists():
    pytest.skip("week 16's results are not in this tree", allow_module_level=True)
RECORD = records.load(RESULTS / "crossover")


def test_the_record_is_whole():
    have = records.cells(RECORD)
    assert RECORD["status"] == "finished" and len(RECORD["cells"]) == 27 * 7 and records.list_missing(RECORD) == []
    assert all(cell.fp8_kernels == (cell.arm in FP8) for cell in have.values())


def test_the_table_page_holds_every_arms_table():
    text = (RESULTS / "crossover" / "README.md").read_text(encoding="utf-8")
    assert all(records.table(RECORD, arm) in text for arm in RECORD["arms"] if arm != BASE)
