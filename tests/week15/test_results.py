"""What the notebook's model answer and the page in results/ say of the committed record."""

import json

import pytest

import week15_tp_attention
from tests.notebooks import Notebook
from week15_tp_attention import bench
from week15_tp_attention.given import findings, records
from week15_tp_attention.given.findings import hidden, ms, on_the_wire, percent, spent, wire

RECORD = records.recorded()
PUBLISHED = 354e9  # bytes/s: week 13's all-reduce of 1 GiB on four GPUs, which the prediction divides by


def answers():
    """The numbers in the model answer of 15.7b."""
    one = ms("block", "plain", 1)
    message = 1e3 * bench.SHAPES["full"].ring_bytes("block", 2) / PUBLISHED
    yield f"{one:.2f} ms for the block ({bench.SHAPES['full'].flops('block') / one / 1e9:.0f} TFLOP/s)"
    yield f"{one / 2:.2f} + {message:.2f} = {one / 2 + message:.2f} ms, {50 * one / (one / 2 + message):.1f} %"
    yield f"plain: {ms('block', 'plain'):.2f} ms, {percent('block', 'plain'):.1f} %"
    yield f"gap of {ms('block', 'plain') - one / 2 - message:.2f} ms"
    yield f"messages take {spent('block', 'plain', 'communication'):.2f} ms, not {message:.2f}"
    yield f"goes at {wire():.0f} GB/s here"
    kind = "norm and elementwise"
    yield f"{spent('block', 'plain', kind) - spent('block', 'plain', kind, 1) / 2:.2f} ms more than half"
    yield f"{hidden('block', 'overlapped'):.2f} ms are hidden"
    yield f"then run {on_the_wire('block', 'overlapped'):.2f} ms"
    yield f"{spent('block', 'overlapped', 'communication'):.2f} ms stay exposed"


@pytest.mark.parametrize("words", list(answers()))
def test_every_number_in_the_model_answer(words):
    assert Notebook(week15_tp_attention).says("task-15-7", words)


def test_the_rate_that_prediction_7_is_given():
    cells = json.loads((records.RESULTS.parent / "lab.ipynb").read_text(encoding="utf-8"))["cells"]
    for id in ("w15-30", "w15-15-7"):
        text = " ".join("".join(next(cell for cell in cells if cell["id"] == id)["source"]).split())
        assert f"{findings.rate('block'):.0f} TFLOP/s" in text and f"{PUBLISHED / 1e9:.0f} GB/s" in text


def test_everybody_computed_the_layer():
    """BF16 keeps 8 bits and a block is some ten roundings deep; FP8 keeps 3."""
    assert RECORD["failures"] == [] and RECORD["environment"]["NCCL_NVLS_ENABLE"] == "0"
    for row in RECORD["rows"]:
        assert row["error"] < (0.15 if "FP8" in row["contender"] else 0.01), row["contender"]


def test_the_words_beside_the_numbers():
    best = max(percent("block", row["contender"]) for row in block_rows())
    assert percent("block", "te.Linear") == best  # of the libraries, too
    assert abs(percent("attention", "te.Linear") - percent("attention", "overlapped")) < 0.5  # "level"
    assert spent("block", "overlapped", "communication") > 0.9 * spent("block", "plain", "communication")
    assert spent("block", "overlapped", "norm and elementwise") < spent("block", "plain", "norm and elementwise")
    kept = {r["contender"]: r["kept_bytes"] for r in block_rows()}
    assert kept["sequence, gathered again"] < kept["sequence, kept"] < kept["plain"]
    for row in RECORD["pipeline"]:
        assert row["measured"] < row["derived"]  # "below the derived one"
    for M in (4, 8):
        peak = {r["schedule"]: r["peak_bytes"][0] for r in RECORD["pipeline"] if r["M"] == M}
        assert peak["one_f_one_b"] < peak["gpipe"]


def block_rows():
    return [r for r in RECORD["rows"] if r["what"] == "block" and r["N"] == 2 and "FP8" not in r["contender"]]
