"""What the pages in results/ and the notebook's model answer say of the committed records.

The pages' numbers are blanks that `lab results` fills; tests/test_results.py holds each page to its template.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import week13_allreduce
from grading.tree import student_tree
from labkit.checks.tasks import find_weeks
from tests.notebooks import Notebook
from week13_allreduce import cost_model
from week13_allreduce.given import clocks, findings, records
from week13_allreduce.given.findings import OWN, MiB, busbw, entry
from week13_allreduce.stretch import smi

ROOT = Path(__file__).resolve().parents[2]
RANKS = (4, 2)
BENCH = records.recorded()


def gpu_alone():
    """{who: [(size, the GPU's own seconds)]} of our all-reduces on four GPUs: what a CPU that costs nothing leaves."""
    return {who: [(r["size"], r["gpu"]) for r in records.series(BENCH[4], who)] for who in OWN}


def answers():
    """The numbers in the notebook's model answer on the H200."""
    clock, alone = clocks.clock_of(BENCH[4]), gpu_alone()
    today, then = ({who: clocks.crossing(c[who], c["ring"]) for who in ("naive", "one_shot")} for c in (clock, alone))
    us = {who: {size: seconds * 1e6 for size, seconds in alone[who]} for who in OWN}
    short, long = 1 << 10, 1 << 18
    yield f"they cross at {today['naive'] / MiB:.1f} MiB"
    yield f"naive {us['naive'][short]:.0f} us, ring {us['ring'][short]:.0f} us at 1 KiB"
    yield f"for good only from {then['naive'] / MiB:.1f} MiB on"
    assert round(today["naive"] / then["naive"]) == 7
    yield "seven times earlier than today"
    spans = (f"{who} {us[who][short]:.0f} to {us[who][long]:.0f} us" for who in ("ring", "naive"))
    yield f"({', '.join(spans)})"
    yield f"falls behind at {then['one_shot'] / MiB:.1f} MiB (today {today['one_shot'] / MiB:.1f})"


def test_what_is_asked_of_the_h200_is_answered_nowhere_in_a_students_tree():
    """The fold behind prediction 4 and FINDINGS.md explain the curves as they are; 13.7 asks what they would be."""
    crossing = clocks.crossing(gpu_alone()["naive"], gpu_alone()["ring"])
    tree = student_tree(ROOT, [week for week in find_weeks(ROOT) if week.name == "week13"])
    pages = {name: f.data.decode() for name, f in tree.files.items() if name.endswith((".md", ".ipynb", ".py"))}
    assert len(pages) > 100 and "*Four H200.* Suppose" in pages["week13_allreduce/lab.ipynb"]
    number = re.compile(
        rf"(?<![\d.]){re.escape(f'{crossing / MiB:.1f}')}\d? Mi?B|\b{crossing / 1024:.0f} KiB|seven times earlier"
    )
    assert number.search(f"from {crossing / MiB:.2f} MiB on")
    assert not [name for name, text in pages.items() if number.search(text)]


@pytest.mark.parametrize("words", list(answers()))
def test_every_number_in_the_model_answer(words):
    assert Notebook(week13_allreduce).says("task-13-7-clocks", words)


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


def test_the_words_beside_the_numbers():
    assert all(entry(N, "library")["fit"]["worst"] < 0.15 for N in RANKS)  # "within 15 %"
    assert max(findings.off_floor(4, who) for who in OWN) < 15
    assert busbw(4, "ring", collective="all_gather") > 0.99 * busbw(4, "library", collective="all_gather")
    assert busbw(2, "ring", collective="all_gather") > busbw(2, "library", collective="all_gather")
    assert findings.variant("default", "1 way, 2 slices") < findings.variant("default", "ring")
    messages = findings.rings()["priority"]["timelines"]["1 way, 2 slices"]
    ends = [(k["begin"], k["end"]) for k in messages if k["what"] == "message"]
    assert max(b[0] - a[1] for a, b in pairwise(ends)) < 2e-5  # at high priority none is late
    for size in (128 * MiB, 256 * MiB, 512 * MiB):  # two directions are the best of our rings there
        assert busbw(4, "two_way", size) == max(busbw(4, who, size) for who in findings.OURS)
    assert findings.wrong() == 0


def test_the_topology_is_the_one_described():
    topo = smi.parse_topo((records.RESULTS / "h200-topology.txt").read_text(encoding="utf-8"))
    assert len(topo.gpus) == 4 and set(topo.between.values()) == {"NV18"}
