"""The checks of C.1: `lab check C.1`, `lab check capstone`, or plain `pytest capstone`. Nothing is hidden.

Your trainer runs on four ranks elsewhere; numbers and the ledger come back. Here one process trains the whole decoder
on the same micro-batches, by plain autograd and torch's AdamW, in FP8 by twenty lines of its own. A rank gets its own
rows and its own slices of the weights; in place of the others' it gets other numbers.
`given/alone.py` has that one process, and says what may differ.
"""

from __future__ import annotations

import math

import pytest
import torch

from capstone.given.alone import (
    FORMATS,
    LR,
    MESHES,
    MICRO,
    RANKS,
    SPLIT,
    TOL,
    alone,
    drawn,
    far,
    on_grid,
    own,
    own_alone,
    place,
    run,
    setup,
    together,
)
from labkit.checks import call, expect, field, same, task
from labkit.checks.drawn import Draw
from labkit.checks.traffic import moved, phases
from labkit.comm.ledger import CALLS


def stages(c, mesh, got):
    """Every weight on one stage, and the same ones on all ranks of a stage; else a verdict."""
    by_stage: dict[int, set] = {}
    for r in range(RANKS):
        here = set(field(got[r], "gradients"))
        stage = by_stage.setdefault(place(mesh, r)[0], here)
        expect(stage == here, f"rank {r} trains other weights than its neighbours on the same stage", known=True)
    told = sorted(name for names in by_stage.values() for name in names)
    missing = sorted(set(c.weight_shapes()) ^ set(told))
    expect(
        not missing and len(told) == len(set(told)), f"weights on no stage or on two: {', '.join(missing)}", known=True
    )


def compared(got, want, c, mesh, tol):
    """Losses, norms, first gradients and last weights of all ranks, against one process."""
    stages(c, mesh, got)
    gradients, tp = want["gradients"], mesh.get("tp", 1)
    nearest_the_loss(got, want, c, mesh, tol)
    for r in range(RANKS):
        told = field(got[r], "vitals")
        for k, (loss, norm) in enumerate(zip(want["losses"], want["norms"])):
            what = f"step {k + 1}:"
            same(told[k][0], loss, tol=tol * loss, rank=r, what=f"{what} the loss", looks_like=loss_causes(loss, mesh))
            same(
                told[k][1],
                norm,
                tol=tol * norm,
                rank=r,
                what=f"{what} the gradient's norm",
                looks_like=norm_causes(gradients, norm, mesh, c) if k == 0 else {},
            )
            expect(told[k][2] is True, f"rank {r}, {what} finite must be True", known=True)
        for name, whole in want["weights"].items():
            if name in got[r]["weights"]:
                off = far(got[r]["weights"][name], own(name, whole, c, tp, place(mesh, r)[2]))
                expect(off <= tol, f"rank {r}: after {len(told)} steps {name} is {off:.2g} off, relative to its norm")


def nearest_the_loss(got, want, c, mesh, tol):
    """The first step's gradients of all ranks. A mistake in a backward spoils those of all weights in front of it: of
    those that are off, the last one in the forward's order is told, and how many there are."""
    tp, off = mesh.get("tp", 1), []
    names = list(want["gradients"])  # the forward's order
    for name in reversed(names):
        for r in range(RANKS):
            if name in got[r]["gradients"]:
                mine = own(name, want["gradients"][name], c, tp, place(mesh, r)[2])
                if not (by := far(got[r]["gradients"][name], mine)) <= tol:
                    off.append((name, r, by, gradient_causes(got[r]["gradients"][name], mine, mesh, tol)))
    if not off:
        return
    name, r, by, cause = off[0]
    right = all(abs(field(one, "vitals")[0][0] - want["losses"][0]) <= tol * want["losses"][0] for one in got)
    expect(
        False,
        f"rank {r}, step 1: the gradient of {name} is {by:.2g} off, relative to its norm. Off are those of "
        f"{len({one[0] for one in off})} of {len(names)} weights, on ranks {sorted({one[1] for one in off})}; this is "
        f"the nearest to the loss, and the loss is {'right' if right else 'off, too'}",
        cause=cause,
    )


