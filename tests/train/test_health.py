"""Do all ranks come to the same, right answer about a step?"""

import math

import pytest
import torch
from torch import nn

from labkit.comm.ranks import run_ranks
from labkit.train import health


def with_gradients(*grads):
    model = nn.ParameterList(torch.zeros_like(grad) for grad in grads)
    for parameter, grad in zip(model, grads):
        parameter.grad = grad.clone()
    return model


def on_ranks(fn, *args, size=2):
    return run_ranks(fn, *args, size=size, backend="threads", timeout=60.0)


def vitals(group, losses, grads):
    model = with_gradients(*grads[group.rank])
    return health.check(torch.tensor(losses[group.rank]), model, group, memory_bytes=1000 + group.rank).read()


REPLICAS = [[torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]] * 2  # |g| = 5, the same on both ranks


def test_loss_is_the_mean_and_the_norm_counts_each_element_once():
    for v in on_ranks(vitals, [1.0, 2.0], REPLICAS):
        assert v.loss == 1.5
        assert v.grad_norm == pytest.approx(5.0, rel=1e-6)  # fp32 norms
        assert v.finite and v.bad_loss == v.bad_grad == 0
        assert v.memory == [1000, 1001]


def test_one_bad_gradient_is_known_everywhere_although_all_losses_are_finite():
    for bad in (math.inf, -math.inf, math.nan):
        spoilt = [REPLICAS[0], [torch.tensor([3.0, bad]), torch.tensor([[4.0]])]]
        for v in on_ranks(vitals, [1.0, 1.0], spoilt):
            assert not v.finite and v.bad_grad == 1 and v.bad_loss == 0
            assert v.loss == 1.0 and math.isnan(v.grad_norm)


def test_one_bad_loss_is_known_everywhere():
    for bad in (math.inf, math.nan):
        for v in on_ranks(vitals, [1.0, bad, 1.0], REPLICAS[:1] * 3, size=3):
            assert not v.finite and v.bad_loss == 1 and v.bad_grad == 0
            assert math.isnan(v.loss)
            assert v.grad_norm == pytest.approx(5.0, rel=1e-6)


def watched(group, losses, grads):
    sent = []
    original = group.all_reduce
    group.all_reduce = lambda tensor, *a, **k: (sent.append(tensor.clone()), original(tensor, *a, **k))[1]
    vitals(group, losses, grads)
    return sent


def test_one_message_and_no_nan_in_it():
    bad = [REPLICAS[0], [torch.tensor([math.nan, math.inf]), torch.tensor([[1.0]])]]
    for sent in on_ranks(watched, [1.0, math.nan], bad):
        assert len(sent) == 1
        assert sent[0].isfinite().all()


def test_large_gradients_are_not_mistaken_for_infinite_ones():
    big = [[torch.tensor([1.5e19])] * 4] * 2  # each square fits into fp32, their sum does not
    for v in on_ranks(vitals, [1.0, 1.0], big):
        assert v.finite and v.grad_norm == pytest.approx(3e19, rel=1e-6)


def test_clipping():
    for clip_norm, want in [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])]:
        model = with_gradients(torch.tensor([3.0, 4.0]))
        health.clip(model, 5.0, clip_norm)
        torch.testing.assert_close(model[0].grad, torch.tensor(want))


def test_culprits_are_named():
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(5)))
    for i, layer in enumerate(model):
        layer.weight.grad = torch.full((2, 2), math.nan if i else 0.0)
    assert health.culprits(model) == "1.weight, 2.weight, 3.weight and 1 more"
    assert health.culprits(model, most=4) == "1.weight, 2.weight, 3.weight, 4.weight"


def texts(group, words):
    return health.gather_text(group, words[group.rank])


@pytest.mark.parametrize("words", [["", ""], ["a", ""], ["", "längere Worte ✓"], ["one", "two"]])
def test_texts_of_all_ranks_in_order(words):
    assert on_ranks(texts, words) == [words, words]


def complaints(group, words):
    return health.agree(group, words[group.rank])


@pytest.mark.parametrize("words, agreed", [([None, None], None), ([None, "b"], "b"), (["a", "b"], "a")])
def test_agreeing(words, agreed):
    assert on_ranks(complaints, words) == [agreed, agreed]


def block_norms(group, spoilt):
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(2))
    model.head = nn.Linear(3, 2, bias=False)
    drawn = torch.Generator().manual_seed(0)  # of its own: ranks are threads and share torch's
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=drawn)
        parameter.grad = torch.randn(parameter.shape, generator=drawn)
    if spoilt:
        model.head.weight.grad[0, 0] = math.nan
    weights = torch.cat([parameter.flatten() for parameter in model.parameters()]).norm().item()
    each = {"layers.0": model.layers[0], "layers.1": model.layers[1], "head": model.head}
    return health.norms(model, group), weights, {block: each[block].weight.grad.norm().item() for block in each}


@pytest.mark.parametrize("spoilt", [False, True])
def test_norms_of_the_weights_and_of_each_blocks_gradient_count_replicas_once(spoilt):
    for got, weights, grads in on_ranks(block_norms, spoilt):
        assert got["param_norm"] == pytest.approx(weights, rel=1e-6)
        assert got["grad_norms"] == pytest.approx(grads, rel=1e-6, nan_ok=True)
