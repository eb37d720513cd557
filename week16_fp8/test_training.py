"""The checks of the conversion (16.6), of loss scaling and recovery (16.7) and of the tracker (16.8). Read them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.checks import Draw, call, call_alone, call_each, expect, same, task
from labkit.checks.judge import note

RUNS = Path(__file__).parent / "data" / "held-out.npz"
# Decides in grading, so that a table of RUNS is no use; students do not have it.
GRADED = Path(__file__).resolve().parents[1] / "grading" / "data" / "alarms.npz"


def generator(seed):
    return np.random.default_rng(seed % 2**63)


def normal(draw, *shape):
    return torch.from_numpy(draw.standard_normal(shape).astype(np.float32))


def listed(got, want, what, causes=None):
    """Two lists of names that must be equal."""
    causes = causes or {}
    cause = tuple(text for text, other in causes.items() if list(got) == list(other) and list(other) != list(want))
    expect(list(got) == list(want), f"{what}\n  expected  {want}\n  got       {got}", cause=cause)


# ---- 16.6


def a_model(seed):
    """Weights by name, in the model's order, with everything that must be left alone; the skipped with their reason."""
    draw = generator(seed)
    d, f = 16 * int(draw.integers(1, 4)), 16 * int(draw.integers(4, 7))
    layers = [0, 1, 10, 11] if seed % 2 else [0, 1, 12]
    shapes: dict[str, tuple[int, int]] = {}
    for i in layers:
        shapes |= {f"layers.{i}.attn.wq": (d, d), f"layers.{i}.attn.wo": (d, d), f"layers.{i}.router": (16, d)}
        shapes |= {f"layers.{i}.ffn.w1": (f, d), f"layers.{i}.ffn.w2": (d, f)}
    # Names that say nothing, and that nobody knows.
    names = draw.permutation(["fold", "mix", "gain", "side", "low", "post", "lift", "turn"]).tolist()
    # At the top, or in a layer: neither tells which weights are shared.
    top = [True, False, *(draw.permutation(4) % 2 == 0).tolist(), False, False]
    names = [name if up else f"layers.{int(draw.choice(layers))}.{name}" for name, up in zip(names, top)]
    tied, plain, (odd_in, odd_out) = draw.permutation(names[:3]).tolist(), names[3:6], names[6:]
    shapes |= {
        odd_in: (d, d + 8),
        odd_out: (d + 8, d),
        "layers.0.wide": (64, 96),
        "layers.1.tall": (48, 64),
        "layers_1": (d, d),
    }
    shapes |= {"overhead": (d, d), "head": (64, d)} | {
        name: (high, d) for three in (tied, plain) for name, high in zip(three, (32, 48, 48))
    }
    shapes |= {"encoder.layers.0.wq": (d, d), "encoder.layers.1.wq": (d, d)}
    order = {}
    for name in sorted(shapes, key=lambda n: (not n.startswith("layers"), n.split(".")[:2])):
        order[name] = shapes[name]
    weights = {name: normal(draw, *shape) for name, shape in order.items()}
    biases = {
        name: normal(draw, weights[name].shape[0]) for name in ("layers.0.ffn.w1", "layers.1.attn.wo", "overhead")
    }
    why = {name: "named" for name in weights if name.endswith("router") or name == "head"}
    why |= {odd_in: "shape", odd_out: "shape", **dict.fromkeys(tied, "shared")}
    weights[tied[2]] = weights[tied[1]]
    weights["encoder.layers.1.wq"] = weights["encoder.layers.0.wq"].clone()  # equal, and not the same
    return weights, biases, why


def tied_of(why):
    """The linear whose weight the embedding has, and two that share theirs."""
    return [name for name, reason in why.items() if reason == "shared"]


def in_eval(seed):
    """The linears that are in eval mode."""
    draw = generator(seed + 1)
    return [name for name in a_model(seed)[0] if draw.random() < 0.5]


def outcome(seed, skip=("head", "embed", "router"), multiple=16):  # no linear is in "embed"
    weights, biases, why = a_model(seed)
    got = call_alone("scenarios.converted", weights, biases, tied_of(why), in_eval(seed), list(skip), multiple)
    return weights, biases, why, got


