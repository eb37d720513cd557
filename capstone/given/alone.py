"""One process, for the checks: the same training by plain autograd and torch's AdamW, in FP8 by twenty lines; and which
slice of a weight is whose. It knows nothing of your modules.

What may differ. float32 adds the same terms in other orders: a sum of n terms is off by at most n u of their absolute
sum, u = 2^-24, and typically by sqrt(n) u. The longest sums here have n = 448 terms (a weight's gradient: all tokens of
a batch), and a gradient lies behind 16 products forward and as many backward: 32 sqrt(448) u = 4e-5 of its norm. TOL is
that. AdamW's epsilon is large here (EPS), so that an update is a smooth function of its gradient: no rounding is
blown up by a division by nearly nothing.

FP8 is a grid: a number near the middle of a step falls to the other side by a rounding of float32, and moves what
comes behind it by a thousandth, where more numbers fall. So in FP8 each linear is compared by itself, from the very
operands that it was handed, and the step as a whole by how far it is from float32's.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks.drawn import Draw
from labkit.checks.judge import expect, same
from labkit.checks.runner import call
from labkit.comm.algorithms import ring_bytes
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.parallel.stages import stage_layers

TOL, EPS, LR = 4e-5, 1e-2, 0.1
FORMATS = torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2  # of x, w, dy
RANKS = 4
MESHES = {
    "dp4": dict(dp=4),
    "tp4": dict(tp=4, zero=1),  # whole for a step, and no pipeline
    "dp2 x tp2": dict(dp=2, tp=2),
    "dp2 x pp2": dict(dp=2, pp=2, zero=1),
    "tp2 x pp2": dict(tp=2, pp=2, zero=1),
}
SPLIT = {"rows": ("wq", "wk", "wv", "w1", "w3"), "columns": ("wo", "w2"), "vocab": ("tok_embed", "head")}


# ---- one process


class Rounded(torch.autograd.Function):
    """x @ w^T and its gradients from operands in FP8, one scale per tensor: what one GPU would do."""

    @staticmethod
    def forward(ctx, x, w):
        x8, w8 = on_grid(x, torch.float8_e4m3fn), on_grid(w, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, w8)
        return x8 @ w8.t()

    @staticmethod
    def backward(ctx, dy):
        x8, w8 = ctx.saved_tensors
        dy8 = on_grid(dy, torch.float8_e5m2)
        return dy8 @ w8, dy8.flatten(0, -2).t() @ x8.flatten(0, -2)


def scale(dtype, amax, power_of_two=False):
    """largest / amax, or the power of two at or below it."""
    s = (torch.finfo(dtype).max / amax.double()).float()
    return torch.exp2(torch.frexp(s)[1] - 1.0) if power_of_two else s


def on_grid(x, dtype, amax=None, power_of_two=False):
    """x as FP8 holds it with the scale of this amax, its own if it is None, scaled back."""
    largest, s = torch.finfo(dtype).max, scale(dtype, x.abs().max() if amax is None else amax, power_of_two)
    return (x * s).clamp(-largest, largest).to(dtype).float() / s


class RoundedLinear(torch.nn.Linear):
    def forward(self, x):
        return Rounded.apply(x, self.weight)


def linear_for(fp8):
    def make(name, inputs, outputs):
        kind = RoundedLinear if fp8 and name != "head" else torch.nn.Linear
        return kind(inputs, outputs, bias=False)

    return make


def drawn(seed, *words, rows=1, layers=(2, 3), kv=2, mesh=None):
    """A decoder's shape, its weights, the batches of three steps, and a trainer's options; "micro" is that of the
    whole mesh. rows: what the vocabulary is a multiple of. layers: from, to. kv: key/value heads. mesh: draw
    the number of micro-batches, never 4 in the whole; None: 4."""
    draw = Draw(seed, *words)
    # Rows that 4 ranks cannot share evenly: the first of them has one more (15.4).
    V = draw.size(16, 24, times=4) + 1 if rows == 1 else draw.size(2, 3, times=rows)
    # T, V from the seed; heads and widths so that every slice on 4 ranks is a multiple of 16, as FP8 wants
    shape: dict[str, Any] = dict(vocab_size=V, d_model=64, n_layers=draw.size(*layers), n_heads=4, n_kv_heads=kv)
    shape |= dict(d_ffn=draw.size(2, 3, times=64), max_seq_len=64)
    T = draw.size(9, 14)
    c = ModelConfig(**shape)
    weights = {}
    for name, size in c.weight_shapes().items():
        weights[name] = (
            1 + draw.normal(*size, scale=0.2) if len(size) == 1 else draw.normal(*size, scale=size[1] ** -0.5)
        )
    dp = (mesh or {}).get("dp", 1)
    micro = dp * (4 // dp + draw.size(1, 2)) if mesh else 4
    batches = [draw.ids(c.vocab_size, 2 * micro, T + 1) for _ in range(3)]

    def between(least, most):
        return least + (most - least) * draw.size(1, 999_999) / 1e6

    options = {"adam_eps": between(EPS, 2 * EPS), "weight_decay": between(0.3, 0.7), "clip_norm": 1.0, "micro": micro}
    return c, weights, batches, options | {"betas": (between(0.7, 0.85), between(0.8, 0.94))}


def rates(seed, *words, steps=3):
    """A learning rate for each step, all of them below LR."""
    draw = Draw(seed, "rates", *words)
    return [LR * draw.size(400_000, 900_000) / 1e6 for _ in range(steps)]


def clipped(clip, norm, name):
    """What a gradient is multiplied by."""
    return min(1.0, clip / norm) if clip else 1.0


def alone(c, weights, batches, options, fp8=False, dtype=torch.float32, factor=clipped, lrs=None, begun=0):
    """The same training in one process: losses (of the first step's micro-batches, too), norms, the first gradients,
    the weights at the end. dtype: what one step computes in. lrs: a step's each; None: LR. begun: steps that AdamW has
    counted before."""
    model = Transformer(c, linear=linear_for(fp8))
    model.load_state_dict(weights)
    model.to(dtype)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": options["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=options["betas"], eps=options["adam_eps"])
    for p in model.parameters() if begun else ():
        moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimizer.state[p] = {"step": torch.tensor(float(begun)), **moments}
    losses: list[float] = []
    norms: list[float] = []
    micro: list[float] = []
    first: dict[str, torch.Tensor] = {}
    for batch, lr in zip(batches, lrs or [LR] * len(batches)):
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = lr
        each = []
        for rows in batch.chunk(options["micro"]):
            loss = model(rows[:, :-1], rows[:, 1:])
            (loss / options["micro"]).backward()
            each.append(float(loss.detach()))
        micro = micro or each
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        first = first or {name: g.clone() for name, g in gradients.items()}
        norms.append(sum(float(g.double().square().sum()) for g in gradients.values()) ** 0.5)
        losses.append(sum(each) / len(each))
        for name, g in gradients.items():
            g.mul_(factor(options["clip_norm"], norms[-1], name))
        optimizer.step()
    after = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {"losses": losses, "micro": micro, "norms": norms, "gradients": first, "weights": after}


def own(name, whole, c, N, r):
    """Rank r's slice of a whole weight, of N tensor-parallel ranks."""
    last = name.split(".")[-2]
    if N == 1 or last.endswith("norm"):
        return whole
    if last in SPLIT["vocab"]:
        return whole.tensor_split(N)[r]
    if last in SPLIT["columns"]:
        return whole.chunk(N, 1)[r]
    if last in ("wk", "wv") and c.n_kv_heads < N:
        return whole.chunk(c.n_kv_heads)[r * c.n_kv_heads // N]
    return whole.chunk(N)[r]


def place(mesh, rank):
    """(pp, dp, tp) of a rank: tp varies fastest, then dp."""
    dp, tp = mesh.get("dp", 1), mesh.get("tp", 1)
    return rank // (dp * tp), rank // tp % dp, rank % tp


def far(got, want):
    """|got - want| / |want|; infinite where it is no tensor of this shape."""
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or not got.isfinite().all():
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-300))


