"""The benchmark: how fast are collectives on this machine, and how far is your ring from the library?

    lab bench                                                              on a laptop: 4 processes, gloo
    torchrun --nproc_per_node 8 -m week13_allreduce.bench -b 1K -e 4G      on one GPU machine (-b is --min, -e --max)
    sbatch week13_allreduce/bench.slurm                                    on several

It prints nccl-tests' columns, compares every result (#wrong), and writes into --out: bench.json (see
given/records.py), the same table as text, and a picture of busbw against size with the fitted alpha-beta line and the
wire's limit. `--nccl-tests FILE` adds what nccl-tests measured. Contenders whose task is not written yet are left out
with a sentence (given/contenders.py).

busbw of a contender is computed as if it were optimal: whoever moves more than it must gets no credit for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import LabError, run_command
from labkit.record.files import writable
from week13_allreduce.given import nccl_tests, records
from week13_allreduce.given.contenders import CONTENDERS, DEFAULT, load, measure
from week13_allreduce.given.records import human, parse_size

COLLECTIVES = tuple(CONTENDERS)


def run_bench(
    min_size: str = "1K",
    max_size: str | None = None,
    factor: int = 2,
    ranks: int | None = None,
    collectives: str = "all_reduce",
    contenders: str = ",".join(DEFAULT),
    dtype: str = "float32",
    op: str = "sum",
    budget: float = 0.3,
    device: str = "auto",
    wire: float | None = None,
    out: str | None = None,
    nccl_tests_file: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the benchmark; returns the record, and writes it to `out` if given.

    Args:
        min_size, max_size: bytes of the whole vector, "1K", "64M", "4G"; max by default 4G on GPUs and 16M on CPUs.
        factor: from one size to the next.
        ranks: how many; by default all GPUs, or 4 processes. Under torchrun: torchrun's.
        collectives: of all_reduce, all_gather, reduce_scatter, by comma; or "all".
        contenders: by comma, see given/contenders.py; or "all".
        dtype: float32 or bfloat16.
        op: sum, mean or max.
        budget: seconds of timed calls for each size, about.
        device: "auto", "cpu" or "cuda".
        wire: the wire's bandwidth one way in GB/s, for the picture; by default NVLink's, where the GPU is known.
        out: folder for bench.json, bench.txt and the picture.
        nccl_tests_file: output of nccl-tests, for comparison.
        quiet: print nothing.
    """
    where = records.which_ranks(device, ranks)
    sizes = _sizes(min_size, max_size or ("4G" if where["device"] == "cuda" else "16M"), factor)
    wanted = _choose(collectives, COLLECTIVES, "collective")
    if dtype not in nccl_tests.TYPES:
        raise LabError(f"--dtype is one of {', '.join(nccl_tests.TYPES)}, not {dtype!r}.")
    if op not in ("sum", "mean", "max"):
        raise LabError(f"--op is sum, mean or max, not {op!r}.")
    theirs = nccl_tests.read(nccl_tests_file) if nccl_tests_file else None
    record = records.describe(where, dtype, op, wire)
    lines: list[str] = []
    if out and where["leader"]:
        writable(Path(out))

    def say(text: str) -> None:
        lines.append(text)
        if where["leader"] and not quiet:
            print(text, flush=True)

    say(f"# {record['ranks']} ranks, {record['transport']}, {record['hardware_name']}, {dtype}, {op}")
    with _pool(where) as run:
        for collective in wanted:
            names = _choose(contenders, tuple(CONTENDERS[collective]), "contender", known=_all_names())
            for name in names:
                say(f"#\n# {collective}: {name}\n{nccl_tests.HEADER}")
                result = run(measure, collective, name, sizes, dtype, op, budget)[0]
                entry = _finish(result, collective, name, record["ranks"])
                record["series"].append(entry)
                for row in entry["rows"]:
                    say(nccl_tests.line(row, dtype, "none" if collective == "all_gather" else op))
                for note in filter(None, (entry["note"], _fit_sentence(entry["fit"]), _queue_sentence(entry))):
                    say(f"# {note}")
                if out and where["leader"]:  # what was measured is kept, whatever comes next
                    records.save(record, Path(out) / "bench.json")
    if theirs:
        record["nccl_tests"] = theirs
        say(_compare(record, theirs))
    if out and where["leader"]:
        folder = Path(out)
        records.save(record, folder / "bench.json")
        (folder / "bench.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        from week13_allreduce.given.clocks import busbw_sweep

        for picture in busbw_sweep(record, folder):
            say(f"# {picture.png}")
    return record


def _finish(result: dict[str, Any], collective: str, name: str, N: int) -> dict[str, Any]:
    """Bandwidths, and the fit where task 13.1 is written."""
    share = 2 * (N - 1) / N if collective == "all_reduce" else (N - 1) / N
    for row in result["rows"]:
        row["algbw"] = row["size"] / row["seconds"]
        row["busbw"] = row["algbw"] * share
    entry = {"collective": collective, "contender": name, "rows": result["rows"], "note": result["note"], "fit": None}
    if result["rows"] and N > 1:
        try:
            cost = load(CONTENDERS[collective][name].cost)(N)
            entry["fit"] = records.fit(result["rows"], cost)
            if "gpu" in result["rows"][0]:
                entry["fit_gpu"] = records.fit(result["rows"], cost, of="gpu")
        except NotImplementedError as blank:
            entry["note"] = f"{entry['note']} {blank}: no fit".strip()
    return entry


def _fit_sentence(fit: dict[str, Any] | None) -> str:
    if not fit:
        return ""
    speed = f"{1 / fit['beta'] / 1e9:.1f} GB/s" if fit["beta"] > 0 else "no finite bandwidth"
    no_line = " (negative: these times lie on no line)" if fit["alpha"] < 0 else ""
    return (
        f"alpha {fit['alpha'] * 1e6:.2f} us a message{no_line}, beta {speed}; from {human(fit['from_bytes'])} on "
        f"the line is at most {fit['worst']:.0%} off (at {human(fit['worst_at'])})"
    )


def _queue_sentence(entry: dict[str, Any]) -> str:
    """Up to which size the CPU decides, and how fast the GPU would have been."""
    waiting = [row for row in entry["rows"] if "gpu" in row and row["gpu"] < 0.8 * row["seconds"]]
    if not waiting:
        return ""
    first, last = waiting[0], waiting[-1]
    sentence = (
        f"up to {human(last['size'])} the GPU waits for the CPU, which queues a call in "
        f"{first['queue'] * 1e6:.0f} us; the GPU needs {first['gpu'] * 1e6:.1f} us for {human(first['size'])}"
    )
    return f"{sentence}. Its own time: {_fit_sentence(entry['fit_gpu'])}" if entry.get("fit_gpu") else sentence


def _compare(record: dict[str, Any], theirs: dict[str, Any]) -> str:
    lines = [f"#\n# busbw, GB/s, beside nccl-tests' out-of-place all-reduce ({theirs['ranks'] or '?'} ranks)"]
    ours = {row["size"]: row["busbw"] for row in records.series(record, "library")}
    for row in theirs["rows"]:
        if row["size"] in ours:
            mine, other = ours[row["size"]] / 1e9, row["busbw"] / 1e9
            ratio = f"{mine / other:6.1%}" if other else "     -"
            lines.append(f"{row['size']:12d}  library {mine:8.2f}  nccl-tests {other:8.2f}  {ratio}")
    if theirs["unread"]:
        lines.append(f"# {theirs['unread']} lines of the file were cut, or not of its columns, and are left out")
    return "\n".join(lines if len(lines) > 1 else [*lines, "# no size in common"])


@contextmanager
def _pool(where: dict[str, Any]) -> Iterator[Callable]:
    """Gives `run(job, ...)`: torchrun's ranks, or processes that are kept between jobs."""
    from labkit.comm.ranks import RankPool, run_ranks

    if where["torchrun"]:
        yield partial(run_ranks, backend="torchrun", device=where["device"], timeout=None)
        return
    pool = RankPool(where["ranks"], device=where["device"])
    try:
        yield partial(pool.run, timeout=None)
    finally:
        pool.close()


def _sizes(low: str, high: str, factor: int) -> list[int]:
    """Ascending sizes in bytes from `low` on, each `factor` times the last, up to `high`."""
    first, last = parse_size(low), parse_size(high)
    if factor < 2 or not 0 < first <= last:
        raise LabError(
            f"sizes go from --min {low} to --max {high}, each --factor {factor} times the last: that is no "
            "ascending row."
        )
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def _choose(text: str, of: tuple[str, ...], what: str, known: set[str] | None = None) -> list[str]:
    names = list(of) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (known or of):
            raise LabError(f"there is no {what} {name!r}: choose of {', '.join(sorted(known or of))}, or all.")
    return [name for name in names if name in of]


def _all_names() -> set[str]:
    return {name for table in CONTENDERS.values() for name in table}


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status: 0, or 1 if a result was wrong."""
    parser = argparse.ArgumentParser(prog="lab bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    # The short names are nccl-tests' own. In older Pythons torchrun takes --max for its own --max-restarts: use -e.
    add("-b", "--min", default="1K", help="smallest vector: 512, 1K, 64M, 4G")
    add("-e", "--max", default=None, help="largest vector; default 4G on GPUs, 16M on CPUs")
    add("-f", "--factor", type=int, default=2, help="from one size to the next")
    add("--ranks", type=int, default=None, help="how many (without torchrun); default: all GPUs, or 4")
    add("--collectives", default="all_reduce", help=f"of {', '.join(COLLECTIVES)}, by comma; or all")
    add("--contenders", default=",".join(DEFAULT), help=f"of {', '.join(sorted(_all_names()))}, by comma; or all")
    add("--dtype", default="float32", help="float32 or bfloat16")
    add("--op", default="sum", help="sum, mean or max")
    add("--budget", type=float, default=0.3, help="seconds of timed calls for each size, about")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--wire", type=float, default=None, help="the wire's bandwidth one way, GB/s, for the picture")
    add("--out", default="runs/bench", help="folder for the record and the picture")
    add("--nccl-tests", default=None, metavar="FILE", help="output of nccl-tests to compare with")
    a = parser.parse_args(argv)
    record = run_bench(
        a.min,
        a.max,
        a.factor,
        a.ranks,
        a.collectives,
        a.contenders,
        a.dtype,
        a.op,
        a.budget,
        a.device,
        a.wire,
        a.out,
        a.nccl_tests,
    )
    return int(any(row["wrong"] for entry in record["series"] for row in entry["rows"]))


if __name__ == "__main__":
    run_command("bench", main)
