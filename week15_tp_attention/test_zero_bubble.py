"""Self-checks of the zero-bubble schedule (15.10, stretch), for no points: `lab check 15.10`. Nothing is hidden.

A schedule is judged by what it is for: does it finish, how long does it take, how much does it keep? A run by its
numbers, by where its products were made, and by its ledger."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, same, sends, sent, task
from labkit.checks.drawn import Draw
from labkit.checks.judge import close
from labkit.checks.traffic import LIBRARY
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from week15_tp_attention.test_pipeline import (
    ROUNDINGS,
    a_decoder,
    judge_kept,
    last_alone,
    mine,
    one_f_one_b,
    unsharded,
    words,
)

EQUAL = {"F": 1.0, "B": 1.0, "W": 1.0}  # seconds of a step
UNEQUAL = {"F": 2.0, "B": 3.0, "W": 2.0}


def at_once(P, M):
    """1F1B's order, every W right behind its B."""
    return [
        [one for kind, m in steps for one in ([(kind, m), ("W", m)] if kind == "B" else [(kind, m)])]
        for steps in one_f_one_b(P, M)
    ]


def held_back(P, M, most):
    """1F1B's Fs and Bs; of the Ws stage p lets most(p) wait, and makes the oldest as soon as there are more."""
    stages = []
    for p, steps in enumerate(at_once(P, M)):
        kept, waiting = [], []
        for step in steps:
            if step[0] == "W":
                waiting.append(step)
                kept += [waiting.pop(0)] if len(waiting) > most(p) else []
            else:
                kept.append(step)
        stages.append(kept + waiting)
    return stages


def makespan(stages, seconds):
    """Seconds until the last step's end if each step waits for what it needs; None if they wait for ever."""
    P, done = len(stages), dict[tuple, float]()
    clock, at, moved = [0.0] * P, [0] * P, True
    while moved:
        moved = False
        for p, steps in enumerate(stages):
            while at[p] < len(steps):
                kind, m = steps[at[p]]
                needs = {
                    "F": [("F", m, p - 1)] * (p > 0),
                    "B": [("F", m, p), *[("B", m, p + 1)] * (p < P - 1)],
                    "W": [("B", m, p)],
                }[kind]
                if any(need not in done for need in needs):
                    break
                clock[p] = max([clock[p], *map(done.__getitem__, needs)]) + seconds[kind]
                done[kind, m, p] = clock[p]
                at[p], moved = at[p] + 1, True
    return max(clock) if all(a == len(steps) for a, steps in zip(at, stages)) else None


def shortest(P, M, seconds):
    """Seconds of ZB-H1 (arXiv:2401.10241, table 2): with fewer micro-batches than stages the last one's W remains."""
    return (M + P - 1) * (seconds["F"] + seconds["B"]) + max(1, M - P + 1) * seconds["W"]


def peak(steps):
    """The most micro-batches between F and W."""
    change = {"F": 1, "B": 0, "W": -1}
    return max(sum(change[kind] for kind, _ in steps[:k]) for k in range(len(steps) + 1))