@task("16.6", points=3)
def test_which_linears(seed):
    """Every linear is converted, or left with its reason"""
    weights, _, why, (converted, skipped, found, made, still) = outcome(seed)
    every = list(weights)
    wanted = [name for name in every if name not in why]
    odd_in, odd_out = (name for name, reason in why.items() if reason == "shape")
    embedded, *pair = tied_of(why)
    listed(
        sorted(converted),
        sorted(wanted),
        "the converted linears",
        {
            "the head is among them: its output are logits, and it stays": sorted([*wanted, "head"]),
            "shapes are not looked at: FP8 kernels take multiples of 16": sorted(
                [*wanted, *(n for n in every if why.get(n) == "shape")]
            ),
            "in_features are not looked at: FP8 kernels take multiples of 16 in both dimensions": sorted(
                [*wanted, odd_in]
            ),
            "out_features are not looked at: FP8 kernels take multiples of 16 in both dimensions": sorted(
                [*wanted, odd_out]
            ),
            "'router' means every module of that name: names are not only whole paths": sorted(
                [*wanted, *(n for n in every if n.endswith("router"))]
            ),
            "a weight that the embedding shares is among them": sorted([*wanted, embedded]),
            "two linears that share a weight are among them: any module may hold it, too": sorted([*wanted, *pair]),
            "weights that another module holds are among them": sorted([*wanted, embedded, *pair]),
        }
        | (  # who overlooks it has it nowhere
            {
                "'overhead' is not called 'head': names are compared part by part": sorted(
                    n for n in wanted if n != "overhead"
                )
            }
            if "overhead" in skipped
            else {}
        ),
    )
    listed(converted, [name for name in found if name in wanted], "their order, which is the model's")
    expect(skipped == why, f"the reasons of those that were left\n  expected  {why}\n  got       {skipped}")
    listed(
        list(skipped),
        [name for name in found if name in why],
        "the order of those that were left, which is the model's",
    )
    types = {name: kind for name, (kind, *_) in found.items()}
    want = {name: "Linear" if name in why else "Fresh" for name in found}
    cause = ("the report says so, and the model was not changed",) if set(types.values()) == {"Linear"} else ()
    expect(types == want, f"what the model holds afterwards\n  expected  {want}\n  got       {types}", cause=cause)
    expect(still, "modules that shared one weight do not share it any more")
    shapes = [(weights[n].shape[1], weights[n].shape[0], n in outcome_biases(seed)) for n in converted]
    expect(
        sorted(map(tuple, made)) == sorted(shapes),
        f"make(in_features, out_features, bias=...) was called with {made}, and {shapes} are expected",
    )


def outcome_biases(seed):
    return a_model(seed)[1]


@task("16.6", points=3)
def test_the_weights_are_copied(seed):
    """The same weights and biases, in the same mode"""
    weights, biases, _, (_, _, found, _, _) = outcome(seed)
    evaluated = in_eval(seed)
    expect(any(kind == "Fresh" for kind, *_ in found.values()), "no linear was converted")
    for name, (kind, weight, bias, training) in found.items():
        fresh = torch.full_like(weights[name], 7.0)
        same(
            weight,
            weights[name],
            what=f"the weight of {name} ({kind})",
            looks_like={"what `make` drew: the weights are not copied": fresh},
        )
        if name in biases:
            own = torch.full_like(biases[name], 7.0)
            same(
                bias,
                biases[name],
                what=f"the bias of {name} ({kind})",
                looks_like={"what `make` drew: the biases are not copied": own},
            )
        else:
            expect(bias is None, f"{name} had no bias, and has one now")
        mode = name not in evaluated
        expect(
            training == mode, f"{name} was in {'training' if mode else 'eval'} mode, and is not any more", known=True
        )


@task("16.6", points=1)
def test_skip_and_multiple(seed):
    """Whole parts of the model by name, and blocks of another size"""
    weights, _, why, (converted, skipped, *_) = outcome(seed, skip=("layers.1", "wo"), multiple=32)

    def reasons(named=lambda name: f".{name}".rpartition(".layers.1.")[1] or name.endswith(".wo")):
        found = {}
        for name, w in weights.items():
            if named(name):
                found[name] = "named"
            elif w.shape[0] % 32 or w.shape[1] % 32:
                found[name] = "shape"
            elif name in tied_of(why):
                found[name] = "shared"
        return found

    want = reasons()
    likely = {
        "what is below a named module is not skipped: a name means the module, and all in it": reasons(
            lambda name: name.endswith(".wo")
        ),
        "'layers.1' means no 'layers.10': names are compared part by part": reasons(
            lambda name: "layers.1" in name or name.endswith(".wo")
        ),
        "a name is a module's whole path, or the end of one: 'encoder.layers.1' ends in '.layers.1'": reasons(
            lambda name: name.startswith("layers.1.") or name.endswith(".wo")
        ),
    }
    expect(
        skipped == want,
        f"the reasons of those that were left\n  expected  {want}\n  got       {skipped}",
        cause=tuple(text for text, other in likely.items() if skipped == other != want),
    )
    listed(sorted(converted), sorted(n for n in weights if n not in want), "the converted linears")


