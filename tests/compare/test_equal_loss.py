"""What a gap costs: curves whose answer is known, how often the interval holds it, and where it is shown."""

import io
import math
import random

import pytest
from rich.console import Console

from labkit.compare import report, summary
from labkit.compare.arms import answers, arm_rows
from labkit.compare.equal_loss import Further, further_steps, slope
from labkit.compare.figures.answer import answer
from labkit.compare.statistic import Spread, tail
from labkit.compare.statistic import answers as judge
from labkit.record.read import RunData, read_run
from labkit.record.run import RunRecord
from tests.compare.comparing import training

STEPS, FROM = range(20, 401, 20), 201


def curve(late: float = 0.0, noise=lambda: 0.0) -> dict[int, float]:
    """A loss as decoders have it, of weights that are `late` steps behind; noise: of the whole run, in per cent."""
    up = math.exp(noise() / 100)
    return {step: up * (2.5 + 30 * (step - late + 40) ** -0.5) for step in STEPS}


def found(late, base=None):
    gap = tail(curve(late), FROM) - tail(curve(), FROM)
    return further_steps(base or [curve()], FROM, gap, gap - 0.02, gap + 0.05)


@pytest.mark.parametrize("late", [-12, -5, -1, 1, 5, 12])
def test_weights_that_are_k_steps_behind_take_k_further_steps(late):
    one = found(late)
    # To first order: the curve bends by a share of about late / 400.
    assert one.steps == pytest.approx(late, rel=0.02 + abs(late) / 300) and one.trained == 400
    assert one.low == pytest.approx(one.steps - 0.02 / slope(curve(), FROM), rel=5e-3)
    assert one.high == pytest.approx(one.steps + 0.05 / slope(curve(), FROM), rel=5e-3)


def test_only_the_judged_part_of_a_curve_has_a_say():
    odd = {step: loss if step >= FROM else 9.0 for step, loss in curve().items()}
    assert found(5, [odd]) == found(5)
    assert slope({1: 9.0, 3: math.e, 5: 1.0}, 3) == pytest.approx(50.0) == slope({3: math.e, 5: 1.0}, 1)
    assert math.isnan(slope({1: 2.0, 3: 1.0}, 2))


def test_the_interval_holds_the_true_steps_nine_times_in_ten():
    """Two runs of a recipe that is 5 steps late, and four of BF16, whose pace scatters as well."""
    draw, prior, held, times = random.Random(0), Spread(0.06, 0.1, 8), 0, 300
    for _ in range(times):
        base = [curve(draw.gauss(0, 1.0), lambda: draw.gauss(0, 0.05)) for _ in range(4)]
        own = [tail(curve(5, lambda: draw.gauss(0, 0.1)), FROM) for _ in range(2)]
        one = judge([tail(run, FROM) for run in base], {"a": own}, prior)["a"]
        steps = further_steps(base, FROM, one.gap, one.low, one.high)
        held += steps.low <= 5 <= steps.high
    assert 0.86 <= held / times <= 0.96


def test_a_pace_that_scatters_widens_the_steps_of_a_gap_and_of_none():
    steep = {step: loss ** (1.5 if step >= FROM else 1) for step, loss in curve().items()}
    one, two = (further_steps([curve(), other], FROM, 1.0, 1.0, 1.0) for other in (curve(), steep))
    assert one.low == pytest.approx(one.steps) == pytest.approx(one.high)
    assert two.low == pytest.approx(1 / slope(steep, FROM)) and two.high == pytest.approx(1 / slope(curve(), FROM))
    assert two.steps == pytest.approx(2 / (slope(curve(), FROM) + slope(steep, FROM)))
    many = further_steps([curve()] * 7 + [steep], FROM, 1.0, 1.0, 1.0)  # of 8 drawn: 3 steep ones in 6.7 %, 4 in 1.3 %
    assert many.low == pytest.approx(8 / (5 * slope(curve(), FROM) + 3 * slope(steep, FROM)))
    none = further_steps([curve(), steep], FROM, 0.0, 0.0, 0.0)
    assert none.low == none.steps == none.high == 0


