"""The checks of the pipeline (15.6). Nothing is hidden.

A schedule is judged by what it is for: does it finish, how long does it take, how much does it keep? P stages, M
micro-batches. A run is judged by its numbers, and by its ledger: what was sent, in which order, how many
micro-batches a stage had in flight, and how long the same run takes on the virtual wire.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, same, sends, sent, task
from labkit.checks.drawn import Draw
from labkit.checks.judge import close
from labkit.checks.traffic import LIBRARY, nothing_inside
from labkit.comm.topology import Topology
from labkit.comm.wire import replay

FORWARD, BACKWARD = 1.0, 2.0  # seconds of a step, where a check needs them


def by_rule(P, M, keeps):
    """Steps of every stage, as they come if each does whatever can be done, backward before forward, and never has
    more micro-batches than `keeps` says of it; a backward as long as a forward."""
    stages: list[list[tuple[str, int]]] = [[] for _ in range(P)]
    while any(len(steps) < 2 * M for steps in stages):
        before = [list(steps) for steps in stages]  # what is done when this moment begins
        for p, steps in enumerate(before):
            f, b = sum(kind == "F" for kind, _ in steps), sum(kind == "B" for kind, _ in steps)
            if b < f and (p == P - 1 or ("B", b) in before[p + 1]) and (keeps(p) < M or f == M):
                stages[p].append(("B", b))
            elif f < M and f - b < keeps(p) and (p == 0 or ("F", f) in before[p - 1]):
                stages[p].append(("F", f))
    return stages


def gpipe(P, M):
    return by_rule(P, M, lambda p: M)


def one_f_one_b(P, M):
    return by_rule(P, M, lambda p: P - p)


def one_at_a_time(P, M):
    return by_rule(P, M, lambda p: 1)


def peak(steps):
    """The most micro-batches in flight: forwards done and backwards not, at any moment."""
    return max(sum(1 if kind == "F" else -1 for kind, _ in steps[:k]) for k in range(len(steps) + 1))


def makespan(stages):
    """Seconds until the last step's end if each step waits for its neighbour's; None if they wait for ever. Messages
    between two stages arrive in the order of the steps that send them."""
    done: dict[tuple, float] = {}
    clock, at = [0.0] * len(stages), [0] * len(stages)
    moved = True
    while moved:
        moved = False
        for p, steps in enumerate(stages):
            while at[p] < len(steps):
                kind, m = steps[at[p]]
                needs = [("F", m, p - 1)] if kind == "F" and p else []
                needs = [("F", m, p), *([("B", m, p + 1)] if p < len(stages) - 1 else [])] if kind == "B" else needs
                if any(need not in done for need in needs):
                    break
                clock[p] = max([clock[p], *(done[need] for need in needs)]) + (FORWARD if kind == "F" else BACKWARD)
                done[kind, m, p] = clock[p]
                at[p], moved = at[p] + 1, True
    return max(clock) if all(a == len(steps) for a, steps in zip(at, stages)) else None


def plain(stages, P, M):
    """A schedule as a student's function gave it, or a verdict if it is none: every step once, forward first, both in
    the order of the micro-batches."""
    expect(isinstance(stages, list) and len(stages) == P, f"a schedule of {P} stages must come back")
    checked, wanted = [], {(kind, m) for m in range(M) for kind in "FB"}
    for p, steps in enumerate(stages):
        one = [tuple(step) for step in steps] if all(isinstance(s, (list, tuple)) for s in steps) else []
        expect(
            set(one) == wanted and len(one) == 2 * M,
            f"stage {p} of {P}: each of F0 to F{M - 1} and B0 to B{M - 1} must come once: {words(steps)}",
            known=True,
        )
        early = [m for m in range(M) if one.index(("B", m)) < one.index(("F", m))]
        text = f"stage {p} of {P}: backward of micro-batch {early} before its forward: {words(one)}"
        expect(not early, text, known=True)
        checked.append(one)
    for p, steps in enumerate(checked):
        for kind in "FB":
            order = [m for k, m in steps if k == kind]
            expect(
                order == list(range(M)),
                f"stage {p} of {P}: the {kind}s must come in the order of the micro-batches: {words(steps)}",
                known=True,
            )
    return checked


def words(steps):
    return " ".join(f"{step[0]}{step[1]}" if len(step) == 2 else str(step) for step in steps) if steps else "nothing"


def same_as(stages, P, M, but):
    """Causes: which other schedule this is."""
    known = {
        "this is GPipe: all forwards before the first backward": gpipe(P, M),
        "one micro-batch at a time: no two stages ever work together": one_at_a_time(P, M),
        "this is 1F1B, expected GPipe": one_f_one_b(P, M),
    }
    return tuple(text for text, other in known.items() if stages == other and other != but)


def ahead(steps):
    """The forwards in front of the first backward."""
    return next((k for k, step in enumerate(steps) if step[0] == "B"), len(steps))


def off_by_one(stages, M, right):
    """Causes: every stage begins backward one forward late, or early."""
    began = list(map(ahead, stages))
    late = [min(ahead(steps) + 1, M) for steps in right]
    early = [max(ahead(steps) - 1, 1) for steps in right]
    known = {
        "one forward too many before the first backward: a gradient could be here earlier": late,
        "one forward too few before the first backward: no gradient can be here yet": early,
    }
    return tuple(text for text, other in known.items() if began == other and began != list(map(ahead, right)))


def fault(name, got, P, M):
    """What is wrong with a schedule: (text, cause), or None."""
    stages, want = plain(got, P, M), gpipe(P, M) if name == "gpipe" else one_f_one_b(P, M)
    cause, head = same_as(stages, P, M, want), f"{P} stages, {M} micro-batches"
    cause = cause or (off_by_one(stages, M, want) if name == "one_f_one_b" else ())
    for p in range(P):
        least = M if name == "gpipe" else min(P - p, M)
        if peak(stages[p]) != least:
            return f"{head}: stage {p} has {peak(stages[p])} in flight, expected {least}: {words(stages[p])}", cause
    time, best = makespan(stages), (M + P - 1) * (FORWARD + BACKWARD)
    if time is None:
        return f"{head}: the stages wait for each other for ever", cause
    if abs(time - best) > 1e-9:
        return f"{head}: {time:g} s for steps of {FORWARD:g} and {BACKWARD:g} s, expected {best:g}", cause
    return None


@task("15.6", points=5)
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_schedule(name, seed):
    """A schedule finishes, in time, and keeps no more than it must"""
    draw = Draw(seed, name)
    a, b, more = draw.size(4, 9), draw.size(3, 9), draw.size(2, 6)  # sizes that no table can know
    sizes = [(a, a + draw.size(4, 20)), (1, b), (b, b), (a, a), (2, 5 + more), (a + 1, a - 2), (more, 7), (a, 1)]
    faults = {size: fault(name, got, *size) for size, got in zip(sizes, call_alone("scenarios.schedule", name, sizes))}
    wrong = [size for size, found in faults.items() if found is not None]
    if wrong:
        text, cause = faults[wrong[0]]
        # Every schedule with more micro-batches than stages is wrong, and none with as many.
        if not cause and {M > P for P, M in wrong} >= {True} and all((M > P) <= ((P, M) in wrong) for P, M in sizes):
            cause = () if any(P == M for P, M in wrong) else ("right only for as many micro-batches as stages",)
        expect(False, text, cause=cause, known=True)


@task("15.6", points=1)
def test_bubble(seed):
    """The fraction of the time in which a stage stands idle"""
    draw = Draw(seed, "bubble")
    sizes = [(1, 4), (4, 4), (4, 8), (draw.size(2, 9), draw.size(10, 40)), (draw.size(10, 16), draw.size(2, 9))]
    for (P, M), got in zip(sizes, call_each("pipeline.bubble", sizes)):
        stages = one_f_one_b(P, M)
        want = 1 - M * (FORWARD + BACKWARD) / makespan(stages)
        causes = {
            "idle over busy, expected idle over the whole time": (P - 1) / M,
            "the busy fraction": 1 - want,
            "P idle steps, not P - 1": P / (M + P),
            "both ends count, against the forwards alone": 2 * (P - 1) / (M + 2 * (P - 1)),
        }
        same(got, want, tol=1e-9, what=f"the bubble of {P} stages, {M} micro-batches", looks_like=causes)


def wandering(draw, M):
    """M forwards in order, each with its backward some time later: no schedule of anybody's."""
    steps, held, begun = [], list[int](), 0
    while begun < M or held:
        if begun < M and (not held or draw.size(0, 1)):
            steps.append(("F", begun))
            held.append(begun)
            begun += 1
        else:
            steps.append(("B", held.pop(draw.size(0, len(held) - 1))))
    return steps


