"""What the checks of 14.2, 14.3 and 14.4 hold your classes against: one process on the whole batch.

The network of given/tiny.py once more, as a function (`loss_of`), in FP64. So a difference in the order of additions is
some 1e-16, and a mistake is not. Then what is read in a ledger: what was sent, and when.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from labkit.checks import Draw, call, expect, same
from labkit.checks.verdict import FORBIDDEN, NO_RESULT, CheckFailed
from labkit.comm.ledger import EMPTY

F64 = torch.float64

# A gradient here is a sum of some hundred products of size 1 at most, in FP64: 1e-13 lets every order of additions
# pass. Three steps of descent, and AdamW's quotients, may make a thousand times of it.
TOL = 1e-10


def draw(seed, blocks=3, idle=False, width=None):
    """Weights by name, with sizes drawn from the seed. No two blocks are equally large."""
    generator = Draw(seed)

    def number(low, high):
        return generator.size(low, high)

    V, D, weights = number(11, 17), width or number(4, 6), {}
    hidden = [3 + k for k in generator.order(range(9))[:blocks]]
    shapes = {"embed": (V, D), "scale": (D,)} | ({"idle": (number(2, 4), 3)} if idle else {})
    for k, H in enumerate(hidden):
        shapes |= {f"blocks.{k}.up": (H, D), f"blocks.{k}.bias": (H,), f"blocks.{k}.down": (D, H)}
    for name, shape in shapes.items():
        weights[name] = generator.normal(*shape, dtype=F64) * (0.4 if len(shape) > 1 else 1.0)
    return weights, generator


def registered(weights):
    """Names in the order in which `module.parameters()` has them: a module's own first, then those of its parts."""
    order = {"up": 0, "bias": 1, "down": 2}
    blocks = [name.split(".") for name in weights if name.startswith("blocks.")]
    blocks.sort(key=lambda words: (int(words[1]), order[words[2]]))
    return [*(n for n in ("idle", "embed", "scale") if n in weights), *(".".join(words) for words in blocks)]


def a_batch(weights, generator, use=None, T=5, B=2):
    V = weights["embed"].shape[0]
    tokens = generator.ids(V, B, T)
    targets = generator.ids(V, B, T)
    return tokens, targets, use


def loss_of(w, batch, run=lambda block, *args: block(*args)):
    """The network of given/tiny.py, as a function of its weights. run: how each block is called."""
    tokens, targets, use = batch

    def block(x, k):
        return x + F.relu(x @ w[f"blocks.{k}.up"].T + w[f"blocks.{k}.bias"]) @ w[f"blocks.{k}.down"].T

    x = w["embed"][tokens]
    for k in range(sum("up" in name for name in w)) if use is None else use:
        x = run(block, x, k)
    logits = (x * w["scale"]) @ w["embed"].T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gradient(weights, batches, turned=None, **how):
    """Of the mean of the losses; zeros where nothing is used. turned: {name: what this weight is multiplied by between
    forward and backward}."""
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    loss = sum(loss_of(w, batch, **how) for batch in batches) / len(batches)
    for name, by in (turned or {}).items():
        w[name].data.mul_(by)  # past autograd, which saved this memory
    grads = torch.autograd.grad(loss, list(w.values()), allow_unused=True)
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(w.items(), grads)}


def added(*gradients):
    return {name: sum(g[name] for g in gradients) for name in gradients[0]}


def scaled(gradient, by):
    return {name: by * g for name, g in gradient.items()}


def vector(tensors, names):
    return torch.cat([tensors[name].reshape(-1) for name in names])


def carried(ledger):
    """All that travelled by library collectives."""
    if ledger.gaps:
        raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} switched its ledger off: what it sent cannot be judged")
    return [e for e in ledger.events if e.kind not in ("compute", "wait", *EMPTY)]


def only(ledger, *kinds):
    for event in carried(ledger):
        if event.kind not in kinds:
            raise CheckFailed(
                FORBIDDEN,
                f"rank {ledger.rank} calls group.{event.kind} at {event.where}: here {' and '.join(kinds)} travel",
            )


