"""Many runs of one small decoder trained as one: the same data and the same steps, each run with weights of its own.

Weights have a first dimension of R; every sum goes along one run's rows, features or positions.

Shape suffixes: R runs, N rows (B sequences of T tokens), D and F features, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model.decoder import RMSNorm, Transformer, init_weights, perturb
from labkit.precision.broken import Backward, Forward
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import Corpus
from labkit.train.loop import HELDOUT_SEED
from labkit.train.optim import learning_rate
from studies.verdict.faults import Fault, Rounding


class Linear(nn.Module):
    """R linears. rounding: None is BF16."""

    def __init__(self, runs: int, features: tuple[int, int], rounding: Rounding | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(runs, features[1], features[0]))
        self.rounding = rounding

    def forward(self, x: Tensor) -> Tensor:
        x_RND = x.reshape(len(self.weight), -1, x.shape[-1])
        w_RFD = self.weight.bfloat16()
        if self.rounding:
            x_RND, w_RFD = Forward.apply(x_RND, self, "input"), Forward.apply(w_RFD, self, "weight")
        y_RNF = x_RND @ w_RFD.transpose(1, 2)
        return (Backward.apply(y_RNF, self) if self.rounding else y_RNF).view(*x.shape[:-1], -1)

    def rounded(self, slot: str, x: Tensor) -> Tensor:
        assert self.rounding
        return self.rounding.rounded(slot, x, self.training)


class Embedding(nn.Module):
    def __init__(self, runs: int, entries: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(runs, entries, features))

    def forward(self, tokens: Tensor) -> Tensor:
        runs, entries, _ = self.weight.shape
        first = torch.arange(runs).repeat_interleave(len(tokens) // runs)[:, None] * entries
        return F.embedding(tokens + first, self.weight.bfloat16().flatten(0, 1))


class Norm(nn.Module):
    def __init__(self, runs: int, features: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(runs, features)), eps

    def forward(self, x: Tensor) -> Tensor:
        unit = F.rms_norm(x, x.shape[-1:], None, self.eps)
        return (unit.view(len(self.weight), -1, x.shape[-1]) * self.weight.bfloat16()[:, None]).view_as(x)


class Losses(nn.Module):
    """The mean loss of each run, [R], FP32."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self.runs = runs

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        return each.view(self.runs, -1).mean(1)


def stacked(config: TrainConfig, fault: Fault | None, seeds: list[int]) -> Transformer:
    """Build one decoder that is len(seeds) decoders: the same first weights, moved by `config.perturb` with each seed."""
    shape, runs = config.resolved_model, len(seeds)

    def linear(name: str, wide: int, out: int) -> nn.Module:
        if fault is None or name == "head":
            return Linear(runs, (wide, out), None)
        block = int(name.split(".")[1])
        return Linear(runs, (wide, out), Rounding(fault if block < fault.blocks else Fault("none")))

    model = Transformer(shape, linear=linear, embedding=lambda entries, wide: Embedding(runs, entries, wide))
    for name, module in list(model.named_modules()):
        if isinstance(module, RMSNorm):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Norm(runs, shape.d_model, shape.norm_eps))
    model.criterion = Losses(runs)  # type: ignore[assignment]  # in its place, with a loss for each run
    weights = dict(model.named_parameters())
    for run, seed in enumerate(seeds):
        single = perturb(init_weights(Transformer(shape), config.seed), config.perturb, seed)
        for name, weight in single.named_parameters():
            weights[name].data[run] = weight.detach()
    return model


def train_together(
    config: TrainConfig, corpus: Corpus, fault: Fault | None, seeds: list[int]
) -> list[dict[int, float]]:
    """Train; return {step: held-out loss} of each run. Clipping, AdamW and schedule are labkit.train's, run by run."""
    model = stacked(config, fault, seeds)
    weights, runs = list(model.parameters()), len(seeds)
    matrices = [weight for weight in weights if weight.ndim == 3]
    vectors = [weight for weight in weights if weight.ndim == 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.adam_eps)
    out: list[dict[int, float]] = [{} for _ in seeds]
    for step in range(1, config.steps + 1):
        tokens = corpus.batch(step, config.batch_size, config.seq_len, config.seed).repeat(runs, 1)
        model(tokens[:, :-1], tokens[:, 1:]).sum().backward()
        clip(weights, config.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        if step % config.eval_every == 0 or step == config.steps:
            for run, loss in enumerate(evaluate(model, config, corpus, runs)):
                out[run][step] = loss
    return out


@torch.no_grad()
def clip(weights: list[nn.Parameter], most: float) -> None:
    """Scale each run's gradients to a common norm of at most `most`. Gradients that are not finite stay NaN."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norm_R = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    factor_R = (most / norm_R).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor_R.view(-1, *[1] * (gradient.ndim - 1)))


@torch.no_grad()
def evaluate(model: Transformer, config: TrainConfig, corpus: Corpus, runs: int) -> list[float]:
    """Return the mean held-out loss of each run, over the batches that labkit.train.loop takes."""
    model.eval()
    total = torch.zeros(runs, dtype=torch.float64)
    for index in range(config.eval_batches):
        tokens = corpus.batch(index, config.batch_size, config.seq_len, HELDOUT_SEED, "heldout").repeat(runs, 1)
        total += model(tokens[:, :-1], tokens[:, 1:])
    model.train()
    return (total / config.eval_batches).tolist()
