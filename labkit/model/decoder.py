"""The decoder: one model for every week.

A token becomes a vector; each block adds to it twice, first what attention brings from earlier positions, then what the
feed-forward network makes of it; a last norm and the head turn it into one score per vocabulary entry.

    x = tok_embed[tokens]
    for each block:  x = x + attn(norm(x));  x = x + ffn(norm(x))
    logits = head(norm(x))

The parts are those of Llama (arXiv:2302.13971): RMSNorm before each half (arXiv:1910.07467), rotary position embedding
(arXiv:2104.09864), grouped-query attention (arXiv:2305.13245) and SwiGLU (arXiv:2002.05202). There are no biases.

Nothing about parallelism or precision is written here. Both come from outside:

  - the seven linears of a block are built by the `linear` argument (`nn.Linear`, `te.Linear`, your own);
  - each step without a weight (`attn.core`, `ffn.act`, `criterion`) is a module of its own, so that it can be compiled
    in place (`block.attn.core.compile()`) where the linears beside it cannot;
  - head counts are read off the tensors, not the config, so a block whose q, k and v are split over ranks works;
  - no buffer is registered: the rotary tables are computed in each forward, so `to_empty()` cannot leave garbage in
    them and `.to(torch.bfloat16)` cannot round the positions.

Shape suffixes: B batch, T positions, D model width, N query heads, K key/value heads, H head width, F feed-forward
width, V vocabulary, R = H / 2 rotary pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.errors import LabError
from labkit.model.weights import init_weights, perturb
from labkit.train.config import ModelConfig, sizes

__all__ = ["ModelConfig", "Transformer", "init_weights", "perturb", "sizes"]

LinearType = Callable[..., nn.Module]  # linear(in_features, out_features, bias=False)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        # torch accumulates the mean square in fp32 whatever the dtype of x; the result keeps x's dtype.
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.type_as(x_BTD), self.eps)


def rotary_tables(positions: int, d_head: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the angle by which position t turns pair r: t * theta^(-2r / H). Two fp32 tensors [T, R]."""
    inverse_R = theta ** (-torch.arange(0, d_head, 2, device=device, dtype=torch.float32) / d_head)
    angle_TR = torch.outer(torch.arange(positions, device=device, dtype=torch.float32), inverse_R)
    return angle_TR.cos(), angle_TR.sin()


