"""The broker against ranks on threads: the same program gives the same results and the same ledgers, on both."""

import contextlib
import selectors
import socket
import threading
import time

import pytest
import torch

from grading.sandbox.broker import Broker
from grading.sandbox.frames import Broken, clean
from labkit.comm import run_ranks
from labkit.comm.autopsy import Evidence, RanksFailed
from labkit.comm.diagnose import diagnose, examine
from labkit.comm.group import Group, Recv, Send
from labkit.comm.ledger import Ledger
from labkit.comm.link import BrokerTransport, frame_head
from labkit.comm.transport import Collective, Op, as_bytes

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip
REDUCED = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
]  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3)]


class Ranks:
    """Ranks on threads of this process whose groups speak to a real broker over sockets."""

    def __init__(self, fn, size, *args, weigh=None, tidy=None, off=frozenset()):
        ends = [socket.socketpair() for _ in range(size)]
        for mine, _ in ends:
            mine.setblocking(False)
        self.broker = Broker([mine for mine, _ in ends], off, weigh=weigh)
        self.values, self.errors = [None] * size, [None] * size
        self.links = [theirs for _, theirs in ends]

        def work(rank):
            group = Group(BrokerTransport(rank, size, self.links[rank], tidy), Ledger(rank, size))
            try:
                self.values[rank] = fn(group, *args)
            except (EOFError, OSError):
                pass  # the test has ended it
            except Exception as error:
                self.errors[rank] = error

        self.threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        self.ends = ends

    def run(self, seconds=20.0):
        """Until all ranks have returned, all that run stand still, or a fault."""
        selector = selectors.DefaultSelector()
        for endpoint in self.broker.endpoints:
            selector.register(endpoint.link, selectors.EVENT_READ, endpoint)
        for thread in self.threads:
            thread.start()
        give_up, quiet = time.monotonic() + seconds, 0
        while any(thread.is_alive() for thread in self.threads):
            ready = selector.select(0.02)
            for key, _ in ready:
                self.broker.read(key.data)
            for endpoint in self.broker.endpoints:
                self.broker.write(endpoint)
            blocked = all(m.blocked for m, t in zip(self.broker.endpoints, self.threads) if t.is_alive())
            quiet = quiet + 1 if blocked and not ready else 0
            if self.broker.fault or quiet > 15:
                break
            assert time.monotonic() < give_up, "the ranks neither end nor stand still"
        for key, _ in selector.select(0):
            self.broker.read(key.data)
        selector.close()
        return self

    @property
    def ledgers(self):
        return [endpoint.ledger for endpoint in self.broker.endpoints]

    def autopsy(self, reason=""):
        evidence = [
            Evidence(m.rank, m.ledger, "running" if t.is_alive() else "returned", now=m.ledger.now())
            for m, t in zip(self.broker.endpoints, self.threads)
        ]
        return diagnose(evidence, reason, backend="sandbox", fault=self.broker.fault)

    def close(self):
        for mine, theirs in self.ends:
            for link in (mine, theirs):
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(5.0)
        for mine, theirs in self.ends:
            mine.close()
            theirs.close()


@pytest.fixture
def ranks():
    made = []

    def run(fn, size, *args, **weighing):
        made.append(Ranks(fn, size, *args, **weighing))
        return made[-1].run()

    yield run
    for one in made:
        one.close()


def of(rank, shape, dtype):
    """A tensor that differs by rank; whole numbers that every dtype here has."""
    numbers = torch.arange(1, 1 + max(1, torch.Size(shape).numel()), dtype=torch.float64) % 5 + rank % 3
    return numbers[: torch.Size(shape).numel()].reshape(shape).to(dtype)


def messages(group, shape, dtype):
    """Every kind of point-to-point call, blocking and not."""
    n, r = group.size, group.rank
    right, left, x = (r + 1) % n, (r - 1) % n, of(r, shape, dtype)
    got = [group.sendrecv(x, dst=right, src=left, like=x)]
    into = torch.zeros_like(x)
    group.sendrecv(x, dst=left, src=right, out=into)
    got.append(into)
    got += group.batch([Send(x, right), Recv(left, like=x), Send(x.clone(), left), Recv(right, like=x)])
    sending, coming = group.isend(x, right), group.irecv(left, like=x)
    got += [coming.wait(), sending.wait()]
    if r == 0:
        group.send(x, right)
        got.append(group.recv(left, like=x))
    else:
        got.append(group.recv(left, like=x))
        group.send(got[-1], right)
    return got


