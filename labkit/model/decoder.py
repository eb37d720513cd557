"""The decoder: one model for every week.

    x = tok_embed[tokens]
    for each block:  x = x + attn(norm(x));  x = x + ffn(norm(x))
    logits = head(norm(x))

The parts are those of Llama (arXiv:2302.13971): RMSNorm before each half (arXiv:1910.07467), rotary position embedding
(arXiv:2104.09864), grouped-query attention (arXiv:2305.13245) and SwiGLU (arXiv:2002.05202). There are no biases.
With `experts` in its config the feed-forward network is a mixture of experts (labkit.model.moe).

Parallelism and precision come from outside:

  - all linears, the head among them, are built by the `linear` argument, which gets each one's name and can so make
    some column-parallel, some FP8; the embedding is built by `embedding`;
  - `layers` cuts the model into stages for a pipeline: this class with some of the blocks, under the names that they
    have in the whole model ("layers.3.attn.wq.weight"), so that first values and checkpoints fit every cut;
  - each step without a weight (`attn.core`, `ffn.act`, `criterion`) is a module, which can be compiled in place;
  - head counts are read off the tensors, not the config, so a block whose q, k and v are split over ranks works;
  - no buffer is registered: the rotary tables are computed in each forward.

Shape suffixes: B batch, T positions, D model width, N query heads, K key/value heads, H head width, F feed-forward
width, V vocabulary, R = H / 2 rotary pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.weights import init_weights, perturb

if TYPE_CHECKING:
    from labkit.model.moe import MixtureOfExperts

__all__ = ["Block", "MeanCrossEntropy", "RMSNorm", "RotaryAttention", "Transformer", "init_weights", "perturb"]

LinearFactory = Callable[[str, int, int], nn.Module]  # linear("layers.3.attn.wq", in_features, out_features), no bias
EmbeddingFactory = Callable[[int, int], nn.Module]  # embedding(vocab_size, d_model)


def plain_linear(name: str, in_features: int, out_features: int) -> nn.Module:
    """The default: an nn.Linear, whatever its name."""
    return nn.Linear(in_features, out_features, bias=False)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        # torch accumulates the mean square in fp32 whatever the dtype of x; the result keeps x's dtype.
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.type_as(x_BTD), self.eps)


def rotary_tables(
    positions: int, d_head: int, theta: float, device: torch.device, scaling: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """cos and sin of the angle by which position t turns pair r: t * theta^(-2r / H). Two fp32 tensors [T, R].

    scaling: (factor, low, high, original) of Llama 3.1 (arXiv:2407.21783): pairs that turn fewer than `low` times in
    `original` positions turn `factor` times slower, those of more than `high` as before."""
    inverse_R = theta ** (-torch.arange(0, d_head, 2, device=device, dtype=torch.float32) / d_head)
    if scaling:
        factor, low, high, original = scaling
        kept_R = ((original * inverse_R / (2 * torch.pi) - low) / (high - low)).clamp(0, 1)
        inverse_R = inverse_R * (kept_R + (1 - kept_R) / factor)
    angle_TR = torch.outer(torch.arange(positions, device=device, dtype=torch.float32), inverse_R)
    return angle_TR.cos(), angle_TR.sin()


def rotate(x_BNTH: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Turn each pair (feature r, feature r + R) of a head by its angle, in fp32; the result has x's dtype.

    x [B, N, T, H] with tables [T, R], or x [B, T, N, H] with tables [T, 1, R].
    """
    first_BNTR, second_BNTR = x_BNTH.float().chunk(2, dim=-1)
    return torch.cat(
        (first_BNTR * cos_TR - second_BNTR * sin_TR, second_BNTR * cos_TR + first_BNTR * sin_TR), dim=-1
    ).type_as(x_BNTH)


class RotaryAttention(nn.Module):
    """Attention without its weights: rotate q and k, then softmax(q k^T / sqrt(H)) v over earlier positions."""

    # None: torch's choice. Chosen in the forward: the compiler's cache does not look at torch's global switches.
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
    def __init__(self, name: str, config: ModelConfig, linear: LinearFactory) -> None:
        super().__init__()
        self.d_head = config.d_head
        d_kv = config.n_kv_heads * config.d_head
        self.wq = linear(f"{name}.wq", config.d_model, config.d_model)
        self.wk = linear(f"{name}.wk", config.d_model, d_kv)
        self.wv = linear(f"{name}.wv", config.d_model, d_kv)
        self.wo = linear(f"{name}.wo", config.d_model, config.d_model)
        self.core = RotaryAttention()

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        q_BTNH, k_BTKH, v_BTKH = (w(x_BTD).unflatten(-1, (-1, self.d_head)) for w in (self.wq, self.wk, self.wv))
        return self.wo(self.core(q_BTNH, k_BTKH, v_BTKH, cos_TR, sin_TR).flatten(-2))


