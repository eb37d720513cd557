"""Does a rule over a record use what comes later? Judged by records that really end."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.checks.judge import expect
from labkit.checks.verdict import NO_RESULT, CheckFailed

BEFORE, AFTER = 8, 32  # rows: a cut record ends so many before its alarm at most, and so many behind it
EVERY = 25  # rows from cut to cut of a record that is silent: what rings in it at its end, and is taken back later
AHEAD = ("it looks ahead: what comes later decides whether it rings",)


def judge_causal(
    ask: Callable[[Sequence[int]], Any], lengths: Sequence[int], first: Sequence[Any], rng: np.random.Generator
) -> None:
    """CheckFailed unless every record, cut at its first alarm or behind it, rings there first, and cut before nowhere,
    nor one that is silent wherever it is cut.

    ask: so many rows of each record -> of each what rings there. lengths: rows of each whole record. first: of each the
    first thing that rang, whose [0] is its row; None if nothing did.
    """
    upto, short = list(lengths), list(lengths)
    for k, (length, alarm) in enumerate(zip(lengths, first, strict=True)):
        if alarm is not None:
            upto[k] = max(0, min(length, alarm[0] + 1))
            # Of an alarm at one of the first rows there is hardly a record before it.
            short[k] = int(rng.integers(alarm[0] - BEFORE, alarm[0] + 1)) if BEFORE < alarm[0] < length else upto[k]
    # Of a record that ends at its alarm a rule that takes every tenth row, say, would know by its length when to ring.
    after = [int(rng.integers(rows, min(length, rows + AFTER) + 1)) for rows, length in zip(upto, lengths)]
    for ends in (upto, after):
        for alarm, rows, alarms in zip(first, ends, _heard(ask, ends), strict=True):
            expect(
                alarm is None or (len(alarms) > 0 and min(alarms) == alarm),
                f"on a whole record it rings at row {alarm and alarm[0]} first, and on the record's first {rows} rows "
                + (f"at row {min(alarms)[0]}" if alarms else "it does not"),
                cause=AHEAD,
            )
    begin = [length // 3 + int(rng.integers(EVERY)) for length in lengths]
    for on in range(0, max(lengths) * 2 // 3, EVERY):
        cut = [min(end, at + on) for end, at in zip(short, begin)]
        for alarm, rows, end, alarms in zip(first, cut, upto, _heard(ask, cut), strict=True):
            expect(
                (alarm is not None and rows == end) or not alarms,
                f"on a whole record {f'it rings at row {alarm[0]} first' if alarm else 'nothing rings'}, and on the "
                f"record's first {rows} rows it rings at row {alarms and alarms[0][0]}",
                cause=AHEAD,
            )


def _heard(ask: Callable[[Sequence[int]], Any], rows: Sequence[int]) -> Any:
    found = ask(rows)
    if not isinstance(found, list) or len(found) != len(rows):
        raise CheckFailed(NO_RESULT, "for each record a list of alarms is required")
    return found