@task("16.6", points=1)
def test_a_wrong_skip_list_is_an_error(seed):
    """A name that means nothing, and nothing left: ValueError, and the model is as it was"""
    weights, _, why = a_model(seed)
    draw, parts = generator(seed + 2), [name.split(".") for name in weights]
    every = {".".join(one[k:upto]) for one in parts for upto in range(1, len(one) + 1) for k in range(upto)}
    long = sorted(name for name in every if len(name.rpartition(".")[2]) > 3)
    turned = {name[:-2] + name[-1] + name[-2] for name in long}  # its last two letters
    for skip, multiple, what in (
        ([str(draw.choice(long)), str(draw.choice(sorted(turned - every)))], 16, "the second is no module's name"),
        ([str(draw.choice(long)), str(draw.choice(long))[:-1]], 16, "the second is a part of a module's name"),
        (draw.permutation(sorted({one[0] for one in parts})).tolist(), 16, "all linears are named"),
        (["head"], int(draw.integers(200, 5000)), "no shape fits"),
    ):
        what = f"skip={skip}, multiple={multiple}, {what}"
        error, replaced, kinds = call_alone("scenarios.refused", weights, tied_of(why), skip, multiple)
        expect(error == "ValueError", f"{what}: ValueError is expected, and there was {error}", known=True)
        expect(replaced == 0, f"{what}: {replaced} linears were replaced all the same")
        expect(
            list(kinds) == ["Fresh", "Linear"],
            f"after the error, with a list that is right: layers.0.attn.wq is {kinds[0]}, and the head {kinds[1]}",
        )


@task("16.6", points=4)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "BF16 output"])
def test_autocast(low, seed):
    """The forward inside, once for each micro-batch; loss and backward outside; the mean of the micro-batches"""
    draw = generator(seed)
    count, rows, d = int(draw.integers(2, 5)), int(draw.integers(3, 7)), int(draw.integers(4, 9))
    xs, ys = ([normal(draw, rows + k, d) for k in range(count)] for _ in range(2))  # micro-batches of other sizes
    w, before = normal(draw, d, d), normal(draw, d, d)
    inside = draw.uniform(1.5, 3.0, 3).tolist()  # what runs in a context is so many times as large
    value, grad, log = call_alone("scenarios.micro_batched", xs, ys, w, before, low, inside)
    one: list[list] = [["enter", 0], ["forward", 1], ["loss in float32", 0], ["backward", 0]]
    log = [list(entry) for entry in log]

    def with_(**changed):
        return [[what, changed.get(what.split()[0], where)] for what, where in one]

    likely = {
        "the backward runs inside autocast": with_(loss=1, backward=1),
        "the loss is computed inside autocast": with_(loss=1),
        "there is no autocast around the forward": [e for e in with_(forward=0) if e[0] != "enter"],
        "the loss gets the output in BF16": [[e[0].replace("float32", "bfloat16"), e[1]] for e in one],
    }
    both = {
        f"{text}, and the loss gets the output in BF16": [[e[0].replace("float32", "bfloat16"), e[1]] for e in entries]
        for text, entries in [*likely.items()][:3]
    }
    cause = tuple(text for text, entries in (likely | both).items() if log == entries * count)
    if log == [*one[:3], one[0], ["backward", 1]] * count:
        cause = ("the backward runs inside autocast",)
    if log == [one[0], *[one[1]] * count, *one[2:] * count]:
        cause = ("one context for all forwards: every graph is kept until the last has run",)
    once = [one[0], *(entry for _ in range(count) for entry in one[1:3]), one[3]]
    expect(
        log == one * count,
        f"what ran for {count} micro-batches, with how many contexts open\n  expected  {one} each\n  got       {log}"
        + ("\n  one context, or one backward, for all of them" if log == once else ""),
        cause=cause,
    )
    full = [inside[0] * (x.double() @ w.double().t()) for x in xs]
    out = [one.bfloat16().float() if low else one.float() for one in full]
    loss = sum(float((o.double() - y.double()).square().mean()) for o, y in zip(out, ys)) / count
    tol = 1e-5 * abs(loss) + (0.02 * loss if low else 0.0)
    last = float((out[-1].double() - ys[-1].double()).square().mean()) / count
    causes = {"the sum over the micro-batches": loss * count, "the last micro-batch's share alone": last}
    near = {text: value for text, one in causes.items() if isinstance(value, float) and abs(value - one) <= tol}
    same(value, loss, tol=tol, what="the loss", looks_like=near)
    want = sum((2 / f.numel() / count) * (f - y.double()).t() @ x.double() for f, x, y in zip(full, xs, ys)) * inside[0]
    # BF16 rounds the output and its gradient by 2^-8 of them each; FP32 sums of a few terms.
    tol = (2.0**-6 if low else 1e-5) * float(want.abs().max())
    likely = {
        "the sum over the micro-batches: the mean is expected": before + want * count,
        "what `grad` held before is lost: gradients are added to it": want,
    }
    near = {text: grad for text, other in likely.items() if bool(((grad - other).abs() <= count * tol).all())}
    # FP32 adds to what was there: a rounding of it for each micro-batch.
    tol = tol + (count + 1) * 2.0**-24 * float(before.abs().max())
    same(grad, (before + want).float(), tol=tol, what="the gradient, added to what was there", looks_like=near)


