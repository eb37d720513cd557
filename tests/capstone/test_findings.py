"""What results/README.md says in words, held against the records from which its numbers come."""

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


def test_the_run_on_a_gpu_is_whole_and_was_paused_and_killed():
    steps = [line["step"] for line in findings.long().steps]
    assert steps == list(range(1, findings.long().config["steps"] + 1)) and findings.long().status == "finished"
    kinds = [event["kind"] for event in findings.long().events]
    assert kinds.count("paused") == 1 and kinds.count("resume") == 3, "gone on with, killed, and ended at its end"
    assert findings.events("resume")[2]["step"] == steps[-1] + 1, "which had nothing left to do"


def test_fp8_lies_no_farther_from_bf16_than_a_second_run_does():
    assert findings.first()["steps"] == len(findings.first()["losses"]) and findings.long().config["steps"] == 3450
    for step in range(200, 601, 100):
        assert abs(findings.against_bf16(step)) < max(map(abs, findings.apart("fp8")))
    assert max(map(abs, findings.apart("fp8"))) < max(map(abs, findings.apart("bf16")))
    assert abs(findings.fitted(2600) / findings.long_heldout(2600) - 1) < 0.005, "until there the power law holds"
