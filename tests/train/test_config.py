"""Configs: what they accept, and that every mistake is one sentence with the place and the way out."""

import json
from pathlib import Path

import pydantic
import pytest

from labkit.errors import LabError
from labkit.model.config import ModelConfig, sizes
from labkit.precision.config import PrecisionConfig
from labkit.strict import load_toml, strict_validate
from labkit.train.config import TrainConfig
from labkit.train.data.sources import DataConfig

SHAPE = dict(vocab_size=512, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=128, max_seq_len=128)


def complaint(values: dict) -> str:
    with pytest.raises(LabError) as caught:
        strict_validate(TrainConfig, values, "run.toml")
    assert not isinstance(caught.value.__cause__, pydantic.ValidationError)  # the user sees no pydantic traceback
    return str(caught.value)


MISTAKES = {
    # name: (values, everything the sentence must contain)
    "unknown key, nearest named": ({"stpes": 3}, ["'stpes'", "did you mean 'steps'"]),
    "unknown key in a table, place named": ({"data": {"vocab_sise": 3}}, ["[data]", "'vocab_sise'", "'vocab_size'"]),
    "unknown model": ({"model": "tinny"}, ["'tinny'", "'tiny'"]),
    "missing keys of a model table": ({"model": {"d_model": 64}}, ["[model]", "'vocab_size', 'n_layers'", "missing"]),
    "wrong type": ({"steps": "8"}, ["steps must be a whole number", "'8'"]),
    "1 is not true": ({"compile": 1}, ["compile must be true or false"]),
    "not finite": ({"lr": float("nan")}, ["lr must be a finite number"]),
    "a value where a table belongs": ({"data": 3}, ["data must be a table"]),
    "wrong type in a list": ({"precision": {"skip": ["a", 3]}}, ["[precision]", "skip[1] must be a string", "3"]),
    "beta of 1": ({"betas": [0.9, 1.0]}, ["betas[1] must be less than 1"]),
    "fraction of 1": ({"data": {"heldout_fraction": 1.0}}, ["[data]", "heldout_fraction must be less than 1"]),
    "below range": ({"steps": 0}, ["steps must be at least 1", "0"]),
    "seed of too many bits": ({"seed": 2**63}, ["seed must be less than"]),
    "not one of": ({"activation_checkpointing": "blocks"}, ["'none' or 'block'", "'blocks'"]),
    "unknown source": ({"data": {"source": "/my/texts"}}, ["[data]", "'/my/texts'", "list of folders"]),
    "accumulation": ({"batch_size": 8, "accumulation": 3}, ["batch_size (8)", "multiple of accumulation (3)"]),
    "window longer than the model's": ({"seq_len": 512}, ["seq_len (512)", "max_seq_len (256)"]),
    "warm-up longer than the run": ({"steps": 5, "warmup_steps": 6}, ["warmup_steps (6)", "steps (5)"]),
    "vocabulary larger than the model's": ({"data": {"vocab_size": 5000}}, ["vocab_size (5000)", "(2048)"]),
    "vocabulary smaller than bytes": ({"data": {"vocab_size": 256}}, ["[data]", "vocab_size must be at least 257"]),
    "heads do not divide the width": ({"model": SHAPE | {"n_heads": 6, "n_kv_heads": 6}}, ["[model]", "n_heads (6)"]),
    "no such precision": ({"mixed_precision": "fp16"}, ["must be one of 'bf16', 'fp32', 'fp8'", "'fp16'"]),
    "two precisions": ({"mixed_precision": "fp8", "precision": {"backend": "te"}}, ["[precision] names one as well"]),
    "a precision that is no table": ({"mixed_precision": "fp8", "precision": 3}, ["precision must be a table"]),
    "odd head width": ({"model": SHAPE | {"d_model": 60}}, ["[model]", "must be even", "15"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str) -> None:
    values, parts = MISTAKES[name]
    sentence = complaint(values)
    assert sentence.startswith("run.toml: ")
    assert "\n" not in sentence, "one mistake, one line"
    assert all(part in sentence for part in parts)


def test_several_mistakes_are_a_line_each_unknown_keys_first() -> None:
    lines = complaint({"steps": "8", "model": {"d_modle": 64}, "stpes": 3}).splitlines()
    assert len(lines) == 4 and all(line.startswith("run.toml: ") for line in lines)
    assert all(part in line for part, line in zip(("d_modle", "stpes", "steps must be", "missing"), lines))


def test_any_pydantic_model_with_tables_of_tables() -> None:
    class Arm(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        label: str = ""

    class Preset(pydantic.BaseModel):
        arms: dict[str, Arm]

    with pytest.raises(LabError, match=r"^p: in \[arms.fp8\], 'labl' is not a known key; did you mean 'label'\?$"):
        strict_validate(Preset, {"arms": {"fp8": {"labl": "x"}}}, "p")
    with pytest.raises(LabError, match="expected a table, not 3"):
        strict_validate(Preset, 3)


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "124m"\nsteps = 7\nlr = 1\nbetas = [0.8, 0.9]\n[data]\nsource = ["a", "b"]\n[precision]\nskip = []\n'
    )
    config = load_toml(file, TrainConfig)
    assert (config.steps, config.lr, config.betas) == (7, 1.0, (0.8, 0.9))
    assert config.data.source == ["a", "b"] and config.precision.skip == []
    assert config.resolved_model == sizes()["124m"]


def test_bad_files(tmp_path: Path) -> None:
    for text, complaint in (
        (b"steps = = 3", "not valid TOML"),
        (b"\xff\xfe", "cannot read"),
        (b"stpes = 3", "run.toml: 'stpes' is not a known key"),
    ):
        (tmp_path / "run.toml").write_bytes(text)
        with pytest.raises(LabError, match=complaint):
            load_toml(tmp_path / "run.toml", TrainConfig)
    with pytest.raises(LabError, match="there is no config file .*nowhere.toml"):
        load_toml(tmp_path / "nowhere.toml", TrainConfig)
    with pytest.raises(LabError, match="cannot read the config file"):
        load_toml(tmp_path, TrainConfig)


def test_edges_that_are_allowed() -> None:
    TrainConfig(seq_len=256, steps=5, warmup_steps=5, batch_size=6, accumulation=6, min_lr_ratio=1.0, clip_norm=0.0)
    TrainConfig(data=DataConfig(vocab_size=2048), precision=PrecisionConfig(backend="fp32"))


def test_the_vocabulary_follows_the_model_unless_given() -> None:
    assert TrainConfig(model="1b").data.vocab_size == 32768
    assert TrainConfig(model="1b", data=DataConfig(vocab_size=1000)).data.vocab_size == 1000
    assert TrainConfig(model="1b", data={"source": ["x"]}).data == DataConfig(source=["x"], vocab_size=32768)
    assert TrainConfig(model="1b", data={"source": ["x"]}).replace(model="tiny").data.vocab_size == 2048
    assert DataConfig().vocab_size == 4096


def test_replace_checks_and_leaves_the_first_alone() -> None:
    config = TrainConfig(steps=9, model=SHAPE, seq_len=64)
    moved = config.replace(perturb=2**-9)
    assert (moved.perturb, moved.steps, config.perturb) == (2**-9, 9, 0.0)
    with pytest.raises(LabError, match="'perturbed' is not a known key; did you mean 'perturb'"):
        config.replace(perturbed=1.0)
    with pytest.raises(LabError, match="seq_len"):
        config.replace(seq_len=4096)


def test_a_config_comes_back_from_json() -> None:
    """A run record holds the config as JSON; resuming and `lab report` read it back."""
    config = TrainConfig(model=ModelConfig(**SHAPE), seq_len=128, betas=(0.8, 0.9), data={"source": ["a"]})
    again = strict_validate(TrainConfig, json.loads(json.dumps(config.model_dump(mode="json"))))
    assert again == config and again.model_dump() == config.model_dump()


def test_mixed_precision_is_short_for_a_table() -> None:
    fp8 = TrainConfig(mixed_precision="fp8")
    assert fp8 == TrainConfig(precision={"backend": "torchao", "recipe": "tensorwise"})
    assert fp8.precision.skip == ["head"]
    assert TrainConfig(mixed_precision="fp8", precision={"skip": []}).precision.skip == []
    assert TrainConfig(mixed_precision="fp32", precision=PrecisionConfig(skip=[])).precision.backend == "fp32"
    assert [TrainConfig(mixed_precision=word).precision.backend for word in ("bf16", "fp32")] == ["bf16", "fp32"]
