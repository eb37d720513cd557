"""Which blocks each stage of a pipeline has. What runs the stages is week 15's.

A stage is the decoder with some of its blocks (`Transformer(config, layers=...)`). The pipeline goes at the pace of its
slowest stage, so the last one, which has the head and the loss too, gets fewer blocks.
"""

from __future__ import annotations

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.flops import linear_params


def stage_layers(config: ModelConfig, stages: int, stage: int) -> range:
    """Stage `stage`'s blocks, so that the products of the slowest stage are as few as they can be.

    A block's weight is 1, the head's what its parameters are to those that a token meets in a block. LabError: fewer
    blocks than stages."""
    if not 0 <= stage < stages:
        raise LabError(f"there is no stage {stage} of {stages}")
    if stages > config.n_layers:
        raise LabError(f"{config.n_layers} blocks cannot be {stages} stages: each stage has one at least")
    head_size = config.vocab_size * config.d_model
    head = head_size * config.n_layers / (linear_params(config) - head_size)
    most = min(_slowest(config.n_layers, stages, last, head) for last in _choices(config.n_layers, stages))
    last = next(k for k in _choices(config.n_layers, stages) if _slowest(config.n_layers, stages, k, head) == most)
    if stages == 1:
        return range(config.n_layers)
    rest, others = config.n_layers - last, stages - 1
    cuts = [rest * k // others for k in range(stages)]
    return range(rest, config.n_layers) if stage == others else range(cuts[stage], cuts[stage + 1])


def _choices(layers: int, stages: int) -> range:
    """How many blocks the last stage can have, the largest first."""
    return range(layers, layers - 1, -1) if stages == 1 else range(layers - stages + 1, 0, -1)


def _slowest(layers: int, stages: int, last: int, head: float) -> float:
    """The weight of the heaviest stage if the last one has `last` blocks."""
    others = -(-(layers - last) // (stages - 1)) if stages > 1 else 0
    return max(last + head, others)
