"""The memory that is reported before a run, held against the memory that recorded runs took."""

from pathlib import Path

import pytest

from labkit.compare import memory
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.record.read import read_run
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

RESULTS = Path(__file__).parents[2] / "week16_fp8" / "results"
RECORDED = [
    "22-h200-whole/speed",  # 1.14B, 20 sequences of 4096
    "22-h200-whole/arms",  # 124M, probed
    "26-h200-8b/two-bf16/speed",
    "22-h200-8b-4-gpus/speed",
    "22-h200-8b-levers/kept/speed",
    "22-h200-scaling-levers/as-it-is/speed",
    "22-h200-scaling-once/four/speed",  # four micro-batches, reduced once, weights kept
    "22-h200-scaling-once/lone0/speed",
]


@pytest.mark.parametrize("record", RECORDED)
def test_it_comes_within_1_percent_of_the_recorded_peaks(record):
    """1 %: what the module says. What is left out is small by nature: rotary tables, statistics, a sum or two."""
    run = read_run(RESULTS / f"2026-11-{record}" / "bf16").run
    results = run["results"]
    peak = results["speed"]["memory"]["peak"] if "speed" in results else max(results["peak_bytes"])
    shown = memory.predict(strict_validate(TrainConfig, run["config"], "the record"), run["world"]["size"])
    assert shown["peak"] == pytest.approx(peak, rel=0.01)


def test_gradients_count_where_they_are_more_than_what_went():
    """A short sequence: the step ends with weights, gradients and AdamW. Earlier micro-batches leave theirs."""
    short = TrainConfig(model="8b", seq_len=128, batch_size=2)
    shown = memory.predict(short, 1)
    assert shown["peak"] == shown["weights"] + shown["optimizer"] + shown["gradients"] + shown["gathered"]
    assert shown["gradients"] > shown["activations"] + shown["logits"]
    long = TrainConfig(model="8b", seq_len=8192, batch_size=2)
    one, two = memory.predict(long, 1), memory.predict(long.replace(accumulation=2), 1)
    assert one["peak"] == sum(v for k, v in one.items() if k != "peak") - one["gradients"]
    assert two["peak"] == sum(v for k, v in two.items() if k != "peak")
    assert memory.held(long, 2) == one["weights"] / 2 + one["gradients"] / 2 + one["optimizer"] / 2


def test_experts_and_checkpointing_by_hand():
    shape = dict(vocab_size=300, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=32)
    base = TrainConfig(model=ModelConfig(**shape), seq_len=32, batch_size=4, data={"vocab_size": 300})
    layer = 2 * (6 * 32 + 2 * 2 * 8 + 3 * 48)
    assert memory.predict(base, 2)["activations"] == 64 * 2 * layer
    again = memory.predict(base.replace(activation_checkpointing="block"), 2)
    assert again["activations"] == 64 * (2 * 2 * 32 + layer)
    for chunk, at_once in ((1000, 64), (16, 16)):
        logits = memory.predict(base.replace(loss_chunk=chunk), 2)["logits"]
        assert logits == 4 * 300 * at_once + (6 * 300 + 2 * 64) * 32
    assert memory.predict(base.replace(reduce_once=True), 2) == memory.predict(base, 2), "nothing waits"
    experts = memory.predict(base.replace(model=ModelConfig(**shape, experts=4, topk=2)), 2)
    assert experts["activations"] == 64 * 2 * (layer + 2 * 3 * 48)
    block, outside = memory.parameters(base.model)
    assert memory.predict(base, 2)["gathered"] == 2 * (outside + 2 * block)
    total = sum(p.numel() for p in Transformer(ModelConfig(**shape)).parameters())
    assert memory.predict(base, 3)["weights"] == 4 * -(-total // 3) and memory.held(base, 3) == 16 * -(-total // 3)