@task("15.6", points=1)
def test_in_flight(seed):
    """How many micro-batches a list of steps keeps at most"""
    draw = Draw(seed, "in flight")
    P, M = draw.size(4, 7), draw.size(8, 12)
    held = draw.size(2, 6)
    uneven = [("F", m) for m in range(held)] + [("B", m) for m in range(held)] + [("F", held), ("B", held)]
    cases = [wandering(draw, M), *one_f_one_b(P, M), *gpipe(2, M), uneven, one_at_a_time(1, M)[0]]
    for steps, got in zip(cases, call_each("pipeline.in_flight", [(steps,) for steps in cases])):
        flying = [sum(1 if kind == "F" else -1 for kind, _ in steps[: k + 1]) for k in range(len(steps))]
        causes = {
            "what is left at the end": flying[-1],
            "all forwards: a backward takes one away": len(steps) // 2,
            "all steps: a backward takes one away": len(steps),
            "looked at behind backwards alone": max(n for n, (kind, _) in zip(flying, steps) if kind == "B"),
        }
        same(got, peak(steps), what=f"the micro-batches in flight of {words(steps)}", looks_like=causes)


# ---- the run

# Both sides are float32 and run the same products; the order in which a gradient is added up differs, and so does the
# place of the division by M: some 40 roundings of numbers no larger than a few times the largest.
ROUNDINGS = 40 * 2.0**-23


