"""The reference of 14.4 beside torch's `fully_shard`: one decoder, the same batches; losses and whole gradients."""

import pytest
import torch

from labkit.comm.ranks import run_ranks
from labkit.model.decoder import RotaryAttention
from labkit.parallel.shard import shard
from week14_fsdp.fsdp import FSDP
from week14_fsdp.given.contenders import TOY, Fsdp, Fsdp2, batches, fresh_model


def whole_gradients(group, ours: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of two micro-batches in FP32, and all gradients after them, whole, by name."""
    model = fresh_model(TOY, group.device)
    for block in model.blocks():
        block.attn.core = RotaryAttention()
    names = {p: name for name, p in model.named_parameters()}
    data, losses, found = batches(TOY, group, 2, 2, 16), [], {}
    if ours:
        sharded = FSDP(model, model.blocks(), group)
    else:
        shard(model, group, param_dtype=None)
    for tokens, targets in data:
        loss = model(tokens, targets)
        loss.backward()
        losses.append(loss.item())
        if ours:
            sharded.finish()
    if not ours:
        return losses, {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    for unit in sharded.units:
        flat = group.all_gather(unit.shard.grad)
        for p, part in zip(unit.params, flat[: unit.numel].split([p.numel() for p in unit.params])):
            found[names[p]] = part.view(p.shape).clone()
    return losses, found


@pytest.mark.parametrize("N", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_losses_and_gradients_in_fp32(N):
    """Two ranks add two numbers, in either order the same. Four may be added in another order: 3 roundings of FP32, of
    numbers about as large as the largest gradient."""
    ours, theirs = (run_ranks(whole_gradients, mine, size=N, timeout=300) for mine in (True, False))
    for (losses, mine), (wanted, right) in zip(ours, theirs):
        assert losses == wanted
        assert set(mine) == set(right)
        for name, want in right.items():
            tolerance = 0.0 if N == 2 else 4 * 2.0**-24 * N * want.abs().max().item()
            assert (mine[name] - want).abs().max().item() <= tolerance, name


def trained(group, ours: bool) -> list[float]:
    data = batches(TOY, group, 4, 2, 16)
    one = (Fsdp if ours else Fsdp2)(TOY, group)
    return [one.step([data[k], data[3 - k]]).item() for k in range(4)]


@pytest.mark.thorough
def test_four_steps_in_bf16():
    """Gathered in BF16, summed in FP32, stepped by AdamW: the same losses to the last bit."""
    ours, theirs = (run_ranks(trained, mine, size=2, timeout=300) for mine in (True, False))
    assert list(ours) == list(theirs)
