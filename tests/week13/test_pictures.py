"""The five pictures, drawn from real runs: they exist, and their words say what the data say."""

from __future__ import annotations

import pytest
import torch

from labkit.comm.topology import Topology
from week13_allreduce import collectives, cost_model
from week13_allreduce.given import clocks, experiments, pictures

ALPHA, BANDWIDTH, MiB = 5e-6, 50e9, 1 << 20


def drawn(picture, name):
    assert picture.name == name and picture.alt and picture.note
    assert picture.png.read_bytes()[:4] == b"\x89PNG" and "<svg" in picture.svg.read_text()
    return picture


def test_filling_tells_whose_addends_are_where():
    states = experiments.filling(collectives.ring_all_reduce, 4)
    assert states.shape == (7, 4, 4)
    assert states[0].tolist() == [[2**r] * 4 for r in range(4)]
    assert states[3].diagonal().tolist() == [15] * 4 and (states[3] == 15).sum() == 4
    assert (states[6] == 15).all()
    # after step s rank r's chunk r-s-2 holds ranks r-s-1 .. r
    assert states[1][2][0] == 0b0110


def test_chunk_grid(tmp_path):
    picture = drawn(pictures.chunk_grid(experiments.filling(collectives.ring_all_reduce, 4), tmp_path), "chunk_grid")
    assert "0, 0, 0, 4, 8, 12, 16 of 16" in picture.alt
    for N in (2, 3, 5):
        drawn(pictures.chunk_grid(experiments.filling(collectives.ring_all_reduce, N), tmp_path), "chunk_grid")
    lap = pictures.chunk_grid(experiments.filling(collectives.ring_reduce_scatter, 4), tmp_path)
    assert "0, 0, 0, 4 of 16" in lap.alt


def test_a_wrong_ring_is_drawn_too(tmp_path):
    def one_step_short(x, group):
        N, r, chunk = group.size, group.rank, x.tensor_split(group.size)
        for s in range(N - 2):
            acc = chunk[(r - s - 2) % N]
            acc += group.sendrecv(chunk[(r - s - 1) % N], dst=(r + 1) % N, src=(r - 1) % N, like=acc)

    picture = pictures.chunk_grid(experiments.filling(one_step_short, 4), tmp_path)
    assert "0, 0, 0 of 16" in picture.alt


def test_timelines(tmp_path):
    wire = Topology.switch(4, ALPHA, BANDWIDTH)
    runs = {
        "naive": experiments.on_wire(collectives.naive_all_reduce, wire, 16 * MiB),
        "ring": experiments.on_wire(collectives.ring_all_reduce, wire, 16 * MiB),
    }
    picture = drawn(pictures.timelines(runs, tmp_path), "timelines")
    assert "naive takes 2.04 ms" in picture.alt and "with 50%" in picture.alt
    assert "ring takes 0.533 ms" in picture.alt and "with 100%" in picture.alt


def test_wait_for(tmp_path):
    def send_first(group):
        group.send(torch.ones(4), (group.rank + 1) % group.size)
        group.recv((group.rank - 1) % group.size, like=torch.ones(4))

    picture = drawn(pictures.wait_for(experiments.autopsy_of(send_first, N=3), tmp_path), "wait_for")
    assert "0 waits for 1, 1 waits for 2, 2 waits for 0" in picture.alt and "sendrecv" in picture.alt
    assert experiments.autopsy_of(lambda group: group.barrier()) is None


def test_the_wires_clock_scales_one_run_to_any_size():
    wire, sizes = Topology.switch(4, ALPHA, BANDWIDTH), [1 << 12, 1 << 20, 1 << 30]
    cost = cost_model.ring_all_reduce_cost(4)
    want = [cost.time(size, ALPHA, 1 / BANDWIDTH) for size in sizes]
    assert experiments.sweep_on_wire(collectives.ring_all_reduce, wire, sizes) == pytest.approx(want, rel=1e-9)


