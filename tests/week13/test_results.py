"""results/README.md says what the committed records say: its tables and measured numbers are recomputed here."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from statistics import mean

import pytest

from week13_allreduce import cost_model
from week13_allreduce.given import clocks, floors, records
from week13_allreduce.given.records import human
from week13_allreduce.stretch import smi

README = (records.RESULTS / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())
MiB, GiB = 1 << 20, 1 << 30
RANKS = (4, 2)
OURS = ("ring", "sliced", "two_way", "pipelined")
OWN = ("naive", "one_shot", "ring")  # the notebook's
BENCH = records.recorded()
RING = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (records.RESULTS / "ring").glob("*.json")}


def entry(N, contender, collective="all_reduce"):
    return next(e for e in BENCH[N]["series"] if (e["contender"], e["collective"]) == (contender, collective))


def row(N, contender, size, collective="all_reduce"):
    return next(r for r in entry(N, contender, collective)["rows"] if r["size"] == size)


def busbw(N, contender, size=4 * GiB, collective="all_reduce"):
    return row(N, contender, size, collective)["busbw"] / 1e9


def variant(record, name, size=4 * GiB):
    seconds = next(r["seconds"] for r in RING[record]["rings"][name] if r["size"] == size)
    return size / seconds * 2 * 3 / 4 / 1e9


def message(record, size):
    """(seconds, channels) of one step of the ring."""
    return next((r["seconds"], r["blocks"]) for r in RING[record]["messages"] if r["size"] == size)


def microseconds(value):
    return f"{value * 1e6:,.0f}"


def tables():
    """The tables' rows, in the README's order."""
    lines = []
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        for N in RANKS:
            library, ring = (busbw(N, who, collective=collective) for who in ("library", "ring"))
            what = collective.replace("_", "-")
            lines.append(f"| {what} | {N} | {library:.1f} | {ring:.1f} | {ring / library:.1%} |")
    for size in (1 << 10, MiB, 16 * MiB, 64 * MiB, 256 * MiB, 512 * MiB, GiB, 4 * GiB):
        shown = " | ".join(
            f"{microseconds(row(4, who, size)['seconds'])} ({busbw(4, who, size):.3g})"
            if size >= MiB
            else microseconds(row(4, who, size)["seconds"])
            for who in ("library", *OURS, "naive")
        )
        lines.append(f"| {human(size)} | {shown} |")
    names = {
        "default": "as it comes",
        "priority": "`TORCH_NCCL_HIGH_PRIORITY=1`",
        "chunk-128K": "... and `NCCL_P2P_NVL_CHUNKSIZE=131072`",
        "chunk-64K": "... and `NCCL_P2P_NVL_CHUNKSIZE=65536`",
        "chunk-128K-64-channels": "... and 131072 and `NCCL_MIN_P2P_NCHANNELS=64`",
    }
    for record, told in names.items():
        shown = [f"{128 * MiB / message(record, 128 * MiB)[0] / 1e9:.0f}", f"{variant(record, 'ring', 256 * MiB):.0f}"]
        shown += [
            f"{variant(record, name):.0f}"
            for name in ("ring", "1 way, 2 slices", "1 way, 4 slices", "2 ways, 1 slice", "2 ways, 2 slices")
        ]
        lines.append(f"| {told} | {' | '.join(shown)} |")
    return lines


def sentences():
    """What the text claims, number by number."""
    step, add = message("default", GiB)[0], RING["default"]["additions"][-1]["seconds"]
    yield f"6 messages of 1 GiB take {6e3 * step:.2f} ms at {GiB / step / 1e9:.0f} GB/s"
    yield f"3 additions of 1 GiB take {3e3 * add:.2f} ms at {3 * GiB / add / 1e12:.2f} TB/s"
    yield f"together {6e3 * step + 3e3 * add:.2f} ms; measured {row(4, 'ring', 4 * GiB)['seconds'] * 1e3:.2f} ms"
    yield f"The library needs {row(4, 'library', 4 * GiB)['seconds'] * 1e3:.2f} ms"
    for size in (128 * MiB, 256 * MiB, 512 * MiB):
        seconds, blocks = message("default", size)
        yield f"{human(size)} at {size / seconds / 1e9:.0f} GB/s on {blocks} channels"
    yield f"from {busbw(4, 'ring', 512 * MiB):.0f} to {busbw(4, 'ring', GiB):.0f} GB/s"
    for record in ("default", "priority"):
        kernels = RING[record]["timelines"]["1 way, 2 slices"]
        messages, additions = ([k for k in kernels if k["what"] == what] for what in ("message", "addition"))
        beside = [
            any(min(a["end"], m["end"]) - max(a["begin"], m["begin"]) > 1e-5 for a in additions) for m in messages
        ]
        gaps = [b["begin"] - a["end"] for a, b in pairwise(messages)]
        if record == "default":
            late = [gap for gap in gaps if gap > 1e-4]
            yield f"{len(late)} of the 6 next messages start {mean(late) * 1e3:.2f} ms late"
        else:
            assert max(gaps) < 2e-5
            with_add, alone = (
                mean(m["end"] - m["begin"] for m, b in zip(messages, beside) if b is want) for want in (True, False)
            )
            yield f"takes {with_add * 1e3:.2f} ms where it takes {alone * 1e3:.2f} ms alone"
            took = mean(a["end"] - a["begin"] for a in additions)
            half = next(a["seconds"] for a in RING[record]["additions"] if a["size"] == 512 * MiB)
            yield f"the addition {took * 1e3:.2f} ms for {half * 1e3:.2f}"
        yield f"{variant(record, '1 way, 2 slices'):.0f} GB/s"
    tuned = "chunk-128K-64-channels"
    yield (
        f"{variant(tuned, '1 way, 2 slices'):.0f} GB/s, "
        f"{variant(tuned, '1 way, 2 slices') / variant(tuned, 'library'):.0%} of the library's "
        f"{variant(tuned, 'library'):.0f}"
    )
    yield f"{busbw(4, 'two_way', 256 * MiB):.0f} GB/s at 256 MiB where the ring has {busbw(4, 'ring', 256 * MiB):.0f}"
    blocks = {k["blocks"] for k in RING["default"]["timelines"]["2 ways, 2 slices"] if k["what"] == "message"}
    yield f"one kernel of {blocks.pop()} channels"
    for N in RANKS:
        fit, gpu = entry(N, "library")["fit"], entry(N, "library")["fit_gpu"]
        yield (
            f"alpha {fit['alpha'] * 1e6:.1f} us, {1 / fit['beta'] / 1e9:.0f} GB/s, at most {fit['worst']:.1%} off "
            f"(at {human(fit['worst_at'])})"
        )
        yield f"at most {gpu['worst']:.0%} off (at {human(gpu['worst_at'])})"
        assert fit["worst"] < 0.15
    for size in (MiB, 2 * MiB):
        yield f"{row(2, 'library', size)['gpu'] * 1e6:.1f} us for {human(size)}"
    gpu = entry(2, "library")["fit_gpu"]
    asks = [1e6 * (gpu["messages"] * gpu["alpha"] + gpu["share"] * size * gpu["beta"]) for size in (MiB, 2 * MiB)]
    yield f"the fitted line asks for {asks[0]:.1f} and {asks[1]:.1f} us"
    ring = entry(4, "ring")["fit"]
    yield f"{ring['worst']:.0%} off at {human(ring['worst_at'])}"
    first = {who: row(4, who, 1024) for who in ("library", "ring", "naive")}
    for who in ("library", "ring"):
        yield f"{first[who]['seconds'] * 1e6:.0f} us, of which the GPU works {first[who]['gpu'] * 1e6:.0f}"
    calls = RING["default"]["calls"]
    yield f"{calls['sendrecv into out']:.0f} to {calls['sendrecv into a new tensor']:.0f} us of CPU time"
    probe = RING["pool"]["rows"]
    frees = probe[1]["after"]["num_device_free"] - probe[1]["before"]["num_device_free"]
    yield f"{probe[1]['seconds'] * 1e3:.2f} ms a call instead of {probe[2]['seconds'] * 1e3:.2f}"
    yield f"{frees} calls of cudaFree"
    clock = clocks.clock_of(BENCH[4])
    for other in ("naive", "one_shot"):
        yield f"{clocks.NAMES.get(other, other)} from {clocks.crossing(clock[other], clock['ring']) / MiB:.1f} MiB on"
    wires = RING["default"]["wires"]
    for name in ("0 to 1, alone", "0 and 1, both ways", "all neighbours, both ways", "everybody to the right"):
        yield f"| {name} | {wires[name] / 1e9:.0f} |"
    yield f"| all to 0, together | {wires['all to 0'] / 1e9:.0f} |"
    yield f"one library call {calls['library all_reduce']:.0f}"
    yield f"{busbw(4, 'library', 256 * MiB):.0f} GB/s at 256 MiB, {busbw(4, 'library'):.0f} at 4 GiB"
    yield f"from {variant('default', 'ring', 256 * MiB):.0f} to {variant('chunk-64K', 'ring', 256 * MiB):.0f} GB/s"
    yield f"for {1 - variant('chunk-64K', 'ring') / variant('priority', 'ring'):.0%} at 4 GiB".replace("%", " %")
    yield f"450 GB/s on paper, {wires['everybody to the right'] / 1e9:.0f} measured"
    yield f"Our four reach {busbw(4, 'library'):.1f}"
    yield f"a 4 MiB all-reduce takes {row(4, 'library', 4 * MiB)['seconds'] * 1e6:.0f}"
    yield f"{5e-3 / 100 * 1e6:.0f} us to each of them"
    model = {N: {who: floors.floor_of(records.series(BENCH[N], who), who, N) for who in OWN} for N in RANKS}
    off = {
        N: [max(map(abs, floors.errors(model[N][who], records.series(BENCH[N], who))[0].values())) for who in OWN]
        for N in RANKS
    }
    assert max(off[4]) < 0.15
    yield "With two ranks the maximum is {:.0%}, {:.0%} and {:.0%} off".format(*off[2])
    for who, worst in zip(OWN, off[4]):
        floor = model[4][who]
        yield (
            f"| {clocks.NAMES.get(who, who)} | {floor.queue * 1e6:.0f} | {1 / floor.short.beta / 1e9:.0f} | "
            f"{1 / floor.long.beta / 1e9:.0f} | {worst:.0%} |"
        )
    strays = floors.errors(model[4]["ring"], records.series(BENCH[4], "ring"))[1]
    yield f"its rows at {strays and ' and '.join(f'{size >> 10:.0f}' for size in strays)} KiB"
    line = {
        who: cost_model.fit_alpha_beta(*zip(*clock[who]), getattr(cost_model, f"{who}_all_reduce_cost")(4))
        for who in OWN
    }
    yield "{:.0%} off for naive, {:.0%} for one-shot, {:.0%} for the ring".format(
        *(max(map(abs, line[who].residuals)) for who in OWN)
    )
    cost = {who: getattr(cost_model, f"{who}_all_reduce_cost")(4) for who in OWN}
    said = [
        [
            floors.crossing(model[4][who], model[4]["ring"]) / MiB,
            (cost["ring"].messages * line["ring"].alpha - cost[who].messages * line[who].alpha)
            / (cost[who].share * line[who].beta - cost["ring"].share * line["ring"].beta)
            / MiB,
        ]
        for who in OWN[:2]
    ]
    yield "the maximum says {:.1f} and {:.1f} MiB, the fitted lines {:.1f} and {:.1f}".format(*sum(zip(*said), ()))
    yield f"{2 * 3 / 4 * 16e9 / (busbw(4, 'library') * 1e9) * 1e3:.0f} ms"


def answers():
    """The numbers in the notebook's model answer on the three clocks."""
    first = {who: row(4, who, 1024)["seconds"] * 1e6 for who in ("library", "ring", "naive")}
    yield f"{first['ring']:.0f} us, of which the GPU works {row(4, 'ring', 1024)['gpu'] * 1e6:.0f}"
    yield f"one kernel: {first['library']:.0f} us"
    yield f"({first['naive']:.0f} us)"
    clock = clocks.clock_of(BENCH[4])
    model = {who: floors.floor_of(records.series(BENCH[4], who), who, 4) for who in OWN}
    clock_lines = [
        cost_model.fit_alpha_beta(*zip(*clock[who]), getattr(cost_model, f"{who}_all_reduce_cost")(4)) for who in OWN
    ]
    worst = sorted(max(map(abs, line.residuals)) for line in clock_lines)
    yield f"is {100 * worst[0]:.0f} to {worst[-1]:.0%} off".replace("%", " %")
    off = max(max(map(abs, floors.errors(model[who], records.series(BENCH[4], who))[0].values())) for who in OWN)
    yield f"the maximum is at most {off:.0%} off".replace("%", " %")
    for who, share in (("naive", 6), ("one_shot", 3)):
        at, measured = floors.crossing(model[who], model["ring"]), clocks.crossing(clock[who], clock["ring"])
        yield f"{share} n bytes at {1 / model[who].short.beta / 1e9:.0f} GB/s"
        yield f"at {at / MiB:.1f} MiB (measured: {measured / MiB:.1f})"
    yield f"{busbw(4, 'ring', 512 * MiB):.0f} GB/s at 512 MiB, {busbw(4, 'ring', GiB):.0f} at 1 GiB"
    yield f"{busbw(4, 'ring'):.0f} of the library's {busbw(4, 'library'):.0f} GB/s"
    yield f"1/beta, {1 / entry(4, 'library')['fit']['beta'] / 1e9:.0f} GB/s"


