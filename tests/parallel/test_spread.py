"""What tensor parallelism and stages refuse, and how blocks are dealt out. That TP computes what one process does:
test_meshes.py."""

import re

import pytest

from labkit.errors import LabError
from labkit.model.config import ModelConfig, sizes
from labkit.model.decoder import Transformer
from labkit.parallel import tensor
from labkit.parallel.stages import stage_layers

SMALL = dict(vocab_size=64, d_model=32, n_layers=4, n_heads=8, n_kv_heads=4, d_ffn=48, max_seq_len=16)


@pytest.mark.parametrize(
    "change, ranks, said",
    [
        ({}, 3, "n_heads = 8 cannot be split over 3"),
        ({}, 8, "n_kv_heads = 4 cannot be split over 8"),
        ({"d_ffn": 50}, 4, "d_ffn = 50 cannot be split over 4"),
        ({"tie_embeddings": True}, 2, "tie_embeddings = false"),
        ({"experts": 4, "topk": 2}, 2, "experts are not cut by tensor parallelism here"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(change, ranks, said):
    with pytest.raises(LabError, match=f"^.*{re.escape(said)}.*$"):
        tensor.check(ModelConfig(**{**SMALL, **change}), ranks)


@pytest.mark.parametrize("positions", [False, True])
def test_every_linear_of_every_stage_is_in_the_plan(positions):
    config = ModelConfig(**SMALL)
    for p in range(2):
        model = Transformer(config, layers=stage_layers(config, 2, p))
        linears = {name.removesuffix(".weight") for name, w in model.named_parameters() if w.dim() == 2}
        planned = set(tensor.plan(model, positions))
        assert linears <= planned
        assert all(model.get_submodule(name) is not None for name in planned)


@pytest.mark.parametrize("name", ["124m", "1b", "8b"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_are_all_the_blocks_and_none_is_much_slower(name, stages):
    config = sizes()[name]
    cut = [stage_layers(config, stages, p) for p in range(stages)]
    assert [i for one in cut for i in one] == list(range(config.n_layers)) and all(cut)
    block = sum(s[0] * s[1] for s in config.block_shapes().values() if len(s) == 2)
    head = config.vocab_size * config.d_model / block
    slowest = max(len(one) + head * (p == stages - 1) for p, one in enumerate(cut))
    alternatives = [  # the last stage has k blocks, the others share the rest
        max(k + head, -(-(config.n_layers - k) // (stages - 1)) if stages > 1 else 0)
        for k in ([config.n_layers] if stages == 1 else range(1, config.n_layers - stages + 2))
    ]
    assert slowest == pytest.approx(min(alternatives))


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(LabError, match="4 blocks cannot be 5 stages"):
        stage_layers(ModelConfig(**SMALL), 5, 0)
