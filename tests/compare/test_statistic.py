"""The verdict's statistic: its error rates on normal data, whose truth is known, and its edges."""

import math
from dataclasses import astuple

import numpy as np
import pytest

from labkit.compare.statistic import ACCEPTED, Spread, answers, tail

COMPARISONS = 600
SIGMA = 0.064, 0.10  # per cent: what runs of 124M parameters scatter by, in BF16 and in FP8
RECORDS = Spread(*SIGMA, weight=8)
HERE = [0.0, 0.05, -0.05, 0.02]


def rates(gap: float, runs: int, prior: Spread | None) -> dict[str, float]:
    """Shares of comparisons of four BF16 runs and `runs` of two candidates, and of intervals that hold the gap."""
    rng, out = np.random.default_rng(7), dict.fromkeys(("same", "undecided", "different", "covered"), 0)
    for _ in range(COMPARISONS):
        base = list(rng.normal(0, SIGMA[0], 4))
        two = {name: list(rng.normal(gap, SIGMA[1], runs)) for name in "ab"}
        answer = answers(base, two, prior, plan=False)["a"]
        out[answer.word] += 1
        out["covered"] += answer.low <= gap <= answer.high
    return {word: count / COMPARISONS for word, count in out.items()}


@pytest.mark.parametrize(
    "runs, prior, power", [pytest.param(2, RECORDS, 0.97, id="records"), pytest.param(3, None, 0.90, id="no records")]
)
def test_error_rates_are_those_promised(runs, prior, power):
    """Three standard deviations of 600 coin throws are 3.7 % at 90 %, 2.7 % at 5 % and 1.2 % at 1 %. A spread that
    records tell is not drawn anew with each comparison, as Student's t has it, so its intervals hold more than nine in
    ten; Welch's degrees of freedom are an approximation, a per cent off with so few runs."""
    none = rates(0.0, runs, prior)
    assert 0.85 < none["covered"] < 0.97
    assert none["different"] < 0.022
    half = rates(0.5, runs, prior)
    assert half["different"] > power and half["same"] == 0
    edge = rates(ACCEPTED, runs, prior)
    assert edge["same"] < 0.05 + 0.027, "what lies at the edge is passed in one of twenty"


def test_without_records_and_with_one_candidate_it_is_welchs_test():
    """The numbers are scipy 1.17.1's: ttest_ind([0.2, 0.31, 0.14], HERE, equal_var=False).confidence_interval(0.90).
    Importing scipy.stats would cost more than all of this file's tests."""
    answer = answers(HERE, {"fp8": [0.2, 0.31, 0.14]})["fp8"]
    assert (answer.low, answer.high) == (pytest.approx(0.0789685622), pytest.approx(0.3443647712))
    assert answer.freedom == pytest.approx(2.7189576108) and answer.gap / answer.error == pytest.approx(3.9174400853)


def test_records_count_like_so_many_runs():
    """(v0 s0^2 + squares) / (v0 + v): of BF16 3 deviations with squares 0.0053, of FP8 1 with 0.005."""
    answer = answers(HERE, {"fp8": [0.1, 0.2]}, Spread(0.1, 0.2, weight=4))["fp8"]
    squares = sum((y - 0.005) ** 2 for y in HERE)
    base, own = (4 * 0.01 + squares) / 7, (4 * 0.04 + 0.005) / 5
    assert answer.error == pytest.approx(math.sqrt(base / 4 + own / 2))
    known = answers(HERE, {"fp8": [0.1, 0.2]}, Spread(0.1, 0.2, weight=1e9))["fp8"]
    assert known.high - known.gap == pytest.approx(1.6449 * math.sqrt(0.01 / 4 + 0.04 / 2), rel=1e-4)


def test_candidates_share_one_spread():
    wide = answers(HERE, {"a": [0.0, 0.01], "b": [-0.4, 0.4]})["a"]
    assert wide.error > 5 * answers(HERE, {"a": [0.0, 0.01]})["a"].error


