"""`lab compare`: train the arms of a preset one after another, then judge them.

    plan      what this machine can run is found out, and said, before anything starts (labkit.compare.plan)
    predict   minutes, and money if its price is told; an arm that does not fit into the budget is left for another call
    run       each arm is `train_job` on its own ranks, writing its own run folder; a finished arm is never run twice
              speed/NAME   timed in a window, if the preset asks (labkit.compare.speed)
              arms/NAME    trained for the loss
    judge     from the folders alone: verdicts, tables, report.html

So whatever stops a comparison, the same command goes on with the arms it has. Where one is running in the folder
already, the command shows that one instead (labkit.compare.follow); detached, it outlives its terminal
(labkit.compare.background). Under torchrun every rank comes through here; rank 0 plans, writes, prints and decides when
to stop, the others follow it, and all end with its exit status.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.prompt import Confirm
from rich.status import Status

from labkit.comm.autopsy import RanksFailed
from labkit.comm.group import Group
from labkit.comm.ranks import run_ranks, under_torchrun
from labkit.compare import background, batches, follow, memory, own
from labkit.compare.budget import Budget
from labkit.compare.forecast import Forecast
from labkit.compare.plan import Plan, check_part, fitting, folder_of, is_done, make_plan, other_settings
from labkit.compare.preset import Preset, load_preset
from labkit.compare.speed import ANOTHER, OVER, Control, Deadline, Window
from labkit.compare.summary import note_call, summarise
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.model.files import name_of
from labkit.precision.products import this_cpu
from labkit.record.read import load_run
from labkit.record.run import RunRecord
from labkit.record.schema import Item, Try
from labkit.train.data.corpus import build_corpus
from labkit.train.job import train_job
from labkit.train.loop import Hook

CORPUS_LINE_EVERY = 3.0  # seconds; it is built once, in 5 to 20 s
UNFINISHED = 3  # exit status: the budget ended it, the same command goes on


def compare(
    preset: str,
    *,
    arms: Iterable[str] | None = None,
    out: Path | None = None,
    settings: list[str] | None = None,
    model: Path | None = None,
    fresh: bool = False,
    console: Console | None = None,
    part: str | None = None,
    budget_minutes: float | None = None,
    price_per_hour: float | None = None,
    detach: bool = False,
    stop: bool = False,
) -> int:
    """Run a comparison and print its verdict. Returns the exit status: 0 if the verdict is pass, or if the arms or the
    part asked for by name have their results and are too few for a verdict; 3 if the budget, or somebody who asked for
    a pause, left something for another call; 1 for everything else (fail, no power, an arm that failed). Under torchrun
    every rank returns rank 0's.

    model: a file with another model's shape, in place of the preset's (labkit.compare.own). part: "speed" or "safety"
    alone. budget_minutes: of this call. price_per_hour: of the whole machine, for telling
    money. detach: start it apart from this terminal and return at once. stop: ask the one that runs in the folder to
    pause. One that runs there is followed to its end, instead of starting another.

    LabError, before anything starts: unknown preset or arm, a setting that does not fit, a machine that cannot run it,
    a folder that holds something else. KeyboardInterrupt passes through with the record marked as interrupted.
    """
    leader = int(os.environ.get("RANK", 0)) == 0 if under_torchrun() else True
    console = (console or Console()) if leader else Console(quiet=True)
    arms = list(arms) if arms is not None else None
    settings = [*(own.settings(preset, model, settings or ()) if model else ()), *(settings or ())]
    whole = load_preset(preset, settings)
    if arms is None and (other := fitting(whole, settings)) is not whole:
        why = f"the GPUs here have no FP8 products, which {whole.name} compares"
        say(console, f"{why}: this is {other.name}, {other.format} against {other.yardstick}")
        whole = other
    wanted = list(whole.arms if arms is None else whole.only(arms).arms)
    parts = check_part(whole, part)
    out = Path(out or Path("runs") / (f"{whole.name}-{name_of(model)}" if model else whole.name))
    budget = Budget(budget_minutes, price_per_hour, out / background.STOP)
    if stop and (detach or fresh):
        raise LabError("--stop asks a running comparison to pause: it goes with no --detach and no --fresh")
    if under_torchrun():
        if detach or stop:
            raise LabError(
                "--detach and --stop go without torchrun: on one machine `--set world_size=0` takes every "
                "GPU, and torchrun itself can be started by nohup"
            )
        # One rank decides what there is to do, or two could see the folder in two states.
        plan = run_ranks(
            _plan_on_rank_0, whole, wanted, arms is not None, out, fresh, parts, timeout=None, device=whole.device
        )[0]
        if isinstance(plan, LabError):
            raise plan
    else:
        if stop:
            return follow.stop(out, console)
        if background.going(out):
            _refuse_other(out, whole, fresh)
            return follow.follow(out, console)
        follow.tell_death(out, console)
        if whole.device == "cuda":
            background.refuse_company(out)
        plan = make_plan(whole, wanted, explicit=arms is not None, out=out, fresh=fresh, parts=parts)
    if leader and whole.device == "cuda" and plan.todo and budget.minutes is None:
        ask_without_budget(plan, console, budget)
    if detach:
        return _detach(plan, console, budget, preset, arms, settings, part)
    if leader:
        background.begin(out)
    record = RunRecord.open(plan.out) if leader else None
    if record:
        predicted = sum(item.predicted_s for item in plan.sure())
        call = {"began": budget.began, "minutes": budget.minutes, "predicted_s": predicted}
        record.update(status="running", finished=None, call=call)
    failed: dict[str, str] = {}
    try:
        with record if record else nullcontext():
            if leader:
                announce(plan, console, budget)
                prepare_corpus(plan, console)
            items = plan.items()
            for number, item in enumerate(items):
                if closed := _same_everywhere(plan.gate_closed(item) if leader else "", plan):
                    plan.missing[item.arm] = closed
                    if not plan.preset.arms[item.arm].of:
                        say(console, f"{item.label}: refused, {closed}")
                    continue
                look = _same_everywhere(plan.second_look(item) if leader else "", plan)
                if look == "decided":
                    say(console, f"{item.label}: not needed, its first runs decided")
                    continue
                if look == "waits":
                    budget.left.append(item)
                    continue
                if not _same_everywhere(budget.fits(item), plan):
                    continue
                if record:
                    note_call(record, budget)
                begin = time.time()
                later = [each for each in items[number + 1 :] if plan.preset.arms[each.arm].look == 1]
                forecast = Forecast(budget.done, item, later)
                which = f"{number + 1} of {len(items)}"
                why = run_arm(plan, item, console, leader, budget, forecast, which, record)
                budget.took(item, time.time() - begin)
                if why:
                    failed[item.key] = why
                    say(console, f"{item.label} ({item.part}) failed: {why}", style="bold")
                elif leader:
                    folder = folder_of(plan.out, item.part, item.arm)
                    say(console, follow.line(item.part, item.label, folder))
            status = 0
            if record:
                for item in [i for i in budget.done if i.key not in failed and not is_done(plan, i.part, i.arm)]:
                    budget.left.append(item)  # paused
                word = summarise(plan, failed, console, record, budget)
                few = word == "incomplete" and (arms is not None or parts == ("speed",))
                status = UNFINISHED if budget.left and not failed else int(bool(failed) or not (word == "pass" or few))
            return _same_everywhere(status, plan)
    except KeyboardInterrupt:
        say(console, f"Interrupted. The same command goes on with the arms it has: {plan.out}")
        raise
    finally:
        if record:
            record.close()
            (out / background.STOP).unlink(missing_ok=True)  # a request that came too late is not for the next call


def ask_without_budget(plan: Plan, console: Console, budget: Budget) -> None:
    """A rented GPU costs by the minute: whoever starts without a limit is told what it will take, and at a terminal
    asked. LabError if the answer is no."""
    told, more = _predicted(plan, budget)
    said = f"No --budget-minutes: this starts {len(plan.sure())} trainings, predicted to take {told}{more}."
    say(console, said, style="bold")
    if console.is_terminal and sys.stdin.isatty() and not Confirm.ask("Start them?", console=console, default=False):
        raise LabError("nothing was started: --budget-minutes sets a limit, and `lab follow` shows a run that goes on")


def _predicted(plan: Plan, budget: Budget) -> tuple[str, str]:
    """What the call is predicted to take, and what comes on top if every candidate needs its second look."""
    sure, every = (sum(item.predicted_s for item in items) for items in (plan.sure(), plan.items()))
    more = f", {budget.describe(every)} if every candidate needs its second look" if every > sure else ""
    return budget.describe(sure), more


def _detach(
    plan: Plan,
    console: Console,
    budget: Budget,
    preset: str,
    arms: list[str] | None,
    settings: list[str],
    part: str | None,
) -> int:
    """Start this call again, apart from the terminal, once the plan has shown that it can run."""
    words = ["compare", "--preset", preset, "--out", str(plan.out)]
    words += ["--arms", ",".join(arms)] if arms is not None else []
    words += [word for setting in settings for word in ("--set", setting)] + (["--part", part] if part else [])
    words += ["--budget-minutes", repr(budget.minutes)] if budget.minutes else []
    words += ["--price-per-hour", repr(budget.price)] if budget.price else []
    announce(plan, console, budget)
    process = background.detach(plan.out, words)
    say(
        console,
        f"Detached, process {process.pid}: it goes on when this terminal closes. The same command shows it, "
        f"so does `lab status {plan.out}`; with --stop it pauses. Log: {plan.out / background.LOG}",
        fold=False,
    )
    return 0


def _refuse_other(out: Path, preset: Preset, fresh: bool) -> None:
    """LabError if what runs in the folder is not what was asked for."""
    if fresh:
        raise LabError(f"a comparison is running in {out}: pause it with --stop before --fresh moves it aside")
    if different := other_settings(out, preset):
        raise LabError(
            f"a comparison with other settings ({different}) is running in {out}: wait for it, pause it "
            "with --stop, or choose another folder with --out"
        )


def announce(plan: Plan, console: Console, budget: Budget) -> None:
    """Say what will run, what will not and why, and what it is predicted to take."""
    preset, items = plan.preset, plan.items()
    say(console, "", head=preset.title)
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    steps = preset.config(preset.baseline()).steps
    say(console, f"{ranks} on {preset.device}, {steps} steps an arm; folder {plan.out}")
    if (repeat := preset.repeat) and repeat.spread is None and any(part == "safety" for part, _ in plan.todo):
        say(
            console, f"No record tells how far runs of this training scatter: {repeat.candidate} runs of each candidate"
        )
    for part, arm in plan.done:
        say(console, f"  {preset.arms[arm].label}: finished already, kept" + (f" ({part})" if preset.speed else ""))
    for arm, why in plan.missing.items():
        if preset.arms[arm].of is None:
            say(console, f"  {preset.arms[arm].label}: skipped, {why}")
    if preset.device == "cpu":
        say(console, f"BF16 products: {this_cpu()}")
    if preset.speed or budget.minutes:
        for part in dict.fromkeys(item.part for item in items):
            say(console, f"  {part}, minutes predicted: {', '.join(_by_arm(plan, part))}")
        if preset.speed and preset.speed.batch and any(item.part == "speed" for item in items):
            say(
                console,
                f"  speed: each arm at its largest batch; {batches.OTHERS} tries of it before are in its minutes",
            )
        limit = f"; this call stops inside {budget.minutes:g} minutes" if budget.minutes else ""
        say(console, f"Predicted: {''.join(_predicted(plan, budget))}{limit}")
    if preset.device == "cuda" and plan.memory_gib and preset.yardstick == "BF16":  # what memory.predict knows
        for part in dict.fromkeys(item.part for item in items):
            tell_memory(plan, part, plan.memory_gib, console)
    if not plan.todo:
        say(console, "Nothing left to train: this is the finished run. --fresh trains it again.")


def _by_arm(plan: Plan, part: str) -> list[str]:
    """ "BF16 4 x 1.2", for each arm of a part, without the second look's runs."""
    runs: dict[str, list[float]] = {}
    for item in plan.sure():
        if item.part == part:
            arms = plan.preset.arms
            runs.setdefault(arms[arms[item.arm].of or item.arm].label, []).append(item.predicted_s / 60)
    return [f"{label} {f'{len(each)} x ' if each[1:] else ''}{each[0]:.1f}" for label, each in runs.items()]


