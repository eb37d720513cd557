"""Drives your classes where one call is not enough, for the checks. It holds no expected value.

It runs where your code runs; what it returns is judged in the test files, elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
from torch import nn

from labkit.checks.elsewhere import Elsewhere
from labkit.checks.held import bring_libraries
from labkit.comm.mesh import Mesh
from week14_fsdp.given.freed import NoFreedMemory
from week14_fsdp.given.meter import StorageMeter, owned
from week14_fsdp.given.tiny import Tiny

# Each scenario imports the one module it drives: a file that is broken must not stop the checks of another.

HERE = Path(__file__).parent


def grad_of(p):
    """A copy of a parameter's gradient; None where there is none, which is judged."""
    return None if p.grad is None else p.grad.clone()


def descend(params, lr):
    """A step of plain descent; the gradients go."""
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p.sub_(lr * p.grad)
                p.grad = None


def turn(shards, by):
    """Each shard times its number, in place."""
    with torch.no_grad():
        for shard, one in zip(shards, by):
            shard.mul_(one)


def memory(questions):
    """14.1: bytes by kind, for (sizes, stage, N, tokens, itemsize, checkpointed) each."""
    from . import memory

    return [memory.memory(memory.Sizes(*sizes), *rest) for sizes, *rest in questions]


def largest_batch(questions):
    """14.1: for (bytes without a token, with one, sizes, stage, N, seq_len, itemsize, capacity, checkpointed) each.
    Asked of anything else, a token takes twice as much."""
    from . import memory

    theirs, found = memory.memory, []
    for none, one, sizes, stage, N, seq_len, itemsize, capacity, checkpointed in questions:
        case = memory.Sizes(*sizes), stage, N, itemsize, checkpointed

        def given(sizes, stage, N, tokens, itemsize, checkpointed=False, case=case, none=none, each=one - none):
            other = 1 + ((sizes, stage, N, itemsize, checkpointed) != case)
            return memory.Memory(none, 0, 0, 0, 0, tokens * each * other, 0)

        memory.memory = given
        try:
            found.append(memory.largest_batch(case[0], stage, N, seq_len, itemsize, capacity, checkpointed))
        finally:
            memory.memory = theirs
    return found


def data_parallel(steps, group, weights, bucket_bytes, lr=0.03125, interrupted=False, ringed=False, silent=False):
    """14.2: one step of plain descent for each entry: micro-batches (tokens, targets, use), of which the last one
    sends. Returns the gradients after each `finish`, by name, whether an exception inside `no_sync` came out, and the
    bytes that are held at the end beside weights and gradients.

    ringed: 14.8, over its ring. silent: the last micro-batch is inside `no_sync`, too."""
    from . import ddp

    model, over = Tiny(weights, group), group
    if ringed:
        from .stretch import ring

        ring.ring_in_steps(torch.empty(0), group)  # if it is a blank, it says so before 14.2's
        over = ring.Ring(group)
    ddp.DataParallel(nn.Linear(2, 2), over, bucket_bytes)  # another one, whose buckets are its own
    parallel = ddp.DataParallel(model, over, bucket_bytes)
    found, came_out = [], None
    for micro_batches in steps:
        if interrupted:
            came_out = False
            try:
                with parallel.no_sync():
                    raise KeyboardInterrupt  # which is no Exception
            except KeyboardInterrupt:
                came_out = True
        for m, (tokens, targets, use) in enumerate(micro_batches):
            with parallel.no_sync() if m + 1 < len(micro_batches) or silent else nullcontext():
                if m + 1 < len(micro_batches) and not interrupted:
                    with parallel.no_sync():
                        pass  # one inside another: the outer one lasts
                model(tokens, targets, use).backward()
        parallel.finish()
        found.append({name: grad_of(p) for name, p in model.named_parameters()})
        descend(model.parameters(), lr)
    kept = [tensor for p in model.parameters() for tensor in (p, p.grad) if tensor is not None]
    return found, came_out, owned(parallel, without=kept).storages