# ---- 16.7


def steps_of(seed, N, count):
    """Gradients of two parameters by rank and step, some of them spoilt on some rank; and which steps are."""
    draw = generator(seed)
    spoilt = draw.random(count) < 0.3
    spoilt[:3] = [False, True, False]
    spoilt[-4:] = False  # a scale that grows after three or four good steps grows on every seed
    ranks = [[[normal(draw, 3, 4), normal(draw, 5)] for _ in range(count)] for _ in range(N)]
    for step in np.flatnonzero(spoilt):
        rank, which = int(draw.integers(N)), int(draw.integers(2))
        flat = ranks[rank][step][which].view(-1)
        place, value = int(draw.integers(len(flat))), [math.inf, -math.inf, math.nan][int(draw.integers(3))]
        if step != 1:
            flat[place] = value
    dtypes = [torch.float32, torch.float16, torch.bfloat16]
    for later in range(2, count):
        ranks[N - 1][later] = [g.to(dtypes[int(draw.integers(3))]) for g in ranks[N - 1][later]]
    # In step 0 all are finite, and their sum is not, not even after a division by 2^8, nor that of their squares.
    ranks[N - 1][-1] = []  # a rank may hold no parameter
    large = dtypes[int(draw.integers(3))]
    ranks[int(draw.integers(N))][0][0] = torch.full((64, 64), 0.9 * torch.finfo(large).max).to(large)
    # In step 1 nothing but a NaN is bad, and the last rank alone has it.
    ranks[N - 1][1][0][0, 0], ranks[0][1][0][0, 1] = math.nan, 1.0
    return ranks, [float(not bad) for bad in spoilt], draw


def by_torch(finite, scale, growth, backoff, interval):
    """The scales of torch's own GradScaler after each step, with these overflows."""
    scaler = torch.amp.GradScaler("cpu", scale, growth, backoff, interval)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for good in finite:
        scaler.scale(torch.ones(()))  # it makes its tensors at the first call
        weight.grad = torch.full((1,), 1.0 if good else math.inf)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


# In step 0 alone, whose numbers are finite and large.
BY_A_SUM = "judged by a sum, of the numbers or their squares, or before they were divided: finite numbers are finite"


def other_flags(finite, ranks):
    """{cause: what it gives} of flags that are wrong."""
    steps = [[g for rank in ranks for g in rank[k]] for k in range(len(finite))]
    last = [[g for rank in ranks for g in rank[k][-1:]] for k in range(len(finite))]
    return {
        BY_A_SUM: [0.0, *finite[1:]],
        "NaN passes: infinity is not all that is not finite": [
            float(not any(g.isinf().any() for g in step)) for step in steps
        ],
        "infinity passes: NaN is not all that is not finite": [
            float(not any(g.isnan().any() for g in step)) for step in steps
        ],
        "the last gradient alone decides": [float(all(bool(g.isfinite().all()) for g in step)) for step in last],
    }


