"""What a comparison says at its end: results from the arms' folders, the verdict, a table on the terminal, the page.

`summarise` judges and writes the record; `show` prints what a record says, also for those who come later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from labkit.compare import answer, repeats
from labkit.compare.budget import Budget, predict
from labkit.compare.plan import Plan
from labkit.compare.preset import Preset
from labkit.compare.report import report
from labkit.compare.results import formats_of, heldout_of, price_of, probes_of, worst_sqnr
from labkit.compare.speed_verdict import cost_sentence, speed_results, tables
from labkit.compare.speed_verdict import markdown as speed_markdown
from labkit.compare.statistic import ACCEPTED, MOST
from labkit.compare.terminal import markdown_table, rich_table, say, shown
from labkit.compare.verdict import judge
from labkit.errors import LabError
from labkit.precision.config import PLAIN
from labkit.record.read import RunData, as_dict, load_run, read_run
from labkit.record.run import RunRecord

GIB = 2**30

WORDS = {"inside": "in", "outside": "OUT", "undecided": "?", "reference": "twin"}  # of the gap, in the table
# What must be equal in all arms, or a gap between them says nothing: the name for people, and where it stands in
# run.json.
SAME = {"text": ("corpus", "hash"), "number of ranks": ("world", "size"), "torch version": ("versions", "torch")}


def summarise(plan: Plan, failed: Mapping[str, str], console: Console, record: RunRecord, budget: Budget) -> str:
    """Judge the comparison in `plan.out`, close its record, draw report.html, print tables and verdict; returns the
    word.

    plan.missing: arms that this machine cannot run, and why: the verdict is over the others. failed: arms that broke
    down, and why, by "<part> <arm>": without them there is no pass. budget: this call's, for the minutes and what they
    left undone.
    """
    out, preset, skipped = plan.out, plan.preset, plan.missing
    of_speed, of_safety = (
        {key.removeprefix(part): why for key, why in failed.items() if key.startswith(part)}
        for part in ("speed ", "safety ")
    )
    run, labels = read_run(out), {name: arm.label for name, arm in preset.arms.items()}
    arms = {name: row(run.arms.get(name), preset, name, {**skipped, **of_safety}) for name in preset.arms}
    for name in of_safety:
        arms[name]["status"] = "failed"  # also where it failed before its record began
    arms = {name: arm for name, arm in arms.items() if arm["status"] != "pending"}  # those nobody asked for
    if preset.repeat:  # nor a recipe that is only timed
        spare = [n for n, arm in arms.items() if arm["role"] in ("candidate", "repeat") and n not in plan.asked]
        arms = {name: arm for name, arm in arms.items() if name not in spare or arm["status"] != "skipped"}
    finished = {name: heldout_of(run.arms[name]) for name in arms if arms[name]["status"] == "finished"}
    if preset.repeat:
        verdict = repeats.judge(finished, preset, plan.asked, skipped)
    else:
        verdict = judge(finished, {name: arm["role"] for name, arm in arms.items()}, labels, skipped)
    verdict["reasons"] += [f"{labels[name]}: failed, {why}" for name, why in of_safety.items()]
    waiting = [item for item in budget.left if item.part == "safety" and preset.arms[item.arm].role == "candidate"]
    if waiting and verdict["word"] != "incomplete" and not preset.repeat:
        judged = sum(arm["role"] == "candidate" and arm["status"] == "finished" for arm in arms.values())
        verdict["sentence"] += (
            f" {judged} of {judged + len(waiting)} {preset.format} arms judged: the others are left for another call."
        )
    if different := differing([run.arms[name] for name in finished]):
        said = f"No verdict: the arms differ in more than precision ({different}). Train them again with --fresh."
        verdict.update(word="incomplete", sentence=said)
    left = {item.arm: f"left for another call, {budget.why()}" for item in budget.left if item.part == "speed"}
    speed = speed_results(preset, out, {**skipped, **of_speed}, left) if preset.speed else None
    note_call(record, budget, ended=True)
    if preset.repeat:
        verdict["next"] = to_decide(verdict, plan, load_run(out)["results"]["calls"], budget)
    record.results(arms=arms, verdict=verdict, **({"speed": speed} if speed else {}))
    # Before the page is drawn, which tells what the record says.
    record.finish("failed" if failed else "paused" if budget.left else "finished")
    with console.status("drawing the report"):
        report(out)
    console.print()
    show(out, console)
    return verdict["word"]


def to_decide(verdict: Mapping[str, Any], plan: Plan, calls: list[dict[str, Any]], budget: Budget) -> list[str]:
    """For each undecided recipe a sentence: what would decide it, in runs, steps, minutes and money."""
    preset, out = plan.preset, []
    items = {(item["part"], item["arm"]): item for call in calls for item in call.get("items") or []}
    took = {arm: item["measured_s"] for (part, arm), item in items.items() if part == "safety" and item["measured_s"]}

    def seconds(arm: str) -> float:
        """Of one run: as measured here, else as predicted."""
        known = [s for name, s in took.items() if arm in (name, preset.arms[name].of)]
        return sum(known) / len(known) if known else predict(preset, "safety", arm, None, plan.world_size).predicted

    for name, entry in verdict["arms"].items():
        if entry["word"] != "undecided" or preset.arms[name].role != "candidate":
            continue
        base, steps, label = preset.baseline(), preset.config(name).steps, preset.arms[name].label
        later = [run for run, arm in preset.arms.items() if arm.of == name and arm.look > 1]
        if later and entry["look"] == 1:
            runs, all_of = len(later), len(later) * seconds(name)
            told = f"{label}: the same command goes on with {runs} more runs of it and judges once more"
        elif not (needed := entry["needed"]):
            out.append(
                f"{label}: no number of runs up to {MOST} would decide it, if its gap is what it seems: it lies about "
                f"at the {ACCEPTED} % that is accepted, or its runs scatter too far."
            )
            continue
        else:
            runs, all_of = 2 * needed, needed * (seconds(base) + seconds(name))
            sets = f"--set repeat.baseline={needed} --set repeat.candidate={needed}"
            told = f"{label}: a comparison of {needed} runs of it and {needed} of {preset.yardstick} would decide, if "
            told += f"gap and scatter are what they seem (`--arms {base},{name},{broken_of(preset)} --part safety "
            told += f"{sets}`, in another folder with --out)"
        out.append(f"{told}: {runs * steps:,} steps, about {budget.told(all_of)}.")
    return out


def broken_of(preset: Preset) -> str:
    return next((name for name, arm in preset.arms.items() if arm.role == "broken"), "broken")


def note_call(record: RunRecord, budget: Budget, *, ended: bool = False) -> None:
    """Write down what this call has taken so far, in place of what it wrote before. So a call that is killed, or whose
    machine goes away, leaves the minutes that were paid for: those up to its last arm's start."""
    calls = load_run(record.path).get("results", {}).get("calls") or []
    others = [call for call in calls if call.get("began") != budget.began]
    record.results(calls=[*others, {**budget.to_dict(), "ended": ended}])