def rings(vectors, group):
    """14.8: the first two vectors' sums begin, then the third's mean is taken and waited for; the others' are waited for
    twice. Returns what came back of each."""
    from .stretch import ring

    over, x = ring.Ring(group), [vector.clone() for vector in vectors]
    turns = [over.all_reduce(one, op="mean", async_op=True) for one in x[:2]]
    last = over.all_reduce(x[2], op="mean")
    for turn in turns:
        turn.wait()
    return [*(turn.wait() for turn in turns), last]


def whole_batch_loss(model, batches):
    """The loss of this rank's batch."""
    tokens, targets, use = batches
    return model(tokens, targets, use)


def zero(steps, group, weights, options, max_norm, every=True, spoiled=None):
    """14.3: steps of ShardedAdamW, each with its own `max_norm`. Returns the weights after each (after the last alone,
    if not `every`), the norms, and the bytes that the optimizer holds after the last, of what it made itself: of
    storages, and what is used of them. Spans note when memory is read, in grading.

    spoiled: (step, rank, name, index, value): there that number of a gradient becomes the value."""
    model = Tiny(weights, Unheard())
    weights.clear()  # nothing of the check's stays that an optimizer could keep its moments in
    _backward(model, steps[0])  # what torch sets up at the first is memory that is no optimizer's
    _without_gradients(model)
    group.compute("model made", seconds=0)
    from . import ddp, zero

    optimizer = zero.ShardedAdamW(ddp.trainable(model), group, **options)
    after: list[dict[str, torch.Tensor]] = []
    norms: list[float] = []
    for batch, limit in zip(steps, max_norm):
        _without_gradients(model)
        _backward(model, batch)
        if spoiled and spoiled[:2] == (len(norms), group.rank):
            grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            grads[spoiled[2]][spoiled[3]] = spoiled[4]
        norms.append(optimizer.step(max_norm=limit))
        if every or len(norms) == len(steps):
            after.append({name: p.detach().clone() for name, p in model.named_parameters()})
        else:
            _without_gradients(model)
            group.compute("between steps", seconds=0)
    theirs = [t for p in model.parameters() for t in (p.data, p.grad) if t is not None]
    return after, norms, *owned(optimizer, zero, ddp, without=theirs)


def odd_steps(tensors, grads, group, options):
    """14.3: two steps with these gradients, times 8 and an eighth, then one without any, on all ranks but the first.
    Returns the weights after each, and what was given to the group's calls, or met the gradients, from another device."""
    from . import zero

    part = group.split([list(range(1, group.size))])
    if not part.size:
        return None
    watched, after = Elsewhere(part), []
    with watched:
        params = [nn.Parameter(t.clone()) for t in tensors]
        for p in params:
            p.to(part.device)  # they lie there
        optimizer = zero.ShardedAdamW(params, watched, **options)
        for times in (8, 0.125, None):
            for p, g in zip(params, grads):
                p.grad = None if times is None or g is None else (times * g).to(part.device)
            optimizer.step()
            after.append([p.detach().clone() for p in params])
    return after, watched.astray


def _backward(model, batch):
    """The gradients of a batch; none at all of None."""
    if batch is not None:
        whole_batch_loss(model, batch).backward()


def _without_gradients(model):
    for p in model.parameters():
        p.grad = None