def wait_of(ledger, event):
    """The place in the program at which the rank waited for it; its own if it blocked."""
    if event.blocking:
        return event.index
    return next((e.index for e in ledger.events if e.kind == "wait" and e.of == event.index), math.inf)


def spans(ledger):
    return [(e.label, e.index) for e in ledger.events if e.kind == "compute"]


def answer(got, length, what="the scenario"):
    """A tuple or list of so many, or no result."""
    if not isinstance(got, (tuple, list)) or len(got) != length:
        raise CheckFailed(NO_RESULT, f"{what} gave no answer that can be read")
    return got


def part(got, name):
    if not isinstance(got, dict) or name not in got:
        raise CheckFailed(NO_RESULT, f"the scenario gave no {name!r}")
    return got[name]


def close_to(a, b):
    return (
        isinstance(a, torch.Tensor)
        and a.shape == b.shape
        and torch.allclose(a.double(), b.double(), atol=TOL, rtol=1e-9)
    )


def gradients_agree(got, want, rank, causes, what="the gradients"):
    """All gradients of a step at once. `causes` are whole gradients, or a function that gives them; one is reported if every
    number is its, and it differs from the right one in several."""
    if not isinstance(got, dict) or set(got) != set(want):
        raise CheckFailed(NO_RESULT, f"{what} of rank {rank} did not come back")
    names = sorted(want)
    missing = [name for name in names if got[name] is None]
    expect(not missing, f"{what} of rank {rank}: none (p.grad is None) of {', '.join(missing)}", known=True)
    if all(close_to(got[n], want[n]) for n in names):
        return
    found = tuple(
        cause
        for cause, mark in (causes() if callable(causes) else causes).items()
        if all(close_to(got[n], mark[n]) for n in names)
        and sum(int(((mark[n] - want[n]).abs() > 1e-6).sum()) for n in names) >= 3
    )
    wrong = next(n for n in names if not close_to(got[n], want[n]))
    if found:
        expect(
            False, f"{what} of rank {rank} are not those of one process on the whole batch; first {wrong}", cause=found
        )
    same(got[wrong], want[wrong], rank=rank, tol=TOL, what=f"{what}: that of {wrong}")


def follow(weights, by_rank, lr=0.03125, gradient=gradient):
    """One process on the whole batch: gradients of each step. Micro-batches add up."""
    w, found = weights, []
    for step in range(len(by_rank[0])):
        N = len(by_rank)
        mean = scaled(added(*[gradient(w, [mb]) for rank in by_rank for mb in rank[step]]), 1 / N)
        found.append((w, mean))
        w = {n: t - lr * mean[n] for n, t in w.items()}
    return found


def judge_refused(what, weights, generator, seed, use=None, mine=None, **options):
    """Pass if an attempt is refused on every rank, and the ordinary steps before it, one to three, were right. (To
    refuse everything is no answer.) use: the blocks of the attempt. mine: which of the mean gradient a rank has, as one
    vector; all of it, if None."""
    by_rank = [[a_batch(weights, generator) for _ in range(1 + seed % 3)] for _ in range(2)]
    by_rank = [[*batches, a_batch(weights, generator, use)] for batches in by_rank]
    got, _ = call("scenarios.refused", [(batches,) for batches in by_rank], weights=weights, what=what, **options)
    means = [gradient(weights, list(step)) for step in zip(*by_rank)][:-1]
    for r, batches in enumerate(by_rank):
        seen, losses, grads = answer(got[r], 3)
        want = [loss_of(weights, batch).item() for batch in batches[:-1]]
        expect(
            isinstance(losses, list) and len(losses) == len(want),
            f"rank {r}: an ordinary step must not be refused, and it gave {seen}",
        )
        same(losses, want, rank=r, tol=TOL, what="the losses of the steps before")
        for found, mean in zip(answer(grads, len(means)), means):
            whole = mine(mean, r) if mine else vector(mean, registered(weights))
            same(found, whole, rank=r, tol=TOL, what="the gradient of an ordinary step, side by side,")
        expect(
            seen == "RuntimeError",
            f"rank {r}: {what} must be a RuntimeError with a sentence; it gave {seen}",
            known=True,
        )
