"""What `lab compare` says before it starts: what will run, what will not and why, and what it is predicted to take."""

import time

from rich.console import Console
from rich.status import Status

from labkit.compare import batches, memory
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan, runs_of_decision
from labkit.compare.terminal import say
from labkit.precision.products import this_cpu
from labkit.train.data.corpus import build_corpus

CORPUS_LINE_EVERY = 3.0  # seconds; it is built once, in 5 to 20 s


def announce(plan: Plan, console: Console, budget: Budget) -> None:
    """Say what will run, what will not and why, and what it is predicted to take."""
    preset, items, sure = plan.preset, plan.items(), plan.sure()
    say(console, "", head=preset.title)
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    steps = preset.config(preset.baseline()).steps
    say(console, f"{ranks} on {preset.device}, {steps} steps an arm; folder {plan.out}")
    if (repeat := preset.repeat) and repeat.spread is None and any(part == "safety" for part, _ in plan.todo):
        say(console, f"No record tells how far runs of this training scatter: {repeat.candidate} runs a candidate")
    for part, arm in plan.done:
        say(console, f"  {preset.arms[arm].label}: finished already, kept" + (f" ({part})" if preset.speed else ""))
    for arm, why in plan.missing.items():
        if preset.arms[arm].of is None:
            say(console, f"  {preset.arms[arm].label}: skipped, {why}")
    if preset.device == "cpu":
        say(console, f"BF16 products: {this_cpu()}")
    parts = dict.fromkeys(item.part for item in items)
    if preset.speed or budget.minutes:
        for part in parts:
            runs: dict[str, list[float]] = {}  # minutes of each run, by arm
            for item in sure:
                if item.part == part:
                    label = preset.arms[preset.arms[item.arm].of or item.arm].label
                    runs.setdefault(label, []).append(item.predicted_s / 60)
            each = [f"{label} {f'{len(all_)} x ' if all_[1:] else ''}{all_[0]:.1f}" for label, all_ in runs.items()]
            say(console, f"  {part}, minutes predicted: {', '.join(each)}")
        if preset.speed and preset.speed.batch and "speed" in parts:
            say(console, f"  speed: each arm at its largest batch; {batches.OTHERS} tries before are in its minutes")
        limit = f"; this call stops inside {budget.minutes:g} minutes" if budget.minutes else ""
        say(console, f"Predicted: {predicted(plan, budget)}{limit}")
        if preset.repeat and budget.minutes and plan.requested:
            judged, not_judged = decided_inside(plan, budget)
            for names, what in ((judged, "inside this call"), (not_judged, "by a further call of the same command")):
                if names:
                    say(console, f"  loss judged {what}: {', '.join(preset.arms[name].label for name in names)}")
    if preset.device == "cuda" and plan.memory_gib and preset.yardstick == "BF16":  # what memory.predict knows
        for part in parts:
            config = plan.config(part, preset.baseline())
            need = memory.predict(config, plan.world_size)["peak"] / memory.GIB
            warning = "; that may not fit: take a smaller batch" if need > 0.95 * plan.memory_gib else ""
            again = ", each block computed again in the backward" if config.activation_checkpointing == "block" else ""
            what = f"{part}, memory predicted for {preset.yardstick}{again}"
            say(console, f"  {what}: {need:.0f} of {plan.memory_gib:.0f} GiB a GPU{warning}")
    if not plan.todo:
        say(console, "Nothing left to train: this is the finished run. --fresh trains it again.")


def decided_inside(plan: Plan, budget: Budget) -> tuple[list[str], list[str]]:
    """The requested candidates that the budget is predicted to decide, and the others."""
    done, seconds = {arm for part, arm in plan.done if part == "safety"}, 0.0
    for item in plan.sure():
        if not budget.late(item, after=seconds):
            seconds += item.predicted_s
            done |= {item.arm} if item.part == "safety" else set()
    inside = [name for name in plan.requested if runs_of_decision(plan.preset, name) <= done]
    return inside, [name for name in plan.requested if name not in inside and name not in plan.missing]


def predicted(plan: Plan, budget: Budget) -> str:
    """What the call is predicted to take, and what comes on top if every candidate needs its second look."""
    sure, every = (sum(item.predicted_s for item in items) for items in (plan.sure(), plan.items()))
    more = f", {budget.describe(every)} if every candidate needs its second look" if every > sure else ""
    return budget.describe(sure) + more


def prepare_corpus(plan: Plan, console: Console) -> None:
    """Build the tokens once, here, so that the ranks find them in the cache and nobody waits without a word."""
    configs, said = [plan.config(part, arm).data for part, arm in plan.todo], time.monotonic()
    for data in {config.model_dump_json(): config for config in configs}.values():
        with console.status("corpus: looking for text") as status:

            def progress(what: str, share: float, status: Status = status) -> None:
                """In the status line, or without a terminal in a plain line now and then."""
                nonlocal said
                status.update(f"corpus: {what} ({share:.0%})")
                if not console.is_terminal and time.monotonic() - said > CORPUS_LINE_EVERY:
                    said = time.monotonic()
                    say(console, f"corpus: {what} ({share:.0%})")

            corpus = build_corpus(data, progress=progress)
        files = len(corpus.files["train"]) + len(corpus.files["heldout"])
        size = f"{len(corpus.train):,} train and {len(corpus.heldout):,} held-out tokens from {files:,} files"
        say(console, f"corpus: {size}, hash {corpus.hash[:12]}", fold=False)