def show(out: Path, console: Console) -> None:
    """Print the tables and the verdicts of a comparison that has been judged: from its record alone."""
    run = read_run(out)
    speed, arms, verdict = run.results.get("speed"), run.results["arms"], run.results["verdict"]
    if rows := answer.rows_of(run):
        form, yardstick = formats_of(run)
        heads, told_rows = answer.table(rows, yardstick)
        console.print(rich_table(heads, told_rows))
        console.print()
        if told := answer.recommended(rows, form, yardstick):
            say(console, told, style="bold")
            console.print()
    if speed:
        for each in tables(speed, formats_of(run)[1]) if speed["arms"] else ():
            console.print(each)
            console.print()
        say(console, f": {speed['verdict']['sentence']}", head="SPEED")
        if priced := cost_sentence(speed["arms"], price_of(run)):
            say(console, f"  {priced}")
        for tip in speed["verdict"]["next"]:
            say(console, f"  To try next: {tip}")
        console.print()
    if arms:
        console.print(table(run.results))
    if arms or not speed:
        one = "" if answer.repeated(run) or not verdict.get("band") else " (one run of each arm)"
        say(console, f"{one}: {verdict['sentence']}", head=("SAFETY, " if speed else "") + verdict["word"].upper())
        for told in verdict.get("next") or ():
            say(console, f"  To decide: {told}")
    *earlier, call = run.results.get("calls") or [{}]
    items = call.get("items") or []
    if items and (speed or call.get("minutes")):
        predicted = sum(item["predicted_s"] for item in items if item["measured_s"] is not None)
        cost = "" if call.get("cost") is None else f", {call['cost']:.2f} at {call['price_per_hour']:.2f} an hour"
        least = "" if call.get("ended", True) else "at least "
        told = f"Measured: {least}{call['seconds'] / 60:.1f} minutes{cost}; predicted for these arms: "
        say(console, f"{told}{predicted / 60:.1f} minutes.{together(earlier, call)}")
    if left := [f"{item['label']} ({item['part']})" for item in items if item["left"]]:
        say(console, f"Left for another call, the same command goes on: {', '.join(left)}")
    if run.config.get("note"):
        say(console, run.config["note"].strip())
    say(console, f"Report: {out / 'report.html'}", fold=False)


def together(earlier: list[dict[str, Any]], call: dict[str, Any]) -> str:
    """What all calls took, in a sentence after the last one's; "" if it was the only one that took a minute."""
    if sum(before["seconds"] for before in earlier) < 60:
        return ""
    calls = [*earlier, call]
    least = "at least " if not all(one.get("ended", True) for one in calls) else ""
    costs = [one["cost"] for one in calls if one.get("cost") is not None]
    cost = f", {sum(costs):.2f} in all" if len(costs) == len(calls) else ""
    return f" With the calls before it {least}{sum(one['seconds'] for one in calls) / 60:.1f} minutes{cost}."


def differing(arms: list[RunData]) -> str:
    """Names of what is not the same in all arms and should be; "" if they may be held against each other."""
    values = {
        name: {as_dict(arm.run.get(table)).get(key) for arm in arms} - {None} for name, (table, key) in SAME.items()
    }
    return "; ".join(f"{name}: {', '.join(sorted(map(str, seen)))}" for name, seen in values.items() if len(seen) > 1)


