"""One call of `lab compare` at work: its arms one after another, each on ranks of its own, then the verdict."""

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from labkit.comm.autopsy import RanksFailed
from labkit.comm.group import Group
from labkit.comm.ranks import RankPool, run_ranks, under_torchrun
from labkit.compare import background, batches, follow, memory, own
from labkit.compare.budget import Budget, Forecast
from labkit.compare.plan import Plan, decisive_first, folder_of, is_done
from labkit.compare.speed import ANOTHER, OVER, Control, Deadline, Window
from labkit.compare.summary import announce, note_call, prepare_corpus, summarise
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.record.read import load_run
from labkit.record.run import RunRecord
from labkit.record.schema import Item, Try
from labkit.train.job import forget, train_job
from labkit.train.loop import Hook

UNFINISHED = 3  # exit status: the budget ended it, the same command goes on
# Devices whose processes train an arm's further runs, too: nothing is imported or compiled twice. A CPU's peak memory
# belongs to its process, so there each run has fresh ones.
KEPT_ON = ("cuda",)


@dataclass(frozen=True)
class Task:
    """An arm's training, as each rank gets it; window: of `Window`; deadline: since 1970."""

    config: dict[str, Any]
    folder: str
    about: dict[str, Any]
    window: tuple[float, int, int, batches.Search | None, float | None] | None
    deadline: float | None
    stop: str
    baselines: list[dict[int, float]]


