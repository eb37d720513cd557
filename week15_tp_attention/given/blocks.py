"""One block of the decoder on N ranks, made of your parts in several ways: what the bench times.

    plain                     15.1 and 15.2: two all-reduces forward, two backward, nothing hidden
    sequence, kept            15.3 with keep=True: norms and residuals on T/N positions
    sequence, gathered again  15.3 with keep=False
    overlapped, backward      15.5: backward's all-reduce beside dW
    overlapped                the same, and stretch 15.9: forward's cut in chunks, beside the next chunk
    collective matmul         stretch 15.9: sequence parallel, every gather and every sum in chunks around a ring

All of them take the same whole weights and give the same numbers. What has no weight (rotary attention, norm, SwiGLU)
comes from outside as `Parts`, the same for all, so that the bench compares messages and products and nothing else.

Where several products read one x, the last three join their weights into one: one product, and one message behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.model.decoder import RotaryAttention, rotary_tables
from week15_tp_attention import attention, linears, overlap, sequence

CHUNKS = 4  # of a row-parallel product, in "overlapped"


class Shape(NamedTuple):
    """A block's sizes: B sequences of T positions, D wide, F the feed-forward network's width."""

    B: int
    T: int
    D: int
    F: int
    n_heads: int
    n_kv_heads: int

    @property
    def d_head(self) -> int:
        return self.D // self.n_heads

    def flops(self, kind: str) -> float:
        """Of forward and backward; causal attention counted by half. kind: "attention" or "block"."""
        kv = self.n_kv_heads * self.d_head
        weights = 2 * self.D * self.D + 2 * self.D * kv + (3 * self.D * self.F if kind == "block" else 0)
        forward = 2 * weights + 2 * 2 * self.D * (self.T + 1) / 2  # per token
        return 3 * forward * self.B * self.T

    def ring_bytes(self, kind: str, N: int, itemsize: int = 2) -> float:
        """What a rank sends for one step on a ring, plain: an all-reduce of B T D numbers each way for each half."""
        messages = 4 if kind == "block" else 2
        return messages * 2 * (N - 1) / N * self.B * self.T * self.D * itemsize


class Parts(NamedTuple):
    """What has no weight of its own. On a GPU the bench compiles them, for all contenders alike."""

    core: nn.Module
    norm: Callable[[Tensor, Tensor], Tensor]
    act: Callable[[Tensor, Tensor], Tensor]


def rms_norm(x_BTD: Tensor, weight_D: Tensor) -> Tensor:
    return nn.functional.rms_norm(x_BTD, weight_D.shape, weight_D, 1e-5)


def swiglu(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    return nn.functional.silu(gate_BTF) * up_BTF


def parts(compiled: bool) -> Parts:
    plain = Parts(RotaryAttention(), rms_norm, swiglu)
    return Parts(*map(compile_one, plain)) if compiled else plain


def compile_one(part: Any) -> Any:
    return torch.compile(part, dynamic=False)


def whole_weights(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    """The unsharded block's weights: the same on all ranks with the same kind of device."""
    D, F, kv = shape.D, shape.F, shape.n_kv_heads * shape.d_head
    sizes = {"wq": (D, D), "wk": (kv, D), "wv": (kv, D), "wo": (D, D), "w1": (F, D), "w3": (F, D), "w2": (D, F)}
    drawn = torch.Generator(device).manual_seed(seed)
    weights = {
        name: (torch.randn(size, device=device, generator=drawn) * size[1] ** -0.5).to(dtype)
        for name, size in sizes.items()
    }
    norms = {name: 1 + 0.1 * torch.randn(D, device=device, generator=drawn) for name in ("attn_norm", "ffn_norm")}
    return {**weights, **{name: norm.to(dtype) for name, norm in norms.items()}}


def own_weights(whole: dict[str, Tensor], shape: Shape, group) -> dict[str, Tensor]:
    """This rank's slices, by your `split_heads` and `slice_weights`; the norms' weights are whole."""
    N, r = group.size, group.rank
    share = attention.split_heads(shape.n_heads, shape.n_kv_heads, N, r)
    begin, end = attention.feed_forward_share(shape.F, N, r)
    ffn = {"w1": whole["w1"][begin:end], "w3": whole["w3"][begin:end], "w2": whole["w2"][:, begin:end].contiguous()}
    norms = {name: whole[name] for name in ("attn_norm", "ffn_norm")}
    four = {name: whole[name] for name in ("wq", "wk", "wv", "wo")}
    return {**attention.slice_weights(four, share, shape.d_head), **ffn, **norms}


