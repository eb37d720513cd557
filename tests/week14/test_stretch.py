"""The folder that a checkpoint of 14.9 lies in: what its checks, which have no common disk, do not see."""

import pytest
import torch

from labkit.comm.ranks import run_ranks
from week14_fsdp.fsdp import FSDP
from week14_fsdp.given import experiments
from week14_fsdp.given.tiny import Tiny
from week14_fsdp.stretch.checkpoint import Folder, load, save

WEIGHTS = experiments.weights(3, hidden=7, width=5)


def trained(group, steps, folder, first=0):
    """AdamW on the shards, from the folder if it is a checkpoint and into it; losses, and all weights at the end."""
    model = Tiny({name: t * (0 if first else 1) for name, t in WEIGHTS.items()}, group)
    fsdp = FSDP(model, model.blocks, group)
    optimizer = torch.optim.AdamW(fsdp.shards(), lr=0.01)
    if first:
        assert load(fsdp, optimizer, folder, group) == first
    losses = []
    for step in range(first, first + steps):
        loss = model(*experiments.batch(0, step))  # the same batch on all ranks: their number changes nothing
        loss.backward()
        fsdp.finish()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if not first:
        save(fsdp, optimizer, steps, folder, group)
    return losses, [group.all_gather(unit.shard.data)[: unit.numel] for unit in fsdp.units]


@pytest.mark.parametrize("M", [1, 2, 3, 5])
def test_four_ranks_wrote_and_others_read(M, tmp_path):
    folder = Folder(tmp_path / "step2")
    run_ranks(trained, 2, folder, size=4, backend="threads", timeout=60)
    assert len(list(folder.path.iterdir())) == 4 * 4 * 3 + 1
    went_on = run_ranks(trained, 2, folder, 2, size=M, backend="threads", timeout=60)
    whole = run_ranks(trained, 4, Folder(tmp_path / "step4"), size=1, backend="threads", timeout=60)[0]
    for losses, weights in went_on:
        # FP32: a mean over M equal numbers rounds, and AdamW divides.
        assert losses == pytest.approx(whole[0][2:], rel=1e-5)
        for mine, right in zip(weights, whole[1]):
            assert torch.allclose(mine, right, atol=1e-5)


def test_what_was_not_finished_is_no_checkpoint(tmp_path):
    folder = Folder(tmp_path)
    folder.write("0.shard.0", torch.ones(3))
    with pytest.raises(ValueError, match="never finished"):
        folder.index()
    folder.write_index({"ranks": 1})
    assert folder.index() == {"ranks": 1} and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_folder_reads_what_is_asked_for(tmp_path, dtype):
    folder, vector = Folder(tmp_path), torch.arange(10).to(dtype)
    folder.write("v", vector)
    assert folder.read("v", 3, 7, dtype).equal(vector[3:7]) and not len(folder.read("v", 4, 4, dtype))
    with pytest.raises(ValueError, match="shorter"):
        folder.read("v", 8, 11, dtype)
