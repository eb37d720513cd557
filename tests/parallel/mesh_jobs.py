"""What the rank processes of test_meshes.py run: the decoder on every kind of mesh. No test in here."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from labkit.comm.group import Group
from labkit.errors import LabError
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights, perturb
from labkit.parallel.tensor import tensor_parallel
from labkit.train import health
from labkit.train.checkpoint import Checkpoints
from labkit.train.loop import Parts, train
from labkit.train.optim import adamw
from labkit.train.state import local_bytes
from tests.train import training_jobs as jobs

# 259 entries do not divide by 4 ranks. Heads and features do, as tensor parallelism wants.
SHAPE = dict(vocab_size=259, d_model=32, n_layers=2, n_heads=4, n_kv_heads=4, d_ffn=48, max_seq_len=16)
AXES = {
    "fsdp 4": (("dp", 4),),
    "replicas 2 x fsdp 2": (("replicas", 2), ("dp", 2)),
    "fsdp 2 x tp 2": (("dp", 2), ("tp", 2)),
    "tp 4": (("tp", 4),),
    "tp 4 with norms over positions": (("tp", 4),),
}


def placed(kind: str, seed: int = 7) -> Transformer:
    """The decoder on this mesh: cut on the meta device, given memory, and its first values."""
    with torch.device("meta"):
        model = Transformer(jobs.small_config(model=SHAPE).resolved_model)
    if kind == "one process":
        return init_weights(model.to_empty(device="cpu"), seed)
    mesh = mesh_of(kind)
    names = mesh.mesh_dim_names or ()
    if "tp" in names:
        tensor_parallel(model, mesh["tp"], positions="positions" in kind)
    if "dp" in names:
        over = mesh if "replicas" in names else mesh["dp"]
        for block in model.blocks():
            fully_shard(block, mesh=over)
        fully_shard(model, mesh=over)
    model.to_empty(device="cpu")
    return init_weights(model, seed)


def mesh_of(kind: str) -> DeviceMesh:
    names, sizes = zip(*AXES[kind])
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def share(kind: str, group: Group) -> tuple[int, int]:
    """Which part of the batch is this rank's: tensor-parallel ranks work on the same."""
    tp = dict(AXES.get(kind, ())).get("tp", 1)
    return group.rank // tp, group.size // tp


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def first_values(group: Group, kind: str) -> tuple[dict[str, Tensor], set[str]]:
    """({name: the whole first value, perturbed}, the kinds of placement that there are)."""
    model = perturb(placed(kind), 2**-9, 8)
    placements = {type(p).__name__ for w in model.parameters() if isinstance(w, DTensor) for p in w.placements}
    return {name: whole(weight) for name, weight in model.named_parameters()}, placements


def gradient(name: str, shape: torch.Size, integers: bool) -> Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    drawn = torch.randint(-8, 9, shape, generator=generator) if integers else torch.randn(shape, generator=generator)
    return drawn.float()


def give_gradients(model: nn.Module, integers: bool) -> None:
    """The same whole gradients on every mesh."""
    for name, weight in model.named_parameters():
        grad = gradient(name, weight.shape, integers)
        if isinstance(weight, DTensor):
            grad = distribute_tensor(grad, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.grad = grad


def norms(group: Group, kind: str) -> dict[str, float]:
    """The norm of given gradients, of integers and of others; of those clipped to 1; and of real ones."""
    model, found, loss = placed(kind), {}, torch.zeros(())
    for what, integers in (("integers", True), ("others", False)):
        give_gradients(model, integers)
        found[what] = health.check(loss, model, group).read().grad_norm
    health.clip(model, found["others"], 1.0)
    found["clipped"] = health.check(loss, model, group).read().grad_norm
    model.zero_grad()
    index, count = share(kind, group)
    rows = jobs.CountingCorpus().batch(1, 8, 16, 0).chunk(count)[index]
    model(rows[:, :-1], rows[:, 1:]).backward()
    vitals = health.check(loss, model, group).read()
    found["real"] = vitals.grad_norm
    return found


def spoilt(group: Group, kind: str, rank: int) -> tuple[health.Vitals, str]:
    """One element that this rank holds is NaN."""
    model = placed(kind)
    give_gradients(model, integers=True)
    if group.rank == rank:
        grad = model.layers["1"].ffn.w2.weight.grad
        (grad.to_local() if isinstance(grad, DTensor) else grad).view(-1)[-1] = float("nan")
    return health.check(torch.zeros(()), model, group).read(), health.culprits(model)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and AdamW's means, whole."""
    found = {name: whole(weight) for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        found |= {f"{name} {key}": whole(optimizer.state[weight][key]) for key in ("exp_avg", "exp_avg_sq")}
    return found


def through_checkpoints(group: Group, kinds: list[str], folder: Path) -> list[dict[str, Tensor]]:
    """One update on the first mesh; then from mesh to mesh by checkpoints. The whole state on each."""
    config, states = jobs.small_config(model=SHAPE), []
    for step, kind in enumerate(kinds):
        model = placed(kind, seed=7 + step)
        optimizer = adamw(model, config)
        if step:
            Checkpoints(folder / str(step), group, config=config).load(model, optimizer)
        else:
            give_gradients(model, integers=False)
            optimizer.step()
        states.append(state_of(model, optimizer))
        Checkpoints(folder / str(step + 1), group, config=config).save(step + 1, model, optimizer, {})
    return states


def bytes_to_write(group: Group, kind: str) -> float:
    return local_bytes({"model": dict(placed(kind).named_parameters())}, group.size)


def trained(group: Group, kinds: list[str], run_dir: Path | None = None) -> dict:
    """Two steps on each mesh, resumed from the checkpoint of the one before."""
    config = jobs.small_config(model=SHAPE, steps=6, checkpoint_every=2 if run_dir else 0)
    for i, kind in enumerate(kinds):
        model, seen = placed(kind), jobs.GradNorms()
        stop = [jobs.StopAt(2 * (i + 1))] if i + 1 < len(kinds) else []
        parts = Parts(model, hooks=[seen, *stop], data_share=share(kind, group))
        result = train(group, config, jobs.CountingCorpus(), parts, run_dir=run_dir)
    return {"losses": result.losses, "norms": seen.norms, "weights": {n: whole(w) for n, w in model.named_parameters()}}


def cut_before_fsdp(group: Group) -> str:
    """Half of a weight by hand, the halves then sharded by FSDP2: a DTensor, but not of the model's weight."""
    model = jobs.plain_model(jobs.small_config(model=SHAPE))
    model.head.weight = nn.Parameter(model.head.weight.detach().chunk(2)[group.rank % 2])
    for block in model.blocks():
        fully_shard(block)
    fully_shard(model)
    try:
        init_weights(model, 0)
    except LabError as error:
        return str(error)
    return ""
