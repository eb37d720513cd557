"""Labkit divides a profiler's trace among classes of kernels (labkit/record/kernels.py), which is near to what task
14.5 asks for. A submission that imports it has no points."""

import shutil
from pathlib import Path

import torch

from labkit.checks import load_week, run_checks
from labkit.checks.runner import LocalRunner
from labkit.checks.verdict import PASSED
from week14_fsdp.given.whole_batch import draw
from week14_fsdp.test_fsdp import shapes_of
from week14_fsdp.test_zero import large_weights

ROOT = Path(__file__).resolve().parents[2]
BORROWED = """
def exposed(trace):
    from labkit.record.kernels import Kernel, breakdown

    found = breakdown(
        Kernel(e["name"], e["ts"], e["ts"] + e["dur"])
        for e in trace["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") == "kernel"
    )
    alone, hidden = found.classes_ms["communication"] * 1e3, found.hidden_communication_ms * 1e3
    work = sum(found.classes_ms.values()) * 1e3 - alone - found.classes_ms["idle"] * 1e3
    return Exposed(work, alone + hidden, alone, hidden / (alone + hidden) if alone + hidden else 1.0)
"""


def test_a_borrowed_answer_scores_nothing(tmp_path):
    week = load_week(ROOT / "week14_fsdp")
    shutil.copytree(ROOT / "week14_fsdp", tmp_path / "week14_fsdp", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "week14_fsdp" / "overlap.py"
    text = path.read_text()
    path.write_text(text[: text.index("def exposed(")] + BORROWED.strip() + "\n")
    with LocalRunner(tmp_path, reference=ROOT) as runner:
        outcome = run_checks(["14.5"], weeks=[week], runner=runner, seed=3, deadline=60.0)
    assert outcome.earned == 0
    for case in outcome.cases:
        assert case.verdict != PASSED and "labkit.record" in case.text, case.text


def test_all_bits_of_a_seed_count():
    """torch's generator takes 32, and a rank found them out from its weights: then it knew all ranks' batches."""
    for drawn in (draw, large_weights, lambda seed: shapes_of(seed, 2)[::2]):
        (*_, generator), (*_, other) = drawn(7), drawn(7 + (1 << 32))
        assert not torch.equal(generator.normal(9), other.normal(9))
