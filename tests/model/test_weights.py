"""First values and twins: a function of name, shape and seed, whatever holds the weight."""

import math

import pytest
import torch
from torch import Tensor, nn

from labkit.comm.ranks import run_ranks
from labkit.errors import LabError
from labkit.model import weights
from labkit.model.config import ModelConfig, sizes
from labkit.model.decoder import Transformer, init_weights, perturb
from tests.model.weights_on_ranks import layouts_that_differ

SMALL = ModelConfig(vocab_size=61, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=64)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert torch.equal(got[name], want[name]), name


def test_the_scheme() -> None:
    w = values(init_weights(Transformer(sizes()["tiny"]), 0))
    for name, value in w.items():
        if value.ndim == 1:
            assert torch.equal(value, torch.ones_like(value)), name
            continue
        std = 0.02 / math.sqrt(2 * 4) if name.endswith(("attn.wo.weight", "ffn.w2.weight")) else 0.02
        # n samples: the mean is off by about std / sqrt(n), the deviation by std / sqrt(2 n); five times that is far.
        assert abs(value.mean()) < 5 * std / math.sqrt(value.numel()), name
        assert abs(value.std() / std - 1) < 5 / math.sqrt(2 * value.numel()), name
        assert value.abs().max() > 3 * std, f"{name}: a normal distribution has tails"


def test_every_weight_draws_its_own_numbers() -> None:
    drawn = [v for v in values(init_weights(Transformer(sizes()["tiny"]), 0)).values() if v.ndim == 2]
    starts = {tuple((v.flatten()[:4] / v.std()).round(decimals=3).tolist()) for v in drawn}
    assert len(starts) == len(drawn)


def test_rows_drawn_in_runs_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "RUN", 96)  # three rows of 32 for each generator
    w = init_weights(Transformer(SMALL), 0).tok_embed.weight
    assert len(torch.unique(w.detach(), dim=0)) == 61
    assert abs(w.std() / 0.02 - 1) < 5 / math.sqrt(2 * w.numel())


def test_seeds() -> None:
    first, again, other = (values(init_weights(Transformer(SMALL), seed)) for seed in (0, 0, 1))
    same(first, again)
    assert not any(torch.equal(first[n], other[n]) for n in first if first[n].ndim == 2)


def test_linear_type_order_and_global_generator_do_not_matter() -> None:
    class Backwards(nn.Module):
        """A linear that draws other first values, holds its weight in bf16, and carries a bias."""

        def __init__(self, in_features: int, out_features: int) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.rand(out_features))
            self.weight = nn.Parameter(torch.rand(out_features, in_features, dtype=torch.bfloat16))

    torch.manual_seed(123)
    model = Transformer(SMALL, linear=lambda name, i, o: Backwards(i, o) if name != "head" else nn.Linear(i, o, False))
    model.layers = nn.ModuleDict(reversed(list(model.layers.items())))  # named by place, whenever it was built
    torch.rand(7)
    got, want = values(init_weights(model, 0)), values(init_weights(Transformer(SMALL), 0))
    for name, value in got.items():
        if name.endswith("bias"):
            assert not value.any()
        else:
            assert torch.equal(value, want[name].to(value.dtype)), name


def test_wrappers_do_not_matter() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Transformer(SMALL)
    model.layers["0"] = checkpoint_wrapper(model.layers["0"])
    model.layers["1"] = torch.compile(model.layers["1"])
    init_weights(model, 0)
    named = dict(zip(values(Transformer(SMALL)), values(model).values(), strict=True))
    same(named, values(init_weights(Transformer(SMALL), 0)))


def test_meta_device() -> None:
    with torch.device("meta"):
        model = Transformer(SMALL)
    with pytest.raises(LabError, match="tok_embed.weight is on the meta device .*to_empty"):
        init_weights(model, 0)
    model.to_empty(device="cpu")
    for p in model.parameters():
        nn.init.constant_(p, float("nan"))  # what to_empty leaves may be anything
    same(values(init_weights(model, 0)), values(init_weights(Transformer(SMALL), 0)))


def test_tied_head() -> None:
    tied = SMALL.replace(tie_embeddings=True)
    model = init_weights(Transformer(tied), 0)
    assert model.head.weight is model.tok_embed.weight
    assert torch.equal(model.head.weight, init_weights(Transformer(SMALL), 0).tok_embed.weight)
    with torch.device("meta"):
        elsewhere = Transformer(tied)
    same(values(init_weights(elsewhere.to_empty(device="cpu"), 0)), values(model))
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(LabError, match="head's weight is no longer the embedding's"):
        init_weights(model, 0)


# -- The twin ---------------------------------------------------------------------------------------------------------
def test_perturb_is_relative_uniform_and_repeatable() -> None:
    before = values(init_weights(Transformer(sizes()["tiny"]), 0))
    model = perturb(init_weights(Transformer(sizes()["tiny"]), 0), 2**-9, 3)
    after = values(model)
    for name, w in before.items():
        u = ((after[name].double() - w.double()) / (w.double() * 2**-9))[w.abs() > 1e-6]
        assert u.abs().max() <= 1 + 2**-13, name  # fp32 rounds the product: 2**-24 of w is 2**-15 of the step
        if w.numel() > 10_000:
            # uniform(-1, 1): mean 0, mean square 1/3, and values over all of the range
            assert abs(u.mean()) < 5 / math.sqrt(3 * u.numel()) and abs(u.square().mean() - 1 / 3) < 0.01, name
            assert u.min() < -0.99 and u.max() > 0.99
        else:
            assert len(u.unique()) > w.numel() // 2, "norm weights are moved too, each by its own amount"
    same(values(perturb(init_weights(Transformer(sizes()["tiny"]), 0), 2**-9, 3)), after)
    other = values(perturb(init_weights(Transformer(sizes()["tiny"]), 0), 2**-9, 4))
    assert not any(torch.equal(other[name], after[name]) for name in after)


def test_perturb_is_not_the_initial_draw_again() -> None:
    """Same seed for both: the moves must not follow the weights' own random numbers."""
    w = init_weights(Transformer(sizes()["tiny"]), 0).tok_embed.weight.detach().clone()
    u = perturb(init_weights(Transformer(sizes()["tiny"]), 0), 0.5, 0).tok_embed.weight.detach() / w - 1
    assert abs(torch.corrcoef(torch.stack((w.flatten(), u.flatten())))[0, 1]) < 5 / math.sqrt(w.numel())


# -- Sharded ----------------------------------------------------------------------------------------------------------
def test_each_rank_draws_its_own_part() -> None:
    assert list(run_ranks(layouts_that_differ, size=4, timeout=120.0)) == [[]] * 4