class Halves(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)): what all the blocks here have in common."""

    cut_along_T = False  # whether x comes, and y leaves, cut along the positions

    def __init__(self, weights: dict[str, Tensor], group, shape: Shape, given: Parts) -> None:
        super().__init__()
        self.group, self.shape, self.given = group, shape, given
        self.w = nn.ParameterDict({name: nn.Parameter(w.clone()) for name, w in self.kept(weights).items()})
        device = weights["wq"].device
        self.cos, self.sin = rotary_tables(shape.T, shape.d_head, 500_000.0, device)

    def kept(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """How this block keeps its weights."""
        return weights

    def heads(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """From the three products to what W_o reads: [B, T, n H]."""
        q, k, v = (x.unflatten(-1, (-1, self.shape.d_head)) for x in (q, k, v))
        return self.given.core(q, k, v, self.cos, self.sin).flatten(-2)

    def attention(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def feed_forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.given.norm(x, self.w["attn_norm"]))
        return x + self.feed_forward(self.given.norm(x, self.w["ffn_norm"]))


class Plain(Halves):
    """Nothing hidden: your layer of 15.2, and your linears of 15.1 with W_1 and W_3 as one."""

    def __init__(self, weights: dict[str, Tensor], group, shape: Shape, given: Parts) -> None:
        super().__init__(weights, group, shape, given)
        four = {name: weights[name].clone() for name in ("wq", "wk", "wv", "wo")}
        self.layer = attention.ParallelAttention(four, group, shape.n_heads, shape.n_kv_heads)
        self.layer.core = given.core  # type: ignore[assignment]  # compiled where the others' is
        self.up = linears.ColumnParallelLinear(torch.cat([weights["w1"], weights["w3"]]), None, group)
        self.down = linears.RowParallelLinear(weights["w2"].clone(), None, group)

    def kept(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: weights[name] for name in ("attn_norm", "ffn_norm")}

    def attention(self, x: Tensor) -> Tensor:
        return self.layer(x, self.cos, self.sin)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.down(self.given.act(*self.up(x).chunk(2, dim=-1)))


class SequenceParallel(nn.Module):
    """Norms and residuals on T/N positions: your block of 15.3."""

    cut_along_T, keep = True, True

    def __init__(self, weights: dict[str, Tensor], group, shape: Shape, given: Parts) -> None:
        super().__init__()
        share = attention.split_heads(shape.n_heads, shape.n_kv_heads, group.size, group.rank)
        replicas = group.split(share.replicas, "replicas")
        own = {name: weight.clone() for name, weight in weights.items()}
        self.block = sequence.SequenceParallelBlock(own, group, replicas, shape.d_head, self.keep)
        self.block.core = given.core  # type: ignore[assignment]  # compiled where the others' is
        self.block.norm = given.norm  # type: ignore[method-assign,assignment]  # likewise
        self.cos, self.sin = rotary_tables(shape.T, shape.d_head, 500_000.0, weights["wq"].device)

    def attention(self, x: Tensor) -> Tensor:
        raise LabError("15.3 is a whole block: no attention layer by itself")

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, self.cos, self.sin)


class SequenceGatheredAgain(SequenceParallel):
    keep = False


class Joined(Halves):
    """W_q, W_k, W_v as one weight, W_1 and W_3 as another."""

    def kept(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.group.size > self.shape.n_kv_heads:
            raise LabError("the joined weights are for at most as many ranks as key/value heads")
        self.widths = [len(weights[name]) for name in ("wq", "wk", "wv")]
        one = torch.cat([weights[name] for name in ("wq", "wk", "wv")])
        two = torch.cat([weights[name] for name in ("w1", "w3")])
        rest = {name: weights[name] for name in ("wo", "w2", "attn_norm", "ffn_norm")}
        return {"wqkv": one, "w13": two, **rest}

    def columns(self, x: Tensor, name: str) -> Tensor:
        raise NotImplementedError

    def rows(self, x: Tensor, name: str) -> Tensor:
        raise NotImplementedError

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.columns(x, "wqkv").split(self.widths, dim=-1)
        return self.rows(self.heads(q, k, v), "wo")

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.columns(x, "w13").chunk(2, dim=-1)
        return self.rows(self.given.act(gate, up), "w2")


class OverlappedBackward(Joined):
    """Your `overlapped_column_linear` in front; your row-parallel linear behind."""

    def __init__(self, weights: dict[str, Tensor], group, shape: Shape, given: Parts) -> None:
        super().__init__(weights, group, shape, given)
        rows = {name: linears.RowParallelLinear(self.w[name].data, None, group) for name in ("wo", "w2")}
        self.row_linears = nn.ModuleDict(rows)
        for name in rows:
            del self.w[name]

    def columns(self, x: Tensor, name: str) -> Tensor:
        return overlap.overlapped_column_linear(x, self.w[name], self.group)

    def rows(self, x: Tensor, name: str) -> Tensor:
        return self.row_linears[name](x)


class Overlapped(Joined):
    """Your `overlapped_column_linear`, and stretch 15.9's row-parallel product in chunks."""

    def columns(self, x: Tensor, name: str) -> Tensor:
        return overlap.overlapped_column_linear(x, self.w[name], self.group)

    def rows(self, x: Tensor, name: str) -> Tensor:
        from week15_tp_attention.stretch import collective_matmul

        return collective_matmul.linear_reduce(x, self.w[name], self.group, CHUNKS)


class CollectiveMatmul(Joined):
    """Stretch 15.9 in every place: sequence parallelism whose messages stand behind products. (The norms' weights get
    their own positions' gradient alone: D numbers, which are left to the optimizer here.)"""

    cut_along_T = True

    def columns(self, x: Tensor, name: str) -> Tensor:
        from week15_tp_attention.stretch import collective_matmul

        return collective_matmul.gather_linear(x, self.w[name], self.group)

    def rows(self, x: Tensor, name: str) -> Tensor:
        from week15_tp_attention.stretch import collective_matmul

        return collective_matmul.linear_scatter(x, self.w[name], self.group)


OWN: dict[str, Any] = {
    "plain": Plain,
    "sequence, kept": SequenceParallel,
    "sequence, gathered again": SequenceGatheredAgain,
    "overlapped, backward": OverlappedBackward,
    "overlapped": Overlapped,
    "collective matmul": CollectiveMatmul,
}