def flat_parameter(tensors, grads, group, dtype=None, aside=False):
    """14.4: a FlatParameter of these tensors (wanted in the dtype called `dtype`), through one gather and one
    reduction. Returns what it held on the way. aside: the first rank stays out."""
    from . import fsdp

    if aside and not (group := group.split([list(range(1, group.size))])).size:
        return None
    wanted = None if dtype is None else getattr(torch, dtype)
    params = [nn.Parameter(t.clone()) for t in tensors]
    flat = fsdp.FlatParameter(params, group, wanted)

    def memory():
        return flat.full.untyped_storage().nbytes() + sum(p.untyped_storage().nbytes() for p in params)

    seen = {"shard": flat.shard.detach().clone(), "begins": memory(), "whole": flat.whole}
    seen["owned"] = {"before it is gathered": owned(flat, fsdp, without=params).storages}
    seen["is_parameter"] = isinstance(flat.shard, nn.Parameter)
    seen["kept"] = flat.shard.untyped_storage().nbytes()
    flat.gather()
    flat.gather()  # nothing happens
    seen["on its way"] = flat.whole
    group.compute("work", seconds=1e-3)
    flat.wait()
    seen["gathered"] = [p.detach().clone() for p in params]
    seen["bytes"] = flat.full.untyped_storage().nbytes()
    flat.full.fill_(7)
    seen["alias"] = [p.detach().clone() for p in params]
    for p, g in zip(params, grads):
        p.grad = None if g is None else g.to(p.dtype, copy=True)
    flat.gather()  # it is whole: nothing, either
    flat.free()
    seen["freed"] = memory()
    seen["shapes"] = [list(p.shape) for p in params]
    on_its_way = flat.reduce()
    seen["dropped"] = all(p.grad is None for p in params)
    flat.add(on_its_way)
    seen["grad"] = grad_of(flat.shard)
    flat.gather()
    flat.free()  # with a gather under way
    seen["freed"] = max(seen["freed"], memory())
    with torch.no_grad():
        flat.shard.add_(1)
    flat.wait()  # begins by itself, with the new shards
    seen["again"] = [p.detach().clone() for p in params]
    flat.free()
    seen["owned"]["after free()"] = owned(flat, fsdp, without=params).storages
    if aside:
        with Elsewhere(group) as watched:
            params = [nn.Parameter(t.clone()) for t in tensors]
            for p in params:
                p.to(group.device)  # they lie there
            flat = fsdp.FlatParameter(params, watched, wanted)
            flat.wait()
            for p, g in zip(params, grads):
                p.grad = None if g is None else g.to(p.dtype).to(group.device)
            flat.add(flat.reduce())
        seen["astray"] = watched.astray
    return seen


def _beside_shards(sharded, model, *modules):
    """Bytes that these objects and modules hold, beside the shards."""
    return owned(sharded, model, *modules, without=sharded.shards()).storages


class Watch(StorageMeter):
    """Also notes, after each operation, which of these FlatParameters have memory. `most` are as many as were at once,
    the first time, by their places; `backward`: whether that was in a backward."""

    def __init__(self, units, without) -> None:
        super().__init__(without)
        self.units, self.backward = units, False
        self.most: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        now = [i for i, unit in enumerate(self.units) if unit.full.untyped_storage().nbytes() > 0]
        if len(now) > len(self.most):
            self.most, self.backward = now, torch._C._current_graph_task_id() != -1
        return result


class Unheard:
    """In a group's place, where nobody is to hear of it."""

    def compute(self, label, seconds):
        pass


_one_at_a_time = threading.Lock()


def _warm(checkpointed):
    """A step of a small network: what torch imports and sets up at the first is memory that is no block's. Ranks that
    are threads take turns: the first checkpoint imports 800 modules, and half of one of them is no help."""
    weights = {"embed": torch.ones(3, 2), "scale": torch.ones(2), "blocks.0.up": torch.ones(4, 2)}
    weights |= {"blocks.0.bias": torch.ones(4), "blocks.0.down": torch.ones(2, 4)}
    with _one_at_a_time, Watch([], weights.values()), NoFreedMemory():
        Tiny(weights, Unheard(), checkpointed)(*[torch.zeros(1, 2, dtype=torch.long)] * 2).backward()


