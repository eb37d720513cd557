"""One trainer out of four weeks: any mesh, FP8 by one word (task C.1).

Every part is there: collectives under the Group (13), flat parameters (14), split linears and a pipeline (15), an FP8
product (16). None of them knows the others. What is left is to put them together, and that has an order:

    mesh -> build -> cut -> convert -> shard -> optimizer

Find the reason of each arrow before you write `assemble`. For every pair of neighbours: what would go wrong, and would
anything say so, if the two changed places? Some of the mistakes raise. The worst train, a little worse.

**The mesh.** Rank numbers are places: neighbours share a machine and its fast links. Per block and micro-batch tensor
parallelism sends two messages as large as the activations, each way, and waits for them; data parallelism sends the
block's weights, beside computing; a pipeline sends one activation to one neighbour. Who gets the neighbours?

**Cut.** 15.2 wrote an attention of its own. Here the decoder stays as it is (labkit.model: it reads head counts off the
tensors), and its linears stay nn.Linear, of the rank's slices, so that week 16 can convert them. The steps of 15.1
stand around a half of a block, `attn` and `ffn`, as hooks: x is copied to the ranks once, in front of all linears that
read it; the addends are summed behind. Embedding, head and loss are 15.4's.

With more ranks than key/value heads, ranks share one: each has the gradient that its own query heads bring. In 15.2 the
replicas' sum stood in the layer, one message a micro-batch. Gradients are linear: sum what the shards hold, once.

**Convert.** `fp8.py` has it: an FP8 linear whose scales do not depend on the number of ranks.

**Shard.** zero = 3 is your FSDP. In a pipeline several micro-batches are in flight: a block that was freed after each
forward would be gathered twice for each. There the stage's weights are whole for a step, `Held`: gathered once at its
begin, the gradients reduced once at its end (ZeRO's first stage, with the gradient whole in between).

**The norm.** Clipping needs the norm of a gradient that no rank has. A number of a cut weight is on one rank of the
tp group, one of a norm's weight on all of them, one of a shared head's on some; and all of these lie side by side in a
flat parameter's shard. Squares add up over ranks if each number counts once.

One message gives all ranks loss, norm and whether anything is not finite: who decides from numbers of its own, skips a
step that others take.

Legend: N ranks, r this rank; B sequences, T positions, M micro-batches; S numbers of a flat parameter's shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capstone.fp8 import converted
from capstone.given.hanging import AdamW, Stage, VocabEmbedding, laid_out, linear_of, names_of
from capstone.given.parts import part
from capstone.given.setup import Setup
from labkit.comm.mesh import Mesh
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights
from labkit.parallel.stages import stage_layers


class Vitals(NamedTuple):
    """What all ranks know of a step, the same on every rank."""

    loss: float  # the mean over the whole batch; NaN if it is not finite on some rank
    norm: float  # of the whole gradient, before clipping; NaN likewise
    finite: bool


# ---- the mesh, and the model on it


def mesh_of(group: Any, setup: Setup) -> Mesh:
    """Task C.1. The ranks as a mesh of the dimensions "pp", "dp" and "tp", in the order that the machine wants: the
    last one varies fastest."""
    ### BEGIN SOLUTION C.1 the mesh
    # tp sends most and waits for it: neighbours. A pipeline sends least: it may cross the slowest link.
    return Mesh(group, pp=setup.pp, dp=setup.dp, tp=setup.tp)
    ### END SOLUTION


def built(setup: Setup, mesh: Mesh) -> Transformer:
    """This rank's stage, whole (given). First values depend on the seed and the weights' names alone."""
    model = Transformer(setup.model, layers=stage_layers(setup.model, setup.pp, mesh["pp"].rank))
    init_weights(model, setup.seed)
    if setup.weights is not None:
        model.load_state_dict({name: setup.weights[name] for name in model.state_dict()})
    return model.to(mesh.group.device)


def listen(model: Transformer) -> dict[str, float]:
    """Hooks around the halves of all blocks: the worked example. It changes nothing, and notes, at each forward, the
    largest |x| in front of a half and behind it."""
    heard: dict[str, float] = {}

    def note(where: str, x: Tensor) -> Tensor:
        heard[where] = float(x.detach().abs().max())
        return x

    for i, block in model.layers.items():
        for name, half in (("attn", block.get_submodule("attn")), ("ffn", block.get_submodule("ffn"))):
            at = f"layers.{i}.{name}"
            # args are the half's arguments: x first; for attention the rotary tables follow. What the first hook
            # returns is what the half gets, and what the second returns is what its caller gets.
            half.register_forward_pre_hook(lambda _, args, at=at: (note(f"{at} in", args[0]), *args[1:]))
            half.register_forward_hook(lambda _, args, y, at=at: note(f"{at} out", y))
    return heard


def cut(model: Transformer, group: Any) -> Any:
    """Task C.1. Cut a whole stage over the ranks of `group`, in place: rank r keeps its slices of the blocks' linears
    (15.2's `split_heads` and `slice_weights`, `feed_forward_share`), of the embedding and of the head (15.4's rows),
    and the steps of 15.1 stand around each half.

    The linears stay nn.Linear, under their names. The embedding becomes a VocabEmbedding. `model.loss(x_BTD,
    targets_BT)` becomes 15.4's. A group of one rank: nothing changes.

    Returns the group of ranks that share this rank's key/value heads: of one rank, if they share none.
    """
    ### BEGIN SOLUTION C.1 tensor parallelism, hung on the decoder
    steps, heads = part("week15_tp_attention.linears"), part("week15_tp_attention.attention")
    vocab, c = part("week15_tp_attention.vocab"), model.config
    share = heads.split_heads(c.n_heads, c.n_kv_heads, group.size, group.rank)
    replicas = group.split(share.replicas, name="replicas")
    if group.size == 1:
        return replicas
    begin, end = heads.feed_forward_share(c.d_ffn, group.size, group.rank)
    for block in model.blocks():
        attn: Any = block.attn
        ffn: Any = block.ffn
        four = {name: getattr(attn, name).weight.detach() for name in ("wq", "wk", "wv", "wo")}
        for name, weight in heads.slice_weights(four, share, c.d_head).items():
            setattr(attn, name, linear_of(weight))
        ffn.w1, ffn.w3 = linear_of(ffn.w1.weight[begin:end]), linear_of(ffn.w3.weight[begin:end])
        ffn.w2 = linear_of(ffn.w2.weight[:, begin:end])
        for half in (attn, ffn):
            # once for all linears that read x, and once behind: 15.1's two messages a half
            half.register_forward_pre_hook(lambda _, args: (steps.copy_to_ranks(args[0], group), *args[1:]))
            half.register_forward_hook(lambda _, args, y: steps.reduce_over_ranks(y, group))
    first, last = vocab.vocab_range(c.vocab_size, group.size, group.rank)
    table: Any = model.tok_embed
    if table is not None:
        model.tok_embed = VocabEmbedding(table.weight.detach()[first:last].clone(), c.vocab_size, group)
    whole_head: Any = model.head
    if whole_head is not None:
        head = model.head = linear_of(whole_head.weight[first:last])

        def loss(x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
            return vocab.parallel_head_loss(x_BTD, head.weight, targets_BT, c.vocab_size, group)

        model.loss = loss  # type: ignore[method-assign]  # as labkit.model offers it
    return replicas
    ### END SOLUTION


# ---- shards


class Held:
    """Task C.1. Flat parameters whose weights are whole for a step, and shards between steps.

        held = Held(model, model.blocks(), group)
        held.begin()                            # all gathers posted, then all waited for
        ... forwards and backwards, in any order ...
        held.finish()                           # every shard.grad: the mean over the ranks of what p.grad holds

    `units`: as FSDP's: the root's, if the stage has something that belongs to no block, then the blocks'.
    """

    def __init__(self, model: nn.Module, blocks: list[Any], group: Any, dtype: torch.dtype | None = None) -> None:
        flat = part("week14_fsdp.fsdp").FlatParameter
        own = [list(block.parameters()) for block in blocks]
        inside = {p for params in own for p in params}
        root = [p for p in model.parameters() if p not in inside]
        self.units = [flat(params, group, dtype) for params in ([root] if root else []) + own]

    def begin(self) -> None:
        """Make all units whole: each gather is on its way before one is waited for."""
        ### BEGIN SOLUTION C.1 whole for a step
        for unit in self.units:
            unit.gather()
        for unit in self.units:
            unit.wait()
        ### END SOLUTION

    def finish(self) -> None:
        """Average the gradients, all on their way before one is waited for; free the weights. Every shard has a
        gradient then."""
        ### BEGIN SOLUTION C.1 reduced once
        handles = [unit.reduce() for unit in self.units]
        for unit, handle in zip(self.units, handles):
            unit.add(handle)
            unit.free()
        ### END SOLUTION


# ---- all together


class Trainer:
    """What `assemble` makes: `step` trains. Between steps a rank holds its shards, their moments, and no more."""

    def __init__(self, setup: Setup, mesh: Mesh, model: Transformer, sharded: Any, replicas: Any, report: Any) -> None:
        self.setup, self.mesh, self.model, self.sharded, self.replicas = setup, mesh, model, sharded, replicas
        self.report = report  # what was converted, {} without FP8
        self.units: list[Any] = sharded.units
        self.optimizer = AdamW(self.units, setup.betas, setup.adam_eps, setup.weight_decay)
        self.names = names_of(model)
        self.shares = [laid_out(unit, lambda p: 1 / self.copies(p)) for unit in self.units]
        self.shared = [laid_out(unit, lambda p: self.is_shared(p)).bool() for unit in self.units]

    def is_shared(self, p: nn.Parameter) -> bool:
        """Whether p is a key/value head's, of which replicas may have copies (given)."""
        return self.names[p].endswith(("attn.wk.weight", "attn.wv.weight"))

    def copies(self, p: nn.Parameter) -> int:
        """Task C.1. How many ranks of the tensor-parallel group hold the same numbers as this rank's p."""
        ### BEGIN SOLUTION C.1 who holds the same number
        if p.dim() == 1:
            return self.mesh["tp"].size  # a norm's weight is whole on every rank
        return self.replicas.size if self.is_shared(p) else 1
        ### END SOLUTION

    def gradients(self, rows_BT: Tensor) -> Tensor | None:
        """Task C.1. Forward and backward of this data-parallel rank's rows [B, T+1] in `micro` equal parts, in order.
        Afterwards every shard.grad is the gradient of the mean over the whole batch, but for shared heads.

        Returns the mean loss of these rows, without gradient; None on a stage that has no loss.
        """
        ### BEGIN SOLUTION C.1 the gradients of a step
        M, pipe = self.setup.micro, self.mesh["pp"]
        parts = [(rows[:, :-1], rows[:, 1:]) for rows in rows_BT.chunk(M)]
        if self.setup.zero == 3:  # each micro-batch gathers and reduces
            losses = []
            for inputs, targets in parts:
                loss = self.model(inputs, targets)
                (loss / M).backward()
                self.sharded.finish()
                losses.append(loss.detach())
            return torch.stack(losses).mean()
        self.sharded.begin()
        pipeline = part("week15_tp_attention.pipeline")
        steps = pipeline.one_f_one_b(pipe.size, M, pipe.rank)
        begin = [inputs for inputs, _ in parts] if pipe.rank == 0 else None
        end = [targets for _, targets in parts] if pipe.rank == pipe.size - 1 else None
        shape = (*parts[0][0].shape, self.setup.model.d_model)
        loss = pipeline.run_schedule(Stage(self.model, self.setup.dtype), steps, begin, end, shape, pipe)
        self.sharded.finish()
        return loss
        ### END SOLUTION

    def sum_replicas(self) -> None:
        """Task C.1. Where ranks share a key/value head, its gradient becomes the sum over them: one message a unit that
        has such numbers, none where nobody shares. (`self.shared`: which numbers of each shard are a shared head's.)"""
        ### BEGIN SOLUTION C.1 shared heads
        if self.replicas.size == 1:
            return
        for unit, mine in zip(self.units, self.shared):
            if mine.any():  # the same places on all replicas: their slices have the same shapes
                unit.shard.grad[mine] = self.replicas.all_reduce(unit.shard.grad[mine])
        ### END SOLUTION

    def vitals(self, loss: Tensor | None) -> Vitals:
        """Task C.1. Loss, norm and flag over all ranks of the mesh, in one message of three float64 numbers.
        (`self.shares`: for each number of a shard 1 / copies.)"""
        ### BEGIN SOLUTION C.1 what all ranks know
        squares = sum((u.shard.grad.double().square() * share).sum() for u, share in zip(self.units, self.shares))
        mine = 0.0 if loss is None else loss.double() / (self.setup.dp * self.setup.tp)
        values = torch.stack([torch.as_tensor(x, dtype=torch.float64, device=squares.device) for x in (mine, squares)])
        bad = (~values.isfinite()).any()
        # A NaN does not survive every reduction: a flag does.
        whole = torch.cat([torch.where(bad, 0.0, values), bad.double()[None]])
        value, square, spoilt = self.mesh.group.all_reduce(whole).tolist()
        if spoilt:
            return Vitals(math.nan, math.nan, False)
        return Vitals(value, math.sqrt(square), True)
        ### END SOLUTION

    def step(self, rows_BT: Tensor, lr: float, allow: Callable[[Vitals], bool] = lambda vitals: True) -> Vitals:
        """Task C.1. One step on this data-parallel rank's rows: gradients, the replicas' sum, vitals; then, if all is
        finite and `allow(vitals)` says so (it is called always, once), clip to `clip_norm` and let the optimizer go.
        The gradients are gone afterwards, whatever happened."""
        ### BEGIN SOLUTION C.1 one step
        loss = self.gradients(rows_BT)
        self.sum_replicas()
        vitals = self.vitals(loss)
        if allow(vitals) and vitals.finite:
            if 0 < self.setup.clip_norm < vitals.norm:
                for unit in self.units:
                    unit.shard.grad.mul_(self.setup.clip_norm / vitals.norm)
            self.optimizer.step(lr)
        self.optimizer.zero_grad()
        return vitals
        ### END SOLUTION


