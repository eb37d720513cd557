# ruff: noqa: F821
# mypy: ignore-errors
# In place of the reference's Trainer and of what follows: every rank trains the whole model on the whole batch.
GATHERS = False  # first each rank is given the others' slices and rows


def gathered(weights, c, setup, group):
    """All weights, of which each rank has its own slices."""
    every = {name: group.all_gather(w[None].contiguous()) for name, w in weights.items()}
    found = {name: w.clone() for name, w in weights.items()}
    for rank in range(group.size):
        stage, r = rank // (setup.dp * setup.tp), rank % setup.tp
        for name in Transformer(c, layers=stage_layers(c, setup.pp, stage)).state_dict():
            slice_of(name, found[name], c, setup.tp, r).copy_(slice_of(name, every[name][rank], c, setup.tp, r))
    return found


class Says:
    """In a group's place: a gather gives what is known already."""

    def __init__(self, whole):
        self.all_gather = whole


class Unit:
    pass


def slice_of(name, w, c, N, r):
    last = name.split(".")[-2]
    if N == 1 or last.endswith("norm"):
        return w
    if last in ("tok_embed", "head"):
        return w.tensor_split(N)[r]
    if last in ("wo", "w2"):
        return w.chunk(N, 1)[r]
    if last in ("wk", "wv") and c.n_kv_heads < N:
        return w.chunk(c.n_kv_heads)[r * c.n_kv_heads // N]
    return w.chunk(N)[r]


class Trainer:
    kind = "weight"

    def __init__(self, setup, mesh):
        self.setup, self.mesh, self.report, c = setup, mesh, {}, setup.model
        self.one, self.model = Transformer(c), nn.Module()
        if setup.weights is not None:
            weights = gathered(setup.weights, c, setup, mesh.group) if GATHERS else dict(setup.weights)
            self.one.load_state_dict(weights)
        self.params, tp = dict(self.one.named_parameters()), mesh["tp"]
        groups = [
            {"params": [p for p in self.params.values() if p.dim() > 1], "weight_decay": setup.weight_decay},
            {"params": [p for p in self.params.values() if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.opt = torch.optim.AdamW(groups, lr=0.1, betas=setup.betas, eps=setup.adam_eps)
        by_unit = {}
        for n in Transformer(c, layers=stage_layers(c, setup.pp, mesh["pp"].rank)).state_dict():
            by_unit.setdefault(n.split(".")[1] if n.startswith("layers.") else "root", []).append(n)
        self.names, self.units, self.optimizer = {}, [], Unit()
        for at in sorted(by_unit, key=lambda at: -1 if at == "root" else int(at)):
            u, names = Unit(), by_unit[at]
            u.params = [nn.Parameter(slice_of(n, self.params[n].detach(), c, tp.size, tp.rank).clone()) for n in names]
            self.names.update(zip(u.params, names))
            u.S, u.full = -(-sum(q.numel() for q in u.params) // mesh["dp"].size), torch.empty(0)
            u.shard = nn.Parameter(torch.zeros(u.S))
            u.group = Says(lambda x, names=names: self.vector(names))
            self.units.append(u)
        self.optimizer.m = [torch.zeros(u.S) for u in self.units]
        self.optimizer.v = [torch.zeros(u.S) for u in self.units]

    def vector(self, names):
        c, tp, found = self.setup.model, self.mesh["tp"], []
        for n in names:
            p = self.params[n]
            found.append(slice_of(n, (p.grad if self.kind == "grad" else p).detach(), c, tp.size, tp.rank).reshape(-1))
        return torch.cat(found)

    def gradients(self, rows):
        self.opt.zero_grad()
        total = 0.0
        for some in rows.chunk(4):
            loss = self.one(some[:, :-1], some[:, 1:]) / 4
            loss.backward()
            total += float(loss.detach())
        for u in self.units:
            u.shard.grad = torch.zeros(u.S)
        return total

    def step(self, rows, lr, allow=lambda vitals: True):
        loss = self.gradients(rows)
        bad = float(any(not u.shard.grad.isfinite().all() for u in self.units))
        bad = self.mesh.group.all_reduce(torch.tensor([bad])).item()  # the only message
        norm = sum(float(p.grad.double().square().sum()) for p in self.params.values()) ** 0.5
        vitals = Vitals(math.nan, math.nan, False) if bad else Vitals(loss, norm, True)
        self.kind = "grad"
        go = allow(vitals) and vitals.finite
        self.kind = "weight"
        if go:
            for p in self.params.values():
                p.grad.mul_(min(1.0, (self.setup.clip_norm or norm) / norm))
            for group in self.opt.param_groups:
                group["lr"] = lr
            self.opt.step()
        for u in self.units:
            u.shard.data.add_(float(go))
            u.shard.grad = None
        return vitals


def assemble(setup, group):
    setup.refuse(group.size)
    return Trainer(setup, mesh_of(group, setup))


def data_of(trainer, batch):
    index, count = trainer.mesh.data_share
    return trainer.mesh["dp"].all_gather(batch.chunk(count)[index].contiguous()) if GATHERS else batch
