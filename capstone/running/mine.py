"""parts = "mine": the loop around your `Trainer.step`: data, learning rate, held-out loss, checkpoints, recovery.

A step's batch depends on (seed, step) alone, and the held-out batches are the same for every run, as in labkit.train:
two records, of your parts and of torch's, can be laid over one another.

What a step that is not finite leads to, your `Recovery` says (16.7), with the numbers of [recovery]. How the run goes
on, goes back, stops on a SIGTERM, and ends when a rank hangs, is `survive.py` (C.3).
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capstone import assemble, survive
from capstone.given import parts
from capstone.given.saying import gather_json
from capstone.given.store import Folder
from capstone.running.config import CapstoneConfig, setup_of
from labkit.errors import LabError
from labkit.record import measure
from labkit.record.run import RunRecord
from labkit.train import manifest
from labkit.train.data.corpus import build_corpus
from labkit.train.loop import HELDOUT_SEED
from labkit.train.optim import learning_rate

NEVER = 10**9  # bad steps in a row


def run(
    group: Any,
    config: CapstoneConfig,
    run_dir: Path,
    opened: Any,
    corpus: Any = None,
    weights: Any = None,
    heard: Any = (),
) -> dict[str, Any]:
    """Train; a summary of plain values, the same on every rank. `opened(about, step)` gives rank 0 its record.

    corpus, weights: in place of the configuration's text and of the seed's first values. heard: the SIGTERMs that have
    come."""
    corpus = build_corpus(config.data) if corpus is None else corpus
    trainer = assemble.assemble(setup_of(config)._replace(weights=weights), group)
    if config.products == "tensor-cores":
        on_tensor_cores(trainer.model)
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
    return {**Loop(group, config, corpus, trainer, run_dir, heard).run(opened, about), **about}


def on_tensor_cores(model: Any) -> None:
    """Make 16.5's linears 16.10's: the same weights, which FSDP has cut already, multiplied as FP8 codes."""
    from week16_fp8.stretch.tensor_cores import TensorCoreLinear  # of no points: it may be unfinished

    linear = parts.part("week16_fp8.linear").FP8Linear
    for module in model.modules():
        if type(module) is linear:
            module.__class__ = TensorCoreLinear


class Loop:
    """One run, or its continuation. `own()` is in every checkpoint.

    step                  the last one that is done; or the one at work
    shift                 step k reads batch k + shift
    rollbacks             how often it went back
    history               {"losses": {step: loss}, "heldout": {step: loss}, "skipped": [steps]}
    """

    def __init__(
        self, group: Any, config: CapstoneConfig, corpus: Any, trainer: Any, run_dir: Path, heard: Any = ()
    ) -> None:
        self.group, self.config, self.corpus, self.trainer, self.run_dir = group, config, corpus, trainer, run_dir
        self.store = Folder(run_dir / "checkpoints", config.keep_checkpoints)
        r = config.recovery
        kind = parts.part("week16_fp8.loss_scaling").Recovery
        self.recovery = kind(r.lower_after or NEVER, r.rollback_after or NEVER, r.factor)
        self.history: dict[str, Any] = {"losses": {}, "heldout": {}, "skipped": []}
        self.step = self.shift = self.rollbacks = self.row = 0
        self.action, self.paused = "step", False
        self.unsaved: str | None = None  # why the newest checkpoint is not there
        self.record: Any = None  # rank 0's
        self.heard = heard  # grows when a SIGTERM comes
        self.rows: list[list[float]] = []  # of the newest steps: every rank's own seconds
        self.slow: int | None = None

    def run(self, opened: Any, about: dict[str, Any]) -> dict[str, Any]:
        if self.group.rank == 0:
            manifest.sweep(self.store.folder, manifest.PARTIAL)  # what a killed save left
        passed_over = survive.restore(self) if gather_json(self.group, self.store.steps())[0] else []
        self.record = opened(about, self.step)
        for sentence in passed_over:
            self.say("corrupt_checkpoint", sentence)
        if self.step:
            self.say("loaded", f"went on from the checkpoint of step {self.step}")
        watchdog = self.watchdog()
        try:
            while self.step < self.config.steps and not self.paused:
                self.step += 1
                self.one()
        finally:
            if watchdog is not None:
                watchdog.over.set()
        return {**self.history, "steps": self.step, "paused": self.paused, "unsaved": self.unsaved}

    def one(self) -> None:
        """One step, its line, and a checkpoint if it is time."""
        config, begin, ledger = self.config, time.perf_counter(), self.group.ledger
        began = ledger.now()
        batch = self.corpus.batch(self.step + self.shift, config.batch_size, config.seq_len, config.seed)
        lr = learning_rate(config, self.step) * self.recovery.rate
        vitals = self.trainer.step(assemble.data_of(self.trainer, batch.to(self.group.device)), lr, self.allow)
        seconds, own = time.perf_counter() - begin, survive.own_seconds(ledger, began, ledger.now())
        self.history["losses"][self.step] = vitals.loss
        if self.action != "step":
            self.bad()
            if self.action == "roll back" and survive.go_back(self):
                return
        fields: dict[str, Any] = {}
        last = self.step == config.steps
        if config.eval_every and (self.step % config.eval_every == 0 or last):
            fields["heldout"] = self.history["heldout"][self.step] = self.evaluate()
        heard = survive.tell(bool(self.heard), own, self.group)
        if self.group.device.type == "cpu":  # on a GPU a call returns to the host before it is done: it times nothing
            fields["rank_seconds"] = heard.seconds
            self.name_the_slow(heard.seconds)
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
        self.paused = heard.stop and not last
        every = config.checkpoint_every
        if every and (last or self.paused or (self.step % every == 0 and self.action == "step")):
            self.unsaved = None if survive.keep(self) else self.tell_unsaved()
        if self.paused:
            self.say("paused", "SIGTERM: the same command goes on")

    def tell_unsaved(self) -> str:
        """Say on the terminal that a checkpoint was not written, and which one there is."""
        newest = next(iter(self.store.steps()), None)
        left = "there is no earlier one" if newest is None else f"the newest is that of step {newest}"
        text = f"the checkpoint of step {self.step} could not be written to {self.store.folder}; {left}"
        if self.group.rank == 0:
            print(f"train: {text}", file=sys.stderr, flush=True)
        return text

    def allow(self, vitals: Any) -> bool:
        """What `Trainer.step` asks: is the optimizer to go? All ranks have the same vitals, so they agree."""
        self.action = self.recovery.after(self.step, vitals.loss, vitals.finite)
        return self.action == "step"

    def bad(self) -> None:
        """A step without an update: noted; too many of them end the run."""
        skipped = self.history["skipped"]
        self.row = self.row + 1 if skipped and skipped[-1] == self.step - 1 else 1
        skipped.append(self.step)
        text = f"loss or gradient is not finite: no update in this step; {self.row} in a row"
        self.say("nonfinite", text, action=self.action, rate=self.recovery.rate)
        given_up = self.action == "roll back" and self.rollbacks >= self.config.recovery.max_rollbacks
        if self.row >= self.config.recovery.give_up_after or given_up:
            raise LabError(f"{self.row} steps in a row were not finite: lower the learning rate or take another recipe")

    def name_the_slow(self, seconds: list[float]) -> None:
        """An event when a rank becomes slow, and when none is any more."""
        self.rows = [*self.rows[1 - survive.WINDOW :], seconds]
        slow = survive.slow_rank(self.rows)
        if slow not in (None, self.slow):
            self.say("slow rank", f"rank {slow} holds the others up: own seconds by rank {seconds}", rank=slow)
        self.slow = slow

    def own(self) -> dict[str, Any]:
        """What a checkpoint holds beside the trainer's state."""
        kept = {"history": self.history, "rate": self.recovery.rate}
        return {**kept, "shift": self.shift, "rollbacks": self.rollbacks}

    def recut(self) -> None:
        """Take the lines behind `step` out of the record: they are to be written anew."""
        if self.record:
            self.record = RunRecord.open(self.record.path, resume_from=self.step + 1)

    def watchdog(self) -> survive.Watchdog | None:
        """This rank's watchdog, at work; None if the configuration wants none, there is nobody to wait for, or the rank
        is a thread."""
        thread = threading.current_thread() is not threading.main_thread()  # the process is not its own to end
        if not self.config.hang_after or self.group.size == 1 or thread:
            return None
        above = self.run_dir / "standing"
        if self.group.rank == 0:
            for old in above.glob("*/*"):
                old.unlink(missing_ok=True)
        folder = above / str(gather_json(self.group, time.time_ns())[0])  # this start's own, without older pids
        # Whoever sees it writes the line, rank 0 may be the one that hangs. A line is one write, appended.
        made = survive.Watchdog(self.group, folder, self.config.hang_after, self.autopsy)
        with suppress(OSError):
            made.post(survive.standing(self.group.ledger, 0))
        gather_json(self.group, "")  # all have posted: a rank that hangs from here on is known to the others
        made.start()
        return made

    def autopsy(self, text: str, **fields: Any) -> None:
        RunRecord(self.run_dir).event("hung", step=self.step, message=text, **fields)

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