def tell_memory(plan: Plan, part: str, have: float, console: Console) -> None:
    """What BF16 is predicted to need of a GPU that has `have` GiB; a warning if that is more."""
    need = memory.predict(plan.config(part, plan.preset.baseline()), plan.world_size)["peak"] / memory.GIB
    warning = "; that may not fit: take a smaller batch" if need > 0.95 * have else ""
    say(console, f"  {part}, memory predicted for {plan.preset.yardstick}: {need:.0f} of {have:.0f} GiB a GPU{warning}")


def prepare_corpus(plan: Plan, console: Console) -> None:
    """Build the tokens once, here, so that the ranks find them in the cache and nobody waits without being told."""
    configs = [plan.config(part, arm).data for part, arm in plan.todo]
    for data in {config.model_dump_json(): config for config in configs}.values():
        with console.status("corpus: looking for text") as status:
            corpus = build_corpus(data, progress=_corpus_progress(console, status))
        say(
            console,
            f"corpus: {len(corpus.train):,} train and {len(corpus.heldout):,} held-out tokens from "
            f"{len(corpus.files['train']) + len(corpus.files['heldout']):,} files, hash {corpus.hash[:12]}",
            fold=False,
        )


def _corpus_progress(console: Console, status: Status) -> Callable[[str, float], None]:
    """Shows what `build_corpus` reports: in the status line, or without a terminal in a plain line now and then."""
    told = time.monotonic()

    def progress(what: str, share: float) -> None:
        nonlocal told
        status.update(f"corpus: {what} ({share:.0%})")
        if not console.is_terminal and time.monotonic() - told > CORPUS_LINE_EVERY:
            told = time.monotonic()
            say(console, f"corpus: {what} ({share:.0%})")

    return progress


