"""What a comparison says: `announce` before it starts; at its end `summarise`, which judges and writes the record, and
`show`, which prints what a record says."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from labkit.compare import memory, repeats, table
from labkit.compare.arms import Arm, answers, arm_rows, heldout_of, still_needed
from labkit.compare.budget import Budget, price_of, spent
from labkit.compare.plan import Plan
from labkit.compare.report import recommended, report
from labkit.compare.speed_verdict import cost_sentence, speed_results, unlike_window
from labkit.compare.statistic import ACCEPTED, MOST
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.precision.products import this_cpu
from labkit.record.read import RunData, read_run
from labkit.record.run import RunRecord
from labkit.record.schema import Call, TrainRun, Verdict
from labkit.train.data.corpus import build_corpus

Printed = list[tuple[list[table.Column], list[Arm]]]  # tables: columns, rows


# ---- before it starts


def announce(plan: Plan, console: Console, budget: Budget) -> None:
    """Say what will run, what will not and why, and what it is predicted to take."""
    preset, items, sure = plan.preset, plan.items(), plan.sure()
    say(console, "", head=preset.title)
    steps = preset.config(preset.baseline()).steps
    say(console, f"Ranks: {plan.world_size}, on {preset.device}. Steps of each variant: {steps}. Folder: {plan.out}")
    if (repeat := preset.repeat) and repeat.spread is None and any(part == "safety" for part, _ in plan.todo):
        say(console, f"The spread of such runs has no record: {repeat.candidate} runs of each candidate")
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
            ours = [item for item in sure if item.part == part]
            runs = Counter(preset.arms[item.arm].of or item.arm for item in ours)
            first = {preset.arms[item.arm].of or item.arm: item.predicted_s / 60 for item in reversed(ours)}
            each = [f"{preset.arms[n].label} {f'{k} x ' if k > 1 else ''}{first[n]:.1f}" for n, k in runs.items()]
            say(console, f"  {part}, minutes predicted: {', '.join(each)}")
        limit = f"; this call stops inside {budget.minutes:g} minutes" if budget.minutes else ""
        say(console, f"Predicted: {predicted(plan, budget)}{limit}")
    if preset.device == "cuda" and plan.memory_gib and preset.baseline_format == "BF16":  # what memory.predict knows
        for part in parts:
            config = plan.config(part, preset.baseline())
            need = memory.predict(config, plan.world_size)["peak"] / memory.GIB
            warning = "; that may not fit: take a smaller batch" if need > 0.95 * plan.memory_gib else ""
            again = ", each block computed again in the backward" if config.activation_checkpointing == "block" else ""
            what = f"{part}, memory predicted for {preset.baseline_format}{again}"
            say(console, f"  {what}: {need:.0f} of {plan.memory_gib:.0f} GiB a GPU{warning}")
    if not plan.todo:
        say(console, "Nothing left to train: this is the finished run. --fresh trains it again.")


def predicted(plan: Plan, budget: Budget) -> str:
    """What the call is predicted to take, and what comes on top if every candidate needs its second look."""
    sure, every = (sum(item.predicted_s for item in items) for items in (plan.sure(), plan.items()))
    more = f", {budget.describe(every)} if every candidate needs its second look" if every > sure else ""
    return budget.describe(sure) + more


def prepare_corpus(plan: Plan, console: Console) -> None:
    """Build the tokens once, here, so that the ranks find them in the cache and nobody waits without a word."""
    configs = [plan.config(part, arm).data for part, arm in plan.todo]
    for data in {config.model_dump_json(): config for config in configs}.values():
        with console.status("corpus: looking for text") as status:
            corpus = build_corpus(data, progress=lambda what, share: status.update(f"corpus: {what} ({share:.0%})"))
        files = len(corpus.files["train"]) + len(corpus.files["heldout"])
        size = f"{len(corpus.train):,} train and {len(corpus.heldout):,} held-out tokens from {files:,} files"
        say(console, f"corpus: {size}, hash {corpus.hash[:12]}", fold=False)


# ---- at its end


def summarise(plan: Plan, failed: Mapping[str, str], console: Console, record: RunRecord, budget: Budget) -> str:
    """Judge the comparison in `plan.out`, close its record, draw report.html, print tables and verdict; return its word.

    failed: arms that broke down, and why, by "<part> <arm>": without them there is no pass. budget: this call's.
    """
    out, preset, skipped = plan.out, plan.preset, plan.missing
    run = read_run(out)
    run.comparison.results.arms.clear()  # an earlier call's: the folders say what became of the arms since
    found, arms = arm_rows(run), {}
    for name in preset.arms:
        arm = found[name]
        if why := failed.get(f"safety {name}"):
            arm.status, arm.note = "failed", why  # also where it failed before its record began
        elif name in skipped:
            arm.status, arm.note = "failed" if arm.data else "skipped", skipped[name]
        # Neither those that nobody asked for, nor a recipe that is only timed.
        spare = arm.role in ("candidate", "repeat") and name not in plan.requested and preset.repeat
        if arm.status != "pending" and not (spare and arm.status == "skipped"):
            arms[name] = arm
    finished = {name: heldout_of(run.arms[name]) for name, arm in arms.items() if arm.status == "finished"}
    if preset.repeat:
        verdict = repeats.judge(finished, preset, plan.requested, skipped)
    else:
        waiting = {item.arm for item in budget.left if item.part == "safety"}
        verdict = repeats.judge_check(arms, preset, skipped, waiting)
    for name, about in preset.arms.items():
        if why := failed.get(f"safety {name}"):
            verdict.reasons.append(f"{about.label}: failed, {why}")
    if different := differing([run.arms[name].training for name in finished]):
        why = f"the arms differ in more than precision ({different})"
        verdict.word, verdict.sentence = "incomplete", f"No verdict: {why}. Train them again with --fresh."
    note_call(record, budget, ended=True)
    results = read_run(out).comparison.results
    why = "it was asked to stop" if budget.stop_requested() else "the budget is spent"
    left = {item.arm: f"left for another call, {why}" for item in budget.left if item.part == "speed"}
    if preset.speed:
        lost = {**skipped, **{name: why for name in preset.timed if (why := failed.get(f"speed {name}"))}, **left}
        record.results(speed=speed_results(preset, out, lost, results.tries))
    if preset.repeat:
        verdict.next = to_decide(verdict, plan, budget)
    record.results(arms={name: arm.row() for name, arm in arms.items()}, verdict=verdict)
    # Before the page is drawn, which describes the record.
    record.finish("failed" if failed else "paused" if budget.left else "finished")
    with console.status("drawing the report"):
        report(out)
    console.print()
    show(out, console)
    return verdict.word


def to_decide(verdict: Verdict, plan: Plan, budget: Budget) -> list[str]:
    """For each undecided recipe a sentence: what would decide it, in runs, steps, minutes and money."""
    preset, base, out = plan.preset, plan.preset.baseline(), []

    def seconds_of(arm: str) -> float:
        """Of one run, as predicted, scaled by how long this call's took."""
        return plan.item("safety", arm).predicted_s * budget.factor("safety")

    for name, judged in verdict.arms.items():
        if judged.word != "undecided" or preset.arms[name].role != "candidate":
            continue
        label, needed = preset.arms[name].label, judged.needed
        later = [run for run, arm in preset.arms.items() if arm.of == name and arm.look > 1]
        if later and judged.look == 1:
            runs, seconds = len(later), len(later) * seconds_of(name)
            advice = f"{label}: the same command goes on with {runs} more runs of it and judges once more"
        elif needed:
            runs, seconds = 2 * needed, needed * (seconds_of(base) + seconds_of(name))
            both = f"a comparison of {needed} runs of it and {needed} of {preset.baseline_format} would decide"
            sets = f"--set repeat.baseline={needed} --set repeat.candidate={needed}"
            broken = [arm for arm, about in preset.arms.items() if about.role == "broken"]
            names = ",".join([base, name, *broken])
            call = f"`--arms {names} --part safety {sets}`, in another folder with --out"
            advice = f"{label}: {both}, if gap and scatter are what they seem ({call})"
        else:
            why = f"it lies about at the {ACCEPTED} % that is accepted, or its runs scatter too far"
            out.append(f"{label}: no number of runs up to {MOST} would decide it, if its gap is what it seems: {why}.")
            continue
        steps = runs * preset.config(name).steps
        out.append(f"{advice}: {steps:,} steps, about {budget.describe(seconds)}.")
    return out


