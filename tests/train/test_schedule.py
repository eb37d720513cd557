"""BF16 at both ends, FP8 between: one run, switched at the right steps, resumed in the right phase, reported honestly.

How Transformer Engine switches: tests/precision/test_te.py.
"""

import re

import pytest
import torch

from labkit.errors import LabError
from labkit.parallel.transforms import compile_model
from labkit.precision.phases import PrecisionSchedule
from labkit.precision.registry import get_backend
from labkit.record.run import read_run
from labkit.train.config import TrainConfig
from labkit.train.loop import Hook
from tests.precision.precision_jobs import convert
from tests.train import training_jobs as jobs
from tests.train.training_jobs import small_config

LINEARS = 14


def config(backend="emulated", first=2, last=2, **changes):
    precision = {"backend": backend, **changes.pop("precision", {})}
    if first or last:
        precision["schedule"] = {"bf16_first": first, "bf16_last": last}
    return small_config(**{**dict(steps=7, eval_every=1, eval_batches=1, precision=precision), **changes})


def here(config, run_dir=None, hooks=()):
    return jobs.here(config, run_dir, hooks, job=jobs.run_converted)[0]


def switches(run_dir):
    return [(e["step"], e["message"]) for e in read_run(run_dir).events if e["kind"] == "precision switch"]


FIRST = (3, "the linears now compute in FP8, until here in BF16")
SECOND = (6, "the linears now compute in BF16, until here in FP8")


# ---- the setting


@pytest.mark.parametrize(
    "first, last, phases", [(2, 2, "bbfffbb"), (0.3, 0.15, "bbffffb"), (0.01, 0, "bffffff"), (0, 0, "fffffff")]
)
def test_the_phase_of_each_step(first, last, phases):
    given = config(first=first, last=last)
    schedule = PrecisionSchedule(given.precision.schedule, given.steps, get_backend("emulated"))
    assert "".join(schedule.phase(step)[0] for step in range(1, 8)) == phases


@pytest.mark.parametrize(
    "schedule, said",
    [
        ({"bf16_first": 4, "bf16_last": 3}, "leaves no step in FP8 (4 + 3 of 7 are BF16)"),
        ({}, "has no step in BF16: give bf16_first or bf16_last"),
        ({"bf16_first": 1.0}, "in [precision.schedule], bf16_first must be less than 1.0, not 1.0"),
        ({"bf16_first": "a tenth"}, "bf16_first must be a whole number, not 'a tenth'"),
    ],
)
def test_a_wrong_schedule_is_one_sentence(schedule, said):
    with pytest.raises(LabError, match=f"^.*{re.escape(said)}.*$"):
        TrainConfig(steps=7, precision={"backend": "emulated", "schedule": schedule})


# ---- the run


class Watch(Hook):
    """What the first linear computed in, at each forward: (step, training, plain)."""

    def __init__(self):
        self.seen = []

    def on_start(self, loop):
        linear = next(iter(loop.backend.modules.values()))
        linear.register_forward_hook(
            lambda module, args, y: self.seen.append((loop.step, module.training, getattr(module, "plain", False)))
        )


@pytest.mark.parametrize("backend", ["emulated", "torchao"])
def test_the_bf16_steps_are_those_of_a_plain_model(backend, tmp_path):
    plain, watch = here(config("fp32", 0, 0)), Watch()
    fp8, got = here(config(backend, 0, 0)), here(config(backend), tmp_path, (watch,))
    for step in (1, 2):
        assert got["losses"][step] == plain["losses"][step] and got["heldout"][step] == plain["heldout"][step]
        assert fp8["losses"][step] != plain["losses"][step]
    assert got["losses"][3] != plain["losses"][3] and got["heldout"][3] != plain["heldout"][3]
    # Training and evaluation alike, the phase's precision; and the steps at the end again.
    assert {(step, plain) for step, _, plain in watch.seen} == {(s, s in (1, 2, 6, 7)) for s in range(1, 8)}
    assert {training for _, training, _ in watch.seen} == {True, False}


