"""The faults of the study (studies.alarms.study), put in from outside: a hook of the loop, and a corpus."""

from typing import Any

import torch
from torch import Tensor

from labkit.model.decoder import RMSNorm
from labkit.train.loop import Hook, Loop

LAYER = "layers.1.ffn.w1"  # what grows
EARLY = 2  # the step whose scales come back


class Fault(Hook):
    """Does to a training what `trial` says, from its step on."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.scales: dict[str, dict[str, Tensor]] = {}  # of step EARLY

    def on_start(self, loop: Loop) -> None:
        if self.trial.fault == "batch":
            loop.corpus = RandomTokens(loop.corpus, self.trial)  # type: ignore[assignment]  # in its place

    def before_step(self, loop: Loop) -> None:
        fault, on = self.trial.fault, loop.step >= self.trial.begin
        for name, linear in loop.backend.modules.items():
            linear.frozen.clear()  # so that the next forward finds its scales anew
            if on and fault == "stale":
                times = 2.0 ** (1 + 2 * self.trial.strength)
                linear.frozen.update({slot: scale * times for slot, scale in self.scales[name].items()})
        if on and fault == "rate":
            loop.lr *= 10
        if on and fault == "epsilon":
            for module in loop.model.modules():
                if isinstance(module, RMSNorm):
                    module.eps = 0.0

    @torch.no_grad()
    def after_step(self, loop: Loop) -> None:
        if loop.step == EARLY:
            self.scales = {name: dict(linear.frozen) for name, linear in loop.backend.modules.items()}
        if loop.step < self.trial.begin:
            return
        weights = dict(loop.model.named_parameters())
        if self.trial.fault == "growth":
            weights[f"{LAYER}.weight"].mul_(1.04 + 0.06 * self.trial.strength)
        if self.trial.fault == "epsilon":
            weights["tok_embed.weight"].mul_(0.9 - 0.2 * self.trial.strength)


class RandomTokens:
    """A corpus in which the training batches of some steps are random tokens."""

    def __init__(self, corpus: Any, trial: Any) -> None:
        self.corpus, self.begin, self.end = corpus, trial.begin, trial.begin + 4 + int(36 * trial.strength)

    def batch(self, step: int, batch_size: int, seq_len: int, seed: int, split: str = "train") -> Tensor:
        right = self.corpus.batch(step, batch_size, seq_len, seed, split)
        if split != "train" or not self.begin <= step < self.end:
            return right
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return torch.randint(0, self.corpus.vocab_size, right.shape, generator=draw)
