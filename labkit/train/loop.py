"""The one training loop: on a laptop, on one GPU, on eight.

One step, from top to bottom of `Loop.run`:

    precision  the phase of the schedule, if there is one: BF16 or FP8; `calibrate` passes to find scales where FP8 begins
    batch      B sequences that depend on (seed, step) alone; each rank takes B/N rows, in `accumulation` micro-batches
    gradients  forward under the precision backend's autocast, backward outside it, summed over the micro-batches; in
               FP16 of a scaled loss, and divided by its scale afterwards (labkit.train.loss_scale)
    check      all ranks agree: are loss and gradients finite? One all-reduce (labkit.train.health)
    update     clip, AdamW; or, if the check failed, neither: the step is skipped, the event recorded, and after several
               in a row the run does what [recovery] says (labkit.train.recovery)
    evaluate   every `eval_every` steps, on held-out batches that are the same at every evaluation of every run
    record     one line into steps.jsonl, by rank 0

What makes runs comparable. The loss is a mean over equal parts, so neither the number of ranks nor `accumulation`
changes what is computed, only the order of the additions. FSDP2 averages gradients over ranks by itself, in FP32: those
of each micro-batch, so that no rank ever holds a whole gradient, or with `reduce_once` their sum.

Time is taken in the check: from one to the next lies exactly one update and one forward and backward. Steps count from
1; step k's loss is that of the weights before its update, its held-out loss that of those after it.

**Hooks.** What takes part in training without editing the loop is a subclass of `Hook`; the loop calls its methods:

    on_start
    every step:   before_step
                  (around_micro: forward, backward) x accumulation
                  after_backward            -> the loop checks, clips and updates
                  after_step                -> the loop evaluates, if it is time
                  after_eval, if it did     -> the loop writes the step's line, and a checkpoint, if it is time
    on_end

Every rank calls the same hooks in the same places, so a hook may communicate, and then must do so on every rank. What
steers the run (`loop.stop`, a changed learning rate) must be decided alike on every rank: on numbers that are the same
everywhere, such as `loop.vitals`, or after agreeing (`labkit.train.health.agree`).
"""

import logging
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm.group import Group
from labkit.errors import LabError
from labkit.parallel.shard import expect_more, release
from labkit.precision.phases import PrecisionSchedule
from labkit.record import measure
from labkit.record.run import RunRecord
from labkit.train import health
from labkit.train.checkpoint import Checkpoints
from labkit.train.config import TrainConfig
from labkit.train.data.corpus import Corpus, micro_batches, rows_per_micro_batch
from labkit.train.history import Clock, History, TrainResult
from labkit.train.loss_scale import LossScale
from labkit.train.optim import MasterAdamW, adamw, learning_rate, set_learning_rate
from labkit.train.recovery import LOWER, ROLL_BACK, SKIP, Recovery, row_of

HELDOUT_SEED = 0  # not the run's: every run is judged on the same text
log = logging.getLogger("labkit.train")


@dataclass(frozen=True)
class Parts:
    """What takes part in a training beside its configuration and its text."""

    # `model(tokens_BT, targets_BT)` gives the mean loss. Sharded (labkit.parallel.shard) or not; if it is not, and there
    # are several ranks, a hook must average the gradients (after_backward).
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None  # None: AdamW as configured
    backend: Any = None  # the precision backend whose `convert` made the model's linears
    hooks: "Iterable[Hook]" = ()
    record: RunRecord | None = None  # rank 0's: step lines and events
    # (index, count) of the equal parts of the batch, if ranks do not each take one: all ranks of a tensor-parallel group
    # give the same.
    data_share: tuple[int, int] | None = None


def train(
    group: Group,
    config: TrainConfig,
    corpus: Corpus,
    parts: Parts,
    *,
    run_dir: str | Path | None = None,
    resume: bool = True,
) -> TrainResult:
    """Train `parts.model` for `config.steps` steps; all ranks call this together and get the same result.

    run_dir: where checkpoints go, or None. resume: go on from its newest whole checkpoint. LabError: the batch does not
    divide, the disk is full, no checkpoint can be used, or one of another configuration; rollback_after, no run_dir.
    """
    if config.recovery.rollback_after and run_dir is None:
        raise LabError("[recovery] rollback_after goes back to a checkpoint: give the run a folder to write them to")
    loop = Loop(group, config, corpus, parts)
    if run_dir is not None:
        checkpoints = Checkpoints(
            Path(run_dir) / "checkpoints",
            group,
            config=config,
            data_hash=getattr(corpus, "hash", None),
            precision=loop.schedule.flags,
            say=loop.say,
        )
        if resume:
            loop.resume(checkpoints)
        else:
            checkpoints.refuse_existing()
        loop.checkpoints = checkpoints if config.checkpoint_every else None
    return loop.run()


