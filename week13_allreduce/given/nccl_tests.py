"""nccl-tests' columns: writing them, and reading them from a file that nccl-tests wrote.

A line of theirs: what was sent, then numbers for the out-of-place call, and mostly the same for the in-place call:

    size count type redop root   time algbw busbw #wrong   time algbw busbw #wrong

The table's head names the columns: versions differ (no `root`; `error` for `#wrong`), and options add some. Time is in
microseconds, bandwidths are in 1e9 bytes/s. (github.com/NVIDIA/nccl-tests; what algbw and busbw mean stands in timing.py.)
"""

from __future__ import annotations

import json
import math
import re
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


HEAD = re.compile(r"#\s*(?:size|bytes)\s+(?:count|N)\s+type\b(.*)")
LINE = re.compile(
    r"(?<!\S)(?:\S*[:>\]|])?(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\S.*)"
)  # a launcher may have put its mark in front
OURS = re.compile(r"^# (?=(?:all_reduce|all_gather|reduce_scatter): \w+\s*$)", re.M)
BARE = {n: ["redop", "root"][: 1 + n % 2] + ["time", "algbw", "busbw", "#wrong"] * (n // 4 - 1) for n in (8, 9, 12, 13)}
BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "f8e4m3": 1, "f8e5m2": 1}
BYTES |= {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 32, 64)}
REFUSED = "{path} holds {what}, and what is compared here is an all-reduce: give the output of one all_reduce_perf."


def read(path: str | Path) -> dict[str, Any]:
    """The content of a file that all_reduce_perf wrote: its standard output, other lines in between and a launcher's
    marks in front allowed, or the JSON of `--output_file`. Of our own bench.txt the first all-reduce is read.

    Returns {"ranks", "rows", "in_place", "unread"}: rows as in our records (size, count, seconds, algbw, busbw, wrong;
    of the out-of-place call; wrong None: not checked), in_place the same of the in-place call or []. ranks is counted
    from "# Rank" lines, or inferred from busbw / algbw = 2 (N-1) / N, or None. unread: lines that were cut. LabError:
    no line of numbers, another collective, several tables.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LabError(f"could not read {path}: {error.strerror}.") from None
    made = re.findall(r"\b(\w+)_perf\b", text)
    if other := next((name for name in made if name != "all_reduce" and "all_reduce" not in made), None):
        raise LabError(REFUSED.format(path=path, what=f"a run of {other}_perf"))
    if len(ours := OURS.split(text)) > 1:  # our own bench.txt: a table a collective and contender
        text = next((part for part in ours if part.startswith("all_reduce:")), "")
        if not text:
            raise LabError(REFUSED.format(path=path, what="no all-reduce"))
    found = _from_json(text) if text.lstrip("\ufeff \r\n").startswith("{") else _from_table(text, path)
    out, inner, kinds, ranks, unread = found
    if not out:
        raise LabError(f"{path} holds no line of nccl-tests: a size, a count, a type, an operation, then numbers.")
    if len(kinds) > 1:
        raise LabError(
            f"{path} holds several types or operations ({_named(kinds)}): run nccl-tests with one -d and -o."
        )
    largest = max(out, key=lambda row: row["algbw"])
    alg, bus = largest["algbw"], largest["busbw"]
    apart = 0.011e9 + 0.02 * bus  # by so much the printed digits, or another clock, may set a ratio off
    right = bus == 0 or (abs(bus - 2 * (ranks - 1) / ranks * alg) <= apart if ranks else alg - apart <= bus <= 2 * alg)
    dtype, redop, root = next(iter(kinds))
    # A gather or a scatter counts one rank's elements, and its size is that of all of them.
    right = right and all(
        row["size"] == row["count"] * BYTES.get(dtype, row["size"] / max(1, row["count"])) for row in out
    )
    if redop == "none" or root != "-1" or not right:
        raise LabError(
            REFUSED.format(path=path, what="another collective (by its operation, root, sizes or bandwidths)")
        )
    return {"ranks": ranks or _infer_ranks(alg / 1e9, bus / 1e9), "rows": out, "in_place": inner, "unread": unread}


Row = dict[str, Any]
Kind = tuple[str, str, str]  # type, operation, root
Found = tuple[list[Row], list[Row], set[Kind], int | None, int]


def _from_table(text: str, path: str | Path) -> Found:
    heads = [match[1].split() for match in HEAD.finditer(text)]
    if len(heads) > 1:
        raise LabError(REFUSED.format(path=path, what=f"{len(heads)} tables"))
    out, inner, unread = list[Row](), list[Row](), 0
    kinds: set[Kind] = set()
    sound = re.search(r"Out of bounds values\s*:\s*0\s+OK", text) is not None
    for match in filter(None, map(LINE.search, text.splitlines())):
        words = match[4].split()
        head = [name for name in heads[0] if name != "timestamp"] if heads else BARE.get(3 + len(words), [])
        at = [i for i, name in enumerate(head) if name in ("time", "cputime")]
        if not at or len(words) < len(head):
            unread += 1
            continue
        about: dict[str, str] = dict(zip(head[: at[0]], words))
        kinds.add((match[3], about.get("redop", about.get("op", "none")), about.get("root", "-1")))
        for begin, rows in zip(at, (out, inner)):
            try:
                time, algbw, busbw = map(float, words[begin : begin + 3])
                wrong = _wrong(words[begin + 3], head[begin + 3], sound)
            except ValueError:  # a line of prose, or one that another process wrote into
                unread += 1
                break
            rows.append(_row(int(match[1]), int(match[2]), time, algbw, busbw, wrong))
    listed = re.findall(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+))?", text)
    one = {group or "0" for _, group in listed} == {"0"}  # else the ranks are split among communicators
    return out, inner, kinds, max(int(rank) for rank, _ in listed) + 1 if one else None, unread


def _wrong(word: str, name: str, sound: bool) -> int | None:
    """A cell's wrong elements; None where they were not counted. An `error` is a distance: the last line judges it."""
    if word == "N/A":
        return None
    number = float(word)
    if name == "#wrong" and number.is_integer() and "e-" not in word:
        return int(number)
    return 0 if sound or number == 0 else None


