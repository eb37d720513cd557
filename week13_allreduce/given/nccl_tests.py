"""nccl-tests' columns: writing them, and reading them from a file that nccl-tests wrote.

A line of theirs: what was sent, four numbers for the out-of-place call, and mostly four more for the in-place call:

    size count type redop root   time algbw busbw #wrong   time algbw busbw #wrong

Older versions have no `root` and an `error` in place of `#wrong`. Time is in microseconds, bandwidths are in 1e9
bytes/s. (github.com/NVIDIA/nccl-tests; what algbw and busbw mean stands in timing.py.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.errors import LabError

TYPES = {"float32": "float", "bfloat16": "bfloat16"}  # torch's name -> nccl-tests' name
HEADER = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
)


def line(row: dict[str, Any], dtype: str, redop: str) -> str:
    """One line of our table. `row`: size, count, seconds, algbw, busbw (bytes/s), wrong."""
    time = row["seconds"] * 1e6
    shown = f"{time:7.2f}" if time < 1e3 else f"{time:7.1f}" if time < 1e5 else f"{time:7.0f}"
    return (
        f"{row['size']:12d}  {row['count']:12d}  {TYPES.get(dtype, dtype):>8}  {redop:>6}  {-1:6d}  {shown}  "
        f"{row['algbw'] / 1e9:6.2f}  {row['busbw'] / 1e9:6.2f}  {row['wrong']:6d}"
    )


def read(path: str | Path) -> dict[str, Any]:
    """The content of a file that nccl-tests wrote (its standard output, other lines in between allowed).

    Returns {"ranks", "rows", "in_place"}: rows as in our records (size, count, seconds, algbw, busbw, wrong; of the
    out-of-place call), in_place the same of the in-place call or []. ranks is counted from "# Rank" lines, or inferred
    from busbw / algbw = 2 (N-1) / N, or None. LabError if no line of numbers is found.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LabError(f"could not read {path}: {error.strerror}.") from None
    out, inner = [], []
    for words in _numbers(text.splitlines()):
        size, count, rest = int(words[0]), int(words[1]), words[4:]
        if len(rest) in (5, 9):  # the newer format has a root
            rest = rest[1:]
        out.append(_row(size, count, rest[:4]))
        if len(rest) == 8:
            inner.append(_row(size, count, rest[4:]))
    if not out:
        raise LabError(f"{path} holds no line of nccl-tests: a size, a count, a type, an operation, then numbers.")
    return {"ranks": _ranks(text, out), "rows": out, "in_place": inner}


def _numbers(lines: Iterable[str]) -> Iterable[list[str]]:
    for text in lines:
        words = re.sub(r"^\[[^\]]*\]", "", text).split()  # mpirun may put "[0]" in front
        if len(words) in (8, 9, 12, 13) and words[0].isdigit() and words[1].isdigit() and not words[2][0].isdigit():
            yield words


def _row(size: int, count: int, words: list[str]) -> dict[str, Any]:
    time, algbw, busbw, wrong = words
    wrong_count = 0 if wrong == "N/A" else math.ceil(float(wrong))  # an error of an older version is wrong or not
    return {
        "size": size,
        "count": count,
        "seconds": float(time) / 1e6,
        "algbw": float(algbw) * 1e9,
        "busbw": float(busbw) * 1e9,
        "wrong": wrong_count,
    }


def _ranks(text: str, rows: list[dict[str, Any]]) -> int | None:
    listed = {int(rank) for rank in re.findall(r"^\W*#\s+Rank\s+(\d+)", text, re.M)}
    if listed:
        return max(listed) + 1
    largest = max(rows, key=lambda row: row["size"])
    ratio = largest["busbw"] / largest["algbw"] if largest["algbw"] else 0.0
    return round(2 / (2 - ratio)) if 1.0 <= ratio < 2 else None
