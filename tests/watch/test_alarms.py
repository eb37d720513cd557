"""The alarms on made-up records: each rings for its fault with a reason, none for a healthy run, and what rings does
not depend on when one polled."""

import copy
import math

import numpy as np
import pytest

from labkit.watch.alarms import REARM, Judge, silence
from labkit.watch.folder import Record
from tests.watch.lines import TENSORS, alarms, lines, record


def kinds(rang) -> list[tuple[str, int | None]]:
    return [(alarm.kind, alarm.step) for alarm in rang]


@pytest.mark.parametrize("seed", range(10))
def test_nothing_rings_on_a_healthy_run(seed):
    assert alarms(record(lines(600, seed, ranks=4))) == []


def times(field, factor, at):
    """A fault: a field of these lines is so many times as large."""

    def spoil(run):
        for line in run[at] if isinstance(at, slice) else [run[i] for i in at]:
            line[field] *= factor

    return spoil


def of_tensor(tensor, stat, change):
    """A fault: from step 300 on a statistic of one tensor is `change(value, step)`."""

    def spoil(run):
        for line in run[299:]:
            if "scales" in line:
                line["scales"][TENSORS[tensor]][stat] = change(line["scales"][TENSORS[tensor]][stat], line["step"])

    return spoil


def grown(run):
    for line in run[299:]:
        if "param_norm" in line:
            line["param_norm"] += 0.05 * (line["step"] - 299)


def lagging(run):
    for line in run[300:]:
        line["rank_seconds"][2] *= 1.6


def no_scale(run):
    run[299]["scales"][TENSORS[0]]["scale"] = math.nan  # not recorded: says nothing
    run[304]["scales"][TENSORS[0]]["scale"] = 0.0


def stuck(run):
    for line in run[200:]:
        line["lr"] = 1e-3
        line["grad_norm"] = run[199]["grad_norm"] * (1 + line["step"] / 600)
        if "heldout" in line:
            line["heldout"] = run[199]["heldout"] * (1 + 1e-4 * (line["step"] % 3))