class SwiGLU(nn.Module):
    """The feed-forward network without its weights: silu(gate) * up."""

    def forward(self, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
        return F.silu(gate_BTF) * up_BTF


class FeedForward(nn.Module):
    def __init__(self, name: str, config: ModelConfig, linear: LinearFactory) -> None:
        super().__init__()
        self.w1 = linear(f"{name}.w1", config.d_model, config.d_ffn)  # gate
        self.w3 = linear(f"{name}.w3", config.d_model, config.d_ffn)  # up
        self.w2 = linear(f"{name}.w2", config.d_ffn, config.d_model)  # down
        self.act = SwiGLU()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x_BTD), self.w3(x_BTD)))


class Block(nn.Module):
    def __init__(self, name: str, config: ModelConfig, linear: LinearFactory) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(f"{name}.attn", config, linear)
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = _experts(config) if config.experts else FeedForward(f"{name}.ffn", config, linear)

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attn(self.attn_norm(x_BTD), cos_TR, sin_TR)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


def _experts(config: ModelConfig) -> MixtureOfExperts:
    from labkit.model.moe import MixtureOfExperts  # not above: it brings torch's compiler, a second for every process

    return MixtureOfExperts(config, SwiGLU())


class MeanCrossEntropy(nn.Module):
    """-log softmax(logits)[target], mean over all positions, in fp32."""

    def forward(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


class Transformer(nn.Module):
    """The decoder, whole or one stage of it; `init_weights` gives its weights their first values.

    linear(name, in_features, out_features) builds all linears, the head as "head"; embedding(vocab_size, d_model) the
    embedding. layers: which blocks this stage has, a range of 0 .. n_layers - 1; None: all. The embedding goes with the
    first block, the last norm and the head with the last one; a stage without them has None in their places.
    LabError: no such blocks; a tied model that is cut.
    """

    def __init__(
        self,
        config: ModelConfig,
        linear: LinearFactory = plain_linear,
        embedding: EmbeddingFactory = nn.Embedding,
        layers: range | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        stage = range(config.n_layers) if layers is None else layers
        if not stage or stage.step != 1 or stage[0] < 0 or stage[-1] >= config.n_layers:
            raise LabError(f"{stage} is no stage of a model with layers 0 to {config.n_layers - 1}")
        first, last = stage[0] == 0, stage[-1] == config.n_layers - 1
        if config.tie_embeddings and not (first and last):
            raise LabError(
                "tie_embeddings: a head in the last stage cannot be the embedding of the first: set it to false"
            )
        self.tok_embed = embedding(config.vocab_size, config.d_model) if first else None
        self.layers = nn.ModuleDict({str(i): Block(f"layers.{i}", config, linear) for i in stage})
        self.norm = RMSNorm(config.d_model, config.norm_eps) if last else None
        self.head = linear("head", config.d_model, config.vocab_size) if last else None
        self.criterion = MeanCrossEntropy()
        self._tie()

    def forward(self, x: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """tokens_BT, int64 (a later stage: the x_BTD of the one before it) -> logits_BTV, or with targets_BT the mean
        loss, fp32, in training with its experts' balance loss; a stage that is not the last: x_BTD."""
        if x.shape[1] > self.config.max_seq_len:
            raise LabError(f"{x.shape[1]} positions exceed the model's max_seq_len ({self.config.max_seq_len})")
        x_BTD = x if self.tok_embed is None else self.tok_embed(x)
        rope = (self.config.d_head, self.config.rope_theta, x_BTD.device, self.config.rope_scaling)
        cos_TR, sin_TR = rotary_tables(x.shape[1], *rope)
        for block in self.layers.values():
            x_BTD = block(x_BTD, cos_TR, sin_TR)
        if self.norm is None or self.head is None:
            return x_BTD
        x_BTD = self.norm(x_BTD)
        if targets_BT is None:
            return self.head(x_BTD)
        loss = self.loss(x_BTD, targets_BT)
        return loss + self.balance_loss() if self.config.experts and self.training else loss

    def balance_loss(self) -> Tensor:
        """`config.balance` times the sum of this stage's imbalances, FP32; the last stage's loss has its own."""
        from labkit.model.moe import MixtureOfExperts

        found = [block.ffn.imbalance for block in self.blocks() if isinstance(block.ffn, MixtureOfExperts)]
        return self.config.balance * torch.stack([each for each in found if each is not None]).sum()

    def blocks(self) -> list[Block]:
        """The blocks of this stage, in order."""
        return cast("list[Block]", list(self.layers.values()))  # nn.ModuleDict does not say of what

    def to_empty(self, *, device: torch.device | str | int | None, recurse: bool = True) -> Transformer:
        """As nn.Module's, which gives a shared parameter two memories; here a tied head stays tied."""
        super().to_empty(device=device, recurse=recurse)
        self._tie()
        return self

    def loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean loss from the last norm's output. Here one goes that never holds all logits: `model.loss = ...`."""
        # At V = 128256 the fp32 logits of 16384 tokens are 8.4 GB, and their gradient as much again.
        assert self.head is not None, "only the last stage has a loss"
        return self.criterion(self.head(x_BTD), targets_BT)

    def _tie(self) -> None:
        if self.config.tie_embeddings and self.head is not None and self.tok_embed is not None:
            self.head.weight = self.tok_embed.weight
