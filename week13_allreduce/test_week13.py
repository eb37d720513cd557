"""The ring's checks (13.2 to 13.4): `lab check 13.4`, `lab check week13`, or plain `pytest week13_allreduce`.

Read them: they say what is asked, and nothing is hidden. Your functions run elsewhere, called by name; only numbers and
the ledger come back here. N ranks, L numbers, C = ceil(L/N); both are drawn from the seed. The checks of 13.1 and 13.5
are in test_models.py, those of 13.6 in test_topology.py.
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from labkit.checks import CheckFailed, call, expect, same, sends, sent, task, tensors
from labkit.checks.traffic import LIBRARY
from labkit.checks.verdict import FORBIDDEN, cause_line
from labkit.comm.match import EITHER
from labkit.comm.topology import Topology
from labkit.comm.wire import replay

BF16 = torch.bfloat16
# One addition in bfloat16 (8 significant bits) is off by at most half a unit in the last place: 2**-8 of the result.
BF16_ROUNDING = 2.0**-8

# Of each kind of lengths: beside a sum of fp32, what else must keep to the ring
KINDS = {
    "two ranks and one": ("max", torch.float32),
    "even": ("any", torch.float32),
    "ragged": ("mean", BF16),
    "shorter than the ring": ("sum", BF16),
}
LONG = 1 << 18  # numbers, 1 MiB in fp32: a vector that is cut into segments takes more steps
LENGTHS = pytest.mark.parametrize("kind", KINDS)
OPS = pytest.mark.parametrize("op", ["mean", "max"])


def drawn(kind, seed, test):
    """N and L for a case, another pair for each test and seed."""
    draw = random.Random(f"{test} {kind} {seed}")
    N = {"one rank": 1, "two ranks and one": 2, "even": draw.randint(3, 5)}.get(kind, draw.randint(4, 5))
    if kind == "shorter than the ring":
        return N, draw.randint(2, N - 1)
    # three numbers more than even or four: so many must differ for a cause to be reported
    return N, N * draw.randint(50, 250) + (draw.randint(3, N - 1) if kind == "ragged" else 0)


def others(kind, L, seed):
    """What else a case sends around the ring: an operation, a dtype, a length. Any operation may be the one of the long
    vector: a sum that is short, and a maximum that is long, say nothing about a sum that is long."""
    op, dtype = KINDS[kind]
    if op == "any":
        op = random.Random(f"long {seed}").choice(("sum", "mean", "max"))
    lengths = {"even": [L + LONG], "shorter than the ring": [L, 0]}
    return [(op, dtype, length) for length in lengths.get(kind, [L])]


def rings(kind, seed, test):
    """What a case asks. One rank has nothing to do, nor has anybody with an empty vector, and who does nothing is to
    earn nothing."""
    N, L = drawn(kind, seed, test)
    more = {"two ranks and one": [drawn("one rank", seed, test)], "shorter than the ring": [(N, 1), (N, 0)]}
    return [(N, L), *more.get(kind, [])]


# ---- right answers


def reduced(x, op):
    """The right answer on every rank; for whole numbers exact, and a mean divided once."""
    total = torch.stack(x).amax(0) if op == "max" else torch.stack(x).sum(0)
    return total / len(x) if op == "mean" else total


def cancelling(seed, N, L):
    """Whole numbers, two of which almost cancel: sums are exact in fp32, and small. Whoever divides each addend by N
    rounds numbers a thousand times as large as the result. Their signs take turns: no rank has all the maxima, so that
    the maximum is nobody's own chunk."""
    x = tensors(seed, N, L)
    large = 2.0**22 * (1 - 2 * (torch.arange(L) % 2))
    x[0] += large
    x[-1] -= large
    return x


def once_divided(want):
    """Tolerance of a mean: one division, or a product with 1/N, is off by two units in the last place at most."""
    return (2.0**-22 if want.dtype == torch.float32 else 2.0**-6) * want.abs().float()


def for_op(seed, N, L, op, dtype):
    """Vectors whose sums no order of additions rounds, but who divides too early does."""
    x = cancelling(seed, N, L) if op == "mean" and dtype == torch.float32 else tensors(seed, N, L)
    return [t.fmod(16).to(dtype) if dtype == BF16 else t for t in x]