def gradient_causes(got, want, mesh, tol):
    """Causes: the right gradient, times a number."""
    micro = MICRO // mesh.get("dp", 1)
    if micro > 1 and far(got, micro * want) <= 4 * tol:
        return (f"{micro} times too large: the sum over the micro-batches, expected the mean",)
    return ()


def loss_causes(loss, mesh):
    stages = mesh.get("pp", 1)
    return {"divided by the number of stages: one of them has the loss": loss / stages} if stages > 1 else {}


def norm_causes(gradients, norm, mesh, c):
    """What mistakes give for the first step's norm."""
    tp, squares = mesh.get("tp", 1), {name: float(g.double().square().sum()) for name, g in gradients.items()}
    vectors = sum(v for name, v in squares.items() if name.endswith("norm.weight"))
    heads = sum(v for name, v in squares.items() if name.split(".")[-2] in ("wk", "wv"))
    copies = max(1, tp // c.n_kv_heads)
    known = {
        "the norms' weights count once for each tensor-parallel rank": norm**2 + (tp - 1) * vectors,
        "shared key/value heads count once for each rank that has them": norm**2 + (copies - 1) * heads,
    }
    return {cause: value**0.5 for cause, value in known.items() if abs(value**0.5 / norm - 1) > 1e-3}


# ---- the checks


@task("C.1", points=2)
def test_places(seed):
    """Who is next to whom"""
    c, _, _, options = drawn(seed, "places")
    meshes = [dict(dp=2, tp=2), dict(tp=2, pp=2, zero=1), dict(dp=2, pp=2, zero=1), dict(dp=4), dict(tp=4)]
    got, _ = call("scenarios.places", [[setup(c, m, options, None) for m in meshes]] * RANKS)
    for r in range(RANKS):
        for m, told in zip(meshes, got[r]):
            where = place(m, r)
            for at, name in ((2, "tp"), (1, "dp"), (0, "pp")):
                want = [q for q in range(RANKS) if all(place(m, q)[k] == where[k] for k in range(3) if k != at)]
                others = ", ".join(f"{k} {v}" for k, v in m.items() if k != "zero")
                same(
                    field(told, name),
                    want,
                    what=f"{others}: ranks of the {name} group",
                    rank=r,
                    looks_like={} if name != "tp" else {"tensor-parallel ranks are not neighbours": far_apart(m, r)},
                )


def far_apart(mesh, r):
    """The tp group of a rank, if tp varied slowest."""
    tp = mesh.get("tp", 1)
    return [q for q in range(RANKS) if q % (RANKS // tp) == r % (RANKS // tp)] if tp > 1 else [-1]


CLIPS = {"dp4": 0.0, "tp4": 100.0, "dp2 x tp2": 0.5}  # off; far above every norm. Elsewhere below it, 1.0 or not


@task("C.1", points=7)
@pytest.mark.parametrize("mesh", MESHES)
def test_one_process(mesh, seed):
    """Losses, norms, gradients and weights are one process's"""
    c, weights, batches, options = drawn(seed, mesh)
    options["clip_norm"] = CLIPS.get(mesh, options["clip_norm"])
    got, ledgers = run(c, MESHES[mesh], options, weights, batches)
    compared(got, alone(c, weights, batches, options), c, MESHES[mesh], TOL)
    together(ledgers, c, MESHES[mesh], batches[0], len(batches))


@task("C.1", points=2)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2"])
def test_bf16(mesh, seed):
    """In BF16: the gradient is as far from float32's as one process's in BF16"""
    c, weights, batches, options = drawn(seed, mesh, "bf16")
    got, ledgers = run(c, MESHES[mesh], options, weights, batches[:1], precision="bf16")
    stages(c, MESHES[mesh], got)
    in_the_band(got, c, MESHES[mesh], weights, batches, options, dtype=torch.bfloat16)
    together(ledgers, c, MESHES[mesh], batches[0], 1, itemsize=2)


@task("C.1", points=5)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2", "tp2 x pp2"])
def test_fp8(mesh, seed):
    """In FP8: every linear as on one GPU, the run in the paired band, what was converted"""
    m, tp = MESHES[mesh], MESHES[mesh].get("tp", 1)
    c, weights, batches, options = drawn(seed, mesh, "fp8", rows=32)  # so that a head could be converted, too
    each = own_alone(c, m, options, weights, batches[:1], precision="fp8")
    got, ledgers = call("scenarios.heard", [(rows, told, LR) for rows, told in each], timeout=40.0)
    stages(c, m, got)
    linears = [
        n.removesuffix(".weight") for n in c.weight_shapes() if n.split(".")[-2] in SPLIT["rows"] + SPLIT["columns"]
    ]
    for r in range(RANKS):
        here = [name for name in linears if f"{name}.weight" in got[r]["gradients"]]
        same_names(
            field(field(got[r], "report"), "converted"), here, f"rank {r}: what `converted` reports as converted"
        )
        left = sorted(name for name, kind in field(got[r], "kinds").items() if kind == "Linear")
        same_names(
            left, ["head"] if "head.weight" in got[r]["gradients"] else [], f"rank {r}: linears that are nn.Linear"
        )
        if place(m, r)[2] == 0:
            for name in here:
                one_linear(name, [field(got[q], "linears").get(name, {}) for q in range(r, r + tp)], weights, r)
    in_the_band(got, c, m, weights, batches, options, fp8=True)
    together(ledgers, c, m, batches[0], 1)


def one_linear(name, ranks, weights, r):
    """A linear's forward and dx from what its ranks were handed: as one GPU would round the whole operands. No flip of
    a rounding can come from anywhere: the operands are these. FP32's own roundings of sums of at most 192 terms: far
    below 1e-5 of the norm."""
    for what in ("x", "y", "dy", "dx"):
        ok = all(isinstance(one.get(what), torch.Tensor) for one in ranks)
        expect(ok, f"rank {r}: {name} was not used in the first micro-batch's forward and backward", known=True)
    row, w = name.split(".")[-1] in SPLIT["columns"], weights[f"{name}.weight"]
    slices = {what: torch.cat([one[what] for one in ranks], 1) for what in ("x", "y", "dy", "dx")}
    addends = {what: sum(one[what].double() for one in ranks) for what in ("y", "dx")}
    x, dy = (slices["x"], ranks[0]["dy"]) if row else (ranks[0]["x"], slices["dy"])
    y, dx = (addends["y"], slices["dx"]) if row else (slices["y"], addends["dx"])
    x8, w8, dy8 = (on_grid(t, f).double() for t, f in zip((x, w, dy), FORMATS))
    for what, came, want in (("y", y, x8 @ w8.t()), ("dx", dx, dy8 @ w8)):
        off = far(came, want)
        expect(off < 1e-5, f"{name}: {what} is {off:.2g} off that of whole operands in FP8, relative to its norm")


def in_the_band(got, c, m, weights, batches, options, **how):
    """A flip of one rounding spreads: the whole step is compared by how far it is from float32's. On one GPU in FP8, or
    in BF16 (`how`), that is `usual`; independent roundings are as far, give or take a third."""
    plain, low = (alone(c, weights, batches[:1], options, **one)["gradients"] for one in ({}, how))
    usual = far(*(torch.cat([g[name].reshape(-1) for name in plain]) for g in (low, plain)))
    mine = {}
    for r in range(RANKS):
        for name in got[r]["gradients"]:
            part, whole = got[r]["gradients"][name], plain[name]
            want = own(name, whole, c, m.get("tp", 1), place(m, r)[2])
            expect(
                far(part, want) < float("inf"),
                f"rank {r}: the gradient of {name} has not its slice's shape",
                known=True,
            )
            mine[name, place(m, r)[2]] = (part, want)
    off = far(
        torch.cat([p.reshape(-1) for p, _ in mine.values()]), torch.cat([w.reshape(-1) for _, w in mine.values()])
    )
    what = "FP8" if how.get("fp8") else "BF16"
    expect(
        0.5 * usual < off < 1.5 * usual,
        f"the gradient is {off:.2g} off float32's, relative to its norm; in {what} on one GPU it is {usual:.2g}",
        cause=(f"it is float32's gradient: nothing is computed in {what}",) if off <= TOL else (),
    )


def same_names(got, want, what):
    ok = isinstance(got, list) and sorted(map(str, got)) == sorted(want)
    expect(ok, f"{what}:\n  expected  {', '.join(sorted(want)) or 'none'}\n  got       {got}", known=True)


@task("C.1", points=4)
@pytest.mark.parametrize("kind", ["column", "row"])
def test_agreed_product(kind, seed):
    """A product whose amaxes are agreed"""
    draw, N = Draw(seed, kind), 3
    M, outs, ins = draw.size(5, 9), draw.size(4, 6, times=N), draw.size(4, 6, times=N)
    x, w, dy = draw.normal(M, ins), draw.normal(outs, ins), draw.normal(M, outs, scale=1e-3)
    for whole in (x, w, dy):  # the largest is one rank's, and far above the others'
        whole.view(-1)[draw.size(0, whole.numel() - 1)] *= 37.0
    if kind == "column":
        sent = list(zip([x] * N, w.chunk(N), dy.chunk(N, 1)))
    else:
        sent = list(zip(x.chunk(N, 1), w.chunk(N, 1), [dy] * N))
    sent = [(a.contiguous(), b.contiguous(), g.contiguous()) for a, b, g in sent]
    top = [t.abs().max() for t in (x, w, dy)]
    slots = "input", "weight", "grad"
    recipe = {
        "epsilon": {slot: float(t) * times for slot, t, times in zip(slots, top, (3.0, 0.25, 5.0))},
        "power_of_two": dict(zip(slots, (False, True, True))),
    }
    agreed_products(sent, top, call("scenarios.product", sent, **recipe)[0], **recipe)
    got, ledgers = call("scenarios.product", sent)
    agreed_products(sent, top, got)
    halves = [(a.bfloat16(), b, g.bfloat16()) for a, b, g in sent]  # activations are BF16, master weights FP32
    for r, one in enumerate(call("scenarios.product", halves)[0]):
        told = [str(name).removeprefix("torch.") for name in field(one, "dtypes")]
        right = ["bfloat16", "bfloat16", "float32"]
        expect(told == right, f"rank {r}: x is BF16, w FP32: y, dx, dw are {told}, expected {right}", known=True)
    for r in range(N):
        parts = phases(ledgers[r])
        # One all-reduce of two amaxes and their flags forward, of one and its flag backward; ring bytes.
        for phase, numbers in (("forward", 4), ("backward", 2)):
            moved(
                ledgers[r],
                phase,
                parts[phase],
                calls={"all_reduce": 1},
                at_most=2 * (N - 1) * -(-4 * numbers // N) + 16,
            )

    # A number that is not finite on one rank is NaN on all; the largest is one rank's, and so is a zero.
    amaxes = [[torch.tensor(draw.size(1, 99) / 7.0) for _ in range(4)] for _ in range(N)]
    for column, bad in enumerate((math.nan, math.inf, 0.0)):
        amaxes[draw.size(0, N - 1)][column] = torch.tensor(bad)
    want = torch.stack([torch.stack(one) for one in amaxes])
    want = torch.where(want.isfinite().all(0), want.amax(0), math.nan)
    for r, one in enumerate(call("fp8.agreed", [(one,) for one in amaxes])[0]):
        expect(
            isinstance(one, list) and len(one) == 4, f"rank {r}: `agreed` gives a list, one for each amax", known=True
        )
        same(torch.stack(one), want, rank=r, what=f"`agreed` of {[[float(x) for x in one] for one in amaxes]} by rank,")


def agreed_products(sent, top, got, epsilon=None, power_of_two=None):
    """y, dx and dw of each rank's slices, rounded by the whole operands' amaxes."""
    slots, formats = ("input", "weight", "grad"), (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)
    epsilon, power_of_two = epsilon or {}, power_of_two or {}
    for r, parts in enumerate(sent):

        def products(tops, epsilon=epsilon, parts=parts):
            a, b, g = (
                on_grid(t, dtype, amax.clamp(min=epsilon.get(slot, 0.0)), power_of_two.get(slot, False)).double()
                for slot, t, dtype, amax in zip(slots, parts, formats, tops)
            )
            return {"y": a @ b.t(), "dx": g @ b, "dw": g.t() @ a}

        right, by_itself = products(top), products([t.abs().max() for t in parts])
        likely = {"its own slices' amaxes: the ranks' scales differ": by_itself}
        if epsilon:
            likely["the recipe's epsilon is ignored: an amax below it counts as epsilon"] = products(top, {})
        for name, want in right.items():
            # FP32's own roundings of a sum of at most 18 terms, and of two divisions: 20 u of the largest entry.
            off = far(got[r][name], want)
            cause = [
                text
                for text, other in likely.items()
                if far(got[r][name], other[name]) < 1e-5 and far(other[name], want) > 1e-3
            ]
            expect(off < 1e-5, f"rank {r}: {name} is {off:.2g} off, relative to its norm", cause=tuple(cause))


@task("C.1", points=3)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2"])
def test_what_a_rank_holds(mesh, seed):
    """Between steps: shards, their moments, nothing else"""
    m = MESHES[mesh]
    c, weights, batches, options = drawn(seed, mesh, "held")
    got, ledgers = run(c, m, options, weights, batches[:1])
    stages(c, m, got)
    loss = alone(c, weights, batches[:1], options)["losses"][0]
    for r in range(RANKS):
        mine = {n: own(n, w, c, m.get("tp", 1), place(m, r)[2]) for n, w in weights.items() if n in got[r]["gradients"]}
        by_unit: dict[str, int] = {}
        for name, w in mine.items():
            at = name.split(".")[1] if name.startswith("layers.") else "root"
            by_unit[at] = by_unit.get(at, 0) + w.numel()
        want = [-(-by_unit[at] // m["dp"]) for at in sorted(by_unit, key=lambda at: -1 if at == "root" else int(at))]
        whole = {"nothing is cut over the data-parallel ranks": [n * m["dp"] for n in want]}
        same(field(got[r], "held"), want, rank=r, what="numbers in the units' shards", looks_like=whole)
        same(field(got[r], "moments"), 2 * want, rank=r, what="numbers in the moments")
        # What freed parameters look at, one number each, and nothing of the vectors.
        most = 4 * len(mine)
        expect(
            field(got[r], "left") <= most,
            f"rank {r}: between steps {got[r]['left']} bytes of gathered weights are left, expected at most {most}",
            known=True,
        )
        expect(
            got[r]["grads"] == 0, f"rank {r}: {got[r]['grads']} shards still have a gradient after a step", known=True
        )
        # Shards that nothing was computed with are no shards: a loss takes all ranks' rows, slices and stages.
        told, causes = field(got[r], "vitals")[0][0], loss_causes(loss, m)
        same(told, loss, tol=TOL * loss, rank=r, what="the loss of the step", looks_like=causes)
    together(ledgers, c, m, batches[0], 1)


@task("C.1", points=4)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "tp2 x pp2"])
def test_a_step_that_is_not_taken(mesh, seed):
    """What is not finite on one rank, in a gradient or in the loss; and a step that is refused"""
    m = MESHES[mesh]
    c, weights, batches, options = drawn(seed, mesh, "spoilt")
    draw = Draw(seed, mesh, "bad")
    bad = draw.size(0, RANKS - 1)
    last = RANKS - 1 - draw.size(0, RANKS // m.get("pp", 1) - 1)  # of the last stage, which has the loss
    spoils = [
        ("gradient", bad, math.nan),
        ("gradient", bad, -math.inf),
        ("loss", last, math.inf),
        ("loss", last, math.nan),
    ]
    spoils = [spoils[k] for k in draw.order(range(4))]
    batches = [batches[0]] * 4 + batches[1:]
    each = own_alone(c, m, options, weights, batches)
    got, ledgers = call("scenarios.spoilt", [(rows, told, LR, spoils) for rows, told in each], timeout=40.0)
    want = alone(c, weights, batches[4:5], options)
    for k, (what, rank, value) in enumerate(spoils):
        fine = [r for r in range(RANKS) if field(got[r], "vitals")[k][2] is not False]
        expect(  # of all ranks first: what comes after a step that some took and others did not is wrong on all
            not fine,
            f"step {k + 1}: rank {rank} had {value} in its {what}, and ranks {fine} found the step finite: all ranks "
            "must judge it alike, by loss and gradient",
            known=True,
        )
    for r in range(RANKS):
        for k, (what, rank, value) in enumerate(spoils):
            told = got[r]["vitals"][k][:2]
            expect(
                all(math.isnan(x) for x in told),
                f"rank {r}, step {k + 1}: rank {rank} had {value} in its {what}, and loss and norm are {told}, expected NaN",
                known=True,
            )
        one, huge, several = field(got[r], "sizes")
        expect(
            math.isfinite(huge[1]) and huge[2] is True,
            f"rank {r}: each number of a gradient is finite, and of vitals the norm is {huge[1]} and `finite` {huge[2]}: "
            "squares leave float32",
            known=True,
        )
        same(huge[1], 1e22 * one[1], tol=1e18 * one[1], rank=r, what="the norm of a gradient times 1e22")
        expect(
            several[2] is False, f"rank {r}: all ranks but the first had NaN, and `finite` is {several[2]}", known=True
        )
        vitals = field(got[r], "vitals")[3:]
        expect(
            vitals[1][2] is True and vitals[2][2] is True,
            f"rank {r}: the steps after the NaN are finite, and it found them {vitals[1][2]} and {vitals[2][2]}",
            known=True,
        )
        same(
            vitals[1][0],
            want["losses"][0],
            tol=TOL * want["losses"][0],
            rank=r,
            what="the loss after a step with a NaN",
        )
        same(
            vitals[1][1], want["norms"][0], tol=TOL * want["norms"][0], rank=r, what="the norm after a step with a NaN"
        )
        asked = field(got[r], "asked")
        same(asked, [0, 0, 0, 0, 1, 1], rank=r, what="`finite` of the vitals that `allow` was asked about")
        why = [*(f"there was {value} in one rank's {what}" for what, _, value in spoils), "`allow` refused it"]
        for k, text in enumerate(why):
            expect(not got[r]["moved"][k], f"rank {r} changed weights or moments in a step though {text}", known=True)
        expect(got[r]["moved"][5], f"rank {r} changed nothing in a step that was allowed", known=True)
        expect(
            got[r]["grads"] == 0, f"rank {r}: {got[r]['grads']} shards still have a gradient after a step", known=True
        )
    together(ledgers, c, m, batches[0], len(batches) + 1)


@task("C.1", points=2)
@pytest.mark.parametrize("mesh", ["tp4", "dp2 x pp2"])
def test_messages(mesh, seed):
    """Messages of a step: vitals, shared heads, weights whole for a step, and several micro-batches in a pipeline"""
    m = MESHES[mesh]
    c, weights, batches, options = drawn(seed, mesh, "messages")
    each = own_alone(c, m, options, weights, batches[:1])
    _, ledgers = call("scenarios.marked", [(rows[0], told) for rows, told in each], timeout=40.0)
    shared = c.n_layers if m.get("tp", 1) > c.n_kv_heads else 0  # the units that have a shared head: every block's
    for r in range(RANKS):
        made = [e.kind for e in marked(ledgers[r], "vitals") if e.kind != "wait"]
        expect(len(made) == 1, f"rank {r}: vitals makes {len(made)} calls, expected one: {made}", known=True)
        made = [e.kind for e in marked(ledgers[r], "sum_replicas") if e.kind != "wait"]
        expect(
            len(made) <= shared,  # none at all is a wrong gradient
            f"rank {r}: sum_replicas makes {len(made)} calls, and {shared} units have numbers of a shared head",
            known=True,
        )
        for name in ("Held.begin", "Held.finish") if m.get("zero") == 1 else ():
            made = marked(ledgers[r], name)
            count = sum(e.kind != "wait" for e in made)
            ahead = next((k for k, e in enumerate(made) if e.blocking), count)
            expect(
                ahead == count,
                f"rank {r}: {name} waits when {ahead} of its {count} messages are on their way, expected all",
                known=True,
            )

    if m.get("pp") == 2:
        pipelined(ledgers, m)


def pipelined(ledgers, mesh):
    """The first stage goes on while the last one works; and that one gives back before it takes more."""
    for r, ledger in enumerate(ledgers):
        sent, behind = 0, []  # of each arrival how many messages had been sent before it
        for e in ledger.events:
            if e.group == "pp" and e.kind in ("send", "sendrecv"):
                sent += 1
            of = e.kind if e.kind != "wait" else next(one.kind for one in ledger.events if one.index == e.of)
            if e.group == "pp" and e.blocking and of in ("recv", "sendrecv"):
                behind.append(sent)
        if place(mesh, r)[0] == 0:
            expect(
                len(behind) > 0 and behind[0] >= 2,
                f"rank {r}, of the first stage, sends {behind[0] if behind else 'no'} micro-batch before it waits for "
                "a gradient, expected 2: one at a time, and the other stage is idle meanwhile",
                known=True,
            )
        else:
            expect(
                len(behind) > 1 and behind[1] >= 1,
                f"rank {r}, of the last stage, takes all micro-batches before it gives a gradient back: it keeps all of "
                "them meanwhile",
                known=True,
            )


def marked(ledger, name):
    """The calls between the first marks of `name`, without a call that ends what was under way before."""
    labels = [e.label if e.kind == "compute" else None for e in ledger.events]
    expect(f"begin {name}" in labels, f"{name} is not called in a step", known=True)
    events = ledger.events[labels.index(f"begin {name}") + 1 : labels.index(f"end {name}")]
    return [e for e in events if e.kind in CALLS and (e.of is None or e.of >= events[0].index)]


@task("C.1", points=1)
def test_refused(seed):
    """What does not go, before anything is built"""
    c, _, _, options = drawn(seed, "refused")
    wrong = [dict(dp=4, tp=2), dict(dp=2, pp=2, zero=3), dict(dp=2), dict(dp=4, precision="fp4")]
    got, _ = call("scenarios.refused", [[setup(c, m, options, None) for m in wrong]] * RANKS)
    words = ["8 ranks", "zero", "2 ranks", "fp4"]
    for r in range(RANKS):
        for m, word, (kind, text, built) in zip(wrong, words, got[r]):
            expect(
                kind == "LabError" and word in text,
                f"rank {r}: {m} must be refused by setup.refuse: {kind} {text}",
                known=True,
            )
            expect(not built, f"rank {r}: {m} was refused after the model had been built", known=True)
