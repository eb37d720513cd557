"""The faults of the study (studies.alarms.study), put in from outside: hooks of the loop, and a corpus."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.model.decoder import RMSNorm
from labkit.train.loop import Hook, Loop

LAYER = "layers.1.ffn.w1"  # what grows
EARLY = 2  # the step whose scales come back


class Fault(Hook):
    """Does to a training what `trial` says, from its step on. scales: those of step EARLY, filled by the clean run."""

    def __init__(self, trial: Any, backend: Any, scales: dict[str, dict[str, Tensor]]) -> None:
        self.trial, self.backend, self.scales = trial, backend, scales

    def before_step(self, loop: Loop) -> None:
        fault, on = self.trial.fault, loop.step >= self.trial.begin
        for name, linear in self.backend.modules.items():
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
            self.scales.update({name: dict(linear.frozen) for name, linear in self.backend.modules.items()})
        if loop.step < self.trial.begin:
            return
        weights = dict(loop.model.named_parameters())
        if self.trial.fault == "growth":
            weights[f"{LAYER}.weight"].mul_(1.04 + 0.06 * self.trial.strength)
        if self.trial.fault == "epsilon":
            weights["tok_embed.weight"].mul_(0.9 - 0.2 * self.trial.strength)


class States(Hook):
    """Keeps a run's weights and moments from before these steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps
        self.at: dict[int, dict[str, Any]] = {}

    def before_step(self, loop: Loop) -> None:
        if loop.step in self.steps:
            state = {"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}
            self.at[loop.step] = copy.deepcopy(state)


class Branch(Hook):
    """Takes a run up where `States` kept another, before step `begin`; and ends it once `over(step lines so far)`."""

    def __init__(self, state: dict[str, Any], begin: int, over: Callable[[list[dict[str, Any]]], bool]) -> None:
        self.state, self.begin, self.over = state, begin, over

    def on_start(self, loop: Loop) -> None:
        loop.model.load_state_dict(self.state["model"])
        loop.optimizer.load_state_dict(copy.deepcopy(self.state["optimizer"]))
        loop.step = self.begin - 1

    def before_step(self, loop: Loop) -> None:
        lines: Any = loop.record
        if self.over(lines.lines):
            loop.stop("the harm is done")


class RandomTokens:
    """A corpus in which the training batches of some steps are random tokens."""

    def __init__(self, corpus: Any, begin: int, steps: int, vocab: int) -> None:
        self.corpus, self.begin, self.end, self.vocab, self.hash = corpus, begin, begin + steps, vocab, corpus.hash

    def batch(self, step: int, batch_size: int, seq_len: int, seed: int, split: str = "train") -> Tensor:
        right = self.corpus.batch(step, batch_size, seq_len, seed, split)
        if split != "train" or not self.begin <= step < self.end:
            return right
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return torch.randint(0, self.vocab, right.shape, generator=draw)


class Kept:
    """Keeps the lines in memory, in a RunRecord's place."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def step(self, **fields: Any) -> None:
        self.lines.append(fields)

    def event(self, kind: str, step: int | None = None, message: str = "", **_: Any) -> None:
        self.events.append({"kind": kind, "step": step, "message": message})
