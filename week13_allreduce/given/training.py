"""What an all-reduce is for: the course's decoder, trained on four ranks that add up their gradients.

Every rank has the whole model, from the same seed, and its own quarter of every batch. After the backward pass all
gradients are laid into one vector, reduced over the ranks, and laid back. Then every rank makes the same step:

    g_r = gradient of the mean loss over rank r's B/N sequences         [P] on every rank
    g   = 1/N * (g_0 + ... + g_(N-1))                                   [P], the gradient of the mean loss over all B

The parts are equally large, so the mean of the ranks' mean losses is the mean loss over the batch: N ranks do what one
rank does with all B sequences, apart from the order of additions.

The text is this Python's own source (three modules of its standard library), byte by byte: a vocabulary of 256.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labkit.comm.ranks import run_ranks
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights
from labkit.record.plotting import WIDTH, Picture, Style, folder_or_temp, label_ends, save, styled

MODULES = ("argparse", "inspect", "typing")  # their source is the text
MODEL = ModelConfig(
    vocab_size=256, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=96, max_seq_len=48, tie_embeddings=True
)
BATCH, STEPS = 16, 40
RATES = {"adamw": 3e-3, "sgd": 0.1}


class Run(NamedTuple):
    """losses   the mean loss over the whole batch, before each step
    apart    the largest difference of a weight between any rank's model and rank 0's, after each step
    """

    losses: list[float]
    apart: list[float]


def train(
    reduce: Callable[[torch.Tensor, Any], Any] | None = None,
    ranks: int = 4,
    optimizer: str = "adamw",
    steps: int = STEPS,
    seed: int = 0,
) -> Run:
    """Train on `ranks` ranks (threads). reduce(gradients, group), in place: the mean over the ranks of one vector with
    all gradients; None where there is one rank. optimizer: "adamw" or "sgd"."""
    text = _text()
    torch.manual_seed(seed)
    start = Transformer(MODEL)
    init_weights(start, seed)
    weights = {name: value.clone() for name, value in start.state_dict().items()}
    place = torch.Generator().manual_seed(seed)
    last = len(text) - MODEL.max_seq_len - 1
    begins = torch.randint(last, (steps, BATCH), generator=place)  # the same for any number of ranks

    def job(group) -> tuple[list[float], list[torch.Tensor]]:
        model = Transformer(MODEL)
        model.load_state_dict(weights)
        weight = list(model.parameters())
        step_of: torch.optim.Optimizer = (
            torch.optim.AdamW(weight, lr=RATES[optimizer])
            if optimizer == "adamw"
            else torch.optim.SGD(weight, lr=RATES[optimizer])
        )
        losses, ends = [], []
        for begin in begins:
            own = begin.tensor_split(group.size)[group.rank]
            tokens = torch.stack([text[at : at + MODEL.max_seq_len + 1] for at in own.tolist()])  # [B/N, T+1]
            loss = model(tokens[:, :-1], tokens[:, 1:])
            step_of.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if reduce is not None:
                vector = torch.cat([w.grad.flatten() for w in weight if w.grad is not None])  # [P]
                reduce(vector, group)
                for w, part in zip(weight, vector.split([w.numel() for w in weight])):
                    w.grad = part.view_as(w)
            step_of.step()
            ends.append(torch.cat([w.detach().flatten() for w in weight]))
        return losses, ends

    by_rank = run_ranks(job, size=ranks, backend="threads", timeout=120.0)
    losses = [sum(values) / ranks for values in zip(*(losses for losses, _ in by_rank))]
    apart = [max((w - same[0]).abs().max().item() for w in same) for same in zip(*(ends for _, ends in by_rank))]
    return Run(losses, apart)


def but_one_chunk(all_reduce: Callable[..., Any], missing: int = 2) -> Callable[[torch.Tensor, Any], None]:
    """`all_reduce` with a fault: chunk `missing` of the gradients stays each rank's own."""

    def faulty(vector: torch.Tensor, group) -> None:
        own = vector.tensor_split(group.size)[missing].clone()
        all_reduce(vector, group, "mean")
        vector.tensor_split(group.size)[missing].copy_(own)

    return faulty


def _text() -> torch.Tensor:
    """int64 [characters]; the modules' source as bytes."""
    found = [importlib.util.find_spec(name) for name in MODULES]
    data = b"".join(Path(spec.origin).read_bytes() for spec in found if spec is not None and spec.origin)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


# ---- what came of it

STYLES = (
    Style("#005a9c", "-", "o", ""),
    Style("#b34700", (0, (5, 1.6)), "D", ""),
    Style("#007a63", (0, (3, 1.2, 1, 1.2)), "^", ""),
    Style("#a11212", (0, (1.2, 1.4)), "X", ""),
)


def as_text(runs: Mapping[str, Run]) -> str:
    """Runs beside the first of them, as text: the last loss, the largest gap on the way, and how far ranks drifted."""
    first = next(iter(runs.values())).losses
    lines = [f"{'':24s} last loss   largest gap to the first   ranks apart at the end"]
    for name, run in runs.items():
        gap = max(abs(a - b) for a, b in zip(run.losses, first))
        lines.append(f"{name:24s} {run.losses[-1]:9.4f}   {gap:22.1e}   {run.apart[-1]:20.1e}")
    return "\n".join(lines)


def curves(panels: Mapping[str, Mapping[str, Run]], folder: Path | None = None) -> Picture:
    """Loss against steps: a panel for each entry, {title: {name: run}}."""
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 3.1)
        axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        top = max(run.losses[0] for runs in panels.values() for run in runs.values())
        for ax, (title, runs) in zip(axes, panels.items()):
            for k, ((name, run), style) in enumerate(zip(runs.items(), STYLES)):
                ax.plot(range(len(run.losses)), run.losses, **style.marks(len(run.losses), shift=2 * k, most=7))
                words.append(f"{title}, {name}: {run.losses[-1]:.3g}")
            ax.set(title=title, xlabel="step", ylim=(None, 1.05 * top))
        axes[0].set_ylabel("loss of the batch")
        fig.tight_layout(pad=0.5, rect=(0, 0, 0.83, 1), w_pad=9)
        for ax, runs in zip(axes, panels.values()):
            ends = [(len(r.losses) - 1, r.losses[-1], name, s.color) for (name, r), s in zip(runs.items(), STYLES)]
            label_ends(ax, ends, size=7.8)
        return save(
            fig,
            folder_or_temp(folder),
            "curves",
            "Trained by your ring",
            f"Loss of a small decoder against steps. At the end: {'; '.join(words)}.",
            "Curves that coincide have their marks at different steps.",
        )