def test_better_is_as_different_as_worse_and_an_accepted_difference_is_the_same():
    sure = Spread(0.01, 0.01, weight=100)
    for gap, word in ((0.4, "different"), (-0.4, "different"), (0.1, "same"), (-0.1, "same")):
        answer = answers([0.0] * 4, {"fp8": [gap, gap]}, sure)["fp8"]
        assert answer.word == word, gap
    assert answer.high < 0, "zero is excluded, and the gap accepted all the same"


def test_more_candidates_and_more_looks_ask_for_more():
    def word(gap: float, others: int, looks: int) -> str:
        more = {str(i): [0.0, 0.0] for i in range(others)}
        # error 0.0866: zero is excluded at 1 % from 0.2231 on, at 0.5 % from 0.2431
        known = Spread(0.1, 0.1, weight=1e9)
        return answers([0.0] * 4, {"fp8": [gap, gap], **more}, known, looks)["fp8"].word

    assert word(0.23, 0, 1) == "different"
    assert word(0.23, 1, 1) == word(0.23, 0, 2) == "undecided"
    assert word(0.25, 1, 1) == word(0.25, 0, 2) == "different"


def test_one_run_has_no_spread_unless_records_tell_it():
    alone = answers(HERE, {"fp8": [0.0]})["fp8"]
    assert alone.word == "undecided" and math.isinf(alone.high) and alone.needed is None
    assert answers([0.0], {"fp8": [5.0, 5.1]})["fp8"].word == "undecided", "nor has one run of BF16"
    assert answers(HERE, {"fp8": [0.0]}, RECORDS)["fp8"].high < 0.3
    assert answers(HERE, {"fp8": [2.0]}, RECORDS)["fp8"].word == "different"


def test_a_run_that_diverged_is_different_and_tells_nothing_of_the_others():
    both = answers(HERE, {"lost": [0.0, math.inf], "fp8": [0.0, 0.02]})
    assert both["lost"].word == "different" and both["lost"].gap == math.inf
    assert both["fp8"].error == answers(HERE, {"fp8": [0.0, 0.02]})["fp8"].error


def test_what_did_not_run_is_undecided():
    both = answers(HERE, {"crashed": [], "short": [math.nan]}, RECORDS)
    assert {answer.word for answer in both.values()} == {"undecided"}
    for base in ([], [0.0, math.inf], [math.nan]):
        with pytest.raises(ValueError, match="baseline"):
            answers(base, {"fp8": [0.0, 0.1]})


def test_bitwise_equal_runs_are_the_same_and_shifted_ones_are_not():
    equal = answers([1.0, 1.0], {"fp8": [1.0, 1.0], "moved": [1.3, 1.3]})
    assert equal["fp8"].word == "same" and astuple(equal["fp8"])[1:4] == (0.0, 0.0, 0.0)
    assert equal["moved"].word == "different"


def test_the_runs_that_it_asks_for_decide():
    answer = answers(HERE, {"fp8": [0.05, 0.25]}, RECORDS)["fp8"]
    assert answer.word == "undecided" and answer.needed
    middle = [0.15 + 0.1 * (-1) ** i for i in range(answer.needed)]
    base = (HERE * answer.needed)[: max(4, answer.needed)]
    assert answers(base, {"fp8": middle}, RECORDS)["fp8"].word != "undecided"
    hopeless = answers([0.0, 3.0, -3.0, 1.0], {"fp8": [0.0, 2.0]})["fp8"]
    assert hopeless.word == "undecided" and hopeless.needed is None


def test_a_runs_number_is_the_mean_logarithm_of_its_second_half():
    assert tail({10: 99.0, 60: math.exp(1.0), 70: math.exp(1.02)}, from_step=51) == pytest.approx(101.0)
    assert math.isnan(tail({10: 3.0}, from_step=51))
    assert tail({60: 3.0, 70: math.nan}, 51) == math.inf == tail({60: math.inf}, 51)
