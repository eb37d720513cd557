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
    MESHES,
    RANKS,
    SPLIT,
    TOL,
    activations,
    alike,
    alone,
    clipped,
    drawn,
    far,
    least,
    number,
    on_grid,
    own,
    own_alone,
    place,
    rates,
    run,
    scale,
    sent_in,
    setup,
    together,
    units,
)
from labkit.checks import call, expect, field, same, task
from labkit.checks.drawn import Draw
from labkit.checks.traffic import moved, phases
from labkit.comm.algorithms import ring_bytes
from labkit.comm.ledger import CALLS
from labkit.model.decoder import Transformer


def stages(c, mesh, got):
    """Every weight on one stage, and the same ones on all ranks of a stage; else a verdict."""
    by_stage: dict[int, set] = {}
    for r in range(RANKS):
        here = set(field(got[r], "gradients"))
        stage = by_stage.setdefault(place(mesh, r)[0], here)
        expect(stage == here, f"rank {r} trains other weights than its neighbours on the same stage", known=True)
    seen = sorted(name for names in by_stage.values() for name in names)
    missing = sorted(set(c.weight_shapes()) ^ set(seen))
    expect(
        not missing and len(seen) == len(set(seen)), f"weights on no stage or on two: {', '.join(missing)}", known=True
    )


def compared(got, c, mesh, tol, weights, batches, options, lrs):
    """Losses, norms, first gradients and last weights of all ranks, against one process."""
    stages(c, mesh, got)
    want, tp = alone(c, weights, batches, options, lrs=lrs), mesh.get("tp", 1)
    nearest_the_loss(got, want, c, mesh, tol)
    causes = {
        (0, 0): lambda: loss_causes(want, mesh),
        (1, 0): lambda: norm_causes(want, mesh, c),
        (0, 1): lambda: {
            cause: alone(c, weights, batches, options, factor=factor, lrs=lrs)["losses"][1]
            for cause, factor in CLIPPED_AS.items()
        },
    }
    for r in range(RANKS):
        vitals = field(got[r], "vitals")
        for k, (loss, norm) in enumerate(zip(want["losses"], want["norms"])):
            for at, name, right in ((0, "the loss", loss), (1, "the gradient's norm", norm)):
                number(vitals[k][at], right, causes.get((at, k), dict), tol, rank=r, what=f"step {k + 1}: {name}")
            expect(vitals[k][2] is True, f"rank {r}, step {k + 1}: finite must be True", known=True)
        for name, whole in want["weights"].items():
            if name in got[r]["weights"]:
                off = far(got[r]["weights"][name], own(name, whole, c, tp, place(mesh, r)[2]))
                expect(off <= tol, f"rank {r}: after {len(vitals)} steps {name} is {off:.2g} off, relative to its norm")


def nearest_the_loss(got, want, c, mesh, tol):
    """The first step's gradients of all ranks. A mistake in a backward spoils those of all weights in front of it: of
    those that are off, the last one in the forward's order is reported, and how many there are."""
    tp, off = mesh.get("tp", 1), []
    names = list(want["gradients"])  # the forward's order
    for name in reversed(names):
        for r in range(RANKS):
            if name in got[r]["gradients"]:
                mine = own(name, want["gradients"][name], c, tp, place(mesh, r)[2])
                if not (by := far(got[r]["gradients"][name], mine)) <= tol:
                    off.append((name, r, by))
    if not off:
        return
    name, r, by = off[0]
    right = all(abs(field(one, "vitals")[0][0] - want["losses"][0]) <= tol * want["losses"][0] for one in got)
    expect(
        False,
        f"rank {r}, step 1: the gradient of {name} is {by:.2g} off, relative to its norm. Off are those of "
        f"{len({one[0] for one in off})} of {len(names)} weights, on ranks {sorted({one[1] for one in off})}; this is "
        f"the nearest to the loss, and the loss is {'right' if right else 'off, too'}",
        cause=gradient_causes([one["gradients"].get(name) for one in got], r, name, want, c, mesh, tol),
    )


