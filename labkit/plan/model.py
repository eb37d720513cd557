"""The models that a plan can be asked for: by name, or in a file (labkit.model.files). Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.model.files import Model, is_file, load_model
from labkit.strict import nearest


def _named(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int = 128256, **more: Any) -> Model:
    return Model(layers=layers, hidden=hidden, heads=heads, kv_heads=kv, ffn=ffn, vocab=vocab, **more)


MODELS = {
    "tiny": _named(4, 128, 4, 2, 384, 2048, seq=256),  # this course's (labkit.model.config), as the two behind it
    "124m": _named(12, 768, 12, 12, 2048, 50304, seq=1024, tied=True),
    "1b": _named(16, 2048, 16, 8, 8192, 32768, seq=4096),
    "7b": _named(32, 4096, 32, 32, 11008, 32000, seq=4096),  # Llama 2 (arXiv:2307.09288)
    "8b": _named(32, 4096, 32, 8, 14336),  # Llama 3 (arXiv:2407.21783), as 70b and 405b
    "13b": _named(40, 5120, 40, 40, 13824, 32000, seq=4096),
    "70b": _named(80, 8192, 64, 8, 28672),
    "405b": _named(126, 16384, 128, 8, 53248),
    "8x7b": _named(32, 4096, 32, 8, 14336, 32000, experts=8, topk=2),  # Mixtral (arXiv:2401.04088)
}


def find_model(name: str) -> Model:
    """A model by its name, or from a file. LabError: neither, or a file that says something else."""
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    if is_file(name):
        return load_model(Path(name))
    raise LabError(f"--model '{name}' is not known{nearest(name, MODELS)}; or name a file, NAME.toml or a config.json")
