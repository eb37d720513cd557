"""Attention with its heads split over ranks (task 15.2).

Heads do not talk to each other until the output projection mixes them. So rank r computes some of the heads from the
first product to the last, and nothing is sent in between. Four weights, cut for it:

    W_q, W_k, W_v     by rows: a head is H rows in a row, and the rows of rank r's heads stay together
    W_o               by columns: the inputs of W_o are the heads' outputs

(Megatron-LM, arXiv:1909.08053, figure 3b.) You know from 15.1 what belongs in front of the first three and behind the
last. x is used by three products: find out why one message for the three is enough.

Grouped-query attention (arXiv:2305.13245) has fewer key/value heads than query heads: query head n reads key/value
head n // (n_heads / n_kv_heads). With N <= n_kv_heads each rank takes n_kv_heads / N of them, and exactly the query
heads that read them. With N > n_kv_heads there is no slice for everybody: N / n_kv_heads ranks in a row hold *the
same* key/value head, each for query heads of its own. These ranks are replicas of each other. Llama-3 8B has 8
key/value heads, and 16 ranks are common.

What a replica must not forget. Its copies of W_k and W_v start equal, and each rank's gradient of them comes from its
own query heads alone: addends. An optimizer that steps with these lets the copies drift apart, and nothing
fails. You have the step that makes addends of a gradient whole; what is its input here? It costs
twice the weights' gradients over a group of N / n_kv_heads ranks (one all-reduce), not a message as long as the
sequence.

And what it must not do twice: the gradient of x sums what *all* ranks bring. A replica brings its own query heads'
part through W_k; the sum of the parts is what one key/value head would have brought.

Rotary embedding turns q and k by position. All ranks have all positions here: the tables are the same on every rank.

Legend: N ranks, r this rank; B batch, T positions, D model width, H head width, n and k query and key/value heads of
this rank, R = H / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from labkit.errors import LabError
from labkit.model.decoder import RotaryAttention

from .linears import copy_to_ranks, reduce_over_ranks


class Share(NamedTuple):
    """Which heads a rank has: query heads `query[0]` to `query[1] - 1`, key/value heads likewise. `replicas`: the ranks
    in parts, as `group.split` takes them; ranks with the same key/value heads are in one part."""

    query: tuple[int, int]
    kv: tuple[int, int]
    replicas: list[list[int]]


def feed_forward_share(d_ffn: int, N: int, r: int) -> tuple[int, int]:
    """Which features of the feed-forward network rank r has, first and one past the last: the worked example."""
    if d_ffn % N:
        raise LabError(f"{d_ffn} features of the feed-forward network cannot be split over {N} ranks: choose a divisor")
    width = d_ffn // N
    return r * width, (r + 1) * width


def split_heads(n_heads: int, n_kv_heads: int, N: int, r: int) -> Share:
    """Task 15.2. Rank r's share of the heads.

    Raises LabError, with the numbers in the sentence, if the query heads do not divide by N; if the key/value heads,
    where they are at least N, do not divide by N; or if N, where it is larger, does not divide by them.
    `n_heads` divides by `n_kv_heads`.
    """
    ### BEGIN SOLUTION 15.2 split heads
    if n_heads % N:
        raise LabError(
            f"{n_heads} query heads cannot be split over {N} ranks: choose a number of ranks that divides them"
        )
    if max(n_kv_heads, N) % min(n_kv_heads, N):
        raise LabError(
            f"{n_kv_heads} key/value heads cannot be split over {N} ranks, nor {N} ranks over them: one must "
            f"divide the other"
        )
    n = n_heads // N
    k = max(1, n_kv_heads // N)
    copies = max(1, N // n_kv_heads)  # ranks in a row that hold the same key/value head
    first = r // copies * k
    replicas = [list(range(start, start + copies)) for start in range(0, N, copies)]
    return Share((r * n, (r + 1) * n), (first, first + k), replicas)
    ### END SOLUTION


def slice_weights(weights: Mapping[str, Tensor], share: Share, d_head: int) -> dict[str, Tensor]:
    """Task 15.2. A rank's slices of the whole weights "wq" [D, D], "wk" and "wv" [n_kv_heads H, D], "wo" [D, D], each
    [out, in], under the same names."""
    ### BEGIN SOLUTION 15.2 slice weights
    H = d_head
    query, kv = slice(share.query[0] * H, share.query[1] * H), slice(share.kv[0] * H, share.kv[1] * H)
    return {
        "wq": weights["wq"][query].clone(),  # [n H, D]
        "wk": weights["wk"][kv].clone(),  # [k H, D]
        "wv": weights["wv"][kv].clone(),  # [k H, D]
        "wo": weights["wo"][:, query].clone(),  # [D, n H]
    }
    ### END SOLUTION


class ParallelAttention(nn.Module):
    """Task 15.2. Causal attention of which rank r has some of the heads.

    weights   this rank's slices: "wq", "wk", "wv", "wo" (see `slice_weights`)
    group     the tensor-parallel ranks
    """

    def __init__(self, weights: Mapping[str, Tensor], group, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        share = split_heads(n_heads, n_kv_heads, group.size, group.rank)
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(weights[name]) for name in ("wq", "wk", "wv", "wo"))
        self.group = group
        self.replicas = group.split(share.replicas, name="replicas")  # the ranks with this rank's key/value heads
        self.d_head = len(self.wq) // (share.query[1] - share.query[0])
        self.core = RotaryAttention()  # turns q and k, then softmax(q k^T / sqrt(H)) v; any number of heads

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """x, whole -> y [B, T, D], whole. One all-reduce over the group forward, one backward, and the replicas' sums
        of the gradients of W_k and W_v."""
        ### BEGIN SOLUTION 15.2 attention with split heads
        x_BTD = copy_to_ranks(x_BTD, self.group)  # once, in front of the three products: their addends are one tensor
        # A weight that is whole on the replicas, and that each uses for query heads of its own: the step as for x.
        wk, wv = copy_to_ranks(self.wk, self.replicas), copy_to_ranks(self.wv, self.replicas)
        q_BTnH, k_BTkH, v_BTkH = (
            nn.functional.linear(x_BTD, w).unflatten(-1, (-1, self.d_head))  # [B,T,D] @ [D,nH] -> [B,T,n,H]
            for w in (self.wq, wk, wv)
        )
        y_BTnH = self.core(q_BTnH, k_BTkH, v_BTkH, cos_TR, sin_TR)
        addend_BTD = nn.functional.linear(y_BTnH.flatten(-2), self.wo)  # [B,T,nH] @ [nH,D] -> [B,T,D]
        return reduce_over_ranks(addend_BTD, self.group)
        ### END SOLUTION