def note_call(record: RunRecord, budget: Budget, *, ended: bool = False) -> None:
    """Write down what this call has taken so far, in place of what it wrote before."""
    # A call that is killed, or whose machine goes away, so leaves the minutes that were paid for up to its last arm.
    calls = read_run(record.path).comparison.results.calls
    others = [call for call in calls if call.began != budget.began]
    record.results(calls=[*others, budget.call(ended=ended)])


def show(out: Path, console: Console) -> None:
    """Print the tables and the verdicts of a comparison that has been judged: from its record alone."""
    run = read_run(out)
    record, arms = run.comparison, arm_rows(run)
    form, baseline, speed = record.config.format, record.config.baseline_format, record.results.speed
    timed, trained = tables(run, arms)
    if both := answers(arms):
        console.print(table.on_terminal(table.of_answers(both, baseline), both))
        console.print()
        if said := table.assumed(both, baseline):
            say(console, said)
            console.print()
        if recipe := recommended(both, form, baseline):
            say(console, recipe, style="bold")
            console.print()
    if speed:
        for columns, rows in timed:
            console.print(table.on_terminal(columns, rows))
            console.print()
        for reason in unlike_window(speed.arms):
            say(console, reason)
        say(console, f": {speed.verdict.sentence}", head="SPEED")
        if priced := cost_sentence(speed.arms, price_of(record.results.calls)):
            say(console, f"  {priced}")
        for tip in speed.verdict.next:
            say(console, f"  To try next: {tip}")
        console.print()
    verdict = record.results.verdict or Verdict()
    for columns, rows in trained:
        console.print(table.on_terminal(columns, rows))
    if trained or not speed:
        one = " (one run of each arm)" if verdict.band and not record.config.repeat else ""
        say(console, f"{one}: {verdict.sentence}", head=("SAFETY, " if speed else "") + verdict.word.upper())
        for advice in verdict.next:
            say(console, f"  To decide: {advice}")
    *earlier, call = record.results.calls or [Call()]
    if call.items and (speed or call.minutes):
        minutes = sum(item.predicted_s for item in call.done) / 60
        measured = f"Measured: {spent([call])}; predicted for these arms: {minutes:.1f} minutes."
        say(console, f"{measured}{together(earlier, call)}")
    if needed := still_needed(call, arms):
        left = ", ".join(f"{item.label} ({item.part})" for item in needed)
        say(console, f"Left for another call, the same command goes on: {left}")
    if note := record.config.note:
        say(console, note.strip())
    say(console, f"Report: {out / 'report.html'}", fold=False)


