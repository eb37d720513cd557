"""What test_weights runs on several ranks: functions that other processes can import."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from labkit.comm.group import Group
from labkit.model import weights
from labkit.model.config import ModelConfig
from labkit.model.decoder import init_weights, perturb

# Nothing here divides by 4 ranks: 61, 26 and 30 rows, and norm weights of 26.
UNEVEN = ModelConfig(vocab_size=61, d_model=26, n_layers=2, n_heads=1, n_kv_heads=1, d_ffn=30, max_seq_len=16)
SHAPES = [(61, 26), (8, 3), (3, 5), (26,)]
LAYOUTS = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "whole": ((4,), [Replicate()]),
    "rows in two groups": ((2, 2), [Replicate(), Shard(0)]),
    "rows and columns": ((2, 2), [Shard(0), Shard(1)]),
}


class Holder(nn.Module):
    """The least that init_weights asks of a model: a config and parameters."""

    config = UNEVEN

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.thing = nn.Parameter(values)


def layouts_that_differ(group: Group) -> list[str]:
    """Draw into every layout of every shape; name those where this rank did not get its part of the full tensor."""
    weights.RUN = 64  # small, so that ranks' parts begin and end inside a run
    differ = []
    for name, (mesh_shape, placements) in LAYOUTS.items():
        mesh = init_device_mesh("cpu", mesh_shape)
        for shape in SHAPES:
            if len(shape) == 1 and Shard(1) in placements:
                continue  # a vector has no columns
            full = perturb(init_weights(Holder(torch.empty(shape)), 5), 0.25, 6).thing.detach()
            # distribute_tensor scatters rank 0's tensor: torch's own idea of which part is whose.
            want = distribute_tensor(full, mesh, placements)
            empty = distribute_tensor(torch.zeros(shape), mesh, placements)
            got = perturb(init_weights(Holder(empty), 5), 0.25, 6).thing
            assert isinstance(got, DTensor)
            if not torch.equal(got.to_local(), want.to_local()):
                differ.append(f"{name} {shape}")
    weights.RUN = 1 << 20
    return differ
