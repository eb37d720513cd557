"""Tensor parallelism: every linear of the decoder cut over the ranks, by torch's own `parallelize_module`.

    wq, wk, wv, w1, w3, head    by rows: a rank computes some of the outputs (whole heads)
    wo, w2                      by columns: a rank computes an addend of all outputs; the ranks' sum follows
    tok_embed                   by rows of the table: a rank fills in the tokens that it has rows for

An all-reduce follows attention and the feed-forward network, and precedes each in backward (arXiv:1909.08053); with
`positions` a reduce-scatter and an all-gather take its place (arXiv:2205.05198).
"""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer


def tensor_parallel(model: Transformer, mesh: DeviceMesh, *, positions: bool = False) -> Transformer:
    """Spread a model or a stage of it over the dimension of `mesh`, in place. LabError: heads or features divide not."""
    check(model.config, mesh.size())
    parallelize_module(model, mesh, plan(model, positions))
    return model


def check(config: ModelConfig, ranks: int) -> None:
    """LabError if the decoder cannot be cut for so many ranks."""
    if config.experts and ranks > 1:
        raise LabError("experts are not cut by tensor parallelism here: leave tp at 1, or set experts and topk to 0")
    counts = {"n_heads": config.n_heads, "n_kv_heads": config.n_kv_heads, "d_ffn": config.d_ffn}
    for name, count in counts.items():
        if count % ranks:
            raise LabError(f"{name} = {count} cannot be split over {ranks} tensor-parallel ranks: choose a divisor")
    if config.tie_embeddings and ranks > 1:
        raise LabError("a tied head cannot be cut as the embedding and as a linear: tie_embeddings = false")


def plan(model: Transformer, positions: bool) -> dict[str, ParallelStyle]:
    """The plan for `parallelize_module`, by module name."""
    between, whole = Shard(1) if positions else Replicate(), Replicate()
    found: dict[str, ParallelStyle] = {}
    for i in model.layers:
        at = f"layers.{i}"
        found[f"{at}.attn"] = PrepareModuleInput(
            input_layouts=(between, None, None), desired_input_layouts=(whole, None, None)
        )
        found[f"{at}.ffn"] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(whole,))
        found |= {f"{at}.{name}": ColwiseParallel() for name in ("attn.wq", "attn.wk", "attn.wv", "ffn.w1", "ffn.w3")}
        found |= {f"{at}.{name}": RowwiseParallel(output_layouts=between) for name in ("attn.wo", "ffn.w2")}
        if positions:
            found |= {f"{at}.{name}": SequenceParallel() for name in ("attn_norm", "ffn_norm")}
    if model.tok_embed is not None:
        found["tok_embed"] = RowwiseParallel(input_layouts=whole, output_layouts=between)
    if model.head is not None:
        found["head"] = ColwiseParallel(input_layouts=between, output_layouts=whole)
        if positions:
            found["norm"] = SequenceParallel()
    return found
