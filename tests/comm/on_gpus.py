"""Sub-groups, a mesh and the ledger over NCCL: what two GPUs or more can show and a CPU cannot.

    NCCL_NVLS_ENABLE=0 torchrun --nproc_per_node 2 -m tests.comm.on_gpus OUT.json

Sums and exchanges in sub-groups are checked. What FSDP2 and Transformer Engine send by themselves is written down from
the ledger of rank 0. Without a GPU the same runs over gloo, and without Transformer Engine its part is left out.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labkit.comm import run_ranks
from labkit.comm.group import Group
from labkit.comm.mesh import Mesh
from labkit.record.hardware import gpus
from labkit.record.run import versions


def groups(group: Group) -> None:
    """Every rank alone, all in one sub-group, and a ring inside it. AssertionError where a number is wrong."""
    x = torch.full((1024,), group.rank + 1.0, device=group.device)
    total = group.size * (group.size + 1) / 2
    mesh = Mesh(group, dp=1, tp=group.size)
    assert mesh["tp"].all_reduce(x.clone())[0] == total
    assert mesh["dp"].all_reduce(x.clone())[0] == group.rank + 1
    ring = group.split([list(range(group.size))], name="ring")
    left, right = (ring.rank - 1) % ring.size, (ring.rank + 1) % ring.size
    assert ring.sendrecv(x, dst=right, src=left, like=x)[0] == left + 1
    assert ring.all_gather(x[:1]).tolist() == [rank + 1.0 for rank in range(group.size)]


def sent(group: Group, begin: int) -> list[str]:
    """What this rank's ledger holds from there on: kind, bytes and group of each collective."""
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    events = group.ledger.events[begin:]
    return [f"{e.kind} {e.bytes} {e.group}" for e in events if e.kind not in ("wait", "split")]


def fsdp(group: Group) -> list[str]:
    """One step of two linears, each a unit of FSDP2."""
    from torch.distributed.fsdp import fully_shard

    mesh = Mesh(group, ledger=True, dp=group.size).device_mesh
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False, device=group.device) for _ in range(2)))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    begin = len(group.ledger.events)
    model(torch.randn(16, 256, device=group.device)).square().mean().backward()
    return sent(group, begin)


def transformer_engine(group: Group) -> dict[str, list[str]]:
    """A column- and a row-parallel te.Linear with sequence parallelism, by recipe."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

    along = Mesh(group, ledger=True, tp=group.size).device_mesh.get_group("tp")
    found = {}
    for name, recipe in (("bf16", None), ("delayed", DelayedScaling()), ("current", Float8CurrentScaling())):
        both = dict(bias=False, tp_group=along, tp_size=group.size, sequence_parallel=True, device=group.device)
        column = te.Linear(512, 1024, parallel_mode="column", params_dtype=torch.bfloat16, **both)
        row = te.Linear(1024, 512, parallel_mode="row", params_dtype=torch.bfloat16, **both)
        x = torch.randn(64, 512, device=group.device, dtype=torch.bfloat16, requires_grad=True)
        begin = len(group.ledger.events)
        with te.autocast(enabled=recipe is not None, recipe=recipe, amax_reduction_group=along):
            y = row(column(x))
        y.float().square().mean().backward()
        found[name] = sent(group, begin)
    return found


def job(group: Group) -> dict[str, Any]:
    groups(group)
    found: dict[str, Any] = {"fsdp2": fsdp(group)}
    if group.device.type == "cuda" and importlib.util.find_spec("transformer_engine") is not None:
        found["transformer_engine"] = transformer_engine(group)
    return found


def main() -> None:
    there = torch.cuda.is_available()
    found = run_ranks(job, timeout=200, device="cuda" if there else "cpu")[0]
    if os.environ.get("RANK", "0") == "0":
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "hardware": f"{torch.cuda.device_count()} {gpus()[0]['name']}" if there else "CPU",
            "versions": versions(),
            "command": "torchrun --nproc_per_node 2 -m tests.comm.on_gpus",
            "kind, bytes and group of each collective of rank 0": found,
        }
        Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