def test_crossing():
    slow_start = [(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0)]
    assert clocks.crossing(slow_start, [(1, 4.0), (2, 2.0), (4, 0.5), (8, 0.1)]) == pytest.approx(2 * 2**0.5)
    assert clocks.crossing(slow_start, [(n, 0.5) for n, _ in slow_start]) == 0.0
    assert clocks.crossing(slow_start, [(n, 2.0) for n, _ in slow_start]) is None
    twice = [(1, 0.5), (2, 2.0), (4, 1.0), (8, 0.5)]  # ahead, behind, ahead: the last change counts
    assert clocks.crossing(slow_start, twice) == pytest.approx(4)
    assert clocks.crossing([], slow_start) is None


def test_three_clocks_with_a_guess_and_one_not_recorded(tmp_path):
    wire, sizes = Topology.switch(4, ALPHA, BANDWIDTH), [1 << k for k in range(10, 31, 2)]
    virtual = {}
    for name in ("naive", "one_shot", "ring"):
        function = getattr(collectives, f"{name}_all_reduce")
        virtual[name] = list(zip(sizes, experiments.sweep_on_wire(function, wire, sizes)))
    row = {"size": 1024, "seconds": 1e-3}
    record = {
        "series": [
            {"collective": "all_reduce", "contender": "library", "rows": [row]},
            {"collective": "all_reduce", "contender": "ring", "rows": []},
        ]
    }
    laptop = clocks.clock_of(record)
    assert laptop == {"library": [(1024, 1e-3)]}
    picture = drawn(
        clocks.three_clocks({"wire": virtual, "laptop": laptop, "H200": None}, {"wire": 1, "H200": 5.0}, tmp_path),
        "three_clocks",
    )
    assert "wire: ring beats naive at every size, beats one-shot from 490 KiB on" in picture.alt
    # On paper 500 KB; the curve between two measured sizes is not quite straight.
    assert clocks.crossing(virtual["one_shot"], virtual["ring"]) == pytest.approx(500e3, rel=0.05)
    assert "laptop: ring not measured: its task is open" in picture.alt and "H200: not recorded" in picture.alt


def test_bandwidths(tmp_path):
    cost = cost_model.ring_all_reduce_cost(8)
    rows = [
        {"size": 1 << k, "seconds": cost.time(1 << k, 3e-6, 1 / 200e9) * (1.1 if k % 2 else 0.9)} for k in range(10, 30)
    ]
    fit = cost_model.fit_alpha_beta([r["size"] for r in rows], [r["seconds"] for r in rows], cost)
    by_ranks = {"wire": {2: (49e9, 49e9), 8: (28e9, 48e9)}, "H200": {8: (208e9, 365e9)}}
    picture = drawn(clocks.bandwidths(by_ranks, rows, cost, fit, "made up", "at 64 MiB", tmp_path), "bandwidths")
    assert "8 ranks 208 and 365" in picture.alt and f"{max(abs(r) for r in fit.residuals):.0%}" in picture.alt


def test_sweep_of_a_gpu_record(tmp_path):
    rows = [{"size": 1 << k, "algbw": 2e11, "busbw": 3.5e11, "seconds": 1e-3, "wrong": 0} for k in (20, 24, 28)]
    fit = {
        "alpha": 1e-6,
        "beta": 1 / 365e9,
        "messages": 14,
        "share": 1.75,
        "from_bytes": 1 << 20,
        "worst": 0.1,
        "worst_at": 1,
    }
    record = {
        "ranks": 8,
        "wire": 450e9,
        "hardware_name": "NVIDIA H200",
        "transport": "nccl",
        "dtype": "float32",
        "series": [
            {"collective": "all_reduce", "contender": "library", "rows": rows, "fit": fit},
            {"collective": "all_gather", "contender": "library", "rows": rows, "fit": None},
        ],
        "nccl_tests": {"rows": rows},
    }
    made = clocks.busbw_sweep(record, tmp_path)
    assert [picture.name for picture in made] == ["busbw_all_reduce", "busbw_all_gather"]
    assert "wire limit 450 GB/s" in made[0].alt and "nccl-tests 350 GB/s" in made[0].alt and "10% off" in made[0].alt