def run_arm(
    plan: Plan,
    item: Item,
    console: Console,
    leader: bool,
    budget: Budget,
    forecast: Forecast,
    which: str,
    record: RunRecord | None,
) -> str:
    """Train one arm of one part; where it is timed, with other batches too, as labkit.compare.batches says and as long
    as the budget has room. which: "2 of 5". Returns "" or, in a sentence, why it failed."""
    if item.part == "safety" or under_torchrun():  # torchrun's ranks are no fresh processes
        return train_arm(plan, item, console, leader, budget, forecast, which)[0]
    tries = plan.tries.setdefault(item.arm, [])
    while size := plan.search(item.arm).micro_batch_size:
        why, tried = train_arm(plan, item, console, leader, budget, forecast, which)
        if tried is None:
            return why
        before = [each for each in tries if each.micro_batch_size != size]  # one that was paused has been tried already
        tries[:] = [*before, tried.model_copy(update={"gib": plan.memory_gib})]
        if record:
            record.results(tries=plan.tries)
        following = plan.search(item.arm).micro_batch_size
        if tried.fitted and following == size:
            return ""  # it was timed
        if following:
            shutil.rmtree(folder_of(plan.out, "speed", item.arm), ignore_errors=True)  # the record has what it told
            say(console, f"{item.label}: {batches.describe(tries)}; next: {following}")
            if budget.asked() or budget.late(plan.item("speed", item.arm).predicted_s):
                return ""  # left for another call
    return f"it fits into no GPU here: {batches.describe(tries)}"


