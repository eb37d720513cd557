"""The virtual wire's rules, on ledgers written by hand. All expected times are worked out in the comments.

Unless said otherwise the wire is a switch with alpha = 2 us and 1000 bytes per us, so that `n` bytes take
2 us + n/1000 us.
"""

import random
import time
from itertools import permutations

import pytest

from labkit.comm.ledger import Ledger
from labkit.comm.topology import Link, Topology
from labkit.comm.wire import replay
from tests.comm.programs import US, programs, refused, switch


def spans(result) -> list[tuple]:
    """(src, dst, begin, end) of each transfer, in us."""
    return [(t.src, t.dst, pytest.approx(t.begin / US), pytest.approx(t.end / US)) for t in result.transfers]


def us(seconds) -> object:
    return pytest.approx(seconds / US)


def to(peer: int, size: int = 4000) -> tuple:
    return "send", peer, size


def of(peer: int, size: int = 4000) -> tuple:
    return "recv", peer, size


def on_switch(*ranks):
    """The replay of these ranks' steps, on the usual wire."""
    return replay(programs(*ranks), switch(len(ranks)))


# ---- one message, two messages


def test_one_message():
    result = on_switch([to(1)], [of(0)])
    (t,) = result.transfers
    assert (t.src, t.dst, t.bytes, t.links) == (0, 1, 4000, ("0.up", "1.down"))
    assert us(t.begin) == 0 and us(t.end) == 6  # 2 + 4
    assert us(result.time) == 6 and [us(end) for end in result.ranks] == [6, 6] and t.where == "rank0.py:1"
    assert result.links["0.up"].utilisation == 1.0 and result.busiest() == "0.up"
    assert result.links["1.up"].busy == () and result.links["1.up"].utilisation == 0.0


def test_nothing_at_all():
    result = on_switch([], [])
    assert result.time == 0.0 and result.transfers == () and result.busiest() is None
    assert all(use.utilisation == 0.0 for use in result.links.values())


def test_two_into_one_share_the_last_link():
    # Both senders are ready at 0; rank 1 goes first (lower number), rank 2 waits for the link down to rank 0.
    result = on_switch([[of(2), of(1)]], [to(0)], [to(0)])
    assert spans(result) == [(1, 0, 0, 6), (2, 0, 6, 12)]
    assert result.links["0.down"].utilisation == 1.0 and result.links["2.up"].utilisation == pytest.approx(0.5)
    assert result.links["0.down"].busy == (pytest.approx((0.0, 6 * US)), pytest.approx((6 * US, 12 * US)))