@task("16.7", points=4)
def test_as_gradscaler(seed):
    """The scale after each step, as torch's GradScaler has it"""
    draw = generator(seed + 1)
    for number, interval in enumerate((int(draw.integers(2, 5)), 1, 1)):
        ranks, finite, _ = steps_of(seed + number, 1, 20 + seed % 7)
        # Neither is the other's inverse. Many steps at less than 0.6 leave a scale over which float16 overflows.
        growth, backoff = float(draw.uniform(1.7, 2.4)), float(draw.uniform(0.6, 0.8))
        if number:  # up to where float32 ends, and no further; then down, below 1
            backoff -= 0.4 * float(draw.integers(2))
            finite = [2.0 - number] * len(ranks[0])
            ranks = [[[torch.full((2,), 1.0 if number == 1 else math.inf)] for _ in finite]]
        start = 2.0 ** int(draw.integers(*((3, 9), (114, 119), (0, 3))[number]))
        settings = {"scale": start, "growth": growth, "backoff": backoff, "interval": interval}
        got, _ = call("scenarios.scaled_steps", [(ranks[0],)], in_place=True, alone=True, **settings)
        answers, after, scales, counts = got[0]
        same(answers, finite, what="whether each step's gradients are finite", looks_like=other_flags(finite, ranks))
        want = by_torch(finite, start, growth, backoff, interval)
        count = ungrown(finite, start, growth, backoff, interval)
        in_double, good = [start], list[int]()
        for one in finite:
            good.append((good[-1] + 1) % interval if one and good else int(bool(one)) % interval)
            in_double.append(in_double[-1] * (backoff if not one else 1.0 if good[-1] else growth))
        unbounded = [start * growth ** (k + 1) for k in range(len(finite))] if number == 1 else want
        stayed = [number == 1 and old == new for old, new in zip([start, *want], want)]
        same(
            scales,
            want,
            what=f"the scale after each step, {settings}, good steps {[int(g) for g in finite]}",
            looks_like={
                "good steps are counted on over a bad one: they must follow one another": count,
                "it grows one step late": by_torch(finite, start, growth, backoff, interval + 1),
                "it grows beyond float32: where the next scale would be infinite it stays": unbounded,
                "it becomes infinite: where the next scale would be it stays": [
                    math.inf if stays else one for stays, one in zip(stayed, want)
                ],
                "it never grows": ungrown(finite, start, 1.0, backoff, interval),
                "it is a float64: torch's scale is a float32": in_double[1:],
            },
        )
        if not number:
            same(counts, good, what="`good`, the good steps since the scale last changed, after each step")
        before = [start, *want]
        for step in range(len(finite)):
            for one, g in zip(after[step], ranks[0][step]):
                eps = torch.finfo(g.dtype).eps
                same(
                    one,
                    (g.float() / before[step]).to(g.dtype),
                    tol=(eps * g.double() / before[step]).abs().nan_to_num(0, 0, 0) + torch.finfo(g.dtype).tiny * eps,
                    what=f"a gradient of step {step} after unscaling by {before[step]:g}",
                    looks_like={"untouched: gradients are divided by the scale, in place": g},
                )


def ungrown(finite, scale, growth, backoff, interval):
    """As `by_torch`, but a bad step does not begin the count anew."""
    good, scales = 0, []
    for one in finite:
        if one:
            good += 1
            if good == interval:
                scale, good = scale * growth if scale * growth < 2.0**128 else scale, 0
        else:
            scale *= backoff
        scale = float(np.float32(scale))
        scales.append(scale)
    return scales


@task("16.7", points=2)
@pytest.mark.parametrize("N", [2, 3])
def test_all_ranks_skip_together(N, seed):
    """One rank's infinity is every rank's bad step"""
    ranks, finite, _ = steps_of(seed, N, 10 + seed % 5)
    settings = {"scale": 2.0**8, "growth": 2.0, "backoff": 0.5, "interval": 3}
    got, ledgers = call("scenarios.scaled_steps", [(steps,) for steps in ranks], in_place=True, **settings)
    own = [[float(all(bool(g.isfinite().all()) for g in step)) for step in steps] for steps in ranks]
    apart = all(list(got[r][0]) == own[r] for r in range(N))  # not one rank by accident
    for r in range(N):
        same(
            got[r][0],
            finite,
            rank=r,
            what="whether each step's gradients are finite on all ranks",
            looks_like={
                "this rank's own gradients alone: one rank then skips where another steps": own[r] if apart else [],
                BY_A_SUM: [0.0, *finite[1:]],
            },
        )
        same(got[r][2], by_torch(finite, *settings.values()), rank=r, what="the scale after each step")
        calls = [event for event in ledgers[r].events if event.bytes]
        expect(
            len(calls) <= len(finite) and all(event.bytes <= 8 * N for event in calls),
            f"rank {r}: one collective of one number a step is enough; there were {len(calls)} in {len(finite)} steps, "
            f"the largest of {max((event.bytes for event in calls), default=0)} bytes",
        )


def recovery(
    bad, saves, lower_after, rollback_after, factor, *, keep_count=False, trust=False, count_on=False, always=False
):
    """Actions, rates and the log, by the rules; the keywords are mistakes. bad: "", "loss" or "gradient" by step."""
    row, rate, checkpoint = 0, 1.0, None
    actions, rates = [], []
    log: list[tuple] = []
    for step, reason in enumerate(bad):
        action, to = "step", checkpoint if always else None
        if not reason:
            row = row if keep_count else 0
        else:
            row += 1
            action = "roll back" if row >= rollback_after else "lower" if row >= lower_after else "skip"
            if action == "roll back":
                to, row = checkpoint, row if count_on else 0
            rate *= factor if action != "skip" else 1.0
            log.append((step, action, reason, to))
        actions.append(action)
        rates.append(rate)
        if step in saves and (row == 0 or trust):
            checkpoint = step
    return actions, rates, log