class Hook:
    """Does nothing. Override what you need. What `state_dict` returns goes into every checkpoint, rank by rank."""

    def on_start(self, loop: "Loop") -> None:
        """Once, after a resume if there was one, before the first step."""

    def before_step(self, loop: "Loop") -> None:
        """`loop.step` and `loop.lr` are the coming step's; a changed `loop.lr` is used."""

    def around_micro(self, loop: "Loop") -> AbstractContextManager:
        """Entered before each forward and left after its backward. `loop.micro` counts from 0."""
        return nullcontext()

    def after_backward(self, loop: "Loop") -> None:
        """The gradients of the whole step are there, summed over micro-batches, not yet checked or clipped."""

    def after_step(self, loop: "Loop") -> None:
        """The update was made, or refused (`loop.skipped`). `loop.fields` go into the step's line."""

    def after_eval(self, loop: "Loop") -> None:
        """`loop.history.heldout[loop.step]` is new."""

    def on_end(self, loop: "Loop") -> None:
        """Once, after the last step, also when stopped early. Not after an exception."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After a resume, and whenever the run has gone back to a checkpoint."""


class Loop:
    """One training run, as hooks see it; vitals: this step's loss and gradient norm, fields: go into its line."""

    def __init__(self, group: Group, config: TrainConfig, corpus: Corpus, parts: Parts) -> None:
        self.group, self.config, self.corpus, self.model = group, config, corpus, parts.model
        self.record, self.backend, self.hooks = parts.record, parts.backend, list(parts.hooks)
        self.optimizer = parts.optimizer or adamw(parts.model, config, parts.backend)
        self.autocast = self.backend.autocast if self.backend is not None else nullcontext
        share = parts.data_share or (group.rank, group.size)
        size = rows_per_micro_batch(config.batch_size, config.accumulation, share[1])
        self.split = partial(micro_batches, share=share, micro_batch_size=size, device=group.device)
        self.tokens = config.batch_size * config.seq_len  # of a step
        self.schedule = PrecisionSchedule(config.precision.schedule, config.steps, self.backend)
        self.recovery = Recovery(config.recovery)
        self.loss_scale = LossScale(config.precision.scaled_loss)
        self.step, self.micro, self.lr, self.resumed_from = 0, 0, 0.0, 0
        self.vitals: health.Vitals
        self.skipped, self.paused, self.action = False, False, SKIP
        self.stopped: str | None = None
        self.fields: dict[str, Any] = {}
        self.seconds: list[float] = []
        self.history, self.clock = History(), Clock(group.device)
        self.checkpoints: Checkpoints | None = None

    def run(self) -> TrainResult:
        config = self.config
        measure.reset_peak(self.group.device)
        self.model.train()
        self._call("on_start")
        self.clock.lap()
        while self.step < config.steps and self.stopped is None:
            self.step += 1
            self.lr, self.fields, self.skipped = learning_rate(config, self.step) * self.recovery.rate, {}, False
            self._enter_phase()
            if config.precision.calibrate and self.schedule.begins(self.step):
                self._calibrate(config.precision.calibrate)
            self._call("before_step")

            loss = self._gradients()
            self._call("after_backward")

            check = health.check(loss, self.model, self.group, self._peak())
            if config.norms_every and self.step % config.norms_every == 0:
                with self.clock.pause("norms"):
                    held = {"held": self.optimizer.held} if isinstance(self.optimizer, MasterAdamW) else {}
                    self.fields |= health.norms(self.model, self.group, **held)
            set_learning_rate(self.optimizer, self.lr)
            self.vitals = check.update(self.model, self.optimizer, config.clip_norm)
            self.seconds.append(self.clock.lap())
            if self.loss_scale.active:
                self.fields["loss_scale"] = self.loss_scale.value
            fell = self.loss_scale.follow(self.vitals.finite)
            if not self.vitals.finite:
                self._refuse_step(fell)
            self.optimizer.zero_grad(set_to_none=True)

            self.history.add(self.step, self.vitals.loss, self.tokens, self.seconds[-1], self.schedule.in_fp8())
            self._call("after_step")
            if self.skipped and self.action == ROLL_BACK and self.stopped is None and self._roll_back():
                continue
            if config.eval_every and (self.step % config.eval_every == 0 or self.step == config.steps):
                with self.clock.pause("evaluation"):
                    self.history.heldout[self.step] = self.fields["heldout"] = val_loss = self.evaluate()
                    if not math.isfinite(val_loss):
                        self.say("nonfinite", self.step, f"the held-out loss is {val_loss}")
                    self._call("after_eval")
            self._write_line()
            last = self.stopped or (self.step == config.steps and config.checkpoint_at_end)
            doubtful = self.skipped and config.recovery.rollback_after  # not to be gone back to
            if self.checkpoints and (last or (self.step % config.checkpoint_every == 0 and not doubtful)):
                with self.clock.pause("checkpoint"):
                    parts = {name: part.state_dict() for name, part in self._stateful().items()}
                    own = {"history": asdict(self.history), "parts": parts, "recovery": self.recovery.state()}
                    self.checkpoints.save(self.step, self.model, self.optimizer, own)
        self._call("on_end")
        peaks = torch.zeros(self.group.size, dtype=torch.float64, device=self.group.device)
        peaks[self.group.rank] = self._peak()
        self.group.all_reduce(peaks)
        return TrainResult(
            **asdict(self.history),
            steps=self.step,
            resumed_from=self.resumed_from,
            stopped=self.stopped,
            paused=self.paused,
            tokens_per_s=measure.throughput(self.seconds, self.tokens, warmup=2).tokens_per_s,
            peak_bytes=[int(p) for p in peaks.tolist()],
            recovery=self.recovery.state(),
        )

    def _gradients(self) -> Tensor:
        """Forward and backward of this rank's part of the batch. Returns its mean loss, a scalar on the device."""
        number = self.step + self.recovery.shift
        tokens = self.corpus.batch(number, self.config.batch_size, self.config.seq_len, self.config.seed)
        total = torch.zeros((), device=self.group.device)
        for micro, (inputs_BT, targets_BT) in enumerate(self.split(tokens)):
            self.micro = micro
            if self.config.reduce_once:
                more = micro + 1 < self.config.accumulation
                expect_more(self.model, more, keep_weights=not self.config.reshard_after_forward)
            with ExitStack() as around:
                for hook in self.hooks:
                    around.enter_context(hook.around_micro(self))
                # Every `probe_every` steps, this rank's first micro-batch shows the scales of the backend.
                every = self.config.probe_every if self.backend is not None and micro == 0 else 0
                if probing := every > 0 and self.step % every == 0:
                    around.enter_context(self.backend.probe())
                with self.autocast():
                    loss = self.model(inputs_BT, targets_BT)
                # Outside of autocast: Transformer Engine demands it, and the backward's types follow the forward's.
                self.loss_scale.scale(loss / self.config.accumulation).backward()
            if probing:
                self.fields["scales"] = {name: asdict(stat) for name, stat in self.backend.scales.items()}
            total += loss.detach() / self.config.accumulation
        self.loss_scale.unscale(self.model)
        return total

    def _enter_phase(self) -> None:
        """Bring the linears into this step's precision; a switch is an event, and the step's line says what it was."""
        if switched := self.schedule.enter(self.step):
            self.say("precision switch", self.step, switched)
        if self.schedule.config:
            self.fields["precision"] = self.schedule.now

    def _calibrate(self, passes: int) -> None:
        """Let delayed scaling gather its amax: forward and backward of this step, `passes` times, without an update."""
        # Several, since what one pass flushes to zero hides the gradients of the layers below.
        with self.clock.pause("calibration"):
            for _ in range(passes):
                self._gradients()
                self.optimizer.zero_grad(set_to_none=True)
        self.say("calibrated", self.step, f"{passes} passes over the batch of step {self.step} set the first scales")

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over `eval_batches` held-out batches, the same for every seed and number of ranks. Collective."""
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.group.device)
        for index in range(self.config.eval_batches):
            tokens = self.corpus.batch(index, self.config.batch_size, self.config.seq_len, HELDOUT_SEED, "heldout")
            for inputs_BT, targets_BT in self.split(tokens):
                with self.autocast():
                    total += self.model(inputs_BT, targets_BT)
        self.model.train()
        release(self.model)
        parts = self.config.eval_batches * self.config.accumulation * self.group.size
        self.group.all_reduce(total)
        return total.item() / parts

    def stop(self, reason: str) -> None:
        """End the run after this step. All ranks must call it in the same step."""
        self.stopped = reason
        self.say("stopped", self.step, reason)

    def pause(self, reason: str) -> None:
        """End the run after this step, with a checkpoint, as "interrupted". All ranks must call it in the same step."""
        self.stopped, self.paused = reason, True
        self.say("paused", self.step, reason)

    def say(self, kind: str, step: int | None, message: str, **fields: Any) -> None:
        """An event: into events.jsonl, and, unless all is well, to the person watching. Rank 0's words count."""
        if self.group.rank == 0:
            if kind not in ("checkpoint", "loaded", "paused", "precision switch", "calibrated"):
                log.warning("step %s: %s", step, message)
            if self.record:
                self.record.event(kind, step=step, message=message, **fields)

    def resume(self, checkpoints: Checkpoints) -> None:
        """Take up where the newest whole checkpoint ended; if there is none, all stays as it is."""
        if loaded := checkpoints.load(self.model, self.optimizer):
            self.recovery.load(loaded[1].get("recovery", {}))
            self._take(*loaded)
            self.resumed_from = self.step
        self._reopen_record()

    def _take(self, step: int, own: dict[str, Any]) -> None:
        """Make this run what a checkpoint's `own` says of step `step`; its tensors are loaded already."""
        self.step = step
        self._enter_phase()  # before the backend's state: it is that of a phase
        self.history = History(**own["history"])
        parts = self._stateful()
        for name, state in own["parts"].items():
            if name in parts and state:
                parts[name].load_state_dict(state)
            elif state:
                self.say("state_dropped", self.step, f"the checkpoint has state of {name}, and this run has none")

    def _reopen_record(self) -> None:
        if self.record and self.group.rank == 0 and (self.record.path / "steps.jsonl").stat().st_size:
            # The lines of steps that are done again now are dropped: no step stands in the record twice.
            self.record = RunRecord.open(self.record.path, resume_from=self.step + 1)

    def _refuse_step(self, fell: str) -> None:
        """Skip the step, report it, and do what [recovery] says. fell: "", or that the loss scale fell, in words."""
        self.skipped = True
        self.history.skipped.append(self.step)
        row = row_of(self.history.skipped, self.step)
        # While a smaller scale can still help, an overflow is no fault of the model's, and [recovery] waits.
        routine = fell and not self.vitals.bad_loss and self.loss_scale.value >= 1
        self.action = SKIP if routine else self.recovery.answer(row)
        names = [text for text in health.gather_text(self.group, health.culprits(self.model)) if text]
        reason = "loss" if self.vitals.bad_loss else "gradient"
        where = f" (gradients of {names[0]})" if names else ""
        ranks = max(self.vitals.bad_loss, self.vitals.bad_grad)
        then = {LOWER: f"; {row} in a row: {self.recovery.describe()}", ROLL_BACK: f"; {row} in a row"}.get(
            self.action, ""
        )
        then += f"; {fell}" if fell else ""
        self.say(
            "nonfinite",
            self.step,
            f"the {reason} is not finite on {ranks} of {self.group.size} ranks{where}: no update in this step{then}",
            action=self.action,
            reason=reason,
            row=row,
            rate=self.recovery.rate,
            bad_loss_ranks=self.vitals.bad_loss,
            bad_gradient_ranks=self.vitals.bad_grad,
        )
        if why := self.recovery.over(row, self.action):
            self.stop(why)

    def _roll_back(self) -> bool:
        """Go back to the newest checkpoint from before the bad steps, if there is one; all ranks together."""
        assert self.checkpoints is not None, "checked in `train`"
        step, row = self.step, row_of(self.history.skipped, self.step)
        with self.clock.pause("rolling back"):
            release(self.model)
            loaded = self.checkpoints.load(self.model, self.optimizer, at_most=step - row)
            if loaded is None:
                self.say(
                    "not rolled back", step, f"there is no checkpoint from before step {step - row + 1} to go back to"
                )
                return False
            self._take(*loaded)
            self.recovery.went_back(step, self.step)
            why = f"{row} bad steps in a row"
            message = f"went back to the checkpoint of step {self.step}, after {why}; {self.recovery.describe()}"
            self.say("rolled back", step, message, to=self.step, reason=why, **self.recovery.state())
            self._reopen_record()
        return True

    def _write_line(self) -> None:
        if aside := self.clock.take_aside():
            self.fields["aside"] = aside
        if self.record:
            self.record.step(
                step=self.step,
                loss=self.vitals.loss,
                lr=self.lr,
                grad_norm=self.vitals.grad_norm,
                tokens=self.history.tokens,
                seconds=self.seconds[-1],
                tokens_per_s=self.tokens / self.seconds[-1],
                memory={"peak_bytes": max(self.vitals.memory)},
                skipped=self.skipped,
                **self.fields,
            )

    def _stateful(self) -> dict[str, Any]:
        """Hooks and backend that take part in checkpoints. Named by type, so that other hooks may come and go."""
        parts: dict[str, Any] = {"backend": self.backend.state} if self.backend is not None else {}
        if self.loss_scale.active:
            parts["loss scale"] = self.loss_scale
        for hook in self.hooks:
            same = sum(type(hook) is type(other) for other in parts.values())
            parts[f"hook {type(hook).__name__} {same}"] = hook
        return parts

    def _peak(self) -> int:
        return measure.memory(self.group.device)["peak_bytes"]

    def _call(self, name: str) -> None:
        for hook in self.hooks:
            getattr(hook, name)(self)