LEAVES, COMES = ("isend", 1, 4000, "a"), ("irecv", 0, 4000, "b")
SCHEDULES = {  # what the ranks do, and (src, dst, begin, end) of what crosses
    "no bytes cost the latency": ([[to(1, 0)], [of(0, 0)]], [(0, 1, 0, 2)]),
    "to oneself costs nothing": ([[[to(0, 999), of(0, 999)]]], [(0, 0, 0, 0)]),
    "full duplex": ([[[to(1 - r), of(1 - r)]] for r in (0, 1)], [(0, 1, 0, 6), (1, 0, 0, 6)]),
    "in turn": ([[to(1), of(1)], [of(0), to(0)]], [(0, 1, 0, 6), (1, 0, 6, 12)]),
    # Rank 1 first receives 8000 bytes from rank 2 (10 us), then asks for rank 0's message.
    "a receive posted late": ([[to(1)], [of(2, 8000), of(0)], [to(1, 8000)]], [(2, 1, 0, 10), (0, 1, 10, 16)]),
    # To rank 0: 2 and 3 are ready at 0, rank 1 only at 3 (it first sends 1000 bytes to rank 4). 2 goes first by number;
    # at 6 both 1 and 3 wait: 3 has waited longer.
    "ready first goes first": (
        [[[of(r) for r in (1, 2, 3)]], [to(4, 1000), to(0)], [to(0)], [to(0)], [of(1, 1000)]],
        [(1, 4, 0, 3), (2, 0, 0, 6), (3, 0, 6, 12), (1, 0, 12, 18)],
    ),
    # At 6 the link down to 0 is free, but rank 2's link up is busy until 10 (2 -> 3): 2 -> 0 waits for both.
    "the whole path": (
        [[[of(1), of(2)]], [to(0)], [[to(3, 8000), to(0)]], [of(2, 8000)]],
        [(1, 0, 0, 6), (2, 3, 0, 10), (2, 0, 10, 16)],
    ),
    # All ready at 0: 1 2 3 4 -> 6, and 2 -> 0, 3 -> 5 which keep the links up from 2 and 3 busy until 6, as 1 -> 6
    # keeps the link down to 6. At 6 the links of 2 -> 6 and of 3 -> 6 get free at once, and only one of the two can go.
    "three in different queues": (
        [[of(2)], [to(6)], [[to(0), to(6)]], [[to(5), to(6)]], [to(6)], [of(3)], [[of(r) for r in (1, 2, 3, 4)]]],
        [(1, 6, 0, 6), (2, 0, 0, 6), (3, 5, 0, 6), (2, 6, 6, 12), (3, 6, 12, 18), (4, 6, 18, 24)],
    ),
    # 1 -> 0 until 6; 2 -> 0 and 3 -> 0 wait. Meanwhile 2 -> 4 (8000 bytes) becomes ready at 3, when 4 is done with 5,
    # and takes the link up from 2 until 13. So at 6 the first in line, 2 -> 0, cannot go, and 3 -> 0 can.
    "the next in line": (
        [[[of(1), of(2), of(3)]], [to(0)], [[to(0), to(4, 8000)]], [to(0)], [of(5, 1000), of(2, 8000)], [to(4, 1000)]],
        [(1, 0, 0, 6), (5, 4, 0, 3), (2, 4, 3, 13), (3, 0, 6, 12), (2, 0, 13, 19)],
    ),
    "one pair, in order": (
        [[[to(1, 1000), to(1, 2000), to(1, 0)]], [of(0, 1000), of(0, 2000), of(0, 0)]],
        [(0, 1, 0, 3), (0, 1, 3, 7), (0, 1, 7, 9)],
    ),
    # Rank 0 posts 1000 bytes to 1 (3 us) and 8000 from 2 (10 us); only then it sends again.
    "a batch ends with its last part": (
        [[[to(1, 1000), of(2, 8000)], to(1, 1000)], [of(0, 1000), of(0, 1000)], [to(0, 8000)]],
        [(0, 1, 0, 3), (2, 0, 0, 10), (0, 1, 10, 13)],
    ),
    # Rank 2 reaches the barrier at 0, ranks 0 and 1 at 6. Then 2 sends to 0.
    "a barrier lines up": (
        [[to(1), ("barrier",), of(2, 1000)], [of(0), ("barrier",)], [("barrier",), to(0, 1000)]],
        [(0, 1, 0, 6), (2, 0, 6, 9)],
    ),
    # A message posted before the barrier goes on across it. Its end does not open the barrier: that does rank 2, at 10.
    "across a barrier": (
        [
            [LEAVES, ("barrier",), to(1, 1000)],
            [COMES, ("barrier",), of(0, 1000)],
            [of(3, 8000), ("barrier",)],
            [to(2, 8000), ("barrier",)],
        ],
        [(0, 1, 0, 6), (3, 2, 0, 10), (0, 1, 10, 13)],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_crosses_when(name):
    ranks, expected = SCHEDULES[name]
    result = on_switch(*ranks)
    assert spans(result) == expected and us(result.time) == expected[-1][-1]


def test_when_ranks_are_done():
    late = on_switch([to(1)], [of(2, 8000), of(0)], [to(1, 8000)])
    assert us(late.transfers[1].ready) == 10 and [us(end) for end in late.ranks] == [16, 16, 10]
    # Nobody waits for this message, which needs 6 us: the replay lasts as long.
    for comes, ends in ((of(0), 6), (COMES, 0)):
        result = on_switch([LEAVES], [comes])
        assert result.ranks[0] == 0.0 and us(result.ranks[1]) == ends and us(result.time) == 6
    result = on_switch([LEAVES, ("barrier",), ("wait", "a")], [COMES, ("barrier",), ("wait", "b")])
    assert us(result.time) == 6


def test_equal_on_paper_is_equal_here():
    # In floats 0.1 + 0.1 + 0.1 > 0.3, and rounding would say who is ready first.
    wire = Topology(2, {"link": Link(1000)}, {(0, 1): ["link"]})
    assert replay(programs([to(1, 100)] * 3, [of(0, 100)] * 3), wire).time == 0.3


# ---- blocking, not blocking, batches


POSTED = ("isend", 1, 8000, "a"), ("isend", 2, 1000, "b"), ("wait", "a"), ("wait", "b")


@pytest.mark.parametrize(
    "steps, second",  # the message to 1 takes 10 us, the one to 2 takes 3 us
    [
        ([to(1, 8000), to(2, 1000)], 10),
        ([("isend", 1, 8000, "a"), ("wait", "a"), to(2, 1000)], 10),
        ([("isend", 1, 8000, "a"), to(2, 1000), ("wait", "a")], 0),
        (POSTED, 0),
        ([[to(1, 8000), to(2, 1000)]], 0),
    ],
)
def test_a_rank_stands_still_where_it_waits(steps, second):
    cables = Topology.from_bandwidth([[0, 1e9, 1e9], [1e9, 0, 0], [1e9, 0, 0]], alpha=2 * US)  # a cable to each peer
    result = replay(programs(steps, [of(0, 8000)], [of(0, 1000)]), cables)
    assert spans(result) == [(0, 1, 0, 10), (0, 2, second, second + 3)] and us(result.ranks[0]) == max(10, second + 3)


# ---- always the same


def lively(n: int = 5, steps: int = 30) -> list[Ledger]:
    """Random but matched traffic: each round, ranks are paired at random and exchange."""
    rng, steps_of = random.Random(0), [[] for _ in range(n)]
    for k in range(steps):
        order = rng.sample(range(n), n)
        for a, b in zip(order[::2], order[1::2]):
            size = rng.choice([0, 100, 5000])
            if rng.random() < 0.5:
                steps_of[a].append([("send", b, size), ("recv", b, size)])
                steps_of[b].append([("send", a, size), ("recv", a, size)])
            else:
                steps_of[a] += [("isend", b, size, f"s{k}"), ("wait", f"s{k}")]
                steps_of[b] += [("irecv", a, size, f"r{k}"), ("wait", f"r{k}")]
    return programs(*steps_of)


def test_real_clocks_and_the_order_of_ledgers_do_not_matter():
    ledgers, topology = lively(), switch(5)
    before = replay(ledgers, topology)
    rng = random.Random(1)
    for ledger in ledgers:
        for event in ledger.events:
            event.begin, event.end = rng.random(), rng.choice([None, rng.random()])
    rng.shuffle(ledgers)
    assert replay(ledgers, topology) == before


def shared_root(n: int) -> Topology:
    """All messages cross one link, of 2 us and 1000 bytes per us."""
    links = {"root": Link(1e9, 2 * US)}
    return Topology(n, links, dict.fromkeys(permutations(range(n), 2), ("root",)))


NODES = Topology.two_level(5, 1, inner_alpha=0, inner_bandwidth=1e9, outer_alpha=1e-6, outer_bandwidth=1e8)


@pytest.mark.parametrize("topology", [switch(5), shared_root(5), NODES], ids=["switch", "root", "nodes"])
def test_what_must_hold_in_every_replay(topology):
    result = replay(lively(), topology)
    for name, use in result.links.items():
        assert all(a[1] <= b[0] for a, b in zip(use.busy, use.busy[1:])), f"two messages at once on {name}"
        assert 0 <= use.utilisation <= 1
    for t in result.transfers:
        assert t.ready <= t.begin <= t.end <= result.time
        assert t.links == topology.path(t.src, t.dst)
        assert t.end - t.begin == pytest.approx(topology.seconds(t.src, t.dst, t.bytes))
    assert [t.begin for t in result.transfers] == sorted(t.begin for t in result.transfers)
    # Nobody dawdles: a message that began later than it was ready found one of its links busy until just then.
    busy_until = {(name, end) for name, use in result.links.items() for _, end in use.busy}
    assert all(t.begin == t.ready or any((name, t.begin) in busy_until for name in t.links) for t in result.transfers)


def test_many_events_are_quick():
    n, k = 8, 4000  # 28,000 messages ready at once for one rank: the queue must not be searched over and over
    ledgers = programs([[of(r, 8) for _ in range(k) for r in range(1, n)]], *[[[to(0, 8)] * k]] * (n - 1))
    begin = time.process_time()  # whoever else uses the machine does not count
    result = replay(ledgers, shared_root(n))
    # Well under a second on an idle laptop; a quadratic search would need minutes.
    assert time.process_time() - begin < 20
    # One link carries them all, each for 2 us + 8 ns, and never idles.
    assert result.time == pytest.approx(len(result.transfers) * 2.008 * US)


# ---- what cannot be replayed


REFUSED = {
    "both send first": (
        [[to(1, 8), of(1, 8)], [to(0, 8), of(0, 8)]],
        (
            "rank 0 waits in send to rank 1 (rank0.py:1)",
            "rank 1 waits in send to rank 0 (rank1.py:1)",
            "nobody receives",
        ),
    ),
    "everybody receives first": (
        [[("recv", (r - 1) % 3, 8), ("send", (r + 1) % 3, 8)] for r in range(3)],
        ("rank 2 waits in recv from rank 1 (rank2.py:1)", "in a circle"),
    ),
    "one step more than the others": (
        [[to(1, 8)], [of(0, 8), of(0, 8)]],
        ("cannot complete, on any wire: rank 1 waits in recv from rank 0 (rank1.py:2).", "Rank 0 has already returned"),
    ),
    "a wait names what it waits for": (
        [[("isend", 1, 8, "a"), ("wait", "a")], [("barrier",)]],
        ("waits in send to rank 1 (rank0.py:1)", "waits in barrier (rank1.py:1)", "rank 0 is not there"),
    ),
    "never received": ([[("isend", 1, 8, "a")], []], ("rank 0's send to rank 1 (rank0.py:1) is never received",)),
    "never sent": ([[], [("irecv", 0, 8, "a")]], ("rank 1's receive from rank 0 (rank1.py:1) is never sent",)),
    "halves of different size": (
        [[to(1, 8)], [of(0, 12)]],
        ("rank 0 sends 8 bytes to rank 1 (rank0.py:1), which expects 12 (rank1.py:1).",),
    ),
    "no such rank": ([[to(5, 8)], []], ("no way from rank 0 to rank 5",)),
    "a rank is missing": ([[("all_reduce", 8)], []], ("An all_reduce needs all ranks, and rank 1 is not there",)),
    "other collectives": (
        [[("all_reduce", 8)], [("all_gather", 8)]],
        ("rank 0 calls all_reduce", "rank 1 all_gather", "as collective number 1."),
    ),
    "collectives of different size": (
        [[("all_reduce", 8)], [("all_reduce", 16)]],
        ("all_reduce of 8 bytes", "all_reduce of 16 ("),
    ),
    "posted by one": ([[("all_reduce", 8, {"name": 1})], []], ("never complete",)),
    "no algorithm": ([[("juggle", 8)]], ("knows no algorithm",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_complete_is_refused(case):
    ranks, words = REFUSED[case]
    text = refused(programs(*ranks))
    assert all(word in text for word in words), text


def test_incomplete_ledgers():
    ledgers = programs([to(1, 8)], [of(0, 8)])
    with ledgers[0].off():
        ledgers[0].begin("send", 1, 8)
    assert "the ledger of rank 0 is not complete" in refused(ledgers)


@pytest.mark.parametrize("ranks", [[0], [0, 1, 1], [0, 2], [0, 0]])
def test_other_ranks_than_the_topology_has(ranks):
    assert refused([Ledger(r, 2) for r in ranks], switch(2))