def row(arm: RunData | None, preset: Preset, name: str, missing: Mapping[str, str]) -> dict[str, Any]:
    """One arm's line of the table, as plain values; None where there is nothing to tell."""
    about: dict[str, Any] = {"label": preset.arms[name].label, "role": preset.arms[name].role}
    if of := preset.arms[name].of:
        about |= {"of": of, "look": preset.arms[name].look}
    if name in missing:
        return {**about, "status": "failed" if arm else "skipped", "note": missing[name]}
    if arm is None or arm.status != "finished":
        return {**about, "status": arm.status if arm else "pending", "note": ""}
    results, conversion, last = arm.results, as_dict(arm.run.get("conversion")), heldout_of(arm)
    worst = worst_sqnr(probes_of(arm), (("output",),))
    converted, skipped = len(conversion.get("converted", ())), len(conversion.get("skipped", {}))
    if conversion.get("backend") in PLAIN:  # plain nn.Linear before and after: nothing was converted
        converted, skipped = 0, converted + skipped
    return {
        **about,
        "status": "finished",
        "note": "",
        "tokens_per_s": results.get("tokens_per_s"),
        "peak_bytes": max(results.get("peak_bytes") or [0]) or None,
        "heldout": last[max(last)] if last else None,
        "sqnr": dict(zip(("tensor", "db", "step"), worst)) if worst else None,
        "converted": converted,
        "skipped": skipped,
        "nonfinite": len({event.get("step") for event in arm.events if event.get("kind") == "nonfinite"}),
    }


def cells(arm: Mapping[str, Any], judged: Mapping[str, Any] | None) -> list[str]:
    """One arm's columns after its label: tokens/s, GiB a rank, held-out loss, gap, SQNR, converted/left, NaN events.
    Of an arm that was trained several times, those of its first run, and the gap of all."""
    if arm["status"] != "finished":
        return [arm["status"], *[""] * 6]
    if judged is None or judged.get("word") == "baseline":
        gap = "baseline"
    elif "runs" in judged:
        gap = f"{repeats.interval(judged).replace(' %', '')} {judged['word']}"
    else:
        gap = f"{number(judged['value'], '{:.3f}')} {WORDS.get(judged.get('word', ''), ''):>4}"
    return [
        number(arm["tokens_per_s"], "{:,.0f}"),
        number(arm["peak_bytes"] and arm["peak_bytes"] / GIB, "{:.2f}"),
        number(arm["heldout"], "{:.4f}"),
        gap,
        number(arm["sqnr"] and arm["sqnr"]["db"], "{:.1f}"),
        f"{arm['converted']}/{arm['skipped']}",
        str(arm["nonfinite"]),
    ]


def arms_told(results: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    """(head of the gap's column, a line for each arm): further runs of an arm stand in its line."""
    verdict = results["verdict"]
    band, judged = verdict.get("band"), verdict["arms"]
    several = any("runs" in entry for entry in judged.values())
    head = "gap % [interval]" if several else f"gap % (band {band['threshold']:.2g})" if band else "gap %"
    arms = {name: arm for name, arm in results["arms"].items() if arm["role"] != "repeat"}
    return head, [[arm["label"], *cells(arm, judged.get(name))] for name, arm in arms.items()]


def table(results: Mapping[str, Any]) -> Table:
    """The table that ends a comparison; 80 columns hold it. The gaps of repeated runs are in the table above it."""
    head, rows = arms_told(results)
    heads = ["\narm", "\ntokens/s", "GiB a\nrank", "held-\nout", head.replace(" (", ",\n").rstrip(")"), "SQNR\ndB"]
    heads += ["conv./\nleft", "\nNaN"]
    if "interval" in head:
        heads, rows = [h for h in heads if h != head], [[*row[:4], *row[5:]] for row in rows]
    return rich_table(heads, rows)


def markdown(path: str | Path) -> str:
    """The same tables as Markdown, from a finished comparison's record: what a README may quote. Speed comes first; a
    part that was not measured has no table."""
    run = read_run(path)
    results = run.results
    if "verdict" not in results:
        raise LabError(f"{path} holds no finished comparison: only a comparison has this table")
    timed = as_dict(results.get("speed"))
    parts = [speed_markdown(timed, formats_of(run)[1])] if timed.get("arms") else []
    return "\n\n".join(parts + ([safety_markdown(results)] if results.get("arms") else []))


def safety_markdown(results: Mapping[str, Any]) -> str:
    """The arms' losses as Markdown."""
    gap, lines = arms_told(results)
    heads = ["arm", "tokens/s", "GiB a rank", "held-out loss", gap, "worst SQNR dB", "converted/left", "NaN events"]
    return markdown_table(heads, [[label, *(" ".join(cell.split()) for cell in line)] for label, *line in lines])


def number(value: float | None, form: str) -> str:
    return shown(value, form) if value is None or math.isfinite(value) else "inf"
