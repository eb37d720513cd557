"""Shards as DTensors: clipped and stepped as one process would."""

import torch

from labkit.comm.ranks import run_ranks
from labkit.model.decoder import RotaryAttention
from week14_fsdp.fsdp import FSDP
from week14_fsdp.given.contenders import TOY, batches, fresh_model
from week14_fsdp.given.dtensors import Shards

LIMIT = 0.05  # below the norm of every step here, so that it is always the norm that decides


def a_model(group):
    model = fresh_model(TOY, group.device)
    for block in model.blocks():
        block.attn.core = RotaryAttention()
    return model


def sharded(group):
    """Three steps under FSDP, through DTensors; norms, weights, and what the DTensors say that they are."""
    model, norms = a_model(group), []
    fsdp = FSDP(model, model.blocks(), group)
    shards = Shards(fsdp, group)
    optimizer = torch.optim.AdamW(shards.parameters, lr=1e-3)
    for tokens, targets in batches(TOY, group, 3, 2, 16):
        model(tokens, targets).backward()
        fsdp.finish()
        shards.take_gradients()
        norm = torch.nn.utils.clip_grad_norm_(shards.parameters, LIMIT)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        shards.zero_grad()
    cut = [tuple(p.shape) == (group.size * unit.S,) for p, unit in zip(shards.parameters, fsdp.units)]
    return norms, [group.all_gather(unit.shard.data)[: unit.numel] for unit in fsdp.units], all(cut)


def alone(group):
    """One rank with the whole batch."""

    class Of:
        def __init__(self, rank):
            self.ranks, self.rank, self.device = [rank], 0, group.device

    model, norms = a_model(group), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = [batches(TOY, Of(r), 3, 2, 16) for r in range(2)]
    for step in range(3):
        optimizer.zero_grad()
        torch.stack([model(*part[step]) for part in parts]).mean().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT).item())
        optimizer.step()
    blocks = {p for block in model.blocks() for p in block.parameters()}
    units = [[p for p in model.parameters() if p not in blocks], *(list(b.parameters()) for b in model.blocks())]
    return norms, [torch.cat([p.detach().reshape(-1) for p in unit]) for unit in units]


def test_clipped_and_stepped_as_in_one_process():
    norms, weights = run_ranks(alone, size=1, timeout=300)[0]
    assert min(norms) > 2 * LIMIT
    for found, parts, cut in run_ranks(sharded, size=2, timeout=300):
        assert cut
        # FP32: a gradient is a sum of some hundred products, added in another order; AdamW's quotient of two small
        # numbers is as far off as they are.
        assert torch.allclose(torch.tensor(found), torch.tensor(norms), rtol=1e-5)
        for mine, right in zip(parts, weights):
            assert (mine - right).abs().max() < 1e-4
