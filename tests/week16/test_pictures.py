"""The week's pictures, from real tensors and from records: they exist, and their words say what the data say."""

import json
import re

import numpy as np
import pytest

from labkit.errors import LabError
from week16_fp8.given import experiments, pairs, pictures, records
from week16_fp8.scale_tracker import Falling


def drawn(picture, name):
    assert picture.name == name and picture.alt
    assert picture.png.read_bytes()[:4] == b"\x89PNG" and picture.svg.read_bytes()[:5] == b"<?xml"
    return picture


@pytest.fixture(scope="module")
def gradient():
    """Values over some binades, as small as a gradient's: what the pictures are about, without a training."""
    draw = np.random.default_rng(16)
    return (1e-6 * draw.standard_normal((256, 256)) * np.exp2(draw.normal(0, 1.5, (256, 1)))).astype(np.float32)


def test_real_tensors_are_those_of_the_last_step():
    found = experiments.tensors(3)
    shapes = {"input": (1024, 64), "weight": (128, 64), "gradient": (1024, 128)}
    assert {name: x.shape for name, x in found.items()} == shapes
    assert all(np.isfinite(x).all() and x.any() for x in found.values())


def test_codes_tell_what_is_lost(gradient, tmp_path):
    raw = experiments.codes(gradient, 1.0, "e4m3")
    assert raw.lost == 1.0 and raw.used == 1 and raw.counts.sum() == gradient.size
    own = experiments.codes(gradient, experiments.own_scale(gradient, "e4m3"), "e4m3")
    assert own.lost < 0.01 and own.used > 100 and own.saturated == 0
    assert experiments.codes(gradient, 4 * experiments.own_scale(gradient, "e4m3"), "e4m3").saturated > 0
    picture = drawn(pictures.codes_over(gradient, "e4m3", "gradient", tmp_path), "codes")
    assert "with scale 1: 100.0% become 0, different magnitudes left: 1;" in picture.alt


def test_the_plateau_has_two_cliffs(gradient, tmp_path):
    sweep = experiments.sweep(gradient, "e4m3")
    dB = {k: measured for k, measured, _ in sweep}
    assert abs(dB[-4] - dB[0]) < 0.5 < 5 < dB[0] - dB[1] and dB[-30] < 1
    # What the uniform error assumes holds on the plateau: a few tenths of a dB, over 65,000 values.
    assert all(abs(a - b) < 0.5 for k, a, b in sweep if -8 <= k <= 3)
    picture = drawn(pictures.plateau({"E4M3": sweep}, -4.0, tmp_path), "plateau")
    assert f"{max(dB.values()):.1f} dB at best" in picture.alt


def test_poison_is_shared_by_what_shares_a_scale(gradient, tmp_path):
    hit = experiments.poisoned(gradient, 1e4)
    lost = hit.block_RC & ~(np.arange(256) == hit.at[0])[:, None]
    without = experiments.poisoned(gradient, 1.0).block_RC & ~(np.arange(256) == hit.at[0])[:, None]
    assert (lost == without).all(), "with a scale a block no other row is touched"
    one, block = hit.shares()
    assert one > 0.2 > 0.01 > block
    memory = experiments.remembered(gradient, 1e4, outlier=5, length=4, steps=14)
    low = [step for step in range(1, 14) if memory.scale[step] < 0.5 * max(memory.scale)]
    assert low == [6, 7, 8, 9] and memory.lost[0] == 1.0
    assert memory.saturated[5] > 0 and memory.lost[6] > 0.2 > memory.lost[5]
    drawn(pictures.poison(hit, memory, tmp_path), "poison")


def test_half_precision_flushes_and_overflows():
    x = np.array([[1.0, 1e-9]], dtype=np.float32)
    found = {k: (lost, over) for k, lost, over in experiments.flushed(x, range(0, 20, 4))}
    assert found[0] == (0.5, False) and found[12] == (0.0, False) and found[16] == (0.0, True)


def test_alarms_are_scored_as_the_head_of_the_module_says():
    class At:
        """Rings in one step of every run."""

        def __init__(self, step):
            self.left = step

        def see(self, *rows):
            self.left -= 1
            return self.left < 0

    first = experiments.alarms(lambda: At(0))
    never = experiments.alarms(lambda: At(10**6))
    assert first.recall == 0 and first.precision == 0 and never.recall == 0
    assert sum(never.missed.values()) == 20 and not never.lead
    falling = experiments.alarms(Falling)
    assert 0 < falling.recall < 1 and 0 < falling.precision < 1