def moves(group, shape, dtype):
    """Collectives without arithmetic."""
    x = of(group.rank, shape, dtype)
    got = [group.all_gather(x)]
    late = group.all_gather(x, async_op=True)
    got += [group.broadcast(x.clone(), src=group.size - 1), late.wait()]
    handle = group.broadcast(x.clone(), src=0, async_op=True)
    got.append(handle.wait())
    group.barrier()
    return got


def sums(group, dtype):
    """Collectives with arithmetic."""
    n, got = group.size, []
    ops = ("sum", "max", "min", "prod") + (("mean",) if dtype.is_floating_point else ())
    for op in ops:
        got.append(group.all_reduce(of(group.rank, (7,), dtype), op=op))
        got.append(group.all_reduce(of(group.rank, (), dtype), op=op))
        got.append(group.reduce_scatter(of(group.rank, (2 * n, 3), dtype), op=op))
    first = group.all_reduce(of(group.rank, (5,), dtype), async_op=True)
    second = group.reduce_scatter(of(group.rank, (n,), dtype), async_op=True)
    return [*got, second.wait(), first.wait()]


def non_contiguous(group):
    """Every second column; the broker sees plain bytes."""
    x = torch.arange(12.0).reshape(3, 4)[:, ::2] + group.rank
    out = torch.zeros(3, 4)[:, ::2]
    group.sendrecv(x, dst=(group.rank + 1) % group.size, src=(group.rank - 1) % group.size, out=out)
    group.all_reduce(x)
    return [out, x]


FIELDS = ("index", "kind", "peer", "bytes", "dtype", "batch", "blocking", "of", "seq", "group", "label", "seconds")


def comparable(ledger):
    """A ledger without times and places. A scalar is gathered as [1], and the broker sees it so."""
    return [
        ([getattr(event, name) for name in FIELDS], tuple(event.shape) or (1,))
        for event in ledger.events
        if event.kind != "wait"
    ], [[getattr(event, name) for name in FIELDS] for event in ledger.events]