def assemble(setup: Setup, group: Any) -> Trainer:
    """Task C.1. A trainer on the ranks of `group`. LabError, before anything is built, for what does not go
    (`setup.refuse`). In FP8 (`setup.precision`) the blocks' linears are converted; FSDP for zero = 3, else Held; both
    over "dp", in `setup.dtype`."""
    ### BEGIN SOLUTION C.1 in this order
    setup.refuse(group.size)
    mesh = mesh_of(group, setup)
    model = built(setup, mesh)
    replicas = cut(model, mesh["tp"])  # first: an FP8 linear is made as large as its slice
    report: dict[str, Any] = {}
    if setup.precision == "fp8":
        report = converted(model, mesh["tp"])  # it makes new parameters: before sharding
    way = part("week14_fsdp.fsdp").FSDP if setup.zero == 3 else Held
    sharded = way(model, model.blocks(), mesh["dp"], setup.dtype)
    return Trainer(setup, mesh, model, sharded, replicas, report)  # the optimizer steps the shards: last
    ### END SOLUTION


def data_of(trainer: Trainer, batch_BT: Tensor) -> Tensor:
    """This rank's rows of the whole batch (given): ranks that differ in tp or pp alone have the same."""
    index, count = trainer.mesh.data_share
    return batch_BT.chunk(count)[index]