def test_a_run_of_each_fault_is_drawn_with_what_rang(tmp_path):
    runs = experiments.watched({"the folklore": Falling})
    assert [run.fault for run in runs] == ["rate", "outlier", "growth", "epsilon"]
    for run in runs:
        falls = (run.scale_ST[1:] < run.scale_ST[:-1] / 4).any(1)
        assert run.rings["the folklore"] == (1 + int(falls.argmax()) if falls.any() else None)
    picture = drawn(pictures.watched(runs, tmp_path), "watched")
    assert all(f"{run.fault} from step {run.at}" in picture.alt for run in runs)


def runs_of(gaps):
    steps = range(10, 130, 10)
    base = {step: 5.0 - 0.01 * step for step in steps}
    return {
        arm: pairs.Run(arm, heldout={step: loss * (1 + gap / 100) for step, loss in base.items()})
        for arm, gap in gaps.items()
    }


def test_the_paired_gap_is_lab_compares(tmp_path):
    runs = runs_of({"plain": 0.0, "twin": 0.01, "week16": 0.1, "broken": 3.0})
    assert pairs.compare(runs)["word"] == "pass"
    several = {"plain": (0.0, 0.01, 0.02), "week16": (0.1, 0.11), "broken": (3.0,)}
    several = {name: [runs_of({"plain": 0.0, name: gap})[name] for gap in gaps] for name, gaps in several.items()}
    held = {name: [run.heldout for run in some] for name, some in several.items()}
    found = pairs.verdicts(held, "plain", "broken")
    assert found["week16"].word == "same" and 0.09 < found["week16"].gap < 0.11 and found["broken"].word == "different"
    picture = drawn(pictures.paired_gap(several, found, tmp_path), "gap")
    assert "broken FP8" in picture.alt and found["week16"].word in picture.alt
    assert pairs.compare(runs_of({"plain": 0.0, "twin": 0.01, "week16": 0.1, "broken": 0.1}))["word"] == "no-power"
    assert pairs.compare(runs_of({"plain": 0.0, "twin": 0.01, "week16": 2.0, "broken": 3.0}))["word"] == "fail"


def test_trainings_are_paired():
    """Same weights and rows: two baselines are one; a twin differs by a rounding, and FP8 trains near it."""
    size = pairs.TINY._replace(steps=4, every=2, batch=4)
    runs = {name: pairs.train(name, size) for name in ("plain", "twin", "week16", "te-current")}
    assert pairs.train("plain", size).heldout == runs["plain"].heldout and list(runs["plain"].heldout) == [2, 4]
    assert runs["te-current"].why_not and "te-current" not in pairs.compare(runs)["arms"]
    base, twin, fp8 = (runs[name].losses[0] for name in ("plain", "twin", "week16"))
    assert 0 < abs(twin - base) < 0.01 * base and 0 < abs(fp8 - base) < 0.01 * base
    tensor, dB = pairs.worst(runs["week16"], "grad")
    assert tensor.endswith(".grad") and 20 < dB < 30  # E5M2 on its plateau: 25 dB
    heldout, training = pairs.text(True), pairs.text(False)
    assert not set(heldout[:1000].tolist()) - set(range(256)) and len(heldout) < len(training)


def test_several_runs_say_how_long_the_rest_takes_and_end_in_time(capsys):
    size = pairs.TINY._replace(steps=2, every=1, batch=2)
    runs = pairs.train_several({"plain": 4, "broken": 1}, size, seconds=0.0)
    assert [len(some) for some in runs.values()] == [2, 1], "two of an arm are needed, and no third was begun"
    assert runs["plain"][0].heldout != runs["plain"][1].heldout, "each run has weights of its own"
    said = capsys.readouterr().out
    assert re.search("run 3 of 5.* s left", said) and said.count("is left out, 0 s are over") == 2
    assert [len(some) for some in pairs.train_several({"plain": 3}, size).values()] == [3]


def test_milliseconds_from_a_record(tmp_path):
    classes = {"GEMM bf16": 2.0, "quantize/cast": 1.0}
    row = {"arm": "plain", "label": "plain", "shape": [64, 32, 32], "seconds": 3e-3}
    row["kernels"] = {"span_ms": 3.0, "classes_ms": classes, "steps": 1, "top": []}
    rows = [row, {**row, "arm": "week16", "label": "own", "seconds": 6e-3}, {"arm": "te", "why_not": "no"}]
    record = {"kind": "fp8", "device": "cuda", "ranks": 1, "linear": rows}
    (tmp_path / "x.json").write_text(json.dumps(record))
    assert records.recorded("cuda", tmp_path)["ranks"] == 1 and records.recorded("cpu", tmp_path) is None
    assert records.times_as_long(record, "week16") == pytest.approx(2.0)
    assert records.times_as_long(record, "te") is None
    drawn(pictures.milliseconds(record, folder=tmp_path), "milliseconds")
    assert pictures.milliseconds(None) is None
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(LabError, match="no benchmark record of week 16"):
        records.recorded("cuda", tmp_path)
