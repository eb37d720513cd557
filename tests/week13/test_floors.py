"""The model of the GPU clock that takes the longer of queueing and working."""

import pytest

from week13_allreduce import cost_model
from week13_allreduce.given import floors

MiB = 1 << 20
Q, ALPHA, SHORT, LONG = 300e-6, 5e-6, 1 / 150e9, 1 / 340e9


def rows_of(contender, ranks, queue=lambda size: Q):
    """A record made by the model itself: what it must find again."""
    cost = getattr(cost_model, f"{contender}_all_reduce_cost")(ranks)
    last = {"ring": ranks}.get(contender, 1) * 512 * MiB / ranks
    made = []
    for k in range(10, 33):
        size = 1 << k
        gpu = cost.time(size, ALPHA, SHORT if size <= last else LONG)
        made.append({"size": size, "gpu": gpu, "queue": queue(size), "seconds": max(gpu, queue(size))})
    return made


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("contender", ["naive", "one_shot", "ring"])
def test_it_finds_what_made_the_times(contender, ranks):
    floor = floors.floor_of(rows_of(contender, ranks), contender, ranks)
    assert floor.queue == Q
    for fit, beta in ((floor.short, SHORT), (floor.long, LONG)):
        assert (fit.alpha, fit.beta) == pytest.approx((ALPHA, beta), rel=1e-6)
    far, strays = floors.errors(floor, rows_of(contender, ranks))
    assert strays == {} and len(far) == 23 and max(map(abs, far.values())) < 1e-9


def test_a_row_in_which_the_cpu_was_held_up_is_named_and_left_out():
    rows = rows_of("ring", 4, lambda size: 2 * Q if size in (1 << 17, 1 << 30) else Q)
    floor = floors.floor_of(rows, "ring", 4)
    far, strays = floors.errors(floor, rows)
    assert strays == {1 << 17: 2.0}  # at 1 GiB the GPU decides: how long queueing took is all one
    assert max(map(abs, far.values())) < 1e-9 and 1 << 30 in far


def test_the_crossing_is_where_the_first_one_leaves_its_floor():
    naive, ring = (
        floors.floor_of(rows_of(who, 4, lambda size, q=q: q), who, 4) for who, q in (("naive", Q), ("ring", 1.5 * Q))
    )
    at = floors.crossing(naive, ring)
    assert naive.time(at) == pytest.approx(ring.time(at)) and naive.time(0.9 * at) < ring.time(0.9 * at)


def test_records_without_a_gpu_have_no_such_model():
    rows = [{"size": 1 << k, "seconds": 1e-3} for k in range(10, 20)]
    assert floors.floor_of(rows, "ring", 4) is None
    series = [{"collective": "all_reduce", "contender": who, "rows": rows} for who in ("ring", "tree")]
    assert floors.floors({"ranks": 4, "series": series}) == ""
    assert floors.floor_of(rows_of("ring", 4)[:10], "ring", 4) is None  # too short for the GPU to decide