def summed_in_bf16(x):
    """The sum of bfloat16 vectors, rounded once, and the tolerance: N-1 additions, each rounded once; no partial sum is
    larger than the sum of the sizes."""
    exact, size = torch.stack(x).double().sum(0), torch.stack(x).double().abs().sum(0)
    return exact.to(BF16), len(x) * BF16_ROUNDING * size


def right(x, op):
    """The right answer for whole numbers, and its tolerance: N roundings, none larger than of the sizes' sum."""
    if op == "max":
        return reduced(x, op), torch.zeros(len(x[0]))
    every = torch.stack(x).double()
    share, rounding = len(x) if op == "mean" else 1, torch.finfo(x[0].dtype).eps / 2
    return (every.sum(0) / share).to(x[0].dtype), len(x) * rounding * every.abs().sum(0) / share


def ring_traffic(ledgers, L, causes, laps=1, itemsize=4):
    """The ring's traffic on every rank: `laps` times N-1 steps of one chunk, all of it to the right. On a wire that
    takes one second a message, it takes so many seconds."""
    N = len(ledgers)
    # A detour is one for everybody: rank 0 alone sends the same in two of them.
    causes = {text: by for text, by in causes.items() if all(sends(one) == by(r) for r, one in enumerate(ledgers))}
    for r, ledger in enumerate(ledgers):
        sent(
            ledger,
            steps=laps * (N - 1),
            at_most=itemsize * laps * (N - 1) * -(-L // N),
            to=(r + 1) % N,
            forbid=f"{LIBRARY} barrier",
            at_least=1 if L else 0,
            looks_like={text: pattern(r) for text, pattern in causes.items()},
        )
    time, steps = replay(ledgers, Topology.switch(N, 1.0, 1e18)).time, laps * (N - 1)
    message = f"the {steps} steps take the time of {time:g} messages: some rank sends first and receives then, or waits"
    expect(time < steps + 0.5, f"{message}. sendrecv does both at once", known=True)


TURNED = "the ring runs the wrong way: send to r+1, receive from r-1"
LENGTH = (
    "The neighbours are right, so like= (or out=) is wrong: it must be the chunk that comes, not the one you send. Or a "
    "step was left out: empty chunks are sent, too."
)


def on_a_ring(name, inputs, **kwargs):
    """`call`, where the failure of a run without an answer reports what its messages say of the neighbours.

    In a ring that runs the wrong way, chunks meet tensors of another length, or ranks that have ended: true, and no
    help. In one that runs the right way, another length is not the neighbours' fault."""
    try:
        return call(name, inputs, in_place="gather" not in name, shared=True, **kwargs)
    except CheckFailed as failed:
        N = len(inputs)
        talks = [(r, e) for r, ledger in enumerate(failed.ledgers) for e in ledger.events if e.peer is not None]
        ways = {(e.peer - r) % N if e.kind == "send" else (r - e.peer) % N for r, e in talks}
        if ways == {1} and any(EITHER in cause for cause in failed.cause):
            cause = tuple(cause.replace(EITHER, LENGTH) for cause in failed.cause)
            raise CheckFailed(failed.verdict, failed.text.replace(EITHER, LENGTH), cause=cause) from None
        if N < 3 or ways != {N - 1}:
            raise
        text = f"rank 0 sends to rank {N - 1}, its left neighbour, and receives from rank 1, its right one"
        raise CheckFailed(failed.verdict, f"{text}\n  {cause_line((TURNED,))}", cause=(TURNED,)) from None


def by_the_group(ledgers, held, dtype="float32"):
    """Nothing built in, and nothing past the group: with several ranks, every rank's numbers must have left it.

    held: how many numbers each rank has that others need; one number for all, or a list. dtype: x's, and so that of
    what travels."""
    for r, ledger in enumerate(ledgers):
        has = held[r] if isinstance(held, list) else held
        sent(ledger, forbid=f"{LIBRARY} barrier", at_least=1 if len(ledgers) > 1 and has else 0)
        others = ", ".join({str(event.dtype) for event in ledger.events if event.kind == "send"} - {dtype})
        expect(not others, f"rank {r} sends {others}: what travels has x's dtype, {dtype}", known=True)


# ---- what mistakes give: for causes


def lap(chunks, send, into, fold, steps=None, right=1):
    """One lap over chunks[rank][chunk], as a mistake may do it. At step s rank r sends chunk `send(r - s)` to rank
    r + right, and what comes goes to chunk `into(r - s)`, by `fold(what is there, what comes, s)`. None if lengths do
    not fit."""
    N = len(chunks)
    chunks = [list(own) for own in chunks]
    for s in range(N - 1 if steps is None else max(0, steps)):
        arriving = [chunks[(r - right) % N][send((r - right) % N - s) % N] for r in range(N)]
        for r in range(N):
            k = into(r - s) % N
            if chunks[r][k].shape != arriving[r].shape:
                return None
            chunks[r][k] = fold(chunks[r][k], arriving[r], s)
    return chunks


def before(k):
    return lambda rank: rank - k


def stored(there, comes, s):
    return comes


LAST_MISSING = "the first lap leaves chunk r your own: it is a step short or late, or its last step is not added"


LATE = "one step late: rank r ends with chunk r+1"
OWN = "your own chunk, nothing added: does the last step reach chunk r?"
OWN_UNDIVIDED = "your own chunk, nothing added and nothing divided"


def first_laps(x, op):
    """What chunks[rank][chunk] hold after a first lap with a mistake, before a mean is divided."""
    N = len(x)
    chunks = [t.tensor_split(N) for t in x]

    def add(a, b, s=0):
        return torch.maximum(a, b) if op == "max" else a + b

    def scatter(fold, **other):
        return lap(chunks, before(1), before(2), fold, **other)

    rounded = x[0].dtype != BF16
    return {
        LAST_MISSING: scatter(add, steps=N - 2),
        "what comes at the first step is not added": (
            scatter(lambda a, b, s: a if s == 0 else add(a, b)) if N > 2 else None
        ),
        "out= writes what comes over your own numbers, then it is added to itself: like= gives a new tensor": (
            scatter(lambda a, b, s: add(b, b))
        ),
        "what comes replaces your own numbers: add it": scatter(stored),
        LATE: lap(chunks, before(0), before(1), add),
        TURNED: scatter(add, right=-1) if N > 2 else None,
        "what arrives is rounded to bfloat16 before it is added: keep x's dtype": (
            scatter(lambda a, b, s: add(a, b.to(BF16).to(b.dtype))) if rounded else None
        ),
    }


def wrong_results(x, op):
    """What all of x may be for everybody, because of a mistake that has nothing to do with the ring."""
    N = len(x)
    names = {"sum": "the sum", "mean": "the mean", "max": "the maximum"}
    expected = {"sum": "the sum", "mean": "the mean", "max": "the max"}[op]
    causes = {f"{name} over the ranks, expected {expected}": reduced(x, o) for o, name in names.items() if o != op}
    if op == "mean":
        causes["the mean divided by N once more"] = reduced(x, op) / N
        shares = [(t / N).tensor_split(N) for t in x]
        parts = lap(shares, before(1), before(2), lambda a, b, s: a + b)
        causes["each addend divided by N before it is added: divide once, when the sum is complete"] = torch.cat(
            [parts[c][c] for c in range(N)]
        )
    return causes


def not_chunk_r(x, r, op="sum", after=None):
    """What rank r may have instead of chunk r of the result. `after`: what its x holds after the call, if known. Where
    it has its own chunk r, chunk r+1 shows whether the schedule is a step late or not over."""
    N, L = len(x), len(x[0])
    total = reduced(x, op)
    want, nxt = total.tensor_split(N), (r + 1) % N
    own = [t.tensor_split(N) for t in x]
    share = N if op == "mean" else 1
    whole = lap(own, before(1), before(2), lambda a, b, s: torch.maximum(a, b) if op == "max" else a + b)
    even = total[: L // N * N].tensor_split(N)[r]

    def summed(a, b):
        return torch.maximum(a, b) if op == "max" else a + b

    laps = first_laps(x, op)
    late = isinstance(after, torch.Tensor) and torch.equal(after.tensor_split(N)[nxt], laps[LATE][r][nxt])
    del laps[LAST_MISSING]
    if not late:
        del laps[LATE]
    return {
        OWN: own[r][r] / share if N > 1 and not late else None,
        OWN_UNDIVIDED: own[r][r] if op == "mean" and N > 1 and not late else None,
        "chunk r+1 without rank r+1's numbers: which chunk is complete here?": whole[r][nxt] / share if N > 1 else None,
        "chunk r+1, complete: chunk r is expected": want[nxt] if N > 1 else None,
        f"chunk r of the first {L // N * N} numbers: the remainder of {L} by {N} is ignored": even if L % N else None,
        "the whole of x, where only chunk r is expected": x[r] if N > 1 else None,
        **{text: state[r][r] / share for text, state in laps.items() if state is not None},
        "what came goes on before your own is added: only rank r+1's numbers and your own are in it": (
            summed(own[nxt][r], own[r][r]) / share if N > 2 else None
        ),
        "divided by N at every step: divide once, when the sum is complete": (
            lap(own, before(1), before(2), lambda a, b, s: (a + b) / N)[r][r] if op == "mean" and N > 2 else None
        ),
        **{text: other.tensor_split(N)[r] for text, other in wrong_results(x, op).items()},
    }


def not_reduced(x, r, op="sum"):
    """What rank r may have instead of the result of both laps."""
    N, L = len(x), len(x[0])
    own, share, want = [t.tensor_split(N) for t in x], N if op == "mean" else 1, reduced(x, op)

    def add(a, b, s):
        return torch.maximum(a, b) if op == "max" else a + b

    def gather(chunks, send=0, steps=None):
        """The second lap, after rank r divided chunk r of a mean."""
        divided = [[c / share if k == rank else c for k, c in enumerate(own)] for rank, own in enumerate(chunks)]
        return lap(divided, before(send), before(send + 1), stored, steps)

    first = lap(own, before(1), before(2), add)
    states = {
        "x as it came in, nothing added": own,
        "partial sums, only chunk r is complete: the second lap is missing": gather(first, steps=0),
        "the first lap twice: the second one copies": lap(first, before(1), before(2), add),
        "the second lap twice: nobody added": lap(own, before(0), before(1), stored),
        "the second lap is one step short: chunk r+1 never came": gather(first, steps=N - 2),
        "the second lap begins with a chunk that is not complete": gather(first, send=1),
        # Late or a step short: the second lap carries the same on.
        **{text: gather(state) for text, state in first_laps(x, op).items() if state is not None and text != LATE},
    }
    even = L // N * N
    return {
        **{text: torch.cat(state[r]) for text, state in states.items() if state is not None and N > 1},
        f"the last {L - even} numbers are still your own: the remainder of {L} by {N} is ignored": (
            torch.cat([want[:even], x[r][even:]]) if even < L else None
        ),
        **wrong_results(x, op),
    }


def patterns(N, nbytes):
    """Traffic of well-known detours: by rank [(to, bytes), ...]."""
    return {
        "all of x goes to every rank: a ring sends each neighbour one chunk a step": lambda r: [
            ((r + s) % N, nbytes) for s in range(1, N)
        ],
        "everything goes through rank 0: its wire carries N-1 whole vectors": lambda r: (
            [(p, nbytes) for p in range(1, N)] if r == 0 else [(0, nbytes)]
        ),
    }


def walk(N, L, first, steps, bytes_each=4):
    """The ring's messages, to the right: chunk rank + first, then the one before it, and so on."""
    size = [bytes_each * (L // N + (c < L % N)) for c in range(N)]
    return lambda r: [((r + 1) % N, size[(r + first - s) % N]) for s in range(steps)]


# ---- 13.2


@task("13.2", points=6)
@LENGTHS
def test_reduce_scatter(kind, seed):
    """Rank r gets chunk r of the sum"""
    for N, L in rings(kind, seed, "scatter"):
        x = tensors(seed, N, L)
        got, ledger = on_a_ring("collectives.ring_reduce_scatter", x)
        for r in range(N):
            same(
                got[r],
                reduced(x, "sum").tensor_split(N)[r],
                rank=r,
                looks_like=not_chunk_r(x, r, after=got.inputs[r][0]),
            )
        by_the_group(ledger, [L - (L == 1 and r == 0) for r in range(N)])  # chunk 0 begins on rank 1


@task("13.2", points=1, like="test_reduce_scatter")
def test_reduce_scatter_in_x(seed):
    """What comes back is chunk r of x: the same memory, of every operation"""
    N, L = drawn("ragged", seed, "scatter")
    x = tensors(seed, N, L)
    got, ledger = on_a_ring("collectives.ring_reduce_scatter", x)
    want = reduced(x, "sum").tensor_split(N)
    for r in range(N):
        same(got[r], want[r], rank=r, looks_like=not_chunk_r(x, r, after=got.inputs[r][0]))
        same(
            got.inputs[r][0].tensor_split(N)[r],
            want[r],
            rank=r,
            what="chunk r of x after the call",
            looks_like={"x is untouched: the result, which came back, is in other memory": x[r].tensor_split(N)[r]},
        )
    ops = ("sum", "mean", "max")
    got, _ = on_a_ring("scenarios.scatter_then_fill", x, number=-1.0, ops=ops)
    for r in range(N):
        expect(isinstance(got[r], list) and len(got[r]) == len(ops), "nothing came back", known=True)
        for op, chunk in zip(ops, got[r]):
            same(
                chunk,
                torch.full_like(want[r], -1.0),
                rank=r,
                what=f"chunk r of x, after -1 was written into what came back of op={op!r},",
                looks_like={"a copy came back: return the chunk of x itself": reduced(x, op).tensor_split(N)[r]},
            )
    by_the_group(ledger, L)


def in_a_part(scenario, inputs, **kwargs):
    """What a scenario gives on all ranks but the first, which stays out."""
    got, ledgers = call(scenario, [inputs[0], *inputs], **kwargs)
    for ledger in ledgers:
        built_in = [event.kind for event in ledger.events if event.kind in LIBRARY.split()]
        if built_in:
            raise CheckFailed(FORBIDDEN, f"rank {ledger.rank} calls group.{built_in[0]} in a part of the ranks")
    expect(all(isinstance(one, tuple) for one in got[1:]), "nothing came back", known=True)
    return got[1:]


@task("13.2", points=1)
def test_reduce_scatter_in_a_part(seed):
    """In a part of the ranks, in a view that is not contiguous, a second time; one rank alone, too"""
    for N, L in (drawn(kind, seed, "scatter in a part") for kind in ("ragged", "one rank")):
        x = tensors(seed, N, L)
        for r, (result, chunk, between) in enumerate(in_a_part("scenarios.scatter_in_a_part", x, number=-1.0)):
            want = reduced(x, "sum").tensor_split(N)[r]
            same(result, want, rank=r, what="what comes back for x, every second number of a tensor,")
            same(chunk, torch.full_like(want, -1.0), rank=r, what="chunk r of x, after -1 was written into that,")
            same(between, -x[r], rank=r, what="what lies between the numbers of x")


@task("13.2", points=4)
@OPS
def test_reduce_scatter_op(op, seed):
    """Other operations, in both dtypes"""
    N, k = 5, drawn("two ranks and one", seed, f"scatter {op}")[1]  # no power of two: dividing by one rounds nothing
    L = N * k + 3
    for dtype in (torch.float32, BF16):
        x = for_op(seed, N, L, op, dtype)
        got, ledger = on_a_ring("collectives.ring_reduce_scatter", x, op=op)
        for r in range(N):
            want = reduced(x, op).tensor_split(N)[r]
            same(
                got[r],
                want,
                rank=r,
                tol=once_divided(want) if op == "mean" else 0.0,
                looks_like=not_chunk_r(x, r, op, got.inputs[r][0]),
            )
        by_the_group(ledger, L, str(dtype).removeprefix("torch."))


@task("13.2", points=2)
def test_reduce_scatter_bf16(seed):
    """bfloat16 stays bfloat16"""
    N, L = drawn("ragged", seed, "scatter bf16")
    x = tensors(seed, N, L, BF16, whole=False)
    got, ledger = on_a_ring("collectives.ring_reduce_scatter", x)
    want, tol = summed_in_bf16(x)
    for r in range(N):
        same(
            got[r],
            want.tensor_split(N)[r],
            rank=r,
            tol=tol.tensor_split(N)[r],
            looks_like=not_chunk_r(x, r, after=got.inputs[r][0]),
        )
    by_the_group(ledger, L, "bfloat16")


@task("13.2", points=6, like="test_reduce_scatter")
@LENGTHS
def test_reduce_scatter_traffic(kind, seed):
    """N-1 steps of one chunk, to the right"""
    N, L = drawn(kind, seed, "scatter")
    x = tensors(seed, N, L)
    got, ledger = on_a_ring("collectives.ring_reduce_scatter", x)
    one_more = "N steps: the last one is too many, chunk r was complete before it"
    ring_traffic(ledger, L, patterns(N, 4 * L) | {one_more: walk(N, L, -1, N)})
    for r in range(N):  # junk travels as fast
        same(got[r], reduced(x, "sum").tensor_split(N)[r], rank=r, looks_like=not_chunk_r(x, r, after=got.inputs[r][0]))
    for op, dtype, length in others(kind, L, seed):
        x = tensors(seed, N, length, dtype)
        got, ledger = on_a_ring("collectives.ring_reduce_scatter", x, op=op)
        want, tol = right(x, op)
        for r, chunk in enumerate(want.tensor_split(N)):
            same(got[r], chunk, rank=r, tol=tol.tensor_split(N)[r])
        ring_traffic(ledger, length, patterns(N, dtype.itemsize * length), itemsize=dtype.itemsize)


# ---- 13.3


def shards_of(seed, N, L, dtype=torch.float32):
    """A vector and its chunks by rank."""
    whole = tensors(seed, 1, L, dtype)[0]
    return whole, list(whole.tensor_split(N))


NOTHING_STORED = "nothing that came was stored: out= receives into a chunk, like= makes a new tensor"


def not_gathered(shards, r, empty=math.nan, ledgers=None):
    """What rank r may have instead of the joined vector, in memory that held `empty`: checks fill fresh memory with
    NaN, so that what nobody stored shows. Where all of it does, the lengths that went out show which chunk went first;
    without `ledgers` the shard was in place already."""
    N, L = len(shards), sum(map(len, shards))

    def went_first(chunk):
        size = shards[0].element_size()
        return all(sends(ledger) == walk(N, L, chunk, N - 1, size)(rank) for rank, ledger in enumerate(ledgers))

    to_the_left = ledgers and {peer for peer, _ in sends(ledgers[0])} == {N - 1}
    start = [[c if k == rank else torch.full_like(c, empty) for k, c in enumerate(shards)] for rank in range(N)]
    lost = [[torch.full_like(c, empty) for c in shards]] * N  # what nobody has, nobody can pass on
    states = {
        "chunk r+1 was never stored: one step short?": lap(start, before(0), before(1), stored, N - 2),
        "your own chunk was never stored": lost if ledgers and went_first(0) else None,
        NOTHING_STORED: start,
        "the chunk that goes first is not here yet": (
            lap(start, before(1), before(2), stored) if not ledgers or went_first(-1) else None
        ),
        TURNED: lap(start, before(0), before(1), stored, right=-1) if N > 2 and to_the_left else None,
    }
    return {
        **{text: torch.cat(state[r]) for text, state in states.items() if state is not None and N > 1},
        "joined as they came, your own first: rank 0's shard stands first": torch.cat(
            [shards[(r - s) % N] for s in range(N)]
        ),
        "your own shard alone": shards[r] if N > 1 else None,
        "the chunks stand one place too far to the right": torch.cat([shards[(c - 1) % N] for c in range(N)]),
    }


@task("13.3", points=5)
@LENGTHS
def test_all_gather(kind, seed):
    """Every rank gets all chunks in rank order"""
    for N, L in rings(kind, seed, "gather"):
        whole, shards = shards_of(seed, N, L)
        got, ledger = on_a_ring("collectives.ring_all_gather", shards, numel=L)
        for r in range(N):
            # Memory that the submission zeroed itself holds zeros where nothing came, and not NaN.
            nan = not isinstance(got[r], torch.Tensor) or bool(got[r].isnan().any())
            same(got[r], whole, rank=r, looks_like=not_gathered(shards, r, math.nan if nan else 0.0, ledger))
        by_the_group(ledger, [len(shard) for shard in shards])


@task("13.3", points=1)
def test_all_gather_bf16(seed):
    """bfloat16 stays bfloat16"""
    N, L = drawn("ragged", seed, "gather bf16")
    whole, shards = shards_of(seed, N, L, BF16)
    got, ledger = on_a_ring("collectives.ring_all_gather", shards, numel=L)
    for r in range(N):
        same(got[r], whole, rank=r, looks_like=not_gathered(shards, r, ledgers=ledger))
    by_the_group(ledger, [len(shard) for shard in shards], "bfloat16")


@task("13.3", points=0.5)
def test_all_gather_in_a_part(seed):
    """In a part of the ranks, into a view that is not contiguous, by a shard behind it; a new tensor on each call"""
    for N, L in (drawn(kind, seed, "gather in a part") for kind in ("ragged", "one rank")):
        whole, shards = shards_of(seed, N, L)
        for r, answer in enumerate(in_a_part("scenarios.gather_in_a_part", shards, numel=L)):
            back, out, between, first, shard, astray = answer
            same(out, whole, rank=r, what="out, every second number of a tensor,")
            same(between, -torch.ones_like(whole), rank=r, what="what lies between the numbers of out")
            same(back, whole, rank=r, what="what came back of a call with out")
            again = {"the second call's: each call without out= makes a new tensor": -whole}
            same(first, whole, rank=r, what="the result of a call, after a second one,", looks_like=again)
            alias = {"the result is the shard itself: without out= it is a new tensor": shards[r] * 0 - 2}
            same(shard, shards[r], rank=r, what="the shard, after the result was written to,", looks_like=alias)
            text = "with a tensor that does not lie on group.device: torch.empty(...) without device= lies on the CPU"
            expect(astray == [], f"rank {r} calls its group {text}", known=True)


@task("13.3", points=0.5)
def test_all_gather_into_out(seed):
    """Into out, of which the shard is chunk r; or a part of something else, also on one rank"""
    for N, L in (drawn(kind, seed, "gather into out") for kind in ("ragged", "one rank")):
        whole, shards = shards_of(seed, N, L)
        got, ledger = on_a_ring("scenarios.gather_elsewhere", shards, numel=L)
        for r in range(N):
            expect(isinstance(got[r], tuple) and len(got[r]) == 2, "nothing came back", known=True)
            returned, out = got[r]
            came = isinstance(returned, torch.Tensor) and torch.equal(returned, whole)
            same(
                out,
                whole,
                rank=r,
                what="out after the call, where the shard is a part of another tensor,",
                looks_like={"nothing is there: the result went to other memory": torch.full_like(whole, -1.0)}
                if came
                else not_gathered(shards, r, -1.0, ledger),
            )
        by_the_group(ledger, [len(shard) for shard in shards])
    N, L = drawn("ragged", seed, "gather into out")
    whole, shards = shards_of(seed, N, L)
    got, ledger = on_a_ring("scenarios.gather_into", shards, numel=L)
    for r in range(N):
        expect(isinstance(got[r], tuple) and len(got[r]) == 3, "nothing came back", known=True)
        returned, out, after = got[r]
        came = isinstance(returned, torch.Tensor) and torch.equal(returned, whole)
        marks = not_gathered(shards, r, -1.0)
        other = {"only your own chunk is there: the result went to other memory": marks[NOTHING_STORED]}
        same(out, whole, rank=r, what="out after the call", looks_like=other if came else marks)
        same(returned, whole, rank=r, looks_like={"your own shard alone": shards[r]})
        same(
            after,
            torch.full_like(whole, -2.0),
            rank=r,
            what="out, after -2 was written into what came back,",
            looks_like={"a copy came back: return out itself": whole},
        )
    by_the_group(ledger, [len(shard) for shard in shards])


@task("13.3", points=3, like="test_all_gather")
@LENGTHS
def test_all_gather_traffic(kind, seed):
    """N-1 steps of one chunk, to the right"""
    N, L = drawn(kind, seed, "gather")
    whole, shards = shards_of(seed, N, L)
    got, ledger = on_a_ring("collectives.ring_all_gather", shards, numel=L)
    causes = {
        "all of the vector at every step: a ring sends one chunk a step": lambda r: [((r + 1) % N, 4 * L)] * (N - 1),
        "N steps: the last one brings chunk r, which is here already": walk(N, L, 0, N),
    }
    ring_traffic(ledger, L, causes)
    for r in range(N):  # junk travels as fast
        same(got[r], whole, rank=r, looks_like=not_gathered(shards, r, ledgers=ledger))
    for _, dtype, length in others(kind, L, seed):
        whole, shards = shards_of(seed, N, length, dtype)
        got, ledger = on_a_ring("collectives.ring_all_gather", shards, numel=length)
        for r in range(N):
            same(got[r], whole, rank=r, looks_like=not_gathered(shards, r, ledgers=ledger))
        ring_traffic(ledger, length, {}, itemsize=dtype.itemsize)


# ---- 13.4


@task("13.4", points=1.5)
@LENGTHS
def test_all_reduce(kind, seed):
    """Every rank gets the sum"""
    for N, L in rings(kind, seed, "reduce"):
        x = tensors(seed, N, L)
        got, ledger = on_a_ring("collectives.ring_all_reduce", x)
        for r in range(N):
            same(got[r], reduced(x, "sum"), rank=r, looks_like=not_reduced(x, r))
        by_the_group(ledger, L)


@task("13.4", points=0.5)
@OPS
def test_all_reduce_op(op, seed):
    """Other operations, in both dtypes"""
    N, k = 5, drawn("two ranks and one", seed, f"reduce {op}")[1]  # no power of two: dividing by one rounds nothing
    L = N * k + 3
    for dtype in (torch.float32, BF16):
        x = for_op(seed, N, L, op, dtype)
        got, ledger = on_a_ring("collectives.ring_all_reduce", x, op=op)
        want = reduced(x, op)
        tol = once_divided(want) if op == "mean" else 0.0
        for r in range(N):
            same(got[r], want, rank=r, tol=tol, looks_like=not_reduced(x, r, op))
        by_the_group(ledger, L, str(dtype).removeprefix("torch."))


@task("13.4", points=0.5)
def test_all_reduce_bf16(seed):
    """bfloat16 stays bfloat16, and all ranks end with the same bits"""
    N, L = drawn("ragged", seed, "reduce bf16")
    x = tensors(seed, N, L, BF16, whole=False)
    got, ledger = on_a_ring("collectives.ring_all_reduce", x)
    want, tol = summed_in_bf16(x)
    for r in range(N):
        same(got[r], want, rank=r, tol=tol, looks_like=not_reduced(x, r))
        same(got[r], got[0], rank=r, what="the result, which must be rank 0's to the last bit,")
    by_the_group(ledger, L, "bfloat16")


@task("13.4", points=0.5)
def test_all_reduce_in_a_part(seed):
    """In a part of the ranks, in a view that is not contiguous, a second time; one rank alone, too"""
    for N, L in (drawn(kind, seed, "reduce in a part") for kind in ("ragged", "one rank")):
        x = tensors(seed, N, L)
        for r, (after, between) in enumerate(in_a_part("scenarios.reduce_in_a_part", x)):
            same(after, reduced(x, "sum"), rank=r, what="x, every second number of a tensor,")
            same(between, -x[r], rank=r, what="what lies between the numbers of x")


@task("13.4", points=1, like="test_all_reduce")
def test_all_reduce_in_place(seed):
    """In place: x holds the result, and x is what comes back"""
    N, L = drawn("ragged", seed, "reduce")
    x = tensors(seed, N, L)
    got, ledger = on_a_ring("collectives.ring_all_reduce", x)
    want = reduced(x, "sum")
    for r in range(N):
        came_back = isinstance(got[r], torch.Tensor) and torch.equal(got[r], want)
        marks = not_reduced(x, r)
        same(
            got.inputs[r][0],
            want,
            rank=r,
            what="x after the call",
            looks_like={
                "x is untouched: the result, which came back, is in other memory": x[r],
                "x holds what the first lap left: the second went to other memory": marks[
                    "partial sums, only chunk r is complete: the second lap is missing"
                ],
            }
            if came_back
            else marks,
        )
    got, _ = on_a_ring("scenarios.reduce_then_fill", x, number=-1.0)
    for r in range(N):
        same(
            got[r],
            torch.full_like(x[r], -1.0),
            rank=r,
            what="x, after -1 was written into what came back,",
            looks_like={"a copy came back: return x itself": want},
        )
    by_the_group(ledger, L)


@task("13.4", points=1, like="test_all_reduce")
@LENGTHS
def test_all_reduce_traffic(kind, seed):
    """2 (N-1) steps of one chunk, to the right"""
    N, L = drawn(kind, seed, "reduce")
    x = tensors(seed, N, L)
    got, ledger = on_a_ring("collectives.ring_all_reduce", x)
    ring_traffic(ledger, L, patterns(N, 4 * L), laps=2)
    for r in range(N):  # junk travels as fast
        same(got[r], reduced(x, "sum"), rank=r, looks_like=not_reduced(x, r))
    for op, dtype, length in others(kind, L, seed):
        x = tensors(seed, N, length, dtype)
        got, ledger = on_a_ring("collectives.ring_all_reduce", x, op=op)
        want, tol = right(x, op)
        for r in range(N):
            same(got[r], want, rank=r, tol=tol)
        ring_traffic(ledger, length, patterns(N, dtype.itemsize * length), laps=2, itemsize=dtype.itemsize)
