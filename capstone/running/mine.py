"""parts = "mine": the loop around your `Trainer.step`: data, learning rate, held-out loss, checkpoints, recovery.

A step's batch depends on (seed, step) alone, and the held-out batches are the same for every run, as in labkit.train:
two records, of your parts and of torch's, can be laid over one another.

What a step that is not finite leads to, your `Recovery` says (16.7), with the numbers of [recovery]: it is skipped, the
rate is lowered, the run goes back to a checkpoint; then later batches take the place of those that it broke on.
SIGTERM, to any rank, ends the run behind its step, with a checkpoint: the same command goes on from it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capstone import assemble, checkpoint
from capstone.given import parts
from capstone.given.saying import told
from capstone.given.store import Folder
from capstone.running.config import CapstoneConfig, setup_of
from labkit.errors import LabError
from labkit.record import measure
from labkit.train.data.corpus import build_corpus
from labkit.train.loop import HELDOUT_SEED
from labkit.train.optim import learning_rate

NEVER = 10**9  # bad steps in a row


def run(group: Any, config: CapstoneConfig, run_dir: Path, opened: Any) -> dict[str, Any]:
    """Train; a summary of plain values, the same on every rank. `opened(about, step)` gives rank 0 its record."""
    corpus = build_corpus(config.data)
    trainer = assemble.assemble(setup_of(config), group)
    kinds: dict[str, int] = {}
    for module in trainer.model.modules():
        if hasattr(module, "in_features"):
            kinds[type(module).__name__] = kinds.get(type(module).__name__, 0) + 1
    about = {
        "conversion": trainer.report,
        "evidence": {"module_types": kinds},  # counted in the model that trains, on rank 0
        "stand_ins": parts.stand_ins(),
        "corpus": corpus.describe(),
        "parameters": sum(torch.Size(shape).numel() for shape in config.resolved_model.weight_shapes().values()),
    }
    return {**Loop(group, config, corpus, trainer, run_dir).run(opened, about), **about}


class Loop:
    """One run, or its continuation. `history` is in every checkpoint."""

    def __init__(self, group: Any, config: CapstoneConfig, corpus: Any, trainer: Any, run_dir: Path) -> None:
        self.group, self.config, self.corpus, self.trainer = group, config, corpus, trainer
        self.store = Folder(run_dir / "checkpoints", config.keep_checkpoints)
        r = config.recovery
        kind = parts.part("week16_fp8.loss_scaling").Recovery
        self.recovery = kind(r.lower_after or NEVER, r.rollback_after or NEVER, r.factor)
        self.history: dict[str, Any] = {"losses": {}, "heldout": {}, "skipped": []}
        self.step = self.shift = self.rollbacks = self.row = 0
        self.action, self.paused = "step", False
        self.record: Any = None  # rank 0's
        self.asked_to_stop = False

    def run(self, opened: Any, about: dict[str, Any]) -> dict[str, Any]:
        passed_over = self.load() if told(self.group, self.store.steps())[0] else []
        self.record = opened(about, self.step)
        for sentence in passed_over:
            self.say("corrupt_checkpoint", sentence)
        if self.step:
            self.say("loaded", f"went on from the checkpoint of step {self.step}")
        before = self.listen()
        try:
            while self.step < self.config.steps and not self.paused:
                self.step += 1
                self.one()
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        return {**self.history, "steps": self.step, "paused": self.paused}

    def one(self) -> None:
        """One step, its line, and a checkpoint if it is time."""
        config, begin = self.config, time.perf_counter()
        batch = self.corpus.batch(self.step + self.shift, config.batch_size, config.seq_len, config.seed)
        lr = learning_rate(config, self.step) * self.recovery.rate
        vitals = self.trainer.step(assemble.data_of(self.trainer, batch.to(self.group.device)), lr, self.allow)
        seconds = time.perf_counter() - begin
        self.history["losses"][self.step] = vitals.loss
        if self.action != "step":
            self.bad(vitals)
            if self.action == "roll back" and self.go_back():
                return
        fields: dict[str, Any] = {}
        last = self.step == config.steps
        if config.eval_every and (self.step % config.eval_every == 0 or last):
            fields["heldout"] = self.history["heldout"][self.step] = self.evaluate()
        if self.record:
            tokens = config.batch_size * config.seq_len
            self.record.step(
                step=self.step,
                loss=vitals.loss,
                lr=lr,
                grad_norm=vitals.norm,
                tokens=self.step * tokens,
                seconds=seconds,
                tokens_per_s=tokens / seconds,
                memory={"peak_bytes": measure.memory(self.group.device)["peak_bytes"]},
                skipped=self.action != "step",
                **fields,
            )
        asked = torch.tensor([float(self.asked_to_stop)], device=self.group.device)
        self.paused = bool(self.group.all_reduce(asked, op="max")) and not last  # one rank was asked: all stop
        every = config.checkpoint_every
        if every and (last or self.paused or (self.step % every == 0 and self.action == "step")):
            self.save()
        if self.paused:
            self.say("paused", "SIGTERM: the same command goes on")

    def allow(self, vitals: Any) -> bool:
        """What `Trainer.step` asks: is the optimizer to go? All ranks have the same vitals, so they agree."""
        self.action = self.recovery.after(self.step, vitals.loss, vitals.finite)
        return self.action == "step"

    def bad(self, vitals: Any) -> None:
        """A step without an update: noted; too many of them end the run."""
        skipped = self.history["skipped"]
        self.row = self.row + 1 if skipped and skipped[-1] == self.step - 1 else 1
        skipped.append(self.step)
        text = f"loss or gradient is not finite: no update in this step; {self.row} in a row"
        self.say("nonfinite", text, action=self.action, rate=self.recovery.rate)
        given_up = self.action == "roll back" and self.rollbacks >= self.config.recovery.max_rollbacks
        if self.row >= self.config.recovery.give_up_after or given_up:
            raise LabError(f"{self.row} steps in a row were not finite: lower the learning rate or take another recipe")

    def go_back(self) -> bool:
        """To the newest checkpoint, if there is one."""
        if not told(self.group, self.store.steps())[0]:
            self.say("not rolled back", "there is no checkpoint to go back to")
            return False
        at, rate, shift, rollbacks = self.step, self.recovery.rate, self.shift, self.rollbacks
        self.load()
        self.recovery.rate, self.rollbacks = rate, rollbacks + 1
        self.shift = shift + (at - self.step if self.config.recovery.skip_data else 0)
        self.say("rolled back", f"from step {at} to the checkpoint of step {self.step}", to=self.step, shift=self.shift)
        if self.record:
            self.record = type(self.record).open(self.record.path, resume_from=self.step + 1)
        return True

    def save(self) -> None:
        own = {"history": self.history, "rate": self.recovery.rate, "shift": self.shift, "rollbacks": self.rollbacks}
        checkpoint.save(self.trainer, self.step, self.store, own)
        self.recovery.saved(self.step)
        self.say("checkpoint", f"saved step {self.step}")

    def load(self) -> list[str]:
        """Go on from the newest whole checkpoint; what was passed over, in words."""
        found = checkpoint.load(self.trainer, self.store)
        if found is None:
            return []
        self.step, own = found.step, found.own
        self.history, self.shift, self.rollbacks = own["history"], own["shift"], own["rollbacks"]
        self.recovery.rate = own["rate"]
        return found.passed_over

    def listen(self) -> Any:
        """Hear SIGTERM; what was there before. None where this thread may not (ranks that are threads)."""

        def heard(*_: Any) -> None:
            self.asked_to_stop = True

        try:
            return signal.signal(signal.SIGTERM, heard)
        except ValueError:
            return None

    def say(self, kind: str, message: str, **fields: Any) -> None:
        if self.record:
            self.record.event(kind, step=self.step, message=message, **fields)

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss over the held-out batches, the same on every rank."""
        config, trainer = self.config, self.trainer
        total = torch.zeros((), dtype=torch.float64, device=self.group.device)
        if trainer.setup.zero != 3:
            trainer.sharded.begin()
        for index in range(config.eval_batches):
            batch = self.corpus.batch(index, config.batch_size, config.seq_len, HELDOUT_SEED, "heldout")
            for rows in assemble.data_of(trainer, batch.to(self.group.device)).chunk(trainer.setup.micro):
                loss = forward(trainer, rows[:, :-1], rows[:, 1:])
                total += 0.0 if loss is None else loss.double()
        for unit in trainer.units:
            unit.free()
        count = config.eval_batches * trainer.setup.micro * trainer.setup.dp * trainer.setup.tp
        return float(self.group.all_reduce(total)) / count


def forward(trainer: Any, inputs: Tensor, targets: Tensor) -> Tensor | None:
    """The loss of one micro-batch, through all stages one after another; None on a stage that has none."""
    pipe, x = trainer.mesh["pp"], inputs
    if pipe.rank > 0:
        x = pipe.recv(pipe.rank - 1, like=torch.empty(*inputs.shape, trainer.setup.model.d_model, device=inputs.device))
    stage = assemble.Stage(trainer.model, trainer.setup.dtype)
    if pipe.rank == pipe.size - 1:
        return stage(x, targets)
    pipe.send(stage(x).contiguous(), pipe.rank + 1)
    return None
