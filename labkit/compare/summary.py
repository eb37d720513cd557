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

from labkit.compare.budget import Budget
from labkit.compare.preset import Preset
from labkit.compare.report import report
from labkit.compare.results import heldout_of, probes_of, worst_sqnr
from labkit.compare.speed_verdict import speed_results, tables
from labkit.compare.terminal import markdown_table, rich_table, say, shown
from labkit.compare.verdict import judge
from labkit.errors import LabError
from labkit.record.read import RunData, as_dict, load_run, read_run
from labkit.record.run import RunRecord

GIB = 2**30

WORDS = {"inside": "in", "outside": "OUT", "undecided": "?", "reference": "twin"}  # of the gap, in the table
# What must be equal in all arms, or a gap between them says nothing: the name for people, and where it stands in
# run.json.
SAME = {"text": ("corpus", "hash"), "number of ranks": ("world", "size"), "torch version": ("versions", "torch")}


def summarise(
    out: Path,
    preset: Preset,
    skipped: Mapping[str, str],
    failed: Mapping[str, str],
    console: Console,
    record: RunRecord,
    budget: Budget | None = None,
) -> str:
    """Judge the comparison in `out`, close its record, draw report.html, print table and verdict; returns the word.

    skipped: arms that this machine cannot run, and why: the verdict is over the others. failed: arms that broke down,
    and why, by "<part> <arm>": without them there is no pass. budget: this call's, for the minutes and what they left
    undone.
    """
    budget = budget or Budget()
    of_speed, of_safety = (
        {key.removeprefix(part): why for key, why in failed.items() if key.startswith(part)}
        for part in ("speed ", "safety ")
    )
    run = read_run(out)
    arms = {name: row(run.arms.get(name), preset, name, {**skipped, **of_safety}) for name in preset.arms}
    for name in of_safety:
        arms[name]["status"] = "failed"  # also where it failed before its record began
    arms = {name: arm for name, arm in arms.items() if arm["status"] != "pending"}  # those nobody asked for
    finished = {name: heldout_of(run.arms[name]) for name in arms if arms[name]["status"] == "finished"}
    verdict = judge(
        finished,
        {name: arm["role"] for name, arm in arms.items()},
        {name: arm.label for name, arm in preset.arms.items()},
        skipped,
    )
    verdict["reasons"] += [f"{preset.arms[name].label}: failed, {why}" for name, why in of_safety.items()]
    if different := differing([run.arms[name] for name in finished]):
        verdict.update(
            word="incomplete",
            sentence=f"No verdict: the arms differ in more than precision ({different}). "
            "Train them again with --fresh.",
        )
    left = {item.arm: f"left for another call, {budget.why()}" for item in budget.left if item.part == "speed"}
    speed = speed_results(preset, out, {**skipped, **of_speed}, left) if preset.speed else None
    note_call(record, budget, ended=True)
    record.results(arms=arms, verdict=verdict, **({"speed": speed} if speed else {}))
    # Before the page is drawn, which tells what the record says.
    record.finish("failed" if failed else "interrupted" if budget.left else "finished")
    with console.status("drawing the report"):
        report(out)
    console.print()
    show(out, console)
    return verdict["word"]


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
    if speed:
        for each in tables(speed) if speed["arms"] else ():
            console.print(each)
            console.print()
        say(console, f": {speed['verdict']['sentence']}", head="SPEED")
        for tip in speed["verdict"]["next"]:
            say(console, f"  To try next: {tip}")
        console.print()
    if arms:
        console.print(table(arms, verdict))
    if arms or not speed:
        say(console, f": {verdict['sentence']}", head=("SAFETY, " if speed else "") + verdict["word"].upper())
    *earlier, call = run.results.get("calls") or [{}]
    items = call.get("items") or []
    if items and (speed or call.get("minutes")):
        predicted = sum(item["predicted_s"] for item in items if item["measured_s"] is not None)
        cost = "" if call.get("cost") is None else f", {call['cost']:.2f} at {call['price_per_hour']:.2f} an hour"
        least = "" if call.get("ended", True) else "at least "
        say(
            console,
            f"Measured: {least}{call['seconds'] / 60:.1f} minutes{cost}; predicted for these arms: "
            f"{predicted / 60:.1f} minutes.{together(earlier, call)}",
        )
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
    found = []
    for name, (table, key) in SAME.items():
        values = {as_dict(arm.run.get(table)).get(key) for arm in arms} - {None}
        if len(values) > 1:
            found.append(f"{name}: {', '.join(sorted(map(str, values)))}")
    return "; ".join(found)