@task("16.7", points=4)
def test_recovery(seed):
    """Skip, lower the rate, roll back; and the log of it"""
    draw = Draw(seed, "recovery")
    lowers, rollback_after = draw.order([1, 2, 3]), draw.size(5, 7)
    factor = float(draw.rng.uniform(0.2, 0.8))
    rows = [1, lowers[0], 1, rollback_after, rollback_after + 1, 2 * rollback_after]
    bad: list[str] = ["", ""]
    for row in rows:
        bad += [str(draw.rng.choice(["loss", "gradient"])) for _ in range(row)] + [""] * int(draw.rng.integers(1, 4))
    at = [k for k, one in enumerate(bad) if one]
    bad[at[0]], bad[at[1]] = "loss", "gradient"
    long = lowers[0] + 2  # where the first long row begins
    midst = at[long + 1], at[long + rollback_after + 1]
    saves = [int(k) for k in range(len(bad)) if draw.rng.random() < 0.5 or k in midst]
    saves = [k for k in saves if k > at[long - 1]]  # the first bad steps come before any checkpoint
    infinite = [math.nan, math.inf, -math.inf]
    losses = [float(draw.rng.choice(infinite)) if one == "loss" else 2.5 for one in bad]
    finite = [one == "" or (one == "loss" and draw.rng.random() < 0.5) for one in bad]
    finite[at[0]] = False
    for k, loss in zip(at[-3:], infinite):  # each of them alone
        bad[k], losses[k], finite[k] = "loss", loss, True
    # One checkpoint is of step 0; without one it rolls back all the same.
    runs = [(one, lower, rollback_after, factor) for one, lower in zip((saves, [0], list[int]()), lowers)]
    runs.append((saves, rollback_after, draw.size(2, 4), factor))  # and where it rolls back before it would lower
    for one, got in zip(runs, call_each("scenarios.recovered", [(losses, finite, *one) for one in runs])):
        judge_recovery(got, losses, finite, (bad, *one))


def judge_recovery(got, losses, finite, rules):
    """The actions, the rates and the log of one run."""
    bad, _, lower_after, rollback_after, factor = rules
    got_actions, got_rates, got_log = got
    actions, rates, log = recovery(*rules)
    by_gradient = [("gradient" if not f else "") for f in finite]
    by_loss = [("" if math.isfinite(loss) else "loss") for loss in losses]
    listed(
        got_actions,
        actions,
        f"the actions; lower after {lower_after}, roll back after {rollback_after}, bad steps {bad}",
        {
            "good steps in between do not begin the count anew": recovery(*rules, keep_count=True)[0],
            "a loss that is not finite, with finite gradients, is a bad step as well": recovery(
                by_gradient, *rules[1:]
            )[0],
            "the gradients are not looked at: a finite loss with one infinite gradient is a bad step": recovery(
                by_loss, *rules[1:]
            )[0],
            "it counts on after a rollback: then counting begins anew": recovery(*rules, count_on=True)[0],
            "bad steps are not skipped": ["step"] * len(bad),
        },
    )
    lowered = [factor ** actions[: k + 1].count("lower") for k in range(len(bad))]
    same(
        got_rates,
        rates,
        tol=1e-12,
        what="the rate's multiplier after each step",
        looks_like={"a rollback does not lower the rate: it does, as `lower` does": lowered},
    )
    events = [tuple(event) for event in got_log]
    by_finite = [(step, act, "loss" if finite[step] else "gradient", to) for step, act, _, to in log]
    likely = {
        "a checkpoint from the midst of bad steps is trusted": recovery(*rules, trust=True)[2],
        "where loss and gradients are both bad, the reason is the loss": by_finite,
        "a checkpoint beside every action: only a rollback goes to one": recovery(*rules, always=True)[2],
        "skipped steps are not in the log": [event for event in log if event[1] != "skip"],
    }
    first = next((k for k, (a, b) in enumerate(zip(events, log)) if a != b), min(len(events), len(log)))
    a, b = ([*map(str, events[first : first + 1]), "nothing"][0] for events in (log, events))
    expect(
        events == log,
        f"the log, (step, action, reason, to): {len(log)} events are expected, and there are {len(events)}; the first "
        f"that differs is number {first}\n  expected  {a}\n  got       {b}",
        cause=tuple(text for text, other in likely.items() if events == other != log),
    )


# ---- 16.8


