"""What a rank must hold, and which stage of sharding makes it fit (task 14.1).

A model of P parameters, trained with AdamW. By kind, in bytes a parameter, with weights that compute in `dtype` (b
bytes, 2 for BF16) and masters in FP32:

    weights         b       what the products read
    gradients       b       what the backward leaves, one for each weight
    masters         4       only if b < 4: the same weights in FP32, which the optimizer steps
    moments         8       AdamW's two, FP32

16 bytes in FP32 (4 + 4 + 8), and 16 in BF16, too (2 + 2 + 4 + 8): BF16 saves activations and time, not this.

Each stage takes away copies of one thing (ZeRO, arXiv:1910.02054). Cut means: of a vector of P_i numbers each of N
ranks holds S_i = ceil(P_i / N). Under "zero1" and "zero2" all parameters are one vector, as in 14.3; under "zero3" the
root and each block are vectors of their own, as in 14.4.

    stage           cut over the ranks                          bytes a parameter, N large, BF16
    "ddp"           nothing                                     16
    "zero1"         masters and moments                         4
    "zero2"         ... and gradients                           2
    "zero3"         ... and weights                             0

Under "zero3" a weight at rest is its shard: in FP32 the shard is the weight, in BF16 the shard is the *master*, and the
BF16 weights exist only as gathered copies: those of the root (embedding, norm, head) and of two blocks, the one that
computes and the one that is on its way. Its gradients are in FP32, as 14.4 sums them; during the backward the gradient
of the root and of one block are whole besides, in `dtype`: the others are gone, or have not come.

**Activations.** The backward needs what the forward computed: some bytes for each token in each block (`saved`), which
grow with the batch and are never sharded here. Checkpointing keeps of each block its input alone, D numbers a token,
and computes the block again when its backward comes. Then all numbers of that block (`saved`) are there beside the kept
inputs of all blocks; its own input is one of these, and counts once.

**Logits.** V numbers for each token. While the loss is computed there are three such tensors: the logits in b bytes,
their log-softmax in FP32, and the gradient that goes back, in b bytes. With V = 128256 they are often the largest of
all.

Everything here is a sum of counts. It forgets what the allocator loses between blocks of memory, NCCL's buffers, and
the context of a GPU: some hundred MiB.
"""

from __future__ import annotations

from typing import NamedTuple

STAGES = ("ddp", "zero1", "zero2", "zero3")


class Sizes(NamedTuple):
    """A model, in counts."""

    root: int  # parameters outside the blocks
    block: int  # parameters of each block
    blocks: int  # how many
    width: int  # D: numbers a token has between blocks
    saved: int  # numbers a token leaves in each block for its backward, the block's input among them
    vocab: int  # V


class Memory(NamedTuple):
    """Bytes on one rank, by kind."""

    weights: int  # at rest
    gathered: int  # whole copies of what is cut at rest
    gradients: int
    masters: int
    moments: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return sum(self)


def parameters(sizes: Sizes) -> int:
    """P (given)."""
    return sizes.root + sizes.block * sizes.blocks


def inference(sizes: Sizes, tokens: int, itemsize: int) -> Memory:
    """One rank that only runs the forward: the worked example. Weights, one block's activations, one copy of the
    logits."""
    return Memory(
        weights=parameters(sizes) * itemsize,
        gathered=0,
        gradients=0,
        masters=0,
        moments=0,
        activations=tokens * sizes.saved * itemsize,
        logits=tokens * sizes.vocab * itemsize,
    )


def memory(sizes: Sizes, stage: str, N: int, tokens: int, itemsize: int, checkpointed: bool = False) -> Memory:
    """Task 14.1. Bytes on one of N ranks while the backward runs.

    Args:
        sizes: the model.
        stage: one of STAGES; anything else is a ValueError.
        N: ranks, at least 1.
        tokens: of this rank's micro-batch.
        itemsize: b, bytes of a computing weight or activation: 4 (then there are no masters) or 2.
        checkpointed: whether blocks are computed again in the backward.
    """
    ### BEGIN SOLUTION 14.1 bytes by kind
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, not {stage!r}")
    P, cut = parameters(sizes), STAGES.index(stage)
    part = -(-P // N)  # one vector
    if cut == 3:
        part = -(-sizes.root // N) + sizes.blocks * -(-sizes.block // N)  # sum_i ceil(P_i / N)
    master = 4 if itemsize < 4 else 0
    weights, gathered, gradients = P * itemsize, 0, P * itemsize
    if cut >= 2:
        gradients = part * itemsize
    if cut == 3:
        at_once = min(2, sizes.blocks)  # the block that computes, and the one on its way
        gathered = (sizes.root + at_once * sizes.block) * itemsize
        weights = 0 if master else part * itemsize  # in BF16 the shard is the master
        # summed in FP32, and of the root and of one block the ranks' own
        gradients = part * 4 + (sizes.root + sizes.block) * itemsize
    held = part if cut >= 1 else P
    layers = sizes.blocks * sizes.saved
    if checkpointed:
        layers = (sizes.blocks - 1) * sizes.width + sizes.saved  # the input of the block that is there again is in it
    return Memory(
        weights=weights,
        gathered=gathered,
        gradients=gradients,
        masters=held * master,
        moments=held * 8,
        activations=tokens * layers * itemsize,
        logits=tokens * sizes.vocab * (2 * itemsize + 4),
    )
    ### END SOLUTION


def largest_batch(
    sizes: Sizes, stage: str, N: int, seq_len: int, itemsize: int, capacity: int, checkpointed: bool = False
) -> int:
    """Task 14.1. The most sequences of `seq_len` tokens in a micro-batch that fit into `capacity` bytes; 0 if none
    does."""
    ### BEGIN SOLUTION 14.1 the largest batch
    none, one = (memory(sizes, stage, N, tokens, itemsize, checkpointed).total for tokens in (0, seq_len))
    return max(0, (capacity - none) // (one - none))  # what does not grow with the batch, then what each sequence adds
    ### END SOLUTION
