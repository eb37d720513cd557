"""Checkpoints: everything a run needs to go on as if nothing had happened.

That is: the FP32 weights and AdamW's state (each rank writes its own part), the step, the history, every rank's random
generators, and the state of hooks and precision backend. A resumed run is the same bit for bit on the same number of
ranks; on another the parts are cut anew (torch.distributed.checkpoint, DCP), and the runs agree up to rounding.

    1. every rank writes its part into step-N.partial, waits for the disk, and reads it back: sizes and CRC-32
    2. the ranks agree that all went well; rank 0 writes the manifest
    3. rank 0 renames step-N.partial to step-N: now, and only now, it is the newest checkpoint
    4. rank 0 deletes what is older than `keep`

A load checks the files against the manifest, newest first; a damaged checkpoint is passed over and reported.
"""

import contextlib
import errno
import io
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from labkit.comm.group import Group
from labkit.errors import FULL, LabError
from labkit.model.weights import refuse_hand_sharded
from labkit.precision.flags import mismatch, other_parameters
from labkit.train import manifest, state
from labkit.train.config import TrainConfig
from labkit.train.health import agree, gather_text
from labkit.train.optim import MasterAdamW

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run, in `folder`; all ranks call each method together. A load compares config, data_hash
    and precision (flags of the run now, or after a step). say(kind, step, message, **fields): for the run's events."""

    def __init__(
        self,
        folder: str | Path,
        group: Group,
        *,
        config: TrainConfig | None = None,
        data_hash: str | None = None,
        precision: Callable[..., dict[str, Any] | None] = lambda step=None: None,
        say: Callable[..., None] = lambda kind, step, message, **fields: None,
    ) -> None:
        self.folder, self.group, self.precision, self.say = Path(folder), group, precision, say
        self.keep = (config or TrainConfig()).keep_checkpoints
        self.about = {"config": state.settings(config) if config else None, "data_hash": data_hash}

    # ---- saving

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, own: dict[str, Any]) -> Path:
        """Write the checkpoint of `step`; own: this rank's. LabError, on every rank: a full disk, a hand-cut weight."""
        self._together(lambda: refuse_hand_sharded(model), str)
        final = self.folder / manifest.folder_name(step)
        beside = final.with_name(final.name + manifest.PARTIAL)
        # AdamW has no state before its first update, and asking for it would make one. Then there is nothing to save.
        has_state = bool(optimizer.state)
        tensors = state.tensors_of(model, optimizer if has_state else None)
        own = {"own": own, "generators": state.generators(self.group.device)}
        about = {
            **self.about,
            "step": step,
            "world_size": self.group.size,
            "optimizer": has_state,
            "parameters": state.shapes(model),
            "precision": self.precision(),
            "torch": torch.__version__,
        }
        total = torch.tensor([state.local_bytes(tensors, self.group.size)], dtype=torch.float64).to(self.group.device)
        self.group.all_reduce(total)
        size = round(total.item())
        explain = partial(self._not_written, step, size)
        try:
            self._together(lambda: self._prepare(beside, size), explain, only_rank_0=True)
            mine = self._together(lambda: self._write(beside, tensors, own), explain)
            files: dict[str, dict[str, int]] = {}
            for part in gather_text(self.group, json.dumps(mine)):
                files |= json.loads(part)
            self._together(lambda: self._finish(beside, final, files, about), explain, only_rank_0=True)
        except LabError:
            if self.group.rank == 0:
                shutil.rmtree(beside, ignore_errors=True)  # gives the space back
            raise
        self.say("checkpoint", step, f"saved {final.name}", bytes=sum(f["bytes"] for f in files.values()))
        return final

    def _prepare(self, partial: Path, size: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        if shutil.disk_usage(self.folder).free < size:  # said before the disk is filled, not after
            raise OSError(errno.ENOSPC, "not enough space")
        partial.mkdir()

    def _write(self, partial: Path, tensors: dict[str, Any], own: dict[str, Any]) -> dict[str, dict[str, int]]:
        """This rank's files, written and read back. DCP first: it is a collective, and fails on all ranks alike."""
        with quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial), **self._ranks())
        buffer = io.BytesIO()
        torch.save(own, buffer)
        manifest.write_durably(partial / _own_file(self.group.rank), buffer.getvalue())
        names = [p.name for p in partial.glob(f"__{self.group.rank}_*")] + [_own_file(self.group.rank)]
        return {name: manifest.describe(partial / name) for name in names + [".metadata"] * (self.group.rank == 0)}

    def _finish(self, partial: Path, final: Path, files: dict, about: dict) -> None:
        manifest.write(partial, files, about)
        manifest.publish(partial, final)
        self._retire(manifest.whole_steps(self.folder)[self.keep :])
        manifest.sweep(self.folder, manifest.PARTIAL, manifest.CORRUPT)

    def _not_written(self, step: int, size: int, error: BaseException) -> str:
        older = [s for s in manifest.whole_steps(self.folder) if s != step]
        kept = f"the checkpoint of step {older[0]} is intact" if older else "there is no earlier one"
        free = shutil.disk_usage(self.folder).free if self.folder.is_dir() else None
        numbers = (e.errno for e in _chain(error) if isinstance(e, OSError) and e.errno)
        if next(numbers, None) in FULL or (free is not None and free < size):
            room = "" if free is None else f" ({size / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free)"
            return (
                f"the disk is full: the checkpoint of step {step} could not be written to {self.folder}{room}; "
                f"{kept}. Free some space and run the same command again."
            )
        return f"the checkpoint of step {step} could not be written to {self.folder}: {_cause(error)}; {kept}."

    # ---- loading

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, at_most: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Fill model, optimizer and this rank's generators (if there are as many ranks) from the newest checkpoint that
        is whole: (its step, what this rank passed as `own`); None if there is none.

        at_most: go back to this step or an earlier one; later checkpoints are deleted, or a resume would take them.
        LabError, on every rank: all are damaged, another model or configuration, a parameter cut by hand.
        """
        self._together(lambda: refuse_hand_sharded(model), str)
        damaged: dict[int, str] = {}
        listed = self._listed()
        later = [step for step in listed if at_most is not None and step > at_most]
        for step in listed[len(later) :]:
            folder = self.folder / manifest.folder_name(step)
            if problem := agree(self.group, self._damage(folder)):
                damaged[step] = f"{folder.name}: {problem}"
                continue
            loaded = self._restore(folder, model, optimizer)
            for bad, problem in damaged.items():
                self._together(partial(self._set_aside, bad), str, only_rank_0=True)
                self.say("corrupt_checkpoint", bad, f"passed over {problem}; going on from step {step}")
            self._together(partial(self._retire, later), str, only_rank_0=True)
            return loaded
        if damaged:
            fix = "put back a copy of one, or delete the folder to start from the beginning"
            raise LabError(f"no checkpoint in {self.folder} can be used ({'; '.join(damaged.values())}): {fix}.")
        return None

    def refuse_existing(self) -> None:
        """LabError if the folder holds checkpoints: a run that starts anew must not mix with an earlier one."""
        if steps := self._listed():
            holds = f"{self.folder} holds checkpoints of an earlier run (up to step {steps[0]})"
            raise LabError(f"{holds}: resume it, or choose another run folder.")

    def _listed(self) -> list[int]:
        """Rank 0's list, so that all ranks look at the same folders in the same order."""
        mine = ""
        if self.group.rank == 0:
            manifest.sweep(self.folder, manifest.PARTIAL)
            mine = json.dumps(manifest.whole_steps(self.folder))
        return json.loads(gather_text(self.group, mine)[0])

    def _damage(self, folder: Path) -> str | None:
        body, problem = manifest.read(folder)
        files = sorted(body.get("files", {}).items())[self.group.rank :: self.group.size]  # this rank's share
        return problem or manifest.damaged(folder, files)

    def _restore(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, dict[str, Any]]:
        about, _ = manifest.read(folder)
        was, now = about.get("precision"), self.precision(about["step"])
        if other := other_parameters(was, now):
            raise LabError(f"cannot resume from {folder}: {other}.")
        mine = {**self.about, "parameters": state.shapes(model)}
        if other := state.difference(about, mine) or mismatch(was, now):
            raise LabError(f"cannot resume from {folder}: {other}; set it back, or choose another run folder.")
        tensors = state.tensors_of(model, optimizer if about["optimizer"] else None)

        def read() -> dict[str, Any]:
            with quiet():
                dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder), **self._ranks())
            # weights_only=False: it is what this program pickled, and its checksum has been verified.
            file = folder / _own_file(self.group.rank % about["world_size"])
            return torch.load(file, map_location="cpu", weights_only=False)

        saved = self._together(read, lambda error: f"cannot resume from {folder}: {_cause(error)}.")
        state.put_back(model, optimizer, tensors)
        if isinstance(optimizer, MasterAdamW) and (
            name := agree(self.group, optimizer.differing(model, tensors["model"]))
        ):
            raise LabError(
                f"cannot resume from {folder}: its FP8 weight {name} is not what its master weight rounds to here: use "
                "the library version that made it, or `lab checkpoint convert OLD_RUN NEW_RUN --to bf16`."
            )
        said = f"went on from {folder.name}"
        if about["world_size"] == self.group.size:
            state.set_generators(saved["generators"], self.group.device)
        else:
            said += f", saved on {about['world_size']} ranks and now on {self.group.size}: equal up to rounding"
        self.say("loaded", about["step"], said)
        return about["step"], saved["own"]

    def _set_aside(self, step: int) -> None:
        folder = self.folder / manifest.folder_name(step)
        with contextlib.suppress(OSError):  # a run can go on from a folder it may not change
            folder.rename(folder.with_name(folder.name + manifest.CORRUPT))

    def _retire(self, steps: list[int]) -> None:
        for step in steps:
            manifest.retire(self.folder / manifest.folder_name(step))

    # ---- all ranks or none

    def _together(self, work: Callable[[], T], explain: Callable[[BaseException], str], only_rank_0: bool = False) -> T:
        """Do `work` (on every rank, or on rank 0 for all); if it failed on any rank, the same LabError on all."""
        result: Any = None
        complaint = None
        if self.group.rank == 0 or not only_rank_0:
            try:
                result = work()
            except (Exception, CheckpointException) as error:  # CheckpointException is no Exception
                complaint = explain(error)
        if complaint := agree(self.group, complaint):
            raise LabError(complaint)
        return result

    def _ranks(self) -> dict[str, Any]:
        """Return DCP's arguments that say who takes part: nobody else, or the group's ranks."""
        return {"no_dist": True} if self.group.size == 1 else {"process_group": self.group.device_mesh().get_group()}


def _own_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without DCP's warning that one rank is one rank."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, those that DCP collected from the ranks included."""
    while error is not None:
        yield error
        for inner, _ in getattr(error, "failures", {}).values():
            yield from _chain(inner)
        error = error.__cause__ or error.__context__


def _cause(error: BaseException) -> str:
    root = list(_chain(error))[-1]
    lines = str(root).strip().splitlines()
    return f"{type(root).__name__}: {lines[0]}" if lines else type(root).__name__
