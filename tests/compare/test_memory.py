"""The memory that is reported before a run, held against the memory that recorded runs took."""

from pathlib import Path

import pytest
import torch

from labkit.compare import memory
from labkit.compare.preset import load_preset
from labkit.model.config import ModelConfig, sizes
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
    assert shown["peak"] > shown["peak"] - shown["gradients"] + shown["activations"] + shown["logits"]
    long = TrainConfig(model="8b", seq_len=8192, batch_size=2)
    one, two = memory.predict(long, 1), memory.predict(long.replace(accumulation=2), 1)
    assert one["peak"] == sum(v for k, v in one.items() if k != "peak") - one["gradients"]
    assert two["peak"] == sum(v for k, v in two.items() if k != "peak")
    assert memory.held(long, 2) == one["weights"] / 2 + one["gradients"] / 2 + one["optimizer"] / 2


@pytest.mark.parametrize("name", sorted(sizes()))
def test_parameters_are_the_models(name):
    with torch.device("meta"):
        model = Transformer(sizes()[name])
    block, outside = memory.parameters(sizes()[name])
    assert block == sum(p.numel() for p in model.layers["0"].parameters())
    assert outside + len(model.layers) * block == sum(p.numel() for p in model.parameters())


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


def test_8b_on_8_is_llama_3_8b_under_fsdp_and_fits():
    """The shapes, the batch for each size of GPU, and that the prediction leaves room on both."""
    preset = load_preset("8b")
    assert preset.world_size == 8 and preset.device == "cuda"
    for gib, rows in ((79.2, 1), (140.4, 2)):  # what torch reports of an H100 and of an H200
        config = preset.speed_config("bf16", gib, 8)
        assert config.model == "8b" and config.seq_len == 8192 and config.batch_size == 8 * rows and config.compile
        assert config.data.vocab_size < sizes()["8b"].vocab_size == 128256
        peak = memory.predict(config, 8)["peak"] / memory.GIB
        assert 0.6 * gib < peak < 0.8 * gib
        assert memory.predict(config.replace(batch_size=8 * (rows + 1)), 8)["peak"] / memory.GIB > 0.9 * gib
    te = preset.speed_config("te-delayed", 140.4, 8).precision
    assert (te.backend, te.recipe, te.fused) == ("te", "delayed", True)