def rotate(x_BNTH: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Turn each pair (feature r, feature r + R) of a head by its angle, in fp32; the result has x's dtype.

    x [B, N, T, H] with tables [T, R], or x [B, T, N, H] with tables [T, 1, R]. A turned q times a turned k depends only
    on how far apart their positions are: that is how a head knows distance.
    """
    first_BNTR, second_BNTR = x_BNTH.float().chunk(2, dim=-1)
    return torch.cat(
        (first_BNTR * cos_TR - second_BNTR * sin_TR, second_BNTR * cos_TR + first_BNTR * sin_TR), dim=-1
    ).type_as(x_BNTH)


class RotaryAttention(nn.Module):
    """Attention without its weights: rotate q and k, then softmax(q k^T / sqrt(H)) v over earlier positions.

    `kernel`: None takes torch's choice; an SDPBackend takes that one, or fails where it cannot run. It is chosen inside
    the forward, not by torch's global switches, because the compiler's cache does not look at those.
    """

    kernel: SDPBackend | None = None

    def forward(self, q_BTNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        # Turned before the heads are moved forward, so that what the kernel reads, and its result, lie in memory as
        # the linears before and after want them: no copies in between (on an H200, 3 % of an FP8 step).
        cos_T1R, sin_T1R = cos_TR.unsqueeze(1), sin_TR.unsqueeze(1)
        q_BTNH, k_BTKH = rotate(q_BTNH, cos_T1R, sin_T1R), rotate(k_BTKH, cos_T1R, sin_T1R)
        q_BNTH, k_BKTH, v_BKTH = (x.transpose(1, 2) for x in (q_BTNH, k_BTKH, v_BTKH))
        with nullcontext() if self.kernel is None else sdpa_kernel([self.kernel]):
            # enable_gqa: query head n reads key/value head n // (N / K).
            y_BNTH = F.scaled_dot_product_attention(
                q_BNTH, k_BKTH, v_BKTH, is_causal=True, enable_gqa=q_BNTH.shape[1] != k_BKTH.shape[1]
            )
        return y_BNTH.transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, linear: LinearType) -> None:
        super().__init__()
        self.d_head = config.d_head
        d_kv = config.n_kv_heads * config.d_head
        self.wq = linear(config.d_model, config.d_model, bias=False)
        self.wk = linear(config.d_model, d_kv, bias=False)
        self.wv = linear(config.d_model, d_kv, bias=False)
        self.wo = linear(config.d_model, config.d_model, bias=False)
        self.core = RotaryAttention()

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        q_BTNH, k_BTKH, v_BTKH = (w(x_BTD).unflatten(-1, (-1, self.d_head)) for w in (self.wq, self.wk, self.wv))
        return self.wo(self.core(q_BTNH, k_BTKH, v_BTKH, cos_TR, sin_TR).flatten(-2))


class SwiGLU(nn.Module):
    """The feed-forward network without its weights: silu(gate) * up."""

    def forward(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return F.silu(gate_BTF) * up_BTF


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig, linear: LinearType) -> None:
        super().__init__()
        self.w1 = linear(config.d_model, config.d_ffn, bias=False)  # gate
        self.w3 = linear(config.d_model, config.d_ffn, bias=False)  # up
        self.w2 = linear(config.d_ffn, config.d_model, bias=False)  # down
        self.act = SwiGLU()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x_BTD), self.w3(x_BTD)))


class Block(nn.Module):
    def __init__(self, config: ModelConfig, linear: LinearType) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(config, linear)
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = FeedForward(config, linear)

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attn(self.attn_norm(x_BTD), cos_TR, sin_TR)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class MeanCrossEntropy(nn.Module):
    """-log softmax(logits)[target], mean over all positions, in fp32."""

    def forward(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


class Transformer(nn.Module):
    """The decoder. `forward(tokens_BT)` gives logits_BTV; `forward(tokens_BT, targets_BT)` the mean loss, fp32.

    linear(in_features, out_features, bias=False) builds the seven linears of each block. The head is always an
    nn.Linear: it is the one matrix that FP8 recipes leave alone, and with `tie_embeddings` it is the embedding table.
    Weights are what `init_weights` makes them, not what the constructors left.
    """

    def __init__(self, config: ModelConfig, linear: LinearType = nn.Linear) -> None:
        super().__init__()
        self.config = config
        self.tok_embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config, linear) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.criterion = MeanCrossEntropy()
        if config.tie_embeddings:
            self.head.weight = self.tok_embed.weight

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        if tokens_BT.shape[1] > self.config.max_seq_len:
            raise LabError(f"{tokens_BT.shape[1]} positions exceed the model's max_seq_len ({self.config.max_seq_len})")
        x_BTD = self.tok_embed(tokens_BT)
        cos_TR, sin_TR = rotary_tables(tokens_BT.shape[1], self.config.d_head, self.config.rope_theta, x_BTD.device)
        for block in self.layers:
            x_BTD = block(x_BTD, cos_TR, sin_TR)
        x_BTD = self.norm(x_BTD)
        return self.head(x_BTD) if targets_BT is None else self.loss(x_BTD, targets_BT)

    def to_empty(self, *, device: torch.device | str | int | None, recurse: bool = True) -> Transformer:
        """As nn.Module's, which gives a shared parameter two memories; here a tied head stays tied."""
        super().to_empty(device=device, recurse=recurse)
        if self.config.tie_embeddings:
            self.head.weight = self.tok_embed.weight
        return self

    def loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean loss from the last norm's output.

        The seam for a loss that never holds all logits at once: at V = 128256 the fp32 logits of 16384 tokens are
        8.4 GB, and their gradient as much again. Replace it from outside (`model.loss = ...`).
        """
        return self.criterion(self.head(x_BTD), targets_BT)