@task("16.8", points=4)
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_measure(fmt, seed):
    """Scale, amax, overflow, underflow of a tensor"""
    draw = generator(seed)
    largest, smallest = {"e4m3": (448.0, 2.0**-9), "e5m2": (57344.0, 2.0**-16)}[fmt]
    scale = 2.0 ** int(draw.choice([-3, -2, -1, 1, 2, 3]))  # so that the borders are met exactly
    y = normal(draw, 40, 5 + seed % 11) * torch.from_numpy(10 ** draw.uniform(-7, 6, (40, 1)).astype(np.float32))
    y.view(-1)[:6] = torch.tensor([largest, -largest, smallest / 2, -smallest / 2, smallest, 0.0])
    y.view(-1)[6:16] = 0.0
    y = y.view(-1)[torch.from_numpy(draw.permutation(y.numel()))].reshape(y.shape)
    spoilt = y.clone()
    spoilt.view(-1)[:2] = torch.tensor([math.inf, math.nan])
    infinite = spoilt.nan_to_num(1.0, posinf=-math.inf)
    tensors = [y / scale, torch.zeros(4, 3), spoilt / scale, infinite / scale, (y / scale).bfloat16(), y.bfloat16()]
    scales = [scale] * 5 + [1 + 2.0**-10]  # beyond the borders by less than BF16 can say
    got = call_alone("scenarios.measured", tensors, scales, fmt)
    expect(isinstance(got, list) and len(got) == 6, "a Stat is expected, of each tensor")
    for stat, x, scale in zip(got, tensors, scales):
        z = x.double().abs() * scale
        over = float((z > largest).double().mean())
        gone, some = (z <= smallest / 2) & (z != 0), int((z != 0).sum())
        want = {"scale": scale, "amax": float(x.float().abs().max()), "overflow": over}
        want["underflow"] = float(gone.sum()) / max(1, some)
        bare, own = z / scale, x.abs() * scale
        wrong = {
            "amax": {
                "of x * scale: of x itself is expected": want["amax"] * scale,
                "NaN is passed over: with one, amax is NaN": float(x.float().nan_to_num(0.0, math.inf).abs().max()),
                "NaN is passed over, and infinity is the largest float32": float(x.float().nan_to_num(0.0).abs().max()),
            },
            "overflow": {
                "per cent: a share is expected": 100 * over,
                "the largest value itself does not saturate": float((z >= largest).double().mean()),
                "in x's own dtype, which rounds x * scale": float((own > largest).double().mean()),
                "the scale is left out": float((bare > largest).double().mean()) if scale != scales[-1] else math.nan,
            },
            "underflow": {
                "zeros count as lost: they were nothing before": float((z <= smallest / 2).double().mean()),
                "zeros count as lost, in a share of the others": float((z <= smallest / 2).sum()) / max(1, some),
                "half the smallest subnormal becomes 0: half way goes to the even mantissa": float(
                    ((z < smallest / 2) & (z != 0)).sum()
                )
                / max(1, some),
                "a share of all values: zeros are not among those that can be lost": float(gone.double().mean()),
                "everything below the smallest subnormal: more than half of it is rounded up": float(
                    ((z < smallest) & (z != 0)).sum()
                )
                / max(1, some),
            },
        }
        for name, value in want.items():
            what = f"{name} of a tensor {list(x.shape)} with {int((~x.isfinite()).sum())} that are no numbers"
            # A share in float32 is 2^-24 of it off; one number more or less is a 700th.
            same(stat[name], value, tol=1e-6, what=what, looks_like=wrong.get(name))


def held_out():
    """[(what it is, [scale, amax, overflow, underflow] each [S, T])]."""
    with np.load(GRADED if GRADED.exists() else RUNS) as file:
        facts = json.loads(str(file["runs"]))
        fields = ("scale", "amax", "overflow", "underflow")
        return [(one, [torch.from_numpy(file[f"{f}{n}"]) for f in fields]) for n, one in enumerate(facts)]


