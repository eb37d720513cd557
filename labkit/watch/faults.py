"""The faults of the study (labkit.watch.study), put in from outside: hooks of the loop, and a corpus."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.model.decoder import RMSNorm
from labkit.train.loop import Hook, Loop

LAYER = "layers.1.ffn.w1"


class Fault(Hook):
    """Does to a training what `trial` says, from its step on. A clean one's scales are right at every step."""

    def __init__(self, trial: Any, backend: Any) -> None:
        self.trial, self.backend = trial, backend

    def before_step(self, loop: Loop) -> None:
        fault, on = self.trial.fault, loop.step >= self.trial.begin
        if not (fault == "stale" and on):
            for linear in self.backend.modules.values():
                linear.frozen.clear()  # so that the next forward finds its scales anew
        if on and fault in ("rate", "stale"):
            loop.lr *= 10 if fault == "rate" else 3
        if on and fault == "epsilon":
            for module in loop.model.modules():
                if isinstance(module, RMSNorm):
                    module.eps = 0.0

    @torch.no_grad()
    def after_step(self, loop: Loop) -> None:
        if loop.step < self.trial.begin:
            return
        weights = dict(loop.model.named_parameters())
        if self.trial.fault == "growth":
            weights[f"{LAYER}.weight"].mul_(1.02 + 0.08 * self.trial.strength)
        if self.trial.fault == "epsilon":
            weights["tok_embed.weight"].mul_(0.9 - 0.2 * self.trial.strength)


class RandomTokens:
    """A corpus of which the training batches of some steps are random tokens."""

    def __init__(self, corpus: Any, begin: int, steps: int, vocab: int) -> None:
        self.corpus, self.begin, self.end, self.vocab, self.hash = corpus, begin, begin + steps, vocab, corpus.hash

    def batch(self, step: int, batch_size: int, seq_len: int, seed: int, split: str = "train") -> Tensor:
        right = self.corpus.batch(step, batch_size, seq_len, seed, split)
        if split != "train" or not self.begin <= step < self.end:
            return right
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return torch.randint(0, self.vocab, right.shape, generator=draw)


class Kept:
    """Stands in a RunRecord's place, and keeps the lines in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def step(self, **fields: Any) -> None:
        self.lines.append(fields)

    def event(self, kind: str, step: int | None = None, message: str = "", **_: Any) -> None:
        self.events.append({"kind": kind, "step": step, "message": message})