def train_arm(
    plan: Plan, item: Item, console: Console, leader: bool, budget: Budget, forecast: Forecast, which: str
) -> tuple[str, Try | None]:
    """Train one arm of one part on its ranks. Returns ("" or, in a sentence, why it failed; what was learned of its
    batch, if anything was)."""
    preset, config, folder = plan.preset, plan.config(item.part, item.arm), folder_of(plan.out, item.part, item.arm)
    # The command is what was typed: a rank's own command line says nothing.
    about = {"arm": item.arm, "label": item.label, "role": preset.arms[item.arm].role}
    about["command"] = load_run(plan.out)["command"]
    label, window, search = f"{item.label} ({which})", None, None
    control = plan.baselines() if leader and about["role"] == "broken" and item.part == "safety" else []
    control = _same_everywhere(control, plan)
    steps: int | None = config.steps
    if item.part == "speed":
        of = preset.window()
        search = plan.search(item.arm)
        window = (of.seconds, of.warmup, of.profile, search if of.batch else None)
        label, steps = f"{item.label}, speed ({which})", None
        if leader and folder.exists():
            shutil.rmtree(folder)  # a window is not resumed: it starts anew
    try:
        with follow.TrainingProgress(console, label, folder, steps, forecast) if leader else nullcontext():
            tried = run_ranks(
                arm_on_rank,
                config.model_dump(),
                str(folder),
                about,
                window,
                (budget.deadline, str(budget.stop)),
                control,
                size=None if under_torchrun() else plan.world_size,
                timeout=None,
                device=preset.device,
            )[0]
        if leader and is_done(plan, item.part, item.arm):
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # they were for going on after a pause
    except RanksFailed as failure:
        lost = Try(micro_batch_size=search.micro_batch_size) if search and batches.out_of_memory(failure) else None
        return str(failure.error) if isinstance(failure.error, LabError) else failure.autopsy.cause, lost
    return "", tried


