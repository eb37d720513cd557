"""What the benchmark's page quotes beside `records`."""

from __future__ import annotations

from typing import Any

from week16_fp8.given import pictures, records  # noqa: F401  (the page draws them)


def largest(record: dict[str, Any]) -> str:
    """The largest shape, in words."""
    return "x".join(map(str, records.rows(record)[0]["shape"]))


def kernel_ms(record: dict[str, Any], arm: str, part: str) -> float:
    """Milliseconds of an arm's longest kernel whose name holds `part`, at the largest shape."""
    row = next(row for row in records.rows(record) if row["arm"] == arm)
    return next(one["ms"] for one in row["kernels"]["top"] if part in one["name"])


def gap(record: dict[str, Any], arm: str) -> float:
    """Per cent, as the verdict counts it."""
    return record["verdict"]["arms"][arm]["value"]


def gap_at(record: dict[str, Any], arm: str, step: int) -> float:
    """Per cent, at one evaluation; negative: a lower loss than the baseline's."""
    return dict(map(tuple, record["verdict"]["arms"][arm]["gap"]))[step]


def apart(record: dict[str, Any], one: str, other: str) -> float:
    """By how many per cent two arms' held-out losses differ at most."""
    a, b = (record["train"][arm]["heldout"] for arm in (one, other))
    return max(100 * abs(a[step] / b[step] - 1) for step in a)