spiked = times("grad_norm", 12, (299, 301, 304))
collapsed = of_tensor(3, "scale", lambda scale, step: scale / 64)
saturated = of_tensor(1, "overflow", lambda share, step: 4.0)
FAULTS = {  # the fault, the rule that rings, between which steps, and what its reason names
    "spiked": (spiked, "gradient spike", (305, 305), "3 of the last 8"),
    "enormous": (times("grad_norm", 100, [299]), "gradient spike", (300, 300), "64 steps before"),
    "dear": (times("loss", 1.22, (299, 300)), "loss spike", (301, 301), "64 steps before"),
    "dearest": (times("loss", 1.8, [299]), "loss spike", (300, 300), "64 steps before"),
    "tenfold": (times("lr", 10, slice(299, None)), "learning rate", (300, 300), "5.5 times"),
    "grown": (grown, "weights", (300, 305), "12 norms before"),
    "slower": (times("tokens_per_s", 0.5, slice(300, None)), "throughput", (304, 312), "last 10 steps"),
    "lagging": (lagging, "slow rank", (310, 317), "rank 2"),
    "collapsed": (collapsed, "scale collapse", (305, 305), TENSORS[3]),
    "ran away": (of_tensor(5, "scale", lambda s, _: s * 1000), "scale collapse", (300, 305), TENSORS[5]),
    "no scale": (no_scale, "scale collapse", (305, 305), TENSORS[0]),
    "flushed": (of_tensor(1, "underflow", lambda s, k: s + 0.2 * (k - 299)), "underflow", (315, 345), TENSORS[1]),
    "saturated": (saturated, "overflow", (300, 300), TENSORS[1]),
    "stuck": (stuck, "plateau", (260, 320), "6 evaluations"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_rings_once_at_its_step_with_its_reason(name):
    fault, kind, (first, last), part = FAULTS[name]
    run = lines(600, 7, ranks=4)
    fault(run)
    (alarm,) = alarms(record(run))
    assert alarm.kind == kind and first <= alarm.step <= last and part in alarm.reason


def test_a_scale_that_varies_is_no_collapse_and_a_restart_of_the_schedule_no_jump():
    run, draw = lines(600, 5), np.random.default_rng(5)
    for line in run:
        line["lr"] = 1e-3 if line["step"] % 200 < 100 else 1e-5
        for name in TENSORS[:3] if "scales" in line else ():
            line["scales"][name]["scale"] *= float(np.exp(1.5 * draw.standard_normal()))
    assert alarms(record(run)) == []


def test_weights_that_follow_the_learning_rate_do_not_ring():
    rates = [lambda step: 1e-5 * step if step <= 300 else 1e-4, lambda step: 1e-3 if step <= 300 else 4e-4]
    for rate in rates:  # back from a long warm-up; and cut to two fifths
        run, norm = lines(600, 6), 20.0
        for line in run:
            line["lr"] = rate(line["step"])
            norm += line["lr"]
            if "param_norm" in line:
                line["param_norm"] = norm
        assert alarms(record(run)) == []


@pytest.mark.parametrize("seed", range(5))
def test_what_rings_does_not_depend_on_the_polls_and_never_on_what_comes_later(seed):
    run = lines(700, seed, ranks=3)
    draw = np.random.default_rng(seed)
    for at in draw.integers(1, 700, 60):
        run[at]["grad_norm"] *= 100
        run[at]["tokens_per_s"] /= 5
        run[at].get("scales", {}).get(TENSORS[2], {}).update(scale=1e-6, overflow=20.0)
    for at in draw.integers(60, 700, 20):
        run[at]["loss"] *= 4
        run[at]["lr"] *= float(draw.uniform(2, 30))
        run[at // 5 * 5 + 4]["param_norm"] *= 1.05
    for at in draw.integers(1, 690, 5):
        for line in run[at : at + 10]:
            line["tokens_per_s"] /= 5
            line["rank_seconds"][1] *= 3
    run[400]["grad_norm"] = run[400]["loss"] = math.nan
    whole = alarms(record(run))
    assert {"gradient spike", "scale collapse", "overflow", "throughput"} <= {alarm.kind for alarm in whole}
    grown, judge, at = Record(run={"status": "finished"}), Judge(), 0
    while at < len(run):
        more = int(draw.integers(0, 40))
        grown.add(copy.deepcopy(run[at : at + more]))
        at += more
        seen = judge.judge(grown)
        assert [a for a in whole if a.step <= min(at, len(run))] == seen, f"after {at} steps"
    for cut in (150, 401, 555):
        assert alarms(record(run[:cut])) == [alarm for alarm in whole if alarm.step <= cut]


def test_another_models_units_ring_the_same():
    run = lines(600, 3)
    spiked(run)
    collapsed(run)
    saturated(run)
    usual = kinds(alarms(record(run)))
    for line in run:
        line["grad_norm"] *= 1e6
        line["loss"] *= 1e-3
        for stat in line.get("scales", {}).values():
            stat["scale"] *= 1e-4
            stat["amax"] *= 1e4
    assert kinds(alarms(record(run))) == usual and len(usual) == 3


def test_one_odd_batch_is_no_alarm():
    """As in healthy runs on real text: a step at eight times the usual norm, a probe at a 24th of the usual scale."""
    run = lines(600, 2)
    run[299]["grad_norm"] *= 8
    run[304]["scales"][TENSORS[1]]["scale"] /= 24
    run[319]["scales"][TENSORS[1]]["underflow"] = 0.0
    run[324]["scales"][TENSORS[1]]["underflow"] += 20
    run[402]["grad_norm"] *= 8
    run[405]["grad_norm"] *= 8
    assert alarms(record(run)) == []


def test_it_rings_again_only_after_quiet():
    run = lines(600, 5)
    for at in (300, 302, 305, 305 + REARM, 306 + 2 * REARM):
        run[at]["grad_norm"] *= 150
    assert kinds(alarms(record(run))) == [("gradient spike", 301), ("gradient spike", 307 + 2 * REARM)]


def test_the_end_of_a_run_is_no_plateau():
    run = lines(600, 1)
    stuck(run)
    for line in run[200:]:
        line["lr"] = 1e-4
    assert alarms(record(run)) == []


def test_the_records_own_troubles_are_alarms():
    events = [
        {"kind": "checkpoint", "step": 10, "message": "saved"},
        {"kind": "nonfinite", "step": 12, "action": "skip", "row": 1, "message": "not finite on 1 of 2 ranks"},
        {"kind": "nonfinite", "step": 13, "action": "skip", "row": 2, "message": "the second of the row"},
        {"kind": "rolled back", "step": 13, "message": "went back"},
        {"kind": "failed", "step": None, "message": "OSError"},
    ]
    rang = alarms(record(lines(20), events))
    assert kinds(rang) == [("not finite", 12), ("rolled back", 13), ("failed", None)]
    assert rang[0].reason == "not finite on 1 of 2 ranks"


@pytest.mark.parametrize(
    "alive, seconds, status, a_step, part",
    [
        (True, 59, "running", 0.1, None),
        (True, 61, "running", 0.1, "61 s; a step usually takes 0.1 s"),
        (None, 61, "running", 0.1, "61 s"),
        (False, 1, "running", 0.1, "no writer"),
        (False, 9999, "paused", 0.1, None),
        (True, 700, "running", 40.0, None),  # slow steps
        (True, 900, "running", 40.0, "900 s"),
    ],
)
def test_silence(alive, seconds, status, a_step, part):
    quiet = record([{**line, "seconds": a_step} for line in lines(30)], alive=alive, silence=seconds)
    quiet.run["status"] = status
    rang = list(silence(quiet))
    assert len(rang) == (part is not None) and all(part in alarm.reason for alarm in rang)


def test_records_with_nothing_or_nonsense_in_them():
    assert alarms(record([])) == [] and alarms(record(lines(3))) == []
    odd = {"loss": "?", "grad_norm": None, "scales": {"x": 3, "y": {"scale": "no"}}, "rank_seconds": "a"}
    steps = [{"loss": 1}, {}, *({"step": i, **odd} for i in range(50))]
    assert alarms(record(steps, [{}, {"kind": 3}])) == []


def test_a_machine_that_others_use_rings_only_for_what_is_beyond_its_own_variation():
    """Steps that differ by half from one to the next, as on a busy laptop; then the rate falls to a quarter."""
    for seed in range(5):
        run, draw = lines(600, seed), np.random.default_rng(seed)
        for line in run:  # and gradients that always vary widely
            line["tokens_per_s"] *= float(np.exp(0.4 * draw.standard_normal()))
            line["grad_norm"] *= float(np.exp(0.7 * draw.standard_normal()))
        assert alarms(record(run)) == []
        for line in run[300:]:
            line["tokens_per_s"] /= 4
        (rang,) = alarms(record(run))
        assert rang.kind == "throughput" and 303 <= rang.step <= 315
