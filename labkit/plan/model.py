"""The models that can be planned for: by name, or in a file (labkit.model.shape_file). Nothing here imports torch."""

from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.model.config import sizes
from labkit.model.shape_file import DECODER, Model, is_file, load_model
from labkit.strict import nearest


def _trained_here(name: str, seq: int) -> Model:
    """The shape of a decoder that is trained here, on sequences as the comparison's presets have them."""
    shape = sizes()[name]
    return Model(seq=seq, **{ours: getattr(shape, theirs) for ours, theirs in DECODER.items()})


def _published(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int = 128256, **more: Any) -> Model:
    return Model(layers=layers, hidden=hidden, heads=heads, kv_heads=kv, ffn=ffn, vocab=vocab, **more)


MODELS = {
    "tiny": _trained_here("tiny", seq=256),
    "124m": _trained_here("124m", seq=1024),
    "1b": _trained_here("1b", seq=4096),
    "7b": _published(32, 4096, 32, 32, 11008, 32000, seq=4096),  # Llama 2 (arXiv:2307.09288)
    "8b": _trained_here("8b", seq=8192),  # Llama 3 (arXiv:2407.21783), as 70b and 405b
    "13b": _published(40, 5120, 40, 40, 13824, 32000, seq=4096),
    "70b": _published(80, 8192, 64, 8, 28672),
    "405b": _published(126, 16384, 128, 8, 53248),
    "8x7b": _published(32, 4096, 32, 8, 14336, 32000, experts=8, topk=2),  # Mixtral (arXiv:2401.04088)
}


def find_model(name: str, seq: int | None = None) -> Model:
    """A model by its name, or from a file, with sequences of `seq` tokens. LabError: neither, or a file that says something else."""
    if name.lower() in MODELS:
        model = MODELS[name.lower()]
    elif is_file(name):
        model = load_model(Path(name), seq)
    else:
        known = nearest(name, MODELS)
        raise LabError(f"--model '{name}' is not known{known}; or name a file, NAME.toml or a config.json")
    return model if seq is None else model.replace(seq=seq)