def alike(got, want, mistakes, tol):
    """The causes whose answer `got` is, to `tol`: of `mistakes`, {cause: the answer of this mistake}, those that lie
    well apart from the right one."""
    return tuple(cause for cause, other in mistakes.items() if far(got, other) <= tol and far(other, want) > 8 * tol)


def number(got, want, mistakes, tol=TOL, **more):
    """As `same`, to rounding. mistakes(): {cause: the number of this mistake}, called if it is wrong."""
    causes = {}
    if isinstance(got, float) and not abs(got - want) <= tol * want:
        one = torch.tensor([got, want, *mistakes().values()], dtype=torch.float64)
        causes = dict.fromkeys(alike(one[0], one[1], dict(zip(mistakes(), one[2:])), tol), got)
    same(got, want, tol=tol * want, looks_like=causes, **more)


def setup(c, mesh, options, weights, **more):
    micro = options["micro"] // mesh.get("dp", 1)
    return {"model": c.model_dump(), **mesh, **options, "micro": micro, "weights": weights, **more}


def own_alone(c, mesh, options, weights, batches, **more):
    """[(batches, setup)] by rank. What is not this rank's holds other numbers: rows of other data-parallel ranks,
    slices of other tensor-parallel ranks, weights of other stages. So no rank can train the model by itself."""
    pp, dp, tp = (mesh.get(name, 1) for name in ("pp", "dp", "tp"))
    others = Draw(int(sum(batch.sum() for batch in batches)), "other numbers")
    found = []
    for rank in range(RANKS):
        stage, replica, r = place(mesh, rank)
        here = set(Transformer(c, layers=stage_layers(c, pp, stage)).state_dict())
        mine = {}
        for name, whole in weights.items():
            mine[name] = whole.mean() + whole.std() * others.normal(*whole.shape)
            if name in here:
                own(name, mine[name], c, tp, r).copy_(own(name, whole, c, tp, r))  # a view
        rows = []
        for batch in batches:
            rows.append(others.ids(c.vocab_size, *batch.shape))
            rows[-1].chunk(dp)[replica].copy_(batch.chunk(dp)[replica])
        found.append((rows, setup(c, mesh, options, mine, **more)))
    return found