@pytest.mark.parametrize("words", list(answers()))
def test_every_number_in_the_model_answer(words):
    cells = json.loads((records.RESULTS.parent / "lab.ipynb").read_text(encoding="utf-8"))["cells"]
    text = next("".join(cell["source"]) for cell in cells if cell["id"] == "task-13-7-clocks")
    assert words in " ".join(text.split())


@pytest.mark.parametrize("line", tables())
def test_every_row_of_the_tables(line):
    assert line in README.splitlines()


@pytest.mark.parametrize("words", sorted(set(sentences())))
def test_every_number_in_the_text(words):
    assert words in TEXT


def test_nothing_was_wrong_and_nothing_is_missing():
    assert set(BENCH) == set(RANKS)
    for N in RANKS:
        assert not any(r["wrong"] for e in BENCH[N]["series"] for r in e["rows"])
        assert all(len(e["rows"]) == 23 for e in BENCH[N]["series"])
        assert BENCH[N]["environment"]["NCCL_NVLS_ENABLE"] == "0"
        library = records.series(BENCH[N], "library")
        # The same arithmetic with another BLAS: only rounding may differ.
        for key, of in (("fit", "seconds"), ("fit_gpu", "gpu")):
            again = records.fit(library, cost_model.ring_all_reduce_cost(N), of=of)
            assert entry(N, "library")[key] == pytest.approx(again)
        for version in (BENCH[N]["versions"]["torch"], BENCH[N]["versions"]["nccl"], BENCH[N]["started"][:10]):
            assert version in TEXT


def test_files_are_named_exist_and_tell_nothing_private():
    folder = records.RESULTS
    named = set(re.findall(r"[\w./-]+\.(?:json|png|txt)", README))
    for path in [*folder.glob("*.*"), *(folder / "ring").glob("*.json")]:
        if path.name != "README.md":
            assert str(path.relative_to(folder)) in named, path.name
            assert path.stat().st_size < 200_000
        if path.suffix in (".json", ".txt", ".md"):
            assert not re.search(r"GPU-[0-9a-f]{8}|\x1b|/home/|/root/|/tmp/", path.read_text(encoding="utf-8"))
    topo = smi.parse_topo((folder / "h200-topology.txt").read_text(encoding="utf-8"))
    assert len(topo.gpus) == 4 and set(topo.between.values()) == {"NV18"}