def gradient_causes(got, r, name, want, c, mesh, tol):
    """What mistakes give for rank r's gradient of one weight; got: by rank."""
    tp, me, micro = mesh.get("tp", 1), place(mesh, r)[2], len(want["micro"]) // mesh.get("dp", 1)
    whole = want["gradients"][name]
    slices = [own(name, whole, c, tp, q) for q in range(tp)]
    slices = [t if t.shape == slices[me].shape else slices[me] * math.nan for t in slices]  # a vocabulary's may differ
    heads, shared = name.split(".")[-2] in ("wk", "wv"), max(1, tp // c.n_kv_heads)
    same_head = slice(me - me % shared, me - me % shared + shared)
    copies = shared if heads else tp if whole.dim() == 1 else 1
    mates = [got[r - me % copies + q] for q in range(copies)]
    mistakes = {
        "too large by the number of micro-batches: their sum, expected the mean": micro * slices[me],
        "added to other slices of the ranks that share a key/value head": sum(slices[same_head]),
    }
    if heads:
        mistakes["the mean over the ranks that share a head, expected the sum"] = slices[me] / shared
        mistakes["the sum over all tensor-parallel ranks: not all of them have this head"] = sum(slices) / shared
    causes = alike(got[r], slices[me], mistakes, 4 * tol)
    if not causes and copies > 1 and far(sum(mates), slices[me]) <= 4 * tol:
        what = "each rank has the addend of its own slices alone, and their sum is right: "
        of = "nobody sums what a shared head gets" if heads else "no step in front of this half sums what x gets"
        causes = (what + of,)
    return causes


def loss_causes(want, mesh):
    """What mistakes give for the first step's loss."""
    loss, (pp, dp, tp) = want["losses"][0], (mesh.get(name, 1) for name in ("pp", "dp", "tp"))
    micro = len(want["micro"]) // dp
    last = want["micro"][micro - 1 :: micro]
    return {
        "divided by the number of stages: one of them has the loss": loss / pp,
        "nothing: the stages before the last one hear of no loss": 0.0,
        "the share of the data-parallel ranks alone": loss / tp,
        "it counts once for each tensor-parallel rank": loss * tp,
        "the sum over the data-parallel ranks, expected the mean": loss * dp,
        "the sum over the micro-batches, expected the mean": loss * micro,
        "the last micro-batch's alone": sum(last) / len(last),
    }


def norm_causes(want, mesh, c):
    """What mistakes give for the first step's norm."""
    norm, (dp, tp) = want["norms"][0], (mesh.get(name, 1) for name in ("dp", "tp"))
    squares = {name: float(g.double().square().sum()) for name, g in want["gradients"].items()}
    vectors = sum(v for name, v in squares.items() if name.endswith("norm.weight"))
    heads = sum(v for name, v in squares.items() if name.split(".")[-2] in ("wk", "wv"))
    copies = max(1, tp // c.n_kv_heads)
    more = {
        "the norms' weights count once for each tensor-parallel rank": (tp - 1) * vectors,
        "shared key/value heads count once for each rank that has them": (copies - 1) * heads,
        "every number counts once for each rank that has it": (tp - 1) * vectors + (copies - 1) * heads,
        "key/value heads count as if all tensor-parallel ranks had them": (copies / tp - 1) * heads,
        "data-parallel ranks count as copies of the norms' weights": (1 / dp - 1) * vectors,
    }
    return {cause: (norm**2 + square) ** 0.5 for cause, square in more.items()}


CLIPPED_AS = {
    "the gradient is not clipped": lambda clip, norm, name: 1.0,
    "scaled to `clip_norm` whatever its norm is, and to 0 where clipping is off": lambda clip, norm, name: clip / norm,
    "clipped to 1, expected `clip_norm`": lambda clip, norm, name: min(1.0, 1.0 / norm),
    "the blocks' gradients alone are clipped": lambda clip, norm, name: (
        clipped(clip, norm, name) if name.startswith("layers.") else 1.0
    ),
}


# ---- the checks


@task("C.1", points=2)
def test_places(seed):
    """Who is next to whom"""
    c, _, _, options = drawn(seed, "places")
    meshes = [dict(dp=2, tp=2), dict(tp=2, pp=2, zero=1), dict(dp=2, pp=2, zero=1), dict(dp=4), dict(tp=4)]
    got, _ = call("scenarios.places", [[setup(c, m, options, None) for m in meshes]] * RANKS)
    for r in range(RANKS):
        for m, groups in zip(meshes, got[r]):
            where = place(m, r)
            for at, name in ((2, "tp"), (1, "dp"), (0, "pp")):
                want = [q for q in range(RANKS) if all(place(m, q)[k] == where[k] for k in range(3) if k != at)]
                others = ", ".join(f"{k} {v}" for k, v in m.items() if k != "zero")
                same(
                    field(groups, name),
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
    c, weights, batches, options = drawn(seed, mesh, mesh=MESHES[mesh])
    options["clip_norm"], lrs = CLIPS.get(mesh, options["clip_norm"]), rates(seed, mesh)
    got, ledgers = run(c, MESHES[mesh], options, weights, batches, lrs)
    compared(got, c, MESHES[mesh], TOL, weights, batches, options, lrs)
    together(ledgers, c, MESHES[mesh], batches[0], len(batches), options, wholes=2)


@task("C.1", points=2)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2"])
def test_bf16(mesh, seed):
    """In BF16: the gradient is as far from float32's as one process's in BF16"""
    c, weights, batches, options = drawn(seed, mesh, "bf16", mesh=MESHES[mesh])
    got, ledgers = run(c, MESHES[mesh], options, weights, batches[:1], rates(seed, mesh), precision="bf16")
    stages(c, MESHES[mesh], got)
    for r in range(RANKS):
        kinds = {kind for name, kind in field(got[r], "kinds").items() if name != "tok_embed"}
        expect(kinds == {"Linear"}, f"rank {r}: in BF16 linears stay nn.Linear, and there are {kinds}", known=True)
        for name, after in field(got[r], "weights").items():  # a step moves them by less than BF16 holds
            rounded = torch.equal(after, after.bfloat16().float())
            expect(not rounded, f"rank {r}: after a step {name} is rounded to BF16: the shards are FP32", known=True)
    in_the_band(got, c, MESHES[mesh], weights, batches, options, dtype=torch.bfloat16)
    together(ledgers, c, MESHES[mesh], batches[0], 1, options, itemsize=2, wholes=2, exact=True)


@task("C.1", points=5)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2", "tp2 x pp2"])
def test_fp8(mesh, seed):
    """In FP8: every linear as on one GPU, the run in the paired band, what was converted"""
    m, tp = MESHES[mesh], MESHES[mesh].get("tp", 1)
    # Rows so that a head could be converted, too. In a second step weights have other amaxes.
    c, weights, batches, options = drawn(seed, mesh, "fp8", rows=32, mesh=m)
    each, lrs, steps = own_alone(c, m, options, weights, batches[:2], precision="fp8"), rates(seed, mesh, "fp8"), 2
    got, ledgers = call("scenarios.heard", [(rows, values, lrs) for rows, values in each], timeout=40.0)
    stages(c, m, got)
    micro = options["micro"] // m.get("dp", 1)
    in_order(got, c, m, weights, batches[0], micro)
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
        table = field(got[r], "kinds").get("tok_embed", "Embedding")
        expect(
            table == "Embedding" or tp > 1,
            f"rank {r}: `cut` changes nothing on one rank, and there is a {table}",
            known=True,
        )
        for name in here:
            used = {what: len(each) for what, each in field(got[r], "linears").get(name, {}).items()}
            ok = used == dict.fromkeys(("x", "y", "dy", "dx"), micro * steps)
            expect(ok, f"rank {r}: {name} was not used in each micro-batch's forward and backward", known=True)
        held_slices(field(got[r], "weights")[0], weights, c, tp, r, place(m, r)[2])
    for k in range(micro * steps):
        for what, names in (("y", linears), ("dx", linears[::-1])):  # in the order in which they are computed
            for name in names:
                one_linear(name, what, got, k, k // micro, tp)
    in_the_band(got, c, m, weights, batches, options, fp8=True)
    for r in range(RANKS):
        made = {kind for kind in got[r]["kinds"].values() if kind.endswith("Linear")} - {"Linear"}
        kind = "AgreedLinear" if tp > 1 else "FP8Linear"
        expect(made == {kind}, f"rank {r}: of {tp} tensor-parallel ranks linears are {kind}, not {made}", known=True)
        small = [e.bytes for e in ledgers[r].events if e.group == "tp" and e.kind == "all_reduce" and e.bytes <= 16]
        count = 2 * micro * steps * len(got[r]["linears"]) * (tp > 1)
        expect(
            len(small) >= count,
            f"rank {r}: {len(small)} messages agree on amaxes, expected {count}: two a linear and micro-batch",
            known=True,
        )
    together(ledgers, c, m, batches[0], steps, options, wholes=3)


def in_order(got, c, m, weights, batch, micro):
    """What the first block was handed in the first step: the embeddings of the rank's rows, in order."""
    seen = []
    model = Transformer(c)
    model.load_state_dict(weights)
    model.get_submodule("layers.0.attn.wq").register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    for rows in batch.chunk(m.get("dp", 1) * micro):
        model(rows[:, :-1])
    for r in range(RANKS):
        stage, replica, _ = place(m, r)
        if stage == 0:
            came = field(got[r], "linears").get("layers.0.attn.wq", {}).get("x", [])
            pairs = zip(came, seen[replica * micro : (replica + 1) * micro])
            expect(
                len(came) >= micro and all(far(x, want.flatten(0, 1)) < 1e-5 for x, want in pairs),
                f"rank {r}: the micro-batches are not {micro} equal parts of its rows, in order",
                known=True,
            )


def held_slices(got, weights, c, tp, r, me):
    """What a rank has before the first step: its slices."""
    for name, there in got.items():
        if not torch.equal(there, own(name, weights[name], c, tp, me)):
            every = {f"rank {q}'s of {n}": own(n, w, c, tp, q) for n, w in weights.items() for q in range(tp)}
            other = next((which for which, w in every.items() if torch.equal(w, there)), "no slice of any weight")
            expect(False, f"rank {r}: before the first step {name} is not its slice: it is {other}", known=True)


def one_linear(name, what, got, k, step, tp):
    """A linear's y or dx of micro-batch k from what its ranks were handed: as one GPU would round the whole operands.
    No flip of a rounding can come from anywhere: the operands are these."""
    row, w = name.split(".")[-1] in SPLIT["columns"], [one["weights"][step].get(f"{name}.weight") for one in got]
    each = [one["linears"].get(name, {}) for one in got]
    by_rank = [{what: made[k] for what, made in one.items()} for one in each]
    whole, why = {
        ("y", False): ("x", "the addends of what stands in front of it are not summed over the ranks"),
        ("dx", True): ("dy", "in front of the half behind it the ranks' addends of x's gradient are not summed"),
    }.get((what, row), ("", ""))
    cuts = [(one["x"], mine, one["dy"]) if one else None for one, mine in zip(by_rank, w)]
    for r, (one, parts) in enumerate(zip(by_rank, cuts)):
        if one:
            first = r - r % tp
            if whole and not far(one[whole], by_rank[first][whole]) < 1e-5:
                expect(False, f"rank {r}, {name}: its {whole} is not the one of rank {first}", cause=(why,))
            tops = tops_of(cuts[first : first + tp])
            one_product({what: one[what]}, parts, tops, f"rank {r}, {name}", [cut for cut in cuts if cut])


def tops_of(ranks):
    """The amaxes of x, w and dy, over these ranks."""
    return [torch.stack([t.abs().max() for t in three]).max() for three in zip(*ranks)]


def operands(parts, tops, formats=FORMATS, slots=("input", "weight", "grad"), epsilon=None, power_of_two=None):
    """A rank's x, w and dy as FP8 holds them with these amaxes, and their scales; in float64."""
    found, scales = [], []
    for t, top, dtype, slot in zip(parts, tops, formats, slots):
        how = top.clamp(min=(epsilon or {}).get(slot, 0.0)), (power_of_two or {}).get(slot, False)
        found.append(on_grid(t, dtype, *how).double())
        scales.append(scale(dtype, *how).double())
    return found, scales


def products(three):
    x, w, dy = three
    return {"y": x @ w.t(), "dx": dy @ w, "dw": dy.t() @ x}


def one_product(got, parts, tops, where, everybody=(), **recipe):
    """Of y, dx and dw those in `got`. FP32's own roundings of a sum of at most 192 terms, and of two divisions: far
    below 1e-5 of the norm."""
    right, scales = operands(parts, tops, **recipe)
    want, names, mine = products(right), ("x", "w", "dy"), tops_of([parts])

    def mistakes():
        by = {
            "its own slices' amaxes: the ranks' scales differ": operands(parts, mine, **recipe),
            "amaxes agreed over all ranks: other replicas have other data": operands(
                parts, tops_of(everybody) or tops, **recipe
            ),
            "dy is rounded to the forward format": operands(parts, tops, FORMATS[:1] * 3, **recipe),
            "the weight is rounded as an input": operands(parts, tops, slots=("input", "input", "grad"), **recipe),
        }
        for key, what in (
            ("epsilon", "an amax below it counts as epsilon"),
            ("power_of_two", "some scales are powers"),
        ):
            by[f"the recipe's {key} is ignored: {what}"] = operands(parts, tops, **{**recipe, key: None})
        for k, what in enumerate(names):
            by[f"the amax of {what} is its own slice's"] = operands(
                parts, [*tops[:k], mine[k], *tops[k + 1 :]], **recipe
            )
        made = {cause: products(three) for cause, (three, _) in by.items()}
        for k, what in enumerate(names):
            for text, t in (
                (" is not rounded", parts[k]),
                (", not rounded, is divided by its scale", parts[k] / scales[k]),
            ):
                made[what + text] = products([*right[:k], t.double(), *right[k + 1 :]])
        pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
        times = {f"divided by the scale of {names[a]}, not of {names[b]}": scales[b] / scales[a] for a, b in pairs}
        return made | {cause: {name: t * s for name, t in want.items()} for cause, s in times.items()}

    for name, came in got.items():
        if not (off := far(came, want[name])) < 1e-5:
            cause = alike(came, want[name], {cause: one[name] for cause, one in mistakes().items()}, 1e-5)
            text = f"{where}: {name} is {off:.2g} off that of whole operands in FP8, relative to its norm"
            expect(False, text, cause=cause)


def in_the_band(got, c, m, weights, batches, options, **how):
    """A flip of one rounding spreads: the whole step is compared by how far it is from float32's. On one GPU in FP8, or
    in BF16 (`how`), that is `usual`; independent roundings are as far, give or take a third. And it is off in the same
    direction: most roundings are of the same numbers. Noise of that size has a cosine of 0, correct steps one of 0.66
    to 1."""
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
            mine[name, place(m, r)[2]] = (part, want, own(name, low[name], c, m.get("tp", 1), place(m, r)[2]))
    part, want, one_gpu = (torch.cat([each.reshape(-1) for each in every]) for every in zip(*mine.values()))
    off = far(part, want)
    what = "FP8" if how.get("fp8") else "BF16"
    expect(
        0.5 * usual < off < 1.5 * usual,
        f"the gradient is {off:.2g} off float32's, relative to its norm; in {what} on one GPU it is {usual:.2g}",
        cause=(f"it is float32's gradient: nothing is computed in {what}",) if off <= TOL else (),
    )
    alike = torch.cosine_similarity((part - want).double(), (one_gpu - want).double(), dim=0).item()
    expect(
        alike > 0.33,
        f"the gradient is as far off float32's as {what} makes it, in another direction: the cosine is {alike:.2f}, and "
        "that of correct steps at least 0.6",
        known=True,
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
    got, ledgers = call("scenarios.product", sent)
    small = [tuple(t * (1e-17 / most) for t, most in zip(three, top)) for three in sent]  # two scales' product: 1e39
    tops = [t * (1e-17 / t) for t in top]
    for came, given, largest, how in (
        (got, sent, top, {}),
        (call("scenarios.product", sent, **recipe)[0], sent, top, recipe),
        (call("scenarios.product", small)[0], small, tops, {}),
    ):
        for r, (one, three) in enumerate(zip(came, given)):
            where = f"rank {r}" + ", of operands up to 1e-17" * (given is small)
            one_product({name: field(one, name) for name in ("y", "dx", "dw")}, three, largest, where, **how)
            kept, most = field(one, "kept"), three[0].nbytes + three[1].nbytes + 64  # scales, and other scalars
            expect(kept <= most, f"rank {r}: {kept} bytes are kept for the backward, and {most} are enough", known=True)
    halves = [(a.bfloat16(), b, g.bfloat16()) for a, b, g in sent]  # activations are BF16, master weights FP32
    for r, one in enumerate(call("scenarios.product", halves)[0]):
        dtypes = [str(name).removeprefix("torch.") for name in field(one, "dtypes")]
        right = ["bfloat16", "bfloat16", "float32"]
        expect(dtypes == right, f"rank {r}: x is BF16, w FP32: y, dx, dw are {dtypes}, expected {right}", known=True)
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
                looks_like={"a message for each amax": [("all_reduce", 8)] * 2, "amaxes are not agreed": []},
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
        for column, (came, right) in enumerate(zip(torch.stack(one).tolist(), want.tolist())):
            by_rank = [float(amax[column]) for amax in amaxes]
            ok = came == right or (math.isnan(came) and math.isnan(right))
            expect(ok, f"rank {r}: `agreed` of the amaxes {by_rank} by rank is {came}, expected {right}", known=True)


@task("C.1", points=3)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "dp2 x pp2", "pp4"])
def test_what_a_rank_holds(mesh, seed):
    """Between steps: shards, their moments, nothing else"""
    m = {**MESHES, "pp4": dict(pp=4, zero=1)}[mesh]  # a stage between others has blocks alone
    # With one key/value head two tensor-parallel ranks share it, on each data-parallel rank.
    c, weights, batches, options = drawn(seed, mesh, "held", layers=(4, 5) if mesh == "pp4" else (2, 3), kv=1, mesh=m)
    got, ledgers = run(c, m, options, weights, batches[:1], rates(seed, mesh))
    stages(c, m, got)
    right = alone(c, weights, batches[:1], options)
    for r in range(RANKS):
        dp, mine = m.get("dp", 1), got[r]["gradients"]
        want = [-(-numbers // dp) for numbers in units(c, m, r).values()]
        whole = {"nothing is cut over the data-parallel ranks": [n * dp for n in want]} if dp > 1 else {}
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
        # Of each number: itself, two moments, its decay and share, whether it is shared; and room for one byte more.
        most += 22 * sum(want) + 4096
        expect(
            field(got[r], "reached") <= most,
            f"rank {r}: between steps the trainer holds {got[r]['reached']} bytes, and {most} are enough",
            known=True,
        )
        # Shards that nothing was computed with are no shards: a loss takes all ranks' rows, slices and stages.
        loss, norm, _ = field(got[r], "vitals")[0]
        number(loss, right["losses"][0], lambda: loss_causes(right, m), rank=r, what="the loss of the step")
        number(norm, right["norms"][0], lambda: norm_causes(right, m, c), rank=r, what="the norm of the step")
    together(ledgers, c, m, batches[0], 1, options, wholes=2)


@task("C.1", points=4)
@pytest.mark.parametrize("mesh", ["dp2 x tp2", "tp2 x pp2"])
def test_a_step_that_is_not_taken(mesh, seed):
    """What is not finite on one rank, in a gradient or in the loss; and a step that is refused"""
    m = MESHES[mesh]
    c, weights, batches, options = drawn(seed, mesh, "spoilt")
    draw, options["clip_norm"] = Draw(seed, mesh, "bad"), 0.0
    bad, where = draw.size(0, RANKS - 1), [(draw.size(0, 10**6), draw.size(0, 10**6)) for _ in range(2)]
    last = RANKS - 1 - draw.size(0, RANKS // m.get("pp", 1) - 1)  # of the last stage, which has the loss
    spoils = [
        ("gradient", bad, math.nan, *where[0]),
        ("gradient", bad, -math.inf, *where[1]),
        ("loss", last, math.inf),
        ("loss", last, math.nan),
    ]
    spoils = [spoils[k] for k in draw.order(range(4))]
    batches, lrs, unit = [batches[0]] * 4 + batches[1:], rates(seed, mesh, steps=6), draw.size(0, 10**6)
    # Each rank, and with it another unit; which number of it, is drawn.
    spots = [
        (r, (math.nan, math.inf, -math.inf)[k % 3], unit + k, draw.size(0, 10**6))
        for k, r in enumerate(draw.order(range(RANKS)))
    ]
    each = own_alone(c, m, options, weights, batches)
    got, ledgers = call("scenarios.spoilt", [(rows, values, lrs, spoils, spots) for rows, values in each], timeout=40.0)
    want = alone(c, weights, batches[4:5], options)
    after = alone(c, weights, batches[5:], options, lrs=lrs[5:])["weights"]
    for k, (what, rank, value, *_) in enumerate(spoils):
        fine = [r for r in range(RANKS) if field(got[r], "vitals")[k][2] is not False]
        expect(  # of all ranks first: what comes after a step that some took and others did not is wrong on all
            not fine,
            f"step {k + 1}: rank {rank} had {value} in its {what}, and ranks {fine} found the step finite: all ranks "
            "must judge it alike, by loss and gradient",
            known=True,
        )
    for r in range(RANKS):
        for k, (what, rank, value, *_) in enumerate(spoils):
            values = got[r]["vitals"][k][:2]
            expect(
                all(math.isnan(x) for x in values),
                f"rank {r}, step {k + 1}: rank {rank} had {value} in its {what}, and loss and norm are {values}, expected NaN",
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
        for (rank, value, *_), finite in zip(spots, field(got[r], "spots")):
            expect(
                not finite,
                f"rank {r}: rank {rank} had {value} in one number of its gradient, and `finite` is {finite}",
                known=True,
            )
        vitals = field(got[r], "vitals")[3:]
        expect(
            vitals[1][2] is True and vitals[2][2] is True,
            f"rank {r}: the steps after the NaN are finite, and it found them {vitals[1][2]} and {vitals[2][2]}",
            known=True,
        )
        number(
            vitals[1][0], want["losses"][0], lambda: loss_causes(want, m), rank=r, what="the loss after a NaN's step"
        )
        number(
            vitals[1][1], want["norms"][0], lambda: norm_causes(want, m, c), rank=r, what="the norm after a NaN's step"
        )
        graph = field(got[r], "graph")
        expect(not graph, f"rank {r}: the loss that `gradients` gives holds its graph: it has a gradient", known=True)
        calls = field(got[r], "calls")
        what, finite = (
            "`finite` of the vitals that `allow` was called with",
            {"it is called for finite steps alone": [1, 1]},
        )
        same(calls, [0, 0, 0, 0, 1, 1], rank=r, what=what, looks_like=finite)
        why = [*(f"there was {value} in one rank's {what}" for what, _, value, *_ in spoils), "`allow` refused it"]
        for k, text in enumerate(why):
            expect(
                not got[r]["moved"][k],
                f"rank {r} changed weights, moments or AdamW's count in a step though {text}",
                known=True,
            )
        expect(got[r]["moved"][5], f"rank {r} changed nothing in a step that was allowed", known=True)
        for name, mine in field(got[r], "weights").items():
            off = far(mine, own(name, after[name], c, m.get("tp", 1), place(m, r)[2]))
            expect(off <= TOL, f"rank {r}: after five refused steps and one {name} is {off:.2g} off", known=True)
        expect(
            got[r]["grads"] == 0, f"rank {r}: {got[r]['grads']} shards still have a gradient after a step", known=True
        )
    together(ledgers, c, m, batches[0], len(batches) + 1, options, wholes=1)


@task("C.1", points=2)
@pytest.mark.parametrize("mesh", ["tp4", "dp2 x pp2"])
def test_messages(mesh, seed):
    """Messages of a step: vitals, shared heads, weights whole for a step, and several micro-batches in a pipeline"""
    m = MESHES[mesh]
    c, weights, batches, options = drawn(seed, mesh, "messages", mesh=m)
    half = {} if m.get("tp", 1) > 1 else {"precision": "fp8", "rest": "bf16"}
    each = own_alone(c, m, options, weights, batches[:1], **half)
    got, ledgers = call("scenarios.marked", [(rows[0], values) for rows, values in each], timeout=40.0)
    shared = c.n_layers if m.get("tp", 1) > c.n_kv_heads else 0  # the units that have a shared head: every block's
    # Messages of nothing are as cheap. In FP8 and BF16 losses are off by a thousandth, norms by a hundredth.
    right, tol = alone(c, weights, batches[:1], options, fp8=bool(half)), 0.05 if half else TOL
    for r in range(RANKS):
        vitals = field(got[r], "vitals")
        for k, (name, kind) in enumerate((("the loss", "losses"), ("the gradient's norm", "norms"))):
            number(vitals[k], right[kind][0], dict, tol, rank=r, what=name)
        made = [(e.dtype, math.prod(e.shape)) for e in marked(ledgers[r], "vitals") if e.kind != "wait"]
        expect(
            made == [("float64", 3)],
            f"rank {r}: vitals makes {len(made)} calls, expected one of three float64: {made}",
            known=True,
        )
        sums = [e for e in marked(ledgers[r], "sum_replicas") if e.kind != "wait"]
        sent, most = ring_bytes(ledgers[r], sums), shared * 2 * c.d_head * c.d_model * 4  # two ranks share wk and wv
        expect(
            len(sums) <= shared and sent <= most,  # none at all is a wrong gradient
            f"rank {r}: sum_replicas makes {len(sums)} calls and sends {sent} bytes; {shared} units have numbers of a "
            f"shared head, of {most} bytes",
            known=True,
        )
        last = place(m, r)[0] == m.get("pp", 1) - 1
        expect(
            field(got[r], "loss") is last,
            f"rank {r}: `gradients` gives {'no ' * last}loss, and its stage has {'one' if last else 'none'}",
            known=True,
        )
        expect(
            field(got[r], "without") == 0,
            f"rank {r}: after a step that used no weights {got[r]['without']} shards have no gradient, expected zeros",
            known=True,
        )
        if shared:
            summed(ledgers[r], c, m, batches[0], len(sums), options)
        for name in ("Held.begin", "Held.finish") if m.get("dp", 1) > 1 else ():
            made, count = marked(ledgers[r], name), len(units(c, m, r))
            ahead = next((k for k, e in enumerate(made) if e.blocking), len(made))
            expect(
                ahead == sum(e.kind != "wait" for e in made) == count,
                f"rank {r}: {name} waits when {ahead} messages are on their way, expected {count}, one a unit",
                known=True,
            )

    if half:
        pipelined(ledgers, m, activations(c, batches[0], options, 2), options["micro"] // m["dp"])
        # The step that used nothing gathers in BF16 and reduces in FP32: one and a half times FP32's gather.
        together(ledgers, c, m, batches[0], 1, options, itemsize=2, wholes=1.5, exact=True)


def summed(ledger, c, mesh, rows, count, options):
    """The sums that a step takes, and no more; count: of messages in sum_replicas."""
    r, layers, shared = ledger.rank, c.n_layers, mesh["tp"] // c.n_kv_heads
    mates = {*range(r - r % shared, r - r % shared + shared)}
    made = [e for e in ledger.events if e.kind in CALLS and e.kind != "wait" and {*ledger.groups[e.group]} == mates]
    expect(
        len(made) == count,
        f"rank {r}: ranks that share a head make {len(made)} calls in a step, of these {count} in sum_replicas: "
        "gradients are linear, and are to be summed once",
        known=True,
    )
    sent, most = sent_in(ledger, "tp"), least(c, mesh, r, rows, 1, options)["tp"]
    often = most * (7 * layers + 2) / (4 * layers + 2)  # backward 3 and 2 in a block's halves, not 1 and 1
    cause = "x is copied to the ranks once for each linear that reads it, expected once for all"
    expect(
        sent <= 1.1 * most,  # beside them the loss's three numbers a token
        f"rank {r} sent {sent} bytes in its group 'tp'; the sums around halves, embedding and head are {most}",
        cause=(cause,) if abs(sent - often) < 0.02 * often else (),
    )


def pipelined(ledgers, mesh, size, micro):
    """The first stage goes on while the last one works; and that one gives back before it takes more. size: bytes of
    a micro-batch's activations, in BF16."""
    for r, ledger in enumerate(ledgers):
        sent, behind = 0, []  # of each arrival how many messages had been sent before it
        made = {e.index: e for e in ledger.events if e.group == "pp" and e.bytes in (size, 2 * size)}
        for e in ledger.events:
            of = made.get(e.index if e.of is None else e.of)
            sent += of is not None and e is of and of.kind == "send"
            if of is not None and e.blocking and of.kind == "recv":
                behind.append(sent)
        first = place(mesh, r)[0] == 0
        expect(
            sent == len(behind) == micro,
            f"rank {r} sends {sent} messages as large as a micro-batch's activations to its neighbour and waits for "
            f"{len(behind)}, expected {micro}",
            known=True,
        )
        early = [k for k, had in enumerate(behind) if had < (min(k + 2, micro) if first else k)]
        expect(
            not early or not first,
            f"rank {r}, of the first stage, sends {behind} micro-batches before it waits for its gradients, one after "
            "another, expected one more than are back: one at a time, and the other stage is idle meanwhile",
            known=True,
        )
        expect(
            not early,
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
    got, _ = call("scenarios.refused", [[setup(c, m, options, None) for m in (*wrong, dict(dp=4))]] * RANKS)
    words = ["8 ranks", "zero", "2 ranks", "fp4"]
    for r in range(RANKS):
        kind, text, built = got[r][-1]
        expect(kind == "nothing" and built, f"rank {r}: dp=4 must be built: {kind} {text}")
        for m, word, (kind, text, built) in zip(wrong, words, got[r]):
            expect(
                kind == "LabError" and word in text,
                f"rank {r}: {m} must be refused by setup.refuse: {kind} {text}",
                known=True,
            )
            expect(not built, f"rank {r}: {m} was refused after the model had been built", known=True)