RISES = {step: 3.0 + step for step in STEPS}


@pytest.mark.parametrize(
    "base, gap, low",
    [
        *((base, 0.1, 0.0) for base in ([], [RISES], [curve(), {400: 3.0}], [{400: math.inf}])),
        *(([curve()], gap, low) for gap, low in ((math.inf, 0.0), (math.nan, 0.0), (0.1, -math.inf))),
    ],
)
def test_without_a_falling_curve_or_an_interval_there_are_no_steps(base, gap, low):
    assert further_steps(base, FROM, gap, low, 0.2) is None


def test_speed_at_equal_loss_counts_the_further_steps():
    assert Further(100, 60, 140, 400).speed(1.5) == pytest.approx((1.2, 1.5 / 1.35, 1.5 / 1.15))
    assert Further(-100, -500, 0, 400).speed(1.5) is None, "no step would be left"


def record(folder, *, repeat=True, curves=True):
    """A comparison of BF16, four runs, and a recipe that is 8 steps late."""
    roles = {"bf16": "baseline", **{f"bf16-{n}": "repeat" for n in (2, 3, 4)}, "a": "candidate"}
    about = {n: {"label": n.upper(), "role": role, "status": "finished"} for n, role in roles.items()}
    about |= {n: {**about[n], "of": "bf16"} for n, role in roles.items() if role == "repeat"}
    config = {"arms": about, "repeat": {"baseline": 4} if repeat else None}
    made = RunRecord.create(folder, kind="compare", command="c", hardware={}, config=config)
    for name, role in roles.items():
        training(folder / "arms" / name, curve(8 if name == "a" else 0) if curves else {}, role=role)
    gap = tail(curve(8), FROM) - tail(curve(), FROM)
    judged = {"a": {"word": "different", "runs": 2, "value": gap, "low": gap - 0.1, "high": gap + 0.1}}
    judged["bf16"] = {"word": "baseline", "runs": 4, "value": 0.0}
    timed = {n: {"label": n.upper(), "role": roles[n], "tokens_per_s": r} for n, r in (("bf16", 100.0), ("a", 130.0))}
    row = {"step_p10": 1.0, "step_p50": 1.0, "step_p90": 1.0, "tokens_step": 100}
    row |= {"memory": {"peak": 1}, "flops_per_s": {"causal": 1.0, "full": 1.0}}
    results = {"arms": about, "verdict": {"word": "fail", "arms": judged, "from_step": FROM}}
    results["speed"] = {"arms": {name: one | row for name, one in timed.items()}}
    made.finish(results=results)
    return folder


def test_terminal_page_and_picture_say_the_same_of_it(tmp_path):
    run = read_run(record(tmp_path / "run"))
    arm = arm_rows(run)["a"]
    assert arm.further.steps == pytest.approx(8, rel=0.04)
    assert arm.at_equal_loss[0] == pytest.approx(1.3 * 400 / 408, abs=2e-3)
    said = "{:.2f} [{:.2f}, {:.2f}]".format(*arm.at_equal_loss)
    summary.show(run.path, Console(file=(out := io.StringIO()), width=200))
    drawn = answer(answers(arm_rows(run)), tmp_path)
    for text in (out.getvalue(), report._render(run, [], []), f"{drawn.alt} {drawn.note}"):
        assert said in text and "gap costs more" in text


@pytest.mark.parametrize("without", ["repeat", "curves"])
def test_a_record_that_cannot_carry_it_says_nothing_of_it(without, tmp_path):
    run: RunData = read_run(record(tmp_path / "run", **{without: False}))
    page = report._render(run, [], []) + summary.markdown(run.path)
    assert arm_rows(run)["a"].further is None and "equal loss" not in page
