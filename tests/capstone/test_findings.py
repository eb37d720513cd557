"""What results/README.md says in words, held against the records from which its numbers come."""

from __future__ import annotations

import pytest

from capstone.given import findings
from capstone.given.findings import BESIDE, RUN, quiet, read


def test_the_run_was_paused_and_lost_no_step():
    steps = [line["step"] for line in read(RUN).steps]
    assert steps == list(range(1, read(RUN).config["steps"] + 1)) and 0 < findings.resumed() < steps[-1]
    assert [event["kind"] for event in read(RUN).events].count("resume") == 1 and read(RUN).status == "finished"


@pytest.mark.parametrize("run", ["torch", "fp32", "bf16"])
def test_what_ran_beside_it_differs_in_what_its_name_says(run):
    names = {"model", "steps", "seq_len", "batch_size", "lr", "warmup_steps", "seed", "data", "parallel"}
    assert {key: read(run).config[key] for key in names} == {key: read(RUN).config[key] for key in names}
    assert read(run).run["corpus"]["hash"] == read(RUN).run["corpus"]["hash"]
    assert len(read(run).steps) >= (BESIDE if run != "bf16" else 60)
    assert read(run).run["parts"] == ("torch" if run == "torch" else "mine")


def test_the_words_about_what_was_wrong():
    assert findings.promised_ns() / findings.measured_ns() > 8, "by far the largest"
    assert quiet("fp32") == pytest.approx(3 * findings.foreseen_without(), rel=0.1), "all else was right"
    assert findings.first_gap("torch") < 0.01 < findings.gap("torch") < findings.gap("fp32"), "so it is rounding"
    assert 1.8 < quiet() / quiet("bf16") < 2.2, "BF16 halves it"
    assert 0.4 < findings.step("first") / findings.foreseen("first") < 0.6, "the step took half of that"
    assert read(RUN).series("loss")[-1][1] < findings.heldout() < findings.predicted()["heldout"]
