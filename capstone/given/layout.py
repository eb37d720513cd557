"""Where a rank's slice lies in the whole weight, and what setup a checkpoint is of: given for task C.2."""

from __future__ import annotations

from typing import Any

from capstone.given.parts import part
from labkit.model.config import ModelConfig

EVERYTHING = slice(None)
MAY_CHANGE = {"dp", "tp", "pp", "zero", "micro", "seed", "weights"}  # none of it changes what a step computes


def place(name: str, c: ModelConfig, tp: int, r: int) -> tuple[slice, ...]:
    """The slice of the whole weight `name` that rank r of `tp` tensor-parallel ranks has."""
    last = name.split(".")[-2]
    attention = part("week15_tp_attention.attention")
    if last.endswith("norm") or tp == 1:
        return (EVERYTHING,)
    if last in ("tok_embed", "head"):
        return (slice(*part("week15_tp_attention.vocab").vocab_range(c.vocab_size, tp, r)),)
    if last in ("w1", "w3", "w2"):
        mine = slice(*attention.feed_forward_share(c.d_ffn, tp, r))
        return (EVERYTHING, mine) if last == "w2" else (mine,)
    share, H = attention.split_heads(c.n_heads, c.n_kv_heads, tp, r), c.d_head
    first, end = share.kv if last in ("wk", "wv") else share.query
    mine = slice(first * H, end * H)
    return (EVERYTHING, mine) if last == "wo" else (mine,)


def fingerprint(trainer: Any) -> dict[str, Any]:
    """What a checkpoint must have been made with, as flat JSON values: the model's shape, AdamW's numbers, precision;
    in FP8 the recipe's formats and scales too."""
    values = {key: value for key, value in trainer.setup._asdict().items() if key not in MAY_CHANGE}
    values |= {f"model.{key}": value for key, value in values.pop("model").model_dump().items()}
    if trainer.setup.precision == "fp8":
        linear, casts = part("week16_fp8.linear"), part("week16_fp8.casts")
        values |= {f"fp8.{key}": value for key, value in linear.numbers(casts.HYBRID).items()}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
