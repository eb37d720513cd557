"""The page of FP8 settings in other frameworks and here: what it calls ours is there, and none of ours is missing."""

import re
import tomllib
from pathlib import Path

import pytest

from labkit.compare.preset import _merge
from labkit.precision.config import PrecisionConfig
from labkit.precision.matrix import refuse
from labkit.precision.registry import spec_of
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from labkit.train.recovery import RecoveryConfig

PAGE = Path(__file__).parents[1] / "docs" / "fp8-settings.md"
HOPPER, BLACKWELL = (9, 0), (10, 0)


def rows(text: str) -> list[tuple[str, str]]:
    """(the first cell, the cell of ours) of every row of the page's tables."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if cells and not set(cells[0]) <= set("- ") and cells[2:3] != ["ours"] and cells[0] != "setting":
            found.append((cells[0], cells[2] if len(cells) > 2 else cells[0]))
    return found


def settings(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def configured(cell: str) -> TrainConfig:
    """The settings of a row as one configuration; LabError for what is not there or does not go together."""
    merged: dict = {}
    for setting in settings(cell):
        merged = _merge(merged, tomllib.loads(setting))
    return strict_validate(TrainConfig, merged, cell)


ROWS = rows(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("theirs, ours", ROWS, ids=[theirs[:40] for theirs, _ in ROWS])
def test_what_the_page_calls_ours_is_there(theirs, ours):
    if ours == "no":
        return
    assert settings(ours), ours
    config = configured(ours)
    spec_of(config.precision)
    refuse(config, BLACKWELL if config.precision.recipe in ("mxfp8", "nvfp4") else HOPPER)


def test_the_page_has_rows_of_every_framework_and_says_no_where_there_is_nothing():
    assert len(ROWS) > 35 and 10 < sum(ours == "no" for _, ours in ROWS) < 25
    theirs = " ".join(theirs for theirs, _ in ROWS)
    for known in ("FP8_QUANT_FWD_INP_AMAX_EPS", "NVTE_FP8_BLOCK_SCALING_BWD_GRAD_POWER2", "--fp8-param-gather"):
        assert known in theirs
    from dataclasses import fields

    from torchao.float8 import Float8LinearConfig

    table = PAGE.read_text(encoding="utf-8").split("## torchao")[1].split("## KempnerForge")[0]
    listed = set(re.findall(r"`(\w+)`", table))
    likes = {"cast_config_weight_for_grad_input", "cast_config_grad_output_for_grad_weight"}  # "and its two likes"
    assert {field.name for field in fields(Float8LinearConfig)} - listed == likes


@pytest.mark.parametrize("table, model", [("precision", PrecisionConfig), ("recovery", RecoveryConfig)])
def test_nothing_of_ours_is_missing(table, model):
    named = set(re.findall(rf"`{table}\.(\w+)", PAGE.read_text(encoding="utf-8")))
    assert named == set(model.model_fields)


@pytest.mark.parametrize(
    "wrong", ["`precision.epsilon = 1e-12`", "`precision.recipe = 3`", "`recovery.rollback_after = 4`"]
)
def test_a_wrong_setting_would_be_noticed(wrong):
    from labkit.errors import LabError

    with pytest.raises(LabError):
        configured(wrong)
