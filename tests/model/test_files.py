"""A model of one's own, read from a file: shapes that are known, and what is refused, each in one sentence."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabError
from labkit.model.config import sizes
from labkit.model.shape_file import load_decoder, load_model, name_of
from labkit.plan.footprint import held_parameters
from labkit.plan.request import Request, find_cluster
from labkit.plan.search import enumerate_plans

# Llama-3-8B's config.json, as published (meta-llama/Meta-Llama-3-8B), without the keys that say nothing of the shape.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
LLAMA |= {"vocab_size": 128256}
LLAMA |= {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA |= {"num_key_value_heads": 8, "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-05}
LLAMA |= {"max_position_embeddings": 8192, "rope_scaling": None, "rope_theta": 500000.0}
QWEN2 = {**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
TOML = "layers = 16\nhidden = 2048\nheads = 16\nkv_heads = 8\nffn = 8192\nvocab = 32768\n"


@pytest.fixture
def file(tmp_path):
    """Writes a config.json of these values, or a TOML file of this text, and gives its path."""

    def write(values, name="config.json"):
        path = tmp_path / name
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        return path

    return write


def test_llama_3_8b_is_the_named_8b(file):
    decoder = load_decoder(file(LLAMA))
    assert decoder == sizes()["8b"]
    model = load_model(file(LLAMA))
    assert model.seq == 8192 and model.parameters == 8_029_995_008  # arXiv:2407.21783; without the norms


def test_a_byte_order_mark_is_no_part_of_a_file(file):
    """As editors on Windows put it in front."""
    for values, name in ((json.dumps(LLAMA), "config.json"), (TOML, "mine.toml")):
        assert load_model(file("\ufeff" + values, name)) == load_model(file(values, name))


def test_what_the_file_leaves_out_is_what_transformers_takes(file):
    bare = {key: LLAMA[key] for key in LLAMA if key not in ("num_key_value_heads", "rms_norm_eps", "rope_theta")}
    decoder = load_decoder(file({**bare, "tie_word_embeddings": True}))
    assert (decoder.n_kv_heads, decoder.norm_eps, decoder.rope_theta) == (32, 1e-6, 10_000.0) and decoder.tie_embeddings
    newer = {**bare, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}  # transformers 5
    assert load_decoder(file(newer)).rope_theta == 1e6


def test_a_toml_file_says_the_same(file):
    decoder = load_decoder(file(TOML + "seq = 8192\nrope_theta = 500000.0\n", "mine.toml"))
    assert decoder == sizes()["1b"]
    assert load_decoder(file(TOML + "tied = true\n", "mine.toml")).tie_embeddings


def test_experts_are_the_planners_alone(file):
    model = load_model(file(MIXTRAL))
    assert (model.experts, model.topk) == (8, 2) and model.parameters > 40e9
    with pytest.raises(LabError, match="8 experts a layer"):
        load_decoder(file(MIXTRAL))
    assert load_model(file(TOML + "gated = false\n", "mine.toml")).gated is False
    with pytest.raises(LabError, match="gated is false"):
        load_decoder(file(TOML + "gated = false\n", "mine.toml"))


@pytest.mark.parametrize(
    "values, words",
    [
        (QWEN2, "biases in q, k and v"),
        ({**LLAMA, "model_type": "qwen3"}, "norms q and k"),
        ({**LLAMA, "attention_bias": True}, "attention_bias is true"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias is true"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling 'llama3'"),
        ({**LLAMA, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5}}, "rope_parameters 'yarn'"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling 'linear'"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_the_decoder_cannot_be_is_refused_and_can_be_planned(file, values, words):
    """The planner has no positions and no biases: its answer is the same with and without them."""
    with pytest.raises(LabError, match=f"^.*{re.escape(words)}.*$"):
        load_decoder(file(values))
    assert load_model(file(values)) == load_model(file(LLAMA))


@pytest.mark.parametrize(
    "values, words",
    [
        ({**LLAMA, "model_type": "gemma2"}, "'gemma2' is another architecture"),
        ({key: value for key, value in LLAMA.items() if key != "model_type"}, "model_type None"),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, "sliding_window of 4096"),
        ({**QWEN2, "use_sliding_window": True}, "sliding_window of 4096"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, "architectures is"),  # a draft head, of one layer
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "architectures is"),
        ({**LLAMA, "architectures": "LlamaForCausalLM"}, "architectures is"),
        ({**MIXTRAL, "architectures": ["OranginaForCausalLM"]}, "architectures is"),  # of one's own code
        ({**MIXTRAL, "num_local_experts": None, "num_experts": 128}, "num_local_experts is missing"),
        ({**LLAMA, "head_dim": "128"}, "head_dim"),
        ({**LLAMA, "hidden_act": "gelu"}, "'gelu'"),
        ({**LLAMA, "hidden_size": None, "vocab_size": None}, "hidden_size, vocab_size are missing"),
        ({**LLAMA, "num_hidden_layers": "32"}, "whole number"),
        ({**LLAMA, "num_attention_heads": 48}, "multiple of heads"),
        ([], "holds no table"),
        ("{", "not valid JSON"),
    ],
)
def test_what_nobody_can_read_is_refused_in_one_sentence(file, values, words):
    for load in (load_model, load_decoder):
        with pytest.raises(LabError, match=f"^.*config.json.*{re.escape(words)}.*$"):
            load(file(values))


@given(st.integers(1, 20_000), st.one_of(st.none(), st.integers(128, 8192)))
def test_a_window_that_sees_the_whole_sequence_is_none(tmp_path_factory, window, seq):
    path = tmp_path_factory.mktemp("window") / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "mistral", "sliding_window": window}))
    if window >= (seq or 8192):
        assert load_decoder(path, seq) == sizes()["8b"]
    else:
        with pytest.raises(LabError, match=f"sliding_window of {window}"):
            load_model(path, seq)
    path.write_text(json.dumps({**LLAMA, "sliding_window": window, "layer_types": ["full_attention"] * 32}))
    assert load_decoder(path, seq) == sizes()["8b"]


# As published (Qwen/Qwen3-4B, mistralai/Mistral-Nemo-Base-2407, meta-llama/Llama-3.2-3B), the keys of the shape.
SHARED = {"attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-06, "num_key_value_heads": 8}
QWEN3_4B = {**SHARED, "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
QWEN3_4B |= {"num_attention_heads": 32, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}
QWEN3_4B |= {"max_position_embeddings": 40960, "use_sliding_window": False, "sliding_window": None}
NEMO = {**SHARED, "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336, "num_hidden_layers": 40}
NEMO |= {"num_attention_heads": 32, "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 131072}
LLAMA_3B = {**SHARED, "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
LLAMA_3B |= {"num_attention_heads": 24, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072}
ROPE = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
LLAMA_3B |= {"tie_word_embeddings": True, "rope_theta": 500000.0, "rope_scaling": {**ROPE, "rope_type": "llama3"}}
# Silent on tied embeddings: transformers' configuration_smollm3.py has them tied.
SMOLLM3 = {**SHARED, "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
SMOLLM3 |= {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 65536}


@pytest.mark.parametrize(
    "values, parameters",
    [(QWEN3_4B, 4_022_272_000), (NEMO, 12_247_367_680), (LLAMA_3B, 3_212_574_720), (SMOLLM3, 3_074_949_120)],
)
def test_published_models_are_planned(file, values, parameters):
    """As many parameters as are published, but for the norms."""
    assert load_model(file(values)).parameters == parameters
    column = enumerate_plans(load_model(file(values), 4096), find_cluster(Request(gpus=8)), 64, ("bf16",))
    assert set(held_parameters(column)[(column.tp == 1) & (column.pp == 1)]) == {parameters}


def test_llama_3b_is_trained_as_it_comes(file):
    decoder = load_decoder(file(LLAMA_3B))
    assert decoder.tie_embeddings and decoder.rope_scaling == (32.0, 1.0, 4.0, 8192.0)
    newer = {key: value for key, value in LLAMA_3B.items() if key not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = {**LLAMA_3B["rope_scaling"], "rope_theta": 500000.0}  # transformers 5
    assert load_decoder(file(newer)) == decoder
    with pytest.raises(LabError, match="norms q and k"):
        load_decoder(file(QWEN3_4B))
    with pytest.raises(LabError, match="head_dim is 128"):
        load_decoder(file(NEMO))


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    for name, words in (("nowhere.json", "there is no config file"), ("a.yaml", "config.json")):
        with pytest.raises(LabError, match=words):
            load_model(tmp_path / name)


def test_its_name_is_the_files_or_the_folders(tmp_path):
    assert name_of(tmp_path / "mine.toml") == "mine" and name_of(tmp_path / "Llama-3.1" / "config.json") == "Llama-3.1"