def test_events_lines_and_the_share_of_steps_in_fp8(tmp_path):
    assert here(config(), tmp_path)["fp8_steps"] == 3
    assert switches(tmp_path) == [FIRST, SECOND]
    assert [line["precision"] for line in read_run(tmp_path).steps] == ["bf16"] * 2 + ["fp8"] * 3 + ["bf16"] * 2
    assert here(config(first=0, last=0))["fp8_steps"] == 7 and here(config("fp32", 0, 0))["fp8_steps"] == 0
    assert "precision" not in read_run(tmp_path).run and switches(tmp_path)[0][0] == 3


def test_a_probe_of_a_bf16_step_reports_no_fp8(tmp_path):
    here(config(probe_every=1), tmp_path)
    kinds = [{name.rpartition(".")[2] for name in line["scales"]} for line in read_run(tmp_path).steps]
    every = {"input", "weight", "grad", "output"}
    assert kinds == [{"output"}] * 2 + [every] * 3 + [{"output"}] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [1, 2, 3, 6])
def test_resuming_in_any_phase_goes_on_in_it(tmp_path, stop):
    straight = here(config())
    given = config(checkpoint_every=1)
    here(given, tmp_path, (jobs.StopAt(stop),))
    resumed = here(given, tmp_path)
    assert resumed["resumed_from"] == stop and resumed["losses"] == straight["losses"]
    assert resumed["heldout"] == straight["heldout"] and resumed["fp8_steps"] == 3
    assert switches(tmp_path) == [FIRST, SECOND]  # each once: a resume is no switch


@pytest.mark.parametrize("first, last, at", [(2, 2, 3), (0, 0, 1)])
def test_calibrating_looks_where_fp8_begins_and_updates_nothing(first, last, at, tmp_path):
    watch = Watch()
    straight = here(config(first=first, last=last))
    got = here(config(first=first, last=last, precision={"calibrate": 2}), tmp_path, (watch,))
    forwards = [step for step, training, _ in watch.seen if training]
    assert forwards == sorted([*range(1, 8), at, at])
    # The emulated backend remembers nothing, so equal losses mean that no weight and no gradient was left changed.
    assert got["losses"] == straight["losses"] and got["heldout"] == straight["heldout"]
    assert [(e["step"], e["message"]) for e in read_run(tmp_path).events if e["kind"] == "calibrated"] == [
        (at, f"2 passes over the batch of step {at} set the first scales")
    ]


def test_a_resume_within_fp8_does_not_calibrate_again(tmp_path):
    given, watch = config(checkpoint_every=1, precision={"calibrate": 2}), Watch()
    here(given, tmp_path, (jobs.StopAt(3),))
    here(given, tmp_path, (watch,))
    assert [step for step, training, _ in watch.seen if training] == [4, 5, 6, 7]
    assert [e["step"] for e in read_run(tmp_path).events if e["kind"] == "calibrated"] == [3]


# ---- under the transforms


@pytest.mark.thorough
def test_two_ranks_under_fsdp2_with_activation_checkpointing(two, tmp_path):
    given = config(activation_checkpointing="block", checkpoint_every=4, eval_every=7)
    plain = two.run(jobs.run_prepared, config("bf16", 0, 0, eval_every=7), timeout=120.0)[0]
    straight = two.run(jobs.run_prepared, given, timeout=120.0)[0]
    assert [straight["losses"][s] == plain["losses"][s] for s in (1, 2, 3)] == [True, True, False]
    two.run(jobs.run_prepared, given, tmp_path, (jobs.StopAt(4),), timeout=120.0)
    for rank in two.run(jobs.run_prepared, given, tmp_path, timeout=120.0):
        assert rank["losses"] == straight["losses"] and rank["fp8_steps"] == 3
    assert switches(tmp_path) == [FIRST, SECOND]


def test_each_switch_compiles_one_more_graph(monkeypatch):
    """Counted on the CPU, without generating code: `plain` is a constant of a block's graph."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, backend = CompileCounter(), get_backend("torchao")
    model = jobs.plain_model(small_config(model=dict(n_layers=2)))
    convert(backend, model, "tensorwise", ["head"])
    compile_model(model, backend, counter)
    tokens = torch.randint(0, 97, (2, 17))
    counts = []
    for phase in ("bf16", "bf16", "fp8", "fp8", "bf16"):
        backend.switch(phase)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        counts.append(counter.frame_count)
    assert counts[1] == counts[0] and counts[3] == counts[2] and counts[4] == counts[3]
    assert counts[2] == counts[0] + 1  # both blocks share it; norm and loss have no second form
    torch._dynamo.reset()