def fsdp(steps, turns, group, weights, prefetch=True, checkpointed=False, dtype=None, lr=0.03125):
    """14.4: steps of plain descent on the shards. An entry is a list of micro-batches, each with a `finish`. Returns by
    step the losses and each unit's shard.grad; the shards at the end; the meter's peak in bytes.

    turns: powers of two, for each unit. From a forward to its `finish` its shard is so many times as large: the backward
    computes with what it gathered itself.

    `weights` is emptied. In grading memory is read when the model is made, when a block computes, between steps."""
    _warm(checkpointed)
    bring_libraries(HERE, "fsdp", "zero", "ddp")
    model = Tiny(weights, group, checkpointed)
    weights.clear()  # from here on the model is whole in its parameters alone, and FSDP has to let go of those
    group.compute("model made", seconds=0)  # before there is code of yours: memory that it brings along is its own
    from . import fsdp

    sharded = fsdp.FSDP(model, model.blocks, group, None if dtype is None else getattr(torch, dtype), prefetch)
    losses: list[list[torch.Tensor]] = []
    grads = []
    meter = Watch(sharded.blocks, without=())
    for micro_batches in steps:
        losses.append([])
        for batch in micro_batches:
            with meter, NoFreedMemory():
                loss = whole_batch_loss(model, batch)
                turn(sharded.shards(), turns)
                loss.backward()
                sharded.finish()
            turn(sharded.shards(), [1 / by for by in turns])
            losses[-1].append(loss.detach().clone())
        grads.append([grad_of(unit.shard) for unit in sharded.units])
        descend(sharded.shards(), lr)
        group.compute("between steps", seconds=0)
    return {
        "losses": losses,
        "grads": grads,
        "shards": [unit.shard.detach().clone() for unit in sharded.units],
        "peak": meter.peak,
        "whole": meter.most,
        "in_backward": meter.backward,
        "held": _beside_shards(sharded, model, fsdp),
    }


def hybrid(steps, group, weights, lr=0.03125, dtype=None, prefetch=True, **sizes):
    """14.7: as `fsdp`, on a mesh of these sizes; all micro-batches but the last stay inside the node."""
    from .stretch import hsdp

    model = Tiny(weights, group)
    sharded = hsdp.HSDP(model, model.blocks, Mesh(group, **sizes), dtype and getattr(torch, dtype), prefetch)
    result: dict = {"losses": [], "grads": []}
    for micro_batches in steps:
        result["losses"].append([])
        for m, batch in enumerate(micro_batches):
            with NoFreedMemory(), sharded.inside_only() if m + 1 < len(micro_batches) else nullcontext():
                loss = whole_batch_loss(model, batch)
                loss.backward()
                sharded.finish()
            result["losses"][-1].append(loss.detach().clone())
        result["grads"].append([grad_of(unit.shard) for unit in sharded.units])
        descend(sharded.shards(), lr)
    result["shards"] = [unit.shard.detach().clone() for unit in sharded.units]
    result["held"] = _beside_shards(sharded, model, hsdp)
    return result


class Files:
    """A folder for 14.9 that is in memory; the ledger knows when it was written to.

    parts, about: what it holds already. seen: (name, start, stop) of all that was read."""

    def __init__(self, group, parts=None, about=None) -> None:
        self.group, self.parts, self.about = group, dict(parts or {}), about
        self.seen: list[tuple[str, int, int]] = []

    def write(self, name, vector):
        self.group.compute("write", seconds=0)
        self.parts[name] = vector.detach().clone()

    def read(self, name, start, stop, dtype):
        self.seen.append((name, start, stop))
        found = self.parts[name][start:stop].to(dtype)
        if len(found) < stop - start or start < 0:
            raise ValueError(f"{name} has no numbers {start} to {stop}: it is shorter")
        return found.clone()

    def write_index(self, index):
        self.group.compute("index", seconds=0)
        self.about = index

    def index(self):
        if self.about is None:
            raise ValueError("no checkpoint: it was never finished")
        return self.about