def fault(got, P, M):
    """What is wrong with a schedule: (text, cause), or None."""
    head, wanted = f"{P} stages, {M} micro-batches", {(kind, m) for kind in "FBW" for m in range(M)}
    expect(isinstance(got, list) and len(got) == P, f"a schedule of {P} stages must come back")
    stages = [[tuple(step) for step in steps] if isinstance(steps, list) else [] for steps in got]
    for p, steps in enumerate(stages):
        if set(steps) != wanted or len(steps) != len(wanted):
            return f"stage {p} of {P}: each F, B and W of {M} micro-batches must come once: {words(steps)}", ()
        for m in range(M):
            if not steps.index(("F", m)) < steps.index(("B", m)) < steps.index(("W", m)):
                return f"stage {p} of {P}: F{m}, B{m} and W{m} must come in this order: {words(steps)}", ()
    for kind in "FB":
        if len({tuple(m for k, m in steps if k == kind) for steps in stages}) > 1:
            return f"{head}: the stages run their {kind}s in different orders, and messages arrive in one", ()
    causes = {
        "each W right behind its B: nothing is left to do while the last gradients travel up": at_once(P, M),
        "every W at the end: the bubble is gone, and all micro-batches are kept": held_back(P, M, lambda p: M),
        "as many Ws wait on the first stage as on the last: the first has no room": held_back(P, M, lambda p: P - 1),
        "stage p holds back P-p-1: where 1F1B keeps most there is no room, and at the end nothing is left to do": (
            held_back(P, M, lambda p: P - p - 1)
        ),
    }
    right = held_back(P, M, lambda p: p)
    cause = tuple(text for text, other in causes.items() if stages == other and other != right)
    for p, steps in enumerate(stages):
        if peak(steps) > min(P, M):
            return f"{head}: stage {p} has {peak(steps)} in flight, {min(P, M)} are allowed: {words(steps)}", cause
    for seconds in (EQUAL, UNEQUAL):
        time, best = makespan(stages, seconds), shortest(P, M, seconds)
        if time is None:
            return f"{head}: the stages wait for each other for ever", cause
        if time > best + 1e-9:
            each = ", ".join(f"{kind} {value:g}" for kind, value in seconds.items())
            return f"{head}: {time:g} s for steps of {each} s, and {best:g} are enough", cause
    return None


@task("15.10", points=0)
def test_zero_bubble(seed):
    """It finishes, in two thirds less idle time than 1F1B, and keeps no more than 1F1B's first stage"""
    draw = Draw(seed, "zero bubble")
    more = draw.size(3, 6)
    sizes = [(4, 8), (1, 3), (3, 3), (2, 5 + more), (5, 2), (more, more + 1), (4, 1)]
    for (P, M), got in zip(sizes, call_alone("scenarios.zero_bubble", sizes)):
        found = fault(got, P, M)
        if found is not None:
            expect(False, found[0], cause=found[1])


@task("15.10", points=0)
def test_zero_bubbles_bubble(seed):
    """The fraction of the time in which a stage stands idle"""
    draw = Draw(seed, "bubble")
    P = draw.size(3, 9)
    sizes = [(1, 4), (4, 4), (4, 8), (P, P + draw.size(1, 30))]
    for (P, M), got in zip(sizes, call_each("stretch.zero_bubble.bubble", sizes)):
        time = shortest(P, M, EQUAL)
        causes = {
            "of 1F1B": (P - 1) / (M + P - 1),
            "idle over busy, expected idle over the whole time": (P - 1) / (3 * M),
            "the busy fraction": 3 * M / time,
        }
        same(got, 1 - 3 * M / time, tol=1e-9, what=f"the bubble of {P} stages, {M} micro-batches", looks_like=causes)


RUNS = {  # name: (how many Ws wait on stage p of P, P, M, layers)
    "ZB-H1, 4 stages": (lambda P, p: p, 4, 6, 4),
    "all Ws at the end": (lambda P, p: 99, 2, 4, 3),
    "1F1B": (lambda P, p: 0, 3, 2, 3),
    "one stage": (lambda P, p: 1, 1, 3, 1),
}


