"""What a training run has to show: while it runs, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """What a run has done so far. Survives a resume; the same on every rank."""

    losses: dict[int, float] = field(default_factory=dict)  # step: mean training loss
    heldout: dict[int, float] = field(default_factory=dict)  # step: held-out loss
    skipped: list[int] = field(default_factory=list)  # steps without an update
    fp8_steps: int = 0  # steps whose linears computed in FP8
    tokens: int = 0  # read by all ranks, targets counted once
    seconds: float = 0.0  # training alone

    def add(self, step: int, loss: float, tokens: int, seconds: float, in_fp8: bool) -> None:
        """Note a step that was done."""
        self.losses[step] = loss
        self.fp8_steps += in_fp8
        self.tokens += tokens
        self.seconds += seconds


@dataclass
class TrainResult(History):
    """What `train` returns, on every rank the same."""

    steps: int = 0  # the last step done
    resumed_from: int = 0  # the checkpoint's step; 0: from the beginning
    stopped: str | None = None  # why, if before config.steps
    paused: bool = False  # stopped for a time: to be taken up again
    tokens_per_s: float | None = None  # over all ranks; median step, after the first two
    peak_bytes: list[int] = field(default_factory=list)  # of each rank