def resharded(steps, group, weights, options, parts=None, about=None):
    """14.9: AdamW on the shards, from a checkpoint if there are `parts`; then its own checkpoint. Returns the losses,
    the shards as loaded and at the end, what was read and written, the steps reported, and its files."""
    from . import fsdp
    from .stretch import checkpoint

    checkpoint.pieces(1, 1, 0, 1)  # if it is a blank, it says so before 14.4's
    model = Tiny(weights, group)
    sharded = fsdp.FSDP(model, model.blocks, group)
    optimizer = torch.optim.AdamW(sharded.shards(), **options)
    files, done, losses = Files(group, parts, about), 0, []
    if parts:
        done = checkpoint.load(sharded, optimizer, files, group)
    loaded = [shard.detach().clone() for shard in sharded.shards()]
    for batch in steps:
        with NoFreedMemory():
            loss = whole_batch_loss(model, batch)
            loss.backward()
            sharded.finish()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    after = Files(group)
    checkpoint.save(sharded, optimizer, done + len(steps), after, group)
    group.compute("saved", seconds=0)
    ends = [shard.detach().clone() for shard in sharded.shards()]
    result = {"losses": losses, "loaded": loaded, "ends": ends, "done": done, "read": files.seen}
    return result | {"parts": after.parts, "about": after.about}


def another_model(weights, group):
    """14.9: what loading gives, on one rank: of a larger model's checkpoint, and of one of as many numbers in all. Each
    part has a number more than was written, as padding would give."""
    from . import fsdp
    from .stretch import checkpoint

    checkpoint.pieces(1, 1, 0, 1)  # if it is a blank, it says so before 14.4's

    def made(scale, bias):
        sizes = {"scale": torch.ones(scale), "blocks.0.bias": torch.ones(bias)}
        model = Tiny(weights | {name: t.to(weights["scale"]) for name, t in sizes.items()}, group)
        sharded = fsdp.FSDP(model, model.blocks, group)
        optimizer = torch.optim.AdamW(sharded.shards())
        for shard in sharded.shards():
            shard.grad = torch.zeros_like(shard)
        optimizer.step()
        return sharded, optimizer

    errors = []
    for scale, bias in ((4, 2), (3, 1)):
        kept = Files(group)
        sharded, optimizer = made(scale, bias)
        checkpoint.save(sharded, optimizer, 1, kept, group)
        kept.parts = {name: torch.cat([v, v[:1]]) for name, v in kept.parts.items()}
        try:
            sharded, optimizer = made(2, 2)
            checkpoint.load(sharded, optimizer, kept, group)
        except NotImplementedError:
            raise
        except Exception as error:
            errors.append(type(error).__name__)
        else:
            errors.append("nothing")
    return errors


def interrupted(batch, turns, group, weights):
    """14.4: two evaluations without a backward, and between them the shards doubled; then a forward that raises in its
    middle; a step, with `turns` as in `fsdp`; one whose loss reaches block 0 alone, one whose loss reaches the root alone, and one of the whole
    loss, and again, where rank 0 uses no weight of block 2. Returns the losses of the second evaluation and of the step, the
    shards' gradients, how many blocks were whole after the evaluations, the gradients of the two that reach less, and the
    last one's of the blocks."""
    from . import fsdp

    model = Tiny(weights, group)
    sharded = fsdp.FSDP(model, model.blocks, group)
    with NoFreedMemory():
        with torch.no_grad():
            whole_batch_loss(model, batch)
            for shard in sharded.shards():
                shard.mul_(2)
            again = whole_batch_loss(model, batch)
        whole = sum(unit.full.untyped_storage().nbytes() > 0 for unit in sharded.blocks)
        with suppress(IndexError):
            model(*batch[:2], [0, 99])
        loss = whole_batch_loss(model, batch)
        turn(sharded.shards(), turns)
        loss.backward()
        sharded.finish()
        turn(sharded.shards(), [1 / by for by in turns])
        grads, found = [], [loss.detach()]
        for unit in sharded.units:
            grads.append(grad_of(unit.shard))
            unit.shard.grad = None
        model.blocks[0].register_forward_pre_hook(lambda _, args: (args[0].detach().requires_grad_(),))
        model.blocks[1].register_forward_pre_hook(lambda _, args: found.append(args[0]))
        whole_batch_loss(model, batch)
        found.pop().square().mean().backward()
        sharded.finish()
        reached = [grad_of(unit.shard) for unit in sharded.units]
        for unit in sharded.units:
            unit.shard.grad = None
        whole_batch_loss(model, batch)
        torch.cat([p.flatten() for p in sharded.root.params]).sum().backward()
        sharded.finish()
        alone = [grad_of(unit.shard) for unit in sharded.units]
        whole_batch_loss(model, batch).backward()
        sharded.finish()
        for unit in sharded.units:
            unit.shard.grad = None
        if group.rank == 0:  # there block 2 hands its input on: none of its weights has a gradient
            model.blocks[2].register_forward_hook(lambda _, args, out: args[0])
        whole_batch_loss(model, batch).backward()
        sharded.finish()
        unused = [grad_of(unit.shard) for unit in sharded.blocks]
    return [again, *found[:1]], grads, whole, reached, alone, unused