class Session:
    """One call. leader: this rank decides, prints and writes; under torchrun that is rank 0."""

    def __init__(self, plan: Plan, budget: Budget, console: Console, leader: bool = True) -> None:
        self.plan, self.budget, self.console, self.leader = plan, budget, console, leader
        self.record = RunRecord.open(plan.out) if leader else None
        self.failed: dict[str, str] = {}  # "<part> <arm>" -> why
        self.kept: tuple[str, RankPool] | None = None  # the arm that was trained for its loss, and its ranks
        self.graphs = 0  # that these had compiled after its last run
        self.starter = ThreadPoolExecutor(1)
        # Ranks for the next arm that needs fresh ones: they start while the corpus is cut or an arm trains for its
        # loss, never beside one that is timed.
        self.spare: Future[RankPool] | None = None
        self.later: list[Item] = []  # after the one at work

    def run(self, *, few: bool) -> int:
        """Train what there is to train, judge, print; few: arms or a part were named. Returns every rank's exit status."""
        plan, budget, record = self.plan, self.budget, self.record
        if record:
            call = {"began": budget.began, "minutes": budget.minutes, "items": [i.model_dump() for i in plan.sure()]}
            call["predicted_s"] = sum(item.predicted_s for item in plan.sure())
            record.update(status="running", finished=None, call=call)
        try:
            with record if record else nullcontext():
                if budget.minutes:
                    plan.todo = decisive_first(plan)
                if self.leader:
                    announce(plan, self.console, budget)
                    if plan.todo:
                        self._start_ahead()
                    prepare_corpus(plan, self.console)
                items = plan.items()
                for number, item in enumerate(items):
                    self.later = items[number + 1 :]
                    baselines = self.decide(item)
                    if baselines is not None:
                        self._train(item, baselines, f"{number + 1} of {len(items)}")
                return self._everywhere(self._end(few) if record else 0)
        except KeyboardInterrupt:
            say(self.console, f"Interrupted. The same command goes on with the arms it has: {plan.out}")
            raise
        finally:
            self._release()
            if self.spare:
                self._fresh().close()
            self.starter.shutdown()
            if record:
                record.close()
                # A request that came too late is not for the next call.
                (plan.out / background.STOP).unlink(missing_ok=True)

    def _train(self, item: Item, baselines: list[dict[int, float]], which: str) -> None:
        if self.record:
            note_call(self.record, self.budget)
        begin = time.time()
        why = self.train(item, baselines, which)
        self.budget.took(item, time.time() - begin)
        if why:
            self.failed[item.key] = why
            say(self.console, f"{item.label} ({item.part}) failed: {why}", style="bold")
        elif self.leader:
            say(self.console, follow.line(item.part, item.label, folder_of(self.plan.out, item.part, item.arm)))

    def decide(self, item: Item) -> list[dict[int, float]] | None:
        """Of an arm to be trained now, by the leader's clock, the baseline's losses that may end it; else None."""
        return self._everywhere(self._decide(item) if self.leader else None)

    def _decide(self, item: Item) -> list[dict[int, float]] | None:
        plan, budget = self.plan, self.budget
        if closed := plan.gate_closed(item.part, item.arm):
            plan.missing[item.arm] = closed
            if not plan.preset.arms[item.arm].of:
                say(self.console, f"{item.label}: refused, {closed}")
            return None
        look = plan.second_look(item.part, item.arm)
        if look == "decided":
            say(self.console, f"{item.label}: not needed, its first runs decided")
            return None
        # Without its first run it would start the processes that this one had no time for.
        first = (item.part, plan.preset.arms[item.arm].of)
        if look == "waits" or first in [(one.part, one.arm) for one in budget.left]:
            budget.left.append(item)
            return None
        if not budget.fits(item):
            return None
        broken = item.part == "safety" and plan.preset.arms[item.arm].role == "broken"
        return plan.baselines() if broken else []

    def train(self, item: Item, baselines: list[dict[int, float]], which: str) -> str:
        """Train one arm of one part, a timed one also with other batches. Returns "" or, in a sentence, why it failed."""
        if item.part == "safety" or under_torchrun():  # torchrun's ranks are no fresh processes
            return self._train_once(item, baselines, which)[0]
        plan, budget = self.plan, self.budget
        tries = plan.tries.setdefault(item.arm, [])
        while size := plan.search(item.arm).micro_batch_size:
            why, tried = self._train_once(item, baselines, which)
            if tried is None:
                return why
            before = [one for one in tries if one.micro_batch_size != size]  # one that was paused has been tried before
            tries[:] = [*before, tried.model_copy(update={"gib": plan.memory_gib})]
            if self.record:
                self.record.results(tries=plan.tries)
            following = plan.search(item.arm).micro_batch_size
            if tried.fitted and following == size:
                return ""  # it was timed
            if following:
                # The record has what this try was for.
                shutil.rmtree(folder_of(plan.out, "speed", item.arm), ignore_errors=True)
                say(self.console, f"{item.label}: {batches.describe(tries)}; next: {following}")
                if budget.stop_requested() or budget.late(plan.item("speed", item.arm)):
                    return ""  # left for another call
        return f"it fits into no GPU here: {batches.describe(tries)}"

    def _train_once(self, item: Item, baselines: list[dict[int, float]], which: str) -> tuple[str, Try | None]:
        """Train one arm of one part on its ranks. Returns ("" or why it failed, what was learned of its batch)."""
        plan, preset = self.plan, self.plan.preset
        config, folder = plan.config(item.part, item.arm), folder_of(plan.out, item.part, item.arm)
        # The command is what was typed: a rank's own command line says nothing.
        about = {"arm": item.arm, "label": item.label, "role": preset.arms[item.arm].role}
        about["command"] = load_run(plan.out)["command"]
        steps: int | None = config.steps
        label, window, search = f"{item.label} ({which})", None, None
        if item.part == "speed":
            of, search = preset.window(), plan.search(item.arm)
            window = (of.seconds, of.warmup, of.profile, search if of.batch else None, of.least)
            label, steps = f"{item.label}, speed ({which})", None  # the clock ends it
            if self.leader and folder.exists():
                shutil.rmtree(folder)  # a window is not resumed: it starts anew
        pause = (self.budget.deadline, str(self.budget.stop))
        task = Task(config.model_dump(), str(folder), about, window, *pause, baselines)
        sure = [one for one in self.later if preset.arms[one.arm].look == 1]
        forecast = Forecast(self.budget.done, item, sure, self.budget.deadline)
        progress = follow.TrainingProgress(self.console, label, folder, steps, forecast)
        try:
            with progress if self.leader else nullcontext():
                tried = self._on_ranks(item, task)
            if self.leader and is_done(plan, item.part, item.arm):
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # they were for going on after a pause
        except RanksFailed as failure:
            lost = Try(micro_batch_size=search.micro_batch_size) if search and batches.out_of_memory(failure) else None
            return str(failure.error) if isinstance(failure.error, LabError) else failure.autopsy.cause, lost
        return "", tried

    def _on_ranks(self, item: Item, task: Task) -> Try | None:
        """Train on fresh ranks, or on those of the run before if that was one of the same arm."""
        preset, of, after = self.plan.preset, self._arm_of(item), next(iter(self.later), None)
        if item.part == "speed" or preset.device not in KEPT_ON or under_torchrun():
            self._release()
            if self.spare:
                with self._fresh() as pool:
                    return pool.run(arm_on_rank, task, timeout=None)[0]
            size = None if under_torchrun() else self.plan.world_size
            return run_ranks(arm_on_rank, task, size=size, timeout=None, device=preset.device)[0]
        if not self.kept or self.kept[0] != of:
            self._release()
            self.kept, self.graphs = (of, self._fresh()), 0
        if after and (after.part == "speed" or self._arm_of(after) != of):
            need = memory.predict(self.plan.config(item.part, item.arm), self.plan.world_size)["peak"]
            if need <= own.FILLED * (self.plan.memory_gib or 0.0) * memory.GIB:  # room for another process's context
                self._start_ahead()
        usable = False
        try:
            found = self.kept[1].run(arm_on_kept_rank, task, self.graphs, timeout=None)
            usable, self.graphs = all(fits for fits, _ in found), found[0][1]
        finally:
            if not usable:
                self._release()
        return None

    def _arm_of(self, item: Item) -> str:
        """The arm of which this is a run."""
        return self.plan.preset.arms[item.arm].of or item.arm

    def _start_ahead(self) -> None:
        """Begin to start ranks, while this thread has something else to do."""
        if self.plan.preset.device in KEPT_ON and not under_torchrun() and not self.spare:
            self.spare = self.starter.submit(started, self.plan.world_size, self.plan.preset.device)

    def _fresh(self) -> RankPool:
        """Ranks that have trained nothing; those that were started ahead, if there are any."""
        spare, self.spare = self.spare, None
        if spare:
            with suppress(LabError):  # a GPU that lets in one process at a time
                return spare.result()
        return RankPool(self.plan.world_size, device=self.plan.preset.device)

    def _release(self) -> None:
        """End the ranks that were kept."""
        if self.kept:
            self.kept[1].close()
            self.kept = None

    def _end(self, few: bool) -> int:
        """Judge, print; the exit status."""
        assert self.record is not None
        plan, budget, failed = self.plan, self.budget, self.failed
        # What was started and is not done was paused.
        budget.left += [i for i in budget.done if i.key not in failed and not is_done(plan, i.part, i.arm)]
        word = summarise(plan, failed, self.console, self.record, budget)
        if budget.left and not failed:
            return UNFINISHED
        return int(bool(failed) or not (word == "pass" or (word == "incomplete" and few)))

    def _everywhere(self, decision: Any) -> Any:
        """Rank 0's decision."""
        # Under torchrun every rank keeps its own clock, and two clocks can disagree. On the preset's device, like
        # everything else: torchrun's ranks are joined once, for one device.
        if not under_torchrun():
            return decision
        return run_ranks(_from_rank_0, decision, timeout=None, device=self.plan.preset.device)[0]