def arm_on_rank(
    group: Group,
    config: dict,
    folder: str,
    about: dict,
    window: tuple[float, int, int, batches.Search | None] | None,
    pause: tuple[float | None, str | None],
    control: list[dict[int, float]],
) -> Try | None:
    """What each rank does for an arm: train, in the speed part until its window is over, with `control` (held-out
    losses of the baseline's runs) until it is rejected; leave everything in the folder. Returns what was learned of the
    batch, if the largest is looked for. LabError for a window that was neither measured nor paused."""
    timer = Window(*window) if window else None
    hooks: list[Hook] = [timer] if timer else []
    hooks += [Control(control)] if control else []
    done = train_job(
        group,
        config,
        folder,
        resume=window is None,
        hooks=[*hooks, Deadline(*pause)],
        record_fields={**about, "world": {"size": group.size, "device": group.device.type}},
    )
    if timer and not done["paused"] and done["stopped"] not in (OVER, ANOTHER):
        raise LabError(f"it ended before its window did: {done['stopped'] or 'it has no more steps'}")
    return timer.tried if timer else None


def _same_everywhere(decision: Any, plan: Plan) -> Any:
    """Rank 0's decision. Under torchrun every rank keeps its own clock, and two clocks can disagree. On the preset's
    device, like everything else: torchrun's ranks are joined once, for one device."""
    if not under_torchrun():
        return decision
    return run_ranks(_from_rank_0, decision, timeout=None, device=plan.preset.device)[0]


def _from_rank_0(group: Group, decision: Any) -> Any:
    return None if group.rank else decision


def _plan_on_rank_0(
    group: Group, preset: Preset, wanted: list[str], explicit: bool, out: Path, fresh: bool, parts: tuple[str, ...]
) -> Any:
    if group.rank:
        return None
    try:
        if background.going(out):
            raise LabError(f"a comparison is running in {out} already: `lab status {out}` shows it")
        return make_plan(preset, wanted, explicit=explicit, out=out, fresh=fresh, parts=parts)
    except LabError as error:
        return error