def _ordinary_steps(model, batches, finish, holders, losses, grads):
    """A forward, a backward and a `finish` of each batch; then the gradients go."""
    for batch in batches:
        loss = whole_batch_loss(model, batch)
        loss.backward()
        finish()
        losses.append(loss.detach().clone())
        every = [holder.grad.flatten() for holder in holders if holder.grad is not None]
        grads.append(torch.cat(every) if every else None)
        for holder in holders:
            holder.grad = None


def _two_backwards(model, group, ordinary, batch, *seen, bucket_bytes):
    from . import ddp

    parallel = ddp.DataParallel(model, group, bucket_bytes)
    _ordinary_steps(model, ordinary, parallel.finish, list(model.parameters()), *seen)
    whole_batch_loss(model, batch).backward()
    whole_batch_loss(model, batch).backward()


def _second_backward(model, group, ordinary, batch, *seen):
    from . import fsdp

    sharded = fsdp.FSDP(model, model.blocks, group)
    _ordinary_steps(model, ordinary, sharded.finish, sharded.shards(), *seen)
    loss = whole_batch_loss(model, batch)
    loss.backward(retain_graph=True)
    loss.backward()


def _no_finish(model, group, ordinary, batch, *seen):
    from . import fsdp

    sharded = fsdp.FSDP(model, model.blocks, group)
    _ordinary_steps(model, ordinary, sharded.finish, sharded.shards(), *seen)
    early: list[torch.Tensor] = []  # what leaves block 0: a backward from there is one, too
    for block in model.blocks[1:2]:
        block.register_forward_pre_hook(lambda _, args: early.append(args[0]))
    loss = whole_batch_loss(model, batch)
    (early[0].square().mean() if early else loss).backward()
    whole_batch_loss(model, batch)


_ATTEMPTS: dict[str, Callable[..., None]] = {
    "a second backward before finish()": _two_backwards,
    "a second backward of one forward": _second_backward,
    "a forward after a backward without finish()": _no_finish,
}


def refused(batches, group, weights, what, **options):
    """One of the attempts with the last batch, after ordinary steps with the others. Returns what the attempt gave, and
    the losses and the gradients of the steps."""
    losses: list[torch.Tensor] = []
    grads: list[torch.Tensor | None] = []
    try:
        with NoFreedMemory():
            _ATTEMPTS[what](Tiny(weights, group), group, batches[:-1], batches[-1], losses, grads, **options)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__ if str(error) else f"{type(error).__name__} without a word", losses, grads
    return "nothing", losses, grads


def exposed(traces):
    """14.5: for each trace."""
    from . import overlap

    return [overlap.exposed(trace) for trace in traces]


def stage_refused(stage, sizes):
    """14.1: what an unknown stage gives; and the weights' bytes under the known ones."""
    from . import memory

    known = [memory.memory(memory.Sizes(*sizes), one, 1, 1, 2).weights for one in ("ddp", "zero1", "zero2", "zero3")]
    try:
        return f"the number {memory.memory(memory.Sizes(*sizes), stage, 1, 1, 4).total}", known
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__, known
