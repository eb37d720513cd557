"""The models that a plan can be asked for: by name, or a TOML file with the same keys. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from labkit.errors import LabError
from labkit.strict import Config, Count, CountOrOff, load_toml, nearest, require


class Model(Config):
    """A decoder's shape, and the length of its sequences.

    layers = 32
    hidden = 4096
    heads = 32
    kv_heads = 8
    ffn = 14336
    vocab = 128256
    seq = 8192
    experts = 0          # of each layer; 0: one MLP
    topk = 0             # experts that a token goes through
    """

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn: Count
    vocab: Count
    seq: Annotated[int, Field(ge=128)] = 8192
    gated: bool = True
    tied: bool = False
    experts: CountOrOff = 0
    topk: CountOrOff = 0

    @model_validator(mode="after")
    def _makes_sense(self) -> Model:
        require(self.hidden % self.heads == 0, f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        require(
            self.heads % self.kv_heads == 0, f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
        )
        require(self.experts != 1, "experts is 0 for one MLP a layer, or at least 2")
        chosen = 1 <= self.topk <= self.experts if self.experts else self.topk == 0
        require(chosen, f"topk ({self.topk}) must lie between 1 and experts ({self.experts}), or both be 0")
        return self

    @property
    def parameters(self) -> int:
        """All of them, norms left out."""
        kv = self.kv_heads * self.hidden // self.heads
        mlp = self.hidden * self.ffn * (2 + self.gated) * max(1, self.experts)
        layer = 2 * self.hidden * (self.hidden + kv) + mlp
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2)


def _named(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int = 128256, **more: Any) -> Model:
    return Model(layers=layers, hidden=hidden, heads=heads, kv_heads=kv, ffn=ffn, vocab=vocab, **more)


MODELS = {
    "1b": _named(16, 2048, 16, 8, 8192, 32768, seq=4096),  # this course's 1.14 B
    "7b": _named(32, 4096, 32, 32, 11008, 32000, seq=4096),  # Llama 2 (arXiv:2307.09288)
    "8b": _named(32, 4096, 32, 8, 14336),  # Llama 3 (arXiv:2407.21783), as 70b and 405b
    "13b": _named(40, 5120, 40, 40, 13824, 32000, seq=4096),
    "70b": _named(80, 8192, 64, 8, 28672),
    "405b": _named(126, 16384, 128, 8, 53248),
    "8x7b": _named(32, 4096, 32, 8, 14336, 32000, experts=8, topk=2),  # Mixtral (arXiv:2401.04088)
}


def find_model(name: str) -> Model:
    """A model by its name, or from a TOML file. LabError: neither, or a file that says something else."""
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    if name.endswith(".toml"):
        return load_toml(Path(name), Model)
    known = ", ".join(MODELS)
    raise LabError(f"--model '{name}' is not known{nearest(name, MODELS)}: take {known}, or a file NAME.toml")
