"""Both answers in one place: how fast is each arm, is its loss the baseline's, and which recipe follows from that.

From the record alone: what terminal, page and picture show first. A record of repeated runs has a word and an interval
for each recipe. One from before has one run of each arm: its gap has no interval, and its word is that of the rule of
one run (labkit.compare.verdict), told as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from labkit.compare.repeats import interval
from labkit.compare.results import price_of, timed_of, verdict_of
from labkit.compare.terminal import shown
from labkit.record.read import RunData, as_dict, as_number

HEADS = ("arm", "x BF16's speed", "loss gap % [interval]", "loss", "runs")
ONE_RUN = {"inside": "in the band", "outside": "outside the band", "undecided": "undecided", "no-data": "no data"}
ROLES = ("baseline", "reference", "candidate", "fine", "broken")  # in this order; twins and runs are not arms here


@dataclass(frozen=True)
class Row:
    """One arm. times: its speed against BF16's; gap, low, high: of the loss, per cent; None: not measured, or without
    an interval. word: same, different, undecided, rejected, ...; "" if not judged. runs: trained for the loss."""

    name: str
    label: str
    role: str
    times: float | None
    gap: float | None
    low: float | None
    high: float | None
    word: str
    runs: int

    @property
    def gap_told(self) -> str:
        return interval({"value": self.gap, "low": self.low, "high": self.high})


def repeated(data: RunData) -> bool:
    """Was the loss judged from repeated runs?"""
    return bool(data.config.get("repeat"))


def rows_of(data: RunData, again: dict[str, Any] | None = None) -> list[Row]:
    """The arms that were timed or judged, BF16 first, then by speed. again: a verdict of `repeats.judge` in place of
    the record's."""
    timed, verdict, about = timed_of(data), again or verdict_of(data), as_dict(data.results.get("arms"))
    judged, several = as_dict(verdict.get("arms")), bool(again) or repeated(data)
    rates = [row.get("tokens_per_s") for row in timed.values() if row.get("role") == "baseline"]
    base = as_number(rates[0]) if rates else None
    out = []
    for name in dict.fromkeys([*timed, *about]):
        arm = {**as_dict(about.get(name)), **as_dict(timed.get(name))}
        role, entry = str(arm.get("role")), as_dict(judged.get(name))
        if role not in ROLES:
            continue
        rate = as_number(as_dict(timed.get(name)).get("tokens_per_s"))
        times = rate / base if rate and base else None
        gap, low, high = (as_number(entry.get(key)) for key in ("value", "low", "high"))
        word = str(entry.get("word") or "")
        if not several:
            gap, word = _mean(entry.get("gap"), verdict.get("from_step")), ONE_RUN.get(word, "")
        if times is None and not entry:
            continue
        ran = as_dict(about.get(name)).get("status") == "finished"
        runs = int(as_number(entry.get("runs")) or 0) if several else int(ran)
        if several and role == "baseline":
            word = ""
        label = str(arm.get("label") or name)
        out.append(Row(name, label, role, times, gap, low, high, word, runs))
    return sorted(out, key=lambda row: (row.role != "baseline", row.times is None, -(row.times or 0)))


def lines(rows: list[Row]) -> list[list[str]]:
    """Under HEADS."""
    return [[row.label, shown(row.times, "{:.2f}"), *_of_loss(row), str(row.runs or "")] for row in rows]


def _of_loss(row: Row) -> tuple[str, str]:
    return ("", "baseline") if row.role == "baseline" else (row.gap_told, row.word or "not judged")


def table(rows: list[Row], yardstick: str = "BF16") -> tuple[list[str], list[list[str]]]:
    """(heads, lines), without a column in which nothing stands."""
    every = lines(rows)
    full = [i for i in range(len(HEADS)) if any(cells[i] for cells in every)]
    heads = [head.replace("BF16", yardstick) for head in HEADS]
    return [heads[i] for i in full], [[cells[i] for i in full] for cells in every]


def recommended(rows: list[Row], form: str = "FP8", yardstick: str = "BF16") -> str:
    """Which recipe to take, in a sentence: the fastest whose loss is the same, if it is faster at all; "" if speed or
    loss was not measured."""
    candidates = [row for row in rows if row.role == "candidate"]
    timed = [row for row in candidates if row.times]
    if not timed or not any(row.word for row in candidates):
        return ""
    sound = [row for row in timed if row.word in ("same", ONE_RUN["inside"]) and (row.times or 0) > 1]
    if sound:
        best = max(sound, key=lambda row: row.times or 0)
        word = best.word if best.word == "same" else f"{best.word} in one run"
        gap = f", the loss {word} ({best.gap_told})" if best.gap_told else ""
        told = f"Recommended here: {best.label}, {best.times:.2f} times {yardstick}'s speed{gap}."
        open_ = [row for row in timed if (row.times or 0) > (best.times or 0)]
        why = "; ".join(
            f"{row.label} is faster ({row.times:.2f}), its loss {row.word or 'not judged'}" for row in open_
        )
        return told + (f" {why}." if why else "")
    if not any((row.times or 0) > 1 for row in timed):
        return f"Recommended here: {yardstick}. No {form} recipe is faster."
    return f"Recommended here: {yardstick}. No recipe that is faster has its loss: none was found the same."


def spent(data: RunData) -> str:
    """ "22.4 minutes, 1.12 in money": of all calls; "" if none is recorded."""
    calls = [call for call in data.results.get("calls") or [] if call.get("seconds")]
    if not calls:
        return ""
    least = "" if all(call.get("ended", True) for call in calls) else "at least "
    seconds = sum(call["seconds"] for call in calls)
    price = price_of(data)
    cost = f", {seconds / 3600 * price:.2f} at {price:.2f} an hour" if price else ""
    return f"{least}{seconds / 60:.1f} minutes{cost}"


def _mean(gap: Any, from_step: Any) -> float | None:
    """The mean signed gap of one run from this step on."""
    kept = [g for step, g in gap or () if isinstance(from_step, (int, float)) and step >= from_step]
    return math.fsum(kept) / len(kept) if kept else None
