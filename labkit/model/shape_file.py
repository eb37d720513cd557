"""A model of one's own, by its shape: a TOML file, or the config.json that Hugging Face keeps beside the weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, model_validator

from labkit.errors import LabError
from labkit.model.config import ModelConfig, check_experts
from labkit.strict import Config, Count, CountOrOff, load_toml, read_file, require, strict_validate


class Model(Config):
    """A decoder's shape, and the length of its sequences: the keys of the TOML file."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocab: Count
    seq: Annotated[int, Field(ge=128)] = 8192
    gated: bool = True
    tied: bool = False  # the head to the embedding's table
    experts: CountOrOff = 0  # of each layer; 0: one MLP
    topk: CountOrOff = 0  # experts that a token goes through
    head_dim: CountOrOff = 0  # 0: hidden / heads
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    rope_scaling: Annotated[tuple[float, ...], Field(strict=False)] = ()
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5

    @model_validator(mode="after")
    def _makes_sense(self) -> "Model":
        hidden, heads, kv = self.hidden, self.heads, self.kv_heads
        require(self.head_dim > 0 or hidden % heads == 0, f"hidden ({hidden}) must be a multiple of heads ({heads})")
        require(heads % kv == 0, f"heads ({heads}) must be a multiple of kv_heads ({kv})")
        check_experts(self.experts, self.topk)
        return self

    @property
    def parameters(self) -> int:
        """All of them, norms left out."""
        q = self.heads * (self.head_dim or self.hidden // self.heads)
        kv = q // self.heads * self.kv_heads
        mlp = self.hidden * self.ffn * (2 + self.gated) * max(1, self.experts)
        layer = 2 * self.hidden * (q + kv) + mlp
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2)


# What the decoder calls what both shapes have.
DECODER = {
    "layers": "n_layers",
    "hidden": "d_model",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "ffn": "d_ffn",
    "vocab": "vocab_size",
    "tied": "tie_embeddings",
    "rope_theta": "rope_theta",
    "rope_scaling": "rope_scaling",
    "norm_eps": "norm_eps",
}
# model_type of a config.json that has Llama's blocks, and what sets it apart for the decoder; "": nothing.
TYPES = {
    "llama": "",  # arXiv:2302.13971, arXiv:2407.21783
    "mistral": "",  # arXiv:2310.06825
    "mixtral": "",  # arXiv:2401.04088; its experts stand in a key
    "qwen2": "qwen2 has biases in q, k and v, and the decoder has none",  # arXiv:2407.10671
    "qwen3": "qwen3 norms q and k, and the decoder does not",  # arXiv:2505.09388
    "olmo2": "olmo2 norms q, k and what a block adds, and the decoder does not",  # arXiv:2501.00656
    "phi3": "",  # arXiv:2404.14219; its joined linears have the same shapes
    "smollm3": "smollm3 leaves out positions in some layers, and the decoder does not",
}
TIED = ("smollm3",)  # where a file is silent, transformers ties the head to the embedding's table for these alone
KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "seq": "max_position_embeddings",
}
LLAMA_3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def is_file(name: str) -> bool:
    """Does this name a file, rather than a model that is known by name?"""
    return name.endswith((".toml", ".json"))


def name_of(path: Path) -> str:
    """What to call the model of a file: its stem, of a config.json its folder's name."""
    return path.absolute().parent.name if path.stem == "config" else path.stem


def load_model(path: Path, seq: int | None = None) -> Model:
    """The shape in a file. LabError: no such file, another format, a wrong key, another architecture."""
    return _read(path, seq)[0]


def load_decoder(path: Path, seq: int | None = None) -> ModelConfig:
    """The decoder of a file's shape. LabError: as `load_model`, or what the decoder cannot be."""
    model, others = _read(path, seq)
    if model.experts:
        others.append(f"{model.experts} experts a layer, and the decoder has one MLP (`lab plan` takes them)")
    if model.head_dim:
        others.append(f"head_dim is {model.head_dim}, and the decoder's heads are hidden / heads wide")
    if not model.gated:
        others.append("gated is false, and the decoder's MLP is gated: SwiGLU")
    if others:
        raise LabError(f"{path} is no model that can be trained here: {others[0]}")
    shape = {theirs: getattr(model, ours) for ours, theirs in DECODER.items()}
    return strict_validate(ModelConfig, {**shape, "max_seq_len": model.seq}, str(path))