def _from_json(text: str) -> Found:
    try:
        whole = json.loads(text.lstrip("\ufeff"))
        out, inner = list[Row](), list[Row]()
        kinds: set[Kind] = set()
        for result in whole["results"]:
            kinds.add((result["type"], result["redop"], str(result.get("root", -1)).strip()))
            for call, rows in (("out_of_place", out), ("in_place", inner)):
                if (one := result.get(call)) is not None:
                    time = one["time"] if "time" in one else one["cpu_time"]
                    wrong = None if one["nwrong"] is None else int(one["nwrong"])
                    rows.append(_row(result["size"], result["count"], time, one["alg_bw"], one["bus_bw"], wrong))
        ranks = [device for device in whole.get("devices", []) if not device.get("group")]
        return out, inner, kinds, len(ranks) if len(ranks) == len(whole.get("devices", [])) > 0 else None, 0
    except (ValueError, KeyError, TypeError, AttributeError):
        return [], [], set(), None, 0


def _row(size: int, count: int, time: float, algbw: float, busbw: float, wrong: int | None) -> dict[str, Any]:
    rates = {"algbw": algbw * 1e9, "busbw": busbw * 1e9}
    return {"size": size, "count": count, "seconds": time / 1e6, **rates, "wrong": wrong}


def _infer_ranks(algbw: float, busbw: float) -> int | None:
    """N of busbw / algbw = 2 (N-1) / N; None where the two printed decimals leave several."""
    off = 0.0051
    low, high = (busbw - off) / (algbw + off), (busbw + off) / max(algbw - off, 1e-9)
    if high >= 2 or high < 1:
        return None
    first, last = math.ceil(2 / (2 - low)), math.floor(2 / (2 - high))
    return first if first == last else None


def _named(kinds: set[Kind]) -> str:
    return ", ".join(sorted({f"{dtype} {op}" for dtype, op, _ in kinds}))