@task("15.10", points=0)
@pytest.mark.parametrize("name", RUNS)
def test_run_in_three_kinds_of_steps(name, seed):
    """Losses and gradients as of one process; where the products are made; the bubble from the ledger"""
    waits, P, M, layers = RUNS[name]
    draw, stages = Draw(seed, name), held_back(P, M, lambda p: waits(P, p))
    B, T = 2, draw.size(8, 11)  # B T > 15: a product's size shows whether it is a weight's gradient
    config, weights = a_decoder(draw, layers, T)
    inputs, targets = ([draw.ids(config["vocab_size"], B, T) for _ in range(M)] for _ in range(2))
    loss, gradients = unsharded(config, weights, inputs, targets)
    last = last_alone(config, weights, inputs, targets)
    parts = [part.tolist() for part in torch.arange(layers).tensor_split(P)]
    own = [mine(weights, part, layers) for part in parts]
    data = [
        (own[p], inputs if p == 0 else None, targets if p == P - 1 else None, [parts[p][0], parts[p][-1] + 1])
        for p in range(P)
    ]
    shape = (B, T, config["d_model"])
    got, ledgers = call("scenarios.zero_bubble_run", data, config=config, schedule=stages, shape=shape)
    for p in range(P):
        value, found, products, kept, waits = got[p] if isinstance(got[p], tuple) else (None, {}, [], [], [])
        if p == P - 1:
            causes = {"the sum over the micro-batches, expected the mean": M * loss.double()}
            close(value, loss.double(), tol=ROUNDINGS * M, rank=p, what="the loss", looks_like=causes)
        else:
            expect(value is None, f"stage {p} has no loss, and one came back", known=True)
        judge_products(products, own[p], stages[p], p)
        for key in own[p]:
            want = gradients[key].double()
            causes = {
                "M times too much: the loss is the mean over the micro-batches": M * want,
                "the last micro-batch's alone: .grad adds up": last[key].double(),
            }
            tol = ROUNDINGS * max(1.0, float(want.abs().max()))
            close(found.get(key), want, tol=tol, rank=p, what=f"dL/d {key}", looks_like=causes if M > 1 else {})
        judge_run(ledgers[p], stages[p], p, P, 4 * B * T * config["d_model"])
        if p < P - 1:
            judge_kept(kept, [step for step in stages[p] if step[0] != "W"], p)
        steps = [kind for kind, _ in stages[p]]
        most = [steps[: k + 1].count("B") - steps[:k].count("W") + 1 for k, kind in enumerate(steps) if kind == "B"]
        expect(
            len(waits) != M or all(a <= b for a, b in zip(waits, most)),
            f"stage {p}: what waits for a W is still there of {waits} micro-batches, B for B; {most} are enough, with one "
            f"that was just done: x and dy go at W",
            known=True,
        )
    for ledger in ledgers:
        for event in ledger.events:
            if event.kind == "compute":
                event.seconds = UNEQUAL[event.label[0]]
    time = replay(ledgers, Topology.switch(P, 0.0, 1e15)).time
    what = "seconds of the whole run on a wire that costs nothing"
    same(time, makespan(stages, UNEQUAL), tol=1e-6, what=what)


def judge_products(products, weights, steps, p):
    """Every product for a weight's gradient in a W, and nothing else there. Their sizes identify them: dx and y have at
    least 16 x 8 numbers here, a weight at most 15 x 8 (w1's and the head's)."""
    linears = [w.numel() for name, w in weights.items() if w.dim() == 2 and name != "tok_embed.weight"]
    early = sorted({span for size, span in products if span[:1] == "B" and size in linears})
    expect(
        not early,
        f"stage {p}: products for weights' gradients are made in {', '.join(early)}, expected in Ws",
        cause=("backward makes dW at once: nothing is left for W",) if early else (),
    )
    for kind, m in steps:
        inside = sorted(size for size, span in products if span == f"W{m}")
        if kind == "W":
            expect(
                inside == sorted(linears),
                f"stage {p}, W{m}: {len(inside)} products, and it has {len(linears)} weights: each once, and no other",
            )


def judge_run(ledger, steps, p, P, size):
    """The spans are the steps, in order; the messages those of F and B, in their order, and gradients before any W."""
    spans = [event.label for event in ledger.events if event.kind == "compute"]
    want = [f"{kind}{m}" for kind, m in steps]
    expect(spans == want, f"stage {p}'s spans must be its steps, {' '.join(want)}, and are {' '.join(spans) or 'none'}")
    if P > 1:
        wanted = [(p + 1 if kind == "F" else p - 1, size) for kind, _ in steps if kind != "W"]
        wanted = [(to, nbytes) for to, nbytes in wanted if 0 <= to < P]
        sent(ledger, at_most=len(wanted) * size, forbid=LIBRARY, at_least=1)
        expect(sends(ledger) == wanted, f"stage {p} must send, as (to, bytes), {wanted}, and sent {sends(ledger)}")
