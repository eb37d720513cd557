"""The numbers that the pages in results/ quote, taken from the records there when `lab results` writes.

Bandwidths are GB/s, times microseconds, unless a name says otherwise. `ranks` is 4 or 2; who: a contender of the
benchmark. The fits stand on the week's cost model: NotImplementedError while task 13.1 is open.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from statistics import mean
from typing import Any

from labkit.compare.terminal import markdown_table
from week13_allreduce.given import clocks, floors, records
from week13_allreduce.given.anatomy_picture import pictures  # noqa: F401  (the page shows them)
from week13_allreduce.given.records import human

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
OURS = ("ring", "sliced", "two_way", "pipelined")
OWN = ("naive", "one_shot", "ring")  # the notebook's
SETTINGS = {
    "default": "as it comes",
    "priority": "`TORCH_NCCL_HIGH_PRIORITY=1`",
    "chunk-128K": "... and `NCCL_P2P_NVL_CHUNKSIZE=131072`",
    "chunk-64K": "... and `NCCL_P2P_NVL_CHUNKSIZE=65536`",
    "chunk-128K-64-channels": "... and 131072 and `NCCL_MIN_P2P_NCHANNELS=64`",
}


@cache
def bench() -> dict[int, dict[str, Any]]:
    return records.recorded()


@cache
def rings() -> dict[str, dict[str, Any]]:
    """The records of the ring's parts, by the setting of NCCL."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((records.RESULTS / "ring").glob("*.json"))}


def beside_nccl_tests() -> str:
    """nccl-tests' all-reduce on four GPUs, and this week's of the same call: busbw in GB/s."""
    record = records.load(records.RESULTS / "nccl-tests" / "h200-4.json")
    theirs = {row["size"]: row for row in record["nccl_tests"]["rows"]}
    names = ("library", "ring", "two_way", "halving")
    ours = {name: {row["size"]: row for row in records.series(record, name)} for name in names}
    rows = [
        [human(size), *(f"{rows[size]['busbw'] / 1e9:.2f}" for rows in (theirs, *ours.values()))]
        for size in (KiB, 64 * KiB, MiB, 16 * MiB, 256 * MiB, GiB, 4 * GiB)
    ]
    return markdown_table(["size", "nccl-tests", "the library, from Python", "ring", "two-way", "halving"], rows)


def entry(ranks: int, who: str, collective: str = "all_reduce") -> dict[str, Any]:
    return next(e for e in bench()[ranks]["series"] if (e["contender"], e["collective"]) == (who, collective))


def row(ranks: int, who: str, size: int, collective: str = "all_reduce") -> dict[str, Any]:
    return next(r for r in entry(ranks, who, collective)["rows"] if r["size"] == size)


def us(ranks: int, who: str, size: int, key: str = "seconds") -> float:
    """key: "seconds", "gpu" (never waiting for the CPU), "queue" (what the CPU needs)."""
    return 1e6 * row(ranks, who, size)[key]


def busbw(ranks: int, who: str, size: int = 4 * GiB, collective: str = "all_reduce") -> float:
    return row(ranks, who, size, collective)["busbw"] / 1e9


def variant(setting: str, name: str, size: int = 4 * GiB) -> float:
    """busbw of a variant of the ring on four GPUs."""
    seconds = next(r["seconds"] for r in rings()[setting]["rings"][name] if r["size"] == size)
    return size / seconds * 2 * 3 / 4 / 1e9


def message(setting: str, size: int) -> float:
    """GB/s of one message to the right."""
    return size / _message(setting, size)["seconds"] / 1e9


def channels(setting: str, size: int) -> int:
    return _message(setting, size)["blocks"]


def _message(setting: str, size: int) -> dict[str, Any]:
    return next(r for r in rings()[setting]["messages"] if r["size"] == size)


def message_ms(setting: str, size: int) -> float:
    return 1e3 * _message(setting, size)["seconds"]


def addition_ms(setting: str, size: int) -> float:
    return 1e3 * next(r["seconds"] for r in rings()[setting]["additions"] if r["size"] == size)


def call(name: str) -> float:
    """CPU time of one call."""
    return rings()["default"]["calls"][name]


def wire(name: str) -> float:
    return rings()["default"]["wires"][name] / 1e9


def _timeline(setting: str, name: str, what: str) -> list[dict[str, Any]]:
    return [kernel for kernel in rings()[setting]["timelines"][name] if kernel["what"] == what]


def late_ms() -> list[float]:
    """How late messages start behind an addition, in the ring with two slices and NCCL as it comes."""
    gaps = [b["begin"] - a["end"] for a, b in pairwise(_timeline("default", "1 way, 2 slices", "message"))]
    return [1e3 * gap for gap in gaps if gap > 1e-4]


def beside_ms(addition: bool) -> float:
    """What a message takes beside an addition, or without one; two slices, NCCL at high priority."""
    messages, additions = (_timeline("priority", "1 way, 2 slices", what) for what in ("message", "addition"))

    def meets(m: dict[str, Any]) -> bool:
        return any(min(a["end"], m["end"]) - max(a["begin"], m["begin"]) > 1e-5 for a in additions)

    return 1e3 * mean(m["end"] - m["begin"] for m in messages if meets(m) is addition)


def addition_beside_ms() -> float:
    return 1e3 * mean(a["end"] - a["begin"] for a in _timeline("priority", "1 way, 2 slices", "addition"))


def both_channels() -> int:
    """Channels of the one kernel that carries both directions' messages, two slices each."""
    return _timeline("default", "2 ways, 2 slices", "message")[0]["blocks"]


