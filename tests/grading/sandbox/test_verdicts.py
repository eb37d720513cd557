"""Week 13 through the sandbox: the reference has full marks, the released week none, and mutants the score that
tests/mutants13.py intends for them. (`verdicts.py` beside this runs all of them, several times and under load.)"""
from __future__ import annotations

import pytest

from tests.grading.sandbox.verdicts import Week13, differences
from tests.mutants13 import MUTANTS

# One of every kind of ending, spread over the tasks.
SAMPLE = ["n instead of n/N", "plain least squares", "off-by-one chunk", "deadlock order", "a rank returns early",
          "one rank crashes", "a rank ends its process", "nothing comes back", "built-in collective", "endless loop",
          "what comes is not stored", "built-in collective in disguise", "everything through rank 0",
          "another rank's data through a shared global", "no maximum", "any name will do"]


@pytest.fixture(scope="module")
def week13(tmp_path_factory):
    with Week13(tmp_path_factory.mktemp("week13")) as made:
        yield made


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in SAMPLE], ids=lambda m: f"{m.task} {m.name}")
def test_mutant(week13, mutant):
    assert differences(mutant, week13.mutant(mutant)) == []


def test_every_kind_is_there():
    assert set(SAMPLE) <= {mutant.name for mutant in MUTANTS}


def test_the_reference_and_the_released_week(week13):
    assert week13.reference().earned == 80
    outcome = week13.released()
    assert outcome.earned == 0
    assert {case.verdict for case in outcome.cases} == {"not attempted"}