def run(c, mesh, options, weights, batches, lrs, **more):
    each = own_alone(c, mesh, options, weights, batches, **more)
    return call("scenarios.trained", [(rows, values, lrs) for rows, values in each], timeout=40.0)


def activations(c, rows, options, itemsize=4):
    """Bytes of a micro-batch's activations."""
    return rows[: len(rows) // options["micro"], 1:].numel() * c.d_model * itemsize


def units(c, mesh, rank):
    """{unit: numbers} of a rank's slices: "root", where the stage has more than blocks, then the blocks by number."""
    stage, _, r = place(mesh, rank)
    found: dict[str, int] = {}
    for name, w in Transformer(c, layers=stage_layers(c, mesh.get("pp", 1), stage)).state_dict().items():
        at = name.split(".")[1] if name.startswith("layers.") else "root"
        found[at] = found.get(at, 0) + own(name, w, c, mesh.get("tp", 1), r).numel()
    return dict(sorted(found.items(), key=lambda one: -1 if one[0] == "root" else int(one[0])))


def least(c, mesh, rank, rows, steps, options, itemsize=4, wholes=0):
    """{dimension: bytes} that a rank sends in `steps` steps of training together on `rows` [B, T+1]. itemsize: of
    activations and gathered weights. wholes: how often the scenario makes all shards whole."""
    tp, dp, pp = (mesh.get(name, 1) for name in ("tp", "dp", "pp"))
    x, micro = activations(c, rows, options, itemsize), options["micro"] // dp
    stage, sizes = place(mesh, rank)[0], units(c, mesh, rank)
    first, last, layers = stage == 0, stage == pp - 1, len(sizes) - ("root" in sizes)
    # In zero 3 a block but the last one is gathered twice for a micro-batch; a gradient is of the shard's dtype.
    inner = 0 if mesh.get("zero") == 1 else sum(sizes.values()) - sizes["root"] - [*sizes.values()][-1]
    dp_bytes = (sum(sizes.values()) * (itemsize + 4) + inner * itemsize) * (1 if mesh.get("zero") == 1 else micro)
    return {
        # Of each half a sum forward and one backward; the embedding's, and the one in front of the head.
        "tp": 2 * (tp - 1) * (4 * layers + first + last) * micro * steps * x // tp,
        "dp": int((dp - 1) * (dp_bytes * steps + 4 * sum(sizes.values()) * wholes) / dp),
        "pp": (2 - first - last) * micro * steps * x if pp > 1 else 0,
    }


def sent_in(ledger, name):
    """Bytes that a rank sent in its group of this name."""
    return ring_bytes(ledger, [event for event in ledger.events if event.group == name])


def together(ledgers, c, mesh, rows, steps, options, itemsize=4, wholes=0, exact=False):
    """Pass if each rank sent what training together takes in each dimension. Who gathers all weights and rows, and
    trains alone, sends other bytes. exact: and no more, but for a tenth: loss and padding. What a pipeline sends may
    be float32."""
    for ledger in ledgers:
        for name, nbytes in least(c, mesh, ledger.rank, rows, steps, options, itemsize, wholes).items():
            most = 1.1 * nbytes * (4 // itemsize if name == "pp" else 1)
            expect(
                nbytes <= (sent := sent_in(ledger, name)) and (sent <= most or not exact),
                f"rank {ledger.rank} sent {sent} bytes in its group {name!r}; training together takes {nbytes}",
                known=True,
            )