def unsharded(config, weights, inputs, targets):
    """The mean loss of one process with the whole model, and the gradients by name."""
    from labkit.model.config import ModelConfig
    from labkit.model.decoder import Transformer

    model = Transformer(ModelConfig(**config))
    model.load_state_dict(weights)
    loss = torch.stack([model(x, t) for x, t in zip(inputs, targets)]).mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def last_alone(config, weights, inputs, targets):
    """The gradients of the last micro-batch alone, as a part of the mean."""
    M = len(inputs)
    return {name: g / M for name, g in unsharded(config, weights, inputs[-1:], targets[-1:])[1].items()}


def a_decoder(draw, layers, T):
    config = dict(
        vocab_size=draw.size(9, 15),
        d_model=8,
        n_layers=layers,
        n_heads=2,
        n_kv_heads=1,
        d_ffn=draw.size(9, 15),
        max_seq_len=T,
    )
    from labkit.model.config import ModelConfig

    shapes = ModelConfig(**config).weight_shapes()
    weights = {
        name: draw.normal(*s, scale=s[-1] ** -0.5) if len(s) > 1 else 1 + draw.normal(*s, scale=0.2)
        for name, s in shapes.items()
    }
    return config, weights


def flight(ledger, P):
    """The most micro-batches that the ledger's rank had in flight. A micro-batch is a stage's from the activation that
    came (the first stage: that went) to the gradient that went (the first stage: that came)."""
    changes = []
    waits = {e.of: e.index for e in reversed(ledger.events) if e.kind == "wait"}  # once: there may be 40,000 events
    for event in ledger.events:
        if event.kind in ("send", "recv") and event.peer == (ledger.rank - 1 if ledger.rank else 1):
            later = event.kind == "recv" and not event.blocking
            at = waits.get(event.index, len(ledger.events)) if later else event.index
            changes.append((at, 1 if (event.kind == "recv") == (ledger.rank > 0) else -1))
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


RUNS = {  # name: (schedule, (P, M, layers) of each run)
    "GPipe, 4 stages": (gpipe, [(4, 8, 4), (1, 3, 1)]),
    "1F1B, 4 stages": (one_f_one_b, [(4, 8, 5)]),
    "1F1B, fewer micro-batches": (one_f_one_b, [(3, 2, 3)]),
    "1F1B, odd": (one_f_one_b, [(2, 5, 3)]),
    "one at a time": (one_at_a_time, [(2, 3, 2)]),
}


@task("15.6", points=8)
@pytest.mark.parametrize("name", RUNS)
def test_run(name, seed):
    """Losses and gradients as of one process, and the ledger's order"""
    schedule, sizes = RUNS[name]
    for P, M, layers in sizes:
        judge_run(Draw(seed, name, P), schedule(P, M), P, M, layers)


