"""What a comparison says at its end: `summarise` judges and writes the record; `show` prints what a record says."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from labkit.compare import repeats, table
from labkit.compare.arms import Arm, answers, arm_rows, heldout_of, still_needed, timed_arms
from labkit.compare.budget import Budget, predict, price_of
from labkit.compare.check import judge_check
from labkit.compare.plan import Plan
from labkit.compare.report import recommended, report
from labkit.compare.speed_verdict import cost_sentence, speed_results, unlike_window
from labkit.compare.statistic import ACCEPTED, MOST
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.record.read import RunData, read_run
from labkit.record.run import RunRecord
from labkit.record.schema import Call, TrainRun, Verdict

# What must be equal in all arms, or a gap between them says nothing.
SAME = {
    "text": lambda run: run.corpus.get("hash"),
    "number of ranks": lambda run: run.world and run.world.size,
    "torch version": lambda run: run.versions.get("torch"),
}


def summarise(plan: Plan, failed: Mapping[str, str], console: Console, record: RunRecord, budget: Budget) -> str:
    """Judge the comparison in `plan.out`, close its record, draw report.html, print tables and verdict; return its word.

    failed: arms that broke down, and why, by "<part> <arm>": without them there is no pass. budget: this call's.
    """
    out, preset, skipped = plan.out, plan.preset, plan.missing
    of_speed, of_safety = (
        {key.removeprefix(part): why for key, why in failed.items() if key.startswith(part)}
        for part in ("speed ", "safety ")
    )
    run = read_run(out)
    run.comparison.results.arms.clear()  # an earlier call's: the folders say what became of the arms since
    found, arms = arm_rows(run), {}
    for name in preset.arms:
        arm = found[name]
        if name in of_safety:
            arm.status, arm.note = "failed", of_safety[name]  # also where it failed before its record began
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
        verdict = judge_check(arms, preset, skipped, {item.arm for item in budget.left if item.part == "safety"})
    verdict.reasons += [f"{preset.arms[name].label}: failed, {why}" for name, why in of_safety.items()]
    if different := differing([run.arms[name].training for name in finished]):
        why = f"the arms differ in more than precision ({different})"
        verdict.word, verdict.sentence = "incomplete", f"No verdict: {why}. Train them again with --fresh."
    note_call(record, budget, ended=True)
    results = read_run(out).comparison.results
    why = "it was asked to stop" if budget.stop_requested() else "the budget is spent"
    left = {item.arm: f"left for another call, {why}" for item in budget.left if item.part == "speed"}
    if preset.speed:
        record.results(speed=speed_results(preset, out, {**skipped, **of_speed}, left, results.tries))
    if preset.repeat:
        verdict.next = to_decide(verdict, plan, results.calls, budget)
    record.results(arms={name: arm.row() for name, arm in arms.items()}, verdict=verdict)
    # Before the page is drawn, which describes the record.
    record.finish("failed" if failed else "paused" if budget.left else "finished")
    with console.status("drawing the report"):
        report(out)
    console.print()
    show(out, console)
    return verdict.word


def to_decide(verdict: Verdict, plan: Plan, calls: Sequence[Call], budget: Budget) -> list[str]:
    """For each undecided recipe a sentence: what would decide it, in runs, steps, minutes and money."""
    preset, out = plan.preset, []
    items = {(item.part, item.arm): item for call in calls for item in call.items}
    took = {arm: item.measured_s for (part, arm), item in items.items() if part == "safety" and item.measured_s}

    def seconds(arm: str) -> float:
        """Of one run: as measured here, else as predicted."""
        known = [s for name, s in took.items() if arm in (name, preset.arms[name].of)]
        return sum(known) / len(known) if known else predict(preset, "safety", arm, None, plan.world_size).predicted_s

    for name, judged in verdict.arms.items():
        if judged.word != "undecided" or preset.arms[name].role != "candidate":
            continue
        base, steps, label = preset.baseline(), preset.config(name).steps, preset.arms[name].label
        later = [run for run, arm in preset.arms.items() if arm.of == name and arm.look > 1]
        if later and judged.look == 1:
            runs, all_of = len(later), len(later) * seconds(name)
            advice = f"{label}: the same command goes on with {runs} more runs of it and judges once more"
        elif not (needed := judged.needed):
            why = f"it lies about at the {ACCEPTED} % that is accepted, or its runs scatter too far"
            out.append(f"{label}: no number of runs up to {MOST} would decide it, if its gap is what it seems: {why}.")
            continue
        else:
            runs, all_of = 2 * needed, needed * (seconds(base) + seconds(name))
            broken = next((arm for arm, about in preset.arms.items() if about.role == "broken"), "broken")
            sets = f"--set repeat.baseline={needed} --set repeat.candidate={needed}"
            both = f"a comparison of {needed} runs of it and {needed} of {preset.yardstick} would decide"
            call = f"`--arms {base},{name},{broken} --part safety {sets}`, in another folder with --out"
            advice = f"{label}: {both}, if gap and scatter are what they seem ({call})"
        out.append(f"{advice}: {runs * steps:,} steps, about {budget.describe(all_of)}.")
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
    form, baseline, speed = record.config.format, record.config.yardstick, record.results.speed
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
        for columns, rows in speed_tables(timed_arms(run, arms), baseline):
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
    if trained := loss_rows(run, arms):
        console.print(table.on_terminal(table.of_losses([*arms.values()], verdict.band), trained))
    if trained or not speed:
        one = " (one run of each arm)" if verdict.band and not record.config.repeat else ""
        say(console, f"{one}: {verdict.sentence}", head=("SAFETY, " if speed else "") + verdict.word.upper())
        for advice in verdict.next:
            say(console, f"  To decide: {advice}")
    *earlier, call = record.results.calls or [Call()]
    if call.items and (speed or call.minutes):
        predicted = sum(item.predicted_s for item in call.done)
        cost = "" if call.cost is None else f", {call.cost:.2f} at {call.price_per_hour:.2f} an hour"
        least = "" if call.ended else "at least "
        measured = f"Measured: {least}{call.seconds / 60:.1f} minutes{cost}; predicted for these arms: "
        say(console, f"{measured}{predicted / 60:.1f} minutes.{together(earlier, call)}")
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


def differing(arms: Iterable[TrainRun]) -> str:
    """Names of what is not the same in all arms and should be; "" if they may be held against each other."""
    values = {name: {value_of(arm) for arm in arms} - {None} for name, value_of in SAME.items()}
    return "; ".join(f"{name}: {', '.join(sorted(map(str, seen)))}" for name, seen in values.items() if len(seen) > 1)


# ---- the tables


def speed_tables(timed: list[Arm], baseline: str) -> list[tuple[list[table.Column], list[Arm]]]:
    """(columns, rows): the rates, and the milliseconds if any arm was profiled; none if nothing was timed."""
    profiled = [arm for arm in timed if arm.timed and arm.timed.kernels]
    both = [(table.of_speed(timed, baseline), timed), (table.of_milliseconds(), profiled)]
    return [(columns, rows) for columns, rows in both if rows]


def loss_rows(run: RunData, arms: Mapping[str, Arm]) -> list[Arm]:
    """The arms that the record has a result of, or says why it has none: further runs of an arm stand in its line."""
    return [arms[name] for name in run.comparison.results.arms if arms[name].role != "repeat"]


def markdown(path: str | Path) -> str:
    """The same tables as Markdown, from a finished comparison's record; a part that was not measured has no table."""
    run = read_run(path)
    record, arms = run.comparison, arm_rows(run)
    if not run.is_comparison or not record.results.verdict:
        raise LabError(f"{path} holds no finished comparison: only a comparison has this table")
    parts = speed_tables(timed_arms(run, arms), record.config.yardstick)
    if trained := loss_rows(run, arms):
        parts.append((table.of_losses([*arms.values()], record.results.verdict.band), trained))
    return "\n\n".join(table.as_markdown(columns, rows) for columns, rows in parts)