def arm_on_rank(group: Group, task: Task) -> Try | None:
    """Train an arm on each rank; return what was learned of the batch. LabError: a window neither measured nor paused."""
    timer = Window(*task.window) if task.window else None
    hooks: list[Hook] = [timer] if timer else []
    hooks += [Control(task.baselines)] if task.baselines else []
    done = train_job(
        group,
        task.config,
        task.folder,
        resume=timer is None,
        hooks=[*hooks, Deadline(task.deadline, task.stop)],
        record_fields={**task.about, "world": {"size": group.size, "device": group.device.type}},
    )
    if timer and not done["paused"] and done["stopped"] not in (OVER, ANOTHER):
        raise LabError(f"it ended before its window did: {done['stopped'] or 'it has no more steps'}")
    return timer.tried if timer else None


def started(size: int, device: str) -> RankPool:
    """Ranks that have joined each other and imported the compiler."""
    pool = RankPool(size, device=device)
    pool.run(import_compiler, timeout=None)
    return pool


def import_compiler(group: Group) -> None:
    import torch._inductor.compile_fx  # noqa: F401  imported ahead, while the corpus is cut


def arm_on_kept_rank(group: Group, task: Task, graphs: int) -> tuple[bool, int]:
    """The same, and then what `forget` says."""
    arm_on_rank(group, task)
    return forget(group.device, graphs)


def _from_rank_0(group: Group, decision: Any) -> Any:
    return None if group.rank else decision