def pool() -> dict[str, float]:
    """The probe of torch's memory pool: ms a call while it was full, and not, and the calls of cudaFree."""
    rows = rings()["pool"]["rows"]
    frees = rows[1]["after"]["num_device_free"] - rows[1]["before"]["num_device_free"]
    return {"full": 1e3 * rows[1]["seconds"], "fresh": 1e3 * rows[2]["seconds"], "frees": frees}


# ---- models of the time


def fit(ranks: int, who: str = "library", key: str = "fit") -> dict[str, Any]:
    """alpha in us, GB/s, the worst residual in per cent and its size; key: "fit_gpu" for the GPU's own time."""
    found = entry(ranks, who)[key]
    return {
        "alpha": 1e6 * found["alpha"],
        "rate": 1e-9 / found["beta"],
        "worst": 100 * found["worst"],
        "at": human(found["worst_at"]),
    }


def by_the_line(ranks: int, size: int) -> float:
    """What the line fitted to the GPU's own time asks for."""
    found = entry(ranks, "library")["fit_gpu"]
    return 1e6 * (found["messages"] * found["alpha"] + found["share"] * size * found["beta"])


def cost(who: str) -> Any:
    from week13_allreduce import cost_model

    return getattr(cost_model, f"{who}_all_reduce_cost")(4)


@cache
def line(who: str) -> Any:
    """The alpha-beta line of one of our all-reduces on four GPUs, all sizes."""
    from week13_allreduce.cost_model import fit_alpha_beta

    sizes, seconds = zip(*clocks.clock_of(bench()[4])[who])
    return fit_alpha_beta(sizes, seconds, cost(who))


def off_line(who: str) -> float:
    return 100 * max(map(abs, line(who).residuals))


@cache
def floor(ranks: int, who: str) -> floors.Floor:
    found = floors.floor_of(records.series(bench()[ranks], who), who, ranks)
    assert found is not None
    return found


def off_floor(ranks: int, who: str) -> float:
    return 100 * max(map(abs, floors.errors(floor(ranks, who), records.series(bench()[ranks], who))[0].values()))


def strays() -> list[str]:
    """Sizes of the ring at which queueing took far longer than usual."""
    return [human(size) for size in floors.errors(floor(4, "ring"), records.series(bench()[4], "ring"))[1]]


def crossings(other: str) -> dict[str, float]:
    """From how many MiB on the ring is faster: measured, by the maximum, by the fitted lines."""
    clock, ring = clocks.clock_of(bench()[4]), cost("ring")
    mine, theirs = line("ring"), line(other)
    by_lines = (ring.messages * mine.alpha - cost(other).messages * theirs.alpha) / (
        cost(other).share * theirs.beta - ring.share * mine.beta
    )
    measured = clocks.crossing(clock[other], clock["ring"])
    by_maximum = floors.crossing(floor(4, other), floor(4, "ring"))
    assert measured is not None and by_maximum is not None
    return {"measured": measured / MiB, "maximum": by_maximum / MiB, "lines": by_lines / MiB}


# ---- tables


def against_library() -> str:
    rows = []
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        for ranks in (4, 2):
            library, ring = (busbw(ranks, who, collective=collective) for who in ("library", "ring"))
            name = collective.replace("_", "-")
            rows.append([name, str(ranks), f"{library:.1f}", f"{ring:.1f}", f"{ring / library:.1%}"])
    return markdown_table(["", "ranks", "library", "ring", "share"], rows)


def by_size() -> str:
    rows = []
    for size in (KiB, MiB, 16 * MiB, 64 * MiB, 256 * MiB, 512 * MiB, GiB, 4 * GiB):
        times = [
            f"{us(4, who, size):,.0f}" + (f" ({busbw(4, who, size):.3g})" if size >= MiB else "")
            for who in ("library", *OURS, "naive")
        ]
        rows.append([human(size), *times])
    return markdown_table(["", "library", "ring", "sliced", "two-way", "pipelined", "naive"], rows)


def by_setting() -> str:
    names = ("ring", "1 way, 2 slices", "1 way, 4 slices", "2 ways, 1 slice", "2 ways, 2 slices")
    rows = [
        [
            heading,
            f"{message(setting, 128 * MiB):.0f}",
            f"{variant(setting, 'ring', 256 * MiB):.0f}",
            *(f"{variant(setting, name):.0f}" for name in names),
        ]
        for setting, heading in SETTINGS.items()
    ]
    heads = [
        "a message of 128 MiB",
        "ring, 256 MiB",
        "ring, 4 GiB",
        "2 slices",
        "4 slices",
        "two-way",
        "two-way, 2 slices",
    ]
    return markdown_table(["NCCL", *heads], rows)


def by_floor() -> str:
    rows = []
    for who in OWN:
        f = floor(4, who)
        fitted = (f"{f.queue * 1e6:.0f}", f"{1e-9 / f.short.beta:.0f}", f"{1e-9 / f.long.beta:.0f}")
        rows.append([clocks.NAMES.get(who, who), *fitted, f"{off_floor(4, who):.0f}%"])
    return markdown_table(["", "Q, us", "GB/s", "longer messages, GB/s", "at most off"], rows)


def patterns() -> str:
    names = ("0 to 1, alone", "0 and 1, both ways", "all neighbours, both ways", "everybody to the right")
    rows = [[name, f"{wire(name):.0f}"] for name in names] + [["all to 0, together", f"{wire('all to 0'):.0f}"]]
    return markdown_table(["pattern", "GB/s"], rows)


def wrong() -> int:
    """How many numbers of how many results were not what they should be."""
    return sum(r["wrong"] for record in bench().values() for e in record["series"] for r in e["rows"])
