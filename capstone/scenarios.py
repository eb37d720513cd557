"""Drives your trainer for the checks. It holds no expected value.

It runs where your code runs; what it returns is judged in the test files, elsewhere. Each scenario imports the one
module that it drives: a file that is broken must not stop the checks of another."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from capstone.given.setup import Setup
from labkit.errors import LabError
from labkit.model.config import ModelConfig


def setup_of(values: dict[str, Any]) -> Setup:
    """A Setup from plain values."""
    return Setup(**values | {"model": ModelConfig(**values["model"]), "betas": tuple(values.get("betas", (0.9, 0.95)))})


def whole(trainer: Any, of: Any) -> dict[str, torch.Tensor]:
    """{name: this rank's slice}, gathered over the data-parallel ranks: `of(unit)` is a vector [S] of a unit."""
    found = {}
    for unit in trainer.units:
        flat = unit.group.all_gather(of(unit).detach().float().contiguous())
        sizes = [p.numel() for p in unit.params]
        for p, part in zip(unit.params, flat[: sum(sizes)].split(sizes)):
            found[trainer.names[p]] = part.view(p.shape).clone()
    return found


def state(trainer: Any) -> dict[str, Any]:
    """What a checkpoint must bring back: {kind: {name: this rank's slice}}, and AdamW's count."""
    adam, kinds = trainer.optimizer, {"weights": [unit.shard for unit in trainer.units]}
    kinds |= {"first moment": adam.m, "second moment": adam.v}
    found = {kind: whole(trainer, dict(zip(trainer.units, vectors)).get) for kind, vectors in kinds.items()}
    behind = 0.0
    for unit, *vectors in zip(trainer.units, *kinds.values()):
        filled = sum(p.numel() for p in unit.params) - unit.group.rank * len(unit.shard)
        behind += sum(float(x[max(0, filled) :].detach().abs().sum()) for x in vectors)
    return {"vectors": found, "count": adam.steps, "behind": behind}


def places(meshes, group):
    """C.1: for each setup the ranks of this rank's groups."""
    from . import assemble

    found = []
    for one in meshes:
        mesh = assemble.mesh_of(group, setup_of(one))
        found.append({name: list(mesh[name].ranks) for name in ("pp", "dp", "tp")} | {"share": list(mesh.data_share)})
    return found


def trained(batches, values, lrs, group):
    """C.1: a step for each batch. Returns what every step gave, the first one's gradients as the optimizer would have
    seen them, the weights at the end, what was converted and what the rank holds between steps."""
    from labkit.checks.held import reached

    from . import assemble

    trainer = assemble.assemble(setup_of(values), group)
    values["weights"].clear()  # nothing of the check's stays that weights could be kept in
    gradients: dict[str, torch.Tensor] = {}
    calls = []

    def look(vitals):
        calls.append(list(vitals))
        if not gradients:
            gradients.update(whole(trainer, lambda unit: unit.shard.grad))
        return True

    vitals = [list(trainer.step(assemble.data_of(trainer, batch), lr, look)) for batch, lr in zip(batches, lrs)]
    held = [len(unit.shard) for unit in trainer.units]
    found = [t.untyped_storage() for t in reached(trainer, assemble, package=__package__) if not t.is_meta]
    storages = [unit.full.untyped_storage().nbytes() for unit in trainer.units]
    left = sum(p.untyped_storage().nbytes() for p in trainer.model.parameters())
    return {
        "vitals": vitals,
        "calls": calls,
        "gradients": gradients,
        "weights": whole(trainer, lambda unit: unit.shard),
        "report": trainer.report,
        "kinds": kinds(trainer.model),
        "held": held,
        "moments": [len(x) for x in (*trainer.optimizer.m, *trainer.optimizer.v)],
        "left": sum(storages) + left,
        "reached": sum({store.data_ptr(): store.nbytes() for store in found}.values()),
        "grads": sum(unit.shard.grad is not None for unit in trainer.units),
    }


def marked(batch, values, group):
    """C.1: the gradients of a step, the replicas' sum and the vitals, with marks in the ledger: a span "begin vitals"
    in front of what makes calls, and "end vitals" behind it. Then, where weights are whole for a step, one in which
    nothing is used. Returns whether there was a loss, the vitals, and how many shards had no gradient after that step."""
    from . import assemble

    trainer = assemble.assemble(setup_of(values), group)

    def between_marks(name, function):
        def marking(*args):
            group.compute(f"begin {name}", seconds=0)
            found = function(*args)
            group.compute(f"end {name}", seconds=0)
            return found

        return marking

    held = trainer.sharded
    if trainer.setup.zero == 1:
        held.begin, held.finish = between_marks("Held.begin", held.begin), between_marks("Held.finish", held.finish)
    loss = trainer.gradients(assemble.data_of(trainer, batch))
    between_marks("sum_replicas", trainer.sum_replicas)()
    vitals = between_marks("vitals", trainer.vitals)(loss)
    trainer.optimizer.zero_grad()
    if trainer.setup.zero == 1:
        held.begin()
        held.finish()
    without = sum(unit.shard.grad is None for unit in trainer.units)
    return {"loss": loss is not None, "vitals": list(vitals), "without": without}


def heard(batches, values, lrs, group):
    """C.1: a step for each batch; of each micro-batch what went into each converted linear on this rank, and what came
    out: {name: {"x", "y", "dy", "dx"}}, lists. With the weights before each step, the first one's gradients and its
    vitals."""
    from . import assemble

    trainer = assemble.assemble(setup_of(values), group)
    found: dict[str, dict[str, list[torch.Tensor]]] = {}

    def keep(name, what, tensor):
        rows = tensor.detach().float().reshape(-1, tensor.shape[-1]).clone()
        found.setdefault(name, {}).setdefault(what, []).append(rows)

    for name, module in trainer.model.named_modules():
        if hasattr(module, "in_features") and name != "head":

            def forward(module, args, y, name=name):
                keep(name, "x", args[0])
                keep(name, "y", y)

            def backward(module, dx, dy, name=name):
                keep(name, "dy", dy[0])
                keep(name, "dx", dx[0])

            module.register_forward_hook(forward)
            module.register_full_backward_hook(backward)
    gradients: dict[str, torch.Tensor] = {}

    def look(vitals):
        if not gradients:
            gradients.update(whole(trainer, lambda unit: unit.shard.grad))
        return True

    vitals, weights = [], []
    for batch, lr in zip(batches, lrs):
        weights.append(whole(trainer, lambda unit: unit.shard))
        vitals.append(list(trainer.step(assemble.data_of(trainer, batch), lr, look)))
    more = {"report": trainer.report, "kinds": kinds(trainer.model), "weights": weights}
    return {"linears": found, "gradients": gradients, "vitals": vitals, **more}


def kinds(model: nn.Module) -> dict[str, str]:
    """{name: type} of the embedding and of what computes the linears, counted in the model."""
    every = dict(model.named_modules())
    return {name: type(m).__name__ for name, m in every.items() if hasattr(m, "in_features") or name == "tok_embed"}


def spoilt(batches, values, lrs, spoils, spots, group):
    """C.1: a step for each batch. In the first ones a rank finds a value in its gradient or its loss, as `spoils` says:
    ("gradient" or "loss", rank, value, unit, place). `allow` refuses the one after them. Returns vitals, what `allow`
    was called with, and whether anything moved in each, and the weights at the end; and the vitals of one gradient, of
    1e22 times it, and with a NaN on all ranks but the first; before that `finite` with one number spoilt at each of
    `spots`."""
    from . import assemble

    trainer = assemble.assemble(setup_of(values), group)
    gradients, calls, moved, vitals, graphs = trainer.gradients, [], [], [], []

    def spot(unit, place):
        """A unit's gradient, and where in it a number is that is no filling."""
        one = trainer.units[unit % len(trainer.units)]
        filled = sum(p.numel() for p in one.params) - one.group.rank * len(one.shard)
        return one.shard.grad, place % min(len(one.shard), filled)

    def with_spoils(rows):
        loss = gradients(rows)
        graphs.append(loss is not None and loss.requires_grad)
        for what, rank, value, *where in spoils[number : number + 1]:
            if group.rank == rank and what == "loss" and loss is not None:
                return torch.full_like(loss, value)
            if group.rank == rank and what == "gradient":
                gradient, at = spot(*where)
                gradient[at] = value
        return loss

    vars(trainer)["gradients"] = with_spoils
    for number, (batch, lr) in enumerate(zip(batches, lrs)):
        before, count = [unit.shard.detach().clone() for unit in trainer.units], trainer.optimizer.steps
        moments = [x.clone() for x in (*trainer.optimizer.m, *trainer.optimizer.v)]
        allowed = number != len(spoils)

        def allow(found, allowed=allowed):
            calls.append(int(found.finite))
            return allowed

        vitals.append(list(trainer.step(assemble.data_of(trainer, batch), lr, allow)))
        same = all(torch.equal(a, unit.shard) for a, unit in zip(before, trainer.units))
        same &= all(map(torch.equal, moments, (*trainer.optimizer.m, *trainer.optimizer.v)))
        moved.append(not same or trainer.optimizer.steps != count)
    weights = whole(trainer, lambda unit: unit.shard)
    grads = sum(unit.shard.grad is not None for unit in trainer.units)
    loss, sizes, found = gradients(assemble.data_of(trainer, batches[0])), [], []
    for rank, value, *where in spots:
        gradient, at = spot(*where)
        right = gradient[at].clone()
        gradient[at] = value if group.rank == rank else right
        found.append(trainer.vitals(loss).finite)
        gradient[at] = right
    for times in (1.0, 1e22, math.nan if group.rank else 1.0):
        for unit in trainer.units:
            unit.shard.grad.mul_(times)
        sizes.append(list(trainer.vitals(loss)))
    judged = {"sizes": sizes, "spots": found, "graph": any(graphs), "weights": weights}
    return {"vitals": vitals, "calls": calls, "moved": moved, "grads": grads, **judged}


def product(x, w, dy, group, epsilon=None, power_of_two=False):
    """C.1: AgreedProduct of these slices, forward and backward; the bytes that it keeps in between, the weight's apart;
    and the dtypes that its backward gives, before autograd makes dw the weight's."""
    from capstone.given.parts import part
    from labkit.checks.held import reached

    from . import fp8

    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    recipe = part("week16_fp8.casts").Recipe(epsilon=epsilon or {}, power_of_two=power_of_two)
    group.barrier()
    y = fp8.AgreedProduct.apply(x, w, recipe, group)
    hung = reached(y.grad_fn, fp8, group, *map(vars, (x, w, y)), package=__package__)
    stores = [t.untyped_storage() for t in (*y.grad_fn.saved_tensors, *hung)]
    kept = {store.data_ptr(): store.nbytes() for store in stores}
    kept.pop(w.untyped_storage().data_ptr(), None)
    group.barrier()
    dx, dw = y.grad_fn.apply(dy)[:2]
    group.barrier()
    dtypes = [str(t.dtype) for t in (y, dx, dw)]
    return {"y": y.detach(), "dx": dx, "dw": dw, "dtypes": dtypes, "kept": sum(kept.values())}


def refused(setups, group):
    """C.1: what `assemble` raises for each setup, and whether a stage was built before."""
    from . import assemble

    found, built, original = [], [], assemble.built

    def noted(*args):
        built.append(True)
        return original(*args)

    assemble.built = noted
    try:
        for values in setups:
            built.clear()
            try:
                assemble.assemble(setup_of(values), group)
                found.append(("nothing", "", bool(built)))
            except LabError as error:
                found.append(("LabError", str(error), bool(built)))
    finally:
        assemble.built = original
    return found


class Memory:
    """A Store (given/store.py) that is in memory: what is there already. What a rank writes is a message to the next
    rank: the ledger has its moment, and the message is what was written.

    files: {"5/rank-00000": bytes as uint8}. full: names that cannot be written; torn: that cannot be read. unlisted:
    steps that are there, and that this rank's listing has not yet."""

    def __init__(self, group, files=None, full=(), unlisted=(), torn=()) -> None:
        self.group, self.files, self.full, self.unlisted, self.torn = group, dict(files or {}), full, unlisted, torn
        self.sent: list[Any] = []
        self.discarded: list[int] = []

    def _send(self, text):
        body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for part in (torch.tensor([len(body)]), body):
            self.sent.append(self.group.isend(part, (self.group.rank + 1) % self.group.size))

    def put(self, step, name, data):
        self._send(f"{step}/{name}\n".encode() + (b"" if name in self.full else bytes(data)))
        if name in self.full:
            raise OSError(28, "No space left on device")

    def publish(self, step):
        if "publish" in self.full:
            raise OSError(28, "No space left on device")
        self._send(b"publish\n")  # this is all that publishing is here: no list in this process says it again

    def heard(self):
        """What the rank before this one has written, in order: [(name, bytes as uint8), ...]. All ranks call it."""
        found, before = [], (self.group.rank - 1) % self.group.size
        self._send(b"\n")
        while True:
            size = int(self.group.recv(before, like=torch.zeros(1, dtype=torch.int64)))
            body = self.group.recv(before, like=torch.zeros(size, dtype=torch.uint8))
            if size == 1:
                break
            name = bytes(body[:64].tolist()).partition(b"\n")[0]
            found.append((name.decode(), body[len(name) + 1 :].clone()))
        for handle in self.sent:
            handle.wait()
        return found

    def discard(self, step):
        self.discarded.append(step)

    def steps(self):
        return sorted({int(key.partition("/")[0]) for key in self.files} - {*self.unlisted}, reverse=True)

    def get(self, step, name):
        if f"{step}/{name}" not in self.files:
            raise OSError(2, f"{name} is missing")
        if name in self.torn:
            raise OSError(5, f"{name}: Input/output error")
        return bytes(self.files[f"{step}/{name}"].tolist())


def without_save(batches, values, lr, steps, refused, begun, group):
    """C.2: a step for each batch, of which those in `refused` are not taken; AdamW has counted `begun` before. What the
    run is like after `steps` and at the end. Your checkpoints are not called here."""
    from . import assemble

    trainer = assemble.assemble(setup_of(values), group)
    trainer.optimizer.steps = begun
    stepped(trainer, batches[:steps], lr, refused)
    found = state(trainer)
    vitals = stepped(trainer, batches[steps:], lr)
    return {"state": found, "vitals": vitals, "weights": whole(trainer, lambda unit: unit.shard)}


def stepped(trainer, batches, lr, refused=()):
    """A step for each batch, which is not taken where its number is in `refused`: the vitals."""
    from . import assemble

    data = [assemble.data_of(trainer, batch) for batch in batches]
    return [list(trainer.step(rows, lr, lambda _, n=n: n not in refused)) for n, rows in enumerate(data)]


def saved(batches, values, lr, step, full, refused, begun, own, group):
    """C.2: steps as in `without_save`, and a save as `step`: what the rank before this one wrote, and what was said."""
    from . import assemble, checkpoint

    checkpoint.damage(Memory(group), 0, [])  # if it is a blank, it says so before C.1's
    trainer = assemble.assemble(setup_of(values), group)
    trainer.optimizer.steps = begun
    stepped(trainer, batches, lr, refused)
    store, error = Memory(group.split([[*range(group.size)]], "store"), full=full), ("", "")
    try:
        checkpoint.save(trainer, step, store, own)
    except LabError as refused:
        error = ("LabError", str(refused))
    return {"heard": store.heard(), "discarded": store.discarded, "error": error, "state": state(trainer)}


def resumed(batches, values, lr, files, unlisted, group):
    """C.2: a load from these files, of which this rank's listing lacks some steps, and a step for each batch."""
    from . import assemble, checkpoint

    checkpoint.damage(Memory(group), 0, [])  # if it is a blank, it says so before C.1's
    trainer = assemble.assemble(setup_of(values), group)
    adam = trainer.optimizer
    kept = [*(unit.shard for unit in trainer.units), *adam.m, *adam.v]
    before = [x.detach().clone() for x in kept]
    try:
        found = checkpoint.load(trainer, Memory(group, files, unlisted=unlisted))
    except LabError as refused:
        same = adam.steps == 0 and all(map(torch.equal, before, kept))
        return {"error": ("LabError", str(refused)), "untouched": same}
    loaded = state(trainer)
    vitals = stepped(trainer, batches, lr)
    weights = whole(trainer, lambda unit: unit.shard)
    result = None if found is None else {"step": found[0], "own": found[1], "passed_over": list(found[2])}
    return {"loaded": result, "vitals": vitals, "weights": weights, "state": loaded, "error": ("", "")}


def judged_whole(files, cases):
    """C.2: what `damage` says of step 7, whose files are these, for each case: the ranks, the files in place of some
    (None: it is gone), and the names that cannot be read."""
    import zlib

    from . import checkpoint

    ranks = [{"bytes": len(data), "crc32": zlib.crc32(bytes(data.tolist()))} for data in files]
    manifest = checkpoint.sealed({"step": 7, "mesh": {"dp": len(files)}, "setup": {}, "ranks": ranks})
    said = []
    for of, changed, torn in cases:
        there = {checkpoint.name_of(r): data for r, data in enumerate(files)}
        there |= {"manifest": torch.frombuffer(bytearray(manifest), dtype=torch.uint8), **changed}
        store = Memory(None, {f"7/{name}": data for name, data in there.items() if data is not None}, torn=torn)
        said.append(checkpoint.damage(store, 7, of))
    return said


def written() -> bool:
    """C.3: NotImplementedError if a blank of survive.py is left: read from its source, nothing runs for it."""
    import inspect
    import re

    from . import survive

    if blank := re.search(r'raise NotImplementedError\("(Task C\.3[^"]*)"\)', inspect.getsource(survive)):
        raise NotImplementedError(blank[1])
    return True


def who_hangs(standings, limit):
    """C.3: `hung` of standings that are plain values: [rank, call, group, by], or None."""
    from . import survive

    made = [survive.Standing(**{**one, "ranks": tuple(one["ranks"])}) for one in standings]
    found = survive.hung(made, limit)
    return None if found is None else [found.rank, found.call, found.group, found.by]


def acts(rank, found, standings, gone):
    """C.3: what the watchdog of `rank` does when it has found who hangs, and what first. No process is ended: what it
    asks of the system is noted, and if the hung process is `gone` the system says so."""
    import os
    from pathlib import Path
    from types import SimpleNamespace

    from . import survive

    class Left(BaseException):
        pass

    def leave(status):
        left.append(int(status))
        raise Left

    order: list[str] = []
    written: list[list[Any]] = []
    killed: list[list[int]] = []
    left: list[int] = []
    group: Any = SimpleNamespace(rank=rank, size=len(standings), ledger=None)

    def autopsy(text, **fields):
        order.append("autopsy")
        written.append([str(text), fields])

    dog = survive.Watchdog(group, Path("standings"), 10.0, autopsy)
    made = [survive.Standing(**{**one, "ranks": tuple(one["ranks"])}) for one in standings]
    kept = os.kill, os._exit

    def kill(pid, number):
        order.append("kill")
        killed.append([int(pid), int(number)])
        if gone:
            raise ProcessLookupError(3, "No such process")

    os.kill, os._exit = kill, leave
    try:
        dog.act(survive.Hung(*found), made)
    except Left:
        pass
    finally:
        os.kill, os._exit = kept
    return {"written": written, "killed": killed, "left": left, "first": order[0] if order else ""}


def kept(step, own, full):
    """C.3: `keep`, where the checkpoint is noted or finds no room, and `restore` from one that holds `own`: what was
    done, in order, and what the run is then."""
    from types import SimpleNamespace

    from . import survive

    done: list[str] = []

    def save(*_):
        done.append("save")
        if full:
            raise LabError("No space left on device")

    recovery = SimpleNamespace(rate=1.0, saved=lambda at: done.append("saved" if at == step else f"saved {at}"))
    run = SimpleNamespace(step=step, recovery=recovery, own=lambda: own, shift=0, rollbacks=0, history={})
    run.trainer = run.store = run.group = None
    run.say = lambda kind, *_, **__: done.append(kind)
    original = survive.checkpoint.save, survive.checkpoint.load
    survive.checkpoint.save = save
    survive.checkpoint.load = lambda *_: survive.checkpoint.Loaded(step - 1, own, ["one"])
    try:
        said = survive.keep(run), survive.restore(run)
    finally:
        survive.checkpoint.save, survive.checkpoint.load = original
    is_now = {"rate": recovery.rate, "shift": run.shift, "rollbacks": run.rollbacks, "history": run.history}
    return {"done": done, "kept": said[0], "passed over": said[1], "step": run.step, "own": is_now}


def went_back(to, at, now, own, skip, steps, group):
    """C.3: `go_back` of a run at step `at`, where the store lists these steps, and the checkpoint of step `to` holds
    `own`: what it returned, what was said and done, and what the run is then."""
    from types import SimpleNamespace

    from . import survive

    said: list[list[Any]] = []
    run = SimpleNamespace(step=at, shift=now["shift"], rollbacks=now["rollbacks"], history={}, group=group)
    run.recovery = SimpleNamespace(rate=now["rate"])
    run.config = SimpleNamespace(recovery=SimpleNamespace(skip_data=skip))
    run.trainer, run.store = SimpleNamespace(group=group), SimpleNamespace(steps=lambda: steps)
    run.say = lambda kind, *_, **fields: said.append([kind, fields])
    run.recut = lambda: said.append(["recut", {"step": run.step}])
    load = survive.checkpoint.load
    original = getattr(load, "original", load)  # ranks that are threads share the module

    def loaded(*_):
        return survive.checkpoint.Loaded(to, own, [])

    vars(loaded)["original"] = original
    survive.checkpoint.load = loaded
    group.barrier()
    try:
        back = survive.go_back(run)
        group.barrier()
    finally:
        survive.checkpoint.load = original
    is_now = {"rate": run.recovery.rate, "shift": run.shift, "rollbacks": run.rollbacks, "history": run.history}
    return {"back": back, "said": said, "run": {"step": run.step, **is_now}}


def rang(runs):
    """C.4: of each run what rang: [[row, rank or -1], ...]."""
    from . import health
    from .given.records import Run

    found = []
    for tables in runs:
        alarms = health.alarms(Run(*tables))
        found.append([[int(alarm.row), -1 if alarm.rank is None else int(alarm.rank)] for alarm in alarms])
    return found


def slow(tables):
    """C.4: of each table of seconds what rang, likewise."""
    from . import health

    return [
        [[int(row), -1 if rank is None else int(rank)] for row, _, rank in health.slow_ranks(work)] for work in tables
    ]