def row(arm: RunData | None, preset: Preset, name: str, missing: Mapping[str, str]) -> dict[str, Any]:
    """One arm's line of the table, as plain values; None where there is nothing to tell."""
    about = {"label": preset.arms[name].label, "role": preset.arms[name].role}
    if name in missing:
        return {**about, "status": "failed" if arm else "skipped", "note": missing[name]}
    if arm is None or arm.status != "finished":
        return {**about, "status": arm.status if arm else "pending", "note": ""}
    results, conversion, last = arm.results, as_dict(arm.run.get("conversion")), heldout_of(arm)
    worst = worst_sqnr(probes_of(arm), (("output",),))
    converted, skipped = len(conversion.get("converted", ())), len(conversion.get("skipped", {}))
    if conversion.get("backend") in ("bf16", "fp32"):  # plain nn.Linear before and after: nothing was converted
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
    """One arm's columns after its label: tokens/s, GiB a rank, held-out loss, gap, SQNR, converted/left, NaN events."""
    if arm["status"] != "finished":
        return [arm["status"], *[""] * 6]
    word = {"inside": "in", "outside": "OUT", "undecided": "?", "reference": "twin"}.get(
        (judged or {}).get("word", ""), ""
    )
    return [
        number(arm["tokens_per_s"], "{:,.0f}"),
        number(arm["peak_bytes"] and arm["peak_bytes"] / GIB, "{:.2f}"),
        number(arm["heldout"], "{:.4f}"),
        f"{number(judged['value'], '{:.3f}')} {word:>4}" if judged else "baseline",
        number(arm["sqnr"] and arm["sqnr"]["db"], "{:.1f}"),
        f"{arm['converted']}/{arm['skipped']}",
        str(arm["nonfinite"]),
    ]


def table(arms: Mapping[str, Mapping[str, Any]], verdict: Mapping[str, Any]) -> Table:
    """The table that ends a comparison; 80 columns hold it."""
    band = verdict.get("band")
    gap = f"gap %,\nband {band['threshold']:.2g}" if band else "\ngap %"
    heads = ("\narm", "\ntokens/s", "GiB a\nrank", "held-\nout", gap, "SQNR\ndB", "conv./\nleft", "\nNaN")
    return rich_table(heads, [[arm["label"], *cells(arm, verdict["arms"].get(name))] for name, arm in arms.items()])


def markdown(path: str | Path) -> str:
    """The same table as Markdown, from a finished comparison's record: what a README may quote."""
    results = read_run(path).results
    if "verdict" not in results:
        raise LabError(f"{path} holds no finished comparison: only a comparison has this table")
    judged, band = results["verdict"]["arms"], results["verdict"].get("band")
    gap = f"gap % (band {band['threshold']:.2g})" if band else "gap %"
    heads = ["arm", "tokens/s", "GiB a rank", "held-out loss", gap, "worst SQNR dB", "converted/left", "NaN events"]
    return markdown_table(
        heads,
        (
            [arm["label"], *(" ".join(cell.split()) for cell in cells(arm, judged.get(name)))]
            for name, arm in results["arms"].items()
        ),
    )


def number(value: float | None, form: str) -> str:
    return shown(value, form) if value is None or math.isfinite(value) else "inf"
