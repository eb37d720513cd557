"""Many (model, plan, machine) at once: each column is a float64 array of one length, or of length 1."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of float64, or of what is compared
NONE, SELECTIVE, OPERATIONS, FULL = range(4)  # what backward computes again: nothing, attention's core, half, all
FORMATS = ("bf16", "fp8", "mxfp8", "nvfp4")  # of the linears' products; a plan has the number of its place here
BYTES = np.array([2, 1, 1 + 1 / 32, 1 / 2 + 1 / 16])  # of a number in it, with its share of its block's scale
UNFUSED, SDPA, FLASH = 0, 1, 2  # attention: scores in memory; torch's flash kernel; the chip's own (cuDNN, FA3)


@dataclass(frozen=True)
class Cases:
    """Model. Lengths in numbers; `gated`, `tied` 0 or 1; `experts` 0: dense; `head_dim` 0: hidden / heads."""

    layers: Array
    hidden: Array
    heads: Array
    kv_heads: Array
    ffn: Array
    gated: Array
    vocab: Array
    tied: Array
    experts: Array
    topk: Array
    head_dim: Array
    seq: Array
    # The plan. Sequences a step and a micro-batch; the degrees; flags 0 or 1; `half`: FP16.
    gbs: Array
    mbs: Array
    tp: Array
    sp: Array
    pp: Array
    vp: Array
    cp: Array
    ep: Array
    dp: Array
    zero: Array
    recompute: Array
    attention: Array
    tp_overlap: Array
    dp_overlap: Array
    format: Array
    half: Array
    # The machine. FLOP/s dense; bytes/s; watts; bytes; bytes/s, one direction, a GPU.
    per_node: Array
    peak: Array
    peak_fp8: Array
    peak_fp4: Array
    hbm: Array
    sms: Array
    watts: Array
    recent: Array
    memory: Array
    intra: Array
    inter: Array

    @property
    def micro(self) -> Array:
        """Micro-batches a step."""
        return np.maximum(1.0, np.ceil(self.gbs / (self.dp * self.mbs)))

    @property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one rank."""
        return self.mbs * self.seq / self.cp

    @property
    def low(self) -> Array:
        """Are the products in 8 or 4 bits?"""
        return self.format > 0

    @property
    def size(self) -> Array:
        """Bytes of a number that the linears multiply."""
        return BYTES[self.format.astype(int)]

    @property
    def peak_low(self) -> Array:
        """FLOP/s of the products in the linears' format."""
        return np.choose(self.format.astype(int), (self.peak, self.peak_fp8, self.peak_fp8, self.peak_fp4))

    @property
    def gpus(self) -> Array:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def d_head(self) -> Array:
        return np.where(self.head_dim > 0, self.head_dim, self.hidden / self.heads)

    @property
    def d_q(self) -> Array:
        """Of all heads together: what the query projection writes, and the output projection reads."""
        return np.where(self.head_dim > 0, self.heads * self.head_dim, self.hidden)

    @property
    def d_kv(self) -> Array:
        return self.kv_heads * self.d_head

    @property
    def moe(self) -> Array:
        return self.experts > 1

    @property
    def chosen(self) -> Array:
        """MLPs that a token goes through."""
        return np.where(self.moe, np.maximum(1.0, self.topk), 1.0)

    @property
    def depth(self) -> Array:
        """Layers of the fullest stage."""
        return np.ceil(self.layers / self.pp)

    @property
    def attention_weights(self) -> Array:
        """Parameters of a layer's four attention linears."""
        return self.hidden * (2 * self.d_q + 2 * self.d_kv)

    @property
    def mlp_weights(self) -> Array:
        """Parameters of one MLP (of one expert)."""
        return self.hidden * self.ffn * (2 + self.gated)

    @property
    def model_flops(self) -> Array:
        """FLOPs of a token's step by the data's convention, full attention: 6 (L (attention + MLP) + V h) + 12 L h s."""
        active = self.attention_weights + self.chosen * self.mlp_weights
        weights = self.layers * active + self.vocab * self.hidden
        return 6 * weights + 12 * self.layers * self.d_q * self.seq


COLUMNS = tuple(field.name for field in fields(Cases))


def cases(columns: dict[str, object]) -> Cases:
    """Cases from columns (a number or a sequence each), all of one length afterwards."""
    arrays = {name: np.atleast_1d(np.asarray(columns[name], dtype=np.float64)) for name in COLUMNS}
    length = max(one.size for one in arrays.values())
    return Cases(**{name: np.broadcast_to(one, (length,)) for name, one in arrays.items()})