def together(earlier: Sequence[Call], call: Call) -> str:
    """What all calls took, in a sentence after the last one's; "" if it was the only one that took a minute."""
    if sum(before.seconds for before in earlier) < 60:
        return ""
    calls = [*earlier, call]
    least = "" if all(one.ended for one in calls) else "at least "
    costs = [one.cost for one in calls if one.cost is not None]
    cost = f", {sum(costs):.2f} in all" if len(costs) == len(calls) else ""
    return f" With the calls before it {least}{sum(one.seconds for one in calls) / 60:.1f} minutes{cost}."


def differing(arms: Sequence[TrainRun]) -> str:
    """Names of what is not the same in all arms, without which a gap between them says nothing; "" if all of it is."""
    values = {"text": {run.corpus.get("hash") for run in arms}}
    values["number of ranks"] = {run.world.size for run in arms if run.world}
    values["torch version"] = {run.versions.get("torch") for run in arms}
    known = {name: sorted(map(str, seen - {None})) for name, seen in values.items()}
    return "; ".join(f"{name}: {', '.join(seen)}" for name, seen in known.items() if seen[1:])


# ---- the tables


def tables(run: RunData, arms: Mapping[str, Arm]) -> tuple[Printed, Printed]:
    """Of the speed part: rates, and milliseconds where arms were profiled; of the loss's: arms with a result or why
    they have none, further runs in their arm's line. A table without rows is none."""
    results, baseline = run.comparison.results, run.comparison.config.baseline_format
    timed = [arms[name] for name in results.timed]
    profiled = [arm for arm in timed if arm.timed and arm.timed.kernels]
    trained = [arms[name] for name in results.arms if arms[name].role != "repeat"]
    speed = [(table.of_speed(timed, baseline), timed), (table.of_milliseconds(), profiled)]
    losses = [(table.of_losses([*arms.values()], (results.verdict or Verdict()).band), trained)]
    return [each for each in speed if each[1]], [each for each in losses if each[1]]


def markdown(path: str | Path) -> str:
    """The same tables as Markdown, from a finished comparison's record; a part that was not measured has no table."""
    run = read_run(path)
    if not run.is_comparison or not run.comparison.results.verdict:
        raise LabError(f"{path} holds no finished comparison: only a comparison has this table")
    timed, trained = tables(run, arm_rows(run))
    return "\n\n".join(table.as_markdown(columns, rows) for columns, rows in (*timed, *trained))
