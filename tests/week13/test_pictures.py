"""The five pictures, drawn from real runs: they exist, and their words say what the data say."""

import pytest
import torch

from labkit.comm.topology import Topology
from labkit.errors import LabError
from week13_allreduce import collectives, cost_model
from week13_allreduce.given import clocks, experiments, pictures, schedule

ALPHA, BANDWIDTH, MiB = 5e-6, 50e9, 1 << 20


def drawn(picture, name):
    assert picture.name == name and picture.alt and picture.note
    assert picture.png.read_bytes()[:4] == b"\x89PNG" and picture.svg.read_bytes()[:5] == b"<?xml"
    return picture


def by_isend(x, group):
    """A right ring that posts its messages instead of waiting in sendrecv."""
    N, r, chunk = group.size, group.rank, x.tensor_split(group.size)
    for s in range(2 * (N - 1)):
        adds = s < N - 1
        send, into = chunk[(r - s - 1) % N], chunk[(r - s - 2) % N]
        sent = group.isend(send, (r + 1) % N)
        if adds:
            into += group.irecv((r - 1) % N, like=into).wait()
        else:
            group.irecv((r - 1) % N, out=into).wait()
        sent.wait()


def right_and_left_swapped(x, group):
    N, r, chunk = group.size, group.rank, x.tensor_split(group.size)
    for s in range(N - 1):
        acc = chunk[(r - s - 2) % N]
        acc += group.sendrecv(chunk[(r - s - 1) % N], dst=(r - 1) % N, src=(r + 1) % N, like=acc)
    for s in range(N - 1):
        group.sendrecv(chunk[(r - s) % N], dst=(r - 1) % N, src=(r + 1) % N, out=chunk[(r - s - 1) % N])


def one_step_short(x, group):
    N, r, chunk = group.size, group.rank, x.tensor_split(group.size)
    for s in range(N - 2):
        acc = chunk[(r - s - 2) % N]
        acc += group.sendrecv(chunk[(r - s - 1) % N], dst=(r + 1) % N, src=(r - 1) % N, like=acc)


@pytest.mark.parametrize("ring", [collectives.ring_all_reduce, by_isend])
def test_filling_tells_whose_addends_are_where_and_who_sent_them(ring):
    states, messages = experiments.filling(ring, 4)
    assert states.shape == (7, 4, 4, 4, 4) and len(messages) == 6
    for r in range(4):
        for c in range(4):
            want = torch.zeros(4, 4, dtype=torch.long)
            want[r, c] = 1
            assert (states[0, r, c] == want).all()
            want[:, c] = 1
            assert (states[6, r, c] == want).all()
    # after step s rank r's chunk r-s-2 holds ranks r-s-1 .. r
    assert states[1, 2, 0, :, 0].tolist() == [0, 1, 1, 0]
    for step in messages:
        assert [src for src, _ in step] == [3, 0, 1, 2]
    assert messages[0][2][1].nonzero().tolist() == [[1, 0]]  # rank 1's addend to chunk 0


@pytest.mark.parametrize("N", [2, 3, 4, 5])
@pytest.mark.parametrize("ring", [collectives.ring_all_reduce, by_isend])
def test_chunk_grid(tmp_path, ring, N):
    picture = drawn(pictures.chunk_grid(experiments.filling(ring, N), tmp_path), "chunk_grid")
    complete = [0] * (N - 1) + [N * k for k in range(1, N + 1)]
    assert f"each step: {', '.join(map(str, complete))} of {N * N}. No chunk is wrong." in picture.alt


def test_wrong_rings_are_drawn_as_wrong(tmp_path):
    picture = pictures.chunk_grid(experiments.filling(one_step_short, 4), tmp_path)
    assert "0, 0, 0 of 16" in picture.alt
    swapped = experiments.filling(right_and_left_swapped, 4)
    assert [src for src, _ in swapped.messages[0]] == [1, 2, 3, 0]  # from the right, as it was
    picture = pictures.chunk_grid(swapped, tmp_path)
    assert "0, 0, 0, 0, 0, 0, 0 of 16. Wrong chunks: 0, 4, 8, 12, 16, 16, 16." in picture.alt

    def twice(x, group):
        N, r, chunk = group.size, group.rank, x.tensor_split(group.size)
        acc = chunk[(r - 2) % N]
        acc += 2 * group.sendrecv(chunk[(r - 1) % N], dst=(r + 1) % N, src=(r - 1) % N, like=acc)

    assert "Wrong chunks: 0, 4." in pictures.chunk_grid(experiments.filling(twice, 4), tmp_path).alt


RIGHT = "step 0   3 0 1 2\nstep 1   2 3 0 1\nstep 2   1 2 3 0"


def test_a_schedule_on_paper_is_played_and_shown(tmp_path):
    played, verdict = schedule.reduce_scatter(RIGHT)
    assert verdict == "It works: every rank r holds chunk r complete."
    real = experiments.filling(collectives.ring_reduce_scatter, 4)
    assert (played.states == real.states).all()  # the same as the code's, step by step
    drawn(pictures.chunk_grid(played, tmp_path), "chunk_grid")
    lacking = schedule.reduce_scatter(RIGHT.replace("3 0 1 2", ". 0 1 2"))[1]
    assert "chunk 3 on rank 3 lacks the addend of rank 0." in lacking
    again = schedule.reduce_scatter("\n".join([RIGHT, "0 1 2 3"] * 2))[1]
    assert "addend is in it twice" in again
    assert schedule.reduce_scatter("1 0")[1].startswith("It works")
    _, verdict = schedule.all_gather("0 1 2 3\n3 0 1 2\n2 3 0 1")
    assert verdict == "It works: every rank holds every chunk."
    assert "rank 3 sends chunk 2, which it does not have" in schedule.all_gather(RIGHT)[1]
    for lap in (schedule.reduce_scatter, schedule.all_gather):
        assert lap(". . .\n. . .")[1].startswith("Nothing is sent yet")
    for bad in ("", "0 1 2\n0 1", "0 1 4 2", "a b"):
        with pytest.raises(LabError):
            schedule.reduce_scatter(bad)


def test_wait_for(tmp_path):
    def send_first(group):
        group.send(torch.ones(4), (group.rank + 1) % group.size)
        group.recv((group.rank - 1) % group.size, like=torch.ones(4))

    picture = drawn(pictures.wait_for(autopsy := experiments.autopsy_of(send_first, N=3), tmp_path), "wait_for")
    assert ", ".join(f"{edge.waiter} waits for {edge.on}" for edge in autopsy.edges) in picture.alt
    assert autopsy.cause in picture.alt
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
    rows = {"library": [row], "ring": []}
    series = [{"collective": "all_reduce", "contender": who, "rows": some} for who, some in rows.items()]
    laptop = clocks.clock_of({"series": series})
    assert laptop == {"library": [(1024, 1e-3)]}
    found = {"wire": virtual, "laptop": laptop, "H200": None}
    picture = drawn(clocks.three_clocks(found, [1, "never", 5.0], tmp_path), "three_clocks")
    assert "wire: ring beats naive at every size, beats one-shot from 490 KiB on" in picture.alt
    # On paper 500 KB; the curve between two measured sizes is not quite straight.
    assert clocks.crossing(virtual["one_shot"], virtual["ring"]) == pytest.approx(500e3, rel=0.05)
    assert "laptop: ring not measured: its task is open" in picture.alt and "H200: not recorded" in picture.alt
