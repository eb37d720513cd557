"""The decoder's shape, and the four that have a name. Nothing here imports torch."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from labkit.strict import Config, Count, CountOrOff, require

Shape = tuple[int, ...]


class ModelConfig(Config):
    """The decoder's shape; `d_head` = d_model / n_heads; a token goes through `topk` of `experts`, if there are any."""

    vocab_size: Count
    d_model: Count
    n_layers: Count
    n_heads: Count
    n_kv_heads: Count
    d_ffn: Count
    max_seq_len: Count
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    # (factor, low, high, original) of Llama 3's: `rotary_tables`; empty: plain RoPE
    rope_scaling: Annotated[tuple[float, ...], Field(strict=False)] = ()  # not strict: TOML has lists
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    tie_embeddings: bool = False
    experts: CountOrOff = 0  # of each layer, each d_ffn wide (labkit.model.moe); 0: one network for all tokens
    topk: CountOrOff = 0  # experts that a token goes through
    balance: Annotated[float, Field(ge=0)] = 0.01  # weight of the balance loss; arXiv:2101.03961, section 2.2

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    def block_shapes(self) -> dict[str, Shape]:
        """{name inside a block: shape} of a block's weights; a linear's is [out, in], experts' [expert, out, in]."""
        d, f, d_kv = self.d_model, self.d_ffn, self.n_kv_heads * self.d_head
        norms = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
        attn = {"attn.wq.weight": (d, d), "attn.wk.weight": (d_kv, d), "attn.wv.weight": (d_kv, d)}
        ffn: dict[str, Shape]
        if e := self.experts:
            ffn = {"ffn.router.weight": (e, d)}
            ffn |= {"ffn.experts.w1": (e, f, d), "ffn.experts.w3": (e, f, d), "ffn.experts.w2": (e, d, f)}
        else:
            ffn = {"ffn.w1.weight": (f, d), "ffn.w3.weight": (f, d), "ffn.w2.weight": (d, f)}
        return {**norms, **attn, "attn.wo.weight": (d, d), **ffn}

    def weight_shapes(self) -> dict[str, Shape]:
        """{name: shape} of all weights, whole, however they are cut and placed. A tied head has both its names here."""
        ends = (self.vocab_size, self.d_model)
        blocks = {f"layers.{i}.{name}": s for i in range(self.n_layers) for name, s in self.block_shapes().items()}
        return {"tok_embed.weight": ends, **blocks, "norm.weight": (self.d_model,), "head.weight": ends}

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        heads, kv = f"n_heads ({self.n_heads})", f"n_kv_heads ({self.n_kv_heads})"
        require(self.d_model % self.n_heads == 0, f"d_model ({self.d_model}) must be a multiple of {heads}")
        require(self.n_heads % self.n_kv_heads == 0, f"{heads} must be a multiple of {kv}")
        require(self.d_head % 2 == 0, f"d_model / n_heads ({self.d_head}) must be even: features are turned in pairs")
        require(len(self.rope_scaling) in (0, 4), "rope_scaling is [factor, low, high, original], or empty")
        check_experts(self.experts, self.topk)
        return self


def check_experts(experts: int, topk: int) -> None:
    require(experts != 1, "experts is 0 for one feed-forward network a layer, or at least 2")
    chosen = 1 <= topk <= experts if experts else topk == 0
    require(chosen, f"topk ({topk}) must lie between 1 and experts ({experts}), or both be 0")


def sizes() -> dict[str, ModelConfig]:
    """The named decoder shapes: `tiny` (1.3 M parameters), `124m`, `1b` (1.14 B), `8b` (Llama-3-8B's shape)."""
    return {
        "tiny": _size(2048, 128, 4, 4, 2, 384, 256),
        "124m": _size(50304, 768, 12, 12, 12, 2048, 2048, tie_embeddings=True),
        "1b": _size(32768, 2048, 16, 16, 8, 8192, 8192, rope_theta=500_000.0),
        "8b": _size(128256, 4096, 32, 32, 8, 14336, 8192, rope_theta=500_000.0),  # arXiv:2407.21783, table 3
    }


def _size(vocab: int, d: int, layers: int, heads: int, kv: int, ffn: int, seq: int, **others: Any) -> ModelConfig:
    shape: dict[str, Any] = dict(vocab_size=vocab, d_model=d, n_layers=layers, n_heads=heads, n_kv_heads=kv, d_ffn=ffn)
    return ModelConfig(**shape, max_seq_len=seq, **others)