def judge_run(draw, stages, P, M, layers):
    B, T = draw.size(1, 2), draw.size(3, 6)
    config, weights = a_decoder(draw, layers, T)
    inputs, targets = ([draw.ids(config["vocab_size"], B, T) for _ in range(M)] for _ in range(2))
    loss, gradients = unsharded(config, weights, inputs, targets)
    last = last_alone(config, weights, inputs, targets)
    parts = [part.tolist() for part in torch.arange(layers).tensor_split(P)]
    own = [mine(weights, part, layers) for part in parts]
    data = [(own[p], inputs if p == 0 else None, targets if p == P - 1 else None) for p in range(P)]
    got, ledgers = call_run(data, parts, config, stages, (B, T, config["d_model"]))
    for p in range(P):
        value, found, _, graph = got[p] if isinstance(got[p], tuple) and len(got[p]) == 4 else (None, {}, [], False)
        expect(graph is False, "the loss still carries a graph: a number without gradient is expected", known=True)
        if p == P - 1:
            causes = {"the sum over the micro-batches, expected the mean": M * loss.double()}
            close(value, loss.double(), tol=ROUNDINGS * M, rank=p, what="the loss", looks_like=causes)
        else:
            expect(value is None, f"stage {p} has no loss, and one came back", known=True)
        for key in own[p]:
            want = gradients[key].double()
            causes = {
                "M times too much: the loss is the mean over the micro-batches": M * want,
                "the last micro-batch's alone: .grad adds up": last[key].double(),
                "nothing but zeros": torch.zeros_like(want),
            }
            tol = ROUNDINGS * max(1.0, float(want.abs().max()))
            close(found.get(key), want, tol=tol, rank=p, what=f"dL/d {key}", looks_like=causes if M > 1 else {})
    if P > 1:
        judge_messages(ledgers, stages, 4 * B * T * config["d_model"])
    judge_time(ledgers, stages, M)
    for p in range(P):
        judge_kept(got[p][2], stages[p], p, p == P - 1)


def judge_kept(kept, steps, p, last=False):
    """A micro-batch's input and output go with its backward; one may stay until the next step has its own."""
    expect(
        isinstance(kept, list) and len(kept) == len(steps),
        f"stage {p} must run a forward or a backward in each of its {len(steps)} steps",
    )
    flying = 0
    for (kind, m), found in zip(steps, kept):
        flying += kind == "F"
        expect(
            found <= flying + 1,
            f"stage {p} keeps inputs or outputs of {found} micro-batches at {kind}{m}, and {flying} are in flight",
            cause=(
                "something of a micro-batch stays after its backward: its input, its output, or a loss with its graph"
                if last
                else "nothing is dropped after a backward: 1F1B then keeps as much as GPipe",
            ),
        )
        flying -= kind == "B"


def mine(weights, part, layers):
    """A stage's weights by name."""
    ends = {"tok_embed": 0, "norm": layers - 1, "head": layers - 1}
    return {
        name: w
        for name, w in weights.items()
        if (int(name.split(".")[1]) if name.startswith("layers.") else ends[name.split(".")[0]]) in part
    }


def call_run(data, parts, config, stages, shape):
    """`layers` differs by rank, so it goes in front."""
    inputs = [(*entry, [part[0], part[-1] + 1]) for entry, part in zip(data, parts)]
    return call("scenarios.pipelined", inputs, config=config, schedule=stages, shape=shape)


def judge_messages(ledgers, stages, size):
    """Each micro-batch's output to the next stage, its gradient to the one before, in the order of the steps."""
    P = len(stages)
    found, expected = [flight(ledger, P) for ledger in ledgers], [peak(steps) for steps in stages]
    same(
        found,
        expected,
        what="micro-batches in flight by stage, from the ledgers,",
        looks_like={
            "one micro-batch at a time: no two stages ever work together": [1] * P,
            "all forwards before the first backward": [len(stages[0]) // 2] * P,
        },
    )
    for p, ledger in enumerate(ledgers):
        want = [(p + 1 if kind == "F" else p - 1, size) for kind, _ in stages[p]]
        want = [(to, nbytes) for to, nbytes in want if 0 <= to < P]
        sent(ledger, at_most=len(want) * size, forbid=LIBRARY, at_least=1)
        waited = {event.of for event in ledger.events if event.kind == "wait"}
        up = [
            e for e in ledger.events if e.kind == "send" and e.peer == p - 1
        ]  # an output's gradient proves it arrived
        expect(
            all(event.blocking or event.index in waited for event in up),
            f"stage {p} ends with gradients under way: nothing proves that they arrived but a wait",
            known=True,
        )
        expect(sends(ledger) == want, f"stage {p} must send, as (to, bytes), {want}, and sent {sends(ledger)}")


def judge_time(ledgers, stages, M):
    """The spans are the steps, in their order; with every span as long as its step the run takes what was derived."""
    for p, ledger in enumerate(ledgers):
        spans = [event for event in ledger.events if event.kind == "compute"]
        labels, want = [event.label for event in spans], [f"{kind}{m}" for kind, m in stages[p]]
        expect(
            labels == want,
            f"stage {p}'s spans must be its steps, {' '.join(want)}, and are {' '.join(labels) or 'none'}",
            known=True,
        )
        for event in spans:
            event.seconds = FORWARD if event.label.startswith("F") else BACKWARD
            nothing_inside(ledger, event)
    time = replay(ledgers, Topology.switch(len(ledgers), 0.0, 1e15)).time
    same(time, makespan(stages), tol=1e-6, what="seconds of the whole run on a wire that costs nothing")
