"""What the notebook's model answer says of the record of two H200, and what the record must show."""

import re
from pathlib import Path

import pytest

import week14_fsdp
from tests.notebooks import Notebook
from week14_fsdp import memory
from week14_fsdp.given import records

H200 = records.recorded()


def answers():
    """The numbers in the model answer of 14.6."""
    sizes, tokens = memory.Sizes(*records.sizes_of(H200)), records.tokens_of(H200)
    own = memory.memory(sizes, "zero3", 2, tokens, 2)
    yield f"{own.total / 1e9:.1f} GB, of which {own.activations / 1e9:.1f} are activations"
    yield f"{own.logits / 1e9:.1f} logits"
    yield f"{memory.parameters(sizes) * 4 / 1e9:.1f} GB, at 320 GB/s {memory.parameters(sizes) * 4 / 320e6:.0f} ms"
    alone, weak, strong = (row["tokens_per_s"] for row in records.of(H200, "scaling", "fsdp2"))
    yield f"{alone:,.0f} tokens/s on one GPU alone, {weak:,.0f} on"
    yield f"{weak / alone:.1%}".replace("%", " %") + " (weak)"
    yield f"{strong:,.0f}: {strong / alone:.1%}".replace("%", " %") + " (strong)"
    mine = [row["tokens_per_s"] for row in records.of(H200, "scaling", "fsdp")]
    yield f"The reference of 14.4: {mine[1] / mine[0]:.1%} and {mine[2] / mine[0]:.1%}".replace("%", " %")
    first = records.of(H200, "traces", "fsdp2")["by_rank"][0]
    share = f"{first['exposed'] / first['step']:.1%}".replace("%", " %")
    yield f"{first['exposed'] / 1e3:.1f} ms in a step of {first['step'] / 1e3:.1f}, {share}"
    yield f"take {records.prefetched(H200, 'traces', 'fsdp2').split('take ')[1].split(' longer')[0]} longer"
    longer = records.hidden_cost(H200).split("without: ")[1].split("% longer")[0]
    exposed = records.of(H200, "traces", "ddp")["by_rank"][0]["exposed"] / 1e3
    yield f"{longer} % longer with messages than without, though {exposed:.1f} ms"
    yield f"What half the tokens do not halve, {100 * (weak - strong) / alone:.1f} %"
    steps = [row["tokens"] / row["tokens_per_s"] * 1e3 for row in records.of(H200, "scaling", "fsdp2")]
    yield f"the fixed {2 * steps[2] - steps[1]:.0f} ms"


@pytest.mark.parametrize("words", list(answers()))
def test_every_number_in_the_model_answer(words):
    assert Notebook(week14_fsdp).says("task-14-6-scaling", words)


def test_what_was_promised_of_the_reference():
    """Beside torch's own, and 14.1's prediction beside the peaks."""
    assert records.rate(H200, "fsdp", "fsdp") >= 0.9 * records.rate(H200, "fsdp", "fsdp2")
    assert records.rate(H200, "ddp", "ddp") >= 0.95 * records.rate(H200, "ddp", "torch-ddp")
    for name in ("ddp", "zero1", "fsdp"):
        row = records.of(H200, "memory", name)
        now = memory.memory(memory.Sizes(*row["sizes"]), row["stage"], 2, records.tokens_of(H200), row["itemsize"])
        assert now.total == row["predicted_bytes"], "the formula has changed since"
        assert abs(row["off"]) < 0.05


def test_what_it_gives_of_week_13_is_what_was_fitted():
    folder = Path(week14_fsdp.__file__).parents[1]
    fitted = re.search(r"two ranks: (alpha .*? GB/s)", (folder / "week13_allreduce/results/FINDINGS.md").read_text())[1]
    assert fitted in (folder / "week14_fsdp/lab.ipynb").read_text()
