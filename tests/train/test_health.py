"""Do all ranks come to the same, right answer about a step?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from labkit.comm.ranks import run_ranks
from labkit.train import health


def parameters(*grads):
    made = []
    for grad in grads:
        p = nn.Parameter(torch.zeros_like(grad))
        p.grad = grad.clone()
        made.append(p)
    return made


def on_ranks(fn, *args, size=2):
    return run_ranks(fn, *args, size=size, backend="threads", timeout=60.0)


def vitals(group, losses, grads, copies=None):
    made = parameters(*grads[group.rank])
    if copies is not None:
        for p in made:
            p.copies = copies
    return health.check(torch.tensor(losses[group.rank]), made, group, memory_bytes=1000 + group.rank)


REPLICAS = [[torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]] * 2  # |g| = 5, the same on both ranks


def test_loss_is_the_mean_and_the_norm_counts_each_element_once():
    for v in on_ranks(vitals, [1.0, 2.0], REPLICAS):
        assert v.loss == 1.5
        assert v.grad_norm == pytest.approx(5.0, rel=1e-6)  # fp32 norms
        assert v.finite and v.bad_loss == v.bad_grad == 0
        assert v.memory == [1000, 1001]


def test_norm_of_parameters_split_by_hand():
    halves = [[torch.tensor([3.0])], [torch.tensor([4.0])]]
    assert [v.grad_norm for v in on_ranks(vitals, [0.0, 0.0], halves, 1)] == pytest.approx([5.0, 5.0], rel=1e-6)


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


def no_gradients(group):
    return health.check(torch.tensor(1.0), [nn.Parameter(torch.zeros(3))], group)


def test_no_gradients_at_all():
    for v in on_ranks(no_gradients):
        assert v.finite and v.grad_norm == 0.0


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


def test_agreeing():
    assert on_ranks(complaints, [None, None]) == [None, None]
    assert on_ranks(complaints, [None, "b"]) == ["b", "b"]
    assert on_ranks(complaints, ["a", "b"]) == ["a", "a"]