def equal(ranks, fn, size, *args):
    """On the broker as on threads: values, bit by bit, and ledgers, which are returned."""
    mine, theirs = ranks(fn, size, *args), run_ranks(fn, *args, size=size, backend="threads", timeout=20.0)
    assert not any(mine.errors), mine.errors
    for rank in range(size):
        for got, want in zip(mine.values[rank], theirs[rank], strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert got.dtype == want.dtype and got.shape == want.shape
                assert as_bytes(got.contiguous()).equal(as_bytes(want.contiguous()))
        ours, known = mine.ledgers[rank], theirs.ledgers[rank]
        assert comparable(ours) == comparable(known)
        assert all(event.end is not None for event in ours.events)
        assert (ours.sent_bytes, ours.received_bytes, ours.steps) == (
            known.sent_bytes,
            known.received_bytes,
            known.steps,
        )
    return mine.ledgers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(ranks, dtype):
    for shape in SHAPES:
        equal(ranks, messages, 3, shape, dtype)
        equal(ranks, moves, 3, shape, dtype)
    if dtype in REDUCED:
        equal(ranks, sums, 3, dtype)


@pytest.mark.parametrize(
    "program, size, more",
    [
        (messages, 2, ((6,), torch.float32)),
        (messages, 5, ((6,), torch.float32)),
        (messages, 2, ((3_000_000,), torch.float32)),  # it comes in pieces
        (sums, 1, (torch.float32,)),
        (non_contiguous, 3, ()),
    ],
)
def test_other_sizes_and_odd_memory(ranks, program, size, more):
    equal(ranks, program, size, *more)


def in_parts(group, dtype):
    """Rows and columns of 2 x 2 ranks, parts of parts, messages within them, and spans of computing between."""
    dp, tp = group.split([[0, 2], [1, 3]], "dp"), group.split([[0, 1], [2, 3]], "tp")
    x, got = of(group.rank, (4,), dtype), []
    group.compute("forward", seconds=1e-3)
    handle = dp.all_reduce(x.clone(), async_op=True)
    with group.compute("backward"):
        got.append(tp.all_gather(x, out=torch.empty(8, dtype=dtype)))
    got += [tp.reduce_scatter(x), dp.broadcast(x.clone(), src=1), tp.sendrecv(x, dst=1 - tp.rank, src=1 - tp.rank)]
    got.append(dp.split([[0], [1]], "one").all_reduce(x.clone()))
    late = dp.irecv(1, like=x) if dp.rank == 0 else dp.isend(x, 0)
    if group.rank < 2:
        tp.barrier()
    return [*got, late.wait(), handle.wait(), group.all_reduce(x.clone())]


def test_parts_and_spans(ranks):
    ledgers = equal(ranks, in_parts, 4, torch.float32)
    assert examine(ledgers) is None
    assert ledgers[3].groups == {"world": (0, 1, 2, 3), "dp": (1, 3), "tp": (2, 3), "dp/one": (3,)}
    backward, gathered = (
        next(e for e in ledgers[3].events if what in (e.label, e.kind)) for what in ("backward", "all_gather")
    )
    assert backward.begin < gathered.begin < gathered.end < backward.end


def under_way(group):
    """Spans while results are on their way, which may come before the answer that a span waits for."""
    found = []
    for step in range(5):
        handle = group.all_gather(torch.full((1000,), float(step)), async_op=True)
        group.compute(f"step {step}", seconds=0)
        with group.compute("more"):
            found.append(step)
        found.append(handle.wait())
    return found


def test_a_rank_is_weighed_at_its_spans_while_it_stands_still(ranks):
    order = []
    mine = ranks(under_way, 3, weigh=lambda rank: order.append(rank) or 100 + rank, tidy=lambda: order.append("tidy"))
    assert mine.values[2][::2] == list(range(5)) and all((x == s).all() for s, x in enumerate(mine.values[2][1::2]))
    for rank, ledger in enumerate(mine.ledgers):
        spans = [e.index for e in ledger.events if e.kind == "compute"]
        assert ledger.weighed == dict.fromkeys(spans, 100 + rank) and len(spans) == 10
    assert order.count("tidy") == 30 and order[0] == "tidy"
    assert not any(ledger.weighed for ledger in ranks(under_way, 2).ledgers), "nobody asked"


@pytest.mark.parametrize("size", [1000, 60_000, 120_000])  # the largest result finds no room in the socket
def test_what_a_rank_leaves_unread_counts_as_its_memory(size):
    ends = [socket.socketpair() for _ in range(2)]
    broker = Broker([mine for mine, _ in ends], weigh=lambda rank: 100)
    call = {"group": 0, "kind": "all_gather", "op": None, "src": None, "where": "", "blocking": True}
    whole = frame_head("coll", {**call, "dtype": "uint8", "shape": [size]}, size) + bytes(size)
    for frame in (whole, frame_head("span", {"label": "kept", "seconds": 0, "where": ""})):
        for endpoint, (mine, theirs) in zip(broker.endpoints, ends):
            mine.setblocking(False)
            theirs.sendall(frame)
            for _ in range(10):
                broker.read(endpoint)
    for endpoint, pair in zip(broker.endpoints, ends):
        assert 2 * size <= sum(endpoint.ledger.weighed.values()) < 3 * size + 20_000
        for end in pair:
            end.close()


def reads_without_a_wait(group):
    """What lies in the places of three results that are there, as later messages tell, before anybody waits; and
    then."""
    one, two = torch.zeros(3), torch.zeros(2 * group.size)
    handles = [
        group.irecv(0, out=one) if group.rank else group.isend(torch.ones(3), 1),
        group.all_gather(torch.ones(2), out=two, async_op=True),
        group.all_reduce(torch.ones(4), async_op=True),
    ]
    group.barrier()
    before = [one.sum().item(), two.sum().item()]
    reduced = handles[2].wait()
    after_another = one.sum().item()
    for handle in handles[:2]:
        handle.wait()
    return before, after_another, [one.sum().item(), two.sum().item(), reduced.sum().item()]


def test_no_result_comes_before_its_wait(ranks):
    """Who had it could leave the wait out of the ledger, and the virtual wire would hold nobody up for it."""
    mine = ranks(reads_without_a_wait, 2)
    assert mine.errors == [None, None] and mine.values[1] == ([0, 0], 0, [3, 4, 8])
    waits = [[e.of for e in ledger.events if e.kind == "wait"] for ledger in mine.ledgers]
    assert waits == [[2, 0, 1]] * 2
    assert all(e.end is not None for ledger in mine.ledgers for e in ledger.events)
    assert ranks(reads_without_a_wait, 2, off=frozenset({"waits"})).values[1][:2] == ([3, 4], 3)


def meet(group, sent, like):
    return group.send(sent, 1) if group.rank == 0 else group.recv(0, like=like)


DISAGREE = {
    "sizes": (lambda g: meet(g, torch.zeros(3), torch.zeros(4)), "[3] of float32"),
    "dtypes": (lambda g: meet(g, torch.zeros(4), torch.zeros(4).bfloat16()), "of bfloat16"),
    "collectives": (lambda g: g.barrier() if g.rank == 0 else g.all_reduce(torch.zeros(1)), "collective number 1 differs"),
    "sources": (lambda g: g.broadcast(torch.zeros(1), src=g.rank), "src 0"),
    "operations": (lambda g: g.all_reduce(torch.zeros(1), op="sum" if g.rank else "max"), "max"),
    "one part of two": (lambda g: g.split([[0], [1]] if g.rank else [[0, 1]], "a").barrier(), "split(a: 0 | 1"),
    "in a part": (lambda g: g.split([[0, 1]], "tp").all_reduce(torch.zeros(2 + g.rank)), 'of group "tp" (ranks 0 and'),
    "a message inside a part": (
        lambda g: meet(g.split([[0, 1]], "tp"), torch.zeros(3), torch.zeros(4)), 'in group "tp" (ranks 0 and 1)',
    ),
    "lengths": (lambda g: g.all_reduce(torch.zeros(2 + g.rank)), "[3] of float32"),
}  # fmt: skip


@pytest.mark.parametrize("which", DISAGREE)
def test_ranks_that_disagree_are_told_how(ranks, which):
    program, part = DISAGREE[which]
    ended = ranks(program, 2)
    assert __file__.rsplit("/", 1)[-1] in ended.broker.fault and part in ended.autopsy("mismatch").cause
    with pytest.raises(RanksFailed) as theirs:
        run_ranks(program, size=2, backend="threads", timeout=20.0)
    assert ended.autopsy("mismatch").cause == theirs.value.autopsy.cause


def both_send(group):
    """Two that both send first; the third has returned."""
    if group.rank < 2:
        group.send(torch.zeros(4), 1 - group.rank)
        group.recv(1 - group.rank, like=torch.zeros(4))


def forgotten_wait(group):
    """A handle for what is never sent."""
    if group.rank == 0:
        group.irecv(1, like=torch.zeros(2)).wait()


def crossed(group):
    """Two groups of the same ranks, called in another order by each."""
    a, b = group.split([[0, 1]], "a"), group.split([[0, 1]], "b")
    if group.rank < 2:
        for part in (a, b) if group.rank else (b, a):
            part.all_reduce(torch.zeros(4))


@pytest.mark.parametrize("program", [both_send, forgotten_wait, crossed])
def test_a_deadlock_is_told_with_ranks_and_lines(ranks, program):
    autopsy = ranks(program, 3).autopsy()
    with pytest.raises(RanksFailed) as theirs:
        run_ranks(program, size=3, backend="threads", timeout=20.0)
    assert autopsy.certain and autopsy.cause == theirs.value.autopsy.cause
    assert autopsy.edges == theirs.value.autopsy.edges and autopsy.edges
    assert f"{__file__.rsplit('/', 1)[-1]}:" in autopsy.cause + autopsy.edges[0].where


def forges(group):
    """Writes frames by hand: a call in a group of which it is no member."""
    part = group.split([[0]], "tp")
    if group.rank == 1:
        part.transport.collective(Collective("barrier"))()
    group.barrier()


def escapes(group, peer):
    """A message out of a part."""
    part = group.split([[0, 1], [2, 3]], "tp")
    if group.rank == 0:
        part.transport.post([Op("send", peer, torch.zeros(1))])()


def many(group):
    for i in range(70):
        group.split([[0]], f"part{i}")


@pytest.mark.parametrize(
    "said, program, size, more, weighing",
    [
        ("memory cannot be read", under_way, 1, (), {"weigh": lambda rank: 0, "tidy": lambda: None}),
        ('a call in group "tp", of which it is no member', forges, 2, (), {}),
        ("to nobody", escapes, 4, (2,), {}),
        ("to nobody", escapes, 4, (3,), {}),
        ("more than 32 splits", many, 1, (), {}),
    ],
)
def test_a_rule_broken_ends_the_case(ranks, said, program, size, more, weighing):
    with pytest.raises(Broken, match=said):
        ranks(program, size, *more, **weighing)


def test_what_people_read_holds_no_commands():
    dirty = "a\x1b[2Jb\rc\x00d\u202ee\u2066f\ud800g\x7fh\x85i"
    assert clean(dirty, 100) == "a\ufffd[2Jb\ufffdc\ufffdd\ufffde\ufffdf\ufffdg\ufffdh\ufffdi"
    assert clean("grün, 数, \U0001f600\n\tok", 100) == "grün, 数, \U0001f600\n\tok"
    assert clean("x" * 200, 100) == "x" * 100 + " ..."
    with pytest.raises(ValueError, match="text"):
        clean(7, 100)