def shaken(draw, rows, at):
    """One recorded run as it is judged, and at which step its fault is then: nothing of it is as in the file, and what
    an alarm can see of a fault is all there.

    Some steps before the fault are left out (25 stay); every number is a few per cent off; changes over time are larger
    or smaller by a tenth; each tensor is in other units, and at another place."""
    steps, T = rows[0].shape
    before = steps if at is None else at
    gone = draw.choice(before - 1, int(draw.integers(0, min(before // 4, before - 25) + 1)), replace=False)
    stay = np.setdiff1d(np.arange(steps), gone)
    stretch, order = float(draw.uniform(0.9, 1.1)), torch.from_numpy(draw.permutation(T))
    shift = torch.from_numpy(draw.integers(-10, 11, T)).float()
    found = []
    for row, units in zip(rows, (-shift, shift, None, None)):  # shares have no unit
        noise = torch.from_numpy(draw.normal(0.0, 0.03, row.shape)).float()
        known = (row > 0) & row.isfinite()
        power = torch.where(known, row, math.nan).log2()
        usual = power.nanmedian(0).values
        if units is None:
            new = torch.exp2(power + noise).clamp(max=1.0)
        else:
            new = torch.exp2(usual + stretch * (power - usual) + noise + units)
        new = torch.where(known, new, row)
        found.append(new[stay][:, order].contiguous())
    return tuple(found), None if at is None else int(np.searchsorted(stay, at))


def raised(runs):
    """Of each run the step at which its alarm rings, or -1. The alarms are on a rank that has no run."""
    number, T = len(runs), runs[0][0].shape[1]
    return call("scenarios.raised", [([], number, T), (runs, number, T)], timeout=60.0)[0][1]


EARLY = 25  # steps that stay in front of any fault
WINDOW = 20  # steps from the fault in which an alarm counts, where the loss survives it
PRECISION, RECALL, LEAD = 0.8, 0.75, 10


@task("16.8", points=6)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_alarms(number, seed):
    """Precision, recall and lead time on the held-out runs, each time as they are drawn"""
    draw = generator(seed + 7919 * number)
    runs, truth = [], []
    for facts, rows in held_out():
        run, at = shaken(draw, rows, facts["at"])
        runs.append(run)
        last = None if at is None else at + (WINDOW if facts["end"] is None else facts["end"] - facts["at"])
        truth.append((facts["fault"], at, last))
    shuffled = draw.permutation(len(runs))
    mixed = [runs[k] for k in shuffled]
    rung = raised(mixed)
    if number == 1:
        again = raised([*mixed[::-1], *mixed])
        expect(
            again == [*rung[::-1], *rung],
            "the same runs in another order, each with an Alarm of its own, ring at other steps",
            cause=("something is kept between runs: what an Alarm remembers is its own, not its class's or module's",),
        )
    for k in draw.permutation([k for k, step in enumerate(rung) if step > 0])[:3].tolist():
        (alone,) = raised([mixed[k]])
        text = (
            f"a run alone rings at step {alone}, and at {rung[k]} among others: an alarm knows its own run and no other"
        )
        expect(alone == rung[k], text, known=True)
    hits, false, lead, missed = 0, 0, [], []
    for k, step in zip(shuffled, rung):
        fault, at, last = truth[k]
        if at is not None and at <= step <= last:
            hits += 1
            lead += [last - step] if fault == "growth" else []
            continue
        false += step >= 0
        missed += [fault] if at is not None else []
    faults = sum(at is not None for _, at, _ in truth)
    always, never = all(step == 0 for step in rung), all(step < 0 for step in rung)
    cause = ("it rings at the first step of every run",) if always else ("it never rings",) if never else ()
    middle = sorted(lead)[len(lead) // 2] if lead else 0
    precision, recall = hits / max(1, hits + false), hits / faults
    text = (
        f"{hits} of {faults} faults were announced, with {false} false alarms in {len(runs)} runs: precision "
        f"{precision:.2f} (at least {PRECISION}), recall {recall:.2f} (at least {RECALL}), lead time {middle} steps (at "
        f"least {LEAD})"
    )
    if not cause and not (recall >= RECALL and precision >= PRECISION and middle >= LEAD):
        # The same runs in other units: a rule that compares with what is usual does not see it.
        other = [(scale * 2.0**-10, amax * 2.0**10, over, under) for scale, amax, over, under in mixed]
        if raised(other) != rung:
            cause = ("thresholds in absolute numbers: the same runs in other units ring at other steps",)
        elif raised([(run[0], *(torch.where(row.isfinite(), 1.0, row) for row in run[1:])) for run in mixed]) == rung:
            cause = (
                "the folklore itself: it looks at scales, and perhaps at what is no number already, and most faults come "
                "before a scale falls, or without that",
            )
    bad = [~(run[0].isfinite() & run[1].isfinite()).all(1) for run in mixed]
    spoilt = [int(one.int().argmax()) if one.any() else -1 for one in bad]
    if not cause and rung == spoilt:
        cause = ("it rings where an amax or a scale is not finite, and nowhere before",)
    if not cause and 2 * sum(0 <= step < EARLY for step in rung) > len(rung):
        cause = (f"it rings in the first {EARLY} steps of most runs: no fault comes so early",)
    more = f"; missed: {', '.join(sorted(missed))}" if missed else ""
    expect(recall >= RECALL and precision >= PRECISION and middle >= LEAD, text + more, cause=cause)
    note(text)