def _read(path: Path, seq: int | None) -> tuple[Model, list[str]]:
    """(the shape, in which ways the model is another one than the decoder: a sentence each)."""
    if path.suffix == ".toml":
        return load_toml(path, Model), []
    if path.suffix != ".json":
        raise LabError(f"{path}: a model is read from a file NAME.toml, or from a config.json of Hugging Face's")
    values = read_file(path, json.loads, "JSON")
    if not isinstance(values, Mapping):
        raise LabError(f"{path} is no config.json: it holds no table of settings")
    return _from_hugging_face(_without_nulls(values), path, seq)


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key with null says as much as no key."""
    return {key: value for key, value in values.items() if value is not None}


def _from_hugging_face(values: dict[str, Any], path: Path, seq: int | None) -> tuple[Model, list[str]]:
    kind = values.get("model_type")
    if kind not in TYPES:
        raise LabError(f"{path}: model_type {kind!r} is another architecture than {', '.join(TYPES)}")
    made, ours = values.get("architectures") or [], {f"{name}forcausallm" for name in TYPES}
    if not isinstance(made, list) or any(str(name).lower() not in ours for name in made):
        what = f"{path}: architectures is {made}, another model than {kind}'s decoder with its head"
        raise LabError(f"{what}: a copy without this key is read as one of the same shape")
    needed = [*KEYS.values(), *(["num_local_experts"] if kind == "mixtral" else [])]
    if missing := [key for key in needed if key not in values]:
        raise LabError(f"{path}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    shape = {ours: values[theirs] for ours, theirs in KEYS.items()}
    heads, hidden, length = (values[KEYS[key]] for key in ("heads", "hidden", "seq"))
    given = {
        "kv_heads": values.get("num_key_value_heads", heads),
        "tied": values.get("tie_word_embeddings", kind in TIED),
        "norm_eps": values.get("rms_norm_eps", 1e-6),  # what transformers takes where the file is silent
        "experts": values.get("num_local_experts", 0),
    }
    given["topk"] = values.get("num_experts_per_tok", 0) if given["experts"] else 0
    rope_key = next((key for key in ("rope_parameters", "rope_scaling") if values.get(key)), "rope_scaling")
    rope = values.get(rope_key) or {}  # rope_parameters since transformers 5, which holds rope_theta, too
    rope = _without_nulls(rope) if isinstance(rope, Mapping) else {"rope_type": str(rope)}
    given["rope_theta"] = values.get("rope_theta", rope.get("rope_theta", 10_000.0))
    turned, scaling = rope.get("rope_type", rope.get("type")), [rope.get(key) for key in LLAMA_3]
    if turned == "llama3" and all(isinstance(one, int | float) for one in scaling):
        given["rope_scaling"], turned = tuple(map(float, cast("list[float]", scaling))), None
    if "head_dim" in values and values["head_dim"] * heads != hidden:
        given["head_dim"] = values["head_dim"]
    model = strict_validate(Model, {**shape, **given}, str(path))

    window = values.get("sliding_window") if values.get("use_sliding_window", True) else None
    if set(values.get("layer_types") or ()) == {"full_attention"}:
        window = None
    seen = min(length, seq or length)
    if window is not None and not (isinstance(window, int) and window >= seen):
        what = f"{path}: attention sees a sliding_window of {window} tokens, and here it sees all {seen}"
        less = "with sequences of the window's length or less (--seq of `lab plan`) the two are the same"
        raise LabError(f"{what}: {less}")
    if (act := values.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise LabError(f"{path}: hidden_act is {act!r}, and the MLP here is SwiGLU, with silu")
    biased = [key for key in ("attention_bias", "mlp_bias") if values.get(key)]
    others = [*filter(None, [TYPES[kind]]), *(f"{key} is true, and the decoder has no biases" for key in biased)]
    if turned not in (None, "default"):
        others.append(
            f"{rope_key} {turned!r} stretches the positions, and the decoder knows plain RoPE and 'llama3' (a copy with "
            f'{rope_key} = {{"rope_type": "default", "rope_theta": {given["rope_theta"]}}} has the same speed)'
        )
    if (part := values.get("partial_rotary_factor", 1.0)) != 1.0:
        others.append(f"partial_rotary_factor is {part}, and the decoder turns all of a head")
    return model, others
